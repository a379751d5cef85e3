//! An endpoint of the API: where it is, what it takes and answers, and what serves it.

use std::sync::Arc;

use axum::routing::MethodRouter;

use crate::App;

/// One row of the router's table; the OpenAPI document and the router are both made from it.
pub(crate) struct Endpoint {
    pub(crate) method: &'static str,
    pub(crate) path: &'static str,
    /// The group of the document that lists it; it also says in which dialect errors are written.
    pub(crate) tag: &'static str,
    pub(crate) summary: &'static str,
    /// The name of the request's schema, empty for none.
    pub(crate) takes: &'static str,
    pub(crate) answer: Answer,
    /// Whether it answers without the token.
    pub(crate) is_open: bool,
    pub(crate) handler: Handler,
}

type Handler = fn() -> MethodRouter<Arc<App>>;

/// In which forms an endpoint answers, with the name of the schema of an answer in one piece.
pub(crate) enum Answer {
    /// JSON in one piece.
    Json(&'static str),
    /// A prompt's answer: JSON in one piece, or server-sent events where the request asks for them.
    Events(&'static str),
    /// A prompt's answer: JSON in one piece, or lines of JSON unless the request asks otherwise.
    Lines(&'static str),
    /// How work goes on, as lines of JSON or in one piece.
    Progress(&'static str),
    /// Server-sent events always.
    Stream,
    /// Plain text.
    Text,
}

impl Answer {
    /// The name of the schema of an answer in one piece.
    pub(crate) const fn whole(&self) -> Option<&'static str> {
        match self {
            Self::Json(name) | Self::Events(name) | Self::Lines(name) | Self::Progress(name) => Some(name),
            Self::Stream | Self::Text => None,
        }
    }

    /// Whether it is a prompt's.
    pub(crate) const fn is_of_a_prompt(&self) -> bool {
        matches!(self, Self::Events(_) | Self::Lines(_))
    }
}

impl Endpoint {
    pub(crate) const fn get(
        path: &'static str,
        tag: &'static str,
        summary: &'static str,
        answer: Answer,
        handler: Handler,
    ) -> Self {
        Self { method: "get", ..Self::post(path, tag, summary, "", answer, handler) }
    }

    pub(crate) const fn delete(
        path: &'static str,
        tag: &'static str,
        summary: &'static str,
        answer: Answer,
        handler: Handler,
    ) -> Self {
        Self { method: "delete", ..Self::post(path, tag, summary, "", answer, handler) }
    }

    pub(crate) const fn post(
        path: &'static str,
        tag: &'static str,
        summary: &'static str,
        takes: &'static str,
        answer: Answer,
        handler: Handler,
    ) -> Self {
        Self { method: "post", path, tag, summary, takes, answer, is_open: false, handler }
    }

    /// Without the token.
    pub(crate) const fn open(mut self) -> Self {
        self.is_open = true;
        self
    }
}
