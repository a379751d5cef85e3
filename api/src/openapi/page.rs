//! What the page keeps and shows.

use serde_json::json;

use super::schema::{
    Named, any_object, array, at_most, count, flag, list, object, or_null, reference, text, whole, words,
};
use crate::conversations::{self, MAX_WORDS};

/// What the routes take and answer.
pub(super) fn schemas() -> Vec<Named> {
    [requests(), answers()].concat()
}

fn requests() -> Vec<Named> {
    let id = || json!({"type": "string", "pattern": "^[a-z0-9]{1,32}$"});
    let kept = || json!({"type": "object"});
    let file = [("name", at_most(conversations::MAX_TITLE)), ("text", at_most(conversations::MAX_FILE))];
    let message = [
        ("id", id()),
        ("role", words(&["user", "assistant"])),
        ("content", at_most(conversations::MAX_CONTENT)),
        ("parent", id()),
        ("files", list(object(2, &file), 0, conversations::MAX_FILES)),
        ("about", kept()),
    ];
    let change = [
        ("title", at_most(conversations::MAX_TITLE)),
        ("system", at_most(conversations::MAX_SYSTEM)),
        ("sampling", kept()),
        ("leaf", id()),
        ("messages", list(object(3, &message), 0, conversations::MAX_MESSAGES)),
    ];
    let preset = [
        ("name", at_most(conversations::MAX_TITLE)),
        ("system", at_most(conversations::MAX_SYSTEM)),
        ("sampling", kept()),
    ];
    vec![
        ("Pull", object(1, &[("model", text())])),
        ("Words", object(1, &[("words", at_most(MAX_WORDS))])),
        ("ConversationChange", object(0, &change)),
        ("Presets", object(1, &[("presets", list(object(1, &preset), 0, conversations::MAX_PRESETS))])),
    ]
}

fn answers() -> Vec<Named> {
    let summary = [
        ("id", text()),
        ("title", text()),
        ("created_ms", count()),
        ("changed_ms", count()),
        ("messages", count()),
    ];
    let room = whole(&[("bytes", count()), ("most_bytes", count()), ("most", count())]);
    let found = whole(&[&summary[..], &[("excerpt", text())]].concat());
    let conversation = [
        ("id", text()),
        ("title", text()),
        ("named", flag()),
        ("created_ms", count()),
        ("changed_ms", count()),
        ("system", text()),
        ("sampling", any_object()),
        ("leaf", or_null("string")),
        ("messages", array(any_object())),
    ];
    let model = whole(&[
        ("name", text()),
        ("title", text()),
        ("bytes", count()),
        ("here_bytes", count()),
        ("license", text()),
        ("fit", text()),
        ("removable", flag()),
    ]);
    vec![
        ("LibraryModels", whole(&[("models", array(model))])),
        ("ConversationSummary", whole(&summary)),
        (
            "Conversations",
            whole(&[("conversations", array(reference("ConversationSummary"))), ("room", room)]),
        ),
        ("ConversationsFound", whole(&[("conversations", array(found))])),
        ("Conversation", whole(&conversation)),
        ("Deleted", whole(&[("deleted", flag())])),
    ]
}
