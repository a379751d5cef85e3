use super::*;
use crate::fma::Fma;
use crate::kernels::vector::tests::{assert_same, noise, on_every_cpu, tree};

const SHAPES: [Mamba2Shape; 4] = [
    Mamba2Shape { heads: 6, head_dim: 16, state: 5, groups: 2, kernel: 4 },
    Mamba2Shape { heads: 3, head_dim: 80, state: 21, groups: 1, kernel: 2 },
    Mamba2Shape { heads: 1, head_dim: 48, state: 33, groups: 1, kernel: 1 },
    // Enough for the threads.
    Mamba2Shape { heads: 8, head_dim: 64, state: 64, groups: 4, kernel: 4 },
];
const EPS: f32 = 1e-5;

/// What a pass of `rows` rows reads.
struct Case {
    shape: Mamba2Shape,
    rows: usize,
    projected: Vec<f32>,
    taps: Vec<f32>,
    bias: Option<Vec<f32>>,
    z: Vec<f32>,
    dt: Vec<f32>,
    dt_bias: Vec<f32>,
    a: Vec<f32>,
    skip: Vec<f32>,
    norm: Option<Vec<f32>>,
    start: Vec<f32>,
}

impl Case {
    /// With a bias of the convolution and a norm, or without both.
    fn new(shape: Mamba2Shape, rows: usize, more: bool) -> Self {
        let heads = shape.heads;
        Self {
            shape,
            rows,
            projected: noise(1, rows * shape.channels(), 3.0),
            taps: noise(2, shape.kernel * shape.channels(), 1.0),
            bias: more.then(|| noise(10, shape.channels(), 1.0)),
            z: noise(3, rows * shape.width(), 2.0),
            dt: noise(4, rows * heads, 4.0),
            dt_bias: noise(7, heads, 1.0),
            a: noise(6, heads, 1.0).iter().map(|a| -a.abs()).collect(),
            skip: noise(5, heads, 1.0),
            norm: more.then(|| noise(8, shape.width(), 1.5)),
            start: noise(9, shape.state_len(), 1.0),
        }
    }

    /// Rows in passes of `chunk`, each with its inputs, as the executor runs them; the results and the state.
    fn run(&self, cpu: &Cpu, chunk: usize) -> (Vec<f32>, Vec<f32>) {
        let shape = self.shape;
        let (channels, width, heads) = (shape.channels(), shape.width(), shape.heads);
        let (mut out, mut state) = (vec![0.0; self.rows * width], self.start.clone());
        for first in (0..self.rows).step_by(chunk) {
            let rows = first..(first + chunk).min(self.rows);
            let of = |width: usize| rows.start * width..rows.end * width;
            let (before, before_columns) = state.split_at(shape.matrices_len());
            let projected = &self.projected[of(channels)];
            let mut inputs = vec![0.0; projected.len()];
            let (taps, bias) = (&self.taps, self.bias.as_deref());
            Mamba2Inputs { shape, projected, before: before_columns, taps, bias, out: &mut inputs }
                .compute(cpu);
            let mut dt = self.dt[of(heads)].to_vec();
            let mut decay = vec![0.0; dt.len()];
            steps(cpu, &mut dt, &mut decay, &self.dt_bias, &self.a);
            let mut next = vec![0.0; state.len()];
            let (matrices, columns) = next.split_at_mut(before.len());
            shape.keep_columns(before_columns, projected, rows.len(), columns);
            // Odd passes compute in place.
            let fresh = (first / chunk).is_multiple_of(2);
            if !fresh {
                matrices.copy_from_slice(before);
            }
            Mamba2Job {
                shape,
                inputs: &inputs,
                decay: &decay,
                steps: &dt,
                skip: &self.skip,
                before: fresh.then_some(before),
                state: matrices,
                out: &mut out[of(width)],
            }
            .compute(cpu);
            state = next;
        }
        let norm = self.norm.as_deref().map(|norm| (norm, EPS));
        Mamba2Gate { shape, z: &self.z, norm, out: &mut out }.compute(cpu);
        (out, state)
    }

    /// The same with plain loops over single values, as the module says it.
    fn twin(&self) -> (Vec<f32>, Vec<f32>) {
        let shape = self.shape;
        let (channels, width) = (shape.channels(), shape.width());
        let (state, columns) = self.start.split_at(shape.matrices_len());
        let (mut states, mut seen, mut all) = (state.to_vec(), columns.to_vec(), Vec::new());
        seen.extend(&self.projected);
        for row in 0..self.rows {
            let convolved: Vec<f32> = (0..channels)
                .map(|c| {
                    let start = self.bias.as_ref().map_or(0.0, |bias| bias[c]);
                    let sum = (0..shape.kernel).fold(start, |sum: f32, tap| {
                        seen[(row + tap) * channels + c].fma(self.taps[tap * channels + c], sum)
                    });
                    math::silu_f32(sum)
                })
                .collect();
            let (x, rest) = convolved.split_at(width);
            let (b, c) = rest.split_at(shape.groups * shape.state);
            let mut results = Vec::new();
            for head in 0..shape.heads {
                let group = head / (shape.heads / shape.groups) * shape.state;
                let step = math::softplus_f32(self.dt[row * shape.heads + head] + self.dt_bias[head]);
                let decay = math::exp_f32(self.a[head] * step);
                for column in 0..shape.head_dim {
                    let (x, mut y) = (x[head * shape.head_dim + column], 0.0f32);
                    for i in 0..shape.state {
                        let place = &mut states[(head * shape.state + i) * shape.head_dim + column];
                        *place = (x * step).fma(b[group + i], *place * decay);
                        y = place.fma(c[group + i], y);
                    }
                    results.push(x.fma(self.skip[head], y));
                }
            }
            let gates = &self.z[row * width..(row + 1) * width];
            results.iter_mut().zip(gates).for_each(|(y, z)| *y *= math::silu_f32(*z));
            if let Some(norm) = &self.norm {
                let group = width / shape.groups;
                for (results, weights) in results.chunks_exact_mut(group).zip(norm.chunks_exact(group)) {
                    let inverse = 1.0 / (squares(results) / group as f32 + EPS).sqrt();
                    results.iter_mut().zip(weights).for_each(|(y, w)| *y = (*y * inverse) * w);
                }
            }
            all.extend(results);
        }
        states.extend(&seen[seen.len() - columns.len()..]);
        (all, states)
    }
}

fn squares(x: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    for (i, x) in x.iter().enumerate() {
        lanes[i % LANES] = x.fma(*x, lanes[i % LANES]);
    }
    tree(lanes)
}

#[test]
fn every_instruction_set_equals_the_twin() {
    for (shape, more) in SHAPES.into_iter().flat_map(|shape| [(shape, true), (shape, false)]) {
        let case = Case::new(shape, 9, more);
        let (expected, state) = case.twin();
        on_every_cpu(|cpu, name| {
            for chunk in [1, 2, 9] {
                let (found, left) = case.run(cpu, chunk);
                assert_same(&found, &expected, &format!("{name}, {shape:?}, {more}, chunks of {chunk}"));
                assert_same(&left, &state, &format!("state: {name}, {shape:?}, {more}, chunks of {chunk}"));
            }
        });
    }
}

#[test]
fn a_state_gives_back_what_it_took_up_and_fades() {
    let shape = Mamba2Shape { heads: 1, head_dim: 16, state: 4, groups: 1, kernel: 1 };
    let cpu = Cpu::new(crate::kernels::Isa::detect(), crate::kernels::threads::Pool::new(1, false));
    // The second value of b and c is 1; 3 is taken up in full, then half of it is left beside 5.
    let mut inputs = vec![0.0; 2 * shape.channels()];
    for (row, value) in inputs.chunks_exact_mut(shape.channels()).zip([3.0, 5.0]) {
        row[..16].fill(value);
        (row[17], row[21]) = (1.0, 1.0);
    }
    let (mut state, mut out) = (vec![0.0; shape.matrices_len()], vec![0.0; 32]);
    Mamba2Job {
        shape,
        inputs: &inputs,
        decay: &[0.5; 2],
        steps: &[1.0; 2],
        skip: &[0.25],
        before: None,
        state: &mut state,
        out: &mut out,
    }
    .compute(&cpu);
    assert!(state[16..32].iter().all(|value| *value == 6.5), "{state:?}");
    assert!(state[..16].iter().chain(&state[32..]).all(|value| *value == 0.0));
    assert_eq!((out[0], out[16]), (3.75, 7.75));
}
