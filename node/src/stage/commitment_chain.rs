//! What a stage signs of its work on one lease: the chain of its inputs and outputs.
//!
//! The chain covers what the cache holds: it is cut where the cache is cut and goes on when the same layers are leased
//! again. Rows of a draft are in it, and are signed only when a later frame or the settling of the session has confirmed them:
//! a stage that signed a rejected row and computed its position again would have signed two things in one place. What was computed in an
//! earlier session and is still here ([`super::prefixes`]) is in it as if it were computed now. A stage signs its head every [`p2p::wire::receipt::EVERY`] positions; one that follows signs after every
//! frame, because whom it follows is waiting to be checked. At the end the head and the count become a bill.
//!
//! Limits: inputs of [`MAX_WAITING`] jobs wait for their outputs, more than the worker is ever given.

use std::collections::VecDeque;

use p2p::{
    Identity,
    codec::Wire,
    wire::{
        Malformed,
        announce::Class,
        control::{Lease, Settlement},
        frame::Header,
        receipt::{Chain, Commit, Grant, Leaf, Row, Terms, Work},
    },
};
use scheduler::{NodeId, SessionId};

use super::{
    prefixes::{Found, Origin},
    step::Step,
};
use crate::sessions::JOBS_AHEAD;

/// Jobs whose outputs are not there yet.
const MAX_WAITING: usize = 2 * JOBS_AHEAD;

/// The chain of one lease.
pub(super) struct CommitmentChain {
    terms: Terms,
    grant: Grant,
    chain: Chain,
    /// Positions below this are confirmed: none of their rows can be rejected.
    confirmed: u32,
    /// By position, whether it was computed alone.
    alone: Vec<bool>,
    /// By position, what went in and came out.
    steps: Vec<Step>,
    waiting: VecDeque<Inputs>,
    last: Option<Commit>,
    /// Whether each of its leases permits that the state is kept on disk.
    on_disk: bool,
    /// Who gave the state that it went on from.
    rests_on: Option<NodeId>,
    /// What rows have not shown to be right yet: of what it went on from, or of what it has computed here all the same.
    fetched: Option<Fetched>,
    /// What it went on from was wrong, and nothing was computed from the first position since.
    void: bool,
}

/// A beginning that another node computed and that rows have not shown to be right yet.
struct Fetched {
    liable: Liable,
    /// The first position that is computed here.
    from: u32,
    /// What that and those after it gave there.
    steps: Vec<Step>,
    /// The requester's rows are others than those that it named: what they give says nothing of who gave the state.
    unsure: bool,
}

/// Where a state that was fetched came from, and what it is here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Liable {
    pub(super) holder: NodeId,
    /// Its entry; see [`super::prefixes::Prefixes::forget`].
    pub(super) number: u64,
    /// What its session is called at the worker.
    pub(super) place: SessionId,
}

impl Fetched {
    /// Whether these rows from position `from` on gave there something else than here.
    fn is_refuted(&mut self, from: u32, inputs: &[Row], outputs: &[Row]) -> bool {
        for (at, (input, output)) in (from..).zip(inputs.iter().zip(outputs)) {
            let known = at.checked_sub(self.from).and_then(|at| self.steps.get(at as usize));
            let Some(known) = known else { continue };
            self.unsure |= known.input != *input;
            if !self.unsure && known.output != *output {
                return true;
            }
        }
        false
    }

    fn end(&self) -> u32 {
        self.from + self.steps.len() as u32
    }
}

/// What rows show of a state that was fetched.
#[derive(Clone, Copy, Debug)]
pub(super) enum Finding {
    /// It is wrong, and what was computed on it goes.
    Wrong(Liable),
    /// Who gave it signed for outputs that its inputs do not give; all of it was computed here.
    Lied(Liable),
    /// So many positions were computed here and gave the same outputs: the states can be compared.
    Comparable(Liable, u32),
}

struct Inputs {
    from: u32,
    rows: Vec<Row>,
    drafted: u16,
    feed: bool,
}

/// What came of an output.
pub(super) struct Said {
    /// Whether it was only to keep up: its output is not sent on.
    pub(super) feed: bool,
    /// How many of its rows, at their end, are drafts.
    pub(super) drafted: u16,
    /// What to sign now.
    pub(super) commit: Option<Commit>,
    /// What these rows show of a state that was fetched.
    pub(super) finding: Option<Finding>,
}

/// Digests of `rows` rows that lie one after the other.
fn digests(rows: u32, wire: Wire, bytes: &[u8]) -> Vec<Row> {
    let row = bytes.len() / rows.max(1) as usize;
    bytes.chunks_exact(row.max(1)).map(|bytes| Row::of(wire, bytes)).collect()
}

/// The bills of a session's chains, once the requester says that positions below `upto` are confirmed.
///
/// It says so of its latest epoch. A chain of an earlier one, whose layers another node took over, may end with drafts that were
/// decided there and not here: of it counts what was confirmed in its own time.
pub(super) fn bills<'c>(
    chains: impl IntoIterator<Item = &'c mut CommitmentChain>,
    upto: u32,
    stage: &Identity,
    unix_s: u32,
) -> Vec<Settlement> {
    let mut chains: Vec<_> = chains.into_iter().collect();
    let latest = chains.iter().map(|chain| chain.chain.epoch()).max();
    let said = |chain: &CommitmentChain| if Some(chain.chain.epoch()) == latest { upto } else { 0 };
    chains.iter_mut().filter_map(|chain| chain.settle(said(chain), stage, unix_s)).collect()
}

/// What a stage and its requester agree on with a lease.
pub(super) fn terms(lease: &Lease, requester: NodeId, (hidden, class): (u32, Class)) -> Terms {
    Terms {
        session: lease.session,
        requester,
        model: lease.model,
        layers: lease.layers,
        hidden,
        class,
        rounding: lease.rounding.clone(),
        kind: lease.kind,
        inner: false,
    }
}

impl CommitmentChain {
    /// The empty chain of a lease; `random` tells it from others of its second.
    pub(super) fn new(
        lease: &Lease,
        requester: NodeId,
        (hidden, class): (u32, Class),
        unix_s: u32,
        random: u32,
    ) -> Self {
        let terms = terms(lease, requester, (hidden, class));
        let grant = Grant::new(unix_s, random);
        let chain = Chain::new(&terms, grant, lease.epoch, lease.positions);
        let (alone, steps, waiting) = Default::default();
        Self {
            terms,
            grant,
            chain,
            confirmed: 0,
            alone,
            steps,
            waiting,
            last: None,
            on_disk: lease.reuse.on_disk,
            rests_on: None,
            fetched: None,
            void: false,
        }
    }

    /// Goes on from the first `have` positions of what was found. Where another node has computed them, the rows that follow show whether it did.
    pub(super) fn go_on_from(&mut self, found: &Found, have: u32) {
        self.resume(&found.steps[..have as usize]);
        self.rests_on = found.origin.map(|origin| origin.holder);
        if found.origin.is_some_and(|origin| !origin.shown) {
            self.compare(found, have);
        }
    }

    /// Computes all of what was found, and compares it with what another node has computed.
    pub(super) fn watch(&mut self, found: &Found) {
        self.compare(found, 0);
    }

    fn compare(&mut self, found: &Found, from: u32) {
        let steps = found.steps.get(from as usize..).unwrap_or_default().to_vec();
        self.fetched = found.origin.map(|Origin { holder, .. }| {
            let liable = Liable { holder, number: found.number, place: found.place };
            Fetched { liable, from, steps, unsure: false }
        });
    }

    /// Where what a later session may go on from came from, if not from here.
    pub(super) fn origin(&self) -> Option<Origin> {
        self.rests_on.map(|holder| Origin { holder, shown: true })
    }

    /// Goes on from an earlier session, as if these steps had been computed now.
    pub(super) fn resume(&mut self, steps: &[Step]) {
        for step in steps {
            if self.push(*step, false).is_err() {
                break;
            }
        }
        self.confirmed = self.positions();
    }

    /// What it was agreed on.
    pub(super) fn terms(&self) -> &Terms {
        &self.terms
    }

    /// The same, and the steps that a later session may go on from: none of their rows can be rejected.
    pub(super) fn keepable(&self) -> (&Terms, Vec<Step>) {
        let sound = !self.void && (self.fetched.is_none() || self.rests_on.is_none());
        let confirmed = if sound { self.steps.len().min(self.confirmed as usize) } else { 0 };
        (&self.terms, self.steps[..confirmed].to_vec())
    }

    fn push(&mut self, step: Step, alone: bool) -> Result<(), Malformed> {
        let Step { input, output } = step;
        self.chain.push(&Leaf { input, output, inner: [0; 32] })?;
        self.alone.push(alone);
        self.steps.push(step);
        Ok(())
    }

    fn truncate(&mut self, to: u32) {
        self.chain.truncate(to);
        self.alone.truncate(to as usize);
        self.steps.truncate(to as usize);
    }

    /// Whether it goes on under this lease.
    pub(super) fn fits(&self, lease: &Lease) -> bool {
        let Terms { layers, rounding, kind, .. } = &self.terms;
        (layers, rounding, kind) == (&lease.layers, &lease.rounding, &lease.kind)
    }

    /// Whether what a later session may go on from may be on disk: the requester permits it, and it was computed here.
    pub(super) fn may_be_filed(&self) -> bool {
        self.on_disk && self.rests_on.is_none()
    }

    /// Goes on under a later lease with the positions below `have`; says how many there are.
    pub(super) fn adopt(&mut self, lease: &Lease, have: u32) -> u32 {
        self.on_disk &= lease.reuse.on_disk;
        self.chain.adopt(lease.epoch, have);
        self.truncate(have);
        self.waiting.clear();
        self.confirmed = self.confirmed.min(self.positions());
        self.positions()
    }

    /// Positions in it.
    pub(super) fn positions(&self) -> u32 {
        self.chain.positions()
    }

    /// Notes the inputs of a job; `feed`: its output is not sent on.
    pub(super) fn received(&mut self, header: &Header, bytes: &[u8], feed: bool) {
        if self.waiting.len() == MAX_WAITING {
            self.waiting.pop_front();
        }
        let Header { from, drafted, .. } = *header;
        let rows = digests(header.rows, header.wire, bytes);
        self.waiting.push_back(Inputs { from, rows, drafted, feed });
    }

    /// Notes the outputs of the job that started at `from`; `None` when its inputs are not known.
    pub(super) fn computed(
        &mut self,
        from: u32,
        rows: u32,
        wire: Wire,
        bytes: &[u8],
        follows: bool,
        stage: &Identity,
    ) -> Option<Said> {
        let inputs = loop {
            // Those before it failed.
            let inputs = self.waiting.pop_front()?;
            if inputs.from == from && inputs.rows.len() == rows as usize {
                break inputs;
            }
        };
        let mut said = Said { feed: inputs.feed, drafted: inputs.drafted, commit: None, finding: None };
        // What still comes of a state that was thrown away goes nowhere.
        self.void &= from > 0;
        said.feed |= self.void;
        let outputs = digests(rows, wire, bytes);
        if let Some(fetched) =
            self.fetched.take_if(|fetched| fetched.is_refuted(from, &inputs.rows, &outputs))
        {
            if self.rests_on.take().is_some() {
                self.truncate(0);
                (self.confirmed, self.void) = (0, true);
                return Some(Said { feed: true, finding: Some(Finding::Wrong(fetched.liable)), ..said });
            }
            said.finding = Some(Finding::Lied(fetched.liable));
        }
        let done = |fetched: &mut Fetched| !fetched.unsure && fetched.end() <= from + rows;
        if let Some(fetched) = self.fetched.take_if(done).filter(|_| self.rests_on.is_none()) {
            said.finding = Some(Finding::Comparable(fetched.liable, fetched.end()));
        }
        if from > self.positions() {
            return Some(said);
        }
        self.truncate(from);
        for (input, output) in inputs.rows.into_iter().zip(outputs) {
            if self.push(Step { input, output }, rows == 1).is_err() {
                return Some(said);
            }
        }
        self.confirmed = (from + rows).saturating_sub(u32::from(inputs.drafted));
        // What follows a stage signs at once, because the stage it follows is waiting to be checked; drafts wait all the same.
        let concludes = follows && inputs.drafted == 0;
        said.commit = if concludes { self.chain.conclude(stage) } else { self.chain.commit(from, stage) };
        self.last = said.commit.or(self.last);
        Some(said)
    }

    /// The commitment to everything confirmed and the bill for it, once the requester says that positions below `upto` are
    /// confirmed; `None` when there is nothing, or it cannot be signed for.
    fn settle(&mut self, upto: u32, stage: &Identity, unix_s: u32) -> Option<Settlement> {
        let confirmed = self.confirmed.max(upto);
        self.truncate(confirmed);
        let commit = self.chain.conclude(stage).or(self.last)?;
        self.last = Some(commit);
        let decode_tokens =
            self.alone.iter().take(commit.pos as usize).filter(|alone| **alone).count() as u32;
        let work = Work {
            stage: stage.node(),
            requester: self.terms.requester,
            session: self.terms.session,
            grant: self.grant,
            model: self.terms.model,
            layers: self.terms.layers,
            prefill_tokens: commit.pos - decode_tokens,
            decode_tokens,
            head: commit.head,
            ended_unix_s: unix_s.max(self.grant.unix_s()),
        };
        let offer = Box::new(work.offer(stage).ok()?.try_into().ok()?);
        Some(Settlement { layers: self.terms.layers, commit: commit.write(), offer })
    }
}

#[cfg(test)]
mod tests {
    use p2p::{
        codec::Rounding,
        wire::control::{Reuse, Role},
    };
    use scheduler::{LayerRange, ModelId, SessionKind};

    use super::*;

    fn lease(epoch: u32, on_disk: bool) -> Lease {
        Lease {
            session: SessionId::numbered(1),
            epoch,
            model: ModelId::numbered(1),
            layers: LayerRange::new(1, 3).unwrap(),
            positions: 64,
            at: 0,
            rounding: Rounding::NONE,
            kind: SessionKind::DEFAULT,
            next: None,
            previous: None,
            log: true,
            ttl_ms: 1_000,
            role: Role::Stage,
            reuse: Reuse { on_disk, ..Reuse::default() },
        }
    }

    /// One lease that does not permit it is enough, whichever it is; and what another node gave is not put on disk.
    #[test]
    fn a_state_may_be_filed_where_all_of_its_leases_permit_it() {
        let filed = |leases: &[bool]| {
            let it = (1, Class::D1);
            let mut word = CommitmentChain::new(&lease(1, leases[0]), NodeId::numbered(1), it, 9, 9);
            for (epoch, permits) in (2..).zip(&leases[1..]) {
                word.adopt(&lease(epoch, *permits), 0);
            }
            word
        };
        let may = |leases: &[bool]| filed(leases).may_be_filed();
        assert!(may(&[true]) && may(&[true, true, true]));
        assert!(!may(&[false]) && !may(&[false, true]) && !may(&[true, false, true]));
        let mut rests = filed(&[true]);
        rests.rests_on = Some(NodeId::numbered(2));
        assert!(!rests.may_be_filed());
    }

    /// Of two chains, the requester's word is about the one of its latest epoch; the other one's drafts are not signed for.
    #[test]
    fn drafts_of_an_earlier_epoch_are_not_signed_for() {
        let stage = Identity::generate().unwrap();
        let chain = |epoch: u32, rows: u32, drafted: u16| {
            let mut chain =
                CommitmentChain::new(&lease(epoch, false), NodeId::numbered(1), (1, Class::D1), 9, 9);
            let bytes = vec![0; 4 * rows as usize];
            let header = Header { drafted, ..Header::activations(Wire::Raw, epoch, 1, 0, rows, 1).unwrap() };
            chain.received(&header, &bytes, false);
            chain.computed(0, rows, Wire::Raw, &bytes, false, &stage).unwrap();
            chain
        };
        let billed = |mut chains: Vec<CommitmentChain>, upto| -> Vec<u32> {
            let bills = bills(&mut chains, upto, &stage, 9);
            bills.iter().map(|bill| Commit::open(&bill.commit, stage.node()).unwrap().pos).collect()
        };
        assert_eq!(billed(vec![chain(1, 7, 3), chain(3, 7, 3)], 6), [4, 6]);
        assert_eq!(billed(vec![chain(3, 7, 3), chain(1, 7, 0)], 6), [6, 7]);
        assert_eq!(billed(vec![chain(1, 7, 3)], 6), [6]);
    }

    /// An honest holder is not blamed for what follows from rows that its requester changed.
    #[test]
    fn a_state_is_refuted_by_the_rows_that_were_signed_for_and_by_no_others() {
        let row = |value: f32| Row::of(Wire::Raw, &value.to_le_bytes());
        let liable = Liable { holder: NodeId::numbered(1), number: 1, place: SessionId::numbered(1) };
        let steps: Vec<Step> =
            (0..4u8).map(|at| Step { input: row(at.into()), output: row(f32::from(at) + 10.0) }).collect();
        let watched = || Fetched { liable, from: 32, steps: steps.clone(), unsure: false };
        let (inputs, outputs): (Vec<Row>, Vec<Row>) =
            steps.iter().map(|step| (step.input, step.output)).unzip();
        let mut honest = watched();
        assert!(!honest.is_refuted(32, &inputs, &outputs) && !honest.unsure && honest.end() == 36);
        assert!(!honest.is_refuted(36, &inputs, &outputs[..1]), "rows behind it say nothing");
        let wrong = [outputs[0], row(0.5)];
        assert!(watched().is_refuted(32, &inputs[..2], &wrong));
        assert!(watched().is_refuted(30, &[row(7.0), row(7.0), inputs[0]], &[row(7.0), row(7.0), row(0.5)]));
        let mut changed = watched();
        assert!(!changed.is_refuted(32, &[row(0.25)], &[row(0.5)]) && changed.unsure);
        assert!(!changed.is_refuted(33, &inputs[1..2], &[row(0.5)]), "it follows from the changed one");
    }
}
