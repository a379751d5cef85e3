//! What is known of a request while it runs: who runs what, which tokens are known, what crossed each cut, and the ways out.
//!
//! Each of its parts owns its fields; here is what needs several of them: names and ranges, frames out, inputs for those who
//! follow, and what a failure means for all of it.

use std::time::Instant;

use api::swarm_records::{Span, Step, StepKind};
use bytes::Bytes;
use p2p::{
    codec::{self, Wire},
    wire::{
        announce::Class,
        frame::{Header, Kind},
        prefix,
        receipt::Terms,
    },
};
use scheduler::{
    LayerRange, NodeId, Segment, SessionId,
    recover::Failure,
    session::{End, Event, Rows, Session},
};
use tokio::sync::mpsc;

use super::{
    CHUNK_ROWS,
    delivery::Delivery,
    draft::Drafts,
    followers::Followers,
    plan::{Means, Plan, Report},
    recall::{Recalled, Recollections},
    remembered::Remembered,
    replay_log::Logs,
    timing::Timing,
};
use crate::{
    audit::Case,
    control::{Shadow, Verify},
    sessions::{Order, peer_streams::PeerStreams, place},
};

/// A shadow is fed every this many positions (the lag it may have).
const FEED_ROWS: u32 = 16;

/// A failure in one word; nothing but silence is one, too.
pub fn noticed(why: Option<Failure>) -> &'static str {
    match why {
        Some(Failure::Closed | Failure::Crashed) => "closed",
        Some(Failure::Refused) => "refused",
        Some(Failure::Corrupt) => "wrong",
        _ => "timeout",
    }
}

/// A segment, as a step tells it.
pub(super) fn span(segment: Segment) -> Span {
    Span { node: format!("{:?}", segment.node), start: segment.layers.start(), end: segment.layers.end() }
}

/// One request as its requester knows it.
pub(super) struct RequestState {
    pub(super) means: Means,
    pub(super) plan: Plan,
    /// The way back to the request's own loop.
    pub(super) orders: mpsc::Sender<Order>,
    pub(super) machine: Session,
    /// Prompt and answer.
    pub(super) tokens: Vec<u32>,
    pub(super) drafts: Drafts,
    pub(super) logs: Logs,
    /// The beginning of the prompt that was computed before.
    pub(super) recalled: Recalled,
    /// Whose state of the beginning another node computed, and which: what they give wrong may be the fault of either.
    pub(super) rests: Vec<(Segment, NodeId)>,
    pub(super) outboxes: PeerStreams,
    pub(super) followers: Followers,
    pub(super) timing: Timing,
    pub(super) delivery: Delivery,
    pub(super) report: Report,
}

impl RequestState {
    /// What the session is called at the worker and on streams.
    pub(super) fn place(&self) -> SessionId {
        place(self.means.me, self.plan.session)
    }

    pub(super) fn strict(&self) -> bool {
        self.plan.checking.verify == Verify::Strict
    }

    /// Whether stages may keep on disk what they compute of it. Nothing goes on from what is not remembered here.
    pub(super) fn lets_keep(&self) -> bool {
        !self.strict() && self.means.memory.as_ref().is_some_and(Recollections::lets_keep)
    }

    /// Layers of the model.
    pub(super) fn num_layers(&self) -> u32 {
        self.plan.route.pipeline.num_layers()
    }

    pub(super) fn segment(&self, stage: usize) -> Option<Segment> {
        self.machine.segments().nth(stage)
    }

    pub(super) fn stage_from(&self, start: u32) -> Option<usize> {
        self.machine.segments().position(|segment| segment.layers.start() == start)
    }

    pub(super) fn stage_to(&self, end: u32) -> Option<usize> {
        self.machine.segments().position(|segment| segment.layers.end() == end)
    }

    /// Segments that others run.
    pub(super) fn strangers(&self) -> Vec<Segment> {
        self.machine.segments().filter(|segment| segment.node != self.means.me).collect()
    }

    pub(super) fn may_speak(&self, stage: usize, node: NodeId) -> bool {
        self.segment(stage).is_some_and(|segment| segment.node == node)
            || self.followers.of(stage) == Some(node)
    }

    /// Whether a node that computes other bits runs exactly `layers`.
    pub(super) fn is_approx(&self, layers: LayerRange) -> bool {
        let mut segments = self.machine.segments().filter(|segment| segment.layers == layers);
        segments.any(|segment| self.plan.checking.approx.contains(&segment.node))
    }

    /// What is agreed with those that compute `layers`.
    pub(super) fn terms(&self, layers: LayerRange) -> Terms {
        Terms {
            session: self.plan.session,
            requester: self.means.me,
            model: self.plan.model,
            layers,
            hidden: self.plan.form.hidden as u32,
            class: if self.is_approx(layers) { Class::Approx } else { Class::D1 },
            rounding: self.plan.form.rounding.clone(),
            kind: self.plan.form.kind,
            inner: false,
        }
    }

    /// All that the log has of `layers`, and what was said to come of it.
    pub(super) fn case(&self, layers: LayerRange) -> Option<(Case, Bytes)> {
        let rows = self.logs.settled(layers.start()).min(self.logs.settled(layers.end()));
        let (wire, inputs) = self.logs.get(layers.start(), 0, rows).filter(|_| rows > 0)?;
        let (output, said) = self.logs.get(layers.end(), 0, rows)?;
        codec::encoded_len(output, 1, self.plan.form.hidden)?;
        let (rounding, hidden) = (self.plan.form.rounding.clone(), self.plan.form.hidden);
        let kind = self.plan.form.kind;
        Some((Case { layers, rounding, kind, hidden, inputs: (wire, inputs.to_vec()), output }, said))
    }

    /// Whether this node gives a stage its inputs, and no other one before it: see [`Leases::ask`](super::lease::Leases::ask).
    pub(super) fn is_given_here(&self, stage: usize) -> bool {
        let before = stage.checked_sub(1).and_then(|before| self.segment(before));
        let own = self.segment(stage).map(|segment| segment.node);
        before.is_none_or(|before| before.node == self.means.me || Some(before.node) == own)
    }

    /// Whether a node runs a segment.
    pub(super) fn runs(&self, node: NodeId) -> bool {
        self.machine.segments().any(|segment| segment.node == node)
    }

    /// A node failed, as far as can be told here.
    pub(super) fn failed(&mut self, node: NodeId, failure: Failure) -> Vec<Event> {
        let ours = self.runs(node);
        let shadow = self.followers.contains(node);
        tracing::debug!(%node, ?failure, "noticed");
        self.timing.notice(node, failure);
        if ours {
            self.note_lost(node, noticed(Some(failure)));
        }
        // Who serves this node's other prompts and does not promise in time has too much to do already.
        let late = failure == Failure::Late && self.report.times.opened_ms.is_none() && node != self.means.me;
        if failure == Failure::Refused || late && self.means.feedback.serves(node) {
            self.report.disturbances.refusals.insert(node);
        }
        if ours {
            self.timing.silent(node);
        }
        self.leave(node);
        if ours || shadow { vec![Event::Failed { node, failure }] } else { Vec::new() }
    }

    /// Notes a step of this request.
    pub(super) fn note(&mut self, what: StepKind) {
        self.note_at(self.report.said.ids.len() as u32, what);
    }

    /// The same, with so many tokens there.
    pub(super) fn note_at(&mut self, token: u32, what: StepKind) {
        self.report.timeline.add(Step { at_ms: self.timing.elapsed_ms(), token, what });
    }

    /// Notes that a node began with `have` positions that it did not compute, if it was told where to get them.
    pub(super) fn note_fetched(&mut self, segment: Segment, have: u32) {
        let sources = &mut self.plan.route.sources;
        let Some(at) = sources.iter().position(|planned| planned.segment == segment) else { return };
        // Asked again it has its own.
        let planned = sources.swap_remove(at);
        if have > 0 {
            let (node, from) = (format!("{:?}", segment.node), format!("{:?}", planned.contact.node));
            self.rests.retain(|(rests, _)| *rests != segment);
            self.rests.push((segment, planned.contact.node));
            // What it fetched for an earlier prompt crosses no line now.
            if planned.worth_ms > 0.0 {
                self.note(StepKind::Fetched { node, from, end: have });
            }
        }
    }

    /// Notes that a node that computes a stage failed; once until others have taken over.
    pub(super) fn note_lost(&mut self, node: NodeId, why: &str) {
        let node = format!("{node:?}");
        let since = self.report.timeline.steps.iter().rev();
        let mut since = since.take_while(|step| !matches!(step.what, StepKind::TookOver { .. }));
        if !since.any(|step| matches!(&step.what, StepKind::Lost { node: lost, .. } if *lost == node)) {
            self.note(StepKind::Lost { node, why: why.to_owned() });
        }
    }

    /// Notes that inputs are given to a stage: the first of an epoch says who runs what, and what a stage of another node is given
    /// of earlier positions after the first epoch is a replay.
    pub(super) fn note_send(&mut self, epoch: u32, node: NodeId, from: u32, to: u32) {
        let steps = &self.report.timeline.steps;
        let mut epochs = steps.iter().filter_map(|step| match step.what {
            StepKind::Leased { epoch, .. } => Some(epoch),
            _ => None,
        });
        let (first, last) = (epochs.clone().next(), epochs.next_back());
        if last.is_none_or(|last| last < epoch) {
            let stages = self.machine.segments().map(span).collect();
            self.note(StepKind::Leased { epoch, stages });
        }
        let end = to.min((self.tokens.len() as u32).saturating_sub(1));
        if node == self.means.me || first.is_none_or(|first| first == epoch) || from >= end {
            return;
        }
        let node = format!("{node:?}");
        if let Some(Step { what: StepKind::Replayed { node: to, end: upto, .. }, .. }) =
            self.report.timeline.steps.last_mut()
            && (*to == node && *upto == from)
        {
            *upto = end;
            return;
        }
        self.note(StepKind::Replayed { node, first: from, end });
    }

    /// Nothing is sent to a node any more.
    pub(super) fn leave(&mut self, node: NodeId) {
        self.outboxes.close(node);
        self.followers.leave(node);
    }

    /// Rows from position `from` on leave the logs, and are fed again once they are there again.
    pub(super) fn forget_rows(&mut self, from: u32) {
        self.logs.cut(from);
        self.followers.cut(from);
    }

    /// Notes which rows follow from a draft, as the machine's step now has it. Rows of a draft that was abandoned before it was
    /// drawn, for a replay, were never confirmed: they leave the logs too.
    pub(super) fn note_drafts(&mut self) {
        let known = (self.tokens.len() as u32).max(self.drafts.confirmed());
        let drafts = self.machine.drafted() > 0;
        self.logs.set_tentative(drafts.then_some(known));
        if !drafts {
            self.forget_rows(known);
            self.drafts.go_back(known);
        }
    }

    /// For the log and traces: a frame is on its way to a stage.
    pub(super) fn hop_began(&mut self, to: Segment, from: u32, rows: u32) {
        let epoch = self.machine.epoch();
        self.timing.hop_began(
            to.layers.start(),
            from,
            || tracing::debug_span!("hop", node = %to.node, layers = %to.layers, epoch, from, rows),
        );
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
        self.send(node, header, bytes);
    }

    /// Says to a node that runs `layers` that it is needed, and asks how far its inputs have come.
    pub(super) fn ask_how_far(&mut self, node: NodeId, epoch: u32, layers: LayerRange) {
        let known = self.tokens.len().max(1) as u32;
        self.send(node, Header::signal(Kind::Beacon, epoch, layers.start(), known, 0), Bytes::new());
    }

    /// Sends a node a frame as it is.
    pub(super) fn send(&mut self, node: NodeId, header: Header, bytes: Bytes) {
        let plan = &self.plan;
        self.outboxes.send(node, || plan.contact(node), header, bytes);
    }

    /// Gives the shadow of a stage what was logged since, in chunks.
    pub(super) fn feed_shadow(&mut self, stage: usize) {
        let (Some(shadow), Some(segment)) = (self.followers.of(stage), self.segment(stage)) else {
            return;
        };
        let boundary = segment.layers.start();
        let logged = self.logs.settled(boundary);
        if self.followers.fed(shadow, boundary).is_some_and(|fed| logged >= fed + FEED_ROWS) {
            self.feed(shadow, boundary, self.machine.epoch(), logged);
        }
    }

    /// Gives the follower of a stage all there is.
    pub(super) fn feed_rest(&mut self, stage: usize) {
        if let (Some(shadow), Some(segment)) = (self.followers.of(stage), self.segment(stage)) {
            let boundary = segment.layers.start();
            self.feed(shadow, boundary, self.machine.epoch(), self.logs.settled(boundary));
        }
    }

    /// Gives a follower that has promised the inputs it has not had yet, below position `to`.
    pub(super) fn feed(&mut self, shadow: NodeId, boundary: u32, epoch: u32, to: u32) {
        let Some(mut at) = self.followers.fed(shadow, boundary) else { return };
        while at < to {
            let rows = CHUNK_ROWS.min(to - at);
            let Some((wire, bytes)) = self.logs.get(boundary, at, rows) else { break };
            self.frame(shadow, Kind::Feed, boundary, epoch, at, rows, wire, bytes);
            at += rows;
        }
        self.followers.set_fed(shadow, boundary, at);
    }

    /// Tells the machine what the log begins with.
    pub(super) fn recall(&mut self) {
        for (layer, positions) in self.logs.all_reached() {
            self.machine.recall(layer, positions);
        }
    }

    /// What the own worker keeps of the session, by first layer, and how many positions; it is remembered here as well.
    pub(super) fn remember(&self) -> Vec<(u32, u32)> {
        let report = &self.report;
        let ended = matches!(report.end, End::Stop | End::Length | End::Cancelled);
        let sound = report.findings.convicted.is_empty()
            && report.findings.evidence == 0
            && report.findings.misled.is_empty()
            && report.findings.integrity.is_none();
        // The row of the last token was never computed.
        let positions = (self.tokens.len() as u32).saturating_sub(1);
        let Some(memory) = self.means.memory.as_ref().filter(|_| {
            ended && sound && !self.strict() && report.times.opened_ms.is_some() && positions >= prefix::EVERY
        }) else {
            return Vec::new();
        };
        let me: NodeId = self.means.me;
        let segments: Vec<Segment> = self.machine.segments().collect();
        let homes = segments.iter().filter(|segment| segment.node == me);
        let homes = homes.map(|segment| (segment.layers.start(), positions)).collect();
        // A lazy one has computed nothing.
        let follows = |at: usize| self.followers.of(at).filter(|_| self.plan.shadow == Shadow::All);
        let follower = |(at, segment): (usize, &Segment)| Some(Segment { node: follows(at)?, ..*segment });
        let followers = segments.iter().enumerate().filter_map(follower).collect();
        let gone = memory.keep(Remembered {
            place: self.place(),
            model: self.plan.model,
            rounding: self.plan.form.rounding.clone(),
            kind: self.plan.form.kind,
            tokens: self.tokens[..positions as usize].to_vec(),
            logs: self.logs.beginning(positions),
            segments,
            followers,
            rests: self.rests.clone(),
            used: Instant::now(),
        });
        self.means.worker.forget(&gone);
        homes
    }

    /// Someone lied in this session, as was found behind the answer: nothing goes on from it.
    pub(super) fn disown(&self) {
        let findings = &self.report.findings;
        let lied = !(findings.convicted.is_empty() && findings.misled.is_empty());
        if let Some(memory) = self.means.memory.as_ref().filter(|_| lied) {
            memory.forget(self.place());
            self.means.worker.forget(&[self.place()]);
        }
    }
}
