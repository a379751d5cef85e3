//! Calls as a list in Python, as Llama 4 and Llama 3.2 write them: `[f(a=1, b='x'), g()]`.
//!
//! A list is suspected where an answer, or what stands behind a mark, begins with a bracket and the name of an offered
//! tool. It is held back to its last bracket and read at once: either all of it are calls of offered tools or none.
//! Values are literals: `True`, `False`, `None`, numbers, strings, lists and dicts.
//!
//! Bounds: values are at most [`MAX_DEPTH`] deep; the whole list is held back as other calls are.

use super::{Call, Form, Parsed, Parser, State, cursor::Stopped, json::quoted};

/// What `serde_json` reads; deeper arguments could not be used by clients.
const MAX_DEPTH: usize = 100;

/// Whether something is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begins {
    Yes,
    No,
    Undecided,
}

/// Whether `text` begins a list of calls of `names`.
pub(super) fn begins(text: &str, names: &[String]) -> Begins {
    let text = text.trim_start();
    let Some(inside) = text.strip_prefix('[') else {
        return if text.is_empty() { Begins::Undecided } else { Begins::No };
    };
    let inside = inside.trim_start();
    let after = |name: &String| {
        if name.starts_with(inside) {
            return Begins::Undecided;
        }
        match inside.strip_prefix(name.as_str()).map(str::trim_start) {
            Some("") => Begins::Undecided,
            Some(rest) if rest.starts_with('(') => Begins::Yes,
            _ => Begins::No,
        }
    };
    let mut found = Begins::No;
    for name in names {
        match after(name) {
            Begins::Yes => return Begins::Yes,
            Begins::Undecided => found = Begins::Undecided,
            Begins::No => {}
        }
    }
    found
}

/// Where a list ends, character by character.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Scan {
    /// Bytes that were read.
    at: usize,
    depth: usize,
    quote: Option<char>,
    escaped: bool,
}

impl Scan {
    /// Goes on in `text`, which begins as before; whether the list is closed.
    fn read(&mut self, text: &str) -> bool {
        for c in text[self.at..].chars() {
            self.at += c.len_utf8();
            match (self.quote, c) {
                _ if self.escaped => self.escaped = false,
                (Some(_), '\\') => self.escaped = true,
                (Some(quote), _) if c == quote => self.quote = None,
                (Some(_), _) => {}
                (None, '"' | '\'') => self.quote = Some(c),
                (None, '[' | '(' | '{') => self.depth += 1,
                (None, ']' | ')' | '}') => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return true;
                    }
                }
                _ => {}
            }
        }
        false
    }
}

impl Parser {
    /// To the end of a list of calls; whether another move may follow.
    pub(super) fn read_list(&mut self, form: Form, mut scan: Scan, out: &mut Vec<Parsed>) -> bool {
        let closed = scan.read(&self.held[self.marked..]);
        self.state = State::List(form, scan);
        if !closed {
            return false;
        }
        let end = self.marked + scan.at;
        match calls(&self.held[self.marked..end]).filter(|calls| self.offers(calls)) {
            Some(calls) => {
                self.held.drain(..end);
                self.marked = 0;
                self.state = State::Between(form);
                self.emit(calls, out);
            }
            None if form == Form::Bare => self.state = State::Text,
            None => self.wait_for_whole(form),
        }
        true
    }

    /// The answer is at its end within a list.
    pub(super) fn finish_list(&mut self, form: Form, cut: bool, out: &mut Vec<Parsed>) {
        let mut reader = Reader::new(&self.held[self.marked..]);
        let stopped = reader.list().err();
        let (calls, open) = (reader.calls, reader.open);
        if !cut || stopped != Some(Stopped::More) || !self.offers(&calls) {
            let known = cut && (self.forced || form != Form::Bare);
            return if known { self.held.clear() } else { self.flush(out) };
        }
        self.held.clear();
        self.cut = open;
        self.emit(calls, out);
    }
}

/// The calls of a list.
pub(super) fn calls(text: &str) -> Option<Vec<Call>> {
    let mut reader = Reader::new(text);
    reader.list().ok()?;
    reader.rest.trim_start().is_empty().then_some(reader.calls)
}

/// A literal as JSON.
pub(super) fn literal(text: &str) -> Option<String> {
    // What follows a word ends it.
    let text = format!("{text} ");
    let mut reader = Reader::new(&text);
    let mut json = String::new();
    reader.value(&mut json, 0).ok()?;
    reader.rest.trim_start().is_empty().then_some(json)
}

/// Reads a list from its beginning.
struct Reader<'a> {
    rest: &'a str,
    /// The arguments of the last one may lack their end.
    calls: Vec<Call>,
    /// Whether they do.
    open: bool,
}

impl<'a> Reader<'a> {
    fn new(text: &'a str) -> Self {
        Self { rest: text, calls: Vec::new(), open: false }
    }

    fn peek(&mut self) -> Result<char, Stopped> {
        self.rest = self.rest.trim_start();
        self.rest.chars().next().ok_or(Stopped::More)
    }

    fn takes(&mut self, c: char) -> Result<bool, Stopped> {
        let found = self.peek()? == c;
        self.rest = &self.rest[if found { c.len_utf8() } else { 0 }..];
        Ok(found)
    }

    fn expect(&mut self, c: char) -> Result<(), Stopped> {
        if self.takes(c)? { Ok(()) } else { Err(Stopped::Other) }
    }

    /// Letters, digits and what else may be in a name or number.
    fn word(&mut self, further: &[char]) -> Result<&'a str, Stopped> {
        self.peek()?;
        let end = self.rest.find(|c: char| !(c.is_alphanumeric() || further.contains(&c)));
        let (word, rest) = self.rest.split_at(end.ok_or(Stopped::More)?);
        self.rest = rest;
        if word.is_empty() { Err(Stopped::Other) } else { Ok(word) }
    }

    fn list(&mut self) -> Result<(), Stopped> {
        self.expect('[')?;
        loop {
            let name = self.word(&['_', '-', '.'])?.to_owned();
            self.expect('(')?;
            self.calls.push((name, "{".into()));
            self.open = true;
            self.arguments()?;
            self.open = false;
            let comma = self.takes(',')?;
            if self.takes(']')? {
                return Ok(());
            }
            if !comma {
                return Err(Stopped::Other);
            }
        }
    }

    /// The arguments of the last call, up to its bracket.
    fn arguments(&mut self) -> Result<(), Stopped> {
        let mut separator = "";
        loop {
            let closed = self.takes(')')?;
            let argument = if closed { "}".to_owned() } else { self.argument(separator)? };
            if let Some((_, arguments)) = self.calls.last_mut() {
                arguments.push_str(&argument);
            }
            if closed {
                return Ok(());
            }
            separator = ",";
            if !self.takes(',')? && self.peek()? != ')' {
                return Err(Stopped::Other);
            }
        }
    }

    fn argument(&mut self, separator: &str) -> Result<String, Stopped> {
        let key = self.word(&['_'])?;
        self.expect('=')?;
        let mut json = format!("{separator}{}:", quoted(key));
        self.value(&mut json, 0)?;
        Ok(json)
    }

    fn value(&mut self, json: &mut String, depth: usize) -> Result<(), Stopped> {
        if depth > MAX_DEPTH {
            return Err(Stopped::Other);
        }
        match self.peek()? {
            '"' | '\'' => json.push_str(&quoted(&self.string()?)),
            '[' => self.items(json, depth, ('[', ']'))?,
            '{' => self.items(json, depth, ('{', '}'))?,
            c if c.is_ascii_digit() || matches!(c, '-' | '+' | '.') => json.push_str(&self.number()?),
            _ => json.push_str(match self.word(&['_'])? {
                "True" | "true" => "true",
                "False" | "false" => "false",
                "None" | "null" => "null",
                _ => return Err(Stopped::Other),
            }),
        }
        Ok(())
    }

    fn items(&mut self, json: &mut String, depth: usize, (open, close): (char, char)) -> Result<(), Stopped> {
        self.expect(open)?;
        json.push(open);
        let mut some = false;
        while !self.takes(close)? {
            if some {
                json.push(',');
            }
            some = true;
            if open == '{' {
                json.push_str(&match self.peek()? {
                    '"' | '\'' => quoted(&self.string()?),
                    // JSON has strings for keys only.
                    _ => quoted(&self.number()?),
                });
                self.expect(':')?;
                json.push(':');
            }
            self.value(json, depth + 1)?;
            if !self.takes(',')? && self.peek()? != close {
                return Err(Stopped::Other);
            }
        }
        json.push(close);
        Ok(())
    }

    fn number(&mut self) -> Result<String, Stopped> {
        let digits = self.word(&['_', '-', '+', '.'])?.replace('_', "");
        if let Ok(number) = serde_json::from_str::<serde_json::Number>(&digits) {
            // The digits as they are: an integer may have more of them than a machine's number.
            let integer = digits.bytes().all(|b| b.is_ascii_digit() || b == b'-');
            return Ok(if integer { digits } else { number.to_string() });
        }
        let number = digits.parse().ok().and_then(serde_json::Number::from_f64);
        number.map(|number| number.to_string()).ok_or(Stopped::Other)
    }

    fn string(&mut self) -> Result<String, Stopped> {
        let quote = self.peek()?;
        let mut chars = self.rest[quote.len_utf8()..].chars();
        let mut text = String::new();
        loop {
            match chars.next().ok_or(Stopped::More)? {
                c if c == quote => break,
                '\\' => escape(&mut chars, &mut text)?,
                c => text.push(c),
            }
        }
        self.rest = chars.as_str();
        Ok(text)
    }
}

/// What an escape stands for; an unknown one stands for itself.
fn escape(chars: &mut std::str::Chars<'_>, text: &mut String) -> Result<(), Stopped> {
    match chars.next().ok_or(Stopped::More)? {
        'n' => text.push('\n'),
        't' => text.push('\t'),
        'r' => text.push('\r'),
        'a' => text.push('\x07'),
        'b' => text.push('\x08'),
        'f' => text.push('\x0c'),
        'v' => text.push('\x0b'),
        '0' => text.push('\0'),
        '\n' => {}
        c @ ('\\' | '\'' | '"') => text.push(c),
        'x' => text.push(character(hex(chars, 2)?)),
        'U' => text.push(character(hex(chars, 8)?)),
        'u' => {
            let mut code = hex(chars, 4)?;
            // JSON's habit of writing a character as two halves.
            let rest = chars.as_str();
            if (0xd800..0xdc00).contains(&code) && rest.starts_with("\\u") {
                let mut second = rest[2..].chars();
                let low = hex(&mut second, 4)?;
                if (0xdc00..0xe000).contains(&low) {
                    code = 0x1_0000 + ((code - 0xd800) << 10) + (low - 0xdc00);
                    *chars = second;
                }
            }
            text.push(character(code));
        }
        other => text.extend(['\\', other]),
    }
    Ok(())
}

fn character(code: u32) -> char {
    char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
}

fn hex(chars: &mut std::str::Chars<'_>, digits: usize) -> Result<u32, Stopped> {
    let mut code = 0u32;
    for _ in 0..digits {
        let digit = chars.next().ok_or(Stopped::More)?.to_digit(16).ok_or(Stopped::Other)?;
        code = code.wrapping_mul(16).wrapping_add(digit);
    }
    Ok(code)
}
