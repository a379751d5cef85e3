//! The layers of Nemotron-H, each of which is one thing, as config.json lists them.

use serde_json::Value;

/// What one layer of Nemotron-H is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Block {
    Mamba,
    Attention,
    Dense,
    Experts,
}

/// The layers of a Nemotron-H: a list of words, or a text of one letter for each; `None` for another family, and for what is neither.
pub(super) fn blocks(json: &Value) -> Option<Vec<Block>> {
    if json["model_type"] != "nemotron_h" {
        return None;
    }
    if let Some(letters) = json["hybrid_override_pattern"].as_str() {
        let block = |letter| match letter {
            'M' => Some(Block::Mamba),
            '*' => Some(Block::Attention),
            '-' => Some(Block::Dense),
            'E' => Some(Block::Experts),
            _ => None,
        };
        return letters.chars().map(block).collect();
    }
    let block = |word: &Value| match word.as_str()? {
        "linear_attention" | "mamba" => Some(Block::Mamba),
        "full_attention" | "attention" => Some(Block::Attention),
        "mlp" => Some(Block::Dense),
        "moe" => Some(Block::Experts),
        _ => None,
    };
    let words = json["layers_block_type"].as_array().or_else(|| json["layer_types"].as_array())?;
    words.iter().map(block).collect()
}

/// The architecture of a Nemotron-H with experts.
pub(super) fn variant(json: &Value) -> Option<&'static str> {
    blocks(json)?.contains(&Block::Experts).then_some("nemotron_h_moe")
}
