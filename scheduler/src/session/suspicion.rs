//! Who is waited for, how long its silence may last, and who is given its work meanwhile.
//!
//! Four clocks run for the stage that is waited for:
//!
//! ```text
//!   look  every LOOK_MS   said nothing since?  ask whether it is there
//!   quiet SILENCE_MS      no word, no pong:    suspect, its shadow gets the frame; as long again: left
//!   lost  SILENCE_MS      a pong, no beacon:   it does not compute what it was sent, so that was lost: it is sent again
//!   due   its patience    talks, but is late:  looked at again while beacons come, STALLING times its patience at most
//! ```
//!
//! Silence is of one direction, and so is a cut. Two acknowledgements tell them apart: what a stage says that it has got
//! ([`Patience::is_lost`]), and whether it answers pings while other words of it come ([`Patience::is_deaf`]). Over a connection that loses
//! one way's acknowledgements frames still arrive, ever later, so what a deaf node says does not clear it of a suspicion.

use std::collections::BTreeMap;

use super::stages::{Stage, Stages};
use crate::latency::RoundTrip;
use crate::recover::{COLD_STEP_MS, Detector, Failure, Liveness, SILENCE_MS};
use crate::{Millis, NodeId, Segment};

/// A stage that only ever says that it computes is late after this many times its patience all the same.
const STALLING: u64 = 8;
/// A node that is waited for and says nothing for so long is asked whether it is there, and again as often.
pub(super) const LOOK_MS: u64 = 100;
/// Silence before a promise counts for this much longer than in a step: there may be a connection to be made first.
const CONNECT_MS: u64 = 250;
/// A node that answers and has no substitute has so long to promise, [`MOST_STRETCHES`] times between two tokens.
const PROMISE_MS: u64 = 8_000;
/// A step whose stage answers and has no substitute is given longer so many times: 2, 4, 8 and 16 s.
const MOST_STRETCHES: u32 = 4;
/// What a row of a prompt may take to cross a slow link, ms (4,096 values as they are at 11 Mbit/s), and how many of them
/// cross before a stage can begin: so much more time it has to say that it computes.
const ROW_MS: u64 = 12;
const ROWS: u32 = 96;
/// Of a longer prompt nothing is sent again for its silence alone: it may be on its way.
const MOST_AGAIN: u32 = 1_024;
/// A look that comes this much too late says that this machine slept: what others did not say meanwhile proves nothing.
const OVERSLEPT_MS: u64 = 200;
/// So long after something was sent again it counts as the same trouble when it must be once more.
const LOST_MS: u64 = 5_000;
/// Waiting for a router's answer or a promise longer than this counts as its failure.
const OPEN_MS: u64 = 2_000;

/// Where the steps of a segment are noted.
fn place(segment: Segment) -> (NodeId, u32) {
    (segment.node, segment.layers.start())
}

/// What a look at the stages says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Look {
    /// All have promised.
    Begin,
    /// Nothing is to be done.
    Wait,
    /// Ask these, where they are quiet, whether they are there.
    Ask(Vec<usize>),
    /// Send a stage again what the one before it has sent it.
    SendAgain(usize),
    /// A stage failed.
    Recover(usize, Failure),
}

/// The clocks of a request, and what is known of how its nodes keep time.
#[derive(Clone, Debug)]
pub(super) struct Patience {
    pub(super) due: Millis,
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
    /// Times that the running step was given longer because the one it waits for answers and none could take its place.
    stretches: u32,
    /// By node and the first layer of its segment: a node may run several, each as long as it is.
    detectors: BTreeMap<(NodeId, u32), Detector>,
    /// How long nodes take to say that they are there.
    liveness: BTreeMap<NodeId, Liveness>,
    /// Since when a ping to a node has not been answered.
    unanswered: BTreeMap<NodeId, Millis>,
    /// How late this machine looks, ms: what it is late by, others are not silent.
    lag: RoundTrip,
    rtt_p99_ms: f64,
}

impl Patience {
    /// From `now` on; `rtt_p99_ms` is the network's part of the slowest ordinary step.
    pub(super) fn new(now: Millis, rtt_p99_ms: f64) -> Self {
        Self {
            due: now,
            look: now,
            step_began: now,
            step_tokens: 1,
            last_due: now,
            hedged: None,
            suspect: None,
            given_again: None,
            stretches: 0,
            detectors: BTreeMap::new(),
            liveness: BTreeMap::new(),
            unanswered: BTreeMap::new(),
            lag: RoundTrip::default(),
            rtt_p99_ms,
        }
    }

    /// When to look next.
    pub(super) fn wake(&self) -> Millis {
        self.due.min(self.look)
    }

    /// A look that was due at `wake`; true when it is so late that this machine must have slept.
    pub(super) fn woke(&mut self, now: Millis, wake: Millis) -> bool {
        let late = now.since(wake);
        self.lag.add(late.min(OVERSLEPT_MS) as f64);
        let overslept = late >= OVERSLEPT_MS;
        if overslept {
            self.due = self.due.max(now + self.silence_ms());
        }
        self.look = now + LOOK_MS;
        overslept
    }

    /// The router is asked.
    pub(super) fn ask_router(&mut self, now: Millis) {
        self.due = now + OPEN_MS;
    }

    /// Every stage is asked for its promise.
    pub(super) fn open(&mut self, now: Millis) {
        self.hedged = None;
        self.suspect = None;
        self.given_again = None;
        self.due = now + OPEN_MS + self.rtt_p99_ms as u64;
        self.look = now + LOOK_MS;
        self.step_began = now;
    }

    /// A step begins that computes `tokens` at most.
    pub(super) fn begin(&mut self, tokens: u32) {
        self.step_tokens = tokens;
    }

    /// The next thing expected is the output of `segment`, of a step with `drafted` drafted tokens.
    pub(super) fn wait_for(&mut self, now: Millis, segment: Segment, drafted: u32) {
        let detector = self.detectors.get(&place(segment)).cloned().unwrap_or_default();
        let patience = detector.patience_ms(self.step_tokens + drafted, self.rtt_p99_ms);
        // A long prompt has time, but who says nothing meanwhile is looked at as soon as for a single token.
        self.due = now + patience.min(COLD_STEP_MS + self.rtt_p99_ms as u64);
        self.last_due = now + STALLING * patience;
        self.look = now + LOOK_MS;
    }

    /// A stage's output is complete, and the next one's is waited for.
    pub(super) fn stage_done(&mut self, now: Millis, segment: Segment) {
        self.note_stage(now, segment);
        self.step_began = now;
    }

    /// Notes how long a stage took for one step, drafts included; prompts say little about that. Of a stage that was hedged it is known
    /// that it took so long at least, of others in a hedged step nothing.
    pub(super) fn note_stage(&mut self, now: Millis, segment: Segment) {
        if self.step_tokens != 1 {
            return;
        }
        let ms = now.since(self.step_began) as f64;
        let detector = self.detectors.entry(place(segment)).or_default();
        match self.hedged {
            None => detector.note(now, ms),
            Some(since) if since >= self.step_began => detector.note_at_least(ms),
            Some(_) => {}
        }
    }

    /// A token came.
    pub(super) fn earn(&mut self, now: Millis) {
        self.stretches = 0;
        self.given_again = self.given_again.filter(|at| now.since(*at) < LOST_MS);
    }

    /// The next step begins; the stage that is to be left because it has not come back since its shadow took over, for as long as it took to
    /// suspect it.
    pub(super) fn next_step(&mut self, now: Millis) -> Option<usize> {
        self.step_began = now;
        let silence = self.silence_ms();
        if let Some((stage, _)) = self.suspect.filter(|suspect| now.since(suspect.1) >= silence) {
            return Some(stage);
        }
        self.hedged = self.suspect.map(|suspect| suspect.1);
        None
    }

    /// Whether a segment has become much slower than it was on its node.
    pub(super) fn is_gray(&self, segment: Segment) -> bool {
        self.detectors.get(&place(segment)).is_some_and(Detector::is_gray)
    }

    /// Whether a frame of the running step was sent once more, or to a shadow.
    pub(super) fn is_hedged(&self) -> bool {
        self.hedged.is_some()
    }

    /// A frame of the running step is sent once more.
    pub(super) fn hedge(&mut self, now: Millis) {
        self.hedged.get_or_insert(now);
    }

    /// A stage's shadow was given its frame.
    pub(super) fn suspect(&mut self, now: Millis, stage: usize) {
        self.suspect = Some((stage, now));
        self.hedged = Some(now);
    }

    /// The stage whose shadow gets every frame too.
    pub(super) fn suspected(&self) -> Option<(usize, Millis)> {
        self.suspect
    }

    /// The own node of a stage said something about its work. That clears it only if it hears as well.
    pub(super) fn speaks(&mut self, now: Millis, at: usize, stage: &Stage) {
        let liveness = self.liveness.entry(stage.segment.node).or_default();
        liveness.answered(now);
        if stage.lacks {
            liveness.took(now.since(stage.given));
        }
        if !self.is_deaf(now, stage) {
            self.suspect = self.suspect.filter(|suspect| suspect.0 != at);
        }
    }

    /// A node said that it is there, because it was asked.
    pub(super) fn ponged(&mut self, now: Millis, node: NodeId) {
        self.liveness.entry(node).or_default().answered(now);
        self.unanswered.remove(&node);
    }

    /// A node is asked whether it is.
    pub(super) fn asked(&mut self, now: Millis, node: NodeId) {
        self.liveness.entry(node).or_default().asked(now);
        self.unanswered.entry(node).or_insert(now);
    }

    /// Whether the node of a stage has not answered for longer than it may be silent, whatever else it says.
    fn is_deaf(&self, now: Millis, stage: &Stage) -> bool {
        let since = self.unanswered.get(&stage.segment.node);
        since.is_some_and(|since| now.since(*since) >= self.silence_of(stage))
    }

    /// Whether the `rows` that a stage was given and says it has not got are lost: they would have come by now, as long as such a stage
    /// took before.
    pub(super) fn is_lost(&self, now: Millis, stage: &Stage, rows: u32) -> bool {
        let lag = self.lag.p99_ms().map_or(0, |ms| ms as u64);
        let known = self.liveness.get(&stage.segment.node).copied().unwrap_or_default();
        // All of them, one after the other: the first ones of a long prompt may be computed before the last ones are there.
        let way = known.silence_ms(LOOK_MS + self.rtt_p99_ms as u64 + lag);
        let way = way + ROW_MS * u64::from(rows.saturating_sub(1));
        rows <= MOST_AGAIN && now.since(stage.given) >= way
    }

    /// Whether what was done last for the running step has had its time.
    pub(super) fn may_move_on(&self, now: Millis, stage: &Stage) -> bool {
        self.hedged.is_none_or(|since| now.since(since) >= self.silence_of(stage))
    }

    /// How long a node that is waited for may say nothing at all.
    pub(super) fn silence_ms(&self) -> u64 {
        SILENCE_MS + self.rtt_p99_ms as u64 + self.lag.p99_ms().map_or(0, |ms| ms as u64)
    }

    /// How long the node of a stage may, by how long it took to answer before.
    fn silence_of(&self, stage: &Stage) -> u64 {
        let known = self.liveness.get(&stage.segment.node);
        known.copied().unwrap_or_default().silence_ms(self.silence_ms())
    }

    /// Looks at stages that are to promise.
    pub(super) fn look_for_promises(&mut self, now: Millis, stages: &Stages) -> Look {
        let owing = stages.owing();
        let Some(&first) = owing.first() else { return Look::Begin };
        let is_silent = |at: &&usize| {
            let stage = &stages.list[**at];
            stage.quiet_ms(now) >= self.silence_of(stage) + CONNECT_MS
        };
        if let Some(silent) = owing.iter().find(is_silent) {
            return Look::Recover(*silent, Failure::Silent);
        }
        if now < self.due {
            return Look::Ask(owing);
        }
        // It is there and has too much to do: asking elsewhere is of use only where there is an elsewhere.
        let waited = now.since(self.step_began);
        let may_stretch = stages.list[first].is_irreplaceable() && self.stretches < MOST_STRETCHES;
        if may_stretch && waited < PROMISE_MS {
            self.due = now + LOOK_MS;
            return Look::Ask(owing);
        }
        self.stretches += u32::from(waited >= PROMISE_MS);
        Look::Recover(first, Failure::Late)
    }

    /// Looks at the stage that a step up to position `reach` waits for.
    pub(super) fn look_for_progress(&mut self, now: Millis, stages: &Stages, reach: u32) -> Look {
        let at = stages.unfinished(reach).unwrap_or(stages.list.len() - 1);
        let stage = &stages.list[at];
        let silence = self.silence_of(stage);
        let (unheard, quiet) = (now.since(stage.heard), stage.quiet_ms(now));
        let rows = stages.logged(at, reach).min(reach).saturating_sub(stage.done);
        if quiet >= silence && self.may_move_on(now, stage) {
            let failure = if self.hedged.is_some() { Failure::Silent } else { Failure::Late };
            Look::Recover(at, failure)
        } else if self.has_lost(now, stage, rows) {
            match self.given_again {
                None => {
                    self.given_again = Some(now);
                    Look::SendAgain(at)
                }
                // What is sent to it is lost again, whichever node sends it. A shadow that was asked has its time first.
                Some(again)
                    if (stage.heard > again || now.since(again) >= silence)
                        && self.may_move_on(now, stage) =>
                {
                    Look::Recover(at, Failure::Late)
                }
                Some(_) => Look::Ask(vec![at]),
            }
        } else if now < self.due {
            Look::Ask(vec![at])
        } else if unheard < silence && now < self.last_due {
            // Beacons still come: it computes. Look again when they stop.
            self.due = (stage.heard + silence).min(self.last_due);
            Look::Wait
        } else if self.hedged.is_some()
            && quiet < silence
            && stage.is_irreplaceable()
            && self.stretches < MOST_STRETCHES
        {
            // Slow is not dead: moving a session of a crowd only moves the crowd.
            self.due = now + (COLD_STEP_MS << self.stretches);
            self.last_due = self.last_due.max(self.due);
            self.stretches += 1;
            if unheard >= silence { Look::SendAgain(at) } else { Look::Wait }
        } else {
            Look::Recover(at, Failure::Late)
        }
    }

    /// A stage that answers and does not say that it computes has not got the `rows` it was sent: the one before it may send to
    /// a connection whose other end has died. Of a stage with a past it is known better how long its steps take.
    fn has_lost(&self, now: Millis, stage: &Stage, rows: u32) -> bool {
        let patience = self.silence_of(stage) + ROW_MS * u64::from(rows.saturating_sub(1).min(ROWS));
        let cold = self.detectors.get(&place(stage.segment)).is_none_or(Detector::is_cold);
        let silent = stage.alive > stage.heard && now.since(stage.heard) >= patience;
        cold && silent && (1..=MOST_AGAIN).contains(&rows) && now < self.due
    }
}
