//! Which neighbors have sessions of datagrams, how they come by them, and when these are used.
//!
//! The first data stream to a neighbor of the same network dials a session on a substream of its own: both ends send a port, a
//! name for the session, the longest chunk that fits their packets and a fresh X25519 key, and derive its keys. The dialer then asks
//! whether datagrams of that length arrive, measures echoes of 4, 16 and 64 KiB over the substream and over datagrams, and says which
//! link both use from now on; again every ten minutes, with fresh keys, and after failures at either end. Where the way has become
//! narrower the session ends, and the next one has shorter chunks. The substream stays open: its end is the session's.
//!
//! Limits: [`MAX_SESSIONS`] sessions, of others under the governor; [`MAX_PEERS`] peers remembered; what comes without a session
//! is dropped unlogged.

mod agree;
mod follow;
mod lead;
mod module;
#[cfg(test)]
mod tests;
mod words;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use scheduler::NodeId;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::Stream;
use super::datagram::Time;
use super::datagram::header::{CHUNK_RANGE, MAX_SESSIONS, session_of};
use super::datagram::socket::Socket;
use super::info::LinkInfo;
use super::kmod::Module;
use super::neighbor::Neighbor;
use super::timer::{self, Timer};
use crate::config::Config;
use crate::error::{Error, HopError};
use crate::governor::Governor;
use crate::link_kind::LinkMode;

use agree::Agreed;
pub use module::module_state;

/// Peers of which it is remembered whether they have a session.
const MAX_PEERS: usize = 256;
/// How long a stream waits for a session; it takes the plain data plane then.
const DIAL_WAIT: Duration = Duration::from_millis(300);
/// How long agreeing may take.
const AGREE: Duration = Duration::from_secs(5);
/// How long a peer that takes no datagrams is not asked again, and how often links are measured.
const AGAIN: Duration = Duration::from_secs(600);
/// After failures they are measured again so soon, and later each time.
const RECOVER: Duration = if cfg!(test) { Duration::from_millis(50) } else { Duration::from_secs(10) };
/// No chunk is longer.
const LONGEST: usize = *CHUNK_RANGE.end();
/// The longest train that a system hands over at once.
const TRAIN_BYTES: usize = 65_536;

#[derive(Debug)]
enum Peer {
    Dialing(watch::Receiver<()>),
    Linked(Arc<Neighbor>),
    /// Not before then; of chunks no longer than `most` bytes.
    Not {
        until: Instant,
        most: usize,
    },
}

#[derive(Debug, Default)]
struct Table {
    /// By the low bits of a session's name: the name, and the neighbor once it is agreed on.
    places: HashMap<u64, (u64, Option<Arc<Neighbor>>)>,
    peers: HashMap<NodeId, Peer>,
}

#[derive(Debug)]
struct Shared {
    me: NodeId,
    mode: LinkMode,
    socket: Arc<Socket>,
    governor: Governor,
    turn: u64,
    spin: Duration,
    timer: Arc<Timer>,
    /// Links within this host are measured as any other.
    within_host: bool,
    /// Datagrams that were read and named no session.
    strange: AtomicU64,
    table: Mutex<Table>,
    /// Until it goes.
    module: Mutex<Option<Arc<Module>>>,
    tasks: Mutex<Vec<AbortHandle>>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        let tasks = self.tasks.get_mut().unwrap_or_else(PoisonError::into_inner);
        tasks.iter().for_each(AbortHandle::abort);
    }
}

/// See the [module](self). Without a socket every neighbor has its stream only.
#[derive(Clone, Debug)]
pub(crate) struct Links(Option<Arc<Shared>>);

/// A name in the table, until it is dropped.
struct Place {
    shared: Weak<Shared>,
    name: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            let mut table = shared.table();
            table.places.remove(&(self.name % MAX_SESSIONS as u64));
            shared.admit(&table);
        }
    }
}

impl Links {
    /// Binds the socket of a node that may use datagrams, and opens the kernel module where it may use that. Called within a runtime.
    ///
    /// # Errors
    /// [`Error::Link`] where what was asked for cannot be had.
    pub(crate) fn start(config: &Config, governor: Governor) -> Result<Self, Error> {
        let (me, mode) = (config.identity.node(), config.links.mode);
        if mode == LinkMode::Stream {
            return Ok(Self(None));
        }
        let socket = match Socket::bind(config.loopback_only, config.links.loss) {
            Ok(socket) => Arc::new(socket),
            Err(error) if mode.is_forced() => {
                return Err(Error::Link(format!(
                    "--link {mode} cannot work here ({error}): use --link stream or auto"
                )));
            }
            Err(error) => {
                tracing::debug!(%error, "no datagrams here, streams are used");
                return Ok(Self(None));
            }
        };
        let module = match mode {
            LinkMode::Kmod => Some(Module::open(&socket).map_err(|error| module::refusal(&error))?),
            LinkMode::Auto => Module::open(&socket).ok(),
            LinkMode::Stream | LinkMode::Datagram => None,
        };
        let module = module.map(Arc::new);
        let shared = Arc::new(Shared {
            me,
            mode,
            socket: socket.clone(),
            governor,
            turn: config.links.turn.into(),
            timer: Arc::new(Timer::new(tokio::time::Instant::now())),
            spin: config.links.spin,
            within_host: config.links.within_host,
            strange: AtomicU64::new(0),
            table: Mutex::default(),
            module: Mutex::new(module.clone()),
            tasks: Mutex::default(),
        });
        shared.admit(&shared.table());
        let receives = tokio::spawn(receive(socket, Arc::downgrade(&shared))).abort_handle();
        let ticks = tokio::spawn(timer::keep(shared.timer.clone(), Arc::downgrade(&shared), Shared::on_time))
            .abort_handle();
        let mut tasks = vec![receives, ticks];
        tasks.extend(
            module.map(|module| tokio::spawn(module::take(module, Arc::downgrade(&shared))).abort_handle()),
        );
        *shared.tasks.lock().unwrap_or_else(PoisonError::into_inner) = tasks;
        Ok(Self(Some(shared)))
    }

    /// What is said of the link to `node`; nothing where it has its stream only.
    pub(crate) fn info(&self, node: NodeId) -> Option<LinkInfo> {
        let neighbor = self.0.as_ref()?.linked(node)?;
        Some(neighbor.info())
    }

    /// The neighbor `node`, if it takes datagrams: the first time it is asked, on the substream that `open` opens.
    pub(crate) async fn neighbor<F>(&self, node: NodeId, open: F) -> Option<Arc<Neighbor>>
    where
        F: Future<Output = Result<Stream, HopError>> + Send + 'static,
    {
        let shared = self.0.as_ref()?;
        if let Some(neighbor) = shared.linked(node) {
            return Some(neighbor);
        }
        let mut agreed = {
            let mut table = shared.table();
            match table.peers.get(&node) {
                Some(Peer::Dialing(agreed)) => agreed.clone(),
                Some(Peer::Not { until, .. }) if Instant::now() < *until => return None,
                known => {
                    let most = if let Some(Peer::Not { most, .. }) = known { *most } else { LONGEST };
                    if table.peers.len() >= MAX_PEERS {
                        let now = Instant::now();
                        table
                            .peers
                            .retain(|_, peer| !matches!(peer, Peer::Not { until, .. } if *until < now));
                        if table.peers.len() >= MAX_PEERS {
                            return None;
                        }
                    }
                    let (done, agreed) = watch::channel(());
                    table.peers.insert(node, Peer::Dialing(agreed.clone()));
                    tokio::spawn(shared.clone().dial((node, most), open, done));
                    agreed
                }
            }
        };
        // Agreed, refused or late: the table says.
        let _ = tokio::time::timeout(DIAL_WAIT, agreed.changed()).await;
        shared.linked(node)
    }

    /// Answers a neighbor that dials, and keeps the session for as long as it lasts.
    pub(crate) async fn accept(&self, stream: Stream) {
        let Some(shared) = &self.0 else { return };
        let node = stream.node();
        match tokio::time::timeout(AGREE, shared.answer(stream)).await {
            Ok(Ok(Agreed { neighbor, stream, place, .. })) => {
                // Its end, whichever end made it.
                let _ = follow::follow(&neighbor, stream, &shared.own_choice()).await;
                shared.end(&neighbor, place);
            }
            Ok(Err(error)) => tracing::debug!(%node, %error, "no session of datagrams"),
            Err(_) => tracing::debug!(%node, "a neighbor does not say its part in time"),
        }
    }

    /// Sends no datagram any more.
    pub(crate) fn cut(&self) {
        self.0.iter().for_each(|shared| shared.socket.cut());
    }

    /// Sends no datagram longer than this any more.
    pub(crate) fn shrink(&self, longest: usize) {
        self.0.iter().for_each(|shared| shared.socket.shrink(longest));
    }

    /// How many datagrams were read that named no session.
    pub(crate) fn strange(&self) -> u64 {
        self.0.as_ref().map_or(0, |shared| shared.strange.load(Ordering::Relaxed))
    }

    /// The port of the socket, where there is one.
    pub(crate) fn port(&self) -> Option<u16> {
        Some(self.0.as_ref()?.socket.port())
    }

    /// The neighbor that a stream of numbered frames belongs to.
    pub(crate) fn of(&self, node: NodeId) -> Option<Arc<Neighbor>> {
        self.0.as_ref()?.linked(node)
    }

    /// The same, where this node may be agreeing on the session still: its neighbor's first stream can come before its word.
    pub(crate) async fn agreed(&self, node: NodeId) -> Option<Arc<Neighbor>> {
        let shared = self.0.as_ref()?;
        let dialing = match shared.table().peers.get(&node) {
            Some(Peer::Dialing(agreed)) => Some(agreed.clone()),
            _ => None,
        };
        if let Some(mut agreed) = dialing {
            // Agreed, refused or late: the table says.
            let _ = tokio::time::timeout(AGREE, agreed.changed()).await;
        }
        shared.linked(node)
    }
}

fn refused(why: &str) -> HopError {
    HopError::Refused(why.to_owned())
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        // The table is consistent between any two statements that can panic.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn linked(&self, node: NodeId) -> Option<Arc<Neighbor>> {
        match self.table().peers.get(&node) {
            Some(Peer::Linked(neighbor)) if !neighbor.is_closed() => Some(neighbor.clone()),
            _ => None,
        }
    }

    /// Has the socket take datagrams of the sessions in the table only.
    fn admit(&self, table: &Table) {
        let names: Vec<u64> = table.places.values().map(|(name, _)| *name).collect();
        self.socket.admit(&names);
    }

    /// The kernel module where this end may choose whether it carries datagrams; none where it was told.
    fn own_choice(&self) -> Weak<Module> {
        let module = self.module().filter(|_| self.mode == LinkMode::Auto);
        module.as_ref().map(Arc::downgrade).unwrap_or_default()
    }

    /// A name for a session, in a free place of the table.
    fn reserve(self: &Arc<Self>) -> Result<Place, HopError> {
        let fresh = getrandom::u64().map_err(|_| HopError::Closed)?;
        let places = MAX_SESSIONS as u64;
        let mut table = self.table();
        let free = (0..places).map(|i| (fresh + i) % places).find(|at| !table.places.contains_key(at));
        let at = free.ok_or_else(|| refused("all sessions of datagrams are in use"))?;
        let name = fresh / places * places + at;
        table.places.insert(at, (name, None));
        self.admit(&table);
        drop(table);
        Ok(Place { shared: Arc::downgrade(self), name })
    }

    fn end(&self, neighbor: &Arc<Neighbor>, place: Place) {
        neighbor.close();
        drop(place);
        let mut table = self.table();
        let gone = matches!(table.peers.get(&neighbor.peer), Some(Peer::Linked(known)) if Arc::ptr_eq(known, neighbor));
        if gone {
            table.peers.remove(&neighbor.peer);
        }
    }

    /// Hands the datagrams of a train to the sessions that they name, and adds these to `heard`.
    fn on_train(&self, (train, segment): (&[u8], usize), from: SocketAddr, heard: &mut Vec<Arc<Neighbor>>) {
        let mut rest = train;
        while !rest.is_empty() {
            let name = session_of(rest);
            let same = rest.chunks(segment).take_while(|datagram| session_of(datagram) == name).count();
            let (run, more) = rest.split_at((same.max(1) * segment).min(rest.len()));
            rest = more;
            let strange = || self.strange.fetch_add(same.max(1) as u64, Ordering::Relaxed);
            let Some(name) = name else {
                strange();
                continue;
            };
            let found = self.table().places.get(&(name % MAX_SESSIONS as u64)).cloned();
            if let Some((known, Some(neighbor))) = found
                && known == name
                && neighbor.address == from
            {
                neighbor.on_train(run, segment);
                if !heard.iter().any(|known| Arc::ptr_eq(known, &neighbor)) {
                    heard.push(neighbor);
                }
            } else {
                strange();
            }
        }
    }

    /// Does what is due; when the next thing is.
    fn on_time(&self) -> Option<Time> {
        self.all().iter().filter_map(|neighbor| neighbor.on_time()).min()
    }

    fn all(&self) -> Vec<Arc<Neighbor>> {
        self.table().places.values().filter_map(|(_, neighbor)| neighbor.clone()).collect()
    }
}

/// Receives until the links are dropped. After a datagram it looks for the next one without sleeping for as long as the node was
/// told to.
async fn receive(socket: Arc<Socket>, shared: Weak<Shared>) {
    let mut buffer = vec![0; TRAIN_BYTES];
    let mut heard = Vec::new();
    let mut awake: Option<Instant> = None;
    loop {
        if awake.is_none() && socket.readable().await.is_err() {
            return;
        }
        let Some(shared) = shared.upgrade() else { return };
        let mut came = false;
        // A flood must not keep the other tasks of this thread waiting.
        for _ in 0..64 {
            // Nothing more, or an error of an earlier datagram that went nowhere.
            let Ok((len, segment, from)) = socket.receive(&mut buffer, awake.is_some()) else { break };
            shared.on_train((&buffer[..len], segment), from, &mut heard);
            came = true;
        }
        let now = Instant::now();
        awake = if heard.is_empty() { awake } else { Some(now) }.filter(|since| now - *since < shared.spin);
        drop(shared);
        if came || awake.is_some() {
            // Who waits for a frame goes first, and its answer before an acknowledgement.
            tokio::task::yield_now().await;
        }
        heard.drain(..).for_each(|neighbor| neighbor.flush());
    }
}
