//! The oracle: a forward pass written to be read, against which the executor is tested.
//!
//! One token at a time, plain loops over `f32`, weights dequantized, keys and values kept as they are. It shares the
//! [`Blueprint`] with the executor and nothing else: no kernel, no packing, no page, none of the crate's elementary
//! functions. What the blueprint itself says is checked against other implementations by the golden files.
//!
//! [`Arithmetic::Rounded`] rounds where profile `d1` rounds (activations to int8 in front of integer formats, keys and
//! values to f16) by the scalar specifications of [`crate::quant`], which leaves only the order of sums and the last
//! bits of elementary functions between it and the executor.
//!
//! Limits: slow by design (a whole model as `f32` in memory, no threads).
#![allow(
    clippy::disallowed_methods,
    reason = "the oracle must not share elementary functions with the kernels"
)]

mod delta;
mod executor;
mod latent;
mod math;
mod state;
mod streams;
mod weights;

use std::collections::HashMap;

use half::f16;

use crate::{
    Result,
    gguf::Gguf,
    kernels::Pairing,
    models::{
        ATTENTION_NORM, Activation, Attention, BareNorm, Blueprint, CHOICE_FACTORS, Embedding, Experts,
        FeedForward, Frequencies, LAYER_SCALE, NormKind, PerLayer, Ranks, Router, Softmax, layer_name,
    },
};
pub use executor::Reference;
use math::{add, attend, gelu, network, sigmoid};
use state::Rows;
use weights::{Slice, Weights};

/// Where values are rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// Nowhere: `f32` activations on dequantized weights, `f32` keys and values.
    Float,
    /// Where profile `d1` rounds.
    Rounded,
}

/// A whole model, dequantized.
pub struct Model {
    blueprint: Blueprint,
    frequencies: Vec<Frequencies>,
    tensors: HashMap<String, Weights>,
    arithmetic: Arithmetic,
}

/// What one session remembers, layer by layer.
#[derive(Clone, Default)]
pub struct Session {
    layers: Vec<Rows>,
}

impl Model {
    /// Reads the whole model in `gguf` for sessions of up to `context` positions.
    ///
    /// # Errors
    /// Those of [`Blueprint::from_gguf`].
    pub fn load(gguf: &Gguf, context: usize, arithmetic: Arithmetic) -> Result<Self> {
        let blueprint = Blueprint::from_gguf(gguf)?;
        let mut tensors = HashMap::new();
        for info in gguf.tensors() {
            tensors.insert(info.name.to_string(), Weights::read(gguf, &blueprint, &info.name)?);
        }
        let frequencies = blueprint.ropes.iter().map(|rope| rope.frequencies(context)).collect();
        Ok(Self { blueprint, frequencies, tensors, arithmetic })
    }

    /// What the model is.
    pub fn blueprint(&self) -> &Blueprint {
        &self.blueprint
    }

    /// A session without positions.
    pub fn session(&self) -> Session {
        Session {
            layers: (0..self.blueprint.layers.len()).map(|layer| Rows::of(&self.blueprint, layer)).collect(),
        }
    }

    /// Feeds one token and returns the logits after it.
    pub fn step(&self, session: &mut Session, token: u32) -> Vec<f32> {
        let h = self.state(session, token);
        self.head(&h)
    }

    /// Logits of a hidden state after the last norm.
    fn head(&self, h: &[f32]) -> Vec<f32> {
        let b = &self.blueprint;
        let head = if b.head.tied { "token_embd" } else { "output" };
        let mut logits = self.linear(head, h);
        if let (true, Some(bias)) = (b.head.tied, self.tensors.get("output.bias")) {
            add(&mut logits, &bias.values, 1.0);
        }
        for logit in &mut logits {
            *logit *= b.head.scale;
            if let Some(cap) = b.head.softcap {
                *logit = cap * (*logit / cap).tanh();
            }
        }
        logits
    }

    /// Feeds one token and returns its hidden state after the last norm, in front of the head.
    pub fn state(&self, session: &mut Session, token: u32) -> Vec<f32> {
        let (mut x, token) = self.embed(token);
        let mut streams = streams::behind(self, &x);
        for index in 0..session.layers.len() {
            let (before, rest) = session.layers.split_at_mut(index);
            let lent = self.blueprint.layers[index].attention.source().map(|source| &before[source]);
            self.layer((&mut rest[0], lent), index, &mut x, (&token, &mut streams));
        }
        self.last(x, &streams)
    }

    /// The hidden state of a row behind all layers.
    fn last(&self, x: Vec<f32>, others: &[Vec<f32>]) -> Vec<f32> {
        self.norm(self.blueprint.head.norm, &streams::merged(self, x, others))
    }

    /// The row of one token that enters layer 0, and what the layers read of the token besides.
    fn embed(&self, token: u32) -> (Vec<f32>, Vec<f32>) {
        let b = &self.blueprint;
        let mut x = self.rows("token_embd.weight", token as usize, 1)[..b.hidden].to_vec();
        x.iter_mut().for_each(|x| *x *= b.embedding.scale);
        let Some(PerLayer { width, .. }) = b.per_layer else { return (x, Vec::new()) };
        let mut parts = self.linear("per_layer_model_proj", &x);
        parts.iter_mut().for_each(|part| *part /= (b.hidden as f32).sqrt());
        for part in parts.chunks_exact_mut(width) {
            self.norm_after("per_layer_proj_norm.weight", part);
        }
        let row = self.rows("per_layer_token_embd.weight", token as usize, 1);
        add(&mut parts, row, (width as f32).sqrt());
        parts.iter_mut().for_each(|part| *part /= 2.0f32.sqrt());
        (x, parts)
    }

    /// The hidden states of a whole text, of an encoder.
    pub fn encode(&self, tokens: &[u32]) -> Vec<Vec<f32>> {
        let b = &self.blueprint;
        let mut rows: Vec<Vec<f32>> = tokens.iter().map(|token| self.embed(*token).0).collect();
        if let Some(separator) = b.embedding.types {
            for (at, row) in Embedding::types_of(separator, tokens).zip(&mut rows) {
                add(row, self.rows("token_types.weight", at, 1), 1.0);
            }
        }
        for (position, row) in rows.iter_mut().enumerate().filter(|_| b.embedding.positions) {
            add(row, self.rows("position_embd.weight", position, 1), 1.0);
        }
        if b.embedding.normed {
            rows.iter_mut().for_each(|row| *row = self.norm("token_embd_norm", row));
        }
        for (index, layer) in b.layers.iter().enumerate() {
            let Attention::Softmax(spec) = layer.attention else {
                unreachable!("encoders look at each other")
            };
            let mut seen = Rows::of(b, index);
            let queries: Vec<_> = rows
                .iter()
                .map(|row| {
                    let h = self.norm(&layer_name(index, ATTENTION_NORM), row);
                    self.look(&mut seen, None, (index, spec), &h)
                })
                .collect();
            for (position, (row, query)) in rows.iter_mut().zip(queries).enumerate() {
                let y = self.mix(&seen, (index, spec), position, query);
                self.rest(index, row, y, (&[], &mut []));
            }
        }
        rows.iter().map(|row| self.norm(b.head.norm, row)).collect()
    }

    /// The score of a text whose hidden state is `state`.
    pub fn rank(&self, state: &[f32]) -> f32 {
        let mut x = state.to_vec();
        if self.tensors.contains_key("cls.weight") {
            x = self.linear("cls", state);
            let curve = match self.blueprint.head.rank {
                Some(Ranks::Gelu) => gelu,
                _ => f32::tanh,
            };
            x.iter_mut().for_each(|x| *x = curve(*x));
        }
        let scores = self.linear("cls.output", &self.norm("cls.norm", &x));
        match self.blueprint.head.rank {
            Some(Ranks::Choice) => scores[0] - scores[1],
            _ => scores[0],
        }
    }

    /// One row through one layer, whose `rows` remember it; `lent` are those of the layer whose keys it reads, `beside` what layers
    /// read of the token and the other streams of the row.
    fn layer(
        &self,
        (rows, lent): (&mut Rows, Option<&Rows>),
        index: usize,
        x: &mut Vec<f32>,
        beside: (&[f32], &mut [Vec<f32>]),
    ) {
        let layer = &self.blueprint.layers[index];
        streams::predict(self, index, x, beside.1);
        let h = self.norm(&layer_name(index, ATTENTION_NORM), x);
        let y = match layer.attention {
            Attention::Softmax(spec) => self.attention(rows, lent, (index, spec), &h),
            Attention::Recurrence(_) => self.recurrence(rows, index, &h),
            Attention::DeltaNet(shape) => self.delta_net(rows, index, shape, &h),
            Attention::Beside(spec, shape) => self.beside(rows, index, (spec, shape), &h),
            Attention::Mamba2(shape) => self.mamba2(rows, index, shape, &h),
            Attention::Latent(latent) => self.latent(rows, index, latent, &h),
            Attention::ShortConv(conv) => self.short_conv(rows, index, conv, &h),
            Attention::None => {
                // Nothing to remember, but positions are counted.
                rows.keys.push(Vec::new());
                rows.values.push(Vec::new());
                vec![0.0; h.len()]
            }
        };
        self.rest(index, x, y, beside);
    }

    /// What follows the look at other positions, which gave `y`.
    fn rest(
        &self,
        index: usize,
        x: &mut Vec<f32>,
        mut y: Vec<f32>,
        (token, others): (&[f32], &mut [Vec<f32>]),
    ) {
        let layer = &self.blueprint.layers[index];
        if let Some(after) = layer.norm_after_attention() {
            self.norm_after(&layer_name(index, &format!("{after}.weight")), &mut y);
        }
        let before = x.to_vec();
        add(x, &y, self.blueprint.residual_scale);
        streams::learn(self, index, &before, x);
        *x = self.norm(&layer_name(index, "attn_output_norm"), x);
        let h = match layer.parallel() {
            true => self.norm(&layer_name(index, ATTENTION_NORM), &before),
            false => self.norm(&layer_name(index, layer.feed_forward_norm), x),
        };
        let mut y = match &self.blueprint.layers[index].feed_forward {
            FeedForward::None => return,
            FeedForward::Dense(dense) => self.dense(index, dense.width, dense.activation, &h),
            FeedForward::Experts(experts) => self.experts(index, experts, (&h, x)),
            FeedForward::Both(dense, experts) => {
                let mut beside = self.dense(index, dense.width, dense.activation, &h);
                self.norm_after(&layer_name(index, "post_ffw_norm_1.weight"), &mut beside);
                let h = self.norm(&layer_name(index, "pre_ffw_norm_2"), x);
                let mut y = self.experts(index, experts, (&h, x));
                self.norm_after(&layer_name(index, "post_ffw_norm_2.weight"), &mut y);
                add(&mut y, &beside, 1.0);
                y
            }
        };
        self.norm_after(&layer_name(index, "post_ffw_norm.weight"), &mut y);
        add(x, &y, self.blueprint.residual_scale);
        *x = self.norm(&layer_name(index, "layer_output_norm"), x);
        if let Some(PerLayer { width, .. }) = self.blueprint.per_layer {
            let token = &token[index * width..][..width];
            streams::add_token(self, index, (before, token), x, others);
        }
        if let Some(scale) = self.tensors.get(&layer_name(index, LAYER_SCALE)) {
            x.iter_mut().for_each(|x| *x *= scale.values[0]);
        }
    }

    /// Feeds `tokens` and returns the logits after the last one.
    pub fn prefill(&self, session: &mut Session, tokens: &[u32]) -> Vec<f32> {
        tokens.iter().fold(Vec::new(), |_, &token| self.step(session, token))
    }

    fn recurrence(&self, rows: &mut Rows, index: usize, h: &[f32]) -> Vec<f32> {
        let gates = self.linear(&layer_name(index, "recurrence_gate"), h);
        let mut state = self.linear(&layer_name(index, "recurrence_input"), h);
        for (at, (x, gate)) in state.iter_mut().zip(gates).enumerate() {
            let before = rows.values.last().map_or(0.0, |before| before[at]);
            *x += (before - *x) / (1.0 + (-gate).exp());
        }
        rows.keys.push(Vec::new());
        rows.values.push(state.clone());
        self.linear(&layer_name(index, "attn_output"), &state)
    }

    fn attention(
        &self,
        rows: &mut Rows,
        lent: Option<&Rows>,
        layer: (usize, Softmax),
        h: &[f32],
    ) -> Vec<f32> {
        let position = rows.keys.len();
        let query = self.look(rows, lent, layer, h);
        self.mix(lent.unwrap_or(rows), layer, position, query)
    }

    /// Adds the keys and values of a row to `rows` and gives its queries and the gates of what they will see.
    fn look(
        &self,
        rows: &mut Rows,
        lent: Option<&Rows>,
        (index, spec): (usize, Softmax),
        h: &[f32],
    ) -> (Vec<f32>, Vec<f32>) {
        let b = &self.blueprint;
        let dim = spec.kv.head_dim;
        let (q_width, kv_width) = (b.heads * dim, spec.kv.kv_heads * dim);
        let part = |name| self.linear(&layer_name(index, name), h);
        let has = |name| self.tensors.contains_key(&layer_name(index, name));
        let (mut q, mut k, mut v) = if has("attn_qkv.weight") {
            let all = part("attn_qkv");
            let (q, kv) = all.split_at(q_width);
            (q.to_vec(), kv[..kv_width].to_vec(), kv[kv_width..].to_vec())
        } else if lent.is_some() {
            (part("attn_q"), Vec::new(), Vec::new())
        } else {
            (part("attn_q"), part("attn_k"), part(if has("attn_v.weight") { "attn_v" } else { "attn_k" }))
        };
        let mut gates = Vec::new();
        if spec.gated {
            let halves: Vec<&[f32]> = q.chunks_exact(dim).collect();
            gates = halves.iter().skip(1).step_by(2).flat_map(|gate| gate.to_vec()).collect();
            q = halves.iter().step_by(2).flat_map(|query| query.to_vec()).collect();
        }
        let position = rows.keys.len();
        for (x, norm) in [(&mut q, "attn_q_norm.weight"), (&mut k, "attn_k_norm.weight")] {
            let whole = self.tensors.get(&layer_name(index, norm)).is_some_and(|w| w.values.len() == x.len());
            if whole {
                self.norm_after(&layer_name(index, norm), x);
            }
            for head in x.chunks_exact_mut(dim) {
                if !whole && !spec.norms_rotated {
                    self.norm_after(&layer_name(index, norm), head);
                }
                if let Some(rope) = spec.rope {
                    self.rotate(head, rope, position);
                }
                if !whole && spec.norms_rotated {
                    self.norm_after(&layer_name(index, norm), head);
                }
                if spec.bare_norm == Some(BareNorm::Rotated) {
                    self.bare_norm(head);
                }
            }
        }
        if spec.bare_norm == Some(BareNorm::Values) {
            v.chunks_exact_mut(dim).for_each(|head| self.bare_norm(head));
        }
        if let Some(temperature) = spec.temperature {
            q.iter_mut().for_each(|q| *q *= temperature.at(position));
        }
        rows.keys.push(self.stored(k));
        rows.values.push(self.stored(v));
        (q, gates)
    }

    /// What the queries of the row at `position` see of `rows`.
    fn mix(
        &self,
        Rows { keys, values, .. }: &Rows,
        (index, spec): (usize, Softmax),
        position: usize,
        (q, gates): (Vec<f32>, Vec<f32>),
    ) -> Vec<f32> {
        let b = &self.blueprint;
        let dim = spec.kv.head_dim;
        let mut out = vec![0.0; b.heads * dim];
        let sinks = self.tensors.get(&layer_name(index, "attn_sinks.weight")).map(|sinks| &sinks.values);
        for (head, (q, out)) in q.chunks_exact(dim).zip(out.chunks_exact_mut(dim)).enumerate() {
            let kv_head = head / (b.heads / spec.kv.kv_heads);
            attend(q, (keys, values), (kv_head * dim, position), spec, sinks.map(|sinks| sinks[head]), out);
        }
        out.iter_mut().zip(&gates).for_each(|(out, gate)| *out *= sigmoid(*gate));
        self.norm_after(&layer_name(index, "attn_sub_norm.weight"), &mut out);
        self.linear(&layer_name(index, "attn_output"), &out)
    }

    fn rotate(&self, head: &mut [f32], rope: usize, position: usize) {
        let spec = &self.blueprint.ropes[rope];
        let Frequencies { radians, magnitude } = &self.frequencies[rope];
        for (i, radians) in radians.iter().enumerate() {
            let (a, b) = match spec.pairing {
                Pairing::Adjacent => (2 * i, 2 * i + 1),
                Pairing::Halves => (i, i + spec.dims / 2),
            };
            let angle = position as f64 * radians;
            let (cos, sin) = ((angle.cos() * magnitude) as f32, (angle.sin() * magnitude) as f32);
            (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[a] * sin + head[b] * cos);
        }
    }

    fn dense(&self, index: usize, width: usize, activation: Activation, h: &[f32]) -> Vec<f32> {
        let mut up = self.linear(&layer_name(index, "ffn_up"), h);
        let gate = match activation.gated() {
            false => Vec::new(),
            true if up.len() == 2 * width => up.drain(..width).collect(),
            true => self.linear(&layer_name(index, "ffn_gate"), h),
        };
        let mut inner = network(activation, &gate, up);
        self.norm_after(&layer_name(index, "ffn_sub_norm.weight"), &mut inner);
        self.linear(&layer_name(index, "ffn_down"), &inner)
    }

    /// The experts over `h`, which is `x` behind a norm.
    fn experts(&self, index: usize, spec: &Experts, (h, x): (&[f32], &[f32])) -> Vec<f32> {
        let seen = match spec.latent {
            Some(_) => self.linear(&layer_name(index, "ffn_latent_down"), h),
            None => h.to_vec(),
        };
        let mut out = vec![0.0; seen.len()];
        for (expert, weight) in self.choose(index, spec, (h, x)) {
            let own: Vec<f32> =
                seen.iter().map(|h| if spec.weighs_input { h * weight } else { *h }).collect();
            let weight = if spec.weighs_input { 1.0 } else { weight };
            let part = |name, rows, x: &[f32]| {
                let name = layer_name(index, name);
                let weights = self.slice(&format!("{name}.weight"), expert * rows, rows);
                let mut y = self.product(weights, x);
                if let Some(bias) = self.tensors.get(&format!("{name}.bias")) {
                    add(&mut y, &bias.values[expert * rows..][..rows], 1.0);
                }
                y
            };
            let fused = layer_name(index, "ffn_gate_up_exps.weight");
            let (gate, up) = match self.tensors.contains_key(&fused) {
                _ if !spec.activation.gated() => (Vec::new(), part("ffn_up_exps", spec.width, &own)),
                true => {
                    let mut gate =
                        self.product(self.slice(&fused, 2 * expert * spec.width, 2 * spec.width), &own);
                    let up = gate.split_off(spec.width);
                    (gate, up)
                }
                false => (part("ffn_gate_exps", spec.width, &own), part("ffn_up_exps", spec.width, &own)),
            };
            let inner = network(spec.activation, &gate, up);
            add(&mut out, &part("ffn_down_exps", seen.len(), &inner), weight);
        }
        if spec.latent.is_some() {
            out = self.linear(&layer_name(index, "ffn_latent_up"), &out);
        }
        if spec.shared.is_some() {
            let part = |name, x: &[f32]| self.linear(&layer_name(index, name), x);
            let gate = if spec.activation.gated() { part("ffn_gate_shexp", h) } else { Vec::new() };
            let inner = network(spec.activation, &gate, part("ffn_up_shexp", h));
            let share = match spec.shared_gate {
                true => sigmoid(part("ffn_gate_inp_shexp", h)[0]),
                false => 1.0,
            };
            add(&mut out, &part("ffn_down_shexp", &inner), share);
        }
        out
    }

    /// The experts a row visits, with their weights.
    fn choose(&self, index: usize, spec: &Experts, (h, x): (&[f32], &[f32])) -> Vec<(usize, f32)> {
        let logits = match self.tensors.get(&layer_name(index, "ffn_gate_inp.scale")) {
            None => self.linear(&layer_name(index, "ffn_gate_inp"), h),
            Some(scale) => {
                let mut seen = x.to_vec();
                self.bare_norm(&mut seen);
                let root = (seen.len() as f32).sqrt();
                seen.iter_mut().zip(&scale.values).for_each(|(seen, scale)| *seen *= scale / root);
                self.linear(&layer_name(index, "ffn_gate_inp"), &seen)
            }
        };
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let exps: Vec<f32> = logits.iter().map(|s| (s - largest).exp()).collect();
        let total: f32 = exps.iter().sum();
        let scores: Vec<f32> = match spec.router {
            Router::Softmax => exps.iter().map(|exp| exp / total).collect(),
            Router::SoftmaxOfChosen => exps,
            Router::Sigmoid => logits.iter().map(|s| 1.0 / (1.0 + (-s).exp())).collect(),
        };
        let mut keys = scores.clone();
        if let Some(bias) = self.tensors.get(&layer_name(index, "exp_probs_b.bias")) {
            add(&mut keys, &bias.values, 1.0);
        }
        let mut order: Vec<usize> = (0..spec.count).collect();
        if let Some(groups) = spec.groups {
            let size = spec.count / groups.count;
            let worth = |group: &usize| {
                let mut own = keys[group * size..][..size].to_vec();
                own.sort_by(|a, b| b.total_cmp(a));
                own.iter().take(groups.best).sum::<f32>()
            };
            let mut best: Vec<usize> = (0..groups.count).collect();
            best.sort_by(|a, b| worth(b).total_cmp(&worth(a)));
            order.retain(|expert| best[..groups.used].contains(&(expert / size)));
        }
        order.sort_by(|&a, &b| keys[b].total_cmp(&keys[a]));
        order.truncate(spec.used);
        let share = spec.renormalize || spec.router == Router::SoftmaxOfChosen;
        let sum = if share { order.iter().map(|&e| scores[e]).sum() } else { 1.0 };
        let of_choice = self.blueprint.layers[index].has(CHOICE_FACTORS);
        let factors = self.tensors.get(&layer_name(index, CHOICE_FACTORS)).filter(|_| of_choice);
        let factor =
            |expert: usize| factors.map_or(spec.scale, |factors| spec.scale * factors.values[expert]);
        order.into_iter().map(|expert| (expert, scores[expert] / sum * factor(expert))).collect()
    }

    /// The norm over the residual stream whose tensors are `prefix.weight` and maybe `prefix.bias`; the rows themselves
    /// where the model has none of this name.
    fn norm(&self, prefix: &str, x: &[f32]) -> Vec<f32> {
        let named = self.tensors.get(&format!("{prefix}.weight"));
        let Some(weight) = named.or(self.tensors.get(prefix)) else { return x.to_vec() };
        let spec = self.blueprint.norm;
        let mean = match spec.kind {
            NormKind::Rms => 0.0,
            NormKind::Layer => x.iter().sum::<f32>() / x.len() as f32,
        };
        let square = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / x.len() as f32;
        let root = (square + spec.eps).sqrt();
        let mut out: Vec<f32> =
            x.iter().zip(&weight.values).map(|(x, weight)| (x - mean) / root * weight).collect();
        if let Some(bias) = self.tensors.get(&format!("{prefix}.bias")) {
            add(&mut out, &bias.values, 1.0);
        }
        out
    }

    /// An RMS norm in place, where the model has one of this name.
    fn norm_after(&self, name: &str, x: &mut [f32]) {
        if let Some(weight) = self.tensors.get(name) {
            self.bare_norm(x);
            x.iter_mut().zip(&weight.values).for_each(|(x, weight)| *x *= weight);
        }
    }

    /// An RMS norm without weights in place.
    fn bare_norm(&self, x: &mut [f32]) {
        let square = x.iter().map(|x| x * x).sum::<f32>() / x.len() as f32;
        let root = (square + self.blueprint.norm.eps).sqrt();
        x.iter_mut().for_each(|x| *x /= root);
    }

    fn linear(&self, prefix: &str, x: &[f32]) -> Vec<f32> {
        let name = format!("{prefix}.weight");
        let rows = self.tensors[&name].values.len() / x.len();
        let mut out = self.product(self.slice(&name, 0, rows), x);
        if let Some(bias) = self.tensors.get(&format!("{prefix}.bias")) {
            add(&mut out, &bias.values, 1.0);
        }
        out
    }

    fn rows(&self, name: &str, first: usize, count: usize) -> &[f32] {
        self.slice(name, first, count).values
    }

    /// `count` rows of a matrix from `first` on.
    fn slice(&self, name: &str, first: usize, count: usize) -> Slice<'_> {
        self.tensors[name].slice(first, count)
    }

    fn product(&self, rows: Slice<'_>, x: &[f32]) -> Vec<f32> {
        rows.product(self.arithmetic, x)
    }

    /// A key or value as the cache keeps it.
    fn stored(&self, mut x: Vec<f32>) -> Vec<f32> {
        if self.arithmetic == Arithmetic::Rounded {
            x.iter_mut().for_each(|x| *x = f16::from_f32(*x).to_f32());
        }
        x
    }
}
