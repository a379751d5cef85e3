//! What a stage signs of its work, and what that proves.
//!
//! ```text
//!  terms ── genesis ─▶ head 0 ─▶ head 1 ─▶ .. ─▶ head 16 ─▶ ..        head p+1 = hash(head p | leaf p)
//!                         leaf 0    leaf 1          │
//!                     (input, output digest)     Commit, signed by the stage
//! ```
//!
//! * [`Terms`]: what was agreed; its digest starts the chain, so a head fits one session, model, range and rounding.
//! * [`Leaf`]: one position, as digests of the bytes of its input and output rows. One per position and not per
//!   frame: the chain does not depend on how positions were cut into frames, so a shadow that replays in chunks has
//!   the head of the stage it follows, and one comparison covers the whole prefix.
//! * [`Commit`]: every [`EVERY`] positions the stage signs its head. Together with leaves it binds the stage to every
//!   output it gave.
//! * [`Receipt`]: at the end the stage signs what it did and the requester signs that it got it. A node that conducted a whole prompt
//!   for a peer does so too, as a stage of all layers; in place of a head it has a digest of the tokens that it said.
//! * [`FraudProof`]: a commitment, its leaves and the inputs of a position. A node that holds the layers computes the
//!   output again; under the profile `d1` another digest is a lie. [`Equivocation`]: two commitments that cannot both
//!   be true. Both verify offline and need no trust in who shows them.
//!
//! Epochs do not enter the chain, since a new epoch recomputes the same values; they enter the commitment, since what
//! a stage computes of a prefix that the requester gave up is no lie.
//!
//! A requester chooses sessions, so it could make an honest stage sign two different chains for one session by
//! opening it twice with different inputs. Hence the [`Grant`]: a number that the stage draws afresh whenever it starts
//! a chain from nothing. Two heads contradict each other only under one grant. It carries the time, which makes old
//! proofs void: a strike is counted once, and not again when it is forgiven ([`Docket`]).
//!
//! Limits: digests convict nodes of class `d1` only; a node that computes approximately is checked by tolerance. Rows
//! are hashed as they travel, so two chains compare only if their boundaries travel in the same forms. A proof about
//! a user's text is the text: only proofs about known prompts ([`Evidence::Tokens`]) are for others' eyes.

mod chain;
mod proof;

pub use chain::{Chain, Commit, EVERY, Grant, Leaf, MAX_AGE_S, MAX_SKEW_S, Row, Terms};
pub use proof::{
    Docket, Equivocation, Evidence, FraudProof, MAX_CASES, MAX_PROOF, MAX_PUBLISHED, Reexecute, Unproven,
};

use scheduler::capability::MAX_LAYERS;
use scheduler::{LayerRange, ModelId, NodeId, SessionId};

use super::Malformed;
use super::cursor::{Reader, Writer};
use super::fields::{MAX_POSITIONS, read_range, write_range};
use crate::identity::{Identity, verify};

const RECEIPT: [u8; 4] = *b"shr1";
const CHALLENGE: [u8; 4] = *b"shq1";
const STAGE_DOMAIN: &str = "shoal/receipt/stage/1";
const REQUESTER_DOMAIN: &str = "shoal/receipt/requester/1";
const CHALLENGE_DOMAIN: &str = "shoal/challenge/1";

/// Most positions one challenge may ask for.
pub const MAX_CHALLENGED: u32 = 256;

/// blake3 of a domain, a zero byte and the parts, whose lengths the domain fixes.
fn hash(domain: &str, parts: &[&[u8]]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(domain.as_bytes()).update(&[0]);
    parts.iter().for_each(|part| {
        hasher.update(part);
    });
    *hasher.finalize().as_bytes()
}

/// What a stage did for a requester in one session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Work {
    /// Who did it.
    pub stage: NodeId,
    /// For whom.
    pub requester: NodeId,
    /// In which session.
    pub session: SessionId,
    /// Under which grant; with `stage` and `session` it names this work.
    pub grant: Grant,
    /// With which model.
    pub model: ModelId,
    /// Which layers of it.
    pub layers: LayerRange,
    /// Positions computed in prompts.
    pub prefill_tokens: u32,
    /// Positions computed one by one.
    pub decode_tokens: u32,
    /// Head of the chain at the end.
    pub head: [u8; 32],
    /// When it ended, seconds of Unix time.
    pub ended_unix_s: u32,
}

/// Work that both sides signed for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Receipt {
    work: Work,
}

impl Work {
    /// Length of a receipt with one signature, bytes.
    pub const OFFER_LEN: usize = Self::LEN + 64;
    const LEN: usize = 4 + 32 + 32 + 16 + 8 + 32 + 8 + 4 + 4 + 32 + 4;

    fn write(&self) -> Vec<u8> {
        let mut to = Writer::new();
        to.bytes(&RECEIPT).bytes(self.stage.as_bytes()).bytes(self.requester.as_bytes());
        to.bytes(self.session.as_bytes()).u64(self.grant.0).bytes(self.model.as_bytes());
        write_range(self.layers, &mut to);
        to.u32(self.prefill_tokens).u32(self.decode_tokens).bytes(&self.head).u32(self.ended_unix_s);
        to.finish()
    }

    fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader::new(bytes);
        if from.array()? != RECEIPT {
            return Err(Malformed("receipt: magic"));
        }
        let work = Self {
            stage: NodeId::new(from.array()?),
            requester: NodeId::new(from.array()?),
            session: SessionId::new(from.array()?),
            grant: Grant(from.u64()?),
            model: ModelId::new(from.array()?),
            layers: read_range(&mut from, MAX_LAYERS)?,
            prefill_tokens: from.u32()?,
            decode_tokens: from.u32()?,
            head: from.array()?,
            ended_unix_s: from.u32()?,
        };
        let tokens = work.prefill_tokens.checked_add(work.decode_tokens);
        if !tokens.is_some_and(|tokens| (1..=MAX_POSITIONS).contains(&tokens)) {
            return Err(Malformed("receipt: tokens"));
        }
        if work.stage == work.requester || work.ended_unix_s < work.grant.unix_s() {
            return Err(Malformed("receipt: parties or time"));
        }
        from.finish().map(|()| work)
    }

    /// Signs as the stage: the bytes a requester is asked to sign too.
    ///
    /// # Errors
    /// When `stage` is not who did the work, or a number is beyond its bound.
    pub fn offer(&self, stage: &Identity) -> Result<Vec<u8>, Malformed> {
        if stage.node() != self.stage {
            return Err(Malformed("receipt: stage"));
        }
        let body = self.write();
        Self::read(&body)?;
        let signature = stage.sign(STAGE_DOMAIN, &body);
        Ok([body.as_slice(), &signature].concat())
    }

    /// Reads what [`Work::offer`] wrote. The requester compares it with its own count before it signs.
    ///
    /// # Errors
    /// When it is no such bytes, or not signed by the stage within.
    pub fn open_offer(bytes: &[u8]) -> Result<Self, Malformed> {
        let (body, signature) = bytes.split_last_chunk().ok_or(Malformed("truncated"))?;
        let work = Self::read(body)?;
        if verify(work.stage, STAGE_DOMAIN, body, signature) {
            Ok(work)
        } else {
            Err(Malformed("receipt: signature"))
        }
    }
}

impl Receipt {
    /// Length, bytes.
    pub const LEN: usize = Work::OFFER_LEN + 64;

    /// Signs a stage's offer as the requester: the bytes of a receipt.
    ///
    /// # Errors
    /// When the offer is not signed by its stage, or is for another requester.
    pub fn cosign(offer: &[u8], requester: &Identity) -> Result<Vec<u8>, Malformed> {
        if Work::open_offer(offer)?.requester != requester.node() {
            return Err(Malformed("receipt: requester"));
        }
        let signature = requester.sign(REQUESTER_DOMAIN, offer);
        Ok([offer, &signature].concat())
    }

    /// Reads what [`Receipt::cosign`] wrote.
    ///
    /// # Errors
    /// When it is no such bytes, or a signature is not that of the party within.
    pub fn open(bytes: &[u8]) -> Result<Self, Malformed> {
        let (offer, signature) = bytes.split_last_chunk().ok_or(Malformed("truncated"))?;
        let work = Work::open_offer(offer)?;
        if verify(work.requester, REQUESTER_DOMAIN, offer, signature) {
            Ok(Self { work })
        } else {
            Err(Malformed("receipt: signature"))
        }
    }

    /// What was done.
    pub fn work(&self) -> &Work {
        &self.work
    }
}

/// What a challenged stage must show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Show {
    /// The outputs of these positions, computed again from its log of inputs.
    Outputs,
    /// The hidden states before this layer of its range, for a requester that holds one layer.
    Inner {
        /// Which layer.
        layer: u32,
    },
    /// The answer of the golden test with this seed.
    Golden {
        /// Which test.
        seed: u64,
    },
}

/// A signed demand to show work. Unanswered by its deadline it counts as a stall, not as a lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Challenge {
    /// Who demands.
    pub requester: NodeId,
    /// Of whom.
    pub stage: NodeId,
    /// In which session.
    pub session: SessionId,
    /// What.
    pub show: Show,
    /// First position.
    pub from: u32,
    /// Positions, 1 to [`MAX_CHALLENGED`]; 0 for [`Show::Golden`].
    pub rows: u32,
    /// How long the answer may take, ms, at least 1.
    pub deadline_ms: u32,
}

impl Challenge {
    /// The signed bytes.
    ///
    /// # Errors
    /// When `requester` is not who demands, or a number is beyond its bound.
    pub fn seal(&self, requester: &Identity) -> Result<Vec<u8>, Malformed> {
        let mut to = Writer::new();
        to.bytes(&CHALLENGE).bytes(self.requester.as_bytes()).bytes(self.stage.as_bytes());
        to.bytes(self.session.as_bytes());
        match self.show {
            Show::Outputs => to.u8(0).u64(0),
            Show::Inner { layer } => to.u8(1).u64(u64::from(layer)),
            Show::Golden { seed } => to.u8(2).u64(seed),
        };
        to.u32(self.from).u32(self.rows).u32(self.deadline_ms);
        let signature = requester.sign(CHALLENGE_DOMAIN, to.as_bytes());
        to.bytes(&signature);
        let bytes = to.finish();
        Self::open(&bytes).map(|_| bytes)
    }

    /// Reads what [`Challenge::seal`] wrote.
    ///
    /// # Errors
    /// When it is no such bytes, or not signed by the requester within.
    pub fn open(bytes: &[u8]) -> Result<Self, Malformed> {
        let (body, signature) = bytes.split_last_chunk().ok_or(Malformed("truncated"))?;
        let mut from = Reader::new(body);
        if from.array()? != CHALLENGE {
            return Err(Malformed("challenge: magic"));
        }
        let (requester, stage) = (NodeId::new(from.array()?), NodeId::new(from.array()?));
        let session = SessionId::new(from.array()?);
        let show = match (from.u8()?, from.u64()?) {
            (0, 0) => Show::Outputs,
            (1, layer) => match u32::try_from(layer) {
                Ok(layer) if layer < MAX_LAYERS => Show::Inner { layer },
                _ => return Err(Malformed("challenge: layer")),
            },
            (2, seed) => Show::Golden { seed },
            _ => return Err(Malformed("challenge: kind")),
        };
        let it = Self {
            requester,
            stage,
            session,
            show,
            from: from.u32()?,
            rows: from.u32()?,
            deadline_ms: from.u32()?,
        };
        let golden = matches!(show, Show::Golden { .. });
        let rows = if golden { it.rows == 0 } else { (1..=MAX_CHALLENGED).contains(&it.rows) };
        if !rows || it.from.checked_add(it.rows).is_none_or(|to| to > MAX_POSITIONS) || it.deadline_ms == 0 {
            return Err(Malformed("challenge: range"));
        }
        from.finish()?;
        if verify(requester, CHALLENGE_DOMAIN, body, signature) {
            Ok(it)
        } else {
            Err(Malformed("challenge: signature"))
        }
    }
}

#[cfg(test)]
mod tests;
