// One workgroup some values of a row: the largest of them, largest first, the lowest id among equals. Values are compared as
// integers in the order of floats; one that is not finite comes before all others.
// params: 0 values a row, 1 how many of them, 2 values of a workgroup, 3 they are what workgroups before found, 4 workgroups of
// a row, 5 zeros of both signs are equal.

@group(0) @binding(1) var<storage, read> params: array<u32>;
@group(0) @binding(2) var<storage, read> values: array<u32>;
@group(0) @binding(3) var<storage, read> found: array<u32>;
@group(0) @binding(4) var<storage, read_write> out: array<u32>;

var<workgroup> keys: array<u32, 64>;
var<workgroup> ids: array<u32, 64>;

fn key_of(bits: u32) -> u32 {
    if ((bits & INFINITE) == INFINITE) { return 0xffffffffu; }
    if (bits == SIGN && params[5] != 0u) { return SIGN; }
    if ((bits & SIGN) != 0u) { return ~bits; }
    return bits | SIGN;
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let t = local.x;
    let row = group.y;
    let count = params[0];
    let most = params[1];
    let begin = group.x * params[2];
    let end = min(begin + params[2], count);
    let first = (row * params[4] + group.x) * most;
    let total = pass_info[0] * params[4] * most;
    var last_key = 0u;
    var last_id = 0u;
    for (var turn = 0u; turn < most; turn = turn + 1u) {
        var best_key = 0u;
        var best_id = 0xffffffffu;
        for (var i = begin + t; i < end; i = i + 64u) {
            var key = 0u;
            var id = i;
            if (params[3] != 0u) {
                id = found[row * count + i];
                key = found[(pass_info[0] + row) * count + i];
            } else {
                key = key_of(values[row * count + i]);
            }
            let follows = turn == 0u || key < last_key || (key == last_key && id > last_id);
            if (follows && (key > best_key || (key == best_key && id < best_id))) {
                best_key = key;
                best_id = id;
            }
        }
        keys[t] = best_key;
        ids[t] = best_id;
        workgroupBarrier();
        for (var width = 32u; width > 0u; width = width / 2u) {
            if (t < width) {
                let other = keys[t + width];
                if (other > keys[t] || (other == keys[t] && ids[t + width] < ids[t])) {
                    keys[t] = other;
                    ids[t] = ids[t + width];
                }
            }
            workgroupBarrier();
        }
        last_key = keys[0];
        last_id = ids[0];
        if (t == 0u) {
            out[first + turn] = select(last_id, 0xffffffffu, last_key == 0xffffffffu);
            out[total + first + turn] = last_key;
        }
        workgroupBarrier();
    }
}
