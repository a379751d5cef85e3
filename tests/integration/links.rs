//! Frames that take datagrams, the stream, and both in turn: an answer has the same tokens, whichever link carried it.

use std::time::Instant;

use harness::{
    Shoal,
    node::{Node, PATIENCE},
};
use serde_json::Value;
use tempfile::TempDir;

const PROMPT: &str = "Tell me a story about a fox who finds a lantern in the snow.";
const TOKENS: &str = "64";

/// How many frames to `peer` took datagrams and the stream, as a node says.
fn link(of: &Node, peer: &Node) -> Option<(u64, u64)> {
    let known = of.ask(&["peers"]);
    let peers = known["peers"].as_array().unwrap();
    let said = peers.iter().find(|known| known["node"] == peer.name.as_str())?["link"].as_str()?.to_owned();
    let count = |what: &str| {
        let parts = said.split(", ").filter_map(|part| part.strip_suffix(what));
        parts.filter_map(|number| number.parse::<u64>().ok()).sum()
    };
    Some((count(" frames by datagram"), count(" by stream")))
}

/// The answer has all its tokens, as one process gives them, and no node was given up for it.
fn same(said: &Value, alone: &Value) {
    assert_eq!(said["ids"], alone["ids"], "{said}");
    assert!(said["faults"].as_array().unwrap().is_empty(), "{said}");
}

/// A requester and two nodes with half of the middle each. Every twenty frames to a neighbor the other link is used, and one datagram
/// in twenty is lost.
#[test]
fn an_answer_does_not_depend_on_the_link() {
    let folder = TempDir::new().unwrap();
    let start = |name: &str, args: &[&str]| {
        let links = ["--link", "datagram", "--link-turn", "20", "--link-loss", "50"];
        Node::start(&folder.path().join(name), &[&links, args].concat())
    };
    let asks = start("a", &["--ask-only"]);
    let first = start("b", &["--layers", "1..4", "--peer", asks.tcp()]);
    let second = start("c", &["--layers", "4..7", "--peer", asks.tcp()]);
    asks.meets(2);

    let alone = Shoal::new().json(["run", "--json", "-n", TOKENS, PROMPT], "");
    let started = Instant::now();
    loop {
        // The first one may be over before its neighbors have agreed on datagrams.
        same(&asks.ask(&["run", "--via", "swarm", "-n", TOKENS, PROMPT]), &alone);
        // A route goes round, and each node sends to the next one.
        let said = [link(&asks, &first), link(&first, &second), link(&second, &asks)];
        if said.iter().all(|said| said.is_some_and(|counts| counts.0 >= 20 && counts.1 >= 20)) {
            break;
        }
        assert!(started.elapsed() < PATIENCE, "frames by datagram and by stream: {said:?}");
    }
    let status = asks.ask(&["status"]);
    assert!(!status["links"].as_array().unwrap().is_empty(), "{status}");
}

#[test]
fn a_swarm_of_one_machine_takes_the_link_that_it_is_told() {
    let (stream, [datagrams, streamed]) = up(&["--link", "stream"]);
    assert!(datagrams == 0 && streamed > 0, "{streamed} frames by stream, {datagrams} by datagram");
    by_datagram(&["--link", "datagram"], &stream);
    let refused = Shoal::new().run_with(["up", "--link", "pigeon"], "");
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && why.contains("use auto, stream, datagram or kmod"), "{why}");
    // A flag has an effect or is refused with what to do.
    let refused = |words: &[&str], what: &str| {
        let output = Shoal::new().run_with([&["up", "--local", "2"], words].concat(), "");
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && why.contains(what), "{words:?}: {why}");
    };
    refused(&["--spin", "100"], "add --link datagram");
    if !std::path::Path::new("/dev/shoal_lan").exists() {
        refused(&["--link", "kmod"], "modprobe shoal_lan");
    }
    // Both ends look for datagrams without sleeping: the same tokens.
    by_datagram(&["--link", "datagram", "--spin", "500"], &stream);
    // A prompt has no link of its own.
    let refused = Shoal::new().fails(["run", "--link", "datagram", PROMPT], "").1;
    assert!(refused.contains("shoal join --link datagram"), "{refused}");
}

/// What a swarm of two nodes on this machine answers, and how many frames its standard error says went by datagram and by stream.
fn up(links: &[&str]) -> (Value, [u64; 2]) {
    let words = [&["up", "--local", "2", "--json", "-n", TOKENS, "--run", PROMPT], links].concat();
    let output = Shoal::new().run_with(words, "");
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{err}");
    let link =
        err.lines().find(|line| line.starts_with("link to ")).unwrap_or_else(|| panic!("no link: {err}"));
    let counts = [" frames by datagram", " by stream"].map(|what| {
        let mut parts = link.split(", ").filter_map(|part| part.strip_suffix(what));
        parts.find_map(|number| number.parse().ok()).unwrap_or_else(|| panic!("{link}"))
    });
    (serde_json::from_str(out.lines().last().unwrap()).unwrap(), counts)
}

/// The same tokens by datagrams. A first answer may be over before the nodes have agreed on them.
fn by_datagram(links: &[&str], stream: &Value) {
    let started = Instant::now();
    loop {
        let (said, [datagrams, _]) = up(links);
        same(&said, stream);
        if datagrams > 0 {
            break;
        }
        assert!(started.elapsed() < PATIENCE, "{links:?}: no frame went by datagram");
    }
}
