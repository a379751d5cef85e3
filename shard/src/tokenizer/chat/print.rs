//! How Python writes values: `str()`, `repr()`, `json.dumps`.

use minijinja::{
    Error, Value,
    value::{Kwargs, Rest, ValueKind},
};

use super::budget::{Budget, MAX_DEPTH, Writer, invalid};
use crate::tokenizer::unicode;

/// `str(value)`, except that an undefined value is nothing.
pub fn str(value: &Value, budget: &Budget) -> Result<String, Error> {
    let mut out = Writer::new(budget);
    write_str(value, &mut out)?;
    out.finish()
}

/// All of `values` one after the other as text, `separator` between them.
pub fn join(values: impl Iterator<Item = Value>, separator: &str, budget: &Budget) -> Result<String, Error> {
    let mut out = Writer::new(budget);
    for (index, value) in values.enumerate() {
        if index > 0 {
            out.push(separator)?;
        }
        write_str(&value, &mut out)?;
    }
    out.finish()
}

fn write_str(value: &Value, out: &mut Writer) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => out.push(text),
        None if value.is_undefined() => Ok(()),
        None => write_repr(value, 0, out),
    }
}

fn write_repr(value: &Value, depth: usize, out: &mut Writer) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(invalid("containers are nested too deep"));
    }
    match value.kind() {
        ValueKind::String => write_quoted(value.as_str().unwrap_or_default(), out),
        ValueKind::Number if !value.is_integer() => out.push(&float(f64::try_from(value.clone())?)),
        ValueKind::Seq | ValueKind::Iterable => {
            let (open, close) = if value.is_tuple() { ("(", ")") } else { ("[", "]") };
            out.push(open)?;
            for (index, item) in value.try_iter()?.enumerate() {
                out.push(if index > 0 { ", " } else { "" })?;
                write_repr(&item, depth + 1, out)?;
            }
            out.push(if value.is_tuple() && value.len() == Some(1) { "," } else { "" })?;
            out.push(close)
        }
        ValueKind::Map => {
            out.push("{")?;
            for (index, key) in value.try_iter()?.enumerate() {
                out.push(if index > 0 { ", " } else { "" })?;
                write_repr(&key, depth + 1, out)?;
                out.push(": ")?;
                write_repr(&value.get_item(&key)?, depth + 1, out)?;
            }
            out.push("}")
        }
        ValueKind::Undefined => out.push("Undefined"),
        ValueKind::None => out.push("None"),
        ValueKind::Bool => out.push(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => out.push(&value.to_string()),
        // Functions and macros: Python prints an address, so no template depends on it.
        kind => out.push(&format!("<{kind}>")),
    }
}

/// A string literal as `repr` writes it: single quotes unless only those occur inside.
fn write_quoted(text: &str, out: &mut Writer) -> Result<(), Error> {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push(quote);
    for c in text.chars() {
        match c {
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            _ if c == quote => quoted.extend(['\\', c]),
            _ if unicode::is(c, unicode::OTHER | unicode::SPACE & !unicode::BLANK) => {
                quoted.push_str(&match c as u32 {
                    code @ ..=0xff => format!("\\x{code:02x}"),
                    code @ ..=0xffff => format!("\\u{code:04x}"),
                    code => format!("\\U{code:08x}"),
                });
            }
            _ => quoted.push(c),
        }
    }
    quoted.push(quote);
    out.push(&quoted)
}

/// `repr` of a float: the shortest digits that give the number back.
fn float(value: f64) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{value}");
    if plain.contains('.') { plain } else { plain + ".0" }
}

/// The options of `json.dumps`.
struct Json {
    ascii: bool,
    indent: Option<String>,
    item: String,
    key: String,
    sorted: bool,
}

/// `json.dumps(value, ...)` with the signature transformers gives its `tojson` filter.
pub fn tojson(value: &Value, args: &Rest<Value>, options: &Kwargs, budget: &Budget) -> Result<String, Error> {
    let mut positional = args.iter();
    let mut option = |name: &str| -> Result<Value, Error> {
        let named: Option<Value> = options.get(name)?;
        Ok(positional.next().cloned().or(named).unwrap_or_default())
    };
    let ascii = option("ensure_ascii")?.is_true();
    let indent = option("indent")?;
    let separators = option("separators")?;
    let sorted = option("sort_keys")?.is_true();
    options.assert_all_used()?;
    let indent = match indent.as_str() {
        Some(text) => Some(text.to_owned()),
        None => indent.as_usize().map(|width| " ".repeat(width.min(100))),
    };
    let mut json = Json { ascii, item: ", ".into(), key: ": ".into(), sorted, indent };
    if json.indent.is_some() {
        json.item = ",".into();
    }
    if separators.is_true() {
        let part = |index| Ok::<_, Error>(separators.get_item_by_index(index)?.to_string());
        (json.item, json.key) = (part(0)?, part(1)?);
    }
    let mut out = Writer::new(budget);
    json.write(value, 0, &mut out)?;
    out.finish()
}

impl Json {
    fn line(&self, depth: usize, out: &mut Writer) -> Result<(), Error> {
        let Some(indent) = &self.indent else { return Ok(()) };
        out.push("\n")?;
        (0..depth).try_for_each(|_| out.push(indent))
    }

    fn write(&self, value: &Value, depth: usize, out: &mut Writer) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(invalid("containers are nested too deep"));
        }
        match value.kind() {
            ValueKind::None => out.push("null"),
            ValueKind::Bool => out.push(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => out.push(&value.to_string()),
            ValueKind::Number => out.push(&match float(f64::try_from(value.clone())?).as_str() {
                "nan" => "NaN".to_owned(),
                "inf" => "Infinity".to_owned(),
                "-inf" => "-Infinity".to_owned(),
                finite => finite.to_owned(),
            }),
            ValueKind::String => self.quoted(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                self.items(value.try_iter()?.collect(), depth, ("[", "]"), out, |item, out| {
                    self.write(item, depth + 1, out)
                })
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sorted {
                    keys.sort();
                }
                self.items(keys, depth, ("{", "}"), out, |key, out| {
                    match key.as_str() {
                        Some(text) => self.quoted(text, out)?,
                        None => {
                            out.push("\"")?;
                            self.write(key, depth + 1, out)?;
                            out.push("\"")?;
                        }
                    }
                    out.push(&self.key)?;
                    self.write(&value.get_item(key)?, depth + 1, out)
                })
            }
            kind => Err(invalid(format!("{kind} is not JSON serializable"))),
        }
    }

    fn items(
        &self,
        items: Vec<Value>,
        depth: usize,
        (open, close): (&str, &str),
        out: &mut Writer,
        write: impl Fn(&Value, &mut Writer) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open)?;
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                out.push(&self.item)?;
            }
            self.line(depth + 1, out)?;
            write(item, out)?;
        }
        if !items.is_empty() {
            self.line(depth, out)?;
        }
        out.push(close)
    }

    fn quoted(&self, text: &str, out: &mut Writer) -> Result<(), Error> {
        let mut quoted = String::with_capacity(text.len() + 2);
        quoted.push('"');
        for c in text.chars() {
            match c {
                '"' => quoted.push_str("\\\""),
                '\\' => quoted.push_str("\\\\"),
                '\n' => quoted.push_str("\\n"),
                '\r' => quoted.push_str("\\r"),
                '\t' => quoted.push_str("\\t"),
                '\u{8}' => quoted.push_str("\\b"),
                '\u{c}' => quoted.push_str("\\f"),
                _ if (c as u32) < 0x20 || (self.ascii && c as u32 > 0x7e) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        quoted.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                _ => quoted.push(c),
            }
        }
        quoted.push('"');
        out.push(&quoted)
    }
}
