// One workgroup a head of a row of queries, keys or values: norm and rotation of queries and keys; queries go on as f32, keys and
// values into the state as f16.
// params: 0 query heads, 1 key heads, 2 width of a head, 3 layer, 4 values that rotate, 5 pairs stand apart,
// 6 norm of queries, 7 norm of keys, 8 bits of eps.

@group(0) @binding(1) var<storage, read> params: array<u32>;
@group(0) @binding(2) var<storage, read> qkv: array<f32>;
@group(0) @binding(3) var<storage, read> angles: array<f32>;
@group(0) @binding(4) var<storage, read> norms: array<f32>;
@group(0) @binding(5) var<storage, read_write> queries: array<f32>;
@group(0) @binding(6) var<storage, read_write> pages: array<u32>;

var<workgroup> x: array<f32, 256>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let t = local.x;
    let row = group.y;
    let heads = params[0];
    let kv_heads = params[1];
    let dim = params[2];
    let stride = (heads + 2u * kv_heads) * dim;
    for (var d = t; d < dim; d = d + 64u) { x[d] = qkv[row * stride + group.x * dim + d]; }
    workgroupBarrier();
    let is_query = group.x < heads;
    let is_value = group.x >= heads + kv_heads;
    let normed = (is_query && params[6] != 0u) || (!is_query && !is_value && params[7] != 0u);
    if (normed) {
        let norm = select(dim, 0u, is_query);
        if (t < 16u) {
            var sum = 0.0;
            for (var d = t; d < dim; d = d + 16u) { sum = f_fma(x[d], x[d], sum); }
            lanes[t] = sum;
        }
        workgroupBarrier();
        let inverse = f_div(1.0, f_sqrt(f_add(f_div(tree(), f32(dim)), bitcast<f32>(params[8]))));
        for (var d = t; d < dim; d = d + 64u) { x[d] = f_mul(f_mul(x[d], inverse), norms[norm + d]); }
        workgroupBarrier();
    }
    if (!is_value) {
        let turning = params[4];
        for (var pair = t; pair < turning / 2u; pair = pair + 64u) {
            var low = 2u * pair;
            var high = low + 1u;
            if (params[5] != 0u) {
                low = pair;
                high = pair + turning / 2u;
            }
            let cosine = angles[row * turning + 2u * pair];
            let sine = angles[row * turning + 2u * pair + 1u];
            let a = x[low];
            let b = x[high];
            x[low] = f_fma(a, cosine, f_neg(f_mul(b, sine)));
            x[high] = f_fma(a, sine, f_mul(b, cosine));
        }
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
