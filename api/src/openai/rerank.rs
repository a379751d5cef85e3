//! `POST /v1/rerank`: how well each of some documents answers a query, best first, as vLLM, llama.cpp and Jina have it.

use std::sync::Arc;

use axum::{Json, extract::State, http::HeaderMap};
use serde_json::{Value, json};

use crate::{
    App,
    body::JsonBody,
    error::ApiError,
    fields::{Fields, required},
    inference::RerankRequest,
    keys::{self, Account},
};

/// Each document is a pass through the model here.
const MAX_DOCUMENTS: usize = 256;

pub(crate) async fn post(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    JsonBody(body): JsonBody,
) -> Result<Json<Value>, ApiError> {
    let fields = Fields::new(&body)?;
    let query = required(&fields, "query", fields.text("query")?)?;
    if query.is_empty() {
        return Err(fields.refuse("query", "must not be empty: nothing answers it"));
    }
    let documents = documents(&fields)?;
    let most = fields.count("top_n", 1, 1 << 20)?.unwrap_or(usize::MAX);
    let returned = fields.bool("return_documents")?.unwrap_or(true);
    let truncate = fields.bool("truncate")?.unwrap_or(false);
    let model = app.know(fields.text("model")?)?;
    let mode = super::mode(&fields, &headers)?;
    keys::admit(app.keys.as_ref())?;
    let places = app.queue.enter(1)?;
    let account = Account::begin(app.keys.clone(), &model.name);
    let request = RerankRequest {
        model: Some(model.name),
        query: query.to_owned(),
        documents: documents.clone(),
        truncate,
        mode,
    };
    let ranking = app.inference.rerank(request).await;
    let ranking = account.counted(ranking, |ranking| ranking.prompt_tokens)?;
    drop(places);
    let mut order: Vec<(usize, f32)> = ranking.scores.iter().copied().enumerate().collect();
    // Equal ones stay in the order of the request.
    order.sort_by(|a, b| b.1.total_cmp(&a.1));
    let results = order.into_iter().take(most).map(|(index, score)| {
        let mut result = json!({"index": index, "relevance_score": score});
        if let (true, Some(text)) = (returned, documents.get(index)) {
            result["document"] = json!({"text": text});
        }
        result
    });
    Ok(Json(json!({
        "object": "list",
        "model": ranking.model,
        "results": results.collect::<Value>(),
        "usage": {"prompt_tokens": ranking.prompt_tokens, "total_tokens": ranking.prompt_tokens},
    })))
}

/// Texts, or objects with a text as clients of Cohere and Jina write them.
fn documents(fields: &Fields<'_>) -> Result<Vec<String>, ApiError> {
    let list = required(fields, "documents", fields.list("documents", MAX_DOCUMENTS)?)?;
    let texts: Option<Vec<String>> = list.iter().map(text).collect();
    let texts = texts.filter(|texts| !texts.is_empty());
    texts.ok_or_else(|| {
        fields.refuse("documents", "must be texts, or objects with a `text`, none of them empty")
    })
}

/// The text of one document.
fn text(value: &Value) -> Option<String> {
    value.as_str().or(value["text"].as_str()).filter(|text| !text.is_empty()).map(str::to_owned)
}
