//! Leases: what stages promise and when they are let go.

use std::{collections::BTreeSet, time::Duration};

use p2p::{
    HopError,
    wire::{
        control::{Answer, Ask, Lease, Refusal, Reuse, Role, Source},
        prefix::Beginning,
    },
};
use scheduler::{
    LayerRange, NodeId, Segment,
    lease::{Load, Verdict},
    recover::Failure,
    session::Event,
};

use super::state::RequestState;
use crate::{
    control::{Shadow, Verify},
    sessions::Order,
};

/// An answer to a lease later than this counts as none. The session asks meanwhile whether the node is there, and waits no longer
/// than is of use; a crowded node may need more than the 1.5 s that leases wait in its queue.
pub(super) const LEASE_MS: u64 = 8_000;
/// How long a stage keeps a session that gets no frames.
const TTL_MS: u32 = 60_000;
/// Times a node that does not hear it is told that it is needed no more; then its lease runs out by itself.
const RELEASES: u32 = 5;

/// What the nodes of one request have promised.
pub(super) struct Leases {
    /// The epoch of the first route while its stages promise, and what they say of their load; one per stage.
    looking: Option<u32>,
    loads: Vec<Load>,
    /// Who has promised something and was not told yet that it is needed no more.
    seats: BTreeSet<NodeId>,
    /// The route is given back for a quieter one.
    again: bool,
    /// Bills that are asked for and not there.
    unsettled: BTreeSet<NodeId>,
}

impl Leases {
    /// None yet; the stages of the first route promise under `epoch`.
    pub(super) fn new(epoch: u32) -> Self {
        Self {
            looking: Some(epoch),
            loads: Vec::new(),
            seats: BTreeSet::new(),
            again: false,
            unsettled: BTreeSet::new(),
        }
    }

    /// Whether the route was given back for a quieter one.
    pub(super) fn is_given_back(&self) -> bool {
        self.again
    }

    /// Whether the bill of any of `nodes` is awaited.
    pub(super) fn awaits(&self, nodes: &BTreeSet<NodeId>) -> bool {
        !self.unsettled.is_disjoint(nodes)
    }

    /// A node's bill is here.
    pub(super) fn billed(&mut self, node: NodeId) {
        self.unsettled.remove(&node);
    }

    /// Asks a node to serve a segment, as a stage or as the shadow of one. `positions` is how many the session may come to, `at` how
    /// many the node may keep.
    pub(super) fn ask(
        state: &RequestState,
        stage: Option<usize>,
        epoch: u32,
        segment: Segment,
        next: Option<NodeId>,
        (positions, at): (u32, u32),
        (beginnings, source): (Vec<Beginning>, Option<Box<Source>>),
    ) {
        let (orders, node, layers) = (state.orders.clone(), segment.node, segment.layers);
        // A shadow is fed by the requester alone, and answers it alone. Between two segments of one node rows cross the requester:
        // a node has no stream to itself.
        let next = next.filter(|next| stage.is_some() && *next != state.means.me && *next != node);
        let before = stage.and_then(|stage| state.segment(stage.checked_sub(1)?)).map(|segment| segment.node);
        let lease = Lease {
            session: state.plan.session,
            epoch,
            model: state.plan.model,
            layers: segment.layers,
            positions,
            at,
            rounding: state.plan.form.rounding.clone(),
            kind: state.plan.form.kind,
            next: next.map(|next| state.plan.contact(next)),
            previous: before.filter(|before| *before != state.means.me && *before != node),
            log: true,
            ttl_ms: TTL_MS,
            role: match (stage, state.plan.shadow) {
                (Some(_), _) => Role::Stage,
                (None, Shadow::Lazy) => Role::LazyShadow,
                (None, _) => Role::Shadow,
            },
            reuse: Reuse {
                beginnings,
                // Who follows checks the stage, and rests on nothing that it or another one says.
                source: source.filter(|_| stage.is_some()),
                on_disk: state.lets_keep(),
            },
        };
        let (network, there) = (state.means.network.clone(), state.plan.contact(node));
        let (me, feedback, model) = (state.means.me, state.means.feedback.clone(), state.plan.model);
        let kind = state.plan.form.kind;
        tokio::spawn(async move {
            let asked = async {
                if network.connect(&there).await.is_err() {
                    feedback.apart(me, node);
                    feedback.silent(node);
                    return Err(HopError::Closed);
                }
                // A stage answers when it has the state that it may get, or has given that up.
                let fetches_ms = lease.reuse.source.as_ref().map_or(0, |source| source.worth_ms.into());
                let patience = Duration::from_millis(LEASE_MS + fetches_ms);
                let mut answered = network.ask(node, &Ask::Lease(Box::new(lease.clone())), patience).await;
                let mut lease = lease;
                // A node of before does not know all that is said, and closes the stream.
                while matches!(answered, Err(HopError::Closed))
                    && let Some(reuse) = lease.reuse.less()
                {
                    lease.reuse = reuse;
                    answered = network.ask(node, &Ask::Lease(Box::new(lease.clone())), patience).await;
                }
                answered
            }
            .await;
            let mut load = None;
            let answer = match asked {
                Ok(Answer::Accepted { have, sessions, lanes }) => {
                    load = Some(Load { node, sessions, lanes });
                    Ok(have)
                }
                Ok(Answer::Refused { reason, text, held }) => {
                    tracing::info!(%node, ?reason, text, "lease refused");
                    // What this session asks for says nothing of the node's room for others.
                    match reason {
                        Refusal::Malformed => feedback.lacks(node, model, kind),
                        reason => feedback.refused(node, model, reason, &held),
                    }
                    Err(Failure::Refused)
                }
                Ok(_) | Err(HopError::Corrupt) => Err(Failure::Corrupt),
                Err(HopError::Refused(_)) => Err(Failure::Refused),
                Err(HopError::Timeout) => {
                    feedback.silent(node);
                    feedback.refused(node, model, Refusal::Busy, &[]);
                    Err(Failure::Late)
                }
                // A node of before closes the stream at a kind that it does not know, and so does one that dies: the next
                // prompt asks again.
                Err(HopError::Closed) => Err(Failure::Closed),
            };
            let _ = orders.send(Order::Opened { stage, epoch, layers, node, answer, load }).await;
        });
    }

    /// A stage of the first route promised. When all have, what they said about their load decides whether to take the
    /// route or to look for a quieter one; until then the machine is not told of the last promise.
    pub(super) fn granted(
        &mut self,
        state: &RequestState,
        stage: usize,
        epoch: u32,
        have: u32,
        load: Option<Load>,
    ) -> Vec<Event> {
        if self.looking == Some(epoch) {
            self.loads.extend(load);
            let strangers = state.machine.segments().filter(|segment| segment.node != state.means.me).count();
            if self.loads.len() >= strangers {
                self.looking = None;
                let plan = &state.plan;
                let verdict = state.means.feedback.heard(plan.route.looks, &self.loads, &plan.route.believed);
                if verdict == Verdict::Again {
                    self.again = true;
                    return vec![Event::Cancel];
                }
            }
        }
        vec![Event::Opened { stage, epoch, have }]
    }

    /// A node granted a lease: says to it that it is needed although its rows may take a while. The lease is lost otherwise.
    pub(super) fn claim(&mut self, state: &mut RequestState, node: NodeId, epoch: u32, layers: LayerRange) {
        self.seats.insert(node);
        if node == state.means.me || epoch < state.machine.epoch() {
            return;
        }
        state.ask_how_far(node, epoch, layers);
    }

    /// Asks a node for its bill, then lets it go.
    pub(super) fn bill(&mut self, state: &mut RequestState, node: NodeId, epoch: u32) {
        // Which rows of its last draft were right a stage hears here. The row of the last token may be one that was rejected.
        let follows = state.followers.contains(node);
        let confirmed = (state.tokens.len() as u32).saturating_sub(1);
        let mut upto = if state.drafts.used() && !follows { confirmed } else { 0 };
        if state.plan.checking.verify != Verify::Off {
            for stage in state.followers.stages_of(node) {
                state.feed_rest(stage);
                let start = state.segment(stage).map_or(0, |segment| segment.layers.start());
                upto = upto.max(state.logs.settled(start));
            }
        }
        self.unsettled.insert(node);
        let (network, session, orders) =
            (state.means.network.clone(), state.plan.session, state.orders.clone());
        let (feedback, worked) = (state.means.feedback.clone(), state.report.times.opened_ms.is_some());
        let (held, there) = (self.seats.remove(&node), state.plan.contact(node));
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
                        feedback.freed(node);
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
}
