//! The ordinary step: frames out, outputs and tokens in.
//!
//! Prefill, decode and a replay differ only in how much the stages lack. [`Session::send_missing`] goes back from the last
//! stage to the first: what a stage lacks and the log does not have must be computed by the one before it.

use super::recovery::FORGIVEN_PER_TOKEN;
use super::{Action, End, Phase, Session};
use crate::recover::{Detector, Failure};
use crate::{Millis, NodeId};

/// A stage that asks for replays more often than this within one step does not keep what it gets.
const MOST_REPLAYS: u32 = 8;
/// So long after something was sent again it counts as the same trouble when it must be once more.
const LOST_MS: u64 = 5_000;

impl Session {
    /// Prompt and answer so far.
    pub(super) fn known(&self) -> u32 {
        self.prompt + self.tokens.len() as u32
    }

    /// Inputs of a stage available at the requester.
    pub(super) fn logged(&self, stage: usize) -> u32 {
        match self.stages[stage].segment.layers.start() {
            0 => self.known(),
            layer => self.log.get(&layer).copied().unwrap_or(0),
        }
    }

    pub(super) fn begin_if_open(&mut self, now: Millis, actions: &mut Vec<Action>) {
        if self.stages.iter().all(|stage| stage.have.is_some()) {
            self.crowded = false;
            self.stages.iter_mut().for_each(|stage| stage.done = stage.have.unwrap_or(0));
            self.send_missing(now, actions);
        }
    }

    /// Sends whatever the stages lack of the tokens known; the general form of a step.
    pub(super) fn send_missing(&mut self, now: Millis, actions: &mut Vec<Action>) {
        let known = self.known();
        let mut from: Vec<u32> = self.stages.iter().map(|stage| stage.have.unwrap_or(0).min(known)).collect();
        // A step always runs the last position: its answer is the token.
        if let Some(last) = from.last_mut() {
            *last = (*last).min(known - 1);
        }
        for stage in (1..self.stages.len()).rev() {
            let missing = from[stage].max(self.logged(stage));
            if missing < known {
                from[stage - 1] = from[stage - 1].min(missing);
            }
        }
        let mut tokens = 1;
        for (stage, &from) in from.iter().enumerate() {
            let to = self.logged(stage).min(known);
            if from < to {
                let node = self.stages[stage].segment.node;
                actions.push(Action::Send { stage, epoch: self.epoch, node, from, to });
            }
            self.stages[stage].done = self.stages[stage].done.min(from);
            self.stages[stage].heard = now;
            tokens = tokens.max(if self.stages[stage].kept { known } else { known - from });
        }
        self.phase = Phase::Stepping;
        self.step_tokens = tokens;
        let first = self.stages.iter().position(|stage| stage.done < known).unwrap_or(0);
        self.wait_for(now, first);
    }

    /// A stage lacks KV for a frame: it lost some, or the frame overtook the replay sent before it.
    pub(super) fn need_replay(&mut self, now: Millis, stage: usize, have: u32, actions: &mut Vec<Action>) {
        if self.stages[stage].done >= self.known() {
            return;
        }
        self.replays += 1;
        if self.replays > MOST_REPLAYS {
            return self.recover(now, stage, Failure::Refused, actions);
        }
        let believed = self.stages[stage].have.unwrap_or(0);
        self.stages[stage].have = Some(have.min(believed));
        self.send_missing(now, actions);
    }

    pub(super) fn boundary(
        &mut self,
        now: Millis,
        stage: usize,
        node: NodeId,
        to: u32,
        actions: &mut Vec<Action>,
    ) {
        let entered = self.stages[stage].segment.layers.end();
        let complete = to == self.known() && self.stages[stage].done < to;
        if node == self.stages[stage].segment.node {
            self.speaks(now, stage);
        }
        self.stages[stage].done = self.stages[stage].done.max(to);
        if stage + 1 == self.stages.len() {
            return;
        }
        let logged = self.log.entry(entered).or_insert(0);
        *logged = (*logged).max(to);
        self.stages[stage + 1].heard = now;
        if complete && self.phase == Phase::Stepping {
            self.note_stage(now, stage);
            self.step_began = now;
            self.wait_for(now, stage + 1);
            if self.suspect.is_some_and(|suspect| suspect.0 == stage + 1) {
                self.send_shadow(stage + 1, actions);
            }
        }
    }

    pub(super) fn token(
        &mut self,
        now: Millis,
        position: u32,
        token: u32,
        stop: bool,
        actions: &mut Vec<Action>,
    ) {
        if position < self.known() {
            let before = position.checked_sub(self.prompt).and_then(|at| self.tokens.get(at as usize));
            if before.is_some_and(|before| *before != token) {
                actions.push(Action::Evidence { position });
            }
            return;
        }
        if position != self.known() || self.phase != Phase::Stepping {
            return;
        }
        self.note_stage(now, self.stages.len() - 1);
        for stage in &mut self.stages {
            stage.have = Some(position);
            stage.done = position;
            stage.kept = false;
        }
        self.tokens.push(token);
        self.budget.step_done();
        self.forgiven = self.forgiven.saturating_sub(FORGIVEN_PER_TOKEN);
        self.waits = 0;
        self.given_again = self.given_again.filter(|at| now.since(*at) < LOST_MS);
        actions.push(Action::Emit { position, token });
        if stop {
            self.finish(End::Stop, actions);
        } else if self.tokens.len() as u32 >= self.most {
            self.finish(End::Length, actions);
        } else {
            self.replays = 0;
            self.step_began = now;
            // Whoever has not come back since its shadow took over, for as long as it took to suspect it, is left.
            let silence = self.silence_ms();
            if let Some((stage, _)) = self.suspect.filter(|suspect| now.since(suspect.1) >= silence) {
                return self.recover(now, stage, Failure::Silent, actions);
            }
            self.hedged = self.suspect.map(|suspect| suspect.1);
            let gray = self
                .stages
                .iter()
                .position(|stage| self.detectors.get(&stage.segment.node).is_some_and(Detector::is_gray));
            match gray {
                Some(stage) => self.recover(now, stage, Failure::Gray, actions),
                None => self.send_missing(now, actions),
            }
        }
    }

    /// Notes how long a stage took for one token; prompts say little about that. Of a stage that was hedged it is known
    /// that it took so long at least, of others in a hedged step nothing.
    fn note_stage(&mut self, now: Millis, stage: usize) {
        if self.step_tokens != 1 {
            return;
        }
        let ms = now.since(self.step_began) as f64;
        let detector = self.detectors.entry(self.stages[stage].segment.node).or_default();
        match self.hedged {
            None => detector.note(now, ms),
            Some(since) if since >= self.step_began => detector.note_at_least(ms),
            Some(_) => {}
        }
    }
}
