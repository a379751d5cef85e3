//! Ways that carry one direction only, between any two of the three that compute a prompt: what is sent one way vanishes,
//! no end is told, and the packets of the other way arrive.
//!
//! Real processes in network namespaces around a router that drops packets by source and target, see [`harness::lab`].
//! Every stage has a shadow. The prompt before each cut is asked as soon as the cut before it has healed.
//! `SHOAL_FIGURES=1` draws 42 cuts and prints what each cost; without it there is one of each kind. Nothing is asserted of
//! times: an answer that was over before its packets were lost is asked for again.

use std::time::Instant;

use harness::{
    Shoal, binary,
    lab::{Host, permitted},
    node::Node,
    prompt::Prompt,
};
use serde_json::Value;
use tempfile::TempDir;

const ASK: [&str; 7] = ["-n", "120", "--raw", "--seed=3", "--shadow", "all", "Once upon a time there was a"];
/// Times that a cut is tried, each time at an answer under way.
const TRIES: usize = 20;
/// Who computes, in the order of the route; 0 is the one that asks.
const WAYS: [(usize, usize); 6] = [(0, 1), (1, 2), (2, 0), (1, 0), (2, 1), (0, 2)];

/// A node, its host and its address.
struct Place {
    node: Node,
    _host: Host,
    ip: String,
}

/// The node that asks, and two of each half of the middle, around a router.
struct Star {
    router: Host,
    places: Vec<Place>,
    _folder: TempDir,
}

impl Star {
    fn new() -> Self {
        let (router, folder) = (Host::new(), TempDir::new().unwrap());
        router.forward();
        let mut places: Vec<Place> = Vec::new();
        for (number, layers) in ["", "1..4", "4..7", "1..4", "4..7"].iter().enumerate() {
            let host = Host::new();
            let [gateway, ip] = [1, 2].map(|last| format!("198.51.100.{}", 4 * number + last));
            let (near, far) = (format!("{ip}/30"), format!("{gateway}/30"));
            host.cable(("eth0", &[&near]), &router, (&format!("cable{number}"), &[&far]));
            host.default_route(&gateway);
            let peer = places.first().map(|asks| {
                let at = asks.node.addresses.iter();
                let at = at.clone().find(|at| at.contains(&asks.ip) && at.contains("/quic-v1"));
                at.expect("it listens where others reach it").clone()
            });
            let serves = ["--layers", layers, "--peer", peer.as_deref().unwrap_or_default()];
            let args = if number == 0 { &["--ask-only"][..] } else { &serves };
            let node = Node::launch(host.command(binary()), &folder.path().join(number.to_string()), args);
            places.push(Place { node, _host: host, ip });
        }
        places[0].node.meets(4);
        router.run("nft add table ip cut");
        router.run("nft add chain ip cut forward { type filter hook forward priority 0 ; }");
        Self { router, places, _folder: folder }
    }

    fn cut(&self, from: &Place, to: &Place) {
        let rule = format!("ip saddr {} ip daddr {} counter drop", from.ip, to.ip);
        self.router.run(&format!("nft add rule ip cut forward {rule}"));
    }

    /// Packets that the cut has kept back.
    fn dropped(&self) -> u64 {
        let rules = self.router.output("nft list chain ip cut forward");
        let after = rules.split("counter packets ").nth(1).unwrap_or_default();
        after.split(' ').next().and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("{rules}"))
    }

    fn mend(&self) {
        self.router.run("nft flush chain ip cut forward");
    }

    /// Those that compute the prompt, the one that asks first.
    fn ring(&self, prompt: &Prompt) -> Vec<&Place> {
        let asks = &self.places[0];
        let named = |name: String| self.places.iter().find(|place| place.node.name == name);
        let strangers = prompt.strangers(&asks.node.name);
        [asks].into_iter().chain(strangers.into_iter().filter_map(named)).collect()
    }
}

/// The middle, the value that all but a twentieth stay below, and the greatest, ms.
fn spread(mut ms: Vec<f64>) -> String {
    ms.sort_by(f64::total_cmp);
    let at = |part: f64| ms[((ms.len() - 1) as f64 * part).round() as usize];
    format!("p50 {:.0}, p95 {:.0}, worst {:.0} ms", at(0.5), at(0.95), at(1.0))
}

#[test]
fn any_one_way_may_be_cut() {
    if !permitted() {
        return;
    }
    let cuts = if std::env::var_os("SHOAL_FIGURES").is_some() {
        std::env::var("SHOAL_CUTS").ok().and_then(|n| n.parse().ok()).unwrap_or(42)
    } else {
        WAYS.len()
    };
    let star = Star::new();
    let expected = Shoal::new().json(["run", "--json"].iter().chain(&ASK[..4]).chain(&ASK[6..]), "");
    let (mut stalls, mut firsts) = (vec![Vec::new(); WAYS.len()], Vec::new());
    let (mut cut, mut tries) = (0, 0);
    while cut < cuts {
        let way = cut % WAYS.len();
        let began = Instant::now();
        let mut prompt = Prompt::run(&star.places[0].node.home, ASK);
        assert!(prompt.reaches(1), "cut {cut}: {:?}", prompt.last);
        let first = began.elapsed().as_secs_f64() * 1e3;
        // Never at the same token twice in a row.
        assert!(prompt.reaches(20 + 7 * cut % 41), "{:?}", prompt.last);
        let ring = star.ring(&prompt);
        // On a busy machine a half may be dearer than its parts on both of its holders.
        if ring.len() != 3 {
            tries += 1;
            assert!(tries < TRIES, "cut {cut}: {TRIES} rings of others than three: {}", prompt.route);
            prompt.ends();
            continue;
        }
        let struck = Instant::now();
        star.cut(ring[WAYS[way].0], ring[WAYS[way].1]);
        let last = prompt.ends();
        let (stall, dropped) = (prompt.stall_ms(struck), star.dropped());
        star.mend();
        assert_eq!(last["ids"], expected["ids"], "{last}");
        assert_eq!(Value::Array(prompt.ids()), expected["ids"]);
        // The answer was under way: packets of it, or of its connections, were lost, and tokens came after that.
        if dropped == 0 || prompt.tokens.last().is_none_or(|last| last.0 <= struck) {
            tries += 1;
            assert!(tries < TRIES, "cut {cut}: {TRIES} answers were over, or nothing went this way");
            continue;
        }
        println!(
            "cut {cut}, {:?}: first token after {:.0} ms, stall {stall:.0} ms; {dropped} packets, shadows {}, faults {}, hedged {}",
            WAYS[way], first, prompt.route["shadows"], last["faults"], last["hedged"]
        );
        firsts.push(first);
        stalls[way].push(stall);
        (cut, tries) = (cut + 1, 0);
    }
    for (way, stalls) in WAYS.iter().zip(&stalls) {
        println!("{way:?}: {}", spread(stalls.clone()));
    }
    println!("stalls: {}", spread(stalls.concat()));
    println!("first tokens after a cut has healed: {}", spread(firsts[1..].to_vec()));
}
