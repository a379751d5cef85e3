fn weight(k: u32) -> f32 { return bitcast<f32>((word(k / 2u) >> (16u * (k & 1u))) << 16u); }
