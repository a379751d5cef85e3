// One workgroup a query head of a row, over the pages of its session, as `kernels::attention` says.
// params: 0 query heads, 1 key heads, 2 width of a head, 3 layer, 4 window, 5 bits of the scale, 6 bits of the softcap, 7 has
// sinks, 8 words of a position, 9 words from a key to its value, 10 width of a value. A sink is what a page of one score would be whose value is 0.

@group(0) @binding(1) var<storage, read> params: array<u32>;
@group(0) @binding(2) var<storage, read> queries: array<f32>;
@group(0) @binding(3) var<storage, read> pages: array<u32>;
@group(0) @binding(4) var<storage, read> sinks: array<f32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;

var<workgroup> q: array<f32, QUERY>;
var<workgroup> p: array<f32, 256>;

fn score(at: u32, dim: u32) -> f32 {
    var sums: array<f32, 16>;
    for (var i = 0u; i < 16u; i = i + 1u) { sums[i] = 0.0; }
    for (var pair = 0u; pair < dim / 2u; pair = pair + 1u) {
        let both = pages[at + pair];
        for (var i = 0u; i < 2u; i = i + 1u) {
            let d = 2u * pair + i;
            let lane = d % 16u;
            sums[lane] = f_fma(half(both >> (16u * i)), q[d], sums[lane]);
        }
    }
    return tree_of(sums);
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let t = local.x;
    let head = group.x;
    let row = group.y;
    let heads = params[0];
    let dim = params[2];
    let words = params[8];
    let width = params[10];
    let kv_head = head / (heads / params[1]);
    let position = pass_info[4u + 2u * row];
    let end = position + 1u;
    var begin = 0u;
    if (end > params[4]) { begin = end - params[4]; }
    for (var d = t; d < dim; d = d + 64u) { q[d] = queries[(row * heads + head) * dim + d]; }
    var maximum = 0.0;
    // What each thread has of the values, and behind them the sum of the weights.
    var o: array<f32, COLUMNS + 1>;
    let pages_end = position / 256u + 1u;
    for (var page = begin / 256u; page < pages_end + params[7]; page = page + 1u) {
        let base = 256u * page;
        var m = 0.0;
        var mixed: array<f32, COLUMNS + 1>;
        for (var i = 0u; i <= COLUMNS; i = i + 1u) { mixed[i] = 0.0; }
        if (page == pages_end) {
            m = sinks[head];
            mixed[COLUMNS] = 1.0;
        } else {
            let first = max(begin, base) - base;
            let last = min(end, base + 256u) - base;
            let keys = page_of(params[3], row, page) * 256u * words + kv_head * dim / 2u;
            let values = keys + params[9];
            workgroupBarrier();
            for (var j = first + t; j < last; j = j + 64u) {
                var s = f_mul(score(keys + j * words, dim), bitcast<f32>(params[5]));
//SOFTCAP
                p[j] = s;
            }
            workgroupBarrier();
            m = p[first];
            for (var j = first + 1u; j < last; j = j + 1u) {
                if (p[j] > m) { m = p[j]; }
            }
            workgroupBarrier();
            for (var j = first + t; j < last; j = j + 64u) { p[j] = f_exp(f_add(p[j], f_neg(m))); }
            workgroupBarrier();
            if (t < 16u) {
                var l = 0.0;
                for (var j = first / 16u * 16u + t; j < last; j = j + 16u) {
                    if (j >= first) { l = f_add(l, p[j]); }
                }
                lanes[t] = l;
            }
            workgroupBarrier();
            mixed[COLUMNS] = tree();
            for (var i = 0u; i < COLUMNS; i = i + 1u) {
                let d = t + 64u * i;
                if (d < width) {
                    for (var j = first; j < last; j = j + 1u) {
                        let both = pages[values + j * words + d / 2u];
                        mixed[i] = f_fma(p[j], half(both >> (16u * (d & 1u))), mixed[i]);
                    }
                }
            }
        }
        if (base <= begin) {
            maximum = m;
            o = mixed;
        } else {
            let before = maximum;
            if (!(maximum > m)) { maximum = m; }
            // Of what is there, and of this page.
            var factors = array<f32, 2>(before, m);
            for (var i = 0u; i < 2u; i = i + 1u) { factors[i] = f_exp(f_add(factors[i], f_neg(maximum))); }
            for (var i = 0u; i <= COLUMNS; i = i + 1u) {
                o[i] = f_add(f_mul(o[i], factors[0]), f_mul(mixed[i], factors[1]));
            }
        }
    }
    for (var i = 0u; i < COLUMNS; i = i + 1u) {
        let d = t + 64u * i;
        if (d < width) { out[(row * heads + head) * width + d] = f_add(f_div(o[i], o[COLUMNS]), 0.0); }
    }
}
