//! After a failure: a shadow, a cover, another route, or the end.
//!
//! [`recover`](crate::recover) decides and this part carries it out. Whatever changes who serves raises the epoch, so that
//! nothing said before has any effect after it, and every stage promises again and says how much it holds.

use super::{Action, End, Phase, Session, Standbys};
use crate::recover::{Failure, GiveUp, Recovery};
use crate::{Millis, NodeId, Pipeline, Segment};

/// A stage, who takes its place, and whether the request avoids its node from now on.
type Switch = (usize, Vec<Segment>, bool);

impl Session {
    pub(super) fn node_failed(
        &mut self,
        now: Millis,
        node: NodeId,
        failure: Failure,
        actions: &mut Vec<Action>,
    ) {
        self.stages.drop_standby(node);
        if self.phase != Phase::Asking
            && let Some(stage) = self.stages.run_by(node)
        {
            // It has no room: what this session holds elsewhere may be what others wait for there.
            self.blame.crowded |= self.phase == Phase::Opening && failure == Failure::Refused;
            self.recover(now, stage, failure, actions);
        } else if failure.bars() {
            self.blame.bar(node);
        }
    }

    pub(super) fn convicted(
        &mut self,
        now: Millis,
        node: NodeId,
        layer: u32,
        (from, known): (u32, u32),
        actions: &mut Vec<Action>,
    ) {
        self.text.truncate(known);
        self.stages.taint(layer, from, self.known());
        let serves = self.stages.nodes().contains(&node);
        self.stages.drop_standby(node);
        let stage = self.stages.run_by(node);
        match stage.filter(|_| self.phase != Phase::Asking) {
            Some(stage) => self.recover(now, stage, Failure::Corrupt, actions),
            None => {
                self.blame.bar(node);
                if self.phase != Phase::Asking {
                    if serves {
                        actions.push(Action::Close { node, epoch: self.epoch.number });
                    }
                    self.open_all(now, actions);
                }
            }
        }
    }

    pub(super) fn recover(&mut self, now: Millis, at: usize, failure: Failure, actions: &mut Vec<Action>) {
        let options = self.stages.options(at);
        let node = self.stages.node(at);
        // Only a running step can be hedged.
        let hedged = self.patience.is_hedged() || self.phase != Phase::Stepping;
        if failure.ends_all() {
            self.stages.drop_standby(node);
        }
        let mut next = self.budget.next(failure, &options, hedged);
        let mut beside = Vec::new();
        if failure.ends_all() && matches!(next, Recovery::Switch(_)) {
            match self.others_of(at) {
                Ok(switches) => beside = switches,
                Err(search) => next = search,
            }
        }
        match next {
            Recovery::Wait => {
                if failure == Failure::Late {
                    self.patience.hedge(now);
                }
                self.send_missing(now, actions);
            }
            Recovery::Hedge(_) => {
                self.send_shadow(at, actions);
                self.patience.suspect(now, at);
                self.wait_for(now, at);
            }
            Recovery::Switch(segments) => {
                let mut switches = vec![(at, segments, failure.bars())];
                switches.extend(beside);
                let replaced: Vec<usize> = switches.iter().map(|switch| switch.0).collect();
                switches.extend(self.silent_beside(now, &replaced));
                // From the last on, so that those before keep their places.
                switches.sort_by_key(|switch| std::cmp::Reverse(switch.0));
                for (at, segments, bars) in switches {
                    self.replace(at, segments, bars, actions);
                }
                self.open_all(now, actions);
            }
            Recovery::Retry => self.open_all(now, actions),
            Recovery::Reroute => {
                if failure.bars() {
                    self.blame.bar(node);
                }
                self.blame.forgiving = false;
                self.phase = Phase::Asking;
                self.patience.ask_router(now);
                // Frames still under way must not reach a node that serves on.
                self.next_epoch();
                actions.push(Action::FindRoute { deny: self.blame.denied() });
            }
            Recovery::GiveUp(why) => self.finish(End::GaveUp(why), actions),
        }
    }

    /// What takes the place of every other stage that the node of the stage `at` runs, when that node is left: it would be asked for
    /// these again. `Err` with what is to be done instead where one of them has no substitute.
    fn others_of(&mut self, at: usize) -> Result<Vec<Switch>, Recovery> {
        let node = self.stages.node(at);
        let others: Vec<usize> = self.stages.all_run_by(node).filter(|other| *other != at).collect();
        let switch = |other| match self.budget.next(Failure::Closed, &self.stages.options(other), true) {
            Recovery::Switch(segments) => Ok((other, segments, true)),
            search => Err(search),
        };
        others.into_iter().map(switch).collect()
    }

    /// What else is to be replaced when the stages `replaced` are: one whose shadow has answered for it since it fell silent. It
    /// would be waited for in vain before it can promise again.
    fn silent_beside(&mut self, now: Millis, replaced: &[usize]) -> Option<Switch> {
        let (other, since) = self.patience.suspected()?;
        if replaced.contains(&other) || now.since(since) < self.patience.silence_ms() {
            return None;
        }
        let options = self.stages.options(other);
        match self.budget.next(Failure::Silent, &options, true) {
            Recovery::Switch(segments) => Some((other, segments, true)),
            // What comes of its own silence is decided when it is noticed.
            Recovery::Reroute => {
                self.budget.spare_search();
                None
            }
            _ => None,
        }
    }

    /// Gives the place of a stage to others.
    fn replace(&mut self, at: usize, segments: Vec<Segment>, bars: bool, actions: &mut Vec<Action>) {
        if bars {
            self.blame.bar(self.stages.node(at));
        }
        if let Some(node) = self.stages.replace(at, segments) {
            actions.push(Action::Close { node, epoch: self.epoch.number });
        }
    }

    pub(super) fn rerouted(
        &mut self,
        now: Millis,
        found: Option<(Pipeline, Standbys)>,
        actions: &mut Vec<Action>,
    ) {
        // A router that answers late has found a node all the same.
        if self.phase != Phase::Asking || (self.blame.forgiving && found.is_none()) {
            return;
        }
        match found {
            // No other node is left: those that failed may be back by then, or others with the same layers.
            None if self.blame.may_wait() => {
                self.blame.forgiving = true;
                self.budget.spare_search();
                self.patience.due = now + self.blame.wait_ms(self.id);
                // A node that does not admit this session may be full of others that wait for what it holds elsewhere.
                if std::mem::take(&mut self.blame.crowded) {
                    self.release(actions);
                }
            }
            Some((pipeline, standbys)) => {
                self.blame.forgiving = false;
                let old: Vec<NodeId> = self.stages.list.iter().map(|stage| stage.segment.node).collect();
                let gone = old.into_iter().filter(|node| !pipeline.visits(*node));
                let epoch = self.epoch.number;
                actions.extend(gone.map(|node| Action::Close { node, epoch }));
                self.adopt(now, &pipeline, &standbys, actions);
            }
            None => self.finish(End::GaveUp(GiveUp::NoRoute), actions),
        }
    }

    /// The wait is over: those least to blame may be asked again.
    pub(super) fn forgive(&mut self, now: Millis, actions: &mut Vec<Action>) {
        self.blame.forgive();
        self.patience.ask_router(now);
        actions.push(Action::FindRoute { deny: self.blame.denied() });
    }

    pub(super) fn adopt(
        &mut self,
        now: Millis,
        pipeline: &Pipeline,
        standbys: &Standbys,
        actions: &mut Vec<Action>,
    ) {
        self.stages.adopt(pipeline, standbys);
        self.open_all(now, actions);
    }

    /// A new epoch: every stage must promise again and say what it holds.
    fn open_all(&mut self, now: Millis, actions: &mut Vec<Action>) {
        self.next_epoch();
        self.patience.open(now);
        self.replays = 0;
        self.phase = Phase::Opening;
        for at in 0..self.stages.list.len() {
            self.stages.list[at].have = None;
            self.stages.list[at].heard = now;
            let promise = self.ask_promise(at);
            actions.push(promise.clone());
            if let (Some(node), Action::Open { stage, epoch, segment, next, at }) =
                (self.stages.list[at].shadow, promise)
            {
                let segment = Segment { node, ..segment };
                actions.push(Action::Follow { stage, epoch, segment, next, at });
            }
        }
    }

    /// Asks a stage to serve under this epoch.
    pub(super) fn ask_promise(&self, stage: usize) -> Action {
        let next = self.stages.list.get(stage + 1).map(|stage| stage.segment.node);
        let at = self.stages.keep(self.known());
        Action::Open { stage, epoch: self.epoch.number, segment: self.stages.list[stage].segment, next, at }
    }
}
