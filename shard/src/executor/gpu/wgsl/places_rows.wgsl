// Each row once, with the one matrix.
fn rows_of_out() -> u32 { return pass_info[0]; }
fn products() -> u32 { return 1u; }
fn matrix_of(row: u32, product: u32) -> u32 { return 0u; }
fn number_of(row: u32, product: u32) -> u32 { return 0u; }
fn row_of(row: u32, product: u32) -> u32 { return row; }
fn joined(made: f32, product: f32, row: u32, number: u32, output: u32) -> f32 { return product; }
