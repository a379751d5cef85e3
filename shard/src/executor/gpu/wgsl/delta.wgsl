// One workgroup a value head of a session, its rows one after the other, as `kernels::delta` says; a thread has columns of its own.
// Those of other rows than a session's first have nothing to do. The results take the place of the values that were projected.
// params: 0 heads of keys, 1 heads of values, 2 width of a key, 3 width of a value, 4 heads of keys take turns, 5 every channel
// of a key has a decay, 6 layer, 7 values of a vector, 8 stride of out.

@group(0) @binding(1) var<storage, read> params: array<u32>;
// q, k and v.
@group(0) @binding(2) var<storage, read> inputs: array<f32>;
// Strengths and then decays of each row.
@group(0) @binding(3) var<storage, read> gates: array<f32>;
@group(0) @binding(4) var<storage, read_write> vectors: array<f32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let head = group.x;
    let first = group.y;
    let layer = params[6];
    if (first_row(layer, first) != first) { return; }
    let heads = params[1];
    let key_dim = params[2];
    let dim = params[3];
    let key_width = params[0] * key_dim;
    let channels = 2u * key_width + heads * dim;
    let own = select(1u, key_dim, params[5] != 0u);
    var key_head = head / (heads / params[0]);
    if (params[4] != 0u) { key_head = head % params[0]; }
    let to = page_behind(layer, first) * params[7];
    for (var column = local.x; column < dim; column = column + 64u) {
        let place = head * key_dim * dim + column;
        var page = page_before(layer, first);
        for (var row = first; ; row = row + 1u) {
            let begin = page * params[7] + place;
            let q = row * channels + key_head * key_dim;
            let k = q + key_width;
            let gate = row * heads * (1u + own);
            let decays = gate + heads + head * own;
            var known = 0.0;
            if (page != NO_PAGE) {
                for (var i = 0u; i < key_dim; i = i + 1u) {
                    var state = vectors[begin + i * dim];
                    if (params[5] != 0u) { state = f_mul(state, gates[decays + i]); }
                    known = f_fma(state, inputs[k + i], known);
                }
            }
            if (params[5] == 0u) { known = f_mul(known, gates[decays]); }
            let value = inputs[row * channels + 2u * key_width + head * dim + column];
            let missing = f_mul(f_add(value, f_neg(known)), gates[gate + head]);
            let kept = page_kept(layer, row);
            var sum = 0.0;
            for (var i = 0u; i < key_dim; i = i + 1u) {
                var state = 0.0;
                if (page != NO_PAGE) { state = vectors[begin + i * dim]; }
                let decay = gates[decays + select(0u, i, params[5] != 0u)];
                let next = f_fma(missing, inputs[k + i], f_mul(state, decay));
                vectors[to + place + i * dim] = next;
                if (kept != NO_PAGE) { vectors[kept * params[7] + place + i * dim] = next; }
                sum = f_fma(next, inputs[q + i], sum);
            }
            out[row * params[8] + 2u * key_width + head * dim + column] = sum;
            page = page_behind(layer, first);
            if (is_last(row)) { break; }
        }
    }
}
