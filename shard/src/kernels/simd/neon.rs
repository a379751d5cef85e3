//! AArch64 NEON with the dot-product extension: one vector is four registers.
//!
//! `sdot` and the f16 conversions go through inline assembly: their intrinsics are not stable yet.

use std::{arch::aarch64::*, arch::asm};

use super::Simd;

/// 128-bit registers, in fours.
#[derive(Clone, Copy, Debug)]
pub struct Neon;

/// Applies `$f` to each of the four registers of the arguments.
macro_rules! each {
    (|$($arg:ident),+| $f:expr) => {[
        { $(let $arg = $arg[0];)+ $f },
        { $(let $arg = $arg[1];)+ $f },
        { $(let $arg = $arg[2];)+ $f },
        { $(let $arg = $arg[3];)+ $f },
    ]};
}

#[inline(always)]
unsafe fn sdot(mut acc: int32x4_t, w: uint8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: the caller has the dot-product extension; the instruction touches registers only.
    unsafe {
        asm!("sdot {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) acc, in(vreg) w, in(vreg) x, options(pure, nomem, nostack, preserves_flags));
    }
    acc
}

#[inline(always)]
unsafe fn widen(half: uint16x4_t) -> float32x4_t {
    let wide: float32x4_t;
    // SAFETY: a register-only instruction of the base instruction set.
    unsafe {
        asm!("fcvtl {0:v}.4s, {1:v}.4h", out(vreg) wide, in(vreg) half, options(pure, nomem, nostack, preserves_flags));
    }
    wide
}

#[inline(always)]
unsafe fn narrow(wide: float32x4_t) -> uint16x4_t {
    let half: uint16x4_t;
    // SAFETY: a register-only instruction of the base instruction set.
    unsafe {
        asm!("fcvtn {0:v}.4h, {1:v}.4s", out(vreg) half, in(vreg) wide, options(pure, nomem, nostack, preserves_flags));
    }
    half
}

#[inline(always)]
unsafe fn quarter(i: u32) -> uint32x4_t {
    // SAFETY: the array holds the four lanes read.
    unsafe { vld1q_u32([4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3].as_ptr()) }
}

impl Simd for Neon {
    type F = [float32x4_t; 4];
    type I = [int32x4_t; 4];
    type B = [uint8x16_t; 4];
    const TILE: usize = 4;
    const BIAS: i32 = 0;

    methods! {
        fn splat(value: f32) -> Self::F { [vdupq_n_f32(value); 4] }
        fn load(from: *const f32) -> Self::F {
            [vld1q_f32(from), vld1q_f32(from.add(4)), vld1q_f32(from.add(8)), vld1q_f32(from.add(12))]
        }
        fn load_f16(from: *const u16) -> Self::F {
            [
                widen(vld1_u16(from)),
                widen(vld1_u16(from.add(4))),
                widen(vld1_u16(from.add(8))),
                widen(vld1_u16(from.add(12))),
            ]
        }
        fn load_bf16(from: *const u16) -> Self::F {
            [
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(from))),
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(from.add(4)))),
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(from.add(8)))),
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(from.add(12)))),
            ]
        }
        fn store(to: *mut f32, value: Self::F) {
            vst1q_f32(to, value[0]);
            vst1q_f32(to.add(4), value[1]);
            vst1q_f32(to.add(8), value[2]);
            vst1q_f32(to.add(12), value[3]);
        }
        fn store_f16(to: *mut u16, value: Self::F) {
            vst1_u16(to, narrow(value[0]));
            vst1_u16(to.add(4), narrow(value[1]));
            vst1_u16(to.add(8), narrow(value[2]));
            vst1_u16(to.add(12), narrow(value[3]));
        }
        fn add(a: Self::F, b: Self::F) -> Self::F { each!(|a, b| vaddq_f32(a, b)) }
        fn sub(a: Self::F, b: Self::F) -> Self::F { each!(|a, b| vsubq_f32(a, b)) }
        fn mul(a: Self::F, b: Self::F) -> Self::F { each!(|a, b| vmulq_f32(a, b)) }
        fn div(a: Self::F, b: Self::F) -> Self::F { each!(|a, b| vdivq_f32(a, b)) }
        fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F { each!(|a, b, c| vfmaq_f32(c, a, b)) }
        fn max(a: Self::F, b: Self::F) -> Self::F { each!(|a, b| vbslq_f32(vcgtq_f32(a, b), a, b)) }
        fn min(a: Self::F, b: Self::F) -> Self::F { each!(|a, b| vbslq_f32(vcltq_f32(a, b), a, b)) }
        fn abs(a: Self::F) -> Self::F { each!(|a| vabsq_f32(a)) }
        fn select_below(bound: usize, a: Self::F, b: Self::F) -> Self::F {
            let bound = vdupq_n_u32(bound.min(16) as u32);
            let lanes = [quarter(0), quarter(1), quarter(2), quarter(3)];
            each!(|a, b, lanes| vbslq_f32(vcltq_u32(lanes, bound), a, b))
        }
        fn sum_tree(a: Self::F) -> f32 {
            let four = vaddq_f32(vaddq_f32(a[0], a[2]), vaddq_f32(a[1], a[3]));
            let two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
            vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
        }
        fn max_lane(a: Self::F) -> f32 {
            vmaxvq_f32(vmaxq_f32(vmaxq_f32(a[0], a[1]), vmaxq_f32(a[2], a[3])))
        }
        fn round_i32(a: Self::F) -> Self::I { each!(|a| vcvtnq_s32_f32(a)) }
        fn to_f32(a: Self::I) -> Self::F { each!(|a| vcvtq_f32_s32(a)) }
        fn exp2_int(a: Self::I) -> Self::F {
            each!(|a| vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(a, vdupq_n_s32(127)))))
        }
        fn splat_i32(value: i32) -> Self::I { [vdupq_n_s32(value); 4] }
        fn add_i32(a: Self::I, b: Self::I) -> Self::I { each!(|a, b| vaddq_s32(a, b)) }
        fn mul_i32(a: Self::I, b: Self::I) -> Self::I { each!(|a, b| vmulq_s32(a, b)) }
        fn load_u8_i32(from: *const u8) -> Self::I {
            let bytes = vld1q_u8(from);
            let (low, high) = (vmovl_u8(vget_low_u8(bytes)), vmovl_u8(vget_high_u8(bytes)));
            [
                vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(low))),
                vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(low))),
                vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(high))),
                vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(high))),
            ]
        }
        fn load_nibbles_i32(from: *const u8) -> [Self::I; 2] {
            let (bytes, mask) = (Self::load_u8_i32(from), vdupq_n_s32(15));
            [
                each!(|bytes| vandq_s32(bytes, mask)),
                each!(|bytes| vreinterpretq_s32_u32(vshrq_n_u32::<4>(vreinterpretq_u32_s32(bytes)))),
            ]
        }
        fn load_i8_i32(from: *const i8) -> Self::I {
            let bytes = vld1q_s8(from);
            let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_s8(vget_high_s8(bytes)));
            [
                vmovl_s16(vget_low_s16(low)),
                vmovl_s16(vget_high_s16(low)),
                vmovl_s16(vget_low_s16(high)),
                vmovl_s16(vget_high_s16(high)),
            ]
        }
        fn load_halves_i32(from: *const u8) -> [Self::I; 2] {
            let (bytes, eight) = (Self::load_u8_i32(from), vdupq_n_s32(8));
            let low = each!(|bytes| vsubq_s32(vandq_s32(bytes, vdupq_n_s32(15)), eight));
            let high = each!(|bytes| vsubq_s32(vshrq_n_s32::<4>(bytes), eight));
            [low, high]
        }
        fn store_i32(to: *mut i32, value: Self::I) {
            vst1q_s32(to, value[0]);
            vst1q_s32(to.add(4), value[1]);
            vst1q_s32(to.add(8), value[2]);
            vst1q_s32(to.add(12), value[3]);
        }
        fn store_i8(to: *mut i8, value: Self::I) {
            let low = vcombine_s16(vmovn_s32(value[0]), vmovn_s32(value[1]));
            let high = vcombine_s16(vmovn_s32(value[2]), vmovn_s32(value[3]));
            vst1q_s8(to, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
        }
        fn sum_i32(a: Self::I) -> i32 {
            vaddvq_s32(vaddq_s32(vaddq_s32(a[0], a[1]), vaddq_s32(a[2], a[3])))
        }
        fn load_bytes(from: *const u8) -> Self::B {
            [vld1q_u8(from), vld1q_u8(from.add(16)), vld1q_u8(from.add(32)), vld1q_u8(from.add(48))]
        }
        fn store_bytes(to: *mut u8, value: Self::B) {
            vst1q_u8(to, value[0]);
            vst1q_u8(to.add(16), value[1]);
            vst1q_u8(to.add(32), value[2]);
            vst1q_u8(to.add(48), value[3]);
        }
        fn splat_byte(value: u8) -> Self::B { [vdupq_n_u8(value); 4] }
        fn and(a: Self::B, b: Self::B) -> Self::B { each!(|a, b| vandq_u8(a, b)) }
        fn or(a: Self::B, b: Self::B) -> Self::B { each!(|a, b| vorrq_u8(a, b)) }
        fn sub_bytes(a: Self::B, b: Self::B) -> Self::B { each!(|a, b| vsubq_u8(a, b)) }
        fn shr<const N: u32>(a: Self::B) -> Self::B {
            let n = vdupq_n_s8(-(N as i8));
            each!(|a| vshlq_u8(a, n))
        }
        fn shl<const N: u32>(a: Self::B) -> Self::B {
            let n = vdupq_n_s8(N as i8);
            each!(|a| vshlq_u8(a, n))
        }
        fn lookup(table: &[i8; 16], index: Self::B) -> Self::B {
            let table = vreinterpretq_u8_s8(vld1q_s8(table.as_ptr()));
            each!(|index| vqtbl1q_u8(table, index))
        }
        fn bias(w: Self::B) -> Self::B { w }
        fn dot_biased(acc: Self::I, w: Self::B, x: *const i8) -> Self::I { Self::dot_i8(acc, w, x) }
        fn dot_i8(acc: Self::I, w: Self::B, x: *const i8) -> Self::I {
            let x = vreinterpretq_s8_s32(vdupq_n_s32(x.cast::<i32>().read_unaligned()));
            each!(|acc, w| sdot(acc, w, x))
        }
        fn dot_u7(acc: Self::I, w: Self::B, x: *const i8) -> Self::I { Self::dot_i8(acc, w, x) }
        fn prefetch(from: *const u8) {
            asm!("prfm pldl2keep, [{0}]", in(reg) from, options(nostack, preserves_flags, readonly));
        }
    }
}
