//! The grammar of a call, from behind the mark that begins it up to its end; `api/src/calls.rs` reads the same forms.
//!
//! | mark | what must follow |
//! |---|---|
//! | `<tool_call>` | an object of `name` and `arguments`, or what the model's template teaches ([`Tags`]), and `</tool_call>` |
//! | `<function=` | `f>{...}</function>`, or Qwen3-Coder's parameters where they are taught |
//! | `<\|python_tag\|>` | an object of `name` and `parameters` |
//! | `[TOOL_CALLS]` | a list of objects, or `f[ARGS]{...}` |
//! | DeepSeek's and Kimi's marks of a section | calls between their marks, with arguments in JSON, and the end of the section |
//! | `<minimax:tool_call>` | calls with MiniMax's parameters, and `</minimax:tool_call>` |
//! | a header of harmony that names a tool | the rest of the header, and arguments in JSON |
//! | the head of a bare call ([`super::bare`]) | arguments in JSON, and the brace that closes the call |
//! | `<\|python_start\|>` | an object of `name` and `parameters`, or a list of calls in Python |
//! | the head of a bare list | the arguments of its first call, further calls, and the end of the list |
//!
//! A parameter between tags is one of the values that its schema lists, text up to its closing tag where it may be a string, and
//! JSON of its schema otherwise. Parameters come in the order of their schema, as in JSON. A tool whose parameters are not listed
//! but referred to or composed is called in JSON, or with MiniMax's marks by any parameters. Arguments in Python are values of JSON,
//! or one of Python's three words where the schema takes what it means; only tools are called so whose parameters can be written one
//! by one ([`is_called_in_python`]).
//!
//! Limits: `pattern`, `format` and lengths of a string between tags are not held, and what may be any string may be all else; in
//! JSON they are. A closing tag within a string of JSON ends the value for the reader.

use std::fmt::Write;

use api::{inference::CallForm, schema_refs};
use llguidance::toktrie::TokTrie;
use serde_json::{Value, json};
use shard::tokenizer::chat::Template;

use super::fixed_space;

/// What follows a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
    Tagged,
    Function,
    Object,
    List,
    DeepSeek,
    Kimi,
    MiniMax,
    Harmony,
    /// Arguments of the tool with this number, and the brackets that close the call.
    Arguments {
        tool: usize,
        brackets: usize,
    },
    /// A list; its first call may have begun, with the tool of this number.
    Python(Option<usize>),
}

/// How a model begins a call.
pub(super) const MARKS: [(&str, Body); 10] = [
    ("<tool_call>", Body::Tagged),
    ("<function=", Body::Function),
    ("<|python_tag|>", Body::Object),
    ("[TOOL_CALLS]", Body::List),
    ("<｜tool▁calls▁begin｜>", Body::DeepSeek),
    ("<|tool_calls_section_begin|>", Body::Kimi),
    ("<minimax:tool_call>", Body::MiniMax),
    ("<|channel|>commentary to=functions.", Body::Harmony),
    ("<|start|>assistant to=functions.", Body::Harmony),
    ("<|python_start|>", Body::Python(None)),
];
/// Bytes of the longest mark.
pub(super) const LONGEST: usize = {
    let (mut longest, mut at) = (0, 0);
    while at < MARKS.len() {
        let bytes = MARKS[at].0.len();
        longest = if bytes > longest { bytes } else { longest };
        at += 1;
    }
    longest
};

/// How a model's template teaches it to write parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tags {
    /// In JSON.
    #[default]
    None,
    /// `<arg_key>k</arg_key><arg_value>v</arg_value>`.
    Glm,
    /// `<parameter=k>v</parameter>`.
    Qwen,
}

impl Tags {
    /// Of a model with this template.
    pub fn of(template: Option<&Template>) -> Self {
        let teaches = |words| template.is_some_and(|template| template.mentions(words));
        match () {
            () if teaches("<arg_key>") => Self::Glm,
            () if teaches("<parameter=") => Self::Qwen,
            () => Self::None,
        }
    }
}

/// What stands around parameters, and where line breaks may.
struct Syntax {
    /// Around the name of a parameter.
    key: [&'static str; 2],
    /// Before and behind its value.
    value: [&'static str; 2],
    /// Behind the last one. The reader ends a value there, too.
    end: &'static str,
    /// Whether a line break on each side of a value is none of it.
    lines: bool,
}

const GLM: Syntax = Syntax {
    key: ["<arg_key>", "</arg_key>"],
    value: ["<arg_value>", "</arg_value>"],
    end: "</tool_call>",
    lines: false,
};
const QWEN: Syntax =
    Syntax { key: ["<parameter=", ">"], value: ["", "</parameter>"], end: "</function>", lines: true };
const MINIMAX: Syntax = Syntax {
    key: ["<parameter name=\"", "\">"],
    value: ["", "</parameter>"],
    end: "</invoke>",
    lines: false,
};
/// Parts of a schema that are looked at for the texts that it lists.
const MAX_STEPS: usize = 256;
/// Bytes of schemas that are repeated for parameters with references; a tool with more is called in JSON only.
const MAX_COPIED_BYTES: usize = 64 << 10;

/// A grammar in the making.
struct Rules<'a> {
    trie: &'a TokTrie,
    text: String,
    count: usize,
}

/// A Lark grammar of what follows a mark, for a vocabulary.
pub(super) fn grammar(body: Body, tags: Tags, tools: &[CallForm], trie: &TokTrie) -> String {
    let mut rules = Rules { trie, text: String::new(), count: 0 };
    let start = rules.start(body, tags, tools);
    format!("start: {start}\n{}SPACE: /[ \\n]{{0,2}}/\n", rules.text)
}

impl Rules<'_> {
    /// Adds a rule and gives its name.
    fn add(&mut self, is: &str) -> String {
        let name = format!("rule_{}", self.count);
        self.count += 1;
        let _ = writeln!(self.text, "{name}: {is}");
        name
    }

    /// Adds a rule where it says something.
    fn add_unless_empty(&mut self, is: &str) -> String {
        if is.trim().is_empty() { String::new() } else { self.add(is) }
    }

    /// One of the calls that `of` makes of the tools.
    fn any(&mut self, tools: &[CallForm], of: impl Fn(&mut Self, &CallForm) -> String) -> String {
        let calls: Vec<String> = tools
            .iter()
            .map(|tool| {
                let is = of(self, tool);
                self.add(&is)
            })
            .collect();
        format!("({})", calls.join(" | "))
    }

    /// A mark, which may be a control token of the vocabulary, a text, or both.
    fn mark(&self, text: &str) -> String {
        match self.trie.get_special_token(text) {
            Some(id) => format!("({} | <[{id}]>)", json!(text)),
            None => json!(text).to_string(),
        }
    }

    fn start(&mut self, body: Body, tags: Tags, tools: &[CallForm]) -> String {
        let plain = |rules: &mut Self, behind: &str| {
            let between = rules.mark(behind);
            rules.any(tools, |_, tool| {
                format!("{} {between} SPACE {}", json!(tool.name), json_rule(&tool.parameters))
            })
        };
        match body {
            Body::Tagged => {
                let mut forms = vec![self.any(tools, |_, tool| object(tool, "arguments"))];
                let end = self.mark("</tool_call>");
                let listed: Vec<CallForm> = tools.iter().filter(|tool| is_listed(tool)).cloned().collect();
                match tags {
                    _ if listed.is_empty() => {}
                    Tags::None => {}
                    Tags::Glm => forms.push(self.any(&listed, |rules, tool| {
                        format!("{} SPACE {}", json!(tool.name), rules.parameters(&GLM, tool))
                    })),
                    Tags::Qwen => forms.push(self.any(&listed, |rules, tool| {
                        let head = json!(format!("<function={}>", tool.name));
                        format!("{head} SPACE {} \"</function>\"", rules.parameters(&QWEN, tool))
                    })),
                }
                format!("SPACE ({}) SPACE {end}", forms.join(" | "))
            }
            Body::Function => {
                let calls = self.any(tools, |rules, tool| {
                    let head = json!(format!("{}>", tool.name));
                    let arguments = json_rule(&tool.parameters);
                    if tags == Tags::Qwen && is_listed(tool) {
                        let arguments = rules.add(&arguments);
                        format!("{head} SPACE ({arguments} SPACE | {})", rules.parameters(&QWEN, tool))
                    } else {
                        format!("{head} SPACE {arguments}")
                    }
                });
                format!("{calls} SPACE \"</function>\"")
            }
            Body::Object => {
                let calls = self.any(tools, |_, tool| object(tool, "parameters"));
                format!("SPACE {calls}")
            }
            Body::List => {
                let calls = self.any(tools, |_, tool| object(tool, "arguments"));
                let call = self.add(&calls);
                let named = plain(self, "[ARGS]");
                format!("SPACE (\"[\" {call} (\", \" {call})* \"]\" | {named})")
            }
            Body::DeepSeek => {
                let [begin, separator, end, last] = [
                    "<｜tool▁call▁begin｜>",
                    "<｜tool▁sep｜>",
                    "<｜tool▁call▁end｜>",
                    "<｜tool▁calls▁end｜>",
                ]
                .map(|mark| self.mark(mark));
                let fenced = self.any(tools, |_, tool| {
                    format!("{} {}", json!(format!("{}\n```json\n", tool.name)), json_rule(&tool.parameters))
                });
                let plain = plain(self, "<｜tool▁sep｜>");
                let call = format!(
                    "{begin} ({plain} | \"function\" {separator} {fenced} \"\\n```\") SPACE {end} SPACE"
                );
                format!("SPACE ({})+ {last}", self.add(&call))
            }
            Body::Kimi => {
                let [begin, separator, end, last] = [
                    "<|tool_call_begin|>",
                    "<|tool_call_argument_begin|>",
                    "<|tool_call_end|>",
                    "<|tool_calls_section_end|>",
                ]
                .map(|mark| self.mark(mark));
                let calls = self.any(tools, |_, tool| {
                    let name = json!(tool.name);
                    format!("{name} COUNT {separator} SPACE {}", json_rule(&tool.parameters))
                });
                self.text.push_str("COUNT: /:[0-9]{1,3}/\n");
                let call = format!("{begin} SPACE \"functions.\"? {calls} SPACE {end} SPACE");
                format!("SPACE ({})+ {last}", self.add(&call))
            }
            Body::MiniMax => {
                let any = json!({"type": "object"});
                let calls = self.any(tools, |rules, tool| {
                    let head = json!(format!("<invoke name=\"{}\">", tool.name));
                    let open = CallForm { name: tool.name.clone(), parameters: any.clone() };
                    let parameters = rules.parameters(&MINIMAX, if is_listed(tool) { tool } else { &open });
                    format!("{head} SPACE {parameters} \"</invoke>\" SPACE")
                });
                format!("SPACE {calls}+ {}", self.mark("</minimax:tool_call>"))
            }
            Body::Arguments { tool, brackets } => {
                let arguments = self.add(&json_rule(&tools[tool].parameters));
                format!("SPACE {arguments}{}", " SPACE \"}\"".repeat(brackets))
            }
            Body::Python(first) => {
                let call = self.any(tools, |rules, tool| {
                    let head = json!(format!("{}(", tool.name));
                    format!("{head} {} \")\"", rules.arguments(tool))
                });
                let further = format!("(\", \" {})* \"]\"", self.add(&call));
                match first {
                    Some(tool) => format!("{} \")\" {further}", self.arguments(&tools[tool])),
                    None => {
                        let object = self.any(tools, |_, tool| object(tool, "parameters"));
                        format!("SPACE ({object} | \"[\" {} {further})", self.add(&call))
                    }
                }
            }
            Body::Harmony => {
                let [channel, constrain] = ["<|channel|>", "<|constrain|>"].map(|mark| self.mark(mark));
                let message = self.mark("<|message|>");
                self.any(tools, |_, tool| {
                    let head = format!(
                        "{} ({channel} \"commentary\")? (\" \"? {constrain} \"json\" | \" json\")?",
                        json!(tool.name)
                    );
                    format!("{head} {message} {}", json_rule(&tool.parameters))
                })
            }
        }
    }

    /// The parameters of a call between tags, each with the line break that may follow it.
    fn parameters(&mut self, syntax: &Syntax, tool: &CallForm) -> String {
        let schema = &tool.parameters;
        let Some(properties) = schema["properties"].as_object().filter(|listed| !listed.is_empty()) else {
            // What is not listed is of any name and kind, unless nothing may come.
            if schema["additionalProperties"] == false {
                return "SPACE".into();
            }
            let text = self.text(syntax);
            let [before, behind] = syntax.key.map(|tag| json!(tag));
            let value = format!("{before} /[^<>\"\\n]{{1,64}}/ {behind} {} {text} SPACE", syntax.opening());
            return format!("({})*", self.add(&value));
        };
        let required = required(schema);
        let mut all = Vec::new();
        for (key, property) in properties {
            let head = json!(format!("{}{key}{}", syntax.key[0], syntax.key[1]));
            let value = self.value(syntax, tool, property);
            let rule = self.add(&format!("{head} {} {value} SPACE", syntax.opening()));
            all.push(if required.contains(&key.as_str()) { rule } else { format!("{rule}?") });
        }
        all.join(" ")
    }

    /// The arguments of a call in Python, in the order of their schema.
    fn arguments(&mut self, tool: &CallForm) -> String {
        let schema = &tool.parameters;
        let properties = || schema["properties"].as_object().into_iter().flatten();
        let required = required(schema);
        // From the last to the first: what may follow where one came already, and where none did.
        let (mut behind, mut first) = (String::new(), String::new());
        for (key, property) in properties().collect::<Vec<_>>().into_iter().rev() {
            let value = self.literal(tool, property);
            let one = self.add(&format!("{} {value}", json!(format!("{key}="))));
            let begun = format!("{one} {behind}");
            let (further, alone) = match required.contains(&key.as_str()) {
                true => (format!("\", \" {begun}"), begun),
                false if first.is_empty() => (format!("(\", \" {one})? {behind}"), format!("({begun})?")),
                false => (format!("(\", \" {one})? {behind}"), format!("({begun} | {first})")),
            };
            behind = self.add_unless_empty(&further);
            first = self.add_unless_empty(&alone);
        }
        first
    }

    /// A value of an argument in Python.
    fn literal(&mut self, tool: &CallForm, schema: &Value) -> String {
        let takes = |kind: &str| takes(schema, &tool.parameters, kind, &mut { MAX_STEPS });
        let mut forms = vec![self.add(&json_rule(&alone(tool, schema)))];
        forms.extend(takes("boolean").then(|| "\"True\" | \"False\"".into()));
        forms.extend(takes("null").then(|| "\"None\"".into()));
        format!("({})", forms.join(" | "))
    }

    /// A value and its closing tag.
    fn value(&mut self, syntax: &Syntax, tool: &CallForm, schema: &Value) -> String {
        let [end, cut] = [syntax.value[1], syntax.end];
        let (mut texts, mut steps) = (Vec::new(), MAX_STEPS);
        if finite(schema, &tool.parameters, &mut texts, &mut steps)
            && texts.iter().all(|text| !text.contains(end) && !text.contains(cut))
        {
            let texts: Vec<String> = texts.iter().map(|text| json!(text).to_string()).collect();
            let line = if syntax.lines { "\"\\n\"?" } else { "" };
            return format!("{line} ({}) {line} {}", texts.join(" | "), json!(end));
        }
        if !api::is_written_as_json(schema, &tool.parameters) {
            return self.text(syntax);
        }
        // White space around JSON is none of the value.
        format!("\"\\n\"? {} \"\\n\"? {}", self.add(&json_rule(&alone(tool, schema))), json!(end))
    }

    /// Any text that has neither the tag that ends a value nor the one that ends a call, and the former.
    fn text(&mut self, syntax: &Syntax) -> String {
        let (text, any) = (format!("text_{}", self.count), format!("TEXT_{}", self.count));
        self.count += 1;
        let cut = syntax.end.replace('/', "\\/");
        let _ = writeln!(self.text, "{any}: /(?s:.*)/ & ~/(?s:.*){cut}(?s:.*)/");
        let _ = writeln!(self.text, "{text}[suffix={}]: {any}", json!(syntax.value[1]));
        text
    }
}

impl Syntax {
    /// What stands between the name of a parameter and its value.
    fn opening(&self) -> String {
        if self.value[0].is_empty() { String::new() } else { format!("\"\\n\"? {}", json!(self.value[0])) }
    }
}

/// Whether the parameters of a tool can be written one by one: they are listed, or may be any.
fn is_listed(tool: &CallForm) -> bool {
    let schema = &tool.parameters;
    let composed = schema.as_object().is_some_and(is_composed);
    let properties = || schema["properties"].as_object().into_iter().flatten();
    // Each of these takes the whole along.
    let copied = properties().filter(|(_, property)| refers(property)).count();
    !composed && (copied < 2 || copied * schema.to_string().len() <= MAX_COPIED_BYTES)
}

/// The tools, whose arguments are objects even where their schemas do not say so.
pub(super) fn of_objects(tools: &[CallForm]) -> Vec<CallForm> {
    let of_objects = |tool: &CallForm| {
        let mut tool = tool.clone();
        match tool.parameters.as_object_mut() {
            Some(schema) if !is_composed(schema) => {
                schema.entry("type").or_insert_with(|| "object".into());
            }
            Some(_) => {}
            None => tool.parameters = json!({"type": "object"}),
        }
        tool
    };
    tools.iter().map(of_objects).collect()
}

/// Whether calls of a tool in Python can be held: its parameters are listed, each of a name that Python has, and none depends on
/// another one.
pub(super) fn is_called_in_python(tool: &CallForm) -> bool {
    const KNOWN: [&str; 7] =
        ["type", "properties", "required", "additionalProperties", "title", "description", "$schema"];
    let Some(schema) = tool.parameters.as_object().filter(|_| is_listed(tool)) else { return false };
    let of_letters =
        |key: &String| !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let properties = schema.get("properties").and_then(Value::as_object);
    let named = |key: &str| properties.is_some_and(|properties| properties.contains_key(key));
    let listed =
        properties.is_some_and(|properties| !properties.is_empty() && properties.keys().all(of_letters));
    let is_empty = properties.is_none_or(|properties| properties.is_empty())
        && schema.get("additionalProperties") == Some(&Value::Bool(false));
    let is_known = |key: &String| KNOWN.contains(&key.as_str()) || key == "$defs" || key == "definitions";
    (listed || is_empty) && schema.keys().all(is_known) && required(&tool.parameters).into_iter().all(named)
}

fn required(schema: &Value) -> Vec<&str> {
    schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

fn is_composed(schema: &serde_json::Map<String, Value>) -> bool {
    ["$ref", "anyOf", "oneOf", "allOf"].iter().any(|key| schema.contains_key(*key))
}

/// Whether `schema`, a part of `root`, takes any value of a `kind`.
fn takes(schema: &Value, root: &Value, kind: &str, steps: &mut usize) -> bool {
    let Some(rest) = steps.checked_sub(1) else { return false };
    *steps = rest;
    if schema.get("const").is_some() || schema.get("enum").is_some() {
        return false;
    }
    if let Some(target) = schema.get("$ref").and_then(Value::as_str) {
        let target = target.strip_prefix('#').and_then(|path| root.pointer(path));
        return target.is_some_and(|target| takes(target, root, kind, steps));
    }
    let union = ["anyOf", "oneOf"].iter().find_map(|key| schema.get(*key).and_then(Value::as_array));
    if let Some(choices) = union {
        return choices.iter().any(|choice| takes(choice, root, kind, steps));
    }
    match &schema["type"] {
        Value::Array(kinds) => kinds.iter().any(|one| one == kind),
        one => one == kind,
    }
}

/// The schema of one parameter of a tool as one that stands for itself.
fn alone(tool: &CallForm, schema: &Value) -> Value {
    if !refers(schema) {
        return schema.clone();
    }
    // References are to the root of all parameters, which goes along.
    let place = "/$defs/parameters";
    let mut alone = schema_refs::moved(schema, place);
    alone["$defs"] = json!({"parameters": schema_refs::moved(&tool.parameters, place)});
    alone
}

fn refers(schema: &Value) -> bool {
    schema.to_string().contains("\"$ref\"")
}

/// Adds the texts of the values that `schema`, a part of `root`, lets through: strings as they are, others in JSON; whether they
/// are all.
fn finite(schema: &Value, root: &Value, texts: &mut Vec<String>, steps: &mut usize) -> bool {
    let Some(rest) = steps.checked_sub(1) else { return false };
    *steps = rest;
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    if let Some(value) = schema.get("const") {
        texts.push(text(value));
        return true;
    }
    if let Some(Value::Array(values)) = schema.get("enum") {
        texts.extend(values.iter().map(text));
        return true;
    }
    if schema["type"] == "null" {
        texts.push("null".into());
        return true;
    }
    if let Some(target) = schema.get("$ref").and_then(Value::as_str) {
        let target = target.strip_prefix('#').and_then(|path| root.pointer(path));
        return target.is_some_and(|target| finite(target, root, texts, steps));
    }
    let union = ["anyOf", "oneOf"].iter().find_map(|key| schema.get(*key).and_then(Value::as_array));
    union.is_some_and(|choices| choices.iter().all(|choice| finite(choice, root, texts, steps)))
}

fn json_rule(schema: &Value) -> String {
    format!("%json {}", fixed_space(schema.clone()))
}

/// An object of a tool's name and its arguments.
fn object(tool: &CallForm, arguments: &str) -> String {
    // References of the schema are to its own root, which is the whole only where it stands alone.
    let place = format!("/properties/{arguments}");
    json_rule(&json!({
        "type": "object",
        "properties": {
            "name": {"const": tool.name}, (arguments): schema_refs::moved(&tool.parameters, &place),
        },
        "required": ["name", arguments],
        "additionalProperties": false,
    }))
}
