//! Frames out and in: prefill, decode and replay are one thing.

use std::time::Instant;

use bytes::Bytes;
use p2p::{
    codec::Wire,
    wire::frame::{Header, Kind},
};
use scheduler::{
    LayerRange, NodeId, Segment,
    recover::Failure,
    session::{Event, Rows},
};

use super::{CHUNK_ROWS, FEED_ROWS, RequestDriver, replay_log::Added};
use crate::{sessions::Arrival, worker::JobInput};

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
        let Some(segment) = self.segment(stage) else { return };
        if stage == 0 {
            self.step_began = Instant::now();
            self.report.opened_ms.get_or_insert(self.began.elapsed().as_secs_f64() * 1e3);
        }
        if node != segment.node {
            if !self.fed.contains_key(&(node, segment.layers.start())) {
                return;
            }
            // A hedge: the follower must first have all that came before.
            self.feed(node, segment.layers.start(), epoch, from);
        }
        let mut at = from;
        while at < to {
            let rows = CHUNK_ROWS.min(to - at);
            self.hop_began(Segment { node, ..segment }, at, rows);
            if segment.layers.start() == 0 {
                let ids = self.tokens.iter().chain(self.drafts.tokens());
                let ids = ids.skip(at as usize).take(rows as usize).copied().collect();
                self.run_at_home(segment.layers, epoch, at, rows, JobInput::Tokens(ids));
            } else if let Some((wire, bytes)) = self.logs.get(segment.layers.start(), at, rows) {
                self.give(node, segment.layers, epoch, at, rows, wire, bytes);
            }
            at += rows;
        }
        if node != segment.node && self.machine.drafted() == 0 {
            // The follower has had these, too. Drafted rows it is given again once they are confirmed.
            let start = segment.layers.start();
            let had = to.min(self.logs.reached(start));
            self.fed.entry((node, start)).and_modify(|fed| *fed = had.max(*fed));
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
        if node == self.means.me {
            self.run_at_home(layers, epoch, from, rows, JobInput::Wire(wire, bytes.to_vec()));
        } else {
            self.frame(node, Kind::Activations, layers.start(), epoch, from, rows, wire, bytes);
        }
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn frame(
        &mut self,
        node: NodeId,
        kind: Kind,
        layer: u32,
        epoch: u32,
        from: u32,
        rows: u32,
        wire: Wire,
        bytes: Bytes,
    ) {
        let drafts = (from + rows).saturating_sub(self.tokens.len() as u32).min(self.machine.drafted());
        let header = Header {
            kind,
            wire,
            epoch,
            layer,
            from,
            rows,
            len: bytes.len() as u32,
            attempt: self.machine.attempt(),
            drafted: if kind == Kind::Activations { drafts as u16 } else { 0 },
            since: Rows::since(from, self.machine.attempt_start()),
        };
        self.report.wire_bytes.0 += bytes.len() as u64;
        let plan = &self.plan;
        self.outboxes.send(node, || plan.contact(node), header, bytes);
    }

    /// A stage's frame came in.
    pub(super) fn arrival(&mut self, arrival: Arrival) -> Vec<Event> {
        let (from, header, payload) = match arrival {
            // Counted until here: what is made of it belongs to the log.
            Arrival::Frame { from, header, payload } => (from, header, payload.into_parts().0),
            // The connection's end is told apart from a stream's: the machine hears of it through `lost`.
            Arrival::Ended { .. } => return Vec::new(),
            Arrival::Began { from, epoch } => {
                self.outboxes.began(from, epoch);
                return Vec::new();
            }
        };
        if header.epoch != self.machine.epoch() {
            return Vec::new();
        }
        self.report.wire_bytes.1 += payload.len() as u64;
        let epoch = header.epoch;
        let stage = match header.kind {
            Kind::Activations => self.stage_to(header.layer),
            _ => self.stage_from(header.layer),
        };
        // A third holder has a say in a dispute and none in the answer.
        let third = header.kind == Kind::Commit && self.is_third(header.layer, from);
        let Some(stage) = stage.filter(|stage| third || self.may_speak(*stage, from)) else {
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
            Kind::NeedReplay if self.segment(stage).is_some_and(|segment| segment.node == from) => {
                self.recalled.has(header.from);
                vec![Event::NeedReplay { stage, epoch, have: header.from }]
            }
            Kind::Commit => self.committed(stage, from, header, &payload),
            // A shadow that computes says nothing about the stage it follows.
            Kind::Beacon if self.segment(stage).is_some_and(|segment| segment.node == from) => {
                vec![Event::Beacon { stage, epoch }]
            }
            // It computes; whom it cannot reach is likelier to be gone than it is to lie.
            Kind::Unreachable => match self.segment(stage + 1) {
                Some(next) if next.node != self.means.me => {
                    self.means.lessons.apart(from, next.node);
                    self.failed(next.node, Failure::Closed)
                }
                _ => Vec::new(),
            },
            Kind::Garbled if self.segment(stage).is_some_and(|segment| segment.node == from) => {
                self.garbled.insert(header.layer, (epoch, header.from));
                self.contradicted(stage)
            }
            Kind::Failed => {
                tracing::info!(node = %from, why = %String::from_utf8_lossy(&payload), "a stage failed");
                self.failed(from, Failure::Crashed)
            }
            _ => Vec::new(),
        }
    }

    pub(super) fn may_speak(&self, stage: usize, node: NodeId) -> bool {
        self.segment(stage).is_some_and(|segment| segment.node == node)
            || self.shadows.get(&stage) == Some(&node)
    }

    /// For the log and traces: a frame is on its way to a stage.
    fn hop_began(&mut self, to: Segment, from: u32, rows: u32) {
        let epoch = self.machine.epoch();
        self.hops.began(
            to.layers.start(),
            from,
            || tracing::debug_span!("hop", node = %to.node, layers = %to.layers, epoch, from, rows),
        );
    }

    /// The output of a stage is here: log it, pass it on where that is ours to do.
    pub(super) fn boundary(&mut self, stage: usize, node: NodeId, given: Given) -> Vec<Event> {
        let epoch = self.machine.epoch();
        let current = given.attempt == self.machine.attempt();
        let valid = self.machine.valid_below(given.attempt);
        let given = if current { Some(given) } else { given.below(valid) };
        let Some(Given { layer, attempt, from, rows, wire, bytes }) = given else { return Vec::new() };
        if from.saturating_add(rows) > self.tokens.len() as u32 + self.machine.drafted() {
            return self.failed(node, Failure::Corrupt);
        }
        let before = self.logs.reached(layer);
        let Some(Added { reached, differs }) = self.logs.add(layer, from, rows, wire, &bytes, node) else {
            return self.nonsense(node);
        };
        let contradicted = self.contradicted(stage + 1);
        if !contradicted.is_empty() {
            return contradicted;
        }
        if let Some(position) = differs
            && !self.plan.approx.contains(&node)
            && self.logs.author(layer, from).is_none_or(|author| !self.plan.approx.contains(&author))
        {
            // The same inputs gave other bits. The first answer stands: it was used. Of a draft it counts once that is confirmed.
            if let Some(segment) = self.segment(stage) {
                if self.logs.is_tentative(position) {
                    self.drafts.rivaled(segment.layers, node, position);
                } else {
                    self.report.evidence += 1;
                    tracing::warn!(stage, layer, position, "two answers for one position differ");
                    self.rivaled(segment.layers, node);
                }
            }
        }
        if current && rows == 1 && self.machine.drafted() == 0 {
            self.time_stage(layer);
        }
        if let Some(segment) = self.segment(stage) {
            self.hops.ended(segment.layers.start(), from);
        }
        // Rows of an abandoned attempt are for the log alone.
        let next = self.segment(stage + 1).filter(|_| current);
        if let Some(next) = next {
            self.hop_began(next, from, rows);
        }
        // A stage takes frames from the one before it and from here: of a hedge it is given the answer that came first.
        let first = self.logs.reached(layer) > before;
        let late = self.segment(stage).map(|segment| segment.node).filter(|late| first && *late != node);
        if let Some(late) = late.filter(|late| self.report.hedged.iter().all(|(node, _)| node != late)) {
            self.hedged_since.get_or_insert((late, self.last_token));
        }
        if let Some(next) = next
            && (node == self.means.me || next.node == self.means.me || late.is_some())
        {
            self.give(next.node, next.layers, epoch, from, rows, wire, bytes);
        }
        self.feed_shadow(stage + 1);
        reached.map_or_else(Vec::new, |logged| {
            vec![Event::Boundary { stage, node, epoch, attempt, to: logged.min(from + rows) }]
        })
    }

    /// A stage says that what the one before it sent is garbled, and what that one sent here is sound: one of the two lies,
    /// and which one cannot be told. The session goes on without both.
    fn contradicted(&mut self, stage: usize) -> Vec<Event> {
        let Some(here) = self.segment(stage) else { return Vec::new() };
        let said = self.garbled.get(&here.layers.start()).copied();
        let Some((_, from)) = said.filter(|(epoch, _)| *epoch == self.machine.epoch()) else {
            return Vec::new();
        };
        let before = stage.checked_sub(1).and_then(|before| self.segment(before));
        let before = before.filter(|before| before.node != self.means.me);
        // What it sent here may still be on its way.
        if before.is_some() && self.logs.reached(here.layers.start()) <= from {
            return Vec::new();
        }
        self.garbled.clear();
        tracing::warn!(node = %here.node, ?before, "a stage calls garbled what is not");
        let mut events = self.failed(here.node, Failure::Corrupt);
        events.extend(before.into_iter().flat_map(|before| self.failed(before.node, Failure::Corrupt)));
        events
    }

    /// Gives the shadow of a stage what was logged since, in chunks.
    pub(super) fn feed_shadow(&mut self, stage: usize) {
        let (Some(shadow), Some(segment)) = (self.shadows.get(&stage).copied(), self.segment(stage)) else {
            return;
        };
        let boundary = segment.layers.start();
        let logged = self.logs.settled(boundary);
        if self.fed.get(&(shadow, boundary)).is_some_and(|fed| logged >= fed + FEED_ROWS) {
            self.feed(shadow, boundary, self.machine.epoch(), logged);
        }
    }

    /// Gives a follower that has promised the inputs it has not had yet, below position `to`.
    pub(super) fn feed(&mut self, shadow: NodeId, boundary: u32, epoch: u32, to: u32) {
        let Some(mut at) = self.fed.get(&(shadow, boundary)).copied() else { return };
        while at < to {
            let rows = CHUNK_ROWS.min(to - at);
            let Some((wire, bytes)) = self.logs.get(boundary, at, rows) else { break };
            self.frame(shadow, Kind::Feed, boundary, epoch, at, rows, wire, bytes);
            at += rows;
        }
        self.fed.insert((shadow, boundary), at);
    }
}
