//! One pass over some of a shard's layers.

use std::mem;

use scheduler::LayerRange;

use super::super::{
    Gave, Input, Item, Pass,
    batch::{Span, refuse_non_finite, round_at},
};
use super::{
    Shard,
    buffers::{CpuBuffers, PerLayer, recycle},
    ends::{HeadWeights, norm_sums},
    experts::mix,
    load::Linear,
    network::{Hidden, norm, product, run_network},
    per_layer, streams,
    weights::{FeedForwardWeights, Keys, LayerWeights, Mixer, NormWeights, SoftmaxWeights},
};
use crate::fma::Fma;
use crate::{
    Result,
    kernels::{AttentionJob, Cpu, KvShape, QUARTER, Target, attention},
    models::{Attention, BareNorm, FeedForward, Norm, Softmax},
    state::{Evicting, Paged, Recurrent, look},
};

/// States of other models and layers are not admitted, as their tags say.
pub(super) const OWN: &str = "the state was made by this executor";

/// Where a layer is: in the model, and in the caches of a pass.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub layer: usize,
    pub cached: usize,
}

/// How attention looks back into a cache.
pub(super) struct Look<'a> {
    pub place: Place,
    pub shape: KvShape,
    pub scale: f32,
    pub softcap: Option<f32>,
    pub sinks: Option<&'a [f32]>,
    pub chunk: Option<usize>,
    pub ahead: usize,
}

impl Shard {
    /// The head, if it follows `layers`.
    fn leaves_by(&self, layers: LayerRange) -> Option<&HeadWeights> {
        self.head.as_ref().filter(|_| layers.end() == self.range.end())
    }

    /// Computes the rows that were admitted.
    pub(super) fn compute(
        &self,
        ws: &mut CpuBuffers,
        pass: Pass<'_>,
        items: &mut [Item<'_>],
        rows: usize,
    ) -> Result<()> {
        ws.gave = Gave::by(self, pass);
        if rows == 0 {
            return Ok(());
        }
        let head = self.leaves_by(pass.layers);
        self.enter(ws, items)?;
        self.fill_tables(ws);
        let mut rows = rows;
        for layer in pass.layers.start()..pass.layers.end() {
            round_at(pass.rounding, layer, &mut ws.x[..rows * ws.sizes.hidden])?;
            let last = head.is_some() && layer + 1 == pass.layers.end();
            let place = Place { layer: layer as usize, cached: (layer - pass.layers.start()) as usize };
            let weights = &self.layers[(layer - self.range.start()) as usize];
            if let Some(weights) = &weights.streams {
                streams::predict(&self.cpu, (weights, self.blueprint.norm.eps), ws, rows);
            }
            rows = self.attention(ws, items, (place, weights), rows, last);
            if rows == 0 {
                return Ok(());
            }
            self.feed_forward(ws, (place, weights), rows)?;
            self.add_token(ws, (place, weights), rows);
            if let Some(scale) = weights.scale {
                self.cpu.scale(&mut ws.x[..rows * ws.sizes.hidden], scale);
            }
        }
        round_at(pass.rounding, pass.layers.end(), &mut ws.x[..rows * ws.sizes.hidden])?;
        match head {
            None => refuse_non_finite(&ws.x[..rows * ws.sizes.hidden], "outgoing activations"),
            Some(head) => {
                let size = rows * ws.sizes.hidden;
                streams::merge(&self.cpu, &head.streams, ws, rows);
                norm_or_copy(&self.cpu, self.blueprint.norm, head.norm.as_ref(), ws, rows);
                if pass.states {
                    return refuse_non_finite(&ws.h[..size], "hidden states");
                }
                self.leave(ws, head, rows)
            }
        }
    }

    /// Puts the rows that enter the first layer into `ws.x`.
    fn enter(&self, ws: &mut CpuBuffers, items: &[Item<'_>]) -> Result<()> {
        let hidden = ws.sizes.hidden;
        for (item, span) in items.iter().zip(&ws.spans) {
            let x = &mut ws.x[span.first * hidden..(span.first + span.rows) * hidden];
            match (item.input, &self.embedding) {
                (Input::Activations(rows), _) => x.copy_from_slice(rows),
                (Input::Tokens(tokens), Some(embedding)) => {
                    embedding.rows(&self.cpu, &self.blueprint, (tokens, span.start), x)?;
                    if let Some(token) = &embedding.token {
                        let from = (&*self.cpu, &*embedding.gguf);
                        let weights = (token, self.blueprint.norm.eps);
                        let buffers = (&mut ws.scratch, &mut ws.per_layer);
                        per_layer::enter(from, weights, (tokens, x), buffers.0, buffers.1, span.first)?;
                    }
                }
                (Input::Tokens(_), None) => unreachable!("such items are not admitted"),
            }
        }
        // Encoders alone norm what the embedding gives, and they take no rows.
        if let Some(embedding) = &self.embedding {
            let rows = ws.spans.iter().map(|span| span.rows).sum();
            embedding.norm(&self.cpu, self.blueprint.norm, ws, rows);
            // Layers that read the token itself take no rows either.
            if let Some(token) = &embedding.token {
                streams::enter(&self.cpu, &token.streams, ws, rows);
            }
        }
        Ok(())
    }

    /// Cosines and sines of every row, for each rotation in use.
    fn fill_tables(&self, ws: &mut CpuBuffers) {
        for ((rope, frequencies), table) in
            self.blueprint.ropes.iter().zip(&self.frequencies).zip(&mut ws.heads.tables)
        {
            if table.is_empty() {
                continue;
            }
            let mut rows = table.chunks_exact_mut(rope.dims);
            for span in &ws.spans {
                for (position, row) in (span.start..span.start + span.rows).zip(&mut rows) {
                    frequencies.fill(position, row);
                }
            }
        }
    }

    /// `x += attention(norm(x))`. Before the head only the wanted rows go on; returns how many rows do.
    fn attention(
        &self,
        ws: &mut CpuBuffers,
        items: &mut [Item<'_>],
        (place, layer): (Place, &LayerWeights),
        rows: usize,
        last: bool,
    ) -> usize {
        let (cpu, blueprint) = (&*self.cpu, &self.blueprint);
        let hidden = blueprint.hidden;
        norm_or_copy(cpu, blueprint.norm, layer.attention_norm.as_ref(), ws, rows);
        if let Some(weights) = &layer.streams {
            streams::learn(cpu, (weights, blueprint.norm.eps), ws, rows);
        }
        let rows = match (&layer.mixer, blueprint.layers[place.layer].attention) {
            (Mixer::Softmax(weights), Attention::Softmax(spec)) => {
                self.look_back(ws, items, (weights, spec, place), rows, last)
            }
            (Mixer::Recurrence { gate, input }, Attention::Recurrence(_)) => {
                self.recur(ws, items, (gate, input, place.cached), rows, last)
            }
            (Mixer::DeltaNet(weights), Attention::DeltaNet(shape)) => {
                self.delta_net(ws, items, (weights, shape, place.cached), rows, last)
            }
            (Mixer::Beside(weights), Attention::Beside(softmax, mamba)) => {
                self.beside(ws, items, (weights, (softmax, mamba), place), rows, last)
            }
            (Mixer::None, Attention::None) if last => keep_wanted(ws),
            (Mixer::None, Attention::None) => rows,
            (Mixer::Mamba2(weights), Attention::Mamba2(shape)) => {
                self.mamba2(ws, items, (weights, shape, place.cached), rows, last)
            }
            (Mixer::ShortConv { input, taps }, Attention::ShortConv(spec)) => {
                self.short_conv(ws, items, (input, taps, spec, place.cached), rows, last)
            }
            (Mixer::Latent(weights), Attention::Latent(spec)) => {
                self.latent(ws, items, (weights, spec, place), rows, last)
            }
            _ => unreachable!("weights are loaded as the blueprint says"),
        };
        if rows == 0 {
            return 0;
        }
        let parallel = blueprint.layers[place.layer].parallel();
        let Some(out) = &layer.out else {
            // Nothing is added; the rows that go on are normed for the network.
            norm_or_copy(
                cpu,
                blueprint.norm,
                layer.feed_forward_norm.as_ref().filter(|_| parallel),
                ws,
                rows,
            );
            return rows;
        };
        let y = &mut ws.y[..rows * hidden];
        let mixed = &mut ws.attended[..rows * blueprint.mixed_width(place.layer)];
        if let Some(weight) = &layer.mixed_norm {
            cpu.rms_norm_in_place(mixed, weight.len(), Some(weight), blueprint.norm.eps);
        }
        match layer.mixer {
            // The normed rows are used up.
            Mixer::Beside(_) => {
                let share = &mut ws.h[..rows * hidden];
                product(cpu, &mut ws.scratch, mixed, rows, [(out, &mut *share)]);
                cpu.add(y, share);
            }
            _ => product(cpu, &mut ws.scratch, mixed, rows, [(out, y)]),
        }
        if let Some(weight) = &layer.attention_norm_after {
            cpu.rms_norm_in_place(&mut ws.y[..rows * hidden], hidden, Some(weight), blueprint.norm.eps);
        }
        if parallel && blueprint.layers[place.layer].feed_forward != FeedForward::None {
            norm_or_copy(cpu, blueprint.norm, layer.feed_forward_norm.as_ref(), ws, rows);
        }
        self.add_to_residual(ws, rows);
        if layer.streams.is_some() {
            streams::add_learned(cpu, ws, rows);
        }
        if let Some(weights) = &layer.attention_sum_norm {
            norm_sums(cpu, blueprint.norm, weights, ws, rows);
        }
        rows
    }

    /// Adds what a sublayer made.
    fn add_to_residual(&self, ws: &mut CpuBuffers, rows: usize) {
        let (x, y) = (&mut ws.x[..rows * ws.sizes.hidden], &ws.y[..rows * ws.sizes.hidden]);
        match self.blueprint.residual_scale {
            1.0 => self.cpu.add(x, y),
            scale => self.cpu.add_scaled(x, y, scale),
        }
    }

    /// Softmax attention of the normed rows, into `ws.attended`; returns how many rows go on.
    pub(super) fn look_back(
        &self,
        ws: &mut CpuBuffers,
        items: &mut [Item<'_>],
        (weights, spec, place): (&SoftmaxWeights, Softmax, Place),
        rows: usize,
        last: bool,
    ) -> usize {
        let (cpu, blueprint) = (&*self.cpu, &self.blueprint);
        let kv = spec.kv;
        let (q_width, kv_width) = (blueprint.heads * kv.head_dim, kv.kv_heads * kv.head_dim);
        let q = &mut ws.heads.q[..rows * q_width];
        let k = &mut ws.heads.k[..rows * kv_width];
        let v = &mut ws.heads.v[..rows * kv_width];
        let h = &ws.h[..rows * blueprint.hidden];
        match (&weights.keys, &weights.gate) {
            (Keys::Own(keys, values), None) => {
                product(cpu, &mut ws.scratch, h, rows, [(&weights.q, q), (keys, k), (values, v)]);
            }
            (Keys::Own(keys, values), Some(gate)) => {
                let to = &mut ws.hybrid.gate[..rows * q_width];
                let targets = [(&weights.q, q), (gate, to), (keys, k), (values, v)];
                product(cpu, &mut ws.scratch, h, rows, targets);
            }
            (Keys::Same(keys), _) => {
                product(cpu, &mut ws.scratch, h, rows, [(&weights.q, q), (keys, &mut *k)]);
                v.copy_from_slice(k);
            }
            (Keys::Elsewhere, _) => product(cpu, &mut ws.scratch, h, rows, [(&weights.q, q)]),
        }
        // The layer whose keys and values are looked at, among those of this pass; all of an encoder use one cache in turn.
        let cached = match blueprint.encodes() {
            true => 0,
            false => place.cached + spec.source.unwrap_or(place.layer) - place.layer,
        };
        self.rotate(ws, weights, spec, rows);
        for (item, span) in items.iter_mut().zip(&ws.spans).filter(|_| spec.source.is_none()) {
            if item.state.layer::<Evicting>(cached).is_some() {
                continue;
            }
            let at = span.first * kv_width..(span.first + span.rows) * kv_width;
            let Some(paged) = item.state.layer_mut::<Paged>(cached) else { unreachable!("{OWN}") };
            let kv = paged.shape();
            attention::store_kv(
                cpu,
                paged.pages_mut(),
                kv,
                &ws.heads.k[at.clone()],
                &ws.heads.v[at],
                span.start,
            );
            paged.mark(span.start..span.start + span.rows);
        }
        let rows = if last { keep_wanted(ws) } else { rows };
        if rows > 0 {
            let sinks = weights.sinks.as_deref();
            let Softmax { scale, softcap, chunk, ahead, .. } = spec;
            let place = Place { cached, ..place };
            let look = Look { place, shape: kv, scale, softcap, sinks, chunk, ahead };
            let mut out = mem::take(&mut ws.attended);
            self.attend(ws, items, look, &mut out, last);
            ws.attended = out;
        }
        for (item, span) in items.iter_mut().zip(&ws.spans) {
            let Some(state) = item.state.layer_mut::<Evicting>(cached) else { continue };
            let (first, wanted) =
                if last { (span.first_wanted, span.wanted) } else { (span.first, span.rows) };
            let of = |width: usize| span.first * width..(span.first + span.rows) * width;
            let rows = look::Rows {
                positions: span.start..span.start + span.rows,
                wanted,
                q: &ws.heads.q[of(q_width)],
                k: &ws.heads.k[of(kv_width)],
                v: &ws.heads.v[of(kv_width)],
                heads: blueprint.heads,
                scale: spec.scale,
                softcap: spec.softcap,
                sinks: weights.sinks.as_deref(),
                out: &mut ws.attended[first * q_width..(first + wanted) * q_width],
            };
            look::look_back(cpu, state, rows);
        }
        if spec.gated {
            if last {
                keep_rows(&ws.spans, &mut ws.hybrid.gate, q_width);
            }
            let size = rows * q_width;
            cpu.mul_sigmoid(&mut ws.attended[..size], &ws.hybrid.gate[..size]);
        }
        rows
    }

    /// A gated linear recurrence over the normed rows, positions ascending, into `ws.attended`; returns how many rows go on.
    fn recur(
        &self,
        ws: &mut CpuBuffers,
        items: &mut [Item<'_>],
        (gate, input, cached): (&Linear, &Linear, usize),
        rows: usize,
        last: bool,
    ) -> usize {
        let (cpu, width) = (&*self.cpu, self.blueprint.q_width());
        let (gates, inputs) = (&mut ws.heads.q[..rows * width], &mut ws.attended[..rows * width]);
        let h = &ws.h[..rows * self.blueprint.hidden];
        product(cpu, &mut ws.scratch, h, rows, [(gate, &mut *gates), (input, inputs)]);
        cpu.sigmoid(gates);
        for (item, span) in items.iter_mut().zip(&ws.spans) {
            let Some(state) = item.state.layer_mut::<Recurrent>(cached) else { unreachable!("{OWN}") };
            let (gates, mixed) = (&ws.heads.q, &mut ws.attended);
            state.pass(span.start, span.rows, |before, state, rows| {
                if rows.start == 0 {
                    state.copy_from_slice(before);
                }
                for row in rows {
                    let at = (span.first + row) * width..(span.first + row + 1) * width;
                    blend(state, &gates[at.clone()], &mut mixed[at]);
                }
            });
        }
        if !last {
            return rows;
        }
        keep_rows(&ws.spans, &mut ws.attended, width);
        keep_wanted(ws)
    }

    /// Norms over heads and rotation of queries and keys, and the norm over values.
    fn rotate(&self, ws: &mut CpuBuffers, weights: &SoftmaxWeights, spec: Softmax, rows: usize) {
        let (cpu, blueprint) = (&*self.cpu, &self.blueprint);
        let (eps, KvShape { kv_heads, head_dim: dim, .. }) = (blueprint.norm.eps, spec.kv);
        let kv_heads = if spec.source.is_some() { 0 } else { kv_heads };
        let sides = [
            (&mut ws.heads.q[..rows * blueprint.heads * dim], blueprint.heads, &weights.q_norm),
            (&mut ws.heads.k[..rows * kv_heads * dim], kv_heads, &weights.k_norm),
        ];
        for (x, heads, norm) in sides.into_iter().filter(|(_, heads, _)| *heads > 0) {
            // As long as a head, or as all of them.
            let norm = |x: &mut [f32], now: bool| {
                let weight = norm.as_ref().filter(|_| now);
                weight.map(|weight| cpu.rms_norm_in_place(x, weight.len(), Some(weight), eps))
            };
            norm(x, !spec.norms_rotated);
            if let Some(index) = spec.rope {
                let rope = &blueprint.ropes[index];
                let table = &ws.heads.tables[index][..rows * rope.dims];
                cpu.rope(x, heads * dim, heads, dim, rope.dims, rope.pairing, table);
            }
            norm(x, spec.norms_rotated);
            if spec.bare_norm == Some(BareNorm::Rotated) {
                cpu.rms_norm_in_place(x, dim, None, eps);
            }
        }
        if spec.bare_norm == Some(BareNorm::Values) {
            cpu.rms_norm_in_place(&mut ws.heads.v[..rows * kv_heads * dim], dim, None, eps);
        }
        if let Some(temperature) = spec.temperature {
            let mut queries = ws.heads.q.chunks_exact_mut(blueprint.heads * dim);
            for span in &ws.spans {
                for (position, query) in (span.start..span.start + span.rows).zip(&mut queries) {
                    cpu.scale(query, temperature.at(position));
                }
            }
        }
    }

    /// Softmax attention of every item over its own cache, into `out`.
    pub(super) fn attend(
        &self,
        ws: &mut CpuBuffers,
        items: &[Item<'_>],
        look: Look<'_>,
        mut out: &mut [f32],
        last: bool,
    ) {
        let Look { place, shape, scale, softcap, sinks, chunk, ahead } = look;
        let heads = self.blueprint.heads;
        let width = heads * shape.head_dim;
        let mut jobs = recycle(mem::take(&mut ws.heads.jobs));
        for (item, span) in items.iter().zip(&ws.spans) {
            let n = if last { span.wanted } else { span.rows };
            if n == 0 {
                continue;
            }
            if item.state.layer::<Evicting>(place.cached).is_some() {
                out = mem::take(&mut out).split_at_mut(n * heads * shape.value_dim()).1;
                continue;
            }
            let (window, _) = self.blueprint.sight(place.layer, item.state.kind().attention);
            let Some(paged) = item.state.layer::<Paged>(place.cached) else { unreachable!("{OWN}") };
            let skipped = span.rows - n;
            let mut done = 0;
            while done < n {
                let at = span.start + skipped + done;
                // Rows of one block see its pages only.
                let (base, many) = match chunk {
                    None => (0, n),
                    Some(chunk) => (at - at % chunk, (chunk - at % chunk).min(n - done)),
                };
                let (here, rest) = mem::take(&mut out).split_at_mut(many * heads * shape.value_dim());
                out = rest;
                jobs.push(AttentionJob {
                    q: &ws.heads.q[(span.first + skipped + done) * width..][..many * width],
                    pages: &paged.pages()[base / QUARTER..],
                    shape: paged.shape(),
                    start: at - base,
                    n: many,
                    heads,
                    scale,
                    softcap,
                    window,
                    ahead,
                    far: paged.far(),
                    sinks,
                    out: here,
                });
                done += many;
            }
        }
        attention::attend(&self.cpu, &mut jobs);
        ws.heads.jobs = recycle(jobs);
    }

    /// `x += feed_forward(norm(x))`.
    fn feed_forward(
        &self,
        ws: &mut CpuBuffers,
        (place, layer): (Place, &LayerWeights),
        rows: usize,
    ) -> Result<()> {
        let (cpu, blueprint) = (&*self.cpu, &self.blueprint);
        let size = rows * blueprint.hidden;
        let spec = &blueprint.layers[place.layer].feed_forward;
        if *spec == FeedForward::None {
            return Ok(());
        }
        if !blueprint.layers[place.layer].parallel() {
            norm_or_copy(cpu, blueprint.norm, layer.feed_forward_norm.as_ref(), ws, rows);
        }
        match (&layer.feed_forward, spec) {
            (FeedForwardWeights::Dense(network), FeedForward::Dense(dense)) => {
                let (gate, up, scratch) = (&mut ws.inner.gate, &mut ws.inner.up, &mut ws.scratch);
                let buffers = Hidden { gate, up, scratch, eps: blueprint.norm.eps };
                let (h, y) = (&ws.h[..size], &mut ws.y[..size]);
                run_network(cpu, network, dense.activation, h, buffers, y);
            }
            (FeedForwardWeights::Experts(weights), FeedForward::Experts(spec)) => {
                mix(cpu, (weights, spec, blueprint.norm.eps), ws, (place.layer, rows))?;
            }
            (FeedForwardWeights::Both(both), FeedForward::Both(dense, spec)) => {
                let eps = blueprint.norm.eps;
                let (gate, up, scratch) = (&mut ws.inner.gate, &mut ws.inner.up, &mut ws.scratch);
                let buffers = Hidden { gate, up, scratch, eps };
                let (h, beside) = (&ws.h[..size], &mut ws.routing.beside[..size]);
                run_network(cpu, &both.dense, dense.activation, h, buffers, beside);
                cpu.rms_norm_in_place(beside, blueprint.hidden, Some(&both.dense_norm_after), eps);
                norm(cpu, blueprint.norm, &both.experts_norm, &ws.x[..size], &mut ws.h[..size]);
                mix(cpu, (&both.experts, spec, eps), ws, (place.layer, rows))?;
                let y = &mut ws.y[..size];
                cpu.rms_norm_in_place(y, blueprint.hidden, Some(&both.experts_norm_after), eps);
                cpu.add(y, &ws.routing.beside[..size]);
            }
            _ => unreachable!("weights are loaded as the blueprint says"),
        }
        if let Some(weight) = &layer.feed_forward_norm_after {
            cpu.rms_norm_in_place(&mut ws.y[..size], blueprint.hidden, Some(weight), blueprint.norm.eps);
        }
        self.add_to_residual(ws, rows);
        if let Some(weights) = &layer.sum_norm {
            norm_sums(cpu, blueprint.norm, weights, ws, rows);
        }
        Ok(())
    }

    /// What the layer makes of the token itself: added to the residual rows or, where they come in streams, to all but the first.
    fn add_token(&self, ws: &mut CpuBuffers, (place, layer): (Place, &LayerWeights), rows: usize) {
        let Some(token) = &layer.token else { return };
        let (cpu, eps, size) = (&*self.cpu, self.blueprint.norm.eps, rows * ws.sizes.hidden);
        match &layer.streams {
            Some(weights) => streams::correct(cpu, (weights, eps), ws, rows),
            None => ws.h[..size].copy_from_slice(&ws.x[..size]),
        }
        per_layer::make(cpu, (token, eps), ws, place.layer, rows);
        match &layer.streams {
            Some(_) => streams::add_token(cpu, ws, rows),
            None => cpu.add(&mut ws.x[..size], &ws.y[..size]),
        }
    }

    /// Head, factor and softcap of the normed rows that are left.
    fn leave(&self, ws: &mut CpuBuffers, head: &HeadWeights, rows: usize) -> Result<()> {
        let (cpu, size) = (&*self.cpu, rows * ws.sizes.hidden);
        let logits = &mut ws.logits[..rows * ws.sizes.vocab];
        let Some(matrix) = &head.matrix else { unreachable!("logits of an encoder are not admitted") };
        let mut target = [Target { matrix, out: logits }];
        cpu.matmul(&ws.h[..size], rows, &mut ws.scratch, &mut target);
        let logits = &mut ws.logits[..rows * ws.sizes.vocab];
        if let Some(bias) = &head.bias {
            cpu.add_bias(logits, bias);
        }
        if self.blueprint.head.scale != 1.0 {
            cpu.scale(logits, self.blueprint.head.scale);
        }
        if let Some(cap) = self.blueprint.head.softcap {
            cpu.softcap(logits, cap);
        }
        refuse_non_finite(logits, "logits")
    }
}

/// One position of a recurrence: `state = x + gate * (state - x)`, one fma per value; `x` becomes the state.
fn blend(state: &mut [f32], gate: &[f32], x: &mut [f32]) {
    for ((state, gate), x) in state.iter_mut().zip(gate).zip(x) {
        *state = gate.fma(*state - *x, *x);
        *x = *state;
    }
}

/// Moves the wanted rows of the residual stream to the front, in order, and returns how many there are.
///
/// With them go what layers read of the tokens, and the streams of the rows.
pub(super) fn keep_wanted(ws: &mut CpuBuffers) -> usize {
    let PerLayer { rows, row, streams } = &mut ws.per_layer;
    if !row.is_empty() {
        keep_rows(&ws.spans, rows, row.len());
    }
    if streams.count > 0 {
        keep_rows(&ws.spans, &mut streams.rows, streams.row.len());
        keep_rows(&ws.spans, &mut streams.learned, ws.sizes.hidden);
    }
    keep_rows(&ws.spans, &mut ws.x, ws.sizes.hidden)
}

/// Moves the wanted rows of `x`, each of `width` values, to the front, in order, and returns how many there are.
pub(super) fn keep_rows(spans: &[Span], x: &mut [f32], width: usize) -> usize {
    let mut kept = 0;
    for span in spans {
        let first = span.first + span.rows - span.wanted;
        x.copy_within(first * width..(first + span.wanted) * width, kept * width);
        kept += span.wanted;
    }
    kept
}

/// The rows of the residual stream into `ws.h`, normed where the model does.
fn norm_or_copy(cpu: &Cpu, spec: Norm, weights: Option<&NormWeights>, ws: &mut CpuBuffers, rows: usize) {
    let size = rows * ws.sizes.hidden;
    match weights {
        Some(weights) => norm(cpu, spec, weights, &ws.x[..size], &mut ws.h[..size]),
        None => ws.h[..size].copy_from_slice(&ws.x[..size]),
    }
}
