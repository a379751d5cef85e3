//! `/conversations` and `/presets`: what the owner's page keeps on this machine.
//!
//! Only who brings the API's token is served: keys of others are turned away before (`guard.rs`), and an API that asks for
//! no token keeps nothing, since every program of the machine could read it.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
};
use serde_json::{Map, Value, json};

use crate::{
    App,
    body::JsonBody,
    conversations::{
        Attachment, Change, Conversation, Conversations, MAX_BYTES, MAX_CONTENT, MAX_FILE, MAX_FILES,
        MAX_MESSAGES, MAX_NOTES, MAX_PRESETS, MAX_SYSTEM, MAX_TITLE, MAX_WORDS, Message, Preset, Refusal,
        Summary, is_id,
    },
    error::{ApiError, Kind},
    fields::{Fields, required},
};

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Unknown => {
                Self::new(Kind::NotFound, "there is no such conversation; GET /conversations lists them")
            }
            Refusal::Wrong(why) => Self::new(Kind::Invalid, why),
            Refusal::Full(why) => Self::new(Kind::TooLarge, why),
            Refusal::Broken(why) => Self::new(Kind::Internal, why),
        }
    }
}

/// Asks who keeps conversations, where waiting for a disk holds nothing up.
async fn ask<T: Send + 'static>(
    app: &App,
    question: impl FnOnce(&dyn Conversations) -> Result<T, Refusal> + Send + 'static,
) -> Result<T, ApiError> {
    let Some(keeper) = app.conversations.clone() else {
        let why = "this API keeps no conversations";
        return Err(ApiError::new(Kind::NotFound, why));
    };
    if app.access.is_open() {
        let why = "without a token every program here could read conversations: start it without --no-token to keep them";
        return Err(ApiError::new(Kind::Forbidden, why));
    }
    let asked = tokio::task::spawn_blocking(move || question(keeper.as_ref())).await;
    let failed = |_| ApiError::new(Kind::Internal, "the conversation could not be read or kept");
    Ok(asked.map_err(failed)??)
}

fn id(id: String) -> Result<String, ApiError> {
    if is_id(&id) { Ok(id) } else { Err(Refusal::Unknown.into()) }
}

/// `GET /conversations`
pub(crate) async fn list(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    let (conversations, room) = ask(&app, |keeper| keeper.list()).await?;
    Ok(Json(json!({"conversations": conversations, "room": room})))
}

/// `POST /conversations/search`
pub(crate) async fn search(
    State(app): State<Arc<App>>,
    JsonBody(body): JsonBody,
) -> Result<Json<Value>, ApiError> {
    let fields = Fields::new(&body)?;
    let words = required(&fields, "words", text(&fields, "words", MAX_WORDS)?)?;
    let found = ask(&app, move |keeper| keeper.search(&words)).await?;
    Ok(Json(json!({"conversations": found})))
}

/// `GET /conversations/{conversation}`
pub(crate) async fn read(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
) -> Result<Json<Conversation>, ApiError> {
    let name = id(name)?;
    ask(&app, move |keeper| keeper.read(&name)).await.map(Json)
}

/// `POST /conversations/{conversation}`
pub(crate) async fn change(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
    JsonBody(body): JsonBody,
) -> Result<Json<Summary>, ApiError> {
    let name = id(name)?;
    let change = read_change(&Fields::new(&body)?)?;
    ask(&app, move |keeper| keeper.change(&name, change)).await.map(Json)
}

/// `DELETE /conversations/{conversation}`
pub(crate) async fn remove(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let name = id(name)?;
    ask(&app, move |keeper| keeper.remove(&name)).await?;
    Ok(Json(json!({"deleted": true})))
}

/// `GET /presets`
pub(crate) async fn presets(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    let presets = ask(&app, |keeper| keeper.presets()).await?;
    Ok(Json(json!({"presets": presets})))
}

/// `POST /presets`: these and no others.
pub(crate) async fn keep_presets(
    State(app): State<Arc<App>>,
    JsonBody(body): JsonBody,
) -> Result<Json<Value>, ApiError> {
    let fields = Fields::new(&body)?;
    let list = required(&fields, "presets", fields.list("presets", MAX_PRESETS)?)?;
    let presets = list.iter().enumerate().map(|(at, value)| {
        let fields = Fields::at(value, format!("presets[{at}]"))?;
        Ok(Preset {
            name: required(&fields, "name", text(&fields, "name", MAX_TITLE)?)?,
            system: text(&fields, "system", MAX_SYSTEM)?.unwrap_or_default(),
            sampling: notes(&fields, "sampling")?.unwrap_or_default(),
        })
    });
    let presets = presets.collect::<Result<Vec<_>, ApiError>>()?;
    let kept = presets.clone();
    ask(&app, move |keeper| keeper.keep_presets(kept)).await?;
    Ok(Json(json!({"presets": presets})))
}

/// Text of at most so many characters.
fn text(fields: &Fields<'_>, field: &str, most: usize) -> Result<Option<String>, ApiError> {
    let text = fields.text(field)?;
    if text.is_some_and(|text| text.chars().count() > most) {
        return Err(fields.refuse(field, format_args!("may have at most {most} characters")));
    }
    Ok(text.map(str::to_owned))
}

/// An object that is kept as it is.
fn notes(fields: &Fields<'_>, field: &str) -> Result<Option<Map<String, Value>>, ApiError> {
    let Some(value) = fields.any(field) else { return Ok(None) };
    let object = value.as_object().ok_or_else(|| fields.refuse(field, "must be an object"))?;
    if value.to_string().len() > MAX_NOTES {
        return Err(fields.refuse(field, format_args!("may have at most {MAX_NOTES} bytes")));
    }
    Ok(Some(object.clone()))
}

/// The name of a message.
fn message_id(fields: &Fields<'_>, field: &str) -> Result<Option<String>, ApiError> {
    let Some(id) = fields.text(field)? else { return Ok(None) };
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    if (1..=32).contains(&id.len()) && id.bytes().all(plain) {
        return Ok(Some(id.to_owned()));
    }
    Err(fields.refuse(field, "must be 1 to 32 of a-z and 0-9"))
}

fn read_change(fields: &Fields<'_>) -> Result<Change, ApiError> {
    let messages = fields.list("messages", MAX_MESSAGES)?.unwrap_or_default().iter().enumerate();
    let messages = messages.map(|(at, value)| read_message(&Fields::at(value, format!("messages[{at}]"))?));
    let change = Change {
        title: text(fields, "title", MAX_TITLE)?,
        system: text(fields, "system", MAX_SYSTEM)?,
        sampling: notes(fields, "sampling")?,
        leaf: message_id(fields, "leaf")?,
        messages: messages.collect::<Result<_, _>>()?,
    };
    let bytes: usize = change.messages.iter().map(|message| message.content.len()).sum();
    if bytes > MAX_BYTES {
        return Err(fields.refuse("messages", format_args!("may have at most {MAX_BYTES} bytes")));
    }
    Ok(change)
}

fn read_message(fields: &Fields<'_>) -> Result<Message, ApiError> {
    let files = fields.list("files", MAX_FILES)?.unwrap_or_default().iter().enumerate();
    let files = files.map(|(at, value)| {
        let fields = Fields::at(value, fields.name(&format!("files[{at}]")))?;
        Ok(Attachment {
            name: required(&fields, "name", text(&fields, "name", MAX_TITLE)?)?,
            text: required(&fields, "text", text(&fields, "text", MAX_FILE)?)?,
        })
    });
    let role = required(fields, "role", fields.one_of("role", &["user", "assistant"], |role| role)?)?;
    Ok(Message {
        id: required(fields, "id", message_id(fields, "id")?)?,
        parent: message_id(fields, "parent")?,
        role: role.to_owned(),
        content: required(fields, "content", text(fields, "content", MAX_CONTENT)?)?,
        files: files.collect::<Result<_, ApiError>>()?,
        about: notes(fields, "about")?.unwrap_or_default(),
    })
}
