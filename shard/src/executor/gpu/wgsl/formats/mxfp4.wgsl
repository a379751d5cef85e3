fn fetch(b: u32) {
    let e = byte(17u * b);
    var bits = 0u;
    if (e == 1u) { bits = 0x00400000u; }
    if (e > 1u) { bits = (e - 1u) << 23u; }
    scale = bitcast<f32>(bits);
    nibbles(17u * b + 1u);
    look_up();
}
fn chain(acc: f32, block: u32, dx: f32) -> f32 { return f_fma(f32(dot_all(block)), f_mul(scale, dx), acc); }
