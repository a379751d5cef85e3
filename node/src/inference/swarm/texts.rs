//! Texts whose vectors or scores are wanted: each is a prompt of its own that ends with what its rows are together.
//!
//! Rows travel as they are, so a vector has the bits that one machine gives it, over any route. A vector is told once all checks of those
//! who computed it have ended: it cannot be taken back.
//!
//! Bounds: [`LANES`] texts of a request at once; their sessions wait for room as those of answers do.

use std::sync::Arc;

use api::{
    choice::{Draft, Mode, Wire, WireChoice},
    inference::{
        EmbedRequest, Embeddings, Failure, GenerateRequest, Prompt, Ranking, RerankRequest, Sampling,
    },
};
use futures::{StreamExt, TryStreamExt, stream};

use super::{
    SwarmState,
    answer::failure,
    door::{RETRY_AFTER_S, unavailable},
    question::question,
};
use crate::{
    control::Question,
    events::{FinishReason, PoolingRequest, PromptEvent},
    inference::local,
};

/// Texts of one request under way: chunks of one travel while another is computed.
const LANES: usize = 4;

/// What texts gave together.
struct Pooled {
    model: String,
    /// In the order of the texts.
    values: Vec<Vec<f32>>,
    prompt_tokens: usize,
}

/// Vectors of texts.
pub(super) async fn embed(shared: Arc<SwarmState>, request: EmbedRequest) -> Result<Embeddings, Failure> {
    let EmbedRequest { model, inputs, truncate, mode } = request;
    let pooling = PoolingRequest { query: None, truncate };
    let Pooled { model, values: vectors, prompt_tokens } =
        all(shared, (model, mode), inputs, &pooling).await?;
    Ok(Embeddings { model, vectors, prompt_tokens })
}

/// Scores of documents.
pub(super) async fn rerank(shared: Arc<SwarmState>, request: RerankRequest) -> Result<Ranking, Failure> {
    local::check_ranked(&request)?;
    let RerankRequest { model, query, documents, truncate, mode } = request;
    let pooling = PoolingRequest { query: Some(query), truncate };
    let documents = documents.into_iter().map(Prompt::Text).collect();
    let Pooled { model, values, prompt_tokens } = all(shared, (model, mode), documents, &pooling).await?;
    let scores = values.into_iter().flatten().map(local::probability).collect();
    Ok(Ranking { model, scores, prompt_tokens })
}

/// What all of the texts give.
async fn all(
    shared: Arc<SwarmState>,
    (model, mode): (Option<String>, Option<Mode>),
    texts: Vec<Prompt>,
    pooling: &PoolingRequest,
) -> Result<Pooled, Failure> {
    let name = match &model {
        Some(model) => model.clone(),
        None => shared.board.view()?.own.about.name.clone(),
    };
    let pooled = texts.into_iter().enumerate().map(|(index, text)| {
        let (shared, model, pooling) = (shared.clone(), model.clone(), pooling.clone());
        async move { one(&shared, (model, mode), text, pooling).await.map_err(|failure| at(index, failure)) }
    });
    let pooled: Vec<(Vec<f32>, usize)> = stream::iter(pooled).buffered(LANES).try_collect().await?;
    let prompt_tokens = pooled.iter().map(|(_, tokens)| tokens).sum();
    let values = pooled.into_iter().map(|(values, _)| values).collect();
    Ok(Pooled { model: name, values, prompt_tokens })
}

/// Says which text of a request it was.
fn at(index: usize, failure: Failure) -> Failure {
    match failure {
        Failure::Invalid { field: field @ Some("model" | "mode"), why } => Failure::Invalid { field, why },
        Failure::Invalid { field, why } => Failure::Invalid { field, why: format!("of text {index}: {why}") },
        Failure::TooLong { tokens, context } => {
            let why = format!(
                "text {index} has {tokens} tokens, this model takes {context} here; shorten it, or send `truncate` where \
                 the endpoint has it"
            );
            Failure::invalid("input", why)
        }
        other => other,
    }
}

/// What one text gives, and how many tokens it has.
async fn one(
    shared: &SwarmState,
    (model, mode): (Option<String>, Option<Mode>),
    text: Prompt,
    pooling: PoolingRequest,
) -> Result<(Vec<f32>, usize), Failure> {
    let request = GenerateRequest {
        model,
        sampling: Sampling { draft: Some(Draft::Off), ..Sampling::default() },
        max_tokens: Some(1),
        mode,
        wire: WireChoice { wire: Some(Wire::Raw), ..WireChoice::default() },
        ..GenerateRequest::new("", text)
    };
    let view = shared.board.view()?;
    let mut ask = question(shared, &view, &request)?;
    ask.api.pooling = Some(pooling);
    let _seat = shared.seat(&view, &request).await?;
    let mut heard = shared.door.ask(Question::Generate(Box::new(ask))).await?;
    let (mut values, mut lied) = (Vec::new(), false);
    loop {
        match heard.next().await.ok_or_else(|| unavailable("the node stopped before it answered"))? {
            PromptEvent::Failed(refusal) => return Err(failure(refusal)),
            PromptEvent::Pooled { values: said } => values = said,
            PromptEvent::Integrity { .. } => lied = true,
            PromptEvent::Done(report) => {
                let wrong =
                    lied || report.conducted.as_ref().is_some_and(|own| own.checks.integrity.is_some());
                if wrong || values.is_empty() || !matches!(report.finish_reason, FinishReason::Stop) {
                    let why = match wrong {
                        true => "a node that computed it was caught lying, and is avoided from now on",
                        false => report.finish_reason.name(),
                    };
                    let why = format!(
                        "a text was given up ({why}); `shoal why` says more, and it can be asked again"
                    );
                    return Err(Failure::Unavailable { why, retry_after_s: RETRY_AFTER_S });
                }
                return Ok((values, report.timing.map_or(0, |timing| timing.prompt_tokens as usize)));
            }
            _ => {}
        }
    }
}
