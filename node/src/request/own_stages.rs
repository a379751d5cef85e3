//! The own worker: first and last layers, and the tokens.

use bytes::Bytes;
use scheduler::{LayerRange, recover::Failure, session::Event};

use super::{Progress, RequestDriver, draft::Drawn, frames::Given};
use crate::{
    sessions::{JOBS_AHEAD, Order},
    worker::{Body, DraftIds, Job, JobInput, Output, Sampled, Want},
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
        let (attempt, drafted) = (self.machine.attempt(), self.machine.drafted());
        let reach = self.tokens.len() as u32 + drafted;
        let last = layers.end() == self.machine_layers();
        let step = (epoch, attempt, reach);
        // With a draft a token is drawn after each of the step's rows, which come together.
        let complete = from + rows == reach && (drafted == 0 || rows == drafted + 1);
        let (want, draft) = if !last {
            (Want::Activations, &[][..])
        } else if complete && self.sampling != Some(step) {
            self.sampling = Some(step);
            (Want::Sample, &self.drafts.tokens()[..drafted as usize])
        } else {
            (Want::Nothing, &[][..])
        };
        self.waiting.push_back(Job {
            session: self.place(),
            epoch,
            layer: layers.start(),
            from,
            rows,
            input,
            want,
            attempt,
            draft: DraftIds(draft.to_vec()),
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

    /// The own worker drew the next tokens.
    fn next_tokens(&mut self, epoch: u32, sampled: Vec<Sampled>) -> Vec<Event> {
        let (Some(first), Some(last)) = (sampled.first(), sampled.last()) else { return Vec::new() };
        let (position, to, stop) = (first.position, last.position, last.stop);
        let (attempt, drafted) = (self.machine.attempt(), self.machine.drafted());
        let ids: Vec<u32> = sampled.iter().map(|token| token.id).collect();
        let count = ids.len() as u32;
        let certain = last.forced.0.clone();
        self.report.met = last.met.clone();
        // The tokens known until now end the prompt, or a step.
        let ms = (!self.report.ids.is_empty()).then(|| self.step_began.elapsed().as_secs_f64() * 1e3);
        if let Some(ms) = ms.filter(|_| drafted == 0) {
            self.report.plain = (self.report.plain.0 + 1, self.report.plain.1 + ms);
        }
        self.settle_draft(Drawn { confirmed: to, drafted, right: count - 1, stop, ms });
        let said = sampled.into_iter().map(|token| {
            let Sampled { position, id, text, ends_turn, bytes, logprob, top, prompt, .. } = token;
            (Progress::Token { position, id, text, bytes, logprob, top, prompt }, ends_turn)
        });
        self.sampled = said.collect();
        let ends = stop || self.report.ids.len() as u32 + count >= self.plan.max_tokens;
        let context: Vec<u32> = self.tokens.iter().chain(&ids).copied().collect();
        let draft = if ends { 0 } else { self.drafts.propose(&context, &certain) };
        let tokens = Event::Tokens { epoch, attempt, position, tokens: ids, stop, draft };
        if ends { self.hold_last(tokens, to) } else { vec![tokens] }
    }

    /// A step was drawn: rows that are confirmed stay, and the others leave the logs.
    fn settle_draft(&mut self, step: Drawn) {
        let rivals = self.drafts.drawn(step);
        if step.right < step.drafted {
            self.forget_rows(step.confirmed);
        }
        self.logs.set_tentative(None);
        for (layers, node) in rivals {
            self.report.evidence += 1;
            tracing::warn!(%layers, %node, "two answers for one position differ");
            self.rivaled(layers, node);
        }
    }

    /// Rows from position `from` on leave the logs, and are fed again once they are there again.
    pub(super) fn forget_rows(&mut self, from: u32) {
        self.logs.cut(from);
        self.fed.values_mut().for_each(|fed| *fed = (*fed).min(from));
    }

    /// The own worker answered.
    pub(super) fn output(&mut self, output: Output) -> Vec<Event> {
        if output.epoch != self.machine.epoch() {
            return Vec::new();
        }
        self.running = self.running.saturating_sub(1);
        self.hops.ended(output.layers.start(), output.from);
        let Some(stage) = self.stage_from(output.layers.start()) else { return Vec::new() };
        match output.body {
            Body::Activations(wire, bytes) => self.boundary(
                stage,
                self.means.me,
                Given {
                    layer: output.layers.end(),
                    attempt: output.attempt,
                    from: output.from,
                    rows: output.rows,
                    wire,
                    bytes: Bytes::from(bytes),
                },
            ),
            // What was drawn in an abandoned attempt may follow from rejected rows.
            Body::Sampled(_) if output.attempt != self.machine.attempt() => Vec::new(),
            Body::Sampled(sampled) => {
                if output.rows == 1 && self.machine.drafted() == 0 {
                    self.time_stage(output.layers.end());
                }
                self.next_tokens(output.epoch, sampled)
            }
            Body::NeedReplay { have } => {
                // What was to be drawn behind these rows is not: the replay asks for it again.
                self.sampling = None;
                self.recalled.has(have);
                vec![Event::NeedReplay { stage, epoch: output.epoch, have }]
            }
            Body::Failed(why) => {
                tracing::warn!(why, "the own worker failed");
                self.failed(self.means.me, Failure::Crashed)
            }
            Body::Nothing => Vec::new(),
        }
    }
}
