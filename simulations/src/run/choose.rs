//! Which pipeline a request takes, and what a clairvoyant would have taken.

use scheduler::lease::{LOOKS, Load, Verdict};
use scheduler::route;
use scheduler::snapshot::{Host, Links};
use scheduler::standby::{self, Cover};
use scheduler::{
    Boomerang, LayerRange, Millis, ModelId, NodeId, Pipeline, Request, Segment, Shape, Snapshot, cost,
};

use super::{ANNOUNCE_MS, REGRET_EVERY, Run, SHARE_FROM, SNAPSHOT_MS, announced};
use crate::policy::{self, Believed, Policy};
use crate::scale::REGIONS_MS;
use crate::world::{ACTIVATION_BYTES, PREFILL_GAIN, VISIT_MS, id, index};

impl Run<'_> {
    fn ask(&self, request: usize) -> Request {
        let live = &self.live[request];
        let left = self.scenario.tokens.0 + self.scenario.tokens.1 - live.known;
        let shape = Shape {
            prompt_tokens: live.known,
            output_tokens: left.max(1),
            prefill_chunk: live.known,
            activation_bytes: ACTIVATION_BYTES,
        };
        let mut ask = Request::new(id(live.requester), shape);
        ask.seed = (request as u64) << 8 | u64::from(live.attempt);
        if self.scenario.boomerang && self.policy != Policy::Local {
            ask.policy.boomerang = Some(Boomerang { head: 1, tail: 1 });
        }
        ask.policy.deny = live.failed.iter().copied().collect();
        if let Some(near_equal) = self.scenario.near_equal {
            ask.policy.near_equal = near_equal;
        }
        ask
    }

    /// The question with what leases taught; the last look of a request settles for what it has seen.
    fn ask_again(&self, request: usize, last: bool) -> Request {
        let mut ask = self.ask(request);
        if let Some(leases) = self.leases.get(&self.live[request].requester) {
            let (now, announced) = (Millis(self.now as u64), |node| self.announced(node));
            match last {
                true => leases.settle(now, now, &mut ask, announced),
                false => leases.amend(now, &mut ask, announced),
            }
        }
        ask
    }

    fn announced(&self, node: NodeId) -> u32 {
        announced(&self.view, node)
    }

    /// Asks the nodes of a pipeline for a lease; they answer with the sessions they have.
    fn lease(&mut self, request: usize, looks: u32, pipeline: &Pipeline) -> Verdict {
        let home = self.live[request].requester;
        let mut asked_ms = 0f64;
        let mut answers = Vec::new();
        for segment in pipeline.segments() {
            let at = index(segment.node);
            let machine = &self.world.machines[at];
            answers.push(Load { node: segment.node, sessions: machine.sessions, lanes: machine.knee() });
            let round_trip_ms = 2.0 * self.world.hop_ms(home, at);
            asked_ms = asked_ms.max(round_trip_ms);
            if self.world.near.is_some() {
                self.view.measure(id(home), segment.node, round_trip_ms);
            }
        }
        self.live[request].delay_ms += asked_ms;
        let view = &self.view;
        let leases = self.leases.entry(home).or_default();
        leases.heard(Millis(self.now as u64), looks, &answers, |node| announced(view, node))
    }

    pub(super) fn choose(&mut self, request: usize) -> Option<(Pipeline, Vec<Cover>)> {
        let requester = self.live[request].requester;
        let deny = self.live[request].failed.clone();
        match self.policy {
            Policy::Ours => {
                self.refresh(requester);
                let mut ask = self.ask_again(request, false);
                let mut found = self.look(requester, &ask)?;
                let mut looks = 0;
                while self.lease(request, looks, &found.pipeline) == Verdict::Again {
                    looks += 1;
                    ask = self.ask_again(request, looks + 1 == LOOKS);
                    found = match self.look(requester, &ask) {
                        Some(found) => found,
                        None => {
                            ask = self.ask_again(request, false);
                            self.look(requester, &ask)?
                        }
                    };
                }
                // Who stands by need not have been looked at.
                ask = self.ask_again(request, false);
                let snapshot = &self.snapshots.get(&self.shared(requester))?.1;
                let covers = if self.scenario.churn_per_hour > 0.0 {
                    standby::covers(snapshot, &ask, &found.pipeline)
                } else {
                    Vec::new()
                };
                Some((found.pipeline, covers))
            }
            Policy::Clairvoyant => {
                let truth = self.truth(requester)?;
                let ask = self.ask_knowing(request);
                self.router.prepare(&truth, &ask).ok()?;
                Some((self.router.route(&truth, &ask).ok()?.pipeline, Vec::new()))
            }
            Policy::Local => {
                let layers = LayerRange::new(0, self.world.layers)?;
                let alone = vec![Segment { node: id(requester), layers }];
                let can = self.world.holds(requester, layers);
                Pipeline::new(alone, self.world.layers)
                    .ok()
                    .filter(|_| can)
                    .map(|pipeline| (pipeline, Vec::new()))
            }
            _ => {
                self.view.expire(Millis(self.now as u64));
                let up: Vec<bool> =
                    (0..self.world.machines.len()).map(|i| self.view.get(id(i)).is_some()).collect();
                let believed = Believed { world: &self.world, up: &up };
                let found = match self.policy {
                    Policy::Parallax => policy::round_robin(&self.fixed, &believed, &mut self.cursor),
                    Policy::Petals => policy::petals(&believed, requester, &deny),
                    _ => policy::random(&believed, &deny, &mut self.chance),
                };
                found.map(|pipeline| (pipeline, Vec::new()))
            }
        }
    }

    fn look(&mut self, requester: usize, ask: &Request) -> Option<route::Route> {
        let snapshot = &self.snapshots.get(&self.shared(requester))?.1;
        let careful = route::acquainted(snapshot, ask);
        let mut route = |ask: &Request| {
            self.router.prepare(snapshot, ask).ok()?;
            self.router.route(snapshot, ask).ok()
        };
        // Where no route leads past strangers they may serve.
        route(&careful).or_else(|| (careful != *ask).then(|| route(ask)).flatten())
    }

    /// Whose snapshot a requester routes on. In a large swarm all share one: only what they believe of themselves
    /// would differ.
    fn shared(&self, requester: usize) -> usize {
        if self.world.nodes > SHARE_FROM { self.world.nodes } else { requester }
    }

    fn refresh(&mut self, requester: usize) {
        let key = self.shared(requester);
        let lasts = if self.world.nodes > SHARE_FROM { ANNOUNCE_MS } else { SNAPSHOT_MS };
        let fresh = self.snapshots.get(&key).is_some_and(|(at, _)| self.now - at < lasts);
        if !fresh {
            self.view.expire(Millis(self.now as u64));
            let draw = self.now as u64;
            let snapshot =
                self.view.snapshot_to_route(ModelId::default(), self.world.layers, None, id(key), draw);
            if let Ok(snapshot) = snapshot {
                self.snapshots.insert(key, (self.now, snapshot));
            }
        }
    }

    pub(super) fn check_route(&mut self, request: usize, pipeline: &Pipeline) {
        let home = id(self.live[request].requester);
        let segments = pipeline.segments();
        for segment in segments {
            self.outcome.violations.not_held +=
                u64::from(!self.world.holds(index(segment.node), segment.layers));
        }
        let ends = [segments.first(), segments.last()];
        let abroad = ends.into_iter().flatten().any(|segment| segment.node != home);
        let bound = self.scenario.boomerang && self.policy.routes_ours();
        self.outcome.violations.ends_abroad += u64::from(bound && abroad);
        if request.is_multiple_of(REGRET_EVERY)
            && self.world.nodes <= 2_000
            && self.live[request].attempt == 0
        {
            self.note_regret(request, pipeline);
        }
    }

    /// What is true of the swarm at this moment, as `requester` would see it who knows everything.
    fn truth(&self, requester: usize) -> Option<Snapshot> {
        let shown = (0..self.world.machines.len())
            .filter(|&i| i < self.world.nodes && self.world.machines[i].up || i == requester);
        let hosts = shown.map(|i| {
            let machine = &self.world.machines[i];
            let held = machine.held.iter().copied().collect();
            let decode_ms = machine.layer_ms * machine.slow;
            let mut host = Host::new(id(i), held, decode_ms);
            host.prefill_ms = decode_ms / PREFILL_GAIN;
            host.visit_ms = VISIT_MS;
            (host.region, host.access_ms) = (machine.region as u16, machine.access_ms);
            (host.active, host.batch_knee) = (machine.sessions, machine.knee());
            (host.up_bytes_per_ms, host.down_bytes_per_ms) =
                (machine.up_bytes_per_ms, machine.down_bytes_per_ms);
            host
        });
        let base_ms = REGIONS_MS.iter().flatten().copied().collect();
        let links = Links::Regions { base_ms, regions: REGIONS_MS.len(), measured: Vec::new() };
        Snapshot::new(ModelId::default(), self.world.layers, None, hosts.collect(), &links).ok()
    }

    /// A request of a machine that needs no guess.
    fn ask_knowing(&self, request: usize) -> Request {
        let mut ask = self.ask(request);
        ask.policy.near_equal = 0.0;
        ask
    }

    /// Compares a choice with the best route over the true state.
    fn note_regret(&mut self, request: usize, pipeline: &Pipeline) {
        let mut ask = self.ask_knowing(request);
        ask.policy.boomerang = ask.policy.boomerang.filter(|_| self.policy.routes_ours());
        if let Some(truth) = self.truth(self.live[request].requester)
            && let (Ok(best), Ok(chosen)) = (route::route(&truth, &ask), cost::price(&truth, &ask, pipeline))
        {
            self.outcome.regret.push(chosen.total_ms() / best.optimum_ms);
        }
    }
}
