//! What pings and streams say of one peer: how far it is, and whether its connections live.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::time::{Duration, Instant};

use libp2p::swarm::ConnectionId;

/// Pings unanswered in a row after which a connection is dead although other words come from the peer, or go to it.
const MAX_MISSED: u32 = 4;
/// The same where nothing else came for [`SILENT`]: ten seconds where something runs over it, for what neither TCP nor QUIC reports (a
/// frozen host). Sessions have their own, shorter deadlines.
const MISSED_IN_SILENCE: u32 = 2;
/// QUIC, which says nothing when the process at its other end dies, is dead after one unanswered ping in such a silence. Shorter
/// and a host that sleeps for a moment loses its sessions.
const SILENT: Duration = Duration::from_secs(4);
/// A loop whose last tick is longer ago has not heard either: it was this host that slept.
pub(super) const ASLEEP: Duration = Duration::from_secs(1);
/// The node is not told of round trips more often: a connection in use is pinged more often, and those of a busy minute would
/// outvote all others.
const ROUND_TRIP_EVERY: Duration = Duration::from_secs(4);

/// See the [module](self).
#[derive(Default)]
pub(super) struct Pulse {
    /// The last round trip, ms.
    pub rtt_ms: Option<f64>,
    /// When the node was told of one last.
    told: Option<Instant>,
    /// The bytes of the peer's streams, and when the last of them came or went, while something runs over its connections.
    heard: Option<(u64, Instant)>,
    /// Pings unanswered in a row on each connection; one may be dead while another lives.
    missed: HashMap<ConnectionId, u32>,
}

impl Pulse {
    /// The streams of the peer have moved `bytes` in all. `slept` says that this host was not there to hear more.
    pub fn moved(&mut self, in_use: bool, bytes: u64, slept: bool, now: Instant) {
        self.heard = match self.heard {
            _ if !in_use => None,
            Some((known, at)) if known == bytes && !slept => Some((known, at)),
            _ => Some((bytes, now)),
        };
    }

    /// A ping over `connection` was answered after so long.
    pub fn answered(&mut self, connection: ConnectionId, elapsed: Duration, now: Instant) -> f64 {
        let ms = elapsed.as_secs_f64() * 1e3;
        self.rtt_ms = Some(ms);
        self.heard = self.heard.map(|(bytes, _)| (bytes, now));
        self.missed.remove(&connection);
        ms
    }

    /// Whether the node is to be told of a round trip now.
    pub fn is_due(&mut self, now: Instant) -> bool {
        let due = self.told.is_none_or(|at| now.saturating_duration_since(at) >= ROUND_TRIP_EVERY);
        if due {
            self.told = Some(now);
        }
        due
    }

    /// A ping over `connection` failed: whether that one is dead, or `None` where it says nothing. `ticked` is when this host was
    /// awake last.
    pub fn failed(
        &mut self,
        connection: ConnectionId,
        error: &io::Error,
        quic: bool,
        (ticked, now): (Instant, Instant),
    ) -> Option<bool> {
        let missed = match self.missed.entry(connection) {
            // A substream that was reset is opened again; silence is another matter.
            Entry::Vacant(first) if error.kind() != io::ErrorKind::TimedOut => {
                first.insert(0);
                return None;
            }
            entry => *entry.and_modify(|missed| *missed += 1).or_insert(1),
        };
        let ago = |at| now.saturating_duration_since(at);
        let silent = self.heard.is_some_and(|(_, at)| ago(at) >= SILENT) && ago(ticked) <= ASLEEP;
        Some(missed >= MAX_MISSED || silent && (quic || missed >= MISSED_IN_SILENCE))
    }

    /// A connection is gone.
    pub fn forget(&mut self, connection: ConnectionId) {
        self.missed.remove(&connection);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of one peer: what its pings come to while streams move so many bytes each second.
    fn failures(quic: bool, kind: io::ErrorKind, bytes: u64) -> Vec<Option<bool>> {
        let (start, connection) = (Instant::now(), ConnectionId::new_unchecked(1));
        let mut pulse = Pulse::default();
        let mut verdicts = Vec::new();
        for second in 0..=20 {
            let now = start + Duration::from_secs(second);
            pulse.moved(true, bytes * second, false, now);
            if second > 0 && second % 5 == 0 {
                verdicts.push(pulse.failed(connection, &kind.into(), quic, (now, now)));
            }
        }
        verdicts
    }

    #[test]
    fn silence_kills_and_what_moves_lives_longer() {
        let (silence, reset) = (io::ErrorKind::TimedOut, io::ErrorKind::ConnectionReset);
        assert_eq!(failures(true, silence, 0)[0], Some(true), "QUIC");
        assert_eq!(failures(false, silence, 0)[..2], [Some(false), Some(true)], "TCP");
        for quic in [false, true] {
            assert_eq!(failures(quic, silence, 9), [Some(false), Some(false), Some(false), Some(true)]);
        }
        assert_eq!(failures(true, reset, 0)[..2], [None, Some(true)], "one reset says nothing");
    }

    #[test]
    fn a_host_that_slept_takes_no_peer_for_dead() {
        let (start, connection) = (Instant::now(), ConnectionId::new_unchecked(1));
        let mut pulse = Pulse::default();
        pulse.moved(true, 0, false, start);
        let woken = start + Duration::from_secs(60);
        let timed_out = || io::Error::from(io::ErrorKind::TimedOut);
        assert_eq!(pulse.failed(connection, &timed_out(), true, (start, woken)), Some(false));
        pulse.moved(true, 0, true, woken);
        assert_eq!(pulse.failed(connection, &timed_out(), true, (woken, woken)), Some(false));
        pulse.answered(connection, Duration::from_millis(3), woken);
        assert_eq!((pulse.rtt_ms, pulse.missed.len()), (Some(3.0), 0));
        assert_eq!([0, 3, 4].map(|s| pulse.is_due(woken + Duration::from_secs(s))), [true, false, true]);
    }
}
