//! The line of prompts that wait because every node that could compute them is full, shed by waiting time.
//!
//! A fixed time limit loses prompts of a line that moves and keeps those of a line that stands. As in CoDel (Nichols and
//! Jacobson, *Controlling queue delay*, ACM Queue 10(5), 2012; RFC 8289) the length of the line says nothing and its delay
//! says all:
//!
//! 1. *A line that moves loses no prompt.* It moves when a prompt of it is let in, when a place is given back, and
//!    when a prompt that runs gets a token.
//! 2. *Who would wait too long is refused at the door*, before anything was computed for it: with `n` prompts before it
//!    and one let in every `gap` ms on the average it would wait `(n + 1) gap`, and [`LONGEST_MS`] is the most. A line that
//!    has let in fewer than [`KNOWN`] says nothing yet: prompts that come together are let in together, and the first of
//!    a crowd take longest.
//! 3. *A line that stands is shed slowly.* After [`STALL_MS`] without any of the three, or [`BARRED_MS`] without a prompt
//!    let in, prompts are refused, the newest first, at CoDel's rate: the `n`-th [`PACE_MS`]` / sqrt(n)` after the one
//!    before it, so a minute of standing empties any line and a line that moves again keeps the rest.
//!
//! ```text
//!   3 wait, one is let in every 20 s:  a fourth waits 80 s   -> enters
//!  40 wait, one is let in every 20 s:  the next waits 820 s  -> refused, to be tried again in 120 s
//! ```
//!
//! A prompt looks for room while it is one of the first [`FRONT`] ([`Backlog::is_in_front`]), so a prompt that needs
//! much room or certain nodes does not hold up all behind it, and none is overtaken by the whole line.
//!
//! Limits: [`MOST`] prompts wait; beyond, the next is refused.

use std::collections::BTreeMap;

use crate::Millis;

/// A prompt that would wait longer than this is refused at once, ms: most clients give up after ten minutes.
pub const LONGEST_MS: u64 = 600_000;
/// Prompts let in before their pace is believed.
pub const KNOWN: u64 = 8;
/// A line in which nothing happened for this long stands, ms: longer than a chunk of a prompt takes on a slow machine.
pub const STALL_MS: u64 = 60_000;
/// A line that lets no prompt in for this long stands even if others get tokens, ms.
pub const BARRED_MS: u64 = 600_000;
/// The second prompt of a line that stands is refused this long after the first, ms.
pub const PACE_MS: u64 = 1_000;
/// Prompts that look for room side by side.
pub const FRONT: usize = 8;
/// Prompts that wait.
pub const MOST: usize = 256;
/// What a client that is refused is told to wait at most, s.
const MAX_RETRY_S: u64 = 120;
/// Prompts let in whose pace counts; at twice as many the older half is forgotten.
const RECENT: u64 = 32;

/// Names a prompt in line; later prompts have greater ones.
pub type Ticket = u64;

/// Why a prompt does not wait, or no longer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// [`MOST`] prompts wait already.
    Crowd,
    /// It would wait for about this long, ms.
    Long(u64),
    /// Nothing has moved for this long, ms.
    Stands(u64),
}

/// A prompt is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shed {
    /// Why.
    pub reason: Reason,
    /// When it is worth trying again, s; at least 1.
    pub retry_after_s: u32,
}

/// The prompts that wait for one model. See the module's page.
#[derive(Clone, Debug, Default)]
pub struct Backlog {
    /// Since when each waits.
    waiting: BTreeMap<Ticket, Millis>,
    next: Ticket,
    /// When a prompt was let in last, or the line began.
    let_in: Millis,
    /// When anything moved last, or the line began.
    moved: Millis,
    /// Prompts let in since `began`, of which the older half is forgotten now and then.
    count: u64,
    /// When the line began, moved on as prompts are forgotten.
    began: Millis,
    /// Prompts shed since anything moved.
    shed: usize,
}

impl Backlog {
    /// Puts a prompt at the end of the line.
    ///
    /// # Errors
    /// [`Shed`] where it would wait too long, or the line stands or is full.
    pub fn enter(&mut self, now: Millis) -> Result<Ticket, Shed> {
        if self.waiting.is_empty() {
            (self.let_in, self.moved, self.began) = (now, now, now);
            (self.count, self.shed) = (0, 0);
        }
        let wait_ms = self.wait_ms(now);
        let reason = match self.stands_ms(now) {
            Some(stands_ms) => Some(Reason::Stands(stands_ms)),
            None if wait_ms > LONGEST_MS => Some(Reason::Long(wait_ms)),
            None if self.waiting.len() >= MOST => Some(Reason::Crowd),
            None => None,
        };
        match reason {
            Some(reason) => Err(self.refusal(reason, now)),
            None => {
                self.next += 1;
                self.waiting.insert(self.next, now);
                Ok(self.next)
            }
        }
    }

    /// Something moved: a place was given back, or a prompt that runs got a token.
    pub fn moved(&mut self, now: Millis) {
        (self.moved, self.shed) = (now, 0);
    }

    /// A prompt of the line was let in, and leaves it.
    pub fn let_in(&mut self, ticket: Ticket, now: Millis) {
        if self.waiting.remove(&ticket).is_none() {
            return;
        }
        self.count += 1;
        if self.count == 2 * RECENT {
            self.count = RECENT;
            self.began = now - now.since(self.began) / 2;
        }
        self.let_in = now;
        self.moved(now);
    }

    /// A prompt leaves without having been let in.
    pub fn leave(&mut self, ticket: Ticket) {
        self.waiting.remove(&ticket);
    }

    /// Whether a prompt is one of those that look for room.
    pub fn is_in_front(&self, ticket: Ticket) -> bool {
        self.waiting.keys().take(FRONT).any(|waiting| *waiting == ticket)
    }

    /// Whether a prompt in line is refused now; it leaves the line then.
    pub fn shed(&mut self, ticket: Ticket, now: Millis) -> Option<Shed> {
        let stands_ms = self.stands_ms(now)?;
        let behind = self.waiting.range(ticket + 1..).count();
        if !self.waiting.contains_key(&ticket) || behind + self.shed >= due(stands_ms) {
            return None;
        }
        self.waiting.remove(&ticket);
        self.shed += 1;
        Some(self.refusal(Reason::Stands(stands_ms), now))
    }

    /// Prompts that wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// How long nothing has moved, once that is too long.
    fn stands_ms(&self, now: Millis) -> Option<u64> {
        let (still, barred) = (now.since(self.moved), now.since(self.let_in));
        let stands = still >= STALL_MS || barred >= BARRED_MS;
        (stands && !self.waiting.is_empty()).then(|| still.max(barred.saturating_sub(BARRED_MS - STALL_MS)))
    }

    /// What a prompt that enters now would wait, ms.
    fn wait_ms(&self, now: Millis) -> u64 {
        if self.waiting.is_empty() || self.count < KNOWN {
            return 0;
        }
        (self.waiting.len() as u64 + 1).saturating_mul(now.since(self.began)) / self.count
    }

    fn refusal(&self, reason: Reason, now: Millis) -> Shed {
        let ms = match reason {
            Reason::Long(wait_ms) => wait_ms - LONGEST_MS,
            Reason::Crowd => self.wait_ms(now) / self.waiting.len().max(1) as u64,
            Reason::Stands(_) => STALL_MS / 2,
        };
        Shed { reason, retry_after_s: ms.div_ceil(1_000).clamp(1, MAX_RETRY_S) as u32 }
    }
}

/// Prompts that a line may have lost after it stood for `stands_ms`. With intervals of `PACE_MS / sqrt(n)` the `n`-th
/// is due after about `2 PACE_MS sqrt(n)`.
fn due(stands_ms: u64) -> usize {
    let pace = stands_ms.saturating_sub(STALL_MS) as f64 / (2.0 * PACE_MS as f64);
    1 + (pace * pace) as usize
}

impl std::fmt::Display for Shed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.reason {
            Reason::Crowd => write!(f, "{MOST} prompts wait here already")?,
            Reason::Long(ms) => {
                write!(
                    f,
                    "every node that could compute it is full, and it would wait for {} s",
                    ms / 1_000
                )?;
            }
            Reason::Stands(ms) => {
                write!(f, "every node that could compute it is full, and none moved for {} s", ms / 1_000)?;
            }
        }
        write!(f, "; try again in {} s", self.retry_after_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    fn line(waiting: usize) -> (Backlog, Vec<Ticket>) {
        let mut line = Backlog::default();
        let tickets = (0..waiting).map(|_| line.enter(Millis(0)).unwrap()).collect();
        (line, tickets)
    }

    /// One is let in every 20 s, as in the module's page.
    #[test]
    fn who_would_wait_too_long_is_refused_at_the_door() {
        let (mut line, tickets) = line(11);
        let mut now = Millis(0);
        for ticket in &tickets[..8] {
            assert_eq!(line.wait_ms(now), 0, "nothing is known of its pace");
            now = now + 20_000;
            line.let_in(*ticket, now);
        }
        assert_eq!(line.wait_ms(now), 80_000);
        assert!(line.enter(now).is_ok());
        let refused = (0..40).find_map(|_| line.enter(now).err()).unwrap();
        assert_eq!((line.len(), refused.reason), (30, Reason::Long(620_000)));
        assert_eq!(refused.retry_after_s, 20);
        assert!(refused.to_string().contains("it would wait for 620 s; try again in 20 s"), "{refused}");
        // Faster from now on: the older pace is forgotten.
        let waiting: Vec<Ticket> = line.waiting.keys().copied().collect();
        for ticket in waiting {
            now = now + 1_000;
            line.let_in(ticket, now);
            line.enter(now).unwrap();
        }
        assert!(line.wait_ms(now) < 31 * 20_000, "{}", line.wait_ms(now));
    }

    /// As seen with 64 streams on a machine that others use: the first token of the first four came after 48 s.
    #[test]
    fn a_crowd_that_comes_at_once_is_taken_though_it_begins_slowly() {
        let (mut line, mut tickets) = line(26);
        let mut now = Millis(48_000);
        line.moved(now);
        tickets.extend((0..34).map(|_| line.enter(now).unwrap()));
        while let Some(ticket) = tickets.first().copied() {
            now = now + 12_000;
            line.moved(now);
            assert!(tickets.iter().all(|waiting| line.shed(*waiting, now).is_none()));
            line.let_in(ticket, now);
            tickets.remove(0);
        }
        assert!(line.is_empty());
    }

    #[test]
    fn a_line_that_moves_loses_no_prompt() {
        let (mut line, tickets) = line(MOST);
        let mut rng = Rng::new(7);
        let mut now = Millis(0);
        let mut left: Vec<Ticket> = tickets;
        while !left.is_empty() {
            now = now + 1 + rng.below(STALL_MS as usize) as u64;
            assert!(left.iter().all(|ticket| line.shed(*ticket, now).is_none()), "{now}");
            match rng.below(4) {
                // Neither standing nor barred.
                0 | 1 if now.since(line.let_in) < BARRED_MS - STALL_MS => line.moved(now),
                _ => line.let_in(left.remove(rng.below(FRONT.min(left.len()))), now),
            }
        }
        assert!(line.is_empty());
    }

    #[test]
    fn a_line_that_stands_is_shed_from_its_end_and_keeps_the_rest_when_it_moves_again() {
        let (mut line, tickets) = line(64);
        let shed = |line: &mut Backlog, now| -> Vec<Ticket> {
            tickets.iter().copied().filter(|ticket| line.shed(*ticket, Millis(now)).is_some()).collect()
        };
        assert!(shed(&mut line, STALL_MS - 1).is_empty());
        assert_eq!(shed(&mut line, STALL_MS), tickets[63..]);
        assert!(line.enter(Millis(STALL_MS)).is_err_and(|shed| shed.retry_after_s == 30), "early, not late");
        assert_eq!(shed(&mut line, STALL_MS + 4_000), tickets[59..63]);
        line.moved(Millis(STALL_MS + 5_000));
        assert!(shed(&mut line, 2 * STALL_MS).is_empty());
        assert_eq!(shed(&mut line, 2 * STALL_MS + 5_000 + 16_000).len(), 59);
        assert!(line.is_empty() && line.enter(Millis(3 * STALL_MS)).is_ok());
    }

    #[test]
    fn tokens_of_others_do_not_keep_a_line_forever_that_lets_none_in() {
        let (mut line, tickets) = line(2);
        (0..BARRED_MS).step_by(1_000).for_each(|now| line.moved(Millis(now)));
        assert!(line.shed(tickets[1], Millis(BARRED_MS - 1)).is_none());
        assert!(line.shed(tickets[1], Millis(BARRED_MS)).is_some());
        assert!(line.shed(tickets[0], Millis(BARRED_MS)).is_none(), "one at a time");
    }

    #[test]
    fn the_first_look_and_the_line_is_bounded() {
        let (mut line, tickets) = line(MOST);
        assert_eq!(line.enter(Millis(0)).unwrap_err().reason, Reason::Crowd);
        assert!(line.is_in_front(tickets[FRONT - 1]) && !line.is_in_front(tickets[FRONT]));
        line.leave(tickets[0]);
        assert!(line.is_in_front(tickets[FRONT]) && !line.is_in_front(tickets[0]));
        line.let_in(tickets[0], Millis(9));
        assert_eq!(line.count, 0, "it had left");
    }
}
