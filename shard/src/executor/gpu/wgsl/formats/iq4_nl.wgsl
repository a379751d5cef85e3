fn fetch(b: u32) {
    scale = half(bytes(18u * b));
    nibbles(18u * b + 2u);
    look_up();
}
fn chain(acc: f32, block: u32, dx: f32) -> f32 { return f_fma(f32(dot_all(block)), f_mul(scale, dx), acc); }
