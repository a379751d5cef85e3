//! Matrix products against the scalar specification of each format, bit by bit: every format, every instruction set of
//! this processor, tails of rows and columns, numbers of activations that hit every kernel, any number of threads.

use shard::kernels::threads::Pool;
use shard::kernels::{Activations, Cpu, Isa, Matrix, Products, Target};
use shard::quant::{self, Format, QuantizedRow};

/// A small generator: the same values everywhere.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }

    fn float(&mut self) -> f32 {
        self.bits() as f32 / (1_u64 << 30) as f32 - 1.0
    }
}

/// Where the f16 values of a block are; everything else may hold any bits.
fn halves(format: &Format) -> &'static [usize] {
    match format.name {
        "q4_1" | "q5_1" | "q4_k" | "q5_k" => &[0, 2],
        "q2_k" => &[80, 82],
        "q3_k" => &[108],
        "q6_k" => &[208],
        "tq1_0" => &[52],
        "tq2_0" => &[64],
        _ => &[0],
    }
}

/// Rows of random blocks with sane scales, so that all codes and all inner scales occur.
fn weights(format: &Format, rows: usize, cols: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes = vec![0; rows * format.row_bytes(cols).expect("whole blocks")];
    for block in bytes.chunks_exact_mut(format.block_bytes) {
        block.iter_mut().for_each(|byte| *byte = random.bits() as u8);
        match format.name {
            "f32" => block.copy_from_slice(&random.float().to_le_bytes()),
            "f16" => block.copy_from_slice(&half::f16::from_f32(random.float()).to_le_bytes()),
            "bf16" => block.copy_from_slice(&half::bf16::from_f32(random.float()).to_le_bytes()),
            // All exponents, zero among them, that keep the sums finite.
            "mxfp4" => block[0] = if block[0] < 8 { block[0] } else { block[0] & 31 | 0x60 },
            // Any bits are sane scales.
            "nvfp4" => {}
            "iq1_m" => block[55] = block[55] & 0x8f | 0x20,
            _ => {
                for &at in halves(format) {
                    let scale = half::f16::from_f32(random.float() * 0.1);
                    block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
                }
            }
        }
        if format.name == "q8_0" && random.bits().is_multiple_of(4) {
            block[2..].fill(0x80);
        }
    }
    bytes
}

/// Activations of different sizes; some blocks are zero, tiny or extreme.
fn activations(n: usize, cols: usize, random: &mut Random) -> Vec<f32> {
    let mut x: Vec<f32> = (0..n * cols).map(|_| random.float()).collect();
    for block in x.chunks_exact_mut(32) {
        match random.bits() % 16 {
            0 => block.fill(0.0),
            1 => block.iter_mut().for_each(|v| *v *= 1e-41),
            2 => block.iter_mut().for_each(|v| *v *= 1e6),
            3 => block.iter_mut().for_each(|v| *v = if *v < 0.0 { -3.0 } else { 3.0 }),
            _ => {}
        }
    }
    x
}

/// What the specification says: `[n][rows]`.
fn expected(format: &Format, weights: &[u8], rows: usize, cols: usize, x: &[f32]) -> Vec<f32> {
    let row_bytes = format.row_bytes(cols).expect("whole blocks");
    let mut out = Vec::new();
    for x in x.chunks_exact(cols) {
        let (mut q, mut d, mut sums) = (vec![0; cols], vec![0.0; cols / 32], vec![0; cols / 16]);
        quant::quantize_row(x, &mut q, &mut d, &mut sums);
        let x = QuantizedRow { x, q: &q, d: &d, sums: &sums };
        out.extend((0..rows).map(|r| (format.dot)(&weights[r * row_bytes..][..row_bytes], &x)));
    }
    out
}

fn same(label: &str, expected: &[f32], got: &[f32]) {
    for (i, (e, g)) in expected.iter().zip(got).enumerate() {
        assert_eq!(e.to_bits(), g.to_bits(), "{label}: output {i} is {g}, expected {e}");
    }
}

fn cpus() -> Vec<Cpu> {
    let threads = |isa| [1, 2, 3].into_iter().map(move |t| Cpu::new(isa, Pool::new(t, false)));
    Isa::available().into_iter().flat_map(threads).collect()
}

const ROWS: [usize; 6] = [1, 15, 16, 17, 33, 100];
const COLS: [usize; 6] = [32, 64, 96, 160, 256, 512];
const COUNTS: [usize; 15] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 20, 25, 31, 33];

/// One format through every shape, count, instruction set and thread count.
fn check(format: &'static Format) {
    let mut random = Random(u64::from(format.ggml_type) + 1);
    let cpus = cpus();
    let mut scratch = Activations::new();
    for cols in COLS.into_iter().filter(|cols| cols % format.block_len == 0) {
        let x = activations(33, cols, &mut random);
        for rows in ROWS {
            let bytes = weights(format, rows, cols, &mut random);
            let expected = expected(format, &bytes, rows, cols, &x);
            for cpu in &cpus {
                let matrix = Matrix::pack(cpu, format, rows, cols, &bytes).expect("the shape is sound");
                for n in COUNTS {
                    let mut out = vec![f32::NAN; n * rows];
                    let mut targets = [Target { matrix: &matrix, out: &mut out }];
                    cpu.matmul(&x[..n * cols], n, &mut scratch, &mut targets);
                    let (isa, threads) = (cpu.isa().name(), cpu.pool().threads());
                    let label = format!("{} {rows} x {cols}, n {n}, {isa}, {threads} threads", format.name);
                    same(&label, &expected[..n * rows], &out);
                }
            }
        }
    }
}

#[test]
fn every_format_equals_its_specification() {
    assert_eq!((quant::ALL.len(), quant::FOREIGN.len()), (28, 1));
    quant::ALL.iter().chain(quant::FOREIGN).for_each(|format| check(format));
}

/// Long rows: several slices of a panel, several units, several blocks of rows.
#[test]
fn long_rows_and_many_of_them() {
    let (rows, cols, n) = (80, 8192, 70);
    let mut random = Random(99);
    let x = activations(n, cols, &mut random);
    let mut scratch = Activations::new();
    for name in ["q4_0", "q6_k", "f16"] {
        let format = quant::by_name(name).expect("a known format");
        let bytes = weights(format, rows, cols, &mut random);
        let expected = expected(format, &bytes, rows, cols, &x);
        for isa in Isa::available() {
            let cpu = Cpu::new(isa, Pool::new(2, false));
            let matrix = Matrix::pack(&cpu, format, rows, cols, &bytes).expect("the shape is sound");
            let mut out = vec![f32::NAN; n * rows];
            cpu.matmul(&x, n, &mut scratch, &mut [Target { matrix: &matrix, out: &mut out }]);
            same(&format!("{name} {}", isa.name()), &expected, &out);
        }
    }
}

/// Several matrices of different formats in one call.
#[test]
fn targets_share_their_activations() {
    let cols = 256;
    let mut random = Random(5);
    let x = activations(33, cols, &mut random);
    for cpu in cpus() {
        let mut scratch = Activations::new();
        for n in [1, 3, 8, 33] {
            let names = ["q4_k", "q6_k", "f32", "q8_0", "q4_0"];
            let mut sources = Vec::new();
            for (i, name) in names.into_iter().enumerate() {
                let format = quant::by_name(name).expect("a known format");
                let rows = 17 + 20 * i;
                let bytes = weights(format, rows, cols, &mut random);
                let matrix = Matrix::pack(&cpu, format, rows, cols, &bytes).expect("the shape is sound");
                sources.push((matrix, expected(format, &bytes, rows, cols, &x[..n * cols])));
            }
            let mut outs: Vec<Vec<f32>> = sources.iter().map(|s| vec![f32::NAN; s.1.len()]).collect();
            let mut targets: Vec<Target<'_>> =
                sources.iter().zip(&mut outs).map(|(s, out)| Target { matrix: &s.0, out }).collect();
            cpu.matmul(&x[..n * cols], n, &mut scratch, &mut targets);
            for ((source, out), name) in sources.iter().zip(&outs).zip(names) {
                same(name, &source.1, out);
            }
        }
    }
}

/// Matrices of different formats and widths in one dispatch, each with rows of its own; two that read the same values as other rows.
#[test]
fn products_have_rows_of_their_own() {
    let mut random = Random(8);
    let x = activations(33, 512, &mut random);
    let parts = [
        ("q8_0", 512, 0, 1),
        ("q4_k", 512, 0, 1),
        ("q4_0", 256, 0, 2),
        ("f32", 128, 0, 4),
        ("f16", 96, 512, 9),
        ("q8_0", 64, 96, 33),
        ("q8_0", 64, 96, 1),
        ("q6_k", 256, 1024, 5),
        ("q4_0", 32, 40, 0),
        ("mxfp4", 160, 32, 8),
        ("nvfp4", 192, 64, 7),
    ];
    for cpu in cpus() {
        let mut scratch = Activations::new();
        let mut sources = Vec::new();
        for (i, (name, cols, at, n)) in parts.into_iter().enumerate() {
            let format = quant::by_name(name).expect("a known format");
            let rows = 17 + 20 * i;
            let bytes = weights(format, rows, cols, &mut random);
            let matrix = Matrix::pack(&cpu, format, rows, cols, &bytes).expect("the shape is sound");
            let x = &x[at..at + n * cols];
            sources.push((matrix, x, n, expected(format, &bytes, rows, cols, x)));
        }
        // The memory of a call with more rows is used by one with fewer.
        for _ in 0..2 {
            let mut outs: Vec<Vec<f32>> = sources.iter().map(|s| vec![f32::NAN; s.3.len()]).collect();
            let mut products = Products::new(&mut scratch);
            for ((matrix, x, n, _), out) in sources.iter().zip(&mut outs) {
                products.add(x, *n, matrix, out);
            }
            products.compute(&cpu);
            for (source, out) in sources.iter().zip(&outs) {
                same(source.0.format().name, &source.3, out);
            }
            sources.reverse();
            sources.truncate(6);
        }
    }
}

/// A block of activations that is not finite poisons the outputs, on every instruction set.
#[test]
fn faults_show() {
    let format = quant::by_name("q8_0").expect("a known format");
    let mut random = Random(3);
    let bytes = weights(format, 16, 64, &mut random);
    for fault in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut x = vec![1.0; 64];
        x[40] = fault;
        for cpu in cpus() {
            let matrix = Matrix::pack(&cpu, format, 16, 64, &bytes).expect("the shape is sound");
            let mut out = vec![0.0; 16];
            cpu.matmul(&x, 1, &mut Activations::new(), &mut [Target { matrix: &matrix, out: &mut out }]);
            assert!(out.iter().all(|v| v.is_nan()));
        }
    }
}

#[test]
fn packed_size_is_close_to_the_file() {
    let cpu = Cpu::new(Isa::Scalar, Pool::new(1, false));
    for format in quant::ALL.iter().chain(quant::FOREIGN) {
        let (rows, cols) = (64, 2048);
        let bytes = vec![0; rows * format.row_bytes(cols).expect("whole blocks")];
        let matrix = Matrix::pack(&cpu, format, rows, cols, &bytes).expect("the shape is sound");
        // Five trits to a byte and the entries of grids are taken apart when a matrix is packed.
        let percent = match format.name {
            "tq1_0" => 123,
            "iq3_s" => 126,
            "iq3_xxs" => 141,
            "iq2_s" => 140,
            "iq2_xs" => 155,
            "iq2_xxs" => 161,
            "iq1_m" => 204,
            "iq1_s" => 212,
            "i2_s" => 107,
            _ => 104,
        };
        assert!(matrix.resident_bytes() * 100 <= bytes.len() * percent, "{}", format.name);
        assert!(Matrix::pack(&cpu, format, rows + 1, cols, &bytes).is_err());
        if format.block_len > 1 {
            assert!(Matrix::pack(&cpu, format, rows, cols + 1, &bytes).is_err());
        }
    }
}
