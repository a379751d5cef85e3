//! The page: files inside the binary, no third party, and headers that keep everything else out.
//!
//! Scripts, styles and requests come from this origin only, nothing may frame the page, nothing is evaluated from text
//! (trusted types), and no referrer leaves it. The same headers go on every answer: an answer that a browser takes for a
//! page by mistake can do nothing.

use axum::{
    Router,
    extract::Request,
    http::{HeaderMap, HeaderName, HeaderValue, header},
    middleware::Next,
    response::{IntoResponse, Response},
    routing::get,
};

/// The files of `web/` beside the page itself: path, content type, text.
const FILES: &[(&str, &str, &str)] = &[
    ("/answer.js", SCRIPT, include_str!("../web/answer.js")),
    ("/app.js", SCRIPT, include_str!("../web/app.js")),
    ("/badge.js", SCRIPT, include_str!("../web/badge.js")),
    ("/chart.js", SCRIPT, include_str!("../web/chart.js")),
    ("/chat.js", SCRIPT, include_str!("../web/chat.js")),
    ("/code.js", SCRIPT, include_str!("../web/code.js")),
    ("/dom.js", SCRIPT, include_str!("../web/dom.js")),
    ("/files.js", SCRIPT, include_str!("../web/files.js")),
    ("/formula.js", SCRIPT, include_str!("../web/formula.js")),
    ("/history.js", SCRIPT, include_str!("../web/history.js")),
    ("/http.js", SCRIPT, include_str!("../web/http.js")),
    ("/invite.js", SCRIPT, include_str!("../web/invite.js")),
    ("/keeper.js", SCRIPT, include_str!("../web/keeper.js")),
    ("/language.js", SCRIPT, include_str!("../web/language.js")),
    ("/lib-formula.js", SCRIPT, include_str!("../web/lib-formula.js")),
    ("/lib-highlight.js", SCRIPT, include_str!("../web/lib-highlight.js")),
    ("/markdown.js", SCRIPT, include_str!("../web/markdown.js")),
    ("/messages-de.json", JSON, include_str!("../web/messages-de.json")),
    ("/messages-en.json", JSON, include_str!("../web/messages-en.json")),
    ("/messages-zh.json", JSON, include_str!("../web/messages-zh.json")),
    ("/models.js", SCRIPT, include_str!("../web/models.js")),
    ("/modes.js", SCRIPT, include_str!("../web/modes.js")),
    ("/nodes.js", SCRIPT, include_str!("../web/nodes.js")),
    ("/panel.js", SCRIPT, include_str!("../web/panel.js")),
    ("/past.js", SCRIPT, include_str!("../web/past.js")),
    ("/records.js", SCRIPT, include_str!("../web/records.js")),
    ("/replay.js", SCRIPT, include_str!("../web/replay.js")),
    ("/settings.js", SCRIPT, include_str!("../web/settings.js")),
    ("/swarm.js", SCRIPT, include_str!("../web/swarm.js")),
    ("/tree.js", SCRIPT, include_str!("../web/tree.js")),
    ("/view.js", SCRIPT, include_str!("../web/view.js")),
    ("/style.css", "text/css; charset=utf-8", include_str!("../web/style.css")),
];
const JSON: &str = "application/json";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const INDEX: &str = include_str!("../web/index.html");

const POLICY: &str = "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

const HEADERS: &[(&str, &str)] = &[
    ("content-security-policy", POLICY),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), microphone=(), geolocation=(), payment=(), usb=()"),
];

/// Puts the security headers on an answer, and `no-store` where it says nothing about caches.
pub(crate) async fn secure(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    put(response.headers_mut());
    response
}

fn put(headers: &mut HeaderMap) {
    for (name, value) in HEADERS {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
}

fn file(kind: &'static str, text: &'static str) -> Response {
    let headers = [(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "no-cache")];
    (headers, text).into_response()
}

/// The routes of the page, which need no token: the page holds no secret, and asks for the token it then sends.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let page = Router::new().route("/", get(|| async { file("text/html; charset=utf-8", INDEX) }));
    FILES.iter().fold(page, |router, (path, kind, text)| {
        router.route(path, get(move || async move { file(kind, text) }))
    })
}
