//! The layer with which Qwen's models predict one token further: `mtp.*` of a checkpoint, `nextn.*` of the layer behind the last of a
//! GGUF file ([`crate::draft::MtpHead`]).

use super::{
    checkpoint::Checkpoint,
    config::{Config, has_delta_nets},
};

/// What becomes of a tensor of the layer.
pub(super) enum Part<'n> {
    /// What this tensor of a layer of the model becomes.
    OfLayer(&'n str),
    /// This one; a norm or not.
    Named(&'static str, bool),
    /// Nothing: it is of a further layer.
    None,
}

/// Layers behind those of the model that are written: one where the checkpoint has it.
pub(super) fn layers(config: &Config, checkpoint: &Checkpoint<'_>) -> u32 {
    let has =
        has_delta_nets(config.arch()) && checkpoint.names().any(|name| stripped(name) == Some("fc.weight"));
    u32::from(has)
}

/// What is behind `mtp.` in a name that begins so.
pub(super) fn stripped(full: &str) -> Option<&str> {
    full.trim_start_matches("model.").strip_prefix("mtp.")
}

/// The part that tensor `full` of a checkpoint with such a layer is of it, if it is one.
pub(super) fn part<'n>(config: &Config, full: &'n str) -> Option<Part<'n>> {
    let name = stripped(full).filter(|_| config.ahead > 0)?;
    Some(match name {
        "fc.weight" => Part::Named("nextn.eh_proj", false),
        "pre_fc_norm_embedding.weight" => Part::Named("nextn.enorm", true),
        "pre_fc_norm_hidden.weight" => Part::Named("nextn.hnorm", true),
        "norm.weight" => Part::Named("nextn.shared_head_norm", true),
        _ => name.strip_prefix("layers.0.").map_or(Part::None, Part::OfLayer),
    })
}
