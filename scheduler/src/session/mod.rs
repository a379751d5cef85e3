//! One request in flight, as the requester sees it: events in, actions out, no I/O.
//!
//! Truth lives here: the prompt, the tokens emitted so far, the epoch. Everything a stage holds can be computed
//! again. A *step* brings every stage's KV to the number of tokens known and yields the next one; prefill, decode
//! and failover are the same step from different starting points:
//!
//! ```text
//!            known = 7 tokens                 have   logged   recompute from
//!   stage 0  tokens ──┐                        6       -         6
//!   stage 1  log ─────┼─ inputs logged to 6    0       6         0     fresh replacement: replay 0..6 from the log,
//!   stage 2  log ─────┘  inputs logged to 6    6       6         6     the 7th input comes from stage 0
//! ```
//!
//! A step may carry *drafted* tokens behind the known ones. The last stage draws a token after every row and keeps the drafts
//! that the draws agree with, and one more: several tokens in one pass, the same tokens as without a draft. When some drafts
//! were wrong, or the step must begin again, the next frame opens a new *attempt* of the epoch: a stage that gets it rewinds
//! to where the frame begins, and of frames of an earlier attempt only the rows below that point count ([`Session::valid_below`]).
//!
//! Frames run down the chain; each stage also sends its output to the requester, off the critical path. That copy is
//! the log a replacement replays, and it tells which stage a step hangs at.
//!
//! Detection. Who is waited for and says nothing (no output, no beacon, no promise) is asked whether it is there, ten
//! times a second. No answer for [`SILENCE_MS`](crate::recover::SILENCE_MS) and the network's part makes it *suspect*: its shadow gets the frame, and
//! every later one until it speaks again. As long again and it is left. A node that answers is slow, not gone: it has
//! until its patience ends; one that has no past, answers and does not say that it computes is sent its frame again. One that
//! is reached another way than before ([`Event::Detoured`]) is asked and sent again at once what it owes. A look that comes late proves that this machine slept and nothing else.
//!
//! What a stage promises (the other end of this machine): a frame names session, epoch, attempt and positions `[from, to)`.
//! A lower epoch is dropped, a higher one adopted; a lower attempt of the epoch is dropped. `from` beyond its KV is answered with `NeedReplay { have }`;
//! otherwise it truncates to `from`, computes, and passes its output on under the same epoch. A stage that is closed
//! remembers the session's epoch for as long as a lease lasts: an `Open` that was overtaken by its `Close` must not
//! start it again.
//!
//! Invariants, asserted by the tests at every event:
//! * I1: a stage computes only when its KV length equals the frame's first position.
//! * I2: nothing of a lower epoch has any effect.
//! * I3: each position is emitted once, in order.
//! * I4: chance is a function of (seed, position) and lives nowhere else, so a replay draws the same.
//! * I5: a replacement computes the same bits, so it continues the same stream; two different answers for one position
//!   are evidence, never output.
//!
//! In this folder: `protocol` is what is said to the machine and asked of its caller, `advance` the ordinary step;
//! `suspicion` tells the slow from the gone, `recovery` replaces who is gone; `attempts` is the stage's side of a draft.

mod advance;
mod attempts;
mod protocol;
mod recovery;
mod suspicion;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub use attempts::{Attempts, Rows, Taken};
pub use protocol::{Action, End, Event, Standbys};

use crate::latency::RoundTrip;
use crate::recover::{Budget, Detector, Liveness};
use crate::{Millis, NodeId, Pipeline, Segment, SessionId};

#[derive(Clone, Debug)]
struct Stage {
    segment: Segment,
    /// KV length once opened.
    have: Option<u32>,
    /// Outputs seen below this.
    done: u32,
    /// When it last had something to say about its work, or was given some.
    heard: Millis,
    /// When its node last answered a ping.
    alive: Millis,
    shadow: Option<NodeId>,
    cover: Vec<Segment>,
    /// What it says it has, it may still have to compute: it kept the log.
    kept: bool,
}

/// Tokens that a step drafts at most: its rows then still travel in one frame, and a draft is rarely right for longer.
pub const MAX_DRAFT: u32 = 16;
/// Attempts of which it is remembered how far their rows count; rows of older ones have been under way for as many steps.
const ATTEMPTS_KEPT: usize = 32;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Opening,
    Stepping,
    Asking,
    Over,
}

/// The requester's side of one request. See the module's page.
#[derive(Clone, Debug)]
pub struct Session {
    id: SessionId,
    epoch: u32,
    prompt: u32,
    most: u32,
    tokens: Vec<u32>,
    /// The attempt of this epoch, and the drafted rows of its step.
    attempt: u16,
    drafted: u32,
    /// The latest abandoned attempts of this epoch, and below which position their rows count.
    abandoned: VecDeque<(u16, u32)>,
    stages: Vec<Stage>,
    /// Whether shadows keep what they are sent and compute nothing.
    lazy: bool,
    /// Inputs logged, by first layer of the segment they enter.
    log: BTreeMap<u32, u32>,
    phase: Phase,
    due: Millis,
    /// When to look for silence next.
    look: Millis,
    step_began: Millis,
    /// Tokens the running step computes at most.
    step_tokens: u32,
    /// When beacons stop helping.
    last_due: Millis,
    /// When a frame of this step was sent once more, or to a shadow.
    hedged: Option<Millis>,
    /// The stage that was hedged, since when: until it speaks again its shadow gets every frame too.
    suspect: Option<(usize, Millis)>,
    /// When a stage was first sent something again that it did not seem to have got, in this epoch and lately.
    given_again: Option<Millis>,
    replays: u32,
    /// Times that the running step was given longer because the one it waits for answers and none could take its place.
    stretches: u32,
    budget: Budget,
    detectors: BTreeMap<NodeId, Detector>,
    /// How long nodes take to say that they are there.
    liveness: BTreeMap<NodeId, Liveness>,
    /// How late this machine looks, ms: what it is late by, others are not silent.
    lag: RoundTrip,
    failed: BTreeSet<NodeId>,
    /// How often each failed, forgiven or not.
    blame: BTreeMap<NodeId, u32>,
    /// No route is left without those who failed; the least to blame are forgiven when the wait is over.
    forgiving: bool,
    /// Times a node was, less what tokens have earned since.
    forgiven: u32,
    /// Times a node was since the last token: a session that begins to wait asks sooner than one that has waited long.
    waits: u32,
    /// The last promise that did not come was owed by a node that answers or refused: it has no room, or others wait as we
    /// do.
    crowded: bool,
    /// Caches computed from a lie: from here on no stage keeps its own.
    tainted: u32,
    rtt_p99_ms: f64,
}

impl Session {
    /// A request of `prompt` tokens for at most `most` more, over `pipeline`. `rtt_p99_ms` is the network's part of
    /// the slowest ordinary step. Returns the first actions.
    pub fn start(
        id: SessionId,
        now: Millis,
        prompt: u32,
        most: u32,
        pipeline: &Pipeline,
        standbys: &Standbys,
        rtt_p99_ms: f64,
    ) -> (Self, Vec<Action>) {
        let mut session = Self {
            id,
            epoch: 0,
            prompt: prompt.max(1),
            most: most.max(1),
            tokens: Vec::new(),
            attempt: 0,
            drafted: 0,
            abandoned: VecDeque::new(),
            stages: Vec::new(),
            lazy: false,
            log: BTreeMap::new(),
            phase: Phase::Opening,
            due: now,
            look: now,
            step_began: now,
            step_tokens: 1,
            last_due: now,
            hedged: None,
            suspect: None,
            given_again: None,
            replays: 0,
            stretches: 0,
            budget: Budget::default(),
            detectors: BTreeMap::new(),
            liveness: BTreeMap::new(),
            lag: RoundTrip::default(),
            failed: BTreeSet::new(),
            blame: BTreeMap::new(),
            forgiving: false,
            forgiven: 0,
            waits: 0,
            crowded: false,
            tainted: u32::MAX,
            rtt_p99_ms,
        };
        let mut actions = Vec::new();
        session.adopt(now, pipeline, standbys, &mut actions);
        (session, actions)
    }

    /// Inputs of `layer` below `positions` are logged from an earlier session of the same beginning: a stage that lacks them need not
    /// wait for the one before it.
    pub fn recall(&mut self, layer: u32, positions: u32) {
        let most = self.known() - 1;
        self.log.insert(layer, positions.min(most));
    }

    /// Its name.
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// The current epoch; frames of any other are dead.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The attempt of the epoch that frames are sent under.
    pub fn attempt(&self) -> u16 {
        self.attempt
    }

    /// The position at which that attempt began; 0 for the first one.
    pub fn attempt_start(&self) -> u32 {
        self.abandoned.back().map_or(0, |(_, below)| *below)
    }

    /// Drafted tokens that the running step carries behind the known ones.
    pub fn drafted(&self) -> u32 {
        self.drafted
    }

    /// Rows of frames of `attempt` count at positions below this: all that the step carries for the attempt that runs, what
    /// was confirmed of an abandoned one, and nothing of one that is not known (any more).
    pub fn valid_below(&self, attempt: u16) -> u32 {
        match self.abandoned.iter().find(|(abandoned, _)| *abandoned == attempt) {
            Some((_, below)) => *below,
            None if attempt == self.attempt => self.reach(),
            None => 0,
        }
    }

    /// Tokens emitted so far.
    pub fn emitted(&self) -> &[u32] {
        &self.tokens
    }

    /// Whether it is over.
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// The segments as they run now.
    pub fn segments(&self) -> impl Iterator<Item = Segment> + '_ {
        self.stages.iter().map(|stage| stage.segment)
    }

    /// When the next [`Event::Tick`] is due; `None` when over.
    pub fn wake(&self) -> Option<Millis> {
        match self.phase {
            Phase::Opening | Phase::Stepping => Some(self.due.min(self.look)),
            Phase::Asking => Some(self.due),
            Phase::Over => None,
        }
    }

    /// Takes in one event and says what to do.
    pub fn step(&mut self, now: Millis, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.phase == Phase::Over {
            return actions;
        }
        match event {
            Event::Tick => self.tick(now, &mut actions),
            Event::Opened { stage, epoch, have } => {
                if self.live(stage, epoch) && self.phase == Phase::Opening {
                    let known = self.known();
                    self.stages[stage].have = Some(have.min(known));
                    self.stages[stage].heard = now;
                    self.begin_if_open(now, &mut actions);
                }
            }
            Event::NeedReplay { stage, epoch, have } => {
                if self.live(stage, epoch) && self.phase == Phase::Stepping {
                    self.need_replay(now, stage, have, &mut actions);
                }
            }
            Event::Boundary { stage, node, epoch, attempt, to } => {
                let to = if attempt == self.attempt { to } else { to.min(self.valid_below(attempt)) };
                if self.live(stage, epoch) && to <= self.reach() {
                    self.boundary(now, stage, node, to, &mut actions);
                }
            }
            Event::Beacon { stage, epoch } => {
                if self.live(stage, epoch) {
                    self.speaks(now, stage);
                }
            }
            Event::Pong { node } => {
                self.liveness.entry(node).or_default().answered(now);
                for stage in self.stages.iter_mut().filter(|stage| stage.segment.node == node) {
                    stage.alive = now;
                }
            }
            Event::Detoured { node } => self.detoured(now, node, &mut actions),
            Event::Tokens { epoch, attempt, position, tokens, stop, draft } => {
                if epoch == self.epoch {
                    self.sampled(now, attempt, position, &tokens, (stop, draft), &mut actions);
                }
            }
            Event::Failed { node, failure } => self.node_failed(now, node, failure, &mut actions),
            Event::Convicted { node, layer, from, known } => {
                self.convicted(now, node, layer, (from, known), &mut actions);
            }
            Event::Rerouted(found) => self.rerouted(now, found, &mut actions),
            Event::Cancel => self.finish(End::Cancelled, &mut actions),
        }
        actions
    }

    /// I2: an event counts only under the current epoch.
    fn live(&self, stage: usize, epoch: u32) -> bool {
        epoch == self.epoch && stage < self.stages.len()
    }

    /// Gives back what every stage and shadow promised.
    fn release(&self, actions: &mut Vec<Action>) {
        let mut nodes: Vec<NodeId> = self.stages.iter().map(|stage| stage.segment.node).collect();
        nodes.extend(self.stages.iter().filter_map(|stage| stage.shadow));
        nodes.sort_unstable();
        nodes.dedup();
        let epoch = self.epoch;
        actions.extend(nodes.into_iter().map(|node| Action::Close { node, epoch }));
    }

    fn finish(&mut self, end: End, actions: &mut Vec<Action>) {
        self.release(actions);
        actions.push(Action::Done(end));
        self.phase = Phase::Over;
    }
}

impl Stage {
    fn fresh(segment: Segment) -> Self {
        Self {
            segment,
            have: None,
            done: 0,
            heard: Millis(0),
            alive: Millis(0),
            shadow: None,
            cover: Vec::new(),
            kept: false,
        }
    }
}
