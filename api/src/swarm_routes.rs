//! `/swarm`: the snapshot, its changes, and what the owner changes there.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response, sse},
};
use futures::{StreamExt, stream};
use serde_json::{Value, json};

use crate::{
    App,
    body::JsonBody,
    choice::Mode,
    error::ApiError,
    fields::{Fields, required},
    swarm::{Contribution, ContributionChange, SwarmEvent, SwarmSnapshot},
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
