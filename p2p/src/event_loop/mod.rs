//! The one owner of the libp2p swarm.
//!
//! One task, one `select!`: what the swarm reports ([`events`]), what the node wants ([`commands`]), what helper tasks
//! bring back, and a tick for everything that is due. Nothing here waits: whatever takes time (reading an ask, catching
//! up) is a task that reports back through a bounded channel.

mod commands;
mod events;
mod outbox;
mod pulse;
mod standing;
mod upkeep;

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures::StreamExt;
use libp2p::core::transport::ListenerId;
use libp2p::gossipsub::IdentTopic;
use libp2p::kad::QueryId;
use libp2p::multiaddr::Protocol;
use libp2p::swarm::{self, ConnectionId, SwarmEvent};
use libp2p::{Multiaddr, PeerId, Swarm};
use scheduler::NodeId;
use scheduler::reach::Origin;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::MissedTickBehavior;

use crate::behaviour::Behaviour;
use crate::config::{Config, Names};
use crate::control::ReplyTo;
use crate::error::{Error, Result};
use crate::event::{Command, Event, RefusedPeer};
use crate::gossip::{Budget, Forwarder, Ledger};
use crate::governor::Governor;
use crate::home::Said;
use crate::link::{Stream, links::Links};
use crate::path::{self, Path};
use crate::peers::{self, Book, Source, split_peer};
use crate::transport;
use crate::wire::control::Ask;
use crate::woken::Woken;
use outbox::Outbox;
use pulse::Pulse;
use standing::Way;

/// How often what is due is looked at: the resolution of redials and expiries.
const TICK: Duration = Duration::from_millis(250);
/// How long a start waits for its addresses; the system binds in microseconds.
const BIND: Duration = Duration::from_secs(2);
/// A connection that has not said which swarm it is of by then is closed.
const IDENTIFY: Duration = Duration::from_secs(10);
/// What helper tasks brought back and the loop has not seen; at the bound they wait, holding their streams.
const MAX_REPORTS: usize = 256;

/// What helper tasks bring back.
enum Report {
    Asked(NodeId, Box<(Ask, ReplyTo)>),
    /// A stream of numbered frames has said its name.
    Linked(Box<Stream>),
    CaughtUp {
        from: PeerId,
        announcements: Vec<Vec<u8>>,
    },
    /// What the peer that was asked to have an address dialed says: whether it could be, or nothing.
    Probed {
        by: PeerId,
        address: Multiaddr,
        reached: Option<bool>,
    },
}

/// A peer with at least one connection.
struct Met {
    node: NodeId,
    since: Instant,
    pulse: Pulse,
    agent: String,
    /// Connections on which it has said who it is.
    introduced: HashSet<ConnectionId>,
    /// Which process of it this node met, as it says itself.
    life: Option<u64>,
    /// Another process of it was met meanwhile: everything is closed, and it is dialed at once.
    restarted: bool,
    /// What the node was told last; `None` until the peer has shown that it is of this swarm.
    told: Option<Path>,
    /// When it was last served a catch-up.
    served: Option<Instant>,
    /// When it was last asked to have this node dialed.
    probed: Option<Instant>,
    /// Whether it relays for others.
    relays: bool,
    /// When it was last asked to without having said so.
    tried: Option<Instant>,
    forwarder: Forwarder,
    /// Not listened to until then.
    deaf_until: Option<Instant>,
}

/// One attempt to reach a peer.
struct Dial {
    connection: ConnectionId,
    began: Instant,
    /// Addresses tried by it, by the one it follows and by those that were under way when it began.
    tried: Vec<Multiaddr>,
    /// Whether another failed before it: then the peer has failed when it does.
    follows: bool,
}

/// A listener through a relay.
struct Reservation {
    address: Multiaddr,
    listener: Option<ListenerId>,
    /// The user named the relay: it is kept whatever happens.
    named: bool,
    due: Instant,
    failures: u32,
}

/// This node's own announcement.
struct Own {
    bytes: Vec<u8>,
    /// What the mesh is told instead of `bytes`, which it knows: that they hold on.
    renewal: Option<Vec<u8>>,
    /// The number of `bytes`.
    of: u64,
    /// What its addresses say of where this node is.
    said: Said,
    sequence: u64,
    /// Not sent yet.
    waiting: bool,
    budget: Budget,
}

/// Peers of another version that are remembered; beyond, the oldest are forgotten.
const MAX_REFUSED: usize = 32;

type Dialed = oneshot::Sender<Result<NodeId>>;

/// Who this node is and within which bounds it talks.
struct Local {
    me: PeerId,
    node: NodeId,
    names: Arc<Names>,
    /// Sessions with its neighbors.
    links: Links,
    topic: IdentTopic,
    loopback_only: bool,
    /// Whether this node relays for others.
    relays: bool,
    outgoing_limit: usize,
    /// The file of known peers.
    cache: Option<PathBuf>,
}

/// Connections on their way, and who waits for them.
#[derive(Default)]
struct Dialing {
    /// Peers of another version, the latest last; at most [`MAX_REFUSED`].
    refused: VecDeque<RefusedPeer>,
    /// Dials under way, at most [`commands::MAX_DIALS`] for a peer.
    dials: HashMap<PeerId, Vec<Dial>>,
    /// Callers waiting for a peer; bounded by the commands that callers wait in.
    waiting: HashMap<PeerId, Vec<Dialed>>,
    /// Callers waiting for the peer that answers at an address without a name.
    nameless: HashMap<ConnectionId, Dialed>,
    /// Dials for peers that want to know whether they can be reached; bounded by the governor's dials.
    backs: HashMap<ConnectionId, oneshot::Sender<bool>>,
}

/// Announcements: this node's own, those it knows and those it still asks for.
struct News {
    ledger: Ledger,
    own: Own,
    /// Peers to catch up from; at most [`upkeep::MAX_CATCH_UPS`], newer ones first out.
    catch_up: VecDeque<PeerId>,
    catching_up: Arc<Semaphore>,
    /// News from catch-ups passed on to the mesh.
    relayed_news: Budget,
}

impl News {
    fn new(now: Instant) -> Self {
        Self {
            ledger: Ledger::default(),
            own: Own {
                bytes: Vec::new(),
                renewal: None,
                of: 0,
                said: Said::default(),
                sequence: 0,
                waiting: false,
                budget: upkeep::own_budget(now),
            },
            catch_up: VecDeque::new(),
            catching_up: Arc::new(Semaphore::new(upkeep::CATCHING_UP)),
            relayed_news: upkeep::news_budget(now),
        }
    }
}

struct EventLoop {
    swarm: Swarm<Woken<Behaviour>>,
    governor: Governor,
    local: Local,
    commands: mpsc::Receiver<Command>,
    reports: mpsc::Receiver<Report>,
    reporter: mpsc::Sender<Report>,
    outbox: Outbox,
    book: Book,
    met: HashMap<PeerId, Met>,
    dialing: Dialing,
    holders: HashMap<QueryId, (oneshot::Sender<Vec<NodeId>>, HashSet<NodeId>)>,
    news: News,
    reservations: Vec<Reservation>,
    way: Way,
    due: Due,
}

/// When what repeats is due next.
struct Due {
    save: Instant,
    sweep: Instant,
    /// When what is due was looked at last.
    ticked: Instant,
}

/// Listens, then runs in a task of its own until told to stop.
pub(crate) async fn start(
    config: Config,
    governor: Governor,
    links: Links,
    commands: mpsc::Receiver<Command>,
    outbox: mpsc::Sender<Event>,
) -> Result<()> {
    let mut event_loop = build(&config, (governor, links), commands, outbox)?;
    listen(&mut event_loop, &config.listen).await?;
    know(&mut event_loop, &config)?;
    tokio::spawn(run(event_loop));
    Ok(())
}

/// Seconds since 1970, for the cache only: nothing is decided by it.
fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}

/// Parses an address, which must be of this host when nothing else is allowed.
fn address(text: &str, loopback_only: bool) -> Result<Multiaddr> {
    let address: Multiaddr = text.parse().map_err(|e| Error::address(text, e))?;
    if loopback_only && !path::is_of_this_host(&address) {
        let why = "only addresses of this host are allowed here".to_owned();
        return Err(Error::Address { address: text.to_owned(), why });
    }
    Ok(address)
}

fn build(
    config: &Config,
    (governor, links): (Governor, Links),
    commands: mpsc::Receiver<Command>,
    outbox: mpsc::Sender<Event>,
) -> Result<EventLoop> {
    let names = Arc::new(Names::new(config.swarm, config.version));
    let (transport, relay_client) = transport::build(config, &governor)?;
    let behaviour = Behaviour::new(config, &names, &governor, relay_client)?;
    let node = config.identity.node();
    let me = config.identity.keypair().public().to_peer_id();
    let settings = swarm::Config::with_tokio_executor()
        .with_substream_upgrade_protocol_override(libp2p::core::upgrade::Version::V1Lazy)
        .with_idle_connection_timeout(Duration::from_secs(60));
    let now = Instant::now();
    let (reporter, reports) = mpsc::channel(MAX_REPORTS);
    Ok(EventLoop {
        swarm: Swarm::new(transport, Woken::new(behaviour), me, settings),
        governor,
        local: Local {
            links,
            me,
            node,
            topic: IdentTopic::new(&names.topic),
            names,
            loopback_only: config.loopback_only,
            relays: config.relay,
            outgoing_limit: config.limits.outgoing as usize,
            cache: config.cache.clone(),
        },
        commands,
        reports,
        reporter,
        outbox: Outbox::new(outbox),
        book: Book::new(me),
        met: HashMap::new(),
        dialing: Dialing::default(),
        holders: HashMap::new(),
        news: News::new(now),
        reservations: Vec::new(),
        way: Way::new(now, config.loopback_only),
        due: Due { save: now, sweep: now, ticked: now },
    })
}

/// Binds every address that can be bound and waits until the system has named one for each.
async fn listen(event_loop: &mut EventLoop, addresses: &[String]) -> Result<()> {
    let mut pending = HashMap::new();
    let mut refused = String::from("no address was given");
    let mut bound = 0;
    for text in addresses {
        match event_loop.swarm.listen_on(address(text, event_loop.local.loopback_only)?) {
            Ok(listener) => drop(pending.insert(listener, text)),
            Err(e) => refused = format!("{text}: {}", causes(&e)),
        }
    }
    let deadline = tokio::time::Instant::now() + BIND;
    while !pending.is_empty() {
        let Ok(event) = tokio::time::timeout_at(deadline, event_loop.swarm.select_next_some()).await else {
            break;
        };
        match &event {
            SwarmEvent::NewListenAddr { listener_id, .. } => {
                bound += usize::from(pending.remove(listener_id).is_some());
            }
            SwarmEvent::ListenerClosed { listener_id, reason: Err(e), .. } => {
                let text = pending.remove(listener_id).map_or("", String::as_str);
                refused = format!("{text}: {}", causes(e));
            }
            _ => {}
        }
        event_loop.on_swarm(event);
    }
    if bound == 0 {
        return Err(Error::Listen(refused));
    }
    Ok(())
}

/// What went wrong, and what was behind it: the outermost word is often none.
fn causes(error: &dyn std::error::Error) -> String {
    let mut said = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let word = error.to_string();
        // Some say what they wrap.
        if !word.is_empty() && !said.last().is_some_and(|last: &String| last.contains(&word)) {
            said.push(word);
        }
        next = error.source();
    }
    said.join(": ")
}

/// Takes in whom the user and earlier runs know. The first tick dials them.
fn know(event_loop: &mut EventLoop, config: &Config) -> Result<()> {
    let now = Instant::now();
    for text in &config.bootstrap {
        let (address, peer) = split_peer(address(text, event_loop.local.loopback_only)?);
        let Some(peer) = peer else {
            let why = "it must end in /p2p/ and the node's name".to_owned();
            return Err(Error::Address { address: text.clone(), why });
        };
        event_loop.book.add(peer, address, Source::Bootstrap, now);
    }
    for text in &config.reach.external {
        let external = split_peer(address(text, event_loop.local.loopback_only)?).0;
        event_loop.way.learn(&external, Origin::Named, now);
    }
    for text in &config.reach.relays {
        let relay = address(text, event_loop.local.loopback_only)?;
        if relay.iter().any(|part| part == Protocol::P2pCircuit) {
            let why = "a relay must be reached directly, not through another relay".to_owned();
            return Err(Error::Address { address: text.clone(), why });
        }
        event_loop.reserve(relay.with(Protocol::P2pCircuit), true, now);
    }
    event_loop.reweigh(now);
    if let Some(path) = &config.cache {
        // Without its cache a node finds the swarm more slowly, but it does.
        match peers::read_cache(path) {
            Ok(lines) => event_loop.book.take_lines(&lines, now),
            Err(error) => tracing::warn!(path = %path.display(), %error, "known peers cannot be read"),
        }
    }
    Ok(())
}

async fn run(mut event_loop: EventLoop) {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            event = event_loop.swarm.select_next_some() => event_loop.on_swarm(event),
            command = event_loop.commands.recv() => match command {
                Some(Command::Shutdown(done)) => {
                    event_loop.stop().await;
                    // The caller may be gone.
                    let _ = done.send(());
                    return;
                }
                Some(command) => event_loop.on_command(command),
                None => return event_loop.stop().await,
            },
            Some(report) = event_loop.reports.recv() => event_loop.on_report(report),
            () = event_loop.outbox.flush() => {}
            _ = ticks.tick() => event_loop.on_tick(Instant::now()),
        }
    }
}
