//! Rotary positions: how fast each pair of a head turns.
//!
//! Pair `i` of `dims / 2` turns by `position * frequency[i]`, with `frequency[i] = base^(-2i / dims)` changed by the
//! scaling the model was trained with. Everything is computed in f64 with the crate's own elementary functions, so the
//! tables have the same bits on every machine. Sources: the YaRN paper (arXiv 2309.00071) with the rounding of the
//! correction dimensions that ggml applies, the LongRoPE paper (arXiv 2402.13753), the Llama 3.1 factors as a GGUF carries them.

use std::f64::consts::PI;

use crate::kernels::{Pairing, math};

/// One rotation, shared by the layers that refer to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Which two elements of a head form a pair.
    pub pairing: Pairing,
    /// Leading elements of a head that rotate; even, at most the head's width.
    pub dims: usize,
    /// The base of the frequencies.
    pub base: f64,
    /// How frequencies are changed for contexts beyond the first training.
    pub scaling: Scaling,
    /// Factor on cosines and sines, before that of the scaling itself.
    pub magnitude: f64,
}

/// How frequencies are changed for long contexts.
#[derive(Clone, Debug, PartialEq)]
pub enum Scaling {
    /// Not at all.
    None,
    /// Every frequency divided by `factor`.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Every frequency divided by its own factor (`rope_freqs.weight`, Llama 3.1).
    Factors(Vec<f32>),
    /// High frequencies kept, low ones divided, a ramp between; cosines and sines times `0.1 ln(factor) + 1`.
    Yarn {
        /// The divisor of low frequencies.
        factor: f64,
        /// The context of the first training.
        original: usize,
        /// Turns within `original` above which a frequency is kept.
        beta_fast: f64,
        /// Turns within `original` below which a frequency is divided.
        beta_slow: f64,
    },
    /// Two sets of factors: `short` while the configured context is at most `original`, `long` beyond.
    ///
    /// The choice is made once, when the model is loaded: keys cached under one set are wrong under the other.
    Long {
        /// Factors for contexts up to `original`.
        short: Vec<f32>,
        /// Factors for longer contexts.
        long: Vec<f32>,
        /// The context of the first training.
        original: usize,
    },
}

/// Frequencies ready for use at one configured context.
#[derive(Clone, Debug, PartialEq)]
pub struct Frequencies {
    /// Radians per position, one for each pair.
    pub radians: Vec<f64>,
    /// Factor on cosines and sines.
    pub magnitude: f64,
}

impl Rope {
    /// This rotation as it was first trained: for layers whose windows fit that context.
    pub fn unscaled(&self) -> Rope {
        Rope { scaling: Scaling::None, magnitude: 1.0, ..self.clone() }
    }

    /// The frequencies when sessions may grow to `context` positions.
    pub fn frequencies(&self, context: usize) -> Frequencies {
        let pairs = self.dims / 2;
        let plain = |i: usize| math::pow(self.base, -((2 * i) as f64) / self.dims as f64);
        let divided = |factors: &[f32]| (0..pairs).map(|i| plain(i) / f64::from(factors[i])).collect();
        let mut magnitude = self.magnitude;
        let radians = match &self.scaling {
            Scaling::None => (0..pairs).map(plain).collect(),
            Scaling::Linear { factor } => (0..pairs).map(|i| plain(i) / factor).collect(),
            Scaling::Factors(factors) => divided(factors),
            Scaling::Long { short, long, original } => {
                divided(if context > *original { long } else { short })
            }
            &Scaling::Yarn { factor, original, beta_fast, beta_slow } => {
                magnitude *= if factor > 1.0 { 0.1 * math::ln(factor) + 1.0 } else { 1.0 };
                let low = self.correction(beta_fast, original).floor().max(0.0);
                let high = self.correction(beta_slow, original).ceil().min((self.dims - 1) as f64);
                (0..pairs)
                    .map(|i| {
                        let kept = 1.0 - ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                        plain(i) * kept + plain(i) / factor * (1.0 - kept)
                    })
                    .collect()
            }
        };
        Frequencies { radians, magnitude }
    }

    /// The pair (as a real number) whose frequency makes `turns` turns within `original` positions.
    fn correction(&self, turns: f64, original: usize) -> f64 {
        self.dims as f64 * math::ln(original as f64 / (turns * 2.0 * PI)) / (2.0 * math::ln(self.base))
    }
}

impl Frequencies {
    /// Writes the (cos, sin) pairs of `position`: `row` has two values for each pair.
    pub fn fill(&self, position: usize, row: &mut [f32]) {
        for (radians, pair) in self.radians.iter().zip(row.chunks_exact_mut(2)) {
            let (sin, cos) = math::sin_cos(position as f64 * radians);
            pair[0] = (cos * self.magnitude) as f32;
            pair[1] = (sin * self.magnitude) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rope(scaling: Scaling) -> Rope {
        Rope { pairing: Pairing::Halves, dims: 64, base: 10_000.0, scaling, magnitude: 1.0 }
    }

    #[test]
    fn plain_frequencies_fall_from_one_to_almost_one_over_base() {
        let f = rope(Scaling::None).frequencies(64);
        assert_eq!(f.radians.len(), 32);
        assert_eq!(f.radians[0], 1.0);
        assert!((f.radians[16] - 0.01).abs() < 1e-15, "{}", f.radians[16]);
        assert_eq!(f.magnitude, 1.0);
    }

    /// By hand for dims 64, base 1e4, original 128: the pair with 32 turns is 64 ln(128/(64 pi)) / (2 ln 1e4) < 0,
    /// so low = 0; with 1 turn 64 ln(128/(2 pi)) / (2 ln 1e4) = 10.47, so high = 11.
    #[test]
    fn yarn_keeps_fast_pairs_and_divides_slow_ones() {
        let f = rope(Scaling::Yarn { factor: 4.0, original: 128, beta_fast: 32.0, beta_slow: 1.0 })
            .frequencies(512);
        let plain = rope(Scaling::None).frequencies(512);
        assert_eq!(f.radians[0], plain.radians[0]);
        for i in 11..32 {
            assert_eq!(f.radians[i], plain.radians[i] / 4.0, "pair {i}");
        }
        let kept = 1.0 - 5.0 / 11.0;
        let expected = plain.radians[5] * (kept + (1.0 - kept) / 4.0);
        assert!((f.radians[5] / expected - 1.0).abs() < 1e-14);
        assert!((f.magnitude - 1.138_629_436_111_989).abs() < 1e-12, "{}", f.magnitude);
    }

    #[test]
    fn the_configured_context_chooses_between_short_and_long_factors() {
        let scaling = Scaling::Long { short: vec![1.0; 32], long: vec![2.0; 32], original: 100 };
        assert_eq!(rope(scaling.clone()).frequencies(100).radians[0], 1.0);
        assert_eq!(rope(scaling).frequencies(101).radians[0], 0.5);
    }
}
