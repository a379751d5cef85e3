fn fetch(b: u32) {
    let at = 18u * (b / 2u);
    scale = half(bytes(at));
    for (var i = 0u; i < 8u; i = i + 1u) {
        let four = bytes(at + 2u + 8u * (b % 2u) + i) & 255u;
        w[i] = (four & 3u) | ((four & 12u) << 6u) | ((four & 48u) << 12u) | ((four & 192u) << 18u);
    }
}
fn chain(acc: f32, block: u32, dx: f32) -> f32 {
    return f_fma(f32(dot_all(block) - sum(block)), f_mul(scale, dx), acc);
}
