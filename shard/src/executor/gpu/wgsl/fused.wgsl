fn f_fma(a: f32, b: f32, c: f32) -> f32 { return fma(a, b, c); }

struct Reduced { n: i32, p: f32 }

// e^x = 2^n (1 + p).
fn reduce(x: f32) -> Reduced {
    let n = round(f_mul(x, LOG2_E));
    let r = f_fma(n, -LN2_LO, f_fma(n, -LN2_HI, x));
    let q = f_fma(f_fma(f_fma(f_fma(EXP_Q4, r, EXP_Q3), r, EXP_Q2), r, EXP_Q1), r, EXP_Q0);
    return Reduced(i32(n), f_fma(f_mul(r, r), q, r));
}
