//! Tools of Anthropic's clients: functions of their own, and kinds that the API names by a type with a date.
//!
//! Of those that the client runs, the schema is known to the models they were made for and not part of the request: the model
//! here is told it as that of any function. Those that Anthropic's servers run are left out, and the answer says so.

use serde_json::{Value, json};

use crate::{
    error::ApiError,
    fields::{Fields, required},
    left_out::LeftOut,
    tools::{Choice, MAX_TOOLS, Offer},
};

/// Kinds that Anthropic's servers run or define, and `computer`, which needs a model that sees.
const LEFT_OUT: &[&str] = &[
    "web_search",
    "web_fetch",
    "code_execution",
    "computer",
    "tool_search_tool_regex",
    "tool_search_tool_bm25",
    "mcp_toolset",
];

/// Reads `tools` and `tool_choice`.
pub(super) fn read(fields: &Fields<'_>, left: &mut LeftOut) -> Result<Offer, ApiError> {
    let (mut tools, mut absent) = (Vec::new(), Vec::new());
    for (i, tool) in fields.list("tools", MAX_TOOLS)?.unwrap_or_default().iter().enumerate() {
        let tool = Fields::at(tool, format!("tools[{i}]"))?;
        let kind = tool.text("type")?.unwrap_or("custom");
        let (base, date) = dated(kind);
        if base == "custom" {
            tools.push(Offer::function(&tool, "input_schema")?);
        } else if let Some((about, schema)) = client_tool(base, date) {
            let mut made = Offer::function(&tool, "input_schema")?;
            made["function"]["description"] = about.into();
            made["function"]["parameters"] = schema;
            tools.push(made);
        } else if LEFT_OUT.contains(&base) {
            left.add(&format!("tools.{base}"));
            absent.push(tool.text("name")?.unwrap_or(base));
        } else {
            let why = "must be custom or one of the dated kinds bash, text_editor, memory, web_search, web_fetch, \
                       code_execution and computer";
            return Err(tool.refuse("type", why));
        }
    }
    if fields.list("mcp_servers", MAX_TOOLS)?.is_some_and(|servers| !servers.is_empty()) {
        left.add("mcp_servers");
    }
    let choice = match fields.object("tool_choice")? {
        None => Choice::Auto,
        Some(choice) => match required(&choice, "type", choice.text("type")?)? {
            "auto" => Choice::Auto,
            "none" => Choice::None,
            "any" => Choice::Required,
            "tool" => Choice::Named(required(&choice, "name", choice.text("name")?)?.to_owned()),
            _ => return Err(choice.refuse("type", "must be auto, any, tool or none")),
        },
    };
    choice.check(&tools, &absent, "tool_choice")?;
    let chosen = fields.object("tool_choice")?;
    let single = chosen.map(|choice| choice.bool("disable_parallel_tool_use")).transpose()?.flatten();
    Ok(Offer { single: single.unwrap_or(false), ..Offer::new(tools, choice, "tool_choice")? })
}

/// A kind without the eight digits of its date, and the date, 0 for none.
fn dated(kind: &str) -> (&str, u32) {
    let date = kind.rsplit_once('_').filter(|(_, date)| date.len() == 8);
    match date.and_then(|(base, date)| Some((base, date.parse().ok()?))) {
        Some(dated) => dated,
        None => (kind, 0),
    }
}

/// What the model is told of a tool that the client runs: its description and the schema that Anthropic documents.
fn client_tool(base: &str, date: u32) -> Option<(&'static str, Value)> {
    let text = || json!({"type": "string"});
    let line = || json!({"type": "integer", "minimum": 0});
    let lines = json!({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2});
    let (about, properties, needed) = match base {
        "bash" => (
            "Runs a command in a shell that stays open between calls, or restarts it.",
            json!({"command": text(), "restart": {"type": "boolean"}}),
            json!([]),
        ),
        "text_editor" => {
            let mut commands = vec!["view", "create", "str_replace", "insert"];
            // Later versions have no undo, and give what is inserted a name of its own.
            if date < 20_250_429 {
                commands.push("undo_edit");
            }
            let inserted = if date < 20_250_429 { "new_str" } else { "insert_text" };
            let mut properties = json!({
                "command": {"type": "string", "enum": commands}, "path": text(), "file_text": text(),
                "view_range": lines, "old_str": text(), "new_str": text(), "insert_line": line(),
            });
            properties[inserted] = text();
            (
                "Views, creates and changes text files. `view` shows a file or the lines of `view_range`, `create` writes \
                 `file_text`, `str_replace` replaces the one place of `old_str` by `new_str`, `insert` adds text behind \
                 `insert_line`.",
                properties,
                json!(["command", "path"]),
            )
        }
        "memory" => (
            "Keeps notes in files below /memories: `view` shows one or lists them, `create` writes `file_text`, `str_replace` \
             replaces `old_str` by `new_str`, `insert` adds `insert_text` behind `insert_line`, `delete` removes `path`, \
             `rename` moves `old_path` to `new_path`.",
            json!({
                "command": {"type": "string", "enum": ["view", "create", "str_replace", "insert", "delete", "rename"]},
                "path": text(), "view_range": lines, "file_text": text(), "old_str": text(), "new_str": text(),
                "insert_line": line(), "insert_text": text(), "old_path": text(), "new_path": text(),
            }),
            json!(["command"]),
        ),
        _ => return None,
    };
    Some((about, json!({"type": "object", "properties": properties, "required": needed})))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_known_whatever_their_date() {
        assert_eq!(dated("text_editor_20250728"), ("text_editor", 20_250_728));
        assert_eq!(dated("mcp_toolset"), ("mcp_toolset", 0));
        assert_eq!(dated("web_search_2025072"), ("web_search_2025072", 0));
        let commands =
            |date| client_tool("text_editor", date).unwrap().1["properties"]["command"].to_string();
        assert!(commands(20_250_124).contains("undo_edit") && !commands(20_250_728).contains("undo_edit"));
        assert!(client_tool("bash", 20_250_124).is_some() && client_tool("web_search", 0).is_none());
    }
}
