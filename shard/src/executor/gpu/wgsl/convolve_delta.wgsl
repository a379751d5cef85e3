// q, k and v of a delta net, and for each row the strengths and then the decays of its heads, or of every channel of their keys.
// params: 6 heads of keys, 7 width of a key, 8 bits of the factor on queries, 9 heads of values, 10 decays, 11 where strengths are
// projected, 12 where decays are. constants behind the convolution: what is added to decays, their factors.
fn input(row: u32, channel: u32) -> f32 { return projected[row * params[1] + channel]; }
fn start(channel: u32) -> f32 { return 0.0; }
fn taken(x: f32, w: f32, sum: f32, tap: u32) -> f32 {
    if (tap == 0u) { return f_mul(x, w); }
    return f_fma(x, w, sum);
}
fn made(sum: f32, row: u32, channel: u32) -> f32 { return f_silu(sum); }

var<workgroup> sums_of_threads: array<f32, 64>;

fn beside(row: u32, t: u32) {
    storageBarrier();
    workgroupBarrier();
    let dim = params[7];
    let lane = t % 16u;
    // Heads of queries and then of keys, four at a time, sixteen threads each.
    for (var four = 0u; four < 2u * params[6]; four = four + 4u) {
        let head = four + t / 16u;
        let at = row * params[0] + head * dim;
        var sum = 0.0;
        if (head < 2u * params[6]) {
            for (var i = lane; i < dim; i = i + 16u) { sum = f_fma(out[at + i], out[at + i], sum); }
        }
        sums_of_threads[t] = sum;
        workgroupBarrier();
        if (head < 2u * params[6]) {
            var sums: array<f32, 16>;
            for (var i = 0u; i < 16u; i = i + 1u) { sums[i] = sums_of_threads[t - lane + i]; }
            let inverse = f_div(1.0, f_sqrt(f_add(tree_of(sums), 1e-6)));
            var factor = 1.0;
            if (head < params[6]) { factor = bitcast<f32>(params[8]); }
            for (var i = lane; i < dim; i = i + 16u) { out[at + i] = f_mul(f_mul(out[at + i], inverse), factor); }
        }
        workgroupBarrier();
    }
    let heads = params[9];
    let decays = params[10];
    let to = row * (heads + decays);
    for (var h = t; h < heads; h = h + 64u) {
        gates[to + h] = f_sigmoid(projected[row * params[1] + params[11] + h]);
    }
    let constant = params[2] * params[0];
    for (var i = t; i < decays; i = i + 64u) {
        let step = f_softplus(f_add(projected[row * params[1] + params[12] + i], constants[constant + i]));
        gates[to + heads + i] = f_exp(f_mul(constants[constant + decays + i], step));
    }
}
