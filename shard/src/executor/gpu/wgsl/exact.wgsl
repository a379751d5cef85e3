// Addition and product in integers, for devices that flush subnormals.

fn f_add(a: f32, b: f32) -> f32 {
    return bitcast<f32>(fma_bits(bitcast<u32>(a), 0x3f800000u, bitcast<u32>(b)));
}
fn f_mul(a: f32, b: f32) -> f32 {
    return bitcast<f32>(fma_bits(bitcast<u32>(a), bitcast<u32>(b), SIGN));
}
