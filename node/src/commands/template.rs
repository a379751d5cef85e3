//! `shoal template`: messages to the text a model reads.

use std::path::Path;

use api::prefill::CONTINUE;
use serde_json::{Map, Value, json};
use shard::tokenizer::{
    Tokenizer,
    chat::{RenderInput, Template},
};

use super::file_text;
use crate::{Error, Result, cli::TemplateArgs, confine, encode, library, output};

pub(super) fn run(args: TemplateArgs) -> Result<()> {
    if args.template.is_none() {
        library::locate(args.model.as_deref().unwrap_or(library::DEFAULT_MODEL))?;
    }
    let input: Value = serde_json::from_str(&file_text(&args.input)?)?;
    let Value::Object(input) = input else {
        return Err(Error::usage("the input must be a JSON object with \"messages\""));
    };
    let (template, bos, eos) = match &args.template {
        Some(file) => (template_file(file)?, None, None),
        None => from_model(args.model.as_deref().unwrap_or(library::DEFAULT_MODEL))?,
    };
    let mut input = render_input(input, bos, eos)?;
    let text = match input.extra.shift_remove(CONTINUE) {
        Some(Value::Bool(true)) => template.render_continuing(&input),
        _ => template.render(&input),
    }?;
    if args.json { output::json_line(&json!({"text": text})) } else { output::text(&text) }
}

fn template_file(file: &Path) -> Result<Template> {
    let text = file_text(file)?;
    confine::command("cpu");
    Template::new(&text).map_err(|error| match error {
        shard::Error::Malformed { why, .. } => Error::usage(format!("{}: {why}", file.display())),
        other => other.into(),
    })
}

fn from_model(model: &str) -> Result<(Template, Option<String>, Option<String>)> {
    let gguf = library::open_confined(model)?;
    let template = Template::from_gguf(gguf.metadata(), None)?.ok_or_else(|| {
        Error::usage(format!("{model} has no chat template; give one with --template FILE"))
    })?;
    let tokenizer = Tokenizer::from_gguf(gguf.metadata())?;
    let piece = |id: Option<u32>| id.map(|id| tokenizer.token_text(id));
    Ok((template, piece(tokenizer.bos()), piece(tokenizer.eos())))
}

fn render_input(
    mut input: Map<String, Value>,
    bos: Option<String>,
    eos: Option<String>,
) -> Result<RenderInput> {
    let messages =
        input.shift_remove("messages").ok_or_else(|| Error::usage("the input has no \"messages\""))?;
    let text = |input: &mut Map<String, Value>, key: &str, otherwise: Option<String>| match input
        .shift_remove(key)
    {
        None | Some(Value::Null) => Ok(otherwise),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(other) => Err(Error::usage(format!("\"{key}\" must be a string, got {other}"))),
    };
    let mut render = RenderInput { messages, now: Some(encode::now()), ..RenderInput::default() };
    render.bos_token = text(&mut input, "bos_token", bos)?;
    render.eos_token = text(&mut input, "eos_token", eos)?;
    render.tools = input.shift_remove("tools").filter(|tools| !tools.is_null());
    render.add_generation_prompt = match input.shift_remove("add_generation_prompt") {
        None | Some(Value::Null) => false,
        Some(Value::Bool(add)) => add,
        Some(other) => {
            return Err(Error::usage(format!(
                "\"add_generation_prompt\" must be true or false, got {other}"
            )));
        }
    };
    render.extra = input;
    Ok(render)
}
