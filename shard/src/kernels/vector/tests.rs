//! Every operation on every instruction set, thread count and odd size against a plain twin, bit for bit.

use super::*;
use crate::fma::Fma;
use crate::kernels::threads::Pool;

/// Reproducible values in about -scale..scale.
pub(crate) fn noise(seed: u64, len: usize, scale: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1_u32 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next() * scale).collect()
}

/// Runs the check on every instruction set here with 1, 2 and 3 threads.
pub(crate) fn on_every_cpu(check: impl Fn(&Cpu, &str)) {
    for isa in Isa::available() {
        for threads in 1..=3 {
            check(&Cpu::new(isa, Pool::new(threads, false)), &format!("{} x {threads}", isa.name()));
        }
    }
}

pub(crate) fn assert_same(own: &[f32], expected: &[f32], what: &str) {
    assert_eq!(own.len(), expected.len(), "{what}");
    for (at, (own, expected)) in own.iter().zip(expected).enumerate() {
        assert_eq!(own.to_bits(), expected.to_bits(), "{what}, element {at}: {own:e}, expected {expected:e}");
    }
}

/// Lane sums 8, 4, 2, 1 apart.
pub(crate) fn tree(mut lanes: [f32; LANES]) -> f32 {
    for width in [8, 4, 2, 1] {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
    }
    lanes[0]
}

/// (rows, cols); the last ones are large enough for the threads.
const SHAPES: [(usize, usize); 11] = [
    (1, 1),
    (1, 15),
    (3, 16),
    (2, 17),
    (5, 33),
    (1, 64),
    (7, 100),
    (2, 2048),
    (37, 500),
    (9, 2049),
    (1, 40_003),
];

fn twin_norm(
    x: &[f32],
    cols: usize,
    weight: Option<&[f32]>,
    bias: Option<&[f32]>,
    eps: f32,
    center: bool,
) -> Vec<f32> {
    let mut out = Vec::new();
    for row in x.chunks(cols) {
        let mut lanes = [0.0; LANES];
        row.iter().enumerate().for_each(|(i, x)| lanes[i % LANES] += x);
        let mean = if center { tree(lanes) / cols as f32 } else { 0.0 };
        let mut lanes = [0.0_f32; LANES];
        for (i, x) in row.iter().enumerate() {
            lanes[i % LANES] = (x - mean).fma(x - mean, lanes[i % LANES]);
        }
        let inverse = 1.0 / (tree(lanes) / cols as f32 + eps).sqrt();
        for (i, x) in row.iter().enumerate() {
            let y = if center { (x - mean) * inverse } else { x * inverse };
            out.push(match (weight, bias) {
                (Some(w), Some(b)) => y.fma(w[i], b[i]),
                (Some(w), None) => y * w[i],
                (None, Some(b)) => y + b[i],
                (None, None) => y,
            });
        }
    }
    out
}

#[test]
fn norms_equal_their_twins() {
    on_every_cpu(|cpu, name| {
        for (rows, cols) in SHAPES {
            let what = format!("{name}, {rows} x {cols}");
            let x = noise(cols as u64, rows * cols, 3.0);
            let (w, b) = (noise(1, cols, 1.0), noise(2, cols, 1.0));
            for (weight, bias) in [(None, None), (Some(&w[..]), None), (Some(&w[..]), Some(&b[..]))] {
                let mut out = vec![0.0; x.len()];
                if bias.is_none() {
                    let expected = twin_norm(&x, cols, weight, None, 1e-5, false);
                    cpu.rms_norm(&x, cols, weight, 1e-5, &mut out);
                    assert_same(&out, &expected, &what);
                    let mut in_place = x.clone();
                    cpu.rms_norm_in_place(&mut in_place, cols, weight, 1e-5);
                    assert_same(&in_place, &expected, &what);
                }
                cpu.layer_norm(&x, cols, weight, bias, 1e-5, &mut out);
                assert_same(&out, &twin_norm(&x, cols, weight, bias, 1e-5, true), &what);
            }
        }
    });
}

#[test]
fn cutoffs_equal_their_twin() {
    on_every_cpu(|cpu, name| {
        for (rows, cols) in SHAPES {
            let x = noise(cols as u64 + 9, rows * cols, 3.0);
            let mut expected = x.clone();
            for row in expected.chunks_mut(cols) {
                let sum = |row: &[f32], term: &dyn Fn(f32, f32) -> f32| {
                    let mut lanes = [0.0_f32; LANES];
                    row.iter().enumerate().for_each(|(i, x)| lanes[i % LANES] = term(*x, lanes[i % LANES]));
                    tree(lanes) / cols as f32
                };
                let mean = sum(row, &|x, sum| sum + x);
                let deviation = sum(row, &|x, sum| (x - mean).fma(x - mean, sum)).sqrt();
                let cutoff = mean + deviation * 0.8;
                row.iter_mut().for_each(|x| *x = if *x > cutoff { *x - cutoff } else { 0.0 });
            }
            let mut own = x.clone();
            cpu.keep_above(&mut own, cols, 0.8);
            assert_same(&own, &expected, &format!("{name}, {rows} x {cols}"));
            let kept = own.iter().filter(|x| **x > 0.0).count();
            assert!(kept < own.len() && (cols < 100 || kept > 0), "{name}, {rows} x {cols}: {kept} are kept");
        }
    });
}

#[test]
fn norms_are_norms() {
    let cpu = Cpu::new(Isa::detect(), Pool::new(1, false));
    let x = noise(5, 1000, 2.0).iter().map(|x| x + 0.7).collect::<Vec<_>>();
    let mut out = vec![0.0; x.len()];
    let moments = |x: &[f32]| {
        let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / x.len() as f64;
        let square = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>() / x.len() as f64;
        (mean, square)
    };
    cpu.rms_norm(&x, 1000, None, 0.0, &mut out);
    assert!((moments(&out).1 - 1.0).abs() < 1e-5);
    cpu.layer_norm(&x, 1000, None, None, 0.0, &mut out);
    let (mean, square) = moments(&out);
    assert!(mean.abs() < 1e-5 && (square - 1.0).abs() < 1e-5);
}

/// An operation of [`Cpu`] on (x, y) with the formula of one element.
type Operation = (&'static str, fn(&Cpu, &mut [f32], &[f32]), fn(f32, f32) -> f32);

#[test]
fn element_wise_operations_equal_their_formulas() {
    let operations: [Operation; 9] = [
        ("add", |cpu, x, y| cpu.add(x, y), |x, y| x + y),
        ("scale", |cpu, x, _| cpu.scale(x, 0.37), |x, _| x * 0.37),
        ("add_scaled", |cpu, x, y| cpu.add_scaled(x, y, -1.7), |x, y| y.fma(-1.7, x)),
        ("silu_mul", |cpu, x, y| cpu.silu_mul(x, y), |x, y| math::silu_f32(x) * y),
        ("gelu_mul", |cpu, x, y| cpu.gelu_mul(x, y), |x, y| math::gelu_f32(x) * y),
        ("gelu", |cpu, x, _| cpu.gelu(x), |x, _| math::gelu_f32(x)),
        ("silu", |cpu, x, _| cpu.silu(x), |x, _| math::silu_f32(x)),
        ("sigmoid", |cpu, x, _| cpu.sigmoid(x), |x, _| math::sigmoid_f32(x)),
        ("softcap", |cpu, x, _| cpu.softcap(x, 30.0), |x, _| math::tanh_f32(x / 30.0) * 30.0),
    ];
    on_every_cpu(|cpu, name| {
        for (operation, run, formula) in operations {
            for len in [0, 1, 15, 16, 17, 100, 16_400, 50_001] {
                let (mut x, y) = (noise(3, len, 20.0), noise(4, len, 2.0));
                let expected = x.iter().zip(&y).map(|(&x, &y)| formula(x, y)).collect::<Vec<_>>();
                run(cpu, &mut x, &y);
                assert_same(&x, &expected, &format!("{operation} of {len} on {name}"));
            }
        }
        for (rows, cols) in SHAPES {
            let (mut x, bias) = (noise(3, rows * cols, 2.0), noise(4, cols, 2.0));
            let expected = x.iter().enumerate().map(|(i, x)| x + bias[i % cols]).collect::<Vec<_>>();
            cpu.add_bias(&mut x, &bias);
            assert_same(&x, &expected, &format!("add_bias, {rows} x {cols} on {name}"));
        }
    });
}

#[test]
fn softmax_equals_its_twin_and_sums_to_one() {
    on_every_cpu(|cpu, name| {
        for len in [1, 2, 15, 16, 17, 64, 127, 1000] {
            for (scale, shift) in [(1.0, 0.0), (60.0, 0.0), (5.0, -200.0)] {
                let mut x = noise(len as u64, len, scale).iter().map(|x| x + shift).collect::<Vec<_>>();
                let m = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let p = x.iter().map(|x| math::exp_f32(x - m)).collect::<Vec<_>>();
                let mut lanes = [0.0; LANES];
                p.iter().enumerate().for_each(|(i, p)| lanes[i % LANES] += p);
                let expected = p.iter().map(|p| p / tree(lanes)).collect::<Vec<_>>();
                cpu.softmax(&mut x);
                assert_same(&x, &expected, &format!("softmax of {len} on {name}"));
                assert!((x.iter().sum::<f32>() - 1.0).abs() < 1e-5);
            }
        }
    });
}

#[test]
fn weights_equal_their_twin() {
    for isa in Isa::available() {
        for (len, temperature) in [(1, 1.0), (15, 0.3), (16, 0.8), (17, 1.0), (1000, 2.5), (4099, 1e-30)] {
            let x = noise(len as u64, len, 30.0);
            let largest = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let expected = x.iter().map(|x| math::exp_f32((x - largest) / temperature)).collect::<Vec<_>>();
            let mut lanes = [0.0; LANES];
            expected.iter().enumerate().for_each(|(i, weight)| lanes[i % LANES] += f64::from(*weight));
            let mut weights = x;
            // SAFETY: the instruction set is available.
            let sum = unsafe { isa.dispatch(Weigh { x: &mut weights, largest, temperature }) };
            assert_same(&weights, &expected, &format!("weights of {len} on {}", isa.name()));
            assert_eq!(sum, lanes.iter().sum::<f64>(), "their sum, {len} on {}", isa.name());
        }
    }
}

#[test]
fn rope_equals_its_twin() {
    on_every_cpu(|cpu, name| {
        for (rows, heads, head_dim, rot, extra) in [
            (1, 1, 2, 2, 0),
            (3, 2, 6, 4, 0),
            (2, 5, 64, 64, 7),
            (4, 3, 80, 32, 128),
            (70, 4, 96, 96, 0),
            (5, 2, 8, 0, 0),
        ] {
            for pairing in [Pairing::Adjacent, Pairing::Halves] {
                let stride = heads * head_dim + extra;
                let mut x = noise(9, rows * stride, 2.0);
                let table = (0..rows * rot / 2)
                    .flat_map(|i| {
                        let (sin, cos) = math::sin_cos(i as f64 * 0.37);
                        [cos as f32, sin as f32]
                    })
                    .collect::<Vec<_>>();
                let mut expected = x.clone();
                for row in 0..rows {
                    for head in 0..heads {
                        for i in 0..rot / 2 {
                            let (low, high) = match pairing {
                                Pairing::Adjacent => (2 * i, 2 * i + 1),
                                Pairing::Halves => (i, i + rot / 2),
                            };
                            let base = row * stride + head * head_dim;
                            let (a, b) = (x[base + low], x[base + high]);
                            let at = 2 * (row * rot / 2 + i);
                            let (cos, sin) = (table[at], table[at + 1]);
                            expected[base + low] = a.fma(cos, -(b * sin));
                            expected[base + high] = a.fma(sin, b * cos);
                        }
                    }
                }
                cpu.rope(&mut x, stride, heads, head_dim, rot, pairing, &table);
                assert_same(
                    &x,
                    &expected,
                    &format!("rope {rows} {heads} {head_dim} {rot} {pairing:?} on {name}"),
                );
            }
        }
    });
}
