//! Messages on their way: what is sent when, what is sent again, and what is given up.
//!
//! A message is kept until its ack. When nothing is heard of one for a retransmission time (twice the smoothed round trip and
//! four times its variation, RFC 6298 with other factors), its receiver is asked what lacks and answers with a nack; an ack of
//! a later message asks earlier. [`MAX_ROUNDS`] questions and [`PATIENCE`] without progress give a message up, and it goes over the
//! stream. Chunks in flight are bounded by a window that grows by one for each window that arrives (until the first loss by one
//! for each chunk) and is halved when chunks were lost, at most once a round trip. It is what paces them: a third of a megabyte at most. A
//! network that loses many all the same is left to the stream ([`Sent::crowds_since`]).

use std::collections::VecDeque;
use std::time::Duration;

use super::Time;
use super::header::{CHUNK_BYTES, HEADER_LEN, Header, HeaderKey, Kind, Window, chunks_of};

/// Messages on their way at a time.
pub(crate) const MAX_OUTSTANDING: usize = 16;
/// Of them those of more than one chunk: a receiver puts together no more at a time.
const MAX_LONG: usize = super::receive::MAX_OPEN;
/// Questions without progress before a message is given up.
const MAX_ROUNDS: u32 = 3;
/// How long a message is tried at least before it is given up: a busy host answers later than its network.
const PATIENCE: Duration = Duration::from_millis(100);
/// The shortest retransmission time.
const MIN_RTO: Duration = Duration::from_millis(1);
/// The longest, and the first.
const MAX_RTO: Duration = Duration::from_millis(40);
const FIRST_RTO: Duration = Duration::from_millis(20);
/// Chunks of [`CHUNK_BYTES`] in flight: at first, at least and at most. The most is a third of a megabyte, which a socket's default buffer takes.
const FIRST_WINDOW: u32 = 48;
const MIN_WINDOW: u32 = 4;
const MAX_WINDOW: u32 = 240;
/// Datagrams that leave in one system call, of [`CHUNK_BYTES`]: 64 KiB.
const TRAIN: u32 = 44;

/// So many datagrams of [`CHUNK_BYTES`], in bytes: how many of chunks of another length.
fn scaled(datagrams: u32, chunk_bytes: usize) -> u32 {
    let bytes = datagrams as usize * (CHUNK_BYTES + HEADER_LEN);
    (bytes / (chunk_bytes + HEADER_LEN)) as u32
}

/// Where a message belongs: the stream it stands for, and its number there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Place {
    pub(crate) lane: u64,
    pub(crate) number: u32,
}

/// What the datagrams of a message are tagged with, whenever they are sent.
#[derive(Clone, Debug)]
pub(crate) struct Stamp {
    pub(crate) epoch: u32,
    pub(crate) key: HeaderKey,
}

/// A message on its way.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) message: u32,
    pub(crate) stamp: Stamp,
    pub(crate) place: Place,
    pub(crate) sealed: Vec<u8>,
    chunks: u16,
    /// The first chunk that was never sent.
    next: u16,
    /// Chunks to be sent again, ascending.
    again: VecDeque<u16>,
    in_flight: u32,
    sent: Time,
    progress: Time,
    due: Time,
    /// The first chunk that was never sent when its receiver was asked last, until there is an answer: an answer says nothing
    /// of what was sent after the question.
    asked: Option<u16>,
    /// Questions since the last progress.
    rounds: u32,
    /// The fewest chunks that were said to lack.
    lacking: u32,
    /// Sent again or asked for: its ack says nothing of the round trip.
    disturbed: bool,
}

impl Outgoing {
    fn is_sent(&self) -> bool {
        self.next == self.chunks && self.again.is_empty()
    }

    /// What follows waits for the window: an answer opens it before the retransmission time.
    fn ask_for_room(&mut self, session: u64) -> Option<Header> {
        if self.in_flight == 0 || self.is_sent() || self.asked.is_some() {
            return None;
        }
        (self.asked, self.disturbed) = (Some(self.next), true);
        Some(self.header(Kind::Probe, session))
    }

    fn header(&self, kind: Kind, session: u64) -> Header {
        let (message, chunks, epoch) = (self.message, self.chunks, self.stamp.epoch);
        Header {
            kind,
            chunk: 0,
            session,
            message,
            total_bytes: self.sealed.len() as u32,
            chunks,
            len: 0,
            epoch,
        }
    }
}

/// What a session counts of what it sent.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Sent {
    pub(crate) messages: u64,
    /// Chunks, each time that they were sent.
    pub(crate) chunks: u64,
    /// Chunks that were sent again.
    pub(crate) again: u64,
    /// Messages given up.
    pub(crate) returned: u64,
}

impl Sent {
    /// After how many chunks it is judged again whether the network has room for them; after fewer one burst at a full queue decides.
    const JUDGED: u64 = 512;
    /// Where one of so many is sent again there is none: the stream backs off further than the window does. A bad wireless network loses one in
    /// twenty.
    const CROWDED: u64 = 5;

    /// Whether too many of the chunks since `before` were sent again; `None` while there are too few of them.
    pub(crate) fn crowds_since(&self, before: &Self) -> Option<bool> {
        let (chunks, again) = (self.chunks - before.chunks, self.again - before.again);
        (chunks >= Self::JUDGED).then_some(again * Self::CROWDED > chunks)
    }
}

/// The messages of one session that are on their way.
#[derive(Debug)]
pub(crate) struct Sender {
    session: u64,
    chunk_bytes: usize,
    outgoing: VecDeque<Outgoing>,
    next_message: u32,
    /// Free places at the receiver, as it said last.
    credit: u16,
    window: u32,
    /// It grows to so many.
    most: u32,
    /// Chunks that arrived since the window grew last.
    grown: u32,
    /// Above it the window grows slowly.
    threshold: u32,
    in_flight: u32,
    /// When the window was halved last.
    halved: Time,
    rtt: Option<(Duration, Duration)>,
    /// Questions to be sent.
    probes: Vec<Header>,
    asked_for_credit: Time,
    pub(crate) count: Sent,
}

impl Sender {
    /// To the session that the receiver calls `session`, which has `credit` places.
    pub(crate) fn new(session: u64, chunk_bytes: usize, credit: u16) -> Self {
        Self {
            session,
            chunk_bytes,
            outgoing: VecDeque::with_capacity(MAX_OUTSTANDING),
            next_message: 1,
            credit,
            window: scaled(FIRST_WINDOW, chunk_bytes),
            grown: 0,
            most: scaled(MAX_WINDOW, chunk_bytes),
            threshold: scaled(MAX_WINDOW, chunk_bytes),
            in_flight: 0,
            halved: Time::ZERO,
            rtt: None,
            probes: Vec::new(),
            asked_for_credit: Time::ZERO,
            count: Sent::default(),
        }
    }

    /// The number of the next message.
    pub(crate) fn next_message(&self) -> u32 {
        self.next_message
    }

    /// Whether a message of so many bytes may be sent now.
    pub(crate) fn has_room(&self, sealed_bytes: usize) -> bool {
        let long = |bytes: usize| bytes > self.chunk_bytes;
        let oldest = self.outgoing.front().map_or(self.next_message, |out| out.message);
        self.outgoing.len() < MAX_OUTSTANDING.min(usize::from(self.credit))
            && self.next_message.wrapping_sub(oldest) < Window::SPAN / 2
            && (!long(sealed_bytes)
                || self.outgoing.iter().filter(|out| long(out.sealed.len())).count() < MAX_LONG)
    }

    /// Whether room comes without anything being asked: something is on its way.
    pub(crate) fn is_busy(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// The receiver has no place: it is asked, sparingly, whether it has one by now.
    pub(crate) fn ask_for_credit(&mut self, now: Time, epoch: u32) {
        if now.saturating_sub(self.asked_for_credit) >= MAX_RTO || self.asked_for_credit == Time::ZERO {
            self.asked_for_credit = now.max(Duration::from_nanos(1));
            let message = self.next_message.wrapping_sub(1);
            let (session, kind) = (self.session, Kind::Probe);
            let probe = Header { kind, chunk: 0, session, message, total_bytes: 0, chunks: 1, len: 0, epoch };
            self.probes.push(probe);
        }
    }

    /// Takes a sealed message over; [`Sender::has_room`] said that it may.
    pub(crate) fn push(&mut self, now: Time, place: Place, sealed: Vec<u8>, stamp: Stamp) {
        let Some(chunks) = chunks_of(sealed.len(), self.chunk_bytes) else { return };
        let message = self.next_message;
        self.next_message = self.next_message.wrapping_add(1);
        self.count.messages += 1;
        self.outgoing.push_back(Outgoing {
            message,
            stamp,
            place,
            sealed,
            chunks,
            next: 0,
            again: VecDeque::new(),
            in_flight: 0,
            sent: now,
            progress: now,
            due: now + self.rto(),
            asked: None,
            rounds: 0,
            lacking: u32::from(chunks),
            disturbed: false,
        });
    }

    /// The retransmission time.
    fn rto(&self) -> Duration {
        let Some((smooth, varies)) = self.rtt else { return FIRST_RTO };
        (2 * smooth + 4 * varies).clamp(MIN_RTO, MAX_RTO)
    }

    /// The smoothed round trip, once one was measured.
    fn rtt(&self) -> Option<Duration> {
        self.rtt.map(|(smooth, _)| smooth)
    }

    fn measured(&mut self, rtt: Duration) {
        self.rtt = Some(match self.rtt {
            None => (rtt, rtt / 2),
            Some((smooth, varies)) => {
                let varies = (3 * varies + smooth.abs_diff(rtt)) / 4;
                ((7 * smooth + rtt) / 8, varies)
            }
        });
    }

    fn arrived(&mut self, chunks: u32) {
        self.in_flight = self.in_flight.saturating_sub(chunks);
        if self.window < self.threshold {
            self.window = (self.window + chunks).min(self.most);
        } else {
            self.grown += chunks;
            if self.grown >= self.window {
                self.grown = 0;
                self.window = (self.window + 1).min(self.most);
            }
        }
    }

    fn lost(&mut self, now: Time, chunks: u32) {
        self.in_flight = self.in_flight.saturating_sub(chunks);
        if chunks > 0 && now.saturating_sub(self.halved) > self.rtt().unwrap_or(FIRST_RTO) {
            self.halved = now;
            self.window = (self.window / 2).max(MIN_WINDOW);
            self.threshold = self.window;
        }
    }

    /// A message has arrived; where it belongs, unless that is known already.
    pub(crate) fn on_ack(&mut self, now: Time, message: u32, credit: u16) -> Option<Place> {
        self.credit = credit;
        let at = self.outgoing.iter().position(|out| out.message == message)?;
        let out = self.outgoing.remove(at)?;
        if !out.disturbed {
            self.measured(now.saturating_sub(out.sent));
        }
        self.arrived(out.in_flight);
        // What was sent before it and has not arrived was lost, or will be here before the question.
        let session = self.session;
        for earlier in self.outgoing.iter_mut().take(at).filter(|out| out.is_sent() && out.asked.is_none()) {
            earlier.asked = Some(earlier.next);
            earlier.disturbed = true;
            self.probes.push(earlier.header(Kind::Probe, session));
        }
        Some(out.place)
    }

    /// The receiver says which chunks lack.
    pub(crate) fn on_nack(&mut self, now: Time, message: u32, payload: &[u8]) {
        let Some(at) = self.outgoing.iter().position(|out| out.message == message) else { return };
        let Some((head, bits)) = payload.split_first_chunk::<4>() else { return };
        let first = u16::from_le_bytes([head[0], head[1]]);
        let count = u16::from_le_bytes([head[2], head[3]]);
        let out = &mut self.outgoing[at];
        let known = first == 0 && count == out.chunks && bits.len() == usize::from(count).div_ceil(8);
        if !known {
            return;
        }
        let lacks = |chunk: u16| bits[usize::from(chunk / 8)] >> (chunk % 8) & 1 == 1;
        let lacking: u32 = (0..out.chunks).map(|chunk| u32::from(lacks(chunk))).sum();
        let Some(asked) = out.asked.take() else { return };
        let waiting = out.again.len() as u32;
        out.again = (0..asked).filter(|chunk| lacks(*chunk)).collect();
        let lost = (out.again.len() as u32).saturating_sub(waiting);
        let before = out.in_flight;
        out.in_flight = before.min(u32::from(out.next - asked));
        let over = before - out.in_flight;
        let arrived = over.saturating_sub(lost);
        out.disturbed = true;
        if lacking < out.lacking {
            (out.lacking, out.rounds, out.progress) = (lacking, 0, now);
        } else {
            // Answered, and nothing has come of what was sent again.
            out.rounds += 1;
        }
        let progressed = out.rounds == 0;
        self.count.again += u64::from(lost);
        self.arrived(arrived);
        self.lost(now, lost.min(over));
        if progressed {
            let rto = self.rto();
            self.outgoing[at].due = now + rto;
        }
    }

    /// When something is due next.
    pub(crate) fn due(&self) -> Option<Time> {
        self.outgoing.iter().map(|out| out.due).min()
    }

    /// Asks for what is late, and gives back what is given up.
    pub(crate) fn on_time(&mut self, now: Time) -> Vec<Outgoing> {
        let (session, rto) = (self.session, self.rto());
        let mut given_up = Vec::new();
        let mut at = 0;
        while at < self.outgoing.len() {
            let out = &mut self.outgoing[at];
            if out.due > now {
                at += 1;
                continue;
            }
            if out.next == 0 {
                // It waits for the window: nothing of it can have been lost.
                (out.due, out.progress) = (now + rto, now);
                at += 1;
                continue;
            }
            if out.rounds >= MAX_ROUNDS && now.saturating_sub(out.progress) >= PATIENCE {
                let in_flight = out.in_flight;
                given_up.extend(self.outgoing.remove(at));
                self.count.returned += 1;
                self.lost(now, in_flight);
                continue;
            }
            out.rounds += 1;
            out.asked = Some(out.next);
            out.disturbed = true;
            out.due = now + (rto * (1 << out.rounds.min(4))).min(MAX_RTO);
            let probe = out.header(Kind::Probe, session);
            // A question may be lost as well: the later ones go twice.
            self.probes.extend(std::iter::repeat_n(probe, if out.rounds > 1 { 2 } else { 1 }));
            at += 1;
        }
        given_up
    }

    /// Gives everything back that is on its way.
    pub(crate) fn give_up(&mut self) -> Vec<Outgoing> {
        (self.in_flight, self.count.returned) = (0, self.count.returned + self.outgoing.len() as u64);
        self.outgoing.drain(..).collect()
    }

    /// Gives back what was sealed in another epoch.
    pub(crate) fn give_up_other_than(&mut self, epoch: u32) -> Vec<Outgoing> {
        let (kept, given_up): (VecDeque<_>, VecDeque<_>) =
            self.outgoing.drain(..).partition(|out: &Outgoing| out.stamp.epoch == epoch);
        self.outgoing = kept;
        self.count.returned += given_up.len() as u64;
        let in_flight: u32 = given_up.iter().map(|out| out.in_flight).sum();
        self.in_flight = self.in_flight.saturating_sub(in_flight);
        given_up.into()
    }

    /// Questions to be sent now.
    pub(crate) fn take_probes(&mut self) -> Vec<Header> {
        std::mem::take(&mut self.probes)
    }

    /// The next message that chunks of may be sent now, and a set bit for each of them; who sends them has the message.
    pub(crate) fn next_chunks(&mut self, now: Time) -> Option<(&Outgoing, Vec<u8>)> {
        let (session, rto) = (self.session, self.rto());
        for at in 0..self.outgoing.len() {
            let room = self.window.saturating_sub(self.in_flight);
            let out = &mut self.outgoing[at];
            let mut bits = vec![0; usize::from(out.chunks).div_ceil(8)];
            let mut count = 0;
            while count < room {
                let chunk = match out.again.pop_front() {
                    Some(chunk) => chunk,
                    None if out.next < out.chunks => {
                        out.next += 1;
                        out.next - 1
                    }
                    None => break,
                };
                bits[usize::from(chunk / 8)] |= 1 << (chunk % 8);
                count += 1;
            }
            if count > 0 {
                self.count.chunks += u64::from(count);
                out.in_flight += count;
                self.in_flight += count;
                out.sent = now;
                if out.rounds == 0 {
                    out.due = now + rto;
                }
                return Some((&self.outgoing[at], bits));
            }
            if room == 0 {
                self.probes.extend(out.ask_for_room(session));
                break;
            }
        }
        None
    }

    /// Writes the next train of datagrams into `train`: all as long as the first one, the last perhaps shorter. Returns that
    /// length, `None` when nothing may be sent now.
    pub(crate) fn train(&mut self, now: Time, train: &mut Vec<u8>) -> Option<usize> {
        train.clear();
        let (session, rto) = (self.session, self.rto());
        let most = TRAIN.min(scaled(TRAIN, self.chunk_bytes));
        let mut segment = None;
        let mut datagrams = 0;
        for out in &mut self.outgoing {
            loop {
                if datagrams == most || self.in_flight >= self.window {
                    break;
                }
                let chunk = match out.again.front() {
                    Some(chunk) => *chunk,
                    None if out.next < out.chunks => out.next,
                    None => break,
                };
                let start = usize::from(chunk) * self.chunk_bytes;
                let end = (start + self.chunk_bytes).min(out.sealed.len());
                let header = Header { chunk, len: (end - start) as u16, ..out.header(Kind::Data, session) };
                let before = train.len();
                let len = end - start + HEADER_LEN;
                if segment.is_some_and(|segment| len > segment) {
                    return segment;
                }
                header.write(&out.sealed[start..end], &out.stamp.key, train);
                if out.again.pop_front().is_none() {
                    out.next += 1;
                }
                self.count.chunks += 1;
                out.in_flight += 1;
                self.in_flight += 1;
                out.sent = now;
                if out.rounds == 0 {
                    out.due = now + rto;
                }
                datagrams += 1;
                let first = *segment.get_or_insert(len);
                if train.len() - before < first {
                    return segment;
                }
            }
            if self.in_flight >= self.window {
                self.probes.extend(out.ask_for_room(session));
                break;
            }
        }
        segment
    }
}

#[cfg(test)]
mod tests {
    use super::Sent;

    #[test]
    fn one_in_five_that_is_sent_again_is_too_many() {
        let before = Sent { chunks: 1_000, again: 400, ..Sent::default() };
        for (chunks, again, crowds) in
            [(511, 511, None), (512, 0, Some(false)), (512, 102, Some(false)), (512, 103, Some(true))]
        {
            let sent = Sent { chunks: 1_000 + chunks, again: 400 + again, ..before };
            assert_eq!(sent.crowds_since(&before), crowds, "{again} of {chunks}");
        }
    }
}
