//! AVX-512 (F, BW, DQ, VL, VNNI): one vector is one register.
//!
//! VNNI multiplies unsigned by signed bytes, so signed weights are biased by 128 and the accumulator starts from
//! `-128 * sum`: exact, since the sums stay far inside i32 and `vpdpbusd` does not saturate.

use std::arch::x86_64::*;

use super::Simd;

/// 512-bit registers.
#[derive(Clone, Copy, Debug)]
pub struct Avx512;

impl Simd for Avx512 {
    type F = __m512;
    type I = __m512i;
    type B = __m512i;
    const TILE: usize = 8;
    const BIAS: i32 = 128;

    methods! {
        fn splat(value: f32) -> Self::F { _mm512_set1_ps(value) }
        fn load(from: *const f32) -> Self::F { _mm512_loadu_ps(from) }
        fn load_f16(from: *const u16) -> Self::F { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
        fn load_bf16(from: *const u16) -> Self::F {
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()))))
        }
        fn store(to: *mut f32, value: Self::F) { _mm512_storeu_ps(to, value) }
        fn store_f16(to: *mut u16, value: Self::F) {
            _mm256_storeu_si256(to.cast(), _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(value))
        }
        fn add(a: Self::F, b: Self::F) -> Self::F { _mm512_add_ps(a, b) }
        fn sub(a: Self::F, b: Self::F) -> Self::F { _mm512_sub_ps(a, b) }
        fn mul(a: Self::F, b: Self::F) -> Self::F { _mm512_mul_ps(a, b) }
        fn div(a: Self::F, b: Self::F) -> Self::F { _mm512_div_ps(a, b) }
        fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F { _mm512_fmadd_ps(a, b, c) }
        fn max(a: Self::F, b: Self::F) -> Self::F { _mm512_max_ps(a, b) }
        fn min(a: Self::F, b: Self::F) -> Self::F { _mm512_min_ps(a, b) }
        fn abs(a: Self::F) -> Self::F { _mm512_abs_ps(a) }
        fn select_below(bound: usize, a: Self::F, b: Self::F) -> Self::F {
            _mm512_mask_blend_ps(if bound >= 16 { 0xffff } else { (1_u16 << bound) - 1 }, b, a)
        }
        fn sum_tree(a: Self::F) -> f32 {
            let half = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
            super::avx2::sum_half(half)
        }
        fn max_lane(a: Self::F) -> f32 {
            super::avx2::max_half(_mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a)))
        }
        fn round_i32(a: Self::F) -> Self::I { _mm512_cvtps_epi32(a) }
        fn to_f32(a: Self::I) -> Self::F { _mm512_cvtepi32_ps(a) }
        fn exp2_int(a: Self::I) -> Self::F {
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_add_epi32(a, _mm512_set1_epi32(127))))
        }
        fn splat_i32(value: i32) -> Self::I { _mm512_set1_epi32(value) }
        fn add_i32(a: Self::I, b: Self::I) -> Self::I { _mm512_add_epi32(a, b) }
        fn mul_i32(a: Self::I, b: Self::I) -> Self::I { _mm512_mullo_epi32(a, b) }
        fn load_u8_i32(from: *const u8) -> Self::I { _mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast())) }
        fn load_nibbles_i32(from: *const u8) -> [Self::I; 2] {
            let bytes = Self::load_u8_i32(from);
            [_mm512_and_si512(bytes, _mm512_set1_epi32(15)), _mm512_srli_epi32::<4>(bytes)]
        }
        fn load_i8_i32(from: *const i8) -> Self::I { _mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast())) }
        fn load_halves_i32(from: *const u8) -> [Self::I; 2] {
            let (bytes, eight) = (_mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast())), _mm512_set1_epi32(8));
            let low = _mm512_and_si512(bytes, _mm512_set1_epi32(15));
            [_mm512_sub_epi32(low, eight), _mm512_sub_epi32(_mm512_srli_epi32::<4>(bytes), eight)]
        }
        fn store_i32(to: *mut i32, value: Self::I) { _mm512_storeu_si512(to.cast(), value) }
        fn store_i8(to: *mut i8, value: Self::I) { _mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(value)) }
        fn sum_i32(a: Self::I) -> i32 { _mm512_reduce_add_epi32(a) }
        fn load_bytes(from: *const u8) -> Self::B { _mm512_loadu_si512(from.cast()) }
        fn store_bytes(to: *mut u8, value: Self::B) { _mm512_storeu_si512(to.cast(), value) }
        fn splat_byte(value: u8) -> Self::B { _mm512_set1_epi8(value as i8) }
        fn and(a: Self::B, b: Self::B) -> Self::B { _mm512_and_si512(a, b) }
        fn or(a: Self::B, b: Self::B) -> Self::B { _mm512_or_si512(a, b) }
        fn sub_bytes(a: Self::B, b: Self::B) -> Self::B { _mm512_sub_epi8(a, b) }
        fn shr<const N: u32>(a: Self::B) -> Self::B {
            _mm512_and_si512(_mm512_srli_epi16::<N>(a), _mm512_set1_epi8((0xff_u8 >> N) as i8))
        }
        fn shl<const N: u32>(a: Self::B) -> Self::B {
            _mm512_and_si512(_mm512_slli_epi16::<N>(a), _mm512_set1_epi8((0xff_u8 << N) as i8))
        }
        fn lookup(table: &[i8; 16], index: Self::B) -> Self::B {
            _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())), index)
        }
        fn bias(w: Self::B) -> Self::B { _mm512_xor_si512(w, _mm512_set1_epi8(-128)) }
        fn dot_biased(acc: Self::I, w: Self::B, x: *const i8) -> Self::I {
            _mm512_dpbusd_epi32(acc, w, _mm512_set1_epi32(x.cast::<i32>().read_unaligned()))
        }
        fn dot_i8(acc: Self::I, w: Self::B, x: *const i8) -> Self::I { Self::dot_biased(acc, Self::bias(w), x) }
        fn dot_u7(acc: Self::I, w: Self::B, x: *const i8) -> Self::I { Self::dot_biased(acc, w, x) }
        fn prefetch(from: *const u8) { _mm_prefetch::<_MM_HINT_T1>(from.cast()) }
    }
}
