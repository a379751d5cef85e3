//! Requesters that take what they do not use: places without a frame, places that only beacons hold, names of sessions.

use std::{
    collections::BTreeMap,
    thread,
    time::{Duration, Instant},
};

use harness::{Shoal, node::Node};
use p2p::{
    Config, Event, Events, Identity, Network, Plane,
    codec::Rounding,
    wire::{
        control::{Answer, Ask, Lease, Refusal, Role},
        frame::{Header, Hello, Kind},
    },
};
use scheduler::{LayerRange, ModelId, NodeId, SessionId, SessionKind, rng::Rng};
use tempfile::TempDir;

#[path = "../../../scheduler/tests/model/mod.rs"]
#[allow(dead_code)]
mod model;

use model::{Action, Seen, World};

const PROMPT: &str = "Tell me a story about an owl who learns to swim";
/// Longer than any answer takes on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// What the attackers ask for: as long as a lease may last.
const TTL_MS: u32 = 600_000;
/// A trace is compared with the model only if it took less: then no lease was lost for want of use meanwhile.
const BRISK: Duration = Duration::from_secs(2);

/// A node that speaks the protocol by hand.
struct Stranger {
    network: Network,
    victim: NodeId,
    model: ModelId,
    _events: Events,
}

impl Stranger {
    async fn meet(seed: u8, address: &str) -> Self {
        let listen = vec!["/ip4/127.34.0.1/tcp/0".to_owned()];
        let swarm = p2p::SwarmId::named("shoal");
        let config = Config { listen, swarm, ..Config::loopback(Identity::from_seed([seed; 32])) };
        let (network, mut events) = p2p::spawn(config).await.unwrap();
        let victim = network.dial(address).await.unwrap();
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
        Self { network, victim, model, _events: events }
    }

    async fn lease(&self, session: SessionId, epoch: u32) -> Answer {
        let lease = Lease {
            session,
            epoch,
            model: self.model,
            layers: LayerRange::new(1, 3).unwrap(),
            positions: 16,
            at: 0,
            rounding: Rounding::NONE,
            kind: SessionKind::DEFAULT,
            next: None,
            previous: None,
            log: false,
            ttl_ms: TTL_MS,
            role: Role::Stage,
            beginnings: Vec::new(),
        };
        self.network.ask(self.victim, &Ask::Lease(Box::new(lease)), PATIENCE).await.unwrap()
    }

    async fn release(&self, session: SessionId, epoch: u32) {
        self.network.ask(self.victim, &Ask::Release { session, epoch }, PATIENCE).await.unwrap();
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
    };
    answers("undisturbed");
    let runtime = runtime();
    let stranger = runtime.block_on(async {
        let stranger = Stranger::meet(140, serves.tcp()).await;
        for n in 0..4 {
            let answer = stranger.lease(SessionId::numbered(n), 1).await;
            assert!(accepted(&answer), "place {n} is free: {answer:?}");
        }
        stranger
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
        assert!(began.elapsed() < PATIENCE, "{}", serves.ask(&["status"]));
        thread::sleep(Duration::from_millis(100));
    }
    println!("all places back after {:?}", began.elapsed());
    answers("after the attack");
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
        for seed in 0..40 {
            let began = Instant::now();
            // Both requesters call their session the same.
            let session = SessionId::numbered(1_000 + seed);
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
            }
        }
        println!("{compared} traces compared, {grants} grants");
        assert!(compared > 0 && grants > compared, "{compared} traces, {grants} grants");
    });
}

/// Six leases and releases of either requester under either epoch.
fn trace(seed: u64) -> Vec<Action> {
    let mut chance = Rng::new(seed);
    let mut drawn = || {
        let (who, epoch) = (1 + chance.below(2) as u64, 1 + chance.below(2) as u32);
        if chance.happens(0.7) { Action::Lease(who, epoch, false) } else { Action::Release(who, epoch) }
    };
    (0..6).map(|_| drawn()).collect()
}

/// Does at the node what the model did.
async fn done(parties: &BTreeMap<u64, Stranger>, session: SessionId, action: Action) -> Seen {
    match action {
        Action::Lease(who, epoch, _) => loop {
            match parties[&who].lease(session, epoch).await {
                Answer::Accepted { .. } => break Seen::Granted,
                // What was released is still ending.
                Answer::Refused { reason: Refusal::Busy | Refusal::Failed, .. } => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Answer::Refused { reason: Refusal::Malformed, .. } => break Seen::Refused,
                other => panic!("{action:?}: {other:?}"),
            }
        },
        Action::Release(who, epoch) => {
            parties[&who].release(session, epoch).await;
            Seen::Nothing
        }
        other => panic!("{other:?} is not sent"),
    }
}
