//! Strangers are checked: who signed what, who agrees, and what happens to a liar.
//!
//! ```text
//!   commitments ──> books: do they agree with the log? ──yes──> checked
//!                       │ no
//!                       ▼
//!                 third.rs: another holder is asked; where there is none,
//!                 audit: the range once more, in an own worker
//!                       │
//!         log is right ─┴─ log is wrong from position p on
//!              │                     │
//!   who signed otherwise        who gave that row: proof, strike; all stages forget what follows from it,
//!   from the same inputs        another stage goes on; tokens not shown yet are generated again
//! ```
//!
//! A strike needs the liar's signature over what the log has, or, for one who was fed from the log, over something else.
//! Without one (a stage may truly have had other inputs, from a lying neighbor) the node is only left. One of class `approx`
//! signs nothing that could be compared: it is struck for rows too far off whose inputs came from here. Who signs two
//! things in one place is struck at once, whatever is true.
//!
//! With [`Verify::Strict`] a token is shown once all that it follows from is checked, so what is shown is right; a range
//! has no follower is audited at the end. With [`Verify::Sample`] tokens are shown as they come: a lie may be read before
//! it is found, at most a few frames later, and the answer then says so. What is drawn to be audited at its end is audited
//! behind it: the answer ends before, says that it is still being checked, and `why` has what came of it.
//!
//! Limits: an audit needs the model's file ([`crate::audit`]); where no node follows and none can audit, nothing is
//! checked and the answer says that. Nodes of class `approx` are not compared by bits: a segment that one runs is drawn like
//! any other, and its rows must be near what its layers give ([`shard::tolerance`]). They never serve a strict answer.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use p2p::wire::{
    control::{Ask, Settlement},
    frame::{COMMIT_LEN, Header},
    receipt::{Commit, FraudProof, Receipt, Work},
};
use scheduler::{LayerRange, NodeId, Segment, recover::Failure, session::Event, trust::Outcome};

use super::{
    commitments::{Book, Signatures},
    lease::LEASE_MS,
    plan::{Progress, Report},
    replay_log::Logs,
    state::RequestState,
};
use crate::{
    audit::Audit,
    clock,
    control::{Shadow, Verify},
    sessions::Order,
};

/// The last token of a strict answer waits this long for its check.
const BARRIER: Duration = Duration::from_secs(20);

/// A node that gave a wrong row and had not signed for it yet.
pub(super) struct Suspect {
    pub(super) node: NodeId,
    layers: LayerRange,
    at: u32,
    /// Set when only a position below this is known to be wrong, not which.
    upto: Option<u32>,
    /// The book as it was then, with the case but for the signature.
    book: Book,
    logs: Logs,
}

/// What became of checking, as far as the session is.
#[derive(Default)]
pub(super) struct Checks {
    pub(super) books: Vec<Book>,
    pub(super) suspects: Vec<Suspect>,
    pub(super) outcomes: Vec<(NodeId, Outcome)>,
    /// Proven liars: never asked again in this session.
    pub(super) denied: BTreeSet<NodeId>,
    /// Commitments of earlier epochs are about rows that were forgotten.
    since_epoch: u32,
    pub(super) audits: u32,
    signatures: Signatures,
    /// The last token of a strict answer, until when it waits, and its position.
    pub(super) last: Option<(Event, Instant, u32)>,
    /// By the layer it enters: since which epoch and position a stage calls its input garbled.
    garbled: BTreeMap<u32, (u32, u32)>,
}

impl Checks {
    pub(super) fn book(&mut self, state: &RequestState, layers: LayerRange) -> &mut Book {
        if let Some(at) = self.books.iter().position(|book| book.layers() == layers) {
            return &mut self.books[at];
        }
        let terms = state.terms(layers);
        let positions = state.plan.prompt.len() as u32 + state.plan.max_tokens;
        self.books.push(Book::new(terms, positions));
        let last = self.books.len() - 1;
        &mut self.books[last]
    }

    pub(super) fn checked(&self, layers: LayerRange) -> u32 {
        self.books.iter().find(|book| book.layers() == layers).map_or(0, |book| book.checked)
    }

    /// Positions below this are checked in all segments that others run.
    fn checked_everywhere(&self, state: &RequestState) -> u32 {
        state.strangers().iter().map(|segment| self.checked(segment.layers)).min().unwrap_or(u32::MAX)
    }

    /// A commitment came.
    pub(super) fn committed(
        &mut self,
        state: &mut RequestState,
        stage: usize,
        node: NodeId,
        header: Header,
        payload: &[u8],
    ) -> Vec<Event> {
        let Some(segment) = state.segment(stage) else { return Vec::new() };
        let commit = <&[u8; COMMIT_LEN]>::try_from(payload).ok().and_then(|it| Commit::open(it, node).ok());
        let Some(commit) = commit.filter(|commit| commit.epoch == header.epoch) else {
            tracing::warn!(%node, "a commitment that its sender did not sign");
            return state.failed(node, Failure::Corrupt);
        };
        let contradicts = self.signed(state, segment.layers, node, segment.node != node, commit);
        if contradicts { state.failed(node, Failure::Corrupt) } else { Vec::new() }
    }

    /// Notes a commitment; true when its signer signed something else in the same place before.
    fn signed(
        &mut self,
        state: &mut RequestState,
        layers: LayerRange,
        node: NodeId,
        follows: bool,
        commit: Commit,
    ) -> bool {
        if let Some(proof) = self.signatures.note(node, commit) {
            tracing::warn!(%node, %layers, "signed two things that cannot both be true");
            self.outcomes.push((node, Outcome::Equivocated));
            self.denied.insert(node);
            state.report.findings.convicted.push(node);
            state.report.findings.proofs.push(proof.encode());
            return true;
        }
        let current = commit.session == state.plan.session && commit.epoch >= self.since_epoch;
        let exact = !state.plan.checking.approx.contains(&node) && !state.is_approx(layers);
        if current && exact && state.plan.checking.verify != Verify::Off {
            self.book(state, layers).signed(node, follows, commit);
        }
        false
    }

    /// Two answers for one position differed; `node` gave the second.
    pub(super) fn rivaled(&mut self, state: &RequestState, layers: LayerRange, node: NodeId) {
        if state.plan.checking.verify != Verify::Off && !state.plan.checking.approx.contains(&node) {
            self.book(state, layers).rivals.insert(node);
        }
    }

    /// Compares what can be compared; the segments that two disagree about and that are not looked into yet.
    pub(super) fn disputed(&mut self, logs: &Logs) -> Vec<LayerRange> {
        let open = |book: &Book| book.audit.is_none() && book.third.is_none() && !book.undecided;
        let books = self.books.iter_mut();
        books.filter_map(|book| (book.compare(logs) && open(book)).then(|| book.layers())).collect()
    }

    /// Compares what can be compared and looks into what does not agree.
    pub(super) fn check(&mut self, state: &mut RequestState) {
        for layers in self.disputed(&state.logs) {
            if !self.ask_third(state, layers) {
                tracing::info!(%layers, "two nodes disagree; computing it again");
                self.start_audit(state, layers);
            }
        }
        state.delivery.release(self.checked_everywhere(state));
    }

    fn start_audit(&mut self, state: &RequestState, layers: LayerRange) {
        let auditor = state.means.auditor.clone();
        let (Some(auditor), Some((case, said))) = (auditor, state.case(layers)) else {
            self.book(state, layers).undecided = true;
            return;
        };
        self.audits += 1;
        let (round, orders) = (self.audits, state.orders.clone());
        self.book(state, layers).audit = Some(round);
        tokio::spawn(async move {
            let found = auditor.audit(&case, &said).await;
            let _ = orders.send(Order::Audited { layers, round, found }).await;
        });
    }

    /// An audit is over.
    pub(super) fn audited(
        &mut self,
        state: &mut RequestState,
        layers: LayerRange,
        round: u32,
        found: Option<Audit>,
    ) -> Vec<Event> {
        let me = state.means.me;
        let book = self.book(state, layers);
        if book.audit != Some(round) {
            return Vec::new();
        }
        book.audit = None;
        let Some(found) = found else {
            book.undecided = true;
            return Vec::new();
        };
        if let Some(at) = found.wrong {
            return self.convict(state, layers, at, None);
        }
        let wrong = book.upheld(found.upto, me);
        self.refute(state, layers, wrong)
    }

    /// These said what is not so of `layers`.
    pub(super) fn refute(
        &mut self,
        state: &mut RequestState,
        layers: LayerRange,
        wrong: Vec<(NodeId, Outcome)>,
    ) -> Vec<Event> {
        let mut events = Vec::new();
        for (node, outcome) in wrong {
            tracing::warn!(%node, ?outcome, %layers, "a node signed what is not so");
            if outcome == Outcome::Mismatch {
                self.denied.insert(node);
                state.report.findings.convicted.push(node);
            }
            self.outcomes.push((node, outcome));
            events.extend(state.failed(node, Failure::Corrupt));
        }
        events
    }

    /// A stage calls its inputs garbled, from position `from` on.
    pub(super) fn called_garbled(
        &mut self,
        state: &mut RequestState,
        stage: usize,
        layer: u32,
        from: u32,
    ) -> Vec<Event> {
        self.garbled.insert(layer, (state.machine.epoch(), from));
        self.contradicted(state, stage)
    }

    /// A stage says that what the one before it sent is garbled, and what that one sent here is sound: one of the two lies,
    /// and which one cannot be told. The session goes on without both.
    pub(super) fn contradicted(&mut self, state: &mut RequestState, stage: usize) -> Vec<Event> {
        let Some(here) = state.segment(stage) else { return Vec::new() };
        let said = self.garbled.get(&here.layers.start()).copied();
        let Some((_, from)) = said.filter(|(epoch, _)| *epoch == state.machine.epoch()) else {
            return Vec::new();
        };
        let before = stage.checked_sub(1).and_then(|before| state.segment(before));
        let before = before.filter(|before| before.node != state.means.me);
        // What it sent here may still be on its way.
        if before.is_some() && state.logs.reached(here.layers.start()) <= from {
            return Vec::new();
        }
        self.garbled.clear();
        tracing::warn!(node = %here.node, ?before, "a stage calls garbled what is not");
        let mut events = state.failed(here.node, Failure::Corrupt);
        events.extend(before.into_iter().flat_map(|before| state.failed(before.node, Failure::Corrupt)));
        events
    }

    /// `node` itself sent what no honest node sends: no signature and no other's word is needed.
    pub(super) fn nonsense(&mut self, state: &mut RequestState, node: NodeId) -> Vec<Event> {
        if node != state.means.me && self.denied.insert(node) {
            tracing::warn!(%node, "malformed activations");
            self.outcomes.push((node, Outcome::Mismatch));
            state.report.findings.convicted.push(node);
        }
        state.failed(node, Failure::Corrupt)
    }

    /// The log of what left `layers` is wrong from position `at` on; with `upto`, from some position on that is between
    /// the two.
    pub(super) fn convict(
        &mut self,
        state: &mut RequestState,
        layers: LayerRange,
        at: u32,
        upto: Option<u32>,
    ) -> Vec<Event> {
        let Some(node) = state.logs.author(layers.end(), at) else { return Vec::new() };
        if state.plan.checking.approx.contains(&node) {
            // Its rows are others than those of the node that took over from it, and no lie.
            self.book(state, layers).undecided = true;
            return Vec::new();
        }
        self.forget(state, node, layers, at, upto)
    }

    /// `node` gave wrong rows from position `at` on: it and all that follows from them are left.
    pub(super) fn forget(
        &mut self,
        state: &mut RequestState,
        node: NodeId,
        layers: LayerRange,
        at: u32,
        upto: Option<u32>,
    ) -> Vec<Event> {
        let mut book = Book::new(self.book(state, layers).terms.clone(), 0);
        std::mem::swap(&mut book, self.book(state, layers));
        let segment = Segment { node, layers };
        match state.rests.iter().find(|(rests, _)| *rests == segment).map(|(_, lender)| *lender) {
            Some(lender) => self.misled(state, node, lender),
            None => {
                let suspect = Suspect { node, layers, at, upto, book, logs: state.logs.clone() };
                self.accuse(&mut state.report, suspect);
            }
        }
        self.books.retain(|book| book.layers() != layers);
        self.denied.insert(node);
        tracing::warn!(%node, %layers, at, "what a stage gave is not what its inputs give");

        let read = if state.strict() { state.report.read } else { state.report.said.ids.len() as u32 };
        let prompt = state.plan.prompt.len() as u32;
        let known = state.tokens.len() as u32;
        let stays = known.min(at + 1).max(prompt + read).max(prompt);
        if stays > at + 1 && state.report.findings.integrity.is_none() {
            // What follows from it was shown already.
            state.report.findings.integrity = Some(at + 1);
            state.delivery.say(Progress::Integrity { position: at + 1, node });
        }
        state.tokens.truncate(stays as usize);
        state.report.said.ids.truncate((stays - prompt) as usize);
        state.logs.forget(layers.end(), at, stays);
        self.books.iter_mut().for_each(|book| book.forget(at));
        state.delivery.forget(stays);
        self.since_epoch = state.machine.epoch() + 1;
        self.last = None;
        state.drafts.go_back(stays);
        state.leave(node);
        state.timing.left(node);
        vec![Event::Convicted { node, layer: layers.end(), from: at, known: stays }]
    }

    /// Strikes the nodes that signed for the wrong row; one that has not may still do so with its bill.
    fn accuse(&mut self, report: &mut Report, suspect: Suspect) {
        let Suspect { node, at, upto, ref book, ref logs, .. } = suspect;
        match (book.proof(logs, node, at), upto) {
            (Some(proof), None) => self.proven(report, node, &proof),
            (_, Some(upto)) if book.signed_for(node, upto) => {
                self.outcomes.push((node, Outcome::Mismatch));
                report.findings.convicted.push(node);
            }
            _ => self.suspects.push(suspect),
        }
    }

    /// What `node` gave is wrong, and its state of the beginning came from `lender`: one of the two did it, and which cannot be told. Neither
    /// is convicted, and neither lends or is lent a state for prompts of this node again, so this excuse serves a liar once.
    fn misled(&mut self, state: &mut RequestState, node: NodeId, lender: NodeId) {
        tracing::warn!(%node, %lender, "wrong, on a state that another node gave");
        self.outcomes.extend([node, lender].map(|node| (node, Outcome::Aborted)));
        state.report.findings.misled.push((node, lender));
        if let Some(memory) = &state.means.memory {
            memory.bar([node, lender]);
        }
    }

    fn proven(&mut self, report: &mut Report, node: NodeId, proof: &FraudProof) {
        self.outcomes.push((node, Outcome::Mismatch));
        report.findings.convicted.push(node);
        match proof.encode() {
            Ok(bytes) => report.findings.proofs.push(bytes),
            Err(error) => tracing::warn!(%error, "a proof too large to keep"),
        }
    }

    // --- the end -------------------------------------------------------------------------------------------------

    /// The last token of a strict answer waits here until everything is checked.
    pub(super) fn hold_last(&mut self, state: &mut RequestState, event: Event, position: u32) -> Vec<Event> {
        if !state.strict() || self.checked_everywhere(state) >= position {
            return vec![event];
        }
        self.last = Some((event, Instant::now() + BARRIER, position));
        for stage in 0..state.machine.segments().count() {
            state.feed_rest(stage);
        }
        Vec::new()
    }

    /// The last token, when it need not wait any more.
    pub(super) fn let_go(&mut self, state: &mut RequestState) -> Option<Event> {
        let (_, until, position) = self.last.as_ref()?;
        let (late, position) = (Instant::now() >= *until, *position);
        let strangers: Vec<(usize, Segment)> = state
            .machine
            .segments()
            .enumerate()
            .filter(|(_, segment)| segment.node != state.means.me)
            .filter(|(_, segment)| self.checked(segment.layers) < position)
            .collect();
        let mut hopeless = true;
        for (stage, segment) in strangers {
            let followed = state.plan.shadow == Shadow::All
                && state
                    .followers
                    .of(stage)
                    .is_some_and(|shadow| !state.plan.checking.approx.contains(&shadow));
            let book = self.book(state, segment.layers);
            if !followed && book.audit.is_none() && !book.undecided {
                self.start_audit(state, segment.layers);
            }
            hopeless &= !followed && self.book(state, segment.layers).undecided;
        }
        if !late && !hopeless {
            return None;
        }
        self.last.take().map(|(event, ..)| event)
    }

    /// A node's bill: its last word is compared, and what fits the log is signed.
    pub(super) fn settled(&mut self, state: &mut RequestState, node: NodeId, settled: &[Settlement]) {
        for one in settled {
            let (Ok(commit), Ok(work)) =
                (Commit::open(&one.commit, node), Work::open_offer(one.offer.as_slice()))
            else {
                tracing::warn!(%node, "a bill that its sender did not sign");
                continue;
            };
            self.suspected(&mut state.report, node, one.layers, &commit);
            if state.is_approx(one.layers) {
                // No signatures are compared there; what its rows add up to is.
                self.book(state, one.layers);
            }
            let follows =
                state.machine.segments().all(|segment| segment != Segment { node, layers: one.layers });
            self.signed(state, one.layers, node, follows, commit);
            let (me, logs) = (state.means.me, &state.logs);
            let emitted = state.tokens.len().saturating_sub(state.plan.prompt.len()) as u32;
            let (model, session) = (state.plan.model, state.plan.session);
            let Some(book) = self.books.iter_mut().find(|book| book.layers() == one.layers) else {
                continue;
            };
            book.compare(logs);
            let fits = work.stage == node
                && work.requester == me
                && (work.model, work.session, work.layers) == (model, session, one.layers)
                && (work.head, work.grant) == (commit.head, commit.grant)
                && work.prefill_tokens.checked_add(work.decode_tokens) == Some(commit.pos)
                && work.decode_tokens <= emitted
                && work.grant.is_current(clock::receipt_s())
                && book.chain.agrees(&commit) == Some(true);
            if !fits {
                tracing::info!(
                    commit.pos,
                    commit.epoch,
                    work.prefill_tokens,
                    work.decode_tokens,
                    emitted,
                    fits = ?book.chain.agrees(&commit),
                    %node, layers = %one.layers, "a bill that does not fit the log is not signed");
                continue;
            }
            let Ok(receipt) = Receipt::cosign(one.offer.as_slice(), &state.means.identity) else { continue };
            let Ok(receipt) = <Box<[u8; Receipt::LEN]>>::try_from(receipt) else { continue };
            state.report.findings.receipts.push(*receipt);
            let network = state.means.network.clone();
            tokio::spawn(async move {
                let _ = network.ask(node, &Ask::Receipt(receipt), Duration::from_millis(LEASE_MS)).await;
            });
        }
    }

    /// The last word of a node that gave a wrong row may be its confession.
    fn suspected(&mut self, report: &mut Report, node: NodeId, layers: LayerRange, commit: &Commit) {
        let of = |suspect: &Suspect| suspect.node == node && suspect.layers == layers;
        let Some(at) = self.suspects.iter().position(of) else { return };
        let mut suspect = self.suspects.swap_remove(at);
        suspect.book.signed(node, false, *commit);
        suspect.book.compare(&suspect.logs);
        self.accuse(report, suspect);
    }
}
