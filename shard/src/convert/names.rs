//! From a checkpoint's tensor names to GGUF's, with the reordering each family needs.

use std::{collections::BTreeMap, ops::Range};

use super::{
    checkpoint::{Checkpoint, Stored},
    config::{Config, has_delta_nets, has_latents},
    hybrid, latent,
};
use crate::{Error, Result, kernels::math};

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
];

/// Norms whose place, and so whose GGUF name, depends on the family.
fn norm(arch: &str, inner: &str) -> Option<&'static str> {
    match (arch, inner) {
        ("gemma2" | "gemma3" | "glm4", "post_self_attn_layernorm") => Some("post_attention_norm"),
        ("gemma2" | "gemma3", "post_attention_layernorm") => Some("post_attention_norm"),
        (arch, "post_attention_layernorm") if has_delta_nets(arch) => Some("post_attention_norm"),
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

/// One tensor of the GGUF file and where its rows come from.
pub(super) struct Planned {
    pub name: String,
    pub cols: usize,
    /// Whether it is one-dimensional.
    pub vector: bool,
    /// Number of matrices stacked, 1 for a plain matrix.
    stacked: usize,
    pieces: Vec<Piece>,
    permute: Option<usize>,
    add_one: bool,
    /// The groups of columns in the order of the file, each this wide.
    columns: Option<(Vec<usize>, usize)>,
}

/// Consecutive rows of one checkpoint tensor, or values computed from the configuration.
enum Piece {
    Rows {
        tensor: String,
        rows: Range<usize>,
    },
    /// So many columns of those rows, each as a row.
    Columns {
        tensor: String,
        rows: Range<usize>,
        count: usize,
    },
    Values(Vec<f32>),
}

impl Piece {
    fn rows(&self) -> usize {
        match self {
            Self::Rows { rows, .. } => rows.len(),
            Self::Columns { count, .. } => *count,
            Self::Values(_) => 1,
        }
    }
}

impl Planned {
    /// These pieces one after the other as they are: one matrix, or a vector.
    fn plain(name: String, cols: usize, vector: bool, pieces: Vec<Piece>) -> Self {
        Self { name, cols, vector, stacked: 1, pieces, permute: None, add_one: false, columns: None }
    }

    pub fn matrix(name: String, tensor: &str, stored: &Stored) -> Self {
        let pieces = vec![Piece::Rows { tensor: tensor.into(), rows: 0..stored.rows() }];
        Self::plain(name, stored.cols(), stored.shape.len() < 2, pieces)
    }

    /// The matrix called `name` of some rows of this one; `None` where it has not all of them in one tensor of the checkpoint.
    pub fn some_rows(&self, name: &str, rows: &[usize]) -> Option<Self> {
        let [Piece::Rows { tensor, rows: all }] = &self.pieces[..] else { return None };
        let piece = |row: &usize| {
            let row = all.start + row;
            all.contains(&row).then(|| Piece::Rows { tensor: tensor.clone(), rows: row..row + 1 })
        };
        let pieces = rows.iter().map(piece).collect::<Option<_>>()?;
        Some(Self::plain(name.into(), self.cols, false, pieces))
    }

    /// Errors: an expert that no tensor of the checkpoint brought.
    fn check_experts(&self) -> Result<()> {
        let missing = |piece: &Piece| matches!(piece, Piece::Rows { tensor, .. } if tensor.is_empty());
        match self.pieces.iter().position(missing) {
            Some(expert) => {
                Err(Error::malformed(&self.name, format!("the checkpoint has no expert {expert} for it")))
            }
            None => Ok(()),
        }
    }

    /// Rows of all stacked matrices together.
    pub fn rows(&self) -> usize {
        self.pieces.iter().map(Piece::rows).sum()
    }

    /// Dimensions as GGUF lists them, innermost first.
    pub fn dims(&self) -> Vec<u64> {
        let (cols, rows) = (self.cols as u64, self.rows() as u64);
        match (self.vector, self.stacked) {
            (true, _) => vec![cols],
            (false, 1) => vec![cols, rows],
            (false, n) => vec![cols, rows / n as u64, n as u64],
        }
    }

    /// Slices must start on a multiple of this many rows.
    pub fn row_unit(&self) -> usize {
        self.permute.map_or(1, |heads| self.rows() / heads)
    }

    /// The f32 values of some rows, in GGUF's order.
    pub fn read(&self, checkpoint: &Checkpoint<'_>, rows: Range<usize>) -> Result<Vec<f32>> {
        let mut values = Vec::with_capacity(rows.len() * self.cols);
        let mut start = 0;
        for piece in &self.pieces {
            let end = start + piece.rows();
            let wanted = rows.start.max(start)..rows.end.min(end);
            if !wanted.is_empty() {
                match piece {
                    Piece::Values(all) => values.extend_from_slice(all),
                    Piece::Columns { tensor, rows, count } => {
                        let all = checkpoint.read(tensor, rows.clone())?;
                        let columns = wanted.start - start..wanted.end - start;
                        values.extend(columns.flat_map(|at| all.iter().skip(at).step_by(*count).copied()));
                    }
                    Piece::Rows { tensor, rows } => {
                        let at = rows.start + wanted.start - start;
                        values.extend(checkpoint.read(tensor, at..at + wanted.len())?);
                    }
                }
            }
            start = end;
        }
        if self.permute.is_some() {
            values = interleave(&values, self.row_unit(), self.cols);
        }
        if let Some((order, width)) = &self.columns {
            let rows = values.chunks_exact(self.cols);
            let group = |row: &[f32], at: usize| row[at * width..(at + 1) * width].to_vec();
            values = rows.flat_map(|row| order.iter().flat_map(|at| group(row, *at))).collect();
        }
        if self.add_one {
            values.iter_mut().for_each(|v| *v += 1.0);
        }
        Ok(values)
    }
}

/// Reorders the rows of whole heads so that rotating (i, i + d/2) becomes rotating the pair (2i, 2i + 1).
fn interleave(values: &[f32], head_dim: usize, cols: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(values.len());
    for head in values.chunks(head_dim * cols) {
        for row in 0..head_dim {
            let from = (row % 2) * (head_dim / 2) + row / 2;
            out.extend_from_slice(&head[from * cols..(from + 1) * cols]);
        }
    }
    out
}

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
    for required in ["token_embd.weight", "output_norm.weight"] {
        if !planned.values().any(|p| p.name == required) {
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

struct Planner<'a> {
    config: &'a Config,
    checkpoint: &'a Checkpoint<'a>,
    /// By (layer, name); globals stand before layer 0.
    planned: BTreeMap<(usize, String), Planned>,
}

impl Planner<'_> {
    fn tensor(&mut self, full: &str) -> Result<()> {
        let Some(name) = self.text_name(full) else { return Ok(()) };
        let Some(stored) = self.checkpoint.get(full) else { return Ok(()) };
        let (stem, suffix) = name.rsplit_once('.').unwrap_or((name, ""));
        let global = match stem {
            "embed_tokens" => Some("token_embd"),
            "norm" => Some("output_norm"),
            "lm_head" if self.config.tied() => return Ok(()),
            "lm_head" => Some("output"),
            _ => None,
        };
        if let Some(global) = global {
            let mut planned = Planned::matrix(format!("{global}.{suffix}"), full, stored);
            planned.add_one = stem == "norm" && self.adds_one();
            return self.add(planned);
        }
        let unknown = || Error::unsupported(format!("tensor {full} of the checkpoint"));
        let mut parts = name.splitn(3, '.');
        let (Some("layers"), Some(layer), Some(inner)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(unknown());
        };
        let layer: usize = layer.parse().map_err(|_| unknown())?;
        if has_latents(self.config.arch()) && self.is_ahead(layer)? {
            return Ok(());
        }
        if layer >= self.config.layers()? {
            return Err(Error::unsupported(format!(
                "tensor {full}: config.json has {} layers",
                self.config.layers()?
            )));
        }
        if inner.contains(".experts.") {
            return self
                .expert(full, layer, inner, stored)
                .and_then(|known| if known { Ok(()) } else { Err(unknown()) });
        }
        self.layer(full, layer, inner, stored).and_then(|known| if known { Ok(()) } else { Err(unknown()) })
    }

    /// The name inside the text model, or none for what a text model does not need.
    fn text_name<'n>(&self, full: &'n str) -> Option<&'n str> {
        let ahead = full.trim_start_matches("model.").starts_with("mtp.");
        if full.ends_with("rotary_emb.inv_freq") || ahead && has_delta_nets(self.config.arch()) {
            return None;
        }
        if self.config.nested && !full.contains("language_model") {
            return (full == "lm_head.weight").then_some(full);
        }
        let name = full.trim_start_matches("model.").trim_start_matches("language_model.");
        Some(name.trim_start_matches("model."))
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
        let keys = sizes.keys().map(|rows| Piece::Columns { tensor: tensor(), rows, count: sizes.rank });
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
        self.config.arch().starts_with("gemma") || has_delta_nets(self.config.arch())
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
                    "A_log" => ("ssm_a", |x| -math::exp(f64::from(x)) as f32),
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
        if inner == "mlp.gate.e_score_correction_bias" {
            self.add(Planned::matrix(format!("blk.{layer}.exp_probs_b.bias"), full, stored))?;
            return Ok(true);
        }
        let known = LAYER.iter().find(|(from, _)| *from == stem).map(|(_, to)| *to);
        let Some(name) = known.or_else(|| norm(arch, stem)) else { return Ok(false) };
        let mut planned = Planned::matrix(format!("blk.{layer}.{name}.{suffix}"), full, stored);
        planned.add_one = self.adds_one() && name.ends_with("norm");
        planned.permute = match (arch, name) {
            ("llama", "attn_q") => Some(self.config.heads()?),
            ("llama", "attn_k") => Some(self.config.kv_heads()?),
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
            return self.stack(format!("blk.{layer}.{name}.weight"), full, index, stored).map(|()| true);
        }
        let &[count, rows, cols] = stored.shape.as_slice() else { return Ok(false) };
        if count != experts {
            return Err(Error::malformed(
                full,
                format!("it stacks {count} experts, config.json has {experts}"),
            ));
        }
        let parts: &[(&str, Range<usize>)] = match rest.trim_end_matches(".weight") {
            "down_proj" => &[("ffn_down_exps", 0..rows)],
            "gate_up_proj" => &[("ffn_gate_exps", 0..rows / 2), ("ffn_up_exps", rows / 2..rows)],
            _ => return Ok(false),
        };
        for (name, part) in parts {
            let piece = |expert: usize| Piece::Rows {
                tensor: full.into(),
                rows: expert * rows + part.start..expert * rows + part.end,
            };
            self.add(Planned {
                name: format!("blk.{layer}.{name}.weight"),
                cols,
                vector: false,
                stacked: count,
                pieces: (0..count).map(piece).collect(),
                permute: None,
                add_one: false,
                columns: None,
            })?;
        }
        Ok(true)
    }

    fn stack(&mut self, name: String, full: &str, index: usize, stored: &Stored) -> Result<()> {
        let experts = self.config.experts();
        let entry = self.planned.entry(key(&name)).or_insert_with(|| Planned {
            name,
            cols: stored.cols(),
            vector: false,
            stacked: experts,
            pieces: (0..experts)
                .map(|_| Piece::Rows { tensor: String::new(), rows: 0..stored.rows() })
                .collect(),
            permute: None,
            add_one: false,
            columns: None,
        });
        if entry.cols != stored.cols() || entry.pieces[index].rows() != stored.rows() {
            return Err(Error::malformed(full, "its shape differs from the other experts'"));
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

#[cfg(test)]
mod tests {
    use super::{Piece, Planned, interleave};

    #[test]
    fn halves_become_neighbors() {
        // Two heads of four rows, one column: rows 0 and 2 of a head were a pair.
        assert_eq!(
            interleave(&[0., 1., 2., 3., 10., 11., 12., 13.], 4, 1),
            [0., 2., 1., 3., 10., 12., 11., 13.]
        );
    }

    #[test]
    fn a_missing_expert_is_named() {
        let piece = |tensor: &str| Piece::Rows { tensor: tensor.into(), rows: 0..1 };
        let stack = |pieces| Planned {
            name: "blk.3.ffn_up_exps.weight".into(),
            cols: 1,
            vector: false,
            stacked: 2,
            pieces,
            permute: None,
            add_one: false,
            columns: None,
        };
        assert!(stack(vec![piece("a"), piece("b")]).check_experts().is_ok());
        let why = stack(vec![piece("a"), piece("")]).check_experts().unwrap_err().to_string();
        assert!(why.contains("blk.3.ffn_up_exps.weight") && why.contains("expert 1"), "{why}");
    }
}
