var<private> unit: vec2<f32>;

// Half of an eight-bit float without its sign.
fn halved(x: u32) -> f32 {
    if (x == 127u) { return 0.0; }
    let exponent = (x >> 3u) & 15u;
    let mantissa = (x & 7u) | select(8u, 0u, exponent == 0u);
    return f_mul(f32(mantissa), bitcast<f32>((max(exponent, 1u) + 116u) << 23u));
}
fn fetch(b: u32) {
    let at = 36u * (b / 2u);
    let i = b % 2u;
    let both = bytes(at + 2u * i);
    unit = vec2<f32>(halved(both & 255u), halved((both >> 8u) & 255u));
    for (var g = 0u; g < 8u; g = g + 1u) {
        w[g] = (bytes(at + 4u + 16u * i + 8u * (g / 4u) + 4u * (g % 2u)) >> (4u * (g % 4u / 2u))) & 0x0f0f0f0fu;
    }
    look_up();
}
fn chain(acc: f32, block: u32, dx: f32) -> f32 {
    let low = f_mul(unit.x, f32(dot_half(block, 0u)));
    return f_fma(f_fma(unit.y, f32(dot_half(block, 1u)), low), dx, acc);
}
