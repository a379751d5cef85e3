//! Attention against a plain twin that follows the module's order word by word, bit for bit, and against f64.

use std::sync::Arc;

use half::f16;

use scheduler::attention::Sparse;

use super::{landmarks::landmark_len, small::tests::Kept, *};
use crate::fma::Fma;
use crate::kernels::{
    Isa, math,
    threads::Pool,
    vector::tests::{assert_same, noise, on_every_cpu, tree},
};

/// One case: `n` queries after `start` earlier positions.
#[derive(Clone, Copy, Debug)]
struct Case {
    kv_heads: usize,
    group: usize,
    dim: usize,
    start: usize,
    n: usize,
    softcap: Option<f32>,
    window: Option<usize>,
    ahead: usize,
    sinks: bool,
    far: Option<Sparse>,
    latent: Option<usize>,
    cache: CacheType,
}

impl Case {
    const fn new(kv_heads: usize, group: usize, dim: usize, start: usize, n: usize) -> Self {
        let (softcap, window, ahead, sinks, far, latent) = (None, None, 0, false, None, None);
        Self {
            kv_heads,
            group,
            dim,
            start,
            n,
            softcap,
            window,
            ahead,
            sinks,
            far,
            latent,
            cache: CacheType::F16,
        }
    }

    fn shape(&self) -> KvShape {
        KvShape { latent: self.latent, cache: self.cache, ..KvShape::new(self.kv_heads, self.dim) }
    }

    fn width(&self) -> usize {
        self.kv_heads * self.group * self.dim
    }

    fn scale(&self) -> f32 {
        1.0 / (self.dim as f32).sqrt()
    }

    /// Whole blocks of all positions.
    fn landmarks(&self) -> usize {
        self.far.map_or(0, |rule| (self.start + self.n).checked_div(rule.block as usize).unwrap_or(0))
    }

    /// Positions that the row at `t` sees without gaps begin here.
    fn first(&self, t: usize) -> usize {
        let window = self.far.map_or(self.window, |rule| Some(rule.window as usize + 1));
        window.map_or(0, |w| (t + 1).saturating_sub(w))
    }

    /// Those end here.
    fn end(&self, t: usize) -> usize {
        (t + 1).saturating_add(self.ahead).min(self.start + self.n)
    }

    /// One number of what is stored of `x`, whose rows of a head have `dim`, for position `j`.
    fn at(&self, x: &[f32], dim: usize, head: usize, j: usize, d: usize) -> f32 {
        rounded(x[(j * self.kv_heads + head / self.group) * dim + d])
    }

    /// One value of a landmark.
    fn landmark(&self, x: &[f32], head: usize, block: usize, d: usize) -> f32 {
        let len = self.far.map_or(1, |rule| rule.block as usize);
        let mut lanes = [0.0; LANES];
        for j in block * len..(block + 1) * len {
            lanes[j % LANES] += self.at(x, self.dim, head, j, d);
        }
        rounded(tree(lanes) * (1.0 / len as f32))
    }

    /// What the row at `t` sees beyond its window: places and what lies there.
    fn far_places(&self, t: usize) -> Vec<(usize, Seen)> {
        let Some(rule) = self.far else { return Vec::new() };
        let (first, sinks) = (self.first(t), rule.sinks as usize);
        let mut places: Vec<_> = (0..sinks.min(first)).map(|j| (j, Seen::Position(j))).collect();
        // Where a kind begins is a multiple of 16; which one does not matter.
        let mut begin = 1_024;
        let far = (0..30).map(|k| 1_usize << k).filter(|far| rule.stride && *far > rule.window as usize);
        for (place, far) in far.enumerate() {
            if let Some(j) = t.checked_sub(far).filter(|j| *j >= sinks) {
                places.push((begin + place, Seen::Position(j)));
            }
        }
        begin = 2_048;
        let p = (t + 1).checked_div(rule.block as usize).unwrap_or(0).checked_sub(1);
        if let Some(p) = p {
            places.push((begin, Seen::Landmark(p)));
            let before =
                (0..30).filter_map(|k| Some((begin + 1 + k, Seen::Landmark(p.checked_sub(1 << k)?))));
            places.extend(before);
        }
        places
    }

    /// A sink per query head.
    fn sinks(&self) -> Option<Vec<f32>> {
        self.sinks.then(|| noise(14, self.kv_heads * self.group, 3.0))
    }

    /// Queries of the n rows, keys and values of all positions.
    fn data(&self) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
        let all = (self.start + self.n) * self.kv_heads * self.dim;
        let (q, k) = (noise(11, self.n * self.width(), 4.0), noise(12, all, 2.0));
        match self.latent {
            None => (q, k, noise(13, all, 1.0)),
            Some(values) => {
                let v = k.chunks_exact(self.dim).flat_map(|key| key[self.dim - values..].to_vec()).collect();
                (q, k, v)
            }
        }
    }

    /// What is stored of `v` for a range of positions.
    fn stored<'v>(&self, v: &'v [f32], positions: std::ops::Range<usize>) -> &'v [f32] {
        let width = self.kv_heads * self.shape().value_dim();
        if self.latent.is_some() { &[] } else { &v[positions.start * width..positions.end * width] }
    }
}

/// Shapes of models (head_dim 64 to 256), odd ones, page borders, groups that do not fill a tile.
const CASES: [Case; 35] = [
    Case::new(1, 1, 16, 0, 1),
    Case::new(2, 3, 2, 0, 19),
    Case::new(1, 2, 6, 250, 9),
    Case::new(2, 1, 24, 0, 40),
    Case::new(1, 5, 32, 300, 3),
    Case::new(2, 4, 64, 0, 70),
    Case::new(2, 4, 64, 600, 1),
    Case::new(1, 7, 80, 255, 2),
    Case::new(1, 2, 96, 510, 5),
    Case::new(1, 1, 112, 256, 33),
    Case::new(1, 4, 128, 200, 130),
    Case::new(1, 2, 256, 31, 17),
    Case { window: Some(40), ..Case::new(2, 2, 16, 500, 60) },
    Case { window: Some(1), softcap: Some(50.0), ..Case::new(1, 3, 8, 250, 20) },
    Case { window: Some(300), softcap: Some(20.0), ..Case::new(1, 2, 64, 700, 90) },
    Case { sinks: true, ..Case::new(2, 3, 64, 500, 30) },
    Case { sinks: true, window: Some(20), ..Case::new(2, 2, 48, 0, 70) },
    Case { far: Some(Sparse::DEFAULT), ..Case::new(1, 1, 64, 0, 300) },
    Case { far: Some(Sparse::DEFAULT), ..Case::new(2, 3, 64, 1_150, 75) },
    Case { far: Some(Sparse::DEFAULT), softcap: Some(30.0), sinks: true, ..Case::new(1, 2, 24, 4_090, 11) },
    Case {
        far: Some(Sparse { window: 16, sinks: 20, stride: true, block: 16 }),
        ..Case::new(1, 3, 32, 0, 200)
    },
    Case {
        far: Some(Sparse { window: 50, sinks: 0, stride: true, block: 0 }),
        ..Case::new(2, 1, 6, 500, 40)
    },
    Case {
        far: Some(Sparse { window: 40, sinks: 4, stride: false, block: 32 }),
        ..Case::new(1, 5, 80, 620, 30)
    },
    Case {
        far: Some(Sparse { window: 300, sinks: 128, stride: false, block: 0 }),
        ..Case::new(1, 2, 16, 290, 150)
    },
    // Few units and many pages: these are divided among the threads.
    Case::new(3, 3, 64, 1_500, 1),
    Case { window: Some(700), sinks: true, ..Case::new(1, 3, 32, 1_800, 20) },
    Case { latent: Some(64), ..Case::new(1, 5, 80, 1_100, 2) },
    Case { latent: Some(40), ..Case::new(1, 4, 48, 0, 37) },
    Case { latent: Some(64), ..Case::new(1, 5, 80, 509, 1) },
    Case { latent: Some(21), window: Some(33), ..Case::new(1, 3, 26, 240, 40) },
    Case { latent: Some(8), ..Case::new(2, 2, 12, 300, 7) },
    Case { ahead: usize::MAX, ..Case::new(2, 1, 32, 0, 300) },
    Case { ahead: usize::MAX, ..Case::new(1, 2, 24, 250, 17) },
    Case { ahead: 24, window: Some(25), ..Case::new(2, 2, 16, 0, 290) },
    Case { ahead: 3, window: Some(1), softcap: Some(20.0), ..Case::new(1, 5, 8, 500, 30) },
];

fn pages(shape: KvShape, positions: usize) -> Vec<KvQuarter> {
    // NaN in place of the zeros of a new page: whatever is read before it is stored would be seen in the results.
    (0..positions.div_ceil(QUARTER)).map(|quarter| new_quarter(shape, quarter, 0x7e00)).collect()
}

/// Stores everything at once and computes the rows in chunks.
fn compute(cpu: &Cpu, case: &Case, chunk: usize) -> Vec<f32> {
    let (q, k, v) = case.data();
    let (kv_width, width) = (case.kv_heads * case.dim, case.width());
    let mut pages = pages(case.shape(), case.start + case.n);
    let before = case.start * kv_width;
    store_kv(cpu, &mut pages, case.shape(), &k[..before], case.stored(&v, 0..case.start), 0);
    let out_width = case.kv_heads * case.group * case.shape().value_dim();
    let mut out = vec![f32::NAN; case.n * out_width];
    let sinks = case.sinks();
    let mut landmarks = vec![0x7e00; case.landmarks() * landmark_len(case.shape())];
    if let Some(block @ 1..) = case.far.map(|rule| rule.block as usize) {
        landmarks::store(cpu, &pages, case.shape(), block, 0..case.start, &mut landmarks);
    }
    let mut done = 0;
    while done < case.n {
        let n = chunk.min(case.n - done);
        let rows = done * width..(done + n) * width;
        let start = case.start + done;
        let keys = &k[start * kv_width..(start + n) * kv_width];
        store_kv(cpu, &mut pages, case.shape(), keys, case.stored(&v, start..start + n), start);
        let block = case.far.map_or(0, |rule| rule.block as usize);
        if block > 0 {
            landmarks::store(cpu, &pages, case.shape(), block, start..start + n, &mut landmarks);
        }
        attend(
            cpu,
            &mut [AttentionJob {
                q: &q[rows.clone()],
                pages: &pages,
                shape: case.shape(),
                start,
                n,
                heads: case.kv_heads * case.group,
                scale: case.scale(),
                softcap: case.softcap,
                window: case.window,
                ahead: case.ahead,
                far: case.far.map(|rule| Far { rule, landmarks: &landmarks }),
                sinks: sinks.as_deref(),
                out: &mut out[done * out_width..(done + n) * out_width],
            }],
        );
        done += n;
    }
    out
}

fn rounded(x: f32) -> f32 {
    f16::from_f32(x).to_f32()
}

/// What lies at a place of the far part.
#[derive(Clone, Copy)]
enum Seen {
    Position(usize),
    Landmark(usize),
}

/// The cases of dense and narrow sessions whose values are not a part of their keys, in fewer bits.
fn small_cases() -> impl Iterator<Item = Case> {
    let cases = CASES.into_iter().filter(|case| case.far.is_none() && case.latent.is_none());
    cases.flat_map(|case| [CacheType::Q8, CacheType::Q4].map(|cache| Case { cache, ..case }))
}

/// The specification, one (row, head) at a time.
fn twin(case: &Case) -> Vec<f32> {
    let (q, k, v) = case.data();
    let kept = (case.cache != CacheType::F16).then(|| Kept::of(case.shape(), &k, &v));
    let mut out = Vec::new();
    for i in 0..case.n {
        let t = case.start + i;
        let first = case.first(t);
        for head in 0..case.kv_heads * case.group {
            let q = &q[i * case.width() + head * case.dim..][..case.dim];
            let values = case.shape().value_dim();
            let row = |x: &[f32], dim: usize, seen: Seen, d: usize| match (seen, &kept) {
                (Seen::Position(j), Some(kept)) => kept.value(j, head / case.group, d),
                (Seen::Position(j), None) => case.at(x, dim, head, j, d),
                (Seen::Landmark(block), _) => case.landmark(x, head, block, d),
            };
            let mut state: Option<(f32, f32, Vec<f32>)> = None;
            let end = case.end(t);
            let pages = (first / PAGE..end.div_ceil(PAGE)).map(|page| {
                let positions = first.max(page * PAGE)..end.min((page + 1) * PAGE);
                positions.map(|j| (j, Seen::Position(j))).collect()
            });
            let parts: Vec<Vec<(usize, Seen)>> = [case.far_places(t)].into_iter().chain(pages).collect();
            for part in parts.into_iter().filter(|part| !part.is_empty()) {
                let s = part.iter().map(|&(_, seen)| {
                    let mut lanes = [0.0_f32; LANES];
                    for d in 0..case.dim {
                        lanes[d % LANES] = q[d].fma(row(&k, case.dim, seen, d), lanes[d % LANES]);
                    }
                    let s = match (seen, &kept) {
                        (Seen::Position(j), Some(kept)) => kept.score(q, j, head / case.group),
                        _ => tree(lanes),
                    };
                    let s = s * case.scale();
                    case.softcap.map_or(s, |cap| math::tanh_f32(s / cap) * cap)
                });
                let s = s.collect::<Vec<_>>();
                let m = s.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let mut lanes = [0.0; LANES];
                let mut o = vec![0.0_f32; values];
                for ((place, seen), s) in part.into_iter().zip(s) {
                    let p = math::exp_f32(s - m);
                    lanes[place % LANES] += p;
                    for (d, o) in o.iter_mut().enumerate() {
                        *o = p.fma(row(&v, values, seen, d), *o);
                    }
                }
                let l = tree(lanes);
                state = Some(match state {
                    None => (m, l, o),
                    Some((m0, l0, o0)) => {
                        let joint = m0.max(m);
                        let (a, b) = (math::exp_f32(m0 - joint), math::exp_f32(m - joint));
                        let o = o0.iter().zip(&o).map(|(o0, o)| o0 * a + o * b).collect();
                        (joint, l0 * a + l * b, o)
                    }
                });
            }
            let (mut m, mut l, mut o) = state.expect("a row sees itself");
            if let Some(sinks) = case.sinks() {
                let joint = m.max(sinks[head]);
                let a = math::exp_f32(m - joint);
                l = l * a + math::exp_f32(sinks[head] - joint);
                o.iter_mut().for_each(|o| *o *= a);
                m = joint;
            }
            assert!(m.is_finite());
            out.extend(o.iter().map(|o| o / l + 0.0));
        }
    }
    out
}

/// Textbook softmax attention in f64 on the stored values.
#[allow(clippy::disallowed_methods, reason = "the platform's functions are the yardstick of the tests")]
fn textbook(case: &Case) -> Vec<f64> {
    let (q, k, v) = case.data();
    let mut out = Vec::new();
    for i in 0..case.n {
        let t = case.start + i;
        let mut seen = case.far_places(t);
        seen.extend((case.first(t)..case.end(t)).map(|j| (j, Seen::Position(j))));
        for head in 0..case.kv_heads * case.group {
            let q = &q[i * case.width() + head * case.dim..][..case.dim];
            let values = case.shape().value_dim();
            let row = |x: &[f32], dim: usize, seen: Seen, d: usize| match seen {
                Seen::Position(j) => f64::from(case.at(x, dim, head, j, d)),
                Seen::Landmark(block) => f64::from(case.landmark(x, head, block, d)),
            };
            let scores = seen.iter().map(|&(_, j)| {
                let s = (0..case.dim).map(|d| f64::from(q[d]) * row(&k, case.dim, j, d)).sum::<f64>()
                    * f64::from(case.scale());
                case.softcap.map_or(s, |cap| (s / f64::from(cap)).tanh() * f64::from(cap)).exp()
            });
            let scores = scores.collect::<Vec<_>>();
            let sink = case.sinks().map_or(0.0, |sinks| f64::from(sinks[head]).exp());
            let total = scores.iter().sum::<f64>() + sink;
            for d in 0..values {
                let sum = seen.iter().zip(&scores).map(|(&(_, j), p)| p * row(&v, values, j, d)).sum::<f64>();
                out.push(sum / total);
            }
        }
    }
    out
}

#[test]
fn every_case_equals_the_twin_everywhere() {
    for case in CASES.into_iter().chain(small_cases()) {
        let expected = twin(&case);
        on_every_cpu(|cpu, name| {
            // Rows that see those behind them come together.
            let chunks: &[usize] = if case.ahead > 0 { &[usize::MAX] } else { &[1, 5, 7, 32, usize::MAX] };
            for chunk in chunks.iter().copied() {
                let what = format!("{case:?} in chunks of {chunk} on {name}");
                assert_same(&compute(cpu, &case, chunk.min(case.n)), &expected, &what);
            }
        });
    }
}

/// The rule that prices a row is the rule that is computed.
#[test]
fn what_a_row_sees_is_what_it_is_counted_for() {
    for case in CASES {
        let Some(rule) = case.far else { continue };
        for t in case.start..case.start + case.n {
            let seen = case.far_places(t).len() + t + 1 - case.first(t);
            assert_eq!(rule.seen(t as u64), seen as u64, "{case:?} at {t}");
        }
    }
}

#[test]
fn the_twin_is_attention() {
    for case in CASES {
        for (at, (own, truth)) in twin(&case).iter().zip(textbook(&case)).enumerate() {
            assert!((f64::from(*own) - truth).abs() < 2e-6, "{case:?}, element {at}: {own} is not {truth}");
        }
    }
}

/// What fewer bits change, on numbers without a pattern.
#[test]
fn fewer_bits_are_near_the_truth() {
    for case in small_cases() {
        let (own, truth) = (twin(&case), textbook(&case));
        let off = own.iter().zip(&truth).map(|(own, truth)| (f64::from(*own) - truth).abs()).sum::<f64>();
        let off = off / own.len() as f64;
        let most = if case.cache == CacheType::Q8 { 0.01 } else { 0.1 };
        assert!(off < most, "{case:?}: {off}");
    }
}

#[test]
fn many_jobs_equal_single_jobs() {
    // More jobs than one batch, decoding and prefilling at once.
    let case = |i: usize| Case { cache: CacheType::ALL[i % 3], ..Case::new(2, 2, 64, 37 * i, 1 + i % 4) };
    jobs_equal_single_jobs(&(0..40).map(case).collect::<Vec<_>>());
}

#[test]
fn few_long_jobs_are_divided_among_threads_together() {
    for cache in CacheType::ALL {
        let long = |start, n| Case { cache, sinks: true, ..Case::new(2, 2, 64, start, n) };
        jobs_equal_single_jobs(&[long(1_500, 1), long(700, 2)]);
    }
}

/// Computes all of them in one call by three threads.
fn jobs_equal_single_jobs(cases: &[Case]) {
    let cpu = Cpu::new(Isa::detect(), Pool::new(3, false));
    let stores = cases.iter().map(|case| {
        let (_, k, v) = case.data();
        let mut pages = pages(case.shape(), case.start + case.n);
        store_kv(&cpu, &mut pages, case.shape(), &k, &v, 0);
        pages
    });
    let stores = stores.collect::<Vec<_>>();
    let queries = cases.iter().map(|case| case.data().0).collect::<Vec<_>>();
    let sinks = cases.iter().map(Case::sinks).collect::<Vec<_>>();
    let mut outs = queries.iter().map(|q| vec![0.0; q.len()]).collect::<Vec<_>>();
    let mut jobs = Vec::new();
    for ((((case, pages), q), sinks), out) in
        cases.iter().zip(&stores).zip(&queries).zip(&sinks).zip(&mut outs)
    {
        let (shape, heads, scale) = (case.shape(), case.kv_heads * case.group, case.scale());
        let (Case { start, n, softcap, window, ahead, .. }, sinks, far) = (*case, sinks.as_deref(), None);
        jobs.push(AttentionJob {
            q,
            pages,
            shape,
            start,
            n,
            heads,
            scale,
            softcap,
            window,
            ahead,
            far,
            sinks,
            out,
        });
    }
    attend(&cpu, &mut jobs);
    for (case, out) in cases.iter().zip(&outs) {
        assert_same(out, &twin(case), &format!("{case:?}"));
    }
}

#[test]
fn storing_rounds_saturates_and_touches_nothing_else() {
    on_every_cpu(|cpu, name| {
        for (kv_heads, dim, start, n) in [(2, 6, 0, 3), (1, 16, 13, 40), (3, 20, 250, 300), (2, 64, 256, 256)]
        {
            let shape = KvShape::new(kv_heads, dim);
            let width = kv_heads * dim;
            let (mut k, v) = (noise(1, n * width, 1e-3), noise(2, n * width, 9.0));
            k[0] = 1e9;
            k[n * width - 1] = -1e9;
            let mut expected = pages(shape, start + n);
            let mut own = expected.clone();
            for (at, (&k, &v)) in k.iter().zip(&v).enumerate() {
                let (t, head, d) = (start + at / width, at % width / dim, at % dim);
                let page = &mut Arc::make_mut(&mut expected[t / QUARTER])[2 * QUARTER * dim * head..]
                    [..2 * QUARTER * dim];
                let j = t % QUARTER;
                page[(j / LANES * dim + d) * LANES + j % LANES] =
                    f16::from_f32(k.clamp(-65504.0, 65504.0)).to_bits();
                page[QUARTER * dim + j * dim + d] = f16::from_f32(v).to_bits();
            }
            store_kv(cpu, &mut own, shape, &k, &v, start);
            assert!(own == expected, "{kv_heads} x {dim}, {n} from {start} on {name}");
        }
    });
}

#[test]
#[should_panic(expected = "pages end before")]
fn missing_pages_are_refused() {
    let cpu = Cpu::new(Isa::Scalar, Pool::new(1, false));
    let case = Case::new(1, 1, 8, 255, 2);
    let stored = pages(case.shape(), 256);
    attend(
        &cpu,
        &mut [AttentionJob {
            q: &[0.0; 16],
            pages: &stored,
            shape: case.shape(),
            start: 255,
            n: 2,
            heads: 1,
            scale: 1.0,
            softcap: None,
            window: None,
            ahead: 0,
            far: None,
            sinks: None,
            out: &mut [0.0; 16],
        }],
    );
}
