//! `shoal model inspect`: what a file holds and whether this build can run it.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use shard::{
    gguf::{self, Gguf},
    models::Blueprint,
    tokenizer::Tokenizer,
};

use crate::{
    Result, library,
    output::{self, human_bytes, say},
};

/// Everything about a file that a person asks before running it.
struct Report<'a> {
    gguf: &'a Gguf,
    formats: BTreeMap<String, (usize, u64)>,
    weights: u64,
    blueprint: Result<Blueprint, shard::Error>,
    tokenizer: Result<Tokenizer, shard::Error>,
}

impl<'a> Report<'a> {
    fn new(gguf: &'a Gguf) -> Self {
        let mut formats = BTreeMap::<String, (usize, u64)>::new();
        for tensor in gguf.tensors() {
            let name = shard::quant::by_type(tensor.ggml_type)
                .map_or(format!("type {}", tensor.ggml_type), |f| f.name.into());
            let row = formats.entry(name).or_default();
            *row = (row.0 + 1, row.1 + tensor.len);
        }
        let weights = gguf.tensors().iter().fold(0u64, |sum, t| sum.saturating_add(t.elements()));
        let (blueprint, tokenizer) = (Blueprint::from_gguf(gguf), Tokenizer::from_gguf(gguf.metadata()));
        Self { gguf, formats, weights, blueprint, tokenizer }
    }

    fn json(&self) -> Value {
        let metadata = self.gguf.metadata();
        let formats: Map<String, Value> = self
            .formats
            .iter()
            .map(|(name, (tensors, bytes))| (name.clone(), json!({"tensors": tensors, "bytes": bytes})))
            .collect();
        let mut value = json!({
            "architecture": metadata.str("general.architecture"),
            "name": metadata.str("general.name"),
            "license": metadata.str("general.license"),
            "file_bytes": self.gguf.file_len(),
            "weights": self.weights,
            "tensors": self.gguf.tensors().len(),
            "formats": formats,
            "chat_template": metadata.str("tokenizer.chat_template").is_some(),
            "runs_here": self.blueprint.is_ok() && self.tokenizer.is_ok(),
        });
        match &self.blueprint {
            Ok(b) => {
                value["layers"] = json!(b.layers.len());
                value["hidden"] = json!(b.hidden);
                value["vocab"] = json!(b.vocab);
                value["context"] = json!(b.context);
                value["kv_bytes_per_token"] = json!(b.kv_bytes_per_token());
            }
            Err(e) => value["model_error"] = json!(e.to_string()),
        }
        match &self.tokenizer {
            Ok(t) => {
                value["tokenizer"] = json!({"model": metadata.str("tokenizer.ggml.model"), "pre": metadata.str("tokenizer.ggml.pre"), "tokens": t.len()})
            }
            Err(e) => value["tokenizer_error"] = json!(e.to_string()),
        }
        value
    }

    fn print(&self) -> Result<()> {
        let metadata = self.gguf.metadata();
        let text = |key| metadata.str(key).unwrap_or("not said");
        say!("architecture   {}", text("general.architecture"));
        say!("name           {}", text("general.name"));
        say!("license        {}", text("general.license"));
        say!(
            "size           {} ({} weights in {} tensors)",
            human_bytes(self.gguf.file_len()),
            self.weights,
            self.gguf.tensors().len()
        );
        for (name, (tensors, bytes)) in &self.formats {
            say!("  {name:12} {tensors:5} tensors  {}", human_bytes(*bytes));
        }
        match &self.blueprint {
            Ok(b) => {
                say!("layers         {}, hidden {}, vocabulary {}", b.layers.len(), b.hidden, b.vocab);
                say!(
                    "context        {} tokens, {} of KV cache each",
                    b.context,
                    human_bytes(b.kv_bytes_per_token() as u64)
                );
            }
            Err(e) => say!("cannot run     {e}"),
        }
        match &self.tokenizer {
            Ok(t) => say!(
                "tokenizer      {} ({}), {} tokens",
                text("tokenizer.ggml.model"),
                metadata.str("tokenizer.ggml.pre").unwrap_or("-"),
                t.len()
            ),
            Err(e) => say!("tokenizer      {e}"),
        }
        say!(
            "chat template  {}",
            if metadata.str("tokenizer.chat_template").is_some() { "yes" } else { "no" }
        );
        Ok(())
    }
}

pub(super) fn run(model: &str, tensors: bool, metadata: bool, json: bool) -> Result<()> {
    let gguf = library::open_confined(model)?;
    let report = Report::new(&gguf);
    if json {
        let mut value = report.json();
        if tensors {
            value["tensor_list"] = gguf.tensors().iter().map(tensor_json).collect();
        }
        if metadata {
            let pairs = gguf.metadata().iter().map(|(k, v)| (k.to_string(), json!(v.to_string())));
            value["metadata"] = Value::Object(pairs.collect());
        }
        return output::json_line(&value);
    }
    report.print()?;
    if metadata {
        say!("\nmetadata");
        for (key, value) in gguf.metadata().iter() {
            say!("  {key} = {}", one_line(&value.to_string()));
        }
    }
    if tensors {
        say!("\ntensors");
        for t in gguf.tensors() {
            say!("  {:40} {:8} {:?}", t.name, format_name(t), t.dims);
        }
    }
    Ok(())
}

/// The beginning of a text, without line breaks.
fn one_line(text: &str) -> String {
    let line: String = text.chars().take(100).map(|c| if c == '\n' { ' ' } else { c }).collect();
    if text.chars().count() > 100 { line + " ..." } else { line }
}

fn format_name(tensor: &gguf::TensorInfo) -> String {
    shard::quant::by_type(tensor.ggml_type)
        .map_or(format!("type {}", tensor.ggml_type), |f| f.name.to_string())
}

fn tensor_json(tensor: &gguf::TensorInfo) -> Value {
    json!({"name": tensor.name, "format": format_name(tensor), "dims": tensor.dims, "offset": tensor.offset, "bytes": tensor.len})
}
