//! The beginning of a call, up to its arguments, read from a text that may not be complete.

use super::Form;

/// What the beginning of a call says.
#[derive(Debug, PartialEq)]
pub(super) enum Head {
    /// More has to come; the name may be there already.
    More(Option<String>),
    /// The arguments begin at this byte, within so many brackets of the call.
    Call { name: String, at: usize, brackets: usize },
    /// Nothing that can be given on as it comes, or no call.
    Other(Option<String>),
}

/// Reads from the beginning of a text that may not be complete.
struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

/// Why reading stopped.
enum Stopped {
    /// At the end of what came.
    More,
    /// At something else.
    Other,
}

impl<'a> Cursor<'a> {
    fn peek(&mut self) -> Result<char, Stopped> {
        let rest = &self.text[self.at..];
        let trimmed = rest.trim_start();
        self.at += rest.len() - trimmed.len();
        trimmed.chars().next().ok_or(Stopped::More)
    }

    /// Whether `c` comes next behind white space; it is read then.
    fn takes(&mut self, c: char) -> Result<bool, Stopped> {
        let found = self.peek()? == c;
        self.at += if found { c.len_utf8() } else { 0 };
        Ok(found)
    }

    fn expect(&mut self, c: char) -> Result<(), Stopped> {
        if self.takes(c)? { Ok(()) } else { Err(Stopped::Other) }
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
    fn until(&mut self, ends: &[char]) -> Result<&'a str, Stopped> {
        self.peek()?;
        let rest = &self.text[self.at..];
        let end = rest.find(ends).ok_or(Stopped::More)?;
        self.at += end;
        Ok(rest[..end].trim_end())
    }
}

/// Reads the beginning of a call up to its arguments.
pub(super) fn head(body: &str, form: Form) -> Head {
    let mut cursor = Cursor { text: body, at: 0 };
    let (mut name, mut brackets) = (None, 0);
    match read_head(&mut cursor, form, &mut name, &mut brackets) {
        Err(Stopped::More) => Head::More(name),
        Err(Stopped::Other) => Head::Other(name),
        Ok(()) => match name {
            Some(name) => Head::Call { name, at: cursor.at, brackets },
            None => Head::Other(None),
        },
    }
}

/// Moves `cursor` to the first brace of the arguments.
fn read_head(
    cursor: &mut Cursor<'_>,
    form: Form,
    name: &mut Option<String>,
    brackets: &mut usize,
) -> Result<(), Stopped> {
    if form.is_function() {
        *name = Some(cursor.until(&['>'])?.to_owned());
        cursor.expect('>')?;
    } else if !matches!(cursor.peek()?, '{' | '[') {
        *name = Some(cursor.until(&['[', '{'])?.to_owned());
        cursor.until(&['{'])?;
    } else {
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
                "arguments" | "parameters" if name.is_some() => break,
                _ => return Err(Stopped::Other),
            }
            cursor.expect(',')?;
        }
    }
    if cursor.peek()? == '{' { Ok(()) } else { Err(Stopped::Other) }
}
