use super::*;
use crate::fma::Fma;
use crate::kernels::vector::tests::{assert_same, noise, on_every_cpu, tree};

const PLAIN: DeltaShape = DeltaShape {
    key_heads: 2,
    value_heads: 6,
    key_dim: 5,
    value_dim: 16,
    kernel: 4,
    tiled: false,
    by_channel: false,
};

const SHAPES: [DeltaShape; 6] = [
    PLAIN,
    DeltaShape { key_dim: 21, value_dim: 80, kernel: 2, tiled: true, ..PLAIN },
    DeltaShape { key_heads: 1, value_heads: 1, key_dim: 33, value_dim: 48, kernel: 1, tiled: true, ..PLAIN },
    DeltaShape { key_heads: 4, value_heads: 8, key_dim: 64, value_dim: 64, ..PLAIN },
    DeltaShape { by_channel: true, ..PLAIN },
    DeltaShape { key_heads: 3, value_heads: 3, key_dim: 80, value_dim: 80, by_channel: true, ..PLAIN },
];

/// What a pass of `rows` rows reads.
struct Case {
    shape: DeltaShape,
    rows: usize,
    projected: Vec<f32>,
    taps: Vec<f32>,
    z: Vec<f32>,
    alpha: Vec<f32>,
    beta: Vec<f32>,
    a: Vec<f32>,
    dt: Vec<f32>,
    norm: Vec<f32>,
    start: Vec<f32>,
}

const NORM_EPS: f32 = 1e-5;

impl Case {
    fn new(shape: DeltaShape, rows: usize) -> Self {
        let heads = shape.value_heads;
        Self {
            shape,
            rows,
            projected: noise(1, rows * shape.channels(), 3.0),
            taps: noise(2, shape.kernel * shape.channels(), 1.0),
            z: noise(3, rows * shape.value_width(), 2.0),
            alpha: noise(4, rows * shape.decays(), 4.0),
            beta: noise(5, rows * heads, 4.0),
            a: noise(6, shape.decays(), 1.0).iter().map(|a| -a.abs()).collect(),
            dt: noise(7, shape.decays(), 1.0),
            norm: noise(8, shape.value_dim, 1.5),
            start: noise(9, shape.state_len(), 1.0),
        }
    }

    /// Rows in passes of `chunk`, each with its inputs, as the executor runs them; the results and the state.
    fn run(&self, cpu: &Cpu, chunk: usize) -> (Vec<f32>, Vec<f32>) {
        let shape = self.shape;
        let (channels, width, heads) = (shape.channels(), shape.value_width(), shape.value_heads);
        let (mut out, mut state) = (vec![0.0; self.rows * width], self.start.clone());
        for first in (0..self.rows).step_by(chunk) {
            let rows = first..(first + chunk).min(self.rows);
            let of = |width: usize| rows.start * width..rows.end * width;
            let (before, before_columns) = state.split_at(shape.matrices_len());
            let projected = &self.projected[of(channels)];
            let mut inputs = vec![0.0; projected.len()];
            let taps = &self.taps;
            let job = DeltaInputs { shape, projected, before: before_columns, taps, out: &mut inputs };
            job.compute(cpu);
            let mut decay = self.alpha[of(shape.decays())].to_vec();
            let mut strength = self.beta[of(heads)].to_vec();
            decays(cpu, &mut decay, &self.dt, &self.a);
            cpu.sigmoid(&mut strength);
            let mut next = vec![0.0; state.len()];
            let (matrices, columns) = next.split_at_mut(before.len());
            shape.keep_columns(before_columns, projected, rows.len(), columns);
            // Odd passes compute in place.
            let fresh = (first / chunk).is_multiple_of(2);
            if !fresh {
                matrices.copy_from_slice(before);
            }
            DeltaJob {
                shape,
                inputs: &inputs,
                z: &self.z[of(width)],
                decay: &decay,
                strength: &strength,
                before: fresh.then_some(before),
                state: matrices,
                norm: &self.norm,
                eps: NORM_EPS,
                out: &mut out[of(width)],
            }
            .compute(cpu);
            state = next;
        }
        (out, state)
    }

    /// The same with plain loops over single values, as the module says it.
    fn twin(&self) -> (Vec<f32>, Vec<f32>) {
        let shape = self.shape;
        let (channels, width) = (shape.channels(), shape.value_width());
        let (mut state, columns) = self.start.split_at(shape.matrices_len());
        let mut states = state.to_vec();
        let mut seen = columns.to_vec();
        seen.extend(&self.projected);
        let mut all = Vec::new();
        for row in 0..self.rows {
            let convolved: Vec<f32> = (0..channels)
                .map(|c| {
                    let x = |tap: usize| seen[(row + tap) * channels + c];
                    let w = |tap: usize| self.taps[tap * channels + c];
                    let sum = (1..shape.kernel).fold(x(0) * w(0), |sum, tap| x(tap).fma(w(tap), sum));
                    math::silu_f32(sum)
                })
                .collect();
            let (q, rest) = convolved.split_at(shape.key_width());
            let (k, v) = rest.split_at(shape.key_width());
            for head in 0..shape.value_heads {
                let key = shape.key_head(head) * shape.key_dim..(shape.key_head(head) + 1) * shape.key_dim;
                let root = 1.0 / (shape.key_dim as f32).sqrt();
                let (q, k) = (unit(&q[key.clone()], root), unit(&k[key], 1.0));
                let decay = |i: usize| {
                    let at = if shape.by_channel { head * shape.key_dim + i } else { head };
                    let alpha = self.alpha[row * shape.decays() + at];
                    math::exp_f32(self.a[at] * math::softplus_f32(alpha + self.dt[at]))
                };
                let strength = math::sigmoid_f32(self.beta[row * shape.value_heads + head]);
                let mut result = Vec::new();
                for column in 0..shape.value_dim {
                    let place = |i: usize| (head * shape.key_dim + i) * shape.value_dim + column;
                    let value = v[head * shape.value_dim + column];
                    let fades = |i: usize| if shape.by_channel { decay(i) } else { 1.0 };
                    let answers = |m: f32, i: usize| (states[place(i)] * fades(i)).fma(k[i], m);
                    let m = (0..shape.key_dim).fold(0.0f32, answers);
                    let d = if shape.by_channel { value - m } else { value - m * decay(0) } * strength;
                    let mut o = 0.0f32;
                    for i in 0..shape.key_dim {
                        let next = d.fma(k[i], states[place(i)] * decay(i));
                        states[place(i)] = next;
                        o = next.fma(q[i], o);
                    }
                    result.push(o);
                }
                let inverse = 1.0 / (squares(&result) / shape.value_dim as f32 + NORM_EPS).sqrt();
                let z = &self.z[row * width + head * shape.value_dim..];
                all.extend(result.iter().zip(&self.norm).zip(z).map(|((o, w), z)| {
                    let gate = if shape.by_channel { math::sigmoid_f32 } else { math::silu_f32 };
                    ((o * inverse) * w) * gate(*z)
                }));
            }
        }
        state = &seen[seen.len() - columns.len()..];
        states.extend(state);
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

fn unit(x: &[f32], factor: f32) -> Vec<f32> {
    let inverse = 1.0 / (squares(x) + EPS).sqrt();
    x.iter().map(|x| (x * inverse) * factor).collect()
}

#[test]
fn every_instruction_set_equals_the_twin() {
    for shape in SHAPES {
        let case = Case::new(shape, 9);
        let (expected, state) = case.twin();
        on_every_cpu(|cpu, name| {
            for chunk in [1, 2, 9] {
                let (found, left) = case.run(cpu, chunk);
                assert_same(&found, &expected, &format!("{name}, {shape:?}, chunks of {chunk}"));
                assert_same(&left, &state, &format!("state: {name}, {shape:?}, chunks of {chunk}"));
            }
        });
    }
}

#[test]
fn a_state_answers_a_key_with_its_value() {
    let shape = DeltaShape { key_heads: 1, value_heads: 1, key_dim: 4, kernel: 1, ..PLAIN };
    let cpu = Cpu::new(crate::kernels::Isa::detect(), crate::kernels::threads::Pool::new(1, false));
    // The key and the query are the same unit vector, twice; at full strength the second value replaces the first.
    let mut inputs = vec![0.0; 2 * shape.channels()];
    for (row, value) in inputs.chunks_exact_mut(shape.channels()).zip([3.0, 5.0]) {
        (row[1], row[5]) = (1.0, 1.0);
        row[8..].fill(value);
    }
    let (mut state, mut out) = (vec![0.0; shape.matrices_len()], vec![0.0; 32]);
    DeltaJob {
        shape,
        inputs: &inputs,
        z: &[20.0; 32],
        decay: &[1.0; 2],
        strength: &[1.0; 2],
        before: None,
        state: &mut state,
        norm: &[1.0; 16],
        eps: 0.0,
        out: &mut out,
    }
    .compute(&cpu);
    assert!(state[16..32].iter().all(|value| *value == 5.0), "{state:?}");
    assert!(state[..16].iter().chain(&state[32..]).all(|value| *value == 0.0));
    assert!(out.iter().all(|value| (value - 20.0).abs() < 1e-5), "{out:?}");
}
