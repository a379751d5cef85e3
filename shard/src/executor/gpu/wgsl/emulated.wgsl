fn f_fma(a: f32, b: f32, c: f32) -> f32 {
    return bitcast<f32>(fma_bits(bitcast<u32>(a), bitcast<u32>(b), bitcast<u32>(c)));
}

struct Reduced { n: i32, p: f32 }

// e^x = 2^n (1 + p), in the steps of `reduce` in `fused.wgsl`. They are a loop around one product: the compilers of software
// devices copy a function to each place that names it, and take minutes for so many copies.
fn reduce(x: f32) -> Reduced {
    var n = 0.0;
    var r = 0.0;
    var q = EXP_Q4;
    var made = 0.0;
    for (var step = 0u; step < 9u; step = step + 1u) {
        var a = q;
        var b = r;
        var c = bitcast<f32>(SIGN);
        switch step {
            case 0u: { a = x; b = LOG2_E; }
            case 1u: { a = n; b = -LN2_HI; c = x; }
            case 2u: { a = n; b = -LN2_LO; c = r; }
            case 3u: { c = EXP_Q3; }
            case 4u: { c = EXP_Q2; }
            case 5u: { c = EXP_Q1; }
            case 6u: { c = EXP_Q0; }
            case 7u: { a = r; }
            default: { a = made; b = q; c = r; }
        }
        made = f_fma(a, b, c);
        switch step {
            case 0u: { n = round(made); }
            case 1u, 2u: { r = made; }
            case 3u, 4u, 5u, 6u: { q = made; }
            default: {}
        }
    }
    return Reduced(i32(n), made);
}
