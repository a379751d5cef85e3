//! Everything that can be wrong with a request, in one table, and its three shapes.
//!
//! Handlers and guards answer with [`ApiError`], written in OpenAI's shape; [`dialect`], around the whole router, writes it
//! again in the shape of Anthropic's or Ollama's routes. Messages say what to change; they never repeat a prompt or a
//! path.

use axum::{
    Json,
    extract::Request,
    http::{HeaderValue, StatusCode, header::RETRY_AFTER},
    middleware::Next,
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

use crate::inference::Failure;

/// What is wrong, as a row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Invalid,
    ContextLength,
    Unauthorized,
    Forbidden,
    NotAgreed,
    NotFound,
    NoModel,
    NoResponse,
    Method,
    TooLarge,
    Timeout,
    MediaType,
    Busy,
    Internal,
    Unavailable,
}

/// A row: status, OpenAI's `type` and `code`, Anthropic's `type`.
struct Row(Kind, StatusCode, &'static str, Option<&'static str>, &'static str);

const TABLE: &[Row] = &[
    Row(Kind::Invalid, StatusCode::BAD_REQUEST, "invalid_request_error", None, "invalid_request_error"),
    Row(
        Kind::ContextLength,
        StatusCode::BAD_REQUEST,
        "invalid_request_error",
        Some("context_length_exceeded"),
        "invalid_request_error",
    ),
    Row(
        Kind::Unauthorized,
        StatusCode::UNAUTHORIZED,
        "invalid_request_error",
        Some("invalid_api_key"),
        "authentication_error",
    ),
    Row(Kind::Forbidden, StatusCode::FORBIDDEN, "permission_error", Some("forbidden"), "permission_error"),
    Row(
        Kind::NotAgreed,
        StatusCode::FORBIDDEN,
        "permission_error",
        Some("consent_required"),
        "permission_error",
    ),
    Row(Kind::NotFound, StatusCode::NOT_FOUND, "invalid_request_error", Some("not_found"), "not_found_error"),
    Row(
        Kind::NoModel,
        StatusCode::NOT_FOUND,
        "invalid_request_error",
        Some("model_not_found"),
        "not_found_error",
    ),
    Row(
        Kind::NoResponse,
        StatusCode::BAD_REQUEST,
        "invalid_request_error",
        Some("previous_response_not_found"),
        "invalid_request_error",
    ),
    Row(
        Kind::Method,
        StatusCode::METHOD_NOT_ALLOWED,
        "invalid_request_error",
        Some("method_not_allowed"),
        "invalid_request_error",
    ),
    Row(
        Kind::TooLarge,
        StatusCode::PAYLOAD_TOO_LARGE,
        "invalid_request_error",
        Some("request_too_large"),
        "request_too_large",
    ),
    Row(
        Kind::Timeout,
        StatusCode::REQUEST_TIMEOUT,
        "invalid_request_error",
        Some("request_timeout"),
        "invalid_request_error",
    ),
    Row(
        Kind::MediaType,
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "invalid_request_error",
        Some("unsupported_media_type"),
        "invalid_request_error",
    ),
    Row(
        Kind::Busy,
        StatusCode::TOO_MANY_REQUESTS,
        "rate_limit_error",
        Some("rate_limit_exceeded"),
        "rate_limit_error",
    ),
    Row(Kind::Internal, StatusCode::INTERNAL_SERVER_ERROR, "server_error", None, "api_error"),
    Row(
        Kind::Unavailable,
        StatusCode::SERVICE_UNAVAILABLE,
        "server_error",
        Some("unavailable"),
        "overloaded_error",
    ),
];

/// A refusal or failure on its way to the client.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ApiError {
    pub kind: Kind,
    pub message: String,
    /// The field to blame, such as `messages[2].content`.
    pub param: Option<String>,
    pub retry_after_s: Option<u32>,
}

impl ApiError {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), param: None, retry_after_s: None }
    }

    /// A field has a value that cannot be used.
    pub(crate) fn field(param: impl Into<String>, why: impl std::fmt::Display) -> Self {
        let param = param.into();
        Self {
            kind: Kind::Invalid,
            message: format!("`{param}` {why}"),
            param: Some(param),
            retry_after_s: None,
        }
    }

    fn row(&self) -> &'static Row {
        TABLE.iter().find(|row| row.0 == self.kind).unwrap_or(&TABLE[0])
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.row().1
    }

    /// OpenAI's shape.
    pub(crate) fn openai(&self) -> Value {
        let Row(_, _, kind, code, _) = self.row();
        json!({"error": {"message": self.message, "type": kind, "param": self.param, "code": code}})
    }

    /// Anthropic's shape.
    pub(crate) fn anthropic(&self) -> Value {
        json!({"type": "error", "error": {"type": self.row().4, "message": self.message}})
    }

    /// Ollama's shape.
    pub(crate) fn ollama(&self) -> Value {
        json!({"error": self.message})
    }

    fn respond(&self, body: Value) -> Response {
        let mut response = (self.status(), Json(body)).into_response();
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> Self {
        let message = failure.to_string();
        let (kind, param, retry_after_s) = match failure {
            Failure::Invalid { field, .. } => (Kind::Invalid, field, None),
            Failure::TooLong { .. } => (Kind::ContextLength, Some("messages"), None),
            Failure::NoModel { .. } => (Kind::NoModel, Some("model"), None),
            Failure::NotAgreed { .. } => (Kind::NotAgreed, Some("mode"), None),
            Failure::Unavailable { retry_after_s, .. } => (Kind::Unavailable, None, Some(retry_after_s)),
            Failure::Busy { retry_after_s, .. } => (Kind::Busy, None, Some(retry_after_s)),
            Failure::Internal { .. } => (Kind::Internal, None, None),
        };
        Self { kind, message, param: param.map(str::to_owned), retry_after_s }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = self.respond(self.openai());
        response.extensions_mut().insert(self);
        response
    }
}

/// Which family of clients a path belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    OpenAi,
    Anthropic,
    Ollama,
}

impl Dialect {
    pub(crate) fn of(path: &str) -> Self {
        if path == "/v1/messages" || path.starts_with("/v1/messages/") {
            Self::Anthropic
        } else if path.starts_with("/api/") {
            Self::Ollama
        } else {
            Self::OpenAi
        }
    }
}

/// Writes errors in the shape of the route's family.
pub(crate) async fn dialect(request: Request, next: Next) -> Response {
    let dialect = Dialect::of(request.uri().path());
    let response = next.run(request).await;
    let Some(error) = response.extensions().get::<ApiError>() else { return response };
    let body = match dialect {
        Dialect::OpenAi => return response,
        Dialect::Anthropic => error.anthropic(),
        Dialect::Ollama => error.ollama(),
    };
    let mut rewritten = error.respond(body);
    // What the layers inside have added stays.
    for (name, value) in response.headers() {
        if !rewritten.headers().contains_key(name) && name != axum::http::header::CONTENT_LENGTH {
            rewritten.headers_mut().insert(name.clone(), value.clone());
        }
    }
    rewritten
}

/// The answer where no route is.
pub(crate) async fn not_found() -> ApiError {
    ApiError::new(Kind::NotFound, "there is nothing here; GET /openapi.json lists every route")
}

/// The answer where the route takes other methods.
pub(crate) async fn wrong_method() -> ApiError {
    ApiError::new(Kind::Method, "this route does not take that method; GET /openapi.json lists every route")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_row_and_a_shape_in_each_family() {
        let kinds = [
            Kind::Invalid,
            Kind::ContextLength,
            Kind::Unauthorized,
            Kind::Forbidden,
            Kind::NotAgreed,
            Kind::NotFound,
            Kind::NoModel,
            Kind::NoResponse,
            Kind::Method,
            Kind::TooLarge,
            Kind::Timeout,
            Kind::MediaType,
            Kind::Busy,
            Kind::Internal,
            Kind::Unavailable,
        ];
        assert_eq!(kinds.len(), TABLE.len());
        for kind in kinds {
            let error = ApiError::new(kind, "why");
            assert_eq!(error.row().0, kind);
            assert!(error.status().is_client_error() || error.status().is_server_error());
            assert_eq!(error.openai()["error"]["message"], "why");
            assert_eq!(error.anthropic()["error"]["message"], "why");
            assert_eq!(error.ollama()["error"], "why");
        }
    }
}
