//! From a checkpoint's tensor names to GGUF's, with the reordering each family needs.

use std::collections::BTreeMap;

use super::{
    checkpoint::{Checkpoint, Stored},
    config::{Config, has_delta_nets, has_latents},
    family, gemma3n, gemma4, hybrid, kimi, latent, mamba, mtp,
    planned::{Piece, Planned, interleave},
    ternary,
};
use crate::{Error, Result};

/// Names inside a layer that mean the same in every family.
const LAYER: &[(&str, &str)] = &[
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.qkv_proj", "attn_qkv"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("input_layernorm", "attn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.gate_up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("mlp.c_fc", "ffn_up"),
    ("mlp.c_proj", "ffn_down"),
    ("mlp.gate", "ffn_gate_inp"),
    ("mlp.router", "ffn_gate_inp"),
    ("block_sparse_moe.gate", "ffn_gate_inp"),
    ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
    ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
    ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
    ("mlp.shared_experts.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_experts.up_proj", "ffn_up_shexp"),
    ("mlp.shared_experts.down_proj", "ffn_down_shexp"),
    ("self_attn.q_a_proj", "attn_q_a"),
    ("self_attn.q_a_layernorm", "attn_q_a_norm"),
    ("self_attn.q_b_proj", "attn_q_b"),
    ("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"),
    ("self_attn.kv_a_layernorm", "attn_kv_a_norm"),
    ("self_attn.dense", "attn_output"),
    ("mlp.fc1", "ffn_up"),
    ("mlp.fc2", "ffn_down"),
    ("block_sparse_moe.router.layer", "ffn_gate_inp"),
    ("operator_norm", "attn_norm"),
    ("ffn_norm", "ffn_norm"),
    ("conv.in_proj", "shortconv.in_proj"),
    ("conv.conv", "shortconv.conv"),
    ("conv.out_proj", "shortconv.out_proj"),
    ("self_attn.out_proj", "attn_output"),
    ("self_attn.query_layernorm", "attn_q_norm"),
    ("self_attn.key_layernorm", "attn_k_norm"),
    ("self_attn.q_layernorm", "attn_q_norm"),
    ("self_attn.k_layernorm", "attn_k_norm"),
    ("feed_forward.w1", "ffn_gate"),
    ("feed_forward.w2", "ffn_down"),
    ("feed_forward.w3", "ffn_up"),
    ("feed_forward.gate", "ffn_gate_inp"),
    ("feed_forward.router", "ffn_gate_inp"),
    ("feed_forward.shared_expert.gate_proj", "ffn_gate_shexp"),
    ("feed_forward.shared_expert.up_proj", "ffn_up_shexp"),
    ("feed_forward.shared_expert.down_proj", "ffn_down_shexp"),
    ("self_attn.attn_sub_norm", "attn_sub_norm"),
    ("mlp.ffn_sub_norm", "ffn_sub_norm"),
    ("feed_forward.gate_proj", "ffn_gate"),
    ("feed_forward.up_proj", "ffn_up"),
    ("feed_forward.down_proj", "ffn_down"),
    ("pre_ff_layernorm", "ffn_norm"),
    ("mixer.q_proj", "attn_q"),
    ("mixer.k_proj", "attn_k"),
    ("mixer.v_proj", "attn_v"),
    ("mixer.o_proj", "attn_output"),
    ("mixer.up_proj", "ffn_up"),
    ("mixer.down_proj", "ffn_down"),
    ("mixer.gate", "ffn_gate_inp"),
    ("mixer.fc1_latent_proj", "ffn_latent_down"),
    ("mixer.fc2_latent_proj", "ffn_latent_up"),
    ("mixer.shared_experts.up_proj", "ffn_up_shexp"),
    ("mixer.shared_experts.down_proj", "ffn_down_shexp"),
    ("norm", "attn_norm"),
];

/// What routers add to choose experts.
const BIASES: [&str; 5] = [
    "mlp.gate.e_score_correction_bias",
    "block_sparse_moe.e_score_correction_bias",
    "block_sparse_moe.gate.e_score_correction_bias",
    "feed_forward.expert_bias",
    "mixer.gate.e_score_correction_bias",
];

/// Norms whose place, and so whose GGUF name, depends on the family.
fn norm(arch: &str, inner: &str) -> Option<&'static str> {
    match (arch, inner) {
        ("gemma3n", inner) => gemma3n::inside(inner),
        ("gemma4", inner) => gemma4::inside(inner),
        ("kimi-linear", inner) => kimi::inside(inner),
        ("gemma2" | "gemma3" | "glm4", "post_self_attn_layernorm") => Some("post_attention_norm"),
        ("gemma2" | "gemma3", "post_attention_layernorm") => Some("post_attention_norm"),
        (arch, "post_attention_layernorm") if has_delta_nets(arch) || family::names_second_norm(arch) => {
            Some("post_attention_norm")
        }
        ("olmo2" | "exaone4", "post_feedforward_layernorm") => Some("post_ffw_norm"),
        (_, "post_attention_layernorm") => Some("ffn_norm"),
        ("gemma2" | "gemma3", "pre_feedforward_layernorm") => Some("ffn_norm"),
        ("gemma2" | "gemma3", "post_feedforward_layernorm") => Some("post_ffw_norm"),
        ("glm4", "post_mlp_layernorm") => Some("post_ffw_norm"),
        _ => None,
    }
}

/// Experts: the name of a projection in published checkpoints and in GGUF.
const EXPERTS: &[(&str, &str)] = &[
    ("w1", "ffn_gate_exps"),
    ("w2", "ffn_down_exps"),
    ("w3", "ffn_up_exps"),
    ("gate_proj", "ffn_gate_exps"),
    ("down_proj", "ffn_down_exps"),
    ("up_proj", "ffn_up_exps"),
];

/// Names every tensor of the checkpoint, in file order: globals, then layer by layer.
pub(super) fn plan(config: &Config, checkpoint: &Checkpoint<'_>) -> Result<Vec<Planned>> {
    let mut planner = Planner { config, checkpoint, planned: BTreeMap::new() };
    for (name, values) in config.rope_tensors()? {
        planner.add(Planned::plain(name.into(), values.len(), true, vec![Piece::Values(values)]))?;
    }
    for name in checkpoint.names() {
        planner.tensor(name)?;
    }
    let planned = planner.planned;
    planned.values().try_for_each(Planned::check_experts)?;
    let last_norm = if family::has_convolutions(config.arch()) { "token_embd_norm" } else { "output_norm" };
    for required in ["token_embd.weight", &format!("{last_norm}.weight")] {
        if !planned.values().any(|p| p.name == *required) {
            return Err(Error::unsupported(format!("the checkpoint has nothing for {required}")));
        }
    }
    for layer in 0..config.layers()? {
        let prefix = format!("blk.{layer}.");
        if !planned.values().any(|p| p.name.starts_with(&prefix)) {
            return Err(Error::unsupported(format!("the checkpoint has no tensors of layer {layer}")));
        }
    }
    Ok(planned.into_values().collect())
}

/// What is said of a tensor that has no place in the file.
fn unknown(full: &str) -> Error {
    Error::unsupported(format!("tensor {full} of the checkpoint"))
}

struct Planner<'a> {
    config: &'a Config,
    checkpoint: &'a Checkpoint<'a>,
    /// By (layer, name); globals stand before layer 0.
    planned: BTreeMap<(usize, String), Planned>,
}

impl Planner<'_> {
    fn tensor(&mut self, full: &str) -> Result<()> {
        if let Some(part) = mtp::part(self.config, full) {
            return self.ahead(full, part);
        }
        let Some(name) = self.text_name(full) else { return Ok(()) };
        let Some(stored) = self.checkpoint.get(full) else { return Ok(()) };
        let (stem, suffix) = name.rsplit_once('.').unwrap_or((name, ""));
        let global = match stem {
            "embed_tokens" | "embeddings" => Some("token_embd"),
            "norm" | "norm_f" | "final_layernorm" => Some("output_norm"),
            "embedding_norm" => Some("token_embd_norm"),
            "lm_head" if self.config.tied() => return Ok(()),
            "lm_head" => Some("output"),
            stem if self.config.arch() == "gemma3n" => match gemma3n::stacked(stem) {
                Some((stack, at)) => {
                    return self.stack(stack.into(), full, (at, gemma3n::stack_size(self.config)?), stored);
                }
                None => gemma4::outside(stem),
            },
            stem if family::is_gemma4(self.config.arch()) => gemma4::outside(stem),
            _ => None,
        };
        if let Some(global) = global {
            let mut planned = Planned::matrix(format!("{global}.{suffix}"), full, stored);
            planned.add_one = stem == "norm" && suffix == "weight" && self.adds_one();
            planned.factors = mamba::factors(self.config, stem, stored.rows())?;
            if stem == "embed_tokens_per_layer" {
                gemma3n::fill(self.config, &mut planned, stored)?;
            }
            return self.add(planned);
        }
        let mut parts = name.splitn(3, '.');
        let (Some("layers"), Some(layer), Some(inner)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(unknown(full));
        };
        let layer: usize = layer.parse().map_err(|_| unknown(full))?;
        if self.is_ahead(layer)? {
            return Ok(());
        }
        if layer >= self.config.layers()? {
            return Err(Error::unsupported(format!(
                "tensor {full}: config.json has {} layers",
                self.config.layers()?
            )));
        }
        self.of_layer(full, layer, inner, stored)
    }

    /// A tensor of the layer behind the last that predicts one token further.
    fn ahead(&mut self, full: &str, part: mtp::Part<'_>) -> Result<()> {
        let (layer, stored) = (self.config.layers()?, self.checkpoint.get(full));
        let Some(stored) = stored else { return Ok(()) };
        match part {
            mtp::Part::None => Ok(()),
            mtp::Part::Named(name, norm) => {
                let planned = Planned::matrix(format!("blk.{layer}.{name}.weight"), full, stored);
                self.add(Planned { add_one: norm && self.adds_one(), ..planned })
            }
            mtp::Part::OfLayer(inner) => self.of_layer(full, layer, inner, stored),
        }
    }

    /// A tensor of layer `layer`, called `inner` there.
    fn of_layer(&mut self, full: &str, layer: usize, inner: &str, stored: &Stored) -> Result<()> {
        let known = match inner.contains(".experts.") {
            true => self.expert(full, layer, inner, stored)?,
            false => self.layer(full, layer, inner, stored)?,
        };
        if known { Ok(()) } else { Err(unknown(full)) }
    }

    /// The name inside the text model, or none for what a text model does not need.
    fn text_name<'n>(&self, full: &'n str) -> Option<&'n str> {
        let arch = self.config.arch();
        let skips = mtp::stripped(full).is_some() && (has_delta_nets(arch) || family::is_nemotron(arch));
        // Published checkpoints of Qwen 2-VL have pictures and text side by side, also beside a configuration of the text alone.
        let pictures = family::has_sections(arch) && full.trim_start_matches("model.").starts_with("visual.");
        if full.ends_with("rotary_emb.inv_freq") || skips || pictures {
            return None;
        }
        if self.config.nested && !full.contains("language_model") && arch != "qwen2vl" {
            return (full == "lm_head.weight").then_some(full);
        }
        let name = full.trim_start_matches("model.").trim_start_matches("language_model.");
        let prefix = if family::is_nemotron(arch) { "backbone." } else { "model." };
        Some(name.trim_start_matches(prefix))
    }

    /// Whether a layer predicts tokens further ahead: such layers stand behind the others and are not run.
    fn is_ahead(&self, layer: usize) -> Result<bool> {
        let ahead = self.config.size("num_nextn_predict_layers")?.unwrap_or(0) as usize;
        let layers = self.config.layers()?;
        Ok((layers..layers + ahead).contains(&layer))
    }

    /// The matrix that makes keys and values of the latent; false for one of another shape.
    fn latent(&mut self, full: &str, layer: usize, stored: &Stored) -> Result<bool> {
        let sizes = latent::Sizes::read(self.config)?;
        if (stored.rows(), stored.cols()) != (sizes.rows(), sizes.rank) {
            return Ok(false);
        }
        let tensor = || full.to_string();
        let keys = sizes.keys().map(|rows| Piece::Columns {
            tensor: tensor(),
            rows,
            first: 0,
            step: 1,
            count: sizes.rank,
        });
        let values = sizes.values().map(|rows| Piece::Rows { tensor: tensor(), rows });
        for (name, cols, pieces) in [
            ("attn_k_b", sizes.plain, keys.collect::<Vec<_>>()),
            ("attn_v_b", sizes.rank, values.collect::<Vec<_>>()),
        ] {
            let mut planned = Planned::matrix(format!("blk.{layer}.{name}.weight"), full, stored);
            (planned.cols, planned.stacked, planned.pieces) = (cols, sizes.heads, pieces);
            self.add(planned)?;
        }
        Ok(true)
    }

    /// Whether norms are stored as what is added to one.
    fn adds_one(&self) -> bool {
        family::adds_one(self.config.arch()) || has_delta_nets(self.config.arch())
    }

    /// A tensor of a delta net; false for one that none has.
    fn delta_net(&mut self, full: &str, layer: usize, name: &str, stored: &Stored) -> Result<bool> {
        let heads = hybrid::Heads::read(self.config)?;
        let plain = |name: &str| Planned::matrix(format!("blk.{layer}.{name}"), full, stored);
        match name {
            "norm.weight" => self.add(plain("ssm_norm.weight"))?,
            "out_proj.weight" => {
                let mut planned = plain("ssm_out.weight");
                if !heads.in_order() {
                    let order: Vec<usize> = heads.order().collect();
                    if order.len() * heads.value_dim != stored.cols() {
                        return Ok(false);
                    }
                    planned.columns = Some((order, heads.value_dim));
                }
                self.add(planned)?;
            }
            "A_log" | "dt_bias" => {
                let values = self.values(full, stored)?;
                let (name, value): (_, fn(f32) -> f32) = match name {
                    "A_log" => ("ssm_a", mamba::decay),
                    _ => ("ssm_dt.bias", |x| x),
                };
                let ordered: Option<Vec<f32>> =
                    heads.order().map(|head| values.get(head).copied().map(value)).collect();
                let Some(ordered) = ordered else { return Ok(false) };
                let mut planned = plain(name);
                planned.pieces = vec![Piece::Values(ordered)];
                self.add(planned)?;
            }
            _ => {
                let stem = name.strip_suffix(".weight").unwrap_or_default();
                let Some(parts) = heads.rows(stem, stored.rows()) else { return Ok(false) };
                for (name, rows) in parts {
                    let mut planned = plain(name);
                    let piece = |rows| Piece::Rows { tensor: full.into(), rows };
                    planned.pieces = rows.into_iter().map(piece).collect();
                    self.add(planned)?;
                }
            }
        }
        Ok(true)
    }

    fn layer(&mut self, full: &str, layer: usize, inner: &str, stored: &Stored) -> Result<bool> {
        let (stem, suffix) = inner.rsplit_once('.').unwrap_or((inner, ""));
        let arch = self.config.arch();
        if let (true, Some(name)) = (has_delta_nets(arch), inner.strip_prefix("linear_attn.")) {
            return self.delta_net(full, layer, name, stored);
        }
        if has_latents(arch) && inner == "self_attn.kv_b_proj.weight" {
            return self.latent(full, layer, stored);
        }
        if let (true, Some(name)) = (family::has_mamba(arch), mamba::part(inner)) {
            let planned = mamba::plan(self.config, (layer, name), full, stored, self.checkpoint)?;
            let Some(planned) = planned else { return Ok(false) };
            let factors = mamba::factors(self.config, stem, stored.rows())?;
            self.add(Planned { factors, ..planned })?;
            return Ok(true);
        }
        if arch == "kimi-linear"
            && let Some(planned) = kimi::plan((layer, inner), full, stored, self.checkpoint)?
        {
            self.add(planned)?;
            return Ok(true);
        }
        if inner == "self_attn.sinks" {
            self.add(Planned::matrix(format!("blk.{layer}.attn_sinks.weight"), full, stored))?;
            return Ok(true);
        }
        let whole = match arch {
            "gemma3n" => gemma3n::whole(inner),
            _ if family::is_gemma4(arch) => gemma4::whole(inner),
            _ => None,
        };
        if let Some(name) = whole {
            self.add(Planned::matrix(format!("blk.{layer}.{name}"), full, stored))?;
            return Ok(true);
        }
        if family::is_gemma4(arch) {
            match inner {
                "experts.gate_up_proj" => return self.halves(full, layer, stored, (&["gate_up"], "_exps")),
                "experts.down_proj" => return self.halves(full, layer, stored, (&["down"], "_exps")),
                _ => {}
            }
        }
        // Beside experts the dense network is the expert that every token visits.
        let shared = if self.config.experts() > 0 { "_shexp" } else { "" };
        let fused: Option<(&[&str], &str)> = match stem {
            "block_sparse_moe.input_linear" => Some((&["gate", "up"], "_exps")),
            "block_sparse_moe.output_linear" => Some((&["down"], "_exps")),
            "shared_mlp.input_linear" => Some((&["gate", "up"], shared)),
            "shared_mlp.output_linear" => Some((&["down"], shared)),
            _ => None,
        };
        if let Some(names) = fused {
            return self.halves(full, layer, stored, names);
        }
        if BIASES.contains(&inner) {
            self.add(Planned::matrix(format!("blk.{layer}.exp_probs_b.bias"), full, stored))?;
            return Ok(true);
        }
        let known = LAYER.iter().find(|(from, _)| *from == stem).map(|(_, to)| *to);
        let Some(name) = known.or_else(|| norm(arch, stem)) else { return Ok(false) };
        let mut planned = Planned::matrix(format!("blk.{layer}.{name}.{suffix}"), full, stored);
        planned.add_one = self.adds_one() && name.ends_with("norm") && suffix == "weight";
        planned.factors = mamba::factors(self.config, stem, stored.rows())?;
        if arch == "falcon-h1" && name == "ffn_norm" {
            // llama.cpp's converter has this one norm under its whole name.
            planned.name = format!("blk.{layer}.{name}");
        }
        planned.permute = match name {
            "attn_q" if family::permutes(arch) => Some(self.config.heads()?),
            "attn_k" if family::permutes(arch) => Some(self.config.kv_heads()?),
            _ => None,
        };
        if let Some(heads) = planned.permute {
            self.check_heads(full, stored, heads)?;
            if planned.vector {
                // A bias is permuted like the rows it belongs to: one column per row.
                planned.pieces =
                    vec![Piece::Values(interleave(&self.values(full, stored)?, stored.cols() / heads, 1))];
                planned.permute = None;
            }
        }
        if name == "ffn_gate_inp_shexp" {
            planned.vector = true;
        }
        ternary::plan(self.config, &mut planned, stored)?;
        self.add(planned)?;
        Ok(true)
    }

    fn check_heads(&self, full: &str, stored: &Stored, heads: usize) -> Result<()> {
        let rows = if stored.shape.len() < 2 { stored.cols() } else { stored.rows() };
        if heads == 0 || rows % (2 * heads) != 0 {
            return Err(Error::malformed(full, format!("{rows} rows do not divide into {heads} heads")));
        }
        Ok(())
    }

    fn values(&self, full: &str, stored: &Stored) -> Result<Vec<f32>> {
        self.checkpoint.read(full, 0..stored.rows())
    }

    /// Experts are stacked in GGUF: one tensor per projection. Checkpoints have one tensor per expert, or newer ones
    /// a stack with gate and up fused.
    fn expert(&mut self, full: &str, layer: usize, inner: &str, stored: &Stored) -> Result<bool> {
        let experts = self.config.experts();
        let rest = inner.split_once(".experts.").map_or("", |(_, rest)| rest);
        if let Some((index, projection)) = rest.split_once('.') {
            let stem = projection.trim_end_matches(".weight");
            let Some((_, name)) = EXPERTS.iter().find(|(from, _)| *from == stem) else { return Ok(false) };
            let index = index.parse::<usize>().ok().filter(|&i| i < experts);
            let index =
                index.ok_or_else(|| Error::malformed(full, format!("config.json has {experts} experts")))?;
            let name = format!("blk.{layer}.{name}.weight");
            return self.stack(name, full, (index, experts), stored).map(|()| true);
        }
        if family::stacks_inputs_first(self.config.arch()) {
            return self.inputs_first(full, layer, rest, stored);
        }
        if stored.shape.len() != 3 {
            return Ok(false);
        }
        match rest.trim_end_matches(".weight") {
            "down_proj" => self.halves(full, layer, stored, (&["down"], "_exps")),
            "gate_up_proj" => self.halves(full, layer, stored, (&["gate", "up"], "_exps")),
            _ => Ok(false),
        }
    }

    /// A matrix, or a stack of one for each expert, whose rows are those of these parts of a feed-forward network in turn, as many of each;
    /// false for one of another shape.
    fn halves(
        &mut self,
        full: &str,
        layer: usize,
        stored: &Stored,
        (parts, ending): (&[&str], &str),
    ) -> Result<bool> {
        let (count, rows, cols) = match stored.shape[..] {
            [rows, cols] => (1, rows, cols),
            [count, rows, cols] => (count, rows, cols),
            _ => return Ok(false),
        };
        let experts = self.config.experts();
        if stored.shape.len() == 3 && count != experts {
            let why = format!("it stacks {count} experts, config.json has {experts}");
            return Err(Error::malformed(full, why));
        }
        if !rows.is_multiple_of(parts.len()) {
            return Ok(false);
        }
        let height = rows / parts.len();
        for (at, part) in parts.iter().enumerate() {
            let piece = |expert: usize| {
                let first = expert * rows + at * height;
                Piece::Rows { tensor: full.into(), rows: first..first + height }
            };
            let name = format!("blk.{layer}.ffn_{part}{ending}.weight");
            let pieces = (0..count).map(piece).collect();
            self.add(Planned { stacked: count, ..Planned::plain(name, cols, false, pieces) })?;
        }
        Ok(true)
    }

    /// Experts stacked with inputs before outputs, unless they are MXFP4; gate and up take turns in gpt-oss and stand one behind the
    /// other elsewhere ([`family::stacks_inputs_first`]).
    fn inputs_first(&mut self, full: &str, layer: usize, rest: &str, stored: &Stored) -> Result<bool> {
        let (experts, arch) = (self.config.experts(), self.config.arch());
        if stored.shape.first() != Some(&experts) {
            let why = format!("config.json of {arch} has {experts} experts, shape {:?}", stored.shape);
            return Err(Error::malformed(full, why));
        }
        let takes_turns = arch == "gpt-oss";
        let stem = if takes_turns { rest.trim_end_matches("_bias") } else { rest };
        let names: &[&str] = match stem {
            "gate_up_proj" => &["ffn_gate_exps", "ffn_up_exps"],
            "down_proj" => &["ffn_down_exps"],
            _ => return Ok(false),
        };
        let parts = names.len();
        for (at, name) in names.iter().enumerate() {
            let tensor = || full.to_owned();
            let planned = match stored.shape[..] {
                [_, width] if takes_turns && rest.ends_with("_bias") => {
                    let all = self.values(full, stored)?;
                    let row =
                        |row: &[f32]| Piece::Values(row.iter().skip(at).step_by(parts).copied().collect());
                    let pieces = all.chunks_exact(width).map(row).collect();
                    Planned::plain(format!("blk.{layer}.{name}.bias"), width / parts, false, pieces)
                }
                [_, rows, cols] if takes_turns && stored.is_mxfp4() => {
                    let piece = |expert: usize| {
                        let rows = expert * rows + at..(expert + 1) * rows;
                        Piece::Every { tensor: tensor(), rows, step: parts }
                    };
                    let pieces = (0..experts).map(piece).collect();
                    Planned {
                        stacked: experts,
                        ..Planned::plain(format!("blk.{layer}.{name}.weight"), cols, false, pieces)
                    }
                }
                [_, rows, cols] if cols.is_multiple_of(parts) => {
                    let count = cols / parts;
                    let (first, step) = if takes_turns { (at, parts) } else { (at * count, 1) };
                    let piece = |expert: usize| {
                        let rows = expert * rows..(expert + 1) * rows;
                        Piece::Columns { tensor: tensor(), rows, first, step, count }
                    };
                    let pieces = (0..experts).map(piece).collect();
                    Planned {
                        stacked: experts,
                        ..Planned::plain(format!("blk.{layer}.{name}.weight"), rows, false, pieces)
                    }
                }
                _ => return Ok(false),
            };
            self.add(planned)?;
        }
        Ok(true)
    }

    /// A matrix as number `index` of a stack of `count`.
    fn stack(
        &mut self,
        name: String,
        full: &str,
        (index, count): (usize, usize),
        stored: &Stored,
    ) -> Result<()> {
        if index >= count {
            return Err(Error::malformed(full, format!("config.json has {count} matrices of its kind")));
        }
        let entry = self.planned.entry(key(&name)).or_insert_with(|| {
            let missing = |_| Piece::Rows { tensor: String::new(), rows: 0..stored.rows() };
            let pieces = (0..count).map(missing).collect();
            Planned { stacked: count, ..Planned::plain(name, stored.cols(), false, pieces) }
        });
        if entry.cols != stored.cols() || entry.pieces[index].rows() != stored.rows() {
            return Err(Error::malformed(full, "its shape differs from the others' of its stack"));
        }
        entry.pieces[index] = Piece::Rows { tensor: full.into(), rows: 0..stored.rows() };
        Ok(())
    }

    fn add(&mut self, planned: Planned) -> Result<()> {
        match self.planned.insert(key(&planned.name), planned) {
            None => Ok(()),
            Some(twice) => Err(Error::unsupported(format!("the checkpoint has {} twice", twice.name))),
        }
    }
}

/// File order: what has no layer first, then layers by number.
fn key(name: &str) -> (usize, String) {
    let layer = name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
    (layer.map_or(0, |layer| layer + 1), name.into())
}
