//! Speed of the matrix products and of what limits them. No thresholds: it prints.
//!
//! `cargo bench -p shoal-shard --bench matmul -- [--isa NAME] [--threads N] [--format NAME]... [--rows N]...
//! [--seconds S] [--memory MiB] [--cpu-time yes]`
//!
//! Matrices of 4096 x 4096, as many in turn as fill `--memory` (1,200 MiB unless told, more than any last-level cache
//! we know), best pass of `--seconds`. Limits measured first: read bandwidth (sum of a large buffer) and, on x86-64, the peak of
//! the int8 dot-product instruction, both on all threads. With `--cpu-time yes` the clock is the processor time of the process
//! per thread, which means something on a busy machine (one thread only: waiting threads burn time, too).

use std::hint::black_box;
use std::sync::OnceLock;
use std::time::Instant;

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
    clock: Clock,
    memory: usize,
}

/// How to measure.
#[derive(Clone, Copy)]
struct Clock {
    /// Time for one figure.
    seconds: f64,
    /// Count processor time instead of the time that passes.
    cpu_time: bool,
}

fn options() -> Options {
    let mut options = Options {
        isa: Isa::detect(),
        threads: Pool::physical_cores(),
        formats: Vec::new(),
        rows: Vec::new(),
        clock: Clock { seconds: 1.0, cpu_time: false },
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
            "--seconds" => options.clock.seconds = value.parse().expect("seconds"),
            "--cpu-time" => options.clock.cpu_time = value == "yes",
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

/// Seconds on the clock in use.
fn now(cpu_time: bool) -> f64 {
    static START: OnceLock<Instant> = OnceLock::new();
    if !cpu_time {
        return START.get_or_init(Instant::now).elapsed().as_secs_f64();
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// The shortest of as many runs as fit into `seconds`, at least three.
fn best(clock: Clock, mut run: impl FnMut()) -> f64 {
    let start = now(clock.cpu_time);
    let mut best = f64::MAX;
    let mut count = 0;
    while count < 3 || now(clock.cpu_time) - start < clock.seconds {
        let one = now(clock.cpu_time);
        run();
        best = best.min(now(clock.cpu_time) - one);
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
fn bandwidth(cpu: &Cpu, clock: Clock) -> f64 {
    let values = vec![1.0_f32; 320 << 20];
    let time = best(clock, || {
        cpu.pool().run(&|worker, workers| {
            let share = values.len() / workers;
            black_box(cpu.run(Sum(&values[worker * share..][..share])));
        });
    });
    (values.len() * 4) as f64 / time / 1e9
}

/// GOP/s (two per product) of the vector dot product on all threads.
fn peak(cpu: &Cpu, clock: Clock) -> f64 {
    const LOOPS: usize = 1_000_000;
    let time = best(clock, || {
        cpu.pool().run(&|_, _| {
            black_box(cpu.run(Dots(LOOPS)));
        });
    });
    (LOOPS * 12 * 128 * cpu.pool().threads()) as f64 / time / 1e9
}

fn main() {
    let options = options();
    let cpu = Cpu::new(options.isa, Pool::new(options.threads, true));
    cpu.pool().pin_caller();
    println!("{} threads, {}", options.threads, options.isa.name());
    let (read, dots) = (bandwidth(&cpu, options.clock), peak(&cpu, options.clock));
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
            let time = best(options.clock, || {
                for _ in 0..pass {
                    cpu.matmul(&x, n, &mut scratch, &mut [Target { matrix: &matrices[next], out: &mut out }]);
                    next = (next + 1) % matrices.len();
                }
            }) / pass as f64;
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
