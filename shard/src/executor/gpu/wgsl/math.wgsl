// Elementary functions in the order of operations of `kernels::math`, whose constants stand above.

fn f_div(a: f32, b: f32) -> f32 { return bitcast<f32>(div_bits(bitcast<u32>(a), bitcast<u32>(b))); }
fn f_sqrt(a: f32) -> f32 { return bitcast<f32>(sqrt_bits(bitcast<u32>(a))); }
fn f_neg(a: f32) -> f32 { return bitcast<f32>(bitcast<u32>(a) ^ SIGN); }
fn half(h: u32) -> f32 { return bitcast<f32>(half_bits(h & 0xffffu)); }

// 2^n for n in -126..=127, 0 for -127, infinity for 128.
fn exp2_int(n: i32) -> f32 { return bitcast<f32>(u32(n + 127) << 23u); }

fn f_exp(x: f32) -> f32 {
    var y = x;
    if (EXP_LOW > y) { y = EXP_LOW; }
    if (EXP_HIGH < y) { y = EXP_HIGH; }
    let reduced = reduce(y);
    return f_mul(f_add(reduced.p, 1.0), exp2_int(reduced.n));
}

fn f_sigmoid(x: f32) -> f32 { return f_div(1.0, f_add(1.0, f_exp(f_neg(x)))); }
fn f_silu(x: f32) -> f32 { return f_div(x, f_add(1.0, f_exp(f_neg(x)))); }

fn f_gelu(x: f32) -> f32 {
    let cubic = f_fma(f_mul(x, x), GELU_CUBIC, 1.0);
    return f_div(x, f_add(1.0, f_exp(f_mul(f_mul(x, -GELU_SCALE), cubic))));
}

fn f_clamped_swiglu(gate: f32, up: f32) -> f32 {
    var g = gate;
    if (7.0 < g) { g = 7.0; }
    var u = up;
    if (-7.0 > u) { u = -7.0; }
    if (7.0 < u) { u = 7.0; }
    return f_mul(f_add(u, 1.0), f_mul(g, f_sigmoid(f_mul(g, 1.702))));
}

fn f_relu_squared(x: f32) -> f32 {
    if (0.0 > x) { return 0.0; }
    return f_mul(x, x);
}

fn f_tanh(x: f32) -> f32 {
    var y = f_add(x, x);
    if (-TANH_CLAMP > y) { y = -TANH_CLAMP; }
    if (TANH_CLAMP < y) { y = TANH_CLAMP; }
    let reduced = reduce(y);
    let scale = exp2_int(reduced.n);
    let e = f_fma(scale, reduced.p, f_add(scale, -1.0));
    return f_div(e, f_add(e, 2.0));
}

fn f_softplus(x: f32) -> f32 {
    let u = f_exp(bitcast<f32>(bitcast<u32>(x) | SIGN));
    let s = f_div(u, f_add(u, 2.0));
    let square = f_mul(s, s);
    var atanh = array<f32, 8>(ATANH_0, ATANH_1, ATANH_2, ATANH_3, ATANH_4, ATANH_5, ATANH_6, ATANH_7);
    var series = atanh[7];
    for (var term = 7u; term > 0u; term = term - 1u) { series = f_fma(series, square, atanh[term - 1u]); }
    var positive = x;
    if (0.0 > x) { positive = 0.0; }
    return f_fma(f_add(s, s), series, positive);
}

// Sixteen sums, added 8, 4, 2, 1 apart.
fn tree_of(sums: array<f32, 16>) -> f32 {
    var a = sums;
    for (var width = 8u; width > 0u; width = width / 2u) {
        for (var i = 0u; i < width; i = i + 1u) { a[i] = f_add(a[i], a[i + width]); }
    }
    return a[0];
}

// Those of sixteen threads.
var<workgroup> lanes: array<f32, 16>;
fn tree() -> f32 { return tree_of(lanes); }
