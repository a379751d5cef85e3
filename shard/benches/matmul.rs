//! Speed of the matrix products and of what limits them. No thresholds: it prints.
//!
//! `cargo bench -p shoal-shard --bench matmul -- [--isa NAME] [--threads N] [--format NAME]... [--rows N]... [--seconds S] [--memory MiB]`
//!
//! Matrices of 4096 x 4096, as many in turn as fill `--memory` (1,200 MiB unless told, more than any last-level cache
//! we know), best pass of `--seconds`. Limits measured first: read bandwidth (sum of a large buffer) and, on x86-64, the peak of
//! the int8 dot-product instruction, both on all threads.

use std::hint::black_box;
use std::time::{Duration, Instant};

use shard::kernels::simd::Simd;
use shard::kernels::threads::Pool;
use shard::kernels::{Activations, Cpu, Isa, Kernel, Matrix, Target};
use shard::quant::{self, Format};

const SIZE: usize = 4096;

struct Options {
    isa: Isa,
    threads: usize,
    formats: Vec<&'static Format>,
    rows: Vec<usize>,
    seconds: f64,
    memory: usize,
}

fn options() -> Options {
    let mut options = Options {
        isa: Isa::detect(),
        threads: Pool::physical_cores(),
        formats: Vec::new(),
        rows: Vec::new(),
        seconds: 1.0,
        memory: 1200,
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        if arg == "--bench" {
            continue;
        }
        let value = args.next().unwrap_or_default();
        let number = || value.parse().unwrap_or_else(|_| panic!("{arg} takes a number, not `{value}`"));
        match arg.as_str() {
            "--isa" => options.isa = Isa::from_name(&value).expect("a known instruction set"),
            "--threads" => options.threads = number(),
            "--format" => options.formats.push(quant::by_name(&value).expect("a known format")),
            "--rows" => options.rows.push(number()),
            "--memory" => options.memory = number(),
            "--seconds" => options.seconds = value.parse().expect("seconds"),
            _ => panic!("unknown option {arg}"),
        }
    }
    if options.formats.is_empty() {
        options.formats = quant::ALL.to_vec();
    }
    if options.rows.is_empty() {
        options.rows = vec![1, 8, 64, 512];
    }
    options
}

/// The shortest of as many runs as fit into `seconds`, at least three.
fn best(seconds: f64, mut run: impl FnMut()) -> Duration {
    let start = Instant::now();
    let mut best = Duration::MAX;
    let mut count = 0;
    while count < 3 || start.elapsed().as_secs_f64() < seconds {
        let one = Instant::now();
        run();
        best = best.min(one.elapsed());
        count += 1;
    }
    best
}

struct Sum<'a>(&'a [f32]);

impl Kernel for Sum<'_> {
    type Output = f32;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> f32 {
        // SAFETY: eight vectors per chunk of 128 values; the instruction set is the caller's.
        unsafe {
            let mut acc = [S::splat(0.0); 8];
            for chunk in self.0.chunks_exact(128) {
                for (i, acc) in acc.iter_mut().enumerate() {
                    *acc = S::add(*acc, S::load(chunk.as_ptr().add(16 * i)));
                }
            }
            acc.into_iter().map(|acc| S::sum_tree(acc)).sum()
        }
    }
}

struct Dots(usize);

impl Kernel for Dots {
    type Output = i32;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> i32 {
        let x = black_box([1_i8; 4]);
        // SAFETY: four readable activations; the instruction set is the caller's.
        unsafe {
            let mut acc = [S::splat_i32(0); 12];
            let w = black_box(S::splat_byte(1));
            for _ in 0..self.0 {
                for acc in &mut acc {
                    *acc = S::dot_u7(*acc, w, x.as_ptr());
                }
            }
            acc.into_iter().fold(0, |sum, acc| sum.wrapping_add(S::sum_i32(acc)))
        }
    }
}

/// GB/s of reading a large buffer on all threads.
fn bandwidth(cpu: &Cpu, seconds: f64) -> f64 {
    let values = vec![1.0_f32; 320 << 20];
    let time = best(seconds, || {
        cpu.pool().run(&|worker, workers| {
            let share = values.len() / workers;
            black_box(cpu.run(Sum(&values[worker * share..][..share])));
        });
    });
    (values.len() * 4) as f64 / time.as_secs_f64() / 1e9
}

/// GOP/s (two per product) of the vector dot product on all threads.
fn peak(cpu: &Cpu, seconds: f64) -> f64 {
    const LOOPS: usize = 1_000_000;
    let time = best(seconds, || {
        cpu.pool().run(&|_, _| {
            black_box(cpu.run(Dots(LOOPS)));
        });
    });
    (LOOPS * 12 * 128 * cpu.pool().threads()) as f64 / time.as_secs_f64() / 1e9
}

fn main() {
    let options = options();
    let cpu = Cpu::new(options.isa, Pool::new(options.threads, true));
    cpu.pool().pin_caller();
    println!("{} threads, {}", options.threads, options.isa.name());
    let (read, dots) = (bandwidth(&cpu, options.seconds), peak(&cpu, options.seconds));
    println!("read {read:.1} GB/s; vector int8 dot product {dots:.0} GOP/s");
    println!(
        "{:8} {:>6} {:>9} {:>8} {:>6} {:>9} {:>6}",
        "format", "rows", "us", "GB/s", "%read", "GOP/s", "%peak"
    );
    for format in &options.formats {
        let bytes = vec![0_u8; SIZE * format.row_bytes(SIZE).expect("4096 columns are whole blocks")];
        let count = (options.memory << 20).div_ceil(bytes.len());
        let matrices: Vec<Matrix> =
            (0..count).map(|_| Matrix::pack(&cpu, format, SIZE, SIZE, &bytes).expect("memory")).collect();
        let packed = matrices[0].resident_bytes() as f64;
        let mut scratch = Activations::new();
        for &n in &options.rows {
            let x: Vec<f32> = (0..n * SIZE).map(|i| ((i * 7919 % 2001) as f32 - 1000.0) / 500.0).collect();
            let mut out = vec![0.0; n * SIZE];
            let mut next = 0;
            let pass = (32 / n).max(1);
            let time = best(options.seconds, || {
                for _ in 0..pass {
                    cpu.matmul(&x, n, &mut scratch, &mut [Target { matrix: &matrices[next], out: &mut out }]);
                    next = (next + 1) % matrices.len();
                }
            })
            .as_secs_f64()
                / pass as f64;
            let (rate, ops) = (packed / time / 1e9, (2 * n * SIZE * SIZE) as f64 / time / 1e9);
            println!(
                "{:8} {n:6} {:9.1} {rate:8.1} {:6.1} {ops:9.0} {:6.1}",
                format.name,
                time * 1e6,
                100.0 * rate / read,
                100.0 * ops / dots
            );
        }
    }
}
