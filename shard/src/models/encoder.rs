//! What encoders share: attention in both directions, an embedding that is more than a table, no vocabulary head.

use super::{
    Blueprint, Embedding, Head, Layer, NormKind, Ranks, Rope, Rule, Softmax,
    reader::{Reader, Sizes},
};
use crate::{Error, Result};

/// Positions that a table of them may have besides those of the context.
const KINDS: usize = 16;
/// Texts that a head ranks get one score.
const SCORES: usize = 1;

/// Attention of every position to all others.
pub(super) fn attention(reader: &Reader<'_>, sizes: &Sizes) -> Result<Softmax> {
    if reader.flag_opt("attention.causal") == Some(true) {
        return Err(Error::unsupported(format!("{} true", reader.name("attention.causal"))));
    }
    Ok(Softmax { rope: None, ahead: usize::MAX, ..sizes.attention(None) })
}

/// A blueprint of `layers`; `ranks` is the nonlinearity of the family's head that ranks texts, where the file has one.
pub(super) fn assemble(
    reader: &Reader<'_>,
    sizes: &Sizes,
    ropes: Vec<Rope>,
    layers: Vec<Layer>,
    ranks: Ranks,
) -> Result<Blueprint> {
    let Sizes { hidden, context, vocab, .. } = *sizes;
    let mut tensors = vec![
        Rule::required("token_embd.weight", &[hidden, vocab]),
        Rule::required("token_embd_norm.weight", &[hidden]),
        Rule::optional("token_embd_norm.bias", &[hidden]),
    ];
    let mut embedding = Embedding { normed: true, ..Embedding::scaled(1.0) };
    if reader.has("position_embd.weight") {
        embedding.positions = true;
        tensors.push(Rule::required("position_embd.weight", &[hidden, context]));
    }
    if let Some(rows) = reader.rows("token_types.weight") {
        if !(1..=KINDS).contains(&rows) {
            return Err(Error::malformed("tensor token_types.weight: shape", format!("has {rows} rows")));
        }
        embedding.types = Some(reader.separator().filter(|_| rows > 1));
        tensors.push(Rule::required("token_types.weight", &[hidden, rows]));
    }
    let rank = reader.has("cls.output.weight").then_some(ranks);
    if let (Some(_), Some(scores)) = (rank, reader.rows("cls.output.weight"))
        && scores != SCORES
    {
        return Err(Error::unsupported(format!("a head that gives {scores} scores of a text (cls.output)")));
    }
    if rank.is_some() {
        tensors.extend([
            Rule::optional("cls.weight", &[hidden, hidden]),
            Rule::optional("cls.bias", &[hidden]),
            Rule::optional("cls.norm.weight", &[hidden]),
            Rule::optional("cls.norm.bias", &[hidden]),
            Rule::required("cls.output.weight", &[hidden, SCORES]),
            Rule::optional("cls.output.bias", &[SCORES]),
        ]);
    }
    let blueprint = reader.assemble(sizes, reader.norm(NormKind::Layer)?, ropes, layers);
    Ok(Blueprint { embedding, head: Head { logits: false, rank, ..blueprint.head }, tensors, ..blueprint })
}
