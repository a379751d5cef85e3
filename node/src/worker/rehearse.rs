//! What entering a worker costs, measured as a job pays it.
//!
//! The child measures its layers in a tight loop, with threads awake and weights at hand. A job comes once a token: it is
//! framed, crosses to a child that sleeps, is unpacked, computed with threads that must wake, packed and brought back. All
//! that is the visit. On a small model it is most of a step, so it is rehearsed: single rows through the worker as a
//! session's would go, with [`REST`] between them. What a run took beyond the layers' own time is the visit, and what one
//! through the head took beyond the visit is the head, sampling and text included. Medians count, and only where they are
//! more than what the tight loop found: less is noise, from a machine that was busier then.
//!
//! Limits: a worker that asks other nodes for experts is not rehearsed, since they are not found yet; caches are short and no session computes here yet; [`RUNS`] runs of each, none begun after [`BUDGET`]. A worker
//! that does not take the rehearsal (a tokenizer that cannot be used, say), or is not back with a row after [`PATIENCE`], keeps
//! what was measured before.

use std::time::{Duration, Instant};

use p2p::codec::{self, Rounding, Wire};
use scheduler::{LayerRange, SessionId, SessionKind};
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};

use super::{
    Body, Conduct, DraftIds, Fault, Job, JobInput, OpenSession, Output, Ready, Spec, Want, Worker, spawn,
};

/// Layers of the visit.
const FEW: u32 = 4;
/// Runs that count; one before them wakes what sleeps only once.
const RUNS: usize = 9;
/// Between two runs: longer than threads stay awake for the next job, shorter than a token takes on most swarms.
const REST: Duration = Duration::from_millis(4);
/// No further run starts after this.
const BUDGET: Duration = Duration::from_millis(150);
/// A row that is not back after this is not waited for, and nothing more is rehearsed: a machine so busy would teach
/// nothing, and a node should start.
const PATIENCE: Duration = Duration::from_secs(10);
/// No session has this name while a worker is new.
const SESSION: SessionId = SessionId::new([0xff; 16]);

/// What the rehearsal of a worker found, ms; `None` where the layers for it are not here, or it was not taken.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Rehearsed {
    /// Entering with a row, whatever the number of layers.
    pub visit_ms: Option<f64>,
    /// Entering with a row and leaving with a token: the visit, the head, sampling and text.
    pub visit_and_head_ms: Option<f64>,
}

impl Rehearsed {
    /// Corrects what was measured without jobs.
    fn correct(&self, ready: &mut Ready) {
        let times = &mut ready.times;
        times.visit_ms = self.visit_ms.unwrap_or(0.0).max(times.visit_ms);
        times.head_ms = self.visit_and_head_ms.map_or(0.0, |both| both - times.visit_ms).max(times.head_ms);
    }
}

/// Starts a worker whose [`Ready`] says what a visit and the head cost as jobs pay them.
///
/// # Errors
/// As [`spawn`].
pub async fn spawn_rehearsed(spec: Spec) -> Result<(Worker, Ready, mpsc::Receiver<Output>), Fault> {
    let leads = spec.experts.as_ref().is_some_and(|share| share.asks.is_some());
    let (worker, mut ready, mut outputs) = spawn(spec).await?;
    if leads {
        return Ok((worker, ready, outputs));
    }
    rehearse(&worker, &ready, &mut outputs).await?.correct(&mut ready);
    Ok((worker, ready, outputs))
}

/// Rehearses a worker that no session uses yet.
///
/// # Errors
/// [`Fault::Dead`] when it dies of it, [`Fault::Busy`] when a session uses it.
pub async fn rehearse(
    worker: &Worker,
    ready: &Ready,
    outputs: &mut mpsc::Receiver<Output>,
) -> Result<Rehearsed, Fault> {
    let mut stage = Rehearsal { worker, ready, outputs, late: false };
    let (visit_ms, visit_and_head_ms) = (stage.visit_ms().await?, stage.visit_and_head_ms().await?);
    Ok(Rehearsed { visit_ms, visit_and_head_ms })
}

struct Rehearsal<'a> {
    worker: &'a Worker,
    ready: &'a Ready,
    outputs: &'a mut mpsc::Receiver<Output>,
    /// A row is still under way, and would be taken for the next one.
    late: bool,
}

impl Rehearsal<'_> {
    /// What a row through some layers takes beyond the layers, ms; `None` where none but the last layer is here.
    async fn visit_ms(&mut self) -> Result<Option<f64>, Fault> {
        let body = |range: &LayerRange| {
            LayerRange::new(range.start(), range.end().min(self.ready.num_layers.saturating_sub(1)))
        };
        let Some(most) = self.ready.layers.iter().filter_map(body).max_by_key(|range| range.len()) else {
            return Ok(None);
        };
        let layers = LayerRange::new(most.start(), most.end().min(most.start() + FEW)).unwrap_or(most);
        self.beyond_ms(layers, None, Want::Activations).await
    }

    /// What a visit takes that ends in the head, ms; `None` where that is not here.
    async fn visit_and_head_ms(&mut self) -> Result<Option<f64>, Fault> {
        let end = self.ready.num_layers;
        let holds = self.ready.layers.iter().any(|range| range.contains(end.saturating_sub(1)));
        let Some(layers) = LayerRange::new(end.saturating_sub(1), end).filter(|_| holds && !self.late) else {
            return Ok(None);
        };
        let conduct = Conduct { history: vec![0], prompt_tokens: 1, ..Conduct::default() };
        self.beyond_ms(layers, Some(conduct), Want::Sample).await
    }

    /// The usual time of one row through `layers`, less what the layers were measured to take, ms.
    async fn beyond_ms(
        &mut self,
        layers: LayerRange,
        conduct: Option<Conduct>,
        want: Want,
    ) -> Result<Option<f64>, Fault> {
        let open = OpenSession {
            session: SESSION,
            epoch: 1,
            layers,
            positions: 1,
            at: 0,
            rounding: Rounding::NONE,
            kind: SessionKind::DEFAULT,
            kept: Vec::new(),
            conduct,
        };
        match self.worker.open(open).await {
            Ok(_) => {}
            Err(Fault::Dead(why)) => return Err(Fault::Dead(why)),
            Err(fault) => {
                tracing::debug!(%layers, %fault, "not rehearsed");
                return Ok(None);
            }
        }
        let times = self.runs(layers, want).await;
        self.worker.close(SESSION);
        let usual_ms = times?.map(|mut times| {
            times.sort_unstable_by(f64::total_cmp);
            times[times.len() / 2]
        });
        Ok(usual_ms.map(|ms| (ms - self.ready.times.decode_ms * self.ready.weight(layers)).max(0.0)))
    }

    async fn runs(&mut self, layers: LayerRange, want: Want) -> Result<Option<Vec<f64>>, Fault> {
        let mut times = Vec::with_capacity(RUNS);
        let started = Instant::now();
        for run in 0..=RUNS {
            let job = Job {
                session: SESSION,
                epoch: 1,
                layer: layers.start(),
                from: 0,
                rows: 1,
                input: self.row(layers),
                want,
                attempt: 0,
                draft: DraftIds::default(),
                foresee: 0,
            };
            let asked = Instant::now();
            self.worker.run(job)?;
            let Ok(output) = timeout(PATIENCE, self.outputs.recv()).await else {
                self.late = true;
                tracing::warn!(%layers, "a single row took too long: not rehearsed");
                return Ok(None);
            };
            let ms = asked.elapsed().as_secs_f64() * 1e3;
            match output.map(|output| output.body) {
                Some(Body::Activations(..) | Body::Sampled { .. }) => {}
                Some(_) => return Ok(None),
                None => return Err(Fault::Dead("it ended while it was measured".into())),
            }
            if run > 0 {
                times.push(ms);
                if started.elapsed() > BUDGET {
                    break;
                }
            }
            sleep(REST).await;
        }
        Ok(Some(times))
    }

    /// A row that could come in: small values of both signs.
    fn row(&self, layers: LayerRange) -> JobInput {
        if layers.start() == 0 {
            return JobInput::Tokens(vec![0]);
        }
        let values: Vec<f32> =
            (0..self.ready.hidden).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
        let mut bytes = Vec::new();
        // Raw takes any finite values.
        let _ = codec::encode(Wire::Raw, values.len(), &values, &mut bytes);
        JobInput::Wire(Wire::Raw, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Times, *};

    #[test]
    fn a_rehearsal_finds_more_or_nothing() {
        let measured = Ready {
            times: Times { visit_ms: 0.5, head_ms: 0.25, ..Times::default() },
            ..Ready::absent(Default::default(), String::new(), 1)
        };
        let after = |visit_ms, visit_and_head_ms| {
            let mut ready = measured.clone();
            Rehearsed { visit_ms, visit_and_head_ms }.correct(&mut ready);
            (ready.times.visit_ms, ready.times.head_ms)
        };
        assert_eq!(after(Some(2.0), Some(3.5)), (2.0, 1.5));
        assert_eq!(after(None, None), (0.5, 0.25), "not taken");
        assert_eq!(after(Some(0.0), Some(0.0)), (0.5, 0.25), "the loop ran while the machine was busy");
        assert_eq!(after(None, Some(2.0)), (0.5, 1.5), "nothing but the last layer");
    }
}
