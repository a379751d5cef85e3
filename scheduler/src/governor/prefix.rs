//! Where a peer comes from, as coarsely as addresses are handed out.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use crate::NodeId;

/// Where a peer comes from: what one customer of a provider usually gets, so that many addresses of one attacker count as
/// one. Loopback is no exception.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Prefix {
    /// The first 24 bits of an IPv4 address.
    V4([u8; 3]),
    /// The first 48 bits of an IPv6 address.
    V6([u8; 6]),
    /// Through this relay, which hides the address.
    Relay(NodeId),
    /// An address of this process, or none.
    Inside,
}

impl Prefix {
    /// The prefix of an address; an IPv4 address written as IPv6 counts as what it is.
    pub fn of(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(ip) => {
                let [a, b, c, _] = ip.octets();
                Self::V4([a, b, c])
            }
            IpAddr::V6(ip) => match ip.to_ipv4_mapped() {
                Some(ip) => Self::of(ip.into()),
                None => {
                    let octets = ip.octets();
                    Self::V6(std::array::from_fn(|i| octets[i]))
                }
            },
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::V4([a, b, c]) => write!(f, "{a}.{b}.{c}.0/24"),
            Self::V6(start) => {
                let mut octets = [0; 16];
                octets[..start.len()].copy_from_slice(start);
                write!(f, "{}/48", Ipv6Addr::from(octets))
            }
            Self::Relay(relay) => write!(f, "relay {relay}"),
            Self::Inside => f.write_str("this process"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Prefix;

    fn of(ip: &str) -> Prefix {
        Prefix::of(ip.parse().unwrap())
    }

    #[test]
    fn neighbors_share_a_prefix_and_loopback_is_no_exception() {
        assert_eq!(of("127.0.1.7"), of("127.0.1.200"));
        assert_ne!(of("127.0.1.7"), of("127.0.2.7"));
        assert_eq!(of("2001:db8:7:1::1"), of("2001:db8:7:ffff::2"));
        assert_ne!(of("2001:db8:7::1"), of("2001:db8:8::1"));
        assert_eq!(of("::ffff:10.1.2.3"), of("10.1.2.9"));
        assert_eq!(of("127.0.1.7").to_string(), "127.0.1.0/24");
        assert_eq!(of("2001:db8:7:1::1").to_string(), "2001:db8:7::/48");
    }
}
