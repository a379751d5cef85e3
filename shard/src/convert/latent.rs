//! Checkpoints with latent attention (DeepSeek V2, V3 and their descendants): the metadata, and how the matrix that makes keys and
//! values of the latent is parted.
//!
//! `kv_b_proj` has for each head the rows of its keys and then those of its values. A file keeps them apart, the keys transposed: what
//! the absorbed form multiplies queries by (see [`crate::models::Latent`]).

use std::ops::Range;

use super::config::Config;
use crate::{Error, Result, gguf::Writer};

/// Most heads, and widest head or latent, accepted.
const MAX: usize = 1 << 12;

/// The sizes of a checkpoint's latent attention.
pub(super) struct Sizes {
    pub heads: usize,
    /// Width of the latent.
    pub rank: usize,
    /// Elements of a key that do not rotate.
    pub plain: usize,
    rotated: usize,
    value: usize,
}

impl Sizes {
    pub fn read(config: &Config) -> Result<Self> {
        let size = |key: &str| config.bounded(key, MAX);
        Ok(Self {
            heads: size("num_attention_heads")?,
            rank: size("kv_lora_rank")?,
            plain: size("qk_nope_head_dim")?,
            rotated: size("qk_rope_head_dim")?,
            value: size("v_head_dim")?,
        })
    }

    /// Rows of `kv_b_proj`.
    pub fn rows(&self) -> usize {
        self.heads * (self.plain + self.value)
    }

    /// The rows of each head's keys.
    pub fn keys(&self) -> impl Iterator<Item = Range<usize>> {
        let (plain, both) = (self.plain, self.plain + self.value);
        (0..self.heads).map(move |head| head * both..head * both + plain)
    }

    /// The rows of each head's values.
    pub fn values(&self) -> impl Iterator<Item = Range<usize>> {
        let (plain, both) = (self.plain, self.plain + self.value);
        (0..self.heads).map(move |head| head * both + plain..(head + 1) * both)
    }

    /// Adds the sizes, and what the family says of its experts.
    pub fn write(&self, config: &Config, writer: &mut Writer) -> Result<()> {
        let key = |name: &str| format!("{}.{name}", config.arch());
        for (flag, usual) in [("rope_interleave", true), ("attention_bias", false)] {
            if config.flag(flag).is_some_and(|flag| flag != usual) {
                return Err(Error::unsupported(format!("config.json: {flag} {}", !usual)));
            }
        }
        for (name, value) in [
            ("attention.key_length", self.rank + self.rotated),
            ("attention.value_length", self.rank),
            ("attention.key_length_mla", self.plain + self.rotated),
            ("attention.value_length_mla", self.value),
            ("attention.kv_lora_rank", self.rank),
            ("rope.dimension_count", self.rotated),
        ] {
            writer.add_u32(&key(name), value as u32);
        }
        for (from, to) in [
            ("q_lora_rank", "attention.q_lora_rank"),
            ("n_shared_experts", "expert_shared_count"),
            ("first_k_dense_replace", "leading_dense_block_count"),
        ] {
            if let Some(n) = config.size(from)? {
                writer.add_u32(&key(to), n);
            }
        }
        if let Some(length) = config.rope_number("mscale_all_dim") {
            writer.add_f32(&key("rope.scaling.yarn_log_multiplier"), (0.1 * length) as f32);
        }
        if config.experts() == 0 {
            return Ok(());
        }
        if config.size("moe_layer_freq")?.is_some_and(|every| every != 1) {
            return Err(Error::unsupported("config.json: moe_layer_freq other than 1"));
        }
        let sigmoid = match (config.text("scoring_func"), config.kind()) {
            (Some("sigmoid"), _) => true,
            (Some("softmax"), _) => false,
            (Some(other), _) => return Err(Error::unsupported(format!("config.json: scoring_func {other}"))),
            (None, kind) => kind != "deepseek_v2",
        };
        writer.add_u32(&key("expert_gating_func"), if sigmoid { 2 } else { 1 });
        // The published code of V2 leaves the weights as they are, whatever the configuration says.
        let share = sigmoid && config.flag("norm_topk_prob").unwrap_or(true);
        writer.add_bool(&key("expert_weights_norm"), share);
        if let Some(scale) = config.float("routed_scaling_factor") {
            writer.add_f32(&key("expert_weights_scale"), scale as f32);
        }
        // Without groups all experts compete.
        if config.text("topk_method") != Some("greedy")
            && let (Some(count), Some(used)) = (config.size("n_group")?, config.size("topk_group")?)
        {
            writer.add_u32(&key("expert_group_count"), count);
            writer.add_u32(&key("expert_group_used_count"), used);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_share_the_rows_between_keys_and_values() {
        let sizes = Sizes { heads: 2, rank: 4, plain: 3, rotated: 2, value: 5 };
        assert_eq!(sizes.rows(), 16);
        assert!(sizes.keys().eq([0..3, 8..11]) && sizes.values().eq([3..8, 11..16]));
    }
}
