//! `/library`: the models on the owner's machine, those that can be fetched, and the ways from one to the other.
//!
//! Only who brings the API's token is served, and an API that asks for none shows lists only. What it costs is said before anything is fetched: a search tells size, license
//! and what this machine makes of a model, and only what a catalog names is fetched.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    Json,
    extract::{Path, State},
    response::{IntoResponse, Response, sse},
};
use futures::{StreamExt, stream::BoxStream};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::{
    App,
    body::JsonBody,
    conversations::MAX_WORDS,
    error::{ApiError, Kind},
    fields::{Fields, required},
    inference::Failure,
};

/// A proxy between us and the page gives up on a silent stream after 30 to 60 s.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// A model that is here, or could be.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LibraryModel {
    /// What it is called here, or in its catalog.
    pub name: String,
    /// Its name in full; empty where no catalog says it.
    pub title: String,
    /// Bytes of the file.
    pub bytes: u64,
    /// Bytes of it on this machine's disk; 0 when none are.
    pub here_bytes: u64,
    /// Its license; empty where no catalog says it.
    pub license: String,
    /// What this machine makes of it, in words.
    pub fit: String,
    /// Whether it can be removed here: it is on the list and not part of the program.
    pub removable: bool,
}

/// What a line of a pull tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PullEvent {
    /// What is about to be fetched.
    Plan,
    /// How much there is to do.
    Started,
    /// A source takes part.
    Joined,
    /// Something has arrived.
    Moved,
    /// How far it is.
    Progress,
    /// A source will be asked again.
    Retrying,
    /// A source takes no part any more.
    Dropped,
    /// It is here.
    Done,
    /// It was given up; `why` says why.
    Failed,
}

/// A line of a pull, as `shoal model pull --json` prints it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PullLine {
    /// What it tells.
    pub event: PullEvent,
    /// The figures of that, for who reads them.
    #[serde(flatten)]
    pub figures: Map<String, Value>,
}

impl PullLine {
    /// The last line of a pull that was given up.
    pub fn failed(why: String) -> Self {
        Self { event: PullEvent::Failed, figures: [("why".to_owned(), why.into())].into_iter().collect() }
    }
}

/// Who keeps the machine's models. Methods may wait for a disk.
pub trait Library: std::fmt::Debug + Send + Sync + 'static {
    /// What is here, whole or in part.
    ///
    /// # Errors
    /// Those of reading.
    fn here(&self) -> Result<Vec<LibraryModel>, Failure>;

    /// What catalogs name with all of these words; all that they name for none.
    ///
    /// # Errors
    /// Those of reading.
    fn search(&self, words: &str) -> Result<Vec<LibraryModel>, Failure>;

    /// Takes a model off the list, and deletes what was fetched of it.
    ///
    /// # Errors
    /// [`Failure::NoModel`], and those of deleting.
    fn remove(&self, name: &str) -> Result<(), Failure>;

    /// Fetches a model that a catalog names: lines as `shoal model pull --json` prints them, the last one of event `done` or
    /// `failed`. Dropping the stream stops it; what has come stays and is not fetched again.
    ///
    /// # Errors
    /// [`Failure::NoModel`], [`Failure::Busy`] while another one is fetched.
    fn pull(&self, name: &str) -> Result<BoxStream<'static, PullLine>, Failure>;
}

/// Asks who keeps models, where waiting for a disk holds nothing up.
async fn ask<T: Send + 'static>(
    app: &App,
    question: impl FnOnce(&dyn Library) -> Result<T, Failure> + Send + 'static,
) -> Result<T, ApiError> {
    let none = || ApiError::new(Kind::NotFound, "this API keeps no models");
    let keeper = app.library.clone().ok_or_else(none)?;
    let asked = tokio::task::spawn_blocking(move || question(keeper.as_ref())).await;
    let failed = |_| ApiError::new(Kind::Internal, "the list of models could not be read");
    Ok(asked.map_err(failed)??)
}

/// As [`ask`], of what changes the machine: every program here could ask that of an API without a token.
async fn ask_owned<T: Send + 'static>(
    app: &App,
    question: impl FnOnce(&dyn Library) -> Result<T, Failure> + Send + 'static,
) -> Result<T, ApiError> {
    if app.access.is_open() {
        let why = "without a token every program here could fetch and remove models: start it without --no-token, or use `shoal model`";
        return Err(ApiError::new(Kind::Forbidden, why));
    }
    ask(app, question).await
}

/// `GET /library`
pub(crate) async fn list(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    let models = ask(&app, |keeper| keeper.here()).await?;
    Ok(Json(json!({"models": models})))
}

/// `POST /library/search`
pub(crate) async fn search(
    State(app): State<Arc<App>>,
    JsonBody(body): JsonBody,
) -> Result<Json<Value>, ApiError> {
    let fields = Fields::new(&body)?;
    let words = required(&fields, "words", fields.text("words")?)?.to_owned();
    if words.chars().count() > MAX_WORDS {
        return Err(fields.refuse("words", format_args!("may have at most {MAX_WORDS} characters")));
    }
    let models = ask(&app, move |keeper| keeper.search(&words)).await?;
    Ok(Json(json!({"models": models})))
}

/// `DELETE /library/{model}`
pub(crate) async fn remove(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    ask_owned(&app, move |keeper| keeper.remove(&name)).await?;
    Ok(Json(json!({"deleted": true})))
}

/// `POST /library/pull`: server-sent events, one for each line.
pub(crate) async fn pull(
    State(app): State<Arc<App>>,
    JsonBody(body): JsonBody,
) -> Result<Response, ApiError> {
    let fields = Fields::new(&body)?;
    let name = required(&fields, "model", fields.text("model")?)?.to_owned();
    let lines = ask_owned(&app, move |keeper| keeper.pull(&name)).await?;
    let events =
        lines.map(|line| Ok::<_, Infallible>(sse::Event::default().json_data(&line).unwrap_or_default()));
    Ok(sse::Sse::new(events).keep_alive(sse::KeepAlive::new().interval(HEARTBEAT)).into_response())
}
