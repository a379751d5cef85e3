//! The network between machines: who reaches whom, how late, and what gets lost.
//!
//! A hop takes the base of the two regions plus both machines' own share plus jitter. Machines behind a cone NAT reach
//! each other directly after hole punching; a symmetric NAT is reached only from public machines, else over a relay (two
//! hops through it), else not at all. Partitions cut a set of machines off, in one direction or both, without notice.

use scheduler::rng::Rng;

use super::options::Options;
use crate::scale::REGIONS_MS;

/// Longest backoff of a retransmission, doublings; then the stream is taken for dead and the message is lost.
const MOST_RESENDS: u32 = 8;

/// What stands between a machine and the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Nat {
    /// Nothing.
    Public,
    /// Holes can be punched.
    Cone,
    /// Only it can open connections.
    Symmetric,
}

/// A cut: messages from `inside` to outside and back, by direction.
#[derive(Clone, PartialEq, Debug)]
struct Cut {
    inside: u64,
    outward: bool,
    inward: bool,
}

/// See the module's page.
#[derive(Clone, Debug)]
pub struct Net {
    reliable: bool,
    loss: f64,
    duplicate: f64,
    jitter_ms: u64,
    region: Vec<usize>,
    access_ms: Vec<f64>,
    nat: Vec<Nat>,
    relays: Vec<usize>,
    cuts: Vec<Cut>,
    last: Vec<u64>,
}

/// When copies of a message arrive; empty when lost.
pub type Arrivals = Vec<u64>;

impl Net {
    /// Draws where everybody is.
    pub fn draw(options: &Options, chance: &mut Rng) -> Self {
        let n = options.size.nodes + options.size.requesters;
        let nat = (0..n).map(|_| match chance.happens(options.nat) {
            false => Nat::Public,
            true if chance.happens(0.6) => Nat::Cone,
            true => Nat::Symmetric,
        });
        let nat: Vec<Nat> = nat.collect();
        let public = (0..options.size.nodes).filter(|&i| nat[i] == Nat::Public);
        Self {
            reliable: options.weather.reliable,
            loss: options.weather.loss,
            duplicate: options.weather.duplicate,
            jitter_ms: options.weather.jitter_ms,
            region: (0..n).map(|_| chance.below(options.size.regions)).collect(),
            access_ms: (0..n).map(|_| chance.exponential(3.0).min(30.0)).collect(),
            relays: public.take(options.relays).collect(),
            nat,
            cuts: Vec::new(),
            last: vec![0; n * n],
        }
    }

    /// One way without jitter, ms, over a relay if need be; `None` when the two cannot talk.
    pub fn way_ms(&self, from: usize, to: usize, up: impl Fn(usize) -> bool) -> Option<f64> {
        if from == to {
            return Some(0.0);
        }
        let hop = |a: usize, b: usize| {
            REGIONS_MS[self.region[a]][self.region[b]] / 2.0 + self.access_ms[a] + self.access_ms[b]
        };
        let direct = match (self.nat[from], self.nat[to]) {
            (Nat::Public, _) | (_, Nat::Public) | (Nat::Cone, Nat::Cone) => true,
            (Nat::Symmetric, _) | (_, Nat::Symmetric) => false,
        };
        if direct {
            return Some(hop(from, to));
        }
        let relays = self.relays.iter().filter(|&&relay| relay != from && relay != to && up(relay));
        relays.map(|&relay| hop(from, relay) + hop(relay, to)).min_by(f64::total_cmp)
    }

    /// What 99 of 100 round trips between any two machines take at most, ms: where more than one message in two hundred is
    /// lost, one that was sent again is among them.
    pub fn rtt_p99_ms(&self) -> f64 {
        let n = self.region.len();
        let pairs = (0..n).flat_map(|a| (0..n).map(move |b| (a, b)));
        let worst = pairs.filter_map(|(a, b)| self.way_ms(a, b, |_| true)).fold(0.0, f64::max);
        let again = if self.reliable && self.loss > 0.005 { self.probe_ms(worst) as f64 } else { 0.0 };
        2.0 * (worst + self.jitter_ms as f64) + again
    }

    /// After how long what was lost is sent again over a way of `way_ms`: one and a half round trips, 25 ms of delayed
    /// acknowledgment and the jitter.
    fn probe_ms(&self, way_ms: f64) -> u64 {
        3 * way_ms as u64 + 25 + self.jitter_ms
    }

    /// Cuts `inside` (a bit per machine) off.
    pub fn cut(&mut self, inside: u64, outward: bool, inward: bool) {
        self.cuts.push(Cut { inside, outward, inward });
    }

    /// No cut, no loss, no jitter from now on.
    pub fn heal(&mut self) {
        self.cuts.clear();
        (self.loss, self.duplicate, self.jitter_ms) = (0.0, 0.0, 0);
    }

    /// Whether a cut swallows what goes from one machine to another.
    pub fn is_cut(&self, from: usize, to: usize) -> bool {
        let inside = |cut: &Cut, at: usize| cut.inside >> at & 1 == 1;
        self.cuts.iter().any(|cut| match (inside(cut, from), inside(cut, to)) {
            (true, false) => cut.outward,
            (false, true) => cut.inward,
            _ => false,
        })
    }

    /// Sends over a way of `way_ms` at `now`.
    pub fn send(&mut self, now: u64, from: usize, to: usize, way_ms: f64, chance: &mut Rng) -> Arrivals {
        if from == to {
            return vec![now];
        }
        if self.is_cut(from, to) {
            return Vec::new();
        }
        let n = self.region.len();
        let mut delay = || way_ms as u64 + chance.below(self.jitter_ms as usize + 1) as u64;
        if !self.reliable {
            let first = now + delay();
            let second = now + delay();
            let lost = chance.happens(self.loss);
            let twice = chance.happens(self.duplicate);
            return match (lost, twice) {
                (true, false) => Vec::new(),
                (true, true) => vec![second],
                (false, false) => vec![first],
                (false, true) => vec![first, second],
            };
        }
        // A lost packet is sent again after a probe timeout, doubling.
        let (mut at, mut wait) = (now + delay(), self.probe_ms(way_ms));
        let mut resends = 0;
        while chance.happens(self.loss) {
            resends += 1;
            if resends > MOST_RESENDS {
                return Vec::new();
            }
            at += wait;
            wait *= 2;
        }
        let last = &mut self.last[from * n + to];
        *last = (*last).max(at);
        vec![*last]
    }
}
