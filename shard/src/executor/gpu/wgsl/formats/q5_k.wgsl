fn fetch(b: u32) {
    let at = 176u * (b / 8u);
    let g = b % 8u;
    affine(at, g);
    for (var i = 0u; i < 8u; i = i + 1u) {
        let low = (bytes(at + 48u + 32u * (g / 2u) + 4u * i) >> (4u * (g % 2u))) & 0x0f0f0f0fu;
        w[i] = low | (((bytes(at + 16u + 4u * i) >> g) & 0x01010101u) << 4u);
    }
}
fn chain(acc: f32, block: u32, dx: f32) -> f32 {
    return two_terms(acc, dot_all(block), sum(block), dx, SIGN);
}
