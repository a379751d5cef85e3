//! Request bodies: JSON and nothing else, within bounds that are checked before anything is built from them.

use axum::{
    body::Bytes,
    extract::{FromRequest, Request},
    http::header::CONTENT_TYPE,
};
use serde_json::Value;

use crate::error::{ApiError, Kind};

/// Longest body: the longest prompt a template may print, several times over.
pub const MAX_BODY_BYTES: usize = 32 << 20;
/// Deepest nesting; the schemas of tools reach about ten.
pub const MAX_DEPTH: usize = 64;
/// Most values in a body. Each takes some 40 times its bytes in memory, so this bounds what a body can cost.
pub const MAX_VALUES: usize = 1 << 20;

/// A JSON body.
#[derive(Debug)]
pub(crate) struct JsonBody(pub Value);

impl<S: Send + Sync> FromRequest<S> for JsonBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let kind = request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or("");
        let essence = kind.split(';').next().unwrap_or("").trim();
        if !essence.eq_ignore_ascii_case("application/json") {
            return Err(ApiError::new(
                Kind::MediaType,
                "the body must be JSON: send the header `Content-Type: application/json`",
            ));
        }
        let bytes = Bytes::from_request(request, state).await.map_err(|rejection| {
            if rejection.status() == axum::http::StatusCode::PAYLOAD_TOO_LARGE {
                ApiError::new(Kind::TooLarge, format!("the body has more than {} MiB", MAX_BODY_BYTES >> 20))
            } else {
                ApiError::new(Kind::Invalid, "the body could not be read")
            }
        })?;
        parse(&bytes).map(JsonBody)
    }
}

/// Parses a body within the bounds.
pub(crate) fn parse(bytes: &[u8]) -> Result<Value, ApiError> {
    bounded(bytes)?;
    // serde_json's message quotes field names at most; position is enough to find the fault.
    serde_json::from_slice(bytes).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        ApiError::new(Kind::Invalid, format!("the body is not valid JSON (line {line}, column {column})"))
    })
}

/// Checks depth and number of values by brackets and commas outside strings.
fn bounded(bytes: &[u8]) -> Result<(), ApiError> {
    let (mut depth, mut values, mut text, mut escaped) = (0usize, 1usize, false, false);
    for byte in bytes {
        if text {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => text = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => text = true,
            b'[' | b'{' => {
                depth += 1;
                values += 1;
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b',' => values += 1,
            _ => {}
        }
        if depth > MAX_DEPTH {
            return Err(ApiError::new(
                Kind::Invalid,
                format!("the body nests deeper than {MAX_DEPTH} levels"),
            ));
        }
        if values > MAX_VALUES {
            return Err(ApiError::new(Kind::Invalid, format!("the body has more than {MAX_VALUES} values")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_hold_before_parsing() {
        let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert!(parse(nested(MAX_DEPTH).as_bytes()).is_ok());
        assert!(parse(nested(MAX_DEPTH + 1).as_bytes()).is_err());
        let many = format!("[{}1]", "1,".repeat(MAX_VALUES));
        assert!(parse(many.as_bytes()).unwrap_err().message.contains("values"));
        assert!(parse(br#"{"a": "[[[[\"[[["}"#).is_ok());
    }

    #[test]
    fn faults_are_placed_and_not_quoted() {
        let error = parse(b"{\"secret prompt\": tru}").unwrap_err();
        assert!(error.message.contains("line 1"), "{}", error.message);
        assert!(!error.message.contains("secret"));
    }
}
