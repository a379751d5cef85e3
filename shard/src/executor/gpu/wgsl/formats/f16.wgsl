fn weight(k: u32) -> f32 { return half(word(k / 2u) >> (16u * (k & 1u))); }
