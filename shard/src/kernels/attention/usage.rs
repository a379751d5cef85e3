//! How much positions are looked at, in whole numbers, and going on without some of them.
//!
//! # What is computed, in this order (profile d1)
//! For each pair (query row, query head) over the positions `0 ..= t` of its key/value head, `t = start + row`:
//! 1. `s_j` as in attention; `m = max s_j`, with a sink logit `s` of the head `m = max(m, s)`.
//! 2. `p_j = exp(s_j - m)`; `l`: sum of `p_j`, lane `j mod 16`, positions ascending, lanes added 8, 4, 2, 1 apart; with a sink
//!    `l = l + exp(s - m)`.
//! 3. `u_j = round(p_j * (2^16 / l))`, ties to even, is added to the use of position `j` by the key/value head; what reaches the
//!    largest u32 stays there.
//!
//! Whole numbers that are added do not depend on order: threads add their own, and what they have is added up last.
//!
//! Limits: f16 pages whose values are not a part of the keys; rows see all positions before them.

use std::{
    cell::RefCell,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use scheduler::CacheType;

use super::{
    KvQuarter, KvShape, PARALLEL, QUARTER,
    registers::{Stored, scores},
};
use crate::kernels::{
    Cpu, Kernel, math,
    simd::{LANES, Simd},
};

/// A weight of 1.
pub const WHOLE: f32 = 65_536.0;
/// 2^23: a number below it, added, is rounded to a whole one, whose bits are the lowest ones.
const ROUNDS: f32 = 8_388_608.0;
/// Pairs that a thread takes at once.
const PAIRS: usize = 16;
/// Most pairs of one register tile.
const TILE: usize = 4;

/// Rows of one session and layer that look at all positions before them.
#[derive(Clone, Copy)]
pub struct UsageJob<'a> {
    /// Queries, `[n][heads * head_dim]`.
    pub q: &'a [f32],
    /// The quarters of pages holding at least positions `0..start + n`.
    pub pages: &'a [KvQuarter],
    /// Heads of the cache.
    pub shape: KvShape,
    /// Position of the first query row.
    pub start: usize,
    /// Query rows.
    pub n: usize,
    /// Query heads, a multiple of `shape.kv_heads`.
    pub heads: usize,
    /// Factor of q.k.
    pub scale: f32,
    /// Scores become `tanh(s / c) * c`.
    pub softcap: Option<f32>,
    /// For each query head a logit that takes part in the softmax and has no value.
    pub sinks: Option<&'a [f32]>,
}

thread_local! {
    /// Scores of a tile, and what the thread has added up; both grow to the longest session.
    static SCRATCH: RefCell<(Vec<f32>, Vec<u32>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

/// Adds what the rows of `job` look at to `usage`, `[positions][kv_heads]` of at least `start + n` positions.
///
/// Panics when slices or pages do not fit the shapes.
pub fn add_usage(cpu: &Cpu, job: &UsageJob<'_>, usage: &mut [u32]) {
    let &UsageJob { shape: KvShape { kv_heads, head_dim, latent, cache }, start, n, heads, .. } = job;
    let seen = start + n;
    assert!(latent.is_none() && cache == CacheType::F16, "use of other keys than f16");
    assert_eq!(job.q.len(), n * heads * head_dim, "queries have another shape");
    assert!(seen <= job.pages.len() * QUARTER && seen * kv_heads <= usage.len(), "too few positions");
    let blocks = (n * (heads / kv_heads)).div_ceil(PAIRS);
    let total = kv_heads * blocks;
    let (next, joined) = (AtomicUsize::new(0), Mutex::new(usage));
    let take = || {
        SCRATCH.with_borrow_mut(|(weights, sums)| {
            let width = seen.next_multiple_of(LANES);
            weights.resize(weights.len().max(TILE * width), 0.0);
            sums.clear();
            sums.resize(kv_heads * width, 0);
            let mut any = false;
            loop {
                let unit = next.fetch_add(1, Relaxed);
                if unit >= total {
                    break;
                }
                any = true;
                let kv_head = unit % kv_heads;
                let sums = &mut sums[kv_head * width..][..width];
                cpu.run(Unit { job, kv_head, first: unit / kv_heads * PAIRS, weights, sums });
            }
            if any {
                let mut usage = joined.lock().unwrap_or_else(PoisonError::into_inner);
                for (kv_head, sums) in sums.chunks_exact(width).enumerate() {
                    let of = usage.iter_mut().skip(kv_head).step_by(kv_heads);
                    of.zip(&sums[..seen]).for_each(|(of, sum)| *of = of.saturating_add(*sum));
                }
            }
        });
    };
    if total == 1 || cpu.pool().threads() == 1 || n * heads * head_dim * seen < PARALLEL {
        return take();
    }
    cpu.pool().run(&|_, _| take());
}

/// Up to [`PAIRS`] pairs of one key/value head from pair `first` on.
struct Unit<'a> {
    job: &'a UsageJob<'a>,
    kv_head: usize,
    first: usize,
    weights: &'a mut [f32],
    sums: &'a mut [u32],
}

impl Kernel for Unit<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let pairs = self.job.n * (self.job.heads / self.job.shape.kv_heads);
        let end = pairs.min(self.first + PAIRS);
        let mut pair = self.first;
        // SAFETY: the caller promises the instruction set.
        unsafe {
            while S::TILE >= 8 && pair + 4 <= end {
                self.tile::<S, 4>(pair);
                pair += 4;
            }
            while pair + 2 <= end {
                self.tile::<S, 2>(pair);
                pair += 2;
            }
            if pair < end {
                self.tile::<S, 1>(pair);
            }
        }
    }
}

impl Unit<'_> {
    /// Adds what R pairs from `pair` on look at.
    ///
    /// # Safety
    /// The instruction set of `S` is available.
    #[inline(always)]
    unsafe fn tile<S: Simd, const R: usize>(&mut self, pair: usize) {
        let &UsageJob { q, pages, shape, start, heads, scale, softcap, sinks, .. } = self.job;
        let (dim, group) = (shape.head_dim, heads / shape.kv_heads);
        let width = self.sums.len();
        let head = |r: usize| self.kv_head * group + (pair + r) % group;
        let seen = |r: usize| start + (pair + r) / group + 1;
        let queries: [&[f32]; R] = std::array::from_fn(|r| {
            let at = ((pair + r) / group * heads + head(r)) * dim;
            &q[at..at + dim]
        });
        for at in (0..seen(R - 1)).step_by(LANES) {
            let keys = &pages[at / QUARTER][self.kv_head * QUARTER * shape.head_len()..];
            let keys = &keys[at % QUARTER * dim..][..LANES * dim];
            // SAFETY: keys and queries were bounds-checked to their lengths, as is what is stored; the caller promises the
            // instruction set.
            unsafe {
                let [scores] =
                    scores::<S, Stored, R, 1>(&[keys.as_ptr()], dim, &queries.map(<[f32]>::as_ptr), None);
                for (r, s) in scores.into_iter().enumerate() {
                    let mut s = S::mul(s, S::splat(scale));
                    if let Some(cap) = softcap {
                        s = S::mul(math::tanh_lanes::<S>(S::div(s, S::splat(cap))), S::splat(cap));
                    }
                    s = S::select_below(seen(r).saturating_sub(at), s, S::splat(f32::NEG_INFINITY));
                    S::store(self.weights[r * width + at..][..LANES].as_mut_ptr(), s);
                }
            }
        }
        for r in 0..R {
            let weights = &mut self.weights[r * width..][..seen(r).next_multiple_of(LANES)];
            let sink = sinks.map(|sinks| sinks[head(r)]);
            // SAFETY: all are whole vectors; the caller promises the instruction set.
            let mut sum = unsafe {
                let mut maximum = S::splat(sink.unwrap_or(f32::NEG_INFINITY));
                for lanes in weights.as_chunks::<LANES>().0 {
                    maximum = S::max(maximum, S::load(lanes.as_ptr()));
                }
                let joint = S::max_lane(maximum);
                let mut sums = S::splat(0.0);
                for lanes in weights.as_chunks_mut::<LANES>().0 {
                    let p = math::exp_lanes::<S>(S::sub(S::load(lanes.as_ptr()), S::splat(joint)));
                    sums = S::add(sums, p);
                    S::store(lanes.as_mut_ptr(), p);
                }
                S::sum_tree(sums) + sink.map_or(0.0, |sink| math::exp_f32(sink - joint))
            };
            sum = WHOLE / sum;
            for (use_of, p) in self.sums.iter_mut().zip(&weights[..seen(r)]) {
                *use_of = use_of.saturating_add((p * sum + ROUNDS).to_bits().wrapping_sub(ROUNDS.to_bits()));
            }
        }
    }
}

// ---- going on without some -----------------------------------------------------------------------------------------------

/// Of `held` positions the `count` between the first `sinks` and the last `window` that key/value head `kv_head` has used least,
/// ascending; of equal ones the earlier go.
pub fn least_used(
    usage: &[u32],
    (kv_heads, kv_head): (usize, usize),
    (sinks, held, window): (usize, usize, usize),
    count: usize,
) -> Vec<usize> {
    let mut places: Vec<usize> = (sinks..held - window).collect();
    if count < places.len() {
        places.select_nth_unstable_by_key(count, |&at| (usage[at * kv_heads + kv_head], at));
        places.truncate(count);
    }
    places.sort_unstable();
    places
}

/// Moves what key/value head `kv_head` keeps of `held` positions together, so that those of `gone`, ascending, are overwritten;
/// `usage` goes with it.
pub fn close_up(
    pages: &mut [KvQuarter],
    shape: KvShape,
    kv_head: usize,
    gone: &[usize],
    held: usize,
    usage: &mut [u32],
) {
    let dim = shape.head_dim;
    let base = kv_head * QUARTER * shape.head_len();
    let key = |at: usize, d: usize| base + (at % QUARTER / LANES * dim + d) * LANES + at % LANES;
    let value = |at: usize| base + (QUARTER + at % QUARTER) * dim;
    let Some(&first) = gone.first() else { return };
    let mut row = vec![0; 2 * dim];
    let (mut to, mut gone) = (first, gone.iter().copied().peekable());
    for from in first..held {
        if gone.next_if_eq(&from).is_some() {
            continue;
        }
        let page = &pages[from / QUARTER];
        row[..dim].iter_mut().enumerate().for_each(|(d, row)| *row = page[key(from, d)]);
        row[dim..].copy_from_slice(&page[value(from)..][..dim]);
        let page = Arc::make_mut(&mut pages[to / QUARTER]);
        row[..dim].iter().enumerate().for_each(|(d, row)| page[key(to, d)] = *row);
        page[value(to)..][..dim].copy_from_slice(&row[dim..]);
        usage[to * shape.kv_heads + kv_head] = usage[from * shape.kv_heads + kv_head];
        to += 1;
    }
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::{super::store_kv, *};
    use crate::fma::Fma;
    use crate::kernels::{
        attention::new_quarter,
        vector::tests::{noise, on_every_cpu, tree},
    };

    /// The specification, one pair at a time.
    fn twin(job: &UsageJob<'_>, k: &[f32]) -> Vec<u32> {
        let KvShape { kv_heads, head_dim: dim, .. } = job.shape;
        let mut usage = vec![0_u32; (job.start + job.n) * kv_heads];
        for (row, head) in (0..job.n).flat_map(|row| (0..job.heads).map(move |head| (row, head))) {
            let kv_head = head / (job.heads / kv_heads);
            let q = &job.q[(row * job.heads + head) * dim..][..dim];
            let s = (0..=job.start + row).map(|j| {
                let mut lanes = [0.0_f32; LANES];
                for d in 0..dim {
                    let key = f16::from_f32(k[(j * kv_heads + kv_head) * dim + d]).to_f32();
                    lanes[d % LANES] = q[d].fma(key, lanes[d % LANES]);
                }
                let s = tree(lanes) * job.scale;
                job.softcap.map_or(s, |cap| math::tanh_f32(s / cap) * cap)
            });
            let s: Vec<f32> = s.collect();
            let sink = job.sinks.map(|sinks| sinks[head]);
            let m = s.iter().copied().chain(sink).fold(f32::NEG_INFINITY, f32::max);
            let p: Vec<f32> = s.iter().map(|s| math::exp_f32(s - m)).collect();
            let mut lanes = [0.0; LANES];
            p.iter().enumerate().for_each(|(j, p)| lanes[j % LANES] += p);
            let l = tree(lanes) + sink.map_or(0.0, |sink| math::exp_f32(sink - m));
            for (j, p) in p.into_iter().enumerate() {
                usage[j * kv_heads + kv_head] += (p * (WHOLE / l)).round_ties_even() as u32;
            }
        }
        usage
    }

    #[test]
    fn every_instruction_set_counts_what_the_twin_counts() {
        for (kv_heads, group, dim, start, n, softcap, sinks) in [
            (1, 1, 16, 0, 1, None, false),
            (2, 3, 64, 0, 70, None, false),
            (3, 3, 64, 700, 1, None, true),
            (1, 7, 80, 255, 2, Some(20.0), false),
            (2, 4, 24, 100, 40, Some(50.0), true),
        ] {
            let shape = KvShape::new(kv_heads, dim);
            let (all, heads) = (start + n, kv_heads * group);
            let (q, k) = (noise(3, n * heads * dim, 4.0), noise(4, all * kv_heads * dim, 2.0));
            let sinks = sinks.then(|| noise(5, heads, 3.0));
            let job = UsageJob {
                q: &q,
                pages: &[],
                shape,
                start,
                n,
                heads,
                scale: 1.0 / (dim as f32).sqrt(),
                softcap,
                sinks: sinks.as_deref(),
            };
            let expected = twin(&job, &k);
            let rows = (n * heads) as f64 * f64::from(WHOLE);
            let sum: f64 = expected.iter().map(|uses| f64::from(*uses)).sum();
            assert!(sinks.is_some() || (sum / rows - 1.0).abs() < 1e-2, "the weights of a row are 1: {sum}");
            on_every_cpu(|cpu, _| {
                let mut pages: Vec<_> =
                    (0..all.div_ceil(QUARTER)).map(|quarter| new_quarter(shape, quarter, 0x7e00)).collect();
                store_kv(cpu, &mut pages, shape, &k, &k, 0);
                let mut usage = vec![0; all * kv_heads];
                // In two passes, the first of which sees less.
                let cut = n / 2;
                for (from, to) in [(0, cut), (cut, n)] {
                    let q = &q[from * heads * dim..to * heads * dim];
                    let part = UsageJob { q, pages: &pages, start: start + from, n: to - from, ..job };
                    if from < to {
                        add_usage(cpu, &part, &mut usage);
                    }
                }
                assert!(usage == expected, "{kv_heads} x {group} x {dim}, {n} rows from {start}");
            });
        }
    }

    #[test]
    fn the_least_used_go_and_the_others_keep_their_order() {
        let shape = KvShape::new(2, 16);
        let positions = 130;
        let k: Vec<f32> = (0..positions * 32).map(|i| (i / 16) as f32).collect();
        let v: Vec<f32> = k.iter().map(|k| -k).collect();
        let cpu = Cpu::new(crate::kernels::Isa::Scalar, crate::kernels::threads::Pool::new(1, false));
        let mut pages: Vec<_> = (0..3).map(|quarter| new_quarter(shape, quarter, 0)).collect();
        store_kv(&cpu, &mut pages, shape, &k, &v, 0);
        // The first head uses odd positions less, the second early ones, all of them alike.
        let mut usage: Vec<u32> =
            (0..positions).flat_map(|at| [if at % 2 == 1 { 1 } else { 9 }, 5]).collect();
        let before = pages.clone();
        let gone = [0, 1].map(|head| least_used(&usage, (2, head), (4, positions, 20), 40));
        assert_eq!(gone[0], (0..40).map(|i| 5 + 2 * i).collect::<Vec<_>>());
        assert_eq!(gone[1], (4..44).collect::<Vec<_>>(), "ties: the earlier go");
        for head in 0..2 {
            close_up(&mut pages, shape, head, &gone[head], positions, &mut usage);
            let kept = (0..positions).filter(|at| !gone[head].contains(at));
            for (place, at) in kept.enumerate() {
                let base = head * QUARTER * shape.head_len();
                let key = f16::from_bits(pages[place / 64][base + place % 64 / 16 * 256 + place % 16]);
                let value = f16::from_bits(pages[place / 64][base + (64 + place % 64) * 16 + 15]);
                let expected = (at * 2 + head) as f32;
                assert_eq!((key.to_f32(), value.to_f32()), (expected, -expected), "place {place}");
                assert_eq!(usage[place * 2 + head], if head == 1 || at % 2 == 1 { [1, 5][head] } else { 9 });
            }
        }
        assert!(
            before.iter().zip(&pages).any(|(before, after)| before != after),
            "others keep what they have"
        );
        assert!(least_used(&usage, (2, 0), (4, 30, 20), 40).len() == 6, "no more than there are");
    }
}
