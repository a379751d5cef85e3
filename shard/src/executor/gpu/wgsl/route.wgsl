// One workgroup a row: which experts it visits, in ascending order, and then the bits of their weights, as `cpu::experts` chooses
// them.
// params: 0 experts, 1 visited, 2 router (0 softmax, 1 softmax of the chosen, 2 sigmoid), 3 weights are divided by their sum,
// 4 bits of the factor.

@group(0) @binding(1) var<storage, read> params: array<u32>;
@group(0) @binding(2) var<storage, read> logits: array<f32>;
@group(0) @binding(3) var<storage, read_write> chosen: array<u32>;

var<workgroup> scores: array<f32, 512>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let t = local.x;
    let count = params[0];
    let used = params[1];
    let base = group.x * count;
    if (params[2] == 0u) {
        var largest = logits[base];
        for (var i = 1u; i < count; i = i + 1u) {
            if (logits[base + i] > largest) { largest = logits[base + i]; }
        }
        for (var i = t; i < count; i = i + 64u) { scores[i] = f_exp(f_add(logits[base + i], f_neg(largest))); }
        workgroupBarrier();
        if (t < 16u) {
            var sum = 0.0;
            for (var i = t; i < count; i = i + 16u) { sum = f_add(sum, scores[i]); }
            lanes[t] = sum;
        }
        workgroupBarrier();
        let whole = tree();
        for (var i = t; i < count; i = i + 64u) { scores[i] = f_div(scores[i], whole); }
    } else {
        for (var i = t; i < count; i = i + 64u) {
            var score = logits[base + i];
            if (params[2] == 2u) { score = f_div(1.0, f_add(1.0, f_exp(f_neg(score)))); }
            scores[i] = score;
        }
    }
    workgroupBarrier();
    if (t != 0u) { return; }
    var ids: array<u32, 32>;
    var shares: array<f32, 32>;
    for (var place = 0u; place < used; place = place + 1u) {
        var best = 0xffffffffu;
        for (var i = 0u; i < count; i = i + 1u) {
            var free = true;
            for (var taken = 0u; taken < place; taken = taken + 1u) { free = free && ids[taken] != i; }
            if (free && (best == 0xffffffffu || scores[i] > scores[best])) { best = i; }
        }
        ids[place] = best;
        shares[place] = scores[best];
    }
    if (params[2] == 1u) {
        let largest = shares[0];
        for (var i = 0u; i < used; i = i + 1u) { shares[i] = f_exp(f_add(shares[i], f_neg(largest))); }
    }
    var sum = 1.0;
    if (params[3] != 0u) {
        sum = 0.0;
        for (var i = 0u; i < used; i = i + 1u) { sum = f_add(sum, shares[i]); }
    }
    for (var i = 0u; i < used; i = i + 1u) {
        shares[i] = f_mul(f_div(shares[i], sum), bitcast<f32>(params[4]));
        var place = 0u;
        for (var other = 0u; other < used; other = other + 1u) {
            if (ids[other] < ids[i]) { place = place + 1u; }
        }
        let at = 2u * used * group.x + place;
        chosen[at] = ids[i];
        chosen[at + used] = bitcast<u32>(shares[i]);
    }
}
