//! Sections of calls that stand between marks of their own, with arguments in JSON.
//!
//! | family | a call in the section |
//! |---|---|
//! | DeepSeek V3, R1 | `<｜tool▁call▁begin｜>function<｜tool▁sep｜>f`, a line break, then the arguments in a block of `json` |
//! | DeepSeek V3.1 and later | `<｜tool▁call▁begin｜>f<｜tool▁sep｜>{...}<｜tool▁call▁end｜>` |
//! | Kimi K2 | `<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{...}<|tool_call_end|>` |

use serde_json::Value;

use super::{
    Call,
    cursor::{Cursor, Stopped},
};

/// The marks of one call in a section.
#[derive(Debug)]
pub(super) struct Section {
    pub begin: &'static str,
    /// Between the name, or the kind of call, and what follows.
    separator: &'static str,
    pub end: &'static str,
}

pub(super) const DEEPSEEK: Section =
    Section {
        begin: "<｜tool▁call▁begin｜>", separator: "<｜tool▁sep｜>", end: "<｜tool▁call▁end｜>"
    };
pub(super) const KIMI: Section = Section {
    begin: "<|tool_call_begin|>",
    separator: "<|tool_call_argument_begin|>",
    end: "<|tool_call_end|>",
};

impl Section {
    /// Moves `cursor` to the arguments of the next call, or to its end where it has none.
    pub(super) fn head(&self, cursor: &mut Cursor<'_>, name: &mut Option<String>) -> Result<(), Stopped> {
        cursor.literal(self.begin)?;
        let first = cursor.up_to(self.separator)?;
        if cursor.peek()? == '{' || cursor.ahead(self.end)? {
            *name = Some(plain(first).to_owned());
            return Ok(());
        }
        // What came is the kind of call: the name has the next line.
        if first != "function" {
            return Err(Stopped::Other);
        }
        *name = Some(cursor.until(&['\n', '`', '{', '<'])?.to_owned());
        if cursor.peek()? == '`' {
            cursor.literal("```json")?;
        }
        Ok(())
    }

    /// The calls of a section that is complete.
    pub(super) fn calls(&self, body: &str) -> Option<Vec<Call>> {
        let mut cursor = Cursor::new(body);
        let mut calls = Vec::new();
        while cursor.peek().is_ok() {
            let mut name = None;
            self.head(&mut cursor, &mut name).ok()?;
            let arguments = cursor.up_to(self.end).ok()?;
            let arguments = arguments.trim().trim_end_matches("```").trim_end();
            let arguments = match arguments {
                "" => "{}".to_owned(),
                json => {
                    serde_json::from_str::<Value>(json).ok().filter(Value::is_object)?;
                    super::json::compact(json)
                }
            };
            calls.push((name?, arguments));
        }
        Some(calls)
    }
}

/// `f` of `functions.f:0`.
fn plain(id: &str) -> &str {
    let name = id.strip_prefix("functions.").unwrap_or(id);
    match name.rsplit_once(':') {
        Some((name, number)) if number.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => name,
    }
}
