//! Finds calls of tools in the text a model writes, and gives their arguments on as they come.
//!
//! Models mark calls in these ways, all of which are understood whatever the model, because conversions of models mix
//! their templates:
//!
//! | family | form |
//! |---|---|
//! | Hermes, Qwen | `<tool_call>{"name": "f", "arguments": {...}}</tool_call>`, any number of times |
//! | Llama 3 | the whole answer is `{"name": "f", "parameters": {...}}`, perhaps behind `<|python_tag|>`, several joined by `;` |
//! | Llama 3 (custom) | `<function=f>{...}</function>` |
//! | Llama 3.2, Llama 4 | the answer begins with `[f(a=1), g()]`, perhaps between `<|python_start|>` and `<|python_end|>` ([`pythonic`]) |
//! | Mistral | `[TOOL_CALLS][{"name": "f", "arguments": {...}}]` or `[TOOL_CALLS]f[ARGS]{...}` |
//! | DeepSeek, Kimi K2 | a section of calls between marks of their own ([`sections`]) |
//! | GLM, Qwen3-Coder, MiniMax | parameters one by one between tags ([`keyed`]), typed by the tool's schema ([`types`]) |
//!
//! Text that may be the beginning of a mark is held back until it is known to be one or not. Once the name of an offered
//! tool and the first brace of its arguments are there, it is a call: its arguments are given on piece by piece, without
//! white space between their tokens, and stay those of a call whatever follows. An answer that is cut ([`Parser::finish`])
//! leaves a call with the arguments so far. Where the order of members is another one, or the arguments are JSON in a
//! string, the call is held back to its end and given at once. What looks like a call but is none (no JSON, a name that was
//! not offered) is given as the text it is. Calls in tags begin with their first parameter, and those of a Python list are
//! given at its end.
//!
//! Bounds: what is held back has at most [`MAX_HELD_BYTES`]; more is text, and nothing more is looked for.

use std::sync::Arc;

mod call;
mod cursor;
mod head;
mod json;
mod keyed;
mod marks;
mod pythonic;
mod sections;
mod types;

use call::call_id;
use head::{Head, head};
use json::Json;
use marks::{Body, MARKS};
use pythonic::Begins;

pub(crate) use call::ToolCall;
pub(crate) use types::Types;
pub use types::is_written_as_json;

/// Longer calls that cannot be given on as they come are text. The longest arguments in practice are whole source files.
const MAX_HELD_BYTES: usize = 1 << 20;
/// What stands before the arguments: two names and a few brackets. It is read again with every piece that comes.
const MAX_HEAD_BYTES: usize = 1 << 12;

/// The first keys by which a bare JSON object is suspected to be a call.
const FIRST_KEYS: &[&str] = &["\"name\"", "\"function\"", "\"type\"", "\"parameters\"", "\"arguments\""];

/// What a call stands in: a mark of the table, or nothing but the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Marked(usize),
    Bare,
}

/// The name and the arguments of a call.
type Call = (String, String);

/// A piece of an answer. [`Parsed::Arguments`] belong to the call that began last.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Parsed {
    Text(String),
    Begin { id: String, name: String },
    Arguments(String),
    End,
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
    types: Arc<Types>,
    /// Whether only the first call counts.
    single: bool,
    /// Whether the answer has the form of a call whatever it says.
    forced: bool,
    seed: u64,
    calls: u64,
    cut: bool,
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
    /// In a call whose parameters stand between tags.
    Keyed(Form, keyed::Reading),
    /// In a list of calls in Python.
    List(Form, pythonic::Scan),
    /// Behind arguments in JSON, before the call's own brackets are closed.
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
            types: Arc::default(),
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

    /// The same, for parameters of these types; the type of any other is unknown.
    pub(crate) fn typed(self, types: Arc<Types>) -> Self {
        Self { types, ..self }
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
            // The form says that it was to become a call, of which nothing is known.
            State::Start if cut && self.forced => self.held.clear(),
            State::Start | State::Text | State::Plain => self.flush(&mut out),
            State::Arguments(..) => {
                self.cut = cut;
                out.push(Parsed::End);
            }
            State::Keyed(_, reading) => self.finish_keyed(reading, cut, &mut out),
            State::List(form, _) => self.finish_list(form, cut, &mut out),
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
        if let Some(calls) = self.calls_of(form, &self.held[self.marked..]) {
            self.held.clear();
            return self.emit(calls, out);
        }
        let name = match head(&self.held[self.marked..], form) {
            Head::More(name) | Head::Other(name) => name.filter(|name| self.names.contains(name)),
            Head::Call { .. } | Head::Keyed { .. } => None,
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
            State::Start => self.suspect(),
            State::Text => self.find_mark(out),
            State::Head(form) => self.read_head(form, out),
            State::Whole(form) => self.find_end(form, out),
            State::Arguments(form, json, brackets) => self.give_arguments(form, json, brackets, out),
            State::Keyed(form, reading) => self.read_keyed(form, reading, out),
            State::List(form, scan) => self.read_list(form, scan, out),
            State::Rest(form, json) => self.skip_rest(form, json),
            State::Between(form) => self.look_further(form),
        }
    }

    /// Whether the answer begins with a call that has no mark.
    fn suspect(&mut self) -> bool {
        let python = pythonic::begins(&self.held, &self.names);
        let next = match (python, suspicion(self.held.trim_start())) {
            (Begins::Yes, _) => State::List(Form::Bare, pythonic::Scan::default()),
            (_, Suspicion::Call) => State::Head(Form::Bare),
            (Begins::No, Suspicion::None) => State::Text,
            _ if self.held.len() > MAX_HEAD_BYTES => State::Text,
            _ => return false,
        };
        self.state = next;
        true
    }

    fn find_mark(&mut self, out: &mut Vec<Parsed>) -> bool {
        let found =
            MARKS.iter().enumerate().filter_map(|(i, mark)| Some((self.held.find(mark.text)?, i))).min();
        if let Some((at, mark)) = found {
            let text: String = self.held.drain(..at).collect();
            // White space around calls is layout.
            if !text.trim().is_empty() {
                out.push(Parsed::Text(text));
            }
            self.marked = MARKS[mark].text.len();
            self.state = State::Head(Form::Marked(mark));
            return true;
        }
        let keep = (0..self.held.len())
            .filter(|at| self.held.is_char_boundary(*at))
            .find(|at| MARKS.iter().any(|mark| mark.text.starts_with(&self.held[*at..])))
            .unwrap_or(self.held.len());
        // White space behind a call waits, too: another call or the end may follow.
        let waits = self.calls > 0 && keep <= MAX_HEAD_BYTES && self.held[..keep].trim().is_empty();
        let keep = if waits { 0 } else { keep };
        if keep > 0 {
            out.push(Parsed::Text(self.held.drain(..keep).collect()));
        }
        false
    }

    fn read_head(&mut self, form: Form, out: &mut Vec<Parsed>) -> bool {
        match pythonic::begins(&self.held[self.marked..], &self.names) {
            Begins::Yes => {
                self.state = State::List(form, pythonic::Scan::default());
                return true;
            }
            Begins::Undecided if self.held.len() <= MAX_HEAD_BYTES => return false,
            Begins::Undecided | Begins::No => {}
        }
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
            Head::Keyed { name, at, syntax } if self.names.contains(&name) => {
                self.held.drain(..self.marked + at);
                self.marked = 0;
                let tool = self.names.iter().position(|offered| *offered == name).unwrap_or_default();
                self.begin(name, out);
                out.push(Parsed::Arguments("{".into()));
                self.state = State::Keyed(form, keyed::Reading::new(syntax, tool));
                true
            }
            Head::Call { .. } | Head::Keyed { .. } | Head::Other(_) => {
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
        let calls = self.calls_of(form, &whole[self.marked..at]);
        self.marked = 0;
        self.state = State::Text;
        match calls {
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
        if rest.is_empty() && self.held.len() <= MAX_HEAD_BYTES {
            // It waits: where text follows, white space belongs to it.
            return false;
        }
        let skipped = self.held.len() - rest.len();
        let comes = |mark: &&&str| rest.starts_with(**mark);
        if let Some(close) = form.closes().iter().find(comes) {
            self.held.drain(..skipped + close.len());
            return true;
        }
        let end = form.end();
        let opens = form.opens();
        if let Some(end) = end.filter(|end| rest.starts_with(end)) {
            self.held.drain(..skipped + end.len());
            self.state = State::Text;
        } else if opens.iter().any(|open| rest.starts_with(open)) {
            self.held.drain(..skipped);
            self.state = State::Head(form);
        } else if !rest.is_empty()
            && opens.iter().chain(form.closes()).chain(&end).any(|mark| mark.starts_with(rest))
        {
            return false;
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

    fn emit(&mut self, calls: Vec<Call>, out: &mut Vec<Parsed>) {
        for (name, arguments) in calls {
            if self.single && self.calls > 0 {
                break;
            }
            self.begin(name, out);
            out.push(Parsed::Arguments(arguments));
            out.push(Parsed::End);
        }
        if self.single {
            self.state = State::Muted;
        }
    }

    /// The calls in `body`, if it consists of calls of offered tools.
    fn calls_of(&self, form: Form, body: &str) -> Option<Vec<Call>> {
        let body = body.trim();
        let calls = match form.body() {
            Body::Function => vec![json::function_call(body)?],
            Body::Section(section) => section.calls(body)?,
            _ if body.starts_with(['{', '[']) => json::json_calls(body)?,
            _ => vec![json::named_call(body)?],
        };
        self.offers(&calls).then_some(calls)
    }

    /// Whether there are calls, all of tools that were offered.
    fn offers(&self, calls: &[Call]) -> bool {
        !calls.is_empty() && calls.iter().all(|(name, _)| self.names.contains(name))
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

/// Bytes at the end of `text` that may be the beginning of `mark`.
fn overlap(text: &str, mark: &str) -> usize {
    let parts = mark.char_indices().map(|(at, _)| at).rev();
    parts.filter(|at| *at > 0).find(|at| text.ends_with(&mark[..*at])).unwrap_or(0)
}

#[cfg(test)]
mod tests;
