// One workgroup a row: makes a row, keeps it as f32, and rounds it to int8 per 32 values with scales and sums of 16.
// params: 0 columns, 1 bits of eps, 2 the norm has a bias.

@group(0) @binding(1) var<storage, read> params: array<u32>;
@group(0) @binding(2) var<storage, read> src: array<f32>;
@group(0) @binding(3) var<storage, read> weight: array<f32>;
@group(0) @binding(4) var<storage, read_write> row_out: array<f32>;
@group(0) @binding(5) var<storage, read_write> codes_out: array<u32>;
@group(0) @binding(6) var<storage, read_write> scales_out: array<f32>;
@group(0) @binding(7) var<storage, read_write> sums_out: array<i32>;

var<workgroup> sums_of_threads: array<f32, 64>;

fn quantize(row: u32, cols: u32, b: u32) {
    let at = row * cols + 32u * b;
    var largest = 0u;
    for (var i = 0u; i < 32u; i = i + 1u) { largest = max(largest, bitcast<u32>(row_out[at + i]) & ~SIGN); }
    let amax = bitcast<f32>(largest);
    let inverse = f_div(127.0, amax);
    let unusable = largest >= INFINITE || bitcast<u32>(inverse) == INFINITE;
    for (var half_block = 0u; half_block < 2u; half_block = half_block + 1u) {
        var sum = 0;
        for (var word = 0u; word < 4u; word = word + 1u) {
            var packed = 0u;
            for (var i = 0u; i < 4u; i = i + 1u) {
                var code = 0;
                if (!unusable) {
                    code = i32(round(f_mul(row_out[at + 16u * half_block + 4u * word + i], inverse)));
                }
                sum = sum + code;
                packed = packed | ((bitcast<u32>(code) & 0xffu) << (8u * i));
            }
            codes_out[at / 4u + 4u * half_block + word] = packed;
        }
        sums_out[at / 16u + half_block] = sum;
    }
    var scale = bitcast<u32>(f_div(amax, 127.0));
    if (unusable) { scale = select(0u, NOT_A_NUMBER, largest >= INFINITE); }
    scales_out[at / 32u] = bitcast<f32>(scale);
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let row = group.x;
    let cols = params[0];
    let t = local.x;
//MAKE
    storageBarrier();
    workgroupBarrier();
    for (var b = t; b < cols / 32u; b = b + 64u) { quantize(row, cols, b); }
}
