//! Calls whose parameters stand one by one between tags.
//!
//! | family | form |
//! |---|---|
//! | GLM 4.5 and later | `<tool_call>f`, then `<arg_key>k</arg_key><arg_value>v</arg_value>` for each parameter |
//! | Qwen3-Coder, Qwen 3.5 | `<function=f><parameter=k>` v `</parameter></function>`, v on lines of its own |
//! | MiniMax M2 | `<invoke name="f"><parameter name="k">v</parameter></invoke>` |
//!
//! Strings are given on as they come, other values once they are complete ([`super::types`]). A value that the model did
//! not end ends with its call.
//!
//! Bounds: a value that is no string has at most [`MAX_VALUE_BYTES`]; a longer one is a string.

use super::{
    Form, MAX_HEAD_BYTES, MAX_HELD_BYTES, Parsed, Parser, State,
    cursor::{Cursor, Stopped},
    json::quoted,
    overlap,
    types::Type,
};

/// Half of what may be held back, so that a value that turns into a string leaves room for what comes with it.
const MAX_VALUE_BYTES: usize = MAX_HELD_BYTES / 2;

/// The tags of a call.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Syntax {
    /// Around the name of the tool.
    name: (&'static str, &'static str),
    /// Around the name of a parameter.
    key: (&'static str, &'static str),
    /// Around its value.
    value: (&'static str, &'static str),
    end: &'static str,
    /// Whether a line break on each side of a value is none of it.
    lines: bool,
}

pub(super) const GLM: Syntax = Syntax {
    name: ("", "\n"),
    key: ("<arg_key>", "</arg_key>"),
    value: ("<arg_value>", "</arg_value>"),
    end: "</tool_call>",
    lines: false,
};
pub(super) const QWEN: Syntax = Syntax {
    name: ("<function=", ">"),
    key: ("<parameter=", ">"),
    value: ("", "</parameter>"),
    end: "</function>",
    lines: true,
};
pub(super) const MINIMAX: Syntax = Syntax {
    name: ("<invoke name=\"", "\">"),
    key: ("<parameter name=\"", "\">"),
    value: ("", "</parameter>"),
    end: "</invoke>",
    lines: false,
};

impl Syntax {
    /// Moves `cursor` behind the name of the tool, to the first parameter or the end of the call.
    pub(super) fn head(
        &self,
        cursor: &mut Cursor<'_>,
        end: Option<&str>,
        name: &mut Option<String>,
    ) -> Result<(), Stopped> {
        cursor.literal(self.name.0)?;
        *name = Some(cursor.up_to(self.name.1)?.to_owned());
        self.begins(cursor, end)
    }

    /// Whether a parameter comes next, or the end of the call, or that of what it stands in.
    pub(super) fn begins(&self, cursor: &mut Cursor<'_>, end: Option<&str>) -> Result<(), Stopped> {
        let mut partial = false;
        for mark in [Some(self.key.0), Some(self.end), end].into_iter().flatten() {
            match cursor.ahead(mark) {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(_) => partial = true,
            }
        }
        Err(if partial { Stopped::More } else { Stopped::Other })
    }

    /// The name of the parameter that comes next, up to its value.
    fn parameter<'a>(&self, cursor: &mut Cursor<'a>) -> Result<&'a str, Stopped> {
        cursor.literal(self.key.0)?;
        let key = cursor.up_to(self.key.1)?;
        if !self.value.0.is_empty() {
            cursor.literal(self.value.0)?;
        }
        Ok(key)
    }
}

/// Where a call stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    syntax: &'static Syntax,
    /// The tool, of those that are offered.
    tool: usize,
    /// Whether a parameter came.
    some: bool,
    value: Option<Value>,
}

/// A value that is not complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Value {
    kind: Type,
    /// Whether the line break before it was read.
    begun: bool,
}

impl Reading {
    pub(super) fn new(syntax: &'static Syntax, tool: usize) -> Self {
        Self { syntax, tool, some: false, value: None }
    }

    /// What came before the end of the value, without the line break that belongs to the end.
    fn trimmed<'a>(&self, text: &'a str) -> &'a str {
        text.strip_suffix('\n').filter(|_| self.syntax.lines).unwrap_or(text)
    }

    fn ends(&self) -> [&'static str; 2] {
        [self.syntax.value.1, self.syntax.end]
    }

    /// Bytes of `text` that cannot belong to the end of the value.
    fn certain(&self, text: &str) -> usize {
        let held = self.ends().iter().map(|mark| overlap(text, mark)).max().unwrap_or(0);
        self.trimmed(&text[..text.len() - held]).len()
    }
}

impl Parser {
    /// One move within a call; whether another may follow.
    pub(super) fn read_keyed(&mut self, form: Form, reading: Reading, out: &mut Vec<Parsed>) -> bool {
        match reading.value {
            None => self.read_parameter(form, reading, out),
            Some(value) => self.read_value(form, reading, value, out),
        }
    }

    fn read_parameter(&mut self, form: Form, reading: Reading, out: &mut Vec<Parsed>) -> bool {
        let mut cursor = Cursor::new(&self.held);
        match reading.syntax.parameter(&mut cursor) {
            Ok(key) => {
                let kind = self.types.of(&self.names[reading.tool], key);
                let comma = if reading.some { "," } else { "" };
                let quote = if kind.is_string() { "\"" } else { "" };
                out.push(Parsed::Arguments(format!("{comma}{}:{quote}", quoted(key))));
                let read = cursor.at;
                self.held.drain(..read);
                self.searched = 0;
                let value = Some(Value { kind, begun: !reading.syntax.lines });
                self.state = State::Keyed(form, Reading { some: true, value, ..reading });
                true
            }
            Err(Stopped::More) if self.held.len() <= MAX_HEAD_BYTES => false,
            // The end of the call, or something that is none of it.
            Err(_) => {
                out.extend([Parsed::Arguments("}".into()), Parsed::End]);
                self.state = if self.single { State::Muted } else { State::Between(form) };
                true
            }
        }
    }

    fn read_value(&mut self, form: Form, reading: Reading, value: Value, out: &mut Vec<Parsed>) -> bool {
        if !value.begun {
            if self.held.is_empty() {
                return false;
            }
            self.held.drain(..usize::from(self.held.starts_with('\n')));
            self.state =
                State::Keyed(form, Reading { value: Some(Value { begun: true, ..value }), ..reading });
            return true;
        }
        let rest = &self.held[self.searched..];
        let [value_end, call_end] = reading.ends();
        let ended = rest.find(value_end);
        let left_open = rest[..ended.unwrap_or(rest.len())].find(call_end);
        let Some(at) = left_open.or(ended).map(|at| self.searched + at) else {
            return self.wait_for_value(form, reading, value, out);
        };
        // However it came, what is long is a string.
        let kind = if at > MAX_VALUE_BYTES && !value.kind.is_string() {
            out.push(Parsed::Arguments("\"".into()));
            Type::string()
        } else {
            value.kind
        };
        out.push(Parsed::Arguments(written(kind, reading.trimmed(&self.held[..at]))));
        // The end of the call stays: it is read behind the value.
        let read = if left_open.is_some() { at } else { at + value_end.len() };
        self.held.drain(..read);
        self.state = State::Keyed(form, Reading { value: None, ..reading });
        true
    }

    /// Gives on what is certain of a string; another value is held back up to the bound.
    fn wait_for_value(&mut self, form: Form, reading: Reading, value: Value, out: &mut Vec<Parsed>) -> bool {
        let certain = reading.certain(&self.held);
        if value.kind.is_string() {
            if certain > 0 {
                let text: String = self.held.drain(..certain).collect();
                out.push(Parsed::Arguments(fragment(&text)));
            }
            return false;
        }
        self.searched = certain;
        let long = self.held.len() > MAX_VALUE_BYTES;
        if long {
            out.push(Parsed::Arguments("\"".into()));
            self.searched = 0;
            let value = Some(Value { kind: Type::string(), ..value });
            self.state = State::Keyed(form, Reading { value, ..reading });
        }
        long
    }

    /// The answer is at its end within a call: one that was not cut lacks its end only.
    pub(super) fn finish_keyed(&mut self, reading: Reading, cut: bool, out: &mut Vec<Parsed>) {
        self.cut = cut;
        if !cut {
            if let Some(value) = reading.value {
                let text = &self.held[..reading.certain(&self.held)];
                out.push(Parsed::Arguments(written(value.kind, text)));
            }
            out.push(Parsed::Arguments("}".into()));
        }
        self.held.clear();
        out.push(Parsed::End);
    }
}

/// The rest of a value as JSON; of a string, the quote that begins it was given already.
fn written(kind: Type, text: &str) -> String {
    if kind.is_string() { format!("{}\"", fragment(text)) } else { kind.json(text) }
}

/// A part of a string of JSON.
fn fragment(text: &str) -> String {
    let quoted = quoted(text);
    quoted[1..quoted.len() - 1].to_owned()
}
