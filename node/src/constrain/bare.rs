//! The head of a call without a mark, from the beginning of an answer up to its arguments: `{"name": "f", "parameters":`, as Llama 3
//! writes it, of which several may follow each other, or `[f(`, the first of a list of Llama 4.

use api::inference::CallForm;
use serde_json::json;

/// Longest text that may become a head; `api/src/calls.rs` reads as much.
const MAX_BYTES: usize = 1 << 12;

/// What an answer that begins so is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bare {
    /// No bare call.
    No,
    /// What may become one.
    Perhaps,
    /// The head of a call of the tool with this number, to its last byte.
    Head(usize),
    /// The head of a list whose first call is of the tool with this number, to its last byte.
    List(usize),
}

/// What is left of a head behind what was read of it.
struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn space(&mut self) {
        self.0 = self.0.trim_ascii_start();
    }

    /// Which of `words` comes, and the white space behind it.
    ///
    /// # Errors
    /// [`Bare::Perhaps`] where the text ends before that is known, and [`Bare::No`] where none comes.
    fn one_of(&mut self, words: &[&str]) -> Result<usize, Bare> {
        for (which, word) in words.iter().enumerate() {
            if let Some(rest) = self.0.strip_prefix(word.as_bytes()) {
                self.0 = rest;
                self.space();
                return Ok(which);
            }
        }
        let begins = words.iter().any(|word| word.as_bytes().starts_with(self.0));
        Err(if begins { Bare::Perhaps } else { Bare::No })
    }

    fn head(&mut self, tools: &[CallForm]) -> Result<Bare, Bare> {
        self.space();
        let mut in_brackets = false;
        // Between calls.
        loop {
            match self.one_of(&["[", ";", ","]) {
                Ok(which) => in_brackets |= which == 0,
                Err(Bare::No) => break,
                Err(other) => return Err(other),
            }
        }
        if in_brackets && !self.0.starts_with(b"{") {
            return self.list(tools);
        }
        self.one_of(&["{"])?;
        if self.one_of(&["\"name\"", "\"type\""])? == 1 {
            for word in [":", "\"function\"", ",", "\"name\""] {
                self.one_of(&[word])?;
            }
        }
        self.one_of(&[":"])?;
        let names: Vec<String> = tools.iter().map(|tool| json!(tool.name).to_string()).collect();
        let tool = self.one_of(&names.iter().map(String::as_str).collect::<Vec<_>>())?;
        self.one_of(&[","])?;
        self.one_of(&["\"parameters\"", "\"arguments\""])?;
        self.last(b":").map(|()| Bare::Head(tool))
    }

    /// Behind the bracket of a list.
    fn list(&mut self, tools: &[CallForm]) -> Result<Bare, Bare> {
        // A name may be the beginning of another one.
        let named = |tool: &CallForm| {
            let mut rest = Rest(self.0.strip_prefix(tool.name.as_bytes())?);
            rest.space();
            Some(rest.last(b"("))
        };
        let begun = tools.iter().any(|tool| tool.name.as_bytes().starts_with(self.0));
        let mut best = if begun { Bare::Perhaps } else { Bare::No };
        for (at, tool) in tools.iter().enumerate() {
            match named(tool) {
                Some(Ok(())) => return Ok(Bare::List(at)),
                Some(Err(Bare::Perhaps)) => best = Bare::Perhaps,
                Some(Err(_)) | None => {}
            }
        }
        Err(best)
    }

    /// The last byte of a head.
    fn last(&self, byte: &[u8]) -> Result<(), Bare> {
        match self.0 {
            b"" => Err(Bare::Perhaps),
            rest if rest == byte => Ok(()),
            _ => Err(Bare::No),
        }
    }
}

/// What an answer that begins with `text` is.
pub(super) fn read(text: &[u8], tools: &[CallForm]) -> Bare {
    if text.len() > MAX_BYTES {
        return Bare::No;
    }
    Rest(text).head(tools).unwrap_or_else(|other| other)
}

/// Whether `text` may become a head and holds the name of one of `tools` already.
pub(super) fn is_named(text: &[u8], tools: &[CallForm]) -> bool {
    let names = |tool: &CallForm| {
        let name = tool.name.as_bytes();
        !name.is_empty() && text.windows(name.len()).any(|window| window == name)
    };
    read(text, tools) == Bare::Perhaps && tools.iter().any(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_known_at_its_last_byte() {
        let tools = ["f", "f2"].map(|name| CallForm { name: name.into(), parameters: json!({}) });
        for (text, is) in [
            ("", Bare::Perhaps),
            (" \n", Bare::Perhaps),
            ("; ", Bare::Perhaps),
            ("{\"na", Bare::Perhaps),
            ("{\"name\": \"f", Bare::Perhaps),
            ("{\"name\": \"f2\", \"parameters\" ", Bare::Perhaps),
            ("{\"name\": \"f2\", \"parameters\" :", Bare::Head(1)),
            ("[ {\"type\":\"function\",\"name\":\"f\",\"arguments\":", Bare::Head(0)),
            ("{\"name\": \"f\", \"parameters\": ", Bare::No),
            ("{\"name\": \"g", Bare::No),
            ("{\"name\": \"f\", \"x", Bare::No),
            ("{\"type\": \"object", Bare::No),
            ("An answer", Bare::No),
            (" [", Bare::Perhaps),
            ("[f", Bare::Perhaps),
            ("[f2 ", Bare::Perhaps),
            ("[f2 (", Bare::List(1)),
            ("[f(", Bare::List(0)),
            ("[f(a", Bare::No),
            ("[f3", Bare::No),
            ("f(", Bare::No),
        ] {
            assert_eq!(read(text.as_bytes(), &tools), is, "{text}");
        }
        assert_eq!(read(&[b' '; MAX_BYTES + 1], &tools), Bare::No);
        assert!(is_named(b"{\"name\": \"f\", ", &tools) && !is_named(b"{\"na", &tools));
    }
}
