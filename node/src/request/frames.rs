//! Frames out and in: prefill, decode and replay are one thing.

use bytes::Bytes;
use p2p::{codec::Wire, wire::frame::Kind};
use scheduler::{LayerRange, NodeId, Segment, recover::Failure, session::Event};

use super::{CHUNK_ROWS, RequestDriver, draft::Drawn, plan::Progress, replay_log::Added};
use crate::{
    sessions::Arrival,
    worker::{Body, JobInput, Output, Sampled},
};

/// Rows that a stage gave.
pub(super) struct Given {
    /// The layer they enter.
    pub(super) layer: u32,
    /// Under which attempt of the epoch.
    pub(super) attempt: u16,
    /// Position of the first.
    pub(super) from: u32,
    /// How many.
    pub(super) rows: u32,
    /// In which form.
    pub(super) wire: Wire,
    /// One after the other.
    pub(super) bytes: Bytes,
}

impl Given {
    /// Those of them at positions below `to`, if there are any.
    fn below(mut self, to: u32) -> Option<Self> {
        let rows = to.saturating_sub(self.from).min(self.rows);
        let row = self.bytes.len() / self.rows.max(1) as usize;
        self.bytes.truncate(row * rows as usize);
        self.rows = rows;
        (rows > 0).then_some(self)
    }
}

impl RequestDriver {
    /// Sends the inputs `[from, to)` of a stage: tokens to the first, the log to any other.
    pub(super) fn send(&mut self, stage: usize, epoch: u32, node: NodeId, from: u32, to: u32) {
        let Some(segment) = self.state.segment(stage) else { return };
        self.state.note_send(epoch, node, from, to);
        if stage == 0 {
            self.state.timing.begin_step();
            let opened_ms = self.state.timing.elapsed_ms();
            self.state.report.times.opened_ms.get_or_insert(opened_ms);
        }
        if node != segment.node {
            if self.state.followers.fed(node, segment.layers.start()).is_none() {
                return;
            }
            // A hedge: the follower must first have all that came before.
            self.state.feed(node, segment.layers.start(), epoch, from);
        }
        let mut at = from;
        while at < to {
            let rows = if self.state.plan.form.whole { to - at } else { CHUNK_ROWS.min(to - at) };
            self.state.hop_began(Segment { node, ..segment }, at, rows);
            if segment.layers.start() == 0 {
                let ids = self.state.tokens.iter().chain(self.state.drafts.tokens());
                let ids = ids.skip(at as usize).take(rows as usize).copied().collect();
                self.own.run(&self.state, segment.layers, epoch, at, rows, JobInput::Tokens(ids));
            } else if let Some((wire, bytes)) = self.state.logs.get(segment.layers.start(), at, rows) {
                self.give(node, segment.layers, epoch, at, rows, wire, bytes);
            }
            at += rows;
        }
        if node != segment.node && self.state.machine.drafted() == 0 {
            // The follower has had these, too. Drafted rows it is given again once they are confirmed.
            let start = segment.layers.start();
            let had = to.min(self.state.logs.reached(start));
            if let Some(fed) = self.state.followers.fed(node, start) {
                self.state.followers.set_fed(node, start, had.max(fed));
            }
        }
    }

    /// Gives inputs to the node that runs `layers`.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn give(
        &mut self,
        node: NodeId,
        layers: LayerRange,
        epoch: u32,
        from: u32,
        rows: u32,
        wire: Wire,
        bytes: Bytes,
    ) {
        if node == self.state.means.me {
            self.own.run(&self.state, layers, epoch, from, rows, JobInput::Wire(wire, bytes.to_vec()));
        } else {
            self.state.frame(node, Kind::Activations, layers.start(), epoch, from, rows, wire, bytes);
        }
    }

    /// A stage's frame came in.
    pub(super) fn arrival(&mut self, arrival: Arrival) -> Vec<Event> {
        let (from, header, payload) = match arrival {
            // Counted until here: what is made of it belongs to the log.
            Arrival::Frame { from, header, payload } => (from, header, payload.into_parts().0),
            // The connection's end is told apart from a stream's: the machine hears of it through `lost`.
            Arrival::Ended { .. } => return Vec::new(),
            Arrival::Began { from, epoch } => {
                self.state.outboxes.began(from, epoch);
                return Vec::new();
            }
        };
        if header.epoch != self.state.machine.epoch() {
            return Vec::new();
        }
        self.state.report.wire_bytes.1 += payload.len() as u64;
        let epoch = header.epoch;
        let stage = match header.kind {
            Kind::Activations => self.state.stage_to(header.layer),
            _ => self.state.stage_from(header.layer),
        };
        // A third holder has a say in a dispute and none in the answer.
        let third = header.kind == Kind::Commit && self.checks.is_third(header.layer, from);
        let Some(stage) = stage.filter(|stage| third || self.state.may_speak(*stage, from)) else {
            return Vec::new();
        };
        match header.kind {
            Kind::Activations => self.boundary(
                stage,
                from,
                Given {
                    layer: header.layer,
                    attempt: header.attempt,
                    from: header.from,
                    rows: header.rows,
                    wire: header.wire,
                    bytes: Bytes::from(payload),
                },
            ),
            Kind::NeedReplay if self.state.segment(stage).is_some_and(|segment| segment.node == from) => {
                self.state.recalled.has(header.from);
                vec![Event::NeedReplay { stage, epoch, have: header.from }]
            }
            Kind::Commit => self.checks.committed(&mut self.state, stage, from, header, &payload),
            // A shadow that computes says nothing about the stage it follows.
            Kind::Beacon if self.state.segment(stage).is_some_and(|segment| segment.node == from) => {
                vec![Event::Beacon { stage, epoch }]
            }
            Kind::Waits if self.state.segment(stage).is_some_and(|segment| segment.node == from) => {
                let given_here = self.state.is_given_here(stage);
                vec![Event::Waits { stage, epoch, have: header.from, given_here }]
            }
            // It computes; whom it cannot reach is likelier to be gone than it is to lie.
            Kind::Unreachable => match self.state.segment(stage + 1) {
                Some(next) if next.node != self.state.means.me => {
                    self.state.means.feedback.apart(from, next.node);
                    self.state.failed(next.node, Failure::Closed)
                }
                _ => Vec::new(),
            },
            Kind::Garbled if self.state.segment(stage).is_some_and(|segment| segment.node == from) => {
                self.checks.called_garbled(&mut self.state, stage, header.layer, header.from)
            }
            Kind::Failed => {
                tracing::info!(node = %from, why = %String::from_utf8_lossy(&payload), "a stage failed");
                self.state.failed(from, Failure::Crashed)
            }
            _ => Vec::new(),
        }
    }

    /// The output of a stage is here: log it, pass it on where that is ours to do.
    pub(super) fn boundary(&mut self, stage: usize, node: NodeId, given: Given) -> Vec<Event> {
        let epoch = self.state.machine.epoch();
        let current = given.attempt == self.state.machine.attempt();
        let valid = self.state.machine.valid_below(given.attempt);
        let given = if current { Some(given) } else { given.below(valid) };
        let Some(Given { layer, attempt, from, rows, wire, bytes }) = given else { return Vec::new() };
        if from.saturating_add(rows) > self.state.tokens.len() as u32 + self.state.machine.drafted() {
            return self.state.failed(node, Failure::Corrupt);
        }
        let before = self.state.logs.reached(layer);
        let Some(Added { reached, differs }) = self.state.logs.add(layer, from, rows, wire, &bytes, node)
        else {
            return self.checks.nonsense(&mut self.state, node);
        };
        let contradicted = self.checks.contradicted(&mut self.state, stage + 1);
        if !contradicted.is_empty() {
            return contradicted;
        }
        if let Some(position) = differs
            && !self.state.plan.checking.approx.contains(&node)
            && self
                .state
                .logs
                .author(layer, from)
                .is_none_or(|author| !self.state.plan.checking.approx.contains(&author))
        {
            // The same inputs gave other bits. The first answer stands: it was used. Of a draft it counts once that is confirmed.
            if let Some(segment) = self.state.segment(stage) {
                if self.state.logs.is_tentative(position) {
                    self.state.drafts.rivaled(segment.layers, node, position);
                } else {
                    self.state.report.findings.evidence += 1;
                    tracing::warn!(stage, layer, position, "two answers for one position differ");
                    self.checks.rivaled(&self.state, segment.layers, node);
                }
            }
        }
        if current && rows == 1 && self.state.machine.drafted() == 0 {
            self.state.timing.time_stage(layer);
        }
        if let Some(segment) = self.state.segment(stage) {
            self.state.timing.hop_ended(segment.layers.start(), from);
        }
        // Rows of an abandoned attempt are for the log alone.
        let next = self.state.segment(stage + 1).filter(|_| current);
        if let Some(next) = next {
            self.state.hop_began(next, from, rows);
        }
        // A stage takes frames from the one before it and from here: of a hedge it is given the answer that came first.
        let first = self.state.logs.reached(layer) > before;
        let late =
            self.state.segment(stage).map(|segment| segment.node).filter(|late| first && *late != node);
        if let Some(late) =
            late.filter(|late| self.state.report.disturbances.hedged.iter().all(|(node, _)| node != late))
        {
            self.state.timing.hedged(late);
        }
        let me = self.state.means.me;
        if let Some(next) = next
            && (node == me || next.node == me || next.node == node || late.is_some())
        {
            self.give(next.node, next.layers, epoch, from, rows, wire, bytes);
        }
        self.state.feed_shadow(stage + 1);
        reached.map_or_else(Vec::new, |logged| {
            vec![Event::Boundary { stage, node, epoch, attempt, to: logged.min(from + rows) }]
        })
    }

    /// The own worker answered.
    pub(super) async fn output(&mut self, output: Output) -> Vec<Event> {
        if output.epoch != self.state.machine.epoch() {
            return Vec::new();
        }
        self.own.ended();
        self.state.timing.hop_ended(output.layers.start(), output.from);
        let Some(stage) = self.state.stage_from(output.layers.start()) else { return Vec::new() };
        match output.body {
            Body::Activations(wire, bytes) => self.boundary(
                stage,
                self.state.means.me,
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
            Body::Sampled(_) if output.attempt != self.state.machine.attempt() => Vec::new(),
            Body::Sampled(sampled) => {
                if output.rows == 1 && self.state.machine.drafted() == 0 {
                    self.state.timing.time_stage(output.layers.end());
                }
                self.next_tokens(output.epoch, sampled).await
            }
            Body::NeedReplay { have } => {
                // What was to be drawn behind these rows is not: the replay asks for it again.
                self.own.draw_again();
                self.state.recalled.has(have);
                vec![Event::NeedReplay { stage, epoch: output.epoch, have }]
            }
            Body::Failed(why) => {
                tracing::warn!(why, "the own worker failed");
                self.state.failed(self.state.means.me, Failure::Crashed)
            }
            Body::Nothing => Vec::new(),
        }
    }

    /// The own worker drew the next tokens.
    async fn next_tokens(&mut self, epoch: u32, sampled: Vec<Sampled>) -> Vec<Event> {
        let (Some(first), Some(last)) = (sampled.first(), sampled.last()) else { return Vec::new() };
        let (position, to, stop) = (first.position, last.position, last.stop);
        let (attempt, drafted) = (self.state.machine.attempt(), self.state.machine.drafted());
        let ids: Vec<u32> = sampled.iter().map(|token| token.id).collect();
        let count = ids.len() as u32;
        let certain = last.forced.0.clone();
        self.state.drafts.foreseen(&last.foreseen);
        self.state.report.said.met = last.met.clone();
        // The tokens known until now end the prompt, or a step.
        let ms = (!self.state.report.said.ids.is_empty()).then(|| self.state.timing.step_ms());
        if let Some(ms) = ms.filter(|_| drafted == 0) {
            self.state.report.times.plain =
                (self.state.report.times.plain.0 + 1, self.state.report.times.plain.1 + ms);
        }
        self.settle_draft(Drawn { confirmed: to, drafted, right: count - 1, stop, ms });
        let said = sampled.into_iter().map(|token| {
            let Sampled { position, id, text, ends_turn, bytes, logprob, top, prompt, pooled, .. } = token;
            (Progress::Token { position, id, text, bytes, logprob, top, prompt, pooled }, ends_turn)
        });
        self.state.delivery.drawn(said);
        let ends = stop || self.state.report.said.ids.len() as u32 + count >= self.state.plan.max_tokens;
        let context: Vec<u32> = self.state.tokens.iter().chain(&ids).copied().collect();
        let seat = self.state.means.drafter.as_ref();
        let draft = if ends { 0 } else { self.state.drafts.propose_asking(&context, &certain, seat).await };
        let tokens = Event::Tokens { epoch, attempt, position, tokens: ids, stop, draft };
        if ends { self.checks.hold_last(&mut self.state, tokens, to) } else { vec![tokens] }
    }

    /// A step was drawn: rows that are confirmed stay, and the others leave the logs.
    fn settle_draft(&mut self, step: Drawn) {
        let rivals = self.state.drafts.drawn(step);
        if step.right < step.drafted {
            self.state.forget_rows(step.confirmed);
        }
        self.state.logs.set_tentative(None);
        for (layers, node) in rivals {
            self.state.report.findings.evidence += 1;
            tracing::warn!(%layers, %node, "two answers for one position differ");
            self.checks.rivaled(&self.state, layers, node);
        }
    }
}
