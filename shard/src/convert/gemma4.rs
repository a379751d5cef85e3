//! Checkpoints of Gemma 4: layers that see everything have wider heads, of which few pairs rotate; the mixtures have a router with a norm
//! of its own beside a dense network, and the small models read a second embedding of the token in every layer.

use super::config::Config;
use crate::{Error, Result, gguf::Writer};

/// What a pair that does not rotate is divided by.
const STILL: f32 = 1e30;

/// The name outside of layers of what reads the second embedding, here and in Gemma 3n.
pub(super) fn outside(stem: &str) -> Option<&'static str> {
    match stem {
        "embed_tokens_per_layer" => Some("per_layer_token_embd"),
        "per_layer_model_projection" => Some("per_layer_model_proj"),
        "per_layer_projection_norm" => Some("per_layer_proj_norm"),
        _ => None,
    }
}

/// The name inside a layer, with its ending, of a tensor that has another one in a file.
pub(super) fn whole(inner: &str) -> Option<&'static str> {
    match inner {
        "layer_scalar" => Some("layer_output_scale.weight"),
        "router.scale" => Some("ffn_gate_inp.scale"),
        "router.per_expert_scale" => Some("ffn_down_exps.scale"),
        _ => None,
    }
}

/// Norms, and what reads the second embedding.
pub(super) fn inside(stem: &str) -> Option<&'static str> {
    match stem {
        "post_attention_layernorm" => Some("post_attention_norm"),
        "pre_feedforward_layernorm" => Some("ffn_norm"),
        "post_feedforward_layernorm" => Some("post_ffw_norm"),
        "post_feedforward_layernorm_1" => Some("post_ffw_norm_1"),
        "post_feedforward_layernorm_2" => Some("post_ffw_norm_2"),
        "pre_feedforward_layernorm_2" => Some("pre_ffw_norm_2"),
        "post_per_layer_input_norm" => Some("post_norm"),
        "per_layer_input_gate" => Some("inp_gate"),
        "per_layer_projection" => Some("proj"),
        "router.proj" => Some("ffn_gate_inp"),
        _ => None,
    }
}

/// Which layers see a window only.
pub(super) fn windowed(config: &Config) -> Result<Vec<bool>> {
    let kinds = config.strings("layer_types").unwrap_or_default();
    config.check_layers(kinds.len())?;
    Ok(kinds.iter().map(|kind| kind == "sliding_attention").collect())
}

/// A size of one layer: its own, else that of layers that see everything where it is one, else that of all.
fn size(config: &Config, (layer, windowed): (usize, bool), key: &str, global: &str) -> Result<u32> {
    let own = config.json["per_layer_config"][layer.to_string()][key].as_u64();
    let global = || config.size(global).ok().flatten().filter(|_| !windowed);
    let all = || config.size(key).ok().flatten();
    own.and_then(|own| u32::try_from(own).ok())
        .or_else(global)
        .or_else(all)
        .filter(|size| (1..=1 << 16).contains(size))
        .ok_or_else(|| Error::malformed(format!("config.json: {key}"), "it is missing or no sound number"))
}

/// The width of heads in layers of either kind: those that see everything, those with a window.
fn widths(config: &Config) -> Result<[u32; 2]> {
    let windowed = windowed(config)?;
    let width = |wanted: bool| {
        let layer = windowed.iter().position(|windowed| *windowed == wanted);
        let layer = layer.ok_or_else(|| Error::unsupported("config.json: layer_types of one kind"))?;
        size(config, (layer, wanted), "head_dim", "global_head_dim")
    };
    Ok([width(false)?, width(true)?])
}

/// What the frequencies of layers that see everything are divided by.
pub(super) fn frequencies(config: &Config) -> Result<Vec<f32>> {
    let [far, _] = widths(config)?;
    let share = config.json["rope_parameters"]["full_attention"]["partial_rotary_factor"].as_f64();
    let turning = (share.unwrap_or(1.0) * f64::from(far) / 2.0) as usize;
    Ok((0..far as usize / 2).map(|pair| if pair < turning { 1.0 } else { STILL }).collect())
}

/// Adds what files of this family say of attention, networks and rotation.
pub(super) fn write(config: &Config, writer: &mut Writer) -> Result<()> {
    let key = |name: &str| format!("{}.{name}", config.arch());
    let windowed = windowed(config)?;
    let same_keys = config.flag("attention_k_eq_v").unwrap_or(false);
    let global = if same_keys { "num_global_key_value_heads" } else { "num_key_value_heads" };
    let heads = windowed.iter().enumerate().map(|(layer, windowed)| {
        size(config, (layer, *windowed), "num_key_value_heads", global).map(|heads| heads as i32)
    });
    list(writer, &key("attention.head_count_kv"), heads.collect::<Result<_>>()?);
    let (layers, shared) = (windowed.len(), config.size("num_kv_shared_layers")?.unwrap_or(0));
    let width = config.number("intermediate_size")? as i32;
    let doubles = config.flag("use_double_wide_mlp").unwrap_or(false);
    let own = layers.saturating_sub(shared as usize);
    let wide = |layer: usize| if doubles && layer >= own { 2 * width } else { width };
    list(writer, &key("feed_forward_length"), (0..layers).map(wide).collect());
    let [far, near] = widths(config)?;
    for (ending, width) in [("", far), ("_swa", near)] {
        for name in ["attention.key_length", "attention.value_length", "rope.dimension_count"] {
            writer.add_u32(&key(&format!("{name}{ending}")), width);
        }
    }
    if let Some(window) = config.size("sliding_window")? {
        writer.add_u32(&key("attention.sliding_window"), window);
    }
    writer.add_bools(&key("attention.sliding_window_pattern"), &windowed);
    writer.add_u32(&key("attention.shared_kv_layers"), shared);
    let second = config.size("hidden_size_per_layer_input")?.unwrap_or(0);
    writer.add_u32(&key("embedding_length_per_layer_input"), second);
    if let Some(used) = config.size("top_k_experts")?.filter(|_| config.experts() > 0) {
        writer.add_u32(&key("expert_used_count"), used);
    }
    for (kind, name) in [("full_attention", "rope.freq_base"), ("sliding_attention", "rope.freq_base_swa")] {
        let theta = config.json["rope_parameters"][kind]["rope_theta"].as_f64();
        let theta = theta.ok_or_else(|| Error::malformed("config.json: rope_theta", "it is missing"))?;
        writer.add_f32(&key(name), theta as f32);
    }
    Ok(())
}

/// Adds one number for all layers, or one for each where they differ.
fn list(writer: &mut Writer, key: &str, values: Vec<i32>) {
    match values.first() {
        Some(first) if values.iter().all(|value| value == first) => writer.add_u32(key, *first as u32),
        _ => writer.add_i32s(key, &values),
    };
}
