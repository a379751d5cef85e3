//! Every kernel has the bits of the processor's. Without a GPU or a software Vulkan device the tests say so and pass, unless
//! `SHOAL_GPU=required` is set.

use std::sync::{Arc, OnceLock};

use half::f16;

use super::{
    Gpu,
    ops::{self, MatrixJob},
};
use crate::{
    executor::Class,
    golden,
    quant::{self, QuantizedRow},
    synthetic::Random,
};

/// The device of the tests.
fn gpu() -> Option<&'static Arc<Gpu>> {
    static DEVICE: OnceLock<Option<Arc<Gpu>>> = OnceLock::new();
    let open = || match Gpu::open(0) {
        Ok(gpu) => Some(gpu),
        Err(error) => {
            let required = std::env::var("SHOAL_GPU").is_ok_and(|value| value == "required");
            assert!(!required, "SHOAL_GPU=required: {error}");
            eprintln!("skipped: {error}; a software device is in the package mesa-vulkan-drivers");
            None
        }
    };
    DEVICE.get_or_init(open).as_ref()
}

/// Operands of every kind, three each: any bits, near one, whole numbers, and each next to a subnormal result.
fn operands(count: usize) -> Vec<u32> {
    let mut random = Random(7);
    (0..3 * count)
        .map(|i| match i / 3 % 5 {
            0 => random.next() as u32,
            1 => random.normal().to_bits(),
            2 => (random.below(4096) as f32 - 2048.0).to_bits(),
            // Exponents whose products are near or below the smallest normal number.
            3 => (random.next() as u32 & 0x807f_ffff) | (((50 + random.below(30)) as u32) << 23),
            _ => random.next() as u32 & 0x80ff_ffff,
        })
        .collect()
}

#[test]
fn arithmetic_in_integers_rounds_as_ieee_754_says() {
    let Some(gpu) = gpu() else { return };
    let operands = operands(60_000);
    let check = |operation: &'static str, expected: &dyn Fn([f32; 3]) -> f32| {
        let found = gpu.operate(operation, &operands).unwrap();
        for (bits, found) in operands.as_chunks::<3>().0.iter().zip(found) {
            let expected = expected(bits.map(f32::from_bits));
            let same = expected.to_bits() == found || expected.is_nan() && f32::from_bits(found).is_nan();
            assert!(same, "{operation} of {bits:x?}: {found:x}, not {:x}", expected.to_bits());
        }
    };
    let bits = "bitcast<f32>(fma_bits(operands[3u * i], operands[3u * i + 1u], operands[3u * i + 2u]))";
    check(bits, &|[a, b, c]| a.mul_add(b, c));
    check("bitcast<f32>(div_bits(operands[3u * i], operands[3u * i + 1u]))", &|[a, b, _]| a / b);
    check("bitcast<f32>(sqrt_bits(operands[3u * i]))", &|[a, ..]| a.sqrt());
    check("f_fma(a, b, c)", &|[a, b, c]| a.mul_add(b, c));
    check("f_mul(a, b)", &|[a, b, _]| a * b);
    check("f_add(a, b)", &|[a, b, _]| a + b);
    check("bitcast<f32>(half_bits(operands[3u * i] & 0xffffu))", &|[a, ..]| {
        f16::from_bits(a.to_bits() as u16).to_f32()
    });
    check("bitcast<f32>(half_bits(to_half_bits(operands[3u * i])))", &|[a, ..]| {
        let bounded = if a.is_nan() { a } else { a.clamp(-65_504.0, 65_504.0) };
        f16::from_f32(bounded).to_f32()
    });
}

#[test]
fn activations_are_rounded_as_the_specification_says() {
    let Some(gpu) = gpu() else { return };
    let mut random = Random(3);
    let cols = 96;
    let mut x: Vec<f32> = (0..5 * cols).map(|i| random.normal() * [1.0, 1e-30, 1e9][i / 32 % 3]).collect();
    x[32..64].fill(0.0);
    x[64..96].fill(1e-40);
    x[cols + 5] = f32::NAN;
    x[cols + 40] = f32::INFINITY;
    let (mut q, mut d, mut sums) = (vec![0; x.len()], vec![0.0; x.len() / 32], vec![0; x.len() / 16]);
    quant::quantize_row(&x, &mut q, &mut d, &mut sums);
    let found = ops::round(gpu, &x, cols).unwrap();
    let codes: Vec<i8> = found.q.iter().flat_map(|word| word.to_le_bytes()).map(|byte| byte as i8).collect();
    assert_eq!(codes, q);
    let bits = |d: &[f32]| d.iter().map(|d| if d.is_nan() { 1 } else { d.to_bits() }).collect::<Vec<_>>();
    assert_eq!(bits(&found.d), bits(&d));
    assert_eq!(found.sums, sums.iter().map(|&sum| i32::from(sum)).collect::<Vec<_>>());
}

#[test]
fn products_are_those_of_the_scalar_specification() {
    let Some(gpu) = gpu() else { return };
    let mut random = Random(4);
    let (rows, cols) = (70, 512);
    let mut formats = 0;
    for &format in quant::ALL {
        let Some(quantize) = format.quantize else { continue };
        let weights: Vec<f32> = (0..rows * cols).map(|_| random.normal()).collect();
        let mut bytes = vec![0; rows * format.row_bytes(cols).unwrap()];
        quantize(&weights, &mut bytes);
        let job = MatrixJob { format, rows, cols, bytes: &bytes };
        for n in [1, 6] {
            let x: Vec<f32> = (0..n * cols).map(|_| random.normal()).collect();
            let Ok(found) = ops::matmul(gpu, &job, &x) else { continue };
            formats += 1;
            for (row, x) in x.chunks_exact(cols).enumerate() {
                let (mut q, mut d, mut sums) = (vec![0; cols], vec![0.0; cols / 32], vec![0; cols / 16]);
                quant::quantize_row(x, &mut q, &mut d, &mut sums);
                let x = QuantizedRow { x, q: &q, d: &d, sums: &sums };
                for (output, weights) in bytes.chunks_exact(bytes.len() / rows).enumerate() {
                    let (found, expected) = (found[row * rows + output], (format.dot)(weights, &x));
                    assert_eq!(found.to_bits(), expected.to_bits(), "{} {row} {output}", format.name);
                }
            }
        }
    }
    assert_eq!(formats, 2 * 11, "formats that were compared");
}

#[test]
fn the_golden_hashes_are_those_of_the_processor() {
    let Some(gpu) = gpu() else { return };
    let checks = golden::check_gpu(gpu).unwrap();
    assert!(checks.len() > 25, "{checks:?}");
    if gpu.class() == Class::D1Gpu {
        let wrong: Vec<_> = checks.iter().filter(|check| !check.passed()).collect();
        assert!(wrong.is_empty(), "{:?}: {wrong:?}", gpu.info());
    }
}
