//! `POST /api/pull`: clients ask for a model before they use it. One that is here is there at once; others are fetched by the
//! owner of the node, not by its clients: a model takes gigabytes of disk.

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use futures::stream;
use serde_json::json;

use crate::{
    App,
    body::JsonBody,
    error::{ApiError, Kind},
    fields::Fields,
    names,
    sse::{self, Frame, Wire},
};

pub(crate) async fn post(
    State(app): State<Arc<App>>,
    JsonBody(body): JsonBody,
) -> Result<Response, ApiError> {
    let fields = Fields::new(&body)?;
    let streams = fields.bool("stream")?.unwrap_or(true);
    match super::model(&app, &fields) {
        Ok(_) if streams => {
            let done = vec![Frame::data(json!({"status": "success"}))];
            Ok(sse::respond(stream::iter([done]), Wire::Lines, None))
        }
        Ok(_) => Ok(Json(json!({"status": "success"})).into_response()),
        Err(error) if error.kind == Kind::NoModel => {
            let field = if fields.any("model").is_some() { "model" } else { "name" };
            let name = fields.text(field)?.filter(|name| names::may_be_model(name)).unwrap_or("NAME");
            let why = format!(
                "models are not fetched over this API: run `shoal model pull {name}` on the machine of the node, and start \
                 `shoal serve --model {name}`; GET /api/tags lists what can be asked for now"
            );
            Err(ApiError { message: why, ..error })
        }
        Err(error) => Err(error),
    }
}
