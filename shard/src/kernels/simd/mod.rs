//! The primitives every kernel is written in: 16 f32 lanes and 64-byte integer vectors.
//!
//! A kernel is written once, generic over [`Simd`], and instantiated per instruction set inside a
//! `#[target_feature]` wrapper. Every primitive is defined by its scalar implementation and must give the
//! same bits on all of them, so a kernel gives the same bits by construction. Lanes are output rows, positions
//! or dimensions; the only operation across lanes is [`Simd::sum_tree`], whose order is fixed.

/// Writes the methods of an implementation: each is inlined into its caller, which carries the target features.
#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(unused_macros))]
macro_rules! methods {
    ($(fn $name:ident $(<const $n:ident: u32>)? ($($arg:ident: $kind:ty),* $(,)?) $(-> $out:ty)? $body:block)*) => {$(
        #[inline(always)]
        #[allow(unused_unsafe)]
        unsafe fn $name $(<const $n: u32>)? ($($arg: $kind),*) $(-> $out)? {
            // SAFETY: the contract of the trait: the instruction set was detected and pointers cover the vector.
            unsafe { $body }
        }
    )*};
}

#[cfg(target_arch = "x86_64")]
pub mod avx2;
#[cfg(target_arch = "x86_64")]
pub mod avx512;
#[cfg(target_arch = "aarch64")]
pub mod neon;
pub mod scalar;
#[cfg(test)]
mod tests;

/// Lanes of one float vector, on every instruction set.
pub const LANES: usize = 16;

/// One instruction set's way to compute on 16 f32, 16 i32 and 64 bytes.
///
/// # Safety
/// The methods are unsafe because they may use instructions the processor lacks: call them only on the path of an
/// [`super::Isa`] that was detected. Pointers must be readable or writable for the vector's full size; no alignment is needed.
#[allow(clippy::missing_safety_doc, reason = "the contract is the same for all methods and stands above")]
pub trait Simd: Copy + 'static {
    /// 16 f32.
    type F: Copy;
    /// 16 i32.
    type I: Copy;
    /// 64 bytes.
    type B: Copy;

    /// Rows of activations the matrix kernel holds in registers at once.
    const TILE: usize;

    // ---- f32 lanes -------------------------------------------------------------------------------------------
    /// All lanes `value`.
    unsafe fn splat(value: f32) -> Self::F;
    /// Loads 16 f32.
    unsafe fn load(from: *const f32) -> Self::F;
    /// Loads 16 f16 and widens them.
    unsafe fn load_f16(from: *const u16) -> Self::F;
    /// Loads 16 bf16 and widens them.
    unsafe fn load_bf16(from: *const u16) -> Self::F;
    /// Stores 16 f32.
    unsafe fn store(to: *mut f32, value: Self::F);
    /// Stores 16 f32 as f16, rounding to nearest even.
    unsafe fn store_f16(to: *mut u16, value: Self::F);
    /// `a + b`.
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    /// `a - b`.
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b`.
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    /// `a / b`, IEEE division.
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c` with one rounding.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `if a > b { a } else { b }` per lane (the x86 `maxps` rule).
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    /// `if a < b { a } else { b }` per lane.
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    /// Absolute value.
    unsafe fn abs(a: Self::F) -> Self::F;
    /// `mask_from < bound ? a : b` per lane: lane i takes `a` when `i < bound`.
    unsafe fn select_below(bound: usize, a: Self::F, b: Self::F) -> Self::F;
    /// Sum of the lanes: `(i) + (i + 8)`, then 4, 2, 1 apart.
    unsafe fn sum_tree(a: Self::F) -> f32;
    /// Largest lane (no lane NaN; the sign of a zero result is not specified).
    unsafe fn max_lane(a: Self::F) -> f32;
    /// Rounds to the nearest integer, ties to even; lanes must be inside the i32 range.
    unsafe fn round_i32(a: Self::F) -> Self::I;
    /// i32 to f32.
    unsafe fn to_f32(a: Self::I) -> Self::F;
    /// `2^a` for `a` in `-126..=127`, by building the exponent bits; so -127 gives 0 and 128 infinity.
    unsafe fn exp2_int(a: Self::I) -> Self::F;

    // ---- i32 lanes -------------------------------------------------------------------------------------------
    /// All lanes `value`.
    unsafe fn splat_i32(value: i32) -> Self::I;
    /// `a + b`, wrapping.
    unsafe fn add_i32(a: Self::I, b: Self::I) -> Self::I;
    /// `a * b`, low 32 bits.
    unsafe fn mul_i32(a: Self::I, b: Self::I) -> Self::I;
    /// Widens 16 u8 to i32.
    unsafe fn load_u8_i32(from: *const u8) -> Self::I;
    /// The low and the high nibbles of 16 bytes as i32.
    unsafe fn load_nibbles_i32(from: *const u8) -> [Self::I; 2];
    /// Widens 16 i8 to i32.
    unsafe fn load_i8_i32(from: *const i8) -> Self::I;
    /// The low and then the high four bits of 16 bytes, 0 to 15, less 8.
    unsafe fn load_halves_i32(from: *const u8) -> [Self::I; 2];

    /// Stores 16 i32.
    unsafe fn store_i32(to: *mut i32, value: Self::I);
    /// Stores 16 i32 in -128..=127 as i8.
    unsafe fn store_i8(to: *mut i8, value: Self::I);
    /// Sum of the lanes, wrapping.
    unsafe fn sum_i32(a: Self::I) -> i32;

    // ---- 64 bytes --------------------------------------------------------------------------------------------
    /// Loads 64 bytes.
    unsafe fn load_bytes(from: *const u8) -> Self::B;
    /// Stores 64 bytes.
    unsafe fn store_bytes(to: *mut u8, value: Self::B);
    /// All bytes `value`.
    unsafe fn splat_byte(value: u8) -> Self::B;
    /// `a & b`.
    unsafe fn and(a: Self::B, b: Self::B) -> Self::B;
    /// `a | b`.
    unsafe fn or(a: Self::B, b: Self::B) -> Self::B;
    /// `a - b` per byte, wrapping.
    unsafe fn sub_bytes(a: Self::B, b: Self::B) -> Self::B;
    /// Each byte shifted right by `N` (0..=7), zeros entering.
    unsafe fn shr<const N: u32>(a: Self::B) -> Self::B;
    /// Each byte shifted left by `N` (0..=7), zeros entering.
    unsafe fn shl<const N: u32>(a: Self::B) -> Self::B;
    /// Each byte (0..=15) replaced by the table's entry.
    unsafe fn lookup(table: &[i8; 16], index: Self::B) -> Self::B;
    /// What [`Simd::bias`] adds to signed weights: 128 where the byte product needs unsigned weights, else 0.
    /// An accumulator of [`Simd::dot_i8`] or [`Simd::dot_biased`] starts from `-BIAS` times the sum of its activations.
    const BIAS: i32;
    /// The i32 accumulator that [`Simd::dot_i8`] chains start from, given the sum of the activations it will see.
    #[inline(always)]
    unsafe fn start_i8(x_sum: i32) -> Self::I {
        // SAFETY: the caller's promise is passed on.
        unsafe { Self::splat_i32(-Self::BIAS * x_sum) }
    }
    /// Signed weights in the form [`Simd::dot_biased`] takes: `w + BIAS` per byte, wrapping.
    unsafe fn bias(w: Self::B) -> Self::B;
    /// [`Simd::dot_i8`] of weights that went through [`Simd::bias`] before.
    unsafe fn dot_biased(acc: Self::I, w: Self::B, x: *const i8) -> Self::I;
    /// Asks for the cache line at `from`, which may lie outside any allocation, in the second-level cache: more requests
    /// can be under way there than in the first, and what is used soon is fetched from there in time.
    #[inline(always)]
    unsafe fn prefetch(_from: *const u8) {}
    /// `acc[lane] += sum_j w[4 lane + j] * x[j]` with `w` as signed bytes in -128..=127, `x` four activations in -127..=127.
    unsafe fn dot_i8(acc: Self::I, w: Self::B, x: *const i8) -> Self::I;
    /// `acc[lane] += sum_j w[4 lane + j] * x[j]` with `w` as unsigned bytes in 0..=127.
    unsafe fn dot_u7(acc: Self::I, w: Self::B, x: *const i8) -> Self::I;
}
