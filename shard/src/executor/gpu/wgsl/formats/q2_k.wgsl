var<private> units: vec4<i32>;

fn fetch(b: u32) {
    let at = 84u * (b / 8u);
    let g = b % 8u;
    let both = bytes(at + 2u * g);
    units = vec4<i32>(i32(both & 15u), i32((both >> 4u) & 15u), i32((both >> 8u) & 15u), i32((both >> 12u) & 15u));
    let scales = bytes(at + 80u);
    scale = half(scales);
    offset = half(scales >> 16u);
    for (var i = 0u; i < 8u; i = i + 1u) {
        w[i] = (bytes(at + 16u + 32u * (g / 4u) + 4u * i) >> (2u * (g % 4u))) & 0x03030303u;
    }
}
fn chain(acc: f32, block: u32, dx: f32) -> f32 {
    let coded = units.x * dot_half(block, 0u) + units.z * dot_half(block, 1u);
    let minima = units.y * sums[2u * block] + units.w * sums[2u * block + 1u];
    return two_terms(acc, coded, minima, dx, SIGN);
}
