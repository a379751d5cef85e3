//! Kinds of scales: what stands beside the codes of 16 rows, and how it becomes vectors.

use crate::kernels::simd::Simd;

/// The scales of one 32-block of 16 rows. Fields that the kind does not have are zero and never read.
#[derive(Clone, Copy)]
pub struct Scales<S: Simd> {
    /// Multiplies the integer sum.
    pub d: S::F,
    /// Multiplies the sum of the activations (negative where the format subtracts a minimum).
    pub m: S::F,
    /// Integer scales of the two halves of 16 columns.
    pub half: [S::F; 2],
    /// Integer minima of the two halves.
    pub half_min: [S::F; 2],
}

/// One kind of scales.
pub trait ScaleKind: 'static {
    /// 32-blocks that share a record.
    const PER: usize;
    /// Bytes of a record for 16 rows.
    const BYTES: usize;
    /// Whether each half has its own integer scale.
    const HALVES: bool;
    /// Whether there are minima.
    const MIN: bool;
    /// The scales of block `i` of the record at `from`.
    ///
    /// # Safety
    /// `BYTES` readable bytes; the processor has the instruction set.
    unsafe fn load<S: Simd>(from: *const u8, i: usize) -> Scales<S>;
}

/// `d[16]` f16 per block.
pub struct Single;
/// `d[16]`, `m[16]` f16 per block.
pub struct WithMin;
/// `d[16]`, `-dmin[16]` f16 per eight blocks, then per block `sc[16]`, `mn[16]` u8.
pub struct Affine;
/// `d[16]` f16 per eight blocks, then per block `sc[2][16]` i8, one per half; `d` counts in units of `2^-SHIFT`.
pub struct Halves<const SHIFT: u32>;
/// `d[16]` f16 per eight blocks, then per block `sc[16]` i8; `d` counts in units of `2^-SHIFT`.
pub struct Groups<const SHIFT: u32>;
/// `d[16]` f16 per `BLOCKS` blocks.
pub struct Shared<const BLOCKS: usize>;
/// `e[16]` u8 per block: the scale is `2^(e - 128)`, zero for an `e` of zero.
pub struct Power;
/// Per block and half 16 bytes, low nibble `m`, high nibble `e`: the scale is `m * 2^(e - 10)`.
pub struct FloatHalves;
/// `d[16]`, `-dmin[16]` f16 per eight blocks, then per block and half 16 bytes: low nibble `sc`, high nibble `mn`.
pub struct HalvesMin;

#[inline(always)]
unsafe fn zero<S: Simd>() -> S::F {
    // SAFETY: the caller has the instruction set.
    unsafe { S::splat(0.0) }
}

impl ScaleKind for Single {
    const PER: usize = 1;
    const BYTES: usize = 32;
    const HALVES: bool = false;
    const MIN: bool = false;
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const u8, _i: usize) -> Scales<S> {
        // SAFETY: the contract is the caller's.
        unsafe {
            let none = [zero::<S>(); 2];
            Scales { d: S::load_f16(from.cast()), m: zero::<S>(), half: none, half_min: none }
        }
    }
}

impl ScaleKind for WithMin {
    const PER: usize = 1;
    const BYTES: usize = 64;
    const HALVES: bool = false;
    const MIN: bool = true;
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const u8, _i: usize) -> Scales<S> {
        // SAFETY: the contract is the caller's.
        unsafe {
            let none = [zero::<S>(); 2];
            let (d, m) = (S::load_f16(from.cast()), S::load_f16(from.add(32).cast()));
            Scales { d, m, half: none, half_min: none }
        }
    }
}

impl ScaleKind for Affine {
    const PER: usize = 8;
    const BYTES: usize = 64 + 8 * 32;
    const HALVES: bool = false;
    const MIN: bool = true;
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const u8, i: usize) -> Scales<S> {
        // SAFETY: the contract is the caller's.
        unsafe {
            let none = [zero::<S>(); 2];
            let (d, m) = (S::load_f16(from.cast()), S::load_f16(from.add(32).cast()));
            let sc = S::to_f32(S::load_u8_i32(from.add(64 + 32 * i)));
            let mn = S::to_f32(S::load_u8_i32(from.add(64 + 32 * i + 16)));
            Scales { d: S::mul(d, sc), m: S::mul(m, mn), half: none, half_min: none }
        }
    }
}

impl<const SHIFT: u32> ScaleKind for Halves<SHIFT> {
    const PER: usize = 8;
    const BYTES: usize = 32 + 8 * 32;
    const HALVES: bool = true;
    const MIN: bool = false;
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const u8, i: usize) -> Scales<S> {
        // SAFETY: the contract is the caller's.
        unsafe {
            let sc = from.add(32 + 32 * i).cast();
            let half = [S::to_f32(S::load_i8_i32(sc)), S::to_f32(S::load_i8_i32(sc.add(16)))];
            let d = unit::<S, SHIFT>(S::load_f16(from.cast()));
            Scales { d, m: zero::<S>(), half, half_min: [zero::<S>(); 2] }
        }
    }
}

/// `d * 2^-SHIFT`.
#[inline(always)]
unsafe fn unit<S: Simd, const SHIFT: u32>(d: S::F) -> S::F {
    // SAFETY: the caller has the instruction set.
    unsafe { if SHIFT == 0 { d } else { S::mul(d, S::splat(1.0 / (1_u32 << SHIFT) as f32)) } }
}

impl<const SHIFT: u32> ScaleKind for Groups<SHIFT> {
    const PER: usize = 8;
    const BYTES: usize = 32 + 8 * 16;
    const HALVES: bool = false;
    const MIN: bool = false;
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const u8, i: usize) -> Scales<S> {
        // SAFETY: the contract is the caller's.
        unsafe {
            let none = [zero::<S>(); 2];
            let sc = S::to_f32(S::load_i8_i32(from.add(32 + 16 * i).cast()));
            let d = unit::<S, SHIFT>(S::mul(S::load_f16(from.cast()), sc));
            Scales { d, m: zero::<S>(), half: none, half_min: none }
        }
    }
}

impl<const BLOCKS: usize> ScaleKind for Shared<BLOCKS> {
    const PER: usize = BLOCKS;
    const BYTES: usize = 32;
    const HALVES: bool = false;
    const MIN: bool = false;
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const u8, _i: usize) -> Scales<S> {
        // SAFETY: the contract is the caller's.
        unsafe { Single::load::<S>(from, 0) }
    }
}

impl ScaleKind for Power {
    const PER: usize = 1;
    const BYTES: usize = 16;
    const HALVES: bool = false;
    const MIN: bool = false;
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const u8, _i: usize) -> Scales<S> {
        // SAFETY: the contract is the caller's.
        unsafe {
            let none = [zero::<S>(); 2];
            // 2^(e - 127), which is 0 for e = 0, halved.
            let power = S::exp2_int(S::add_i32(S::load_u8_i32(from), S::splat_i32(-127)));
            Scales { d: S::mul(power, S::splat(0.5)), m: zero::<S>(), half: none, half_min: none }
        }
    }
}

impl ScaleKind for FloatHalves {
    const PER: usize = 2;
    const BYTES: usize = 2 * 32;
    const HALVES: bool = true;
    const MIN: bool = false;
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const u8, i: usize) -> Scales<S> {
        // SAFETY: the contract is the caller's.
        unsafe {
            let scale = |at: *const u8| {
                let [m, e] = S::load_nibbles_i32(at);
                S::mul(S::to_f32(m), S::exp2_int(S::add_i32(e, S::splat_i32(-10))))
            };
            let at = from.add(32 * i);
            let half = [scale(at), scale(at.add(16))];
            Scales { d: S::splat(1.0), m: zero::<S>(), half, half_min: [zero::<S>(); 2] }
        }
    }
}

impl ScaleKind for HalvesMin {
    const PER: usize = 8;
    const BYTES: usize = 64 + 8 * 32;
    const HALVES: bool = true;
    const MIN: bool = true;
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const u8, i: usize) -> Scales<S> {
        // SAFETY: the contract is the caller's.
        unsafe {
            let (d, m) = (S::load_f16(from.cast()), S::load_f16(from.add(32).cast()));
            let both = from.add(64 + 32 * i);
            let (first, second) = (S::load_nibbles_i32(both), S::load_nibbles_i32(both.add(16)));
            let half = [S::to_f32(first[0]), S::to_f32(second[0])];
            let mn = [S::to_f32(first[1]), S::to_f32(second[1])];
            Scales { d, m, half, half_min: mn }
        }
    }
}
