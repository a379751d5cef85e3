// One workgroup a query head of a row, and one more for what its position stores: the part that rotates, in front, and for the latter
// the normed latent, as f16.
// params: 0 query heads, 1 width of a query, 2 its values in front of those that rotate, 3 how many of these, 4 width of the latent,
// 5 layer, 6 values that turn, 7 pairs stand apart, 8 bits of eps, 9 stride of the rows with the latent, 10 its first column.

@group(0) @binding(1) var<storage, read> params: array<u32>;
@group(0) @binding(2) var<storage, read> raw: array<f32>;
// The latent and then the part that rotates.
@group(0) @binding(3) var<storage, read> made: array<f32>;
@group(0) @binding(4) var<storage, read> angles: array<f32>;
@group(0) @binding(5) var<storage, read> norm: array<f32>;
@group(0) @binding(6) var<storage, read_write> queries: array<f32>;
@group(0) @binding(7) var<storage, read_write> pages: array<u32>;

var<workgroup> x: array<f32, 640>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let t = local.x;
    let row = group.y;
    let heads = params[0];
    let rotated = params[3];
    let rank = params[4];
    let dim = rotated + rank;
    let is_query = group.x < heads;
    let latent = row * params[9] + params[10];
    var begin = latent + rank;
    if (is_query) { begin = (row * heads + group.x) * params[1] + params[2]; }
    for (var i = t; i < rotated; i = i + 64u) {
        if (is_query) { x[i] = raw[begin + i]; } else { x[i] = made[begin + i]; }
    }
    if (!is_query) {
        for (var i = t; i < rank; i = i + 64u) { x[rotated + i] = made[latent + i]; }
    }
    workgroupBarrier();
    if (!is_query) {
        if (t < 16u) {
            var sum = 0.0;
            for (var i = t; i < rank; i = i + 16u) { sum = f_fma(x[rotated + i], x[rotated + i], sum); }
            lanes[t] = sum;
        }
        workgroupBarrier();
        let inverse = f_div(1.0, f_sqrt(f_add(f_div(tree(), f32(rank)), bitcast<f32>(params[8]))));
        for (var i = t; i < rank; i = i + 64u) { x[rotated + i] = f_mul(f_mul(x[rotated + i], inverse), norm[i]); }
    }
    turn(row, params[6], params[7], t);
    workgroupBarrier();
    if (is_query) {
        for (var i = t; i < rotated; i = i + 64u) { queries[(row * heads + group.x) * dim + i] = x[i]; }
        return;
    }
    let position = pass_info[4u + 2u * row];
    let first = page_of(params[5], row, position / 256u) * 128u * dim + position % 256u * (dim / 2u);
    for (var pair = t; pair < dim / 2u; pair = pair + 64u) {
        let low = to_half_bits(bitcast<u32>(x[2u * pair]));
        pages[first + pair] = low | (to_half_bits(bitcast<u32>(x[2u * pair + 1u])) << 16u);
    }
}
