//! What drafts a prompt's tokens.

use api::choice::Draft;
use scheduler::SessionId;
use shard::sample::SamplingParams;

use super::params::Trouble;
use crate::{
    daemon::serve::{Drafted, Local},
    drafting::ROW_SHARE,
    events::PromptRequest,
    request::DraftTerms,
    worker::DraftSeat,
};

/// What may draft, and what is believed of steps, one of which is to take `plain_ms`.
pub(super) fn terms(local: &Local, ask: &PromptRequest, plain_ms: f64) -> DraftTerms {
    let ready = &local.ready;
    let row_ms = ROW_SHARE * ready.decode_ms * f64::from(ready.num_layers);
    DraftTerms { choice: ask.sampling.draft.clone(), goes_back: ready.goes_back, plain_ms, row_ms }
}

/// Where a draft model drafts for it, if one is to. One that goes on after a crash (`resumed`) goes on without a model that is
/// gone.
pub(super) async fn seat(
    local: &Local,
    ask: &PromptRequest,
    resumed: bool,
    (session, positions, sampling): (SessionId, u32, &SamplingParams),
) -> Result<Option<DraftSeat>, Trouble> {
    let (choice, ready) = (&ask.sampling.draft, &local.ready);
    let named = choice.model().filter(|_| !resumed);
    let wanted = choice.model().is_some() || (*choice == Draft::Auto && ready.goes_back);
    let drafter = match (&local.drafter, choice.model()) {
        (Some(drafter), Some(name)) => drafter.is_meant(name).await.then_some(drafter),
        (drafter, _) => drafter.as_ref(),
    };
    let Some(drafter) = drafter.filter(|_| wanted) else {
        return named.map_or(Ok(None), |name| Err(Trouble::invalid("draft", Draft::no_model(name))));
    };
    let prompt = Drafted { session, positions, sampling, seed: ask.seed, ready };
    match drafter.draft_for(prompt).await {
        Ok(seat) => Ok(Some(seat)),
        // Another moment may have room for it; what never works is refused.
        Err(why) if named.is_some() && drafter.fits(ready).await.is_err() => {
            Err(Trouble::invalid("draft", why))
        }
        Err(why) => {
            tracing::info!(why, "no draft model for this prompt");
            Ok(None)
        }
    }
}
