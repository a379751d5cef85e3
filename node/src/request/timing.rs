//! When things happened in a request, and what they say of its stages.

use std::{collections::BTreeMap, time::Instant};

use scheduler::{Millis, NodeId, Segment, recover::Failure};
use tracing::Span;

use super::plan::Report;
use crate::telemetry::Hops;

/// The clocks of one request.
pub(super) struct Timing {
    began: Instant,
    step_began: Instant,
    last_token: Instant,
    /// By the layer after a segment's last: the sum of its times in decode steps, ms, and how many there are.
    stage_ms: BTreeMap<u32, (f64, u32)>,
    /// Who failed, and when the last token before it came.
    silent_since: Option<(NodeId, Instant)>,
    /// Whose shadow answered first, for the first time, and when the last token before it came.
    hedged_since: Option<(NodeId, Instant)>,
    /// The last failure that was seen, not only suspected.
    noticed: Option<(NodeId, Failure)>,
    /// For the log and traces: frames under way.
    hops: Hops,
}

impl Timing {
    /// Of a request that began at `began`.
    pub(super) fn new(began: Instant) -> Self {
        Self {
            began,
            step_began: began,
            last_token: began,
            stage_ms: BTreeMap::new(),
            silent_since: None,
            hedged_since: None,
            noticed: None,
            hops: Hops::default(),
        }
    }

    /// Time since the request began.
    pub(super) fn now(&self) -> Millis {
        Millis(self.began.elapsed().as_millis() as u64)
    }

    /// The same with fractions, ms.
    pub(super) fn elapsed_ms(&self) -> f64 {
        self.began.elapsed().as_secs_f64() * 1e3
    }

    /// A step begins now.
    pub(super) fn begin_step(&mut self) {
        self.step_began = Instant::now();
    }

    /// How long the running step has taken, ms.
    pub(super) fn step_ms(&self) -> f64 {
        self.step_began.elapsed().as_secs_f64() * 1e3
    }

    /// The output of the segment that ends with `layer` is here.
    pub(super) fn time_stage(&mut self, layer: u32) {
        let ms = self.step_ms();
        let mean = self.stage_ms.entry(layer).or_insert((0.0, 0));
        *mean = (mean.0 + ms, mean.1 + 1);
    }

    /// Milliseconds of a decode step until the output of each segment arrived; 0 where none was measured.
    pub(super) fn mean_stage_ms(&self, segments: impl Iterator<Item = Segment>) -> Vec<f64> {
        let mean = |segment: Segment| {
            let (sum, count) = self.stage_ms.get(&segment.layers.end()).copied().unwrap_or((0.0, 0));
            if count == 0 { 0.0 } else { sum / f64::from(count) }
        };
        segments.map(mean).collect()
    }

    /// A token is about to be said: notes in the report how long it took, and what it waited for.
    pub(super) fn note_token(&mut self, report: &mut Report) {
        let now = self.elapsed_ms();
        if report.said.ids.is_empty() {
            report.times.ttft_ms = now;
        } else {
            let before: f64 = report.times.ttft_ms + report.times.gaps_ms.iter().sum::<f64>();
            report.times.gaps_ms.push(now - before);
        }
        if let Some((node, since)) = self.silent_since.take() {
            report.disturbances.faults.push((node, since.elapsed().as_secs_f64() * 1e3));
        }
        if let Some((node, since)) = self.hedged_since.take() {
            report.disturbances.hedged.push((node, since.elapsed().as_secs_f64() * 1e3));
        }
        self.last_token = Instant::now();
    }

    /// A failure of `node` was seen.
    pub(super) fn notice(&mut self, node: NodeId, failure: Failure) {
        self.noticed = Some((node, failure));
    }

    /// What was last noticed, if it is of `node`; it is asked once.
    pub(super) fn take_noticed(&mut self, node: NodeId) -> Option<Failure> {
        self.noticed.take().filter(|(of, _)| *of == node).map(|(_, why)| why)
    }

    /// The next token waits for `node` since the one before it.
    pub(super) fn silent(&mut self, node: NodeId) {
        self.silent_since.get_or_insert((node, self.last_token));
    }

    /// The next token waits since now: `node` was left.
    pub(super) fn left(&mut self, node: NodeId) {
        self.silent_since.get_or_insert((node, Instant::now()));
    }

    /// The shadow of `node` answered before it.
    pub(super) fn hedged(&mut self, node: NodeId) {
        self.hedged_since.get_or_insert((node, self.last_token));
    }

    /// A frame is given to a stage; `span` makes the span that lasts until [`Timing::hop_ended`].
    pub(super) fn hop_began(&mut self, layer: u32, from: u32, span: impl FnOnce() -> Span) {
        self.hops.began(layer, from, span);
    }

    /// Its output is there.
    pub(super) fn hop_ended(&mut self, layer: u32, from: u32) {
        self.hops.ended(layer, from);
    }
}
