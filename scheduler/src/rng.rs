//! Randomness as an argument: a small seeded generator.
//!
//! SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014): one addition and
//! a mixing of 64 bits per draw, the same numbers on every machine. Good enough to spread load and to drive a
//! simulation, not for anything an adversary must not guess.

/// A deterministic stream of numbers, named by its seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rng(u64);

impl Rng {
    /// The stream of `seed`.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub const fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Uniform in `[0, 1)`, 53 bits.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in `[low, high)`.
    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Uniform in `0..bound`; zero when `bound` is zero. The bias is below `bound / 2^64`.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next_u64()) * bound as u128) >> 64) as usize
    }

    /// True with probability `p`.
    pub fn happens(&mut self, p: f64) -> bool {
        self.unit() < p
    }

    /// Exponentially distributed with the given mean: the gaps of a Poisson process.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    /// An independent stream, so that drawing more from one does not shift the other.
    pub const fn fork(&mut self) -> Self {
        Self(self.next_u64())
    }
}

/// Mixes 64 bits so that every input bit moves about half of the output bits.
pub const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::Rng;

    #[test]
    fn the_stream_is_splitmix64() {
        // First outputs of the published reference for seed 1234567.
        let mut chance = Rng::new(1_234_567);
        assert_eq!(chance.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(chance.next_u64(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn draws_stay_in_range_and_average_out() {
        let mut chance = Rng::new(7);
        let mean = (0..10_000).map(|_| chance.exponential(5.0)).sum::<f64>() / 10_000.0;
        assert!((4.8..5.2).contains(&mean), "{mean}");
        assert!((0..1_000).all(|_| chance.below(3) < 3));
        assert_eq!(chance.below(0), 0);
    }
}
