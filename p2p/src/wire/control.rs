//! The control plane: one node asks another for something and gets one answer.
//!
//! The first byte says what is asked or answered, the rest is fixed by it. An ask has at most [`MAX_ASK`] bytes, an
//! answer [`MAX_ANSWER`]; the transport reads no more than that.

use std::fmt;

use scheduler::capability::{MAX_LAYERS, MAX_RANGES};
use scheduler::{LayerRange, ModelId, NodeId, SessionId, SessionKind};

use super::Malformed;
use super::announce::MAX_ANNOUNCEMENT;
use super::cursor::{Reader, Writer, cut};
pub use super::fields::{MAX_ADDRESS, MAX_ADDRESSES, MAX_POSITIONS};
use super::fields::{
    read_addresses, read_arithmetic, read_range, write_addresses, write_arithmetic, write_range,
};
use super::frame::COMMIT_LEN;
use super::pages::{MAX_WORTH_MS, Permit};
use super::prefix::{Beginning, MAX_BEGINNINGS, Name};
use super::receipt::{Receipt, Work};
use crate::codec::Rounding;

/// Longest ask, bytes. A longer one is refused unread.
pub const MAX_ASK: usize = 16 << 10;
/// Longest answer, bytes: room for the announcements of a newcomer's first minute. A longer one is refused unread.
pub const MAX_ANSWER: usize = 256 << 10;
/// Longest catalog of models in an answer, bytes.
pub const MAX_CATALOG: usize = MAX_ANSWER - 5;
/// Announcements, and renewals behind them, of one answer; who knows more sends the freshest and lets gossip bring the rest.
pub const MAX_CAUGHT_UP: usize = 1_024;
/// Longest explanation of a refusal, bytes; what goes beyond is cut off.
pub const MAX_TEXT: usize = 256;
/// Most sessions or lanes an answer may speak of.
pub const MAX_SAID: u32 = 1 << 20;
/// Ranges of one session that one answer settles; a node with more of them settles the lowest.
pub const MAX_SETTLED: usize = 16;
/// Longest life of a lease without a frame, ms: 10 minutes, what a user thinks before answering.
pub const MAX_LEASE_TTL_MS: u32 = 600_000;

/// Where a node can be reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Contact {
    /// Who it is.
    pub node: NodeId,
    /// Multiaddresses, best first, at most [`MAX_ADDRESSES`] of [`MAX_ADDRESS`] bytes.
    pub addresses: Vec<String>,
}

/// Where a stage may get what it lacks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Source {
    /// Where the holder is.
    pub contact: Contact,
    /// What it asks for.
    pub permit: Permit,
    /// What the outputs of these positions are called, as inputs are by [`Beginning::name`].
    pub outputs: Name,
    /// So long a transfer is worth to the requester, ms, at most [`MAX_WORTH_MS`]: one that takes longer is given up.
    pub worth_ms: u32,
}

/// What a requester wants of a stage.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lease {
    /// Which session.
    pub session: SessionId,
    /// Under which epoch; a lower one than the stage knows is refused.
    pub epoch: u32,
    /// Of which model.
    pub model: ModelId,
    /// Layers to run.
    pub layers: LayerRange,
    /// Room for so many positions, 1 to [`MAX_POSITIONS`].
    pub positions: u32,
    /// What the stage holds of this session below this position may be kept; at most `positions`.
    pub at: u32,
    /// Where the session rounds and how, and so the form of outputs.
    pub rounding: Rounding,
    /// Which earlier positions its rows see, and how keys and values are kept.
    pub kind: SessionKind,
    /// Where outputs go; `None`: to the requester.
    pub next: Option<Contact>,
    /// Whose frames count besides the requester's: the node of the segment before; `None`: no other node's.
    pub previous: Option<NodeId>,
    /// Whether the requester gets a copy of the outputs that go to `next`.
    pub log: bool,
    /// Without a frame for this long the stage forgets the session, ms; 1 to [`MAX_LEASE_TTL_MS`].
    pub ttl_ms: u32,
    /// What it is asked to be.
    pub role: Role,
    /// What it may go on from, and what may become of what it computes.
    pub reuse: Reuse,
}

/// What a lease says of sessions before and after its own.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Reuse {
    /// Beginnings of this session that the stage may have computed for the same requester before, the longest first, at most
    /// [`MAX_BEGINNINGS`]: it may go on from one of them, and then says so in [`Answer::Accepted`].
    pub beginnings: Vec<Beginning>,
    /// Where the stage may get the state of a beginning that it lacks; only with `beginnings`.
    pub source: Option<Box<Source>>,
    /// Whether the stage may keep on disk, encrypted and for a time, what it computed of this session after it ended.
    pub on_disk: bool,
}

impl Reuse {
    /// As much of it as a node may know that does not know all of it: what was added to leases last is left out. `None` when there is nothing left
    /// to leave out.
    pub fn less(&self) -> Option<Self> {
        let all = self.clone();
        match self {
            Self { on_disk: true, .. } => Some(Self { on_disk: false, ..all }),
            Self { source: Some(_), .. } => Some(Self { source: None, ..all }),
            Self { beginnings, .. } if !beginnings.is_empty() => Some(Self::default()),
            _ => None,
        }
    }

    /// The first byte of an ask with it: a node of before knows the lower ones.
    fn kind(&self) -> u8 {
        match self {
            Self { on_disk: true, .. } => 10,
            Self { source: Some(_), .. } => 9,
            Self { beginnings, .. } if !beginnings.is_empty() => 6,
            _ => 0,
        }
    }

    fn write(&self, to: &mut Writer) {
        let kind = self.kind();
        if kind != 0 {
            to.list(&self.beginnings, |to, beginning| beginning.write(to));
        }
        if kind == 10 {
            to.bool(self.source.is_some());
        }
        if let Some(source) = &self.source {
            source.write(to);
        }
    }

    fn read(kind: u8, from: &mut Reader<'_>) -> Result<Self, Malformed> {
        if kind == 0 {
            return Ok(Self::default());
        }
        let on_disk = kind == 10;
        let beginnings = from.list(MAX_BEGINNINGS, 36, Beginning::read)?;
        let sourced = if on_disk { from.bool()? } else { kind == 9 };
        // Without a beginning there is nothing to get, and nothing to say that a lower kind does not.
        let empty = beginnings.is_empty() && (sourced || !on_disk);
        if empty || !beginnings.is_sorted_by(|a, b| a.positions > b.positions) {
            return Err(Malformed("lease: beginnings"));
        }
        let source = if sourced { Some(Box::new(Source::read(from)?)) } else { None };
        Ok(Self { beginnings, source, on_disk })
    }
}

impl scheduler::door::Term for Lease {
    fn layers(&self) -> LayerRange {
        self.layers
    }

    fn epoch(&self) -> u32 {
        self.epoch
    }

    fn previous(&self) -> Option<NodeId> {
        self.previous
    }
}

/// What a node is to a segment of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Runs it and passes its outputs on.
    Stage,
    /// Follows the node that runs it: keeps up with what it is sent, signs for it and passes nothing on.
    Shadow,
    /// Keeps what it is sent and computes nothing: replays it when it is asked to run the segment.
    LazyShadow,
}

impl Role {
    fn from_u8(byte: u8) -> Option<Self> {
        [Self::Stage, Self::Shadow, Self::LazyShadow].into_iter().find(|role| *role as u8 == byte)
    }
}

/// What is asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ask {
    /// To serve as a stage. One that offers beginnings has a first byte of its own: a node of before does not know it and closes the
    /// stream, and is asked again without them; so has one that names a source, and one that permits a disk ([`Reuse::less`]).
    Lease(Box<Lease>),
    /// To forget a session.
    Release {
        /// Which.
        session: SessionId,
        /// What was leased under this epoch or a lower one; a later lease stays.
        epoch: u32,
    },
    /// For announcements.
    CatchUp {
        /// So many nodes are known already.
        have: u32,
    },
    /// Whether it is there. The network answers by itself: who hears nothing is cut off, or talks to a machine that
    /// stands still.
    Ping,
    /// For the last commitments to a session and the bill for it, before it is released.
    Settle {
        /// Which.
        session: SessionId,
        /// Positions below this are confirmed: drafted rows among them are signed for. What follows a stage computes so many
        /// positions first, as far as it gets within a moment.
        upto: u32,
    },
    /// To keep this receipt, signed by both sides.
    Receipt(Box<[u8; Receipt::LEN]>),
    /// To have a node that the asker may not know dial the asker at this address, and to say whether it could: [`Answer::Pong`], or
    /// [`Refusal::Failed`]; any other refusal says nothing about the address. The network answers by itself; a node of before closes
    /// the stream.
    Probe(String),
    /// To dial this node at this one address, for a peer that was asked to have it probed. Answered as [`Ask::Probe`].
    DialBack(Contact),
    /// For this author's catalog of models, where a newer one is here; a node of before closes the stream.
    Catalog {
        /// Whose.
        author: NodeId,
        /// The version that the asker has.
        sequence: u64,
    },
}

/// What a stage says of one range of layers when a session ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settlement {
    /// Which layers.
    pub layers: LayerRange,
    /// Its commitment to everything it computed; see [`super::receipt::Commit`].
    pub commit: [u8; COMMIT_LEN],
    /// What it asks the requester to sign; see [`Work::offer`].
    pub offer: Box<[u8; Work::OFFER_LEN]>,
}

/// Why a lease was refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Refusal {
    /// The layers are not loaded here.
    NotHeld = 0,
    /// No memory for so many positions.
    NoRoom = 1,
    /// Enough sessions run already.
    Busy = 2,
    /// About to leave.
    Draining = 3,
    /// Not for this requester.
    NotTrusted = 4,
    /// Sessions of that kind are not computed here: a requester asks for none again for a while. Nothing that passes is said so.
    Malformed = 5,
    /// Something broke here.
    Failed = 6,
}

impl Refusal {
    /// All refusals, by their byte.
    pub const ALL: [Self; 7] = [
        Self::NotHeld,
        Self::NoRoom,
        Self::Busy,
        Self::Draining,
        Self::NotTrusted,
        Self::Malformed,
        Self::Failed,
    ];
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotHeld => "does not hold these layers",
            Self::NoRoom => "has no memory for so long a text",
            Self::Busy => "serves as many sessions as it will",
            Self::Draining => "is about to leave",
            Self::NotTrusted => "does not serve this requester",
            Self::Malformed => "cannot make sense of the lease",
            Self::Failed => "failed",
        })
    }
}

/// What is answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The lease holds.
    Accepted {
        /// KV length of the session here, at most the lease's `at`.
        have: u32,
        /// Sessions of others that count on this node now, this one not included.
        sessions: u32,
        /// Rows that take as long as one step there, at least 1; its announced `batch_knee`.
        lanes: u32,
    },
    /// It does not.
    Refused {
        /// Why.
        reason: Refusal,
        /// More about it for a human, at most [`MAX_TEXT`] bytes.
        text: String,
        /// For [`Refusal::NotHeld`], the layers of the model that are served here, at most [`MAX_RANGES`] ranges; else none.
        held: Vec<LayerRange>,
    },
    /// Done: the session is forgotten, the receipt was read.
    Released,
    /// Sealed announcements, freshest first; the reader opens each.
    Announcements(Vec<Vec<u8>>),
    /// It is there.
    Pong,
    /// What was computed, by range, at most [`MAX_SETTLED`].
    Settled(Vec<Settlement>),
    /// A signed catalog of models, at most [`MAX_CATALOG`] bytes; empty where none is newer. The reader checks the signature
    /// before it reads anything else of it.
    Catalog(Vec<u8>),
}

impl Contact {
    pub(crate) fn write(&self, to: &mut Writer) {
        to.bytes(self.node.as_bytes());
        write_addresses(&self.addresses, to);
    }

    pub(crate) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self { node: NodeId::new(from.array()?), addresses: read_addresses(from)? })
    }
}

impl Source {
    fn write(&self, to: &mut Writer) {
        self.contact.write(to);
        self.permit.write(to);
        to.bytes(&self.outputs.0).u32(self.worth_ms);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let source = Self {
            contact: Contact::read(from)?,
            permit: Permit::read(from)?,
            outputs: Name(from.array()?),
            worth_ms: from.u32()?,
        };
        let sound = source.contact.node == source.permit.holder && source.worth_ms <= MAX_WORTH_MS;
        if sound { Ok(source) } else { Err(Malformed("lease: source")) }
    }
}

impl Lease {
    fn write(&self, to: &mut Writer) {
        to.bytes(self.session.as_bytes()).u32(self.epoch).bytes(self.model.as_bytes());
        write_range(self.layers, to);
        to.u32(self.positions).u32(self.at);
        write_arithmetic(&self.rounding, self.kind, to);
        to.bool(self.next.is_some());
        if let Some(next) = &self.next {
            next.write(to);
        }
        to.bool(self.previous.is_some());
        if let Some(previous) = &self.previous {
            to.bytes(previous.as_bytes());
        }
        to.bool(self.log).u32(self.ttl_ms).u8(self.role as u8);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (session, epoch) = (SessionId::new(from.array()?), from.u32()?);
        let model = ModelId::new(from.array()?);
        let layers = read_range(from, MAX_LAYERS)?;
        let (positions, at) = (from.u32()?, from.u32()?);
        let (rounding, kind) = read_arithmetic(from)?;
        let lease = Self {
            session,
            epoch,
            model,
            layers,
            positions,
            at,
            rounding,
            kind,
            next: if from.bool()? { Some(Contact::read(from)?) } else { None },
            previous: if from.bool()? { Some(NodeId::new(from.array()?)) } else { None },
            log: from.bool()?,
            ttl_ms: from.u32()?,
            role: Role::from_u8(from.u8()?).ok_or(Malformed("lease: role"))?,
            reuse: Reuse::default(),
        };
        if !(1..=MAX_POSITIONS).contains(&lease.positions) || lease.at > lease.positions {
            return Err(Malformed("lease: positions"));
        }
        if !(1..=MAX_LEASE_TTL_MS).contains(&lease.ttl_ms) {
            return Err(Malformed("lease: ttl"));
        }
        Ok(lease)
    }
}

/// The only one of these addresses.
fn one(mut addresses: Vec<String>) -> Result<String, Malformed> {
    match addresses.pop() {
        Some(address) if addresses.is_empty() => Ok(address),
        _ => Err(Malformed("probe: one address")),
    }
}

impl Ask {
    /// The bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Writer::new();
        match self {
            Self::Lease(lease) => {
                lease.write(to.u8(lease.reuse.kind()));
                lease.reuse.write(&mut to);
            }
            Self::Release { session, epoch } => {
                to.u8(1).bytes(session.as_bytes()).u32(*epoch);
            }
            Self::CatchUp { have } => {
                to.u8(2).u32(*have);
            }
            Self::Ping => {
                to.u8(3);
            }
            Self::Settle { session, upto } => {
                to.u8(4).bytes(session.as_bytes()).u32(*upto);
            }
            Self::Receipt(receipt) => {
                to.u8(5).bytes(receipt.as_slice());
            }
            Self::Probe(address) => {
                write_addresses(std::slice::from_ref(address), to.u8(7));
            }
            Self::DialBack(contact) => contact.write(to.u8(8)),
            Self::Catalog { author, sequence } => {
                to.u8(11).bytes(author.as_bytes()).u64(*sequence);
            }
        }
        to.finish()
    }

    /// Reads what [`Ask::encode`] wrote.
    ///
    /// # Errors
    /// When the bytes are too many, ask for nothing known, or state something beyond its bound.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        if bytes.len() > MAX_ASK {
            return Err(Malformed("ask: length"));
        }
        let mut from = Reader::new(bytes);
        let ask = match from.u8()? {
            1 => Self::Release { session: SessionId::new(from.array()?), epoch: from.u32()? },
            2 => Self::CatchUp { have: from.u32()? },
            3 => Self::Ping,
            4 => Self::Settle { session: SessionId::new(from.array()?), upto: from.u32()? },
            5 => Self::Receipt(Box::new(from.array()?)),
            kind @ (0 | 6 | 9 | 10) => {
                let lease = Lease::read(&mut from)?;
                let reuse = Reuse::read(kind, &mut from)?;
                Self::Lease(Box::new(Lease { reuse, ..lease }))
            }
            7 => Self::Probe(one(read_addresses(&mut from)?)?),
            8 => {
                let contact = Contact::read(&mut from)?;
                one(contact.addresses.clone())?;
                Self::DialBack(contact)
            }
            11 => Self::Catalog { author: NodeId::new(from.array()?), sequence: from.u64()? },
            _ => return Err(Malformed("ask: kind")),
        };
        from.finish().map(|()| ask)
    }
}

impl Answer {
    /// A refusal with an explanation, cut to [`MAX_TEXT`] bytes.
    pub fn refused(reason: Refusal, text: &str) -> Self {
        Self::Refused { reason, text: cut(text, MAX_TEXT).to_owned(), held: Vec::new() }
    }

    /// A refusal that says what is held instead; ranges beyond [`MAX_RANGES`] are left out.
    pub fn not_held(held: &[LayerRange]) -> Self {
        let held = held.iter().copied().take(MAX_RANGES).collect();
        Self::Refused { reason: Refusal::NotHeld, text: "these layers are not served here".to_owned(), held }
    }

    /// As many of the announcements, in order, as one answer holds.
    pub fn announcements(sealed: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let mut room = MAX_ANSWER - 3;
        let fits = |bytes: &Vec<u8>| {
            let left = room.checked_sub(2 + bytes.len());
            room = left.unwrap_or(room);
            left.is_some()
        };
        Self::Announcements(sealed.into_iter().take(MAX_CAUGHT_UP).take_while(fits).collect())
    }

    /// The bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Writer::new();
        match self {
            Self::Accepted { have, sessions, lanes } => to.u8(0).u32(*have).u32(*sessions).u32(*lanes),
            Self::Refused { reason, text, held } => {
                to.u8(1).u8(*reason as u8).text(cut(text, MAX_TEXT));
                to.list(held, |to, &range| write_range(range, to))
            }
            Self::Released => to.u8(2),
            Self::Announcements(sealed) => to.u8(3).list(sealed, |to, bytes| {
                to.count(bytes.len()).bytes(bytes);
            }),
            Self::Pong => to.u8(4),
            Self::Settled(settled) => to.u8(5).list(settled, |to, one| {
                write_range(one.layers, to);
                to.bytes(&one.commit).bytes(one.offer.as_slice());
            }),
            Self::Catalog(text) => to.u8(6).long_count(text.len()).bytes(text),
        };
        to.finish()
    }

    /// Reads what [`Answer::encode`] wrote.
    ///
    /// # Errors
    /// When the bytes are too many, answer nothing known, or state something beyond its bound.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        if bytes.len() > MAX_ANSWER {
            return Err(Malformed("answer: length"));
        }
        let mut from = Reader::new(bytes);
        let answer = match from.u8()? {
            0 => {
                let (have, sessions, lanes) = (from.u32()?, from.u32()?, from.u32()?);
                if sessions > MAX_SAID || !(1..=MAX_SAID).contains(&lanes) {
                    return Err(Malformed("answer: load"));
                }
                Self::Accepted { have, sessions, lanes }
            }
            1 => {
                let reason = Refusal::ALL.get(usize::from(from.u8()?)).copied();
                let reason = reason.ok_or(Malformed("answer: refusal"))?;
                let text = from.text(MAX_TEXT)?.to_owned();
                let held = from.list(MAX_RANGES, 8, |from| read_range(from, MAX_LAYERS))?;
                if reason != Refusal::NotHeld && !held.is_empty() {
                    return Err(Malformed("answer: held"));
                }
                Self::Refused { reason, text, held }
            }
            2 => Self::Released,
            3 => Self::Announcements(from.list(MAX_CAUGHT_UP, 2, |from| {
                let len = from.count(MAX_ANNOUNCEMENT, 1)?;
                from.bytes(len).map(<[u8]>::to_vec)
            })?),
            4 => Self::Pong,
            5 => Self::Settled(from.list(MAX_SETTLED, 8 + COMMIT_LEN + Work::OFFER_LEN, |from| {
                let layers = read_range(from, MAX_LAYERS)?;
                Ok(Settlement { layers, commit: from.array()?, offer: Box::new(from.array()?) })
            })?),
            6 => {
                let len = from.long_count(MAX_CATALOG, 1)?;
                Self::Catalog(from.bytes(len)?.to_vec())
            }
            _ => return Err(Malformed("answer: kind")),
        };
        from.finish().map(|()| answer)
    }
}
