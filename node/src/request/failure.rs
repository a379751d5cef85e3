//! When a node fails, and when a replacement is found.

use std::time::Duration;

use scheduler::{NodeId, Segment, recover::Failure, session::Event};
use tokio::sync::oneshot;

use super::{Progress, RequestDriver, Reroute};
use crate::sessions::Order;

/// A ping that is not answered by then, and the network's part, has gone over a connection that may carry one way only: the node
/// is sought another way. Twice what a busy machine's system takes to let a process run; shorter, and load looks like a cut.
const DOUBT_MS: u64 = 150;
/// Pings to one node under way; while there are as many, no other is sent.
const PINGS: usize = 8;

impl RequestDriver {
    pub(super) fn failed(&mut self, node: NodeId, failure: Failure) -> Vec<Event> {
        let ours = self.machine.segments().any(|segment| segment.node == node);
        let shadow = self.shadows.values().any(|shadow| *shadow == node);
        tracing::debug!(%node, ?failure, "noticed");
        self.noticed = Some((node, failure));
        // Who serves this node's other prompts and does not promise in time has too much to do already.
        let late = failure == Failure::Late && self.report.opened_ms.is_none() && node != self.means.me;
        if failure == Failure::Refused || late && self.means.lessons.serves(node) {
            self.report.refusals.insert(node);
        }
        if ours && self.silent_since.is_none() {
            self.silent_since = Some((node, self.last_token));
        }
        self.outboxes.close(node);
        self.shadows.retain(|_, shadow| *shadow != node);
        if ours || shadow { vec![Event::Failed { node, failure }] } else { Vec::new() }
    }

    pub(super) fn order(&mut self, order: Order) -> Vec<Event> {
        if let Order::Opened { node, epoch, layers, answer: Ok(_), .. } = &order {
            self.seats.insert(*node);
            self.claim(*node, *epoch, *layers);
        }
        match order {
            Order::Opened { stage: Some(stage), epoch, node, answer, load, .. } => match answer {
                Ok(have) => {
                    if epoch == self.machine.epoch() {
                        self.recalled.has(have);
                    }
                    self.granted(stage, epoch, have, load)
                }
                Err(failure) if epoch == self.machine.epoch() => self.failed(node, failure),
                Err(_) => Vec::new(),
            },
            Order::Opened { stage: None, layers, node, answer, .. }
                if self.third_opened(layers, node, answer.is_ok()) =>
            {
                Vec::new()
            }
            // It may be a stage by now, and has been asked again.
            Order::Opened { stage: None, epoch, .. } if epoch != self.machine.epoch() => Vec::new(),
            Order::Opened { stage: None, layers, node, answer, .. } => match answer {
                Ok(have) => {
                    let start = layers.start();
                    self.fed.insert((node, start), have);
                    if let Some(stage) = self.stage_from(start) {
                        // Its verdict on the last token is still awaited.
                        if self.checks.last.is_some() {
                            self.feed_rest(stage)
                        } else {
                            self.feed_shadow(stage)
                        }
                    }
                    Vec::new()
                }
                Err(failure) => self.failed(node, failure),
            },
            Order::Rerouted(found) => {
                let found = found.map(|(pipeline, standbys, contacts)| {
                    self.plan.meet(contacts);
                    (pipeline, standbys)
                });
                vec![Event::Rerouted(found)]
            }
            // A closing that this node caused itself is no failure of anybody.
            Order::Lost(loss) if self.outboxes.lost(loss) => self.failed(loss.node, Failure::Closed),
            Order::Lost(_) => Vec::new(),
            Order::Workless => self.failed(self.means.me, Failure::Closed),
            Order::Pinged(node, there) => {
                if let Some(under_way) = self.pings.get_mut(&node) {
                    *under_way = under_way.saturating_sub(1);
                }
                if there { vec![Event::Pong { node }] } else { Vec::new() }
            }
            Order::Detoured(node) => {
                tracing::debug!(%node, "reached another way");
                self.outboxes.turn(node);
                vec![Event::Pong { node }, Event::Detoured { node }]
            }
            Order::Cancel => vec![Event::Cancel],
            Order::Settled { node, settled } => {
                self.settled(node, &settled);
                Vec::new()
            }
            Order::Audited { layers, round, found } => self.audited(layers, round, found),
            Order::Lease { .. } | Order::Release { .. } | Order::End { .. } | Order::Settle { .. } => {
                Vec::new()
            }
        }
    }

    /// Asks a node whether it is there.
    pub(super) fn ping(&mut self, node: NodeId) {
        let (network, orders, there) =
            (self.means.network.clone(), self.orders.clone(), self.plan.contact(node));
        if node == self.means.me {
            // Its worker is watched by other means.
            let _ = orders.try_send(Order::Pinged(node, true));
            return;
        }
        let under_way = self.pings.entry(node).or_insert(0);
        if *under_way == PINGS {
            return;
        }
        *under_way += 1;
        let patience = Duration::from_millis(DOUBT_MS + self.plan.rtt_p99_ms as u64);
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
        let question = Reroute {
            session: self.plan.session,
            model: self.plan.model,
            policy: self.plan.policy.clone(),
            shape: self.plan.shape,
            deny: deny.into_iter().chain(self.checks.denied.iter().copied()).collect(),
            shadow: self.plan.shadow,
            answer,
        };
        let (reroute, orders) = (self.means.reroute.clone(), self.orders.clone());
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
        let now: Vec<Segment> = self.machine.segments().collect();
        if now == before {
            return;
        }
        // The node that left the route, else (a slow stage that lost some layers) one that runs other layers now.
        let out = before.iter().find(|old| now.iter().all(|new| new.node != old.node));
        if let Some(left) = out.or(before.iter().find(|old| !now.contains(old))) {
            let why = self.noticed.take().filter(|(node, _)| *node == left.node).map(|(_, why)| why);
            self.silent_since.get_or_insert((left.node, self.last_token));
            let moved = Progress::Moved { failed: left.node, why, segments: now };
            let _ = self.means.progress.send(moved).await;
        }
    }
}
