//! Checkpoints of Gemma 3n, text part: streams of residual rows, a row of the token for every layer, gates below a cutoff.

use serde_json::Value;

use super::{
    checkpoint::Stored,
    config::{Config, only},
    gemma4,
    planned::{Piece, Planned},
};
use crate::{Error, Result, gguf::Writer, kernels::math};

/// Halvings of the interval in which a quantile lies: more than an `f64` has bits.
const HALVINGS: u32 = 64;
/// No quantile of a share that an `f32` holds lies further out.
const FURTHEST: f64 = 8.0;

/// The stack that a matrix of one stream behind the first belongs to, and its place there.
pub(super) fn stacked(stem: &str) -> Option<(&'static str, usize)> {
    let (stack, at) = stem.rsplit_once('.')?;
    let name = match stack {
        "altup_projections" => "altup_proj.weight",
        "altup_unembed_projections" => "altup_unembd_proj.weight",
        _ => return None,
    };
    Some((name, at.parse().ok()?))
}

/// Matrices in a stack: one for each stream behind the first.
pub(super) fn stack_size(config: &Config) -> Result<usize> {
    Ok(config.bounded("altup_num_inputs", crate::models::limits::STREAMS)?.saturating_sub(1))
}

/// The name inside a layer, with its ending, of a tensor that has another one in a file.
pub(super) fn whole(inner: &str) -> Option<&'static str> {
    (inner == "altup.correct_output_scale").then_some("altup_correct_scale.weight")
}

/// Norms, the streams, the network beside attention, and what reads the second embedding.
pub(super) fn inside(stem: &str) -> Option<&'static str> {
    match stem {
        "altup.correction_coefs" => Some("altup_correct_coef"),
        "altup.prediction_coefs" => Some("altup_predict_coef"),
        "altup.modality_router" => Some("altup_router"),
        "altup.router_norm" => Some("altup_router_norm"),
        "laurel.linear_left" => Some("laurel_l"),
        "laurel.linear_right" => Some("laurel_r"),
        "laurel.post_laurel_norm" => Some("laurel_post_norm"),
        stem => gemma4::inside(stem),
    }
}

/// An embedding has a row for every token of the vocabulary: the second one is published without those of images and sounds.
pub(super) fn fill(config: &Config, planned: &mut Planned, stored: &Stored) -> Result<()> {
    let missing = config.vocab()?.saturating_sub(stored.rows());
    planned.pieces.extend((0..missing).map(|_| Piece::Values(vec![0.0; stored.cols()])));
    Ok(())
}

/// Adds what only this family says.
///
/// # Errors
/// Keys that are missing or unsound, and choices that a file cannot express.
pub(super) fn write(config: &Config, writer: &mut Writer) -> Result<()> {
    let key = |name: &str| format!("gemma3n.{name}");
    only(config, "altup_active_idx", &0.into())?;
    only(config, "altup_correct_scale", &true.into())?;
    only(config, "attention_bias", &false.into())?;
    let layers = config.layers()?;
    match &config.json["intermediate_size"] {
        Value::Array(widths) => {
            config.check_layers(widths.len())?;
            let width = |width: &Value| width.as_u64().and_then(|width| i32::try_from(width).ok());
            let widths: Option<Vec<i32>> = widths.iter().map(width).collect();
            let widths = widths.ok_or_else(|| {
                Error::malformed("config.json: intermediate_size", "it is no list of widths")
            })?;
            writer.add_i32s(&key("feed_forward_length"), &widths);
        }
        _ => {
            writer.add_u32(&key("feed_forward_length"), config.number("intermediate_size")? as u32);
        }
    }
    let windowed = gemma4::windowed(config)?;
    writer.add_bools(&key("attention.sliding_window_pattern"), &windowed);
    for (from, to) in [
        ("num_kv_shared_layers", "attention.shared_kv_layers"),
        ("hidden_size_per_layer_input", "embedding_length_per_layer_input"),
        ("altup_num_inputs", "altup.num_inputs"),
    ] {
        let size = config.size(from)?;
        let size = size.ok_or_else(|| Error::malformed(format!("config.json: {from}"), "it is missing"))?;
        writer.add_u32(&key(to), size);
    }
    writer.add_u32(&key("altup.active_idx"), 0);
    let local = config.local_rope_theta().or(config.float("rope_local_base_freq"));
    if let Some(theta) = local.filter(|theta| *theta != 10_000.0) {
        writer.add_f32(&key("rope.freq_base_swa"), theta as f32);
    }
    let shares: Vec<f64> = match &config.json["activation_sparsity_pattern"] {
        Value::Array(shares) => shares.iter().filter_map(Value::as_f64).collect(),
        share => share.as_f64().map(|share| vec![share; layers]).unwrap_or_default(),
    };
    if shares.len() != layers || !shares.iter().all(|share| (0.0..1.0).contains(share)) {
        let why = format!("it is no list of {layers} shares below one");
        return Err(Error::malformed("config.json: activation_sparsity_pattern", why));
    }
    let deviations: Vec<f32> = shares.into_iter().map(|share| quantile(share as f32)).collect();
    writer.add_f32s(&key("activation_sparsity_scale"), &deviations);
    Ok(())
}

/// How many standard deviations above the mean `share` of a normal distribution lies; minus infinity for nothing.
fn quantile(share: f32) -> f32 {
    if share <= 0.0 {
        return f32::NEG_INFINITY;
    }
    let (mut low, mut high) = (-FURTHEST, FURTHEST);
    for _ in 0..HALVINGS {
        let middle = (low + high) / 2.0;
        if below(middle) < f64::from(share) { low = middle } else { high = middle }
    }
    ((low + high) / 2.0) as f32
}

/// The share of a normal distribution below `x`: `1/2 + density * (x + x^3/3 + x^5/(3*5) + ...)`.
fn below(x: f64) -> f64 {
    let (mut term, mut sum, mut odd) = (x, x, 1.0);
    while term.abs() > f64::EPSILON * sum.abs() {
        odd += 2.0;
        term *= x * x / odd;
        sum += term;
    }
    0.5 + math::exp(-x * x / 2.0) / (2.0 * std::f64::consts::PI).sqrt() * sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_a_normal_distribution() {
        // Abramowitz and Stegun, table 26.5.
        let known = [(0.5, 0.0), (0.95, 1.644_854), (0.75, 0.674_490), (0.1, -1.281_552), (0.999, 3.090_232)];
        for (share, expected) in known {
            let found = quantile(share);
            assert!((found - expected).abs() < 2e-5, "{share}: {found}, expected {expected}");
        }
        assert_eq!(quantile(0.0), f32::NEG_INFINITY);
    }
}
