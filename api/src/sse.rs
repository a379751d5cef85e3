//! Frames on the wire: server-sent events for OpenAI and Anthropic, JSON lines for Ollama.
//!
//! Every frame that carries a token has an `id`, the token's number from 1 on. A client that lost its connection sends the
//! same request again with the header `Last-Event-ID`: as the same seed gives the same tokens, the frames it has seen are
//! computed and left out. A silent stream gets a comment every [`HEARTBEAT`], so that nothing between takes it for dead.
//!
//! When the client goes, the body is dropped, the events with it, and the generation ends within one step.

use std::{convert::Infallible, time::Duration};

use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, HeaderValue, header},
    response::{IntoResponse, Response},
};
use futures::{Stream, StreamExt, stream};

use crate::error::ApiError;

/// Proxies give up on a silent stream after 30 to 60 s.
///
/// The comment ends with one line break: after a blank line some clients, the official Python one among them, dispatch an
/// event without data and fail on it.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// One frame.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Frame {
    /// The token's number.
    pub id: Option<u64>,
    /// Anthropic's and Responses' event name.
    pub event: Option<&'static str>,
    /// One line.
    pub data: String,
}

impl Frame {
    pub(crate) fn data(data: impl ToString) -> Self {
        Self { data: data.to_string(), ..Self::default() }
    }

    pub(crate) fn event(event: &'static str, data: impl ToString) -> Self {
        Self { event: Some(event), ..Self::data(data) }
    }

    pub(crate) fn id(mut self, id: u64) -> Self {
        self.id = Some(id);
        self
    }
}

/// How frames are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    /// `text/event-stream`.
    Events,
    /// `application/x-ndjson`.
    Lines,
}

/// What the client says it has seen of this answer already.
pub(crate) fn last_event_id(headers: &HeaderMap) -> Result<Option<u64>, ApiError> {
    let Some(value) = headers.get("last-event-id") else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.parse().ok());
    number.map(Some).ok_or_else(|| ApiError::field("Last-Event-ID", "must be the number of a token"))
}

/// The response that sends `frames`, leaving out those up to `seen`.
pub(crate) fn respond(
    frames: impl Stream<Item = Vec<Frame>> + Send + 'static,
    wire: Wire,
    seen: Option<u64>,
) -> Response {
    let seen = seen.unwrap_or(0);
    let written = frames.filter_map(move |frames| {
        let mut out = String::new();
        for frame in frames.iter().filter(|frame| frame.id.is_none_or(|id| id > seen)) {
            write(&mut out, frame, wire);
        }
        std::future::ready((!out.is_empty()).then_some(out))
    });
    let body = match wire {
        Wire::Events => Body::from_stream(heartbeats(written.boxed())),
        Wire::Lines => Body::from_stream(written.map(|text| Ok::<_, Infallible>(Bytes::from(text)))),
    };
    let kind = match wire {
        Wire::Events => "text/event-stream; charset=utf-8",
        Wire::Lines => "application/x-ndjson",
    };
    let mut response = body.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

fn write(out: &mut String, frame: &Frame, wire: Wire) {
    match wire {
        Wire::Events => {
            if let Some(event) = frame.event {
                out.extend(["event: ", event, "\n"]);
            }
            if let Some(id) = frame.id {
                out.extend(["id: ", &id.to_string(), "\n"]);
            }
            out.extend(["data: ", &frame.data, "\n\n"]);
        }
        Wire::Lines => out.extend([frame.data.as_str(), "\n"]),
    }
}

fn heartbeats(
    written: impl Stream<Item = String> + Send + Unpin + 'static,
) -> impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static {
    stream::unfold(written, |mut written| async move {
        let text = match tokio::time::timeout(HEARTBEAT, written.next()).await {
            Ok(text) => text?,
            Err(_) => ": alive\n".to_owned(),
        };
        Some((Ok(Bytes::from(text)), written))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn text(response: Response) -> String {
        let bytes = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    #[tokio::test]
    async fn frames_seen_are_left_out() {
        let frames = || stream::iter((1..=3).map(|n| vec![Frame::data(n).id(n)]));
        let all = text(respond(frames(), Wire::Events, None)).await;
        assert_eq!(all, "id: 1\ndata: 1\n\nid: 2\ndata: 2\n\nid: 3\ndata: 3\n\n");
        let rest = text(respond(frames(), Wire::Events, Some(2))).await;
        assert_eq!(rest, "id: 3\ndata: 3\n\n");
        assert_eq!(text(respond(frames(), Wire::Lines, None)).await, "1\n2\n3\n");
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_stream_shows_that_it_lives() {
        let silent = stream::once(async {
            tokio::time::sleep(HEARTBEAT * 5 / 2).await;
            vec![Frame::event("end", "{}")]
        });
        let all = text(respond(silent, Wire::Events, None)).await;
        assert_eq!(all, ": alive\n: alive\nevent: end\ndata: {}\n\n");
    }
}
