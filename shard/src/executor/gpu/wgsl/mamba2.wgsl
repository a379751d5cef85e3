// One workgroup a head of a session, its rows one after the other, as `kernels::mamba2` says; a thread has columns of its own. Those
// of other rows than a session's first have nothing to do. The results take the place of the x that was projected.
// params: 0 heads, 1 width of a head, 2 rows of its state, 3 groups of heads, 4 layer, 5 values of a vector, 6 stride of out, 7 first
// column in out.

@group(0) @binding(1) var<storage, read> params: array<u32>;
// x, b and c.
@group(0) @binding(2) var<storage, read> inputs: array<f32>;
// Steps and then decays of each row.
@group(0) @binding(3) var<storage, read> gates: array<f32>;
@group(0) @binding(4) var<storage, read> skip: array<f32>;
@group(0) @binding(5) var<storage, read_write> vectors: array<f32>;
@group(0) @binding(6) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let head = group.x;
    let first = group.y;
    let layer = params[4];
    if (first_row(layer, first) != first) { return; }
    let heads = params[0];
    let dim = params[1];
    let states = params[2];
    let channels = heads * dim + 2u * params[3] * states;
    let to = page_behind(layer, first) * params[5];
    for (var column = local.x; column < dim; column = column + 64u) {
        let place = head * states * dim + column;
        var page = page_before(layer, first);
        for (var row = first; ; row = row + 1u) {
            let begin = page * params[5] + place;
            let b = row * channels + heads * dim + head / (heads / params[3]) * states;
            let c = b + params[3] * states;
            let x = inputs[row * channels + head * dim + column];
            let taken = f_mul(x, gates[2u * row * heads + head]);
            let decay = gates[2u * row * heads + heads + head];
            let kept = page_kept(layer, row);
            var sum = 0.0;
            for (var i = 0u; i < states; i = i + 1u) {
                var state = 0.0;
                if (page != NO_PAGE) { state = vectors[begin + i * dim]; }
                let next = f_fma(taken, inputs[b + i], f_mul(state, decay));
                vectors[to + place + i * dim] = next;
                if (kept != NO_PAGE) { vectors[kept * params[5] + place + i * dim] = next; }
                sum = f_fma(next, inputs[c + i], sum);
            }
            out[row * params[6] + params[7] + head * dim + column] = f_fma(x, skip[head], sum);
            page = page_behind(layer, first);
            if (is_last(row)) { break; }
        }
    }
}
