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
//! Frames run down the chain; each stage also sends its output to the requester, off the critical path. That copy is
//! the log a replacement replays, and it tells which stage a step hangs at.
//!
//! Detection. Who is waited for and says nothing (no output, no beacon, no promise) is asked whether it is there, ten
//! times a second. No answer for [`SILENCE_MS`] and the network's part makes it *suspect*: its shadow gets the frame, and
//! every later one until it speaks again. As long again and it is left. A node that answers is slow, not gone: it has
//! until its patience ends. A look that comes late proves that this machine slept and nothing else.
//!
//! What a stage promises (the other end of this machine): a frame names session, epoch and positions `[from, to)`.
//! A lower epoch is dropped, a higher one adopted. `from` beyond its KV is answered with `NeedReplay { have }`;
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

use std::collections::{BTreeMap, BTreeSet};

use crate::recover::{Budget, COLD_STEP_MS, Detector, Failure, GiveUp, Options, Recovery, SILENCE_MS};
use crate::standby::Cover;
use crate::{Millis, NodeId, Pipeline, Segment, SessionId};

/// A stage that only ever says that it computes is late after this many times its patience all the same.
const STALLING: u64 = 8;
/// A stage that asks for replays more often than this within one step does not keep what it gets.
const MOST_REPLAYS: u32 = 8;
/// When nobody but those who failed is left, they are asked again after this, doubling each time: 0.5 to 4 s, about what a
/// restart takes.
const FORGIVE_MS: u64 = 500;
/// Times somebody is forgiven: about 32 s of waiting, after which the request is given up.
const MOST_FORGIVEN: u32 = 10;
/// Waiting for a router's answer or a promise longer than this counts as its failure.
const OPEN_MS: u64 = 2_000;
/// Whoever is waited for and says nothing for so long is asked whether it is there, and again as often.
const LOOK_MS: u64 = 100;
/// Silence before a promise counts for this much longer than in a step: there may be a connection to be made first.
const CONNECT_MS: u64 = 250;
/// A look that comes this much too late says that this machine slept: what others did not say meanwhile proves nothing.
const OVERSLEPT_MS: u64 = 200;

/// Who stands by for the segments of a pipeline.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Standbys {
    /// By segment, who follows it.
    pub shadows: Vec<Option<NodeId>>,
    /// Who would run a segment after a replay.
    pub covers: Vec<Cover>,
}

/// What happened.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// Time passed; due when [`Session::wake`] says so.
    Tick,
    /// A stage promised to serve and said how much of the session it holds.
    Opened {
        /// Index of the stage.
        stage: usize,
        /// Under which epoch.
        epoch: u32,
        /// Its KV length, at most the position it was opened at.
        have: u32,
    },
    /// A stage cannot go on: its KV is shorter than the frame's first position.
    NeedReplay {
        /// Index of the stage.
        stage: usize,
        /// Under which epoch.
        epoch: u32,
        /// Its KV length.
        have: u32,
    },
    /// A stage's output reached the requester's log.
    Boundary {
        /// Index of the stage.
        stage: usize,
        /// Whose: the stage's node, or its shadow when hedging.
        node: NodeId,
        /// Under which epoch.
        epoch: u32,
        /// Positions below this are logged now.
        to: u32,
    },
    /// The last stage's answer for a step: the token at `position`.
    Token {
        /// Under which epoch.
        epoch: u32,
        /// Its position, the prompt included.
        position: u32,
        /// The token.
        token: u32,
        /// Whether it ends the text.
        stop: bool,
    },
    /// A node answered [`Action::Ping`]: its process runs and the way there and back is open.
    Pong {
        /// Which.
        node: NodeId,
    },
    /// A stage's own node, not its shadow, says that it is computing.
    Beacon {
        /// Index of the stage.
        stage: usize,
        /// Under which epoch.
        epoch: u32,
    },
    /// A node failed, as far as the transport can tell.
    Failed {
        /// Which.
        node: NodeId,
        /// How.
        failure: Failure,
    },
    /// A node was proven wrong: what it gave to `layer` from position `from` on is worthless, and so is all that was
    /// computed from it, in other stages too. The tokens below `known` stay (those the user has read cannot be taken
    /// back), the others are generated again.
    Convicted {
        /// Which.
        node: NodeId,
        /// The layer after its last.
        layer: u32,
        /// First position of it that was wrong.
        from: u32,
        /// Prompt and answer that stay.
        known: u32,
    },
    /// The router's answer to [`Action::FindRoute`].
    Rerouted(Option<(Pipeline, Standbys)>),
    /// The user does not want it any more.
    Cancel,
}

/// What the caller must do.
#[derive(Clone, PartialEq, Debug)]
pub enum Action {
    /// Ask a node to serve a segment; it truncates its KV of this session to `at` and answers `Opened`.
    Open {
        /// Index of the stage.
        stage: usize,
        /// Under which epoch.
        epoch: u32,
        /// Who runs what.
        segment: Segment,
        /// Where its output goes, besides the requester; `None` for the last stage.
        next: Option<NodeId>,
        /// Positions below this may be kept.
        at: u32,
    },
    /// As `Open`, to the shadow of a stage: feed it the log of that stage whenever it is idle; it answers nothing
    /// until a frame is sent to it.
    Follow {
        /// Index of the stage.
        stage: usize,
        /// Under which epoch.
        epoch: u32,
        /// Who follows what.
        segment: Segment,
        /// Where its output would go.
        next: Option<NodeId>,
        /// Positions below this may be kept.
        at: u32,
    },
    /// Send inputs `[from, to)` of a stage, from the tokens (stage 0) or the log.
    Send {
        /// Index of the stage.
        stage: usize,
        /// Under which epoch.
        epoch: u32,
        /// To whom: the stage's node, or its shadow when hedging.
        node: NodeId,
        /// First position.
        from: u32,
        /// One past the last position.
        to: u32,
    },
    /// Ask a node whether it is there; answer with `Pong` when it is.
    Ping {
        /// Whom.
        node: NodeId,
    },
    /// Give the user the token at this position.
    Emit {
        /// Its position, the prompt included.
        position: u32,
        /// The token.
        token: u32,
    },
    /// Route the request again without these nodes; answer with `Rerouted`.
    FindRoute {
        /// Nodes that failed this request.
        deny: Vec<NodeId>,
    },
    /// Tell a node that this session needs it no more (leases, KV).
    Close {
        /// Whom.
        node: NodeId,
        /// Everything of this session opened under this epoch or a lower one.
        epoch: u32,
    },
    /// Two answers for one position differ: keep both for the verdict.
    Evidence {
        /// The position.
        position: u32,
    },
    /// It is over; nothing follows.
    Done(End),
}

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The model said so.
    Stop,
    /// As many tokens as asked for.
    Length,
    /// The user said so.
    Cancelled,
    /// Recovery ran out.
    GaveUp(GiveUp),
}

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
}

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
    stages: Vec<Stage>,
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
    replays: u32,
    budget: Budget,
    detectors: BTreeMap<NodeId, Detector>,
    failed: BTreeSet<NodeId>,
    /// How often each failed, forgiven or not.
    blame: BTreeMap<NodeId, u32>,
    /// No route is left without those who failed; the least to blame are forgiven when the wait is over.
    forgiving: bool,
    /// Times somebody was.
    forgiven: u32,
    /// Caches computed from a lie: from here on nobody keeps his.
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
            stages: Vec::new(),
            log: BTreeMap::new(),
            phase: Phase::Opening,
            due: now,
            look: now,
            step_began: now,
            step_tokens: 1,
            last_due: now,
            hedged: None,
            suspect: None,
            replays: 0,
            budget: Budget::default(),
            detectors: BTreeMap::new(),
            failed: BTreeSet::new(),
            blame: BTreeMap::new(),
            forgiving: false,
            forgiven: 0,
            tainted: u32::MAX,
            rtt_p99_ms,
        };
        let mut actions = Vec::new();
        session.adopt(now, pipeline, standbys, &mut actions);
        (session, actions)
    }

    /// Its name.
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// The current epoch; frames of any other are dead.
    pub fn epoch(&self) -> u32 {
        self.epoch
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

    /// Prompt and answer so far.
    fn known(&self) -> u32 {
        self.prompt + self.tokens.len() as u32
    }

    /// Inputs of a stage available at the requester.
    fn logged(&self, stage: usize) -> u32 {
        match self.stages[stage].segment.layers.start() {
            0 => self.known(),
            layer => self.log.get(&layer).copied().unwrap_or(0),
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
            Event::Boundary { stage, node, epoch, to } => {
                if self.live(stage, epoch) && to <= self.known() {
                    self.boundary(now, stage, node, to, &mut actions);
                }
            }
            Event::Beacon { stage, epoch } => {
                if self.live(stage, epoch) {
                    self.speaks(now, stage);
                }
            }
            Event::Pong { node } => {
                for stage in self.stages.iter_mut().filter(|stage| stage.segment.node == node) {
                    stage.alive = now;
                }
            }
            Event::Token { epoch, position, token, stop } => {
                if epoch == self.epoch {
                    self.token(now, position, token, stop, &mut actions);
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

    /// A stage lacks KV for a frame: it lost some, or the frame overtook the replay sent before it.
    fn need_replay(&mut self, now: Millis, stage: usize, have: u32, actions: &mut Vec<Action>) {
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

    /// A stage's own node said something about its work.
    fn speaks(&mut self, now: Millis, stage: usize) {
        self.stages[stage].heard = now;
        self.suspect = self.suspect.filter(|suspect| suspect.0 != stage);
    }

    fn boundary(&mut self, now: Millis, stage: usize, node: NodeId, to: u32, actions: &mut Vec<Action>) {
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

    /// Gives the shadow of a stage the frame that the stage was given. False when there is none, or nothing to give.
    fn send_shadow(&self, stage: usize, actions: &mut Vec<Action>) -> bool {
        let known = self.known();
        let (from, to) = (self.stages[stage].done.min(known - 1), self.logged(stage).min(known));
        let Some(node) = self.stages[stage].shadow.filter(|_| from < to) else { return false };
        actions.push(Action::Send { stage, epoch: self.epoch, node, from, to });
        true
    }

    /// How long whoever is waited for may say nothing at all.
    fn silence_ms(&self) -> u64 {
        SILENCE_MS + self.rtt_p99_ms as u64
    }

    /// How long the node of a stage has said nothing, not even that it is there.
    fn quiet_ms(&self, now: Millis, stage: usize) -> u64 {
        now.since(self.stages[stage].heard.max(self.stages[stage].alive))
    }

    /// The next thing expected is the output of `stage`.
    fn wait_for(&mut self, now: Millis, stage: usize) {
        let detector = self.detectors.get(&self.stages[stage].segment.node).cloned().unwrap_or_default();
        let patience = detector.patience_ms(self.step_tokens, self.rtt_p99_ms);
        // A long prompt has time, but who says nothing meanwhile is looked at as soon as for a single token.
        self.due = now + patience.min(COLD_STEP_MS + self.rtt_p99_ms as u64);
        self.last_due = now + STALLING * patience;
        self.look = now + LOOK_MS;
    }

    fn token(&mut self, now: Millis, position: u32, token: u32, stop: bool, actions: &mut Vec<Action>) {
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
        }
        self.tokens.push(token);
        self.budget.step_done();
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

    /// Notes how long a stage took for one token; prompts and hedged steps say little about that.
    fn note_stage(&mut self, now: Millis, stage: usize) {
        if self.step_tokens == 1 && self.hedged.is_none() {
            let ms = now.since(self.step_began) as f64;
            self.detectors.entry(self.stages[stage].segment.node).or_default().note(now, ms);
        }
    }

    /// Sends whatever the stages lack of the tokens known; the general form of a step.
    fn send_missing(&mut self, now: Millis, actions: &mut Vec<Action>) {
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
            tokens = tokens.max(known - from);
        }
        self.phase = Phase::Stepping;
        self.step_tokens = tokens;
        let first = self.stages.iter().position(|stage| stage.done < known).unwrap_or(0);
        self.wait_for(now, first);
    }

    fn tick(&mut self, now: Millis, actions: &mut Vec<Action>) {
        let Some(wake) = self.wake().filter(|wake| now >= *wake) else { return };
        if now.since(wake) >= OVERSLEPT_MS {
            self.stages.iter_mut().for_each(|stage| stage.alive = now);
            self.due = self.due.max(now + self.silence_ms());
        }
        self.look = now + LOOK_MS;
        match self.phase {
            Phase::Opening => self.look_for_promises(now, actions),
            Phase::Stepping => self.look_for_progress(now, actions),
            Phase::Asking if self.forgiving => {
                self.forgiving = false;
                self.forgiven += 1;
                // One that was suspected once may be innocent; one that failed again after it was forgiven waits longest.
                let least = self.failed.iter().map(|node| self.blame.get(node).copied()).min().flatten();
                self.failed.retain(|node| self.blame.get(node).copied() > least);
                self.due = now + OPEN_MS;
                actions.push(Action::FindRoute { deny: self.failed.iter().copied().collect() });
            }
            Phase::Asking => self.finish(End::GaveUp(GiveUp::NoRoute), actions),
            Phase::Over => {}
        }
    }

    fn look_for_promises(&mut self, now: Millis, actions: &mut Vec<Action>) {
        let owing: Vec<usize> =
            (0..self.stages.len()).filter(|stage| self.stages[*stage].have.is_none()).collect();
        let silence = self.silence_ms() + CONNECT_MS;
        let silent = owing.iter().find(|stage| self.quiet_ms(now, **stage) >= silence);
        match (silent, owing.first()) {
            (Some(stage), _) => self.recover(now, *stage, Failure::Silent, actions),
            (None, Some(stage)) if now >= self.due => self.recover(now, *stage, Failure::Late, actions),
            (None, Some(_)) => owing.into_iter().for_each(|stage| self.ping(now, stage, actions)),
            (None, None) => self.begin_if_open(now, actions),
        }
    }

    fn look_for_progress(&mut self, now: Millis, actions: &mut Vec<Action>) {
        let known = self.known();
        let at = self.stages.iter().position(|stage| stage.done < known);
        let stage = at.unwrap_or(self.stages.len() - 1);
        let silence = self.silence_ms();
        let (unheard, quiet) = (now.since(self.stages[stage].heard), self.quiet_ms(now, stage));
        if quiet >= silence && self.hedged.is_none_or(|since| now.since(since) >= silence) {
            let failure = if self.hedged.is_some() { Failure::Silent } else { Failure::Late };
            self.recover(now, stage, failure, actions);
        } else if now < self.due {
            self.ping(now, stage, actions);
        } else if unheard < silence && now < self.last_due {
            // Beacons still come: it computes. Look again when they stop.
            self.due = (self.stages[stage].heard + silence).min(self.last_due);
        } else {
            self.recover(now, stage, Failure::Late, actions);
        }
    }

    fn ping(&self, now: Millis, stage: usize, actions: &mut Vec<Action>) {
        if self.quiet_ms(now, stage) >= LOOK_MS {
            actions.push(Action::Ping { node: self.stages[stage].segment.node });
        }
    }

    fn node_failed(&mut self, now: Millis, node: NodeId, failure: Failure, actions: &mut Vec<Action>) {
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
            self.recover(now, stage, failure, actions);
        } else if failure.bars() {
            self.bar(node);
        }
    }

    fn bar(&mut self, node: NodeId) {
        self.failed.insert(node);
        *self.blame.entry(node).or_insert(0) += 1;
    }

    fn convicted(
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

    fn recover(&mut self, now: Millis, at: usize, failure: Failure, actions: &mut Vec<Action>) {
        let stage = &self.stages[at];
        let options = Options {
            shadow: stage.shadow.map(|node| Segment { node, layers: stage.segment.layers }),
            cover: stage.cover.clone(),
        };
        let node = stage.segment.node;
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
                if failure.bars() {
                    self.bar(node);
                }
                let replacements = segments.into_iter().map(Stage::fresh);
                self.stages.splice(at..=at, replacements);
                if self.stages.iter().all(|stage| stage.segment.node != node) {
                    actions.push(Action::Close { node, epoch: self.epoch });
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
                // Frames still under way must not reach anybody who serves on.
                self.epoch += 1;
                actions.push(Action::FindRoute { deny: self.failed.iter().copied().collect() });
            }
            Recovery::GiveUp(why) => self.finish(End::GaveUp(why), actions),
        }
    }

    fn rerouted(&mut self, now: Millis, found: Option<(Pipeline, Standbys)>, actions: &mut Vec<Action>) {
        if self.phase != Phase::Asking || self.forgiving {
            return;
        }
        match found {
            // Nobody else is left: those who failed may be back by then, or others with the same layers.
            None if self.forgiven < MOST_FORGIVEN => {
                self.forgiving = true;
                // Nobody was burdened by it.
                self.budget.spare_reroute();
                self.due = now + (FORGIVE_MS << self.forgiven.min(3));
            }
            Some((pipeline, standbys)) => {
                let old: Vec<NodeId> = self.stages.iter().map(|stage| stage.segment.node).collect();
                let gone = old.into_iter().filter(|node| !pipeline.visits(*node));
                let epoch = self.epoch;
                actions.extend(gone.map(|node| Action::Close { node, epoch }));
                self.adopt(now, &pipeline, &standbys, actions);
            }
            None => self.finish(End::GaveUp(GiveUp::NoRoute), actions),
        }
    }

    fn adopt(&mut self, now: Millis, pipeline: &Pipeline, standbys: &Standbys, actions: &mut Vec<Action>) {
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
        self.open_all(now, actions);
    }

    /// A new epoch: every stage must promise again and say what it holds.
    fn open_all(&mut self, now: Millis, actions: &mut Vec<Action>) {
        self.epoch += 1;
        self.hedged = None;
        self.suspect = None;
        self.replays = 0;
        self.phase = Phase::Opening;
        self.due = now + OPEN_MS + self.rtt_p99_ms as u64;
        self.look = now + LOOK_MS;
        self.step_began = now;
        for at in 0..self.stages.len() {
            self.stages[at].have = None;
            self.stages[at].heard = now;
            let next = self.stages.get(at + 1).map(|stage| stage.segment.node);
            let segment = self.stages[at].segment;
            let keep = (self.known() - 1).min(self.tainted);
            actions.push(Action::Open { stage: at, epoch: self.epoch, segment, next, at: keep });
            if let Some(node) = self.stages[at].shadow {
                let segment = Segment { node, ..segment };
                actions.push(Action::Follow { stage: at, epoch: self.epoch, segment, next, at: keep });
            }
        }
    }

    fn begin_if_open(&mut self, now: Millis, actions: &mut Vec<Action>) {
        if self.stages.iter().all(|stage| stage.have.is_some()) {
            self.stages.iter_mut().for_each(|stage| stage.done = stage.have.unwrap_or(0));
            self.send_missing(now, actions);
        }
    }

    fn finish(&mut self, end: End, actions: &mut Vec<Action>) {
        let mut nodes: Vec<NodeId> = self.stages.iter().map(|stage| stage.segment.node).collect();
        nodes.extend(self.stages.iter().filter_map(|stage| stage.shadow));
        nodes.sort_unstable();
        nodes.dedup();
        let epoch = self.epoch;
        actions.extend(nodes.into_iter().map(|node| Action::Close { node, epoch }));
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
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Action, Event, Session, Standbys};
    use crate::{LayerRange, Millis, NodeId, Pipeline, Segment, SessionId};

    fn pipeline() -> Pipeline {
        let segment = |node, start, end| Segment {
            node: NodeId::numbered(node),
            layers: LayerRange::new(start, end).unwrap(),
        };
        Pipeline::new(vec![segment(1, 0, 2), segment(2, 2, 4), segment(3, 4, 6)], 6).unwrap()
    }

    /// A session of a three-token prompt after four decoded tokens, its middle stage just replaced by an empty one.
    fn replaced(logged: u32) -> Vec<(usize, u32, u32)> {
        let mut standbys =
            Standbys { shadows: vec![None, Some(NodeId::numbered(9)), None], covers: Vec::new() };
        standbys.covers.clear();
        let id = SessionId::numbered(1);
        let (mut session, _) = Session::start(id, Millis(0), 3, 50, &pipeline(), &standbys, 0.0);
        (0..3).for_each(|stage| {
            session.step(Millis(1), Event::Opened { stage, epoch: 1, have: 0 });
        });
        for position in 3..7 {
            if position <= logged {
                session.step(
                    Millis(2),
                    Event::Boundary { stage: 0, node: NodeId::numbered(1), epoch: 1, to: position },
                );
            }
            session.step(Millis(3), Event::Token { epoch: 1, position, token: 5, stop: false });
        }
        let failed = Event::Failed { node: NodeId::numbered(2), failure: crate::recover::Failure::Closed };
        session.step(Millis(4), failed);
        session.step(Millis(5), Event::Opened { stage: 0, epoch: 2, have: 6 });
        session.step(Millis(5), Event::Opened { stage: 1, epoch: 2, have: 0 });
        let actions = session.step(Millis(5), Event::Opened { stage: 2, epoch: 2, have: 6 });
        let sends = actions.into_iter().filter_map(|action| match action {
            Action::Send { stage, from, to, .. } => Some((stage, from, to)),
            _ => None,
        });
        sends.collect()
    }

    #[test]
    fn the_example_of_the_page() {
        assert_eq!(replaced(6), [(0, 6, 7), (1, 0, 6)]);
    }

    #[test]
    fn what_follows_from_a_lie_is_done_again_by_somebody_else() {
        let standbys = Standbys { shadows: vec![None, Some(NodeId::numbered(9)), None], covers: Vec::new() };
        let id = SessionId::numbered(1);
        let (mut session, _) = Session::start(id, Millis(0), 3, 50, &pipeline(), &standbys, 0.0);
        (0..3).for_each(|stage| {
            session.step(Millis(1), Event::Opened { stage, epoch: 1, have: 0 });
        });
        for position in 3..9 {
            (0..2).for_each(|stage| {
                session.step(
                    Millis(2),
                    Event::Boundary {
                        stage,
                        node: NodeId::numbered(stage as u64 + 1),
                        epoch: 1,
                        to: position,
                    },
                );
            });
            session.step(Millis(3), Event::Token { epoch: 1, position, token: 5, stop: false });
        }
        let liar = NodeId::numbered(2);
        let actions = session.step(Millis(4), Event::Convicted { node: liar, layer: 4, from: 5, known: 6 });
        assert_eq!(session.emitted().len(), 3, "the tokens at 6, 7 and 8 follow from it");
        let opened: Vec<(u64, u32)> = actions
            .iter()
            .filter_map(|action| match action {
                Action::Open { segment, at, .. } => {
                    Some(((1..10).find(|n| NodeId::numbered(*n) == segment.node)?, *at))
                }
                _ => None,
            })
            .collect();
        assert_eq!(opened, [(1, 5), (9, 5), (3, 5)], "nobody keeps what was computed from it");
        assert!(actions.contains(&Action::Close { node: liar, epoch: 1 }));
        session.step(Millis(5), Event::Opened { stage: 0, epoch: 2, have: 5 });
        session.step(Millis(5), Event::Opened { stage: 2, epoch: 2, have: 5 });
        let actions = session.step(Millis(5), Event::Opened { stage: 1, epoch: 2, have: 5 });
        let last = Action::Send { stage: 0, epoch: 2, node: NodeId::numbered(1), from: 5, to: 6 };
        assert!(actions.contains(&last), "{actions:?}");
        let again = session.step(Millis(6), Event::Token { epoch: 2, position: 6, token: 7, stop: false });
        assert!(again.contains(&Action::Emit { position: 6, token: 7 }), "{again:?}");
    }

    #[test]
    fn what_the_log_lacks_is_computed_again_upstream() {
        assert_eq!(replaced(4), [(0, 4, 7), (1, 0, 4)]);
        assert_eq!(replaced(0), [(0, 0, 7)]);
    }
}
