// x, b and c of Mamba2, and for each row the steps and then the decays of its heads.
// params: 6 where they are projected, 7 the sums begin with a bias, 8 heads, 9 where steps are projected. constants behind the
// convolution: what is added to steps, the factors of decays, and the bias.
fn input(row: u32, channel: u32) -> f32 { return projected[row * params[1] + params[6] + channel]; }
fn start(channel: u32) -> f32 {
    if (params[7] == 0u) { return 0.0; }
    return constants[params[2] * params[0] + 2u * params[8] + channel];
}
fn taken(x: f32, w: f32, sum: f32, tap: u32) -> f32 { return f_fma(x, w, sum); }
fn made(sum: f32, row: u32, channel: u32) -> f32 { return f_silu(sum); }

fn beside(row: u32, t: u32) {
    let heads = params[8];
    let constant = params[2] * params[0];
    for (var h = t; h < heads; h = h + 64u) {
        let step = f_softplus(f_add(projected[row * params[1] + params[9] + h], constants[constant + h]));
        gates[2u * row * heads + h] = step;
        gates[2u * row * heads + heads + h] = f_exp(f_mul(constants[constant + heads + h], step));
    }
}
