fn fetch(b: u32) {
    let at = 18u * (b / 4u);
    scale = half(bytes(at));
    let signs = bytes(at + 2u + 4u * (b % 4u));
    for (var i = 0u; i < 8u; i = i + 1u) {
        let four = (signs >> (4u * i)) & 15u;
        w[i] = ((four & 1u) << 1u) | ((four & 2u) << 8u) | ((four & 4u) << 15u) | ((four & 8u) << 22u);
    }
}
fn chain(acc: f32, block: u32, dx: f32) -> f32 {
    return f_fma(f32(dot_all(block) - sum(block)), f_mul(scale, dx), acc);
}
