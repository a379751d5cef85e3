//! The routes of the node itself, and how requests are refused.

use super::schema::{Named, any_object, flag, object, or_null, text, whole, words};

/// What the routes take and answer.
pub(super) fn schemas() -> Vec<Named> {
    let error =
        [("message", text()), ("type", text()), ("param", or_null("string")), ("code", or_null("string"))];
    vec![
        ("Session", object(1, &[("ticket", text())])),
        ("SessionAnswer", whole(&[("token", text())])),
        ("Document", whole(&[("openapi", text()), ("paths", any_object())])),
        ("Ready", whole(&[("ready", flag())])),
        ("Health", whole(&[("status", words(&["alive"])), ("ready", flag())])),
        ("Error", whole(&[("error", whole(&error))])),
    ]
}
