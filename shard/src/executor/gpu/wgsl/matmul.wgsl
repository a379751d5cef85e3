// out = matrix * rows (* factor) (+ bias) (added to what is there): one thread an output of ROWS rows, one chain of fused
// products each. The matrix lies in tiles of 32 rows, word by word: threads side by side read words side by side.
// PLACES says how many rows of out there are, of how many products each is made, and which matrix and row each product is of.
// params: 0 outputs, 1 columns, 2 words a row, 3 stride of out, 4 first column in out, 5 has a bias, 6 adds, 7 bits of the
// factor of what is added; of experts also 8 words of a matrix, 9 experts that a row visits,
// 10 where their biases begin behind all matrices or 0, 11 where factors of products begin behind them or 0; of an expert that all rows visit
// (6 is 3) 8 words that aside has for a row, the last of which is the factor.

@group(0) @binding(1) var<storage, read> params: array<u32>;
@group(0) @binding(2) var<storage, read> matrix: array<u32>;
@group(0) @binding(3) var<storage, read> codes: array<u32>;
@group(0) @binding(4) var<storage, read> scales: array<f32>;
@group(0) @binding(5) var<storage, read> sums: array<i32>;
// Bits of the bias of each output, or for each row the experts that it visits, and then the bits of their weights.
@group(0) @binding(6) var<storage, read> aside: array<u32>;
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

// A product times its factor in matrix `number`, where matrices have some.
fn scaled(product: f32, number: u32, output: u32) -> f32 {
    if (params[11] == 0u) { return product; }
    return f_mul(product, bitcast<f32>(matrix[params[11] + number * params[0] + output]));
}

// A product with its bias in matrix `number`, where matrices have some.
fn biased(product: f32, number: u32, output: u32) -> f32 {
    if (params[10] == 0u) { return product; }
    return f_add(product, bitcast<f32>(matrix[params[10] + number * params[0] + output]));
}

//FORMAT

//PLACES

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let output = id.x;
    let first = id.y * ROWS;
    let n = rows_of_out();
    if (output >= params[0]) { return; }
    let cols = params[1];
    var made: array<f32, ROWS>;
    var acc: array<f32, ROWS>;
    var rows: array<u32, ROWS>;
    for (var product = 0u; product < products(); product = product + 1u) {
        first_word = matrix_of(first, product) + (output / 32u) * params[2] * 32u + output % 32u;
        for (var r = 0u; r < ROWS; r = r + 1u) {
            acc[r] = 0.0;
            rows[r] = row_of(min(first + r, n - 1u), product);
        }
//CHAIN
        for (var r = 0u; r < ROWS; r = r + 1u) {
            let y = scaled(acc[r], number_of(first + r, product), output);
            made[r] = joined(made[r], y, first + r, product, output);
        }
    }
    for (var r = 0u; r < ROWS; r = r + 1u) {
        if (first + r < n) {
            var y = made[r];
            if (params[5] != 0u) { y = f_add(y, bitcast<f32>(aside[output])); }
            let at = (first + r) * params[3] + params[4] + output;
            if (params[6] == 1u) { y = f_add(out[at], y); }
            if (params[6] == 3u) {
                y = f_fma(y, bitcast<f32>(aside[(first + r + 1u) * params[8] - 1u]), out[at]);
            }
            if (params[6] == 2u) { y = f_fma(y, bitcast<f32>(params[7]), out[at]); }
            out[at] = y;
        }
    }
}
