//! What drafts a prompt's tokens.

use api::choice::Draft;
use scheduler::SessionId;
use shard::sample::SamplingParams;

use super::params::Trouble;
use crate::{
    daemon::serve::{Drafted, Drafter, Local},
    drafting::ROW_SHARE,
    events::PromptRequest,
    request::DraftTerms,
    worker::DraftSeat,
};

/// What may draft, and what is believed of steps, one of which is to take `plain_ms`.
pub(super) fn terms(local: &Local, ask: &PromptRequest, plain_ms: f64) -> DraftTerms {
    let ready = &local.ready;
    let row_ms = ROW_SHARE * ready.times.decode_ms * f64::from(ready.num_layers);
    let (choice, head_bytes) = (ask.sampling.draft.clone(), ready.abilities.draft_head_bytes);
    DraftTerms { choice, attention: ask.kind.attention, plain_ms, row_ms, head_bytes }
}

/// Where a draft model drafts for it, if one is to and can now. One that goes on after a crash (`resumed`) goes on without a
/// model that is gone.
///
/// # Errors
/// For a request that names a model which never drafts for this one.
pub(super) fn seat(
    local: &Local,
    ask: &PromptRequest,
    resumed: bool,
    (session, positions, sampling): (SessionId, u32, &SamplingParams),
) -> Result<Option<DraftSeat>, Trouble> {
    let (choice, ready) = (&ask.sampling.draft, &local.ready);
    let named = ask.named_drafter().filter(|_| !resumed);
    let wanted = choice.model().is_some() || (*choice == Draft::Auto && ask.kind.attention.goes_back());
    let meant = |drafter: &&Drafter| choice.model().is_none_or(|name| drafter.is_meant(name));
    let Some(drafter) = local.drafter.as_ref().filter(|_| wanted).filter(meant) else {
        return named.map_or(Ok(None), |name| Err(Trouble::invalid("draft", Draft::no_model(name))));
    };
    match drafter.fits(ready) {
        Ok(()) => Ok(drafter.seat(Drafted { session, positions, sampling, seed: ask.seed, ready })),
        Err(why) if named.is_some() => Err(Trouble::invalid("draft", why)),
        Err(_) => Ok(None),
    }
}
