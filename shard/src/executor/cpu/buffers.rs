//! The buffers of a forward pass, made once.

use super::{
    super::{Gave, RemoteExperts, batch::Span},
    Buffers, Capacity, Shard,
    elsewhere::Elsewhere,
};
use crate::{
    kernels::{Activations, AttentionJob, QUARTER, attention},
    models::{Attention, Experts, FeedForward, Latent, Layer},
};

/// The buffers of forward passes of one shard; holds the results of the last pass.
///
/// The kernels' scratch memory inside grows with the first pass of a size; later passes that are no larger allocate nothing.
pub(super) struct CpuBuffers {
    pub(super) capacity: Capacity,
    pub(super) sizes: Sizes,
    pub(super) spans: Vec<Span>,
    pub(super) gave: Gave,
    /// The residual stream, `[rows][hidden]`.
    pub(super) x: Vec<f32>,
    /// Normed rows, `[rows][hidden]`.
    pub(super) h: Vec<f32>,
    /// The output of a sublayer, `[rows][hidden]`.
    pub(super) y: Vec<f32>,
    pub(super) heads: Heads,
    pub(super) hybrid: Hybrid,
    /// The output of attention, `[rows][mixed width]`.
    pub(super) attended: Vec<f32>,
    pub(super) inner: Inner,
    pub(super) routing: Routing,
    pub(super) per_layer: PerLayer,
    /// `[wanted rows][vocab]`.
    pub(super) logits: Vec<f32>,
    pub(super) scratch: Activations,
}

/// What rows of a shard are like, to know its buffers by.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub hidden: usize,
    pub vocab: usize,
    pub has_head: bool,
}

/// The buffers of softmax attention.
pub(super) struct Heads {
    /// Queries, `[rows][heads * head width]`.
    pub q: Vec<f32>,
    /// Keys, `[rows][key heads * head width]`.
    pub k: Vec<f32>,
    /// Values, `[rows][key heads * head width]`.
    pub v: Vec<f32>,
    /// Per rope: (cos, sin) of every row and pair.
    pub tables: Vec<Vec<f32>>,
    /// The list that each layer's calls are made in.
    pub jobs: Vec<AttentionJob<'static>>,
}

/// The inner rows of a feed-forward network, `[rows][inner width]`, or of a shared expert and the others, `[visits][inner width]`.
pub(super) struct Inner {
    pub gate: Vec<f32>,
    pub up: Vec<f32>,
}

/// The buffers of latent attention; empty in other models.
#[derive(Default)]
pub(super) struct Narrow {
    /// What queries are made of, `[rows][query rank]`.
    pub narrow: Vec<f32>,
    /// Queries before they are absorbed, `[rows][heads * query]`.
    pub queries: Vec<f32>,
    /// The latent and the rotated key, as projected, `[rows][rank + rotated]`.
    pub made: Vec<f32>,
    /// Rows of one head, before its matrix and behind it, `[rows][its widths]`.
    pub from: Vec<f32>,
    pub to: Vec<f32>,
    /// What the heads see, in latents, `[rows][heads * rank]`.
    pub seen: Vec<f32>,
}

impl Narrow {
    /// For passes of `rows` rows through layers that are `held`, with `heads` heads.
    fn new(held: &[Layer], heads: usize, rows: usize) -> Self {
        let latents = held.iter().filter_map(|layer| match layer.attention {
            Attention::Latent(latent) => Some(latent),
            _ => None,
        });
        let latents: Vec<Latent> = latents.collect();
        let buffer = |width: &dyn Fn(&Latent) -> usize| {
            vec![0.0f32; rows * latents.iter().map(width).max().unwrap_or_default()]
        };
        Self {
            narrow: buffer(&|latent| latent.query_rank.unwrap_or_default()),
            queries: buffer(&|latent| heads * latent.query()),
            made: buffer(&|latent| latent.rank + latent.rotated),
            from: buffer(&|latent| latent.plain.max(latent.rank)),
            to: buffer(&|latent| latent.rank.max(latent.value)),
            seen: buffer(&|latent| heads * latent.rank),
        }
    }
}

/// The buffers of delta nets, of Mamba2, of gated attention and of latent attention; empty in other models.
#[derive(Default)]
pub(super) struct Hybrid {
    pub latent: Narrow,
    /// What a convolution reads, as projected, `[rows][channels]`.
    pub projected: Vec<f32>,
    /// And as the recurrence reads them.
    pub inputs: Vec<f32>,
    /// The gate of the result, `[rows][mixed width]`.
    pub gate: Vec<f32>,
    /// Decays, `[rows][value heads]`, or as many for each head as a key has channels.
    pub alpha: Vec<f32>,
    /// Strengths or steps, `[rows][value heads]`.
    pub beta: Vec<f32>,
    /// Rows that decays and gates are made of, `[rows][head width]`.
    pub narrow: Vec<f32>,
}

impl Hybrid {
    /// For passes of `rows` rows through layers that mix positions as `held` says.
    fn new(held: &[Layer], (heads, q_width): (usize, usize), rows: usize) -> Self {
        let latent = Narrow::new(held, heads, rows);
        let (mut channels, mut gate, mut heads, mut decays, mut narrow) = (0, 0, 0, 0, 0);
        for layer in held {
            match layer.attention {
                Attention::DeltaNet(delta) => {
                    channels = channels.max(delta.channels());
                    gate = gate.max(delta.value_width());
                    heads = heads.max(delta.value_heads);
                    decays = decays.max(delta.decays());
                    narrow = narrow.max(if delta.by_channel { delta.value_dim } else { 0 });
                }
                Attention::Mamba2(mamba) | Attention::Beside(_, mamba) => {
                    channels = channels.max(mamba.channels());
                    gate = gate.max(mamba.width());
                    heads = heads.max(mamba.heads);
                }
                Attention::Softmax(softmax) if softmax.gated => gate = gate.max(q_width),
                Attention::ShortConv(conv) => channels = channels.max(3 * conv.width),
                _ => {}
            }
        }
        let buffer = |width: usize| vec![0.0f32; rows * width];
        Self {
            latent,
            projected: buffer(channels),
            inputs: buffer(channels),
            gate: buffer(gate),
            alpha: buffer(decays.max(heads)),
            beta: buffer(heads),
            narrow: buffer(narrow),
        }
    }
}

/// What layers read of the tokens of a pass, and the streams of their rows; empty in other models.
#[derive(Default)]
pub(super) struct PerLayer {
    /// `[rows][layers * width]`.
    pub rows: Vec<f32>,
    /// One row of the table.
    pub row: Vec<f32>,
    pub streams: Streams,
}

/// The buffers of streams; empty in other models.
#[derive(Default)]
pub(super) struct Streams {
    pub count: usize,
    /// `[rows][streams][hidden]`; inside a layer its predictions.
    pub rows: Vec<f32>,
    /// One row, `[streams][hidden]`.
    pub row: Vec<f32>,
    /// What the router says, `[rows][streams]`.
    pub routed: Vec<f32>,
    /// Shares, `[rows][streams * streams]`.
    pub shares: Vec<f32>,
    /// The inner rows of the network beside attention, `[rows][rank]`, and what it gives, `[rows][hidden]`.
    pub inner: Vec<f32>,
    pub learned: Vec<f32>,
}

impl Streams {
    /// For passes of `rows` rows through `shard`.
    fn new(shard: &Shard, rows: usize) -> Self {
        let read = shard.blueprint.per_layer.filter(|read| read.streams > 1);
        let Some(read) = read else { return Self::default() };
        let (count, hidden) = (read.streams, shard.blueprint.hidden);
        let layers = shard.layers.iter().filter_map(|layer| layer.streams.as_ref());
        let rank = layers.map(|streams| streams.laurel[0].matrix.rows()).max().unwrap_or(0);
        let buffer = |width: usize| vec![0.0; rows * width];
        Self {
            count,
            rows: buffer(count * hidden),
            row: vec![0.0; count * hidden],
            routed: buffer(count),
            shares: buffer(count * count),
            inner: buffer(rank),
            learned: buffer(hidden),
        }
    }

    fn buffers(&self) -> [&Vec<f32>; 6] {
        [&self.rows, &self.row, &self.routed, &self.shares, &self.inner, &self.learned]
    }
}

/// The buffers of expert layers; empty in other models.
#[derive(Default)]
pub(super) struct Routing {
    /// Probabilities, `[rows][experts]`.
    pub scores: Vec<f32>,
    /// What the experts of one row are chosen by, `[experts]`.
    pub keys: Vec<f32>,
    /// Expert and weight of every choice, `[rows][used]`.
    pub chosen: Vec<(u32, f32)>,
    /// Row and weight of every choice, by expert and then by row.
    pub members: Vec<(u32, f32)>,
    /// Where each expert's members start, one more at the end.
    pub starts: Vec<usize>,
    /// The narrower rows that experts read, and the sums of those that they give, `[rows][their width]`.
    pub narrow: Vec<f32>,
    pub mixed: Vec<f32>,
    /// The rows of the experts that are computed together, `[visits][hidden]`.
    pub gathered: Vec<f32>,
    /// The output of the shared expert, `[rows][hidden]`, and behind it those of the others, `[visits][hidden]`.
    pub output: Vec<f32>,
    /// The shared expert's gate per row.
    pub shared: Vec<f32>,
    /// The output of the network beside the experts, `[rows][hidden]`.
    pub beside: Vec<f32>,
    /// What experts elsewhere compute.
    pub elsewhere: Elsewhere,
}

/// Visits to experts that are computed together at least: those of a few rows in any model.
const TOGETHER: usize = 64;

/// Visits of `rows` rows to experts that are computed together, in any layer. One expert is visited by no more than all rows.
fn together(held: &[Layer], rows: usize) -> usize {
    let used = held.iter().filter_map(|layer| layer.feed_forward.experts()).map(|experts| experts.used);
    rows.max(TOGETHER.min(rows * used.max().unwrap_or(0)))
}

impl Inner {
    /// For passes of `rows` rows through layers that are `held`, of networks up to `widest`.
    fn new(held: &[Layer], widest: usize, rows: usize) -> Self {
        let visits = together(held, rows);
        let experts = held.iter().filter_map(|layer| layer.feed_forward.experts());
        let mixture = |experts: &Experts| rows * experts.shared.unwrap_or(0) + visits * experts.width;
        let len = experts.map(mixture).chain([rows * widest]).max().unwrap_or(0);
        Self { gate: vec![0.0; len], up: vec![0.0; len] }
    }
}

impl Routing {
    /// For passes of `rows` rows through layers that are `held`; empty where none has experts.
    fn new(held: &[Layer], hidden: usize, rows: usize) -> Self {
        let all = || held.iter().filter_map(|layer| layer.feed_forward.experts());
        let most = |of: fn(&Experts) -> usize| all().map(of).max().unwrap_or(0);
        if all().next().is_none() {
            return Self::default();
        }
        let (count, used, latent) = (most(|e| e.count), most(|e| e.used), most(|e| e.latent.unwrap_or(0)));
        let both = held.iter().any(|layer| matches!(layer.feed_forward, FeedForward::Both(..)));
        let (visits, shared) = (together(held, rows), most(|e| e.shared.unwrap_or(0)) > 0);
        let buffer = |width: usize| vec![0.0f32; rows * width];
        Self {
            scores: buffer(count),
            keys: vec![0.0; count],
            chosen: vec![(0, 0.0); rows * used],
            members: vec![(0, 0.0); rows * used],
            starts: vec![0; count + 1],
            narrow: buffer(latent),
            mixed: buffer(latent),
            gathered: vec![0.0; visits * hidden],
            output: vec![0.0; (visits + if shared { rows } else { 0 }) * hidden],
            shared: buffer(1),
            beside: buffer(if both { hidden } else { 0 }),
            elsewhere: Elsewhere::default(),
        }
    }
}

impl CpuBuffers {
    /// Buffers for passes of `shard` up to `capacity`.
    pub fn new(shard: &Shard, capacity: Capacity) -> Self {
        let Capacity { rows, items, logit_rows } = capacity;
        let blueprint = &shard.blueprint;
        let hidden = blueprint.hidden;
        let logits = shard.head.is_some() && !blueprint.encodes();
        let logit_rows = if logits { logit_rows.min(rows) } else { 0 };
        let buffer = |width: usize| vec![0.0f32; rows * width];
        let held = &blueprint.layers[shard.range.start() as usize..shard.range.end() as usize];
        let heads = held.iter().filter_map(|layer| layer.attention.kv());
        let key_dim = heads.clone().map(|kv| kv.head_dim).max().unwrap_or(1);
        let kv_width = heads.map(|kv| kv.kv_heads * kv.head_dim).max().unwrap_or(0);
        let recurs = held.iter().any(|layer| matches!(layer.attention, Attention::Recurrence(_)));
        let q_width = (blueprint.heads * key_dim).max(if recurs { blueprint.q_width() } else { 0 });
        attention::reserve(&shard.cpu, key_dim);
        let in_blocks = |layer: &Layer| matches!(layer.attention, Attention::Softmax(s) if s.chunk.is_some());
        // The rows of an item may begin inside one block and end inside another.
        let jobs = if held.iter().any(in_blocks) { 2 * items + rows / QUARTER } else { items };
        let layers = shard.range.start() as usize..shard.range.end() as usize;
        let beside = held.iter().map(|layer| match layer.attention {
            Attention::Beside(_, mamba) => mamba.width(),
            _ => 0,
        });
        let mixed = layers.map(|layer| blueprint.mixed_width(layer)).chain(beside).max().unwrap_or(0);
        let used_ropes: Vec<bool> = (0..blueprint.ropes.len())
            .map(|index| held.iter().any(|layer| layer.attention.rope() == Some(index)))
            .collect();
        let table = |(rope, used): (&crate::models::Rope, &bool)| buffer(if *used { rope.dims } else { 0 });
        let read = blueprint.per_layer.map_or(0, |read| read.width * blueprint.layers.len());
        Self {
            capacity: Capacity { rows, items, logit_rows },
            sizes: Sizes { hidden, vocab: blueprint.vocab, has_head: shard.head.is_some() },
            spans: Vec::with_capacity(items),
            gave: Gave::Rows,
            x: buffer(hidden),
            h: buffer(hidden),
            y: buffer(hidden),
            heads: Heads {
                q: buffer(q_width),
                k: buffer(kv_width),
                v: buffer(kv_width),
                tables: blueprint.ropes.iter().zip(&used_ropes).map(table).collect(),
                jobs: Vec::with_capacity(jobs),
            },
            hybrid: Hybrid::new(held, (blueprint.heads, q_width), rows),
            attended: buffer(mixed),
            inner: Inner::new(held, blueprint.widest(), rows),
            routing: Routing::new(held, hidden, rows),
            per_layer: PerLayer {
                rows: buffer(read),
                row: vec![0.0; read],
                streams: Streams::new(shard, rows),
            },
            logits: vec![0.0; logit_rows * blueprint.vocab],
            scratch: Activations::new(),
        }
    }
}

impl Buffers for CpuBuffers {
    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn bytes(&self) -> usize {
        let Self { heads, hybrid, inner, routing, per_layer, .. } = self;
        let latent = &hybrid.latent;
        let own = [&self.x, &self.h, &self.y, &self.attended, &self.logits, &heads.q, &heads.k, &heads.v];
        let latents = [&latent.narrow, &latent.queries, &latent.made, &latent.from, &latent.to, &latent.seen];
        let Hybrid { projected, inputs, gate, alpha, beta, narrow, .. } = hybrid;
        let hybrids = [projected, inputs, gate, alpha, beta, narrow];
        let inners = [&inner.gate, &inner.up, &per_layer.rows];
        let routed = [&routing.scores, &routing.gathered, &routing.output, &routing.shared, &routing.beside];
        let latent_experts = [&routing.narrow, &routing.mixed];
        let all =
            own.into_iter().chain(latents).chain(hybrids).chain(inners).chain(routed).chain(latent_experts);
        let all = all.chain(per_layer.streams.buffers());
        all.chain(&heads.tables).map(|buffer| size_of_val(buffer.as_slice())).sum()
    }

    fn given(&self, gave: Gave, index: usize) -> &[f32] {
        // Logits leave the states that they were read out of where they are.
        let is_there = self.gave == gave || (self.gave, gave) == (Gave::Logits, Gave::States);
        let Some(span) = self.spans.get(index).filter(|_| is_there) else { return &[] };
        // Without a head the wanted rows stay where they were.
        let kept = span.first + span.rows - span.wanted;
        let (results, first, width) = match gave {
            Gave::Rows => (&self.x, kept, self.sizes.hidden),
            Gave::Logits => (&self.logits, span.first_wanted, self.sizes.vocab),
            Gave::States => (&self.h, span.first_wanted, self.sizes.hidden),
        };
        &results[first * width..][..span.wanted * width]
    }

    fn clear(&mut self) {
        self.spans.clear();
    }

    fn ask_of(&mut self, remote: Box<dyn RemoteExperts>) {
        self.routing.elsewhere.ask_of(remote);
    }
}

/// An empty list with the memory of `jobs`: the standard library collects a list into its own memory when the
/// elements have the same layout, which they do here (only the lifetime differs). A test counts allocations.
pub(super) fn recycle<'b>(mut jobs: Vec<AttentionJob<'_>>) -> Vec<AttentionJob<'b>> {
    jobs.clear();
    jobs.into_iter().map(|_| unreachable!("the list is empty")).collect()
}
