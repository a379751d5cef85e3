//! What stages and those who follow them signed, beside what the log has.
//!
//! One book per range of layers: a chain over the logged inputs and outputs, as the stage itself keeps one, and the
//! commitments of everybody who ran or followed the range. A commitment waits until the log has got as far, then it
//! agrees or not. Who follows and agrees has computed the same bits on its own: everything below is checked. Where two
//! disagree, [`Book::rule`] says what follows from the word of a third holder, [`Book::upheld`] what follows when the log
//! is right, and [`Book::proof`] what convicts the node that made it wrong.
//!
//! Limits: [`MAX_WAITING`] commitments of one node wait; the oldest goes, since a later one says more. [`Signatures`]
//! remembers [`MAX_SIGNED`] of a session.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Instant,
};

use p2p::wire::receipt::{Chain, Commit, Equivocation, Evidence, FraudProof, Grant, Leaf, Row, Terms};
use scheduler::{
    LayerRange, NodeId, OperatorId,
    trust::{Outcome, Testimony, Verdict, judge},
};

use super::replay_log::Logs;

/// Commitments of one node that the log has not got to.
const MAX_WAITING: usize = 16;
/// Commitments of a session remembered, 200 KB; beyond, the oldest are forgotten, and what contradicts them is believed.
const MAX_SIGNED: usize = 1_024;

/// What one node signed for one range.
#[derive(Default)]
pub(super) struct Word {
    /// Its inputs came from here, so they are the log's for certain.
    pub(super) follows: bool,
    waiting: VecDeque<Commit>,
    /// The latest that agrees with the log.
    pub(super) good: Option<Commit>,
    /// One that does not.
    pub(super) bad: Option<Commit>,
}

/// A third holder that was asked to compute a disputed range again.
#[derive(Clone, Copy)]
pub(super) struct Third {
    /// Who.
    pub(super) node: NodeId,
    /// Positions in dispute: agreed below the first, signed for up to the second.
    pub(super) window: (u32, u32),
    /// Whether it signs for every position of the window, so that it says which one is wrong.
    pub(super) exact: bool,
    /// When.
    pub(super) asked: Instant,
}

/// What a third holder's word decides.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Ruling {
    /// The log is right below this position.
    Upheld(u32),
    /// The log is wrong from a position on that is not below `at`; `exact` when it is `at` itself.
    Wrong {
        /// The first position that is not agreed.
        at: u32,
        /// Whether that very position is wrong.
        exact: bool,
    },
    /// All three differ, or two of them are one operator's: only an own computation decides.
    Open,
}

/// One range of layers.
pub(super) struct Book {
    pub(super) terms: Terms,
    /// As the log has it.
    pub(super) chain: Chain,
    pub(super) words: BTreeMap<NodeId, Word>,
    /// Positions below this were computed by another node too, with the same result.
    pub(super) checked: u32,
    pub(super) by: BTreeSet<NodeId>,
    /// Nodes whose answer for a position came second and was another.
    pub(super) rivals: BTreeSet<NodeId>,
    /// The audit under way.
    pub(super) audit: Option<u32>,
    /// The third holder that is computing it again.
    pub(super) third: Option<Third>,
    /// A third holder was asked and decided nothing.
    pub(super) open: bool,
    /// It cannot be computed again here.
    pub(super) undecided: bool,
}

impl Book {
    /// An empty book with room for `positions`.
    pub(super) fn new(terms: Terms, positions: u32) -> Self {
        let chain = Chain::new(&terms, Grant::new(0, 0), 0, positions);
        Self {
            terms,
            chain,
            words: BTreeMap::new(),
            checked: 0,
            by: BTreeSet::new(),
            rivals: BTreeSet::new(),
            audit: None,
            third: None,
            open: false,
            undecided: false,
        }
    }

    /// Its layers.
    pub(super) fn layers(&self) -> LayerRange {
        self.terms.layers
    }

    fn leaf(&self, logs: &Logs, position: u32) -> Option<Leaf> {
        let row = |layer| logs.row(layer, position).map(|(wire, bytes)| Row::of(wire, bytes));
        Some(Leaf { input: row(self.layers().start())?, output: row(self.layers().end())?, inner: [0; 32] })
    }

    /// Notes a commitment that was signed by `node`.
    pub(super) fn signed(&mut self, node: NodeId, follows: bool, commit: Commit) {
        let word = self.words.entry(node).or_default();
        word.follows = follows;
        if word.waiting.len() == MAX_WAITING {
            word.waiting.pop_front();
        }
        word.waiting.push_back(commit);
    }

    /// Takes the chain as far as the log is and compares; true when a follower disagrees.
    pub(super) fn compare(&mut self, logs: &Logs) -> bool {
        while let Some(leaf) = self.leaf(logs, self.chain.positions()) {
            if self.chain.push(&leaf).is_err() {
                break;
            }
        }
        let mut disputed = !self.rivals.is_empty();
        for (node, word) in &mut self.words {
            while word.waiting.front().is_some_and(|commit| commit.pos <= self.chain.positions()) {
                let Some(commit) = word.waiting.pop_front() else { break };
                match self.chain.agrees(&commit) {
                    Some(true) => {
                        word.good = Some(commit);
                        if word.follows {
                            self.checked = self.checked.max(commit.pos);
                            self.by.insert(*node);
                        }
                    }
                    Some(false) => word.bad = Some(commit),
                    None => {}
                }
            }
            disputed |= word.bad.is_some();
        }
        disputed
    }

    /// What is worthless from position `to` on is forgotten, with everything signed about it.
    pub(super) fn forget(&mut self, to: u32) {
        self.chain.truncate(to);
        self.checked = self.checked.min(to);
        self.words.clear();
        self.rivals.clear();
        self.audit = None;
        self.third = None;
    }

    /// The positions that a follower disputes: checked below the first, signed for up to the second.
    pub(super) fn disputed(&self) -> Option<(u32, u32)> {
        let bad = |word: &Word| word.bad.filter(|_| word.follows).map(|commit| commit.pos);
        let upto = self.words.values().filter_map(bad).min()?;
        (self.checked < upto).then_some((self.checked, upto))
    }

    /// What follows from the word of a third holder, once it has given it; `author` gave the rows in dispute. All three
    /// are heard on the head after the same position, and operators count, not nodes.
    pub(super) fn rule(&self, author: NodeId, operator: impl Fn(NodeId) -> OperatorId) -> Option<Ruling> {
        let Third { node, window: (from, upto), exact, .. } = self.third?;
        let at = |commit: &Option<Commit>| commit.filter(|commit| commit.pos == upto);
        let third = self.words.get(&node)?;
        let said = at(&third.bad).or(at(&third.good))?;
        let heard = |node, digest| Testimony { node, operator: operator(node), digest };
        let mut all = vec![heard(author, *self.chain.head(upto)?), heard(node, said.head)];
        let others = self.words.iter().filter(|(other, word)| **other != node && word.follows);
        all.extend(others.filter_map(|(other, word)| Some(heard(*other, at(&word.bad)?.head))));
        let first = third.good.map_or(from, |good| good.pos.max(from));
        Some(match judge(&all, None) {
            Verdict::Wrong(nodes) if nodes.contains(&author) => Ruling::Wrong { at: first, exact },
            Verdict::Wrong(_) | Verdict::Agreed => Ruling::Upheld(upto),
            Verdict::AskAnother | Verdict::Recompute => Ruling::Open,
        })
    }

    /// The log is right below `upto`, as `by` found: who said otherwise, and what is to be noted of them. One who was fed
    /// from the log and signed for something else lied; of others it is not known what they were given.
    pub(super) fn upheld(&mut self, upto: u32, by: NodeId) -> Vec<(NodeId, Outcome)> {
        self.checked = self.checked.max(upto);
        self.by.insert(by);
        let rivals = std::mem::take(&mut self.rivals).into_iter();
        let mut wrong: Vec<(NodeId, Outcome)> = rivals.map(|node| (node, Outcome::Aborted)).collect();
        for (node, word) in &mut self.words {
            if word.bad.take_if(|commit| commit.pos <= upto).is_some() {
                wrong.push((*node, if word.follows { Outcome::Mismatch } else { Outcome::Aborted }));
            }
        }
        wrong
    }

    /// Whether `node` signed for what the log has of all positions below `upto`.
    pub(super) fn signed_for(&self, node: NodeId, upto: u32) -> bool {
        let good = self.words.get(&node).and_then(|word| word.good);
        good.is_some_and(|commit| commit.pos >= upto)
    }

    /// The case against `node`, whose output at position `at` is not what its inputs give; `None` when it signed for
    /// nothing of the kind.
    pub(super) fn proof(&self, logs: &Logs, node: NodeId, at: u32) -> Option<FraudProof> {
        let commit = self.words.get(&node)?.good.filter(|commit| commit.pos > at)?;
        let leaves = (0..commit.pos).map(|position| self.leaf(logs, position)).collect::<Option<Vec<_>>>()?;
        let (_, rows) = logs.get(self.layers().start(), 0, at + 1)?;
        let evidence = Evidence::Rows(rows.to_vec());
        Some(FraudProof { accused: node, terms: self.terms.clone(), commit, leaves, at, evidence })
    }
}

/// What everybody signed in a session, to find who signs two things in one place.
#[derive(Default)]
pub(super) struct Signatures {
    said: BTreeMap<(NodeId, Grant, u32, u32), Commit>,
    order: VecDeque<(NodeId, Grant, u32, u32)>,
}

impl Signatures {
    /// Notes a commitment that was signed by `node`; the proof, when it cannot be true beside an earlier one.
    pub(super) fn note(&mut self, node: NodeId, commit: Commit) -> Option<Equivocation> {
        let place = (node, commit.grant, commit.epoch, commit.pos);
        if let Some(before) = self.said.get(&place) {
            return Equivocation::new(node, *before, commit).ok();
        }
        if self.order.len() == MAX_SIGNED
            && let Some(oldest) = self.order.pop_front()
        {
            self.said.remove(&oldest);
        }
        self.order.push_back(place);
        self.said.insert(place, commit);
        None
    }
}

#[cfg(test)]
mod tests {
    use p2p::{
        Identity,
        codec::{Rounding, Wire},
        wire::{
            announce::Class,
            receipt::{Chain, Commit, Grant, Leaf, Reexecute, Row, Terms, Unproven},
        },
    };
    use scheduler::{LayerRange, ModelId, NodeId, SessionId, SessionKind};

    use super::{super::replay_log::Logs, Book};

    /// A layer that turns a row into its double.
    struct Doubles;

    impl Reexecute for Doubles {
        fn inputs(&mut self, _: &Terms, _: &[u32], _: &[Wire]) -> Option<Vec<Vec<u8>>> {
            None
        }

        fn output(&mut self, _: &Terms, inputs: &[(Wire, &[u8])], _: Wire) -> Option<Vec<u8>> {
            let row: Vec<f32> =
                inputs.last()?.1.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
            Some(row.iter().flat_map(|x| (2.0 * x).to_le_bytes()).collect())
        }
    }

    fn row(value: f32) -> Vec<u8> {
        [value.to_le_bytes(), (value + 0.5).to_le_bytes()].concat()
    }

    fn terms() -> Terms {
        Terms {
            session: SessionId::numbered(1),
            requester: NodeId::numbered(7),
            model: ModelId::new([3; 32]),
            layers: LayerRange::new(2, 4).unwrap(),
            hidden: 2,
            class: Class::D1,
            rounding: Rounding::NONE,
            kind: SessionKind::DEFAULT,
            inner: false,
        }
    }

    /// The commitment of a stage that doubles, and from position `lies` on does not quite.
    fn commit(identity: &Identity, lies: u32, now: u32) -> (Commit, Vec<Vec<u8>>) {
        let mut chain = Chain::new(&terms(), Grant::new(now, 1), 1, 64);
        let outputs: Vec<Vec<u8>> = (0..20_u32)
            .map(|p| {
                let right = row(2.0 * p as f32).len();
                let mut out = Doubles.output(&terms(), &[(Wire::Raw, &row(p as f32))], Wire::Raw).unwrap();
                assert_eq!(out.len(), right);
                out[0] ^= u8::from(p >= lies);
                out
            })
            .collect();
        for (p, output) in outputs.iter().enumerate() {
            let leaf = Leaf {
                input: Row::of(Wire::Raw, &row(p as f32)),
                output: Row::of(Wire::Raw, output),
                inner: [0; 32],
            };
            chain.push(&leaf).unwrap();
        }
        (chain.conclude(identity).unwrap(), outputs)
    }

    #[test]
    fn a_follower_checks_a_stage_and_a_lie_can_be_proven() {
        let now = 1_800_000_000;
        let (liar, honest) = (Identity::from_seed([1; 32]), Identity::from_seed([2; 32]));
        let (lie, outputs) = commit(&liar, 11, now);
        let (truth, _) = commit(&honest, u32::MAX, now);
        let mut logs = Logs::new(2);
        let mut book = Book::new(terms(), 64);
        book.signed(liar.node(), false, lie);
        book.signed(honest.node(), true, truth);
        for p in 0..20_u32 {
            logs.add(2, p, 1, Wire::Raw, &row(p as f32), NodeId::numbered(7)).unwrap();
            assert!(!book.compare(&logs), "nothing is compared before the log is there");
            logs.add(4, p, 1, Wire::Raw, &outputs[p as usize], liar.node()).unwrap();
        }
        assert!(book.compare(&logs), "the follower disagrees");
        assert_eq!((book.checked, book.by.len()), (0, 0));
        assert_eq!(logs.author(4, 11), Some(liar.node()));
        let proof = book.proof(&logs, liar.node(), 11).unwrap();
        let again = p2p::wire::receipt::FraudProof::decode(&proof.encode().unwrap()).unwrap();
        assert_eq!(again.verify(now, &mut Doubles), Ok(liar.node()));
        let innocent = book.proof(&logs, liar.node(), 10).unwrap();
        assert_eq!(innocent.verify(now, &mut Doubles), Err(Unproven::Honest), "it was right there");
        let framed = p2p::wire::receipt::FraudProof { accused: honest.node(), ..proof };
        assert_eq!(framed.verify(now, &mut Doubles), Err(Unproven::Forged("signature")));
        assert!(book.proof(&logs, honest.node(), 11).is_none(), "it signed for something else");
    }

    #[test]
    fn who_agrees_has_checked() {
        let now = 1_800_000_000;
        let (stage, follower) = (Identity::from_seed([1; 32]), Identity::from_seed([2; 32]));
        let mut logs = Logs::new(2);
        let (word, outputs) = commit(&stage, u32::MAX, now);
        for p in 0..20_u32 {
            logs.add(2, p, 1, Wire::Raw, &row(p as f32), NodeId::numbered(7)).unwrap();
            logs.add(4, p, 1, Wire::Raw, &outputs[p as usize], stage.node()).unwrap();
        }
        let mut book = Book::new(terms(), 64);
        book.signed(stage.node(), false, word);
        assert!(!book.compare(&logs));
        assert_eq!(book.checked, 0, "no node is its own witness");
        book.signed(follower.node(), true, commit(&follower, u32::MAX, now + 1).0);
        assert!(!book.compare(&logs));
        assert_eq!((book.checked, book.by.first()), (20, Some(&follower.node())));
        book.forget(5);
        assert_eq!((book.checked, book.chain.positions()), (5, 5));
    }
}
