//! Times attention and storing: `cargo bench -p shoal-shard --bench attention [-- THREADS [ISA]]`.
//!
//! Prints milliseconds (median and best of several runs) and the best rate: operations of q.k and p.v over visible positions
//! for prefill, bytes of keys and values for decoding. The kinds of attention follow, one pass of 8 heads of 64.

use std::time::Instant;

use scheduler::AttentionKind;
use shard::{
    kernels::{AttentionJob, Cpu, Isa, KvQuarter, KvShape, QUARTER, attention, new_quarter, threads::Pool},
    probe,
};

/// Median and best milliseconds of `runs` calls after two to warm up.
fn time_ms(runs: usize, mut work: impl FnMut()) -> (f64, f64) {
    work();
    work();
    let mut times = (0..runs)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed().as_secs_f64() * 1e3
        })
        .collect::<Vec<_>>();
    times.sort_by(f64::total_cmp);
    (times[runs / 2], times[0])
}

fn values(len: usize) -> Vec<f32> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 16) as f32 / 32_768.0 - 1.0).collect()
}

fn bench(cpu: &Cpu, name: &str, heads: usize, shape: KvShape, start: usize, n: usize) {
    let KvShape { kv_heads, head_dim, .. } = shape;
    let all = start + n;
    let (k, v) = (values(all * kv_heads * head_dim), values(all * kv_heads * head_dim));
    let mut pages: Vec<KvQuarter> =
        (0..all.div_ceil(QUARTER)).map(|quarter| new_quarter(shape, quarter, 0)).collect();
    attention::store_kv(cpu, &mut pages, shape, &k, &v, 0);
    let q = values(n * heads * head_dim);
    let mut out = vec![0.0; q.len()];
    let runs = if n == 1 { 201 } else { 31 };
    let new = start * kv_heads * head_dim;
    let (stored, _) =
        time_ms(runs, || attention::store_kv(cpu, &mut pages, shape, &k[new..], &v[new..], start));
    let (attended, best) = time_ms(runs, || {
        attention::attend(
            cpu,
            &mut [AttentionJob {
                q: &q,
                pages: &pages,
                shape,
                start,
                n,
                heads,
                scale: 0.125,
                softcap: None,
                window: None,
                ahead: 0,
                far: None,
                sinks: None,
                out: &mut out,
            }],
        );
    });
    let visible = (start + 1..=all).sum::<usize>();
    let rate = if n == 1 {
        format!("{:.1} GB/s", (all * kv_heads * head_dim * 4) as f64 / best / 1e6)
    } else {
        format!("{:.1} GFLOP/s", (visible * heads * head_dim * 4) as f64 / best / 1e6)
    };
    println!("{name:<44} store {stored:8.3} ms   attention {attended:8.3} ms, best {best:8.3} ms   {rate}");
}

fn main() {
    // Cargo passes its own flags too.
    let mut args = std::env::args().skip(1).filter(|arg| !arg.starts_with('-'));
    let threads = args.next().and_then(|n| n.parse().ok()).unwrap_or_else(Pool::physical_cores);
    let isa = args.next().and_then(|name| Isa::from_name(&name)).unwrap_or_else(Isa::detect);
    let cpu = Cpu::new(isa, Pool::new(threads, true));
    println!("{}, {threads} threads", isa.name());
    let small = KvShape::new(8, 64);
    let large = KvShape::new(8, 128);
    bench(&cpu, "32/8 heads of 64, prefill 512", 32, small, 0, 512);
    bench(&cpu, "32/8 heads of 128, prefill 512", 32, large, 0, 512);
    bench(&cpu, "32/8 heads of 64, 512 more after 3584", 32, small, 3584, 512);
    bench(&cpu, "32/8 heads of 64, decode at 512", 32, small, 511, 1);
    bench(&cpu, "32/8 heads of 64, decode at 4096", 32, small, 4095, 1);
    bench(&cpu, "32/8 heads of 128, decode at 4096", 32, large, 4095, 1);
    bench(&cpu, "8/8 heads of 128, decode at 4096", 8, large, 4095, 1);
    bench(&cpu, "14/2 heads of 64, decode at 4096", 14, KvShape::new(2, 64), 4095, 1);
    let nine = KvShape::new(3, 64);
    bench(&cpu, "9/3 heads of 64, 512 more after 7680", 9, nine, 7680, 512);
    bench(&cpu, "9/3 heads of 64, decode at 8192", 9, nine, 8191, 1);
    for positions in [512, 4096, 8192] {
        for kind in ["dense", "window:128", "sparse"] {
            let kind: AttentionKind = kind.parse().expect("these exist");
            let mut times = probe::attention(&cpu, kind.into(), positions, 9).expect("few positions");
            times.pass_ms.sort_by(f64::total_cmp);
            times.step_ms.sort_by(f64::total_cmp);
            let (pass_ms, step_ms) = (times.pass_ms[4], times.step_ms[4]);
            let flops = kind.pairs(positions as u64) as f64 * 2048.0;
            let rate = flops / pass_ms / 1e6;
            println!(
                "{positions:>6} {kind:<48} pass {pass_ms:8.2} ms, {rate:6.1} GFLOP/s   step {step_ms:6.3} ms"
            );
        }
    }
}
