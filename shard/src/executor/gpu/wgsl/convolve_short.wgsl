// A gated short convolution: rows are projected to b, c and x; b * x is convolved, and the result is multiplied by c.
fn input(row: u32, channel: u32) -> f32 {
    let at = row * params[1] + channel;
    return f_mul(projected[at], projected[at + 2u * params[0]]);
}
fn start(channel: u32) -> f32 { return 0.0; }
fn taken(x: f32, w: f32, sum: f32, tap: u32) -> f32 { return f_fma(x, w, sum); }
fn made(sum: f32, row: u32, channel: u32) -> f32 {
    return f_mul(sum, projected[row * params[1] + params[0] + channel]);
}
fn beside(row: u32, t: u32) {}
