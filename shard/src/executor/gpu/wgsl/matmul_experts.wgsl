// out = matrix of an expert * row: one thread an output of one visit of a row. All experts' matrices lie one behind the other, each
// in tiles of 32 rows as in `matmul`.
// params: 0 outputs, 1 columns, 2 words a row, 3 stride of out, 4 words of an expert, 5 visits that read one row.

@group(0) @binding(1) var<storage, read> params: array<u32>;
@group(0) @binding(2) var<storage, read> matrix: array<u32>;
@group(0) @binding(3) var<storage, read> codes: array<u32>;
@group(0) @binding(4) var<storage, read> scales: array<f32>;
@group(0) @binding(5) var<storage, read> sums: array<i32>;
@group(0) @binding(6) var<storage, read> chosen: array<u32>;
@group(0) @binding(7) var<storage, read_write> out: array<f32>;

var<private> first_word: u32;

fn word(index: u32) -> u32 { return matrix[first_word + 32u * index]; }

// Four bytes from byte `at` of the row on.
fn bytes(at: u32) -> u32 {
    let s = 8u * (at & 3u);
    let low = word(at / 4u);
    if (s == 0u) { return low; }
    return (low >> s) | (word(at / 4u + 1u) << (32u - s));
}

//FORMAT

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let output = id.x;
    let visit = id.y;
    if (output >= params[0]) { return; }
    let cols = params[1];
    first_word = chosen[visit] * params[4] + (output / 32u) * params[2] * 32u + output % 32u;
    var acc: array<f32, ROWS>;
    var rows: array<u32, ROWS>;
    acc[0] = 0.0;
    rows[0] = visit / params[5];
//CHAIN
    out[visit * params[3] + output] = acc[0];
}
