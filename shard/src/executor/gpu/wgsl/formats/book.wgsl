// Blocks of 256 as they are repacked: scale f16, two bytes, sixteen scales of 16 int8, sixteen bytes of codes for each 32.
var<private> unit: vec2<i32>;

fn fetch(b: u32) {
    let at = 148u * (b / 8u);
    let g = b % 8u;
    scale = half(bytes(at));
    let both = bytes(at + 4u + 2u * g);
    unit = vec2<i32>(bitcast<i32>(both << 24u) >> 24u, bitcast<i32>(both << 16u) >> 24u);
    nibbles(at + 20u + 16u * g);
    look_up();
}
fn chain(acc: f32, block: u32, dx: f32) -> f32 {
    if (HALVES) {
        let sum = unit.x * dot_half(block, 0u) + unit.y * dot_half(block, 1u);
        return f_fma(f32(sum), f_mul(f_mul(scale, UNIT), dx), acc);
    }
    let whole = f_mul(f_mul(scale, f32(unit.x)), UNIT);
    return f_fma(f32(dot_all(block)), f_mul(whole, dx), acc);
}
