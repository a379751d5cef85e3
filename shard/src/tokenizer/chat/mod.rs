//! Conversations as the model was taught to read them.
//!
//! What: a model's chat template is a Jinja program in `tokenizer.chat_template` that turns messages into one text.
//! [`Template::render`] gives, byte for byte, what Hugging Face transformers gives for the same template and
//! messages.
//!
//! Why care: the template comes from a stranger. It runs in an engine without file system or network (`minijinja`)
//! under four bounds: fuel for instructions, a longest text, a budget for all text and containers it makes, and a recursion limit.
//!
//! How: [`guard`] makes every growing operation call back, [`python`] and [`print`] supply what templates take for
//! granted (string methods, `str`, `json.dumps`), and the engine does the rest with the settings of transformers:
//! `trim_blocks`, `lstrip_blocks`, loop controls. The clock is an argument.
//!
//! Limits: `include`, `import` and `extends` are errors; `{% generation %}` renders its body. Messages are JSON: what transformers does with Python objects does not arise.

use std::sync::Arc;

use minijinja::{
    AutoEscape, Environment, ErrorKind, State, UndefinedBehavior, Value,
    syntax::SyntaxConfig,
    value::{Kwargs, Rest, ValueKind, ValueOrKwargs},
};

use crate::{Error, Result, gguf::Metadata};

mod budget;
mod continuation;
pub mod date;
pub mod guard;
mod print;
pub mod python;
pub mod tools;

use budget::Budget;
pub use date::DateTime;

/// The longest prompt a template may print, in bytes; a million tokens of text.
pub const MAX_OUTPUT_BYTES: usize = 4 << 20;
/// Longer templates are refused. The longest published ones have some 30 KiB.
pub const MAX_TEMPLATE_BYTES: usize = 256 << 10;
/// Instructions for a conversation of no messages; every value in the input adds [`FUEL_PER_VALUE`].
const FUEL: u64 = 100_000;
/// A message or a tool parameter costs some hundred instructions in the longest published templates.
const FUEL_PER_VALUE: u64 = 2_000;
/// Bytes of intermediate text for a conversation of no messages. A hostile template costs this much memory at most, several times over.
const TEXT: u64 = 32 << 20;
/// Bytes of intermediate text for each byte of input.
const TEXT_PER_BYTE: u64 = 64;
/// Values in containers the template makes.
const VALUES: u64 = 1 << 18;
/// Room for the deepest recursion that the limits of [`guard`] leave, several times over even without optimization;
/// only what is used becomes memory.
const STACK: usize = 64 << 20;
/// Nested blocks count one, nested macro calls about ten: tool schemas nest some ten macros deep.
const RECURSION: usize = 200;

/// A chat template that was read and can be rendered any number of times.
#[derive(Debug)]
pub struct Template {
    guarded: guard::Guarded,
}

/// What a template is rendered with.
#[derive(Clone, Debug, Default)]
pub struct RenderInput {
    /// The conversation: a list of objects with `role` and `content`.
    pub messages: serde_json::Value,
    /// Descriptions of tools; `None` where there are none.
    pub tools: Option<serde_json::Value>,
    /// Whether to end with the opening of the assistant's turn.
    pub add_generation_prompt: bool,
    /// The text of BOS, if the model has one.
    pub bos_token: Option<String>,
    /// The text of EOS, if the model has one.
    pub eos_token: Option<String>,
    /// What `strftime_now` tells; without it the function does not exist.
    pub now: Option<DateTime>,
    /// More variables, such as `enable_thinking`.
    pub extra: serde_json::Map<String, serde_json::Value>,
}

impl Template {
    /// Reads a template. Errors: [`Error::Malformed`] with the line if it is no valid template.
    pub fn new(source: &str) -> Result<Self> {
        let malformed = |line: usize, why: &str| {
            Error::malformed("tokenizer.chat_template", format!("line {line}: {why}"))
        };
        if source.len() > MAX_TEMPLATE_BYTES {
            return Err(malformed(1, &format!("more than {MAX_TEMPLATE_BYTES} bytes")));
        }
        let guarded = guard::guard(source).map_err(|refused| malformed(refused.line, refused.why))?;
        let template = Self { guarded };
        let failure = on_own_stack(|| {
            let environment =
                template.environment(&RenderInput::default(), &Arc::new(Budget::new(0, 0, 0)), 0);
            let result = environment.template_from_str(&template.guarded.source);
            result.err().map(|error| (error.line().unwrap_or(1), message(&error)))
        })?;
        if let Some((line, why)) = failure {
            return Err(malformed(line, &why));
        }
        Ok(template)
    }

    /// The template of a GGUF file: the one called `name`, else the unnamed one, `None` if there is none. Errors as
    /// for [`Template::new`].
    pub fn from_gguf(metadata: &Metadata, name: Option<&str>) -> Result<Option<Self>> {
        let named = name.and_then(|name| metadata.str(&format!("tokenizer.chat_template.{name}")));
        named.or_else(|| metadata.str("tokenizer.chat_template")).map(Self::new).transpose()
    }

    /// Whether `text` is in its source.
    pub fn mentions(&self, text: &str) -> bool {
        self.guarded.source.contains(text)
    }

    /// Renders a conversation. Errors: [`Error::Invalid`] with the line and what the template says, be it that the
    /// template refuses the conversation (`raise_exception`), fails, or wants too much.
    pub fn render(&self, input: &RenderInput) -> Result<String> {
        on_own_stack(|| self.render_here(input))?
    }

    fn render_here(&self, input: &RenderInput) -> Result<String> {
        let size = Size::of(input);
        let bytes = TEXT.saturating_add(TEXT_PER_BYTE.saturating_mul(size.bytes));
        let values = VALUES.saturating_add(200 * size.values);
        let budget = Arc::new(Budget::new(bytes, values, MAX_OUTPUT_BYTES));
        let fuel = FUEL.saturating_add(FUEL_PER_VALUE.saturating_mul(size.values));
        let environment = self.environment(input, &budget, fuel);
        let context = context(input);
        let fail = |error: minijinja::Error| {
            let line = error.line().map_or_else(String::new, |line| format!(" line {line}:"));
            Error::invalid(format!("chat template:{line} {}", message(&error)))
        };
        let template = environment.template_from_str(&self.guarded.source).map_err(fail)?;
        let mut out = Capped::default();
        let rendered = template.render_captured_to(context, &mut out).map(drop);
        if out.full {
            return Err(Error::invalid(format!("chat template: prints more than {MAX_OUTPUT_BYTES} bytes")));
        }
        rendered.map_err(fail)?;
        String::from_utf8(out.bytes).map_err(|_| Error::invalid("chat template: prints no text"))
    }

    /// An engine for one rendering.
    fn environment(&self, input: &RenderInput, budget: &Arc<Budget>, fuel: u64) -> Environment<'_> {
        let mut env = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        env.set_syntax(syntax.unwrap_or_default());
        env.set_undefined_behavior(UndefinedBehavior::Lenient);
        env.set_auto_escape_callback(|_| AutoEscape::None);
        env.set_debug(false);
        env.set_fuel(Some(fuel));
        env.set_recursion_limit(RECURSION);
        env.set_loader(|name| -> Result<Option<String>, minijinja::Error> {
            Err(invalid(format!("templates cannot load others ({name})")))
        });
        let limits = budget.clone();
        env.set_formatter(move |out, _, value| {
            let text = print::str(value, &limits)?;
            out.write_str(&text).map_err(|_| invalid("the output is full"))
        });
        let limits = budget.clone();
        env.set_unknown_method_callback(move |state, value, name, args| {
            python::method(state, value, name, args, &limits)
        });
        add_functions(&mut env, input.now, budget, self.guarded.text_bytes);
        add_filters(&mut env, budget);
        // As in Python, None has no items and text and mappings have an order.
        let ordered = |value: &Value| {
            matches!(value.kind(), ValueKind::Map | ValueKind::Seq | ValueKind::String | ValueKind::Undefined)
        };
        env.add_test("sequence", ordered);
        env.add_test("iterable", move |value: &Value| ordered(value) || value.kind() == ValueKind::Iterable);
        env
    }
}

/// Runs `work` on a thread with [`STACK`] bytes, and takes a panic for its failure: the engine recurses over what a
/// stranger wrote, and is not ours.
fn on_own_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("template".into()).stack_size(STACK);
        let thread = thread.spawn_scoped(scope, work).map_err(|error| Error::io("chat template", error))?;
        thread.join().map_err(|_| Error::invalid("chat template: the engine gave up on it"))
    })
}

fn invalid(why: impl Into<String>) -> minijinja::Error {
    minijinja::Error::new(ErrorKind::InvalidOperation, why.into())
}

/// What went wrong, in the innermost words there are.
fn message(error: &minijinja::Error) -> String {
    let mut text = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    if error.kind() == ErrorKind::UndefinedError && error.detail().is_none() {
        text = "a value is undefined".into();
    }
    text
}

/// Functions that transformers defines, those that [`guard`] calls, and none that Jinja lacks.
fn add_functions(env: &mut Environment, now: Option<DateTime>, budget: &Arc<Budget>, text_bytes: usize) {
    env.remove_global("debug");
    env.add_function("raise_exception", |message: String| -> Result<Value, minijinja::Error> {
        Err(invalid(message))
    });
    if let Some(now) = now {
        env.add_function("strftime_now", move |format: &str| match format.len() {
            ..=1000 => Ok(now.strftime(format)),
            _ => Err(invalid("the format of a date is too long")),
        });
    }
    let limits = budget.clone();
    env.add_function(guard::CONCAT, move |parts: Rest<Value>| {
        print::join(parts.iter().cloned(), "", &limits)
    });
    let limits = budget.clone();
    env.add_function(guard::LIMIT, move |value: Value| {
        match value.as_str() {
            Some(text) => limits.text(text.len())?,
            None => limits.container(&value)?,
        }
        Ok::<_, minijinja::Error>(value)
    });
    let limits = budget.clone();
    env.add_function(guard::TIMES, move |left: &Value, right: &Value| python::times(left, right, &limits));
    let limits = budget.clone();
    env.add_function(guard::SLICE, move |value: &Value, start: &Value, stop: &Value, step: &Value| {
        python::slice(value, start, stop, step, &limits)
    });
    let limits = budget.clone();
    env.add_function(guard::EACH, move |value: Value| {
        let turns = match (value.kind(), value.len()) {
            (ValueKind::None, _) => return Err(invalid("None is not iterable")),
            (_, Some(turns)) => turns,
            (ValueKind::Iterable, None) => {
                let items: Vec<Value> = value.try_iter()?.collect();
                limits.bytes((items.len() * (text_bytes + 16)) as u64)?;
                return Ok(Value::from(items));
            }
            _ => 0,
        };
        limits.bytes((turns as u64).saturating_mul(text_bytes as u64 + 16))?;
        Ok::<_, minijinja::Error>(value)
    });
    let limits = budget.clone();
    for name in ["dict", "namespace"] {
        let Some(function) = env.globals().find(|(key, _)| *key == name).map(|(_, value)| value) else {
            continue;
        };
        let limits = limits.clone();
        env.add_function(name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            args.iter().try_for_each(|value| limits.container(value))?;
            function.call(state, &args)
        });
    }
}

/// Filters as Python has them; those that can make much of little ask first, those Jinja lacks are gone.
fn add_filters(env: &mut Environment, budget: &Arc<Budget>) {
    for name in ["zip", "chain", "lines", "split", "bool", "pprint"] {
        env.remove_filter(name);
    }
    let limits = budget.clone();
    env.add_filter("tojson", move |value: &Value, args: Rest<Value>, options: Kwargs| {
        print::tojson(value, &args, &options, &limits)
    });
    let limits = budget.clone();
    env.add_filter("string", move |value: &Value| print::str(value, &limits));
    let limits = budget.clone();
    env.add_filter("trim", move |value: &Value, chars: Option<&str>| {
        let text = print::str(value, &limits)?;
        let out = |c: char| chars.map_or_else(|| python::is_space(c), |chars| chars.contains(c));
        Ok::<_, minijinja::Error>(text.trim_matches(out).to_owned())
    });
    let limits = budget.clone();
    env.add_filter("join", move |values: &Value, separator: Option<Value>, options: Kwargs| {
        let separator = match separator {
            None => options.get::<Option<Value>>("d")?,
            given => given,
        };
        let separator = separator.map_or_else(|| Ok(String::new()), |value| print::str(&value, &limits))?;
        let attribute: Option<Value> = options.get("attribute")?;
        options.assert_all_used()?;
        let pick = |item: Value| match &attribute {
            Some(name) => item.get_item(name),
            None => Ok(item),
        };
        let values = values.try_iter()?.map(pick).collect::<Result<Vec<_>, _>>()?;
        print::join(values.into_iter(), &separator, &limits)
    });
    let limits = budget.clone();
    env.add_filter("replace", move |value: &Value, old: &str, new: &str, count: Option<i64>| {
        python::replace(&print::str(value, &limits)?, old, new, count, &limits)
    });
    let limits = budget.clone();
    env.add_filter("indent", move |value: &Value, width: Option<Value>, options: Kwargs| {
        let width = match width {
            None => options.get::<Option<Value>>("width")?,
            given => given,
        };
        let first = options.get::<Option<bool>>("first")?.unwrap_or(false);
        let blank = options.get::<Option<bool>>("blank")?.unwrap_or(false);
        options.assert_all_used()?;
        indent(&print::str(value, &limits)?, width, first, blank, &limits)
    });
    for name in [
        "format",
        "batch",
        "slice",
        "list",
        "upper",
        "lower",
        "title",
        "capitalize",
        "urlencode",
        "escape",
        "e",
    ] {
        let Some(filter) = filter(env, name) else { continue };
        let limits = budget.clone();
        env.add_filter(name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            match (name, args.first().and_then(Value::as_str)) {
                ("format", Some(text)) => python::bounded_format(text, &args[1..], &limits)?,
                ("batch" | "slice", _) => {
                    let size = args.get(1).and_then(Value::as_usize).unwrap_or(0);
                    limits.bytes(32 * size as u64)?;
                }
                ("list", Some(text)) => limits.bytes(32 * text.len() as u64)?,
                (_, Some(text)) => limits.bytes(6 * text.len() as u64)?,
                (_, None) => {}
            }
            filter.call(state, &args)
        });
    }
}

/// A filter of the engine's as a value that can be called.
fn filter(env: &Environment, name: &'static str) -> Option<Value> {
    let known = env.empty_state().perform_test("filter", &[Value::from(name)]).unwrap_or(false);
    known.then(|| {
        Value::from_function(move |_: &mut State, args: Rest<ValueOrKwargs>| {
            Environment::new().empty_state().apply_filter(name, &args.into_values())
        })
    })
}

/// Jinja's `indent`: every line but the first, and no empty ones unless asked.
fn indent(
    text: &str,
    width: Option<Value>,
    first: bool,
    blank: bool,
    budget: &Budget,
) -> Result<String, minijinja::Error> {
    let indent = match width.as_ref().and_then(Value::as_str) {
        Some(indent) => indent.to_owned(),
        None => " ".repeat(width.and_then(|width| width.as_usize()).unwrap_or(4).min(1000)),
    };
    let lines = text.split('\n').count();
    budget.text(text.len() + lines.saturating_mul(indent.len()))?;
    let mut out = String::new();
    for (index, line) in text.split('\n').enumerate() {
        if index > 0 {
            out.push('\n');
        }
        if (index > 0 || first) && (blank || !line.is_empty()) {
            out.push_str(&indent);
        }
        out.push_str(line);
    }
    Ok(out)
}

/// How much a rendering has to work on.
#[derive(Default)]
struct Size {
    bytes: u64,
    values: u64,
}

impl Size {
    fn of(input: &RenderInput) -> Self {
        let mut size = Self::default();
        size.add(&input.messages);
        input.tools.iter().chain(input.extra.values()).for_each(|value| size.add(value));
        size
    }

    fn add(&mut self, value: &serde_json::Value) {
        self.values += 1;
        match value {
            serde_json::Value::String(text) => self.bytes += text.len() as u64,
            serde_json::Value::Array(items) => items.iter().for_each(|item| self.add(item)),
            serde_json::Value::Object(map) => map.iter().for_each(|(key, item)| {
                self.bytes += key.len() as u64;
                self.add(item);
            }),
            _ => {}
        }
    }
}

/// The variables a template sees, as transformers names them.
fn context(input: &RenderInput) -> Value {
    let mut variables: Vec<(String, Value)> = vec![
        ("messages".into(), messages(&input.messages)),
        ("tools".into(), input.tools.as_ref().map_or(Value::from(()), value)),
        ("documents".into(), Value::from(())),
        ("add_generation_prompt".into(), Value::from(input.add_generation_prompt)),
    ];
    let tokens = [("bos_token", &input.bos_token), ("eos_token", &input.eos_token)];
    let given =
        tokens.into_iter().filter_map(|(name, text)| Some((name.to_owned(), Value::from(text.as_ref()?))));
    variables.extend(given);
    variables.extend(input.extra.iter().map(|(name, json)| (name.clone(), value(json))));
    Value::from_pairs(variables)
}

/// The messages, a message's reasoning under every name that templates look for it.
fn messages(json: &serde_json::Value) -> Value {
    let Some(list) = json.as_array() else { return value(json) };
    let alias = |message: &serde_json::Value| {
        let Some(map) = message.as_object() else { return value(message) };
        let names = ["reasoning_content", "thinking", "reasoning"];
        let Some(reasoning) = names.iter().find_map(|name| map.get(*name).filter(|text| !text.is_null()))
        else {
            return value(message);
        };
        let mut aliased = serde_json::Map::new();
        aliased.insert("thinking".into(), reasoning.clone());
        aliased.extend(map.iter().map(|(key, item)| (key.clone(), item.clone())));
        aliased.insert("reasoning_content".into(), reasoning.clone());
        value(&serde_json::Value::Object(aliased))
    };
    Value::from_iter(list.iter().map(alias))
}

/// JSON as a template's value, keys in their order.
fn value(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(truth) => Value::from(*truth),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::from(number),
            (None, Some(number)) => Value::from(number),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => Value::from(text),
        serde_json::Value::Array(items) => Value::from_iter(items.iter().map(value)),
        serde_json::Value::Object(map) => {
            Value::from_pairs(map.iter().map(|(key, item)| (key.as_str(), value(item))))
        }
    }
}

/// Takes what is printed until it is too much.
#[derive(Default)]
struct Capped {
    bytes: Vec<u8>,
    full: bool,
}

impl std::io::Write for Capped {
    fn write(&mut self, part: &[u8]) -> std::io::Result<usize> {
        if self.bytes.len() + part.len() > MAX_OUTPUT_BYTES {
            self.full = true;
            return Err(std::io::Error::other("full"));
        }
        self.bytes.extend_from_slice(part);
        Ok(part.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
