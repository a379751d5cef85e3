//! States that outlive the process: what was computed goes to a file while nothing is asked for, and comes back for prompts that
//! begin so.

use scheduler::SessionKind;
use shard::state::{PrefixCache, SessionState};

use crate::{
    clock,
    kept_file::{Keeping, KeptFile, LEAST_TOKENS},
    model::Model,
};

/// See the module's page.
pub struct Disk {
    file: Option<KeptFile>,
}

impl Disk {
    /// What is kept in `file`.
    pub(crate) fn new(file: KeptFile) -> Self {
        Self { file: Some(file) }
    }

    /// Stores one state that is not stored yet; false when there is none. It stays for another time where `wanted` says that
    /// there is other work. What cannot be written is said, and nothing is stored from then on.
    pub fn store(&mut self, kept: &mut PrefixCache, wanted: &mut dyn FnMut() -> bool) -> bool {
        let Some(file) = &mut self.file else { return false };
        let Some((tokens, state)) = kept.unstored() else { return false };
        if file.wants(state.kind(), tokens, state.bytes()) {
            let snapshot = state.snapshot().map_err(|error| error.to_string());
            let stored = snapshot.and_then(|snapshot| {
                let stored = file.keep(state.kind(), tokens, &snapshot, clock::unix_s(), wanted);
                stored.map_err(|error| error.to_string())
            });
            match stored {
                Ok(Keeping::Interrupted) => return true,
                Ok(Keeping::Written | Keeping::Refused) => {}
                Err(why) => {
                    tracing::warn!(why, "no state is stored on disk any more");
                    self.file = None;
                }
            }
        }
        kept.mark_stored();
        true
    }

    /// The state of a prompt's beginning, where that is longer by [`LEAST_TOKENS`] than the `have` tokens that are kept in memory.
    pub fn recall(
        &mut self,
        model: &Model,
        kind: SessionKind,
        prompt: &[u32],
        have: usize,
    ) -> Option<SessionState> {
        let file = self.file.as_mut()?;
        let whole = !model.executor.blueprint().goes_back();
        let (index, shared) = file.longest(kind, prompt, clock::unix_s(), whole)?;
        let shared = shared.min(prompt.len().saturating_sub(1));
        if shared < have + LEAST_TOKENS {
            return None;
        }
        let tokens = file.tokens(index);
        let snapshot = file.read(index)?;
        let mut state = model.executor.new_state_with(model.executor.range(), kind).ok()?;
        let restored = state.restore(&snapshot).map_err(|error| error.to_string());
        let whole = restored.and_then(|()| match state.len() == tokens {
            true => Ok(()),
            false => Err(format!("it has {} positions for {tokens} tokens", state.len())),
        });
        if let Err(why) = whole {
            tracing::warn!(why, "a state on disk cannot be used");
            file.forget(index);
            return None;
        }
        let kept = state.rewind(shared);
        (kept > have).then_some(state)
    }
}
