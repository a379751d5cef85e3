var<private> unit: vec2<i32>;

fn six_bits(at: u32, j: u32) -> i32 {
    let low = (byte(at + 96u + j % 8u) >> (4u * (j / 8u))) & 15u;
    let high = (byte(at + 104u + j % 4u) >> (2u * (j / 4u))) & 3u;
    return i32(low | (high << 4u)) - 32;
}
fn fetch(b: u32) {
    let at = 110u * (b / 8u);
    let g = b % 8u;
    scale = half(bytes(at + 108u));
    unit = vec2<i32>(six_bits(at, 2u * g), six_bits(at, 2u * g + 1u));
    for (var i = 0u; i < 8u; i = i + 1u) {
        let low = (bytes(at + 32u + 32u * (g / 4u) + 4u * i) >> (2u * (g % 4u))) & 0x03030303u;
        w[i] = low | (((bytes(at + 4u * i) >> g) & 0x01010101u) << 2u);
    }
}
fn chain(acc: f32, block: u32, dx: f32) -> f32 {
    let low = unit.x * (dot_half(block, 0u) - 4 * sums[2u * block]);
    let high = unit.y * (dot_half(block, 1u) - 4 * sums[2u * block + 1u]);
    return f_fma(f32(low + high), f_mul(scale, dx), acc);
}
