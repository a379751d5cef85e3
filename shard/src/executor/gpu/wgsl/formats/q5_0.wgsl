fn fetch(b: u32) {
    scale = half(bytes(22u * b));
    nibbles(22u * b + 6u);
    fifth_bits(bytes(22u * b + 2u));
}
fn chain(acc: f32, block: u32, dx: f32) -> f32 {
    return f_fma(f32(dot_all(block) - 16 * sum(block)), f_mul(scale, dx), acc);
}
