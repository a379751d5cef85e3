fn fetch(b: u32) {
    let both = bytes(24u * b);
    scale = half(both);
    offset = half(both >> 16u);
    nibbles(24u * b + 8u);
    fifth_bits(bytes(24u * b + 4u));
}
fn chain(acc: f32, block: u32, dx: f32) -> f32 {
    return two_terms(acc, dot_all(block), sum(block), dx, 0u);
}
