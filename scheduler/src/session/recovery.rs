//! After a failure: a shadow, a cover, another route, or the end.
//!
//! [`recover`](crate::recover) decides and this part carries it out. Whatever changes who serves raises the epoch, so that
//! nothing said before has any effect after it, and every stage promises again and says how much it holds.

use super::suspicion::LOOK_MS;
use super::{Action, End, Phase, Session, Stage, Standbys};
use crate::recover::{Failure, GiveUp, Options, Recovery};
use crate::rng::{Rng, mix};
use crate::{Millis, NodeId, Pipeline, Segment};

/// When only nodes that failed are left, they are asked again after this, doubling each time: 0.5 to 4 s, about what a
/// restart takes, a quarter more or less ([`Session::forgive_ms`]).
const FORGIVE_MS: u64 = 500;
/// Times a node is forgiven, of which each token earns some back: about 32 s of waiting without one, after which the
/// request is given up.
const MOST_FORGIVEN: u32 = 10;
/// Times that a token earns back: three tokens make up for a restart. A whole new patience for every token let a request
/// whose every route broke at once crawl on for minutes, a token at a time out of its own log.
pub(super) const FORGIVEN_PER_TOKEN: u32 = 2;
/// Waiting for a router's answer or a promise longer than this counts as its failure.
const OPEN_MS: u64 = 2_000;

impl Session {
    pub(super) fn node_failed(
        &mut self,
        now: Millis,
        node: NodeId,
        failure: Failure,
        actions: &mut Vec<Action>,
    ) {
        for stage in &mut self.stages {
            if stage.shadow == Some(node) {
                stage.shadow = None;
            }
            if stage.cover.iter().any(|segment| segment.node == node) {
                stage.cover.clear();
            }
        }
        if self.phase != Phase::Asking
            && let Some(stage) = self.stages.iter().position(|stage| stage.segment.node == node)
        {
            // It has no room: what this session holds elsewhere may be what others wait for there.
            self.crowded |= self.phase == Phase::Opening && failure == Failure::Refused;
            self.recover(now, stage, failure, actions);
        } else if failure.bars() {
            self.bar(node);
        }
    }

    fn bar(&mut self, node: NodeId) {
        self.failed.insert(node);
        *self.blame.entry(node).or_insert(0) += 1;
    }

    pub(super) fn convicted(
        &mut self,
        now: Millis,
        node: NodeId,
        layer: u32,
        (from, known): (u32, u32),
        actions: &mut Vec<Action>,
    ) {
        self.tokens.truncate(known.saturating_sub(self.prompt) as usize);
        let known = self.known();
        for (entered, logged) in &mut self.log {
            *logged = (*logged).min(if *entered >= layer { from } else { known });
        }
        self.tainted = self.tainted.min(from);
        let stage = self.stages.iter().position(|stage| stage.segment.node == node);
        match stage.filter(|_| self.phase != Phase::Asking) {
            Some(stage) => self.recover(now, stage, Failure::Corrupt, actions),
            None => {
                self.bar(node);
                if self.phase != Phase::Asking {
                    self.open_all(now, actions);
                }
            }
        }
    }

    pub(super) fn recover(&mut self, now: Millis, at: usize, failure: Failure, actions: &mut Vec<Action>) {
        let options = self.options(at);
        let node = self.stages[at].segment.node;
        // Only a running step can be hedged.
        let hedged = self.hedged.is_some() || self.phase != Phase::Stepping;
        let next = self.budget.next(failure, &options, hedged);
        match next {
            Recovery::Wait => {
                if failure == Failure::Late {
                    self.hedged.get_or_insert(now);
                }
                self.send_missing(now, actions);
            }
            Recovery::Hedge(_) => {
                self.send_shadow(at, actions);
                self.suspect = Some((at, now));
                self.hedged = Some(now);
                self.wait_for(now, at);
            }
            Recovery::Switch(segments) => {
                let mut switches = vec![(at, segments, failure.bars())];
                switches.extend(self.silent_beside(now, at));
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
                    self.bar(node);
                }
                self.forgiving = false;
                self.phase = Phase::Asking;
                self.due = now + OPEN_MS;
                // Frames still under way must not reach a node that serves on.
                self.next_epoch();
                actions.push(Action::FindRoute { deny: self.failed.iter().copied().collect() });
            }
            Recovery::GiveUp(why) => self.finish(End::GaveUp(why), actions),
        }
    }

    /// Who else is to be replaced when the stage `at` is: one whose shadow has answered for it since it fell silent. It
    /// would be waited for in vain before it can promise again.
    fn silent_beside(&mut self, now: Millis, at: usize) -> Option<(usize, Vec<Segment>, bool)> {
        let (other, since) = self.suspect?;
        if other == at || now.since(since) < self.silence_ms() {
            return None;
        }
        let options = self.options(other);
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

    fn options(&self, at: usize) -> Options {
        let stage = &self.stages[at];
        let shadow = stage.shadow.map(|node| Segment { node, layers: stage.segment.layers });
        match shadow.filter(|_| self.lazy) {
            Some(shadow) => Options { shadow: None, cover: vec![shadow] },
            None => Options { shadow, cover: stage.cover.clone() },
        }
    }

    /// Gives the place of a stage to others.
    fn replace(&mut self, at: usize, segments: Vec<Segment>, bars: bool, actions: &mut Vec<Action>) {
        let node = self.stages[at].segment.node;
        if bars {
            self.bar(node);
        }
        let kept = self.lazy;
        let stages = segments.into_iter().map(|segment| Stage { kept, ..Stage::fresh(segment) });
        self.stages.splice(at..=at, stages);
        if self.stages.iter().all(|stage| stage.segment.node != node) {
            actions.push(Action::Close { node, epoch: self.epoch });
        }
    }

    pub(super) fn rerouted(
        &mut self,
        now: Millis,
        found: Option<(Pipeline, Standbys)>,
        actions: &mut Vec<Action>,
    ) {
        // A router that answers late has found a node all the same.
        if self.phase != Phase::Asking || (self.forgiving && found.is_none()) {
            return;
        }
        match found {
            // No other node is left: those that failed may be back by then, or others with the same layers.
            None if self.forgiven < MOST_FORGIVEN => {
                self.forgiving = true;
                self.budget.spare_search();
                self.due = now + self.forgive_ms();
                // A node that does not admit this session may be full of others that wait for what it holds elsewhere.
                if std::mem::take(&mut self.crowded) {
                    self.release(actions);
                }
            }
            Some((pipeline, standbys)) => {
                self.forgiving = false;
                let old: Vec<NodeId> = self.stages.iter().map(|stage| stage.segment.node).collect();
                let gone = old.into_iter().filter(|node| !pipeline.visits(*node));
                let epoch = self.epoch;
                actions.extend(gone.map(|node| Action::Close { node, epoch }));
                self.adopt(now, &pipeline, &standbys, actions);
            }
            None => self.finish(End::GaveUp(GiveUp::NoRoute), actions),
        }
    }

    /// How long to wait this time: the time due, a quarter more or less, by the session's name, so that sessions that
    /// failed together do not return together.
    fn forgive_ms(&self) -> u64 {
        let due = FORGIVE_MS << self.waits.min(3);
        let name = self.id.as_bytes().iter().fold(0, |mixed, byte| mix(mixed ^ u64::from(*byte)));
        due * 3 / 4 + Rng::new(name ^ u64::from(self.forgiven)).next_u64() % (due / 2)
    }

    /// The wait is over: those least to blame may be asked again.
    pub(super) fn forgive(&mut self, now: Millis, actions: &mut Vec<Action>) {
        self.forgiving = false;
        self.forgiven += 1;
        self.waits += 1;
        // One that was suspected once may be innocent; one that failed again after it was forgiven waits longest.
        let least = self.failed.iter().map(|node| self.blame.get(node).copied()).min().flatten();
        self.failed.retain(|node| self.blame.get(node).copied() > least);
        self.due = now + OPEN_MS;
        actions.push(Action::FindRoute { deny: self.failed.iter().copied().collect() });
    }

    pub(super) fn adopt(
        &mut self,
        now: Millis,
        pipeline: &Pipeline,
        standbys: &Standbys,
        actions: &mut Vec<Action>,
    ) {
        let stages = pipeline.segments().iter().enumerate().map(|(index, segment)| Stage {
            shadow: standbys.shadows.get(index).copied().flatten(),
            cover: standbys
                .covers
                .iter()
                .find(|cover| cover.index == index)
                .map_or_else(Vec::new, |cover| cover.segments.clone()),
            ..Stage::fresh(*segment)
        });
        self.stages = stages.collect();
        self.lazy = standbys.lazy;
        self.open_all(now, actions);
    }

    /// A new epoch: every stage must promise again and say what it holds.
    fn open_all(&mut self, now: Millis, actions: &mut Vec<Action>) {
        self.next_epoch();
        self.hedged = None;
        self.suspect = None;
        self.given_again = None;
        self.replays = 0;
        self.phase = Phase::Opening;
        self.due = now + OPEN_MS + self.rtt_p99_ms as u64;
        self.look = now + LOOK_MS;
        self.step_began = now;
        for at in 0..self.stages.len() {
            self.stages[at].have = None;
            self.stages[at].heard = now;
            let promise = self.ask_promise(at);
            actions.push(promise.clone());
            if let (Some(node), Action::Open { stage, epoch, segment, next, at }) =
                (self.stages[at].shadow, promise)
            {
                let segment = Segment { node, ..segment };
                actions.push(Action::Follow { stage, epoch, segment, next, at });
            }
        }
    }

    /// Asks a stage to serve under this epoch.
    pub(super) fn ask_promise(&self, stage: usize) -> Action {
        let next = self.stages.get(stage + 1).map(|stage| stage.segment.node);
        let at = (self.known() - 1).min(self.tainted);
        Action::Open { stage, epoch: self.epoch, segment: self.stages[stage].segment, next, at }
    }
}
