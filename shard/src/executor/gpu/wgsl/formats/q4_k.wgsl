fn fetch(b: u32) {
    let at = 144u * (b / 8u);
    let g = b % 8u;
    affine(at, g);
    for (var i = 0u; i < 8u; i = i + 1u) {
        w[i] = (bytes(at + 16u + 32u * (g / 2u) + 4u * i) >> (4u * (g % 2u))) & 0x0f0f0f0fu;
    }
}
fn chain(acc: f32, block: u32, dx: f32) -> f32 {
    return two_terms(acc, dot_all(block), sum(block), dx, SIGN);
}
