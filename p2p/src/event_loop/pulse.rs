//! How often connections are pinged, and what follows when a ping is answered or not.

use std::collections::hash_map::Entry;
use std::io;
use std::time::{Duration, Instant};

use libp2p::PeerId;

use super::EventLoop;
use super::upkeep::relay_of;
use crate::behaviour::Behaviour;
use crate::event::Event;
use crate::pulse::{self, Pace};

/// Pings unanswered in a row after which a connection is dead although other words come from the peer, or go to it.
const MAX_MISSED: u32 = 4;
/// The same where nothing else came for [`SILENT`]: ten seconds where something runs over it, for what neither TCP nor QUIC reports (a
/// frozen host). Sessions have their own, shorter deadlines.
const MISSED_IN_SILENCE: u32 = 2;
/// QUIC, which says nothing when the process at its other end dies, is dead after one unanswered ping in such a silence. Shorter
/// and a host that sleeps for a moment loses its sessions.
const SILENT: Duration = Duration::from_secs(4);
/// A loop whose last tick is longer ago has not heard either: it was this host that slept.
const ASLEEP: Duration = Duration::from_secs(1);
/// The node is not told of round trips more often: a connection in use is pinged more often, and those of a busy minute would
/// outvote all others.
const ROUND_TRIP_EVERY: Duration = Duration::from_secs(4);

impl EventLoop {
    /// Sets the pace of every connection by what runs over it now.
    pub(super) fn pace(&mut self, now: Instant) {
        let slept = now.saturating_duration_since(self.due.ticked) > ASLEEP;
        self.due.ticked = now;
        let relays: Vec<PeerId> = self.reservations.iter().filter_map(|r| relay_of(&r.address)).collect();
        let Behaviour { link, pulse, .. } = &mut **self.swarm.behaviour_mut();
        for (peer, connection, pace) in link.paces(now) {
            let pace = if pace == Pace::Resting && relays.contains(&peer) { Pace::New } else { pace };
            pulse.set(peer, connection, pace);
            let Some(met) = self.met.get_mut(&peer) else { continue };
            // What goes out goes out under flow control: it says as much.
            let (bytes_in, bytes_out) = link.traffic(&peer);
            let bytes = bytes_in.wrapping_add(bytes_out);
            met.heard = match met.heard {
                _ if pace != Pace::InUse => None,
                Some((known, at)) if known == bytes && !slept => Some((known, at)),
                _ => Some((bytes, now)),
            };
        }
    }

    pub(super) fn on_pulse(&mut self, event: pulse::Event) {
        let Some(met) = self.met.get_mut(&event.peer) else { return };
        let now = Instant::now();
        match event.result {
            Ok(elapsed) => {
                let ms = elapsed.as_secs_f64() * 1e3;
                met.rtt_ms = Some(ms);
                met.heard = met.heard.map(|(bytes, _)| (bytes, now));
                met.missed.remove(&event.connection);
                if self.swarm.behaviour_mut().link.trust(&event.peer, event.connection) {
                    self.book.doubted_in_vain(&event.peer);
                }
                let said = met.timed.map(|at| now.saturating_duration_since(at));
                if met.told.is_some() && said.is_none_or(|ago| ago >= ROUND_TRIP_EVERY) {
                    met.timed = Some(now);
                    self.outbox.may(Event::RoundTrip { node: met.node, ms });
                }
            }
            Err(error) => {
                let missed = match met.missed.entry(event.connection) {
                    // A substream that was reset is opened again; silence is another matter.
                    Entry::Vacant(first) if error.kind() != io::ErrorKind::TimedOut => {
                        first.insert(0);
                        return;
                    }
                    entry => *entry.and_modify(|missed| *missed += 1).or_insert(1),
                };
                let ago = |at| now.saturating_duration_since(at);
                let silent =
                    met.heard.is_some_and(|(_, at)| ago(at) >= SILENT) && ago(self.due.ticked) <= ASLEEP;
                let link = &mut self.swarm.behaviour_mut().link;
                link.doubt(&event.peer, event.connection);
                let quic = link.is_quic(&event.peer, event.connection);
                let gone = missed >= MAX_MISSED || silent && (quic || missed >= MISSED_IN_SILENCE);
                if !gone && self.swarm.behaviour().link.is_doubted(&event.peer) {
                    self.dial_beside(event.peer, Vec::new(), None);
                }
                let Some(met) = self.met.get(&event.peer) else { return };
                if gone {
                    tracing::debug!(node = %met.node, %error, "silent, its connection is closed");
                    self.swarm.close_connection(event.connection);
                }
            }
        }
    }
}
