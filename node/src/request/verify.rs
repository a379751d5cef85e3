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
    collections::BTreeSet,
    time::{Duration, Instant},
};

use bytes::Bytes;
use p2p::{
    HopError,
    codec::{self},
    wire::{
        announce::Class,
        control::{Answer, Ask, Settlement},
        frame::{COMMIT_LEN, Header},
        receipt::{Commit, FraudProof, Receipt, Terms, Work},
    },
};
use scheduler::{LayerRange, NodeId, Segment, recover::Failure, session::Event, trust::Outcome};

use super::{
    Progress, RequestDriver, arbiter,
    commitments::{Book, Signatures},
    lease::LEASE_MS,
};
use crate::{
    audit::{Audit, Case},
    clock,
    control::{Shadow, Verify},
    sessions::{Order, Outlets},
};

/// The last token of a strict answer waits this long for its check.
const BARRIER: Duration = Duration::from_secs(20);
/// Times a node that does not hear it is told that it is needed no more; then its lease runs out by itself.
const RELEASES: u32 = 5;
/// The end of an answer waits this long for the last signatures.
const SETTLE: Duration = Duration::from_millis(1_500);

/// A node that gave a wrong row and had not signed for it yet.
pub(super) struct Suspect {
    pub(super) node: NodeId,
    layers: LayerRange,
    at: u32,
    /// Set when only a position below this is known to be wrong, not which.
    upto: Option<u32>,
    /// The book as it was then, with the case but for the signature.
    book: Book,
    logs: super::replay_log::Logs,
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
    /// Tokens of a strict answer that are not checked yet.
    pub(super) unread: std::collections::VecDeque<Progress>,
    /// What the caller is to hear next.
    pub(super) news: Vec<Progress>,
    /// Bills that are asked for and not there.
    pub(super) unsettled: BTreeSet<NodeId>,
}

impl RequestDriver {
    pub(super) fn strict(&self) -> bool {
        self.plan.verify == Verify::Strict
    }

    /// Segments that others run.
    pub(super) fn strangers(&self) -> Vec<Segment> {
        self.machine.segments().filter(|segment| segment.node != self.means.me).collect()
    }

    pub(super) fn book(&mut self, layers: LayerRange) -> &mut Book {
        if let Some(at) = self.checks.books.iter().position(|book| book.layers() == layers) {
            return &mut self.checks.books[at];
        }
        let terms = self.terms(layers);
        let positions = self.plan.prompt.len() as u32 + self.plan.max_tokens;
        self.checks.books.push(Book::new(terms, positions));
        let last = self.checks.books.len() - 1;
        &mut self.checks.books[last]
    }

    /// What is agreed with those that compute `layers`.
    pub(super) fn terms(&self, layers: LayerRange) -> Terms {
        Terms {
            session: self.plan.session,
            requester: self.means.me,
            model: self.plan.model,
            layers,
            hidden: self.plan.hidden as u32,
            class: if self.is_approx(layers) { Class::Approx } else { Class::D1 },
            rounding: self.rounding.clone(),
            inner: false,
        }
    }

    /// Whether a node that computes other bits runs exactly `layers`.
    fn is_approx(&self, layers: LayerRange) -> bool {
        let mut segments = self.machine.segments().filter(|segment| segment.layers == layers);
        segments.any(|segment| self.plan.approx.contains(&segment.node))
    }

    pub(super) fn checked(&self, layers: LayerRange) -> u32 {
        self.checks.books.iter().find(|book| book.layers() == layers).map_or(0, |book| book.checked)
    }

    /// Positions below this are checked in all segments that others run.
    fn checked_everywhere(&self) -> u32 {
        self.strangers().iter().map(|segment| self.checked(segment.layers)).min().unwrap_or(u32::MAX)
    }

    /// A commitment came.
    pub(super) fn committed(
        &mut self,
        stage: usize,
        node: NodeId,
        header: Header,
        payload: &[u8],
    ) -> Vec<Event> {
        let Some(segment) = self.segment(stage) else { return Vec::new() };
        let commit = <&[u8; COMMIT_LEN]>::try_from(payload).ok().and_then(|it| Commit::open(it, node).ok());
        let Some(commit) = commit.filter(|commit| commit.epoch == header.epoch) else {
            tracing::warn!(%node, "a commitment that its sender did not sign");
            return self.failed(node, Failure::Corrupt);
        };
        let contradicts = self.signed(segment.layers, node, segment.node != node, commit);
        if contradicts { self.failed(node, Failure::Corrupt) } else { Vec::new() }
    }

    /// Notes a commitment; true when its signer signed something else in the same place before.
    fn signed(&mut self, layers: LayerRange, node: NodeId, follows: bool, commit: Commit) -> bool {
        if let Some(proof) = self.checks.signatures.note(node, commit) {
            tracing::warn!(%node, %layers, "signed two things that cannot both be true");
            self.checks.outcomes.push((node, Outcome::Equivocated));
            self.checks.denied.insert(node);
            self.report.convicted.push(node);
            self.report.proofs.push(proof.encode());
            return true;
        }
        let current = commit.session == self.plan.session && commit.epoch >= self.checks.since_epoch;
        let exact = !self.plan.approx.contains(&node) && !self.is_approx(layers);
        if current && exact && self.plan.verify != Verify::Off {
            self.book(layers).signed(node, follows, commit);
        }
        false
    }

    /// Two answers for one position differed; `node` gave the second.
    pub(super) fn rivaled(&mut self, layers: LayerRange, node: NodeId) {
        if self.plan.verify != Verify::Off && !self.plan.approx.contains(&node) {
            self.book(layers).rivals.insert(node);
        }
    }

    /// Compares what can be compared; the segments that two disagree about and that are not looked into yet.
    fn disputed(&mut self) -> Vec<LayerRange> {
        let logs = &self.logs;
        let open = |book: &Book| book.audit.is_none() && book.third.is_none() && !book.undecided;
        let books = self.checks.books.iter_mut();
        books.filter_map(|book| (book.compare(logs) && open(book)).then(|| book.layers())).collect()
    }

    /// Compares what can be compared and looks into what does not agree.
    pub(super) fn check(&mut self) {
        for layers in self.disputed() {
            if !self.ask_third(layers) {
                tracing::info!(%layers, "two nodes disagree; computing it again");
                self.start_audit(layers);
            }
        }
        let checked = self.checked_everywhere();
        while self
            .checks
            .unread
            .front()
            .is_some_and(|said| matches!(said, Progress::Token { position, .. } if *position <= checked))
        {
            self.checks.news.extend(self.checks.unread.pop_front());
        }
    }

    /// All that the log has of `layers`.
    pub(super) fn case(&self, layers: LayerRange) -> Option<(Case, Bytes)> {
        let rows = self.logs.settled(layers.start()).min(self.logs.settled(layers.end()));
        let (wire, inputs) = self.logs.get(layers.start(), 0, rows).filter(|_| rows > 0)?;
        let (output, said) = self.logs.get(layers.end(), 0, rows)?;
        codec::encoded_len(output, 1, self.plan.hidden)?;
        let (rounding, hidden) = (self.rounding.clone(), self.plan.hidden);
        Some((Case { layers, rounding, hidden, inputs: (wire, inputs.to_vec()), output }, said))
    }

    fn start_audit(&mut self, layers: LayerRange) {
        let auditor = self.means.auditor.clone();
        let (Some(auditor), Some((case, said))) = (auditor, self.case(layers)) else {
            self.book(layers).undecided = true;
            return;
        };
        self.checks.audits += 1;
        let (round, orders) = (self.checks.audits, self.orders.clone());
        self.book(layers).audit = Some(round);
        tokio::spawn(async move {
            let found = auditor.audit(&case, &said).await;
            let _ = orders.send(Order::Audited { layers, round, found }).await;
        });
    }

    /// An audit is over.
    pub(super) fn audited(&mut self, layers: LayerRange, round: u32, found: Option<Audit>) -> Vec<Event> {
        let me = self.means.me;
        let book = self.book(layers);
        if book.audit != Some(round) {
            return Vec::new();
        }
        book.audit = None;
        let Some(found) = found else {
            book.undecided = true;
            return Vec::new();
        };
        if let Some(at) = found.wrong {
            return self.convict(layers, at, None);
        }
        let wrong = book.upheld(found.upto, me);
        self.refute(layers, wrong)
    }

    /// These said what is not so of `layers`.
    pub(super) fn refute(&mut self, layers: LayerRange, wrong: Vec<(NodeId, Outcome)>) -> Vec<Event> {
        let mut events = Vec::new();
        for (node, outcome) in wrong {
            tracing::warn!(%node, ?outcome, %layers, "a node signed what is not so");
            if outcome == Outcome::Mismatch {
                self.checks.denied.insert(node);
                self.report.convicted.push(node);
            }
            self.checks.outcomes.push((node, outcome));
            events.extend(self.failed(node, Failure::Corrupt));
        }
        events
    }

    /// `node` itself sent what no honest node sends: no signature and no other's word is needed.
    pub(super) fn nonsense(&mut self, node: NodeId) -> Vec<Event> {
        if node != self.means.me && self.checks.denied.insert(node) {
            tracing::warn!(%node, "malformed activations");
            self.checks.outcomes.push((node, Outcome::Mismatch));
            self.report.convicted.push(node);
        }
        self.failed(node, Failure::Corrupt)
    }

    /// The log of what left `layers` is wrong from position `at` on; with `upto`, from some position on that is between
    /// the two.
    pub(super) fn convict(&mut self, layers: LayerRange, at: u32, upto: Option<u32>) -> Vec<Event> {
        let Some(node) = self.logs.author(layers.end(), at) else { return Vec::new() };
        if self.plan.approx.contains(&node) {
            // Its rows are others than those of the node that took over from it, and no lie.
            self.book(layers).undecided = true;
            return Vec::new();
        }
        self.forget(node, layers, at, upto)
    }

    /// `node` gave wrong rows from position `at` on: it and all that follows from them are left.
    pub(super) fn forget(
        &mut self,
        node: NodeId,
        layers: LayerRange,
        at: u32,
        upto: Option<u32>,
    ) -> Vec<Event> {
        let mut book = Book::new(self.book(layers).terms.clone(), 0);
        std::mem::swap(&mut book, self.book(layers));
        let suspect = Suspect { node, layers, at, upto, book, logs: self.logs.clone() };
        self.accuse(suspect);
        self.checks.books.retain(|book| book.layers() != layers);
        self.checks.denied.insert(node);
        tracing::warn!(%node, %layers, at, "what a stage gave is not what its inputs give");

        let read = if self.strict() { self.report.read } else { self.report.ids.len() as u32 };
        let prompt = self.plan.prompt.len() as u32;
        let known = self.tokens.len() as u32;
        let stays = known.min(at + 1).max(prompt + read).max(prompt);
        if stays > at + 1 && self.report.integrity.is_none() {
            // What follows from it was shown already.
            self.report.integrity = Some(at + 1);
            self.checks.news.push(Progress::Integrity { position: at + 1, node });
        }
        self.tokens.truncate(stays as usize);
        self.report.ids.truncate((stays - prompt) as usize);
        self.logs.forget(layers.end(), at, stays);
        self.checks.books.iter_mut().for_each(|book| book.forget(at));
        self.checks
            .unread
            .retain(|said| matches!(said, Progress::Token { position, .. } if *position < stays));
        self.checks.since_epoch = self.machine.epoch() + 1;
        self.checks.last = None;
        self.sampled.clear();
        self.drafts.go_back(stays);
        self.outboxes.close(node);
        self.shadows.retain(|_, shadow| *shadow != node);
        self.silent_since.get_or_insert((node, Instant::now()));
        vec![Event::Convicted { node, layer: layers.end(), from: at, known: stays }]
    }

    /// Strikes the nodes that signed for the wrong row; one that has not may still do so with its bill.
    fn accuse(&mut self, suspect: Suspect) {
        let Suspect { node, at, upto, ref book, ref logs, .. } = suspect;
        match (book.proof(logs, node, at), upto) {
            (Some(proof), None) => self.proven(node, &proof),
            (_, Some(upto)) if book.signed_for(node, upto) => {
                self.checks.outcomes.push((node, Outcome::Mismatch));
                self.report.convicted.push(node);
            }
            _ => self.checks.suspects.push(suspect),
        }
    }

    fn proven(&mut self, node: NodeId, proof: &FraudProof) {
        self.checks.outcomes.push((node, Outcome::Mismatch));
        self.report.convicted.push(node);
        match proof.encode() {
            Ok(bytes) => self.report.proofs.push(bytes),
            Err(error) => tracing::warn!(%error, "a proof too large to keep"),
        }
    }

    // --- the end -------------------------------------------------------------------------------------------------

    /// The last token of a strict answer waits here until everything is checked.
    pub(super) fn hold_last(&mut self, event: Event, position: u32) -> Vec<Event> {
        if !self.strict() || self.checked_everywhere() >= position {
            return vec![event];
        }
        self.checks.last = Some((event, Instant::now() + BARRIER, position));
        for stage in 0..self.machine.segments().count() {
            self.feed_rest(stage);
        }
        Vec::new()
    }

    /// Gives the follower of a stage all there is.
    pub(super) fn feed_rest(&mut self, stage: usize) {
        if let (Some(shadow), Some(segment)) = (self.shadows.get(&stage).copied(), self.segment(stage)) {
            let boundary = segment.layers.start();
            self.feed(shadow, boundary, self.machine.epoch(), self.logs.settled(boundary));
        }
    }

    /// The last token, when it need not wait any more.
    pub(super) fn let_go(&mut self) -> Option<Event> {
        let (_, until, position) = self.checks.last.as_ref()?;
        let (late, position) = (Instant::now() >= *until, *position);
        let strangers: Vec<(usize, Segment)> = self
            .machine
            .segments()
            .enumerate()
            .filter(|(_, segment)| segment.node != self.means.me)
            .filter(|(_, segment)| self.checked(segment.layers) < position)
            .collect();
        let mut hopeless = true;
        for (stage, segment) in strangers {
            let followed = self.plan.shadow == Shadow::All
                && self.shadows.get(&stage).is_some_and(|shadow| !self.plan.approx.contains(shadow));
            let book = self.book(segment.layers);
            if !followed && book.audit.is_none() && !book.undecided {
                self.start_audit(segment.layers);
            }
            hopeless &= !followed && self.book(segment.layers).undecided;
        }
        if !late && !hopeless {
            return None;
        }
        self.checks.last.take().map(|(event, ..)| event)
    }

    /// Asks a node for its bill, then lets it go.
    pub(super) fn bill(&mut self, node: NodeId, epoch: u32) {
        // Which rows of its last draft were right a stage hears here. The row of the last token may be one that was rejected.
        let follows = self.shadows.values().any(|shadow| *shadow == node);
        let confirmed = (self.tokens.len() as u32).saturating_sub(1);
        let mut upto = if self.drafts.used() && !follows { confirmed } else { 0 };
        if self.plan.verify != Verify::Off {
            let followed: Vec<usize> =
                self.shadows.iter().filter(|(_, shadow)| **shadow == node).map(|(stage, _)| *stage).collect();
            for stage in followed {
                self.feed_rest(stage);
                let start = self.segment(stage).map_or(0, |segment| segment.layers.start());
                upto = upto.max(self.logs.settled(start));
            }
        }
        self.checks.unsettled.insert(node);
        let (network, session, orders) = (self.means.network.clone(), self.plan.session, self.orders.clone());
        let (lessons, worked) = (self.means.lessons.clone(), self.report.opened_ms.is_some());
        let (held, there) = (self.seats.remove(&node), self.plan.contact(node));
        tokio::spawn(async move {
            let patience = Duration::from_millis(LEASE_MS);
            let mut settled = Vec::new();
            // Who was given nothing to do has no bill.
            if worked
                && let Ok(Answer::Settled(bill)) =
                    network.ask(node, &Ask::Settle { session, upto }, patience).await
            {
                settled = bill;
            }
            let _ = orders.send(Order::Settled { node, settled }).await;
            let release = Ask::Release { session, epoch };
            for attempt in 1..=RELEASES {
                // One that does not understand has nothing to give back.
                if let Ok(_) | Err(HopError::Corrupt) = network.ask(node, &release, patience).await {
                    if held {
                        lessons.freed(node);
                    }
                    break;
                }
                if attempt < RELEASES {
                    tokio::time::sleep(patience * attempt / RELEASES).await;
                    // It may have been too busy to hear, or was reconnected.
                    let _ = network.connect(&there).await;
                }
            }
        });
    }

    /// A node's bill: its last word is compared, and what fits the log is signed.
    pub(super) fn settled(&mut self, node: NodeId, settled: &[Settlement]) {
        self.checks.unsettled.remove(&node);
        for one in settled {
            let (Ok(commit), Ok(work)) =
                (Commit::open(&one.commit, node), Work::open_offer(one.offer.as_slice()))
            else {
                tracing::warn!(%node, "a bill that its sender did not sign");
                continue;
            };
            self.suspected(node, one.layers, &commit);
            if self.is_approx(one.layers) {
                // No signatures are compared there; what its rows add up to is.
                self.book(one.layers);
            }
            let follows =
                self.machine.segments().all(|segment| segment != Segment { node, layers: one.layers });
            self.signed(one.layers, node, follows, commit);
            let (me, logs) = (self.means.me, &self.logs);
            let emitted = self.tokens.len().saturating_sub(self.plan.prompt.len()) as u32;
            let (model, session) = (self.plan.model, self.plan.session);
            let Some(book) = self.checks.books.iter_mut().find(|book| book.layers() == one.layers) else {
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
            let Ok(receipt) = Receipt::cosign(one.offer.as_slice(), &self.means.identity) else { continue };
            let Ok(receipt) = <Box<[u8; Receipt::LEN]>>::try_from(receipt) else { continue };
            self.report.receipts.push(*receipt);
            let network = self.means.network.clone();
            tokio::spawn(async move {
                let _ = network.ask(node, &Ask::Receipt(receipt), Duration::from_millis(LEASE_MS)).await;
            });
        }
    }

    /// The last word of a node that gave a wrong row may be its confession.
    fn suspected(&mut self, node: NodeId, layers: LayerRange, commit: &Commit) {
        let of = |suspect: &Suspect| suspect.node == node && suspect.layers == layers;
        let Some(at) = self.checks.suspects.iter().position(of) else { return };
        let mut suspect = self.checks.suspects.swap_remove(at);
        suspect.book.signed(node, false, *commit);
        suspect.book.compare(&suspect.logs);
        self.accuse(suspect);
    }

    /// Waits a moment for the last signatures.
    pub(super) async fn settle_all(&mut self, doors: &mut Outlets) {
        let mut involved: BTreeSet<NodeId> = self.strangers().iter().map(|segment| segment.node).collect();
        involved.extend(self.shadows.values());
        let until = tokio::time::Instant::now() + SETTLE;
        loop {
            // Where no third holder can be asked it is computed again in the last look.
            for layers in self.disputed() {
                self.ask_third(layers);
            }
            self.hear_thirds();
            let asked = self.checks.books.iter().filter_map(|book| Some(book.third?.asked)).max();
            let third = asked.is_some();
            // A third holder asked about a dispute has the time it was given, also at the end.
            let until = asked.map_or(until, |asked| until.max((asked + arbiter::PATIENCE).into()));
            if !third && !self.checks.unsettled.iter().any(|node| involved.contains(node)) {
                break;
            }
            let order = tokio::select! {
                order = doors.orders.recv() => order,
                Some(arrival) = doors.frames.recv(), if third => {
                    self.arrival(arrival);
                    continue;
                }
                () = tokio::time::sleep_until(until) => break,
            };
            match order {
                Some(Order::Settled { node, settled }) => self.settled(node, &settled),
                Some(Order::Audited { layers, round, found }) => drop(self.audited(layers, round, found)),
                Some(Order::Opened { stage: None, layers, node, answer, .. }) => {
                    self.third_opened(layers, node, answer.is_ok());
                }
                Some(_) => {}
                None => break,
            }
        }
    }
}
