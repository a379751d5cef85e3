//! Where reading of a text that may not be complete stands.

/// Reads from the beginning of a text that may not be complete.
pub(super) struct Cursor<'a> {
    text: &'a str,
    pub at: usize,
}

/// Why reading stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stopped {
    /// At the end of what came.
    More,
    /// At something else.
    Other,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    pub(super) fn peek(&mut self) -> Result<char, Stopped> {
        let rest = &self.text[self.at..];
        let trimmed = rest.trim_start();
        self.at += rest.len() - trimmed.len();
        trimmed.chars().next().ok_or(Stopped::More)
    }

    /// Whether `c` comes next behind white space; it is read then.
    pub(super) fn takes(&mut self, c: char) -> Result<bool, Stopped> {
        let found = self.peek()? == c;
        self.at += if found { c.len_utf8() } else { 0 };
        Ok(found)
    }

    pub(super) fn expect(&mut self, c: char) -> Result<(), Stopped> {
        if self.takes(c)? { Ok(()) } else { Err(Stopped::Other) }
    }

    /// Whether `mark` comes next behind white space; it is not read.
    pub(super) fn ahead(&mut self, mark: &str) -> Result<bool, Stopped> {
        self.peek()?;
        let rest = &self.text[self.at..];
        if rest.len() < mark.len() && mark.starts_with(rest) {
            return Err(Stopped::More);
        }
        Ok(rest.starts_with(mark))
    }

    /// Reads `mark` behind white space.
    pub(super) fn literal(&mut self, mark: &str) -> Result<(), Stopped> {
        if !self.ahead(mark)? {
            return Err(Stopped::Other);
        }
        self.at += mark.len();
        Ok(())
    }

    /// Text up to `mark`, which is read as well.
    pub(super) fn up_to(&mut self, mark: &str) -> Result<&'a str, Stopped> {
        let rest = &self.text[self.at..];
        let end = rest.find(mark).ok_or(Stopped::More)?;
        self.at += end + mark.len();
        Ok(rest[..end].trim())
    }

    /// A string of JSON.
    pub(super) fn string(&mut self) -> Result<String, Stopped> {
        if self.peek()? != '"' {
            return Err(Stopped::Other);
        }
        let mut values = serde_json::Deserializer::from_str(&self.text[self.at..]).into_iter::<String>();
        match values.next() {
            Some(Ok(text)) => {
                self.at += values.byte_offset();
                Ok(text)
            }
            Some(Err(error)) if !error.is_eof() => Err(Stopped::Other),
            _ => Err(Stopped::More),
        }
    }

    /// Text up to one of `ends`, which is not read.
    pub(super) fn until(&mut self, ends: &[char]) -> Result<&'a str, Stopped> {
        self.peek()?;
        let rest = &self.text[self.at..];
        let end = rest.find(ends).ok_or(Stopped::More)?;
        self.at += end;
        Ok(rest[..end].trim_end())
    }
}
