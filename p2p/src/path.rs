//! Over what a peer is reached, judged from the transport's own address and nothing the peer says.
//!
//! It matters three ways: streams prefer the shortest path, the scheduler prices a relayed hop, and privacy policies
//! tell the local network from strangers. A claim would be worth nothing for the last, so only observed addresses
//! count. When a path changes (hole punching, a new address) it is judged again.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use libp2p::Multiaddr;
use libp2p::core::ConnectedPoint;
use libp2p::multiaddr::Protocol;
use scheduler::NodeId;
use scheduler::governor::Prefix;

use crate::identity::{node_id, peer_id};
use crate::wire::control::MAX_ADDRESS;

/// Over what a peer is reached; the best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Path {
    /// The same host.
    Loopback,
    /// An address of a private network.
    Lan,
    /// A public address, or a name.
    Direct,
    /// Through a relay, which sees sizes and times but no contents.
    Relayed,
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Loopback => "loopback",
            Self::Lan => "lan",
            Self::Direct => "direct",
            Self::Relayed => "relayed",
        })
    }
}

/// Whether no router between the two is expected to stand in the way.
pub(crate) fn is_near(path: Path) -> bool {
    path <= Path::Lan
}

/// Whether `address` is reached over TCP.
pub(crate) fn is_tcp(address: &Multiaddr) -> bool {
    address.iter().any(|part| matches!(part, Protocol::Tcp(_)))
}

/// Judges a connection. A relayed one is recognized by either end's address: its remote is a bare `/p2p/` when it
/// came in.
pub(crate) fn classify(endpoint: &ConnectedPoint) -> Path {
    if endpoint.is_relayed() { Path::Relayed } else { of_address(endpoint.get_remote_address()) }
}

/// Over what a node that lists `address` as its own can be reached there; what is no address promises least.
pub fn path_of(address: &str) -> Path {
    address.parse().map_or(Path::Relayed, |address| of_address(&address))
}

/// `address` of `node` without its name, where it ends in that: the 57 bytes of the name are known.
pub fn unnamed(address: &str, node: NodeId) -> &str {
    let named = peer_id(node).and_then(|peer| address.strip_suffix(&format!("/p2p/{peer}")));
    named.filter(|rest| !rest.is_empty()).unwrap_or(address)
}

/// `address` of `node` with its name at the end, as it can be handed to a third; one that ends in a name, whosever it
/// is, stays as it is, and so does what is no address, and what would become longer than [`MAX_ADDRESS`] and so
/// refused by a node that receives it.
pub fn named(address: &str, node: NodeId) -> String {
    let bare = |parsed: &Multiaddr| !matches!(parsed.iter().last(), None | Some(Protocol::P2p(_)));
    match (address.parse::<Multiaddr>().ok().filter(bare), peer_id(node)) {
        (Some(_), Some(peer)) => {
            Some(format!("{address}/p2p/{peer}")).filter(|whole| whole.len() <= MAX_ADDRESS)
        }
        _ => None,
    }
    .unwrap_or_else(|| address.to_owned())
}

/// Judges an address. Without an IP or a name it is taken for relayed, the class that promises least.
pub(crate) fn of_address(address: &Multiaddr) -> Path {
    let mut path = Path::Relayed;
    for part in address {
        match part {
            Protocol::P2pCircuit => return Path::Relayed,
            Protocol::Ip4(ip) => path = of_ip(ip.into()),
            Protocol::Ip6(ip) => path = of_ip(unmapped(ip)),
            Protocol::Memory(_) => path = Path::Loopback,
            Protocol::Dns(_) | Protocol::Dns4(_) | Protocol::Dns6(_) | Protocol::Dnsaddr(_) => {
                path = Path::Direct
            }
            _ => {}
        }
    }
    path
}

/// Whether dialing `address` leads to this host: of a circuit, to its relay.
pub(crate) fn is_of_this_host(address: &Multiaddr) -> bool {
    let until_relay: Multiaddr = address.iter().take_while(|part| *part != Protocol::P2pCircuit).collect();
    of_address(&until_relay) == Path::Loopback
}

/// Where a connection comes from: its remote address, or the relay that one of the two addresses names.
pub(crate) fn prefix(remote: &Multiaddr, local: &Multiaddr) -> Prefix {
    let relay = |address: &Multiaddr| {
        let parts: Vec<Protocol<'_>> = address.iter().collect();
        let circuit = parts.iter().position(|part| *part == Protocol::P2pCircuit)?;
        parts[..circuit].iter().rev().find_map(|part| match part {
            Protocol::P2p(relay) => node_id(relay),
            _ => None,
        })
    };
    if let Some(relay) = relay(remote).or_else(|| relay(local)) {
        return Prefix::Relay(relay);
    }
    let ip = remote.iter().find_map(|part| match part {
        Protocol::Ip4(ip) => Some(IpAddr::from(ip)),
        Protocol::Ip6(ip) => Some(ip.into()),
        _ => None,
    });
    ip.map_or(Prefix::Inside, Prefix::of)
}

fn unmapped(ip: Ipv6Addr) -> IpAddr {
    ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4)
}

fn of_ip(ip: IpAddr) -> Path {
    let local = match ip {
        IpAddr::V4(ip) => ip.is_private() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unique_local() || ip.is_unicast_link_local(),
    };
    match ip {
        ip if ip.is_loopback() => Path::Loopback,
        _ if local => Path::Lan,
        _ => Path::Direct,
    }
}

/// Whether an address that a peer reached over `path` gives as its own can be meant for us: a host on the Internet
/// cannot be reached under `192.168.0.2`, and dialing it there would reach another node. Unspecified addresses and
/// those without a transport are never meant.
pub(crate) fn plausible(address: &Multiaddr, path: Path) -> bool {
    let dialable = address.iter().any(|part| {
        matches!(part, Protocol::Tcp(_) | Protocol::Udp(_) | Protocol::Memory(_) | Protocol::Dnsaddr(_))
    });
    let nowhere = address.iter().any(|part| match part {
        Protocol::Ip4(ip) => ip.is_unspecified() || ip.is_multicast() || ip.is_broadcast(),
        // Link-local ones mean nothing without the name of an interface, which no multiaddr here carries.
        Protocol::Ip6(ip) => ip.is_unspecified() || ip.is_multicast() || ip.is_unicast_link_local(),
        Protocol::Tcp(port) | Protocol::Udp(port) => port == 0,
        _ => false,
    });
    dialable
        && !nowhere
        && (of_address(address) >= path || path == Path::Relayed && of_address(address) != Path::Loopback)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_tell_the_path() {
        let relay = "12D3KooWT3gYEvLJyx1FyyHqrmvdy1tMjpgxmu9aSeKMEuafQtyC";
        let cases = [
            ("/ip4/127.0.0.1/tcp/1", Path::Loopback),
            ("/ip6/::1/udp/1/quic-v1", Path::Loopback),
            ("/ip6/::ffff:127.0.0.1/tcp/1", Path::Loopback),
            ("/memory/5", Path::Loopback),
            ("/ip4/192.168.1.2/tcp/1", Path::Lan),
            ("/ip4/10.0.0.2/tcp/1", Path::Lan),
            ("/ip4/172.31.0.2/udp/1/quic-v1", Path::Lan),
            ("/ip4/169.254.1.1/tcp/1", Path::Lan),
            ("/ip6/fe80::1/tcp/1", Path::Lan),
            ("/ip6/fd00::1/tcp/1", Path::Lan),
            ("/ip4/172.32.0.2/tcp/1", Path::Direct),
            ("/ip4/100.64.0.2/tcp/1", Path::Direct),
            ("/ip4/8.8.8.8/tcp/1", Path::Direct),
            ("/ip6/2001:db8::1/tcp/1", Path::Direct),
            ("/dns4/example.org/tcp/1", Path::Direct),
            (&format!("/p2p/{relay}"), Path::Relayed),
            (&format!("/ip4/192.168.1.2/tcp/1/p2p/{relay}/p2p-circuit"), Path::Relayed),
            (&format!("/ip4/8.8.8.8/tcp/1/p2p/{relay}/p2p-circuit/p2p/{relay}"), Path::Relayed),
        ];
        for (address, path) in cases {
            assert_eq!(of_address(&address.parse().unwrap()), path, "{address}");
        }
    }

    #[test]
    fn an_owner_s_name_comes_and_goes() {
        let node = crate::Identity::from_seed([3; 32]).node();
        let (me, relay) = (peer_id(node).unwrap(), "12D3KooWT3gYEvLJyx1FyyHqrmvdy1tMjpgxmu9aSeKMEuafQtyC");
        let bare = ["/ip4/10.0.0.2/tcp/1".to_owned(), format!("/ip4/8.8.8.8/tcp/1/p2p/{relay}/p2p-circuit")];
        for bare in bare {
            let whole = format!("{bare}/p2p/{me}");
            assert_eq!(named(&bare, node), whole);
            assert_eq!((unnamed(&whole, node), unnamed(&bare, node)), (bare.as_str(), bare.as_str()));
            assert_eq!(named(&whole, node), whole, "once is enough");
        }
        let other = format!("/ip4/10.0.0.2/tcp/1/p2p/{relay}");
        assert_eq!((unnamed(&other, node), named(&other, node)), (other.as_str(), other.clone()));
        let long = format!("/dns4/{}/tcp/1", "x".repeat(MAX_ADDRESS - 57 - "/dns4//tcp/1".len()));
        assert_eq!(named(&long, node).len(), MAX_ADDRESS);
        let longer = long.replace("/dns4/", "/dns4/x");
        for odd in ["", "no address", &format!("/p2p/{me}"), &longer] {
            assert_eq!((unnamed(odd, node), named(odd, node)), (odd, odd.to_owned()));
        }
    }

    #[test]
    fn a_relayed_connection_is_told_from_either_end() {
        let relay =
            "/ip4/10.0.0.2/tcp/1/p2p/12D3KooWT3gYEvLJyx1FyyHqrmvdy1tMjpgxmu9aSeKMEuafQtyC/p2p-circuit";
        let incoming = ConnectedPoint::Listener {
            local_addr: relay.parse().unwrap(),
            send_back_addr: "/p2p/12D3KooWT3gYEvLJyx1FyyHqrmvdy1tMjpgxmu9aSeKMEuafQtyC".parse().unwrap(),
        };
        assert_eq!(classify(&incoming), Path::Relayed);
        let direct = ConnectedPoint::Listener {
            local_addr: "/ip4/10.0.0.1/tcp/2".parse().unwrap(),
            send_back_addr: "/ip4/10.0.0.2/tcp/1".parse().unwrap(),
        };
        assert_eq!(classify(&direct), Path::Lan);
    }

    #[test]
    fn a_connection_comes_from_its_address_or_its_relay() {
        let relay = crate::Identity::from_seed([3; 32]).node();
        let through = format!("/ip4/10.0.0.2/tcp/1/p2p/{}/p2p-circuit", peer_id(relay).unwrap());
        let check = |remote: &str, local: &str| prefix(&remote.parse().unwrap(), &local.parse().unwrap());
        let here = "/ip4/10.0.0.1/tcp/2";
        assert_eq!(check("/ip4/127.0.7.2/tcp/1", here), Prefix::V4([127, 0, 7]));
        assert_eq!(check("/ip6/2001:db8:1::2/udp/1/quic-v1", here), Prefix::V6([0x20, 1, 0xd, 0xb8, 0, 1]));
        let peer = "/p2p/12D3KooWT3gYEvLJyx1FyyHqrmvdy1tMjpgxmu9aSeKMEuafQtyC";
        assert_eq!(check(peer, &through), Prefix::Relay(relay), "it came in through a relay");
        assert_eq!(check(&format!("{through}{peer}"), here), Prefix::Relay(relay), "this node dialed it");
        assert_eq!(check("/memory/3", "/memory/4"), Prefix::Inside);
    }

    #[test]
    fn strangers_do_not_send_us_to_private_addresses() {
        let check = |address: &str, path| plausible(&address.parse().unwrap(), path);
        assert!(check("/ip4/8.8.8.8/tcp/1", Path::Direct));
        assert!(!check("/ip4/192.168.1.2/tcp/1", Path::Direct));
        assert!(!check("/ip4/127.0.0.1/tcp/1", Path::Lan));
        assert!(check("/ip4/127.0.0.1/tcp/1", Path::Loopback));
        assert!(check("/ip4/192.168.1.2/tcp/1", Path::Loopback));
        assert!(check("/ip4/192.168.1.2/tcp/1", Path::Relayed));
        assert!(!check("/ip4/127.0.0.1/tcp/1", Path::Relayed));
        assert!(!check("/ip4/0.0.0.0/tcp/1", Path::Loopback));
        assert!(!check("/ip4/8.8.8.8/tcp/0", Path::Direct));
        assert!(!check("/ip4/8.8.8.8", Path::Direct));
        assert!(!check("/ip6/fe80::1/tcp/1", Path::Lan));
    }
}
