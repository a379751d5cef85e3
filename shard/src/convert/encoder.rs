//! Encoders: their configuration, and their tensors, which need new names and nothing else.
//!
//! What a checkpoint has for training alone is left out: the head that guesses masked words, and the pooled row of models that
//! do not rank texts.

use std::collections::BTreeMap;

use super::{checkpoint::Checkpoint, config::Config, planned::Planned, pooling::RANK};
use crate::{Error, Result, gguf::Writer};

/// Sizes: the names in config.json, those of nomic-embed-text's own last, and the name in GGUF.
const SIZES: [([&str; 2], &str); 5] = [
    (["max_position_embeddings", "n_positions"], "context_length"),
    (["hidden_size", "n_embd"], "embedding_length"),
    (["num_hidden_layers", "n_layer"], "block_count"),
    (["intermediate_size", "n_inner"], "feed_forward_length"),
    (["num_attention_heads", "n_head"], "attention.head_count"),
];

/// Names outside layers.
const GLOBALS: [(&str, &str); 13] = [
    ("embeddings.word_embeddings", "token_embd"),
    ("embeddings.position_embeddings", "position_embd"),
    ("embeddings.token_type_embeddings", "token_types"),
    ("embeddings.LayerNorm", "token_embd_norm"),
    ("emb_ln", "token_embd_norm"),
    ("embeddings.tok_embeddings", "token_embd"),
    ("embeddings.norm", "token_embd_norm"),
    ("final_norm", "output_norm"),
    ("pooler.dense", "cls"),
    ("head.dense", "cls"),
    ("head.norm", "cls.norm"),
    ("classifier", "cls.output"),
    ("classifier.out_proj", "cls.output"),
];

/// Names inside a layer.
const LAYER: [(&str, &str); 29] = [
    ("attention.self.query", "attn_q"),
    ("attention.self.key", "attn_k"),
    ("attention.self.value", "attn_v"),
    ("attention.output.dense", "attn_output"),
    ("attention.output.LayerNorm", "attn_output_norm"),
    ("intermediate.dense", "ffn_up"),
    ("output.dense", "ffn_down"),
    ("output.LayerNorm", "layer_output_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("post_attention_layernorm", "attn_output_norm"),
    ("post_mlp_layernorm", "layer_output_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("attn.out_proj", "attn_output"),
    ("mlp.fc11", "ffn_up"),
    ("mlp.fc12", "ffn_gate"),
    ("mlp.fc2", "ffn_down"),
    ("norm1", "attn_output_norm"),
    ("norm2", "layer_output_norm"),
    ("attn.Wqkv", "attn_qkv"),
    ("attn.Wo", "attn_output"),
    ("attn_norm", "attn_norm"),
    ("mlp_norm", "ffn_norm"),
    ("mlp.Wi", "ffn_up"),
    ("mlp.Wo", "ffn_down"),
];

/// Whether the checkpoint gives a text one score.
fn ranks(config: &Config) -> bool {
    let classes = config.strings("architectures").unwrap_or_default();
    classes.iter().any(|class| class.ends_with("ForSequenceClassification"))
}

/// Adds the model's metadata but for what all models have.
///
/// # Errors
/// A size that is missing, and what the family here does not compute.
pub(super) fn write(config: &Config, writer: &mut Writer) -> Result<()> {
    let key = |name: &str| format!("{}.{name}", config.arch());
    for (names, to) in SIZES {
        writer.add_u32(&key(to), size(config, names)?);
    }
    let eps = ["layer_norm_eps", "norm_eps", "layer_norm_epsilon"].iter().find_map(|name| config.float(name));
    writer.add_f32(&key("attention.layer_norm_epsilon"), eps.unwrap_or(1e-12) as f32);
    writer.add_bool(&key("attention.causal"), false);
    for (name, usual) in [
        ("position_embedding_type", "absolute"),
        ("activation_function", "swiglu"),
        ("classifier_pooling", "cls"),
        ("classifier_activation", "gelu"),
    ] {
        if let Some(other) = config.text(name).filter(|text| *text != usual)
            && (ranks(config) || !name.starts_with("classifier"))
        {
            return Err(Error::unsupported(format!("config.json: {name} {other} of {}", config.arch())));
        }
    }
    for (name, usual) in [
        ("prenorm", false),
        ("parallel_block", false),
        ("rotary_emb_interleaved", false),
        ("qkv_proj_bias", false),
        ("mlp_fc1_bias", false),
        ("mlp_fc2_bias", false),
        ("attention_bias", false),
        ("mlp_bias", false),
        ("norm_bias", false),
    ] {
        if config.flag(name).is_some_and(|flag| flag != usual) {
            return Err(Error::unsupported(format!("config.json: {name} {}", !usual)));
        }
    }
    match config.arch() {
        "nomic-bert" => {
            let base = config.rope_number("rope_theta").or(config.float("rotary_emb_base"));
            writer.add_f32(&key("rope.freq_base"), base.unwrap_or(1_000.0) as f32);
        }
        "modern-bert" => {
            let base = config.rope_number("rope_theta").or(config.float("global_rope_theta"));
            writer.add_f32(&key("rope.freq_base"), base.unwrap_or(160_000.0) as f32);
            let local = config.local_rope_theta().or(config.float("local_rope_theta"));
            writer.add_f32(&key("rope.freq_base_swa"), local.unwrap_or(10_000.0) as f32);
            writer.add_u32(&key("attention.sliding_window"), config.size("local_attention")?.unwrap_or(128));
            check_pattern(config)?;
        }
        _ => {}
    }
    if ranks(config) {
        writer.add_u32(&key("pooling_type"), RANK);
    }
    Ok(())
}

/// Refuses another order of layers with and without a window than that of the published models.
fn check_pattern(config: &Config) -> Result<()> {
    let every = config.size("global_attn_every_n_layers")?.unwrap_or(3);
    let layers = config.strings("layer_types").unwrap_or_default();
    let usual = |(at, kind): (usize, &String)| {
        kind == if at % 3 == 0 { "full_attention" } else { "sliding_attention" }
    };
    match every == 3 && layers.iter().enumerate().all(usual) {
        true => Ok(()),
        false => Err(Error::unsupported("config.json: not one layer in three without a window")),
    }
}

fn size(config: &Config, names: [&str; 2]) -> Result<u32> {
    for name in names {
        if let Some(size) = config.size(name)? {
            return Ok(size);
        }
    }
    Err(Error::malformed(format!("config.json: {}", names[0]), "it is missing"))
}

/// The tensors of the file, in its order.
///
/// # Errors
/// [`Error::Unsupported`] for a tensor that no rule names.
pub(super) fn plan(config: &Config, checkpoint: &Checkpoint<'_>) -> Result<Vec<Planned>> {
    let layers = size(config, SIZES[2].0)? as usize;
    let ranks = ranks(config);
    let mut planned = BTreeMap::new();
    for full in checkpoint.names() {
        let Some(stored) = checkpoint.get(full) else { continue };
        let Some((layer, name)) = renamed(full, ranks)
            .ok_or_else(|| Error::unsupported(format!("tensor {full} of the checkpoint")))?
        else {
            continue;
        };
        if layer.is_some_and(|layer| layer >= layers) {
            return Err(Error::unsupported(format!("tensor {full}: config.json has {layers} layers")));
        }
        let name = layer.map_or(name.clone(), |layer| format!("blk.{layer}.{name}"));
        planned.insert((layer, name.clone()), Planned::matrix(name, full, stored));
    }
    Ok(planned.into_values().collect())
}

/// Layer and name in GGUF; `Some(None)` for what the file does not need, `None` for what is not known.
#[allow(clippy::option_option, reason = "three answers, said above")]
fn renamed(full: &str, ranks: bool) -> Option<Option<(Option<usize>, String)>> {
    let bare =
        ["bert.", "nomic_bert.", "model."].iter().fold(full, |name, part| name.trim_start_matches(part));
    let guesses = bare.starts_with("cls.") || bare.starts_with("lm_head.") || bare.starts_with("decoder.");
    let pooled = ["pooler.", "head.", "classifier."].iter().any(|part| bare.starts_with(part));
    if guesses || bare.ends_with("position_ids") || bare.ends_with("inv_freq") || (pooled && !ranks) {
        return Some(None);
    }
    let (stem, suffix) = bare.rsplit_once('.')?;
    let inside = bare.trim_start_matches("encoder.");
    let Some(rest) = inside.strip_prefix("layer.").or(inside.strip_prefix("layers.")) else {
        let to = GLOBALS.iter().find(|(from, _)| *from == stem)?.1;
        return Some(Some((None, format!("{to}.{suffix}"))));
    };
    let (layer, inner) = rest.split_once('.')?;
    let stem = inner.strip_suffix(suffix)?.strip_suffix('.')?;
    let to = LAYER.iter().find(|(from, _)| *from == stem)?.1;
    Some(Some((Some(layer.parse().ok()?), format!("{to}.{suffix}"))))
}
