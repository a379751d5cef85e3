//! Dozens of made-up identities announce that they hold everything and need no time, while honest prompts are answered.
//! `SHOAL_HOSTILE=full` makes them hundreds.
//!
//! Every identity signs its announcement and hands it to one accomplice, which the nodes are connected with; then it is gone.
//! Half of them name an address that refuses, half one that takes a connection and says nothing.

use std::{
    net::TcpListener,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use harness::{Shoal, node::Node};
use p2p::{
    Config, Event, Identity, Network, SwarmId,
    wire::announce::{Announcement, Draft, own_operator, seal},
};
use scheduler::{Claim, LayerRange};
use tempfile::TempDir;
use tokio::{sync::Semaphore, task::JoinSet};

const PROMPT: &str = "Tell me a story about an owl who learns to swim";
/// Longer than anything here takes on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Identities that speak at the same time.
const AT_ONCE: usize = 16;
/// The median with the crowd may be this many times the one without, or this much later on a loaded machine: a crowd that is
/// believed makes it wait for one silent node after the other.
fn slower() -> (f64, Duration) {
    (1.3, Duration::from_secs(if super::full() { 1 } else { 5 }))
}

fn identities() -> u16 {
    if super::full() { 400 } else { 64 }
}

async fn network(identity: Identity) -> (Network, p2p::Events) {
    let listen = vec!["/ip4/127.35.0.1/tcp/0".to_owned()];
    p2p::spawn(Config { listen, swarm: SwarmId::named("shoal"), ..Config::loopback(identity) }).await.unwrap()
}

/// What an identity says: as `honest`, but of all layers, at next to no time, and elsewhere.
fn boast(honest: &Announcement, identity: &Identity, address: String) -> Vec<u8> {
    let node = identity.node();
    let claim = honest.capability.claim();
    let holdings = claim.holdings.iter().cloned().map(|mut holding| {
        let layers = honest.offers.first().map_or(8, |offer| offer.num_layers);
        holding.loaded = LayerRange::new(0, layers).into_iter().collect();
        (holding.decode_ms, holding.prefill_ms, holding.visit_ms) = (0.001, 0.0, 0.0);
        holding
    });
    let claim = Claim {
        node,
        operator: own_operator(node),
        sequence: 1,
        holdings: holdings.collect(),
        ..claim.clone()
    };
    let draft = Draft {
        claim,
        class: honest.class,
        offers: honest.offers.clone(),
        links: Vec::new(),
        coordinate: None,
        rooms: Vec::new(),
        addresses: vec![address],
        ttl_ms: 90_000,
        agent: "shoal/made-up".into(),
    };
    seal(&draft, identity).unwrap()
}

/// An accomplice connected with `victims` that knows all identities; it goes on talking until it is dropped.
async fn crowd(victims: &[&str], count: u16, silent: String) -> Network {
    let (accomplice, mut events) = network(Identity::from_seed([230; 32])).await;
    let victim = accomplice.dial(victims[0]).await.unwrap();
    let honest = tokio::time::timeout(PATIENCE, async {
        loop {
            if let Some(Event::Announcement(announcement, _)) = events.next().await
                && announcement.node() == victim
                && !announcement.capability.claim().holdings.is_empty()
            {
                break announcement;
            }
        }
    });
    let honest = Arc::new(*honest.await.expect("the node announces what it holds"));
    let address = accomplice.addresses().await.into_iter().find(|address| address.contains("/tcp/")).unwrap();
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    let mut speaking = JoinSet::new();
    for n in 0..count {
        let (turns, honest) = (turns.clone(), honest.clone());
        let (address, silent) = (address.clone(), silent.clone());
        speaking.spawn(async move {
            let _turn = turns.acquire().await.unwrap();
            let mut seed = [231; 32];
            seed[..2].copy_from_slice(&n.to_le_bytes());
            let identity = Identity::from_seed(seed);
            let (network, mut events) = network(identity.clone()).await;
            let nowhere = if n % 2 == 0 { "/ip4/127.0.0.1/tcp/1".to_owned() } else { silent };
            let told = async {
                network.dial(&address).await.ok()?;
                while !matches!(events.next().await?, Event::Connected { .. }) {}
                network.publish(boast(&honest, &identity, nowhere)).await.ok()
            };
            let _ = tokio::time::timeout(PATIENCE, told).await;
            // What was published is on its way.
            tokio::time::sleep(Duration::from_millis(300)).await;
            network.shutdown().await;
        });
    }
    let mut heard = 0_u16;
    let began = Instant::now();
    while heard < count * 3 / 4 && began.elapsed() < PATIENCE {
        match tokio::time::timeout(Duration::from_secs(1), events.next()).await {
            Ok(Some(Event::Announcement(announcement, _))) if announcement.agent.ends_with("made-up") => {
                heard += 1
            }
            _ => {}
        }
    }
    println!("the accomplice knows {heard} of {count} after {:?}", began.elapsed());
    assert!(heard > count / 2, "no crowd");
    for other in &victims[1..] {
        accomplice.dial(other).await.unwrap();
    }
    // Its events are read no further; what is told to it is dropped.
    accomplice
}

#[test]
fn made_up_identities_take_no_prompt_and_keep_no_newcomer_out() {
    let folder = TempDir::new().unwrap();
    let serves = Node::start(&folder.path().join("a"), &["--layers", "1..7"]);
    let asks = Node::start(&folder.path().join("b"), &["--ask-only", "--peer", serves.tcp()]);
    asks.meets(1);
    let alone = Shoal::new().json(["run", "--json", "-n", "8", PROMPT], "");
    let timed = |prompts: usize| {
        let mut took: Vec<Duration> = (0..prompts)
            .map(|n| {
                let began = Instant::now();
                let answer = asks.ask(&["run", "--via", "swarm", "-n", "8", PROMPT]);
                assert_eq!(answer["ids"], alone["ids"], "prompt {n}: {answer}");
                began.elapsed()
            })
            .collect();
        took.sort();
        took[prompts / 2]
    };
    let quiet = timed(5);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("/ip4/127.0.0.1/tcp/{}", silent.local_addr().unwrap().port());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let _accomplice = runtime.block_on(crowd(&[serves.tcp(), asks.tcp()], identities(), silent));
    let known = |node: &Node| {
        let peers = node.ask(&["peers"]);
        peers["peers"].as_array().unwrap().iter().filter(|peer| peer["connected"] != true).count()
    };
    let began = Instant::now();
    while known(&asks) < usize::from(identities()) / 3 && began.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(200));
    }
    println!("the node that asks knows {} of them", known(&asks));
    assert!(known(&asks) >= usize::from(identities()) / 3, "it heard of no crowd");
    let crowded = timed(10);
    println!("median without {quiet:?} and with {crowded:?}");
    assert!(crowded <= quiet.mul_f64(slower().0).max(quiet + slower().1), "{crowded:?} after {quiet:?}");
    // An honest newcomer gets in and is all there is a moment later.
    let newcomer = Node::start(&folder.path().join("c"), &["--layers", "1..7", "--peer", asks.tcp()]);
    asks.meets(2);
    drop(serves);
    println!("through the newcomer after {:?}", timed(1));
    drop(newcomer);
}
