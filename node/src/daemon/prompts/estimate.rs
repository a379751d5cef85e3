//! What a step should take and what it took, part by part.
//!
//! A plan is honest when each of its parts is: so the prediction is kept per stage, in the form in which the requester can
//! measure it, and every finished prompt says how far off each was. What the requester sees of a stage is when the copy of
//! its output arrives, so a part is the time between two such arrivals: the hop to the stage, its visit, and the way back
//! of its copy less that of the one before. The parts sum up to the step.
//!
//! Measured visits correct what nodes claim ([`SwarmView::observe_visit`](scheduler::SwarmView::observe_visit)); what a step takes
//! at home besides layers (the head, sampling, text) is measured likewise. The first token has parts of its own: the way of
//! the leases, what opening sessions takes, and the prompt through all stages, or what is left of it behind a beginning that
//! the stages have: what that takes beside the nodes' figures, the prompts before say ([`Correction`](scheduler::correction::Correction)).
//!
//! Limits: a prompt that was moved or rerouted teaches nothing; what hops were misjudged by is taken for the visit's.

use scheduler::{LayerRange, NodeId, Segment, cost::Leg};

use crate::{
    events::{Prediction, StageRange, StageReport},
    request::Report,
};

/// Fewer steps than this say little: the first ones open streams and fault pages in.
const LEAST_STEPS: usize = 4;

/// One stage's share of a step.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Who runs what.
    pub segment: Segment,
    /// The time weight of its layers.
    pub weight: f64,
    /// From the arrival of the output before to that of its own, ms.
    pub ms: f64,
    /// The share of it that is no visit: hops and waiting, ms. Negative when the copy before had the longer way.
    pub hops_ms: f64,
    /// The share of it that is the work of others in the same passes, ms.
    pub crowding_ms: f64,
}

/// What one decode step is expected to take.
#[derive(Clone, Debug, Default)]
pub struct Expected {
    /// By segment.
    pub parts: Vec<Part>,
    /// What the requester does besides layers, ms.
    pub home_ms: f64,
    /// Asking for leases and back, to the farthest node, ms.
    pub lease_ms: f64,
    /// What opening a session takes besides, ms.
    pub opening_ms: f64,
    /// Loading layers that are on disks, while leases are asked for: at the slowest node, ms.
    pub load_ms: f64,
    /// The prompt.
    pub prompt: ExpectedPrompt,
}

/// What computing a prompt is expected to take.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ExpectedPrompt {
    /// Its tokens.
    pub tokens: u32,
    /// Of these, how many the stages have computed already.
    pub known: u32,
    /// The others through all stages by what nodes say of themselves, ms.
    pub said_ms: f64,
    /// The same by what prompts took, ms.
    pub ms: f64,
}

impl ExpectedPrompt {
    /// What nodes say that it takes where `known` tokens were computed before, ms.
    fn said_behind(&self, known: u32) -> f64 {
        let left = |known: u32| f64::from(self.tokens.saturating_sub(known).max(1));
        self.said_ms * left(known) / left(self.known)
    }

    /// Whether a prompt of which `known` tokens were computed before is the one expected: a tenth more or less is left to compute.
    fn is_like(&self, known: u32) -> bool {
        self.said_ms > 0.0 && (self.said_behind(known) / self.said_ms - 1.0).abs() <= 0.1
    }
}

/// What a finished prompt taught.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Who, the time weight of the layers, ms without hops.
    pub visits: Vec<(NodeId, f64, f64)>,
    /// What the requester did besides layers, ms.
    pub home_ms: Option<f64>,
    /// What opening the session took besides the way to the farthest node and back, ms.
    pub opening_ms: Option<f64>,
    /// What the nodes' figures say of the prompt, and what it took, ms.
    pub prompt_ms: Option<(f64, f64)>,
}

impl Expected {
    /// From the legs of one step; `back_ms` is the way of a copy from a node to the requester, `weight` the
    /// time weight of layers. Nothing but the step.
    pub fn new(
        legs: &[Leg],
        back_ms: impl Fn(NodeId) -> f64,
        weight: impl Fn(LayerRange) -> f64,
        home_ms: f64,
    ) -> Self {
        let mut before = 0.0;
        let lease_ms = legs.iter().map(|leg| 2.0 * back_ms(leg.segment.node)).fold(0.0, f64::max);
        let parts = legs.iter().map(|leg| {
            let back = back_ms(leg.segment.node);
            let detour = back - before;
            before = back;
            let cost = &leg.cost;
            let hops = cost.hop_ms + cost.transfer_ms + cost.closing_ms + cost.queue_ms;
            let (segment, weight) = (leg.segment, weight(leg.segment.layers));
            Part {
                segment,
                weight,
                ms: cost.loaded_ms() + detour,
                hops_ms: hops + detour,
                crowding_ms: cost.crowding_ms,
            }
        });
        let parts = parts.collect();
        let of = |node: NodeId| legs.iter().filter(move |leg| leg.segment.node == node);
        let loads = legs.iter().map(|leg| of(leg.segment.node).map(|leg| leg.cost.load_ms).sum());
        let load_ms = loads.fold(0.0, f64::max);
        Self { parts, home_ms, lease_ms, load_ms, ..Self::default() }
    }

    /// All of a step, ms.
    pub fn step_ms(&self) -> f64 {
        self.parts.iter().map(|part| part.ms).sum::<f64>() + self.home_ms
    }

    /// Until the first token, ms.
    pub fn ttft_ms(&self) -> f64 {
        self.opened_ms() + self.prompt.ms + self.home_ms
    }

    /// Until every stage has promised to serve, ms.
    pub fn opened_ms(&self) -> f64 {
        self.lease_ms + self.opening_ms + self.load_ms
    }

    /// Tokens per second of decoding.
    pub fn tok_s(&self) -> f64 {
        1e3 / self.step_ms().max(1e-6)
    }

    /// How the first token and the further ones of the prompt that ended with `report` came: predicted and seen, ms; zeros of
    /// what was disturbed by a fault, waited for layers to be loaded or was not like what was predicted.
    pub fn came_true(&self, report: &Report) -> [(f64, f64); 2] {
        if !self.undisturbed(report) {
            return Default::default();
        }
        let plain = self.prompt.is_like(report.cached) && self.load_ms == 0.0;
        let first = if plain { (self.ttft_ms(), report.times.ttft_ms) } else { (0.0, 0.0) };
        let further = match plain_steps(report) {
            0..LEAST_STEPS => (0.0, 0.0),
            _ => (self.step_ms(), plain_step_ms(report)),
        };
        [first, further]
    }

    /// Whether the prompt ran where it was predicted to, without a fault.
    fn undisturbed(&self, report: &Report) -> bool {
        let same = self.parts.iter().map(|part| part.segment).eq(report.segments.iter().copied());
        same && report.disturbances.faults.is_empty() && report.disturbances.hedged.is_empty()
    }

    /// What the prompt that ended with `report` taught.
    pub fn measured(&self, report: &Report) -> Measured {
        if !self.undisturbed(report) || plain_steps(report) < LEAST_STEPS {
            return Measured::default();
        }
        // What loading takes says nothing of sessions whose layers are there.
        let opening = |opened_ms: f64| (self.load_ms == 0.0).then_some((opened_ms - self.lease_ms).max(0.0));
        let said_ms = self.prompt.said_behind(report.cached);
        let prompt = |opened_ms: f64| (said_ms, (report.times.ttft_ms - opened_ms - self.home_ms).max(0.0));
        let mut measured = Measured {
            opening_ms: report.times.opened_ms.and_then(opening),
            prompt_ms: report.times.opened_ms.map(prompt),
            ..Measured::default()
        };
        let took = took(report);
        let last = self.parts.len().saturating_sub(1);
        for (at, (part, ms)) in self.parts.iter().zip(took).enumerate() {
            let Some(ms) = ms else { continue };
            if at == last {
                measured.home_ms = Some((ms - part.ms).max(0.0));
            } else {
                let seen = (ms - part.hops_ms).max(0.0);
                // What others add is priced apart, but never believed to be more than half of what was seen.
                let visit = (seen - part.crowding_ms).max(seen / 2.0);
                measured.visits.push((part.segment.node, part.weight, visit));
            }
        }
        measured
    }
}

/// Steps of one row, which is what predictions are about.
fn plain_steps(report: &Report) -> usize {
    if report.drafts.all().0 > 0 { report.times.plain.0 as usize } else { report.times.gaps_ms.len() }
}

/// What a step of one row took, ms.
fn plain_step_ms(report: &Report) -> f64 {
    match report.times.plain {
        (steps, ms) if report.drafts.all().0 > 0 => ms / f64::from(steps.max(1)),
        _ => report.times.gaps_ms.iter().sum::<f64>() / report.times.gaps_ms.len().max(1) as f64,
    }
}

/// How long each stage of a prompt took for a token, as [`Part::ms`]; the last one together with what is done at home.
fn took(report: &Report) -> Vec<Option<f64>> {
    let mut before = 0.0;
    let step = plain_step_ms(report);
    let last = report.segments.len().saturating_sub(1);
    let ends = (0..report.segments.len()).map(|at| {
        let end = if at == last { step } else { report.times.stage_ms.get(at).copied().unwrap_or(0.0) };
        (end > 0.0).then_some(end)
    });
    ends.map(|end| {
        let took = end.map(|end| (end - before).max(0.0));
        before = end.unwrap_or(before).max(before);
        took
    })
    .collect()
}

/// Who runs a segment.
pub(super) fn stage(segment: &Segment) -> StageRange {
    let layers = segment.layers;
    StageRange { node: format!("{:?}", segment.node), start: layers.start(), end: layers.end() }
}

/// The stages of a finished prompt: who, what, ms a token, and the prediction where it was for the same segment.
pub fn stages(report: &Report, plan: &Prediction) -> Vec<StageReport> {
    let last = report.segments.len().saturating_sub(1);
    let took = took(report);
    let stage = |(at, (segment, ms)): (usize, (&Segment, Option<f64>))| {
        let range = self::stage(segment);
        let same = plan.stages.iter().find(|planned| planned.range() == range);
        let home = if at == last { plan.home_ms } else { 0.0 };
        let predicted_ms = same.and_then(|planned| planned.step_ms).map(|step_ms| step_ms + home);
        StageReport { range, ms, predicted_ms, checked_by: None, checked_positions: None, near: None }
    };
    report.segments.iter().zip(took).enumerate().map(stage).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Times;
    use scheduler::cost::Cost;

    fn leg(node: u64, start: u32, end: u32, decode_ms: f64, hop_ms: f64) -> Leg {
        let layers = LayerRange::new(start, end).unwrap();
        let cost = Cost { decode_ms, hop_ms, ..Cost::default() };
        Leg { segment: Segment { node: NodeId::numbered(node), layers }, cost }
    }

    /// Home, a node 10 ms away, one 20 ms away and 15 ms from the first, home.
    fn expected() -> Expected {
        let legs = [
            leg(1, 0, 1, 1.0, 0.0),
            leg(2, 1, 4, 3.0, 10.0),
            leg(3, 4, 7, 3.0, 15.0),
            leg(1, 7, 8, 1.0, 20.0),
        ];
        let back = |node| {
            if node == NodeId::numbered(2) {
                10.0
            } else if node == NodeId::numbered(3) {
                20.0
            } else {
                0.0
            }
        };
        Expected {
            opening_ms: 3.0,
            prompt: ExpectedPrompt { tokens: 20, known: 0, said_ms: 95.0, ms: 95.0 },
            ..Expected::new(&legs, back, |layers| f64::from(layers.len()), 2.0)
        }
    }

    fn report(stage_ms: &[f64], gap: f64) -> Report {
        let segments = expected().parts.iter().map(|part| part.segment).collect();
        let times = Times { stage_ms: stage_ms.to_vec(), gaps_ms: vec![gap; 8], ..Times::default() };
        Report { times, ..Report::new(segments) }
    }

    #[test]
    fn parts_are_arrivals_and_sum_up_to_the_step() {
        let parts: Vec<f64> = expected().parts.iter().map(|part| part.ms).collect();
        assert_eq!(parts, [1.0, 23.0, 28.0, 1.0]);
        assert_eq!(expected().step_ms(), 55.0, "1 + 10 + 3 + 15 + 3 + 20 + 1 and 2 for the head");
        assert_eq!(expected().ttft_ms(), 140.0, "40 there and back, 3, 95, and 2 for the head");
    }

    #[test]
    fn what_took_longer_is_the_visit_of_who_took_longer() {
        let (two, three) = (NodeId::numbered(2), NodeId::numbered(3));
        let exact = expected().measured(&report(&[1.0, 24.0, 52.0, 0.0], 55.0));
        let me = NodeId::numbered(1);
        assert_eq!(exact.visits, [(me, 1.0, 1.0), (two, 3.0, 3.0), (three, 3.0, 3.0)]);
        assert_eq!(exact.home_ms, Some(2.0));
        let slow = expected().measured(&report(&[1.0, 31.0, 59.0, 0.0], 64.0));
        assert_eq!(slow.visits, [(me, 1.0, 1.0), (two, 3.0, 10.0), (three, 3.0, 3.0)]);
        assert_eq!(slow.home_ms, Some(4.0));
        let mut opened = report(&[1.0, 24.0, 52.0, 0.0], 55.0);
        opened.times.opened_ms = Some(47.0);
        assert_eq!(expected().measured(&opened).opening_ms, Some(7.0));
        // 47 ms to open, 2 for the head; the prompt was said to take 95.
        let mut slow = opened;
        slow.times.ttft_ms = 239.0;
        let took = expected().measured(&slow).prompt_ms;
        assert_eq!(took, Some((95.0, 190.0)));
        let prompt = ExpectedPrompt { ms: 190.0, ..expected().prompt };
        let learned = Expected { prompt, ..expected() };
        assert_eq!(learned.ttft_ms(), expected().ttft_ms() + 95.0);
        assert_eq!(learned.measured(&slow).prompt_ms, took, "by what is said, not by what was learned");
        let known = Report { cached: 12, ..slow.clone() };
        assert_eq!(expected().measured(&known).prompt_ms, Some((38.0, 190.0)), "8 of 20 tokens");
        assert_eq!(expected().came_true(&known)[0], (0.0, 0.0), "all of it was to be computed");
        let prompt = ExpectedPrompt { tokens: 20, known: 12, said_ms: 38.0, ms: 40.0 };
        let told = Expected { prompt, ..expected() };
        assert_eq!(told.measured(&known).prompt_ms, Some((38.0, 190.0)));
        assert_eq!(told.came_true(&known)[0], (85.0, 239.0), "what is known was counted on");
        assert_eq!(expected().came_true(&slow), [(140.0, 239.0), (55.0, 55.0)]);
        let known = Report { cached: 3, ..report(&[1.0, 24.0, 52.0, 0.0], 57.0) };
        assert_eq!(expected().came_true(&known), [(0.0, 0.0), (55.0, 57.0)], "the beginning was known");
        let cold = Expected { load_ms: 500.0, ..expected() };
        assert_eq!((cold.opened_ms(), cold.ttft_ms(), cold.step_ms()), (543.0, 640.0, 55.0));
        assert_eq!((cold.measured(&slow).opening_ms, cold.came_true(&slow)[0]), (None, (0.0, 0.0)));
        let mut moved = report(&[1.0, 24.0, 52.0, 0.0], 55.0);
        moved.disturbances.faults.push((two, 100.0));
        assert_eq!(expected().measured(&moved), Measured::default());
        assert_eq!(expected().came_true(&moved), [(0.0, 0.0); 2], "a fault says nothing of the next one");
    }
}
