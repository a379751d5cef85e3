//! Attention of a session that forgets what it looks at least: the rows up to where positions go, then the others.

use std::ops::Range;

use super::Evicting;
use crate::kernels::{
    AttentionJob, Cpu,
    attention::{self, usage::UsageJob},
};

/// The rows of one session in one layer.
pub(crate) struct Rows<'a> {
    /// Their positions.
    pub positions: Range<usize>,
    /// How many of the last ones are wanted.
    pub wanted: usize,
    /// Queries, `[rows][heads * head_dim]`.
    pub q: &'a [f32],
    /// Keys and values, `[rows][kv_heads * head_dim]` each.
    pub k: &'a [f32],
    /// As `k`.
    pub v: &'a [f32],
    /// Query heads.
    pub heads: usize,
    /// Factor of q.k.
    pub scale: f32,
    /// Scores become `tanh(s / c) * c`.
    pub softcap: Option<f32>,
    /// For each query head a logit that takes part in the softmax and has no value.
    pub sinks: Option<&'a [f32]>,
    /// What the wanted ones see, `[wanted][heads * head_dim]`.
    pub out: &'a mut [f32],
}

/// Stores the rows, computes what the wanted ones see, and counts what all of them look at.
pub(crate) fn look_back(cpu: &Cpu, state: &mut Evicting, rows: Rows<'_>) {
    let Rows { positions, wanted, q, k, v, heads, scale, softcap, sinks, mut out } = rows;
    let shape = state.shape();
    let (width, kv_width) = (heads * shape.head_dim, shape.kv_heads * shape.head_dim);
    let (first, end) = (positions.start, positions.end);
    let (mut at, from) = (first, end - wanted);
    state.begin();
    while at < end {
        let (here, place) = state.make_room(at..end);
        at = here.end;
        let kv = (here.start - first) * kv_width..(here.end - first) * kv_width;
        attention::store_kv(cpu, state.pages_mut().pages_mut(), shape, &k[kv.clone()], &v[kv], place);
        let q = &q[(here.start - first) * width..(here.end - first) * width];
        let skipped = from.clamp(here.start, here.end) - here.start;
        let n = here.len() - skipped;
        let (now, rest) = out.split_at_mut(n * width);
        out = rest;
        if n > 0 {
            let job = AttentionJob {
                q: &q[skipped * width..],
                pages: state.pages().pages(),
                shape,
                start: place + skipped,
                n,
                heads,
                scale,
                softcap,
                window: None,
                ahead: 0,
                far: None,
                sinks,
                out: now,
            };
            attention::attend(cpu, &mut [job]);
        }
        let uses =
            UsageJob { q, pages: &[], shape, start: place, n: here.len(), heads, scale, softcap, sinks };
        state.count(cpu, uses, at);
    }
}
