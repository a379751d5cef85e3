//! The last look at what others computed: what is audited when an answer has ended, and what is said and remembered of it.
//!
//! Audited is what two disagree about, what is drawn (a share of all that a node does, everything of one that is not known
//! yet) and, under [`Verify::Strict`], whatever was not checked to its end. What was only drawn does not delay the answer:
//! its caller is told that it is complete and still being checked ([`Progress::Answered`]), and the audit goes on behind it. A
//! route that was given back before anything was computed on it has nothing to audit, whatever its log was recalled with.
//!
//! Bounds: an audit of what is disputed, or strict, takes [`AUDIT`] at most for a segment, one after the other; those that were
//! only drawn take as long together, since in a crowd all wait for the same seat. As many go on behind their answers as
//! [`Auditor::behind`] lets, by the bytes of their logs, and the answers beyond wait for theirs.
//!
//! [`Auditor::behind`]: crate::audit::Auditor::behind

use std::{collections::BTreeSet, time::Duration};

use p2p::codec;
use scheduler::{NodeId, Segment, trust::Outcome};
use shard::tolerance::{self, Verdict};
use tokio::{sync::OwnedSemaphorePermit, time::Instant};

use super::{plan::Progress, state::RequestState, verify::Checks};
use crate::{audit::Case, control::Verify};

/// An audit that takes longer at the end of an answer is given up.
const AUDIT: Duration = Duration::from_secs(30);
/// Without being asked to be strict, weights of an audit are at most so many bytes: about a second of loading.
const MAX_AUDIT_BYTES: u64 = 256 << 20;

/// What an audit at the end is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    /// Nothing: all is checked, or it need not be.
    Settled,
    /// It was drawn, and was not checked to its end.
    Open,
    /// Two do not agree.
    Disputed,
}

/// Whether a segment is among the share of what its node does that is audited.
fn drawn(state: &RequestState, segment: Segment) -> bool {
    let share = state.plan.checking.shares.get(&segment.node).copied().unwrap_or(1.0);
    let mut draw = [0; 4];
    let drawn =
        getrandom::fill(&mut draw).is_err() || f64::from(u32::from_le_bytes(draw)) / 2f64.powi(32) < share;
    let cheap = state.plan.weight_bytes(segment.layers) <= MAX_AUDIT_BYTES;
    state.strict() || drawn && cheap
}

impl Checks {
    /// Audits what is disputed, and what is drawn and not checked to its end; then says what became of checking.
    pub(super) async fn look_again(&mut self, state: &mut RequestState) {
        let strangers = state.strangers();
        let mut wanted: Vec<(Segment, bool)> = Vec::new();
        if state.plan.checking.verify != Verify::Off
            && state.means.auditor.is_some()
            && state.report.computed()
        {
            wanted.extend(strangers.iter().map(|segment| (*segment, drawn(state, *segment))));
        }
        let looks: Vec<Look> =
            wanted.iter().map(|(segment, drawn)| self.look(state, *segment, *drawn)).collect();
        let behind = state.report.is_answer()
            && looks.contains(&Look::Open)
            && !looks.contains(&Look::Disputed)
            && !state.strict();
        let _held = if behind { self.answered(state, &strangers).await } else { None };
        let began = Instant::now();
        for (segment, drawn) in wanted {
            let look = self.look(state, segment, drawn);
            let patience = match look {
                Look::Settled => continue,
                Look::Open if !state.strict() => AUDIT.saturating_sub(began.elapsed()),
                Look::Open | Look::Disputed => AUDIT,
            };
            self.audit_once(state, segment, patience).await;
        }
        self.conclude(state, &strangers);
    }

    /// Tells the caller that its answer is complete, where the audit may go on behind it.
    async fn answered(
        &mut self,
        state: &mut RequestState,
        strangers: &[Segment],
    ) -> Option<OwnedSemaphorePermit> {
        let behind = state.means.auditor.as_ref()?.behind(state.logs.bytes())?;
        self.tally(state, strangers);
        let _ = state.means.progress.send(Progress::Answered(Box::new(state.report.clone()))).await;
        Some(behind)
    }

    /// What an audit of a segment would be for.
    fn look(&mut self, state: &RequestState, segment: Segment, drawn: bool) -> Look {
        let layers = segment.layers;
        let reached = state.logs.settled(layers.end());
        let logs = &state.logs;
        let book = self.books.iter_mut().find(|book| book.layers() == layers);
        let disputed = book.is_some_and(|book| book.compare(logs));
        match disputed {
            true => Look::Disputed,
            false if drawn && self.checked(layers) < reached => Look::Open,
            false => Look::Settled,
        }
    }

    /// Audits a segment now, for so long at most.
    async fn audit_once(&mut self, state: &mut RequestState, segment: Segment, patience: Duration) {
        let layers = segment.layers;
        let (Some(auditor), Some((case, said))) = (state.means.auditor.clone(), state.case(layers)) else {
            return;
        };
        if state.plan.checking.approx.contains(&segment.node) {
            if let Ok(Some(own)) = tokio::time::timeout(patience, auditor.outputs(&case)).await {
                self.look_near(state, segment, &case, &own, &said);
            }
            return;
        }
        let found = tokio::time::timeout(patience, auditor.audit(&case, &said)).await.ok().flatten();
        self.audits += 1;
        let round = self.audits;
        self.book(state, layers).audit = Some(round);
        self.audited(state, layers, round, found);
    }

    /// Judges the rows `said` of a segment whose node computes other bits by how far they are from our `own`.
    fn look_near(
        &mut self,
        state: &mut RequestState,
        segment: Segment,
        case: &Case,
        own: &[u8],
        said: &[u8],
    ) {
        let Segment { node, layers } = segment;
        let values = |wire, bytes: &[u8]| {
            let rows = bytes.len() / codec::encoded_len(wire, 1, case.hidden)?.max(1);
            let mut values = Vec::new();
            codec::decode(wire, case.hidden, rows, bytes, &mut values).ok().map(|()| values)
        };
        let (Some(entered), Some(own), Some(said)) =
            (values(case.inputs.0, &case.inputs.1), values(case.output, own), values(case.output, said))
        else {
            return;
        };
        // Others may have run it before, or stood in for it.
        let its = |row: &usize| state.logs.author(layers.end(), *row as u32) == Some(node);
        let of_row = tolerance::distances(&entered, &own, &said, case.hidden);
        let its: Vec<usize> = (0..of_row.len()).filter(its).collect();
        let distances: Vec<f64> = its.iter().map(|row| of_row[*row]).collect();
        let rows = distances.len() as u32;
        let verdict = tolerance::judge(&distances);
        tracing::debug!(%node, %layers, rows, ?verdict, "computed again, within a tolerance");
        match verdict {
            Verdict::Near { median } => {
                state.report.findings.near.push((layers, rows, median));
                self.outcomes.push((node, Outcome::Verified { tokens: u64::from(rows) }));
            }
            Verdict::Unclear { .. } => {}
            Verdict::Far { row, median } => {
                let row = its[row] as u32;
                tracing::warn!(%node, %layers, row, median, "too far off for any hardware");
                // Its inputs are known for sure where they came from here; else a lying neighbor may have sent others.
                let me = state.means.me;
                if (0..=row)
                    .all(|row| state.logs.author(layers.start(), row).is_none_or(|author| author == me))
                {
                    self.outcomes.push((node, Outcome::Mismatch));
                    state.report.findings.convicted.push(node);
                }
                self.forget(state, node, layers, row, None);
            }
        }
    }

    /// What is to be said of the answer.
    fn tally(&mut self, state: &mut RequestState, strangers: &[Segment]) {
        let (mut checked, mut all) = (0.0, 0.0);
        state.report.findings.checks = strangers
            .iter()
            .map(|segment| {
                let rows = state.logs.settled(segment.layers.end());
                let book = self.books.iter().find(|book| book.layers() == segment.layers);
                let done = book.map_or(0, |book| book.checked.min(rows));
                checked += f64::from(done) * state.plan.weight(segment.layers);
                all += f64::from(rows) * state.plan.weight(segment.layers);
                (segment.layers, book.map_or_else(Vec::new, |book| book.by.iter().copied().collect()), done)
            })
            .collect();
        state.report.findings.verified = if all > 0.0 { checked / all } else { 1.0 };
    }

    /// What is to be remembered of everybody, and said of the answer.
    fn conclude(&mut self, state: &mut RequestState, strangers: &[Segment]) {
        for suspect in std::mem::take(&mut self.suspects) {
            self.outcomes.push((suspect.node, Outcome::Aborted));
        }
        self.tally(state, strangers);
        let judged: BTreeSet<NodeId> = self.outcomes.iter().map(|(node, _)| *node).collect();
        // A node that says that it is full does no wrong.
        let stalled = state.report.disturbances.faults.iter().map(|(node, _)| *node);
        let stalled: BTreeSet<NodeId> =
            stalled.filter(|node| !state.report.disturbances.refusals.contains(node)).collect();
        let mut met: BTreeSet<NodeId> = strangers.iter().map(|segment| segment.node).collect();
        met.extend(self.books.iter().flat_map(|book| book.words.keys()));
        met.extend(&stalled);
        for node in met.difference(&judged).filter(|node| **node != state.means.me) {
            let words = self.books.iter().filter_map(|book| Some((book, book.words.get(node)?)));
            let tokens = words.filter_map(|(book, word)| Some(word.good?.pos.min(book.checked))).max();
            let outcome = match tokens {
                _ if stalled.contains(node) => Outcome::Stalled,
                Some(tokens) if tokens > 0 => Outcome::Verified { tokens: u64::from(tokens) },
                _ => Outcome::Finished,
            };
            self.outcomes.push((*node, outcome));
        }
        state.report.findings.outcomes = std::mem::take(&mut self.outcomes);
    }
}
