fn fetch(b: u32) {
    let at = 34u * b;
    scale = half(bytes(at));
    for (var i = 0u; i < 8u; i = i + 1u) { w[i] = bytes(at + 2u + 4u * i); }
}
fn chain(acc: f32, block: u32, dx: f32) -> f32 { return f_fma(f32(dot_all(block)), f_mul(scale, dx), acc); }
