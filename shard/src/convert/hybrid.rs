//! Checkpoints with gated delta nets: which rows of theirs make the tensors of a GGUF file, and the metadata.
//!
//! Checkpoints group value heads by the key head they share. Files of `qwen35` and `qwen35moe` store them tiled, value head
//! `i` with key head `i mod key heads`; those of `qwen3next` keep the groups, but part the fused projection, which has q, k, v and
//! z of one key head after the other.

use std::ops::Range;

use super::config::Config;
use crate::{Error, Result, gguf::Writer};

/// Most heads and most values of one accepted; lists are made of their number.
const MAX: usize = 1 << 12;
/// How the pairs of a head are shared among the three position axes of images where config.json does not say.
const SECTIONS: [i32; 4] = [11, 11, 10, 0];

/// Tensors of a block, and the rows of a checkpoint's that each is made of.
type Parts = Vec<(&'static str, Vec<Range<usize>>)>;

/// The heads of a checkpoint's delta nets.
pub(super) struct Heads {
    keys: usize,
    values: usize,
    key_dim: usize,
    pub value_dim: usize,
    tiled: bool,
}

impl Heads {
    pub fn read(config: &Config) -> Result<Self> {
        let size = |key: &str| config.bounded(key, MAX);
        let heads = Self {
            keys: size("linear_num_key_heads")?,
            values: size("linear_num_value_heads")?,
            key_dim: size("linear_key_head_dim")?,
            value_dim: size("linear_value_head_dim")?,
            tiled: config.arch() != "qwen3next",
        };
        if !heads.values.is_multiple_of(heads.keys) {
            let why = format!("{} value heads for {} key heads", heads.values, heads.keys);
            return Err(Error::malformed("config.json: linear_num_value_heads", why));
        }
        Ok(heads)
    }

    /// Rows of q and k together.
    fn key_rows(&self) -> usize {
        2 * self.keys * self.key_dim
    }

    fn shared(&self) -> usize {
        self.values / self.keys
    }

    /// The value heads of the checkpoint in the order of the file.
    pub fn order(&self) -> impl Iterator<Item = usize> {
        let (keys, shared, tiled) = (self.keys, self.shared(), self.tiled);
        (0..self.values).map(move |place| if tiled { place % keys * shared + place / keys } else { place })
    }

    /// Whether the file has the checkpoint's order.
    pub fn in_order(&self) -> bool {
        self.order().eq(0..self.values)
    }

    /// Which of the `rows` rows of `linear_attn.<stem>` make which tensors of a block; none for a tensor of another name.
    pub fn rows(&self, stem: &str, rows: usize) -> Option<Parts> {
        let values = |from: usize, width: usize| {
            let part = move |head: usize| from + head * width..from + (head + 1) * width;
            self.order().map(part).collect::<Vec<_>>()
        };
        let behind_keys = || {
            let keys = std::iter::once(0..self.key_rows());
            keys.chain(values(self.key_rows(), self.value_dim)).collect()
        };
        let value_rows = self.values * self.value_dim;
        let (expected, parts) = match stem {
            "in_proj_qkv" => (self.key_rows() + value_rows, vec![("attn_qkv.weight", behind_keys())]),
            "conv1d" => (self.key_rows() + value_rows, vec![("ssm_conv1d.weight", behind_keys())]),
            "in_proj_z" => (value_rows, vec![("attn_gate.weight", values(0, self.value_dim))]),
            "in_proj_b" => (self.values, vec![("ssm_beta.weight", values(0, 1))]),
            "in_proj_a" => (self.values, vec![("ssm_alpha.weight", values(0, 1))]),
            "in_proj_ba" => (2 * self.values, vec![("ssm_ba.weight", std::iter::once(0..rows).collect())]),
            "in_proj_qkvz" => {
                let wide = self.shared() * self.value_dim;
                let group = 2 * self.key_dim + 2 * wide;
                let part = |first: usize, width: usize| {
                    (0..self.keys).map(move |key| key * group + first..key * group + first + width)
                };
                let (q, k) = (part(0, self.key_dim), part(self.key_dim, self.key_dim));
                let (v, z) = (part(2 * self.key_dim, wide), part(2 * self.key_dim + wide, wide));
                let qkv = q.chain(k).chain(v).collect();
                (self.keys * group, vec![("attn_qkv.weight", qkv), ("attn_gate.weight", z.collect())])
            }
            _ => return None,
        };
        (expected == rows).then_some(parts)
    }

    /// Adds the sizes of the delta nets.
    pub fn write(&self, config: &Config, writer: &mut Writer) -> Result<()> {
        let key = |name: &str| format!("{}.{name}", config.arch());
        for (name, value) in [
            ("ssm.conv_kernel", config.number("linear_conv_kernel_dim")?),
            ("ssm.state_size", self.key_dim),
            ("ssm.group_count", self.keys),
            ("ssm.time_step_rank", self.values),
            ("ssm.inner_size", self.values * self.value_dim),
            ("full_attention_interval", interval(config)?),
        ] {
            let value = u32::try_from(value).map_err(|_| Error::malformed(key(name), "is too large"))?;
            writer.add_u32(&key(name), value);
        }
        if self.tiled {
            writer.add_i32s(&key("rope.dimension_sections"), &SECTIONS);
        }
        Ok(())
    }
}

/// Every how many layers one is attention.
fn interval(config: &Config) -> Result<usize> {
    let listed = config.strings("layer_types");
    let interval = match (config.size("full_attention_interval")?, &listed) {
        (Some(interval), _) => interval as usize,
        (None, Some(types)) => {
            let first = types.iter().position(|kind| kind == "full_attention");
            first.map_or(types.len(), |first| first) + 1
        }
        (None, None) => 4,
    };
    let attends = |layer: usize| interval > 0 && (layer + 1).is_multiple_of(interval);
    let regular = |types: &Vec<String>| {
        types.iter().enumerate().all(|(layer, kind)| (kind == "full_attention") == attends(layer))
    };
    if interval == 0 || !listed.as_ref().is_none_or(regular) {
        return Err(Error::unsupported("config.json: layer_types without a period"));
    }
    Ok(interval)
}
