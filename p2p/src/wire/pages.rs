//! Pages: the state of a beginning, from a node that computed it to one that lacks it.
//!
//! ```text
//! requester ── lease with a source ──▶ reader ── request ──▶ holder
//!                                            ◀── head, steps, pieces of the state ──
//!
//! request   "SHP2" | permit
//! permit    requester 32 | holder 32 | reader 32 | positions u32 | name 32 | until u32 | signature 64, by the requester
//! head      "SHP2" | raw bytes u32 | signature 64, by the holder
//! steps     positions x { input: wire u8, digest 32 | output: wire u8, digest 32 }
//! state     pieces of [`PIECE`] raw bytes, the last of what is left:
//!           packed bytes u32 | signature 64, by the holder | packed bytes; what they are, only the workers of both nodes know
//! ```
//!
//! One stream per request; a holder that gives nothing closes it, as a node of before closes it. The permit names everything that
//! it allows: a holder gives a state to the node that the requester of that state has named, and to no other.
//!
//! Nothing here has to be believed. The inputs must have the name that the requester computed from its own log, the
//! outputs the one of [`super::control::Source::outputs`], so a stage that goes on from them signs for nothing that the requester does not know. What the
//! state itself is worth shows when rows are computed on it. Nothing is read on that its holder has
//! not signed, and its signatures over all of it stay as evidence.

use scheduler::NodeId;

use super::{
    Malformed,
    cursor::{Reader, Writer},
    prefix::Beginning,
    receipt::Row,
};
use crate::{Identity, codec::Wire, identity};

/// Bytes of a state that travel at once: two pieces are on their way in a node's memory, one from or to its worker.
pub const PIECE: usize = 4 << 20;
/// Longest packed piece, bytes; packing may shorten nothing.
pub const MAX_PACKED: usize = PIECE + (PIECE >> 6);
/// Longest state, bytes: of a model of 8 billion parameters 30,000 positions in a quarter of its layers.
pub const MAX_STATE: usize = 1 << 30;
/// Bytes of a request.
pub const REQUEST_LEN: usize = 4 + Permit::LEN;
/// Bytes of a head.
pub const HEAD_LEN: usize = 4 + 4 + 64;
/// Bytes before a packed piece.
pub const PIECE_HEAD_LEN: usize = 4 + 64;
/// Bytes of the steps of a position.
pub const STEP_LEN: usize = 2 * ROW_LEN;
/// Longest time that a lease may give a transfer, ms.
pub const MAX_WORTH_MS: u32 = 60_000;

const MAGIC: &[u8; 4] = b"SHP2";
const PERMIT: &str = "shoal pages permit 1";
const GIVEN: &str = "shoal pages given 2";
const PIECE_GIVEN: &str = "shoal pages piece 2";
const ROW_LEN: usize = 1 + 32;

/// A requester's word that one node may have the state of one of its beginnings from another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Permit {
    /// Whose beginning it is.
    pub requester: NodeId,
    /// Who has the state.
    pub holder: NodeId,
    /// Who may have it.
    pub reader: NodeId,
    /// Which.
    pub beginning: Beginning,
    /// It ends at this Unix time, seconds.
    pub until_s: u32,
    /// The requester's.
    pub signature: [u8; 64],
}

impl Permit {
    const LEN: usize = 3 * 32 + 4 + 32 + 4 + 64;

    /// A permit, signed by the requester.
    pub fn sign(
        requester: &Identity,
        holder: NodeId,
        reader: NodeId,
        beginning: Beginning,
        until_s: u32,
    ) -> Self {
        let signature = [0; 64];
        let permit = Self { requester: requester.node(), holder, reader, beginning, until_s, signature };
        Self { signature: requester.sign(PERMIT, &permit.said()), ..permit }
    }

    /// Whether the requester said so and it still holds at this Unix time, seconds.
    pub fn holds(&self, now_s: u32) -> bool {
        now_s <= self.until_s && identity::verify(self.requester, PERMIT, &self.said(), &self.signature)
    }

    fn said(&self) -> Vec<u8> {
        let mut to = Writer::new();
        to.bytes(self.requester.as_bytes()).bytes(self.holder.as_bytes()).bytes(self.reader.as_bytes());
        self.beginning.write(&mut to);
        to.u32(self.until_s);
        to.finish()
    }

    pub(super) fn write(&self, to: &mut Writer) {
        to.bytes(&self.said()).bytes(&self.signature);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            requester: NodeId::new(from.array()?),
            holder: NodeId::new(from.array()?),
            reader: NodeId::new(from.array()?),
            beginning: Beginning::read(from)?,
            until_s: from.u32()?,
            signature: from.array()?,
        })
    }

    /// A request for what it allows.
    pub fn request(&self) -> Vec<u8> {
        let mut to = Writer::new();
        self.write(to.bytes(MAGIC));
        to.finish()
    }

    /// Reads what [`Permit::request`] wrote. Whether it [holds](Self::holds), and for whom, is not said with that.
    ///
    /// # Errors
    /// When it is no request.
    pub fn requested(bytes: &[u8; REQUEST_LEN]) -> Result<Self, Malformed> {
        let mut from = Reader::new(bytes);
        if &from.array()? != MAGIC {
            return Err(Malformed("pages: magic"));
        }
        let permit = Self::read(&mut from)?;
        from.finish().map(|()| permit)
    }
}

/// What stands before the steps and the pieces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// Bytes of the state as it is.
    pub raw_bytes: u32,
    /// The holder's, over the permit's beginning, this and the steps.
    pub signature: [u8; 64],
}

impl Head {
    /// The head of these steps and a state of so many bytes, signed by the holder.
    pub fn sign(holder: &Identity, permit: &Permit, raw_bytes: u32, steps: &[u8]) -> Self {
        let head = Self { raw_bytes, signature: [0; 64] };
        Self { signature: holder.sign(GIVEN, &head.said(permit, steps)), ..head }
    }

    /// Whether the holder that the permit names gave these.
    pub fn is_of(&self, permit: &Permit, steps: &[u8]) -> bool {
        identity::verify(permit.holder, GIVEN, &self.said(permit, steps), &self.signature)
    }

    fn said(&self, permit: &Permit, steps: &[u8]) -> Vec<u8> {
        let mut to = Writer::new();
        permit.beginning.write(&mut to);
        to.u32(self.raw_bytes).bytes(blake3::hash(steps).as_bytes());
        to.finish()
    }

    /// The bytes.
    pub fn write(&self) -> Vec<u8> {
        let mut to = Writer::new();
        to.bytes(MAGIC).u32(self.raw_bytes).bytes(&self.signature);
        to.finish()
    }

    /// Reads what [`Head::write`] wrote.
    ///
    /// # Errors
    /// When it is no head, or of more bytes than [`MAX_STATE`].
    pub fn read(bytes: &[u8; HEAD_LEN]) -> Result<Self, Malformed> {
        let mut from = Reader::new(bytes);
        if &from.array()? != MAGIC {
            return Err(Malformed("pages: magic"));
        }
        let head = Self { raw_bytes: from.u32()?, signature: from.array()? };
        if head.raw_bytes as usize > MAX_STATE {
            return Err(Malformed("pages: length"));
        }
        from.finish().map(|()| head)
    }

    /// Where the pieces of the state start, and how many bytes of it each has.
    pub fn pieces(&self) -> impl Iterator<Item = (u32, u32)> + use<> {
        let raw_bytes = self.raw_bytes;
        (0..raw_bytes).step_by(PIECE).map(move |start| (start, (raw_bytes - start).min(PIECE as u32)))
    }
}

/// What stands before a packed piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PieceHead {
    /// Bytes that it travels as.
    pub packed_bytes: u32,
    /// The holder's, over what it said in the head, where the piece starts and its packed bytes.
    pub signature: [u8; 64],
}

impl PieceHead {
    /// The head of the piece that starts at byte `start` of the state, signed by the holder.
    pub fn sign(holder: &Identity, head: &Head, start: u32, packed: &[u8]) -> Self {
        let packed_bytes = u32::try_from(packed.len()).unwrap_or(u32::MAX);
        Self { packed_bytes, signature: holder.sign(PIECE_GIVEN, &Self::said(head, start, packed)) }
    }

    /// Whether the holder that the permit names gave this piece of what `head` stands before.
    pub fn is_of(&self, permit: &Permit, head: &Head, start: u32, packed: &[u8]) -> bool {
        identity::verify(permit.holder, PIECE_GIVEN, &Self::said(head, start, packed), &self.signature)
    }

    fn said(head: &Head, start: u32, packed: &[u8]) -> Vec<u8> {
        let mut to = Writer::new();
        to.bytes(&head.signature).u32(start).bytes(blake3::hash(packed).as_bytes());
        to.finish()
    }

    /// The bytes.
    pub fn write(&self) -> Vec<u8> {
        let mut to = Writer::new();
        to.u32(self.packed_bytes).bytes(&self.signature);
        to.finish()
    }

    /// Reads what [`PieceHead::write`] wrote.
    ///
    /// # Errors
    /// When it is of more bytes than [`MAX_PACKED`].
    pub fn read(bytes: &[u8; PIECE_HEAD_LEN]) -> Result<Self, Malformed> {
        let mut from = Reader::new(bytes);
        let head = Self { packed_bytes: from.u32()?, signature: from.array()? };
        if head.packed_bytes as usize > MAX_PACKED {
            return Err(Malformed("pages: length of a piece"));
        }
        from.finish().map(|()| head)
    }
}

/// The inputs and outputs of positions, as they travel.
pub fn write_steps<'a>(steps: impl IntoIterator<Item = [&'a Row; 2]>) -> Vec<u8> {
    let mut to = Writer::new();
    for row in steps.into_iter().flatten() {
        to.u8(row.wire as u8).bytes(&row.digest);
    }
    to.finish()
}

/// Reads what [`write_steps`] wrote of so many positions: inputs, and outputs.
///
/// # Errors
/// When there are more or fewer, or of no known form.
pub fn read_steps(bytes: &[u8], positions: u32) -> Result<Vec<[Row; 2]>, Malformed> {
    if bytes.len() != positions as usize * STEP_LEN {
        return Err(Malformed("pages: steps"));
    }
    let mut from = Reader::new(bytes);
    let row = |from: &mut Reader<'_>| {
        let wire = Wire::from_u8(from.u8()?).ok_or(Malformed("pages: wire"))?;
        Ok(Row { wire, digest: from.array()? })
    };
    let steps = (0..positions).map(|_| Ok([row(&mut from)?, row(&mut from)?])).collect();
    from.finish().and(steps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::prefix::Name;

    fn permit(requester: &Identity) -> Permit {
        let beginning = Beginning { positions: 48, name: Name([7; 32]) };
        Permit::sign(requester, NodeId::numbered(2), NodeId::numbered(3), beginning, 1_000)
    }

    #[test]
    fn a_permit_holds_for_what_it_names_and_its_time() {
        let requester = Identity::from_seed([1; 32]);
        let bytes: [u8; REQUEST_LEN] = permit(&requester).request().try_into().unwrap();
        let read = Permit::requested(&bytes).unwrap();
        assert_eq!(read, permit(&requester));
        assert!(read.holds(1_000) && !read.holds(1_001));
        for at in 0..REQUEST_LEN {
            let mut bad = bytes;
            bad[at] ^= 1;
            assert!(!Permit::requested(&bad).is_ok_and(|permit| permit.holds(9)), "byte {at}");
        }
    }

    #[test]
    fn what_a_holder_gave_is_signed_whole() {
        let holder = Identity::from_seed([2; 32]);
        let permit = Permit { holder: holder.node(), ..permit(&Identity::from_seed([1; 32])) };
        let row = |at: u8| Row::of(Wire::Raw, &[at]);
        let rows: Vec<[Row; 2]> = (0..48).map(|at| [row(at), row(at + 100)]).collect();
        let steps = write_steps(rows.iter().map(|[input, output]| [input, output]));
        assert_eq!(read_steps(&steps, 48).unwrap(), rows);
        assert!(read_steps(&steps, 47).is_err() && read_steps(&steps[1..], 48).is_err());
        let raw_bytes = 2 * PIECE as u32 + 900;
        let head = Head::sign(&holder, &permit, raw_bytes, &steps);
        let bytes: [u8; HEAD_LEN] = head.write().try_into().unwrap();
        assert_eq!(Head::read(&bytes).unwrap(), head);
        assert!(head.is_of(&permit, &steps) && !head.is_of(&permit, &steps[66..]));
        assert!(!Head { raw_bytes: 901, ..head }.is_of(&permit, &steps));
        let long = Head { raw_bytes: MAX_STATE as u32 + 1, ..head };
        assert!(Head::read(&long.write().try_into().unwrap()).is_err());

        let size = PIECE as u32;
        assert_eq!(head.pieces().collect::<Vec<_>>(), [(0, size), (size, size), (2 * size, 900)]);
        assert_eq!(Head { raw_bytes: 0, ..head }.pieces().count(), 0);
        let piece = PieceHead::sign(&holder, &head, size, b"packed");
        let bytes: [u8; PIECE_HEAD_LEN] = piece.write().try_into().unwrap();
        assert_eq!(PieceHead::read(&bytes).unwrap(), piece);
        assert!(piece.is_of(&permit, &head, size, b"packed"));
        assert!(!piece.is_of(&permit, &head, size, b"packet") && !piece.is_of(&permit, &head, 0, b"packed"));
        let other = Head::sign(&holder, &permit, raw_bytes + 1, &steps);
        assert!(!piece.is_of(&permit, &other, size, b"packed"), "of another state");
        let long = PieceHead { packed_bytes: MAX_PACKED as u32 + 1, ..piece };
        assert!(PieceHead::read(&long.write().try_into().unwrap()).is_err());
    }
}
