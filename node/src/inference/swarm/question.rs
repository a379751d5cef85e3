//! A request in the node's words, and whether it may go out.

use api::inference::{Failure, GenerateRequest, Mode, Prompt};

use super::{SwarmState, view::holds_all};
use crate::{
    consent,
    events::{AnswerLength, Ends, ForApi, Leeway, PromptInput, PromptRequest, Sampling},
    inference::local,
    reports::View,
};

/// The mode of a request; `None` leaves it to the node whether this machine alone is faster.
///
/// # Errors
/// [`Failure::NotAgreed`] when strangers would compute it and the owner has not agreed to that.
fn in_mode(shared: &SwarmState, view: &View, request: &GenerateRequest) -> Result<Option<Mode>, Failure> {
    let mode = request.mode.or(shared.mode);
    let goes = mode.unwrap_or(Mode::Boomerang);
    let Some(sentence) = consent::sentence(goes) else { return Ok(mode) };
    if request.guard.agreed || consent::given(&shared.home, goes) {
        return Ok(mode);
    }
    let own = view.asked(request.model.as_deref());
    let model = own.and_then(|own| view.snapshot.models.iter().find(|model| model.id == own.id));
    match mode {
        // It names no mode: what can stay here does.
        None if holds_all(&view.snapshot, model) => Ok(Some(Mode::Local)),
        // The node refuses what it does not hold unless it may send the text itself, which needs a mode that says so.
        None if own.is_none() => Ok(None),
        _ => Err(Failure::NotAgreed { mode: mode.unwrap_or(Mode::Boomerang), sentence: sentence.to_owned() }),
    }
}

/// The request in the node's words.
pub(super) fn question(
    shared: &SwarmState,
    view: &View,
    request: &GenerateRequest,
) -> Result<PromptRequest, Failure> {
    let sampling = local::sampling(request)?;
    let draft = request.sampling.draft.clone().unwrap_or_else(|| shared.draft.clone());
    let (prompt, tools, extra) = match &request.prompt {
        Prompt::Text(text) => (PromptInput::Text(text.clone()), None, Default::default()),
        Prompt::Tokens(ids) => (PromptInput::Tokens { ids: ids.clone() }, None, Default::default()),
        Prompt::Messages { messages, tools, extra } => {
            (PromptInput::Messages(messages.clone()), tools.clone(), extra.clone())
        }
    };
    let own = view.is_first(request.model.as_deref());
    let mode = in_mode(shared, view, request)?;
    local::limits_shifts(request)?;
    Ok(PromptRequest {
        model: if own { String::new() } else { request.model.clone().unwrap_or_default() },
        prompt,
        mode: mode.unwrap_or(Mode::Boomerang),
        leeway: Leeway {
            may_stay_home: mode.is_none(),
            may_be_read: mode.is_none() && consent::given(&shared.home, Mode::Open),
        },
        verify: request.guard.verify.unwrap_or_default(),
        shadow: request.guard.shadow.unwrap_or_default(),
        wire: request.wire.clone().or(&shared.wire),
        kind: local::session_kind(request)?,
        trusted: shared.trusted.iter().cloned().collect(),
        ends: Ends::default(),
        sampling: Sampling { draft, ..(&sampling).into() },
        seed: request.seed.map_or_else(local::draw_seed, Ok)?,
        length: AnswerLength {
            max_tokens: request.max_tokens.map_or(u32::MAX, |n| u32::try_from(n).unwrap_or(u32::MAX)),
            context_shift: request.session.context_shift,
        },
        stop: request.stop.clone(),
        api: ForApi {
            format: request.format.clone(),
            tools,
            extra,
            show_special: request.show_special,
            over_http: true,
            plain: true,
            repeatable: request.seed.is_some() && !sampling.logprobs && !request.echo,
            echo: request.echo,
            pooling: None,
            draft_by_default: request.sampling.draft.is_none(),
            let_keep: request.guard.let_keep,
        },
    })
}
