// One operation on many operands: op(a, b, c), bits in and out.

@group(0) @binding(1) var<storage, read> params: array<u32>;
@group(0) @binding(2) var<storage, read> operands: array<u32>;
@group(0) @binding(3) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x;
    if (i >= params[0]) { return; }
    let a = bitcast<f32>(operands[3u * i]);
    let b = bitcast<f32>(operands[3u * i + 1u]);
    let c = bitcast<f32>(operands[3u * i + 2u]);
    out[i] = bitcast<u32>(OPERATION);
}
