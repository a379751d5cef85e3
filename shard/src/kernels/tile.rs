//! The inner loops of the matrix product: 16 output rows times up to 8 rows of activations.
//!
//! Per 32-block the integer products are summed exactly, then each lane does the float steps of profile `d1` in
//! the order its format's specification gives. Rows of activations are independent, so neither their number nor
//! the split of the columns over several calls shows in the bits (an f32 stored and loaded again is the same f32).
//!
//! Activations come in groups of `M` rows, block after block ([`super::activations`]).

#![allow(clippy::needless_range_loop, reason = "a row indexes registers and pointers alike")]

use super::panel::{BLOCK, Dot, Float, Layout, ROWS, Source, unpacked};
use super::simd::Simd;
use super::{Isa, Kernel};

/// One call of the integer tile kernel. Pointers are to the first block of the call.
#[derive(Clone, Copy)]
pub(crate) struct Tile {
    /// Codes of the panel.
    pub codes: *const u8,
    /// Scale records of the panel.
    pub scales: *const u8,
    /// 32-blocks to go through, whole records.
    pub blocks: usize,
    /// Activations: per block `M` rows of 32 bytes.
    pub q: *const i8,
    /// Per block `M` scales.
    pub d: *const f32,
    /// Per block `M` sums of 32, then `M` sums of each half.
    pub sums: *const f32,
    /// The same sums times what the weights' offset asks for.
    pub starts: *const i32,
    /// Accumulators, `M` rows of 16.
    pub acc: *mut f32,
    /// Whether the accumulators start at zero instead of at what is stored.
    pub first: bool,
    /// Bytes of codes between what is asked for and what is used, where panels come from memory: [`Isa::lead_bytes`].
    pub lead: usize,
}

/// One call of the float tile kernel.
#[derive(Clone, Copy)]
pub(crate) struct FloatTile {
    /// The first panel.
    pub weights: *const u8,
    /// Bytes from one panel to the next.
    pub panel_bytes: usize,
    /// Panels to go through.
    pub panels: usize,
    /// Columns.
    pub cols: usize,
    /// Activations: per column `M` values.
    pub x: *const f32,
    /// Results: per panel `M` rows of 16.
    pub acc: *mut f32,
}

struct IntegerKernel<'a, P, const M: usize>(&'a Tile, std::marker::PhantomData<P>);

#[inline(always)]
unsafe fn dot<S: Simd, P: Source>(acc: S::I, w: S::B, x: *const i8) -> S::I {
    // SAFETY: the contract is the caller's.
    unsafe {
        match P::DOT {
            Dot::Unsigned => S::dot_u7(acc, w, x),
            Dot::Signed => S::dot_i8(acc, w, x),
            Dot::Biased => S::dot_biased(acc, w, x),
        }
    }
}

/// The products of groups `C` and `C + 4` for `M` rows.
#[inline(always)]
unsafe fn step<S: Simd, P: Source, const M: usize, const C: usize>(
    codes: *const u8,
    q: *const i8,
    low: &mut [S::I; M],
    high: &mut [S::I; M],
) {
    // SAFETY: the contract is the caller's.
    unsafe {
        let (first, second) = P::pair::<S, C>(codes);
        for r in 0..M {
            let x = q.add(r * BLOCK + 4 * C);
            low[r] = dot::<S, P>(low[r], first, x);
            if P::HALVES {
                high[r] = dot::<S, P>(high[r], second, x.add(16));
            } else {
                low[r] = dot::<S, P>(low[r], second, x.add(16));
            }
        }
    }
}

/// What the accumulators of one block start from.
#[inline(always)]
unsafe fn start<S: Simd, P: Source, const M: usize>(starts: *const i32) -> ([S::I; M], [S::I; M]) {
    // SAFETY: the contract is the caller's.
    unsafe {
        let (mut low, mut high) = ([S::splat_i32(0); M], [S::splat_i32(0); M]);
        for r in 0..M {
            if P::HALVES {
                low[r] = S::splat_i32(*starts.add(M + r));
                high[r] = S::splat_i32(*starts.add(2 * M + r));
            } else {
                low[r] = S::splat_i32(*starts.add(r));
            }
        }
        (low, high)
    }
}

impl<P: Source, const M: usize> Kernel for IntegerKernel<'_, P, M> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        if M > S::TILE {
            unreachable!("groups hold at most TILE rows");
        }
        let t = *self.0;
        // SAFETY: `Tile` describes whole blocks; the caller of `run` vouches for its pointers and the instruction set.
        unsafe {
            let zero = S::splat(0.0);
            let mut acc = [zero; M];
            if !t.first {
                for r in 0..M {
                    acc[r] = S::load(t.acc.add(r * ROWS));
                }
            }
            let records = t.blocks / P::PER;
            let lead = Lead::of::<P>(t.blocks, t.lead);
            let asks = P::STREAMED;
            for record in 0..records {
                let scale_record = t.scales.add(record * P::SCALE_STRIDE);
                let ahead = lead.at(record, records);
                if asks {
                    fetch::<S>(scale_record.wrapping_add(ahead.1), P::SCALE_STRIDE);
                }
                for i in 0..P::PER {
                    let b = record * P::PER + i;
                    let codes = t.codes.add(b * P::CODE_STRIDE);
                    if asks {
                        fetch::<S>(codes.wrapping_add(ahead.0), P::CODE_STRIDE);
                    }
                    let q = t.q.add(b * M * BLOCK);
                    let (mut low, mut high) = start::<S, P, M>(t.starts.add(b * 3 * M));
                    step::<S, P, M, 0>(codes, q, &mut low, &mut high);
                    step::<S, P, M, 1>(codes, q, &mut low, &mut high);
                    step::<S, P, M, 2>(codes, q, &mut low, &mut high);
                    step::<S, P, M, 3>(codes, q, &mut low, &mut high);
                    let s = P::scales::<S>(scale_record, i);
                    let (d, sums) = (t.d.add(b * M), t.sums.add(b * 3 * M));
                    for r in 0..M {
                        let dx = S::splat(*d.add(r));
                        let mut isum = S::to_f32(low[r]);
                        if P::HALVES {
                            isum = S::fma(s.half[1], S::to_f32(high[r]), S::fma(s.half[0], isum, zero));
                        }
                        acc[r] = S::fma(isum, S::mul(s.d, dx), acc[r]);
                        if P::MIN {
                            let msum = if P::HALVES {
                                let first = S::fma(s.half_min[0], S::splat(*sums.add(M + r)), zero);
                                S::fma(s.half_min[1], S::splat(*sums.add(2 * M + r)), first)
                            } else {
                                S::splat(*sums.add(r))
                            };
                            acc[r] = S::fma(msum, S::mul(s.m, dx), acc[r]);
                        }
                    }
                }
            }
            for r in 0..M {
                S::store(t.acc.add(r * ROWS), acc[r]);
            }
        }
    }
}

/// How far ahead of its use a packed panel is asked for.
struct Lead {
    /// The same in records.
    records: usize,
    codes: usize,
    scales: usize,
    /// Bytes of the codes and of the scales of a panel: what lies between its codes and those of the next, and its scales and those.
    code_bytes: usize,
    scale_bytes: usize,
}

impl Lead {
    #[inline(always)]
    fn of<P: Source>(blocks: usize, bytes: usize) -> Self {
        let record = P::PER * P::CODE_STRIDE;
        let records = bytes.div_ceil(record);
        Self {
            records,
            codes: records * record,
            scales: records * P::SCALE_STRIDE,
            code_bytes: blocks * P::CODE_STRIDE,
            scale_bytes: (blocks / P::PER * P::SCALE_STRIDE).next_multiple_of(64),
        }
    }

    /// From the codes and scales of a record to those that will be needed: behind the last record comes the next panel.
    #[inline(always)]
    fn at(&self, record: usize, records: usize) -> (usize, usize) {
        let next = record + self.records >= records;
        let skip = if next { (self.scale_bytes, self.code_bytes) } else { (0, 0) };
        (self.codes + skip.0, self.scales + skip.1)
    }
}

/// Asks for the cache lines of `bytes`.
#[inline(always)]
unsafe fn fetch<S: Simd>(from: *const u8, bytes: usize) {
    let mut line = 0;
    while line < bytes {
        // SAFETY: a prefetch may name any address; the caller has the instruction set.
        unsafe { S::prefetch(from.wrapping_add(line)) };
        line += 64;
    }
}

/// Runs the integer kernel for `m` rows (1, 2, 3, 4, 6 or 8).
///
/// # Safety
/// The instruction set is available and every pointer of the tile covers what its field says.
pub(crate) unsafe fn run<P: Source>(isa: Isa, tile: &Tile, m: usize) {
    use std::marker::PhantomData;
    // SAFETY: the contract is the caller's.
    unsafe {
        match m {
            1 => isa.dispatch(IntegerKernel::<P, 1>(tile, PhantomData)),
            2 => isa.dispatch(IntegerKernel::<P, 2>(tile, PhantomData)),
            3 => isa.dispatch(IntegerKernel::<P, 3>(tile, PhantomData)),
            4 => isa.dispatch(IntegerKernel::<P, 4>(tile, PhantomData)),
            6 => isa.dispatch(IntegerKernel::<P, 6>(tile, PhantomData)),
            8 => isa.dispatch(IntegerKernel::<P, 8>(tile, PhantomData)),
            _ => unreachable!("groups hold 1, 2, 3, 4, 6 or 8 rows"),
        }
    }
}

struct Unpack<L> {
    codes: *const u8,
    scales: *const u8,
    blocks: usize,
    out: *mut u8,
    plain: bool,
    layout: std::marker::PhantomData<L>,
}

impl<L: Layout> Kernel for Unpack<L> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the contract is the caller's.
        unsafe { unpacked::unpack::<S, L>(self.codes, self.scales, self.blocks, self.out, self.plain) }
    }
}

/// Unpacks a panel, see [`unpacked::unpack`].
///
/// # Safety
/// As there, and the instruction set is available.
pub(crate) unsafe fn unpack<L: Layout>(
    isa: Isa,
    codes: *const u8,
    scales: *const u8,
    blocks: usize,
    out: *mut u8,
    plain: bool,
) {
    let kernel = Unpack::<L> { codes, scales, blocks, out, plain, layout: std::marker::PhantomData };
    // SAFETY: the contract is the caller's.
    unsafe { isa.dispatch(kernel) }
}

/// Bytes of a panel of floats between what is asked for and what is used, for all panels together.
const AHEAD: usize = 8192;

/// Rows up to which floats are used as fast as they come: the hardware's own prefetching is then faster alone.
const FEW: usize = 2;

struct FloatKernel<'a, const F: u8, const M: usize, const P: usize>(&'a FloatTile);

#[inline(always)]
unsafe fn load<S: Simd, const F: u8>(from: *const u8, index: usize) -> S::F {
    // SAFETY: the contract is the caller's.
    unsafe {
        if F == Float::F32 as u8 {
            S::load(from.cast::<f32>().add(index))
        } else if F == Float::F16 as u8 {
            S::load_f16(from.cast::<u16>().add(index))
        } else {
            S::load_bf16(from.cast::<u16>().add(index))
        }
    }
}

/// `P` panels at once, so that enough independent chains of multiply-adds are under way.
#[inline(always)]
unsafe fn float_panels<S: Simd, const F: u8, const M: usize, const P: usize>(t: &FloatTile, first: usize) {
    // SAFETY: the contract is the caller's.
    unsafe {
        let weights: [*const u8; P] = std::array::from_fn(|p| t.weights.add((first + p) * t.panel_bytes));
        let mut acc = [[S::splat(0.0); M]; P];
        let column = ROWS * if F == Float::F32 as u8 { 4 } else { 2 };
        let (ahead, last) = (AHEAD / P, (t.cols * column).saturating_sub(AHEAD / P));
        for k in 0..t.cols {
            let at = k * column;
            if M > FEW && at.is_multiple_of(64) {
                // Behind the last column of these panels come the panels after them.
                let ahead = at + ahead + if at >= last { (P - 1) * t.panel_bytes } else { 0 };
                for weights in weights {
                    S::prefetch(weights.wrapping_add(ahead));
                }
            }
            let x = t.x.add(k * M);
            for p in 0..P {
                let w = load::<S, F>(weights[p], k * ROWS);
                for r in 0..M {
                    acc[p][r] = S::fma(w, S::splat(*x.add(r)), acc[p][r]);
                }
            }
        }
        for p in 0..P {
            for r in 0..M {
                S::store(t.acc.add(((first + p) * M + r) * ROWS), acc[p][r]);
            }
        }
    }
}

impl<const F: u8, const M: usize, const P: usize> Kernel for FloatKernel<'_, F, M, P> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        if M > S::TILE {
            unreachable!("groups hold at most TILE rows");
        }
        let t = self.0;
        // SAFETY: `first + P` and `first` stay below the panels that the caller vouches for.
        unsafe {
            let mut first = 0;
            while first + P <= t.panels {
                float_panels::<S, F, M, P>(t, first);
                first += P;
            }
            while first < t.panels {
                float_panels::<S, F, M, 1>(t, first);
                first += 1;
            }
        }
    }
}

/// Runs the float kernel for `m` rows (1, 2, 3, 4, 6 or 8); `F` is a [`Float`].
///
/// # Safety
/// The instruction set is available and every pointer of the tile covers what its field says.
pub(crate) unsafe fn run_float<const F: u8>(isa: Isa, tile: &FloatTile, m: usize) {
    // SAFETY: the contract is the caller's.
    unsafe {
        match m {
            1 => isa.dispatch(FloatKernel::<F, 1, 4>(tile)),
            2 => isa.dispatch(FloatKernel::<F, 2, 4>(tile)),
            3 => isa.dispatch(FloatKernel::<F, 3, 2>(tile)),
            4 => isa.dispatch(FloatKernel::<F, 4, 2>(tile)),
            6 => isa.dispatch(FloatKernel::<F, 6, 2>(tile)),
            8 => isa.dispatch(FloatKernel::<F, 8, 2>(tile)),
            _ => unreachable!("groups hold 1, 2, 3, 4, 6 or 8 rows"),
        }
    }
}
