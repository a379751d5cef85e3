//! Elementary functions with the same bits on every machine.
//!
//! The platform's `exp`, `sin`, `pow`, `tanh` differ in the last bits between systems and versions, so the engine has its
//! own: polynomials with explicit fused multiply-add, in the order written here. Nothing but IEEE add, multiply, divide,
//! fused multiply-add, rounding to integer and exponent bits is used, and those have one correct result everywhere.
//!
//! Two families:
//! - f32 for activations, written once over [`Simd`] lanes (`exp_lanes`, ...) with a plain form per value (`exp_f32`, ...)
//!   that gives the same bits and is the specification.
//! - f64 scalar ([`exp`], [`ln`], [`sin_cos`], [`pow`]) for tables made outside the token loop, such as rope frequencies.
//!
//! Error bounds are stated per function and measured by the tests against the platform's f64 functions.
//! A NaN stays a NaN in the f32 family; its payload is not specified.

use super::simd::Simd;
use crate::fma::Fma;

/// log2(e).
const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln(2) rounded to f32; `n * LN2_HI` inside an fma leaves `x - n ln 2` exact for the arguments used here.
const LN2_HI: f32 = std::f32::consts::LN_2;
/// ln(2) - LN2_HI.
const LN2_LO: f32 = -1.904_654_2e-9;
/// Below this exp gives 0 (the scale is 2^-127, encoded as 0): ln(2^-126.5) minus a margin.
const EXP_LOW: f32 = -87.8;
/// Above this exp gives infinity (the scale is 2^128).
const EXP_HIGH: f32 = 88.8;
/// `q(r)`, low to high, with `exp(r) = 1 + r + r^2 q(r)` on |r| <= ln(2)/2: least maximum relative error of exp (4.2e-9
/// after rounding the coefficients to f32).
const EXP_Q: [f32; 5] = [0.499_999_94, 0.166_665_2, 0.041_668_4, 0.008_368_851, 0.001_381_431_7];
/// 1, 1/3, 1/5, ... of atanh(s) = s (1 + s^2/3 + s^4/5 + ...); with s at most 1/3 the next term is below 2e-9.
const ATANH: [f32; 8] = [1.0, 1.0 / 3.0, 1.0 / 5.0, 1.0 / 7.0, 1.0 / 9.0, 1.0 / 11.0, 1.0 / 13.0, 1.0 / 15.0];
/// tanh is 1 to f32 precision beyond half of this.
const TANH_CLAMP: f32 = 20.0;
/// sqrt(2/pi) * 2, the factor of the tanh form of GELU after `0.5 (1 + tanh u) = sigmoid(2u)`.
const GELU_SCALE: f32 = 1.595_769_2;
/// Weight of the cubic term of the tanh form of GELU.
const GELU_CUBIC: f32 = 0.044_715;

/// The constants of the f32 functions by their names, for shaders that compute the same.
#[cfg(feature = "gpu")]
pub(crate) const CONSTANTS: [(&str, f32); 21] = [
    ("LOG2_E", LOG2_E),
    ("LN2_HI", LN2_HI),
    ("LN2_LO", LN2_LO),
    ("EXP_LOW", EXP_LOW),
    ("EXP_HIGH", EXP_HIGH),
    ("EXP_Q0", EXP_Q[0]),
    ("EXP_Q1", EXP_Q[1]),
    ("EXP_Q2", EXP_Q[2]),
    ("EXP_Q3", EXP_Q[3]),
    ("EXP_Q4", EXP_Q[4]),
    ("TANH_CLAMP", TANH_CLAMP),
    ("GELU_SCALE", GELU_SCALE),
    ("GELU_CUBIC", GELU_CUBIC),
    ("ATANH_0", ATANH[0]),
    ("ATANH_1", ATANH[1]),
    ("ATANH_2", ATANH[2]),
    ("ATANH_3", ATANH[3]),
    ("ATANH_4", ATANH[4]),
    ("ATANH_5", ATANH[5]),
    ("ATANH_6", ATANH[6]),
    ("ATANH_7", ATANH[7]),
];

// ---- f32 lanes -----------------------------------------------------------------------------------------------

/// `x - n ln 2` split: returns (n as float, r, r + r^2 q(r)), where `exp(x) = 2^n (1 + last)`.
///
/// # Safety
/// As [`Simd`]: the instruction set must be available.
#[inline(always)]
unsafe fn reduce_lanes<S: Simd>(x: S::F) -> (S::I, S::F) {
    // SAFETY: the caller promises the instruction set.
    unsafe {
        let n = S::round_i32(S::mul(x, S::splat(LOG2_E)));
        let nf = S::to_f32(n);
        let r = S::fma(nf, S::splat(-LN2_HI), x);
        let r = S::fma(nf, S::splat(-LN2_LO), r);
        let [q0, q1, q2, q3, q4] = EXP_Q;
        let q = S::fma(S::splat(q4), r, S::splat(q3));
        let q = S::fma(q, r, S::splat(q2));
        let q = S::fma(q, r, S::splat(q1));
        let q = S::fma(q, r, S::splat(q0));
        (n, S::fma(S::mul(r, r), q, r))
    }
}

/// e^x per lane; see [`exp_f32`].
///
/// # Safety
/// As [`Simd`]: the instruction set must be available.
#[inline(always)]
pub unsafe fn exp_lanes<S: Simd>(x: S::F) -> S::F {
    // SAFETY: the caller promises the instruction set.
    unsafe {
        // Constant first: a NaN passes through both.
        let x = S::min(S::splat(EXP_HIGH), S::max(S::splat(EXP_LOW), x));
        let (n, p) = reduce_lanes::<S>(x);
        S::mul(S::add(p, S::splat(1.0)), S::exp2_int(n))
    }
}

/// 1 / (1 + e^-x) per lane; see [`sigmoid_f32`].
///
/// # Safety
/// As [`Simd`]: the instruction set must be available.
#[inline(always)]
pub unsafe fn sigmoid_lanes<S: Simd>(x: S::F) -> S::F {
    // SAFETY: the caller promises the instruction set.
    unsafe {
        let one = S::splat(1.0);
        S::div(one, S::add(one, exp_lanes::<S>(S::mul(x, S::splat(-1.0)))))
    }
}

/// x / (1 + e^-x) per lane; see [`silu_f32`].
///
/// # Safety
/// As [`Simd`]: the instruction set must be available.
#[inline(always)]
pub unsafe fn silu_lanes<S: Simd>(x: S::F) -> S::F {
    // SAFETY: the caller promises the instruction set.
    unsafe { S::div(x, S::add(S::splat(1.0), exp_lanes::<S>(S::mul(x, S::splat(-1.0))))) }
}

/// GELU, tanh form, per lane; see [`gelu_f32`].
///
/// # Safety
/// As [`Simd`]: the instruction set must be available.
#[inline(always)]
pub unsafe fn gelu_lanes<S: Simd>(x: S::F) -> S::F {
    // SAFETY: the caller promises the instruction set.
    unsafe {
        let one = S::splat(1.0);
        let cubic = S::fma(S::mul(x, x), S::splat(GELU_CUBIC), one);
        let u = S::mul(S::mul(x, S::splat(-GELU_SCALE)), cubic);
        S::div(x, S::add(one, exp_lanes::<S>(u)))
    }
}

/// `(clamp(up, -7, 7) + 1) * (g * sigmoid(1.702 g))` with `g = min(gate, 7)` per lane, each operation rounded by itself.
///
/// # Safety
/// As [`Simd`]: the instruction set must be available.
#[inline(always)]
pub unsafe fn clamped_swiglu_lanes<S: Simd>(gate: S::F, up: S::F) -> S::F {
    // SAFETY: the caller promises the instruction set; constants first, so that a NaN stays one.
    unsafe {
        let limit = S::splat(7.0);
        let gate = S::min(limit, gate);
        let up = S::min(limit, S::max(S::splat(-7.0), up));
        let glu = S::mul(gate, sigmoid_lanes::<S>(S::mul(gate, S::splat(1.702))));
        S::mul(S::add(up, S::splat(1.0)), glu)
    }
}

/// `max(x, 0)^2` per lane.
///
/// # Safety
/// As [`Simd`]: the instruction set must be available.
#[inline(always)]
pub unsafe fn relu_squared_lanes<S: Simd>(x: S::F) -> S::F {
    // SAFETY: the caller promises the instruction set; the constant first, so that a NaN stays one.
    unsafe {
        let x = S::max(S::splat(0.0), x);
        S::mul(x, x)
    }
}

/// tanh(x) per lane; see [`tanh_f32`].
///
/// # Safety
/// As [`Simd`]: the instruction set must be available.
#[inline(always)]
pub unsafe fn tanh_lanes<S: Simd>(x: S::F) -> S::F {
    // SAFETY: the caller promises the instruction set.
    unsafe {
        let y = S::add(x, x);
        let y = S::min(S::splat(TANH_CLAMP), S::max(S::splat(-TANH_CLAMP), y));
        let (n, p) = reduce_lanes::<S>(y);
        let scale = S::exp2_int(n);
        let e = S::fma(scale, p, S::sub(scale, S::splat(1.0)));
        S::div(e, S::add(e, S::splat(2.0)))
    }
}

/// ln(1 + e^x) per lane; see [`softplus_f32`].
///
/// # Safety
/// As [`Simd`]: the instruction set must be available.
#[inline(always)]
pub unsafe fn softplus_lanes<S: Simd>(x: S::F) -> S::F {
    // SAFETY: the caller promises the instruction set.
    unsafe {
        let u = exp_lanes::<S>(S::mul(S::abs(x), S::splat(-1.0)));
        let s = S::div(u, S::add(u, S::splat(2.0)));
        let square = S::mul(s, s);
        let mut series = S::splat(ATANH[ATANH.len() - 1]);
        let mut term = ATANH.len() - 1;
        while term > 0 {
            term -= 1;
            series = S::fma(series, square, S::splat(ATANH[term]));
        }
        // Constant first: a NaN passes through.
        S::fma(S::add(s, s), series, S::max(S::splat(0.0), x))
    }
}

// ---- f32 scalar, the specification ----------------------------------------------------------------------------

/// `if a > b { a } else { b }`, the rule of [`Simd::max`].
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// `if a < b { a } else { b }`, the rule of [`Simd::min`].
#[inline(always)]
fn smaller(a: f32, b: f32) -> f32 {
    if a < b { a } else { b }
}

/// 2^n for n in -126..=127, 0 for -127, infinity for 128.
#[inline(always)]
fn exp2_int(n: i32) -> f32 {
    f32::from_bits(((n + 127) as u32) << 23)
}

/// (n, e^r - 1) with `x = n ln 2 + r`.
#[inline(always)]
fn reduce(x: f32) -> (i32, f32) {
    let n = (x * LOG2_E).round_ties_even();
    let r = n.fma(-LN2_HI, x);
    let r = n.fma(-LN2_LO, r);
    let [q0, q1, q2, q3, q4] = EXP_Q;
    let q = q4.fma(r, q3).fma(r, q2).fma(r, q1).fma(r, q0);
    (n as i32, (r * r).fma(q, r))
}

/// e^x. Relative error below 1.2e-7 for results of at least 2^-126; 0 below e^-87.68, infinity above e^88.37.
///
/// ```
/// assert_eq!(shard::kernels::math::exp_f32(0.0), 1.0);
/// assert_eq!(shard::kernels::math::exp_f32(f32::NEG_INFINITY), 0.0);
/// ```
#[inline(always)]
pub fn exp_f32(x: f32) -> f32 {
    let (n, p) = reduce(smaller(EXP_HIGH, larger(EXP_LOW, x)));
    (p + 1.0) * exp2_int(n)
}

/// 1 / (1 + e^-x). Relative error below 2.0e-7 for x >= -87; 0 below -88.37.
pub fn sigmoid_f32(x: f32) -> f32 {
    1.0 / (1.0 + exp_f32(-x))
}

/// x / (1 + e^-x), "swish". Relative error below 2.0e-7 for x >= -87; -0 below -88.37.
pub fn silu_f32(x: f32) -> f32 {
    x / (1.0 + exp_f32(-x))
}

/// GELU in its tanh form, `0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`, computed as
/// `x / (1 + e^-2u)`, which is the same function without the cancellation for negative x.
/// Absolute error below 2.5e-7 * max(1, |x|).
pub fn gelu_f32(x: f32) -> f32 {
    let u = x * -GELU_SCALE * (x * x).fma(GELU_CUBIC, 1.0);
    x / (1.0 + exp_f32(u))
}

/// tanh(x) = E / (E + 2) with E = e^2x - 1. Relative error below 3.0e-7 everywhere, near 0 included.
pub fn tanh_f32(x: f32) -> f32 {
    let (n, p) = reduce(smaller(TANH_CLAMP, larger(-TANH_CLAMP, x + x)));
    let scale = exp2_int(n);
    let e = scale.fma(p, scale - 1.0);
    e / (e + 2.0)
}

/// ln(1 + e^x) = max(x, 0) + ln(1 + u) with u = e^-|x|, and ln(1 + u) = 2 atanh(u / (2 + u)). Relative error below 3.0e-7 for
/// x >= -87; 0 below -87.68.
pub fn softplus_f32(x: f32) -> f32 {
    let u = exp_f32(-x.abs());
    let s = u / (u + 2.0);
    let square = s * s;
    let series = ATANH.iter().rev().skip(1).fold(ATANH[ATANH.len() - 1], |sum, &c| sum.fma(square, c));
    (s + s).fma(series, larger(0.0, x))
}

// ---- f64 scalar ------------------------------------------------------------------------------------------------

/// ln(2) - the f64 nearest to it.
const LN2_LO_64: f64 = 2.319_046_813_846_299_6e-17;
/// pi/2 - the f64 nearest to it.
const FRAC_PI_2_LO: f64 = 6.123_233_995_736_766e-17;

/// 1/k! for k = 0..=18, each the correctly rounded quotient (every factorial up to 18! is exact in f64).
const INVERSE_FACTORIALS: [f64; 19] = {
    let mut table = [1.0; 19];
    let mut factorial = 1.0;
    let mut k = 1;
    while k < table.len() {
        factorial *= k as f64;
        table[k] = 1.0 / factorial;
        k += 1;
    }
    table
};

/// e^x. Relative error below 1e-15; 0 below -745.2, infinity above 709.8.
pub fn exp(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    // Beyond these bounds the result is 0 or infinity whatever the excess.
    let x = x.clamp(-800.0, 800.0);
    let n = (x * std::f64::consts::LOG2_E).round_ties_even();
    let r = n.fma(-std::f64::consts::LN_2, x);
    let r = n.fma(-LN2_LO_64, r);
    let p = INVERSE_FACTORIALS[..14].iter().rev().fold(0.0_f64, |p, &c| p.fma(r, c));
    // Two factors, because 2^n alone can be out of range when the result is not.
    let half = (n * 0.5).round_ties_even();
    let scale = |n: f64| f64::from_bits(((n as i64 + 1023) as u64) << 52);
    p * scale(half) * scale(n - half)
}

/// Natural logarithm. Relative error below 1e-15; NaN for negative numbers, -infinity for 0.
pub fn ln(x: f64) -> f64 {
    if x.is_nan() || x < 0.0 {
        return f64::NAN;
    }
    if x == 0.0 {
        return f64::NEG_INFINITY;
    }
    if x == f64::INFINITY {
        return x;
    }
    // Subnormal numbers are scaled into the normal range first.
    let (x, shift) = if x < f64::MIN_POSITIVE { (x * (1_u64 << 54) as f64, -54) } else { (x, 0) };
    let mut exponent = ((x.to_bits() >> 52) as i64 - 1023) + shift;
    let mut m = f64::from_bits((x.to_bits() & ((1 << 52) - 1)) | (1023 << 52));
    if m > std::f64::consts::SQRT_2 {
        m *= 0.5;
        exponent += 1;
    }
    // ln m = 2 atanh(f) = 2 (f + f^3/3 + f^5/5 + ...) with f = (m - 1) / (m + 1), |f| < 0.172.
    let f = (m - 1.0) / (m + 1.0);
    let f2 = f * f;
    let series = (1..=11).rev().fold(0.0_f64, |s, k| s.fma(f2, 1.0 / f64::from(2 * k + 1)));
    let (e, m) = (exponent as f64, (2.0 * f * f2).fma(series, 2.0 * f));
    e.fma(std::f64::consts::LN_2, e.fma(LN2_LO_64, m))
}

/// (sin x, cos x) with x in radians. Absolute error below 1e-15 for |x| <= 1e9, which covers a position of 1e9 at
/// frequency 1; larger arguments lose accuracy gradually.
pub fn sin_cos(x: f64) -> (f64, f64) {
    let n = (x * std::f64::consts::FRAC_2_PI).round_ties_even();
    let r = n.fma(-std::f64::consts::FRAC_PI_2, x);
    let r = n.fma(-FRAC_PI_2_LO, r);
    let r2 = r * r;
    let series = |from: usize| {
        // Every second Taylor coefficient with alternating signs, highest first.
        (0..=8).rev().filter(|k| from + 2 * k < INVERSE_FACTORIALS.len()).fold(0.0_f64, |s, k| {
            let c = INVERSE_FACTORIALS[from + 2 * k];
            s.fma(r2, if k % 2 == 0 { c } else { -c })
        })
    };
    let sin = (r * r2).fma(-series(3), r);
    let cos = r2.fma(-series(2), 1.0);
    match n as i64 & 3 {
        0 => (sin, cos),
        1 => (cos, -sin),
        2 => (-sin, -cos),
        _ => (-cos, sin),
    }
}

/// base^exponent for base > 0, as `exp(exponent * ln(base))`. Relative error below
/// `(1 + |exponent ln base|) * 1e-15`; exactly 1 for exponent 0.
pub fn pow(base: f64, exponent: f64) -> f64 {
    exp(exponent * ln(base))
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "the platform's functions are the yardstick of the tests")]
mod tests {
    use super::*;
    use crate::kernels::{Isa, Kernel, simd::LANES};

    /// Values over the whole interesting range: a fine grid, tiny magnitudes and the edges.
    fn arguments(limit: f32) -> Vec<f32> {
        let steps = 400_000;
        let grid = (0..=steps).map(|i| limit * (2.0 * i as f32 / steps as f32 - 1.0));
        let tiny = (0..120).flat_map(|e| {
            let t = f32::from_bits(((e + 8) as u32) << 23) * 1.37;
            [t, -t]
        });
        let mut all = grid.chain(tiny).chain([0.0, -0.0]).collect::<Vec<_>>();
        while all.len() % LANES != 0 {
            all.push(0.5);
        }
        all
    }

    /// Largest |own - exact| / |exact| where the exact value is at least `smallest`.
    fn worst(arguments: &[f32], own: fn(f32) -> f32, exact: fn(f64) -> f64, smallest: f64) -> f64 {
        let error = |&x: &f32| {
            let truth = exact(f64::from(x));
            if truth.abs() < smallest { 0.0 } else { (f64::from(own(x)) - truth).abs() / truth.abs() }
        };
        arguments.iter().map(error).fold(0.0, f64::max)
    }

    #[test]
    fn f32_functions_keep_their_bounds() {
        let normal = f64::from(f32::MIN_POSITIVE);
        let wide = arguments(87.0);
        let check = |name: &str, error: f64, bound: f64| {
            println!("{name}: {error:.3e}");
            assert!(error < bound, "{name}: {error:e} is not below {bound:e}");
        };
        check("exp", worst(&wide, exp_f32, f64::exp, normal), 1.2e-7);
        check("sigmoid", worst(&wide, sigmoid_f32, |x| 1.0 / (1.0 + (-x).exp()), normal), 2.0e-7);
        check("silu", worst(&wide, silu_f32, |x| x / (1.0 + (-x).exp()), normal), 2.0e-7);
        check(
            "softplus",
            worst(&wide, softplus_f32, |x| x.max(0.0) + (-x.abs()).exp().ln_1p(), normal),
            3.0e-7,
        );
        check("tanh", worst(&wide, tanh_f32, f64::tanh, normal), 3.0e-7);
        check("tanh near 0", worst(&arguments(1.5), tanh_f32, f64::tanh, normal), 3.0e-7);
        let gelu = |x: f64| {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh())
        };
        let worst_gelu = arguments(12.0)
            .iter()
            .map(|&x| (f64::from(gelu_f32(x)) - gelu(x.into())).abs() / f64::from(x.abs().max(1.0)))
            .fold(0.0, f64::max);
        check("gelu", worst_gelu, 2.5e-7);
    }

    #[test]
    fn f32_edges() {
        for x in [f32::NEG_INFINITY, -1e30, -1000.0, -88.0] {
            assert_eq!(exp_f32(x).to_bits(), 0, "exp({x})");
            assert_eq!(tanh_f32(x), -1.0);
        }
        for x in [f32::INFINITY, 1e30, 89.0] {
            assert_eq!(exp_f32(x), f32::INFINITY, "exp({x})");
            assert_eq!(sigmoid_f32(x), 1.0);
            assert_eq!(sigmoid_f32(-x), 0.0);
            assert_eq!(tanh_f32(x), 1.0);
        }
        assert_eq!((exp_f32(0.0), sigmoid_f32(0.0), tanh_f32(0.0)), (1.0, 0.5, 0.0));
        assert_eq!((gelu_f32(1e20), gelu_f32(-1e20)), (1e20, 0.0));
        assert_eq!((silu_f32(1e20), silu_f32(-1e20)), (1e20, 0.0));
        for function in [exp_f32, sigmoid_f32, silu_f32, gelu_f32, tanh_f32, softplus_f32] {
            assert!(function(f32::NAN).is_nan());
        }
    }

    /// One function per value.
    type Plain = fn(f32) -> f32;

    /// One function over lanes.
    type Lanes<S> = unsafe fn(<S as Simd>::F) -> <S as Simd>::F;

    /// The lanes of an instruction set against the plain functions, bit for bit.
    struct Check;

    impl Kernel for Check {
        type Output = ();
        #[inline(always)]
        unsafe fn run<S: Simd>(self) {
            // SAFETY: the caller promises the instruction set.
            unsafe { check_lanes::<S>() }
        }
    }

    /// # Safety
    /// The instruction set of `S` must be available.
    #[inline(always)]
    unsafe fn check_lanes<S: Simd>() {
        let table: [(Lanes<S>, Plain); 6] = [
            (exp_lanes::<S>, exp_f32),
            (sigmoid_lanes::<S>, sigmoid_f32),
            (silu_lanes::<S>, silu_f32),
            (gelu_lanes::<S>, gelu_f32),
            (tanh_lanes::<S>, tanh_f32),
            (softplus_lanes::<S>, softplus_f32),
        ];
        let mut values = arguments(120.0);
        values.extend([f32::INFINITY, f32::NEG_INFINITY, 1e30, -1e30, 3e-39, -3e-39, 88.4, -87.7].repeat(2));
        for (row, (lanes, plain)) in table.into_iter().enumerate() {
            for chunk in values.chunks_exact(LANES) {
                let mut out = [0.0; LANES];
                // SAFETY: chunk and out hold 16 values; the caller promises the instruction set.
                unsafe { S::store(out.as_mut_ptr(), lanes(S::load(chunk.as_ptr()))) };
                for (x, y) in chunk.iter().zip(out) {
                    let expected = plain(*x);
                    assert!(
                        y.to_bits() == expected.to_bits() || (y.is_nan() && expected.is_nan()),
                        "function {row} of {x}: {y:e} is not {expected:e}"
                    );
                }
            }
        }
    }

    #[test]
    fn lanes_equal_the_plain_functions() {
        for isa in Isa::available() {
            // SAFETY: the instruction set is available.
            unsafe { isa.dispatch(Check) };
        }
    }

    #[test]
    fn f64_exp_ln_pow_keep_their_bounds() {
        let mut worst_exp = 0.0_f64;
        let mut worst_ln = 0.0_f64;
        for i in -70_000..=70_000 {
            let x = f64::from(i) * 0.010_1;
            let (own, std) = (exp(x), x.exp());
            if std.is_normal() {
                worst_exp = worst_exp.max((own - std).abs() / std);
                worst_ln = worst_ln.max((ln(std) - std.ln()).abs() / std.ln().abs().max(1e-300));
            }
            let near_one = 1.0 + f64::from(i) * 1e-6;
            if near_one != 1.0 {
                worst_ln = worst_ln.max((ln(near_one) - near_one.ln()).abs() / near_one.ln().abs());
            }
        }
        println!("exp {worst_exp:e}, ln {worst_ln:e}");
        assert!(worst_exp < 1e-15 && worst_ln < 1e-15, "exp {worst_exp:e}, ln {worst_ln:e}");
        for base in [1.5_f64, 2.0, 10_000.0, 500_000.0, 1e6, 1e7] {
            for i in 0..=512 {
                let e = -f64::from(i) / 256.0;
                let (own, std) = (pow(base, e), base.powf(e));
                assert!((own - std).abs() / std < 1e-14, "{base}^{e}: {own:e}, {std:e}");
            }
            assert_eq!(pow(base, 0.0), 1.0);
        }
    }

    #[test]
    fn f64_edges() {
        assert_eq!((exp(0.0), exp(-1000.0), exp(1000.0)), (1.0, 0.0, f64::INFINITY));
        assert_eq!((exp(f64::NEG_INFINITY), exp(f64::INFINITY)), (0.0, f64::INFINITY));
        assert!((exp(-740.0) - (-740.0_f64).exp()).abs() <= 1e-323);
        assert_eq!((ln(1.0), ln(0.0), ln(f64::INFINITY)), (0.0, f64::NEG_INFINITY, f64::INFINITY));
        assert!(ln(-1.0).is_nan() && ln(f64::NAN).is_nan() && exp(f64::NAN).is_nan());
        assert!((ln(5e-324) - 5e-324_f64.ln()).abs() < 1e-12);
    }

    #[test]
    fn f64_sin_cos_keeps_its_bound() {
        let mut worst = 0.0_f64;
        let mut check = |x: f64| {
            let ((s, c), (ss, cc)) = (sin_cos(x), x.sin_cos());
            worst = worst.max((s - ss).abs()).max((c - cc).abs());
        };
        for i in 0..200_000_u32 {
            let i = f64::from(i);
            check(i * 0.000_37);
            check(-i * 0.73);
            check(i * 5.0);
            check(i * 4_999.3);
            check(i * std::f64::consts::FRAC_PI_4);
        }
        println!("sin_cos {worst:e}");
        assert!(worst < 1e-15, "{worst:e}");
        assert_eq!(sin_cos(0.0), (0.0, 1.0));
    }
}
