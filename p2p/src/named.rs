//! Addresses that another node named: which of them are dialed.
//!
//! A lease names the stage that comes next and where it is. The requester is a stranger, so its word would let it choose what
//! this node connects to: a third one's port, a router, a service of this host. An address counts when the node that is
//! meant announced it itself (it signed for it) or when it is in this node's own book. An announced one must also be an
//! address that means the same node here as there: of a private range only where this node has an address in that range, of
//! this host only in a swarm of this host, and no name, which may lead anywhere. How often is the governor's.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;

/// What is known of the node that is meant, and of this one.
pub(crate) struct Vetting<'a> {
    /// In this node's book.
    pub known: &'a [Multiaddr],
    /// Announced by the node itself.
    pub announced: &'a [Multiaddr],
    /// Where this node is.
    pub own: &'a [Multiaddr],
    /// Whether the swarm is of this host only.
    pub loopback_only: bool,
}

impl Vetting<'_> {
    /// Whether `address`, without the name of the node, is dialed.
    pub fn admits(&self, address: &Multiaddr) -> bool {
        self.known.contains(address) || self.announced.contains(address) && self.is_here(address)
    }

    fn is_here(&self, address: &Multiaddr) -> bool {
        match ip(address).map(range) {
            // A name, or nothing that is dialed.
            None => false,
            Some(None) => true,
            Some(Some(Range::Host)) => self.loopback_only,
            Some(range) => self.own.iter().any(|own| ip(own).map(self::range) == Some(range)),
        }
    }
}

/// Addresses that mean different nodes in different places.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Range {
    /// Of the host itself.
    Host,
    /// The start of a block that many networks use.
    Private(Ipv4Addr),
    /// Of one site, by its first 48 bits.
    Site([u16; 3]),
    /// Of one wire.
    Link,
}

/// The first one: of a circuit that of its relay, which is what is dialed.
fn ip(address: &Multiaddr) -> Option<IpAddr> {
    match address.iter().next()? {
        Protocol::Ip4(ip) => Some(ip.into()),
        Protocol::Ip6(ip) => Some(ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4)),
        _ => None,
    }
}

/// `None` for an address of the Internet.
fn range(ip: IpAddr) -> Option<Range> {
    match ip {
        IpAddr::V4(ip) => match ip.octets() {
            [127, ..] | [0, ..] => Some(Range::Host),
            [169, 254, ..] => Some(Range::Link),
            [10, ..] => Some(Range::Private(Ipv4Addr::new(10, 0, 0, 0))),
            [172, 16..32, ..] => Some(Range::Private(Ipv4Addr::new(172, 16, 0, 0))),
            [192, 168, ..] => Some(Range::Private(Ipv4Addr::new(192, 168, 0, 0))),
            [100, 64..128, ..] => Some(Range::Private(Ipv4Addr::new(100, 64, 0, 0))),
            _ => None,
        },
        IpAddr::V6(ip) if ip.is_loopback() || ip == Ipv6Addr::UNSPECIFIED => Some(Range::Host),
        IpAddr::V6(ip) if ip.is_unicast_link_local() => Some(Range::Link),
        IpAddr::V6(ip) if ip.is_unique_local() => {
            let [a, b, c, ..] = ip.segments();
            Some(Range::Site([a, b, c]))
        }
        IpAddr::V6(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(texts: &[&str]) -> Vec<Multiaddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn only_what_the_node_announced_or_the_book_has_is_dialed_and_only_where_it_means_that_node() {
        let known = addresses(&["/ip4/192.168.9.9/tcp/1"]);
        let announced = addresses(&[
            "/ip4/8.8.8.8/tcp/1",
            "/ip4/10.7.0.2/tcp/1",
            "/ip4/192.168.1.2/tcp/1",
            "/ip4/127.0.0.1/tcp/1",
            "/ip4/169.254.7.7/tcp/1",
            "/ip6/2001:db8::1/udp/1/quic-v1",
            "/ip6/fd00:1:2:3::1/tcp/1",
            "/ip6/fd00:9:2:3::1/tcp/1",
            "/ip6/::ffff:127.0.0.1/tcp/1",
            "/dns4/inside.example/tcp/1",
            "/memory/7",
        ]);
        let own = addresses(&["/ip4/10.0.0.1/tcp/5", "/ip4/127.0.0.1/tcp/5", "/ip6/fd00:1:2::9/tcp/5"]);
        let vetting =
            |loopback_only| Vetting { known: &known, announced: &announced, own: &own, loopback_only };
        let admitted = |loopback_only: bool| -> Vec<String> {
            let all = announced.iter().chain(&known);
            all.filter(|address| vetting(loopback_only).admits(address)).map(Multiaddr::to_string).collect()
        };
        let wide = [
            "/ip4/8.8.8.8/tcp/1",
            "/ip4/10.7.0.2/tcp/1",
            "/ip6/2001:db8::1/udp/1/quic-v1",
            "/ip6/fd00:1:2:3::1/tcp/1",
            "/ip4/192.168.9.9/tcp/1",
        ];
        assert_eq!(admitted(false), wide);
        assert!(admitted(true).contains(&"/ip4/127.0.0.1/tcp/1".to_owned()), "a swarm of this host");
        for strange in addresses(&["/ip4/8.8.4.4/tcp/1", "/ip4/8.8.8.8/tcp/2", "/ip4/10.7.0.3/tcp/1"]) {
            assert!(!vetting(false).admits(&strange), "{strange} is a stranger's choice");
        }
    }
}
