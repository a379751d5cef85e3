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

use super::{Action, Phase, Session};
use crate::recover::{COLD_STEP_MS, Detector, Failure, SILENCE_MS};
use crate::{Millis, NodeId};

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

impl Session {
    pub(super) fn tick(&mut self, now: Millis, actions: &mut Vec<Action>) {
        let Some(wake) = self.wake().filter(|wake| now >= *wake) else { return };
        self.lag.add(now.since(wake).min(OVERSLEPT_MS) as f64);
        if now.since(wake) >= OVERSLEPT_MS {
            self.stages.iter_mut().for_each(|stage| stage.alive = now);
            self.due = self.due.max(now + self.silence_ms());
        }
        self.look = now + LOOK_MS;
        match self.phase {
            Phase::Opening => self.look_for_promises(now, actions),
            Phase::Stepping => self.look_for_progress(now, actions),
            Phase::Asking if self.forgiving => self.forgive(now, actions),
            // The own router is busy: it is asked again as if it had found no node.
            Phase::Asking => self.rerouted(now, None, actions),
            Phase::Over => {}
        }
    }

    fn look_for_promises(&mut self, now: Millis, actions: &mut Vec<Action>) {
        let owing: Vec<usize> =
            (0..self.stages.len()).filter(|stage| self.stages[*stage].have.is_none()).collect();
        let silent =
            owing.iter().find(|stage| self.quiet_ms(now, **stage) >= self.silence_of(**stage) + CONNECT_MS);
        match (silent, owing.first()) {
            (Some(stage), _) => self.recover(now, *stage, Failure::Silent, actions),
            // It is there and has too much to do: asking elsewhere is of use only where there is an elsewhere.
            (None, Some(stage))
                if now >= self.due
                    && self.is_irreplaceable(*stage)
                    && self.stretches < MOST_STRETCHES
                    && now.since(self.step_began) < PROMISE_MS =>
            {
                self.due = now + LOOK_MS;
                owing.into_iter().for_each(|stage| self.ping(now, stage, actions));
            }
            (None, Some(stage)) if now >= self.due => {
                self.crowded = true;
                self.stretches += u32::from(now.since(self.step_began) >= PROMISE_MS);
                self.recover(now, *stage, Failure::Late, actions);
            }
            (None, Some(_)) => owing.into_iter().for_each(|stage| self.ping(now, stage, actions)),
            (None, None) => self.begin_if_open(now, actions),
        }
    }

    fn look_for_progress(&mut self, now: Millis, actions: &mut Vec<Action>) {
        let reach = self.reach();
        let at = self.stages.iter().position(|stage| stage.done < reach);
        let stage = at.unwrap_or(self.stages.len() - 1);
        let silence = self.silence_of(stage);
        let (unheard, quiet) = (now.since(self.stages[stage].heard), self.quiet_ms(now, stage));
        if quiet >= silence && self.hedged.is_none_or(|since| now.since(since) >= silence) {
            let failure = if self.hedged.is_some() { Failure::Silent } else { Failure::Late };
            self.recover(now, stage, failure, actions);
        } else if self.has_lost_it(now, stage) {
            match self.given_again {
                None => {
                    self.given_again = Some(now);
                    self.send_again(stage, actions);
                }
                // What is sent to it is lost again, whichever node sends it. A shadow that was asked has its time first.
                Some(again)
                    if (self.stages[stage].heard > again || now.since(again) >= silence)
                        && self.hedged.is_none_or(|since| now.since(since) >= silence) =>
                {
                    self.recover(now, stage, Failure::Late, actions);
                }
                Some(_) => self.ping(now, stage, actions),
            }
        } else if now < self.due {
            self.ping(now, stage, actions);
        } else if unheard < silence && now < self.last_due {
            // Beacons still come: it computes. Look again when they stop.
            self.due = (self.stages[stage].heard + silence).min(self.last_due);
        } else if self.hedged.is_some()
            && quiet < silence
            && self.is_irreplaceable(stage)
            && self.stretches < MOST_STRETCHES
        {
            // Slow is not dead: moving a session of a crowd only moves the crowd.
            self.due = now + (COLD_STEP_MS << self.stretches);
            self.last_due = self.last_due.max(self.due);
            self.stretches += 1;
            if unheard >= silence {
                self.send_again(stage, actions);
            }
        } else {
            self.recover(now, stage, Failure::Late, actions);
        }
    }

    /// A stage that answers and does not say that it computes has not got what it was sent: the one before it may send to
    /// a connection whose other end has died. Of a stage with a past it is known better how long its steps take.
    fn has_lost_it(&self, now: Millis, at: usize) -> bool {
        let stage = &self.stages[at];
        let rows = self.logged(at).min(self.reach()).saturating_sub(stage.done);
        let patience = self.silence_of(at) + ROW_MS * u64::from(rows.saturating_sub(1).min(ROWS));
        let cold = self.detectors.get(&stage.segment.node).is_none_or(Detector::is_cold);
        let silent = stage.alive > stage.heard && now.since(stage.heard) >= patience;
        cold && silent && (1..=MOST_AGAIN).contains(&rows) && now < self.due
    }

    /// Sends a stage from here what the one before it has sent it.
    fn send_again(&self, stage: usize, actions: &mut Vec<Action>) {
        let (node, from) = (self.stages[stage].segment.node, self.stages[stage].done.min(self.known() - 1));
        let to = self.logged(stage).min(self.reach());
        actions.push(self.send(stage, node, from, to));
    }

    /// A node is reached another way than before. What it owes it may never have been asked for: it is asked again for its
    /// promise, or given its frame once more, unless it says meanwhile that it computes.
    pub(super) fn detoured(&mut self, now: Millis, node: NodeId, actions: &mut Vec<Action>) {
        match self.phase {
            Phase::Opening => {
                for at in 0..self.stages.len() {
                    if self.stages[at].segment.node == node && self.stages[at].have.is_none() {
                        self.stages[at].alive = now;
                        actions.push(self.ask_promise(at));
                    }
                }
            }
            Phase::Stepping => {
                let reach = self.reach();
                let Some(at) = self.stages.iter().position(|stage| stage.done < reach) else { return };
                let stage = &mut self.stages[at];
                if stage.segment.node == node && now.since(stage.heard) >= LOOK_MS {
                    stage.alive = now;
                    self.send_again(at, actions);
                }
            }
            Phase::Asking | Phase::Over => {}
        }
    }

    fn ping(&mut self, now: Millis, stage: usize, actions: &mut Vec<Action>) {
        if self.quiet_ms(now, stage) >= LOOK_MS {
            let node = self.stages[stage].segment.node;
            self.liveness.entry(node).or_default().asked(now);
            actions.push(Action::Ping { node });
        }
    }

    /// The next thing expected is the output of `stage`.
    pub(super) fn wait_for(&mut self, now: Millis, stage: usize) {
        let detector = self.detectors.get(&self.stages[stage].segment.node).cloned().unwrap_or_default();
        let patience = detector.patience_ms(self.step_tokens + self.drafted, self.rtt_p99_ms);
        // A long prompt has time, but who says nothing meanwhile is looked at as soon as for a single token.
        self.due = now + patience.min(COLD_STEP_MS + self.rtt_p99_ms as u64);
        self.last_due = now + STALLING * patience;
        self.look = now + LOOK_MS;
    }

    /// A stage's own node said something about its work.
    pub(super) fn speaks(&mut self, now: Millis, stage: usize) {
        self.stages[stage].heard = now;
        let node = self.stages[stage].segment.node;
        self.liveness.entry(node).or_default().answered(now);
        self.suspect = self.suspect.filter(|suspect| suspect.0 != stage);
    }

    /// How long a node that is waited for may say nothing at all.
    pub(super) fn silence_ms(&self) -> u64 {
        SILENCE_MS + self.rtt_p99_ms as u64 + self.lag.p99_ms().map_or(0, |ms| ms as u64)
    }

    /// How long the node of a stage may, by how long it took to answer before.
    fn silence_of(&self, stage: usize) -> u64 {
        let known = self.liveness.get(&self.stages[stage].segment.node);
        known.copied().unwrap_or_default().silence_ms(self.silence_ms())
    }

    /// Whether no node stands by for a stage.
    fn is_irreplaceable(&self, stage: usize) -> bool {
        self.stages[stage].shadow.is_none() && self.stages[stage].cover.is_empty()
    }

    /// How long the node of a stage has said nothing, not even that it is there.
    fn quiet_ms(&self, now: Millis, stage: usize) -> u64 {
        now.since(self.stages[stage].heard.max(self.stages[stage].alive))
    }

    /// Gives the shadow of a stage the frame that the stage was given. False when there is none, or nothing to give.
    pub(super) fn send_shadow(&self, stage: usize, actions: &mut Vec<Action>) -> bool {
        let known = self.known();
        let (from, to) = (self.stages[stage].done.min(known - 1), self.logged(stage).min(self.reach()));
        let Some(node) = self.stages[stage].shadow.filter(|_| from < to && !self.lazy) else { return false };
        actions.push(self.send(stage, node, from, to));
        true
    }
}
