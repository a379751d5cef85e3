//! The specification of [`Simd`]: plain arrays, no instruction set.

use half::{bf16, f16};

use super::{LANES, Simd};
use crate::fma::Fma;

/// Plain Rust on arrays. Slow; every other implementation is tested equal to it.
#[derive(Clone, Copy, Debug)]
pub struct Scalar;

#[inline(always)]
fn map<T: Copy, U: Copy + Default>(a: [T; LANES], f: impl Fn(T) -> U) -> [U; LANES] {
    std::array::from_fn(|i| f(a[i]))
}

#[inline(always)]
fn zip<T: Copy, U: Copy>(a: [T; LANES], b: [T; LANES], f: impl Fn(T, T) -> U) -> [U; LANES] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

// SAFETY of the whole impl: only the pointer arguments carry a contract, and it is the trait's.
impl Simd for Scalar {
    type F = [f32; LANES];
    type I = [i32; LANES];
    type B = [u8; 64];
    const TILE: usize = 4;

    unsafe fn splat(value: f32) -> Self::F {
        [value; LANES]
    }
    unsafe fn load(from: *const f32) -> Self::F {
        // SAFETY: the caller promises 16 readable f32.
        unsafe { from.cast::<Self::F>().read_unaligned() }
    }
    unsafe fn load_f16(from: *const u16) -> Self::F {
        // SAFETY: the caller promises 16 readable u16.
        map(unsafe { from.cast::<[u16; LANES]>().read_unaligned() }, |bits| f16::from_bits(bits).to_f32())
    }
    unsafe fn load_bf16(from: *const u16) -> Self::F {
        // SAFETY: the caller promises 16 readable u16.
        map(unsafe { from.cast::<[u16; LANES]>().read_unaligned() }, |bits| bf16::from_bits(bits).to_f32())
    }
    unsafe fn store(to: *mut f32, value: Self::F) {
        // SAFETY: the caller promises 16 writable f32.
        unsafe { to.cast::<Self::F>().write_unaligned(value) }
    }
    unsafe fn store_f16(to: *mut u16, value: Self::F) {
        // SAFETY: the caller promises 16 writable u16.
        unsafe { to.cast::<[u16; LANES]>().write_unaligned(map(value, |v| f16::from_f32(v).to_bits())) }
    }
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a + b)
    }
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a - b)
    }
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a * b)
    }
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a / b)
    }
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        std::array::from_fn(|i| a[i].fma(b[i], c[i]))
    }
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    unsafe fn abs(a: Self::F) -> Self::F {
        map(a, f32::abs)
    }
    unsafe fn select_below(bound: usize, a: Self::F, b: Self::F) -> Self::F {
        std::array::from_fn(|i| if i < bound { a[i] } else { b[i] })
    }
    unsafe fn sum_tree(mut a: Self::F) -> f32 {
        for width in [8, 4, 2, 1] {
            for i in 0..width {
                a[i] += a[i + width];
            }
        }
        a[0]
    }
    unsafe fn max_lane(a: Self::F) -> f32 {
        a.into_iter().fold(f32::NEG_INFINITY, |m, v| if v > m { v } else { m })
    }
    unsafe fn round_i32(a: Self::F) -> Self::I {
        map(a, |v| v.round_ties_even() as i32)
    }
    unsafe fn to_f32(a: Self::I) -> Self::F {
        map(a, |v| v as f32)
    }
    unsafe fn exp2_int(a: Self::I) -> Self::F {
        map(a, |v| f32::from_bits(((v + 127) as u32) << 23))
    }
    unsafe fn splat_i32(value: i32) -> Self::I {
        [value; LANES]
    }
    unsafe fn add_i32(a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, i32::wrapping_add)
    }
    unsafe fn mul_i32(a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, i32::wrapping_mul)
    }
    unsafe fn load_u8_i32(from: *const u8) -> Self::I {
        // SAFETY: the caller promises 16 readable bytes.
        map(unsafe { from.cast::<[u8; LANES]>().read_unaligned() }, i32::from)
    }
    unsafe fn load_nibbles_i32(from: *const u8) -> [Self::I; 2] {
        // SAFETY: the caller promises 16 readable bytes.
        let bytes = unsafe { from.cast::<[u8; LANES]>().read_unaligned() };
        [map(bytes, |byte| i32::from(byte & 15)), map(bytes, |byte| i32::from(byte >> 4))]
    }
    unsafe fn load_i8_i32(from: *const i8) -> Self::I {
        // SAFETY: the caller promises 16 readable bytes.
        map(unsafe { from.cast::<[i8; LANES]>().read_unaligned() }, i32::from)
    }
    unsafe fn load_halves_i32(from: *const u8) -> [Self::I; 2] {
        // SAFETY: the caller promises 16 readable bytes.
        let bytes = unsafe { from.cast::<[u8; LANES]>().read_unaligned() };
        [map(bytes, |byte| i32::from(byte & 15) - 8), map(bytes, |byte| i32::from(byte >> 4) - 8)]
    }
    unsafe fn store_i32(to: *mut i32, value: Self::I) {
        // SAFETY: the caller promises 16 writable i32.
        unsafe { to.cast::<Self::I>().write_unaligned(value) }
    }
    unsafe fn store_i8(to: *mut i8, value: Self::I) {
        // SAFETY: the caller promises 16 writable bytes.
        unsafe { to.cast::<[i8; LANES]>().write_unaligned(map(value, |v| v as i8)) }
    }
    unsafe fn sum_i32(a: Self::I) -> i32 {
        a.into_iter().fold(0, i32::wrapping_add)
    }
    unsafe fn load_bytes(from: *const u8) -> Self::B {
        // SAFETY: the caller promises 64 readable bytes.
        unsafe { from.cast::<Self::B>().read_unaligned() }
    }
    unsafe fn store_bytes(to: *mut u8, value: Self::B) {
        // SAFETY: the caller promises 64 writable bytes.
        unsafe { to.cast::<Self::B>().write_unaligned(value) }
    }
    unsafe fn splat_byte(value: u8) -> Self::B {
        [value; 64]
    }
    unsafe fn and(a: Self::B, b: Self::B) -> Self::B {
        std::array::from_fn(|i| a[i] & b[i])
    }
    unsafe fn or(a: Self::B, b: Self::B) -> Self::B {
        std::array::from_fn(|i| a[i] | b[i])
    }
    unsafe fn sub_bytes(a: Self::B, b: Self::B) -> Self::B {
        std::array::from_fn(|i| a[i].wrapping_sub(b[i]))
    }
    unsafe fn shr<const N: u32>(a: Self::B) -> Self::B {
        std::array::from_fn(|i| a[i] >> N)
    }
    unsafe fn shl<const N: u32>(a: Self::B) -> Self::B {
        std::array::from_fn(|i| a[i] << N)
    }
    unsafe fn lookup(table: &[i8; 16], index: Self::B) -> Self::B {
        std::array::from_fn(|i| table[(index[i] & 15) as usize] as u8)
    }
    const BIAS: i32 = 0;
    unsafe fn bias(w: Self::B) -> Self::B {
        w
    }
    unsafe fn dot_biased(acc: Self::I, w: Self::B, x: *const i8) -> Self::I {
        // SAFETY: the caller's promise is passed on.
        unsafe { Self::dot_i8(acc, w, x) }
    }
    unsafe fn dot_i8(acc: Self::I, w: Self::B, x: *const i8) -> Self::I {
        // SAFETY: the caller promises 4 readable activations.
        let x = unsafe { x.cast::<[i8; 4]>().read_unaligned() };
        std::array::from_fn(|i| {
            acc[i] + (0..4).map(|j| i32::from(w[4 * i + j] as i8) * i32::from(x[j])).sum::<i32>()
        })
    }
    unsafe fn dot_u7(acc: Self::I, w: Self::B, x: *const i8) -> Self::I {
        // SAFETY: the caller promises 4 readable activations.
        let x = unsafe { x.cast::<[i8; 4]>().read_unaligned() };
        std::array::from_fn(|i| {
            acc[i] + (0..4).map(|j| i32::from(w[4 * i + j]) * i32::from(x[j])).sum::<i32>()
        })
    }
}
