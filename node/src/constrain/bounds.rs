//! Whether a form is small enough to be compiled at all.
//!
//! The grammar engine descends into schemas and rules with one stack frame or more per level, and a process whose stack
//! overflows is gone with everything in it. So what nests is measured first, here, without recursion: a schema's parts along
//! its references, each followed once, as the engine does; a Lark grammar's rules along the names they use, and its
//! brackets.
//!
//! Limits: grammars are scanned for names, brackets and quoted text, not parsed. Whether a form means anything is for the
//! engine to say, in a process that may die of it ([`super::trial`]).

use std::collections::{HashMap, HashSet};

use serde_json::Value;

/// Deepest nesting of a schema, references included: what people write stays below 20, and the engine needs some tens of
/// kilobytes of stack per level.
pub const MAX_SCHEMA_DEPTH: usize = 64;
/// Most parts of a schema that can be reached from its root: the largest schemas of public APIs have some thousands.
pub const MAX_SCHEMA_NODES: usize = 4096;
/// Longest chain of rules in a grammar, each used by the one before: grammars of programming languages have 50 to 100.
pub const MAX_RULE_DEPTH: usize = 192;
/// Most rules and terminals of a grammar.
pub const MAX_RULES: usize = 4096;
/// Deepest nesting of brackets in a grammar or a regular expression.
pub const MAX_NESTING: usize = 64;

/// Keys whose value is one schema.
const ONE: [&str; 6] =
    ["items", "additionalItems", "additionalProperties", "not", "contains", "propertyNames"];
/// Keys whose value is a list of schemas.
const LISTS: [&str; 5] = ["anyOf", "oneOf", "allOf", "prefixItems", "items"];
/// Keys whose value is an object of schemas.
const MAPS: [&str; 2] = ["properties", "patternProperties"];
/// Keys whose value is data that the answer must equal.
const DATA: [&str; 2] = ["const", "enum"];

/// Measures a JSON schema.
///
/// # Errors
/// What is too deep or too much, with the figure that is allowed.
pub fn schema(root: &Value) -> Result<(), String> {
    let too_deep = || {
        format!(
            "the schema is more than {MAX_SCHEMA_DEPTH} deep along its references and nested parts; this is the depth that is taken: flatten it"
        )
    };
    // A reference is followed where it is met first; the engine keeps what it found there.
    let mut followed: HashSet<&str> = HashSet::new();
    let mut nodes = 0;
    let mut open = vec![(root, 0)];
    while let Some((part, depth)) = open.pop() {
        nodes += 1;
        if nodes > MAX_SCHEMA_NODES {
            return Err(format!(
                "the schema has more than {MAX_SCHEMA_NODES} parts; this is the number that is taken: simplify it"
            ));
        }
        if depth > MAX_SCHEMA_DEPTH {
            return Err(too_deep());
        }
        let Some(members) = part.as_object() else { continue };
        // The last one pushed is looked at first: what comes first in the schema, and below it.
        for (key, value) in members.iter().rev() {
            let key = key.as_str();
            match value {
                Value::String(target) if key == "$ref" => {
                    if followed.insert(target)
                        && let Some(target) = resolve(root, target)
                    {
                        open.push((target, depth + 1));
                    }
                }
                Value::Array(list) if LISTS.contains(&key) => {
                    open.extend(list.iter().rev().map(|part| (part, depth + 1)));
                }
                Value::Object(map) if MAPS.contains(&key) => {
                    open.extend(map.values().rev().map(|part| (part, depth + 1)));
                }
                Value::Object(_) if ONE.contains(&key) => open.push((value, depth + 1)),
                _ if DATA.contains(&key) && data_depth(value) > MAX_SCHEMA_DEPTH => return Err(too_deep()),
                _ => {}
            }
        }
    }
    Ok(())
}

/// The part that a reference names, as the engine finds it: `#`, or a path from the root.
fn resolve<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    let path = reference.strip_prefix('#')?.trim_start_matches('/');
    if path.is_empty() {
        return Some(root);
    }
    path.split('/').try_fold(root, |part, step| match part {
        Value::Array(list) => list.get(step.parse::<usize>().ok()?),
        part => part.get(step),
    })
}

fn data_depth(data: &Value) -> usize {
    let mut deepest = 0;
    let mut open = vec![(data, 1)];
    while let Some((data, depth)) = open.pop() {
        deepest = deepest.max(depth);
        match data {
            Value::Array(list) => open.extend(list.iter().map(|data| (data, depth + 1))),
            Value::Object(map) => open.extend(map.values().map(|data| (data, depth + 1))),
            _ => {}
        }
    }
    deepest
}

/// Measures a Lark grammar, and the schemas in it.
///
/// # Errors
/// As [`schema`].
pub fn grammar(text: &str) -> Result<(), String> {
    let scanned = scan(text)?;
    for part in &scanned.schemas {
        schema(part)?;
    }
    if scanned.rules.len() > MAX_RULES {
        return Err(format!(
            "the grammar has more than {MAX_RULES} rules; this is the number that is taken: simplify it"
        ));
    }
    let mut met: HashSet<&str> = HashSet::new();
    for start in ["start"].into_iter().chain(scanned.order.iter().copied()) {
        let mut open = vec![(start, 1)];
        while let Some((name, depth)) = open.pop() {
            let Some(uses) = scanned.rules.get(name) else { continue };
            if !met.insert(name) {
                continue;
            }
            if depth > MAX_RULE_DEPTH {
                return Err(format!(
                    "the grammar's rules are more than {MAX_RULE_DEPTH} deep; this is the depth that is taken: merge rules that only name the next one"
                ));
            }
            open.extend(uses.iter().rev().map(|name| (*name, depth + 1)));
        }
    }
    Ok(())
}

/// Measures a regular expression.
///
/// # Errors
/// As [`schema`].
pub fn regex(text: &str) -> Result<(), String> {
    let (mut depth, mut class, mut escaped) = (0_usize, false, false);
    for letter in text.chars() {
        match letter {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '[' => class = true,
            ']' => class = false,
            '(' if !class => depth += 1,
            ')' if !class => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_NESTING {
            return Err(nests("the regular expression"));
        }
    }
    Ok(())
}

fn nests(what: &str) -> String {
    format!("{what} nests brackets more than {MAX_NESTING} deep; this is the depth that is taken: flatten it")
}

/// What a grammar consists of.
#[derive(Default)]
struct Scanned<'a> {
    /// Rules and terminals, and the names in their bodies.
    rules: HashMap<&'a str, Vec<&'a str>>,
    /// Their names as they come.
    order: Vec<&'a str>,
    /// What stands behind `%json`.
    schemas: Vec<Value>,
}

fn scan(text: &str) -> Result<Scanned<'_>, String> {
    let mut scanned = Scanned::default();
    let (mut current, mut nesting, mut at) = (None, 0_usize, 0);
    let bytes = text.as_bytes();
    while let Some(&byte) = bytes.get(at) {
        let rest = &text[at..];
        match byte {
            b'"' => at += quoted(rest, '"'),
            b'#' => at += rest.find('\n').unwrap_or(rest.len()),
            b'/' if rest.starts_with("//") => at += rest.find('\n').unwrap_or(rest.len()),
            b'/' => at += quoted(rest, '/'),
            b'(' | b'[' | b'{' => {
                nesting += 1;
                if nesting > MAX_NESTING {
                    return Err(nests("the grammar"));
                }
                at += 1;
            }
            b')' | b']' | b'}' => (nesting, at) = (nesting.saturating_sub(1), at + 1),
            b'%' => at += directive(rest, &mut scanned.schemas),
            b'_' | b'a'..=b'z' | b'A'..=b'Z' => {
                let letter = |c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '-');
                let name = &rest[..rest.find(letter).unwrap_or(rest.len())];
                at += name.len();
                // A name is defined where a colon follows, perhaps behind its attributes, at the beginning of a line.
                if nesting == 0 && begins_line(&text[..at - name.len()]) {
                    if !scanned.rules.contains_key(name) {
                        scanned.order.push(name);
                    }
                    scanned.rules.entry(name).or_default();
                    current = Some(name);
                } else if let Some(uses) = current.and_then(|rule| scanned.rules.get_mut(rule)) {
                    uses.push(name);
                }
            }
            _ => at += rest.chars().next().map_or(1, char::len_utf8),
        }
    }
    Ok(scanned)
}

fn begins_line(before: &str) -> bool {
    let line = before.rsplit('\n').next().unwrap_or_default();
    line.trim().trim_start_matches(['!', '?']).is_empty()
}

/// Bytes of a quoted piece that begins here; one that does not end on its line is the mark alone.
fn quoted(text: &str, mark: char) -> usize {
    let mut escaped = false;
    for (at, letter) in text.char_indices().skip(1) {
        match letter {
            '\n' => break,
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            letter if letter == mark => return at + 1,
            _ => {}
        }
    }
    1
}

/// Bytes of a `%word` and of the JSON that belongs to it; schemas are kept.
fn directive(text: &str, schemas: &mut Vec<Value>) -> usize {
    let word = 1 + text[1..].find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(text.len() - 1);
    if !matches!(&text[..word], "%json" | "%llguidance" | "%regex") {
        return word;
    }
    let mut values = serde_json::Deserializer::from_str(&text[word..]).into_iter::<Value>();
    match values.next() {
        Some(Ok(value)) => {
            if &text[..word] == "%json" {
                schemas.push(value);
            }
            word + values.byte_offset()
        }
        // The engine will say what is wrong with it.
        _ => word,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// `n` definitions, each referring to the next.
    fn chain(n: usize) -> Value {
        let name = |i: usize| format!("d{i}");
        let mut definitions: serde_json::Map<String, Value> =
            (0..n).map(|i| (name(i), json!({"$ref": format!("#/$defs/{}", name(i + 1))}))).collect();
        definitions.insert(name(n), json!({"type": "integer"}));
        json!({"$defs": definitions, "$ref": "#/$defs/d0"})
    }

    fn nested(n: usize, key: &str) -> Value {
        (0..n).fold(json!({"type": "integer"}), |inner, _| json!({ key: [inner] }))
    }

    #[test]
    fn chains_and_nests_are_measured_and_refused_with_the_depth() {
        for (n, passes) in
            [(10, true), (MAX_SCHEMA_DEPTH - 1, true), (MAX_SCHEMA_DEPTH, false), (1000, false)]
        {
            let chain = schema(&chain(n));
            assert_eq!(chain.is_ok(), passes, "{n} references: {chain:?}");
            if !passes {
                assert!(chain.unwrap_err().contains("64 deep"));
            }
        }
        // What a parser of JSON lets through is at most 127 deep.
        assert_eq!(schema(&nested(30, "anyOf")), Ok(()));
        assert!(schema(&nested(65, "anyOf")).is_err());
        let deep = (0..100).fold(json!(1), |inner, _| json!([inner]));
        assert!(schema(&json!({ "const": deep })).is_err());
        let wide: serde_json::Map<String, Value> =
            (0..MAX_SCHEMA_NODES).map(|i| (i.to_string(), json!({"type": "integer"}))).collect();
        assert!(schema(&json!({ "properties": wide })).unwrap_err().contains("4096 parts"));
        assert_eq!(
            schema(&json!({"properties": {"$ref": {"type": "string"}, "const": {"type": "null"}}})),
            Ok(())
        );
    }

    #[test]
    fn recursion_is_followed_once_and_ends() {
        let list =
            json!({"$defs": {"n": {"properties": {"next": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"});
        assert_eq!(schema(&list), Ok(()));
        let mutual =
            json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"});
        assert_eq!(schema(&mutual), Ok(()));
        assert_eq!(schema(&json!({"$ref": "#"})), Ok(()));
        let missing = json!({"$ref": "#/nowhere", "anyOf": [{"$ref": "elsewhere"}]});
        assert_eq!(schema(&missing), Ok(()), "what leads nowhere is for the engine to refuse");
    }

    #[test]
    fn rules_of_a_grammar_are_followed_through_names_only() {
        let chain = |n: usize| {
            let rules: String = (0..n).map(|i| format!("r{i}: \"x\" r{}\n", i + 1)).collect();
            format!("start: r0\n{rules}r{n}: \"y\"\n")
        };
        assert_eq!(grammar(&chain(100)), Ok(()));
        assert!(grammar(&chain(3000)).unwrap_err().contains("192 deep"));
        let terminals: String = (0..3000).map(|i| format!("T{i}: \"x\" T{}\n", i + 1)).collect();
        assert!(grammar(&format!("start: T0\n{terminals}T3000: \"y\"\n")).is_err());
        assert!(grammar(&format!("start: {}\"x\"{}\n", "(".repeat(65), ")".repeat(65))).is_err());
        let many: String = (0..=MAX_RULES).map(|i| format!("r{i}: \"x\"\n")).collect();
        assert!(grammar(&many).unwrap_err().contains("4096 rules"));
        let quoted = format!(
            "start: \"{}\" /{}/ // {}\n  | other\nother: \"a\"\n",
            "(".repeat(99),
            "[(]".repeat(99),
            "(".repeat(99)
        );
        assert_eq!(grammar(&quoted), Ok(()));
        let inside = format!("start: thing\nthing: %json {}\n", chain_text());
        assert!(grammar(&inside).unwrap_err().contains("64 deep"));
        for odd in ["start: \"open", "start: /", "%json {", "%", "é: \"ß\"", ""] {
            assert_eq!(grammar(odd), Ok(()), "{odd} is for the engine to refuse");
        }
    }

    fn chain_text() -> String {
        chain(100).to_string()
    }

    #[test]
    fn brackets_of_a_regular_expression_are_counted_outside_of_classes() {
        assert!(regex(&format!("{}a{}", "(".repeat(65), ")".repeat(65))).is_err());
        assert_eq!(regex(&"(a)".repeat(1000)), Ok(()));
        assert_eq!(regex(&r"\(".repeat(1000)), Ok(()));
        assert_eq!(regex(&"[(]".repeat(1000)), Ok(()));
    }
}
