//! The true state of a simulated swarm: machines, distances, who is up.

pub mod near;

use scheduler::capability::{Claim, Holding};
use scheduler::latency::unexplained_wait_ms;
use scheduler::rng::Rng;
use scheduler::{Capability, LayerRange, ModelId, NodeId, OperatorId};

use self::near::Near;
use crate::engine::Engine;
use crate::scale::REGIONS_MS;
use crate::scenario::Scenario;

/// One machine.
#[derive(Clone, Debug)]
pub struct Machine {
    /// How it is connected.
    pub line: Line,
    /// True time per layer and token, ms.
    pub layer_ms: f64,
    /// What it claims to need, over what it needs: in the beginning, and when the run ends.
    pub claims: (f64, f64),
    /// The same as it last announced it.
    pub claimed: f64,
    /// Slowdown at the moment.
    pub slow: f64,
    /// Layers it has room for.
    pub room: u32,
    /// What it holds.
    pub held: Vec<LayerRange>,
    /// Whether it is up.
    pub up: bool,
    /// Rows that take as long as one step; without batching, visits served at once.
    pub lanes: usize,
    /// Announcements sent.
    pub sequence: u64,
    /// When it joins, ms; at once unless said.
    pub joins: Option<f64>,
    /// Announces only what of its layers is within, because it is about to leave the others.
    pub withdrawn: Option<LayerRange>,
    /// What sessions make of it.
    pub work: Work,
}

/// How a machine is connected.
#[derive(Clone, Debug, Default)]
pub struct Line {
    /// Where it is.
    pub region: usize,
    /// Its share of a hop, ms.
    pub access_ms: f64,
    /// What it can send, bytes per ms.
    pub up_bytes_per_ms: f64,
    /// What it can receive, bytes per ms.
    pub down_bytes_per_ms: f64,
}

/// What sessions make of a machine.
#[derive(Clone, Debug, Default)]
pub struct Work {
    /// Sessions that count on it.
    pub sessions: u32,
    /// How long visits waited since the last announcement, ms.
    pub waited_ms: f64,
    /// Visits that began since then.
    pub visits: u32,
}

impl Work {
    /// Sessions change by one.
    pub fn count(&mut self, joins: bool) {
        self.sessions = if joins { self.sessions + 1 } else { self.sessions.saturating_sub(1) };
    }

    /// How long a visit waited since this was asked last, ms.
    fn take_wait_ms(&mut self) -> f64 {
        std::mem::take(&mut self.waited_ms) / f64::from(std::mem::take(&mut self.visits).max(1))
    }
}

impl Machine {
    /// Rows that take as long as one step.
    pub fn knee(&self) -> u32 {
        self.lanes as u32
    }
}

/// Fixed part of every visit, ms.
pub const VISIT_MS: f64 = 1.0;
/// Visits served at once by a machine that does not batch.
const LANES: usize = 1;
/// Bytes of one token's activation.
pub const ACTIVATION_BYTES: u32 = 4_352;
/// How much wider downlinks are than uplinks.
const DOWN_OVER_UP: f64 = 5.0;

/// What liars claim to need, over what they need.
const LIE: f64 = 0.2;
/// What a made-up identity says it needs per layer and token, ms.
const SYBIL_MS: f64 = 0.001;

/// All machines; requesters come after the nodes, made-up identities after them.
#[derive(Clone, Debug)]
pub struct World {
    /// By index; `NodeId::numbered(index + 1)`.
    pub machines: Vec<Machine>,
    /// How many of them serve; the rest ask.
    pub nodes: usize,
    /// Where made-up identities begin.
    pub sybils_from: usize,
    /// Layers of the model.
    pub layers: u32,
    /// How they compute.
    pub engine: Engine,
    /// What machines know of distances; `None` where they know the true ones.
    pub near: Option<Near>,
}

/// The name of a machine.
pub fn id(index: usize) -> NodeId {
    NodeId::numbered(index as u64 + 1)
}

/// The machine of a name.
pub fn index(id: NodeId) -> usize {
    let head = &id.as_bytes()[..8];
    head.iter().fold(0usize, |sum, byte| (sum << 8) | usize::from(*byte)).saturating_sub(1)
}

impl World {
    /// Draws the machines of a scenario, holding nothing yet.
    pub fn draw(scenario: &Scenario, chance: &mut Rng) -> Self {
        let mut machines = Vec::new();
        let hardware = &scenario.hardware;
        let (fastest, slowest) = hardware.layer_ms;
        let (least, most) = hardware.room;
        for i in 0..scenario.nodes + scenario.requesters {
            let asks = i >= scenario.nodes;
            let drawn = fastest * (slowest / fastest).powf(chance.unit());
            let room = least + chance.below((most - least + 1) as usize) as u32;
            let lies = chance.happens(scenario.faults.liars) && !asks;
            let region = chance.below(scenario.regions as usize);
            let access_ms = chance.exponential(hardware.access_ms);
            machines.push(Machine {
                line: Line { region, access_ms, ..Line::default() },
                layer_ms: if asks { scenario.local_layer_ms.unwrap_or(slowest) } else { drawn },
                claims: if lies { (LIE, LIE) } else { (1.0, 1.0) },
                claimed: if lies { LIE } else { 1.0 },
                slow: 1.0,
                room: if asks { 0 } else { room.min(scenario.layers) },
                held: if asks { home(scenario) } else { Vec::new() },
                up: true,
                lanes: if scenario.hardware.engine.batches {
                    scenario.hardware.engine.gain.round() as usize
                } else {
                    LANES
                },
                sequence: 0,
                joins: None,
                withdrawn: None,
                work: Work::default(),
            });
        }
        // Streams of their own, so that these keys do not change who is who.
        let mut links = chance.fork();
        let mut poison = links.fork();
        for machine in &mut machines[..scenario.nodes as usize] {
            if poison.happens(scenario.faults.poisoners) {
                machine.claims.1 = LIE;
            }
        }
        let (slow, fast) = hardware.uplink_mbit;
        for (i, machine) in machines.iter_mut().enumerate() {
            // One Mbit/s is 125 bytes per ms.
            machine.line.up_bytes_per_ms = 125.0 * slow * (fast / slow).powf(links.unit());
            machine.line.down_bytes_per_ms = DOWN_OVER_UP * machine.line.up_bytes_per_ms;
            let late = links.happens(scenario.faults.joins) && i < scenario.nodes as usize;
            let when = 250.0 * scenario.demand.seconds * links.unit();
            machine.joins = late.then_some(when);
            machine.up = !late;
        }
        let sybils_from = machines.len();
        let made_up = (f64::from(scenario.nodes) * scenario.faults.sybils) as usize;
        let template = machines.first().cloned();
        for machine in template.iter().cycle().take(made_up) {
            machines.push(Machine {
                line: Line {
                    region: links.below(scenario.regions as usize),
                    access_ms: 0.0,
                    ..machine.line.clone()
                },
                layer_ms: SYBIL_MS,
                claims: (1.0, 1.0),
                claimed: 1.0,
                held: LayerRange::new(0, scenario.layers).into_iter().collect(),
                up: false,
                joins: None,
                ..machine.clone()
            });
        }
        let engine = scenario.hardware.engine;
        Self {
            machines,
            nodes: scenario.nodes as usize,
            sybils_from,
            layers: scenario.layers,
            engine,
            near: None,
        }
    }

    /// Whether a machine is only an identity.
    pub fn is_sybil(&self, at: usize) -> bool {
        at >= self.sybils_from
    }

    /// One way between two machines, ms.
    pub fn hop_ms(&self, from: usize, to: usize) -> f64 {
        if from == to {
            return 0.0;
        }
        let (a, b) = (&self.machines[from].line, &self.machines[to].line);
        REGIONS_MS[a.region][b.region] + a.access_ms + b.access_ms
    }

    /// One way between two machines as machines expect it, ms.
    pub fn expected_ms(&self, from: usize, to: usize) -> f64 {
        self.near.as_ref().map_or_else(|| self.hop_ms(from, to), |near| near.expected_ms(from, to))
    }

    /// Time that the activations of `tokens` tokens take on the wire between two machines, ms.
    pub fn transfer_ms(&self, from: usize, to: usize, tokens: u32) -> f64 {
        if from == to {
            return 0.0;
        }
        let rate = self.machines[from].line.up_bytes_per_ms.min(self.machines[to].line.down_bytes_per_ms);
        f64::from(tokens) * f64::from(ACTIVATION_BYTES) / rate
    }

    /// True time of a pass, by the layers and rows of its visits, ms.
    pub fn pass_ms(&self, at: usize, parts: &[(LayerRange, u32)]) -> f64 {
        let machine = &self.machines[at];
        VISIT_MS + machine.layer_ms * machine.slow * self.engine.pass(parts)
    }

    /// Whether a machine holds all of a range.
    pub fn holds(&self, at: usize, range: LayerRange) -> bool {
        self.machines[at].held.iter().any(|held| held.covers(range))
    }

    /// Whether two machines are on two sides of a cut between the first region and the others.
    pub fn are_apart(&self, one: usize, other: usize) -> bool {
        let inside = |at: usize| self.machines[at].line.region == 0;
        inside(one) != inside(other)
    }

    /// What a machine announces when the share `passed` of the run is over.
    pub fn announce(&mut self, at: usize, passed: f64) -> Option<Capability> {
        let machine = &mut self.machines[at];
        let (first, last) = machine.claims;
        machine.claimed = first + (last - first) * passed.min(1.0);
        machine.sequence += 1;
        let waited_ms = machine.work.take_wait_ms();
        let decode_ms = machine.layer_ms * machine.slow * machine.claimed;
        let layers: u32 = machine.held.iter().map(|range| range.len()).sum();
        let kept = |range: &LayerRange| machine.withdrawn.map_or(Some(*range), |kept| range.intersect(kept));
        let loaded = machine.held.iter().filter_map(kept).collect();
        let claim = Claim {
            node: id(at),
            operator: OperatorId::numbered(at as u64),
            sequence: machine.sequence,
            region: machine.line.region as u16,
            access_ms: machine.line.access_ms,
            up_bytes_per_ms: machine.line.up_bytes_per_ms,
            down_bytes_per_ms: machine.line.down_bytes_per_ms,
            draining: false,
            holdings: vec![Holding {
                model: ModelId::default(),
                loaded,
                on_disk: Vec::new(),
                decode_ms,
                prefill_ms: decode_ms / self.engine.gain,
                visit_ms: VISIT_MS,
                queue_ms: unexplained_wait_ms(
                    waited_ms,
                    decode_ms * f64::from(layers),
                    machine.work.sessions,
                    machine.knee(),
                ),
                load_ms: 0.0,
                active: machine.work.sessions,
                batch_knee: machine.knee(),
                kv_bytes: 1 << 32,
            }],
        };
        Capability::try_from(claim).ok()
    }
}

/// What a requester holds: everything, the ends, or nothing.
fn home(scenario: &Scenario) -> Vec<LayerRange> {
    let n = scenario.layers;
    let ranges = match (scenario.local_layer_ms, scenario.boomerang) {
        (Some(_), _) => vec![LayerRange::new(0, n)],
        (None, true) => vec![LayerRange::new(0, 1), LayerRange::new(n - 1, n)],
        (None, false) => Vec::new(),
    };
    ranges.into_iter().flatten().collect()
}
