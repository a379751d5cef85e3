//! What a node that wants groups and one that has them say to each other.
//!
//! One stream carries one request after the other, each answered before the next. All numbers are little-endian; every
//! unused byte is zero and checked. The layouts are frozen in the tests below.
//!
//! ```text
//! request, 64 bytes          answer, 16 bytes and what follows
//! 0   "SHB1"                 0  "SHB1"
//! 4   kind                   4  kind of the request
//! 5   zeros                  5  status
//! 8   model, 32 bytes        6  zeros
//! 40  first group, u32       8  bytes that follow, u64
//! 44  number of groups, u32
//! 48  zeros
//!
//! describe  length of the file u64, runs u32, zeros u32, then per run of groups held: first u32, number u32
//! tree      the outboard as it is kept, see `outboard`
//! groups    the bytes of the groups, nothing between them: the asker knows each one's length and checks each alone;
//!           on a packed stream each is a number of bytes u32 and these bytes, see `pack`; the head's number of bytes
//!           that follow stays that of the groups themselves
//! ```
//!
//! The asker computes from the proven tree how many bytes must follow and refuses any other number before it reads on,
//! so no length from the wire decides an allocation.

use std::{fmt, ops::Range};

use scheduler::ModelId;

use super::{GroupSet, MAX_FILE_BYTES, group_count};

/// Bytes of a request.
pub const REQUEST_BYTES: usize = 64;
/// Bytes of an answer's head.
pub const ANSWER_BYTES: usize = 16;
/// Most groups of one request, 16 MiB: about a second at 100 Mbit/s, so that a round trip between two requests costs
/// little. More are refused as malformed.
pub const MAX_RUN: u32 = 256;
/// Most runs of a description, 32 KiB; a holder with more gaps names the first ones and hides the rest.
pub const MAX_RUNS: usize = 4096;
/// Longest description.
pub const MAX_DESCRIPTION: usize = 16 + 8 * MAX_RUNS;

const MAGIC: &[u8; 4] = b"SHB1";

/// How the groups of a stream travel. The protocol's name says it, so a peer that packs nothing is asked by the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As they are.
    Plain,
    /// Shorter where it pays.
    Packed,
}

/// Bytes that are no message of this protocol, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed message: {}", self.0)
    }
}

impl std::error::Error for Malformed {}

/// What can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// How long the file is and which groups are held.
    Describe {
        /// The model.
        model: ModelId,
    },
    /// The outboard.
    Tree {
        /// The model.
        model: ModelId,
    },
    /// The bytes of some consecutive groups, 1 to [`MAX_RUN`].
    Groups {
        /// The model.
        model: ModelId,
        /// The first group.
        first: u32,
        /// How many.
        count: u32,
    },
}

/// The number of a kind of request.
const DESCRIBE: u8 = 1;
const TREE: u8 = 2;
const GROUPS: u8 = 3;

impl Request {
    /// The number of its kind, as the answer repeats it.
    pub fn kind(&self) -> u8 {
        match self {
            Self::Describe { .. } => DESCRIBE,
            Self::Tree { .. } => TREE,
            Self::Groups { .. } => GROUPS,
        }
    }

    /// The bytes to send.
    pub fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..4].copy_from_slice(MAGIC);
        bytes[4] = self.kind();
        let (Self::Describe { model } | Self::Tree { model } | Self::Groups { model, .. }) = self;
        bytes[8..40].copy_from_slice(model.as_bytes());
        if let Self::Groups { first, count, .. } = self {
            bytes[40..44].copy_from_slice(&first.to_le_bytes());
            bytes[44..48].copy_from_slice(&count.to_le_bytes());
        }
        bytes
    }

    /// The request in `bytes`.
    ///
    /// # Errors
    /// [`Malformed`] for anything that [`Request::encode`] does not make.
    pub fn decode(bytes: &[u8; REQUEST_BYTES]) -> Result<Self, Malformed> {
        let model = ModelId::new(std::array::from_fn(|i| bytes[8 + i]));
        let (first, count) = (u32_at(bytes, 40), u32_at(bytes, 44));
        let request = match bytes[4] {
            DESCRIBE => Self::Describe { model },
            TREE => Self::Tree { model },
            GROUPS if (1..=MAX_RUN).contains(&count) => Self::Groups { model, first, count },
            GROUPS => return Err(Malformed("the number of groups")),
            _ => return Err(Malformed("the kind of request")),
        };
        match request.encode() == *bytes {
            true => Ok(request),
            false => Err(Malformed("bytes without a meaning are not as they must be")),
        }
    }
}

/// How a request was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// What was asked for follows.
    Fine = 0,
    /// The model, or one of the groups, is not here or not for others.
    NotHeld = 1,
    /// The request was malformed; the stream ends.
    Malformed = 2,
    /// Reading it failed here.
    Failed = 3,
}

/// The head of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The kind of the request.
    pub kind: u8,
    /// How it was taken.
    pub status: Status,
    /// Bytes that follow, 0 unless `status` is `Fine`.
    pub len: u64,
}

impl Answer {
    /// The bytes to send.
    pub fn encode(&self) -> [u8; ANSWER_BYTES] {
        let mut bytes = [0; ANSWER_BYTES];
        bytes[..4].copy_from_slice(MAGIC);
        bytes[4] = self.kind;
        bytes[5] = self.status as u8;
        bytes[8..].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    /// The head in `bytes`.
    ///
    /// # Errors
    /// [`Malformed`] for anything that [`Answer::encode`] does not make.
    pub fn decode(bytes: &[u8; ANSWER_BYTES]) -> Result<Self, Malformed> {
        const ALL: [Status; 4] = [Status::Fine, Status::NotHeld, Status::Malformed, Status::Failed];
        let status = *ALL.get(usize::from(bytes[5])).ok_or(Malformed("the status"))?;
        let len = u64::from_le_bytes(std::array::from_fn(|i| bytes[8 + i]));
        let answer = Self { kind: bytes[4], status, len };
        if status != Status::Fine && len != 0 {
            return Err(Malformed("a refusal with something behind it"));
        }
        match answer.encode() == *bytes {
            true => Ok(answer),
            false => Err(Malformed("bytes without a meaning are not as they must be")),
        }
    }
}

/// What a holder has of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// The length of the file. A claim until the tree proves it.
    pub bytes: u64,
    /// The groups held.
    pub have: GroupSet,
}

impl Description {
    /// The bytes to send: at most [`MAX_DESCRIPTION`].
    pub fn encode(&self) -> Vec<u8> {
        let runs: Vec<Range<u32>> = self.have.runs().take(MAX_RUNS).collect();
        let mut bytes = Vec::with_capacity(16 + 8 * runs.len());
        bytes.extend(self.bytes.to_le_bytes());
        bytes.extend((runs.len() as u32).to_le_bytes());
        bytes.extend([0; 4]);
        for run in runs {
            bytes.extend(run.start.to_le_bytes());
            bytes.extend((run.end - run.start).to_le_bytes());
        }
        bytes
    }

    /// The description in `bytes`.
    ///
    /// # Errors
    /// [`Malformed`] for a length no file may have, runs that are empty, unordered, touching or beyond the file, too
    /// many of them, and bytes left over.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let Some((head, rest)) = bytes.split_first_chunk::<16>() else {
            return Err(Malformed("a description that is too short"));
        };
        let len = u64::from_le_bytes(std::array::from_fn(|i| head[i]));
        if !(1..=MAX_FILE_BYTES).contains(&len) {
            return Err(Malformed("the length of the file"));
        }
        let count = u32_at(head, 8) as usize;
        if count > MAX_RUNS || rest.len() != 8 * count || head[12..] != [0; 4] {
            return Err(Malformed("the number of runs"));
        }
        let groups = group_count(len);
        let mut have = GroupSet::empty(groups);
        let mut free_from = 0;
        for run in rest.chunks_exact(8) {
            let (first, count) = (u32_at(run, 0), u32_at(run, 4));
            let end = first.checked_add(count).filter(|&end| end <= groups);
            let Some(end) = end.filter(|_| count > 0 && first >= free_from) else {
                return Err(Malformed("a run of groups"));
            };
            have.insert_run(first..end);
            // Touching runs would be one run: there is one encoding of every set.
            free_from = end + 1;
        }
        Ok(Self { bytes: len, have })
    }
}

/// Four bytes at `at`, which the caller knows to be there.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::blob::GROUP_BYTES;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn the_bytes_on_the_wire_are_frozen() {
        let model = ModelId::new(std::array::from_fn(|i| i as u8));
        let id = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
        let groups = Request::Groups { model, first: 0x0102, count: 256 };
        let zeros = "0".repeat(32);
        assert_eq!(hex(&groups.encode()), format!("5348423103000000{id}0201000000010000{zeros}"));
        let describe = Request::Describe { model }.encode();
        assert_eq!(hex(&describe), format!("5348423101000000{id}{}{zeros}", "0".repeat(16)));
        assert_eq!(hex(&Request::Tree { model }.encode()[..8]), "5348423102000000");
        let answer = Answer { kind: GROUPS, status: Status::Fine, len: 0x1_0002 };
        assert_eq!(hex(&answer.encode()), "53484231030000000200010000000000");
        let mut have = GroupSet::empty(9);
        have.insert_run(1..4);
        have.insert_run(8..9);
        let description = Description { bytes: 8 * GROUP_BYTES + 1, have };
        let expected = "010008000000000002000000000000000100000003000000".to_string() + "0800000001000000";
        assert_eq!(hex(&description.encode()), expected);
        assert_eq!(Description::decode(&description.encode()), Ok(description));
    }

    #[test]
    fn every_flipped_bit_of_a_head_means_something_else_or_is_refused() {
        let request = Request::Groups { model: ModelId::numbered(7), first: 3, count: 5 };
        let good = request.encode();
        for bit in 0..8 * REQUEST_BYTES {
            let mut bytes = good;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(Request::decode(&bytes), Ok(request), "bit {bit}");
        }
        let answer = Answer { kind: 3, status: Status::Fine, len: 99 };
        for bit in 0..8 * ANSWER_BYTES {
            let mut bytes = answer.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(Answer::decode(&bytes), Ok(answer), "bit {bit}");
        }
    }

    #[test]
    fn numbers_out_of_bounds_are_refused() {
        let model = ModelId::numbered(1);
        for count in [0, MAX_RUN + 1, u32::MAX] {
            assert!(Request::decode(&Request::Groups { model, first: 0, count }.encode()).is_err());
        }
        let describe = |bytes: u64, runs: &[(u32, u32)]| {
            let mut out = bytes.to_le_bytes().to_vec();
            out.extend((runs.len() as u32).to_le_bytes());
            out.extend([0; 4]);
            runs.iter().for_each(|(first, count)| {
                out.extend(first.to_le_bytes());
                out.extend(count.to_le_bytes());
            });
            Description::decode(&out)
        };
        let ten = 10 * GROUP_BYTES;
        assert!(describe(ten, &[(0, 3), (4, 6)]).is_ok());
        for (bytes, runs) in [
            (0, &[][..]),
            (MAX_FILE_BYTES + 1, &[]),
            (u64::MAX, &[(0, 1)]),
            (ten, &[(0, 11)]),
            (ten, &[(10, 1)]),
            (ten, &[(3, 0)]),
            (ten, &[(0, 3), (3, 1)]),
            (ten, &[(4, 1), (0, 1)]),
            (ten, &[(u32::MAX, 2)]),
        ] {
            assert!(describe(bytes, runs).is_err(), "{bytes} {runs:?}");
        }
    }

    #[test]
    fn a_holder_with_too_many_gaps_names_the_first_runs() {
        let mut have = GroupSet::empty(3 * MAX_RUNS as u32);
        (0..3 * MAX_RUNS as u32).step_by(2).for_each(|group| {
            have.insert(group);
        });
        let description = Description { bytes: 3 * MAX_RUNS as u64 * GROUP_BYTES, have };
        let encoded = description.encode();
        assert_eq!(encoded.len(), MAX_DESCRIPTION);
        let heard = Description::decode(&encoded).unwrap().have;
        assert!(heard.len() as usize == MAX_RUNS && description.have.covers(&heard));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic_and_decode_to_themselves(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(description) = Description::decode(&bytes) {
                prop_assert_eq!(description.encode(), bytes.clone());
            }
            if let Some(head) = bytes.first_chunk() && let Ok(request) = Request::decode(head) {
                prop_assert_eq!(&request.encode(), head);
            }
            if let Some(head) = bytes.first_chunk() && let Ok(answer) = Answer::decode(head) {
                prop_assert_eq!(&answer.encode(), head);
            }
        }
    }
}
