//! Companded codes against their rule in exact arithmetic.

use proptest::prelude::*;

use super::super::{Wire, encode};
use super::{back, bits, row};

/// Group, mantissa bits and bits of the escape.
const CODES: [(Wire, usize, u32, u32); 3] =
    [(Wire::C8, 32, 5, 16), (Wire::C10, 64, 7, 24), (Wire::C7, 64, 4, 16)];

/// `x` to `keep` bits of an f32 by comparing with both neighbors in f64, ties to even.
fn nearest(x: f32, keep: u32) -> f32 {
    let step = 1 << (32 - keep);
    let low = f32::from_bits(x.to_bits() / step * step);
    let high = f32::from_bits((x.to_bits() / step + 1) * step);
    let (below, above) = (f64::from(x) - f64::from(low), f64::from(high) - f64::from(x));
    let even = (low.to_bits() / step).is_multiple_of(2);
    let near = if below < above || (below == above && even) { low } else { high };
    if near.is_finite() { near } else { low }
}

/// What a group becomes, by the rule of the module documentation.
fn slow(group: &[f32], mantissa: u32, escape_bits: u32) -> Vec<f32> {
    let mut out = vec![0.0; group.len()];
    let largest = group.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
    let at = group.iter().position(|x| x.abs() == largest).unwrap();
    let escape = nearest(largest, escape_bits);
    if !escape.is_normal() {
        return out;
    }
    out[at] = escape.copysign(group[at]);
    let others = || group.iter().enumerate().filter(|(index, _)| *index != at);
    let below = f32::from_bits(escape.to_bits() - 16);
    let amount = others().fold(0.0_f32, |most, (_, x)| most.max(x.abs())).min(below);
    let most = 8.0 * (2.0 - 0.5_f32.powi(mantissa as i32));
    let exact = amount / (most - 1.0);
    let scale = f32::from_bits(exact.to_bits() / 65_536 * 65_536);
    if !scale.is_normal() {
        return out;
    }
    let inverse = 1.0 / scale;
    for (index, x) in others() {
        let w = nearest(1.0 + x.abs() * inverse, 9 + mantissa).min(most);
        out[index] = ((w - 1.0) * scale).copysign(*x);
    }
    out
}

#[test]
fn golden_groups() {
    // One massive value; the others from -3 to 3.
    let group: Vec<f32> = (0..64_u8).map(|i| (f32::from(i) - 31.0) / 10.0).collect();
    let group: Vec<f32> = group.iter().enumerate().map(|(i, x)| if i == 5 { -9_000.0 } else { *x }).collect();
    let hex = |wire| {
        let mut bytes = Vec::new();
        encode(wire, 64, &group, &mut bytes).unwrap();
        bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    assert_eq!([Wire::C8, Wire::C10, Wire::C7].map(hex), GOLDEN);
}

const GOLDEN: [&str; 3] = [
    "050dc6573efffdfbf9f700f4f2f0eeeceae8e6e4e2e1dddad6d2cecac6c3beb6aea79e8f001f4d40573e0f1e272e363e43464a4e52565a5d61626466686a6c6e7072747677797b7d7f00",
    "05a00cc65b3ef8f0e9e1da00cbc4bcb5ada69e978f88807163544536271809f4d6b89a783c003c789ab8d6f4091827364554637180888f979ea6adb5bcc4cbd3dae1e9f0f8fffff3ffffffffab2a0050555555555555",
    "050dc6613edebc0b8967452311dfac6834e17af307f773ea3164a8dc1f21436587a9bbdcfefff3ffffaaaa560150a5aaeaffffffffdfffff7f00000000",
];

#[test]
fn a_massive_value_does_not_flatten_its_neighbors() {
    let mut group = vec![0.25; 64];
    group[40] = 20_000.0;
    for (wire, ..) in CODES {
        let mut bytes = Vec::new();
        encode(wire, 64, &group, &mut bytes).unwrap();
        let values = back(wire, 64, &bytes).unwrap();
        let far = values.iter().zip(&group).map(|(x, y)| (x / y - 1.0).abs()).fold(0.0, f32::max);
        assert!(far < 0.04, "{wire}: {far}");
    }
    let mut bytes = Vec::new();
    encode(Wire::Q8, 64, &group, &mut bytes).unwrap();
    assert_eq!(back(Wire::Q8, 64, &bytes).unwrap()[41], 0.0, "what q8 makes of it");
}

#[test]
fn the_ends_of_the_range_survive() {
    for size in [f32::MAX, f32::MIN_POSITIVE, f32::MIN_POSITIVE * 16.0, f32::from_bits(1), -0.0] {
        for (wire, group, mantissa, escape) in CODES {
            for rest in [0.0, size * -0.999_999, size / 3.0, size] {
                let mut values = vec![rest; group];
                values[group - 1] = size;
                let mut bytes = Vec::new();
                encode(wire, group, &values, &mut bytes).unwrap();
                let got = back(wire, group, &bytes).unwrap();
                assert_eq!(bits(&got), bits(&slow(&values, mantissa, escape)), "{wire}: {size:e} {rest:e}");
            }
        }
    }
}

#[test]
fn groups_that_encoding_does_not_write_are_refused() {
    let (mut bytes, mut group) = (Vec::new(), [1.0; 32]);
    group[3] = 2.0;
    encode(Wire::C8, 32, &group, &mut bytes).unwrap();
    assert!(back(Wire::C8, 32, &bytes).is_ok());
    let refused = |change: &dyn Fn(&mut Vec<u8>), why: &str| {
        let mut bytes = bytes.clone();
        change(&mut bytes);
        assert!(back(Wire::C8, 32, &bytes).is_err(), "{why}");
    };
    refused(&|b| b[0] = 32, "an index beyond the group");
    refused(&|b| b[5 + 3] = 1, "a code in the slot of the escape");
    refused(&|b| b[1..3].copy_from_slice(&[0x80, 0x7f]), "an escape that is not finite");
    refused(&|b| b[1..3].copy_from_slice(&[0, 0x3f]), "an escape that is not the largest");
    refused(&|b| b[3..5].copy_from_slice(&[0x7f, 0]), "a scale that is not normal");
    refused(&|b| b[3..5].copy_from_slice(&[0, 0]), "codes without a scale");
    refused(&|b| b[3..5].copy_from_slice(&[0xc0, 0xbd]), "a negative scale");
    refused(&|b| b[5..].fill(3), "no code is the largest");
    let mut zeros = vec![0; 37];
    assert!(back(Wire::C8, 32, &zeros).is_ok());
    zeros[0] = 1;
    assert!(back(Wire::C8, 32, &zeros).is_err(), "zeros have one form");
}

fn follows_the_rule(row: &[f32]) -> Result<(), TestCaseError> {
    for (wire, group, mantissa, escape) in CODES {
        let mut bytes = Vec::new();
        encode(wire, 64, row, &mut bytes).unwrap();
        let got = back(wire, 64, &bytes).unwrap();
        let expected: Vec<f32> = row.chunks(group).flat_map(|group| slow(group, mantissa, escape)).collect();
        prop_assert_eq!(bits(&got), bits(&expected), "{}", wire);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn codes_follow_the_rule(row in row(64)) {
        follows_the_rule(&row)?;
    }

    #[test]
    fn codes_follow_the_rule_on_any_bits(row in prop::collection::vec(super::finite(), 64)) {
        follows_the_rule(&row)?;
    }
}
