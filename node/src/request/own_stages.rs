//! The own worker: first and last layers, and the tokens.

use std::{collections::VecDeque, time::Duration};

use scheduler::{LayerRange, Segment, recover::Failure};
use tokio::time::timeout;

use super::{lease::LEASE_MS, state::RequestState};
use crate::{
    sessions::{JOBS_AHEAD, Order},
    worker::{Conduct, DraftIds, Job, JobInput, OpenSession, Want},
};

/// What the own worker has to do for one request.
#[derive(Default)]
pub(super) struct OwnStages {
    /// Jobs that wait for their turn.
    waiting: VecDeque<Job>,
    running: usize,
    running_epoch: u32,
    /// The step whose sample was asked for: its epoch, attempt and positions.
    sampling: Option<(u32, u16, u32)>,
}

impl OwnStages {
    /// Whether it computes.
    pub(super) fn is_busy(&self) -> bool {
        self.running > 0
    }

    /// A stage, of this node or another, is asked to serve under `epoch`: what was asked under an earlier one is over.
    pub(super) fn enter(&mut self, epoch: u32) {
        self.sampling = None;
        self.waiting.retain(|job| job.epoch == epoch);
        if self.running_epoch != epoch {
            // What was under way belongs to the epoch before; the worker drops it without an answer.
            (self.running_epoch, self.running) = (epoch, 0);
        }
    }

    /// A job is done.
    pub(super) fn ended(&mut self) {
        self.running = self.running.saturating_sub(1);
    }

    /// What was to be drawn is not: a replay asks for it again.
    pub(super) fn draw_again(&mut self) {
        self.sampling = None;
    }

    /// Asks the own worker to serve a segment.
    pub(super) fn open(
        state: &RequestState,
        stage: Option<usize>,
        epoch: u32,
        segment: Segment,
        (positions, at): (u32, u32),
    ) {
        let (orders, node, layers) = (state.orders.clone(), segment.node, segment.layers);
        let last = layers.end() == state.num_layers();
        let history = state.tokens.clone();
        let open = OpenSession {
            session: state.place(),
            epoch,
            layers,
            positions,
            at,
            rounding: state.plan.form.rounding.clone(),
            kind: state.plan.form.kind,
            kept: state.recalled.homes(),
            conduct: last.then(|| Conduct { history, ..state.plan.conduct.clone() }),
        };
        let assigned = state.means.worker.clone();
        assigned.enter(state.place(), epoch);
        tokio::spawn(async move {
            let worker = timeout(Duration::from_millis(LEASE_MS), assigned.running()).await;
            let answer = match worker.ok().flatten() {
                Some(worker) => worker.open(open).await.map_err(|_| Failure::Refused),
                None => Err(Failure::Late),
            };
            let _ = orders.send(Order::Opened { stage, epoch, layers, node, answer, load: None }).await;
        });
    }

    pub(super) fn run(
        &mut self,
        state: &RequestState,
        layers: LayerRange,
        epoch: u32,
        from: u32,
        rows: u32,
        input: JobInput,
    ) {
        let (attempt, drafted) = (state.machine.attempt(), state.machine.drafted());
        let reach = state.tokens.len() as u32 + drafted;
        let last = layers.end() == state.num_layers();
        let step = (epoch, attempt, reach);
        // With a draft a token is drawn after each of the step's rows, which come together.
        let complete = from + rows == reach && (drafted == 0 || rows == drafted + 1);
        let (want, draft) = if !last {
            (Want::Activations, &[][..])
        } else if complete && self.sampling != Some(step) {
            self.sampling = Some(step);
            (Want::Sample, &state.drafts.tokens()[..drafted as usize])
        } else {
            (Want::Nothing, &[][..])
        };
        self.waiting.push_back(Job {
            session: state.place(),
            epoch,
            layer: layers.start(),
            from,
            rows,
            input,
            want,
            attempt,
            draft: DraftIds(draft.to_vec()),
            foresee: if last { state.drafts.foresees() } else { 0 },
        });
        // At once: what came in is checked and told while the worker computes.
        self.feed(state);
    }

    /// Keeps the own worker busy without filling its queue.
    pub(super) fn feed(&mut self, state: &RequestState) {
        while self.running < JOBS_AHEAD
            && let Some(job) = self.waiting.pop_front()
        {
            let worker = state.means.worker.get();
            if worker.run(job).is_err() {
                let _ = state.orders.try_send(Order::Workless);
                return;
            }
            self.running += 1;
        }
    }
}
