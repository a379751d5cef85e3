// A row of out for each visit of a row at an expert, whose matrices lie one behind the other.
fn rows_of_out() -> u32 { return pass_info[0] * params[9]; }
fn products() -> u32 { return 1u; }
fn number_of(visit: u32, product: u32) -> u32 {
    return aside[(2u * params[9] + 1u) * (visit / params[9]) + visit % params[9]];
}
fn matrix_of(visit: u32, product: u32) -> u32 { return number_of(visit, product) * params[8]; }
fn row_of(visit: u32, product: u32) -> u32 { return visit / params[9]; }
fn joined(made: f32, product: f32, visit: u32, number: u32, output: u32) -> f32 {
    return biased(product, number_of(visit, number), output);
}
