// One workgroup a row: x += y, or the norm of y, with or without a factor; then x may be scaled.
// params: 0 columns, 1 bits of eps, 2 y is normed, 3 how it is added (0 it takes the place of x, 1 as it is, 2 with a factor), 4 bits of
// the factor, 5 x is scaled, 6 bits of that factor.

@group(0) @binding(1) var<storage, read> params: array<u32>;
@group(0) @binding(2) var<storage, read> y: array<f32>;
@group(0) @binding(3) var<storage, read> weight: array<f32>;
@group(0) @binding(4) var<storage, read_write> x: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let t = local.x;
    let cols = params[0];
    let base = group.x * cols;
    var inverse = 1.0;
    if (params[2] != 0u) {
        if (t < 16u) {
            var sum = 0.0;
            for (var i = t; i < cols; i = i + 16u) { sum = f_fma(y[base + i], y[base + i], sum); }
            lanes[t] = sum;
        }
        workgroupBarrier();
        inverse = f_div(1.0, f_sqrt(f_add(f_div(tree(), f32(cols)), bitcast<f32>(params[1]))));
    }
    for (var i = t; i < cols; i = i + 64u) {
        var made = y[base + i];
        if (params[2] != 0u) { made = f_mul(f_mul(made, inverse), weight[i]); }
        if (params[3] == 1u) { made = f_add(x[base + i], made); }
        if (params[3] == 2u) { made = f_fma(made, bitcast<f32>(params[4]), x[base + i]); }
        if (params[5] != 0u) { made = f_mul(made, bitcast<f32>(params[6])); }
        x[base + i] = made;
    }
}
