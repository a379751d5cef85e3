//! One end of a session between two neighbors: sealed messages, each delivered once or given back. Time is an argument; sockets and tasks are
//! elsewhere.
//!
//! A message's bytes before the seal: the lane it belongs to (8 bytes), its number there (4 bytes), and a frame. Lane 0 is the
//! session's own: a frame there is an echo, asked for (first byte 0) or answered (first byte 1), or says that
//! its sender takes datagrams for a lane (first byte 2).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use scheduler::NodeId;

use super::Time;
use super::header::{HEADER_LEN, Header, Kind, MAX_MESSAGE, PING_LEN};
use super::keyring::Keyring;
use super::receive::{Outcome, Receiver, Whole};
use super::seal::{Cipher, Direction, Keys, SEAL_LEN, Secret};
use super::send::{Outgoing, Place, Sender, Sent, Stamp};
use crate::governor::{Governor, Permit};

/// Messages that were delivered and have not been read yet; at the bound a peer sends over the stream.
pub(crate) const PLACES: usize = 32;
/// The lane of echoes.
pub(crate) const ECHO: u64 = 0;
/// What stands before a frame in a message.
pub(crate) const PLACE_LEN: usize = 12;
/// The longest frame that datagrams carry; longer ones take the stream, which is as fast for them.
pub(crate) const MAX_FRAME: usize = 1 << 20;
/// The longest message that is sent, and that is taken: the longest frame, sealed.
pub(crate) const MAX_SENT: usize = PLACE_LEN + MAX_FRAME + SEAL_LEN;
const _: () = assert!(MAX_SENT <= MAX_MESSAGE);
/// Control datagrams waiting to be sent; what is beyond is asked for again.
const MAX_CONTROL: usize = 128;
/// So many messages are acknowledged together, in one system call and one packet train.
const ACKS: usize = 2;
/// How long fewer may wait: an answer that comes sooner goes first. Far below a first retransmission time; a sender's next ones
/// follow the round trips that it sees, which this is part of.
const ACK_DELAY: Duration = Duration::from_micros(500);
/// How long after a message the next one is announced. Measured between two namespaces: a round trip of ends that do not sleep takes 35 to
/// 40 us, and with announcements 5 more; of ends that do it takes 75 us, and where 80 were waited for 100.
const PAUSE: Duration = Duration::from_micros(50);

/// What both ends have agreed on.
#[derive(Debug)]
pub(crate) struct Terms {
    /// Who is at the other end.
    pub(crate) peer: NodeId,
    /// What this end calls the session: datagrams that come name it so.
    pub(crate) here: u64,
    /// What the other end calls it.
    pub(crate) there: u64,
    /// Which way this end sends.
    pub(crate) direction: Direction,
    /// What seals its messages.
    pub(crate) cipher: Cipher,
    pub(crate) chunk_bytes: usize,
}

/// A frame that has come, with what counts it until it is read.
#[derive(Debug)]
pub(crate) struct Delivered {
    pub(crate) place: Place,
    /// The frame stands behind the first [`PLACE_LEN`] bytes.
    pub(crate) message: Vec<u8>,
    _permit: Permit,
    _seat: Seat,
}

impl Delivered {
    pub(crate) fn frame(&self) -> &[u8] {
        &self.message[PLACE_LEN..]
    }
}

/// A place for a delivered message.
#[derive(Debug)]
struct Seat(Arc<AtomicUsize>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a session tells its owner.
#[derive(Debug)]
pub(crate) enum News {
    /// A frame has come.
    Delivered(Delivered),
    /// A frame has arrived at the other end.
    Arrived(Place),
    /// A frame could not be carried: it goes over the stream.
    Returned(Place, Vec<u8>),
    /// A ping of so many bytes is answered.
    Pong(usize),
    /// The other end asks which of so many chunks of a message lack, and they are put together outside.
    Asked { message: u32, chunks: u16 },
}

/// What something outside needs to carry the data of a session: nothing that opens a message.
#[derive(Debug)]
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "only the kernel module is a carrier"))]
pub(crate) struct Served {
    /// What this end and the other one call it.
    pub(crate) names: [u64; 2],
    /// The oldest epoch of what comes that is still taken, and its header key.
    pub(crate) inward: (u32, [u8; 16]),
    /// Those of what leaves and may still be sent again.
    pub(crate) outward: (u32, [u8; 16]),
    pub(crate) chunk_bytes: usize,
    /// The newest message that was delivered.
    pub(crate) newest: u32,
}

/// Chunks of a message to be sent now: a set bit each.
#[derive(Debug)]
pub(crate) struct Chunks<'a> {
    pub(crate) message: u32,
    pub(crate) epoch: u32,
    pub(crate) sealed: &'a [u8],
    pub(crate) bits: Vec<u8>,
}

/// What a session counts.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Counts {
    pub(crate) sent: Sent,
    /// Frames of streams that were sent, and those of them that were given back.
    pub(crate) frames: u64,
    pub(crate) frames_returned: u64,
    pub(crate) delivered: u64,
    /// Datagrams that named the session and were not its peer's.
    pub(crate) forged: u64,
    /// Messages whose seal was broken.
    pub(crate) broken: u64,
    /// How often keys were exchanged and used.
    pub(crate) renewed: u32,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Session {
    terms: Terms,
    keys: Keyring,
    sender: Sender,
    receiver: Receiver,
    taken: Arc<AtomicUsize>,
    /// Data is put together, and sent, outside.
    outside: bool,
    control: VecDeque<(Header, Vec<u8>)>,
    /// Messages to be acknowledged, and when.
    acks: Vec<u32>,
    acks_due: Option<Time>,
    /// When the last message was taken over.
    sent: Time,
    news: Vec<News>,
    counts: Counts,
}

impl Session {
    /// What both ends begin with: `secret` of the exchange that the session was agreed on in.
    pub(crate) fn new(terms: Terms, secret: &Secret, governor: Governor) -> Self {
        Self {
            keys: Keyring::new(secret, terms.direction, terms.cipher),
            sender: Sender::new(terms.there, terms.chunk_bytes, PLACES as u16),
            receiver: Receiver::new(governor, terms.peer, terms.chunk_bytes, MAX_SENT as u64),
            taken: Arc::default(),
            outside: false,
            control: VecDeque::new(),
            acks: Vec::with_capacity(ACKS),
            acks_due: None,
            sent: Time::ZERO,
            news: Vec::new(),
            counts: Counts::default(),
            terms,
        }
    }

    /// What this end and the other one call the session.
    pub(crate) fn names(&self) -> [u64; 2] {
        [self.terms.here, self.terms.there]
    }

    /// What someone outside needs who carries its data.
    pub(crate) fn served(&self) -> Served {
        let of = |keys: &Keys| (keys.epoch, keys.header.bytes());
        Served {
            names: self.names(),
            inward: of(self.keys.oldest_inward()),
            outward: of(self.keys.oldest_outward()),
            chunk_bytes: self.terms.chunk_bytes,
            newest: self.receiver.newest(),
        }
    }

    /// Whether the data is carried outside from now on.
    pub(crate) fn serve_outside(&mut self, outside: bool) {
        self.outside = outside;
    }

    /// The newest epochs of what comes and of what leaves, and their header keys.
    pub(crate) fn newest_keys(&self) -> [(u32, [u8; 16]); 2] {
        [&self.keys.inward, &self.keys.outward].map(|keys| (keys.epoch, keys.header.bytes()))
    }

    /// Takes in the secret of another exchange, whose keys are the next epoch's: what comes may have them from now on, what leaves has
    /// them from [`Session::advance`] on.
    pub(crate) fn renew(&mut self, secret: &Secret) {
        self.keys.renew(secret);
    }

    /// The other end has the keys of the next epoch: they seal from now on. What is on its way since the epoch before the one that
    /// ends is given back, because its keys go.
    pub(crate) fn advance(&mut self) {
        if self.keys.outward_next.is_none() {
            return;
        }
        for out in self.sender.give_up_other_than(self.keys.outward.epoch) {
            self.give_back(out);
        }
        self.keys.advance(self.sender.next_message());
    }

    /// Whether the ends are to exchange other keys; said once for the same keys.
    pub(crate) fn wants_keys(&mut self) -> bool {
        self.keys.are_worn(self.sender.next_message())
    }

    /// What has happened since the last call.
    pub(crate) fn take_news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.news)
    }

    pub(crate) fn counts(&self) -> Counts {
        Counts { sent: self.sender.count, renewed: self.keys.outward.epoch, ..self.counts }
    }

    /// Whether anything is on its way.
    pub(crate) fn is_busy(&self) -> bool {
        self.sender.is_busy()
    }

    /// Whether a message of so many sealed bytes can be sent now.
    fn takes(&self, len: usize) -> bool {
        len <= MAX_SENT && !self.keys.are_spent(self.sender.next_message()) && self.sender.has_room(len)
    }

    /// Sends a frame if there is room for it now; false when there is none.
    pub(crate) fn send(&mut self, now: Time, place: Place, frame: [&[u8]; 2]) -> bool {
        let len = PLACE_LEN + frame[0].len() + frame[1].len() + SEAL_LEN;
        let message = self.sender.next_message();
        if !self.takes(len) {
            if !self.sender.is_busy() {
                self.sender.ask_for_credit(now, self.keys.outward.epoch);
            }
            return false;
        }
        let mut sealed = Vec::with_capacity(len);
        sealed.extend_from_slice(&place.lane.to_le_bytes());
        sealed.extend_from_slice(&place.number.to_le_bytes());
        frame.iter().for_each(|part| sealed.extend_from_slice(part));
        self.keys.outward.seal(self.terms.there, message, &mut sealed);
        let stamp = Stamp { epoch: self.keys.outward.epoch, key: self.keys.outward.header.clone() };
        self.sender.push(now, place, sealed, stamp);
        self.sent = now;
        self.counts.frames += u64::from(place.lane != ECHO);
        true
    }

    /// Writes into `train` the datagrams that go before a frame of `frame_bytes` that [`Session::send`] is given next, and returns the
    /// length of one: what has come is acknowledged, or once more. A neighbor that hears of nothing has let its processor sleep, and
    /// while the frame is sealed and cut into chunks it wakes. `None` where that saves nothing, and where the frame is not taken.
    pub(crate) fn announce(&mut self, now: Time, frame_bytes: usize, train: &mut Vec<u8>) -> Option<usize> {
        let len = PLACE_LEN + frame_bytes + SEAL_LEN;
        let waits = self.sender.is_busy() || now.saturating_sub(self.sent) < PAUSE;
        if len <= self.terms.chunk_bytes || waits || !self.takes(len) {
            return None;
        }
        if self.acks.is_empty() {
            self.acks.push(self.receiver.newest());
        }
        self.acks_due = None;
        train.clear();
        Some(self.write_acks(train))
    }

    /// Asks whether the way is open to datagrams with so many bytes behind the header, at most a chunk's, there and back.
    pub(crate) fn ping(&mut self, bytes: usize) {
        let bytes = bytes.clamp(PING_LEN, self.terms.chunk_bytes);
        self.say(Kind::Ping, 0, 0, vec![0; bytes]);
    }

    /// The length of a chunk.
    pub(crate) fn chunk_bytes(&self) -> usize {
        self.terms.chunk_bytes
    }

    /// Gives everything back that is on its way.
    pub(crate) fn give_up(&mut self) {
        for out in self.sender.give_up() {
            self.give_back(out);
        }
    }

    fn give_back(&mut self, out: Outgoing) {
        let Outgoing { message, stamp: Stamp { epoch, .. }, place, mut sealed, .. } = out;
        self.counts.frames_returned += u64::from(place.lane != ECHO);
        // This end sealed it.
        let keys = self.keys.outward_of(epoch);
        if keys.is_some_and(|keys| keys.open(self.terms.there, message, &mut sealed)) {
            sealed.drain(..PLACE_LEN);
            self.news.push(News::Returned(place, sealed));
        }
    }

    fn say(&mut self, kind: Kind, message: u32, chunks: u16, payload: Vec<u8>) {
        if self.control.len() < MAX_CONTROL {
            let (session, len, epoch) = (self.terms.there, payload.len() as u16, self.keys.outward.epoch);
            let header = Header { kind, chunk: 0, session, message, total_bytes: 0, chunks, len, epoch };
            self.control.push_back((header, payload));
        }
    }

    /// Takes in a datagram that names this session and came from its peer's address. False when it is not the peer's.
    pub(crate) fn on_datagram(&mut self, now: Time, datagram: &[u8]) -> bool {
        let Some(header) =
            Header::read(datagram, self.terms.chunk_bytes).filter(|h| h.session == self.terms.here)
        else {
            self.counts.forged += 1;
            return false;
        };
        if !self.proves(&header, datagram) {
            self.counts.forged += 1;
            return false;
        }
        let payload = &datagram[HEADER_LEN..];
        match header.kind {
            // What came in a train with control: it is stored outside already.
            Kind::Data if self.outside => {}
            Kind::Data => self.on_chunk(now, &header, payload),
            Kind::Ack => {
                let credit = u16::from_le_bytes([payload[0], payload[1]]);
                if let Some(place) = self.sender.on_ack(now, header.message, credit) {
                    self.news.push(News::Arrived(place));
                }
            }
            Kind::Nack => self.sender.on_nack(now, header.message, payload),
            Kind::Ping => self.say(Kind::Pong, 0, 0, payload.to_vec()),
            Kind::Pong => self.news.push(News::Pong(payload.len())),
            Kind::Probe if self.receiver.is_over(header.message) || header.total_bytes == 0 => {
                self.acknowledge(header.message, now);
            }
            Kind::Probe if self.outside => {
                self.news.push(News::Asked { message: header.message, chunks: header.chunks });
            }
            Kind::Probe => self.say_lacking(header.message, header.chunks, None),
        }
        true
    }

    /// Whether the datagram is tagged with the keys of an epoch that is taken: nothing is derived for one that is not.
    fn proves(&self, header: &Header, datagram: &[u8]) -> bool {
        self.keys.inward_of(header.epoch).is_some_and(|keys| header.proves(datagram, &keys.header))
    }

    /// Acknowledges a message at `due`, or sooner together with others.
    fn acknowledge(&mut self, message: u32, due: Time) {
        if !self.acks.contains(&message) && self.acks.len() < MAX_CONTROL {
            self.acks.push(message);
        }
        let due = if self.acks.len() < ACKS { due } else { Time::ZERO };
        self.acks_due = Some(self.acks_due.map_or(due, |before| before.min(due)));
    }

    /// Tells the other end which of the chunks of a message lack: what `bits` say, or this end knows.
    pub(crate) fn say_lacking(&mut self, message: u32, chunks: u16, bits: Option<&[u8]>) {
        let most = (self.terms.chunk_bytes - 4) * 8;
        let payload = match bits {
            Some(bits) if usize::from(chunks) <= most => [&[0, 0][..], &chunks.to_le_bytes(), bits].concat(),
            _ => self.receiver.lacking(message, chunks),
        };
        self.say(Kind::Nack, message, chunks, payload);
    }

    /// Takes in a message that was put together outside: its datagrams named this session, came from its peer's address and had the
    /// tags of `epoch`.
    pub(crate) fn on_message(&mut self, now: Time, (message, epoch): (u32, u32), sealed: &[u8]) {
        match self.receiver.take_whole(message, sealed) {
            Outcome::Whole(whole) => self.on_whole(now, (message, epoch), whole),
            Outcome::Over => self.acknowledge(message, now),
            Outcome::Stored | Outcome::Duplicate | Outcome::Refused => {}
        }
    }

    fn on_chunk(&mut self, now: Time, header: &Header, chunk: &[u8]) {
        match self.receiver.take(now, header, chunk) {
            Outcome::Whole(whole) => self.on_whole(now, (header.message, header.epoch), whole),
            Outcome::Over => self.acknowledge(header.message, now),
            Outcome::Stored | Outcome::Duplicate | Outcome::Refused => {}
        }
    }

    fn on_whole(
        &mut self,
        now: Time,
        (number, epoch): (u32, u32),
        Whole { sealed: mut message, permit }: Whole,
    ) {
        let keys = self.keys.inward_of(epoch);
        let opened = keys.is_some_and(|keys| keys.open(self.terms.here, number, &mut message));
        let place = message.split_first_chunk::<8>().zip(message.get(8..PLACE_LEN));
        let Some(((lane, _), at)) = place.filter(|_| opened) else {
            // Its sender is told nothing, and sends it over the stream in the end.
            self.counts.broken += 1;
            return;
        };
        let at = u32::from_le_bytes(std::array::from_fn(|i| at[i]));
        let place = Place { lane: u64::from_le_bytes(*lane), number: at };
        if self.taken.load(Ordering::Relaxed) >= PLACES {
            return;
        }
        self.taken.fetch_add(1, Ordering::Relaxed);
        let seat = Seat(self.taken.clone());
        self.receiver.close(number);
        self.counts.delivered += 1;
        self.acknowledge(number, now + ACK_DELAY);
        self.news.push(News::Delivered(Delivered { place, message, _permit: permit, _seat: seat }));
    }

    /// When [`Session::on_time`] has something to do.
    pub(crate) fn due(&self) -> Option<Time> {
        [self.sender.due(), self.receiver.due(), self.acks_due].into_iter().flatten().min()
    }

    /// Does what is due.
    pub(crate) fn on_time(&mut self, now: Time) {
        self.receiver.forget_stale(now);
        for out in self.sender.on_time(now) {
            self.give_back(out);
        }
    }

    /// The next chunks to be sent, where that is done outside.
    pub(crate) fn next_chunks(&mut self, now: Time) -> Option<Chunks<'_>> {
        if !self.outside {
            return None;
        }
        let (out, bits) = self.sender.next_chunks(now)?;
        Some(Chunks { message: out.message, epoch: out.stamp.epoch, sealed: &out.sealed, bits })
    }

    /// Writes the next chunks to be sent into `train`, datagrams of one length of which the last may be shorter, and returns that
    /// length; `None` when there are none.
    pub(crate) fn transmit_data(&mut self, now: Time, train: &mut Vec<u8>) -> Option<usize> {
        if self.outside { None } else { self.sender.train(now, train) }
    }

    /// As [`Session::transmit_data`], and when there are no chunks what else is to be said.
    pub(crate) fn transmit(&mut self, now: Time, train: &mut Vec<u8>) -> Option<usize> {
        if let Some(len) = self.transmit_data(now, train) {
            return Some(len);
        }
        for probe in self.sender.take_probes() {
            if self.control.len() < MAX_CONTROL {
                self.control.push_back((Header { epoch: self.keys.outward.epoch, ..probe }, Vec::new()));
            }
        }
        train.clear();
        let key = &self.keys.outward.header;
        if let Some((header, payload)) = self.control.pop_front() {
            // Keys may have changed since.
            let header = Header { epoch: self.keys.outward.epoch, ..header };
            header.write(&payload, key, train);
            return Some(train.len());
        }
        self.acks_due.take_if(|due| *due <= now)?;
        Some(self.write_acks(train))
    }

    /// Adds the acknowledgements that wait to `train`, and returns the length of one.
    fn write_acks(&mut self, train: &mut Vec<u8>) -> usize {
        let key = &self.keys.outward.header;
        let free = PLACES.saturating_sub(self.taken.load(Ordering::Relaxed)) as u16;
        let (session, epoch, payload) = (self.terms.there, self.keys.outward.epoch, free.to_le_bytes());
        let len = payload.len() as u16;
        for message in self.acks.drain(..) {
            let kind = Kind::Ack;
            let header = Header { kind, chunk: 0, session, message, total_bytes: 0, chunks: 0, len, epoch };
            header.write(&payload, key, train);
        }
        HEADER_LEN + payload.len()
    }
}
