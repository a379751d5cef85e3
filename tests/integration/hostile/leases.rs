//! Requesters that take what they do not use: places without a frame, places that only beacons hold, names of sessions.

use std::{
    collections::{BTreeMap, VecDeque},
    io::ErrorKind,
    net::TcpListener,
    thread,
    time::{Duration, Instant},
};

use harness::{Shoal, node::Node};
use p2p::{
    Config, Event, Events, Identity, Network, Plane,
    codec::{Rounding, Wire},
    wire::{
        control::{Answer, Ask, Contact, Lease, Refusal, Reuse, Role},
        delegate::{self, Prefix},
        frame::{Header, Hello, Kind},
    },
};
use scheduler::{LayerRange, ModelId, NodeId, SessionId, SessionKind, rng::Rng};
use tempfile::TempDir;

#[path = "../../../scheduler/tests/model/mod.rs"]
#[allow(dead_code)]
mod model;

use super::back;
use model::{Action, Seen, World};

const PROMPT: &str = "Tell me a story about an owl who learns to swim";
/// Longer than any answer takes on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Values of a row of minnow.
const HIDDEN: usize = 256;
/// What the attackers ask for: as long as a lease may last.
const TTL_MS: u32 = 600_000;
/// A trace is compared with the model only if it took less: then no lease was lost for want of use meanwhile. One that took
/// longer is done again under another name.
const BRISK: Duration = Duration::from_secs(2);
/// How often a stranger looks for another port.
const TRIES: u32 = 5;
/// Traces, how many of them must be compared, and how often all that took too long are done again.
const TRACES: u64 = 40;
const COMPARED: usize = 30;
const ROUNDS: u64 = 6;

/// A node that speaks the protocol by hand.
struct Stranger {
    network: Network,
    victim: NodeId,
    /// Where the victim is.
    address: String,
    model: ModelId,
    _events: Events,
}

impl Stranger {
    async fn meet(seed: u8, address: &str) -> Self {
        let swarm = p2p::SwarmId::named("shoal");
        let mut tries = 0..TRIES;
        let (network, mut events, victim) = loop {
            let listen = vec!["/ip4/127.34.0.1/tcp/0".to_owned()];
            let config = Config { listen, swarm, ..Config::loopback(Identity::from_seed([seed; 32])) };
            let (network, events) = p2p::spawn(config).await.unwrap();
            // It dials from its port of every address, which another process may have at its own.
            match network.dial(address).await {
                Ok(victim) => break (network, events, victim),
                Err(error) => assert!(tries.next().is_some(), "{error}"),
            }
        };
        let model = tokio::time::timeout(PATIENCE, async {
            loop {
                if let Some(Event::Announcement(announcement, _)) = events.next().await
                    && announcement.node() == victim
                    && let Some(holding) = announcement.capability.claim().holdings.first()
                {
                    break holding.model;
                }
            }
        });
        let model = model.await.expect("the node announces itself");
        Self { network, victim, address: address.to_owned(), model, _events: events }
    }

    async fn lease(&self, session: SessionId, epoch: u32) -> Answer {
        self.lease_to(session, epoch, None).await
    }

    async fn lease_to(&self, session: SessionId, epoch: u32, next: Option<Contact>) -> Answer {
        let lease = Lease {
            session,
            epoch,
            model: self.model,
            layers: LayerRange::new(1, 3).unwrap(),
            positions: 16,
            at: 0,
            rounding: Rounding::NONE,
            kind: SessionKind::DEFAULT,
            next,
            previous: None,
            log: false,
            ttl_ms: TTL_MS,
            role: Role::Stage,
            reuse: Reuse::default(),
        };
        self.network.ask(self.victim, &Ask::Lease(Box::new(lease)), PATIENCE).await.unwrap()
    }

    async fn release(&self, session: SessionId, epoch: u32) {
        self.network.ask(self.victim, &Ask::Release { session, epoch }, PATIENCE).await.unwrap();
    }

    /// Connects again after its connections were closed, until asks are answered.
    async fn back(&self) {
        let began = Instant::now();
        loop {
            let dialed = self.network.dial(&self.address).await;
            if dialed.is_ok() && self.network.ask(self.victim, &Ask::Ping, PATIENCE).await.is_ok() {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{dialed:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// A row for a session that `whose` has leased.
    async fn rows(&self, whose: NodeId, session: SessionId, epoch: u32) -> Result<(), p2p::HopError> {
        let mut stream = self.network.open(self.victim, Plane::Data).await?;
        let hello = Hello { session: node::sessions::place(whose, session), epoch };
        let header = Header::activations(Wire::Raw, epoch, 1, 0, 1, HIDDEN).expect("a row");
        let row = vec![0; header.len as usize];
        stream.send(&hello.write(), &[]).await?;
        stream.send(&header.write(), &row).await
    }

    /// The first beacon, as an honest requester sends it; the stream must be kept.
    async fn claim(&self, session: SessionId, epoch: u32) -> p2p::link::Stream {
        let me = self.network.contact().await.node;
        let mut stream = self.network.open(self.victim, Plane::Data).await.unwrap();
        let hello = Hello { session: node::sessions::place(me, session), epoch };
        let beacon = Header::signal(Kind::Beacon, epoch, 1, 0, 0);
        stream.send(&hello.write(), &[]).await.unwrap();
        stream.send(&beacon.write(), &[]).await.unwrap();
        stream
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// A node with four places, and one that asks.
fn pair(folder: &TempDir) -> (Node, Node) {
    let serves = Node::start(&folder.path().join("a"), &["--layers", "1..7", "--sessions", "4"]);
    let asks = Node::start(&folder.path().join("b"), &["--ask-only", "--peer", serves.tcp()]);
    asks.meets(1);
    (serves, asks)
}

fn accepted(answer: &Answer) -> bool {
    matches!(answer, Answer::Accepted { .. })
}

#[test]
fn places_that_are_not_used_keep_no_requester_out() {
    let folder = TempDir::new().unwrap();
    let (serves, asks) = pair(&folder);
    let alone = Shoal::new().json(["run", "--json", "-n", "8", PROMPT], "");
    let answers = |what: &str| {
        let began = Instant::now();
        let answer = asks.ask(&["run", "--via", "swarm", "-n", "8", PROMPT]);
        println!("{what}: answered after {:?}", began.elapsed());
        assert_eq!(answer["ids"], alone["ids"], "{what}: {answer}");
        answer
    };
    answers("undisturbed");
    let runtime = runtime();
    let (stranger, silent) = runtime.block_on(async {
        let stranger = Stranger::meet(140, serves.tcp()).await;
        let mut silent = Vec::new();
        for n in 0..8_u8 {
            let mut stream = stranger.network.open(stranger.victim, Plane::Delegate).await.unwrap();
            // A request of 64 bytes that ends in the middle, or not even its length.
            let begun = Prefix { kind: delegate::Kind::Request, len: 64 }.write();
            let bytes = if n % 2 == 0 { &begun[..1] } else { &[&begun[..], &[7; 32]].concat() };
            stream.send(bytes, &[]).await.unwrap();
            silent.push(stream);
        }
        (stranger, silent)
    });
    let answer = answers("eight prompts that are never asked to the end");
    assert_eq!(answer["faults"], serde_json::json!([]), "they took places: {answer}");
    drop(silent);
    runtime.block_on(async {
        for n in 0..4 {
            let answer = stranger.lease(SessionId::numbered(n), 1).await;
            assert!(accepted(&answer), "place {n} is free: {answer:?}");
        }
    });
    answers("four leases without a frame");
    let held = runtime.block_on(async {
        let mut held = Vec::new();
        for n in 10..14 {
            // As many as it gets: what it held before may be on its way back.
            if accepted(&stranger.lease(SessionId::numbered(n), 1).await) {
                held.push(stranger.claim(SessionId::numbered(n), 1).await);
            }
        }
        assert!(held.len() > 1, "nothing was attacked");
        held
    });
    answers("leases that beacons hold");
    // A lease ends with its requester's last connection.
    runtime.block_on(async {
        drop(held);
        stranger.network.shutdown().await;
    });
    let began = Instant::now();
    while serves.ask(&["status"])["sessions"].as_u64().is_some_and(|sessions| sessions > 0) {
        assert!(began.elapsed() < back(), "{}", serves.ask(&["status"]));
        thread::sleep(Duration::from_millis(100));
    }
    println!("all places back after {:?}", began.elapsed());
    answers("after the attack");
}

#[test]
fn names_of_sessions_and_addresses_in_leases_give_no_power_over_others() {
    let folder = TempDir::new().unwrap();
    let (serves, asks) = pair(&folder);
    let alone = Shoal::new().json(["run", "--json", "-n", "8", PROMPT], "");
    let target = TcpListener::bind("127.36.0.1:0").unwrap();
    target.set_nonblocking(true).unwrap();
    let runtime = runtime();
    let strangers = runtime.block_on(async {
        let (one, other) = (Stranger::meet(143, serves.tcp()).await, Stranger::meet(144, serves.tcp()).await);
        // The first one takes the name of a session, and the one whose it is gets its place all the same.
        let session = SessionId::numbered(77);
        assert!(accepted(&one.lease(session, 9).await));
        let answer = other.lease(session, 1).await;
        assert!(accepted(&answer), "its own session: {answer:?}");
        // What the first one gives back is its own.
        one.release(session, 9).await;
        let answer = other.lease(session, 1).await;
        assert!(accepted(&answer), "given back by another: {answer:?}");
        other.release(session, 1).await;
        // That an epoch is over says nothing of what the node computes: its next one is welcome.
        let answer = other.lease(session, 1).await;
        assert!(matches!(answer, Answer::Refused { reason: Refusal::Busy, .. }), "{answer:?}");
        // A next stage at eight addresses of the stranger's choice, which that node never announced.
        let port = target.local_addr().unwrap().port();
        let addresses = (1..=8).map(|host| format!("/ip4/127.36.0.{host}/tcp/{port}")).collect();
        let next = Contact { node: Identity::from_seed([145; 32]).node(), addresses };
        let answer = one.lease_to(SessionId::numbered(78), 1, Some(next)).await;
        assert!(accepted(&answer), "{answer:?}");
        (one, other)
    });
    let answer = asks.ask(&["run", "--via", "swarm", "-n", "8", PROMPT]);
    assert_eq!(answer["ids"], alone["ids"], "{answer}");
    // It would have been dialed when the lease was granted.
    let dialed = target.accept().map(|(_, from)| from);
    assert_eq!(
        dialed.map_err(|error| error.kind()),
        Err(ErrorKind::WouldBlock),
        "a stranger's target was dialed"
    );
    runtime.block_on(async {
        strangers.0.network.shutdown().await;
        strangers.1.network.shutdown().await;
    });
}

#[test]
fn orders_of_leases_and_releases_do_at_a_node_what_they_do_in_the_model() {
    let folder = TempDir::new().unwrap();
    let serves = Node::start(&folder.path().join("a"), &["--layers", "1..7", "--sessions", "8"]);
    let runtime = runtime();
    runtime.block_on(async {
        let parties = BTreeMap::from([
            (1, Stranger::meet(141, serves.tcp()).await),
            (2, Stranger::meet(142, serves.tcp()).await),
        ]);
        let (mut compared, mut grants) = (0, 0);
        let mut left: VecDeque<(u64, u64)> = (0..TRACES).map(|seed| (seed, 0)).collect();
        while let Some((seed, round)) = left.pop_front() {
            let began = Instant::now();
            // Both requesters call their session the same.
            let session = SessionId::numbered(1_000 + TRACES * round + seed);
            let trace = trace(seed);
            let mut world = World::new(2, &model::REQUESTERS);
            let (mut modeled, mut seen) = (Vec::new(), Vec::new());
            for action in &trace {
                modeled.push(world.step(*action));
                let over: Vec<Action> =
                    world.actions().into_iter().filter(|action| matches!(action, Action::Over(_))).collect();
                for over in over {
                    world.step(over);
                }
                seen.push(done(&parties, session, *action).await);
            }
            for party in parties.values() {
                party.release(session, 9).await;
            }
            if began.elapsed() < BRISK {
                assert_eq!(seen, modeled, "seed {seed}: {trace:?}");
                compared += 1;
                grants += seen.iter().filter(|seen| **seen == Seen::Granted).count();
            } else if round + 1 < ROUNDS {
                left.push_back((seed, round + 1));
            }
        }
        println!("{compared} traces compared, {grants} grants");
        assert!(compared >= COMPARED, "{compared} of {TRACES} traces were compared");
        assert!(grants > compared, "{compared} traces, {grants} grants");
    });
}

/// Six things that either requester does under either epoch: leases, releases, rows for the other's session, and connections
/// that are lost and back before anything is given up for it.
fn trace(seed: u64) -> Vec<Action> {
    let mut chance = Rng::new(seed);
    let mut drawn = |_| {
        let (who, epoch) = (1 + chance.below(2) as u64, 1 + chance.below(2) as u32);
        match chance.below(10) {
            0..6 => vec![Action::Lease(who, epoch, false)],
            6..8 => vec![Action::Release(who, epoch)],
            8 => vec![Action::Rows(3 - who, who, epoch)],
            _ => vec![Action::Gone(who), Action::Back(who)],
        }
    };
    (0..6).flat_map(&mut drawn).collect()
}

/// Does at the node what the model did.
async fn done(parties: &BTreeMap<u64, Stranger>, session: SessionId, action: Action) -> Seen {
    match action {
        Action::Lease(who, epoch, _) => loop {
            match parties[&who].lease(session, epoch).await {
                Answer::Accepted { .. } => break Seen::Granted,
                Answer::Refused { reason: Refusal::Busy, text, .. } if text.contains("epoch") => {
                    break Seen::Refused;
                }
                // What was released is still ending.
                Answer::Refused { reason: Refusal::Busy | Refusal::Failed, .. } => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                other => panic!("{action:?}: {other:?}"),
            }
        },
        Action::Release(who, epoch) => {
            parties[&who].release(session, epoch).await;
            Seen::Nothing
        }
        Action::Rows(from, whose, epoch) => {
            // It may be refused at any moment.
            let _ = parties[&from].rows(parties[&whose].network.me(), session, epoch).await;
            Seen::Nothing
        }
        Action::Gone(who) => {
            parties[&who].network.close(parties[&who].victim).await;
            Seen::Nothing
        }
        Action::Back(who) => {
            parties[&who].back().await;
            Seen::Nothing
        }
        other => panic!("{other:?} is not sent"),
    }
}
