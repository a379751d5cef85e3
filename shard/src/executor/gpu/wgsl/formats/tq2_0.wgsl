fn fetch(b: u32) {
    let at = 66u * (b / 8u);
    let g = b % 8u;
    scale = half(bytes(at + 64u));
    for (var i = 0u; i < 8u; i = i + 1u) {
        w[i] = (bytes(at + 32u * (g / 4u) + 4u * i) >> (2u * (g % 4u))) & 0x03030303u;
    }
}
fn chain(acc: f32, block: u32, dx: f32) -> f32 {
    return f_fma(f32(dot_all(block) - sum(block)), f_mul(scale, dx), acc);
}
