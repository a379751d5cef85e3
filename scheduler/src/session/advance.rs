//! The ordinary step: frames out, outputs and tokens in.
//!
//! Prefill, decode and a replay differ only in how much the stages lack. [`Session::send_missing`] goes back from the last
//! stage to the first: what a stage lacks and the log does not have must be computed by the one before it.

use super::recovery::FORGIVEN_PER_TOKEN;
use super::{ATTEMPTS_KEPT, Action, End, MAX_DRAFT, Phase, Session};
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

    /// Positions of the running step: those known and those drafted behind them.
    pub(super) fn reach(&self) -> u32 {
        self.known() + self.drafted
    }

    /// Inputs of a stage available at the requester.
    pub(super) fn logged(&self, stage: usize) -> u32 {
        match self.stages[stage].segment.layers.start() {
            0 => self.reach(),
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

    /// Sends whatever the stages lack of the tokens known and drafted; the general form of a step.
    pub(super) fn send_missing(&mut self, now: Millis, actions: &mut Vec<Action>) {
        let (known, reach) = (self.known(), self.reach());
        let mut from: Vec<u32> = self.stages.iter().map(|stage| stage.have.unwrap_or(0).min(known)).collect();
        // A step always runs the last position: its answer is the token.
        if let Some(last) = from.last_mut() {
            *last = (*last).min(known - 1);
        }
        for stage in (1..self.stages.len()).rev() {
            let missing = from[stage].max(self.logged(stage));
            if missing < reach {
                from[stage - 1] = from[stage - 1].min(missing);
            }
        }
        let mut tokens = 1;
        for (stage, &from) in from.iter().enumerate() {
            let to = self.logged(stage).min(reach);
            if from < to {
                let node = self.stages[stage].segment.node;
                actions.push(self.send(stage, node, from, to));
            }
            self.stages[stage].done = self.stages[stage].done.min(from);
            self.stages[stage].heard = now;
            tokens = tokens.max(if self.stages[stage].kept { known } else { known - from });
        }
        self.phase = Phase::Stepping;
        self.step_tokens = tokens;
        let first = self.stages.iter().position(|stage| stage.done < reach).unwrap_or(0);
        self.wait_for(now, first);
    }

    /// Inputs `[from, to)` of a stage to `node`, under the attempt that runs.
    pub(super) fn send(&self, stage: usize, node: NodeId, from: u32, to: u32) -> Action {
        Action::Send { stage, epoch: self.epoch, attempt: self.attempt, node, from, to }
    }

    /// A new attempt: rows of the one before count below position `below` only, and its draft is gone.
    fn abandon(&mut self, below: u32) {
        if self.abandoned.len() == ATTEMPTS_KEPT {
            self.abandoned.pop_front();
        }
        self.abandoned.push_back((self.attempt, below));
        self.attempt += 1;
        self.drafted = 0;
        self.log.values_mut().for_each(|logged| *logged = (*logged).min(below));
    }

    /// A new epoch, at its first attempt and without a draft.
    pub(super) fn next_epoch(&mut self) {
        self.epoch += 1;
        self.attempt = 0;
        self.drafted = 0;
        self.abandoned.clear();
        let known = self.known();
        self.log.values_mut().for_each(|logged| *logged = (*logged).min(known));
    }

    /// A stage lacks KV for a frame: it lost some, or the frame overtook the replay sent before it.
    pub(super) fn need_replay(&mut self, now: Millis, stage: usize, have: u32, actions: &mut Vec<Action>) {
        if self.stages[stage].done >= self.reach() {
            return;
        }
        self.replays += 1;
        if self.replays > MOST_REPLAYS {
            return self.recover(now, stage, Failure::Refused, actions);
        }
        if self.drafted > 0 {
            // A replay travels in chunks, and a draft in one frame: the step begins again without it.
            self.abandon(self.known());
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
        let complete = to == self.reach() && self.stages[stage].done < to;
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

    /// The last stage drew `sampled` from `position` on; whether that ends the text, and how many tokens are drafted to follow.
    pub(super) fn sampled(
        &mut self,
        now: Millis,
        attempt: u16,
        position: u32,
        sampled: &[u32],
        (stop, draft): (bool, u32),
        actions: &mut Vec<Action>,
    ) {
        if position < self.known() {
            // Of an abandoned attempt only what follows from its confirmed rows can contradict anything.
            let valid = self.valid_below(attempt);
            for (position, token) in (position..=valid).zip(sampled) {
                let before = position.checked_sub(self.prompt).and_then(|at| self.tokens.get(at as usize));
                if before.is_some_and(|before| before != token) {
                    actions.push(Action::Evidence { position });
                }
            }
            return;
        }
        let count = sampled.len() as u32;
        let expected = position == self.known() && attempt == self.attempt && self.phase == Phase::Stepping;
        if !expected || !(1..=self.drafted + 1).contains(&count) {
            return;
        }
        self.note_stage(now, self.stages.len() - 1);
        // The rows below it were computed from tokens that are known now.
        let right = position + count - 1;
        for stage in &mut self.stages {
            stage.have = Some(right);
            stage.done = right;
            stage.kept = false;
        }
        if count <= self.drafted {
            self.abandon(right);
        }
        let left = self.most - self.tokens.len() as u32;
        for (position, token) in (position..).zip(sampled).take(left as usize) {
            self.tokens.push(*token);
            actions.push(Action::Emit { position, token: *token });
        }
        // A draft that would end past the last token is cut; the last attempt of an epoch has none that could be rejected.
        let room = (self.most - self.tokens.len() as u32).saturating_sub(1);
        self.drafted = if self.attempt == u16::MAX { 0 } else { draft.min(room).min(MAX_DRAFT) };
        self.budget.step_done();
        self.forgiven = self.forgiven.saturating_sub(FORGIVEN_PER_TOKEN);
        self.waits = 0;
        self.stretches = 0;
        self.given_again = self.given_again.filter(|at| now.since(*at) < LOST_MS);
        if stop {
            self.finish(End::Stop, actions);
        } else if self.tokens.len() as u32 >= self.most {
            self.finish(End::Length, actions);
        } else {
            self.replays = 0;
            self.step_began = now;
            // A stage that has not come back since its shadow took over, for as long as it took to suspect it, is left.
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

    /// Notes how long a stage took for one step, drafts included; prompts say little about that. Of a stage that was hedged it is known
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
