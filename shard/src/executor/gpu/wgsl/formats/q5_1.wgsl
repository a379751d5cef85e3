fn fetch(b: u32) {
    let both = bytes(24u * b);
    scale = half(both);
    offset = half(both >> 16u);
    nibbles(24u * b + 8u);
    fifth_bits(bytes(24u * b + 4u));
}
fn chain(acc: f32, block: u32, dx: f32) -> f32 {
    let first = f_fma(f32(dot_all(block)), f_mul(scale, dx), acc);
    return f_fma(f32(sum(block)), f_mul(offset, dx), first);
}
