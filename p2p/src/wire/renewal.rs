//! A node's word that what it announced last still holds.
//!
//! ```text
//!  "shr1" | node | sequence | of | signature (64 bytes)      116 bytes
//! ```
//!
//! `of` is the sequence number of the announcement that holds on, and `sequence` one above all that the node has used, so a replay
//! is recognized as that of an announcement is. A node that rests says this instead of the whole: some eight hundred bytes.
//!
//! The signature covers everything before it, under the domain `shoal/renewal/1`.

use scheduler::NodeId;

use super::Malformed;
use super::cursor::{Reader, Writer};
use crate::identity::{Identity, verify};

/// Bytes of a renewal.
pub const RENEWAL_BYTES: usize = 4 + 32 + 8 + 8 + 64;

const MAGIC: [u8; 4] = *b"shr1";
const DOMAIN: &str = "shoal/renewal/1";

/// What a node announced last holds on; its signature fits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Renewal {
    /// Who speaks.
    pub node: NodeId,
    /// Which of all that it said this is.
    pub sequence: u64,
    /// The announcement that holds on, below `sequence`.
    pub of: u64,
}

impl Renewal {
    /// Whether `bytes` begin as a renewal does, and not as an announcement.
    pub fn is_meant(bytes: &[u8]) -> bool {
        bytes.starts_with(&MAGIC)
    }

    /// That what `identity` announced with the number `of` holds on.
    pub fn seal(identity: &Identity, sequence: u64, of: u64) -> Vec<u8> {
        let mut to = Writer::new();
        to.bytes(&MAGIC).bytes(identity.node().as_bytes()).u64(sequence).u64(of);
        let signature = identity.sign(DOMAIN, to.as_bytes());
        to.bytes(&signature);
        to.finish()
    }

    /// Reads a renewal and checks its signature.
    ///
    /// # Errors
    /// When the bytes are not one renewal, it renews nothing said before it, or the signature is not that of the node within.
    pub fn open(bytes: &[u8]) -> Result<Self, Malformed> {
        let (body, signature) = bytes.split_last_chunk().ok_or(Malformed("truncated"))?;
        let mut from = Reader::new(body);
        if from.array()? != MAGIC {
            return Err(Malformed("renewal: magic"));
        }
        let (node, sequence, of) = (NodeId::new(from.array()?), from.u64()?, from.u64()?);
        from.finish()?;
        if of >= sequence {
            return Err(Malformed("renewal: sequence"));
        }
        if !verify(node, DOMAIN, body, signature) {
            return Err(Malformed("renewal: signature"));
        }
        Ok(Self { node, sequence, of })
    }
}
