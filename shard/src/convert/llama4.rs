//! What a checkpoint of Llama 4 says, text part: layers with experts and without, blocks of positions, the factor on queries.

use serde_json::Value;

use super::config::{Config, only};
use crate::{
    Error, Result,
    gguf::Writer,
    models::llama4::{BLOCK, EXPERTS_WITHOUT_NORMS},
};

/// Every how many layers one has experts.
fn step(config: &Config) -> Result<u32> {
    Ok(config.size("interleave_moe_layer_step")?.unwrap_or(1))
}

/// Refuses what a file cannot say.
pub(super) fn check(config: &Config) -> Result<()> {
    only(config, "attention_bias", &false.into())?;
    only(config, "use_qk_norm", &(config.experts() != EXPERTS_WITHOUT_NORMS).into())?;
    only(config, "num_experts_per_tok", &1.into())?;
    let refused = |key: &str| Err(Error::unsupported(format!("config.json: {key} {}", config.json[key])));
    // It is published as a number of layers, and as a truth value.
    if [Value::from(0), Value::from(false)].contains(&config.json["attn_temperature_tuning"]) {
        return refused("attn_temperature_tuning");
    }
    if config.json.get("attention_chunk_size").is_some_and(Value::is_null) {
        return refused("attention_chunk_size");
    }
    let step = step(config)? as usize;
    if step == 0 {
        return refused("interleave_moe_layer_step");
    }
    let layers = config.layers()?;
    let usual =
        || (0..layers).filter(|layer| (layer + 1).is_multiple_of(step)).map(|layer| Some(layer as u64));
    let listed = config.json["moe_layers"].as_array();
    if listed.is_some_and(|listed| !listed.iter().map(Value::as_u64).eq(usual())) {
        return refused("moe_layers");
    }
    Ok(())
}

/// Adds what only Llama 4 says.
pub(super) fn write(config: &Config, writer: &mut Writer) -> Result<()> {
    let key = |name: &str| format!("llama4.{name}");
    writer.add_u32(&key("expert_feed_forward_length"), config.number("intermediate_size")? as u32);
    writer.add_u32(&key("interleave_moe_layer_step"), step(config)?);
    let block = config.size("attention_chunk_size")?.unwrap_or(BLOCK as u32);
    writer.add_u32(&key("attention.sliding_window"), block);
    if let Some(length) = config.size("floor_scale")? {
        writer.add_u32(&key("attention.temperature_length"), length);
    }
    if let Some(scale) = config.float("attn_scale") {
        writer.add_f32(&key("attention.temperature_scale"), scale as f32);
    }
    Ok(())
}
