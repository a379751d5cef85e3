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
//! waits says how far its inputs have come ([`Event::Waits`]): what it was given long enough ago is lost, and it is given that
//! by the requester from then on, past the stage before it; where the requester is who does not reach it, its shadow takes over. A node whose words
//! come while pings to it are not answered does not hear: what it says clears it of no suspicion. One that
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
//! `suspicion` tells the slow from the gone, `recovery` replaces who is gone. Its state has five owners: `text` (the tokens), `epoch`
//! (which frames count), `stages` (who runs what, and what is logged), `suspicion` (the clocks) and `blame` (who failed).
//! `attempts` is the stage's side of a draft.

mod advance;
mod attempts;
mod blame;
mod epoch;
mod protocol;
mod recovery;
mod stages;
mod suspicion;
#[cfg(test)]
mod tests;
mod text;

pub use attempts::{Attempts, Rows, Taken};
pub use protocol::{Action, End, Event, Standbys};

use self::{
    blame::Blame,
    epoch::Epoch,
    stages::Stages,
    suspicion::{LOOK_MS, Look, Patience},
    text::Text,
};
use crate::recover::{Budget, Failure};
use crate::{Millis, NodeId, Pipeline, Segment, SessionId};

/// Tokens that a step drafts at most: its rows then still travel in one frame, and a draft is rarely right for longer.
pub const MAX_DRAFT: u32 = 16;

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
    text: Text,
    epoch: Epoch,
    stages: Stages,
    patience: Patience,
    blame: Blame,
    budget: Budget,
    phase: Phase,
    /// Times that a stage of the running step lacked what it was believed to have.
    replays: u32,
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
            text: Text::new(prompt, most),
            epoch: Epoch::default(),
            stages: Stages::new(),
            patience: Patience::new(now, rtt_p99_ms),
            blame: Blame::default(),
            budget: Budget::default(),
            phase: Phase::Opening,
            replays: 0,
        };
        let mut actions = Vec::new();
        session.adopt(now, pipeline, standbys, &mut actions);
        (session, actions)
    }

    /// Inputs of `layer` below `positions` are logged from an earlier session of the same beginning: a stage that lacks them need not
    /// wait for the one before it.
    pub fn recall(&mut self, layer: u32, positions: u32) {
        let most = self.known() - 1;
        self.stages.set_logged(layer, positions.min(most));
    }

    /// Its name.
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// The current epoch; frames of any other are dead.
    pub fn epoch(&self) -> u32 {
        self.epoch.number
    }

    /// The attempt of the epoch that frames are sent under.
    pub fn attempt(&self) -> u16 {
        self.epoch.attempt
    }

    /// The position at which that attempt began; 0 for the first one.
    pub fn attempt_start(&self) -> u32 {
        self.epoch.attempt_start()
    }

    /// Drafted tokens that the running step carries behind the known ones.
    pub fn drafted(&self) -> u32 {
        self.epoch.drafted
    }

    /// Rows of frames of `attempt` count at positions below this: all that the step carries for the attempt that runs, what
    /// was confirmed of an abandoned one, and nothing of one that is not known (any more).
    pub fn valid_below(&self, attempt: u16) -> u32 {
        self.epoch.valid_below(attempt, self.reach())
    }

    /// Tokens emitted so far.
    pub fn emitted(&self) -> &[u32] {
        self.text.emitted()
    }

    /// Whether it is over.
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// The segments as they run now.
    pub fn segments(&self) -> impl Iterator<Item = Segment> + '_ {
        self.stages.list.iter().map(|stage| stage.segment)
    }

    /// When the next [`Event::Tick`] is due; `None` when over.
    pub fn wake(&self) -> Option<Millis> {
        match self.phase {
            Phase::Opening | Phase::Stepping => Some(self.patience.wake()),
            Phase::Asking => Some(self.patience.due),
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
                    let opened = &mut self.stages.list[stage];
                    (opened.have, opened.heard) = (Some(have.min(known)), now);
                    self.begin_if_open(now, &mut actions);
                }
            }
            Event::NeedReplay { stage, epoch, have } => {
                if self.live(stage, epoch) && self.phase == Phase::Stepping {
                    self.need_replay(now, stage, have, &mut actions);
                }
            }
            Event::Boundary { stage, node, epoch, attempt, to } => {
                let to = if attempt == self.epoch.attempt { to } else { to.min(self.valid_below(attempt)) };
                if self.live(stage, epoch) && to <= self.reach() {
                    self.boundary(now, stage, node, to, &mut actions);
                }
            }
            Event::Beacon { stage, epoch } => {
                if self.live(stage, epoch) {
                    self.speaks(now, stage);
                }
            }
            Event::Waits { stage, epoch, have, given_here } => {
                if self.live(stage, epoch) && self.phase == Phase::Stepping {
                    self.waits(now, stage, have, given_here, &mut actions);
                }
            }
            Event::Pong { node } => {
                self.patience.ponged(now, node);
                for stage in self.stages.list.iter_mut().filter(|stage| stage.segment.node == node) {
                    stage.alive = now;
                }
            }
            Event::Detoured { node } => self.detoured(now, node, &mut actions),
            Event::Tokens { epoch, attempt, position, tokens, stop, draft } => {
                if epoch == self.epoch.number {
                    self.sampled(now, attempt, position, &tokens, (stop, draft), &mut actions);
                }
            }
            Event::Failed { node, failure } => self.node_failed(now, node, failure, &mut actions),
            Event::Unfollowed { node } => self.stages.drop_standby(node),
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
        epoch == self.epoch.number && stage < self.stages.list.len()
    }

    /// Gives back what every stage and shadow promised.
    fn release(&self, actions: &mut Vec<Action>) {
        let epoch = self.epoch.number;
        actions.extend(self.stages.nodes().into_iter().map(|node| Action::Close { node, epoch }));
    }

    fn finish(&mut self, end: End, actions: &mut Vec<Action>) {
        self.release(actions);
        actions.push(Action::Done(end));
        self.phase = Phase::Over;
    }

    fn tick(&mut self, now: Millis, actions: &mut Vec<Action>) {
        let Some(wake) = self.wake().filter(|wake| now >= *wake) else { return };
        if self.patience.woke(now, wake) {
            self.stages.list.iter_mut().for_each(|stage| stage.alive = now);
        }
        match self.phase {
            Phase::Opening => {
                let look = self.patience.look_for_promises(now, &self.stages);
                self.blame.crowded |= matches!(look, Look::Recover(_, Failure::Late));
                self.act(now, look, actions);
            }
            Phase::Stepping => {
                let look = self.patience.look_for_progress(now, &self.stages, self.reach());
                self.act(now, look, actions);
            }
            Phase::Asking if self.blame.forgiving => self.forgive(now, actions),
            // The own router is busy: it is asked again as if it had found no node.
            Phase::Asking => self.rerouted(now, None, actions),
            Phase::Over => {}
        }
    }

    fn act(&mut self, now: Millis, look: Look, actions: &mut Vec<Action>) {
        match look {
            Look::Begin => self.begin_if_open(now, actions),
            Look::Wait => {}
            Look::Ask(stages) => {
                for stage in stages {
                    if self.stages.list[stage].unheard_ms(now) >= LOOK_MS {
                        self.ask(now, stage, actions);
                    }
                }
            }
            Look::SendAgain(stage) => self.send_again(stage, actions),
            Look::Recover(stage, failure) => self.recover(now, stage, failure, actions),
        }
    }

    /// Asks the node of a stage whether it is there.
    fn ask(&mut self, now: Millis, stage: usize, actions: &mut Vec<Action>) {
        let node = self.stages.node(stage);
        self.patience.asked(now, node);
        actions.push(Action::Ping { node });
    }

    /// A node is reached another way than before. What it owes it may never have been asked for: it is asked again for its
    /// promise, or given its frame once more, unless it says meanwhile that it computes.
    fn detoured(&mut self, now: Millis, node: NodeId, actions: &mut Vec<Action>) {
        match self.phase {
            Phase::Opening => {
                for at in self.stages.owing() {
                    if self.stages.node(at) == node {
                        self.stages.list[at].alive = now;
                        actions.push(self.ask_promise(at));
                    }
                }
            }
            Phase::Stepping => {
                let Some(at) = self.stages.unfinished(self.reach()) else { return };
                let stage = &mut self.stages.list[at];
                if stage.segment.node == node && now.since(stage.heard) >= LOOK_MS {
                    stage.alive = now;
                    self.send_again(at, actions);
                }
            }
            Phase::Asking | Phase::Over => {}
        }
    }
}
