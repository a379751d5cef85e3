//! A third holder settles what two disagree about.
//!
//! Honest nodes compute the same bits, so two unrelated ones that agree against one are right. Who is asked holds the
//! whole range and belongs to neither side. It gets the log, as one who follows does, up to where the dispute is, and from
//! there row by row where that is short ([`EXACT`]): then its signatures name the first wrong position, and what the
//! stage signed is a proof.
//!
//! With [`Verify::Strict`] the requester's own computation comes first, where it can be done: no majority outweighs it.
//! Otherwise it comes when no third holder can be asked, when it does not answer within [`PATIENCE`], and when its
//! word decides nothing ([`Ruling::Open`]).
//!
//! Limits: one third holder a dispute; [`MAX_WITNESSES`](super::MAX_WITNESSES) are known.
//!
//! [`Verify::Strict`]: crate::control::Verify::Strict

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use p2p::{
    HopError,
    wire::control::{Answer, Ask, Lease, Reuse, Role},
};
use scheduler::{LayerRange, NodeId, recover::Failure, session::Event};

use super::{
    commitments::{Ruling, Third},
    lease::{LEASE_MS, Leases},
    replay_log::Logs,
    state::RequestState,
    verify::Checks,
    witness::{operator, unrelated},
};
use crate::sessions::Order;

/// Positions of a dispute that are computed one by one: what a stage computes between two signatures, twice.
const EXACT: u32 = 32;
/// How long a third holder may take: the range from its beginning, as a prompt.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// How long it keeps the session when the requester does not come back.
const TTL_MS: u32 = 15_000;

impl Checks {
    /// Asks a third holder about a disputed range; false when there is none to ask.
    pub(super) fn ask_third(&mut self, state: &mut RequestState, layers: LayerRange) -> bool {
        if state.strict() && state.means.auditor.is_some() {
            return false;
        }
        let Some((window, author)) = self.at_issue(&state.logs, layers) else { return false };
        let (me, plan) = (state.means.me, &state.plan);
        let book = self.books.iter().find(|book| book.layers() == layers);
        let words = book.into_iter().flat_map(|book| book.words.keys().copied());
        let parties: Vec<NodeId> = words.chain([author]).collect();
        // Who runs or follows something in this session would lose that lease to another.
        let mut busy: BTreeSet<NodeId> = state.machine.segments().map(|segment| segment.node).collect();
        busy.extend(state.followers.nodes());
        busy.extend(self.denied.iter().chain(&plan.checking.approx).chain([&me]));
        let Some(witness) = unrelated(&plan.checking.witnesses, layers, &parties, &busy) else {
            return false;
        };
        let there = witness.contact.clone();
        let (node, epoch) = (there.node, state.machine.epoch());
        let exact = window.1 - window.0 <= EXACT;
        let lease = Lease {
            session: plan.session,
            epoch,
            model: plan.model,
            layers,
            positions: plan.prompt.len() as u32 + plan.max_tokens.saturating_sub(1),
            at: 0,
            rounding: state.plan.form.rounding.clone(),
            kind: state.plan.form.kind,
            next: None,
            previous: None,
            log: true,
            ttl_ms: TTL_MS,
            role: Role::Shadow,
            reuse: Reuse::default(),
        };
        tracing::info!(%layers, %node, ?window, "two nodes disagree; asking a third");
        state.plan.route.contacts.push(there.clone());
        self.book(state, layers).third = Some(Third { node, window, exact, asked: Instant::now() });
        let (network, orders) = (state.means.network.clone(), state.orders.clone());
        tokio::spawn(async move {
            let patience = Duration::from_millis(LEASE_MS);
            let asked = match network.connect(&there).await {
                Ok(_) => network.ask(node, &Ask::Lease(Box::new(lease)), patience).await,
                Err(_) => Err(HopError::Closed),
            };
            let answer = match asked {
                Ok(Answer::Accepted { have, .. }) => Ok(have),
                Ok(_) | Err(_) => Err(Failure::Refused),
            };
            let _ = orders.send(Order::Opened { stage: None, epoch, layers, node, answer, load: None }).await;
        });
        true
    }

    /// The positions in dispute, and the one node that gave all of their rows.
    fn at_issue(&self, logs: &Logs, layers: LayerRange) -> Option<((u32, u32), NodeId)> {
        let book = self.books.iter().find(|book| book.layers() == layers)?;
        let window = book.disputed().filter(|_| book.third.is_none() && !book.open)?;
        let author = logs.author(layers.end(), window.0)?;
        (logs.author(layers.end(), window.1 - 1) == Some(author)).then_some((window, author))
    }

    /// Whether `node` was asked about the stage that starts at `layer`.
    pub(super) fn is_third(&self, layer: u32, node: NodeId) -> bool {
        let asked = |book: &super::commitments::Book| book.third.is_some_and(|third| third.node == node);
        self.books.iter().any(|book| book.layers().start() == layer && asked(book))
    }

    /// A third holder that was asked promised, or not; false when it is not one.
    pub(super) fn third_opened(
        &mut self,
        state: &mut RequestState,
        layers: LayerRange,
        node: NodeId,
        promised: bool,
    ) -> bool {
        if !self.is_third(layers.start(), node) {
            return false;
        }
        let book = self.book(state, layers);
        let Some(Third { window: (from, upto), exact, .. }) = book.third else { return true };
        if !promised {
            (book.third, book.open) = (None, true);
            return true;
        }
        let (boundary, epoch) = (layers.start(), state.machine.epoch());
        state.followers.set_fed(node, boundary, 0);
        if exact {
            (from..upto).for_each(|to| state.feed(node, boundary, epoch, to));
        }
        state.feed(node, boundary, epoch, upto);
        true
    }

    /// What third holders have decided since, and what follows from it.
    pub(super) fn hear_thirds(&mut self, state: &mut RequestState, leases: &mut Leases) -> Vec<Event> {
        let mut events = Vec::new();
        let asked: Vec<(LayerRange, Third)> =
            self.books.iter().filter_map(|book| Some((book.layers(), book.third?))).collect();
        for (layers, third) in asked {
            let author = state.logs.author(layers.end(), third.window.0);
            let witnesses = &state.plan.checking.witnesses;
            let book = self.books.iter().find(|book| book.layers() == layers);
            let ruling = book
                .zip(author)
                .and_then(|(book, author)| book.rule(author, |node| operator(witnesses, node)));
            if ruling.is_none() && third.asked.elapsed() < PATIENCE {
                continue;
            }
            tracing::info!(%layers, node = %third.node, ?ruling, "a third holder has spoken");
            leases.bill(state, third.node, state.machine.epoch());
            state.outboxes.close(third.node);
            let book = self.book(state, layers);
            (book.third, book.open) = (None, true);
            match ruling {
                Some(Ruling::Upheld(upto)) => {
                    book.open = false;
                    let wrong = book.upheld(upto, third.node);
                    state.report.findings.thirds += 1;
                    events.extend(self.refute(state, layers, wrong));
                }
                Some(Ruling::Wrong { at, exact }) => {
                    state.report.findings.thirds += 1;
                    events.extend(self.convict(state, layers, at, (!exact).then_some(third.window.1)));
                }
                Some(Ruling::Open) | None => {}
            }
        }
        events
    }
}
