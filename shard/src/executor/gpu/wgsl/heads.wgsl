// One workgroup a head of a row of queries, keys or values: norm and rotation of queries and keys; queries go on as f32, keys and
// values into the state as f16.
// params: 0 query heads, 1 key heads, 2 width of a head, 3 layer, 4 values that rotate, 5 pairs stand apart,
// 6 norm of queries, 7 norm of keys, 8 bits of eps, 9 behind each head of queries lies its gate, 10 values are the
// keys as projected, 11 values have a norm without weights.

@group(0) @binding(1) var<storage, read> params: array<u32>;
@group(0) @binding(2) var<storage, read> qkv: array<f32>;
@group(0) @binding(3) var<storage, read> angles: array<f32>;
@group(0) @binding(4) var<storage, read> norms: array<f32>;
@group(0) @binding(5) var<storage, read_write> queries: array<f32>;
@group(0) @binding(6) var<storage, read_write> pages: array<u32>;

var<workgroup> x: array<f32, 512>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let t = local.x;
    let row = group.y;
    let heads = params[0];
    let kv_heads = params[1];
    let dim = params[2];
    let is_query = group.x < heads;
    let gates = heads * params[9];
    let stride = (heads + gates + (2u - params[10]) * kv_heads) * dim;
    var begin = group.x + gates;
    let is_value = group.x >= heads + kv_heads;
    if (is_query) { begin = group.x * (1u + params[9]); }
    if (is_value) { begin = begin - kv_heads * params[10]; }
    for (var d = t; d < dim; d = d + 64u) { x[d] = qkv[row * stride + begin * dim + d]; }
    workgroupBarrier();
    var normed = params[7];
    if (is_query) { normed = params[6]; }
    if (is_value) { normed = params[11]; }
    if (normed != 0u) {
        let norm = select(dim, 0u, is_query);
        if (t < 16u) {
            var sum = 0.0;
            for (var d = t; d < dim; d = d + 16u) { sum = f_fma(x[d], x[d], sum); }
            lanes[t] = sum;
        }
        workgroupBarrier();
        let inverse = f_div(1.0, f_sqrt(f_add(f_div(tree(), f32(dim)), bitcast<f32>(params[8]))));
        for (var d = t; d < dim; d = d + 64u) {
            x[d] = f_mul(x[d], inverse);
            if (!is_value) { x[d] = f_mul(x[d], norms[norm + d]); }
        }
        workgroupBarrier();
    }
    if (!is_value) {
        turn(row, params[4], params[5], t);
    }
    workgroupBarrier();
    if (is_query) {
        for (var d = t; d < dim; d = d + 64u) { queries[row * heads * dim + group.x * dim + d] = x[d]; }
        return;
    }
    let position = pass_info[4u + 2u * row];
    let words = kv_heads * dim;
    let at = page_of(params[3], row, position / 256u) * 256u * words + (position % 256u) * words;
    // Keys of all heads, then values, two a word.
    let first = at + (group.x - heads) * dim / 2u;
    for (var pair = t; pair < dim / 2u; pair = pair + 64u) {
        let low = to_half_bits(bitcast<u32>(x[2u * pair]));
        pages[first + pair] = low | (to_half_bits(bitcast<u32>(x[2u * pair + 1u])) << 16u);
    }
}
