//! How this node is reached, in a word, with the reason, and with what to do when it cannot be.

use api::swarm::Reachability as Reach;
use p2p::{
    Reachability,
    path::{Path, path_of},
};

/// What a person should know about the way in, from what others found out and from the addresses this node has.
pub(super) fn reach(found: Reachability, addresses: &[String]) -> Reach {
    let has = |wanted: Path| addresses.iter().any(|address| path_of(address) == wanted);
    let (class, why) = match found {
        Reachability::Public => ("direct", "a node outside could dial this one"),
        Reachability::Private if has(Path::Relayed) => (
            "relayed",
            "no node outside can dial this one, so a peer with a public address passes connections on; where the routers \
             between allow it they become direct",
        ),
        Reachability::Private => (
            "unreachable",
            "no node outside can dial this one and no peer it knows relays: it can ask but hardly serve; forward a UDP \
             port of the router to it and say --listen /ip4/0.0.0.0/udp/PORT/quic-v1, or join through a node with a public \
             address",
        ),
        Reachability::Unknown if has(Path::Direct) => {
            ("direct", "it has a public address; no node outside has tried to dial it yet")
        }
        Reachability::Unknown if has(Path::Lan) => {
            ("lan", "it has addresses of a local network only, and no node outside has tried to dial it yet")
        }
        Reachability::Unknown => ("loopback", "it talks to nodes on this machine only"),
    };
    Reach { class: class.to_owned(), why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_follows_from_what_others_found_and_from_the_addresses() {
        let relay = "12D3KooWT3gYEvLJyx1FyyHqrmvdy1tMjpgxmu9aSeKMEuafQtyC";
        let public = "/ip4/203.0.113.1/udp/1/quic-v1".to_owned();
        let local = "/ip4/192.168.1.2/tcp/1".to_owned();
        let circuit = format!("/ip4/198.51.100.1/tcp/1/p2p/{relay}/p2p-circuit");
        let cases = [
            (Reachability::Public, vec![public.clone()], "direct"),
            (Reachability::Unknown, vec![local.clone(), public], "direct"),
            (Reachability::Unknown, vec![local.clone()], "lan"),
            (Reachability::Unknown, vec!["/ip4/127.0.0.1/tcp/1".to_owned()], "loopback"),
            (Reachability::Private, vec![local.clone(), circuit], "relayed"),
            (Reachability::Private, vec![local], "unreachable"),
        ];
        for (found, addresses, class) in cases {
            let said = reach(found, &addresses);
            assert_eq!(said.class, class, "{found:?} {addresses:?}");
        }
    }

    #[test]
    fn who_cannot_be_reached_is_told_what_to_do() {
        let said = reach(Reachability::Private, &["/ip4/10.0.0.2/tcp/1".to_owned()]);
        let why = said.why;
        assert!(why.contains("--listen") && why.contains("relays"), "{why}");
    }
}
