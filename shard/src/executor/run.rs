//! Which layers a model has, what a row of logits says first, and a digest of what a model computes.

use scheduler::LayerRange;

use super::{Capacity, Executor, Input, Output, Workspace};
use crate::{Error, Result, gguf::Gguf, models::Blueprint};

/// Greedy steps that [`fingerprint`] adds after the prompt.
const GREEDY_STEPS: usize = 8;

/// All layers of the model in `gguf`.
///
/// # Errors
/// Those of [`Blueprint::from_gguf`].
pub fn whole_range(gguf: &Gguf) -> Result<LayerRange> {
    let layers = Blueprint::from_gguf(gguf)?.layers.len() as u32;
    LayerRange::new(0, layers).ok_or_else(|| Error::malformed("block_count", "is zero"))
}

/// The token with the largest logit, the lowest id among equals.
pub fn argmax(logits: &[f32]) -> u32 {
    let best = |best: usize, id: usize| if logits[id] > logits[best] { id } else { best };
    (1..logits.len()).fold(0, best) as u32
}

/// BLAKE3 of the bits of all logits of `tokens`, fed in passes of `chunk` rows, and of eight greedy steps after them.
///
/// Equal on every machine, instruction set, thread count and chunk size for executors of class `d1`: that is promise P1, and
/// how it is checked.
///
/// # Errors
/// Those of [`Executor::forward`]; [`Error::Invalid`] for an executor that has not the whole model.
pub fn fingerprint(executor: &dyn Executor, tokens: &[u32], chunk: usize) -> Result<blake3::Hash> {
    if !executor.ends().head || executor.blueprint().encodes() {
        return Err(Error::invalid("a fingerprint needs a whole model that gives logits"));
    }
    let rows = chunk.clamp(1, tokens.len().max(1));
    let mut ws = Workspace::new(executor, Capacity { rows, items: 1, logit_rows: rows })?;
    let mut state = executor.new_state();
    let mut hasher = blake3::Hasher::new();
    let mut next = 0;
    let mut take = |ws: &Workspace, next: &mut u32| {
        let logits = ws.logits(0);
        logits.iter().for_each(|logit| {
            hasher.update(&logit.to_bits().to_le_bytes());
        });
        if let Some(last) = logits.chunks_exact(executor.blueprint().vocab).last() {
            *next = argmax(last);
        }
    };
    let all = Input::Tokens(tokens);
    executor.feed(&mut ws, &mut state, all, rows, Output::All, &mut |ws| take(ws, &mut next))?;
    for _ in 0..GREEDY_STEPS {
        executor.step(&mut ws, &mut state, next)?;
        take(&ws, &mut next);
    }
    Ok(hasher.finalize())
}
