//! Longer inputs than a pass carries, and a digest of what a model computes.

use super::{Capacity, Input, Item, Output, Shard, Workspace};
use crate::{Error, Result, state::KvCache};

/// Greedy steps that [`fingerprint`] adds after the prompt.
const GREEDY_STEPS: usize = 8;

impl Shard {
    /// Feeds an input of any length in passes of at most `chunk` rows; `sink` sees the workspace after each.
    ///
    /// With [`Output::Last`] only the last pass has a result. The chunk size changes speed, never bits.
    ///
    /// # Errors
    /// Those of [`Shard::forward`]; passes before the failing one have advanced the cache.
    pub fn feed(
        &self,
        ws: &mut Workspace,
        kv: &mut KvCache,
        input: Input<'_>,
        chunk: usize,
        output: Output,
        sink: &mut dyn FnMut(&Workspace),
    ) -> Result<()> {
        let hidden = self.blueprint.hidden;
        let (rows, fits) = match input {
            Input::Tokens(tokens) => (tokens.len(), true),
            Input::Activations(x) => (x.len() / hidden, x.len().is_multiple_of(hidden)),
        };
        if !fits {
            return Err(Error::invalid(format!("activations are no rows of {hidden} values")));
        }
        let chunk = chunk.clamp(1, ws.capacity().rows);
        let mut done = 0;
        loop {
            let end = (done + chunk).min(rows);
            let input = match input {
                Input::Tokens(tokens) => Input::Tokens(&tokens[done..end]),
                Input::Activations(x) => Input::Activations(&x[done * hidden..end * hidden]),
            };
            let output = if output == Output::Last && end < rows { Output::None } else { output };
            self.forward(ws, &mut [Item { kv: &mut *kv, input, output }])?;
            sink(ws);
            done = end;
            if done == rows {
                return Ok(());
            }
        }
    }

    /// Feeds a prompt in passes as large as the workspace allows; the logits of its last token are in `ws` then.
    pub fn prefill(&self, ws: &mut Workspace, kv: &mut KvCache, tokens: &[u32]) -> Result<()> {
        let chunk = ws.capacity().rows;
        self.feed(ws, kv, Input::Tokens(tokens), chunk, Output::Last, &mut |_| {})
    }

    /// Feeds one token; its logits are in `ws` then.
    pub fn step(&self, ws: &mut Workspace, kv: &mut KvCache, token: u32) -> Result<()> {
        self.forward(ws, &mut [Item { kv, input: Input::Tokens(&[token]), output: Output::Last }])
    }
}

/// The token with the largest logit, the lowest id among equals.
pub fn argmax(logits: &[f32]) -> u32 {
    let best = |best: usize, id: usize| if logits[id] > logits[best] { id } else { best };
    (1..logits.len()).fold(0, best) as u32
}

/// BLAKE3 of the bits of all logits of `tokens`, fed in passes of `chunk` rows, and of eight greedy steps after them.
///
/// Equal on every machine, instruction set, thread count and chunk size: that is promise P1, and how it is checked.
///
/// # Errors
/// Those of [`Shard::forward`]; [`Error::Invalid`] for a shard that is not a whole model.
pub fn fingerprint(shard: &Shard, tokens: &[u32], chunk: usize) -> Result<blake3::Hash> {
    if !shard.ends().head {
        return Err(Error::invalid("a fingerprint needs a whole model"));
    }
    let rows = chunk.clamp(1, tokens.len().max(1));
    let mut ws = Workspace::new(shard, Capacity { rows, items: 1, logit_rows: rows })?;
    let mut kv = shard.new_kv();
    let mut hasher = blake3::Hasher::new();
    let mut next = 0;
    let mut take = |ws: &Workspace, next: &mut u32| {
        let logits = ws.logits(0);
        logits.iter().for_each(|logit| {
            hasher.update(&logit.to_bits().to_le_bytes());
        });
        if let Some(last) = logits.chunks_exact(shard.blueprint.vocab).last() {
            *next = argmax(last);
        }
    };
    shard.feed(&mut ws, &mut kv, Input::Tokens(tokens), rows, Output::All, &mut |ws| take(ws, &mut next))?;
    for _ in 0..GREEDY_STEPS {
        shard.step(&mut ws, &mut kv, next)?;
        take(&ws, &mut next);
    }
    Ok(hasher.finalize())
}
