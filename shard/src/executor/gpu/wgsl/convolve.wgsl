// One workgroup a row: a causal convolution of what was projected, channel by channel, and what the recurrence reads beside it.
// params: 0 channels, 1 stride of the projected rows, 2 rows that the convolution sees, 3 layer, 4 where its rows begin in a
// vector, 5 values of a vector; then what KIND says.

@group(0) @binding(1) var<storage, read> params: array<u32>;
@group(0) @binding(2) var<storage, read> projected: array<f32>;
// The convolution, `[rows that it sees][channels]`, oldest first, and then what KIND says.
@group(0) @binding(3) var<storage, read> constants: array<f32>;
@group(0) @binding(4) var<storage, read_write> vectors: array<f32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;
@group(0) @binding(6) var<storage, read_write> gates: array<f32>;

//KIND

// The session's first row, and the page of what lies before it.
var<private> first: u32;
var<private> before: u32;

// Input `at` of a session counted from the oldest one that its first row sees; those before its first row are remembered.
fn seen(at: u32, channel: u32) -> f32 {
    let old = params[2] - 1u;
    if (at >= old) { return input(first + at - old, channel); }
    if (before == NO_PAGE) { return 0.0; }
    return vectors[before * params[5] + params[4] + at * params[0] + channel];
}

// The last rows that the convolution sees of those before number `behind`, into the vector in `page`.
fn keep(behind: u32, page: u32, t: u32) {
    for (var old = 0u; old + 1u < params[2]; old = old + 1u) {
        for (var c = t; c < params[0]; c = c + 64u) {
            vectors[page * params[5] + params[4] + old * params[0] + c] = seen(behind + old, c);
        }
    }
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let t = local.x;
    let row = group.x;
    first = first_row(params[3], row);
    before = page_before(params[3], row);
    let number = row - first;
    for (var c = t; c < params[0]; c = c + 64u) {
        var sum = start(c);
        for (var tap = 0u; tap < params[2]; tap = tap + 1u) {
            sum = taken(seen(number + tap, c), constants[tap * params[0] + c], sum, tap);
        }
        out[row * params[0] + c] = made(sum, row, c);
    }
    beside(row, t);
    if (is_last(row)) { keep(number + 1u, page_behind(params[3], row), t); }
    let kept = page_kept(params[3], row);
    if (kept != NO_PAGE) { keep(number + 1u, kept, t); }
}
