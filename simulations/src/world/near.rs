//! What machines know of the distances between them: round trips to the few that each is connected to, and coordinates.
//!
//! A machine measures its peers, moves its coordinate by what they announced, and announces it in turn: the scheduler's own code
//! ([`scheduler::coordinate`]). True regions and access times are known to no machine. Liars say that they stand where some
//! honest machine does, with no way of their own.

use scheduler::coordinate::Coordinate;
use scheduler::rng::Rng;

use super::World;
use crate::scenario::Scenario;

/// Machines that each is connected to.
const PEERS: usize = 16;
/// Most peers: as many as an announcement has room for.
const MOST_PEERS: usize = 31;
/// Rounds in which machines that are there from the start have settled before it.
pub const SETTLED: usize = 24;
/// The least of a minute of round trips is above the distance by up to this share of the jitter.
const LEAST_OF: f64 = 0.1;
/// Keeps these draws apart from the others of a seed.
const SALT: u64 = 0x434f_4f52_4449_4e41;

/// See the module's page.
#[derive(Clone, Debug)]
pub struct Near {
    peers: Vec<Vec<usize>>,
    coordinates: Vec<Coordinate>,
    lies: Vec<bool>,
    /// Made-up identities begin here; all of them lie.
    real: usize,
    jitter: f64,
    rng: Rng,
}

impl Near {
    /// Peers and coordinates of the machines of `world`.
    pub fn settle(scenario: &Scenario, world: &World, seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ SALT);
        let machines = world.machines.len();
        let mut drawn = |at: usize| -> Vec<usize> {
            let mut peers: Vec<usize> =
                (0..PEERS).map(|_| rng.below(world.nodes)).filter(|peer| *peer != at).collect();
            peers.sort_unstable();
            peers.dedup();
            peers
        };
        let peers = (0..machines).map(&mut drawn).collect();
        let lies = (0..machines)
            .map(|at| at < world.nodes && rng.happens(scenario.faults.coordinate_liars))
            .collect();
        let coordinates = vec![Coordinate::default(); machines];
        let real = world.sybils_from;
        let mut near = Self { peers, coordinates, lies, real, jitter: scenario.hardware.jitter, rng };
        for _ in 0..SETTLED {
            for at in (0..real).filter(|at| world.machines[*at].up) {
                near.move_to_fit(world, at);
            }
        }
        near
    }

    /// What a machine announces: where it is, and how far its peers are that are up, round trips in ms.
    pub fn announce(&mut self, world: &World, at: usize) -> (Coordinate, Vec<(usize, f64)>) {
        let seen = self.move_to_fit(world, at);
        (self.coordinates[at], seen)
    }

    /// A machine sends to another one, so it is connected to it and measures it from now on; the farthest peer makes room.
    pub fn meet(&mut self, world: &World, at: usize, other: usize) {
        let peers = &mut self.peers[at];
        if at == other || peers.contains(&other) {
            return;
        }
        peers.push(other);
        if peers.len() > MOST_PEERS {
            let far = |a: &&usize, b: &&usize| world.hop_ms(at, **a).total_cmp(&world.hop_ms(at, **b));
            let farthest = peers.iter().max_by(far).copied();
            peers.retain(|peer| Some(*peer) != farthest);
        }
    }

    fn move_to_fit(&mut self, world: &World, at: usize) -> Vec<(usize, f64)> {
        if at >= self.real || self.lies[at] {
            let honest = self.rng.below(world.nodes);
            let (place, ..) = self.coordinates[honest].parts();
            self.coordinates[at] = Coordinate::new(place, 0.0, 0.0).unwrap_or_default();
        }
        if at >= self.real {
            return Vec::new();
        }
        let up: Vec<usize> = self.peers[at].iter().copied().filter(|peer| world.machines[*peer].up).collect();
        let above = self.jitter * LEAST_OF;
        let mut seen = Vec::with_capacity(up.len());
        for peer in up {
            let ms = 2.0 * world.hop_ms(at, peer) * (1.0 + above * self.rng.unit());
            seen.push((peer, ms));
        }
        if !self.lies[at] {
            let samples: Vec<(Coordinate, f64)> =
                seen.iter().map(|(peer, ms)| (self.coordinates[*peer], *ms)).collect();
            self.coordinates[at] = self.coordinates[at].settled(&samples, &mut self.rng);
        }
        seen
    }

    /// What a hop is expected to take by coordinates, one way in ms.
    pub fn expected_ms(&self, from: usize, to: usize) -> f64 {
        if from == to { 0.0 } else { self.coordinates[from].round_trip_ms(&self.coordinates[to]) / 2.0 }
    }
}
