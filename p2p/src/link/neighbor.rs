//! A neighbor with whom a session of datagrams was agreed on, and the lanes of its streams.
//!
//! A frame is handed over under its place, and its lane hears what became of it: it has arrived, or it could not be carried and
//! goes over the stream. What comes is given to the lane it names; what names none is dropped, because its stream is over.
//!
//! Limits: of frames on their way and of frames unread the session's; a lane's channels hold no more than these.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use libp2p::swarm::ConnectionId;
use scheduler::NodeId;
use scheduler::governor::Resource;
use tokio::sync::{Notify, oneshot};

use super::attached::{Attached, Carrier};
use super::choice::Figures;
use super::datagram::send::{Place, Sent};
use super::datagram::session::{Counts, Delivered, ECHO, MAX_FRAME, News, Session};
use super::datagram::socket::Socket;
use super::datagram::{Time, seal::Secret};
use super::info::LinkInfo;
use super::lane::{Doors, Registered};
use super::timer::Timer;
use crate::governor::{Governor, Permit};
use crate::link_kind::LinkKind;

/// Failures in [`FORGIVEN`] after which the stream is used.
const MAX_STRIKES: u32 = 3;
/// How long a failure counts.
const FORGIVEN: Duration = Duration::from_secs(30);
/// Echoes under way.
const MAX_ECHOES: usize = 8;

/// What a frame of lane 0 is.
const ASK: u8 = 0;
const ANSWER: u8 = 1;
/// The other end takes datagrams for the lane whose name follows.
const READY: u8 = 2;

/// What became of a frame that was handed over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Offer {
    /// It is on its way.
    Carried,
    /// There will be room soon.
    Wait,
    /// It takes the stream.
    Decline,
}

/// A way to carry frames to a neighbor beside its stream. A stage does not know which one it has.
pub(crate) trait Link: Send + Sync {
    /// Which.
    fn kind(&self) -> LinkKind;
    /// Hands a frame over, if it can be carried now.
    fn offer(&self, place: Place, frame: [&[u8]; 2]) -> Offer;
}

#[derive(Debug)]
struct State {
    session: Session,
    /// A carrier's part in it, where it has one.
    attached: Option<Attached>,
    lanes: HashMap<u64, Registered>,
    echoes: HashMap<u32, oneshot::Sender<usize>>,
    next_echo: u32,
    /// Who waits for a pong, and of how many bytes at least; the longest that came.
    pong: Option<(usize, oneshot::Sender<()>)>,
    longest_pong: usize,
    train: Vec<u8>,
    strikes: u32,
    struck: Instant,
    /// What had been sent when it was judged last whether there is room for it.
    judged: Sent,
}

/// Frames to a neighbor, of all lanes.
#[derive(Debug, Default)]
struct Frames {
    sent: AtomicU64,
    /// Those of them that took the stream at once.
    streamed: AtomicU64,
    /// After so many the other link is used; 0 for never.
    turn: u64,
}

/// Which link is used: the stream at first.
#[derive(Debug, Default)]
struct Used {
    /// The stream or datagrams, as a [`LinkKind`].
    kind: AtomicU8,
    /// What carries the datagrams in place of the socket, as a [`LinkKind`]; 0 while nothing does.
    outside: AtomicU8,
    /// The session is over.
    closed: AtomicBool,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Neighbor {
    pub(crate) peer: NodeId,
    pub(crate) address: SocketAddr,
    /// The connection that the session was agreed on: streams of another one may lead to another process of the peer.
    pub(crate) connection: ConnectionId,
    /// This end dialed it.
    pub(crate) dialed: bool,
    socket: Arc<Socket>,
    governor: Governor,
    used: Used,
    state: Mutex<State>,
    figures: Mutex<[Option<Figures>; 3]>,
    frames: Frames,
    /// There may be room.
    pub(crate) room: Notify,
    /// The fast path was left, or the session has ended.
    pub(crate) left: Notify,
    /// Other keys are wanted.
    pub(crate) worn: Notify,
    timer: Arc<Timer>,
    _seat: Permit,
}

impl Link for Neighbor {
    fn kind(&self) -> LinkKind {
        match self.used.kind.load(Ordering::Relaxed) {
            kind if kind == LinkKind::Stream as u8 => LinkKind::Stream,
            _ => LinkKind::numbered(self.used.outside.load(Ordering::Relaxed)),
        }
    }

    fn offer(&self, place: Place, frame: [&[u8]; 2]) -> Offer {
        let mut state = self.state();
        // With the state at hand: once a session that ends has given everything back, nothing is added.
        let long = frame[0].len() + frame[1].len() > MAX_FRAME;
        if long || self.is_closed() || self.kind() == LinkKind::Stream {
            return Offer::Decline;
        }
        let Some(lane) = state.lanes.get(&place.lane).map(|registered| registered.lane.clone()) else {
            return Offer::Decline;
        };
        if !lane.ready.load(Ordering::Relaxed) {
            return Offer::Decline;
        }
        lane.outstanding.fetch_add(1, Ordering::AcqRel);
        let taken = self.send(&mut state, place, frame);
        let waits = state.session.is_busy();
        let worn = state.session.wants_keys();
        self.pump(&mut state);
        drop(state);
        if worn {
            self.worn.notify_one();
        }
        if taken {
            return Offer::Carried;
        }
        lane.settle();
        if waits { Offer::Wait } else { Offer::Decline }
    }
}

impl Neighbor {
    pub(crate) fn new(
        session: Session,
        peer: NodeId,
        (address, connection): (SocketAddr, ConnectionId),
        socket: Arc<Socket>,
        governor: Governor,
        (timer, seat, (turn, dialed)): (Arc<Timer>, Permit, (u64, bool)),
    ) -> Self {
        let state = State {
            session,
            attached: None,
            lanes: HashMap::new(),
            echoes: HashMap::new(),
            next_echo: 0,
            pong: None,
            longest_pong: 0,
            train: Vec::with_capacity(64 << 10),
            strikes: 0,
            struck: Instant::now(),
            judged: Sent::default(),
        };
        Self {
            peer,
            address,
            connection,
            dialed,
            socket,
            governor,
            used: Used::default(),
            state: Mutex::new(state),
            figures: Mutex::default(),
            frames: Frames { turn, ..Frames::default() },
            room: Notify::new(),
            left: Notify::new(),
            worn: Notify::new(),
            timer,
            _seat: seat,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A session is consistent between any two statements that can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Time {
        self.timer.now()
    }

    /// A frame is about to be handed over. In tests it may be the one with which the other link begins.
    pub(crate) fn on_frame(&self) {
        let before = self.frames.sent.fetch_add(1, Ordering::Relaxed) + 1;
        if self.frames.turn > 0 && before.is_multiple_of(self.frames.turn) {
            self.use_link(match self.kind() {
                LinkKind::Stream => LinkKind::Datagram,
                _ => LinkKind::Stream,
            });
        }
    }

    /// A frame takes the stream at once.
    pub(crate) fn on_streamed(&self) {
        self.frames.streamed.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts what this neighbor makes the node hold.
    pub(crate) fn governor(&self) -> &Governor {
        &self.governor
    }

    /// Whether the session is over.
    pub(crate) fn is_closed(&self) -> bool {
        self.used.closed.load(Ordering::Relaxed)
    }

    /// Ends the session: what is on its way goes over the streams.
    pub(crate) fn close(&self) {
        self.used.closed.store(true, Ordering::Relaxed);
        self.use_link(LinkKind::Stream);
        self.detach();
        self.left.notify_one();
    }

    /// Uses this link from now on. What is on its way arrives as it was sent, or goes over the stream.
    pub(crate) fn use_link(&self, kind: LinkKind) {
        let mut state = self.state();
        let datagrams = kind != LinkKind::Stream && !self.is_closed();
        let kind = if datagrams { LinkKind::Datagram } else { LinkKind::Stream };
        let before = self.used.kind.swap(kind as u8, Ordering::Relaxed);
        if before != kind as u8 {
            tracing::info!(node = %self.peer, link = %self.kind(), "another link");
        }
        match kind {
            LinkKind::Stream => state.session.give_up(),
            _ => {
                // Said again: it may have been lost, and a lane that nothing is known of keeps to its stream.
                let accepted: Vec<u64> =
                    state.lanes.iter().filter(|(_, lane)| lane.accepted).map(|(name, _)| *name).collect();
                for name in accepted {
                    let place = Place { lane: ECHO, number: 0 };
                    self.send(&mut state, place, [&[READY], &name.to_le_bytes()]);
                }
            }
        }
        self.pump(&mut state);
        drop(state);
        self.room.notify_waiters();
    }

    /// What was measured over the stream, datagrams and a carrier.
    pub(crate) fn measured(&self, figures: [Option<Figures>; 3]) {
        *self.figures.lock().unwrap_or_else(PoisonError::into_inner) = figures;
    }

    /// Has a carrier carry the datagrams from now on. False where it does not take the session.
    pub(crate) fn attach(&self, carrier: &Arc<dyn Carrier>) -> bool {
        let mut state = self.state();
        if state.attached.is_none() && !self.is_closed() {
            match Attached::new(carrier.clone(), &mut state.session, self.address) {
                Ok(attached) => state.attached = Some(attached),
                Err(error) => {
                    tracing::info!(node = %self.peer, link = %carrier.kind(), %error, "a session is not taken");
                }
            }
        }
        let kind = state.attached.as_ref().map_or(LinkKind::Stream, Attached::kind);
        self.used.outside.store(kind as u8, Ordering::Relaxed);
        state.attached.is_some()
    }

    /// The socket carries the datagrams from now on, also those that the carrier had.
    pub(crate) fn detach(&self) {
        let mut state = self.state();
        state.session.serve_outside(false);
        state.attached = None;
        self.used.outside.store(0, Ordering::Relaxed);
        self.pump(&mut state);
    }

    /// Takes in the secret of another exchange; see [`Session::renew`].
    pub(crate) fn renew(&self, secret: &Secret) {
        let mut state = self.state();
        state.session.renew(secret);
        self.give_keys(state);
    }

    /// The other end has the newest keys; see [`Session::advance`].
    pub(crate) fn advance(&self) {
        let mut state = self.state();
        state.session.advance();
        self.hand_on(&mut state);
        self.give_keys(state);
    }

    /// A carrier that takes no keys serves no longer.
    fn give_keys(&self, mut state: MutexGuard<'_, State>) {
        let State { session, attached, .. } = &mut *state;
        let kept = attached.as_mut().map_or(Ok(()), |attached| attached.keep_keys(session));
        drop(state);
        if let Err(error) = kept {
            tracing::debug!(%error, "the carrier has no key");
            self.detach();
        }
    }

    /// Takes in a message that the carrier put together. As [`Neighbor::on_train`], nothing is said yet.
    pub(crate) fn on_message(&self, message: (u32, u32), sealed: &[u8]) {
        let mut state = self.state();
        state.session.on_message(self.now(), message, sealed);
        self.hand_on(&mut state);
    }

    /// See [`LinkInfo`].
    pub(crate) fn info(&self) -> LinkInfo {
        let [stream, datagram, kmod] = *self.figures.lock().unwrap_or_else(PoisonError::into_inner);
        let state = self.state();
        let chunk_bytes = state.session.chunk_bytes();
        let Counts { sent, frames, frames_returned: returned, renewed, .. } = state.session.counts();
        let (messages, sent_again) = (frames - returned, sent.again);
        let streamed = self.frames.streamed.load(Ordering::Relaxed);
        LinkInfo {
            kind: self.kind(),
            stream,
            datagram,
            kmod,
            messages,
            streamed,
            returned,
            sent_again,
            chunk_bytes,
            renewed,
        }
    }

    /// The low half of what the other end calls the session, and of what this one calls it: a stream belongs to one session.
    pub(crate) fn names(&self) -> [u32; 2] {
        let [here, there] = self.state().session.names();
        [there as u32, here as u32]
    }

    /// Enters a lane; `None` when there is one of this name.
    pub(crate) fn enter(&self, name: u64, accepted: bool) -> Option<Doors> {
        let mut state = self.state();
        if name == ECHO || state.lanes.contains_key(&name) {
            return None;
        }
        let (registered, doors) = Registered::new(accepted);
        state.lanes.insert(name, registered);
        Some(doors)
    }

    /// Tells the other end that datagrams are taken for a lane.
    pub(crate) fn say_ready(&self, lane: u64) {
        self.send_own(0, [&[READY], &lane.to_le_bytes()]);
    }

    /// Forgets a lane.
    pub(crate) fn leave(&self, name: u64) {
        self.state().lanes.remove(&name);
    }

    fn send_own(&self, number: u32, frame: [&[u8]; 2]) -> bool {
        let mut state = self.state();
        let sent = self.send(&mut state, Place { lane: ECHO, number }, frame);
        self.pump(&mut state);
        sent
    }

    /// Sends `payload` over datagrams and waits for it to come back; false when it does not within `limit`.
    pub(crate) async fn echo(&self, payload: &[u8], limit: Duration) -> bool {
        let (sender, answer) = oneshot::channel();
        let number = {
            let mut state = self.state();
            if state.echoes.len() >= MAX_ECHOES {
                state.echoes.clear();
            }
            state.next_echo = state.next_echo.wrapping_add(1);
            let number = state.next_echo;
            state.echoes.insert(number, sender);
            number
        };
        let sent = self.send_own(number, [&[ASK], payload]);
        let back = tokio::time::timeout(limit, answer).await;
        self.state().echoes.remove(&number);
        sent && matches!(back, Ok(Ok(len)) if len == payload.len())
    }

    /// The longest pong since this was asked last: one that comes late says as much of the way.
    pub(crate) fn longest_pong(&self) -> usize {
        std::mem::take(&mut self.state().longest_pong)
    }

    /// Whether a ping of so many bytes is answered within `limit`.
    pub(crate) async fn ping(&self, bytes: usize, limit: Duration) -> bool {
        let (sender, answer) = oneshot::channel();
        {
            let mut state = self.state();
            state.pong = Some((bytes, sender));
            state.session.ping(bytes);
            self.pump(&mut state);
        }
        matches!(tokio::time::timeout(limit, answer).await, Ok(Ok(())))
    }

    /// Takes in the datagrams of a train that came from this neighbor's address. What there is to say to it waits for
    /// [`Neighbor::flush`], so that who waits for a frame has it first.
    pub(crate) fn on_train(&self, train: &[u8], segment: usize) {
        let mut state = self.state();
        let now = self.now();
        for datagram in train.chunks(segment) {
            state.session.on_datagram(now, datagram);
        }
        self.hand_on(&mut state);
    }

    /// Sends what there is to say.
    pub(crate) fn flush(&self) {
        self.pump(&mut self.state());
    }

    /// Does what is due; when the next thing is.
    pub(crate) fn on_time(&self) -> Option<Time> {
        let mut state = self.state();
        let now = self.now();
        if state.session.due().is_some_and(|due| due <= now) {
            state.session.on_time(now);
            self.pump(&mut state);
        }
        state.session.due()
    }

    /// Gives the session a frame, if it has room for one, and announces it before it is sealed.
    fn send(&self, state: &mut State, place: Place, frame: [&[u8]; 2]) -> bool {
        let State { session, train, .. } = state;
        let now = self.now();
        if let Some(segment) = session.announce(now, frame[0].len() + frame[1].len(), train) {
            self.socket.send(self.address, train, segment);
        }
        session.send(now, place, frame)
    }

    /// Hands on what the session has to say, and sends what it has to send.
    fn pump(&self, state: &mut State) {
        self.hand_on(state);
        let State { session, train, .. } = state;
        while let Some(segment) = session.transmit(self.now(), train) {
            self.socket.send(self.address, train, segment);
        }
        self.timer.arm(session.due());
    }

    /// Hands on what the session has to say, and sends the chunks that there is room for by now.
    fn hand_on(&self, state: &mut State) {
        let news = state.session.take_news();
        let moved = news.iter().any(|news| matches!(news, News::Arrived(_) | News::Returned(..)));
        let mut failed = false;
        for news in news {
            match news {
                News::Delivered(delivered) if delivered.place.lane == ECHO => self.on_own(state, &delivered),
                News::Delivered(delivered) => {
                    if let Some(registered) = state.lanes.get(&delivered.place.lane) {
                        // A reader that went away wants nothing.
                        let _ = registered.inbox.send(delivered);
                    }
                }
                News::Arrived(place) => {
                    if let Some(registered) = state.lanes.get(&place.lane) {
                        registered.lane.settle();
                    }
                }
                News::Returned(place, frame) => {
                    failed |= place.lane != ECHO;
                    if let Some(registered) = state.lanes.get(&place.lane)
                        && registered.returns.send((place.number, frame)).is_err()
                    {
                        registered.lane.settle();
                    }
                }
                News::Asked { message, chunks } => match &state.attached {
                    Some(attached) => attached.tell(&mut state.session, message, chunks),
                    None => state.session.say_lacking(message, chunks, None),
                },
                News::Pong(bytes) => {
                    state.longest_pong = state.longest_pong.max(bytes);
                    if let Some((_, waiting)) = state.pong.take_if(|(least, _)| *least <= bytes) {
                        let _ = waiting.send(());
                    }
                }
            }
        }
        let State { session, attached, train, .. } = state;
        if let Some(attached) = attached {
            attached.send(session, self.now());
        }
        while let Some(segment) = session.transmit_data(self.now(), train) {
            self.socket.send(self.address, train, segment);
        }
        if failed && self.kind() != LinkKind::Stream {
            self.strike(state);
        }
        if moved {
            self.room.notify_waiters();
            self.judge(state);
        }
    }

    /// Leaves datagrams to networks that have room for them.
    fn judge(&self, state: &mut State) {
        let sent = state.session.counts().sent;
        let Some(crowds) = sent.crowds_since(&state.judged) else { return };
        state.judged = sent;
        if crowds && self.kind() != LinkKind::Stream {
            self.fall_back("too many datagrams are lost, the stream is used");
        }
    }

    /// Uses the stream from now on, until the links have been measured again.
    fn fall_back(&self, why: &str) {
        tracing::info!(node = %self.peer, "{why}");
        self.used.kind.store(LinkKind::Stream as u8, Ordering::Relaxed);
        self.left.notify_one();
    }

    /// A frame could not be carried. After a few the stream is used.
    fn strike(&self, state: &mut State) {
        if state.struck.elapsed() > FORGIVEN {
            state.strikes = 0;
        }
        (state.strikes, state.struck) = (state.strikes + 1, Instant::now());
        if state.strikes >= MAX_STRIKES {
            state.strikes = 0;
            self.fall_back("datagrams do not arrive, the stream is used");
        }
    }

    /// A frame of lane 0.
    fn on_own(&self, state: &mut State, delivered: &Delivered) {
        let Some((kind, rest)) = delivered.frame().split_first() else { return };
        match *kind {
            ASK => {
                let holder = self.governor.holder(self.peer);
                if self.governor.spend(holder, Resource::Echoes, rest.len() as u64).is_ok() {
                    self.send(state, delivered.place, [&[ANSWER], rest]);
                }
            }
            ANSWER => {
                if let Some(waiting) = state.echoes.remove(&delivered.place.number) {
                    // It may have stopped waiting.
                    let _ = waiting.send(rest.len());
                }
            }
            READY => {
                let name = rest.try_into().map(u64::from_le_bytes);
                if let Some(registered) = name.ok().and_then(|name| state.lanes.get(&name)) {
                    registered.lane.ready.store(true, Ordering::Relaxed);
                }
            }
            _ => {}
        }
    }
}
