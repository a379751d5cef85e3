// One workgroup for all queries of a row and one for all keys: their norm, in place.
// params: 0 width of all queries, 1 width of all keys, 2 values of a projected row, 3 bits of eps.

@group(0) @binding(1) var<storage, read> params: array<u32>;
// Of queries, then of keys.
@group(0) @binding(2) var<storage, read> norms: array<f32>;
@group(0) @binding(3) var<storage, read_write> projected: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let t = local.x;
    let width = params[group.x];
    let skipped = group.x * params[0];
    let at = group.y * params[2] + skipped;
    if (t < 16u) {
        var sum = 0.0;
        for (var i = t; i < width; i = i + 16u) { sum = f_fma(projected[at + i], projected[at + i], sum); }
        lanes[t] = sum;
    }
    workgroupBarrier();
    let inverse = f_div(1.0, f_sqrt(f_add(f_div(tree(), f32(width)), bitcast<f32>(params[3]))));
    for (var i = t; i < width; i = i + 64u) {
        projected[at + i] = f_mul(f_mul(projected[at + i], inverse), norms[skipped + i]);
    }
}
