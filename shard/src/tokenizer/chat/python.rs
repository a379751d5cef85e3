//! What Python values can do that chat templates assume: string methods, products, formats, slices.
//!
//! How they are written is in `print.rs`, what all of it may make in `budget.rs`.

use minijinja::{
    Error, State, Value,
    value::{Kwargs, ValueKind, from_args},
};
use minijinja_contrib::pycompat;

use super::{
    budget::{Budget, invalid},
    print::{join, str},
};

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
