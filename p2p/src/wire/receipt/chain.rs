//! Terms, leaves, the chain and the commitments to its heads.

use scheduler::capability::MAX_LAYERS;
use scheduler::{LayerRange, ModelId, NodeId, SessionId, SessionKind};

use super::hash;
use crate::codec::{Rounding, Wire, encoded_len};
use crate::identity::{Identity, verify};
use crate::wire::Malformed;
use crate::wire::announce::{Class, MAX_HIDDEN};
use crate::wire::cursor::{Reader, Writer};
use crate::wire::fields::{read_arithmetic, read_range, write_arithmetic, write_range};
use crate::wire::frame::COMMIT_LEN;

/// Positions between commitments: one signature in sixteen tokens costs less than a microsecond per token, and a lie
/// is bound at most this many tokens after it was told.
pub const EVERY: u32 = 16;
/// Proofs of work granted longer ago than this are void, seconds: one day.
pub const MAX_AGE_S: u32 = 86_400;
/// How far two honest clocks may be apart, seconds.
pub const MAX_SKEW_S: u32 = 300;

/// A chain started from nothing: drawn by the stage, never twice. The upper half is its clock, the lower half chance.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Grant(pub(super) u64);

impl Grant {
    /// The grant of a chain started at `unix_s`, told from others of that second by `random`.
    pub fn new(unix_s: u32, random: u32) -> Self {
        Self(u64::from(unix_s) << 32 | u64::from(random))
    }

    /// The number.
    pub fn number(self) -> u64 {
        self.0
    }

    /// When the chain was started, seconds of Unix time, by the stage's clock.
    pub fn unix_s(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Whether the clock of a stage that starts a chain now is right. A requester leaves a stage whose first
    /// commitment is not: a grant of yesterday would make its lies void tomorrow.
    pub fn is_fresh(self, now_unix_s: u32) -> bool {
        self.unix_s().abs_diff(now_unix_s) <= MAX_SKEW_S
    }

    /// Whether what was signed under this grant may still be held against the stage.
    pub fn is_current(self, now_unix_s: u32) -> bool {
        let at = self.unix_s();
        at <= now_unix_s.saturating_add(MAX_SKEW_S) && now_unix_s.saturating_sub(at) <= MAX_AGE_S
    }
}

/// What requester and stage agreed on: all that an output depends on, inputs aside.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Terms {
    /// Which session.
    pub session: SessionId,
    /// Whose.
    pub requester: NodeId,
    /// With which model.
    pub model: ModelId,
    /// Which layers of it.
    pub layers: LayerRange,
    /// Values of a hidden state, at most [`MAX_HIDDEN`].
    pub hidden: u32,
    /// How exact the stage computes.
    pub class: Class,
    /// Where activations are rounded, and how.
    pub rounding: Rounding,
    /// Which earlier positions the rows of the session see, and how keys and values are kept.
    pub kind: SessionKind,
    /// Whether leaves hold digests of the hidden states inside the range too.
    pub inner: bool,
}

impl Terms {
    pub(super) fn write(&self, to: &mut Writer) {
        to.bytes(self.session.as_bytes()).bytes(self.requester.as_bytes()).bytes(self.model.as_bytes());
        write_range(self.layers, to);
        to.u32(self.hidden).u8(self.class as u8);
        write_arithmetic(&self.rounding, self.kind, to);
        to.bool(self.inner);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let session = SessionId::new(from.array()?);
        let (requester, model) = (NodeId::new(from.array()?), ModelId::new(from.array()?));
        let (layers, hidden) = (read_range(from, MAX_LAYERS)?, from.u32()?);
        let class = match from.u8()? {
            0 => Class::D1,
            1 => Class::Approx,
            _ => return Err(Malformed("terms: class")),
        };
        let (rounding, kind) = read_arithmetic(from)?;
        let inner = from.bool()?;
        let terms = Self { session, requester, model, layers, hidden, class, rounding, kind, inner };
        if !(1..=MAX_HIDDEN).contains(&terms.hidden) {
            return Err(Malformed("terms: hidden"));
        }
        Ok(terms)
    }

    /// The head before the first position.
    pub fn genesis(&self) -> [u8; 32] {
        let mut to = Writer::new();
        self.write(&mut to);
        hash("shoal/terms/1", &[to.as_bytes()])
    }

    /// The key under which beginnings of sessions with these terms are named; the session itself is no part of it.
    pub(in crate::wire) fn prefix_key(&self, state: u8) -> [u8; 32] {
        let anonymous = Self { session: SessionId::new([0; 16]), ..self.clone() };
        let mut to = Writer::new();
        anonymous.write(&mut to);
        hash("shoal prefix 1", &[to.as_bytes(), &[state]])
    }

    /// Bytes of one row in a form, `None` if a row of this width has no such form.
    pub fn row_len(&self, wire: Wire) -> Option<usize> {
        encoded_len(wire, 1, self.hidden as usize)
    }
}

/// One row of activations as a digest of its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    /// In which form it travels.
    pub wire: Wire,
    /// blake3 of its bytes.
    pub digest: [u8; 32],
}

impl Row {
    /// The digest of a row's bytes.
    pub fn of(wire: Wire, bytes: &[u8]) -> Self {
        Self { wire, digest: *blake3::hash(bytes).as_bytes() }
    }

    fn write(&self, to: &mut Writer) {
        to.u8(self.wire as u8).bytes(&self.digest);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let wire = Wire::from_u8(from.u8()?).ok_or(Malformed("leaf: wire"))?;
        Ok(Self { wire, digest: from.array()? })
    }
}

/// What a stage did at one position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leaf {
    /// What came in.
    pub input: Row,
    /// What went out.
    pub output: Row,
    /// [`Leaf::inner_of`] the hidden states between; zeros where the terms ask for none.
    pub inner: [u8; 32],
}

impl Leaf {
    /// Encoding, bytes.
    pub(super) const LEN: usize = 33 + 33 + 32;

    /// One digest of the digests of the hidden states before each layer of the range but the first.
    pub fn inner_of(states: &[[u8; 32]]) -> [u8; 32] {
        hash("shoal/inner/1", &[states.as_flattened()])
    }

    pub(super) fn write(&self, to: &mut Writer) {
        self.input.write(to);
        self.output.write(to);
        to.bytes(&self.inner);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self { input: Row::read(from)?, output: Row::read(from)?, inner: from.array()? })
    }

    /// The head after this leaf at position `pos`.
    pub(super) fn link(&self, pos: u32, head: &[u8; 32]) -> [u8; 32] {
        let mut to = Writer::new();
        to.u32(pos);
        self.write(&mut to);
        let leaf = hash("shoal/leaf/1", &[to.as_bytes()]);
        hash("shoal/chain/1", &[head, &leaf])
    }
}

/// The heads of one stage in one session; a stage keeps it to sign, a requester or shadow to compare.
///
/// Holds 32 bytes per position, of at most the positions its lease has room for; a leaf beyond is refused.
#[derive(Clone, Debug)]
pub struct Chain {
    session: SessionId,
    grant: Grant,
    epoch: u32,
    room: u32,
    /// `heads[p]` is the head after `p` positions.
    heads: Vec<[u8; 32]>,
    /// The last commitment of this epoch.
    signed: Option<(u32, [u8; 32])>,
}

impl Chain {
    /// An empty chain with room for `positions`.
    pub fn new(terms: &Terms, grant: Grant, epoch: u32, positions: u32) -> Self {
        Self {
            session: terms.session,
            grant,
            epoch,
            room: positions,
            heads: vec![terms.genesis()],
            signed: None,
        }
    }

    /// The epoch that it goes on under.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Positions in it.
    pub fn positions(&self) -> u32 {
        self.heads.len() as u32 - 1
    }

    /// The head after `positions` of them.
    pub fn head(&self, positions: u32) -> Option<&[u8; 32]> {
        self.heads.get(positions as usize)
    }

    /// Adds the next position.
    ///
    /// # Errors
    /// When there is no room for it.
    pub fn push(&mut self, leaf: &Leaf) -> Result<(), Malformed> {
        let pos = self.positions();
        if pos >= self.room {
            return Err(Malformed("chain: full"));
        }
        let head = leaf.link(pos, &self.heads[pos as usize]);
        self.heads.push(head);
        Ok(())
    }

    /// Forgets the positions from `to` on, as the KV does. What was signed stays signed: see [`Chain::commit`].
    pub fn truncate(&mut self, to: u32) {
        self.heads.truncate((to as usize).saturating_add(1));
    }

    /// Goes on under a higher epoch with the positions below `at`. A lower or the same epoch changes nothing.
    pub fn adopt(&mut self, epoch: u32, at: u32) {
        if epoch > self.epoch {
            self.truncate(at);
            self.epoch = epoch;
            self.signed = None;
        }
    }

    /// The next commitment, if one is due: to the highest multiple of [`EVERY`] that is computed and `settled`.
    ///
    /// `settled` is the first position of the frame that came last. The requester has moved past what lies below; of
    /// what lies above, guessed tokens perhaps, it may still think otherwise. If it goes back all the same and sends
    /// other inputs under one epoch, then nothing more is signed until the next epoch: a stage never contradicts
    /// itself.
    pub fn commit(&mut self, settled: u32, stage: &Identity) -> Option<Commit> {
        let pos = settled.min(self.positions()) / EVERY * EVERY;
        self.sign(pos, stage)
    }

    /// The commitment to everything computed, at the end of a session.
    pub fn conclude(&mut self, stage: &Identity) -> Option<Commit> {
        self.sign(self.positions(), stage)
    }

    fn sign(&mut self, pos: u32, stage: &Identity) -> Option<Commit> {
        let (signed, before) = self.signed.unwrap_or((0, self.heads[0]));
        if pos <= signed || self.heads[signed as usize] != before {
            return None;
        }
        let head = self.heads[pos as usize];
        self.signed = Some((pos, head));
        let mut commit = Commit {
            session: self.session,
            grant: self.grant,
            epoch: self.epoch,
            pos,
            head,
            signature: [0; 64],
        };
        commit.signature = stage.sign(Commit::DOMAIN, &commit.body());
        Some(commit)
    }

    /// Whether this chain has the head that `commit` states; `None` when it is too short to say, or the commitment is
    /// about another session.
    pub fn agrees(&self, commit: &Commit) -> Option<bool> {
        let head = self.head(commit.pos).filter(|_| commit.session == self.session)?;
        Some(*head == commit.head)
    }
}

/// A stage's word for the head of its chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Commit {
    /// In which session.
    pub session: SessionId,
    /// Of which chain.
    pub grant: Grant,
    /// Under which epoch.
    pub epoch: u32,
    /// After so many positions.
    pub pos: u32,
    /// The head there.
    pub head: [u8; 32],
    pub(super) signature: [u8; 64],
}

impl Commit {
    const DOMAIN: &str = "shoal/commit/1";

    fn body(&self) -> [u8; COMMIT_LEN - 64] {
        let mut bytes = [0; COMMIT_LEN - 64];
        bytes[..16].copy_from_slice(self.session.as_bytes());
        bytes[16..24].copy_from_slice(&self.grant.0.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.pos.to_le_bytes());
        bytes[32..].copy_from_slice(&self.head);
        bytes
    }

    /// The payload of a [`Kind::Commit`](crate::wire::frame::Kind::Commit) frame.
    pub fn write(&self) -> [u8; COMMIT_LEN] {
        let mut bytes = [0; COMMIT_LEN];
        bytes[..COMMIT_LEN - 64].copy_from_slice(&self.body());
        bytes[COMMIT_LEN - 64..].copy_from_slice(&self.signature);
        bytes
    }

    pub(super) fn read(bytes: &[u8; COMMIT_LEN]) -> Result<Self, Malformed> {
        let mut from = Reader::new(bytes);
        Ok(Self {
            session: SessionId::new(from.array()?),
            grant: Grant(from.u64()?),
            epoch: from.u32()?,
            pos: from.u32()?,
            head: from.array()?,
            signature: from.array()?,
        })
    }

    pub(super) fn is_by(&self, stage: NodeId) -> bool {
        verify(stage, Self::DOMAIN, &self.body(), &self.signature)
    }

    /// Reads the payload of a commitment frame from `stage`.
    ///
    /// # Errors
    /// When `stage` did not sign it.
    pub fn open(bytes: &[u8; COMMIT_LEN], stage: NodeId) -> Result<Self, Malformed> {
        let commit = Self::read(bytes)?;
        if commit.is_by(stage) { Ok(commit) } else { Err(Malformed("commit: signature")) }
    }
}
