//! A gated delta net, Mamba2 and a short convolution, one value at a time.

use super::{
    Model,
    math::{add, sigmoid, silu},
    state::Rows,
};
use crate::{
    kernels::{DeltaShape, Mamba2Shape},
    models::{ShortConv, Softmax, layer_name},
};

impl Model {
    /// One row through a delta net; its state after every row counts as a value of `rows`.
    pub(super) fn delta_net(&self, rows: &mut Rows, index: usize, shape: DeltaShape, h: &[f32]) -> Vec<f32> {
        let linear = |name: &str| self.linear(&layer_name(index, name), h);
        let stored = |name: &str| &self.tensors[&layer_name(index, name)].values;
        let through = |narrow: &str, name: &str| self.linear(&layer_name(index, name), &linear(narrow));
        let (projected, z) = match shape.by_channel {
            true => {
                let parts = ["attn_q", "attn_k", "attn_v"].map(linear);
                (parts.concat(), through("ssm_g_a", "ssm_g_b"))
            }
            false => (linear("attn_qkv"), linear("attn_gate")),
        };
        let shared = shape.value_heads / shape.key_heads;
        let (beta, alpha) = match self.tensors.contains_key(&layer_name(index, "ssm_ba.weight")) {
            false if shape.by_channel => (linear("ssm_beta"), through("ssm_f_a", "ssm_f_b")),
            false => (linear("ssm_beta"), linear("ssm_alpha")),
            true => {
                // For each key head, beta of its value heads and then alpha.
                let both = linear("ssm_ba");
                let at = |head: usize| head / shared * 2 * shared + head % shared;
                let part = |offset| (0..shape.value_heads).map(|head| both[at(head) + offset]).collect();
                (part(0), part(shared))
            }
        };
        let mut state = rows.values.last().cloned().unwrap_or_else(|| vec![0.0; shape.state_len()]);
        let (matrices, columns) = state.split_at_mut(shape.key_dim * shape.value_heads * shape.value_dim);
        let taps = match shape.by_channel {
            true => ["ssm_conv1d_q.weight", "ssm_conv1d_k.weight", "ssm_conv1d_v.weight"]
                .map(|part| &stored(part)[..])
                .concat(),
            false => stored("ssm_conv1d.weight").clone(),
        };
        let convolved = convolve(&taps, columns, &projected);
        columns.rotate_left(projected.len().min(columns.len()));
        let newest = columns.len().saturating_sub(projected.len());
        columns[newest..].iter_mut().zip(&projected).for_each(|(column, x)| *column = *x);
        let (q, rest) = convolved.split_at(shape.key_heads * shape.key_dim);
        let (k, v) = rest.split_at(q.len());
        let mut out = Vec::with_capacity(z.len());
        for head in 0..shape.value_heads {
            let key_head = if shape.tiled { head % shape.key_heads } else { head / shared };
            let key = key_head * shape.key_dim..(key_head + 1) * shape.key_dim;
            let (q, k) = (unit(&q[key.clone()]), unit(&k[key]));
            let decay = |at: usize| {
                let step = alpha[at] + stored("ssm_dt.bias")[at];
                let softplus = if step > 20.0 { step } else { step.exp().ln_1p() };
                (stored("ssm_a")[head] * softplus).exp()
            };
            let matrix =
                &mut matrices[head * shape.key_dim * shape.value_dim..][..shape.key_dim * shape.value_dim];
            for (channel, row) in matrix.chunks_exact_mut(shape.value_dim).enumerate() {
                let decay = decay(if shape.by_channel { head * shape.key_dim + channel } else { head });
                row.iter_mut().for_each(|value| *value *= decay);
            }
            let read = |matrix: &[f32], key: &[f32], column: usize| -> f32 {
                matrix.chunks_exact(shape.value_dim).zip(key).map(|(row, key)| row[column] * key).sum()
            };
            let wanted = &v[head * shape.value_dim..(head + 1) * shape.value_dim];
            let missing: Vec<f32> = wanted
                .iter()
                .enumerate()
                .map(|(column, wanted)| (wanted - read(matrix, &k, column)) * sigmoid(beta[head]))
                .collect();
            for (row, key) in matrix.chunks_exact_mut(shape.value_dim).zip(&k) {
                row.iter_mut().zip(&missing).for_each(|(value, missing)| *value += key * missing);
            }
            let scale = (shape.key_dim as f32).sqrt();
            let result: Vec<f32> =
                (0..shape.value_dim).map(|column| read(matrix, &q, column) / scale).collect();
            let square = result.iter().map(|x| x * x).sum::<f32>() / result.len() as f32;
            let root = (square + self.blueprint.norm.eps).sqrt();
            let gates = &z[out.len()..];
            let weights = stored("ssm_norm.weight");
            let gate = if shape.by_channel { sigmoid } else { silu };
            out.extend(result.iter().zip(weights).zip(gates).map(|((x, w), z)| x / root * w * gate(*z)));
        }
        rows.keys.push(Vec::new());
        rows.values.push(state);
        let name = if shape.by_channel { "attn_output" } else { "ssm_out" };
        self.linear(&layer_name(index, name), &out)
    }
}

impl Model {
    /// One row through a gated short convolution; the inputs it keeps after every row count as a value of `rows`.
    pub(super) fn short_conv(&self, rows: &mut Rows, index: usize, conv: ShortConv, h: &[f32]) -> Vec<f32> {
        let projected = self.linear(&layer_name(index, "shortconv.in_proj"), h);
        let taps = &self.tensors[&layer_name(index, "shortconv.conv.weight")].values;
        let input = |channel: usize| projected[channel] * projected[2 * conv.width + channel];
        let mut state = rows.values.last().cloned().unwrap_or_else(|| vec![0.0; conv.state_len()]);
        state.extend((0..conv.width).map(input));
        let one = |channel: usize| -> f32 {
            let seen = state.iter().skip(channel).step_by(conv.width);
            let sum: f32 = seen.zip(&taps[channel * conv.kernel..]).map(|(x, tap)| x * tap).sum();
            sum * projected[conv.width + channel]
        };
        let out: Vec<f32> = (0..conv.width).map(one).collect();
        rows.keys.push(Vec::new());
        rows.values.push(state.split_off(conv.width));
        self.linear(&layer_name(index, "shortconv.out_proj"), &out)
    }
}

impl Model {
    /// One row through a Mamba2 layer; its state after every row counts as a value of `rows`.
    pub(super) fn mamba2(&self, rows: &mut Rows, index: usize, shape: Mamba2Shape, h: &[f32]) -> Vec<f32> {
        let (out, state) = self.mamba2_from(rows.values.last().cloned(), index, shape, h);
        rows.keys.push(Vec::new());
        rows.values.push(state);
        out
    }

    /// One row through attention and through Mamba2; the state of the latter stands behind the value of the former.
    pub(super) fn beside(
        &self,
        rows: &mut Rows,
        index: usize,
        (spec, shape): (Softmax, Mamba2Shape),
        h: &[f32],
    ) -> Vec<f32> {
        let width = spec.kv.kv_heads * spec.kv.head_dim;
        let before = rows.values.last().map(|row| row[width..].to_vec());
        let mut out = self.attention(rows, None, (index, spec), h);
        let (share, state) = self.mamba2_from(before, index, shape, h);
        if let Some(value) = rows.values.last_mut() {
            value.extend(state);
        }
        add(&mut out, &share, 1.0);
        out
    }

    /// One row through a Mamba2 layer from the state `before` it, and the state behind it.
    fn mamba2_from(
        &self,
        before: Option<Vec<f32>>,
        index: usize,
        shape: Mamba2Shape,
        h: &[f32],
    ) -> (Vec<f32>, Vec<f32>) {
        let stored = |name: &str| &self.tensors[&layer_name(index, name)].values;
        let width = shape.heads * shape.head_dim;
        let all = self.linear(&layer_name(index, "ssm_in"), h);
        let (z, rest) = all.split_at(width);
        let (projected, dt) = rest.split_at(width + 2 * shape.groups * shape.state);
        let mut state = before.unwrap_or_else(|| vec![0.0; shape.state_len()]);
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
        (self.linear(&layer_name(index, "ssm_out"), &out), state)
    }
}

/// Each channel over its last inputs, oldest first, the newest being `x`; `taps` lie together channel by channel.
fn convolve(taps: &[f32], columns: &[f32], x: &[f32]) -> Vec<f32> {
    sums(taps, columns, x).into_iter().map(silu).collect()
}

/// The sums of such a convolution.
fn sums(taps: &[f32], columns: &[f32], x: &[f32]) -> Vec<f32> {
    let one = |(channel, taps): (usize, &[f32])| {
        let past = columns.iter().skip(channel).step_by(x.len());
        past.chain([&x[channel]]).zip(taps).map(|(x, tap)| x * tap).sum()
    };
    taps.chunks_exact(taps.len() / x.len()).enumerate().map(one).collect()
}

fn unit(x: &[f32]) -> Vec<f32> {
    let length = (x.iter().map(|x| x * x).sum::<f32>() + 1e-6).sqrt();
    x.iter().map(|x| x / length).collect()
}
