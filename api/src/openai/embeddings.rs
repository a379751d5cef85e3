//! `POST /v1/embeddings`.

use std::sync::Arc;

use axum::{Json, extract::State, http::HeaderMap};
use serde_json::{Value, json};

use super::completions::prompts;
use crate::{
    App,
    body::JsonBody,
    error::ApiError,
    fields::Fields,
    inference::{EmbedRequest, Prompt},
    keys::{self, Account},
};

/// OpenAI's own bound is 2048; each input is a pass through the model here.
const MAX_INPUTS: usize = 256;

pub(crate) async fn post(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    JsonBody(body): JsonBody,
) -> Result<Json<Value>, ApiError> {
    let fields = Fields::new(&body)?;
    let inputs = inputs(&fields)?;
    let model = app.know(fields.text("model")?)?;
    let base64 = match fields.text("encoding_format")? {
        None | Some("float") => false,
        Some("base64") => true,
        Some(_) => return Err(fields.refuse("encoding_format", "must be float or base64")),
    };
    if let Some(asked) = fields.count("dimensions", 1, 1 << 20)?
        && asked != model.hidden
    {
        let why = format_args!("must be {}, the width of this model, or be left out", model.hidden);
        return Err(fields.refuse("dimensions", why));
    }
    let mode = super::mode(&fields, &headers)?;
    keys::admit(app.keys.as_ref())?;
    let places = app.queue.enter(1)?;
    let account = Account::begin(app.keys.clone(), &model.name);
    let request = EmbedRequest { model: Some(model.name), inputs, truncate: false, mode };
    let embeddings = account.embedded(app.inference.embed(request).await)?;
    drop(places);
    let data = embeddings.vectors.iter().enumerate().map(|(index, vector)| {
        let vector = if base64 { json!(encode(vector)) } else { json!(vector) };
        json!({"object": "embedding", "index": index, "embedding": vector})
    });
    Ok(Json(json!({
        "object": "list",
        "data": data.collect::<Value>(),
        "model": embeddings.model,
        "usage": {"prompt_tokens": embeddings.prompt_tokens, "total_tokens": embeddings.prompt_tokens},
    })))
}

/// What to embed: at least one text or list of token ids, none of them empty.
pub(crate) fn inputs(fields: &Fields<'_>) -> Result<Vec<Prompt>, ApiError> {
    let inputs = prompts(fields, "input", MAX_INPUTS)?;
    match inputs.iter().any(|input| matches!(input, Prompt::Text(text) if text.is_empty())) {
        true => Err(fields.refuse("input", "must not hold an empty text: it has no meaning to find")),
        false => Ok(inputs),
    }
}

/// Little-endian floats in base64, which OpenAI's client asks for by itself.
fn encode(vector: &[f32]) -> String {
    let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
    data_encoding::BASE64.encode(&bytes)
}
