//! Which neighbors have sessions of datagrams, how they come by them, and when these are used.
//!
//! The first data stream to a neighbor of the same network dials a session on a substream of its own: both ends send a port, a
//! name for the session and a fresh X25519 key, and derive its keys. The dialer then asks whether datagrams arrive, measures
//! echoes of 4, 16 and 64 KiB over the substream and over datagrams, and says which link both use from now on; again every
//! ten minutes and after failures. The substream stays open: its end is the session's.
//!
//! Limits: [`MAX_SESSIONS`] sessions, of others under the governor; [`MAX_PEERS`] peers remembered; what comes without a session
//! is dropped unlogged.

mod lead;
mod module;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use scheduler::NodeId;
use scheduler::governor::Resource;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use x25519_dalek::{EphemeralSecret, PublicKey};

use super::Stream;
use super::choice::{ECHO_BYTES, LinkKind, LinkMode};
use super::datagram::Time;
use super::datagram::header::{CHUNK_BYTES, MAX_SESSIONS, session_of};
use super::datagram::seal::{Direction, Secret};
use super::datagram::session::{Session, Terms};
use super::datagram::socket::{Socket, is_near};
use super::kmod::Module;
use super::neighbor::{LinkInfo, Neighbor};
use super::timer::{self, Timer};
use crate::config::Config;
use crate::error::{Error, HopError};
use crate::governor::Governor;

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
const RECOVER: Duration = Duration::from_secs(10);
/// The longest train that a system hands over at once.
const TRAIN_BYTES: usize = 65_536;

const MAGIC: [u8; 4] = *b"shl1";
const HELLO_LEN: usize = 50;
/// What the dialer says on the substream.
const SAY_ECHO: u8 = 1;
const SAY_USE: u8 = 2;

/// One end's part of an agreement.
struct Hello {
    /// Whether datagrams are to be used whatever is measured.
    forced: bool,
    /// 0 for yes, 1 when this end is dialing itself, 2 for no.
    status: u8,
    port: u16,
    chunk_bytes: u16,
    session: u64,
    public: [u8; 32],
}

impl Hello {
    fn write(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&[u8::from(self.forced), self.status]);
        bytes.extend_from_slice(&self.port.to_le_bytes());
        bytes.extend_from_slice(&self.chunk_bytes.to_le_bytes());
        bytes.extend_from_slice(&self.session.to_le_bytes());
        bytes.extend_from_slice(&self.public);
        bytes
    }

    fn read(bytes: &[u8; HELLO_LEN]) -> Option<Self> {
        let (magic, rest) = bytes.split_first_chunk::<4>()?;
        let ([forced, status, p0, p1, c0, c1], rest) = rest.split_first_chunk::<6>()?;
        let (session, public) = rest.split_first_chunk::<8>()?;
        let (port, chunk_bytes) = (u16::from_le_bytes([*p0, *p1]), u16::from_le_bytes([*c0, *c1]));
        let sound = *magic == MAGIC && *forced <= 1 && usize::from(chunk_bytes) == CHUNK_BYTES;
        let session = u64::from_le_bytes(*session);
        let (forced, status) = (*forced == 1, *status);
        sound.then_some(Self { forced, status, port, chunk_bytes, session, public: public.try_into().ok()? })
    }
}

#[derive(Debug)]
enum Peer {
    Dialing(watch::Receiver<()>),
    Linked(Arc<Neighbor>),
    Not { until: Instant },
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
            shared.table().places.remove(&(self.name % MAX_SESSIONS as u64));
        }
    }
}

impl Links {
    /// Binds the socket of a node that may use datagrams, and opens the kernel module where it may use that. Called within a runtime.
    ///
    /// # Errors
    /// [`Error::Link`] where what was asked for cannot be had.
    pub(crate) fn start(config: &Config, governor: Governor) -> Result<Self, Error> {
        let (me, mode) = (config.identity.node(), config.link);
        if mode == LinkMode::Stream {
            return Ok(Self(None));
        }
        let socket = match Socket::bind(config.loopback_only, config.link_loss) {
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
            turn: config.link_turn.into(),
            timer: Arc::new(Timer::new(tokio::time::Instant::now())),
            spin: config.link_spin,
            table: Mutex::default(),
            module: Mutex::new(module.clone()),
            tasks: Mutex::default(),
        });
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
                Some(Peer::Not { until }) if Instant::now() < *until => return None,
                _ => {
                    if table.peers.len() >= MAX_PEERS {
                        let now = Instant::now();
                        table.peers.retain(|_, peer| !matches!(peer, Peer::Not { until } if *until < now));
                        if table.peers.len() >= MAX_PEERS {
                            return None;
                        }
                    }
                    let (done, agreed) = watch::channel(());
                    table.peers.insert(node, Peer::Dialing(agreed.clone()));
                    tokio::spawn(shared.clone().dial(node, open, done));
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
                let _ = shared.follow(&neighbor, stream).await;
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

    /// The port of the socket, where there is one.
    pub(crate) fn port(&self) -> Option<u16> {
        Some(self.0.as_ref()?.socket.port())
    }

    /// The neighbor that a stream of numbered frames belongs to.
    pub(crate) fn of(&self, node: NodeId) -> Option<Arc<Neighbor>> {
        self.0.as_ref()?.linked(node)
    }
}

/// What an agreement leads to.
struct Agreed {
    neighbor: Arc<Neighbor>,
    stream: Stream,
    place: Place,
    /// One of both wants datagrams whatever is measured.
    forced: bool,
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

    /// A name for a session, in a free place of the table.
    fn reserve(self: &Arc<Self>) -> Result<Place, HopError> {
        let fresh = getrandom::u64().map_err(|_| HopError::Closed)?;
        let places = MAX_SESSIONS as u64;
        let mut table = self.table();
        let free = (0..places).map(|i| (fresh + i) % places).find(|at| !table.places.contains_key(at));
        let at = free.ok_or_else(|| refused("all sessions of datagrams are in use"))?;
        let name = fresh / places * places + at;
        table.places.insert(at, (name, None));
        Ok(Place { shared: Arc::downgrade(self), name })
    }

    fn hello(&self, place: &Place, public: &PublicKey) -> Hello {
        Hello {
            forced: self.mode.is_forced(),
            status: 0,
            port: self.socket.port(),
            chunk_bytes: CHUNK_BYTES as u16,
            session: place.name,
            public: *public.as_bytes(),
        }
    }

    /// The session that both hellos make.
    fn agree(
        self: &Arc<Self>,
        (stream, ip): (Stream, IpAddr),
        place: Place,
        secret: EphemeralSecret,
        (theirs, direction): (&Hello, Direction),
    ) -> Result<Agreed, HopError> {
        let peer = stream.node();
        let shared = secret.diffie_hellman(&PublicKey::from(theirs.public));
        if !shared.was_contributory() || theirs.port == 0 {
            return Err(HopError::Corrupt);
        }
        let seat = self.governor.take_for(peer, Resource::Links, 1).map_err(|e| refused(&e.to_string()))?;
        let secret = Secret::new(shared.to_bytes());
        let (here, there) = (place.name, theirs.session);
        let terms = Terms { peer, here, there, direction, secret, chunk_bytes: CHUNK_BYTES };
        let session = Session::new(self.timer.now(), terms, self.governor.clone());
        let way = (SocketAddr::new(ip, theirs.port), stream.connection());
        let (socket, governor) = (self.socket.clone(), self.governor.clone());
        let rest = (self.timer.clone(), seat, (self.turn, direction == Direction::FromDialer));
        let neighbor = Arc::new(Neighbor::new(session, peer, way, socket, governor, rest));
        if let (LinkMode::Kmod, Some(module)) = (self.mode, self.module()) {
            neighbor.attach(&module);
        }
        let mut table = self.table();
        table.places.insert(here % MAX_SESSIONS as u64, (here, Some(neighbor.clone())));
        let before = table.peers.insert(peer, Peer::Linked(neighbor.clone()));
        drop(table);
        if let Some(Peer::Linked(before)) = before {
            before.close();
        }
        let forced = theirs.forced || self.mode.is_forced();
        Ok(Agreed { neighbor, stream, place, forced })
    }

    async fn dial<F>(self: Arc<Self>, node: NodeId, open: F, done: watch::Sender<()>)
    where
        F: Future<Output = Result<Stream, HopError>> + Send + 'static,
    {
        let asked = async { self.ask(open.await?).await };
        let agreed = tokio::time::timeout(AGREE, asked).await.unwrap_or(Err(HopError::Timeout));
        let Agreed { neighbor, stream, place, forced } = match agreed {
            Ok(agreed) => agreed,
            Err(error) => {
                if self.mode.is_forced() {
                    tracing::warn!(%node, %error, "no datagrams to this neighbor, its stream is used");
                } else {
                    tracing::debug!(%node, %error, "no session of datagrams");
                }
                // A host too busy to agree in time refuses nothing.
                let after = if matches!(error, HopError::Timeout) { RECOVER } else { AGAIN };
                let mut table = self.table();
                // Meanwhile the neighbor may have dialed.
                if let Some(peer @ Peer::Dialing(_)) = table.peers.get_mut(&node) {
                    *peer = Peer::Not { until: Instant::now() + after };
                }
                return;
            }
        };
        // A stream that waits takes the session.
        let _ = done.send(());
        let shared = Arc::downgrade(&self);
        let module = self.module().as_ref().map(Arc::downgrade).unwrap_or_default();
        drop(self);
        let _ = lead::lead(&neighbor, stream, (forced, module)).await;
        if let Some(shared) = shared.upgrade() {
            shared.end(&neighbor, place);
        }
    }

    async fn ask(self: &Arc<Self>, mut stream: Stream) -> Result<Agreed, HopError> {
        let ip = stream.remote().map(|ip| ip.to_canonical());
        let ip = ip.filter(|ip| is_near(*ip, self.mode.is_forced()));
        let ip = ip.ok_or_else(|| refused("it is in another network"))?;
        let place = self.reserve()?;
        let secret = EphemeralSecret::random();
        stream.send(&self.hello(&place, &PublicKey::from(&secret)).write(), &[]).await?;
        let mut bytes = [0; HELLO_LEN];
        stream.recv_exact(&mut bytes).await?;
        let theirs = Hello::read(&bytes).ok_or(HopError::Corrupt)?;
        if theirs.status != 0 {
            return Err(refused("it takes no datagrams now"));
        }
        self.agree((stream, ip), place, secret, (&theirs, Direction::FromDialer))
    }

    async fn answer(self: &Arc<Self>, mut stream: Stream) -> Result<Agreed, HopError> {
        let mut bytes = [0; HELLO_LEN];
        stream.recv_exact(&mut bytes).await?;
        let theirs = Hello::read(&bytes).ok_or(HopError::Corrupt)?;
        let ip = stream.remote().map(|ip| ip.to_canonical());
        let ip = ip.filter(|ip| is_near(*ip, theirs.forced || self.mode.is_forced()));
        let dialed = match self.table().peers.get(&stream.node()) {
            Some(Peer::Dialing(_)) => true,
            // On its way here when this node's was agreed on.
            Some(Peer::Linked(known)) => {
                known.dialed && known.connection == stream.connection() && !known.is_closed()
            }
            _ => false,
        };
        // Of two that dial each other the one with the lower name goes on.
        let crossed = dialed && self.me < stream.node();
        let place = self.reserve()?;
        let secret = EphemeralSecret::random();
        let status = if crossed { 1 } else { u8::from(ip.is_none()) * 2 };
        let hello = Hello { status, ..self.hello(&place, &PublicKey::from(&secret)) };
        let (Some(ip), false) = (ip, crossed) else {
            stream.send(&hello.write(), &[]).await?;
            stream.finish().await?;
            return Err(refused("it is in another network, or dialed by this node"));
        };
        // The session takes datagrams before the dialer hears that it may send some.
        let mut agreed = self.agree((stream, ip), place, secret, (&theirs, Direction::ToDialer))?;
        agreed.stream.send(&hello.write(), &[]).await?;
        Ok(agreed)
    }

    /// Does what the dialer of a session says, until it ends.
    async fn follow(&self, neighbor: &Neighbor, mut stream: Stream) -> Result<(), HopError> {
        let mut payload = Vec::new();
        loop {
            let mut word = [0; 5];
            tokio::select! {
                read = stream.recv_exact(&mut word) => read?,
                () = neighbor.ended() => return Ok(()),
            }
            let [kind, rest @ ..] = word;
            let number = u32::from_le_bytes(rest);
            match kind {
                SAY_ECHO => {
                    let longest = ECHO_BYTES[ECHO_BYTES.len() - 1];
                    stream.recv_payload(number as usize, longest, &mut payload).await?;
                    let holder = self.governor.holder(neighbor.peer);
                    let spent = self.governor.spend(holder, Resource::Echoes, u64::from(number));
                    spent.map_err(|e| refused(&e.to_string()))?;
                    stream.send(&[], &payload).await?;
                }
                SAY_USE if number == LinkKind::Datagram as u32 => neighbor.use_link(LinkKind::Datagram),
                SAY_USE => neighbor.use_link(LinkKind::Stream),
                _ => return Err(HopError::Corrupt),
            }
        }
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
            let Some(name) = name else { continue };
            let found = self.table().places.get(&(name % MAX_SESSIONS as u64)).cloned();
            if let Some((known, Some(neighbor))) = found
                && known == name
                && neighbor.address == from
            {
                neighbor.on_train(run, segment);
                if !heard.iter().any(|known| Arc::ptr_eq(known, &neighbor)) {
                    heard.push(neighbor);
                }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_is_read_back() {
        let hello =
            Hello { forced: true, status: 2, port: 9, chunk_bytes: 1_408, session: 77, public: [3; 32] };
        let bytes: [u8; HELLO_LEN] = hello.write().try_into().unwrap();
        let read = Hello::read(&bytes).unwrap();
        assert_eq!(
            (read.forced, read.status, read.port, read.session, read.public),
            (true, 2, 9, 77, [3; 32])
        );
        for at in [0, 4, 8] {
            let mut changed = bytes;
            changed[at] ^= 0x40;
            assert!(Hello::read(&changed).is_none());
        }
    }
}
