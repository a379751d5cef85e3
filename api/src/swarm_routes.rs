//! `/swarm`: the snapshot, its changes, what the owner changes there, and the records kept of it.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    Json,
    extract::{Query, State, rejection::QueryRejection},
    response::{IntoResponse, Response, sse},
};
use futures::{StreamExt, stream};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    App,
    body::JsonBody,
    choice::Mode,
    error::{ApiError, Kind},
    fields::{Fields, required},
    inference::{Failure, SwarmRecords},
    swarm::{Contribution, ContributionChange, SwarmEvent, SwarmSnapshot},
    swarm_records::{Color, History, Invite, MAX_DAYS, NodeName},
};

/// A proxy between us and the page gives up on a silent stream after 30 to 60 s.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// `GET /swarm`
pub(crate) async fn snapshot(State(app): State<Arc<App>>) -> Json<SwarmSnapshot> {
    Json(app.inference.swarm())
}

/// `GET /swarm/events`
pub(crate) async fn events(State(app): State<Arc<App>>) -> Response {
    let changes = app.inference.watch();
    let first = SwarmEvent::Snapshot { snapshot: Box::new(app.inference.swarm()) };
    let stream = stream::once(async { first }).chain(changes).map(|event| {
        let event = sse::Event::default().json_data(&event);
        Ok::<_, Infallible>(event.unwrap_or_else(|_| sse::Event::default().comment("not representable")))
    });
    sse::Sse::new(stream).keep_alive(sse::KeepAlive::new().interval(HEARTBEAT)).into_response()
}

/// `POST /swarm/consent`: the owner's word on a mode in which strangers compute; answers with what holds then.
pub(crate) async fn agree(
    State(app): State<Arc<App>>,
    JsonBody(body): JsonBody,
) -> Result<Json<Value>, ApiError> {
    let fields = Fields::new(&body)?;
    let mode = required(&fields, "mode", fields.one_of("mode", &Mode::ALL, Mode::name)?)?;
    let agreed = required(&fields, "agreed", fields.bool("agreed")?)?;
    if !matches!(mode, Mode::Boomerang | Mode::Open) {
        return Err(fields.refuse("mode", "must be boomerang or open: no stranger computes in the others"));
    }
    app.inference.agree(mode, agreed)?;
    Ok(Json(json!({"mode": mode, "agreed": agreed})))
}

/// `POST /swarm/contribution`: changes caps, pauses and resumes; answers with the contribution as it is then.
pub(crate) async fn contribute(
    State(app): State<Arc<App>>,
    JsonBody(body): JsonBody,
) -> Result<Json<Contribution>, ApiError> {
    let fields = Fields::new(&body)?;
    let change = ContributionChange {
        paused: fields.bool("paused")?,
        memory_bytes: fields.integer("memory_bytes", 0, 1 << 50)?.map(|n| n as u64),
        threads: fields.integer("threads", 1, 4096)?.map(|n| n as u32),
        upload_bytes_per_s: fields.integer("upload_bytes_per_s", 0, 1 << 50)?.map(|n| n as u64),
    };
    Ok(Json(app.inference.contribute(change)?))
}

fn records(app: &App) -> Result<Arc<dyn SwarmRecords>, ApiError> {
    let none = || ApiError::new(Kind::NotFound, "this API keeps no records of a swarm");
    app.inference.records().ok_or_else(none)
}

/// Asks who keeps records, where waiting for a disk holds nothing up.
async fn ask<T: Send + 'static>(
    app: &App,
    question: impl FnOnce(&dyn SwarmRecords) -> Result<T, Failure> + Send + 'static,
) -> Result<T, ApiError> {
    let keeper = records(app)?;
    let asked = tokio::task::spawn_blocking(move || question(keeper.as_ref())).await;
    let failed = |_| ApiError::new(Kind::Internal, "the records could not be read or kept");
    Ok(asked.map_err(failed)??)
}

/// `POST /swarm/names`: what the owner calls a node; nothing and no color to forget it.
pub(crate) async fn name(
    State(app): State<Arc<App>>,
    JsonBody(body): JsonBody,
) -> Result<Json<NodeName>, ApiError> {
    let fields = Fields::new(&body)?;
    let node = required(&fields, "node", fields.text("node")?)?;
    let name = fields.text("name")?.unwrap_or_default();
    let color = fields.one_of("color", &Color::ALL, Color::name)?.unwrap_or_default();
    let name = NodeName::new(node, name, color).map_err(|(field, why)| fields.refuse(field, why))?;
    let kept = name.clone();
    ask(&app, move |keeper| keeper.name(kept)).await?;
    Ok(Json(name))
}

/// How far back.
#[derive(Deserialize)]
pub(crate) struct Back {
    days: Option<u32>,
}

/// `GET /swarm/history?days=N`
pub(crate) async fn history(
    State(app): State<Arc<App>>,
    back: Result<Query<Back>, QueryRejection>,
) -> Result<Json<History>, ApiError> {
    let days =
        back.ok().map(|Query(back)| back.days.unwrap_or(1)).filter(|days| (1..=MAX_DAYS).contains(days));
    let why = format!("must be a number of days from 1 to {MAX_DAYS}");
    let days = days.ok_or_else(|| ApiError::field("days", why))?;
    Ok(Json(ask(&app, move |keeper| keeper.history(days)).await?))
}

/// `GET /swarm/answers`
pub(crate) async fn answers(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    Ok(Json(json!({"answers": records(&app)?.answers().await?})))
}

/// `GET /swarm/invite`: a code for a friend. It lets its holder into a private swarm, so it is for who brings the token.
pub(crate) async fn invite(State(app): State<Arc<App>>) -> Result<Json<Invite>, ApiError> {
    let keeper = records(&app)?;
    if app.access.is_open() {
        let why = "without a token every program here could invite others: start it without --no-token, or use `shoal invite`";
        return Err(ApiError::new(Kind::Forbidden, why));
    }
    Ok(Json(keeper.invite().await?))
}
