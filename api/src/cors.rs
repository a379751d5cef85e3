//! Pages of other origins that the operator lets ask (`--allow-origin`).
//!
//! A browser lets a page read what another origin answers only if that answer names the page's origin, and asks beforehand
//! (a *preflight*) whether it may send a header such as `Authorization`. Only origins that were named exactly get these
//! headers; there is no wildcard, `null` is no origin, and the token is needed as always: what is allowed here is to ask
//! with it. No cookies are ever used, so none are allowed.

use axum::{
    extract::Request,
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse, Response},
};

/// How long a browser may remember a preflight: the origins change only when the node restarts.
const MAX_AGE_S: &str = "600";
/// Longest list of headers that a page asks to send; the official clients ask for some twenty.
const MAX_ASKED_BYTES: usize = 2048;
/// What a page may read of an answer beside its body.
const EXPOSED: &str = "x-request-id, retry-after, x-shoal-mode, x-shoal-verify, x-shoal-wire, x-shoal-cuts, x-shoal-route, x-shoal-seed, \
                       x-shoal-predicted-tok-s, x-shoal-actual-tok-s, x-shoal-computed-by, x-shoal-checked-by, \
                       x-shoal-checking, x-shoal-convicted, x-shoal-wrong-from, x-shoal-faults-survived, x-shoal-left-out";

/// The origins that were named.
#[derive(Clone, Debug)]
pub(crate) struct Origins(Vec<String>);

impl Origins {
    pub(crate) fn new(origins: Vec<String>) -> Self {
        Self(origins)
    }

    /// Whether pages of `origin` may ask. Browsers write origins in lower case, without a path.
    pub(crate) fn allow(&self, origin: &str) -> bool {
        origin != "null" && self.0.iter().any(|known| known.eq_ignore_ascii_case(origin))
    }
}

/// Whether a request is a browser's question whether a page may send another one.
pub(crate) fn is_preflight(request: &Request) -> bool {
    request.method() == Method::OPTIONS
        && request.headers().contains_key(header::ORIGIN)
        && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

/// The answer to a preflight of an allowed origin. It needs no token: nothing is told but what was asked.
pub(crate) fn preflight(asked: &HeaderMap) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, DELETE"));
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(MAX_AGE_S));
    let wanted = asked.get(header::ACCESS_CONTROL_REQUEST_HEADERS);
    if let Some(wanted) = wanted.filter(|wanted| wanted.len() <= MAX_ASKED_BYTES) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
    }
    if asked.contains_key("access-control-request-private-network") {
        let name = HeaderName::from_static("access-control-allow-private-network");
        headers.insert(name, HeaderValue::from_static("true"));
    }
    response
}

/// Lets pages of `origin` read an answer.
pub(crate) fn readable(headers: &mut HeaderMap, origin: &HeaderValue) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
    headers.append(header::VARY, HeaderValue::from_static("Origin"));
}
