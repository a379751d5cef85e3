//! Finds calls of tools in the text a model writes, and gives their arguments on as they come.
//!
//! Models mark calls in four ways, all of which are understood whatever the model, because conversions of models mix
//! their templates:
//!
//! | family | form |
//! |---|---|
//! | Hermes, Qwen | `<tool_call>{"name": "f", "arguments": {...}}</tool_call>`, any number of times |
//! | Llama 3 | the whole answer is `{"name": "f", "parameters": {...}}`, perhaps behind `<|python_tag|>`, several joined by `;` |
//! | Llama 3 (custom) | `<function=f>{...}</function>` |
//! | Mistral | `[TOOL_CALLS][{"name": "f", "arguments": {...}}]` or `[TOOL_CALLS]f[ARGS]{...}` |
//!
//! Text that may be the beginning of a mark is held back until it is known to be one or not. Once the name of an offered
//! tool and the first brace of its arguments are there, it is a call: its arguments are given on piece by piece, without
//! white space between their tokens, and stay those of a call whatever follows. An answer that is cut ([`Parser::finish`])
//! leaves a call with the arguments so far. Where the order of members is another one, or the arguments are JSON in a
//! string, the call is held back to its end and given at once. What looks like a call but is none (no JSON, a name that was
//! not offered) is given as the text it is.
//!
//! Bounds: what is held back has at most [`MAX_HELD_BYTES`]; more is text, and nothing more is looked for.

use serde_json::{Value, json};

mod head;

use head::{Head, head};

/// Longer calls that cannot be given on as they come are text. The longest arguments in practice are whole source files.
const MAX_HELD_BYTES: usize = 1 << 20;
/// What stands before the arguments: two names and a few brackets. It is read again with every piece that comes.
const MAX_HEAD_BYTES: usize = 1 << 12;

/// Marks and what ends them; those without an end reach to the end of the answer.
const MARKS: &[(&str, Option<&str>)] = &[
    ("<tool_call>", Some("</tool_call>")),
    (FUNCTION, Some("</function>")),
    ("<|python_tag|>", None),
    ("[TOOL_CALLS]", None),
];
/// The mark behind which the name stands without quotes.
const FUNCTION: &str = "<function=";

/// The first keys by which a bare JSON object is suspected to be a call.
const FIRST_KEYS: &[&str] = &["\"name\"", "\"function\"", "\"type\"", "\"parameters\"", "\"arguments\""];

/// A call of a tool, as far as it came.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ToolCall {
    pub id: String,
    pub name: String,
    /// JSON, as the API's clients want it: in a string. Of a call that was cut, its beginning.
    pub arguments: String,
}

impl ToolCall {
    /// The arguments as an object, for clients that want one: of a call that was cut, the members that are complete.
    pub(crate) fn object(&self) -> Value {
        let read = serde_json::from_str(&self.arguments);
        match read.or_else(|_| serde_json::from_str(&mended(&self.arguments))) {
            Ok(value @ Value::Object(_)) => value,
            _ => json!({}),
        }
    }
}

/// The longest beginning of `text` that ends behind a member, closed. Text that is no JSON gives what is none either.
fn mended(text: &str) -> String {
    let (mut open, mut whole, mut json) = (Vec::new(), (0, Vec::new()), Json::default());
    for (at, c) in text.char_indices() {
        let inside = json.text;
        json.take(c);
        if inside || json.text {
            continue;
        }
        match c {
            '{' => open.push('}'),
            '[' => open.push(']'),
            '}' | ']' => drop(open.pop()),
            ',' => {
                whole = (at, open.clone());
                continue;
            }
            _ => continue,
        }
        whole = (at + 1, open.clone());
    }
    let (end, closing) = whole;
    text[..end].chars().chain(closing.into_iter().rev()).collect()
}

/// A piece of an answer. [`Parsed::Arguments`] belong to the call that began last.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Parsed {
    Text(String),
    Begin { id: String, name: String },
    Arguments(String),
    End,
}

/// Where brackets and strings of JSON begin and end, character by character.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Json {
    depth: usize,
    text: bool,
    escaped: bool,
}

impl Json {
    fn take(&mut self, c: char) {
        match c {
            _ if self.escaped => self.escaped = false,
            '\\' if self.text => self.escaped = true,
            '"' => self.text = !self.text,
            _ if self.text => {}
            '{' | '[' => self.depth += 1,
            '}' | ']' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
    }
}

/// Separates calls from text.
#[derive(Debug)]
pub(crate) struct Parser {
    state: State,
    /// What came and is not given on yet; a mark is part of it until a call begins behind it.
    held: String,
    /// Of `held`, the bytes of a mark at its beginning.
    marked: usize,
    /// Of `held`, the bytes in which the end of the mark was looked for.
    searched: usize,
    names: Vec<String>,
    /// Whether only the first call counts.
    single: bool,
    /// Whether the answer has the form of a call whatever it says.
    forced: bool,
    seed: u64,
    calls: u64,
    cut: bool,
}

/// What a call stands in: a mark of the table, or nothing but the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Marked(usize),
    Bare,
}

impl Form {
    fn end(self) -> Option<&'static str> {
        match self {
            Self::Marked(mark) => MARKS[mark].1,
            Self::Bare => None,
        }
    }

    fn is_function(self) -> bool {
        matches!(self, Self::Marked(mark) if MARKS[mark].0 == FUNCTION)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing but white space came.
    Start,
    /// Text, in which a mark may come.
    Text,
    /// Before the arguments of a call.
    Head(Form),
    /// In something that is no call that can be given on as it comes.
    Whole(Form),
    /// In the arguments of a call.
    Arguments(Form, Json, usize),
    /// Behind them, before the call's own brackets are closed.
    Rest(Form, Json),
    /// Behind a call.
    Between(Form),
    /// Nothing is looked for any more.
    Plain,
    /// Nothing is given on any more.
    Muted,
}

impl Parser {
    /// A parser for calls of `names`; call ids follow from `seed`. Without names everything is text.
    pub(crate) fn new(names: Vec<String>, seed: u64) -> Self {
        let state = if names.is_empty() { State::Plain } else { State::Start };
        Self {
            state,
            held: String::new(),
            marked: 0,
            searched: 0,
            names,
            single: false,
            forced: false,
            seed,
            calls: 0,
            cut: false,
        }
    }

    /// The same, of which only the first call counts where `single` is true; `forced` says that the answer is a call.
    pub(crate) fn expecting(self, single: bool, forced: bool) -> Self {
        Self { single, forced, ..self }
    }

    /// Takes more text and gives what is certain.
    pub(crate) fn push(&mut self, text: &str) -> Vec<Parsed> {
        let mut out = Vec::new();
        self.held.push_str(text);
        while self.step(&mut out) {}
        if self.held.len() > MAX_HELD_BYTES {
            self.state = State::Plain;
            self.flush(&mut out);
        }
        out
    }

    /// The answer is at its end; `cut` says that the model had not ended it.
    pub(crate) fn finish(&mut self, cut: bool) -> Vec<Parsed> {
        let mut out = Vec::new();
        match self.state {
            State::Start | State::Text | State::Plain => self.flush(&mut out),
            State::Arguments(..) => {
                self.cut = cut;
                out.push(Parsed::End);
            }
            State::Rest(..) | State::Between(_) | State::Muted => self.held.clear(),
            State::Head(form) | State::Whole(form) => self.finish_held(form, cut, &mut out),
        }
        self.state = State::Muted;
        out
    }

    /// Whether the answer was cut within a call.
    pub(crate) fn was_cut(&self) -> bool {
        self.cut
    }

    fn finish_held(&mut self, form: Form, cut: bool, out: &mut Vec<Parsed>) {
        let body = self.held[self.marked..].trim();
        if let Some(calls) = self.calls_of(body) {
            self.held.clear();
            return self.emit(calls, out);
        }
        let name = match head(&self.held[self.marked..], form) {
            Head::More(name) | Head::Other(name) => name.filter(|name| self.names.contains(name)),
            Head::Call { .. } => None,
        };
        match name {
            Some(name) if cut => {
                self.held.clear();
                self.cut = true;
                self.begin(name, out);
                out.push(Parsed::End);
            }
            // The mark or the form says that it was to become a call, of which nothing is known.
            None if cut && (self.forced || matches!(form, Form::Marked(_))) => self.held.clear(),
            _ => self.flush(out),
        }
    }

    fn flush(&mut self, out: &mut Vec<Parsed>) {
        self.marked = 0;
        if !self.held.is_empty() {
            out.push(Parsed::Text(std::mem::take(&mut self.held)));
        }
    }

    /// One move; whether another may follow.
    fn step(&mut self, out: &mut Vec<Parsed>) -> bool {
        match self.state {
            State::Plain => {
                self.flush(out);
                false
            }
            State::Muted => {
                self.held.clear();
                false
            }
            State::Start => match suspicion(self.held.trim_start()) {
                Suspicion::Undecided => false,
                Suspicion::Call => {
                    self.state = State::Head(Form::Bare);
                    true
                }
                Suspicion::None => {
                    self.state = State::Text;
                    true
                }
            },
            State::Text => self.find_mark(out),
            State::Head(form) => self.read_head(form, out),
            State::Whole(form) => self.find_end(form, out),
            State::Arguments(form, json, brackets) => self.give_arguments(form, json, brackets, out),
            State::Rest(form, json) => self.skip_rest(form, json),
            State::Between(form) => self.look_further(form),
        }
    }

    fn find_mark(&mut self, out: &mut Vec<Parsed>) -> bool {
        let found = MARKS.iter().enumerate().filter_map(|(i, mark)| Some((self.held.find(mark.0)?, i))).min();
        if let Some((at, mark)) = found {
            let text: String = self.held.drain(..at).collect();
            // White space around calls is layout.
            if !text.trim().is_empty() {
                out.push(Parsed::Text(text));
            }
            self.marked = MARKS[mark].0.len();
            self.state = State::Head(Form::Marked(mark));
            return true;
        }
        let keep = (0..self.held.len())
            .filter(|at| self.held.is_char_boundary(*at))
            .find(|at| MARKS.iter().any(|mark| mark.0.starts_with(&self.held[*at..])))
            .unwrap_or(self.held.len());
        // White space behind a call waits, too: another call or the end may follow.
        let keep = if self.calls > 0 && self.held[..keep].trim().is_empty() { 0 } else { keep };
        if keep > 0 {
            out.push(Parsed::Text(self.held.drain(..keep).collect()));
        }
        false
    }

    fn read_head(&mut self, form: Form, out: &mut Vec<Parsed>) -> bool {
        match head(&self.held[self.marked..], form) {
            Head::More(_) => {
                // An end behind what is no head yet: the mark holds no call.
                let ended = form.end().is_some_and(|end| self.held.contains(end));
                let over = ended || self.held.len() > MAX_HEAD_BYTES;
                if over {
                    self.wait_for_whole(form);
                }
                over
            }
            Head::Call { name, at, brackets } if self.names.contains(&name) => {
                self.held.drain(..self.marked + at);
                self.marked = 0;
                self.begin(name, out);
                self.state = State::Arguments(form, Json::default(), brackets);
                true
            }
            Head::Call { .. } | Head::Other(_) => {
                self.wait_for_whole(form);
                true
            }
        }
    }

    fn wait_for_whole(&mut self, form: Form) {
        self.searched = self.marked;
        self.state = State::Whole(form);
    }

    fn find_end(&mut self, form: Form, out: &mut Vec<Parsed>) -> bool {
        let Some(end) = form.end() else { return false };
        let Some(at) = self.held[self.searched..].find(end).map(|at| self.searched + at) else {
            // The end may have begun to come.
            let seen = self.held.len().saturating_sub(end.len()).max(self.searched);
            self.searched = (0..=seen).rev().find(|at| self.held.is_char_boundary(*at)).unwrap_or(0);
            return false;
        };
        let whole: String = self.held.drain(..at + end.len()).collect();
        let body = &whole[self.marked..at];
        self.marked = 0;
        let body = if form.is_function() { function_body(body) } else { Some(body.trim().to_owned()) };
        self.state = State::Text;
        match body.and_then(|body| self.calls_of(&body)) {
            Some(calls) => self.emit(calls, out),
            None => out.push(Parsed::Text(whole)),
        }
        true
    }

    fn give_arguments(&mut self, form: Form, mut json: Json, brackets: usize, out: &mut Vec<Parsed>) -> bool {
        let mut given = String::new();
        let mut read = 0;
        for c in self.held.chars() {
            read += c.len_utf8();
            json.take(c);
            if json.text || !c.is_whitespace() {
                given.push(c);
            }
            if json.depth == 0 {
                break;
            }
        }
        self.held.drain(..read);
        let closed = !given.is_empty() && json.depth == 0;
        if !given.is_empty() {
            out.push(Parsed::Arguments(given));
        }
        self.state = State::Arguments(form, json, brackets);
        if closed {
            out.push(Parsed::End);
            self.state = State::Rest(form, Json { depth: brackets, ..Json::default() });
            if self.single {
                self.state = State::Muted;
            }
        }
        closed
    }

    /// To the bracket that closes the call, or to a mark where the model forgot it.
    fn skip_rest(&mut self, form: Form, mut json: Json) -> bool {
        let mut read = 0;
        for c in self.held.chars() {
            if json.depth == 0 || (!json.text && c == '<') {
                json.depth = 0;
                break;
            }
            json.take(c);
            read += c.len_utf8();
        }
        self.held.drain(..read);
        self.state = if json.depth == 0 { State::Between(form) } else { State::Rest(form, json) };
        json.depth == 0
    }

    /// Behind a call: another one, the end of the mark, or something else.
    fn look_further(&mut self, form: Form) -> bool {
        let rest = self.held.trim_start_matches(|c: char| c.is_whitespace() || matches!(c, ',' | ';' | ']'));
        if rest.is_empty() {
            // It waits: where text follows, white space belongs to it.
            return false;
        }
        let skipped = self.held.len() - rest.len();
        if let Some(end) = form.end() {
            if rest.starts_with(end) {
                self.held.drain(..skipped + end.len());
                self.state = State::Text;
                return true;
            }
            if end.starts_with(rest) {
                return false;
            }
        }
        if rest.starts_with('{') {
            self.held.drain(..skipped);
            self.state = State::Head(form);
        } else {
            self.state = State::Text;
        }
        true
    }

    fn begin(&mut self, name: String, out: &mut Vec<Parsed>) {
        let id = call_id(self.seed, self.calls);
        self.calls += 1;
        out.push(Parsed::Begin { id, name });
    }

    fn emit(&mut self, calls: Vec<(String, Value)>, out: &mut Vec<Parsed>) {
        for (name, arguments) in calls {
            if self.single && self.calls > 0 {
                break;
            }
            self.begin(name, out);
            out.push(Parsed::Arguments(arguments.to_string()));
            out.push(Parsed::End);
        }
        if self.single {
            self.state = State::Muted;
        }
    }

    /// The calls in `body`, if it consists of calls of offered tools.
    fn calls_of(&self, body: &str) -> Option<Vec<(String, Value)>> {
        let calls = if body.starts_with(['{', '[']) { json_calls(body)? } else { vec![named_call(body)?] };
        let known = calls.iter().all(|(name, _)| self.names.contains(name));
        (known && !calls.is_empty()).then_some(calls)
    }
}

enum Suspicion {
    None,
    Call,
    Undecided,
}

/// Whether an answer that begins so may be a bare call.
fn suspicion(text: &str) -> Suspicion {
    if text.is_empty() {
        return Suspicion::Undecided;
    }
    let Some(inside) = text.strip_prefix('{').or_else(|| text.strip_prefix('[')) else {
        return Suspicion::None;
    };
    let inside = inside.trim_start_matches(|c: char| c.is_whitespace() || c == '{');
    if inside.is_empty() || FIRST_KEYS.iter().any(|key| key.starts_with(inside)) {
        Suspicion::Undecided
    } else if FIRST_KEYS.iter().any(|key| inside.starts_with(key)) {
        Suspicion::Call
    } else {
        Suspicion::None
    }
}

/// `f>{...}` as the JSON of a call.
fn function_body(body: &str) -> Option<String> {
    let (name, arguments) = body.split_once('>')?;
    let arguments: Value = serde_json::from_str(arguments.trim()).ok()?;
    Some(json!({"name": name.trim(), "arguments": arguments}).to_string())
}

/// `f[ARGS]{...}` or `f{...}`.
fn named_call(body: &str) -> Option<(String, Value)> {
    let (name, arguments) = body.split_at(body.find('{')?);
    let name = name.split('[').next()?.trim();
    let arguments: Value = serde_json::from_str(arguments).ok()?;
    Some((name.to_owned(), arguments))
}

/// One call, a list of calls, or several calls with `;`, `,` or white space between; the end of a list whose first calls
/// are known already may follow.
fn json_calls(body: &str) -> Option<Vec<(String, Value)>> {
    let mut calls = Vec::new();
    let mut rest = body;
    while !rest.is_empty() {
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        match values.next()?.ok()? {
            Value::Array(list) => {
                for value in &list {
                    calls.push(json_call(value)?);
                }
            }
            value => calls.push(json_call(&value)?),
        }
        let read = values.byte_offset();
        rest = rest[read..].trim_start_matches(|c: char| c.is_whitespace() || matches!(c, ';' | ',' | ']'));
    }
    Some(calls)
}

fn json_call(value: &Value) -> Option<(String, Value)> {
    let object = match value.get("function") {
        Some(function @ Value::Object(_)) => function,
        _ => value,
    };
    let name = object.get("name").or_else(|| object.get("function"))?.as_str()?;
    let arguments = object.get("arguments").or_else(|| object.get("parameters"));
    let arguments = match arguments {
        Some(Value::String(text)) => serde_json::from_str(text).ok()?,
        Some(value @ Value::Object(_)) => value.clone(),
        None => json!({}),
        Some(_) => return None,
    };
    Some((name.to_owned(), arguments))
}

/// Nine letters and digits, which is what Mistral's templates insist on; the same for the same seed and number.
fn call_id(seed: u64, number: u64) -> String {
    const ALPHABET: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    // SplitMix64: any mixing would do, it only has to look different each time.
    let mut x = seed.wrapping_add((number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^= x >> 31;
    let digit = |i: u32| char::from(ALPHABET[(x / 36u64.pow(i) % 36) as usize]);
    (0..9).map(digit).collect()
}

#[cfg(test)]
mod tests;
