//! One pass over some of a shard's layers.

use std::mem;

use scheduler::LayerRange;

use super::{
    Embedding, HeadWeights, Input, Item, Output, Shard,
    experts::mix,
    network::{Hidden, product, run_network},
    weights::{FeedForwardWeights, LayerWeights, NormWeights},
    workspace::{Gave, Span, Workspace, recycle},
};
use crate::{
    Error, Result,
    kernels::{AttentionJob, Cpu, Target},
    models::{Attention, FeedForward, Norm, NormKind, Softmax},
    round,
};

/// Rows of the embedding table read between giving its pages in the file back.
const MANY_ROWS: usize = 16;

/// What one pass does besides its items.
#[derive(Clone, Copy)]
struct Pass<'a> {
    layers: LayerRange,
    rounding: &'a [u32],
    /// The head, when it follows the layers.
    head: Option<&'a HeadWeights>,
    /// Whether the pass ends after the head's norm, before its matrix.
    states: bool,
}

impl Pass<'_> {
    /// Rounds the rows `x` that cross `boundary`, if the session rounds there.
    fn round(&self, boundary: u32, x: &mut [f32]) -> Result<()> {
        if self.rounding.contains(&boundary) {
            // Rounding would turn NaN into a number that later checks accept.
            refuse_non_finite(x, "activations to round")?;
            round::q8(x);
        }
        Ok(())
    }
}

/// Where a layer is: in the model, and in the caches of a pass.
#[derive(Clone, Copy)]
struct Place {
    layer: usize,
    cached: usize,
}

impl Shard {
    /// Computes all rows of all items through all layers held; as [`Shard::run`] over them, without rounding.
    ///
    /// # Errors
    /// Those of [`Shard::run`]; [`Error::Invalid`] for activations when the shard begins with the embedding.
    pub fn forward(&self, ws: &mut Workspace, items: &mut [Item<'_>]) -> Result<()> {
        let rows_come_in = |item: &Item<'_>| matches!(item.input, Input::Activations(_));
        if self.embedding.is_some() && items.iter().any(rows_come_in) {
            ws.clear();
            return Err(Error::invalid("activations for a shard that begins with the embedding"));
        }
        self.run(ws, self.range, &[], items)
    }

    /// Computes all rows of all items through `layers`, any of those held, and advances their caches (which are of
    /// [`Shard::new_kv_of`] those layers); results are read from `ws` until the next pass.
    ///
    /// Activations are rounded as wire `q8` does at every boundary of `rounding` from the first layer's to the one
    /// after the last; boundaries elsewhere do not matter. Each item gets the bits it would get alone, and the same in
    /// one run as in several over adjacent layers. Allocates only pages of caches that were not reserved.
    ///
    /// # Errors
    /// [`Error::Invalid`] for layers that are not held; when an item does not belong to them, holds no row or a token
    /// beyond the vocabulary; when the batch exceeds the workspace or a session its context; for rounding in a model
    /// whose rows are no whole blocks; and when a value coming in, going out or being rounded is not finite. No cache is
    /// advanced then.
    pub fn run(
        &self,
        ws: &mut Workspace,
        layers: LayerRange,
        rounding: &[u32],
        items: &mut [Item<'_>],
    ) -> Result<()> {
        let pass = Pass { layers, rounding, head: self.leaves_by(layers), states: false };
        self.pass(ws, pass, items)
    }

    /// As [`Shard::forward`], up to the norm in front of the head: gives the hidden states that the head would read,
    /// by [`Workspace::states`], and no logits. Any number of rows may be wanted.
    ///
    /// # Errors
    /// Those of [`Shard::forward`]; [`Error::Invalid`] for a shard without the head.
    pub fn states(&self, ws: &mut Workspace, items: &mut [Item<'_>]) -> Result<()> {
        let head = self.leaves_by(self.range);
        if head.is_none() {
            ws.clear();
            return Err(Error::invalid("hidden states of a shard without the head"));
        }
        self.pass(ws, Pass { layers: self.range, rounding: &[], head, states: true }, items)
    }

    fn pass(&self, ws: &mut Workspace, pass: Pass<'_>, items: &mut [Item<'_>]) -> Result<()> {
        ws.clear();
        let outcome = self.admit(ws, pass, items).and_then(|rows| self.compute(ws, pass, items, rows));
        match outcome {
            Ok(()) => items.iter_mut().zip(&ws.spans).for_each(|(item, span)| item.kv.advance(span.rows)),
            Err(_) => ws.clear(),
        }
        outcome
    }

    /// The head, if it follows `layers`.
    fn leaves_by(&self, layers: LayerRange) -> Option<&HeadWeights> {
        self.head.as_ref().filter(|_| layers.end() == self.range.end())
    }

    /// Checks every item, makes room in its cache and notes its span; returns the number of rows.
    fn admit(&self, ws: &mut Workspace, pass: Pass<'_>, items: &mut [Item<'_>]) -> Result<usize> {
        let Pass { layers, rounding, head, states } = pass;
        self.check_held(layers)?;
        if ws.hidden != self.blueprint.hidden || ws.has_head != self.head.is_some() {
            return Err(Error::invalid("the workspace belongs to another shard"));
        }
        if !rounding.is_empty() && !ws.hidden.is_multiple_of(round::BLOCK) {
            let hidden = ws.hidden;
            return Err(Error::invalid(format!("rows of {hidden} values cannot be rounded in blocks of 32")));
        }
        if items.len() > ws.capacity.items {
            let most = ws.capacity.items;
            return Err(Error::invalid(format!("{} items in a workspace for {most}", items.len())));
        }
        let tag = self.tag_of(layers);
        let (mut rows, mut wanted) = (0, 0);
        for item in items.iter() {
            let n = self.rows_of(layers, item.input)?;
            if item.kv.tag() != tag || item.kv.layers() != layers.len() as usize {
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
        if head.is_some() && !states && wanted > ws.capacity.logit_rows {
            let most = ws.capacity.logit_rows;
            return Err(Error::invalid(format!("logits of {wanted} rows in a workspace for {most}")));
        }
        for (item, span) in items.iter_mut().zip(&ws.spans) {
            item.kv.reserve(span.start + span.rows)?;
        }
        ws.gave = match (head, states) {
            (None, _) => Gave::Rows,
            (Some(_), false) => Gave::Logits,
            (Some(_), true) => Gave::States,
        };
        Ok(rows)
    }

    fn rows_of(&self, layers: LayerRange, input: Input<'_>) -> Result<usize> {
        let hidden = self.blueprint.hidden;
        let rows = match input {
            Input::Tokens(_) if self.embedding.is_none() => {
                return Err(Error::invalid("token ids for a shard without the embedding"));
            }
            Input::Tokens(_) if layers.start() != 0 => {
                return Err(Error::invalid(format!("token ids for layers {layers}")));
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

    fn compute(&self, ws: &mut Workspace, pass: Pass<'_>, items: &mut [Item<'_>], rows: usize) -> Result<()> {
        if rows == 0 {
            return Ok(());
        }
        self.enter(ws, items)?;
        self.fill_tables(ws);
        let mut rows = rows;
        for layer in pass.layers.start()..pass.layers.end() {
            pass.round(layer, &mut ws.x[..rows * ws.hidden])?;
            let last = pass.head.is_some() && layer + 1 == pass.layers.end();
            let place = Place { layer: layer as usize, cached: (layer - pass.layers.start()) as usize };
            let weights = &self.layers[(layer - self.range.start()) as usize];
            rows = self.attention(ws, items, (place, weights), rows, last);
            if rows == 0 {
                return Ok(());
            }
            self.feed_forward(ws, (place, weights), rows);
        }
        pass.round(pass.layers.end(), &mut ws.x[..rows * ws.hidden])?;
        match pass.head {
            None => refuse_non_finite(&ws.x[..rows * ws.hidden], "outgoing activations"),
            Some(head) => {
                let size = rows * ws.hidden;
                norm(&self.cpu, self.blueprint.norm, &head.norm, &ws.x[..size], &mut ws.h[..size]);
                if pass.states {
                    return refuse_non_finite(&ws.h[..size], "hidden states");
                }
                self.leave(ws, head, rows)
            }
        }
    }

    /// Puts the rows that enter the first layer into `ws.x`.
    fn enter(&self, ws: &mut Workspace, items: &[Item<'_>]) -> Result<()> {
        let hidden = ws.hidden;
        for (item, span) in items.iter().zip(&ws.spans) {
            let x = &mut ws.x[span.first * hidden..(span.first + span.rows) * hidden];
            match (item.input, &self.embedding) {
                (Input::Activations(rows), _) => x.copy_from_slice(rows),
                (Input::Tokens(tokens), Some(embedding)) => self.embed(embedding, tokens, x)?,
                (Input::Tokens(_), None) => unreachable!("such items are not admitted"),
            }
        }
        Ok(())
    }

    fn embed(&self, embedding: &Embedding, tokens: &[u32], x: &mut [f32]) -> Result<()> {
        let table = embedding.table()?;
        for (row, (&id, x)) in tokens.iter().zip(x.chunks_exact_mut(self.blueprint.hidden)).enumerate() {
            (table.format.dequantize)(table.row(id as usize), x);
            // Each row read maps a neighborhood of the file; a long prompt would keep a good part of the table.
            if row % MANY_ROWS == MANY_ROWS - 1 {
                embedding.gguf.forget(Embedding::NAME);
            }
        }
        if self.blueprint.embedding_scale != 1.0 {
            self.cpu.scale(x, self.blueprint.embedding_scale);
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

    /// `x += attention(norm(x))`. Before the head only the wanted rows go on; returns how many rows do.
    fn attention(
        &self,
        ws: &mut Workspace,
        items: &mut [Item<'_>],
        (place, layer): (Place, &LayerWeights),
        rows: usize,
        last: bool,
    ) -> usize {
        let (cpu, blueprint) = (&*self.cpu, &self.blueprint);
        let (hidden, q_width, kv_width) = (blueprint.hidden, blueprint.q_width(), blueprint.kv_width());
        let Attention::Softmax(spec) = blueprint.layers[place.layer].attention;
        let h = &mut ws.h[..rows * hidden];
        norm(cpu, blueprint.norm, &layer.attention_norm, &ws.x[..rows * hidden], h);
        let q = &mut ws.q[..rows * q_width];
        let k = &mut ws.k[..rows * kv_width];
        let v = &mut ws.v[..rows * kv_width];
        product(cpu, &mut ws.scratch, h, rows, [(&layer.q, q), (&layer.k, k), (&layer.v, v)]);
        self.rotate(ws, layer, spec, rows);
        for (item, span) in items.iter_mut().zip(&ws.spans) {
            let at = span.first * kv_width..(span.first + span.rows) * kv_width;
            let pages = item.kv.pages_mut(place.cached);
            cpu.store_kv(pages, self.kv_shape(), &ws.k[at.clone()], &ws.v[at], span.start);
        }
        let rows = if last { keep_wanted(ws) } else { rows };
        if rows == 0 {
            return 0;
        }
        self.attend(ws, items, spec, place.cached, last);
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
    fn attend(&self, ws: &mut Workspace, items: &[Item<'_>], spec: Softmax, cached: usize, last: bool) {
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
                pages: item.kv.pages(cached),
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
    fn feed_forward(&self, ws: &mut Workspace, (place, layer): (Place, &LayerWeights), rows: usize) {
        let (cpu, blueprint) = (&*self.cpu, &self.blueprint);
        let size = rows * blueprint.hidden;
        norm(cpu, blueprint.norm, &layer.feed_forward_norm, &ws.x[..size], &mut ws.h[..size]);
        let spec = &blueprint.layers[place.layer].feed_forward;
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

    /// Head, factor and softcap of the normed rows that are left.
    fn leave(&self, ws: &mut Workspace, head: &HeadWeights, rows: usize) -> Result<()> {
        let (cpu, size) = (&*self.cpu, rows * ws.hidden);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_does_not_make_numbers_of_what_is_none() {
        let layers = LayerRange::new(1, 3).expect("not empty");
        let pass = Pass { layers, rounding: &[2], head: None, states: false };
        for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = [1.5; 2 * round::BLOCK];
            x[40] = poison;
            assert!(pass.round(2, &mut x).is_err());
            assert!(pass.round(1, &mut x).is_ok(), "a boundary at which the session does not round");
            assert_eq!(x[0].to_bits(), 1.5f32.to_bits());
        }
    }
}
