//! What wire `q8` makes of activations: 34 bytes per 32 values, a scale in bf16 and 32 signed bytes. Per block of 32 values:
//!
//! ```text
//! amax = max |x|
//! d    = bf16(amax / 127), to nearest even; zero if that is zero or subnormal
//! q    = round_half_even(x * (1 / d)), within -127..127; zero if d is
//! x'   = d * q
//! ```
//!
//! The scale is bf16 and not f16 because residual streams of some models exceed 65,504, and because 127 times a bf16 is
//! exact in f32: rounding what is rounded changes nothing, so both ends of a wire may round.
//!
//! Results are finite (bf16(MAX / 127) times 127 is below MAX).

/// Values that share a scale.
pub(super) const BLOCK: usize = 32;

/// Largest magnitude of a rounded value, in steps.
const STEPS: f32 = 127.0;

/// 1.5 * 2^23: adding it leaves no bits for a fraction, so that the addition itself rounds half to even; subtracting it
/// again is exact. It holds for magnitudes below 2^22; those here are below 128. An addition is one instruction on
/// every machine, where `round_ties_even` is a call on x86-64 without SSE4.1.
const TO_INTEGER: f32 = 12_582_912.0;

/// Rounds finite `values` block by block; a last block may be shorter than [`BLOCK`].
pub(super) fn apply(values: &mut [f32]) {
    let (blocks, rest) = values.as_chunks_mut::<BLOCK>();
    blocks.iter_mut().for_each(|block| round(block));
    round(rest);
}

#[inline]
fn round(block: &mut [f32]) {
    let (scale, inverse) = scale(block);
    for value in block {
        let steps = (*value * inverse + TO_INTEGER) - TO_INTEGER;
        *value = scale * steps.clamp(-STEPS, STEPS);
    }
}

/// The scale of a block and what values are multiplied by: its inverse, or zero without a scale.
#[inline]
fn scale(block: &[f32]) -> (f32, f32) {
    // Magnitudes of floats are ordered as their bits are, and integers compare in vectors at any optimization level.
    let magnitude = |value: &f32| value.to_bits() & 0x7fff_ffff;
    let largest = f32::from_bits(block.iter().map(magnitude).fold(0, u32::max));
    let scale = to_bf16(largest / STEPS);
    if scale.is_normal() { (scale, 1.0 / scale) } else { (0.0, 0.0) }
}

/// The nearest bf16 as f32, ties to even; for finite values not negative.
#[inline]
fn to_bf16(value: f32) -> f32 {
    let bits = value.to_bits();
    f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The rule as its definition says it: `half`'s bf16, `round_ties_even`, bytes.
    fn by_the_rule(block: &[f32]) -> Vec<f32> {
        let amax = block.iter().fold(0.0f32, |amax, x| amax.max(x.abs()));
        let d = half::bf16::from_f32(amax / 127.0).to_f32();
        let d = if d == 0.0 || d.is_subnormal() { 0.0 } else { d };
        let inverse = 1.0 / d;
        let q =
            |x: &f32| if d == 0.0 { 0 } else { (x * inverse).round_ties_even().clamp(-127.0, 127.0) as i8 };
        block.iter().map(|x| d * f32::from(q(x))).collect()
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|v| v.to_bits()).collect()
    }

    fn check(block: &[f32]) {
        let mut once = block.to_vec();
        apply(&mut once);
        let expected: Vec<f32> = block.chunks(BLOCK).flat_map(by_the_rule).collect();
        assert_eq!(bits(&once), bits(&expected), "{block:?}");
        assert!(once.iter().all(|v| v.is_finite()), "{block:?}");
        let mut twice = once.clone();
        apply(&mut twice);
        assert_eq!(bits(&twice), bits(&once), "twice: {block:?}");
    }

    #[test]
    fn known_blocks() {
        let rounded = |block: &[f32]| {
            let mut block = block.to_vec();
            apply(&mut block);
            block
        };
        assert_eq!(rounded(&[127.0, -126.4, 0.5, 1.5, -0.5]), [127.0, -126.0, 0.0, 2.0, 0.0]);
        // 130 / 127 is nearest to the bf16 1.0234375, of which 130 is 127.02 steps.
        assert_eq!(rounded(&[130.0, 1.0]), [127.0 * 1.023_437_5, 1.023_437_5]);
        let zeros = rounded(&[-0.0, f32::MIN_POSITIVE, -f32::MIN_POSITIVE]);
        assert_eq!(bits(&zeros), [0; 3]);
        // Each block has its own scale.
        let mut two = vec![1000.0; 32];
        two.extend([0.001; 32]);
        let two = rounded(&two);
        assert!((two[0] - 1000.0).abs() < 4.0 && (two[63] - 0.001).abs() < 4e-6, "{two:?}");
    }

    proptest! {
        #[test]
        fn all_finite_blocks_follow_the_rule_and_rounding_twice_changes_nothing(
            patterns in prop::collection::vec(any::<u32>(), 1..70),
            like in any::<bool>(),
        ) {
            // Any bits, or values of similar size as in a real row.
            let value = |p: &u32| if like { (*p as i32) as f32 * 1e-7 } else { f32::from_bits(*p) };
            let block: Vec<f32> = patterns.iter().map(value).filter(|v| v.is_finite()).collect();
            check(&block);
        }

        #[test]
        fn ties_go_to_even(steps in prop::collection::vec(-254i32..=254, 32), exponent in -100i32..100) {
            let unit = f32::from_bits(((exponent + 127) as u32) << 23);
            let mut block: Vec<f32> = steps.iter().map(|s| *s as f32 * 0.5 * unit).collect();
            block[0] = 127.0 * unit;
            check(&block);
        }
    }

    #[test]
    fn the_smallest_and_largest_values() {
        for largest in [
            f32::MAX,
            f32::MAX / 1.01,
            f32::MIN_POSITIVE,
            f32::MIN_POSITIVE * 126.0,
            f32::MIN_POSITIVE * 127.0,
            f32::MIN_POSITIVE * 128.0,
            f32::from_bits(1),
        ] {
            check(&[largest, -largest / 3.0, largest / 7.0, 0.0]);
        }
    }
}
