//! `q8` against its rule written out slowly, and against what strangers send.

use proptest::prelude::*;

use super::super::q8::{BLOCK, BLOCK_BYTES};
use super::super::{Wire, decode, encode};
use super::{back, finite};

/// The rule of the module documentation, step by step, clamp included.
fn slow(block: &[f32]) -> Vec<u8> {
    let amax = block.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
    let exact = amax / 127.0;
    let low = f32::from_bits(exact.to_bits() & 0xffff_0000);
    let high = f32::from_bits(low.to_bits() + 0x1_0000);
    let (below, above) = (f64::from(exact) - f64::from(low), f64::from(high) - f64::from(exact));
    let even = low.to_bits() >> 16 & 1 == 0;
    let mut d = if below < above || (below == above && even) { low } else { high };
    if d.is_infinite() {
        d = f32::from_bits(0x7f7f_0000);
    }
    if d == 0.0 || d.is_subnormal() {
        return vec![0; BLOCK_BYTES];
    }
    let inverse = 1.0 / d;
    let q = block.iter().map(|x| (x * inverse).round_ties_even().clamp(-127.0, 127.0) as i8 as u8);
    d.to_le_bytes()[2..].iter().copied().chain(q).collect()
}

fn q8(data: &[f32]) -> Vec<u8> {
    let mut out = Vec::new();
    encode(Wire::Q8, data.len(), data, &mut out).unwrap();
    out
}

/// A block of values that share an order of magnitude, as activations do.
fn block() -> impl Strategy<Value = Vec<f32>> {
    (-126_i32..=127, prop::collection::vec(-1.0_f32..=1.0, BLOCK))
        .prop_map(|(power, block)| block.iter().map(|x| x * 2.0_f32.powi(power)).collect())
}

#[test]
fn golden_block() {
    let block: Vec<f32> = (0..32_u8).map(|i| f32::from(i) - 15.5).collect();
    let bytes = q8(&block);
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, "fa3d8189919aa2aab2bac3cbd3dbe3ecf4fc040c141d252d353d464e565e666f777f");
    let values = back(Wire::Q8, 32, &bytes).unwrap();
    // 0x3dfa is 0.1220703125; the first and the last are 127 of them.
    assert_eq!((values[0], values[31], values[16]), (-15.502_93, 15.502_93, 0.488_281_25));
}

#[test]
fn blocks_that_encoding_does_not_write_are_refused() {
    let sound = |scale: u16, first: i8, rest: i8| {
        let mut bytes = vec![rest as u8; BLOCK_BYTES];
        bytes[..2].copy_from_slice(&scale.to_le_bytes());
        bytes[2] = first as u8;
        back(Wire::Q8, BLOCK, &bytes).is_ok()
    };
    assert!(sound(0x3f80, 127, 3) && sound(0x3f80, -127, 0) && sound(0, 0, 0));
    assert!(!sound(0x3f80, 126, 3), "no value has the largest size");
    assert!(!sound(0x3f80, -128, 127), "beyond the range");
    assert!(!sound(0, 1, 0) && !sound(0x8000, 0, 0), "zero has one form");
    assert!(!sound(0x007f, 127, 0), "subnormal");
    assert!(sound(0x0080, 127, 0), "smallest normal");
    assert!(!sound(0xbf80, 127, 0), "negative");
    assert!(!sound(0x7f80, 127, 0) && !sound(0x7fc0, 127, 0) && !sound(0xff80, 127, 0), "not finite");
    assert!(!sound(0x7f7f, 127, 0), "overflows");
    assert!(sound(0x7c00, 127, 127), "2^121");
}

#[test]
fn every_length_but_one_is_refused() {
    let bytes = q8(&[1.0; 64]);
    let mut out = Vec::new();
    for len in 0..bytes.len() {
        assert!(decode(Wire::Q8, 64, 1, &bytes[..len], &mut out).is_err());
    }
    let long: Vec<u8> = bytes.iter().copied().chain([0]).collect();
    assert!(decode(Wire::Q8, 64, 1, &long, &mut out).is_err());
    assert!(decode(Wire::Q8, 64, usize::MAX, &bytes, &mut out).is_err());
    assert!(out.is_empty());
}

/// Rounding the scale moves values most when `amax / 127` lies half way between two bf16 values.
#[test]
fn the_largest_value_always_becomes_127() {
    for mantissa in 0..128_u32 {
        for exponent in [1, 2, 127, 247] {
            let half_way = f32::from_bits(exponent << 23 | mantissa << 16 | 0x8000);
            let middle = (f64::from(half_way) * 127.0) as f32;
            for step in -3_i32..=3 {
                let amax = f32::from_bits(middle.to_bits().wrapping_add_signed(step));
                for sign in [1.0, -1.0] {
                    let mut block = [0.0; BLOCK];
                    block[9] = amax * sign;
                    block[17] = amax * 0.5;
                    let bytes = q8(&block);
                    assert_eq!(bytes, slow(&block), "{amax:e}");
                    assert_eq!((bytes[11] as i8).unsigned_abs(), 127, "{amax:e}");
                    assert_eq!(q8(&back(Wire::Q8, BLOCK, &bytes).unwrap()), bytes, "{amax:e}");
                }
            }
        }
    }
}

#[test]
fn the_ends_of_the_range_survive() {
    for amax in [f32::MAX, f32::MIN_POSITIVE, f32::MIN_POSITIVE * 127.0, f32::from_bits(1), -0.0] {
        let mut block = [0.0; BLOCK];
        block[0] = amax;
        let bytes = q8(&block);
        assert_eq!(bytes, slow(&block), "{amax:e}");
        let values = back(Wire::Q8, BLOCK, &bytes).unwrap();
        assert!(values.iter().all(|x| x.is_finite()), "{amax:e}");
        assert_eq!(q8(&values), bytes, "{amax:e}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn fast_is_slow(block in block()) {
        prop_assert_eq!(q8(&block), slow(&block));
    }

    #[test]
    fn fast_is_slow_on_any_bits(block in prop::collection::vec(finite(), BLOCK)) {
        prop_assert_eq!(q8(&block), slow(&block));
    }

    #[test]
    fn rounding_twice_is_rounding_once(block in block()) {
        let bytes = q8(&block);
        let values = back(Wire::Q8, BLOCK, &bytes).unwrap();
        prop_assert_eq!(q8(&values), bytes);
        let amax = block.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
        for (x, y) in block.iter().zip(&values) {
            // Half a step, and a step is at most one part in 126.5 of the largest value.
            prop_assert!((x - y).abs() <= amax / 126.5 * 0.501 + f32::MIN_POSITIVE * 127.0, "{} {}", x, y);
        }
    }

    #[test]
    fn accepted_bytes_are_the_one_encoding(
        block in block(),
        at in 0..BLOCK_BYTES,
        byte in any::<u8>(),
    ) {
        let mut bytes = q8(&block);
        bytes[at] = byte;
        if let Ok(values) = back(Wire::Q8, BLOCK, &bytes) {
            prop_assert!(values.iter().all(|x| x.is_finite()));
            prop_assert_eq!(q8(&values), bytes);
        }
    }
}
