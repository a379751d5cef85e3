//! What companded wires make of activations: the largest value of a group by itself, the others in steps that grow with their
//! size, so that a massive channel does not flatten its neighbors.
//!
//! With `M` bits of mantissa, an escape of `E` bits and `TOP = 8 * (2 - 2^-M) - 1`, per group:
//!
//! ```text
//! at = first index of the largest |x|
//! e  = x[at], nearest even to E bits, saturated to a finite value; not normal: the group is zeros
//! a  = min(largest |x| of the others, |e| less 16 ulp of f32)
//! d  = bf16(a / TOP), towards zero; not normal: the others are zeros
//! w  = 1 + |x| * (1 / d), nearest even to M mantissa bits, at most TOP + 1
//! x' = +-(w - 1) * d
//! ```
//!
//! `(w - 1) * d` is exact: at most 11 by 8 significant bits. The largest of the others becomes `TOP * d`, which gives `d` again.

/// Bits of a magnitude.
const MAGNITUDE: u32 = 0x7fff_ffff;
const INFINITE: u32 = 0x7f80_0000;

/// Rounds finite `values`, groups of `group`.
pub(super) fn apply<const M: u32, const E: u32>(values: &mut [f32], group: usize) {
    values.chunks_exact_mut(group).for_each(round::<M, E>);
}

fn round<const M: u32, const E: u32>(group: &mut [f32]) {
    let magnitude = |value: &f32| value.to_bits() & MAGNITUDE;
    let largest = group.iter().map(magnitude).fold(0, u32::max);
    let at = group.iter().position(|value| magnitude(value) == largest).unwrap_or(0);
    let finite = (INFINITE - 1) >> (32 - E) << (32 - E);
    let escape = f32::from_bits(nearest::<E>(largest).min(finite));
    if !escape.is_normal() {
        return group.fill(0.0);
    }
    let escaped = escape.copysign(group[at]);
    group[at] = 0.0;
    let most = 8.0 * (2.0 - 1.0 / (1 << M) as f32);
    let others = group.iter().map(magnitude).fold(0, u32::max).min(escape.to_bits() - 16);
    let exact = f32::from_bits(others) / (most - 1.0);
    let scale = f32::from_bits(exact.to_bits() >> 16 << 16);
    if scale.is_normal() {
        let inverse = 1.0 / scale;
        for value in group.iter_mut() {
            let w = 1.0 + value.abs() * inverse;
            // Sign and exponent are the other nine bits. An infinity stays above `most`.
            let w = f32::from_bits(match M {
                4 => nearest::<13>(w.to_bits()),
                5 => nearest::<14>(w.to_bits()),
                _ => nearest::<16>(w.to_bits()),
            });
            *value = ((w.min(most) - 1.0) * scale).copysign(*value);
        }
    } else {
        group.fill(0.0);
    }
    group[at] = escaped;
}

/// The bits of the nearest value of which only the first `KEEP` bits are set, ties to even.
fn nearest<const KEEP: u32>(bits: u32) -> u32 {
    let odd = bits >> (32 - KEEP) & 1;
    (bits + (1 << (31 - KEEP)) - 1 + odd) >> (32 - KEEP) << (32 - KEEP)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Rule;

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    fn two_to(power: i32) -> f32 {
        f32::from_bits(((127 + power) as u32) << 23)
    }

    #[test]
    fn known_groups() {
        let mut group = [0.0; 32];
        (group[2], group[3], group[4], group[5]) = (-1_000.0, 14.75, 1.0, 0.0146);
        Rule::C8.apply(&mut group);
        // The scale is 1: one step is a 32nd up to 1, a 16th up to 3.
        assert_eq!(group[2..6], [-1_000.0, 14.75, 1.0, 0.0]);
        let mut tiny = [f32::from_bits(3); 32];
        Rule::C8.apply(&mut tiny);
        assert_eq!(bits(&tiny), [0; 32]);
        let mut largest = [f32::MAX; 64];
        Rule::C10.apply(&mut largest);
        assert!(largest.iter().all(|value| value.is_finite()), "{largest:?}");
    }

    proptest! {
        #[test]
        fn rounding_twice_changes_nothing_and_errors_are_relative(
            values in prop::collection::vec((-1.0_f32..1.0, -8_i32..8), 64),
        ) {
            let values: Vec<f32> = values.iter().map(|(x, power)| x * two_to(*power)).collect();
            for rule in Rule::ALL {
                let mut once = values.clone();
                rule.apply(&mut once);
                let mut twice = once.clone();
                rule.apply(&mut twice);
                prop_assert_eq!(bits(&once), bits(&twice), "{:?}", rule);
            }
            for (rule, mantissa) in [(Rule::C8, 5), (Rule::C10, 7), (Rule::C7, 4)] {
                let mut rounded = values.clone();
                rule.apply(&mut rounded);
                let groups = values.chunks(rule.group()).zip(rounded.chunks(rule.group()));
                for (values, rounded) in groups {
                    let mut sizes: Vec<f32> = values.iter().map(|value| value.abs()).collect();
                    sizes.sort_by(f32::total_cmp);
                    let scale = sizes[sizes.len() - 2] / (8.0 * (2.0 - two_to(-mantissa)) - 1.0);
                    for (x, y) in values.iter().zip(rounded) {
                        let step = (scale + x.abs()) * two_to(-mantissa) * 0.51;
                        prop_assert!((x - y).abs() <= step + scale / 128.0 * 15.0, "{:?}: {} {}", rule, x, y);
                    }
                }
            }
        }
    }
}
