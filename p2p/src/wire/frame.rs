//! The data plane: activations between neighbors of a pipeline, and what is said beside them.
//!
//! A stream belongs to one session and opens with a [`Hello`]. Then frames follow: a fixed header of 32 bytes and a
//! payload of the length it states. A frame names the session's epoch, its attempt and the positions it carries and never a
//! route: the lease did that.
//!
//! ```text
//!  0..4   magic "shf1"            16..20  from: first position
//!  4      kind                    20..24  rows: positions carried
//!  5      wire                    24..28  len: bytes of payload
//!  6..8   attempt                 28..30  drafted: rows at the end that may be rejected
//!  8..12  epoch                   30..32  since: positions from the start of the attempt
//! 12..16  layer: the first that consumes the payload
//! ```
//!
//! Rows of a draft follow from tokens that were guessed. Which of them count the requester knows once the last stage has drawn
//! its tokens; the next frame begins where they end. Where some were rejected it opens a new attempt: what is still under way
//! of the attempt before is dropped. A stage signs drafted rows once a later frame, or the settling of the session, confirms
//! them.
//!
//! Limits: [`MAX_FRAME`] bytes and [`MAX_ROWS`] positions. The length of a payload follows from the number of rows
//! and the session's width alone, so sizes on the network tell nothing of the text. A reader learns the length from
//! [`Header::read`], which refuses one that no payload of that kind can have, before it allocates anything.

use scheduler::SessionId;
use scheduler::capability::MAX_LAYERS;

use super::Malformed;
use super::cursor::{Reader, cut};
use crate::codec::{self, Wire};

/// Largest payload, bytes: 256 positions of a hidden size of 8,192 in f32. More is refused at the header, so one
/// stream holds at most this much memory of its reader.
pub const MAX_FRAME: usize = 8 << 20;
/// Most positions of one frame; a longer prompt travels in several.
pub const MAX_ROWS: u32 = 256;
/// Longest reason of [`Kind::Failed`], bytes; what goes beyond is cut off.
pub const MAX_REASON: usize = 256;
/// Length of a [`Kind::Commit`] payload, bytes.
pub const COMMIT_LEN: usize = 128;
/// Length of a header, bytes.
pub const HEADER_LEN: usize = 32;

const MAGIC: [u8; 4] = *b"shf1";
const HELLO: [u8; 4] = *b"shh1";

/// What a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Kind {
    /// Hidden states of `rows` positions, input of `layer`.
    Activations = 0,
    /// The sender's KV for `layer` ends at `from`, before the first position it was given. No payload.
    NeedReplay = 1,
    /// The sender is alive and computing. From a requester to a stage: the session needs it; with a position `from` that is not 0
    /// the stage is asked how far its inputs have come ([`Kind::Waits`]), which a stage of before does not answer. No payload.
    Beacon = 2,
    /// The sender cannot serve this session any more. The payload says why, at most [`MAX_REASON`] bytes of UTF-8.
    Failed = 3,
    /// The sender is done with this session. No payload.
    Bye = 4,
    /// What the sender computed up to the position `from`, signed. The payload is a commitment of [`COMMIT_LEN`]
    /// bytes.
    Commit = 5,
    /// As [`Kind::Activations`], to one who follows: compute and keep the KV, send nothing on.
    Feed = 6,
    /// The sender computes, but cannot reach the stage after it: what it answers is lost on the way. No payload.
    Unreachable = 7,
    /// What the stage before sent from the position `from` on is nothing that can be computed with. No payload.
    Garbled = 8,
    /// The sender computes nothing, and its inputs have come up to the position `from`. Only to a requester that asked for it by a
    /// beacon: one of before does not know it. No payload.
    Waits = 9,
}

impl Kind {
    /// All kinds, by their byte.
    pub const ALL: [Self; 10] = [
        Self::Activations,
        Self::NeedReplay,
        Self::Beacon,
        Self::Failed,
        Self::Bye,
        Self::Commit,
        Self::Feed,
        Self::Unreachable,
        Self::Garbled,
        Self::Waits,
    ];

    /// Whether it carries hidden states.
    pub fn carries(self) -> bool {
        matches!(self, Self::Activations | Self::Feed)
    }

    fn from_u8(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte)).copied()
    }
}

/// The first bytes of a stream of the data plane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Which session it carries: a digest of the requester and of the name that it gave the session.
    pub session: SessionId,
    /// The epoch it was opened under; a reader that knows a higher one closes the stream.
    pub epoch: u32,
}

impl Hello {
    /// Length, bytes.
    pub const LEN: usize = 24;

    /// The bytes: magic, session, epoch.
    pub fn write(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&HELLO);
        bytes[4..20].copy_from_slice(self.session.as_bytes());
        bytes[20..].copy_from_slice(&self.epoch.to_le_bytes());
        bytes
    }

    /// Reads what [`Hello::write`] wrote.
    ///
    /// # Errors
    /// When the bytes do not start with the magic of this version.
    pub fn read(bytes: &[u8; Self::LEN]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        if reader.array()? != HELLO {
            return Err(Malformed("hello: magic"));
        }
        Ok(Self { session: SessionId::new(reader.array()?), epoch: reader.u32()? })
    }
}

/// What a payload is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// What the frame is.
    pub kind: Kind,
    /// How the payload of [`Kind::Activations`] is written; `Raw` for the other kinds.
    pub wire: Wire,
    /// Under which epoch of the session.
    pub epoch: u32,
    /// The first layer that consumes the payload; the number of layers of the model for an input of the head.
    pub layer: u32,
    /// First position carried.
    pub from: u32,
    /// Positions carried, 1 to [`MAX_ROWS`] for [`Kind::Activations`], else 0.
    pub rows: u32,
    /// Bytes of payload.
    pub len: u32,
    /// Under which attempt of the epoch; the first one is 0.
    pub attempt: u16,
    /// How many of the rows, at their end, follow from drafted tokens; fewer than `rows`, and 0 for all kinds but
    /// [`Kind::Activations`].
    pub drafted: u16,
    /// Positions from where the attempt began to `from`; `u16::MAX` for as many or more.
    pub since: u16,
}

impl Header {
    /// The header of activations of `rows` positions of `width` values from position `from` on.
    ///
    /// # Errors
    /// When no frame can carry them: no rows or too many, a width that `wire` does not take, or more than
    /// [`MAX_FRAME`] bytes.
    pub fn activations(
        wire: Wire,
        epoch: u32,
        layer: u32,
        from: u32,
        rows: u32,
        width: usize,
    ) -> Result<Self, Malformed> {
        let len = codec::encoded_len(wire, rows as usize, width)
            .and_then(|len| u32::try_from(len).ok())
            .ok_or(Malformed("header: width"))?;
        let kind = Kind::Activations;
        let header = Self { kind, wire, epoch, layer, from, rows, len, attempt: 0, drafted: 0, since: 0 };
        header.check().map(|()| header)
    }

    /// The header of a frame that carries no activations, with `len` bytes of payload.
    pub fn signal(kind: Kind, epoch: u32, layer: u32, from: u32, len: usize) -> Self {
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        Self { kind, wire: Wire::Raw, epoch, layer, from, rows: 0, len, attempt: 0, drafted: 0, since: 0 }
    }

    /// The same header under an attempt of its epoch.
    pub fn under(self, attempt: u16) -> Self {
        Self { attempt, ..self }
    }

    /// The frame that ends a session for a reason, which is cut to [`MAX_REASON`] bytes.
    pub fn failed(epoch: u32, layer: u32, from: u32, reason: &str) -> (Self, &[u8]) {
        let reason = cut(reason, MAX_REASON).as_bytes();
        (Self::signal(Kind::Failed, epoch, layer, from, reason.len()), reason)
    }

    /// One past the last position carried.
    pub fn to(&self) -> u32 {
        self.from.saturating_add(self.rows)
    }

    /// Whether the payload of activations is as long as `width` values per row take.
    pub fn fits(&self, width: usize) -> bool {
        codec::encoded_len(self.wire, self.rows as usize, width) == Some(self.len as usize)
    }

    /// The bytes.
    pub fn write(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = self.kind as u8;
        bytes[5] = self.wire as u8;
        bytes[6..8].copy_from_slice(&self.attempt.to_le_bytes());
        let numbers = [self.epoch, self.layer, self.from, self.rows, self.len];
        for (slot, number) in bytes[8..28].chunks_exact_mut(4).zip(numbers) {
            slot.copy_from_slice(&number.to_le_bytes());
        }
        bytes[28..30].copy_from_slice(&self.drafted.to_le_bytes());
        bytes[30..].copy_from_slice(&self.since.to_le_bytes());
        bytes
    }

    /// Reads what [`Header::write`] wrote. A header that passes can be followed: `len` is within the cap of its kind.
    ///
    /// # Errors
    /// When the bytes are of another version, name no kind, or state rows or a length that this kind cannot have.
    pub fn read(bytes: &[u8; HEADER_LEN]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        if reader.array()? != MAGIC {
            return Err(Malformed("header: magic"));
        }
        let kind = Kind::from_u8(reader.u8()?).ok_or(Malformed("header: kind"))?;
        let wire = Wire::from_u8(reader.u8()?).ok_or(Malformed("header: wire"))?;
        let attempt = reader.u16()?;
        let (epoch, layer, from) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let (rows, len, drafted) = (reader.u32()?, reader.u32()?, reader.u16()?);
        let since = reader.u16()?;
        let header = Self { kind, wire, epoch, layer, from, rows, len, attempt, drafted, since };
        header.check().map(|()| header)
    }

    fn check(&self) -> Result<(), Malformed> {
        if self.layer > MAX_LAYERS {
            return Err(Malformed("header: layer"));
        }
        if !self.kind.carries() && (self.rows != 0 || self.wire != Wire::Raw) {
            return Err(Malformed("header: rows"));
        }
        let drafts = self.kind == Kind::Activations && u32::from(self.drafted) < self.rows;
        if self.drafted != 0 && !drafts {
            return Err(Malformed("header: drafted"));
        }
        if self.since != 0 && !self.kind.carries() {
            return Err(Malformed("header: since"));
        }
        let len = self.len as usize;
        let sound = match self.kind {
            Kind::Activations | Kind::Feed => {
                if !(1..=MAX_ROWS).contains(&self.rows) || self.from.checked_add(self.rows).is_none() {
                    return Err(Malformed("header: rows"));
                }
                let row = len / self.rows as usize;
                len > 0 && len <= MAX_FRAME && codec::row_width(self.wire, row).is_some_and(|w| self.fits(w))
            }
            Kind::NeedReplay | Kind::Beacon | Kind::Bye | Kind::Unreachable | Kind::Garbled | Kind::Waits => {
                len == 0
            }
            Kind::Failed => len <= MAX_REASON,
            Kind::Commit => len == COMMIT_LEN,
        };
        if sound { Ok(()) } else { Err(Malformed("header: length")) }
    }
}

/// The reason in the payload of [`Kind::Failed`].
///
/// # Errors
/// When it is too long or not UTF-8.
pub fn reason(payload: &[u8]) -> Result<&str, Malformed> {
    if payload.len() > MAX_REASON {
        return Err(Malformed("reason"));
    }
    std::str::from_utf8(payload).map_err(|_| Malformed("reason"))
}
