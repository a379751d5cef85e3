//! The serving side of a machine: what it makes of a message, from lease to output.

use scheduler::recover::{BEACON_MS, Failure};
use scheduler::session::Event;
use scheduler::{ModelId, NodeId, SessionId};

use super::{Body, Happening, Swarm, id, index};
use crate::storm::stage::{Framed, Lease, token_of};

impl Swarm {
    pub(super) fn deliver(&mut self, to: usize, body: Body) {
        let now = self.local(to);
        match body {
            Body::Open(lease) => self.open(to, lease),
            Body::Close { session, epoch } => {
                self.machines[to].stage.close(now, session, epoch);
                self.admit(to);
            }
            Body::Frame { session, epoch, layer, from, inputs, home } => {
                self.frame(to, (session, layer), epoch, from, &inputs, home);
            }
            Body::Feed { session, layer, from, inputs, home } => {
                if let Some(have) = self.machines[to].stage.feed(now, (session, layer), from, &inputs) {
                    self.send(to, home, Body::Fed { session, node: id(to), have });
                }
                self.checks.memory(self.now, to, &mut self.machines[to].stage);
            }
            Body::Gossip(capability) => self.hear(to, *capability),
            Body::Opened { session, stage, epoch, have, load } => {
                self.opened(to, session, stage, epoch, have, load);
            }
            Body::Failed { session, epoch, node, failure, held } => {
                let corrected = held
                    .is_some_and(|held| self.machines[to].view.correct(node, ModelId::default(), held, now));
                let failure = if corrected { Failure::Misrouted } else { failure };
                self.failed_in(to, session, epoch, node, failure);
            }
            Body::NoWay { session, epoch, from, to: other } => {
                self.machines[to].view.unreachable(from, other, now);
                self.failed_in(to, session, epoch, other, Failure::Misrouted);
            }
            Body::Short { session, stage, epoch, have } => {
                self.tell_session(to, session, Event::NeedReplay { stage, epoch, have });
            }
            Body::Logged { session, stage, node, epoch, layer, from, outputs } => {
                self.logged(to, session, epoch, (stage, node), (layer, from, outputs));
            }
            Body::Token { session, epoch, position, token } => {
                self.tell_session(to, session, Event::Token { epoch, position, token, stop: false });
            }
            Body::Beacon { session, stage, node, epoch } => {
                // A shadow that computes says nothing about the stage it follows.
                if self.machines[to].asker.runs(session, stage) == Some(node) {
                    self.tell_session(to, session, Event::Beacon { stage, epoch });
                }
            }
            Body::Ping { session, home } => self.send(to, home, Body::Pong { session, node: id(to) }),
            Body::Pong { session, node } => self.tell_session(to, session, Event::Pong { node }),
            Body::Fed { session, node, have } => self.fed(to, session, node, have),
            Body::Lost { node } => self.node_failed(to, None, node, Failure::Closed),
        }
    }

    /// A failure counts under the epoch it was met in.
    fn failed_in(&mut self, to: usize, session: SessionId, epoch: u32, node: NodeId, failure: Failure) {
        let live = self.machines[to].asker.live.get(&session);
        if live.is_some_and(|live| live.epoch() == epoch) {
            self.node_failed(to, Some(session), node, failure);
        }
    }

    pub(super) fn open(&mut self, to: usize, lease: Lease) {
        let now = self.local(to);
        let (session, epoch, home) = (lease.session, lease.epoch, lease.requester);
        let (layer, follow, stage) = (lease.layers.start(), lease.follow, lease.stage);
        let holds = self.machines[to].stage.held.covers(lease.layers);
        let opened = self.machines[to].stage.open(now, lease);
        if opened.is_err() {
            let held = (!holds).then(|| self.machines[to].stage.held.clone());
            let failure = Failure::Refused;
            return self.send(to, home, Body::Failed { session, epoch, node: id(to), failure, held });
        }
        self.admit(to);
        // Asked again, or asked under a new epoch while it runs: promised at once.
        if opened == Ok(true)
            && !follow
            && let Some(have) = self.machines[to].stage.have(session, layer, epoch)
        {
            let load = self.machines[to].stage.load(id(to));
            self.send(to, home, Body::Opened { session, stage, epoch, have, load });
        }
    }

    /// Admits the asks that may start, and tells them.
    pub(super) fn admit(&mut self, at: usize) {
        let now = self.local(at);
        for lease in self.machines[at].stage.admitted(now) {
            let load = self.machines[at].stage.load(id(at));
            if !lease.follow {
                let Lease { session, stage, epoch, requester, .. } = lease;
                self.send(at, requester, Body::Opened { session, stage, epoch, have: 0, load });
            }
        }
        self.checks.memory(self.now, at, &mut self.machines[at].stage);
    }

    pub(super) fn frame(
        &mut self,
        at: usize,
        key: (SessionId, u32),
        epoch: u32,
        from: u32,
        inputs: &[u64],
        home: usize,
    ) {
        let now = self.local(at);
        let before = self.machines[at].stage.have(key.0, key.1, epoch);
        let session = key.0;
        match self.machines[at].stage.frame(now, key, epoch, from, inputs) {
            Framed::Outputs(outputs, lease) => {
                let machine = &mut self.machines[at];
                let holds = machine.stage.held.covers(lease.layers);
                let in_place = before.is_some_and(|have| from <= have);
                let boot = machine.boot;
                let tokens = inputs.len() as f64;
                let each = if tokens > 1.0 { tokens / 5.0 } else { 1.0 };
                let work = 1.0 + machine.layer_ms * f64::from(lease.layers.len()) * each.max(1.0);
                let finish = self.now.max(machine.busy_until) + work.ceil() as u64 * machine.slow;
                machine.busy_until = finish;
                self.checks.computes(self.now, (at, boot), (session, key.1, epoch), holds, in_place);
                self.checks.memory(self.now, at, &mut self.machines[at].stage);
                let lease = Box::new(lease);
                let beacon = Happening::Beacon { at, boot, until: finish, lease: lease.clone() };
                if finish > self.now + BEACON_MS {
                    self.at(self.now + BEACON_MS, beacon);
                }
                self.at(finish, Happening::Computed { at, boot, lease, from, outputs });
            }
            Framed::Short(have, lease) => {
                self.send(at, lease.requester, Body::Short { session, stage: lease.stage, epoch, have });
            }
            Framed::Unknown => {
                let failure = Failure::Refused;
                self.send(at, home, Body::Failed { session, epoch, node: id(at), failure, held: None });
            }
            Framed::Dropped => {}
        }
    }

    pub(super) fn computed(&mut self, at: usize, lease: &Lease, from: u32, outputs: Vec<u64>) {
        let Lease { session, stage, epoch, requester, layers, next, .. } = *lease;
        let position = from + outputs.len() as u32;
        match next {
            Some(next) => {
                let layer = layers.end();
                let inputs = outputs.clone();
                let ahead = Body::Frame { session, epoch, layer, from, inputs, home: requester };
                self.send(at, index(next), ahead);
                self.send(
                    at,
                    requester,
                    Body::Logged { session, stage, node: id(at), epoch, layer, from, outputs },
                );
            }
            None => {
                let token = outputs.last().map_or(0, |hidden| token_of(*hidden));
                self.send(at, requester, Body::Token { session, epoch, position, token });
            }
        }
    }
}
