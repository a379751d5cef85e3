var<private> unit: vec2<i32>;

fn fetch(b: u32) {
    let at = 210u * (b / 8u);
    let g = b % 8u;
    let h = g / 4u;
    let k = g % 4u;
    scale = half(bytes(at + 208u));
    let both = bytes(at + 192u + 2u * g);
    unit = vec2<i32>(bitcast<i32>(both << 24u) >> 24u, bitcast<i32>(both << 16u) >> 24u);
    for (var i = 0u; i < 8u; i = i + 1u) {
        let low = (bytes(at + 64u * h + 32u * (k % 2u) + 4u * i) >> (4u * (k / 2u))) & 0x0f0f0f0fu;
        let high = (bytes(at + 128u + 32u * h + 4u * i) >> (2u * k)) & 0x03030303u;
        w[i] = low | (high << 4u);
    }
}
fn chain(acc: f32, block: u32, dx: f32) -> f32 {
    let low = unit.x * (dot_half(block, 0u) - 32 * sums[2u * block]);
    let high = unit.y * (dot_half(block, 1u) - 32 * sums[2u * block + 1u]);
    return f_fma(f32(low + high), f_mul(scale, dx), acc);
}
