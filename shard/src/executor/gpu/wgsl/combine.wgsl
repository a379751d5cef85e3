// One workgroup a row: what its experts made, times their weights, one after the other, added to the residual row or kept.
// params: 0 columns, 1 experts a row, 2 how it is added (0 kept, 1 as it is, 2 with a factor), 3 bits of the factor.

@group(0) @binding(1) var<storage, read> params: array<u32>;
@group(0) @binding(2) var<storage, read> made: array<f32>;
@group(0) @binding(3) var<storage, read> weights: array<f32>;
@group(0) @binding(4) var<storage, read_write> x: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let cols = params[0];
    let used = params[1];
    for (var i = local.x; i < cols; i = i + 64u) {
        var y = 0.0;
        for (var slot = 0u; slot < used; slot = slot + 1u) {
            let at = group.x * used + slot;
            y = f_fma(made[at * cols + i], weights[at], y);
        }
        let to = group.x * cols + i;
        if (params[2] == 1u) { y = f_add(x[to], y); }
        if (params[2] == 2u) { y = f_fma(y, bitcast<f32>(params[3]), x[to]); }
        x[to] = y;
    }
}
