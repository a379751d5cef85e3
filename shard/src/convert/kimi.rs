//! Checkpoints of Kimi Linear: delta nets with a decay for every channel of a key beside latent attention that does not rotate.

use super::{
    checkpoint::{Checkpoint, Stored},
    config::{Config, only},
    mamba,
    planned::{Piece, Planned},
};
use crate::{Error, Result, gguf::Writer};

/// Widest head and longest convolution accepted.
const MAX: usize = 1 << 12;

/// The name of a tensor inside a layer that other families do not have, or have under another name.
pub(super) fn inside(stem: &str) -> Option<&'static str> {
    match stem {
        "post_attention_layernorm" => Some("ffn_norm"),
        "self_attn.f_a_proj" => Some("ssm_f_a"),
        "self_attn.f_b_proj" => Some("ssm_f_b"),
        "self_attn.b_proj" => Some("ssm_beta"),
        "self_attn.g_a_proj" => Some("ssm_g_a"),
        "self_attn.g_b_proj" => Some("ssm_g_b"),
        "self_attn.o_norm" => Some("ssm_norm"),
        "block_sparse_moe.gate_proj" => Some("ffn_gate"),
        "block_sparse_moe.up_proj" => Some("ffn_up"),
        "block_sparse_moe.down_proj" => Some("ffn_down"),
        "block_sparse_moe.shared_experts.gate_proj" => Some("ffn_gate_shexp"),
        "block_sparse_moe.shared_experts.up_proj" => Some("ffn_up_shexp"),
        "block_sparse_moe.shared_experts.down_proj" => Some("ffn_down_shexp"),
        _ => None,
    }
}

/// A tensor of a delta net that has another form in a file; `None` for others.
pub(super) fn plan(
    (layer, inner): (usize, &str),
    full: &str,
    stored: &Stored,
    checkpoint: &Checkpoint<'_>,
) -> Result<Option<Planned>> {
    let plain = |name: &str| Planned::matrix(format!("blk.{layer}.{name}"), full, stored);
    let convolution = |name: &str| Planned { shape: vec![1, stored.rows(), 1, stored.cols()], ..plain(name) };
    Ok(Some(match inner {
        "self_attn.q_conv1d.weight" => convolution("ssm_conv1d_q.weight"),
        "self_attn.k_conv1d.weight" => convolution("ssm_conv1d_k.weight"),
        "self_attn.v_conv1d.weight" => convolution("ssm_conv1d_v.weight"),
        "self_attn.dt_bias" => plain("ssm_dt.bias"),
        "self_attn.A_log" => {
            let values = checkpoint.read(full, 0..stored.rows())?;
            let values: Vec<f32> = values.into_iter().map(mamba::decay).collect();
            let (name, heads) = (format!("blk.{layer}.ssm_a"), values.len());
            let piece = vec![Piece::Values(values)];
            Planned { shape: vec![1, 1, heads, 1], ..Planned::plain(name, heads, true, piece) }
        }
        _ => return Ok(None),
    }))
}

/// Adds what files of this family alone say.
///
/// # Errors
/// Keys that are missing or unsound, and choices that a file cannot express.
pub(super) fn write(config: &Config, writer: &mut Writer) -> Result<()> {
    only(config, "mla_use_nope", &true.into())?;
    only(config, "linear_num_heads", &config.heads()?.into())?;
    let kinds = config.json["mlp_layer_types"].as_array();
    let dense = config.size("first_k_dense_replace")?.unwrap_or(1) as usize;
    if kinds.is_some_and(|kinds| kinds.iter().skip(dense).any(|kind| kind == "dense")) {
        return Err(Error::unsupported("config.json: mlp_layer_types with dense layers behind experts"));
    }
    for (from, to) in [("linear_head_dim", "kda.head_dim"), ("linear_conv_kernel_dim", "ssm.conv_kernel")] {
        writer.add_u32(&format!("kimi-linear.{to}"), config.bounded(from, MAX)? as u32);
    }
    Ok(())
}
