//! Proofs that a stage lied, for any node that can compute.

use std::collections::BTreeMap;
use std::fmt;

use scheduler::{NodeId, SessionId};

use super::chain::{Commit, Grant, Leaf, Terms};
use crate::codec::{self, Wire};
use crate::wire::Malformed;
use crate::wire::announce::Class;
use crate::wire::cursor::{Reader, Writer};
use crate::wire::fields::MAX_POSITIONS;

/// Longest proof between two parties, bytes.
pub const MAX_PROOF: usize = 8 << 20;
/// Longest proof that is forwarded to others, bytes.
pub const MAX_PUBLISHED: usize = 64 << 10;
/// Longest prompt of a proof that is forwarded: what a receiver is willing to compute for strangers.
const MAX_PUBLISHED_POSITIONS: usize = 256;
/// Cases a [`Docket`] remembers; see there.
pub const MAX_CASES: usize = 4_096;

const PROOF: [u8; 4] = *b"shp1";
const EQUIVOCATION: [u8; 4] = *b"she1";

/// Why a proof convicts no node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unproven {
    /// The parts do not belong together, or were not signed by the accused: the accuser lies.
    Forged(&'static str),
    /// Everything belongs together and the accused was right: the accuser lies, or is broken.
    Honest,
    /// Too old to count, or from the future.
    Stale,
    /// Cannot be computed here; ask a node that holds the layers.
    Undecided,
}

impl fmt::Display for Unproven {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forged(part) => write!(f, "a forged proof ({part}): distrust who sent it"),
            Self::Honest => f.write_str("the accused computed right: distrust who sent the proof"),
            Self::Stale => f.write_str("the proof is out of date: ignore it"),
            Self::Undecided => f.write_str("the layers are not held here: let a holder of them decide"),
        }
    }
}

impl std::error::Error for Unproven {}

/// Computes again what a stage claims to have computed. Implemented where the layers are held.
pub trait Reexecute {
    /// The hidden states before `terms.layers` of these tokens, row after row, row `t` as bytes in the form
    /// `forms[t]`; `None` when the layers below are not held.
    fn inputs(&mut self, terms: &Terms, tokens: &[u32], forms: &[Wire]) -> Option<Vec<Vec<u8>>>;

    /// The hidden state after `terms.layers` of the last position of `inputs`, the rows of all positions from 0 on,
    /// as bytes in the form `form`; `None` when the layers are not held.
    fn output(&mut self, terms: &Terms, inputs: &[(Wire, &[u8])], form: Wire) -> Option<Vec<u8>>;
}

/// Where the inputs are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Evidence {
    /// Here, row after row up to the disputed position. They tell the text, so they go to a judge and no further.
    Rows(Vec<u8>),
    /// They follow from these tokens of a prompt that everybody may know, at least up to the disputed position.
    Tokens(Vec<u32>),
}

/// A stage's word for what it computed, and the means to compute it again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FraudProof {
    /// Who is said to have lied.
    pub accused: NodeId,
    /// What it agreed to.
    pub terms: Terms,
    /// Its word.
    pub commit: Commit,
    /// All positions below `commit.pos`.
    pub leaves: Vec<Leaf>,
    /// The position whose output is said to be wrong, below `commit.pos`.
    pub at: u32,
    /// The inputs of the positions up to `at`.
    pub evidence: Evidence,
}

impl FraudProof {
    /// The bytes.
    ///
    /// # Errors
    /// When they are more than [`MAX_PROOF`], or [`FraudProof::decode`] would refuse them.
    pub fn encode(&self) -> Result<Vec<u8>, Malformed> {
        let mut to = Writer::new();
        to.bytes(&PROOF).bytes(self.accused.as_bytes());
        self.terms.write(&mut to);
        to.bytes(&self.commit.write()).long_count(self.leaves.len());
        self.leaves.iter().for_each(|leaf| leaf.write(&mut to));
        to.u32(self.at);
        match &self.evidence {
            Evidence::Rows(rows) => {
                to.u8(0).long_count(rows.len()).bytes(rows);
            }
            Evidence::Tokens(tokens) => {
                to.u8(1).long_count(tokens.len());
                tokens.iter().for_each(|&token| {
                    to.u32(token);
                });
            }
        }
        let bytes = to.finish();
        Self::decode(&bytes).map(|_| bytes)
    }

    /// Reads what [`FraudProof::encode`] wrote. Nothing is proven by that.
    ///
    /// # Errors
    /// When it is no such bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        if bytes.len() > MAX_PROOF {
            return Err(Malformed("proof: length"));
        }
        let mut from = Reader::new(bytes);
        if from.array()? != PROOF {
            return Err(Malformed("proof: magic"));
        }
        let accused = NodeId::new(from.array()?);
        let terms = Terms::read(&mut from)?;
        let commit = Commit::read(&from.array()?)?;
        let count = from.long_count(MAX_POSITIONS as usize, Leaf::LEN)?;
        let leaves = (0..count).map(|_| Leaf::read(&mut from)).collect::<Result<_, _>>()?;
        let at = from.u32()?;
        let evidence = match from.u8()? {
            0 => {
                let len = from.long_count(MAX_PROOF, 1)?;
                Evidence::Rows(from.bytes(len)?.to_vec())
            }
            1 => {
                let count = from.long_count(MAX_POSITIONS as usize, 4)?;
                Evidence::Tokens((0..count).map(|_| from.u32()).collect::<Result<_, _>>()?)
            }
            _ => return Err(Malformed("proof: evidence")),
        };
        from.finish()?;
        Ok(Self { accused, terms, commit, leaves, at, evidence })
    }

    /// Whether it may be shown to all nodes: it is small, and holds no text of a user.
    pub fn is_publishable(&self, encoded: &[u8]) -> bool {
        matches!(self.evidence, Evidence::Tokens(_))
            && self.leaves.len() <= MAX_PUBLISHED_POSITIONS
            && encoded.len() <= MAX_PUBLISHED
    }

    /// What a strike is counted for, once.
    pub fn case(&self) -> Case {
        Case { accused: self.accused, session: self.commit.session, grant: self.commit.grant }
    }

    /// Convicts the accused, or says why not. Needs no network and no trust in who sent the proof; computing comes
    /// last, after everything that is cheap to check.
    ///
    /// # Errors
    /// When no node is convicted.
    pub fn verify(&self, now_unix_s: u32, run: &mut impl Reexecute) -> Result<NodeId, Unproven> {
        let leaf = self.bound(now_unix_s)?;
        let rows = match &self.evidence {
            Evidence::Rows(bytes) => {
                let rows = self.split(bytes)?;
                self.check_inputs(&rows)?;
                self.check_signature()?;
                rows
            }
            Evidence::Tokens(tokens) => {
                self.check_signature()?;
                let rows = self.recompute(tokens, run)?;
                self.check_inputs(&rows)?;
                rows
            }
        };
        let inputs: Vec<(Wire, &[u8])> =
            self.leaves.iter().zip(&rows).map(|(leaf, row)| (leaf.input.wire, row.as_slice())).collect();
        let output = run.output(&self.terms, &inputs, leaf.output.wire).ok_or(Unproven::Undecided)?;
        if self.terms.row_len(leaf.output.wire) != Some(output.len()) {
            return Err(Unproven::Undecided);
        }
        if *blake3::hash(&output).as_bytes() == leaf.output.digest {
            return Err(Unproven::Honest);
        }
        Ok(self.accused)
    }

    /// The disputed leaf, once it is certain that the commitment covers it.
    fn bound(&self, now_unix_s: u32) -> Result<&Leaf, Unproven> {
        if self.terms.class != Class::D1 {
            return Err(Unproven::Forged("the accused does not promise exact results"));
        }
        if self.commit.session != self.terms.session || self.accused == self.terms.requester {
            return Err(Unproven::Forged("terms"));
        }
        let leaf = self.leaves.get(self.at as usize).ok_or(Unproven::Forged("position"))?;
        if self.commit.pos as usize != self.leaves.len() {
            return Err(Unproven::Forged("leaves"));
        }
        if !self.commit.grant.is_current(now_unix_s) {
            return Err(Unproven::Stale);
        }
        let mut head = self.terms.genesis();
        for (pos, leaf) in (0..).zip(&self.leaves) {
            head = leaf.link(pos, &head);
        }
        if head == self.commit.head { Ok(leaf) } else { Err(Unproven::Forged("chain")) }
    }

    fn check_signature(&self) -> Result<(), Unproven> {
        if self.commit.is_by(self.accused) { Ok(()) } else { Err(Unproven::Forged("signature")) }
    }

    /// The rows are those the leaves name, and such as a stage accepts.
    fn check_inputs(&self, rows: &[Vec<u8>]) -> Result<(), Unproven> {
        let mut values = Vec::new();
        for (row, leaf) in rows.iter().zip(&self.leaves) {
            if *blake3::hash(row).as_bytes() != leaf.input.digest {
                return Err(Unproven::Forged("inputs"));
            }
            values.clear();
            codec::decode(leaf.input.wire, self.terms.hidden as usize, 1, row, &mut values)
                .map_err(|_| Unproven::Forged("inputs that no stage accepts"))?;
        }
        Ok(())
    }

    /// The rows up to the disputed position, which must be all that `bytes` holds.
    fn split(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, Unproven> {
        let mut from = Reader::new(bytes);
        let row = |leaf: &Leaf| {
            let len = self.terms.row_len(leaf.input.wire)?;
            from.bytes(len).ok().map(<[u8]>::to_vec)
        };
        let rows: Option<Vec<_>> = self.leaves[..=self.at as usize].iter().map(row).collect();
        rows.filter(|_| from.remaining() == 0).ok_or(Unproven::Forged("rows"))
    }

    fn recompute(&self, tokens: &[u32], run: &mut impl Reexecute) -> Result<Vec<Vec<u8>>, Unproven> {
        let upto = self.at as usize + 1;
        let tokens = tokens.get(..upto).ok_or(Unproven::Forged("tokens"))?;
        let forms: Vec<Wire> = self.leaves[..upto].iter().map(|leaf| leaf.input.wire).collect();
        let rows = run.inputs(&self.terms, tokens, &forms).ok_or(Unproven::Undecided)?;
        if rows.len() == upto { Ok(rows) } else { Err(Unproven::Undecided) }
    }
}

/// Two commitments of one stage that cannot both be true. Proof in itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Equivocation {
    accused: NodeId,
    /// The one with the smaller head first, so a contradiction has one form.
    commits: [Commit; 2],
}

impl Equivocation {
    /// Length, bytes.
    pub const LEN: usize = 4 + 32 + 2 * crate::wire::frame::COMMIT_LEN;

    /// What two commitments of `accused` prove.
    ///
    /// # Errors
    /// When both can be true, or one is not signed by `accused`.
    pub fn new(accused: NodeId, a: Commit, b: Commit) -> Result<Self, Unproven> {
        let commits = if a.head < b.head { [a, b] } else { [b, a] };
        let it = Self { accused, commits };
        it.check().map(|()| it)
    }

    fn check(&self) -> Result<(), Unproven> {
        let [a, b] = &self.commits;
        if (a.session, a.grant, a.epoch, a.pos) != (b.session, b.grant, b.epoch, b.pos) || a.head >= b.head {
            return Err(Unproven::Forged("no contradiction"));
        }
        if a.is_by(self.accused) && b.is_by(self.accused) {
            Ok(())
        } else {
            Err(Unproven::Forged("signature"))
        }
    }

    /// The bytes.
    pub fn encode(&self) -> Vec<u8> {
        let [a, b] = self.commits.map(|commit| commit.write());
        [EQUIVOCATION.as_slice(), self.accused.as_bytes(), &a, &b].concat()
    }

    /// Reads what [`Equivocation::encode`] wrote and checks it.
    ///
    /// # Errors
    /// When it is no such bytes, proves nothing, or is out of date.
    pub fn open(bytes: &[u8], now_unix_s: u32) -> Result<Self, Unproven> {
        let it = Self::read(bytes).map_err(|Malformed(what)| Unproven::Forged(what))?;
        if !it.commits[0].grant.is_current(now_unix_s) {
            return Err(Unproven::Stale);
        }
        it.check().map(|()| it)
    }

    fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader::new(bytes);
        if from.array()? != EQUIVOCATION {
            return Err(Malformed("equivocation: magic"));
        }
        let accused = NodeId::new(from.array()?);
        let commits = [Commit::read(&from.array()?)?, Commit::read(&from.array()?)?];
        from.finish().map(|()| Self { accused, commits })
    }

    /// Who contradicts itself.
    pub fn accused(&self) -> NodeId {
        self.accused
    }

    /// What a strike is counted for, once.
    pub fn case(&self) -> Case {
        let Commit { session, grant, .. } = self.commits[0];
        Case { accused: self.accused, session, grant }
    }
}

/// One chain of one stage: however many proofs there are about it, it is one lie.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Case {
    /// Whose.
    pub accused: NodeId,
    /// In which session.
    pub session: SessionId,
    /// Of which chain.
    pub grant: Grant,
}

/// Which proven lies were counted already, so that showing a proof again counts nothing.
///
/// Cases leave when their proofs have become void. At [`MAX_CASES`] the one counted first leaves early: filling the
/// docket takes as many true proofs, and what it buys is a second strike for a node that did lie.
#[derive(Clone, Default, Debug)]
pub struct Docket {
    /// With the number it was counted as.
    cases: BTreeMap<Case, u64>,
    counted: u64,
}

impl Docket {
    /// Whether a proven case is new and counts; it does not the second time.
    pub fn count(&mut self, case: Case, now_unix_s: u32) -> bool {
        self.cases.retain(|case, _| case.grant.is_current(now_unix_s));
        if !case.grant.is_current(now_unix_s) || self.cases.contains_key(&case) {
            return false;
        }
        if self.cases.len() >= MAX_CASES {
            let first = self.cases.iter().min_by_key(|(_, number)| **number).map(|(&case, _)| case);
            first.and_then(|case| self.cases.remove(&case));
        }
        self.counted += 1;
        self.cases.insert(case, self.counted);
        true
    }
}
