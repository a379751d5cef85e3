//! The ordinary step: frames out, outputs and tokens in.
//!
//! Prefill, decode and a replay differ only in how much the stages lack. [`Session::send_missing`] goes back from the last
//! stage to the first: what a stage lacks and the log does not have must be computed by the one before it.

use super::{Action, End, MAX_DRAFT, Phase, Session};
use crate::recover::Failure;
use crate::{Millis, NodeId};

/// A stage that asks for replays more often than this within one step does not keep what it gets.
const MOST_REPLAYS: u32 = 8;
impl Session {
    /// Prompt and answer so far.
    pub(super) fn known(&self) -> u32 {
        self.text.known()
    }

    /// Positions of the running step: those known and those drafted behind them.
    pub(super) fn reach(&self) -> u32 {
        self.known() + self.epoch.drafted
    }

    /// Inputs of a stage available at the requester.
    pub(super) fn logged(&self, stage: usize) -> u32 {
        self.stages.logged(stage, self.reach())
    }

    pub(super) fn begin_if_open(&mut self, now: Millis, actions: &mut Vec<Action>) {
        if self.stages.owing().is_empty() {
            self.blame.crowded = false;
            self.stages.list.iter_mut().for_each(|stage| stage.done = stage.have.unwrap_or(0));
            self.send_missing(now, actions);
        }
    }

    /// Sends whatever the stages lack of the tokens known and drafted; the general form of a step.
    pub(super) fn send_missing(&mut self, now: Millis, actions: &mut Vec<Action>) {
        let (known, reach) = (self.known(), self.reach());
        let from = self.stages.missing(known, reach);
        let mut tokens = 1;
        for (stage, &from) in from.iter().enumerate() {
            let to = self.logged(stage).min(reach);
            if from < to {
                actions.push(self.send(stage, self.stages.node(stage), from, to));
            }
            let stage = &mut self.stages.list[stage];
            stage.done = stage.done.min(from);
            stage.give(now);
            tokens = tokens.max(if stage.kept { known } else { known - from });
        }
        self.phase = Phase::Stepping;
        self.patience.begin(tokens);
        self.wait_for(now, self.stages.unfinished(reach).unwrap_or(0));
    }

    /// The next thing expected is the output of `stage`.
    pub(super) fn wait_for(&mut self, now: Millis, stage: usize) {
        self.patience.wait_for(now, self.stages.list[stage].segment, self.epoch.drafted);
    }

    /// Inputs `[from, to)` of a stage to `node`, under the attempt that runs.
    pub(super) fn send(&self, stage: usize, node: NodeId, from: u32, to: u32) -> Action {
        Action::Send { stage, epoch: self.epoch.number, attempt: self.epoch.attempt, node, from, to }
    }

    /// Gives the shadow of a stage the frame that the stage was given, and before it what the log lacks of the stage's outputs: of a stage
    /// that is not heard here, and that the next one hears, they have not come. False when there is no shadow, or nothing to give.
    pub(super) fn send_shadow(&self, stage: usize, actions: &mut Vec<Action>) -> bool {
        let (mut from, to) = self.owed(stage);
        if stage + 1 < self.stages.list.len() {
            from = from.min(self.logged(stage + 1));
        }
        let shadow = self.stages.list[stage].shadow;
        let Some(node) = shadow.filter(|_| from < to && !self.stages.lazy) else { return false };
        actions.push(self.send(stage, node, from, to));
        true
    }

    /// Sends a stage from here what the one before it has sent it.
    pub(super) fn send_again(&self, stage: usize, actions: &mut Vec<Action>) {
        let (from, to) = self.owed(stage);
        actions.push(self.send(stage, self.stages.node(stage), from, to));
    }

    /// The inputs that a stage has been given in this step and has no output of.
    fn owed(&self, stage: usize) -> (u32, u32) {
        let from = self.stages.list[stage].done.min(self.known() - 1);
        (from, self.logged(stage).min(self.reach()))
    }

    /// A new attempt: rows of the one before count below position `below` only, and its draft is gone.
    fn abandon(&mut self, below: u32) {
        self.epoch.abandon(below);
        self.stages.cut_log(below);
    }

    /// A new epoch, at its first attempt and without a draft.
    pub(super) fn next_epoch(&mut self) {
        self.epoch.next();
        self.stages.cut_log(self.known());
    }

    /// A stage lacks KV for a frame: it lost some, or the frame overtook the replay sent before it.
    pub(super) fn need_replay(&mut self, now: Millis, stage: usize, have: u32, actions: &mut Vec<Action>) {
        if self.stages.list[stage].done >= self.reach() {
            return;
        }
        self.replays += 1;
        if self.replays > MOST_REPLAYS {
            return self.recover(now, stage, Failure::Refused, actions);
        }
        if self.epoch.drafted > 0 {
            // A replay travels in chunks, and a draft in one frame: the step begins again without it.
            self.abandon(self.known());
        }
        let stage = &mut self.stages.list[stage];
        let believed = stage.have.unwrap_or(0);
        stage.have = Some(have.min(believed));
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
        let reach = self.reach();
        let at = &mut self.stages.list[stage];
        let (entered, own) = (at.segment.layers.end(), at.segment);
        let complete = to == reach && at.done < to;
        at.done = at.done.max(to);
        if node == own.node {
            self.speaks(now, stage);
        }
        if stage + 1 == self.stages.list.len() {
            return;
        }
        self.stages.note_logged(entered, to);
        self.stages.list[stage + 1].give(now);
        if complete && self.phase == Phase::Stepping {
            self.patience.stage_done(now, own);
            self.wait_for(now, stage + 1);
            if self.patience.suspected().is_some_and(|suspect| suspect.0 == stage + 1) {
                self.send_shadow(stage + 1, actions);
            }
            if self.stages.is_bypassed(stage + 1) {
                self.send_again(stage + 1, actions);
            }
        }
    }

    /// A stage is there, computes nothing, and has got its inputs below `have`. Others that it was given long enough ago are lost on
    /// the way: it is given them from here, and when that is who gave them, another node does its work.
    pub(super) fn waits(
        &mut self,
        now: Millis,
        stage: usize,
        have: u32,
        given_here: bool,
        actions: &mut Vec<Action>,
    ) {
        self.stages.list[stage].alive = now;
        let (from, to) = self.owed(stage);
        let awaited = self.stages.unfinished(self.reach()) == Some(stage) && from < to && have < to;
        self.stages.list[stage].lacks |= awaited;
        if !awaited || !self.patience.is_lost(now, &self.stages.list[stage], to - from) {
            return;
        }
        if !given_here && !self.stages.is_bypassed(stage) {
            self.stages.bypass(stage);
            self.stages.list[stage].give(now);
            actions.push(self.send(stage, self.stages.node(stage), from.max(have), to));
        } else if self.patience.may_move_on(now, &self.stages.list[stage]) {
            self.recover(now, stage, Failure::Late, actions);
        }
    }

    /// A stage's own node said something about its work.
    pub(super) fn speaks(&mut self, now: Millis, stage: usize) {
        self.stages.list[stage].heard = now;
        self.patience.speaks(now, stage, &self.stages.list[stage]);
        self.stages.list[stage].lacks = false;
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
                if self.text.at(position).is_some_and(|before| before != *token) {
                    actions.push(Action::Evidence { position });
                }
            }
            return;
        }
        let count = sampled.len() as u32;
        let expected =
            position == self.known() && attempt == self.epoch.attempt && self.phase == Phase::Stepping;
        if !expected || !(1..=self.epoch.drafted + 1).contains(&count) {
            return;
        }
        self.patience.note_stage(now, self.stages.list[self.stages.list.len() - 1].segment);
        // The rows below it were computed from tokens that are known now.
        let right = position + count - 1;
        self.stages.settle(right);
        if count <= self.epoch.drafted {
            self.abandon(right);
        }
        let left = self.text.left();
        for (position, token) in (position..).zip(sampled).take(left as usize) {
            self.text.push(*token);
            actions.push(Action::Emit { position, token: *token });
        }
        // A draft that would end past the last token is cut; the last attempt of an epoch has none that could be rejected.
        let room = self.text.left().saturating_sub(1);
        self.epoch.drafted = if self.epoch.attempt == u16::MAX { 0 } else { draft.min(room).min(MAX_DRAFT) };
        self.budget.step_done();
        self.blame.earn();
        self.patience.earn(now);
        if stop {
            self.finish(End::Stop, actions);
        } else if self.text.left() == 0 {
            self.finish(End::Length, actions);
        } else {
            self.replays = 0;
            if let Some(stage) = self.patience.next_step(now) {
                return self.recover(now, stage, Failure::Silent, actions);
            }
            if let Some((stage, _)) = self.patience.suspected() {
                // Whether it hears: what it says may come although it does not.
                self.ask(now, stage, actions);
            }
            let gray = self.stages.list.iter().position(|stage| self.patience.is_gray(stage.segment));
            match gray {
                Some(stage) => self.recover(now, stage, Failure::Gray, actions),
                None => self.send_missing(now, actions),
            }
        }
    }
}
