//! Leases: what stages promise and when they are let go.

use std::time::Duration;

use bytes::Bytes;
use p2p::{
    HopError,
    wire::{
        control::{Answer, Ask, Lease, Refusal, Role},
        frame::{Header, Kind},
    },
};
use scheduler::{
    LayerRange, NodeId, Segment,
    lease::{Load, Verdict},
    recover::Failure,
    session::Event,
};
use tokio::time::timeout;

use super::RequestDriver;
use crate::{
    control::Shadow,
    sessions::Order,
    worker::{Conduct, OpenSession, Worker},
};

/// An answer to a lease later than this counts as none. The session asks meanwhile whether the node is there, and waits no longer
/// than is of use; a crowded node may need more than the 1.5 s that leases wait in its queue.
pub(super) const LEASE_MS: u64 = 8_000;
/// How long a stage keeps a session that gets no frames.
const TTL_MS: u32 = 60_000;

impl RequestDriver {
    pub(super) fn open(
        &mut self,
        stage: Option<usize>,
        epoch: u32,
        segment: Segment,
        next: Option<NodeId>,
        at: u32,
    ) {
        let (orders, node, layers) = (self.orders.clone(), segment.node, segment.layers);
        // The last token is said and never computed on: an answer may end at the very end of the context.
        let positions = self.plan.prompt.len() as u32 + self.plan.max_tokens.saturating_sub(1);
        self.sampling = None;
        self.checks.last = None;
        self.waiting.retain(|job| job.epoch == epoch);
        if self.running_epoch != epoch {
            // What was under way belongs to the epoch before; the worker drops it without an answer.
            (self.running_epoch, self.running) = (epoch, 0);
        }
        if node == self.means.me {
            let last = segment.layers.end() == self.machine_layers();
            let history = self.tokens.clone();
            let open = OpenSession {
                session: self.place(),
                epoch,
                layers: segment.layers,
                positions,
                at,
                rounding: self.rounding.clone(),
                kept: self.recalled.homes(),
                conduct: last.then(|| Conduct { history, ..self.plan.conduct.clone() }),
            };
            let mut workers = self.means.worker.clone();
            tokio::spawn(async move {
                let alive =
                    timeout(Duration::from_millis(LEASE_MS), workers.wait_for(Worker::is_alive)).await;
                let worker = alive.ok().and_then(Result::ok).map(|worker| worker.clone());
                let answer = match worker {
                    Some(worker) => worker.open(open).await.map_err(|_| Failure::Refused),
                    None => Err(Failure::Late),
                };
                let _ = orders.send(Order::Opened { stage, epoch, layers, node, answer, load: None }).await;
            });
            return;
        }
        // A shadow is fed by the requester alone, and answers it alone.
        let next = next.filter(|next| stage.is_some() && *next != self.means.me);
        let before = stage.and_then(|stage| self.segment(stage.checked_sub(1)?)).map(|segment| segment.node);
        let lease = Lease {
            session: self.plan.session,
            epoch,
            model: self.plan.model,
            layers: segment.layers,
            positions,
            at,
            rounding: self.rounding.clone(),
            next: next.map(|next| self.plan.contact(next)),
            previous: before.filter(|before| *before != self.means.me),
            log: true,
            ttl_ms: TTL_MS,
            role: match (stage, self.plan.shadow) {
                (Some(_), _) => Role::Stage,
                (None, Shadow::Lazy) => Role::LazyShadow,
                (None, _) => Role::Shadow,
            },
            beginnings: self.beginnings(segment.layers),
        };
        let (network, there) = (self.means.network.clone(), self.plan.contact(node));
        let (me, lessons, model) = (self.means.me, self.means.lessons.clone(), self.plan.model);
        tokio::spawn(async move {
            let asked = async {
                if network.connect(&there).await.is_err() {
                    lessons.apart(me, node);
                    lessons.silent(node);
                    return Err(HopError::Closed);
                }
                let patience = Duration::from_millis(LEASE_MS);
                let offers = !lease.beginnings.is_empty();
                let plain = Lease { beginnings: Vec::new(), ..lease.clone() };
                match network.ask(node, &Ask::Lease(Box::new(lease)), patience).await {
                    // A node of before does not know what is offered, and closes the stream.
                    Err(HopError::Closed) if offers => {
                        network.ask(node, &Ask::Lease(Box::new(plain)), patience).await
                    }
                    answered => answered,
                }
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
                    lessons.refused(node, model, reason, &held);
                    Err(Failure::Refused)
                }
                Ok(_) | Err(HopError::Corrupt) => Err(Failure::Corrupt),
                Err(HopError::Refused(_)) => Err(Failure::Refused),
                Err(HopError::Timeout) => {
                    lessons.silent(node);
                    lessons.refused(node, model, Refusal::Busy, &[]);
                    Err(Failure::Late)
                }
                Err(HopError::Closed) => Err(Failure::Closed),
            };
            let _ = orders.send(Order::Opened { stage, epoch, layers, node, answer, load }).await;
        });
    }

    /// A stage of the first route promised. When all have, what they said about their load decides whether to take the
    /// route or to look for a quieter one; until then the machine is not told of the last promise.
    pub(super) fn granted(&mut self, stage: usize, epoch: u32, have: u32, load: Option<Load>) -> Vec<Event> {
        if self.looking == Some(epoch) {
            self.loads.extend(load);
            let strangers = self.machine.segments().filter(|segment| segment.node != self.means.me).count();
            if self.loads.len() >= strangers {
                self.looking = None;
                let plan = &self.plan;
                let verdict = self.means.lessons.heard(plan.looks, &self.loads, &plan.announced);
                if verdict == Verdict::Again {
                    self.again = true;
                    return vec![Event::Cancel];
                }
            }
        }
        vec![Event::Opened { stage, epoch, have }]
    }

    /// Says to a node that granted a lease that it is needed although its rows may take a while: the lease is lost
    /// otherwise.
    pub(super) fn claim(&mut self, node: NodeId, epoch: u32, layers: LayerRange) {
        if node == self.means.me || epoch < self.machine.epoch() {
            return;
        }
        let header = Header::signal(Kind::Beacon, epoch, layers.start(), 0, 0);
        let plan = &self.plan;
        self.outboxes.send(node, || plan.contact(node), header, Bytes::new());
    }

    pub(super) fn close(&mut self, node: NodeId, epoch: u32) {
        if node != self.means.me {
            self.bill(node, epoch);
        }
        self.outboxes.close(node);
    }
}
