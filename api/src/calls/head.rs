//! The beginning of a call, up to its arguments, read from a text that may not be complete.

use super::{
    Form,
    cursor::{Cursor, Stopped},
    keyed,
    marks::Body,
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
