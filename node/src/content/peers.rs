//! Peers as sources: who has a model, and streams to them for as long as a pull needs them.
//!
//! Who has a model is known from three sides: announcements that offer it (asked of the daemon's loop), the swarm's
//! provider records, and the peers asked before. None of it is believed: a peer that does not have what it said
//! refuses, one that lies is caught by the tree within one group of 64 KiB and never asked again by this node.
//!
//! ```text
//! Question::Holders ─┐
//!                    ├─> Finder: connect, open a blob stream ──> PeerSource ──> pull
//! Network::holders ──┘         ^                                               │
//!                              └──────────── heard: dropped, lied, moves ──────┘
//! ```
//!
//! A peer whose stream breaks rests, ever longer, and is tried again: nodes restart and paths change.
//!
//! Limits: [`MAX_PEERS`] streams opened per round, [`MAX_LIARS`] liars remembered (the first of them are forgotten by a
//! restart only), one search every [`LOOK_EVERY`]; a search ends [`GIVE_UP`] after the last group that arrived.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::{StreamExt, stream::FuturesUnordered};
use p2p::{
    Network, Plane, Stream,
    blob::{Event, Form, PeerSource, Source, SourceError},
    wire::{announce::Offer, control::Contact},
};
use scheduler::{LayerRange, ModelId, NodeId, place::Room};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep, timeout},
};

/// Streams opened in one round: above it more holders make no pull faster.
const MAX_PEERS: usize = 16;
/// Liars remembered; a swarm with more has other problems.
const MAX_LIARS: usize = 4_096;
/// Time between two looks for more holders.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Looks between two questions to the swarm's provider records, which cost other nodes work.
const LOOKS_PER_LOOKUP: u32 = 8;
/// A pull in which nothing has arrived for so long, with no new peer, has come to its end.
const GIVE_UP: Duration = Duration::from_secs(60);
/// Longest wait for one peer's connection and stream.
const OPENING: Duration = Duration::from_secs(8);
/// First rest of a peer whose stream broke; doubles with every break, up to [`LONGEST_REST`].
const REST: Duration = Duration::from_secs(2);
const LONGEST_REST: Duration = Duration::from_secs(60);
/// When nothing moves, peers asked longer ago than this are asked what they have by now: they may be pulling too.
const STALE: Duration = Duration::from_secs(15);
/// Sources on their way to the pull; the search waits.
const FOUND: usize = 4;

/// What the tasks that move models ask of the daemon's loop, which knows what others announce.
#[derive(Debug)]
pub enum Question {
    /// Which models are announced under this name?
    Named {
        /// The name, or an id in hex.
        name: String,
        /// One of each.
        answer: oneshot::Sender<Vec<Offer>>,
    },
    /// Who offers this model?
    Holders {
        /// Which.
        model: ModelId,
        /// Where they are.
        answer: oneshot::Sender<Vec<Contact>>,
    },
    /// Which layers of a model does the swarm lack most?
    Lacking {
        /// Which.
        model: ModelId,
        /// Its layers.
        num_layers: u32,
        /// What there is room for.
        room: Room,
        /// None when none at all are to be held.
        answer: oneshot::Sender<Option<LayerRange>>,
    },
}

/// The peers that sent bytes that are not a model's. Shared by all pulls of a node.
#[derive(Clone, Debug, Default)]
pub struct Liars(Arc<Mutex<BTreeSet<NodeId>>>);

impl Liars {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<NodeId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    fn contains(&self, node: NodeId) -> bool {
        self.lock().contains(&node)
    }

    fn add(&self, node: NodeId) {
        let mut all = self.lock();
        if all.len() < MAX_LIARS {
            all.insert(node);
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Asked {
    Since(Instant),
    Rests { until: Instant },
}

#[derive(Debug)]
struct State {
    asked: HashMap<NodeId, Asked>,
    /// How often each peer's stream broke.
    breaks: HashMap<NodeId, u32>,
    moved: Instant,
}

/// Looks for peers that have one model, for one pull.
#[derive(Clone, Debug)]
pub struct Finder {
    network: Network,
    questions: mpsc::Sender<Question>,
    model: ModelId,
    liars: Liars,
    state: Arc<Mutex<State>>,
}

impl Finder {
    /// For `model`. `questions` are answered by the daemon's loop.
    pub fn new(network: Network, questions: mpsc::Sender<Question>, model: ModelId, liars: Liars) -> Self {
        let state = State { asked: HashMap::new(), breaks: HashMap::new(), moved: Instant::now() };
        Self { network, questions, model, liars, state: Arc::new(Mutex::new(state)) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Streams to holders that are not being asked already; with `look_up` those that the provider records name too.
    pub async fn round(&self, look_up: bool) -> Vec<Box<dyn Source>> {
        let mut contacts = self.announced().await;
        if look_up {
            for node in self.network.holders(self.model).await {
                if !contacts.iter().any(|contact| contact.node == node) {
                    // Where it is, the network found out on the way.
                    contacts.push(Contact { node, addresses: Vec::new() });
                }
            }
        }
        let fresh = contacts.into_iter().filter(|contact| self.may_ask(contact.node)).take(MAX_PEERS);
        let opening: FuturesUnordered<_> = fresh.map(|contact| self.open(contact)).collect();
        opening.filter_map(|opened| async { opened }).collect().await
    }

    /// As [`Finder::round`], repeated until there is a peer, at most for `patience`.
    pub async fn first(&self, patience: Duration) -> Vec<Box<dyn Source>> {
        let started = Instant::now();
        let mut look_up = false;
        loop {
            let found = self.round(look_up).await;
            if !found.is_empty() || started.elapsed() >= patience {
                return found;
            }
            // What is announced comes at once; the look-up is for what is far.
            look_up = !look_up;
            sleep(LOOK_EVERY / 4).await;
        }
    }

    /// Sends further sources until the receiver is gone, or nothing has moved for long.
    pub fn keep_looking(&self) -> mpsc::Receiver<Box<dyn Source>> {
        let (found, sources) = mpsc::channel(FOUND);
        let finder = self.clone();
        finder.lock().moved = Instant::now();
        tokio::spawn(async move {
            let mut looks = 0u32;
            while finder.lock().moved.elapsed() < GIVE_UP {
                tokio::select! {
                    () = sleep(LOOK_EVERY) => {}
                    () = found.closed() => return,
                }
                looks += 1;
                for source in finder.round(looks.is_multiple_of(LOOKS_PER_LOOKUP)).await {
                    if found.send(source).await.is_err() {
                        return;
                    }
                }
            }
        });
        sources
    }

    /// What the pull says of its sources.
    pub fn heard(&self, event: &Event) {
        let now = Instant::now();
        match event {
            Event::Progress { .. } => self.lock().moved = now,
            Event::Dropped { source, lied, .. } => {
                let mut state = self.lock();
                let Some(node) = state.asked.keys().copied().find(|node| name(*node) == *source) else {
                    return;
                };
                if *lied {
                    tracing::warn!(%node, model = %self.model, "a peer sent bytes that are not the model's");
                    self.liars.add(node);
                }
                let breaks = state.breaks.entry(node).or_default();
                *breaks += 1;
                let rest = (REST * (1 << (*breaks - 1).min(5))).min(LONGEST_REST);
                state.asked.insert(node, Asked::Rests { until: now + rest });
            }
            _ => {}
        }
    }

    fn may_ask(&self, node: NodeId) -> bool {
        if self.liars.contains(node) || node == self.network.me() {
            return false;
        }
        let state = self.lock();
        let now = Instant::now();
        match state.asked.get(&node) {
            None => true,
            Some(Asked::Rests { until }) => now >= *until,
            Some(Asked::Since(since)) => {
                now.duration_since(*since) >= STALE && now.duration_since(state.moved) >= STALE / 2
            }
        }
    }

    async fn announced(&self) -> Vec<Contact> {
        let (answer, answered) = oneshot::channel();
        if self.questions.send(Question::Holders { model: self.model, answer }).await.is_err() {
            return Vec::new();
        }
        answered.await.unwrap_or_default()
    }

    async fn open(&self, contact: Contact) -> Option<Box<dyn Source>> {
        let node = contact.node;
        self.lock().asked.insert(node, Asked::Since(Instant::now()));
        let opened = timeout(OPENING, async {
            self.network.connect(&contact).await.ok()?;
            self.source(node).await
        });
        match opened.await.ok().flatten() {
            Some(source) => Some(Box::new(source)),
            None => {
                let (source, why) = (name(node), "it cannot be reached".to_owned());
                self.heard(&Event::Dropped { source, why, lied: false });
                None
            }
        }
    }

    /// A connected peer, whose groups travel packed if it knows how.
    async fn source(&self, node: NodeId) -> Option<PeerSource<Stream>> {
        let stream = self.network.open(node, Plane::Packed).await.ok()?;
        let mut packed = PeerSource::new(name(node), stream, Form::Packed).ok()?;
        // Whether a peer takes a stream shows at its first answer; the pull asks again what there is.
        if !matches!(packed.describe(self.model).await, Err(SourceError::Closed(_))) {
            return Some(packed);
        }
        let stream = self.network.open(node, Plane::Blob).await.ok()?;
        PeerSource::new(name(node), stream, Form::Plain).ok()
    }
}

/// What a peer is called as a source: its whole name, since short ones can be forged.
fn name(node: NodeId) -> String {
    format!("{node:?}")
}
