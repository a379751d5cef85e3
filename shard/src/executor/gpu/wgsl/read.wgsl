// Reads all of a buffer, sixteen bytes a step: what the device's memory gives.
// params: 0 steps of sixteen bytes, 1 threads.

@group(0) @binding(1) var<storage, read> params: array<u32>;
@group(0) @binding(2) var<storage, read> source: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read_write> out: array<vec4<u32>>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var sums = vec4<u32>(0u);
    for (var i = id.x; i < params[0]; i = i + params[1]) { sums = sums ^ source[i]; }
    out[id.x] = sums;
}
