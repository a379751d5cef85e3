//! When a node fails, and when a replacement is found.

use std::time::Duration;

use api::swarm_records::StepKind;
use scheduler::{NodeId, Segment, recover::Failure, session::Event};
use tokio::sync::oneshot;

use super::{
    Progress, RequestDriver, Reroute,
    state::{noticed, span},
};
use crate::sessions::Order;

/// A ping that is not answered by then, and the network's part, has gone over a connection that may carry one way only: the node
/// is sought another way. Twice what a busy machine's system takes to let a process run; shorter, and load looks like a cut.
const DOUBT_MS: u64 = 150;
/// Pings to one node under way; while there are as many, no other is sent.
const PINGS: usize = 8;

impl RequestDriver {
    pub(super) fn order(&mut self, order: Order) -> Vec<Event> {
        if let Order::Opened { node, epoch, layers, answer: Ok(_), .. } = &order {
            self.leases.claim(&mut self.state, *node, *epoch, *layers);
        }
        if let Order::Opened { node, layers, answer: Ok(have), .. } = &order {
            self.state.note_fetched(Segment { node: *node, layers: *layers }, *have);
        }
        match order {
            Order::Opened { stage: Some(stage), epoch, node, answer, load, .. } => match answer {
                // What was promised under an epoch that is over gives back no route that runs since.
                Ok(_) if epoch != self.state.machine.epoch() => Vec::new(),
                Ok(have) => {
                    self.state.recalled.has(have);
                    self.leases.granted(&self.state, stage, epoch, have, load)
                }
                Err(failure) if epoch == self.state.machine.epoch() => self.state.failed(node, failure),
                Err(_) => Vec::new(),
            },
            Order::Opened { stage: None, layers, node, answer, .. }
                if self.checks.third_opened(&mut self.state, layers, node, answer.is_ok()) =>
            {
                Vec::new()
            }
            // It may be a stage by now, and has been asked again.
            Order::Opened { stage: None, epoch, .. } if epoch != self.state.machine.epoch() => Vec::new(),
            Order::Opened { stage: None, layers, node, answer, .. } => match answer {
                Ok(have) => {
                    let start = layers.start();
                    self.state.followers.set_fed(node, start, have);
                    if let Some(stage) = self.state.stage_from(start) {
                        // Its verdict on the last token is still awaited.
                        if self.checks.last.is_some() {
                            self.state.feed_rest(stage)
                        } else {
                            self.state.feed_shadow(stage)
                        }
                    }
                    Vec::new()
                }
                // It has too little room, or too much to do, to follow as well: as a stage it is as good as before.
                Err(Failure::Refused | Failure::Late) if self.state.runs(node) => {
                    tracing::debug!(%node, %layers, "runs a segment and does not follow another");
                    self.state.followers.leave(node);
                    vec![Event::Unfollowed { node }]
                }
                Err(failure) => self.state.failed(node, failure),
            },
            Order::Rerouted(found) => {
                let found = found.map(|(pipeline, standbys, contacts, sources)| {
                    self.state.plan.meet(contacts);
                    self.state.plan.route.sources = sources;
                    (pipeline, standbys)
                });
                vec![Event::Rerouted(found)]
            }
            // A closing that this node caused itself is no failure of anybody.
            Order::Lost(loss) if self.state.outboxes.lost(loss) => {
                self.state.failed(loss.node, Failure::Closed)
            }
            Order::Lost(_) => Vec::new(),
            Order::Workless => self.state.failed(self.state.means.me, Failure::Closed),
            Order::Pinged(node, there) => {
                if let Some(under_way) = self.pings.get_mut(&node) {
                    *under_way = under_way.saturating_sub(1);
                }
                if there { vec![Event::Pong { node }] } else { Vec::new() }
            }
            Order::Detoured(node) => {
                tracing::debug!(%node, "reached another way");
                self.state.outboxes.turn(node);
                vec![Event::Pong { node }, Event::Detoured { node }]
            }
            Order::Cancel => vec![Event::Cancel],
            Order::Settled { node, settled } => {
                self.settled(node, &settled);
                Vec::new()
            }
            Order::Audited { layers, round, found } => {
                self.checks.audited(&mut self.state, layers, round, found)
            }
            Order::Lease { .. } | Order::Release { .. } | Order::End { .. } | Order::Settle { .. } => {
                Vec::new()
            }
        }
    }

    /// Asks a node whether it is there, over the network's own plane, and how far its inputs have come, the way that they come.
    pub(super) fn ping(&mut self, node: NodeId) {
        let epoch = self.state.machine.epoch();
        if self.state.outboxes.is_open(node, epoch) {
            let runs: Vec<Segment> = self.state.machine.segments().filter(|at| at.node == node).collect();
            runs.into_iter().for_each(|at| self.state.ask_how_far(node, epoch, at.layers));
        }
        let (network, orders, there) =
            (self.state.means.network.clone(), self.state.orders.clone(), self.state.plan.contact(node));
        if node == self.state.means.me {
            // Its worker is watched by other means.
            let _ = orders.try_send(Order::Pinged(node, true));
            return;
        }
        let under_way = self.pings.entry(node).or_insert(0);
        if *under_way == PINGS {
            return;
        }
        *under_way += 1;
        let patience = Duration::from_millis(DOUBT_MS + self.state.plan.route.rtt_p99_ms as u64);
        tokio::spawn(async move {
            let answered = network.ping(&there, None, patience).await;
            if answered == Some(false) {
                let _ = orders.send(Order::Detoured(node)).await;
            }
            let _ = orders.send(Order::Pinged(node, answered.is_some())).await;
        });
    }

    pub(super) fn find_route(&mut self, deny: Vec<NodeId>) {
        let (answer, found) = oneshot::channel();
        let plan = &self.state.plan;
        let lacking = self.state.means.feedback.lacking(plan.model, plan.form.kind);
        let question = Reroute {
            session: self.state.plan.session,
            model: self.state.plan.model,
            policy: self.state.plan.route.policy.clone(),
            shape: self.state.plan.route.shape,
            former: self.state.recalled.former(&plan.checking.shares),
            deny: deny.into_iter().chain(self.checks.denied.iter().copied()).chain(lacking).collect(),
            shadow: self.state.plan.shadow,
            answer,
        };
        let (reroute, orders) = (self.state.means.reroute.clone(), self.state.orders.clone());
        tokio::spawn(async move {
            let found = match reroute.send(question).await {
                Ok(()) => found.await.unwrap_or(None),
                Err(_) => None,
            };
            let _ = orders.send(Order::Rerouted(found)).await;
        });
    }

    /// Tells the caller when a node was replaced.
    pub(super) async fn notice_move(&mut self, before: &[Segment]) {
        let now: Vec<Segment> = self.state.machine.segments().collect();
        if now == before {
            return;
        }
        // The node that left the route, else (a slow stage that lost some layers) one that runs other layers now.
        let out = before.iter().find(|old| now.iter().all(|new| new.node != old.node));
        if let Some(left) = out.or(before.iter().find(|old| !now.contains(old))) {
            let why = self.state.timing.take_noticed(left.node);
            self.state.timing.silent(left.node);
            self.state.note_lost(left.node, noticed(why));
            for segment in now.iter().filter(|segment| !before.contains(segment)) {
                let covers = |old: &&Segment| old.layers.intersect(segment.layers).is_some();
                let from = before.iter().filter(covers).find(|old| old.node != segment.node);
                let from = from.map_or(left.node, |old| old.node);
                self.state.note(StepKind::TookOver { span: span(*segment), from: format!("{from:?}") });
            }
            let moved = Progress::Moved { failed: left.node, why, segments: now };
            let _ = self.state.means.progress.send(moved).await;
        }
    }
}
