//! What machines hold, announce and hear.

use scheduler::capability::{Claim, Holding};
use scheduler::coordinate::Coordinate;
use scheduler::holders::alone;
use scheduler::place::{Advice, Move};
use scheduler::recover::Failure;
use scheduler::rng::Rng;
use scheduler::view::Merged;
use scheduler::{Capability, LayerRange, LayerSet, ModelId, NodeId, OperatorId};

use super::{Body, Happening, Machine, Options, Swarm, TICK_MS, id};
use crate::storm::stage::{KNEE, Lease};

/// Others that a machine measures before it announces itself.
const MEASURED: usize = 6;

impl Swarm {
    pub(super) fn announce(&mut self, at: usize) {
        if self.awake(at) != Ok(true) || self.closing {
            return;
        }
        self.settle(at);
        let machine = &mut self.machines[at];
        machine.sequence += 1;
        let pretended = LayerSet::new(machine.pretends);
        let loaded = match machine.moving.withdrawn {
            Some(kept) => machine.stage.held.ranges().iter().filter_map(|r| r.intersect(kept)).collect(),
            None => machine.stage.held.clone(),
        };
        let decode_ms = machine.layer_ms * machine.health.slow as f64 * machine.claims;
        let claim = Claim {
            node: id(at),
            operator: OperatorId::numbered(at as u64),
            sequence: machine.sequence,
            region: 0,
            access_ms: 0.0,
            up_bytes_per_ms: 1e5,
            down_bytes_per_ms: 1e5,
            draining: false,
            holdings: vec![Holding {
                model: ModelId::default(),
                loaded: loaded.union(&pretended).ranges().to_vec(),
                on_disk: Vec::new(),
                decode_ms,
                prefill_ms: decode_ms / f64::from(KNEE),
                visit_ms: 1.0,
                queue_ms: 0.0,
                load_ms: 0.0,
                active: (machine.stage.running() as f64 * machine.claims) as u32,
                batch_knee: KNEE,
                kv_bytes: machine.stage.kv_room() - machine.stage.reserved(),
            }],
        };
        let Ok(capability) = Capability::try_from(claim) else { return };
        let place = self.machines[at].place;
        self.hear(at, capability.clone(), place);
        for to in (0..self.machines.len()).filter(|to| *to != at) {
            if self.chance.happens(self.options.weather.gossip_loss) || self.net.is_cut(at, to) {
                continue;
            }
            let when = self.now + 1 + self.chance.below(self.options.weather.gossip_ms as usize) as u64;
            let body = Box::new(Body::Gossip(Box::new((capability.clone(), place))));
            self.at(when, Happening::Deliver { to, body });
        }
    }

    /// A machine measures some others that it hears of, and moves its coordinate by that.
    fn settle(&mut self, at: usize) {
        let n = self.machines.len();
        let turn = self.machines[at].sequence as usize;
        let mut seen: Vec<(Coordinate, f64)> = Vec::new();
        for peer in (0..MEASURED.min(n - 1)).map(|nth| (at + 1 + (turn + nth) % (n - 1)) % n) {
            let up = |other: usize| self.machines[other].health.up;
            let talk = up(peer) && !self.net.is_cut(at, peer) && !self.net.is_cut(peer, at);
            let Some(way_ms) = self.net.way_ms(at, peer, up).filter(|_| talk) else { continue };
            let round_trip_ms = 2.0 * way_ms * (1.0 + 0.05 * self.chance.unit());
            let view = &mut self.machines[at].view;
            view.measure(id(at), id(peer), round_trip_ms);
            // One that does not know where it is counts as sure of nothing.
            let place = view.get(id(peer)).map(|_| view.coordinate(id(peer)).unwrap_or_default());
            seen.extend(place.map(|place| (place, round_trip_ms)));
        }
        let machine = &mut self.machines[at];
        machine.place = machine.place.settled(&seen, &mut self.chance);
    }

    pub(super) fn hear(&mut self, at: usize, capability: Capability, place: Coordinate) {
        let (now, node) = (self.local(at), capability.node());
        let merged = self.machines[at].view.merge(capability, now);
        self.machines[at].view.place(node, place);
        self.checks.that(merged != Merged::Equivocation, || format!("{node} seems to equivocate"));
        self.report.announcements += u64::from(merged == Merged::Fresh);
    }

    /// Advice may be anything; what the keeper makes of it must not bare a layer.
    pub(super) fn consider_moving(&mut self, at: usize) {
        let now = self.local(at);
        let layers = self.options.size.layers;
        if self.machines[at].moving.ticks.is_multiple_of(20) {
            let len = 1 + self.chance.below(self.options.size.room as usize) as u32;
            let start = self.chance.below((layers - len.min(layers)) as usize + 1) as u32;
            self.machines[at].moving.wanted = LayerRange::new(start, (start + len).min(layers));
        }
        let movers: Vec<NodeId> = (0..self.options.size.nodes).map(id).collect();
        let machine = &mut self.machines[at];
        machine.moving.ticks += 1;
        machine.view.expire(now);
        let mut shown = vec![(id(at), machine.stage.held.clone())];
        for node in (0..self.options.size.nodes).filter(|other| *other != at) {
            let Some(known) = machine.view.get(id(node)) else { continue };
            let held = known.holding(ModelId::default()).map(Holding::loaded_set).unwrap_or_default();
            shown.push((id(node), held));
        }
        let choice = Move {
            node: id(at),
            held: &machine.stage.held.clone(),
            advised: machine.moving.wanted,
            present_tps: 1.0,
            advised_tps: 2.0,
            secures: false,
            alone: &alone(&shown, id(at)),
            movers: &movers,
            tick: self.now / TICK_MS,
            state: machine.view.epoch(),
        };
        match machine.moving.keeper.tick(now, &choice) {
            Advice::Hold(range) => return self.hold(at, range),
            Advice::Withdraw(range) if machine.moving.withdrawn.is_none() => {
                machine.moving.withdrawn = Some(range)
            }
            Advice::Stay if machine.moving.withdrawn.is_some() => machine.moving.withdrawn = None,
            Advice::Withdraw(_) | Advice::Stay => return,
        }
        self.announce(at);
    }

    fn hold(&mut self, at: usize, range: LayerRange) {
        let everybody = |machines: &[Machine], nodes: usize| {
            // Who only pretends to hold a layer deceives the keepers of others; nothing can be done about that.
            let shown = |machine: &Machine| machine.stage.held.union(&LayerSet::new(machine.pretends));
            machines[..nodes].iter().fold(LayerSet::default(), |all, machine| all.union(&shown(machine)))
        };
        let before = everybody(&self.machines, self.options.size.nodes);
        let gone = self.machines[at].stage.hold(LayerSet::from(range));
        self.machines[at].moving.withdrawn = None;
        let after = everybody(&self.machines, self.options.size.nodes);
        self.checks.covered(self.now, &before, &after, self.options.size.layers);
        self.report.moves += 1;
        for Lease { session, epoch, requester, .. } in gone {
            let (failure, held) = (Failure::Refused, Some(self.machines[at].stage.held.clone()));
            self.send(at, requester, Body::Failed { session, epoch, node: id(at), failure, held });
        }
        self.announce(at);
    }
}

/// What machines hold at first: windows where the fewest hold, so that every layer has a holder; under boomerang the
/// requesters hold the ends.
pub(super) fn windows(options: &Options, draw: &mut Rng) -> Vec<LayerSet> {
    let n = options.size.layers as usize;
    let mut holders = vec![0u32; n];
    let mut held = Vec::new();
    for _ in 0..options.size.nodes {
        let len = (options.size.room as usize).min(n);
        let need = |start: usize| {
            holders[start..start + len].iter().map(|h| 4u32.saturating_sub(*h).pow(3)).sum::<u32>()
        };
        let most = (0..=n - len).map(need).max().unwrap_or(0);
        let starts: Vec<usize> = (0..=n - len).filter(|start| need(*start) == most).collect();
        let start = starts[draw.below(starts.len())];
        (start..start + len).for_each(|layer| holders[layer] += 1);
        held.push(LayerRange::new(start as u32, (start + len) as u32).into_iter().collect());
    }
    let n = options.size.layers;
    let ends = [LayerRange::new(0, 1), LayerRange::new(n - 1, n)];
    let home: LayerSet = ends.into_iter().flatten().filter(|_| options.routing.boomerang).collect();
    held.extend((0..options.size.requesters).map(|_| home.clone()));
    held
}
