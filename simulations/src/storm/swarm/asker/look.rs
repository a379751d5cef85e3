//! Who serves a turn, and who else when leases turn out to be crowded.

use scheduler::lease::{LOOKS, Load, Verdict};
use scheduler::rng::mix;
use scheduler::route;
use scheduler::session::{Action, Event, Standbys};
use scheduler::snapshot::{Host, Links};
use scheduler::{
    Boomerang, LayerSet, Millis, ModelId, NodeId, Pipeline, Request, SessionId, Shape, Snapshot, standby,
};

use super::Requester;
use crate::storm::swarm::{Body, id, index};

impl Requester<'_> {
    /// Routes on what this machine believes; with `settles`, only over nodes that answered since then.
    pub(super) fn find(
        &mut self,
        history: &[u32],
        deny: &[NodeId],
        seed: u32,
        settles: Option<Millis>,
    ) -> Option<(Pipeline, Standbys)> {
        let at = self.here;
        let now = self.swarm.local(at);
        let machine = &mut self.swarm.machines[at];
        machine.view.expire(now);
        let shape = Shape {
            prompt_tokens: history.len() as u32,
            output_tokens: self.swarm.options.demand.tokens.1,
            prefill_chunk: history.len() as u32,
            activation_bytes: 4_352,
        };
        let mut request = Request::new(id(at), shape);
        request.seed = mix(self.swarm.sessions << 8 | u64::from(seed));
        request.policy.boomerang =
            self.swarm.options.routing.boomerang.then_some(Boomerang { head: 1, tail: 1 });
        request.policy.deny.extend(deny);
        let view = &machine.view;
        let announced = |node: NodeId| {
            view.get(node).and_then(|c| c.holding(ModelId::default())).map_or(0, |holding| holding.active)
        };
        match settles {
            Some(since) => machine.asker.leases.settle(now, since, &mut request, announced),
            None => machine.asker.leases.amend(now, &mut request, announced),
        }
        // Its own ends are not a matter of choice.
        request.policy.deny.remove(&id(at));
        let snapshot = view.snapshot(ModelId::default(), self.swarm.options.size.layers, id(at)).ok()?;
        machine.asker.router.prepare(&snapshot, &request).ok()?;
        let pipeline = machine.asker.router.route(&snapshot, &request).ok()?.pipeline;
        // Who stands by need not have been looked at.
        request.policy.allow = None;
        let ends = [pipeline.segments().first(), pipeline.segments().last()];
        let home = ends.iter().flatten().all(|segment| segment.node == id(at));
        self.swarm.checks.that(home || !self.swarm.options.routing.boomerang, || {
            format!("an end of {pipeline:?} is not at {at}")
        });
        let shadows = match self.swarm.options.routing.shadows {
            true => standby::shadows(&snapshot, &request, &pipeline),
            false => vec![None; pipeline.segments().len()],
        };
        let covers = standby::covers(&snapshot, &request, &pipeline);
        Some((pipeline, Standbys { shadows, lazy: self.swarm.options.routing.lazy, covers }))
    }

    /// Whether a request of this machine could be served if everybody knew everything.
    pub fn feasible(&self) -> bool {
        let at = self.here;
        let n = self.swarm.machines.len();
        let hosts = (0..n).map(|i| {
            let reached = self.swarm.net.way_ms(at, i, |_| true).is_some();
            let held = &self.swarm.machines[i].stage.held;
            Host::new(id(i), if reached { held.clone() } else { LayerSet::default() }, 1.0)
        });
        let pairs = (0..n).flat_map(|i| (0..n).map(move |j| (i, j)));
        let ways = pairs.map(|(i, j)| self.swarm.net.way_ms(i, j, |_| true).unwrap_or(f64::INFINITY));
        let links = Links::Matrix(ways.collect());
        let truth =
            Snapshot::new(ModelId::default(), self.swarm.options.size.layers, None, hosts.collect(), &links);
        let mut request = Request::new(id(at), Shape::ONE_TOKEN);
        request.policy.boomerang =
            self.swarm.options.routing.boomerang.then_some(Boomerang { head: 1, tail: 1 });
        truth.is_ok_and(|truth| route::route(&truth, &request).is_ok())
    }

    /// A lease was granted. Before the last one of the first opening is handed on, the loads are judged; if another
    /// route is better, the session ends before it has begun and another takes its place.
    pub fn opened(&mut self, id: SessionId, stage: usize, epoch: u32, have: u32, load: Load) {
        let at = self.here;
        let now = self.swarm.local(at);
        let machine = &mut self.swarm.machines[at];
        let Some(live) = machine.asker.live.get_mut(&id) else { return };
        if epoch == 1 && live.session.epoch() == 1 && live.session.emitted().is_empty() {
            live.loads.insert(stage, load);
            if live.loads.len() == live.session.segments().count() {
                let answers: Vec<Load> = live.loads.values().copied().collect();
                let view = &machine.view;
                let announced = |node: NodeId| {
                    view.get(node)
                        .and_then(|c| c.holding(ModelId::default()))
                        .map_or(0, |holding| holding.active)
                };
                let verdict = machine.asker.leases.heard(now, live.looks, &answers, announced);
                // Answered once; frames of the first opening that come again change nothing.
                live.loads.insert(usize::MAX, load);
                if verdict == Verdict::Again && self.look_again(id) {
                    return;
                }
            }
        }
        self.tell_session(id, Event::Opened { stage, epoch, have });
    }

    fn look_again(&mut self, id: SessionId) -> bool {
        let at = self.here;
        let Some(live) = self.swarm.machines[at].asker.live.get(&id) else { return false };
        let (turn, looks, asked) = (live.turn.clone(), live.looks + 1, live.asked);
        let settled = (looks + 1 == LOOKS).then(|| self.find(&turn.history, &[], looks, Some(asked)));
        let found = settled.flatten().or_else(|| self.find(&turn.history, &[], looks, None));
        let Some((pipeline, standbys)) = found else { return false };
        let now = self.swarm.local(at);
        let Some(live) = self.swarm.machines[at].asker.live.get_mut(&id) else { return false };
        let closing = live.session.step(now, Event::Cancel);
        let close: Vec<NodeId> = closing
            .into_iter()
            .filter_map(|action| match action {
                Action::Close { node, .. } => Some(node),
                _ => None,
            })
            .collect();
        self.swarm.machines[at].asker.live.remove(&id);
        close
            .into_iter()
            .for_each(|node| self.swarm.send(at, index(node), Body::Close { session: id, epoch: 1 }));
        self.swarm.report.looks += 1;
        self.begin(turn, (looks, asked), &pipeline, &standbys);
        true
    }
}
