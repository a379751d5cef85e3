//! The beginning of a call, up to its arguments, read from a text that may not be complete.

use super::{
    keyed,
    marks::{Body, Form},
};

/// What the beginning of a call says.
#[derive(Debug, PartialEq)]
pub(super) enum Head {
    /// More has to come; the name may be there already.
    More(Option<String>),
    /// The arguments begin at this byte, within so many brackets of the call.
    Call { name: String, at: usize, brackets: usize },
    /// The parameters, or the end of a call without any, begin at this byte.
    Keyed { name: String, at: usize, syntax: &'static keyed::Syntax },
    /// Nothing that can be given on as it comes, or no call.
    Other(Option<String>),
}

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
    fn string(&mut self) -> Result<String, Stopped> {
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

/// Reads the beginning of a call up to its arguments.
pub(super) fn head(body: &str, form: Form) -> Head {
    let mut cursor = Cursor::new(body);
    let (mut name, mut brackets) = (None, 0);
    match read_head(&mut cursor, form, &mut name, &mut brackets) {
        Err(Stopped::More) => Head::More(name),
        Err(Stopped::Other) => Head::Other(name),
        Ok(keyed) => match (name, keyed) {
            (Some(name), None) => Head::Call { name, at: cursor.at, brackets },
            (Some(name), Some(syntax)) => Head::Keyed { name, at: cursor.at, syntax },
            (None, _) => Head::Other(None),
        },
    }
}

/// Moves `cursor` to the first brace of the arguments, or to the first parameter where they have a syntax of their own.
fn read_head(
    cursor: &mut Cursor<'_>,
    form: Form,
    name: &mut Option<String>,
    brackets: &mut usize,
) -> Result<Option<&'static keyed::Syntax>, Stopped> {
    let first = cursor.peek()?;
    match form.body() {
        Body::Keyed(syntax) => return syntax.head(cursor, form.end(), name).map(|()| Some(syntax)),
        Body::Tagged if first == '<' => {
            return keyed::QWEN.head(cursor, form.end(), name).map(|()| Some(&keyed::QWEN));
        }
        Body::Tagged if !matches!(first, '{' | '[') => {
            *name = Some(cursor.until(&['[', '{', '<'])?.to_owned());
            if cursor.peek()? == '<' {
                keyed::GLM.begins(cursor, form.end())?;
                return Ok(Some(&keyed::GLM));
            }
            cursor.until(&['{'])?;
        }
        Body::Function => {
            *name = Some(cursor.until(&['>'])?.to_owned());
            cursor.expect('>')?;
            if cursor.peek()? == '<' {
                keyed::QWEN.begins(cursor, form.end())?;
                return Ok(Some(&keyed::QWEN));
            }
        }
        Body::Section(section) => section.head(cursor, name)?,
        Body::Json if !matches!(first, '{' | '[') => {
            *name = Some(cursor.until(&['[', '{'])?.to_owned());
            cursor.until(&['{'])?;
        }
        Body::Tagged | Body::Json => object(cursor, name, brackets)?,
    }
    if cursor.peek()? == '{' { Ok(None) } else { Err(Stopped::Other) }
}

/// Moves `cursor` to the arguments in the object of a call.
fn object(cursor: &mut Cursor<'_>, name: &mut Option<String>, brackets: &mut usize) -> Result<(), Stopped> {
    cursor.takes('[')?;
    cursor.expect('{')?;
    *brackets = 1;
    loop {
        let key = cursor.string()?;
        cursor.expect(':')?;
        match key.as_str() {
            "type" | "id" => drop(cursor.string()?),
            "function" if cursor.takes('{')? => {
                *brackets += 1;
                continue;
            }
            "name" | "function" => *name = Some(cursor.string()?),
            "arguments" | "parameters" if name.is_some() => return Ok(()),
            _ => return Err(Stopped::Other),
        }
        cursor.expect(',')?;
    }
}
