//! The way in: which addresses of this node are judged, and what is being asked about them.

use std::time::{Duration, Instant};

use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use scheduler::Millis;
use scheduler::governor::Prefix;
use scheduler::reach::{Origin, Reach, Standing};

use crate::event::Reachability;
use crate::path::{self, Path};

/// How long an answer to the question whether an address can be dialed is waited for.
pub(super) const PROBE: Duration = Duration::from_secs(12);

/// What is known of the way in.
pub(super) struct Way {
    judge: Reach<Multiaddr>,
    /// What counts as outside: the Internet, or in a swarm of one host its loopback.
    pub outside: Path,
    /// What the node was told.
    pub told: Reachability,
    /// Which address others were asked to dial last, and when.
    probing: Option<(Multiaddr, Instant)>,
    started: Instant,
}

/// Of an address: whether it is of QUIC, which version of IP, and the port.
fn socket(address: &Multiaddr) -> (bool, bool, u16) {
    let mut socket = (false, false, 0);
    for part in address {
        match part {
            Protocol::Quic | Protocol::QuicV1 => socket.0 = true,
            Protocol::Ip6(_) => socket.1 = true,
            Protocol::Tcp(port) | Protocol::Udp(port) => socket.2 = port,
            _ => {}
        }
    }
    socket
}

fn ip(address: &Multiaddr) -> Option<Protocol<'static>> {
    let of_ip = |part: &Protocol<'_>| matches!(part, Protocol::Ip4(_) | Protocol::Ip6(_));
    address.iter().find(of_ip).map(Protocol::acquire)
}

impl Way {
    pub fn new(now: Instant, loopback_only: bool) -> Self {
        let outside = if loopback_only { Path::Loopback } else { Path::Direct };
        let (judge, told) = (Reach::default(), Reachability::Unknown);
        Self { judge, outside, told, probing: None, started: now }
    }

    fn at(&self, now: Instant) -> Millis {
        Millis(now.saturating_duration_since(self.started).as_millis() as u64)
    }

    /// An address of this node; one that leads nowhere from outside is not judged.
    pub fn learn(&mut self, address: &Multiaddr, origin: Origin, now: Instant) {
        if path::of_address(address) == self.outside && path::plausible(address, self.outside) {
            self.judge.learn(address.clone(), origin, path::prefix(address, address), self.at(now));
        }
    }

    pub fn forget(&mut self, address: &Multiaddr) {
        self.judge.forget(address);
    }

    /// AutoNAT's word of a peer from `by` on an address at which others see this node.
    pub fn tested(&mut self, address: &Multiaddr, by: Prefix, reached: bool, now: Instant) {
        // An interface here has it: there is no router between.
        let own =
            self.judge.addresses().any(|(known, origin)| origin == Origin::Own && ip(known) == ip(address));
        self.learn(address, if own { Origin::Own } else { Origin::Seen }, now);
        match reached {
            true => self.judge.reached(address, by, false, self.at(now)),
            false => self.judge.missed(address, by, self.at(now)),
        }
    }

    /// A host opened a connection from `remote` to the socket at `local`.
    pub fn came(&mut self, remote: &Multiaddr, local: &Multiaddr, strange: bool, now: Instant) {
        if path::of_address(remote) != self.outside {
            return;
        }
        let by = path::prefix(remote, remote);
        tracing::debug!(%remote, %local, strange, "came by itself");
        let (quic, six, port) = socket(local);
        let asked = self.probing.as_ref().filter(|(_, since)| now.saturating_duration_since(*since) < PROBE);
        let reached: Vec<Multiaddr> = self
            .judge
            .addresses()
            .filter(|(address, origin)| {
                let of = socket(address);
                // It came to that socket by itself, or it was asked to come to that address.
                let itself = strange && *origin == Origin::Own && of == (quic, six, port);
                itself || asked.is_some_and(|(asked, _)| asked == *address) && (of.0, of.1) == (quic, six)
            })
            .map(|(address, _)| address.clone())
            .collect();
        let now = self.at(now);
        reached.iter().for_each(|address| self.judge.reached(address, by, strange, now));
    }

    /// A peer from `by` had an address dialed, and it could not be.
    pub fn missed(&mut self, address: &Multiaddr, by: Prefix, now: Instant) {
        self.judge.missed(address, by, self.at(now));
    }

    /// The address that others shall dial now.
    pub fn due(&mut self, now: Instant) -> Option<Multiaddr> {
        let busy =
            self.probing.as_ref().is_some_and(|(_, since)| now.saturating_duration_since(*since) < PROBE);
        let due = if busy { None } else { self.judge.due(self.at(now)) };
        if let Some(address) = &due {
            self.probing = Some((address.clone(), now));
        }
        due
    }

    /// The question about the last address is answered.
    pub fn answered(&mut self) {
        self.probing = None;
    }

    /// Every judged address, and whether it is confirmed.
    pub fn verdicts(&self, now: Instant) -> Vec<(Multiaddr, bool)> {
        let at = self.at(now);
        self.judge
            .addresses()
            .map(|(address, _)| (address.clone(), self.judge.is_confirmed(address, at)))
            .collect()
    }

    pub fn standing(&self, now: Instant) -> Standing {
        self.judge.standing(self.at(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Multiaddr {
        text.parse().unwrap()
    }

    /// A node with one public interface and one of a home network.
    fn way() -> (Way, Instant) {
        let now = Instant::now();
        let mut way = Way::new(now, false);
        for own in ["/ip4/203.0.113.7/tcp/9", "/ip4/203.0.113.7/udp/9/quic-v1", "/ip4/192.168.1.7/tcp/9"] {
            way.learn(&address(own), Origin::Own, now);
        }
        (way, now)
    }

    fn confirmed(way: &Way, now: Instant) -> Vec<String> {
        let verdicts = way.verdicts(now).into_iter();
        verdicts.filter(|(_, confirmed)| *confirmed).map(|(address, _)| address.to_string()).collect()
    }

    #[test]
    fn a_stranger_confirms_the_socket_that_it_came_to() {
        let (mut way, now) = way();
        assert_eq!(way.verdicts(now).len(), 2, "a home's address is not judged");
        let local = address("/ip4/203.0.113.7/tcp/9");
        way.came(&address("/ip4/192.168.1.8/tcp/5"), &local, true, now);
        way.came(&address("/ip4/198.51.100.1/tcp/5"), &local, false, now);
        assert_eq!(confirmed(&way, now), [""; 0], "a neighbor, and one that was talked to");
        way.came(&address("/ip4/198.51.100.1/tcp/5"), &local, true, now);
        assert_eq!(confirmed(&way, now), ["/ip4/203.0.113.7/tcp/9"]);
        // Of QUIC only the port is known.
        way.came(
            &address("/ip4/198.51.100.1/udp/5/quic-v1"),
            &address("/ip4/0.0.0.0/udp/9/quic-v1"),
            true,
            now,
        );
        assert_eq!(confirmed(&way, now).len(), 2);
    }

    #[test]
    fn an_answer_of_autonat_alone_confirms_no_interface() {
        let (mut way, now) = way();
        let (own, by) = (address("/ip4/203.0.113.7/tcp/9"), |number| Prefix::V4([198, 51, number]));
        for _ in 0..3 {
            way.tested(&own, by(1), true, now);
        }
        assert_eq!(way.standing(now), Standing::Hidden, "one voice, however often");
        way.tested(&own, by(2), true, now);
        assert_eq!(confirmed(&way, now), ["/ip4/203.0.113.7/tcp/9"]);
    }

    #[test]
    fn an_address_of_a_router_needs_strangers_that_were_asked_to_come() {
        let now = Instant::now();
        let mut way = Way::new(now, false);
        let (seen, local) =
            (address("/ip4/203.0.113.7/udp/4444/quic-v1"), address("/ip4/192.168.1.7/udp/9/quic-v1"));
        let from = |number: u8| address(&format!("/ip4/198.51.{number}.1/udp/5/quic-v1"));
        let prefix = |number| path::prefix(&from(number), &from(number));
        for number in 1..6 {
            way.tested(&seen, prefix(number), true, now);
        }
        assert_eq!(way.standing(now), Standing::Hidden, "servers of AutoNAT are no strangers");
        for number in 10..20 {
            way.came(&from(number), &local, true, now);
        }
        assert_eq!(way.standing(now), Standing::Hidden, "no address was asked about");
        let later = now + Duration::from_secs(60);
        assert_eq!(way.due(later), Some(seen.clone()));
        assert_eq!(way.due(later), None, "one at a time");
        for number in 20..23 {
            assert_ne!(way.standing(later), Standing::Confirmed);
            way.came(&from(number), &local, true, later);
        }
        assert_eq!(confirmed(&way, later), [seen.to_string()]);
        for number in 30..34 {
            way.missed(&seen, prefix(number), later);
        }
        assert_eq!(way.standing(later), Standing::Hidden, "its router has shut");
    }
}
