//! What stands in front of the first layer and behind the last one.

/// The norm in front of the head, as most families call it.
pub const HEAD_NORM: &str = "output_norm";

/// What becomes of a token in front of the first layer: its row of the table, and what encoders add to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Embedding {
    /// Factor on the row (gemma: square root of `hidden`).
    pub scale: f32,
    /// Whether the row of `position_embd` for the position is added.
    pub positions: bool,
    /// Whether a row of `token_types` is added: the first, and behind the first of these tokens the second.
    pub types: Option<Option<u32>>,
    /// Whether a norm follows (`token_embd_norm`).
    pub normed: bool,
}

impl Embedding {
    /// The row of the table times `scale`.
    pub fn scaled(scale: f32) -> Self {
        Self { scale, positions: false, types: None, normed: false }
    }

    /// Which row of `token_types` each of `tokens` gets, a whole text or two with separators behind them.
    pub fn types_of(separator: Option<u32>, tokens: &[u32]) -> impl Iterator<Item = usize> + '_ {
        let behind =
            tokens.iter().position(|token| Some(*token) == separator).map_or(tokens.len(), |at| at + 1);
        (0..tokens.len()).map(move |at| usize::from(at >= behind))
    }
}

/// What follows the last layer: norm, matrix, factor, softcap; of an encoder the norm at most, and maybe what ranks texts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Head {
    /// The norm in front, as its tensors are named.
    pub norm: &'static str,
    /// Whether rows become logits. Those of an encoder stay hidden states.
    pub logits: bool,
    /// What makes a score of one row, in a model that ranks texts: `cls.output` behind `cls`, a nonlinearity and `cls.norm`,
    /// as far as the file has them.
    pub rank: Option<Ranks>,
    /// Whether the embedding table is the matrix.
    pub tied: bool,
    /// Factor on logits.
    pub scale: f32,
    /// `cap * tanh(logit / cap)`.
    pub softcap: Option<f32>,
}

/// How a head that ranks makes its score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ranks {
    /// Of the last state: by how much the first of two logits, that of yes, is above the other (Qwen 3 Reranker).
    Choice,
    /// Of the first state, with a hyperbolic tangent in front of the last matrix (bert).
    Tanh,
    /// Of the first state, with gelu in front of the last matrix (modern-bert).
    Gelu,
}
