fn f_fma(a: f32, b: f32, c: f32) -> f32 {
    return bitcast<f32>(fma_bits(bitcast<u32>(a), bitcast<u32>(b), bitcast<u32>(c)));
}
