//! The grammar of a call, from behind the mark that begins it up to its end; `api/src/calls.rs` reads the same forms.
//!
//! | mark | what must follow |
//! |---|---|
//! | `<tool_call>` | an object of `name` and `arguments`, or what the model's template teaches ([`Tags`]), and `</tool_call>` |
//! | `<function=` | `f>{...}</function>`, or Qwen3-Coder's parameters where they are taught |
//! | `<\|python_tag\|>` | an object of `name` and `parameters` |
//! | `[TOOL_CALLS]` | a list of objects, or `f[ARGS]{...}` |
//! | DeepSeek's and Kimi's marks of a call | the name, their mark between, arguments in JSON, their mark of the end |
//! | `<invoke name="` | MiniMax's parameters |
//! | a header of harmony that names a tool | the rest of the header, and arguments in JSON |
//!
//! A parameter between tags is text up to its closing tag where its schema lets it be a string, one of the texts that an
//! `enum` lists, and JSON of its schema otherwise. Parameters come in the order of their schema, as in JSON.
//!
//! Limits: `pattern`, `format` and lengths of a string between tags are not held; in JSON they are.

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
}

/// How a model begins a call.
pub(super) const MARKS: [(&str, Body); 9] = [
    ("<tool_call>", Body::Tagged),
    ("<function=", Body::Function),
    ("<|python_tag|>", Body::Object),
    ("[TOOL_CALLS]", Body::List),
    ("<｜tool▁call▁begin｜>", Body::DeepSeek),
    ("<|tool_call_begin|>", Body::Kimi),
    ("<invoke name=\"", Body::MiniMax),
    ("<|channel|>commentary to=functions.", Body::Harmony),
    ("<|start|>assistant to=functions.", Body::Harmony),
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
}

const GLM: Syntax = Syntax { key: ["<arg_key>", "</arg_key>"], value: ["<arg_value>", "</arg_value>"] };
const QWEN: Syntax = Syntax { key: ["<parameter=", ">"], value: ["", "</parameter>"] };
const MINIMAX: Syntax = Syntax { key: ["<parameter name=\"", "\">"], value: ["", "</parameter>"] };

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
                match tags {
                    Tags::None => {}
                    Tags::Glm => forms.push(self.any(tools, |rules, tool| {
                        format!("{} SPACE {}", json!(tool.name), rules.parameters(&GLM, tool))
                    })),
                    Tags::Qwen => forms.push(self.any(tools, |rules, tool| {
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
                    if tags == Tags::Qwen {
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
                let (separator, end) = (self.mark("<｜tool▁sep｜>"), self.mark("<｜tool▁call▁end｜>"));
                let fenced = self.any(tools, |_, tool| {
                    format!("{} {}", json!(format!("{}\n```json\n", tool.name)), json_rule(&tool.parameters))
                });
                let plain = plain(self, "<｜tool▁sep｜>");
                format!("({plain} | \"function\" {separator} {fenced} \"\\n```\") SPACE {end}")
            }
            Body::Kimi => {
                let (separator, end) =
                    (self.mark("<|tool_call_argument_begin|>"), self.mark("<|tool_call_end|>"));
                let calls = self.any(tools, |_, tool| {
                    let name = json!(tool.name);
                    format!("{name} COUNT {separator} SPACE {}", json_rule(&tool.parameters))
                });
                self.text.push_str("COUNT: /:[0-9]{1,3}/\n");
                format!("\"functions.\"? {calls} SPACE {end}")
            }
            Body::MiniMax => {
                let calls = self.any(tools, |rules, tool| {
                    let head = json!(format!("{}\">", tool.name));
                    format!("{head} SPACE {}", rules.parameters(&MINIMAX, tool))
                });
                format!("{calls} \"</invoke>\"")
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
            let text = self.text_up_to(syntax.value[1]);
            let [before, behind] = syntax.key.map(|tag| json!(tag));
            let value = format!("{before} /[^<>\"\\n]{{1,64}}/ {behind} {} {text} SPACE", opening(syntax));
            return format!("({})*", self.add(&value));
        };
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let mut all = Vec::new();
        for (key, property) in properties {
            let head = json!(format!("{}{key}{}", syntax.key[0], syntax.key[1]));
            let value = self.value(syntax.value[1], tool, key, property);
            let rule = self.add(&format!("{head} {} {value} SPACE", opening(syntax)));
            all.push(if required.contains(&key.as_str()) { rule } else { format!("{rule}?") });
        }
        all.join(" ")
    }

    /// A value and its closing tag.
    fn value(&mut self, end: &str, tool: &CallForm, key: &str, schema: &Value) -> String {
        let texts: Option<Vec<&str>> = match (&schema["enum"], schema.get("const")) {
            (Value::Array(all), _) => all.iter().map(Value::as_str).collect(),
            (_, Some(one)) => one.as_str().map(|one| vec![one]),
            _ => None,
        };
        if let Some(texts) = texts.filter(|texts| texts.iter().all(|text| !text.contains(end))) {
            let texts: Vec<String> = texts.iter().map(|text| json!(text).to_string()).collect();
            return format!("({}) \"\\n\"? {}", texts.join(" | "), json!(end));
        }
        if !api::is_written_as_json(schema, &tool.parameters) {
            return self.text_up_to(end);
        }
        let alone = if schema.to_string().contains("\"$ref\"") {
            // References are to the root of all parameters, which goes along.
            let place = "/$defs/parameters";
            let pointer = key.replace('~', "~0").replace('/', "~1");
            let whole = schema_refs::moved(&tool.parameters, place);
            json!({"$ref": format!("#{place}/properties/{pointer}"), "$defs": {"parameters": whole}})
        } else {
            schema.clone()
        };
        format!("{} \"\\n\"? {}", self.add(&json_rule(&alone)), json!(end))
    }

    /// Any text that does not have `end`, and `end`.
    fn text_up_to(&mut self, end: &str) -> String {
        let name = format!("text_{}", self.count);
        self.count += 1;
        let _ = writeln!(self.text, "{name}[suffix={}]: /(?s:.*)/", json!(end));
        name
    }
}

/// What stands between the name of a parameter and its value.
fn opening(syntax: &Syntax) -> String {
    if syntax.value[0].is_empty() {
        "\"\\n\"?".into()
    } else {
        format!("\"\\n\"? {}", json!(syntax.value[0]))
    }
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
