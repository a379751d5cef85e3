//! The serving side of a machine: what it makes of a message, from lease to output.

use scheduler::recover::{BEACON_MS, Failure};
use scheduler::session::{Event, Rows};
use scheduler::{ModelId, NodeId, SessionId};

use super::{Body, Happening, Swarm, id, index};
use crate::storm::stage::{Framed, Lease, token_of};

/// A machine as one that others ask to compute.
pub(super) struct Server<'a> {
    pub swarm: &'a mut Swarm,
    pub here: usize,
}

impl Server<'_> {
    pub(super) fn deliver(&mut self, body: Body) {
        let to = self.here;
        let now = self.swarm.local(to);
        match body {
            Body::Open(lease) => self.open(lease),
            Body::Close { session, epoch } => {
                self.swarm.machines[to].stage.close(now, session, epoch);
                self.admit();
            }
            Body::Frame { session, epoch, layer, rows, inputs, home } => {
                self.frame((session, layer), epoch, rows, &inputs, home);
            }
            Body::Feed { session, layer, from, inputs, home } => {
                if let Some(have) = self.swarm.machines[to].stage.feed(now, (session, layer), from, &inputs) {
                    self.swarm.send(to, home, Body::Fed { session, node: id(to), have });
                }
                self.swarm.checks.memory(self.swarm.now, to, &mut self.swarm.machines[to].stage);
            }
            Body::Gossip(said) => self.swarm.hear(to, said.0, said.1),
            Body::Opened { session, stage, epoch, have, load } => {
                self.swarm.requester(to).opened(session, stage, epoch, have, load);
            }
            Body::Failed { session, epoch, node, failure, held } => {
                let corrected = held.is_some_and(|held| {
                    self.swarm.machines[to].view.correct(node, ModelId::default(), held, now)
                });
                let failure = if corrected { Failure::Misrouted } else { failure };
                self.failed_in(session, epoch, node, failure);
            }
            Body::NoWay { session, epoch, from, to: other } => {
                self.swarm.machines[to].view.unreachable(from, other, now);
                self.failed_in(session, epoch, other, Failure::Misrouted);
            }
            Body::Short { session, stage, epoch, have } => {
                self.swarm.requester(to).tell_session(session, Event::NeedReplay { stage, epoch, have });
            }
            Body::Logged { session, stage, node, epoch, attempt, layer, from, outputs } => {
                self.swarm.requester(to).logged(
                    session,
                    (epoch, attempt),
                    (stage, node),
                    (layer, from, outputs),
                );
            }
            Body::Drawn { session, epoch, attempt, from, tokens } => {
                self.swarm.requester(to).drawn(session, (epoch, attempt), from, &tokens);
            }
            Body::Beacon { session, stage, node, epoch } => {
                // A shadow that computes says nothing about the stage it follows.
                if self.swarm.machines[to].asker.runs(session, stage) == Some(node) {
                    self.swarm.requester(to).tell_session(session, Event::Beacon { stage, epoch });
                }
            }
            Body::Ping { session, home } => self.swarm.send(to, home, Body::Pong { session, node: id(to) }),
            Body::Pong { session, node } => {
                self.swarm.requester(to).tell_session(session, Event::Pong { node })
            }
            Body::Fed { session, node, have } => self.swarm.requester(to).fed(session, node, have),
            Body::Lost { node } => self.swarm.requester(to).node_failed(None, node, Failure::Closed),
        }
    }

    /// A failure counts under the epoch it was met in.
    fn failed_in(&mut self, session: SessionId, epoch: u32, node: NodeId, failure: Failure) {
        let to = self.here;
        let live = self.swarm.machines[to].asker.live.get(&session);
        if live.is_some_and(|live| live.epoch() == epoch) {
            self.swarm.requester(to).node_failed(Some(session), node, failure);
        }
    }

    pub(super) fn open(&mut self, lease: Lease) {
        let to = self.here;
        let now = self.swarm.local(to);
        let (session, epoch, home) = (lease.session, lease.epoch, lease.requester);
        let (layer, follow, stage) = (lease.layers.start(), lease.follow, lease.stage);
        let holds = self.swarm.machines[to].stage.held.covers(lease.layers);
        let opened = self.swarm.machines[to].stage.open(now, lease);
        if opened.is_err() {
            let held = (!holds).then(|| self.swarm.machines[to].stage.held.clone());
            let failure = Failure::Refused;
            return self.swarm.send(to, home, Body::Failed { session, epoch, node: id(to), failure, held });
        }
        self.admit();
        // Asked again, or asked under a new epoch while it runs: promised at once.
        if opened == Ok(true)
            && !follow
            && let Some(have) = self.swarm.machines[to].stage.have(session, layer, epoch)
        {
            let load = self.swarm.machines[to].stage.load(id(to));
            self.swarm.send(to, home, Body::Opened { session, stage, epoch, have, load });
        }
    }

    /// Admits the asks that may start, and tells them.
    pub(super) fn admit(&mut self) {
        let at = self.here;
        let now = self.swarm.local(at);
        for lease in self.swarm.machines[at].stage.admitted(now) {
            let load = self.swarm.machines[at].stage.load(id(at));
            if !lease.follow {
                let Lease { session, stage, epoch, requester, .. } = lease;
                self.swarm.send(at, requester, Body::Opened { session, stage, epoch, have: 0, load });
            }
        }
        self.swarm.checks.memory(self.swarm.now, at, &mut self.swarm.machines[at].stage);
    }

    pub(super) fn frame(
        &mut self,
        key: (SessionId, u32),
        epoch: u32,
        rows: Rows,
        inputs: &[u64],
        home: usize,
    ) {
        let at = self.here;
        let from = rows.from;
        let now = self.swarm.local(at);
        let before = self.swarm.machines[at].stage.have(key.0, key.1, epoch);
        let session = key.0;
        match self.swarm.machines[at].stage.frame(now, key, epoch, rows, inputs) {
            Framed::Outputs(outputs, rows, lease) => {
                let machine = &mut self.swarm.machines[at];
                let holds = machine.stage.held.covers(lease.layers);
                let in_place = before.is_some_and(|have| from <= have);
                let boot = machine.health.boot;
                let tokens = inputs.len() as f64;
                let each = if tokens > 1.0 { tokens / 5.0 } else { 1.0 };
                let work = 1.0 + machine.layer_ms * f64::from(lease.layers.len()) * each.max(1.0);
                let finish =
                    self.swarm.now.max(machine.health.busy_until) + work.ceil() as u64 * machine.health.slow;
                machine.health.busy_until = finish;
                self.swarm.checks.computes(
                    self.swarm.now,
                    (at, boot),
                    (session, key.1, epoch),
                    holds,
                    in_place,
                );
                self.swarm.checks.memory(self.swarm.now, at, &mut self.swarm.machines[at].stage);
                let lease = Box::new(lease);
                let beacon = Happening::Beacon { at, boot, until: finish, lease: lease.clone() };
                if finish > self.swarm.now + BEACON_MS {
                    self.swarm.at(self.swarm.now + BEACON_MS, beacon);
                }
                self.swarm.at(finish, Happening::Computed { at, boot, lease, rows, outputs });
            }
            Framed::Short(have, lease) => {
                self.swarm.send(
                    at,
                    lease.requester,
                    Body::Short { session, stage: lease.stage, epoch, have },
                );
            }
            Framed::Unknown => {
                let failure = Failure::Refused;
                self.swarm.send(at, home, Body::Failed { session, epoch, node: id(at), failure, held: None });
            }
            Framed::Dropped => {}
        }
    }

    pub(super) fn computed(&mut self, lease: &Lease, rows: Rows, outputs: Vec<u64>) {
        let at = self.here;
        let Lease { session, stage, epoch, requester, layers, next, .. } = *lease;
        let Rows { attempt, from, .. } = rows;
        match next {
            Some(next) => {
                let layer = layers.end();
                let inputs = outputs.clone();
                let ahead = Body::Frame { session, epoch, layer, rows, inputs, home: requester };
                self.swarm.send(at, index(next), ahead);
                self.swarm.send(
                    at,
                    requester,
                    Body::Logged { session, stage, node: id(at), epoch, attempt, layer, from, outputs },
                );
            }
            None => {
                let tokens = outputs.into_iter().map(token_of).collect();
                self.swarm.send(at, requester, Body::Drawn { session, epoch, attempt, from, tokens });
            }
        }
    }
}
