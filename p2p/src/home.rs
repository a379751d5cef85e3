//! What others hear of how a home numbers its network.
//!
//! Addresses of a private network or of a host mean something in a swarm of that network alone; others learn from them how
//! a home is built. Every member reads an announcement, and it is handed on as it was signed, so two decide: a node says
//! such addresses only as long as nothing is known of a member elsewhere, and passes those of others on, and hands them
//! out, only as long as it knows of none itself.
//!
//! ```text
//! A ── LAN ── B ── Internet ── C      A has near peers only. B keeps what A says of its home to itself, A hears of C,
//!                                     which announces where the Internet reaches it, and says its home no more.
//! ```
//!
//! Who is near finds this node all the same: when they connect, by its invite, or over mDNS.
//!
//! Limits: that a member is elsewhere shows in an address which the Internet reaches, or in a connection. A member that
//! neither has is behind a relay, which has.

use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;

use crate::path::{Path, of_address};

/// What addresses say of where their node is.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Said {
    /// One is of a private network or of a host.
    pub home: bool,
    /// One is reached over the Internet.
    pub beyond: bool,
}

impl Said {
    /// Of the addresses of one node.
    pub fn of(addresses: &[impl AsRef<str>]) -> Self {
        let mut said = Self::default();
        for address in addresses {
            match first_hop(address.as_ref()) {
                Path::Loopback | Path::Lan => said.home = true,
                Path::Direct => said.beyond = true,
                // A relay that is not named by an address: it says nothing of either.
                Path::Relayed => {}
            }
        }
        said
    }
}

/// Over what the host is reached that is dialed: of a circuit its relay.
fn first_hop(address: &str) -> Path {
    let Ok(address) = address.parse::<Multiaddr>() else { return Path::Relayed };
    of_address(&address.iter().take_while(|part| *part != Protocol::P2pCircuit).collect())
}

/// What a node knows of where its swarm is.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct KnownSwarm {
    /// The longest way any of its peers is reached over.
    pub farthest: Option<Path>,
    /// Whether a member announces itself where the Internet reaches it.
    pub beyond: bool,
}

impl KnownSwarm {
    /// Whether members are elsewhere. A peer behind a relay may be here as well: its relay's other peers tell.
    fn is_wide(self) -> bool {
        self.beyond || self.farthest == Some(Path::Direct)
    }

    /// Whether an announcement that says this is passed on.
    pub fn passes(self, said: Said) -> bool {
        !(said.home && self.is_wide())
    }

    /// Whether an announcement that says this is handed to a peer that is reached over `path`.
    pub fn hands(self, said: Said, path: Path) -> bool {
        self.passes(said) && !(said.home && path >= Path::Direct)
    }

    /// Whether this node announces an own address.
    pub fn says(self, address: &str) -> bool {
        let said = Said::of(&[address]);
        let circuit = address.contains("/p2p-circuit");
        let strangers = self.is_wide() || self.farthest >= Some(Path::Direct) && !circuit;
        !(said.home && strangers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RELAY: &str = "12D3KooWT3gYEvLJyx1FyyHqrmvdy1tMjpgxmu9aSeKMEuafQtyC";
    const HOME: &str = "/ip4/192.168.1.7/tcp/1";
    const HOST: &str = "/ip4/127.0.0.1/udp/1/quic-v1";
    const OPEN: &str = "/ip4/8.8.8.8/tcp/1";

    fn circuit(through: &str) -> String {
        format!("{through}/p2p/{RELAY}/p2p-circuit")
    }

    /// What a node knows whose peers are reached over these paths, and that heard these announcements.
    fn knows(paths: &[Path], heard: &[&[&str]]) -> KnownSwarm {
        KnownSwarm {
            farthest: paths.iter().max().copied(),
            beyond: heard.iter().any(|addresses| Said::of(addresses).beyond),
        }
    }

    #[test]
    fn a_home_is_said_in_a_swarm_of_that_home() {
        for alone in [knows(&[], &[]), knows(&[Path::Loopback, Path::Lan], &[&[HOME], &[HOST, HOME], &[]])] {
            assert!([HOME, HOST, OPEN, &circuit(HOST)].iter().all(|address| alone.says(address)));
            assert!(alone.passes(Said::of(&[HOME])) && alone.hands(Said::of(&[HOST]), Path::Lan));
            assert!(!alone.hands(Said::of(&[HOST]), Path::Direct), "the first one from elsewhere");
        }
        let strange = knows(&[Path::Lan, Path::Direct], &[]);
        assert!(!strange.says(HOME) && !strange.says(HOST) && !strange.says(&circuit(HOME)));
        assert!(strange.says(OPEN) && strange.says(&circuit(OPEN)));
        // A host's own swarm with a relay of the host: its circuits are all that others can dial.
        let relayed = knows(&[Path::Loopback, Path::Relayed], &[&[HOST]]);
        assert!(!relayed.says(HOST) && relayed.says(&circuit(HOST)));
        assert!(relayed.passes(Said::of(&[HOST])));
    }

    #[test]
    fn two_hops_from_a_home_its_numbers_are_not_known() {
        // A and B share a network, C is elsewhere and connected to B only.
        let said = Said::of(&[HOME, HOST]);
        let a = knows(&[Path::Lan], &[]);
        assert!(a.says(HOME), "nothing is known of C");
        let b = knows(&[Path::Lan, Path::Direct], &[&[HOME, HOST]]);
        assert!(
            !b.says(HOME) && !b.passes(said) && !b.hands(said, Path::Direct) && !b.hands(said, Path::Lan)
        );
        // What A hears through B changes what it says, and that goes on.
        for c in [OPEN.to_owned(), circuit(OPEN), "/dns4/node.example/tcp/1".into()] {
            let a = knows(&[Path::Lan], &[&[], &[&c]]);
            assert!(!a.says(HOME) && !a.says(HOST) && !a.passes(said), "{c}");
        }
        assert!(b.passes(Said::of(&[OPEN, &circuit(OPEN)])) && b.passes(Said::of(&[""; 0])));
        // One that lies on the way of A's circuit is a home's, too.
        assert!(!b.passes(Said::of(&[circuit(HOME).as_str()])));
    }
}
