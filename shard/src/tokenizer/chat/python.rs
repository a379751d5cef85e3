//! The Python that chat templates assume: `str()`, `repr()`, `json.dumps`, string methods, `strftime`.
//!
//! Everything that can make text longer than its input asks the [`Budget`] first.

use std::sync::atomic::{AtomicU64, Ordering};

use minijinja::{
    Error, ErrorKind, State, Value,
    value::{Kwargs, Rest, ValueKind, from_args},
};
use minijinja_contrib::pycompat;

use crate::tokenizer::unicode;

/// Containers nested deeper than this are refused when printed.
const MAX_DEPTH: usize = 100;

/// What one rendering may still produce.
pub struct Budget {
    /// Bytes of text made by functions, filters and methods.
    bytes: AtomicU64,
    /// Values looked at when containers are made.
    values: AtomicU64,
    /// The longest text, in bytes.
    pub longest: usize,
}

fn invalid(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, why.into())
}

impl Budget {
    /// `bytes` of text in all, none longer than `longest`, and `values` in containers.
    pub fn new(bytes: u64, values: u64, longest: usize) -> Self {
        Self { bytes: AtomicU64::new(bytes), values: AtomicU64::new(values), longest }
    }

    fn take(from: &AtomicU64, amount: u64, what: &str) -> Result<(), Error> {
        from.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(amount))
            .map(|_| ())
            .map_err(|_| invalid(format!("the template makes too {what}")))
    }

    /// Asks for a text of `len` bytes.
    pub fn text(&self, len: usize) -> Result<(), Error> {
        if len > self.longest {
            return Err(invalid(format!("a text of more than {} bytes", self.longest)));
        }
        Self::take(&self.bytes, len as u64, "much text")
    }

    /// Asks for `len` bytes of work, in any number of texts.
    pub fn bytes(&self, len: u64) -> Result<(), Error> {
        Self::take(&self.bytes, len, "much text")
    }

    /// Counts `value` with everything in it.
    pub fn container(&self, value: &Value) -> Result<(), Error> {
        self.count(value, 0)
    }

    fn count(&self, value: &Value, depth: usize) -> Result<(), Error> {
        if !matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::Iterable) {
            return Ok(());
        }
        if depth > MAX_DEPTH {
            return Err(invalid("containers are nested too deep"));
        }
        Self::take(&self.values, value.len().unwrap_or(1) as u64 + 1, "many values")?;
        for key in value.try_iter()? {
            if value.kind() == ValueKind::Map {
                self.count(&value.get_item(&key)?, depth + 1)?;
            }
            self.count(&key, depth + 1)?;
        }
        Ok(())
    }
}

/// Text that is being written under a budget.
struct Writer<'b> {
    text: String,
    budget: &'b Budget,
}

impl<'b> Writer<'b> {
    fn new(budget: &'b Budget) -> Self {
        Self { text: String::new(), budget }
    }

    fn push(&mut self, part: &str) -> Result<(), Error> {
        if self.text.len() + part.len() > self.budget.longest {
            return Err(invalid(format!("a text of more than {} bytes", self.budget.longest)));
        }
        self.text.push_str(part);
        Ok(())
    }

    fn finish(self) -> Result<String, Error> {
        self.budget.text(self.text.len())?;
        Ok(self.text)
    }
}

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

/// White space as `str.strip` and `str.split` see it.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

fn is_line_end(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// Methods of Python values that the engine does not have.
pub fn method(
    state: &mut State,
    value: &Value,
    name: &str,
    args: &[Value],
    budget: &Budget,
) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        return pycompat::unknown_method_callback(state, value, name, args);
    };
    budget.bytes(text.len() as u64)?;
    match name {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            let out = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
            Ok(Value::from(match name {
                "strip" => text.trim_matches(out),
                "lstrip" => text.trim_start_matches(out),
                _ => text.trim_end_matches(out),
            }))
        }
        "split" | "rsplit" => {
            let (separator, most, options): (Option<Value>, Option<i64>, Kwargs) = from_args(args)?;
            let separator = match separator {
                None => options.get::<Option<Value>>("sep")?,
                given => given,
            };
            let most = match most {
                None => options.get::<Option<i64>>("maxsplit")?,
                given => given,
            };
            options.assert_all_used()?;
            let most = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
            let separator = separator.as_ref().and_then(Value::as_str);
            let parts = split(text, separator, most, name == "rsplit")?;
            budget.bytes(32 * parts.len() as u64)?;
            Ok(Value::from_iter(parts))
        }
        "splitlines" => {
            let (keep,): (Option<bool>,) = from_args(args)?;
            Ok(Value::from_iter(lines(text, keep.unwrap_or(false))))
        }
        "removeprefix" | "removesuffix" => {
            let (part,): (&str,) = from_args(args)?;
            let cut = if name == "removeprefix" { text.strip_prefix(part) } else { text.strip_suffix(part) };
            Ok(Value::from(cut.unwrap_or(text)))
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            let found =
                if name == "partition" { text.split_once(separator) } else { text.rsplit_once(separator) };
            let (before, middle, after) = match found {
                Some((before, after)) => (before, separator, after),
                None if name == "partition" => (text, "", ""),
                None => ("", "", text),
            };
            let parts = [before, middle, after].map(Value::from);
            Ok(Value::from(minijinja::value::Tuple::from(parts)))
        }
        "replace" => {
            let (old, new, count): (&str, &str, Option<i64>) = from_args(args)?;
            replace(text, old, new, count, budget).map(Value::from)
        }
        "join" => {
            let (values,): (&Value,) = from_args(args)?;
            join(values.try_iter()?, text, budget).map(Value::from)
        }
        "format" => {
            bounded_format(text, args, budget)?;
            pycompat::unknown_method_callback(state, value, name, args)
        }
        "isdigit" => Ok(Value::from(!text.is_empty() && text.chars().all(|c| c.is_numeric()))),
        _ => pycompat::unknown_method_callback(state, value, name, args),
    }
}

/// `str.split` and `str.rsplit`, at runs of white space without a separator.
fn split<'t>(
    text: &'t str,
    separator: Option<&str>,
    most: usize,
    right: bool,
) -> Result<Vec<&'t str>, Error> {
    if let Some(separator) = separator {
        if separator.is_empty() {
            return Err(invalid("empty separator"));
        }
        let most = most.saturating_add(1);
        return Ok(if right {
            let mut parts: Vec<&str> = text.rsplitn(most, separator).collect();
            parts.reverse();
            parts
        } else {
            text.splitn(most, separator).collect()
        });
    }
    let mut parts = Vec::new();
    let mut rest = text;
    loop {
        rest = if right { rest.trim_end_matches(is_space) } else { rest.trim_start_matches(is_space) };
        if rest.is_empty() {
            break;
        }
        let at = if right { rest.rfind(is_space) } else { rest.find(is_space) };
        let Some(at) = at.filter(|_| parts.len() < most) else {
            parts.push(rest);
            break;
        };
        let width = rest[at..].chars().next().map_or(1, char::len_utf8);
        let (part, left) =
            if right { (&rest[at + width..], &rest[..at]) } else { (&rest[..at], &rest[at..]) };
        parts.push(part);
        rest = left;
    }
    if right {
        parts.reverse();
    }
    Ok(parts)
}

fn lines(text: &str, keep: bool) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(is_line_end) {
        let width = if rest[at..].starts_with("\r\n") {
            2
        } else {
            rest[at..].chars().next().map_or(1, char::len_utf8)
        };
        lines.push(if keep { &rest[..at + width] } else { &rest[..at] });
        rest = &rest[at + width..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

/// `text.replace(old, new, count)`.
pub fn replace(
    text: &str,
    old: &str,
    new: &str,
    count: Option<i64>,
    budget: &Budget,
) -> Result<String, Error> {
    let most = count.and_then(|count| usize::try_from(count).ok()).unwrap_or(usize::MAX);
    let found = text.matches(old).count().min(most);
    budget.text(text.len() + found.saturating_mul(new.len()))?;
    Ok(text.replacen(old, new, most))
}

/// `left * right`: numbers, or text or a list so many times.
pub fn times(left: &Value, right: &Value, budget: &Budget) -> Result<Value, Error> {
    let whole = |value: &Value| value.is_integer().then(|| i128::try_from(value.clone()).ok()).flatten();
    let (value, count) = if left.is_number() { (right, left) } else { (left, right) };
    if !value.is_number() {
        let count = whole(count).ok_or_else(|| invalid("can only repeat a whole number of times"))?;
        let count = usize::try_from(count.max(0)).unwrap_or(usize::MAX);
        if let Some(text) = value.as_str() {
            budget.text(text.len().saturating_mul(count))?;
            return Ok(Value::from(text.repeat(count)));
        }
        if value.kind() != ValueKind::Seq {
            return Err(invalid(format!("a {} cannot be repeated", value.kind())));
        }
        budget.bytes((value.len().unwrap_or(0).saturating_mul(count) as u64).saturating_mul(32))?;
        let items: Vec<Value> = value.try_iter()?.collect();
        let product = Value::from_iter(items.iter().cycle().take(items.len() * count).cloned());
        budget.container(&product)?;
        return Ok(product);
    }
    match (whole(left), whole(right)) {
        (Some(a), Some(b)) => {
            let product = a.checked_mul(b).ok_or_else(|| invalid("a number is too large"))?;
            Ok(i64::try_from(product).map_or_else(|_| Value::from(product), Value::from))
        }
        _ => Ok(Value::from(f64::try_from(left.clone())? * f64::try_from(right.clone())?)),
    }
}

/// Refuses formats whose widths or arguments would give too long a text.
pub fn bounded_format(format: &str, args: &[Value], budget: &Budget) -> Result<(), Error> {
    let digits = format.split(|c: char| !c.is_ascii_digit()).any(|run| run.trim_start_matches('0').len() > 3);
    if digits || format.contains('*') {
        return Err(invalid("a format asks for too much width"));
    }
    let mut longest = 0;
    for value in args {
        budget.container(value)?;
        longest = longest.max(str(value, budget)?.len());
    }
    let places = format.matches(['%', '{']).count();
    budget.text(format.len() + places.saturating_mul(longest.max(1000)))
}

/// `value[start:stop:step]` of text, a list or a tuple.
pub fn slice(
    value: &Value,
    start: &Value,
    stop: &Value,
    step: &Value,
    budget: &Budget,
) -> Result<Value, Error> {
    let bound = |bound: &Value| match (bound.is_none(), bound.as_i64()) {
        (true, _) => Ok(None),
        (_, Some(number)) => Ok(Some(number)),
        _ => Err(invalid("slice indices must be integers")),
    };
    let (start, stop, step) = (bound(start)?, bound(stop)?, bound(step)?.unwrap_or(1));
    if step == 0 {
        return Err(invalid("slice step cannot be zero"));
    }
    let pick = |len: usize| {
        let len = len as i64;
        let (low, high) = if step > 0 { (0, len) } else { (-1, len - 1) };
        let place = |given: Option<i64>, default: i64| {
            given.map_or(default, |at| (if at < 0 { at.saturating_add(len) } else { at }).clamp(low, high))
        };
        let (first, last) = if step > 0 {
            (place(start, low), place(stop, high))
        } else {
            (place(start, high), place(stop, low))
        };
        let mut at = first;
        std::iter::from_fn(move || {
            let inside = if step > 0 { at < last } else { at > last };
            let index = inside.then_some(at as usize);
            at = at.saturating_add(step);
            index
        })
    };
    if let Some(text) = value.as_str() {
        budget.bytes(4 * text.len() as u64)?;
        let chars: Vec<char> = text.chars().collect();
        return Ok(Value::from(pick(chars.len()).map(|at| chars[at]).collect::<String>()));
    }
    if !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
        return Err(invalid(format!("a {} cannot be sliced", value.kind())));
    }
    budget.bytes(32 * value.len().unwrap_or(0) as u64)?;
    let items: Vec<Value> = value.try_iter()?.collect();
    let picked: Vec<Value> = pick(items.len()).map(|at| items[at].clone()).collect();
    Ok(if value.is_tuple() {
        Value::from(minijinja::value::Tuple::from(picked))
    } else {
        Value::from(picked)
    })
}

/// A calendar date and time of day, as the caller's clock shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DateTime {
    /// For example 2026.
    pub year: u16,
    /// 1 to 12.
    pub month: u8,
    /// 1 to 31.
    pub day: u8,
    /// 0 to 23.
    pub hour: u8,
    /// 0 to 59.
    pub minute: u8,
    /// 0 to 60.
    pub second: u8,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

impl DateTime {
    /// The date and time `seconds` after 1970-01-01T00:00:00.
    pub fn from_unix(seconds: u64) -> Self {
        let (mut days, time) = (seconds / 86_400, seconds % 86_400);
        let leap = |year: u64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let mut year = 1970;
        while days >= 365 + u64::from(leap(year)) && year < 9999 {
            days -= 365 + u64::from(leap(year));
            year += 1;
        }
        let mut month = 0;
        let len =
            |month: usize| [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31][month];
        while month < 11 && days >= len(month) {
            days -= len(month);
            month += 1;
        }
        Self {
            year: year as u16,
            month: month as u8 + 1,
            day: days.min(30) as u8 + 1,
            hour: (time / 3600) as u8,
            minute: (time / 60 % 60) as u8,
            second: (time % 60) as u8,
        }
    }

    /// 0 for Sunday (Sakamoto's method).
    fn weekday(&self) -> usize {
        let shift = [0, 3, 2, 5, 0, 3, 5, 1, 4, 6, 2, 4][usize::from(self.month.clamp(1, 12)) - 1];
        let year = usize::from(self.year) - usize::from(self.month < 3 && self.year > 0);
        (year + year / 4 - year / 100 + year / 400 + shift + usize::from(self.day)) % 7
    }

    fn day_of_year(&self) -> u32 {
        let leap = self.year % 4 == 0 && (self.year % 100 != 0 || self.year % 400 == 0);
        let before =
            [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334][usize::from(self.month.clamp(1, 12)) - 1];
        before + u32::from(self.day) + u32::from(leap && self.month > 2)
    }

    /// `strftime` in the C locale; a directive that is not known here is copied.
    pub fn strftime(&self, format: &str) -> String {
        let month = MONTHS[usize::from(self.month.clamp(1, 12)) - 1];
        let day = DAYS[self.weekday()];
        let hour12 = (self.hour + 11) % 12 + 1;
        let mut out = String::new();
        let mut chars = format.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            let mut directive = chars.next();
            let unpadded = directive == Some('-');
            if unpadded {
                directive = chars.next();
            }
            let number = |value: u32, width: usize| {
                if unpadded { value.to_string() } else { format!("{value:0width$}") }
            };
            let part = match directive {
                Some('Y') => number(self.year.into(), 4),
                Some('y') => number(u32::from(self.year) % 100, 2),
                Some('m') => number(self.month.into(), 2),
                Some('d') => number(self.day.into(), 2),
                Some('e') => format!("{:>2}", self.day),
                Some('H') => number(self.hour.into(), 2),
                Some('I') => number(hour12.into(), 2),
                Some('M') => number(self.minute.into(), 2),
                Some('S') => number(self.second.into(), 2),
                Some('j') => number(self.day_of_year(), 3),
                Some('w') => number(self.weekday() as u32, 1),
                Some('p') => (if self.hour < 12 { "AM" } else { "PM" }).into(),
                Some('B') => month.into(),
                Some('b' | 'h') => month[..3].into(),
                Some('A') => day.into(),
                Some('a') => day[..3].into(),
                Some('F') => self.strftime("%Y-%m-%d"),
                Some('T' | 'X') => self.strftime("%H:%M:%S"),
                Some('D' | 'x') => self.strftime("%m/%d/%y"),
                Some('R') => self.strftime("%H:%M"),
                Some('c') => self.strftime("%a %b %e %H:%M:%S %Y"),
                Some('n') => "\n".into(),
                Some('t') => "\t".into(),
                Some('%') => "%".into(),
                // A time without a zone has neither name nor offset.
                Some('Z' | 'z') => String::new(),
                Some(other) => format!("%{other}"),
                None => "%".into(),
            };
            out.push_str(&part);
        }
        out
    }
}
