//! One pass over a shard's layers.

use std::mem;

use super::{
    Embedding, Input, Item, Output, Shard,
    experts::mix,
    weights::{FeedForwardWeights, LayerWeights, Linear, Network, NormWeights},
    workspace::{Span, Workspace, recycle},
};
use crate::{
    Error, Result,
    kernels::{Activations, AttentionJob, Cpu, Target},
    models::{Activation, Attention, FeedForward, Norm, NormKind, Softmax},
};

/// Rows of the embedding table read between giving its pages in the file back.
const MANY_ROWS: usize = 16;

impl Shard {
    /// Computes all rows of all items and advances their caches; results are read from `ws` until the next pass.
    ///
    /// Each item gets the bits it would get alone. Allocates only pages of caches that were not reserved.
    ///
    /// # Errors
    /// [`Error::Invalid`] when an item does not belong to this shard, holds no row or a token beyond the vocabulary, when
    /// the batch exceeds the workspace or a session its context, and when a value coming in or going out is not finite.
    /// No cache is advanced then.
    pub fn forward(&self, ws: &mut Workspace, items: &mut [Item<'_>]) -> Result<()> {
        ws.clear();
        let outcome = self.admit(ws, items).and_then(|rows| self.compute(ws, items, rows));
        match outcome {
            Ok(()) => items.iter_mut().zip(&ws.spans).for_each(|(item, span)| item.kv.advance(span.rows)),
            Err(_) => ws.clear(),
        }
        outcome
    }

    /// Checks every item, makes room in its cache and notes its span; returns the number of rows.
    fn admit(&self, ws: &mut Workspace, items: &mut [Item<'_>]) -> Result<usize> {
        if ws.hidden != self.blueprint.hidden || ws.has_head != self.head.is_some() {
            return Err(Error::invalid("the workspace belongs to another shard"));
        }
        if items.len() > ws.capacity.items {
            let most = ws.capacity.items;
            return Err(Error::invalid(format!("{} items in a workspace for {most}", items.len())));
        }
        let (mut rows, mut wanted) = (0, 0);
        for item in items.iter() {
            let n = self.rows_of(item.input)?;
            if item.kv.tag() != self.tag || item.kv.layers() != self.layers.len() {
                return Err(Error::invalid("the cache belongs to another model or other layers"));
            }
            let want = match item.output {
                Output::None => 0,
                Output::Last => 1,
                Output::All => n,
            };
            let start = item.kv.len();
            ws.spans.push(Span { first: rows, rows: n, wanted: want, first_wanted: wanted, start });
            rows += n;
            wanted += want;
        }
        if rows > ws.capacity.rows {
            return Err(Error::invalid(format!("{rows} rows in a workspace for {}", ws.capacity.rows)));
        }
        if self.head.is_some() && wanted > ws.capacity.logit_rows {
            let most = ws.capacity.logit_rows;
            return Err(Error::invalid(format!("logits of {wanted} rows in a workspace for {most}")));
        }
        for (item, span) in items.iter_mut().zip(&ws.spans) {
            item.kv.reserve(span.start + span.rows)?;
        }
        Ok(rows)
    }

    fn rows_of(&self, input: Input<'_>) -> Result<usize> {
        let hidden = self.blueprint.hidden;
        let rows = match input {
            Input::Tokens(_) if self.embedding.is_none() => {
                return Err(Error::invalid("token ids for a shard without the embedding"));
            }
            Input::Activations(_) if self.embedding.is_some() => {
                return Err(Error::invalid("activations for a shard that begins with the embedding"));
            }
            Input::Tokens(tokens) => {
                if let Some(id) = tokens.iter().find(|&&id| id as usize >= self.blueprint.vocab) {
                    return Err(Error::invalid(format!("token {id} is beyond the vocabulary")));
                }
                tokens.len()
            }
            Input::Activations(x) => {
                if !x.len().is_multiple_of(hidden) {
                    return Err(Error::invalid(format!("activations are no rows of {hidden} values")));
                }
                refuse_non_finite(x, "incoming activations")?;
                x.len() / hidden
            }
        };
        if rows == 0 {
            return Err(Error::invalid("an item without rows"));
        }
        Ok(rows)
    }

    fn compute(&self, ws: &mut Workspace, items: &mut [Item<'_>], rows: usize) -> Result<()> {
        if rows == 0 {
            return Ok(());
        }
        self.enter(ws, items, rows)?;
        self.fill_tables(ws);
        let mut rows = rows;
        for (index, layer) in self.layers.iter().enumerate() {
            let last = self.head.is_some() && index + 1 == self.layers.len();
            rows = self.attention(ws, items, (index, layer), rows, last);
            if rows == 0 {
                return Ok(());
            }
            self.feed_forward(ws, (index, layer), rows);
        }
        match &self.head {
            None => refuse_non_finite(&ws.x[..rows * ws.hidden], "outgoing activations"),
            Some(_) => self.leave(ws, rows),
        }
    }

    /// Puts the rows that enter the first layer into `ws.x`.
    fn enter(&self, ws: &mut Workspace, items: &[Item<'_>], rows: usize) -> Result<()> {
        let hidden = ws.hidden;
        let mut x = ws.x.chunks_exact_mut(hidden);
        let Some(embedding) = &self.embedding else {
            for item in items {
                if let Input::Activations(rows) = item.input {
                    rows.chunks_exact(hidden).zip(&mut x).for_each(|(row, x)| x.copy_from_slice(row));
                }
            }
            return Ok(());
        };
        let table = embedding.table()?;
        for item in items {
            if let Input::Tokens(tokens) = item.input {
                for (row, (&id, x)) in tokens.iter().zip(&mut x).enumerate() {
                    (table.format.dequantize)(table.row(id as usize), x);
                    // Each row read maps a neighborhood of the file; a long prompt would keep a good part of the table.
                    if row % MANY_ROWS == MANY_ROWS - 1 {
                        embedding.gguf.forget(Embedding::NAME);
                    }
                }
            }
        }
        if self.blueprint.embedding_scale != 1.0 {
            self.cpu.scale(&mut ws.x[..rows * hidden], self.blueprint.embedding_scale);
        }
        Ok(())
    }

    /// Cosines and sines of every row, for each rotation in use.
    fn fill_tables(&self, ws: &mut Workspace) {
        for ((rope, frequencies), table) in
            self.blueprint.ropes.iter().zip(&self.frequencies).zip(&mut ws.tables)
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

    /// `x += attention(norm(x))`. In the model's last layer only the wanted rows go on; returns how many rows do.
    fn attention(
        &self,
        ws: &mut Workspace,
        items: &mut [Item<'_>],
        (index, layer): (usize, &LayerWeights),
        rows: usize,
        last: bool,
    ) -> usize {
        let (cpu, blueprint) = (&*self.cpu, &self.blueprint);
        let (hidden, q_width, kv_width) = (blueprint.hidden, blueprint.q_width(), blueprint.kv_width());
        let Attention::Softmax(spec) = blueprint.layers[self.range.start() as usize + index].attention;
        let h = &mut ws.h[..rows * hidden];
        norm(cpu, blueprint.norm, &layer.attention_norm, &ws.x[..rows * hidden], h);
        let q = &mut ws.q[..rows * q_width];
        let k = &mut ws.k[..rows * kv_width];
        let v = &mut ws.v[..rows * kv_width];
        product(cpu, &mut ws.scratch, h, rows, [(&layer.q, q), (&layer.k, k), (&layer.v, v)]);
        self.rotate(ws, layer, spec, rows);
        for (item, span) in items.iter_mut().zip(&ws.spans) {
            let at = span.first * kv_width..(span.first + span.rows) * kv_width;
            let pages = item.kv.pages_mut(index);
            cpu.store_kv(pages, self.kv_shape(), &ws.k[at.clone()], &ws.v[at], span.start);
        }
        let rows = if last { keep_wanted(ws) } else { rows };
        if rows == 0 {
            return 0;
        }
        self.attend(ws, items, spec, index, last);
        let y = &mut ws.y[..rows * hidden];
        product(cpu, &mut ws.scratch, &ws.attended[..rows * q_width], rows, [(&layer.out, y)]);
        if let Some(weight) = &layer.attention_norm_after {
            cpu.rms_norm_in_place(&mut ws.y[..rows * hidden], hidden, Some(weight), blueprint.norm.eps);
        }
        cpu.add(&mut ws.x[..rows * hidden], &ws.y[..rows * hidden]);
        rows
    }

    /// Norms over heads and rotation of queries and keys.
    fn rotate(&self, ws: &mut Workspace, layer: &LayerWeights, spec: Softmax, rows: usize) {
        let blueprint = &self.blueprint;
        let sides = [
            (&mut ws.q[..rows * blueprint.q_width()], blueprint.heads, &layer.q_norm),
            (&mut ws.k[..rows * blueprint.kv_width()], blueprint.kv_heads, &layer.k_norm),
        ];
        let dim = blueprint.head_dim;
        for (x, heads, norm) in sides {
            if let Some(weight) = norm {
                self.cpu.rms_norm_in_place(x, dim, Some(weight), blueprint.norm.eps);
            }
            if let Some(index) = spec.rope {
                let rope = &blueprint.ropes[index];
                let table = &ws.tables[index][..rows * rope.dims];
                self.cpu.rope(x, heads * dim, heads, dim, rope.dims, rope.pairing, table);
            }
        }
    }

    /// Softmax attention of every item over its own cache, into `ws.attended`.
    fn attend(&self, ws: &mut Workspace, items: &[Item<'_>], spec: Softmax, index: usize, last: bool) {
        let width = self.blueprint.q_width();
        let mut jobs = recycle(mem::take(&mut ws.jobs));
        let mut out = &mut ws.attended[..];
        for (item, span) in items.iter().zip(&ws.spans) {
            let n = if last { span.wanted } else { span.rows };
            if n == 0 {
                continue;
            }
            let skipped = span.rows - n;
            let (here, rest) = mem::take(&mut out).split_at_mut(n * width);
            out = rest;
            jobs.push(AttentionJob {
                q: &ws.q[(span.first + skipped) * width..][..n * width],
                pages: item.kv.pages(index),
                shape: self.kv_shape(),
                start: span.start + skipped,
                n,
                heads: self.blueprint.heads,
                scale: spec.scale,
                softcap: spec.softcap,
                window: spec.window,
                out: here,
            });
        }
        self.cpu.attention(&mut jobs);
        ws.jobs = recycle(jobs);
    }

    /// `x += feed_forward(norm(x))`.
    fn feed_forward(&self, ws: &mut Workspace, (index, layer): (usize, &LayerWeights), rows: usize) {
        let (cpu, blueprint) = (&*self.cpu, &self.blueprint);
        let size = rows * blueprint.hidden;
        norm(cpu, blueprint.norm, &layer.feed_forward_norm, &ws.x[..size], &mut ws.h[..size]);
        let spec = &blueprint.layers[self.range.start() as usize + index].feed_forward;
        match (&layer.feed_forward, spec) {
            (FeedForwardWeights::Dense(network), FeedForward::Dense(dense)) => {
                let buffers = Hidden { gate: &mut ws.gate, up: &mut ws.up, scratch: &mut ws.scratch };
                run_network(
                    cpu,
                    network,
                    dense.activation,
                    (&ws.h[..size], rows),
                    buffers,
                    &mut ws.y[..size],
                );
            }
            (FeedForwardWeights::Experts(weights), FeedForward::Experts(spec)) => {
                mix(cpu, weights, spec, ws, rows);
            }
            _ => unreachable!("weights are loaded as the blueprint says"),
        }
        if let Some(weight) = &layer.feed_forward_norm_after {
            cpu.rms_norm_in_place(&mut ws.y[..size], blueprint.hidden, Some(weight), blueprint.norm.eps);
        }
        cpu.add(&mut ws.x[..size], &ws.y[..size]);
    }

    /// Norm, head, factor and softcap of the rows that are left.
    fn leave(&self, ws: &mut Workspace, rows: usize) -> Result<()> {
        let Some(head) = &self.head else { return Ok(()) };
        let (cpu, size) = (&*self.cpu, rows * ws.hidden);
        norm(cpu, self.blueprint.norm, &head.norm, &ws.x[..size], &mut ws.h[..size]);
        let logits = &mut ws.logits[..rows * ws.vocab];
        let mut target = [Target { matrix: &head.matrix, out: logits }];
        cpu.matmul(&ws.h[..size], rows, &mut ws.scratch, &mut target);
        let logits = &mut ws.logits[..rows * ws.vocab];
        if self.blueprint.head.scale != 1.0 {
            cpu.scale(logits, self.blueprint.head.scale);
        }
        if let Some(cap) = self.blueprint.head.softcap {
            cpu.softcap(logits, cap);
        }
        refuse_non_finite(logits, "logits")
    }
}

/// Moves the wanted rows of the residual stream to the front, in order, and returns how many there are.
fn keep_wanted(ws: &mut Workspace) -> usize {
    let mut kept = 0;
    for span in &ws.spans {
        let first = span.first + span.rows - span.wanted;
        ws.x.copy_within(first * ws.hidden..(first + span.wanted) * ws.hidden, kept * ws.hidden);
        kept += span.wanted;
    }
    kept
}

fn refuse_non_finite(values: &[f32], what: &str) -> Result<()> {
    match values.iter().fold(true, |finite, v| finite & v.is_finite()) {
        true => Ok(()),
        false => Err(Error::invalid(format!("{what} hold a value that is not finite"))),
    }
}

fn norm(cpu: &Cpu, norm: Norm, weights: &NormWeights, x: &[f32], out: &mut [f32]) {
    let cols = weights.weight.len();
    match norm.kind {
        NormKind::Rms => cpu.rms_norm(x, cols, Some(&weights.weight), norm.eps, out),
        NormKind::Layer => {
            cpu.layer_norm(x, cols, Some(&weights.weight), weights.bias.as_deref(), norm.eps, out)
        }
    }
}

/// `out = x * matrix + bias` for several matrices over the same rows.
fn product<const N: usize>(
    cpu: &Cpu,
    scratch: &mut Activations,
    x: &[f32],
    rows: usize,
    mut outputs: [(&Linear, &mut [f32]); N],
) {
    let mut targets = outputs.each_mut().map(|(linear, out)| Target { matrix: &linear.matrix, out });
    cpu.matmul(x, rows, scratch, &mut targets);
    for (linear, out) in outputs {
        if let Some(bias) = &linear.bias {
            cpu.add_bias(out, bias);
        }
    }
}

/// The buffers between the two layers of a network.
pub(super) struct Hidden<'a> {
    pub gate: &'a mut [f32],
    pub up: &'a mut [f32],
    pub scratch: &'a mut Activations,
}

/// A feed-forward network over `rows` rows of `x`, into `out`.
pub(super) fn run_network(
    cpu: &Cpu,
    network: &Network,
    activation: Activation,
    (x, rows): (&[f32], usize),
    buffers: Hidden<'_>,
    out: &mut [f32],
) {
    let Hidden { gate, up, scratch } = buffers;
    let size = rows * network.up.matrix.rows();
    let (gate, up) = (&mut gate[..size], &mut up[..size]);
    let inner = match &network.gate {
        Some(linear) => {
            product(cpu, scratch, x, rows, [(linear, &mut *gate), (&network.up, &mut *up)]);
            match activation {
                Activation::GatedGelu => cpu.gelu_mul(gate, up),
                Activation::GatedSilu | Activation::Gelu => cpu.silu_mul(gate, up),
            }
            gate
        }
        None => {
            product(cpu, scratch, x, rows, [(&network.up, &mut *up)]);
            cpu.gelu(up);
            up
        }
    };
    product(cpu, scratch, inner, rows, [(&network.down, out)]);
}
