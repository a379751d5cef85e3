//! The forms against their rules, and against what strangers send.

mod companded;
mod q8;

use proptest::prelude::*;

use super::{Malformed, NonFinite, Wire, check, decode, encode, encoded_len, row_width};

fn back(wire: Wire, width: usize, bytes: &[u8]) -> Result<Vec<f32>, Malformed> {
    let rows = bytes.len() / encoded_len(wire, 1, width).unwrap();
    let mut out = Vec::new();
    let done = decode(wire, width, rows, bytes, &mut out);
    assert_eq!(check(wire, width, rows, bytes), done);
    done.map(|()| out)
}

fn finite() -> impl Strategy<Value = f32> {
    any::<u32>().prop_map(f32::from_bits).prop_filter("finite", |x| x.is_finite())
}

/// A row of values that share an order of magnitude, as activations do, but for a few that are much larger.
fn row(width: usize) -> impl Strategy<Value = Vec<f32>> {
    let massive = prop::collection::vec((0..width, -12_i32..=12), 0..4);
    (-100_i32..=100, prop::collection::vec(-1.0_f32..=1.0, width), massive).prop_map(
        |(power, mut row, massive)| {
            massive.iter().for_each(|&(at, by)| row[at] *= 2.0_f32.powi(by));
            row.iter().map(|x| x * 2.0_f32.powi(power)).collect()
        },
    )
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn sizes_depend_on_shapes_only() {
    let shapes = [
        (Wire::Raw, 3, 5, Some(60)),
        (Wire::Q8, 3, 64, Some(204)),
        (Wire::Q8, 1, 4_096, Some(4_352)),
        (Wire::Q8, 1, 33, None),
        (Wire::C8, 1, 4_096, Some(4_736)),
        (Wire::C8, 2, 48, None),
        (Wire::C10, 1, 576, Some(774)),
        (Wire::C7, 1, 640, Some(610)),
        (Wire::C7, 1, 96, None),
        (Wire::F16, 3, 5, Some(30)),
        (Wire::Q8, 1, 0, None),
        (Wire::Raw, 1, 0, None),
        (Wire::Raw, 0, 7, Some(0)),
        (Wire::Raw, usize::MAX / 4, 2, None),
        (Wire::Q8, usize::MAX / 34, 64, None),
    ];
    for (wire, rows, width, len) in shapes {
        assert_eq!(encoded_len(wire, rows, width), len, "{wire} {rows} x {width}");
    }
    assert_eq!((row_width(Wire::Raw, 20), row_width(Wire::Raw, 21)), (Some(5), None));
    assert_eq!((row_width(Wire::Q8, 68), row_width(Wire::Q8, 67)), (Some(64), None));
    assert_eq!((row_width(Wire::Q8, 0), row_width(Wire::Raw, 0)), (None, None));
}

#[test]
fn names_and_bytes_are_one_to_one() {
    for wire in Wire::ALL {
        assert_eq!(Wire::from_u8(wire as u8), Some(wire));
        assert_eq!(wire.name().parse(), Ok(wire));
    }
    assert_eq!(Wire::from_u8(Wire::ALL.len() as u8), None);
    assert!("Q8".parse::<Wire>().is_err());
}

#[test]
fn what_is_not_finite_stays_out() {
    for wire in Wire::ALL {
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 31, 40, 63] {
                let mut data = vec![0.5; 64];
                data[at] = bad;
                let mut out = vec![7];
                assert_eq!(encode(wire, 64, &data, &mut out), Err(NonFinite));
                assert_eq!(out, [7], "{wire}: as it was");
            }
        }
    }
    let mut raw = vec![0; 8];
    raw[4..].copy_from_slice(&f32::NAN.to_le_bytes());
    let mut out = vec![1.0];
    assert!(decode(Wire::Raw, 2, 1, &raw, &mut out).is_err());
    assert_eq!(out, [1.0]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn what_was_rounded_once_stays_as_it_is(
        row in prop_oneof![row(128), prop::collection::vec(finite(), 128)],
    ) {
        for wire in Wire::ALL {
            let mut bytes = Vec::new();
            encode(wire, 128, &row, &mut bytes).unwrap();
            let values = back(wire, 128, &bytes).unwrap();
            prop_assert!(values.iter().all(|x| x.is_finite()), "{}", wire);
            let mut again = Vec::new();
            encode(wire, 128, &values, &mut again).unwrap();
            prop_assert_eq!(&again, &bytes, "{}", wire);
        }
    }

    #[test]
    fn accepted_bytes_are_the_one_encoding(row in row(64), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        for wire in Wire::ALL {
            let mut bytes = Vec::new();
            encode(wire, 64, &row, &mut bytes).unwrap();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if let Ok(values) = back(wire, 64, &bytes) {
                prop_assert!(values.iter().all(|x| x.is_finite()), "{}", wire);
                let mut again = Vec::new();
                encode(wire, 64, &values, &mut again).unwrap();
                prop_assert_eq!(&again, &bytes, "{}", wire);
            }
        }
    }

    #[test]
    fn sixteen_bits_are_the_nearest(row in row(32)) {
        for (wire, precision, most) in [(Wire::Bf16, 256.0, f32::MAX), (Wire::F16, 2_048.0, 1e6)] {
            let mut bytes = Vec::new();
            encode(wire, 32, &row, &mut bytes).unwrap();
            for (x, y) in row.iter().zip(back(wire, 32, &bytes).unwrap()) {
                let near = x.abs() / precision + 1e-6;
                prop_assert!(x.abs() > most || (x - y).abs() <= near, "{}: {} {}", wire, x, y);
            }
        }
    }

    #[test]
    fn raw_loses_nothing(data in prop::collection::vec(finite(), 12)) {
        let mut bytes = Vec::new();
        encode(Wire::Raw, 4, &data, &mut bytes).unwrap();
        let values = back(Wire::Raw, 4, &bytes).unwrap();
        let bits = |data: &[f32]| data.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        prop_assert_eq!(bits(&values), bits(&data));
    }
}
