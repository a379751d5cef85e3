//! AVX2 with FMA and F16C: one vector is a pair of registers.
//!
//! `vpmaddubsw` saturates at i16, so signed weights enter as `|w|` (at most 128) and the activations (at most 127)
//! take the sign of `w`: two products stay below 32,512.

use std::arch::x86_64::*;

use super::Simd;

/// 256-bit registers, in pairs.
#[derive(Clone, Copy, Debug)]
pub struct Avx2;

/// Sum of 8 lanes, 4, 2, 1 apart.
///
/// # Safety
/// Needs AVX.
#[inline(always)]
pub(super) unsafe fn sum_half(a: __m256) -> f32 {
    // SAFETY: the caller has AVX.
    unsafe {
        let four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
    }
}

/// Largest of 8 lanes.
///
/// # Safety
/// Needs AVX.
#[inline(always)]
pub(super) unsafe fn max_half(a: __m256) -> f32 {
    // SAFETY: the caller has AVX.
    unsafe {
        let four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
        let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
    }
}

/// The four i8 activations at `x` in every lane.
#[inline(always)]
unsafe fn four(x: *const i8) -> __m256i {
    // SAFETY: the caller has AVX2 and four readable bytes.
    unsafe { _mm256_set1_epi32(x.cast::<i32>().read_unaligned()) }
}

impl Simd for Avx2 {
    type F = [__m256; 2];
    type I = [__m256i; 2];
    type B = [__m256i; 2];
    const TILE: usize = 4;
    const BIAS: i32 = 0;

    methods! {
        fn splat(value: f32) -> Self::F { [_mm256_set1_ps(value); 2] }
        fn load(from: *const f32) -> Self::F { [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))] }
        fn load_f16(from: *const u16) -> Self::F {
            [_mm256_cvtph_ps(_mm_loadu_si128(from.cast())), _mm256_cvtph_ps(_mm_loadu_si128(from.add(8).cast()))]
        }
        fn load_bf16(from: *const u16) -> Self::F {
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.add(8).cast()));
            [_mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)), _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high))]
        }
        fn store(to: *mut f32, value: Self::F) {
            _mm256_storeu_ps(to, value[0]);
            _mm256_storeu_ps(to.add(8), value[1]);
        }
        fn store_f16(to: *mut u16, value: Self::F) {
            _mm_storeu_si128(to.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(value[0]));
            _mm_storeu_si128(to.add(8).cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(value[1]));
        }
        fn add(a: Self::F, b: Self::F) -> Self::F { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
        fn sub(a: Self::F, b: Self::F) -> Self::F { [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])] }
        fn mul(a: Self::F, b: Self::F) -> Self::F { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
        fn div(a: Self::F, b: Self::F) -> Self::F { [_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])] }
        fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
            [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])]
        }
        fn max(a: Self::F, b: Self::F) -> Self::F { [_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])] }
        fn min(a: Self::F, b: Self::F) -> Self::F { [_mm256_min_ps(a[0], b[0]), _mm256_min_ps(a[1], b[1])] }
        fn abs(a: Self::F) -> Self::F {
            let mask = _mm256_castsi256_ps(_mm256_set1_epi32(i32::MAX));
            [_mm256_and_ps(a[0], mask), _mm256_and_ps(a[1], mask)]
        }
        fn select_below(bound: usize, a: Self::F, b: Self::F) -> Self::F {
            let bound = _mm256_set1_epi32(bound.min(16) as i32);
            let low = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let high = _mm256_add_epi32(low, _mm256_set1_epi32(8));
            [
                _mm256_blendv_ps(b[0], a[0], _mm256_castsi256_ps(_mm256_cmpgt_epi32(bound, low))),
                _mm256_blendv_ps(b[1], a[1], _mm256_castsi256_ps(_mm256_cmpgt_epi32(bound, high))),
            ]
        }
        fn sum_tree(a: Self::F) -> f32 { sum_half(_mm256_add_ps(a[0], a[1])) }
        fn max_lane(a: Self::F) -> f32 { max_half(_mm256_max_ps(a[0], a[1])) }
        fn round_i32(a: Self::F) -> Self::I { [_mm256_cvtps_epi32(a[0]), _mm256_cvtps_epi32(a[1])] }
        fn to_f32(a: Self::I) -> Self::F { [_mm256_cvtepi32_ps(a[0]), _mm256_cvtepi32_ps(a[1])] }
        fn exp2_int(a: Self::I) -> Self::F {
            let bias = _mm256_set1_epi32(127);
            [
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(a[0], bias))),
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(a[1], bias))),
            ]
        }
        fn splat_i32(value: i32) -> Self::I { [_mm256_set1_epi32(value); 2] }
        fn add_i32(a: Self::I, b: Self::I) -> Self::I {
            [_mm256_add_epi32(a[0], b[0]), _mm256_add_epi32(a[1], b[1])]
        }
        fn mul_i32(a: Self::I, b: Self::I) -> Self::I {
            [_mm256_mullo_epi32(a[0], b[0]), _mm256_mullo_epi32(a[1], b[1])]
        }
        fn load_u8_i32(from: *const u8) -> Self::I {
            [
                _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast())),
                _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.add(8).cast())),
            ]
        }
        fn load_nibbles_i32(from: *const u8) -> [Self::I; 2] {
            let (bytes, mask) = (Self::load_u8_i32(from), _mm256_set1_epi32(15));
            [
                [_mm256_and_si256(bytes[0], mask), _mm256_and_si256(bytes[1], mask)],
                [_mm256_srli_epi32::<4>(bytes[0]), _mm256_srli_epi32::<4>(bytes[1])],
            ]
        }
        fn load_i8_i32(from: *const i8) -> Self::I {
            [
                _mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast())),
                _mm256_cvtepi8_epi32(_mm_loadl_epi64(from.add(8).cast())),
            ]
        }
        fn load_halves_i32(from: *const u8) -> [Self::I; 2] {
            let (bytes, eight) = (Self::load_u8_i32(from), _mm256_set1_epi32(8));
            let low = |bytes| _mm256_sub_epi32(_mm256_and_si256(bytes, _mm256_set1_epi32(15)), eight);
            let high = |bytes| _mm256_sub_epi32(_mm256_srli_epi32::<4>(bytes), eight);
            [[low(bytes[0]), low(bytes[1])], [high(bytes[0]), high(bytes[1])]]
        }
        fn store_i32(to: *mut i32, value: Self::I) {
            _mm256_storeu_si256(to.cast(), value[0]);
            _mm256_storeu_si256(to.add(8).cast(), value[1]);
        }
        fn store_i8(to: *mut i8, value: Self::I) {
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(value[0], value[1]));
            let bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            _mm_storeu_si128(to.cast(), bytes);
        }
        fn sum_i32(a: Self::I) -> i32 {
            let eight = _mm256_add_epi32(a[0], a[1]);
            let four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256::<1>(eight));
            let two = _mm_add_epi32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
            _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two)))
        }
        fn load_bytes(from: *const u8) -> Self::B {
            [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast())]
        }
        fn store_bytes(to: *mut u8, value: Self::B) {
            _mm256_storeu_si256(to.cast(), value[0]);
            _mm256_storeu_si256(to.add(32).cast(), value[1]);
        }
        fn splat_byte(value: u8) -> Self::B { [_mm256_set1_epi8(value as i8); 2] }
        fn and(a: Self::B, b: Self::B) -> Self::B { [_mm256_and_si256(a[0], b[0]), _mm256_and_si256(a[1], b[1])] }
        fn or(a: Self::B, b: Self::B) -> Self::B { [_mm256_or_si256(a[0], b[0]), _mm256_or_si256(a[1], b[1])] }
        fn sub_bytes(a: Self::B, b: Self::B) -> Self::B { [_mm256_sub_epi8(a[0], b[0]), _mm256_sub_epi8(a[1], b[1])] }
        fn shr<const N: u32>(a: Self::B) -> Self::B {
            let mask = _mm256_set1_epi8((0xff_u8 >> N) as i8);
            let n = _mm_cvtsi32_si128(N as i32);
            [_mm256_and_si256(_mm256_srl_epi16(a[0], n), mask), _mm256_and_si256(_mm256_srl_epi16(a[1], n), mask)]
        }
        fn shl<const N: u32>(a: Self::B) -> Self::B {
            let mask = _mm256_set1_epi8((0xff_u8 << N) as i8);
            let n = _mm_cvtsi32_si128(N as i32);
            [_mm256_and_si256(_mm256_sll_epi16(a[0], n), mask), _mm256_and_si256(_mm256_sll_epi16(a[1], n), mask)]
        }
        fn lookup(table: &[i8; 16], index: Self::B) -> Self::B {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            [_mm256_shuffle_epi8(table, index[0]), _mm256_shuffle_epi8(table, index[1])]
        }
        fn bias(w: Self::B) -> Self::B { w }
        fn dot_biased(acc: Self::I, w: Self::B, x: *const i8) -> Self::I { Self::dot_i8(acc, w, x) }
        fn dot_i8(acc: Self::I, w: Self::B, x: *const i8) -> Self::I {
            let (x, ones) = (four(x), _mm256_set1_epi16(1));
            let low = _mm256_maddubs_epi16(_mm256_abs_epi8(w[0]), _mm256_sign_epi8(x, w[0]));
            let high = _mm256_maddubs_epi16(_mm256_abs_epi8(w[1]), _mm256_sign_epi8(x, w[1]));
            [
                _mm256_add_epi32(acc[0], _mm256_madd_epi16(low, ones)),
                _mm256_add_epi32(acc[1], _mm256_madd_epi16(high, ones)),
            ]
        }
        fn dot_u7(acc: Self::I, w: Self::B, x: *const i8) -> Self::I {
            let (x, ones) = (four(x), _mm256_set1_epi16(1));
            let (low, high) = (_mm256_maddubs_epi16(w[0], x), _mm256_maddubs_epi16(w[1], x));
            [
                _mm256_add_epi32(acc[0], _mm256_madd_epi16(low, ones)),
                _mm256_add_epi32(acc[1], _mm256_madd_epi16(high, ones)),
            ]
        }
        fn prefetch(from: *const u8) { _mm_prefetch::<_MM_HINT_T1>(from.cast()) }
    }
}
