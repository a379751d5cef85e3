//! Wires between processes that delay what crosses them, or count how often it has to cross.
//!
//! A wire is a TCP forwarder on loopback. All wires of a test are in one of three moods:
//!
//! * open: bytes pass at once;
//! * late: every byte arrives a fixed time after it was sent, in both directions, whatever the rate;
//! * turns: bytes wait until all wires are let go at once. What one message causes leaves in the next turn, so turns
//!   count one-way traversals of a network whose latency is all there is, and no clock is part of the count.
//!
//! A turn begins as soon as a wire has a row's worth of bytes waiting, and the wires are quiet. Small talk (pings, gossip,
//! flow control) that waits without one begins a turn only after [`SMALL_TALK`]: a protocol that has to talk before
//! it may send a row shows as turns in which no row moved.

use std::{
    collections::VecDeque,
    io::{Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// Bytes waiting on one direction of a wire; beyond, its sender waits.
const MAX_WAITING: usize = 8 << 20;
/// A row may arrive in pieces; with none for so long it is whole.
const QUIET: Duration = Duration::from_millis(20);
/// Far longer than a small model computes, shorter than nodes are patient.
const SMALL_TALK: Duration = Duration::from_millis(1_500);
/// How often the clock is looked at.
const GLANCE: Duration = Duration::from_millis(5);

/// How wires treat what crosses them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mood {
    /// At once.
    Open,
    /// So much later.
    Late(Duration),
    /// In turns; so many bytes make a row.
    Turns {
        /// Bytes.
        row: usize,
    },
}

/// What crossed in one turn: from, to, bytes. Only directions on which something did.
pub type Turn = Vec<(&'static str, &'static str, usize)>;

/// The wires of one test. They end with the process.
#[derive(Clone)]
pub struct Wires(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    mood: Mood,
    flows: Vec<Flow>,
    turns: Vec<Turn>,
    last_bytes: Instant,
    last_turn: Instant,
}

/// One direction of one connection.
struct Flow {
    from: &'static str,
    to: &'static str,
    waiting: VecDeque<(Instant, Vec<u8>)>,
    /// Pieces at the front that may go, in turns.
    released: usize,
    ended: bool,
}

impl Flow {
    fn waiting_bytes(&self) -> usize {
        self.waiting.iter().map(|(_, bytes)| bytes.len()).sum()
    }
}

impl Default for Wires {
    fn default() -> Self {
        Self::new()
    }
}

impl Wires {
    /// No wires yet; those to come are open.
    pub fn new() -> Self {
        let now = Instant::now();
        let state =
            State { mood: Mood::Open, flows: Vec::new(), turns: Vec::new(), last_bytes: now, last_turn: now };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let master = shared.clone();
        thread::spawn(move || master.take_turns());
        Self(shared)
    }

    /// Lays a wire on which `from` reaches what listens at `target`, which belongs to `to`; the address to dial.
    pub fn lay(&self, from: &'static str, to: &'static str, target: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a free port");
        let address = listener.local_addr().expect("it is bound");
        let shared = self.0.clone();
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect(target) else { continue };
                for socket in [&near, &far] {
                    socket.set_nodelay(true).expect("a TCP socket");
                }
                shared.carry(from, to, &near, &far);
                shared.carry(to, from, &far, &near);
            }
        });
        address
    }

    /// Changes how everything not yet delivered is treated.
    pub fn set(&self, mood: Mood) {
        self.0.lock().mood = mood;
        self.0.changed.notify_all();
    }

    /// The turns so far, in order.
    pub fn turns(&self) -> Vec<Turn> {
        self.0.lock().turns.clone()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn glance<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, GLANCE).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Starts both ends of one direction.
    fn carry(self: &Arc<Self>, from: &'static str, to: &'static str, near: &TcpStream, far: &TcpStream) {
        let mut state = self.lock();
        let flow = state.flows.len();
        state.flows.push(Flow { from, to, waiting: VecDeque::new(), released: 0, ended: false });
        drop(state);
        let (near, far) = (near.try_clone().expect("a socket"), far.try_clone().expect("a socket"));
        let (reads, writes) = (self.clone(), self.clone());
        thread::spawn(move || reads.read(flow, near));
        thread::spawn(move || writes.write(flow, far));
    }

    fn read(&self, flow: usize, mut near: TcpStream) {
        let mut bytes = vec![0; 64 << 10];
        loop {
            let read = near.read(&mut bytes).unwrap_or(0);
            let mut state = self.lock();
            while state.flows[flow].waiting_bytes() > MAX_WAITING {
                state = self.glance(state);
            }
            if read == 0 {
                state.flows[flow].ended = true;
                drop(state);
                self.changed.notify_all();
                return;
            }
            let now = Instant::now();
            state.last_bytes = now;
            state.flows[flow].waiting.push_back((now, bytes[..read].to_vec()));
            drop(state);
            self.changed.notify_all();
        }
    }

    fn write(&self, flow: usize, mut far: TcpStream) {
        let mut state = self.lock();
        loop {
            let mood = state.mood;
            let mine = &mut state.flows[flow];
            let due = match (mood, mine.waiting.front()) {
                (_, None) if mine.ended => break,
                (_, None) => false,
                (Mood::Open, Some(_)) => true,
                (Mood::Late(by), Some((came, _))) => came.elapsed() >= by,
                (Mood::Turns { .. }, Some(_)) => mine.released > 0,
            };
            if !due {
                state = match (mood, state.flows[flow].waiting.front()) {
                    // To the millisecond, not to the glance.
                    (Mood::Late(by), Some((came, _))) => {
                        let left = by.saturating_sub(came.elapsed());
                        self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                    }
                    _ => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                };
                continue;
            }
            mine.released = mine.released.saturating_sub(1);
            let (_, bytes) = mine.waiting.pop_front().expect("it is due");
            drop(state);
            if far.write_all(&bytes).is_err() {
                return;
            }
            state = self.lock();
        }
        // The other side hears the end as it would without the wire.
        let _ = far.shutdown(Shutdown::Write);
    }

    /// Lets all wires go at once, again and again.
    fn take_turns(&self) {
        let mut state = self.lock();
        loop {
            state = self.glance(state);
            let Mood::Turns { row } = state.mood else {
                state.last_turn = Instant::now();
                continue;
            };
            let held = |flow: &Flow| flow.waiting.iter().skip(flow.released).map(|(_, b)| b.len()).sum();
            let waiting: Vec<usize> = state.flows.iter().map(held).collect();
            let row_waits = waiting.iter().any(|bytes| *bytes >= row);
            let talk_waits = waiting.iter().any(|bytes| *bytes > 0) && state.last_turn.elapsed() > SMALL_TALK;
            if !(row_waits || talk_waits) || state.last_bytes.elapsed() < QUIET {
                continue;
            }
            let mut turn = Turn::new();
            for (flow, bytes) in state.flows.iter_mut().zip(waiting).filter(|(_, bytes)| *bytes > 0) {
                flow.released = flow.waiting.len();
                turn.push((flow.from, flow.to, bytes));
            }
            state.turns.push(turn);
            state.last_turn = Instant::now();
            self.changed.notify_all();
        }
    }
}
