// One workgroup a row: which experts it visits, in ascending order, then the bits of their weights, and then those of the weight of
// the expert that all rows visit, as `cpu::experts` chooses them.
// params: 0 experts, 1 visited, 2 router (0 softmax, 1 softmax of the chosen, 2 sigmoid), 3 weights are divided by their sum,
// 4 bits of the factor, 5 logits of a row, 6 what `aside` has (1 what is added for the choice alone, 2 factors on weights), 7 groups, 8 groups that stay open, 9 how many
// of the best of a group speak for it, 10 the one that all rows visit is one more expert, behind the others. A logit more than there
// are experts is its gate.

@group(0) @binding(1) var<storage, read> params: array<u32>;
@group(0) @binding(2) var<storage, read> logits: array<f32>;
@group(0) @binding(3) var<storage, read> aside: array<f32>;
@group(0) @binding(4) var<storage, read_write> chosen: array<u32>;

var<workgroup> scores: array<f32, 512>;
// What they are chosen by.
var<workgroup> keys: array<f32, 512>;

// Below every number; no constant, which compilers refuse.
fn lowest() -> f32 { return bitcast<f32>(0xff800000u | pass_info[3]); }

// Puts the experts of all groups but the best out of reach.
fn close_groups(count: u32) {
    let size = count / params[7];
    for (var closed = params[8]; closed < params[7]; closed = closed + 1u) {
        var worst = params[7];
        var least = 0.0;
        for (var g = 0u; g < params[7]; g = g + 1u) {
            var first = lowest();
            var second = lowest();
            for (var i = g * size; i < (g + 1u) * size; i = i + 1u) {
                if (keys[i] > first) {
                    second = first;
                    first = keys[i];
                } else if (keys[i] > second) {
                    second = keys[i];
                }
            }
            if (size > 1u && params[9] > 1u) { first = f_add(first, second); }
            if (first > lowest() && (worst == params[7] || first <= least)) {
                worst = g;
                least = first;
            }
        }
        if (worst == params[7]) { return; }
        for (var i = worst * size; i < (worst + 1u) * size; i = i + 1u) { keys[i] = lowest(); }
    }
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let t = local.x;
    let count = params[0];
    let used = params[1];
    let base = group.x * params[5];
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
            if (params[2] == 2u) { score = f_sigmoid(score); }
            scores[i] = score;
        }
    }
    for (var i = t; i < count; i = i + 64u) {
        keys[i] = scores[i];
        if (params[6] == 1u) { keys[i] = f_add(scores[i], aside[i]); }
    }
    workgroupBarrier();
    if (t != 0u) { return; }
    if (params[7] > 1u) { close_groups(count); }
    var ids: array<u32, 32>;
    var shares: array<f32, 32>;
    for (var place = 0u; place < used; place = place + 1u) {
        var best = 0xffffffffu;
        for (var i = 0u; i < count; i = i + 1u) {
            var free = true;
            for (var taken = 0u; taken < place; taken = taken + 1u) { free = free && ids[taken] != i; }
            if (free && (best == 0xffffffffu || keys[i] > keys[best])) { best = i; }
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
    let visited = used + params[10];
    let at = (2u * visited + 1u) * group.x;
    for (var i = 0u; i < used; i = i + 1u) {
        shares[i] = f_mul(f_div(shares[i], sum), bitcast<f32>(params[4]));
        if (params[6] == 2u) { shares[i] = f_mul(shares[i], aside[ids[i]]); }
        var place = at;
        for (var other = 0u; other < used; other = other + 1u) {
            if (ids[other] < ids[i]) { place = place + 1u; }
        }
        chosen[place] = ids[i];
        chosen[place + visited] = bitcast<u32>(shares[i]);
    }
    var whole = 1.0;
    if (params[5] > count) { whole = f_sigmoid(logits[base + count]); }
    if (params[10] != 0u) {
        chosen[at + used] = count;
        chosen[at + visited + used] = bitcast<u32>(whole);
    }
    chosen[at + 2u * visited] = bitcast<u32>(whole);
}
