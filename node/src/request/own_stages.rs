//! The own worker: first and last layers, and the tokens.

use bytes::Bytes;
use scheduler::{LayerRange, recover::Failure, session::Event};

use super::{Progress, RequestDriver};
use crate::{
    sessions::{JOBS_AHEAD, Order},
    worker::{Body, Job, JobInput, Output, Want},
};

impl RequestDriver {
    pub(super) fn run_at_home(
        &mut self,
        layers: LayerRange,
        epoch: u32,
        from: u32,
        rows: u32,
        input: JobInput,
    ) {
        let known = self.tokens.len() as u32;
        let last = layers.end() == self.machine_layers();
        let want = if !last {
            Want::Activations
        } else if from + rows == known && self.sampling != Some((epoch, known)) {
            self.sampling = Some((epoch, known));
            Want::Sample
        } else {
            Want::Nothing
        };
        self.waiting.push_back(Job {
            session: self.plan.session,
            epoch,
            layer: layers.start(),
            from,
            rows,
            input,
            want,
        });
        // At once: what came in is checked and told while the worker computes.
        self.feed_worker();
    }

    /// Keeps the own worker busy without filling its queue.
    pub(super) fn feed_worker(&mut self) {
        while self.running < JOBS_AHEAD
            && let Some(job) = self.waiting.pop_front()
        {
            let worker = self.means.worker.borrow().clone();
            if worker.run(job).is_err() {
                let _ = self.orders.try_send(Order::Workless);
                return;
            }
            self.running += 1;
        }
    }

    /// The own worker answered.
    pub(super) fn output(&mut self, output: Output) -> Vec<Event> {
        if output.epoch != self.machine.epoch() {
            return Vec::new();
        }
        self.running = self.running.saturating_sub(1);
        self.hops.ended(output.layers.start(), output.from);
        let Some(stage) = self.stage_from(output.layers.start()) else { return Vec::new() };
        let to = output.from + output.rows;
        match output.body {
            Body::Activations(wire, bytes) => self.boundary(
                stage,
                self.means.me,
                output.layers.end(),
                output.from,
                output.rows,
                wire,
                Bytes::from(bytes),
            ),
            Body::Sampled { id, text, stop, met, ends_turn, bytes, logprob, top, .. } => {
                let said = Progress::Token { position: to, id, text, bytes, logprob, top };
                self.report.met = met;
                if output.rows == 1 {
                    self.time_stage(output.layers.end());
                }
                self.sampled = Some((said, ends_turn));
                let token = Event::Token { epoch: output.epoch, position: to, token: id, stop };
                let most = self.report.ids.len() as u32 + 1 >= self.plan.max_tokens;
                if stop || most { self.hold_last(token, to) } else { vec![token] }
            }
            Body::NeedReplay { have } => vec![Event::NeedReplay { stage, epoch: output.epoch, have }],
            Body::Failed(why) => {
                tracing::warn!(why, "the own worker failed");
                self.failed(self.means.me, Failure::Crashed)
            }
            Body::Nothing => Vec::new(),
        }
    }
}
