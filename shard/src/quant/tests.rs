use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

/// What other programs say, see `tests/data/quant/make.py`.
const GOLDEN: &[u8] = include_bytes!("../../tests/data/quant/golden.bin");
/// The same for the formats of tables, see `tests/data/quant/tables.py`.
const TABLES: &[u8] = include_bytes!("../../tests/data/quant/tables.bin");

struct Golden {
    kind: u8,
    format: &'static Format,
    blocks: &'static [u8],
    weights: Vec<f32>,
    dot: f32,
}

fn golden() -> Vec<Golden> {
    // 14 formats with one record of blocks and three rows each, 7 plain and 7 searching quantizers; 14 and 3.
    [records(GOLDEN, 14 + 7 + 7 + 3 * 14), records(TABLES, 14 + 3 + 3 * 14)].into_iter().flatten().collect()
}

fn records(mut rest: &'static [u8], count: usize) -> Vec<Golden> {
    let mut take = |len: usize| {
        let (taken, left) = rest.split_at(len);
        rest = left;
        taken
    };
    let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap()) as usize;
    let mut records = Vec::new();
    for _ in 0..count {
        let head = take(2);
        let format = by_name(std::str::from_utf8(take(head[1].into())).unwrap()).unwrap();
        let (count, bytes) = (number(take(4)), number(take(4)));
        assert_eq!(bytes, count * format.block_bytes, "{}", format.name);
        let blocks = take(bytes);
        let weights = take(count * format.block_len * 4);
        let weights = weights.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        let dot = if head[0] == b'X' { f32::from_le_bytes(take(4).try_into().unwrap()) } else { f32::NAN };
        records.push(Golden { kind: head[0], format, blocks, weights, dot });
    }
    assert!(rest.is_empty());
    records
}

fn dequantized(format: &Format, blocks: &[u8]) -> Vec<f32> {
    let mut weights = vec![f32::NAN; blocks.len() / format.block_bytes * format.block_len];
    (format.dequantize)(blocks, &mut weights);
    weights
}

fn quantized(format: &Format, weights: &[f32]) -> Vec<u8> {
    let mut blocks = vec![0xa5; format.row_bytes(weights.len()).unwrap()];
    format.quantize(weights, None, &mut blocks).unwrap();
    blocks
}

/// Root of the mean squared error, relative to the root mean square of the weights.
fn error(weights: &[f32], approximated: &[f32]) -> f64 {
    let square = |value: f32| f64::from(value) * f64::from(value);
    let wrong: f64 = weights.iter().zip(approximated).map(|(w, a)| square(w - a)).sum();
    (wrong / weights.iter().map(|&w| square(w)).sum::<f64>()).sqrt()
}

#[test]
fn the_table_is_sound() {
    for format in ALL {
        assert_eq!(by_type(format.ggml_type), Some(*format));
        assert_eq!(by_name(&format.name.to_uppercase()), Some(*format));
        assert_eq!(format.row_bytes(2 * format.block_len), Some(2 * format.block_bytes));
        assert_eq!(format.row_bytes(2 * format.block_len + 1).is_none(), format.block_len > 1);
        assert!(!format.integer || format.block_len.is_multiple_of(ACTIVATION_BLOCK));
    }
    assert_eq!((F32.row_bytes(usize::MAX), Q8_0.row_bytes(usize::MAX - 31)), (None, None));
    let types: HashSet<u32> = ALL.iter().map(|format| format.ggml_type).collect();
    let names: HashSet<&str> = ALL.iter().map(|format| format.name).collect();
    assert_eq!((types.len(), names.len()), (ALL.len(), ALL.len()));
    assert!(by_type(4).is_none() && by_name("q9_9").is_none());
}

#[test]
fn every_format_dequantizes_to_the_same_bits_as_the_gguf_package() {
    let golden = golden();
    for format in ALL {
        let record = golden.iter().find(|record| record.kind == b'D' && record.format == *format);
        let record = record.unwrap_or_else(|| panic!("{} has no golden record", format.name));
        for (i, (got, wanted)) in dequantized(format, record.blocks).iter().zip(&record.weights).enumerate() {
            assert_eq!(got.to_bits(), wanted.to_bits(), "{} weight {i}: {got} {wanted}", format.name);
        }
    }
}

#[test]
fn plain_quantizers_make_the_same_blocks_as_the_gguf_package() {
    for record in golden().iter().filter(|record| record.kind == b'Q') {
        let blocks = quantized(record.format, &record.weights);
        let different = blocks.iter().zip(record.blocks).filter(|(a, b)| a != b).count();
        assert_eq!(different, 0, "{}: bytes that differ of {}", record.format.name, blocks.len());
    }
}

#[test]
fn searching_quantizers_are_as_good_as_those_of_llama_cpp() {
    for record in golden().iter().filter(|record| record.kind == b'L') {
        let ours =
            error(&record.weights, &dequantized(record.format, &quantized(record.format, &record.weights)));
        let theirs = error(&record.weights, &dequantized(record.format, record.blocks));
        println!("{}: relative RMSE {ours:.5}, llama.cpp {theirs:.5}", record.format.name);
        assert!(ours < 1.01 * theirs, "{}: {ours} is worse than {theirs}", record.format.name);
    }
}

/// A search that knows what matters makes smaller errors there than one that does not, and so a smaller error of the products.
#[test]
fn what_matters_is_kept_better() {
    let mut random = crate::synthetic::Random(7);
    for format in ALL.iter().filter(|format| format.weighs()) {
        let (mut better, mut sums) = (0, [0.0f64; 2]);
        for _ in 0..40 {
            let weights: Vec<f32> = (0..1024).map(|_| random.normal()).collect();
            let importance: Vec<f32> =
                (0..1024).map(|i| if i % 7 == 0 { 40.0 } else { 0.5 + 0.1 * (i % 5) as f32 }).collect();
            let mut blocks = vec![0; format.row_bytes(1024).unwrap()];
            format.quantize(&weights, Some(&importance), &mut blocks).unwrap();
            let error = |blocks: &[u8]| {
                let off =
                    dequantized(format, blocks).into_iter().zip(&weights).map(|(b, w)| f64::from(b - w));
                off.zip(&importance).map(|(off, importance)| off * off * f64::from(*importance)).sum::<f64>()
            };
            let errors = [error(&blocks), error(&quantized(format, &weights))];
            better += usize::from(errors[0] < errors[1]);
            sums = [sums[0] + errors[0], sums[1] + errors[1]];
        }
        println!("{}: {:.3} of the error without", format.name, sums[0] / sums[1]);
        assert!(better > 30 && sums[0] < sums[1], "{}: better in {better} of 40, {sums:?}", format.name);
    }
}

#[test]
fn every_dot_has_the_bits_of_d1() {
    let golden = golden();
    for format in ALL {
        let rows = golden.iter().filter(|record| record.kind == b'X' && record.format == *format);
        assert_eq!(rows.clone().count(), 3, "{}", format.name);
        for record in rows {
            let (q, d, sums) = activations(&record.weights);
            let dot =
                (format.dot)(record.blocks, &QuantizedRow { x: &record.weights, q: &q, d: &d, sums: &sums });
            assert_eq!(dot.to_bits(), record.dot.to_bits(), "{}: {dot} {}", format.name, record.dot);
        }
    }
}

/// The largest error a quantizer may make in a block of `weights`: half a step, a whole one where the largest
/// code is one short, and what the rounding of scales and minima adds.
fn bound(format: &Format, weights: &[f32]) -> f32 {
    let largest = signed_max(weights).abs();
    let (min, max) = range(weights);
    let (spread, from_zero) = (max - min, max.max(0.0) - min.min(0.0));
    match format.name {
        "f32" => 0.0,
        "f16" => (largest / 2048.0).max(3e-8),
        "bf16" => largest / 256.0,
        "q8_0" => 0.57 * largest / 127.0,
        "q4_0" => 1.01 * largest / 8.0,
        "q4_1" => 0.51 * spread / 15.0 + largest / 1024.0,
        "q5_0" => 1.01 * largest / 16.0,
        "q5_1" => 0.51 * spread / 31.0 + largest / 1024.0,
        "q4_k" => 1.5 * from_zero / 15.0,
        "q5_k" => 1.5 * from_zero / 31.0,
        "q6_k" => 1.5 * largest / 31.0,
        "q2_k" => 1.5 * from_zero / 3.0,
        "q3_k" => 1.5 * largest / 3.0,
        "iq4_nl" | "iq4_xs" => 0.2 * largest,
        "mxfp4" => 0.26 * largest,
        "tq1_0" | "tq2_0" => 0.501 * largest,
        name => panic!("no bound for {name}"),
    }
}

fn activations(x: &[f32]) -> (Vec<i8>, Vec<f32>, Vec<i16>) {
    let (mut q, mut d, mut sums) = (vec![99; x.len()], vec![9.0; x.len() / 32], vec![9; x.len() / 16]);
    quantize_row(x, &mut q, &mut d, &mut sums);
    (q, d, sums)
}

/// Blocks of any bits, but with scales that are neither huge nor NaN.
fn random_blocks(format: &Format, bytes: &[u8]) -> Vec<u8> {
    let scales: &[usize] = match format.name {
        "q4_1" | "q5_1" | "q4_k" | "q5_k" => &[0, 2],
        "q2_k" => &[80, 82],
        "q3_k" => &[108],
        "q6_k" => &[208],
        "tq1_0" => &[52],
        "tq2_0" => &[64],
        "f16" | "f32" | "bf16" | "mxfp4" | "nvfp4" | "iq1_m" => &[],
        _ => &[0],
    };
    let mut blocks: Vec<u8> =
        bytes.iter().cycle().take(1536 / format.block_len * format.block_bytes).copied().collect();
    for block in blocks.chunks_exact_mut(format.block_bytes) {
        scales.iter().for_each(|&at| block[at + 1] &= 0xbb);
        match format.name {
            "f16" => block[1] &= 0xbb,
            "bf16" => block[1] = block[1] & 0x83 | 0x3c,
            "f32" => block[3] = block[3] & 0x83 | 0x3c,
            "mxfp4" => block[0] = block[0] & 15 | 0x70,
            "nvfp4" => block[..4].iter_mut().for_each(|d| *d &= 0x3f),
            "iq1_m" => block[55] = block[55] & 0x8f | 0x30,
            _ => {}
        }
    }
    blocks
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn quantizers_stay_within_their_bound(
        weights in prop::collection::vec(-1.0f32..1.0, 512),
        scale in prop::sample::select(vec![0.03f32, 1.0, 300.0]),
        shift in prop::sample::select(vec![0.0f32, 0.5, -3.0]),
    ) {
        let weights: Vec<f32> = weights.iter().map(|w| (w + shift) * scale).collect();
        for format in ALL.iter().filter(|format| format.quantizer.is_some()) {
            let back = dequantized(format, &quantized(format, &weights));
            for (weights, back) in weights.chunks(format.block_len).zip(back.chunks(format.block_len)) {
                let bound = bound(format, weights) * (1.0 + 1e-6);
                for (w, b) in weights.iter().zip(back) {
                    let off = (w - b).abs();
                    prop_assert!(off <= bound, "{}: {w} became {b}, bound {bound}", format.name);
                }
            }
        }
    }

    #[test]
    fn quantizers_take_any_bits(bits in prop::collection::vec(any::<u32>(), 512)) {
        let weights: Vec<f32> = bits.into_iter().map(f32::from_bits).collect();
        for format in ALL.iter().filter(|format| format.quantizer.is_some()) {
            dequantized(format, &quantized(format, &weights));
        }
    }

    #[test]
    fn what_is_exactly_representable_stays(codes in prop::collection::vec(0u8..16, 256)) {
        let weights: Vec<f32> = codes.iter().enumerate().map(|(i, &c)| match i % 32 {
            0 => -8.0,
            1 => 7.0,
            _ => f32::from(c) - 8.0,
        }).collect();
        for name in ["f32", "f16", "bf16", "q4_0", "q4_1", "q5_0"] {
            let format = by_name(name).unwrap();
            prop_assert_eq!(&dequantized(format, &quantized(format, &weights)), &weights, "{}", name);
        }
    }

    #[test]
    fn dots_are_the_products_of_what_blocks_and_activations_mean(
        bytes in prop::collection::vec(any::<u8>(), 1300),
        x in prop::collection::vec(-4.0f32..4.0, 1536),
    ) {
        let (q, d, sums) = activations(&x);
        let row = QuantizedRow { x: &x, q: &q, d: &d, sums: &sums };
        for format in ALL {
            let blocks = random_blocks(format, &bytes);
            let (mut wanted, mut size) = (0.0f64, 0.0f64);
            for (i, w) in dequantized(format, &blocks).iter().enumerate() {
                let x = if format.integer { f64::from(q[i]) * f64::from(d[i / 32]) } else { x[i].into() };
                wanted += f64::from(*w) * x;
                size += (f64::from(*w) * x).abs();
            }
            let got = f64::from((format.dot)(&blocks, &row));
            prop_assert!((got - wanted).abs() <= 1e-4 * size.max(1e-30), "{}: {got} {wanted} {size}", format.name);
        }
    }

    #[test]
    fn activations_round_to_the_nearest_step(x in prop::collection::vec(-9.0f32..9.0, 96)) {
        let (q, d, sums) = activations(&x);
        for (i, x) in x.iter().enumerate() {
            prop_assert!((f32::from(q[i]) * d[i / 32] - x).abs() <= 0.501 * d[i / 32]);
        }
        prop_assert!(q.chunks(32).all(|q| q.iter().any(|q| q.abs() == 127)));
        for (q, sum) in q.chunks(16).zip(sums) {
            prop_assert_eq!(q.iter().map(|&q| i16::from(q)).sum::<i16>(), sum);
        }
    }
}

#[test]
fn activations_at_the_edges() {
    let mut x = [0.0f32; 160];
    x[32] = 127.0;
    x[33..36].copy_from_slice(&[0.5, 1.5, -2.5]);
    x[64] = f32::INFINITY;
    x[96] = 1e-38;
    x[128] = f32::MAX;
    x[129] = -f32::MAX;
    let (q, d, sums) = activations(&x);
    assert_eq!((d[0], d[1], d[3]), (0.0, 1.0, 0.0));
    assert_eq!(q[32..36], [127, 0, 2, -2], "ties go to even");
    assert!(d[2].is_nan() && q[64..128].iter().all(|&q| q == 0));
    assert_eq!((q[128], q[129], d[4]), (127, -127, f32::MAX / 127.0));
    assert_eq!(sums[2], 127);
    x[64] = f32::NAN;
    assert!(activations(&x).1[2].is_nan());
}
