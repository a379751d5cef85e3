fn fetch(b: u32) {
    let at = 144u * (b / 8u);
    let g = b % 8u;
    affine(at, g);
    for (var i = 0u; i < 8u; i = i + 1u) {
        w[i] = (bytes(at + 16u + 32u * (g / 2u) + 4u * i) >> (4u * (g % 2u))) & 0x0f0f0f0fu;
    }
}
fn chain(acc: f32, block: u32, dx: f32) -> f32 {
    let first = f_fma(f32(dot_all(block)), f_mul(scale, dx), acc);
    return f_fma(f32(sum(block)), f_neg(f_mul(offset, dx)), first);
}
