fn weight(k: u32) -> f32 { return bitcast<f32>(word(k)); }
