//! Mamba2, one value at a time.

use super::{
    Model,
    delta::sums,
    math::{add, silu},
    state::Rows,
};
use crate::{kernels::Mamba2Shape, models::layer_name};

impl Model {
    /// One row through a Mamba2 layer; its state after every row counts as a value of `rows`.
    pub(super) fn mamba2(&self, rows: &mut Rows, index: usize, shape: Mamba2Shape, h: &[f32]) -> Vec<f32> {
        let stored = |name: &str| &self.tensors[&layer_name(index, name)].values;
        let width = shape.heads * shape.head_dim;
        let all = self.linear(&layer_name(index, "ssm_in"), h);
        let (z, rest) = all.split_at(width);
        let (projected, dt) = rest.split_at(width + 2 * shape.groups * shape.state);
        let mut state = rows.values.last().cloned().unwrap_or_else(|| vec![0.0; shape.state_len()]);
        let (matrices, columns) = state.split_at_mut(shape.heads * shape.state * shape.head_dim);
        let mut convolved = sums(stored("ssm_conv1d.weight"), columns, projected);
        if let Some(bias) = self.tensors.get(&layer_name(index, "ssm_conv1d.bias")) {
            add(&mut convolved, &bias.values, 1.0);
        }
        convolved.iter_mut().for_each(|x| *x = silu(*x));
        columns.rotate_left(projected.len().min(columns.len()));
        let newest = columns.len().saturating_sub(projected.len());
        columns[newest..].iter_mut().zip(projected).for_each(|(column, x)| *column = *x);
        let (x, rest) = convolved.split_at(width);
        let (b, c) = rest.split_at(shape.groups * shape.state);
        let mut out = vec![0.0; width];
        for head in 0..shape.heads {
            let group = head * shape.groups / shape.heads;
            let own = |all: &[f32]| all[group * shape.state..(group + 1) * shape.state].to_vec();
            let (b, c) = (own(b), own(c));
            let step = dt[head] + stored("ssm_dt.bias")[head];
            let step = if step > 20.0 { step } else { step.exp().ln_1p() };
            let decay = (stored("ssm_a")[head] * step).exp();
            for column in 0..shape.head_dim {
                let at = head * shape.head_dim + column;
                for (i, (b, c)) in b.iter().zip(&c).enumerate() {
                    let place = &mut matrices[(head * shape.state + i) * shape.head_dim + column];
                    *place = *place * decay + x[at] * step * b;
                    out[at] += *place * c;
                }
                out[at] = (out[at] + stored("ssm_d")[head] * x[at]) * silu(z[at]);
            }
        }
        if let Some(weights) = self.tensors.get(&layer_name(index, "ssm_norm.weight")) {
            out.chunks_exact_mut(width / shape.groups).for_each(|group| self.bare_norm(group));
            out.iter_mut().zip(&weights.values).for_each(|(x, weight)| *x *= weight);
        }
        rows.keys.push(Vec::new());
        rows.values.push(state);
        self.linear(&layer_name(index, "ssm_out"), &out)
    }
}
