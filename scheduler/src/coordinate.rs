//! Where a node is, as far as round trips can tell: Vivaldi coordinates with a height.
//!
//! Two nodes that never measured each other still have an expected round trip: the distance of their coordinates. Each
//! node keeps its own coordinate, moves it by the round trips that it measured itself, and announces it in
//! [`Coordinate::BYTES`] bytes.
//!
//! ```text
//!  round trip (a, b) = |a - b| + height(a) + height(b)       the height is the way from a home to the net, paid each time
//!  each sample pulls or pushes by  gain x weight x (measured - expected)  along the line between both
//!  weight = own error / (own error + the other's error)
//! ```
//!
//! After Dabek, Cox, Kaashoek and Morris: "Vivaldi: A Decentralized Network Coordinate System", SIGCOMM 2004, sections 3.3
//! and 5.4. Three things differ, two of them because other nodes may lie about where they are: all neighbors are looked at together
//! ([`Coordinate::settled`]), and a sample pulls by no more than a few times the median misfit of all of them, so that a
//! minority of liars moves others little; and no neighbor counts as more certain than [`LEAST_ERROR`]. A third keeps a node from
//! staying on the wrong side: among continents there are places from which most neighbors are as far as they should be, only those next
//! door are not, and springs alone do not lead away from there. A node that fits badly therefore tries the places of its nearest neighbors.
//!
//! Limits: round trips that break the triangle inequality cannot be expressed. Coordinates drift together; only their
//! distances mean something. What was measured always comes before them ([`crate::view`]).

use crate::latency::median;
use crate::rng::Rng;

/// Axes besides the height: with two, five regions of a planet do not fit; with more, nodes that have few neighbors are
/// placed by chance.
pub const AXES: usize = 3;
/// Farthest from the origin along an axis, and greatest height, ms; a planet is 400 ms wide.
pub const MAX_EXTENT_MS: f32 = 5_000.0;
/// Neighbors that one pass looks at; more add nothing to eight numbers.
pub const MAX_NEIGHBORS: usize = 64;
/// Share of a misfit that one sample corrects in the first pass; the n-th pass corrects an n-th of that, so that the end is a mean
/// over all neighbors and not what the last one said.
const GAIN: f64 = 0.25;
/// The least relative error that a neighbor is believed to have.
pub const LEAST_ERROR: f64 = 0.1;
/// Relative error of a node that has measured nothing.
const FRESH_ERROR: f64 = 1.0;
/// A sample pulls by at most so many times the median misfit of all, in ms, and never by less than [`LEAST_PULL_MS`].
const PULL_OF_MEDIAN: f64 = 3.0;
/// See [`PULL_OF_MEDIAN`].
const LEAST_PULL_MS: f64 = 1.0;
/// Passes over all neighbors at a time.
const PASSES: usize = 8;
/// A node tries other places while its round trips are off by this share on average.
const MISFIT: f64 = 0.1;
/// Nearest neighbors whose places it tries.
const TRIED: usize = 3;
/// It goes there where the misfit is this share of what it is here.
const BETTER: f64 = 0.8;
/// Coordinates are drawn back to the origin by the square of their distance over this, ms, so that a swarm does not drift.
const GRAVITY_MS: f64 = 2_000.0;

/// A position and how sure it is. Distances are round trips in ms.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Coordinate {
    at: [f32; AXES],
    height: f32,
    error: f32,
}

impl Default for Coordinate {
    /// At the origin, sure of nothing.
    fn default() -> Self {
        Self { at: [0.0; AXES], height: 0.0, error: FRESH_ERROR as f32 }
    }
}

impl Coordinate {
    /// Bytes on the wire.
    pub const BYTES: usize = 4 * (AXES + 2);

    /// From the axes and the height, ms, and the relative error; `None` when a number is not finite, beyond
    /// [`MAX_EXTENT_MS`], or the height or the error is negative.
    pub fn new(at: [f32; AXES], height: f32, error: f32) -> Option<Self> {
        let within = |ms: &f32| ms.is_finite() && ms.abs() <= MAX_EXTENT_MS;
        let sound = at.iter().all(within) && within(&height) && height >= 0.0 && (0.0..=1e3).contains(&error);
        sound.then_some(Self { at, height, error })
    }

    /// Axes, height, error: what [`Coordinate::new`] takes.
    pub fn parts(&self) -> ([f32; AXES], f32, f32) {
        (self.at, self.height, self.error)
    }

    /// The node's own share of every round trip, ms.
    pub fn height_ms(&self) -> f64 {
        f64::from(self.height)
    }

    /// How far off its distances are, relatively: the median over its neighbors; 1 before anything was measured.
    pub fn error(&self) -> f64 {
        f64::from(self.error)
    }

    /// Whether anything was measured.
    pub fn is_placed(&self) -> bool {
        self.error() < FRESH_ERROR
    }

    /// The way between both without heights, round trip in ms.
    pub fn across_ms(&self, other: &Self) -> f64 {
        let square = |(a, b): (&f32, &f32)| (f64::from(*a) - f64::from(*b)).powi(2);
        self.at.iter().zip(&other.at).map(square).sum::<f64>().sqrt()
    }

    /// The expected round trip, ms.
    pub fn round_trip_ms(&self, other: &Self) -> f64 {
        self.across_ms(other) + self.height_ms() + other.height_ms()
    }

    /// This coordinate moved by what was measured: `(their coordinate, round trip in ms)` for each neighbor, of which the first
    /// [`MAX_NEIGHBORS`] count. `rng` chooses where nodes go that stand on one spot. Without neighbors nothing moves.
    #[must_use]
    pub fn settled(&self, neighbors: &[(Self, f64)], rng: &mut Rng) -> Self {
        let neighbors = &neighbors[..neighbors.len().min(MAX_NEIGHBORS)];
        let sound = |sample: &&(Self, f64)| sample.1.is_finite() && sample.1 >= 0.0;
        let samples: Vec<(Self, f64)> = neighbors.iter().filter(sound).copied().collect();
        let mut moved = self.relaxed(&samples, rng);
        let mut misfit = moved.misfit(&samples);
        if misfit > MISFIT {
            let mut near: Vec<&(Self, f64)> = samples.iter().collect();
            near.sort_by(|a, b| a.1.total_cmp(&b.1));
            for (to, _) in near.into_iter().take(TRIED) {
                let there = Self { at: to.at, ..moved }.relaxed(&samples, rng);
                let other = there.misfit(&samples);
                if other < BETTER * misfit {
                    (moved, misfit) = (there, other);
                }
            }
        }
        let relative = |(to, ms): &(Self, f64)| (ms - moved.round_trip_ms(to)).abs() / ms.max(1.0);
        let Some(error) = median(samples.iter().map(relative)) else { return moved };
        // One sample fits itself: an error of nothing would claim what one neighbor cannot tell.
        let known = samples.len() as f64 / (samples.len() + AXES) as f64;
        moved.error = (error * known + FRESH_ERROR * (1.0 - known)).min(0.999 * FRESH_ERROR) as f32;
        moved
    }

    /// Moved by all samples a few times.
    fn relaxed(&self, samples: &[(Self, f64)], rng: &mut Rng) -> Self {
        let mut moved = *self;
        for pass in 1..=PASSES {
            let off = samples.iter().map(|(to, ms)| (ms - moved.round_trip_ms(to)).abs());
            let Some(misfit) = median(off) else { return moved };
            let most = (PULL_OF_MEDIAN * misfit).max(LEAST_PULL_MS);
            let gain = GAIN / pass as f64;
            samples.iter().for_each(|(to, ms)| moved.pull(to, *ms, (gain, most), rng));
            moved.rest();
        }
        moved
    }

    /// By how much round trips are off, as a share of the greater one, on average: a liar counts as one, however far it says to be.
    fn misfit(&self, samples: &[(Self, f64)]) -> f64 {
        let off = |(to, ms): &(Self, f64)| {
            let expected = self.round_trip_ms(to);
            (ms - expected).abs() / ms.max(expected).max(1.0)
        };
        samples.iter().map(off).sum::<f64>() / samples.len().max(1) as f64
    }

    /// One sample, with its gain and the most ms it counts for.
    fn pull(&mut self, to: &Self, ms: f64, (gain, most): (f64, f64), rng: &mut Rng) {
        let weight = {
            let (own, other) = (self.error().max(LEAST_ERROR), to.error().max(LEAST_ERROR));
            own / (own + other)
        };
        let by = gain * weight * (ms - self.round_trip_ms(to)).clamp(-most, most);
        let across = self.across_ms(to);
        let heights = self.height_ms() + to.height_ms();
        let mut away = [0.0; AXES];
        if across > 1e-3 {
            for (axis, away) in away.iter_mut().enumerate() {
                *away = (f64::from(self.at[axis]) - f64::from(to.at[axis])) / across;
            }
        } else {
            away.iter_mut().for_each(|axis| *axis = rng.between(-1.0, 1.0));
            let length = away.iter().map(|axis| axis * axis).sum::<f64>().sqrt().max(1e-3);
            away.iter_mut().for_each(|axis| *axis /= length);
        }
        // The height takes its share of the way, as in section 5.4; nodes on one spot have no height to share by.
        let whole = across + heights;
        let (flat, up) =
            if whole > 1e-3 { (across.max(0.1 * whole) / whole, heights / whole) } else { (1.0, 0.5) };
        let limit = |ms: f64| (ms as f32).clamp(-MAX_EXTENT_MS, MAX_EXTENT_MS);
        for (at, away) in self.at.iter_mut().zip(away) {
            *at = limit(f64::from(*at) + by * flat * away);
        }
        self.height = limit((self.height_ms() + by * up.max(0.1)).max(0.0));
    }

    /// Draws it back to the origin a little.
    fn rest(&mut self) {
        let far = self.across_ms(&Self { height: 0.0, ..Self::default() });
        let share = (far / GRAVITY_MS).powi(2).min(0.5);
        self.at.iter_mut().for_each(|at| *at = (f64::from(*at) * (1.0 - share * 0.1)) as f32);
    }
}

#[cfg(test)]
mod tests {
    use super::{AXES, Coordinate, MAX_EXTENT_MS};
    use crate::latency::median;
    use crate::rng::Rng;

    /// Places in a plane of `wide` ms, each with a way to the net; round trips between them are exact.
    struct Plane {
        at: Vec<(f64, f64, f64)>,
    }

    impl Plane {
        fn draw(nodes: usize, wide: f64, rng: &mut Rng) -> Self {
            let mut place = |_| (rng.between(0.0, wide), rng.between(0.0, wide), rng.exponential(6.0));
            Self { at: (0..nodes).map(&mut place).collect() }
        }

        fn ms(&self, i: usize, j: usize) -> f64 {
            let (a, b) = (self.at[i], self.at[j]);
            (a.0 - b.0).hypot(a.1 - b.1) + a.2 + b.2
        }

        /// Coordinates after `rounds` in which each node looks at `peers` others; those for which `lies` holds stay
        /// where they say they are.
        fn settle(
            &self,
            rounds: usize,
            peers: usize,
            lies: impl Fn(usize) -> Option<Coordinate>,
        ) -> Vec<Coordinate> {
            let n = self.at.len();
            let mut rng = Rng::new(7);
            let friends: Vec<Vec<usize>> =
                (0..n).map(|i| (0..peers).map(|_| rng.below(n)).filter(|j| *j != i).collect()).collect();
            let mut coordinates: Vec<Coordinate> = (0..n).map(|i| lies(i).unwrap_or_default()).collect();
            for _ in 0..rounds {
                for i in (0..n).filter(|i| lies(*i).is_none()) {
                    let seen: Vec<(Coordinate, f64)> =
                        friends[i].iter().map(|&j| (coordinates[j], self.ms(i, j))).collect();
                    coordinates[i] = coordinates[i].settled(&seen, &mut rng);
                }
            }
            coordinates
        }

        /// The median relative error over pairs of nodes that tell the truth.
        fn error(&self, coordinates: &[Coordinate], honest: impl Fn(usize) -> bool) -> f64 {
            let n = self.at.len();
            let pairs = (0..n).flat_map(|i| (0..i).map(move |j| (i, j)));
            let pairs = pairs.filter(|&(i, j)| honest(i) && honest(j));
            let off = |(i, j): (usize, usize)| {
                (coordinates[i].round_trip_ms(&coordinates[j]) / self.ms(i, j) - 1.0_f64).abs()
            };
            median(pairs.map(off)).unwrap()
        }
    }

    #[test]
    fn distances_never_measured_are_found() {
        let plane = Plane::draw(60, 150.0, &mut Rng::new(1));
        let coordinates = plane.settle(30, 16, |_| None);
        let error = plane.error(&coordinates, |_| true);
        assert!(error < 0.12, "{error}");
        assert!(coordinates.iter().all(Coordinate::is_placed));
    }

    #[test]
    fn a_tenth_of_liars_moves_the_others_little() {
        let plane = Plane::draw(60, 150.0, &mut Rng::new(2));
        let lies = |i: usize| {
            let far = (i * 37 % 400) as f32 - 200.0;
            i.is_multiple_of(10).then(|| Coordinate::new([far, -far, far], 0.0, 0.0).unwrap())
        };
        let (clean, attacked) = (plane.settle(30, 16, |_| None), plane.settle(30, 16, lies));
        let honest = |i: usize| !i.is_multiple_of(10);
        let (clean, attacked) = (plane.error(&clean, honest), plane.error(&attacked, honest));
        assert!(attacked < clean + 0.1, "{clean} without and {attacked} with");
    }

    /// Three cities in a row, as seen from a fourth beside them: from its mirror image they are as far.
    #[test]
    fn a_node_on_the_wrong_side_finds_its_neighbors() {
        let place = |x: f32, y: f32| Coordinate::new([x, y, 0.0], 2.0, 0.1).unwrap();
        let cities = [(-100.0, 0.0), (0.0, 0.0), (100.0, 0.0)].map(|(x, y)| place(x, y));
        let door = [(3.0, 120.0), (0.0, 117.0)].map(|(x, y)| place(x, y));
        let home = place(0.0, 120.0);
        let far = cities.iter().cycle().take(9).chain(&door);
        let seen: Vec<(Coordinate, f64)> = far.map(|to| (*to, home.round_trip_ms(to))).collect();
        let mut node = place(0.0, -120.0);
        let mut rng = Rng::new(1);
        (0..4).for_each(|_| node = node.settled(&seen, &mut rng));
        assert!(node.across_ms(&home) < 10.0, "{node:?}");
    }

    #[test]
    fn nonsense_is_refused_and_moves_nothing() {
        for (at, height, error) in [
            ([f32::NAN, 0.0, 0.0], 0.0, 0.0),
            ([0.0; AXES], -1.0, 0.0),
            ([0.0; AXES], 0.0, f32::INFINITY),
            ([2.0 * MAX_EXTENT_MS, 0.0, 0.0], 0.0, 0.0),
        ] {
            assert_eq!(Coordinate::new(at, height, error), None);
        }
        let far = Coordinate::new([MAX_EXTENT_MS; AXES], MAX_EXTENT_MS, 0.0).unwrap();
        let own = Coordinate::default();
        assert_eq!(own.settled(&[(far, f64::NAN), (far, -1.0)], &mut Rng::new(1)), own);
        let mut near = own;
        for _ in 0..100 {
            near = near.settled(&[(far, 1e9)], &mut Rng::new(1));
            let (at, height, error) = near.parts();
            assert!(Coordinate::new(at, height, error).is_some(), "{near:?}");
        }
    }
}
