// Addition, product and fused product of a device that rounds them once and keeps subnormals. A product passes through
// an opaque bit operation, so that no compiler fuses it with an addition that follows.

fn f_add(a: f32, b: f32) -> f32 { return a + b; }
fn f_mul(a: f32, b: f32) -> f32 { return bitcast<f32>(bitcast<u32>(a * b) ^ pass_info[3]); }
