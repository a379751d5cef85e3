//! The turns of a conversation of Responses that the node stores: what came before a request, and `GET` and `DELETE` of
//! `/v1/responses/{response}`.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, Query, State, rejection::QueryRejection},
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    App,
    body::Held,
    error::{ApiError, Kind},
    fields::{Fields, required},
    keys, names,
    openai::messages,
    stored_responses::{
        Broken, MAX_BYTES, MAX_CONVERSATION_BYTES, MAX_TURNS, StoredResponse, StoredResponses, is_id,
    },
};

const PREVIOUS: &str = "previous_response_id";
/// Items of a page, as OpenAI's service gives them.
const PAGE: usize = 20;
const MOST_OF_A_PAGE: usize = 100;

/// The items that a request brings, and what it goes on from.
#[derive(Clone, Debug, Default)]
pub(super) struct Turn {
    pub previous: Option<String>,
    /// The items of all turns before, in their order.
    pub before: Vec<Value>,
    /// Whether it shall be stored.
    pub store: bool,
}

impl From<Broken> for ApiError {
    fn from(Broken(why): Broken) -> Self {
        Self::new(Kind::Internal, why)
    }
}

/// Asks who stores responses, where waiting for a disk holds nothing up.
async fn ask<T: Send + 'static>(
    keeper: &Arc<dyn StoredResponses>,
    question: impl FnOnce(&dyn StoredResponses) -> Result<T, Broken> + Send + 'static,
) -> Result<T, ApiError> {
    let keeper = keeper.clone();
    let asked = tokio::task::spawn_blocking(move || question(keeper.as_ref())).await;
    let failed = |_| ApiError::new(Kind::Internal, "the response could not be read or stored");
    Ok(asked.map_err(failed)??)
}

/// The turn of who asks, `None` also for another's.
async fn find(
    keeper: &Arc<dyn StoredResponses>,
    id: &str,
    holder: Option<String>,
) -> Result<Option<StoredResponse>, ApiError> {
    if !is_id(id) {
        return Ok(None);
    }
    let (name, asks) = (id.to_owned(), holder.clone());
    let found = ask(keeper, move |keeper| keeper.read(asks.as_deref(), &name)).await?;
    Ok(found.filter(|stored| stored.holder == holder))
}

/// The turn `id` and all before it, the first one first; `None` where one of them is not here.
async fn conversation(
    app: &App,
    keeper: &Arc<dyn StoredResponses>,
    id: &str,
) -> Result<Option<Vec<StoredResponse>>, ApiError> {
    let (mut held, mut bytes) = (Held::new(&*app.doors), 0);
    let mut turns: Vec<StoredResponse> = Vec::new();
    let mut next = Some(id.to_owned());
    while let Some(id) = next {
        let Some(turn) = find(keeper, &id, keys::holder()).await? else { return Ok(None) };
        bytes += bytes_of(&turn);
        if turns.len() >= MAX_TURNS || bytes > MAX_CONVERSATION_BYTES {
            let most = MAX_CONVERSATION_BYTES >> 20;
            let why = format!(
                "the conversation has more than {MAX_TURNS} turns or {most} MiB; send the items that matter"
            );
            return Err(ApiError { param: Some(PREVIOUS.into()), ..ApiError::new(Kind::Invalid, why) });
        }
        held.reach(bytes)?;
        next = turn.previous.clone();
        turns.push(turn);
    }
    turns.reverse();
    Ok(Some(turns))
}

/// Bytes of a turn's items as JSON.
fn bytes_of(turn: &StoredResponse) -> usize {
    let all = turn.input.iter().chain(turn.response["output"].as_array().into_iter().flatten());
    all.map(|item| item.to_string().len()).sum()
}

/// The items of turns, those of their answers among them.
fn items(turns: Vec<StoredResponse>) -> Vec<Value> {
    let both = turns.into_iter().flat_map(|mut turn| {
        let output = turn.response["output"].take();
        let output = if let Value::Array(items) = output { items } else { Vec::new() };
        turn.input.into_iter().chain(output)
    });
    both.collect()
}

/// What `previous_response_id` and `store` ask for.
pub(super) async fn read(app: &App, fields: &Fields<'_>) -> Result<Turn, ApiError> {
    for field in ["conversation", "prompt"] {
        if fields.any(field).is_some() {
            let why = "is not supported: go on with `previous_response_id`, or send the items again";
            return Err(fields.refuse(field, why));
        }
    }
    if fields.bool("background")?.unwrap_or(false) {
        let why = "is not supported: an answer is computed while its client waits";
        return Err(fields.refuse("background", why));
    }
    let store = fields.bool("store")?.unwrap_or(true) && app.responses.is_some();
    let Some(id) = fields.text(PREVIOUS)? else { return Ok(Turn { store, ..Turn::default() }) };
    let Some(keeper) = &app.responses else {
        return Err(fields.refuse(PREVIOUS, "is not supported: nothing is stored here; send the items again"));
    };
    let Some(turns) = conversation(app, keeper, id).await? else {
        let why = "is not here, or an answer before it is not: they are kept for a day; send the items again";
        return Err(ApiError { kind: Kind::NoResponse, ..fields.refuse(PREVIOUS, why) });
    };
    let before = items(turns);
    if before.len() > messages::MAX_MESSAGES {
        let why = format!("has more than {} items; send those that matter", messages::MAX_MESSAGES);
        return Err(fields.refuse(PREVIOUS, why));
    }
    Ok(Turn { previous: Some(id.to_owned()), before, store })
}

/// The items of a request, each with a name: a string is a message of the user.
pub(super) fn input(fields: &Fields<'_>) -> Result<Vec<Value>, ApiError> {
    let mut items = match required(fields, "input", fields.any("input"))? {
        Value::String(text) => vec![json!({
            "type": "message", "role": "user", "content": [{"type": "input_text", "text": text}],
        })],
        _ => fields.list("input", messages::MAX_MESSAGES)?.unwrap_or_default().to_vec(),
    };
    for item in items.iter_mut().filter_map(Value::as_object_mut) {
        if !item.get("id").is_some_and(Value::is_string) {
            item.insert("id".into(), names::fresh("item_").into());
        }
    }
    Ok(items)
}

/// Stores a turn under the name of its response, which says so; it says the contrary where that fails or is too large, which
/// costs its continuation and not the answer.
pub(super) async fn store(keeper: &Arc<dyn StoredResponses>, mut turn: StoredResponse) -> Value {
    let id = turn.response["id"].as_str().unwrap_or_default().to_owned();
    turn.response["store"] = true.into();
    let mut response = turn.response.clone();
    let fits = serde_json::to_string(&turn).is_ok_and(|text| text.len() <= MAX_BYTES);
    let stored = if fits { ask(keeper, move |keeper| keeper.store(&id, &turn)).await } else { Ok(false) };
    if stored != Ok(true) {
        tracing::warn!(?stored, "a response is not stored");
    }
    response["store"] = stored.unwrap_or(false).into();
    response
}

fn unknown() -> ApiError {
    let why = "there is no such response; they are kept for a day after they were last used";
    ApiError::new(Kind::NotFound, why)
}

fn keeper(app: &App) -> Result<&Arc<dyn StoredResponses>, ApiError> {
    let nothing = || ApiError::new(Kind::NotFound, "this API keeps no responses");
    app.responses.as_ref().ok_or_else(nothing)
}

/// What a reader of a response asks for.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Wanted {
    stream: bool,
}

/// `GET /v1/responses/{response}`
pub(crate) async fn get(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    wanted: Result<Query<Wanted>, QueryRejection>,
) -> Result<Json<Value>, ApiError> {
    let plain = wanted.is_ok_and(|Query(wanted)| !wanted.stream);
    if !plain {
        return Err(ApiError::field("stream", "must be false: a stored response is whole"));
    }
    let found = find(keeper(&app)?, &id, keys::holder()).await?;
    found.map(|stored| Json(stored.response)).ok_or_else(unknown)
}

/// `DELETE /v1/responses/{response}`
pub(crate) async fn delete(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let keeper = keeper(&app)?;
    find(keeper, &id, keys::holder()).await?.ok_or_else(unknown)?;
    let name = id.clone();
    let holder = keys::holder();
    ask(keeper, move |keeper| keeper.remove(holder.as_deref(), &name)).await?;
    Ok(Json(json!({"id": id, "object": "response", "deleted": true})))
}

/// Which items of a request are wanted.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PageOfItems {
    limit: Option<usize>,
    order: Option<String>,
    after: Option<String>,
}

/// `GET /v1/responses/{response}/input_items`: what its model was given, the turns before it included.
pub(crate) async fn input_items(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    page: Result<Query<PageOfItems>, QueryRejection>,
) -> Result<Json<Value>, ApiError> {
    let outside = || ApiError::field("limit", format!("must be 1 to {MOST_OF_A_PAGE}"));
    let Query(page) = page.map_err(|_| outside())?;
    let limit = page.limit.unwrap_or(PAGE);
    if !(1..=MOST_OF_A_PAGE).contains(&limit) {
        return Err(outside());
    }
    let mut turns = conversation(&app, keeper(&app)?, &id).await?.ok_or_else(unknown)?;
    let own = turns.pop().map(|turn| turn.input).unwrap_or_default();
    let mut all = items(turns);
    all.extend(own);
    match page.order.as_deref() {
        None | Some("desc") => all.reverse(),
        Some("asc") => {}
        Some(_) => return Err(ApiError::field("order", "must be asc or desc")),
    }
    if let Some(after) = &page.after {
        let at = all.iter().position(|item| item["id"] == **after);
        let at = at.ok_or_else(|| ApiError::field("after", "is the name of no item of this response"))?;
        all.drain(..=at);
    }
    let has_more = all.len() > limit;
    all.truncate(limit);
    let name = |item: Option<&Value>| item.map_or(Value::Null, |item| item["id"].clone());
    let (first, last) = (name(all.first()), name(all.last()));
    let page =
        json!({"object": "list", "data": all, "first_id": first, "last_id": last, "has_more": has_more});
    Ok(Json(page))
}
