//! The head of a call without a mark, from the beginning of an answer up to its arguments: `{"name": "f", "parameters":`, as Llama 3
//! writes it, of which several may follow each other, or `[f(`, the first of a list of Llama 4. It is read as `api/src/calls/head.rs`
//! and `pythonic.rs` read it: what is a call to them from here on is one here.

use serde_json::Deserializer;

/// Longest text that may become a head; `api/src/calls.rs` reads as much.
const MAX_BYTES: usize = 1 << 12;
/// The last byte of every head.
pub(super) const ENDS: &[u8] = b":(";

/// What an answer that begins so is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bare {
    /// No bare call.
    No,
    /// What may become one.
    Perhaps,
    /// The head of a call, to its last byte.
    Head {
        /// The number of its tool.
        tool: usize,
        /// The brackets that close it.
        brackets: usize,
    },
    /// The head of a list whose first call is of the tool with this number, to its last byte.
    List(usize),
}

/// What is left of a head behind what was read of it. Its errors are [`Bare::Perhaps`] where the text ends, and [`Bare::No`] where
/// something else comes.
struct Rest<'a>(&'a str);

impl Rest<'_> {
    /// The next letter behind white space.
    fn peek(&mut self) -> Result<char, Bare> {
        self.0 = self.0.trim_start();
        self.0.chars().next().ok_or(Bare::Perhaps)
    }

    fn takes(&mut self, c: char) -> Result<bool, Bare> {
        let found = self.peek()? == c;
        self.0 = &self.0[if found { c.len_utf8() } else { 0 }..];
        Ok(found)
    }

    fn expect(&mut self, c: char) -> Result<(), Bare> {
        if self.takes(c)? { Ok(()) } else { Err(Bare::No) }
    }

    /// The last letter of a head.
    fn last(&mut self, c: char) -> Result<(), Bare> {
        self.expect(c)?;
        if self.0.is_empty() { Ok(()) } else { Err(Bare::No) }
    }

    /// A string of JSON.
    fn string(&mut self) -> Result<String, Bare> {
        if self.peek()? != '"' {
            return Err(Bare::No);
        }
        let mut values = Deserializer::from_str(self.0).into_iter::<String>();
        match values.next() {
            Some(Ok(text)) => {
                self.0 = &self.0[values.byte_offset()..];
                Ok(text)
            }
            Some(Err(error)) if !error.is_eof() => Err(Bare::No),
            _ => Err(Bare::Perhaps),
        }
    }

    fn head(&mut self, behind: bool, names: &[String], lists: &[String]) -> Result<Bare, Bare> {
        if behind {
            self.0 = self.0.trim_start_matches(|c: char| c.is_whitespace() || matches!(c, ',' | ';' | ']'));
        } else if self.takes('[')? && self.peek()? != '{' {
            return self.list(lists);
        }
        self.expect('{')?;
        let (mut name, mut brackets, mut is_first) = (None, 1, true);
        loop {
            let key = self.string()?;
            match key.as_str() {
                "arguments" | "parameters" => {
                    let tool = name.ok_or(Bare::No)?;
                    return self.last(':').map(|()| Bare::Head { tool, brackets });
                }
                // An answer that begins with an id is taken for text.
                "id" if is_first && !behind => return Err(Bare::No),
                "type" | "id" => {
                    self.expect(':')?;
                    self.string()?;
                }
                "name" | "function" => {
                    self.expect(':')?;
                    is_first = false;
                    if key == "function" && self.takes('{')? {
                        brackets += 1;
                        continue;
                    }
                    let called = self.string()?;
                    name = Some(names.iter().position(|name| *name == called).ok_or(Bare::No)?);
                }
                _ => return Err(Bare::No),
            }
            is_first = false;
            self.expect(',')?;
        }
    }

    /// Behind the bracket of a list.
    fn list(&self, names: &[String]) -> Result<Bare, Bare> {
        // A name may be the beginning of another one.
        let mut found = Bare::No;
        for (tool, name) in names.iter().enumerate() {
            match self.0.strip_prefix(name.as_str()).map(|rest| Rest(rest).last('(')) {
                Some(Ok(())) => return Ok(Bare::List(tool)),
                Some(Err(Bare::Perhaps)) => found = Bare::Perhaps,
                None if name.starts_with(self.0) => found = Bare::Perhaps,
                Some(Err(_)) | None => {}
            }
        }
        Err(found)
    }
}

/// What an answer that begins with `text`, or goes on so `behind` a bare call, is, for tools of these `names`; those of `lists` may be
/// called in lists.
pub(super) fn read(text: &[u8], behind: bool, names: &[String], lists: &[String]) -> Bare {
    let (text, whole) = match std::str::from_utf8(text) {
        Ok(text) => (text, true),
        // The last character may have begun to come.
        Err(error) if error.error_len().is_none() => {
            (std::str::from_utf8(&text[..error.valid_up_to()]).unwrap_or_default(), false)
        }
        Err(_) => return Bare::No,
    };
    if text.len() > MAX_BYTES {
        return Bare::No;
    }
    match Rest(text).head(behind, names, lists).unwrap_or_else(|other| other) {
        Bare::Head { .. } | Bare::List(_) if !whole => Bare::No,
        read => read,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_known_at_its_last_byte() {
        let names = ["f", "f2"].map(str::to_owned);
        let head = |tool: usize, brackets: usize| Bare::Head { tool, brackets };
        for (text, is) in [
            ("", Bare::Perhaps),
            (" \n", Bare::Perhaps),
            ("\u{a0}{\"na", Bare::Perhaps),
            ("{\"name\": \"f", Bare::Perhaps),
            ("{\"name\": \"f2\", \"parameters\" ", Bare::Perhaps),
            ("{\"name\": \"f2\", \"parameters\" :", head(1, 1)),
            ("[ {\"type\":\"function\",\"name\":\"f\",\"arguments\":", head(0, 1)),
            ("{\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\":", head(0, 2)),
            ("{\"function\": \"f2\", \"id\": \"a\\\"b\", \"parameters\":", head(1, 1)),
            ("{\"name\": \"f\", \"parameters\": ", Bare::No),
            ("{\"name\": \"g\"", Bare::No),
            ("{\"name\": \"f\", \"x\"", Bare::No),
            ("{\"id\": \"1\", \"name\"", Bare::No),
            ("{\"parameters\":", Bare::No),
            ("; {\"name\"", Bare::No),
            ("[[", Bare::No),
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
            assert_eq!(read(text.as_bytes(), false, &names, &names), is, "{text}");
        }
        let behind = |text: &str| read(text.as_bytes(), true, &names, &names);
        assert_eq!(behind("]\n; {\"name\": \"f\", \"arguments\":"), head(0, 1));
        assert_eq!((behind(", "), behind("[f("), behind("and")), (Bare::Perhaps, Bare::No, Bare::No));
        assert_eq!(read(b"[f(", false, &names, &names[1..]), Bare::No, "it is not held in lists");
        assert_eq!(read(&[b' '; MAX_BYTES + 1], false, &names, &names), Bare::No);
        assert_eq!(read(b"{\"name\": \"\xc3", false, &names, &names), Bare::Perhaps);
        assert_eq!(read(b"{\"name\": \"\xff", false, &names, &names), Bare::No);
    }
}
