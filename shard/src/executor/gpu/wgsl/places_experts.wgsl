// What the experts of a row make of its visits, times their weights, one after the other.
fn rows_of_out() -> u32 { return pass_info[0]; }
fn products() -> u32 { return params[9]; }
fn number_of(row: u32, visit: u32) -> u32 { return aside[(2u * params[9] + 1u) * row + visit]; }
fn matrix_of(row: u32, visit: u32) -> u32 { return number_of(row, visit) * params[8]; }
fn row_of(row: u32, visit: u32) -> u32 { return params[9] * row + visit; }
fn joined(made: f32, product: f32, row: u32, visit: u32, output: u32) -> f32 {
    let y = biased(product, number_of(row, visit), output);
    return f_fma(y, bitcast<f32>(aside[(2u * params[9] + 1u) * row + params[9] + visit]), made);
}
