//! The buffers of a forward pass, made once.

use super::{
    super::batch::{Gave, Span},
    Buffers, Capacity, Shard,
};
use crate::{
    kernels::{Activations, AttentionJob},
    models::{Attention, FeedForward, Latent, Layer},
};

/// The buffers of forward passes of one shard; holds the results of the last pass.
///
/// The kernels' scratch memory inside grows with the first pass of a size; later passes that are no larger allocate nothing.
pub(super) struct CpuBuffers {
    pub(super) capacity: Capacity,
    pub(super) hidden: usize,
    pub(super) vocab: usize,
    pub(super) has_head: bool,
    pub(super) gave: Gave,
    /// The residual stream, `[rows][hidden]`.
    pub(super) x: Vec<f32>,
    /// Normed rows, `[rows][hidden]`.
    pub(super) h: Vec<f32>,
    /// The output of a sublayer, `[rows][hidden]`.
    pub(super) y: Vec<f32>,
    pub(super) q: Vec<f32>,
    pub(super) k: Vec<f32>,
    pub(super) v: Vec<f32>,
    /// The output of attention, `[rows][mixed width]`.
    pub(super) attended: Vec<f32>,
    pub(super) gate: Vec<f32>,
    pub(super) up: Vec<f32>,
    /// Per rope: (cos, sin) of every row and pair.
    pub(super) tables: Vec<Vec<f32>>,
    pub(super) logits: Vec<f32>,
    pub(super) scratch: Activations,
    pub(super) routing: Routing,
    pub(super) hybrid: Hybrid,
    pub(super) jobs: Vec<AttentionJob<'static>>,
    pub(super) spans: Vec<Span>,
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

/// The buffers of delta nets, of gated attention and of latent attention; empty in other models.
#[derive(Default)]
pub(super) struct Hybrid {
    pub latent: Narrow,
    /// q, k and v as projected, `[rows][channels]`.
    pub projected: Vec<f32>,
    /// And as the recurrence reads them.
    pub inputs: Vec<f32>,
    /// The gate of the result, `[rows][mixed width]`.
    pub gate: Vec<f32>,
    /// `[rows][value heads]`.
    pub alpha: Vec<f32>,
    /// `[rows][value heads]`.
    pub beta: Vec<f32>,
}

impl Hybrid {
    /// For passes of `rows` rows through layers that mix positions as `held` says.
    fn new(held: &[Layer], (heads, q_width): (usize, usize), rows: usize) -> Self {
        let latent = Narrow::new(held, heads, rows);
        let (mut channels, mut gate, mut heads) = (0, 0, 0);
        for layer in held {
            match layer.attention {
                Attention::DeltaNet(delta) => {
                    channels = channels.max(delta.channels());
                    gate = gate.max(delta.value_width());
                    heads = heads.max(delta.value_heads);
                }
                Attention::Softmax(softmax) if softmax.gated => gate = gate.max(q_width),
                Attention::Softmax(_) | Attention::Recurrence(_) | Attention::Latent(_) => {}
            }
        }
        let buffer = |width: usize| vec![0.0f32; rows * width];
        Self {
            latent,
            projected: buffer(channels),
            inputs: buffer(channels),
            gate: buffer(gate),
            alpha: buffer(heads),
            beta: buffer(heads),
        }
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
    /// The rows of one expert, `[rows][hidden]`.
    pub gathered: Vec<f32>,
    /// The output of one expert, `[rows][hidden]`.
    pub output: Vec<f32>,
    /// The shared expert's gate per row.
    pub shared: Vec<f32>,
}

impl CpuBuffers {
    /// Buffers for passes of `shard` up to `capacity`.
    pub fn new(shard: &Shard, capacity: Capacity) -> Self {
        let Capacity { rows, items, logit_rows } = capacity;
        let blueprint = &shard.blueprint;
        let hidden = blueprint.hidden;
        let logit_rows = if shard.head.is_some() { logit_rows.min(rows) } else { 0 };
        let buffer = |width: usize| vec![0.0f32; rows * width];
        shard.cpu.reserve_attention(blueprint.head_dim);
        let held = &blueprint.layers[shard.range.start() as usize..shard.range.end() as usize];
        let layers = shard.range.start() as usize..shard.range.end() as usize;
        let mixed = layers.map(|layer| blueprint.mixed_width(layer)).max().unwrap_or(0);
        let used_ropes: Vec<bool> = (0..blueprint.ropes.len())
            .map(|index| held.iter().any(|layer| layer.attention.rope() == Some(index)))
            .collect();
        let table = |(rope, used): (&crate::models::Rope, &bool)| buffer(if *used { rope.dims } else { 0 });
        let experts = held.iter().filter_map(|layer| match layer.feed_forward {
            FeedForward::Experts(experts) => Some((experts.count, experts.used)),
            FeedForward::Dense(_) => None,
        });
        let routing = match experts.reduce(|a, b| (a.0.max(b.0), a.1.max(b.1))) {
            None => Routing::default(),
            Some((count, used)) => Routing {
                scores: buffer(count),
                keys: vec![0.0; count],
                chosen: vec![(0, 0.0); rows * used],
                members: vec![(0, 0.0); rows * used],
                starts: vec![0; count + 1],
                gathered: buffer(hidden),
                output: buffer(hidden),
                shared: buffer(1),
            },
        };
        Self {
            capacity: Capacity { rows, items, logit_rows },
            hidden,
            vocab: blueprint.vocab,
            has_head: shard.head.is_some(),
            gave: Gave::Rows,
            x: buffer(hidden),
            h: buffer(hidden),
            y: buffer(hidden),
            q: buffer(blueprint.q_width()),
            k: buffer(blueprint.kv_width()),
            v: buffer(blueprint.kv_width()),
            attended: buffer(mixed),
            gate: buffer(blueprint.widest()),
            up: buffer(blueprint.widest()),
            tables: blueprint.ropes.iter().zip(&used_ropes).map(table).collect(),
            logits: vec![0.0; logit_rows * blueprint.vocab],
            scratch: Activations::new(),
            routing,
            hybrid: Hybrid::new(held, (blueprint.heads, blueprint.q_width()), rows),
            jobs: Vec::with_capacity(items),
            spans: Vec::with_capacity(items),
        }
    }
}

impl Buffers for CpuBuffers {
    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn logits(&self, index: usize) -> &[f32] {
        match self.spans.get(index) {
            Some(span) if self.gave == Gave::Logits => {
                &self.logits[span.first_wanted * self.vocab..][..span.wanted * self.vocab]
            }
            _ => &[],
        }
    }

    fn activations(&self, index: usize) -> &[f32] {
        match self.spans.get(index) {
            Some(span) if self.gave == Gave::Rows => {
                let first = span.first + span.rows - span.wanted;
                &self.x[first * self.hidden..][..span.wanted * self.hidden]
            }
            _ => &[],
        }
    }

    fn states(&self, index: usize) -> &[f32] {
        match self.spans.get(index) {
            Some(span) if self.gave == Gave::States => {
                &self.h[span.first_wanted * self.hidden..][..span.wanted * self.hidden]
            }
            _ => &[],
        }
    }

    fn clear(&mut self) {
        self.spans.clear();
    }
}

/// An empty list with the memory of `jobs`: the standard library collects a list into its own memory when the
/// elements have the same layout, which they do here (only the lifetime differs). A test counts allocations.
pub(super) fn recycle<'b>(mut jobs: Vec<AttentionJob<'_>>) -> Vec<AttentionJob<'b>> {
    jobs.clear();
    jobs.into_iter().map(|_| unreachable!("the list is empty")).collect()
}
