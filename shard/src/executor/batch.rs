//! Which items a pass takes: the checks that every executor makes before it computes anything.

use scheduler::{ExpertRange, LayerRange};

use super::{Capacity, Ends, Executor, Gave, Input, Item, Options, Output, Pass};
use crate::{Error, Result, models::Blueprint, round::Rounding};

/// Where one item's rows and results are.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Span {
    /// First row in the batch.
    pub first: usize,
    /// Number of rows.
    pub rows: usize,
    /// The last rows that are wanted.
    pub wanted: usize,
    /// First wanted row among all wanted rows of the batch.
    pub first_wanted: usize,
    /// Absolute position of the first row.
    pub start: usize,
}

impl Gave {
    /// What `pass` of `executor` gives: logits or hidden states when the head follows its layers.
    pub(super) fn by<E: Executor + ?Sized>(executor: &E, pass: Pass<'_>) -> Self {
        match (executor.ends().head && pass.layers.end() == executor.range().end(), pass.states) {
            (false, _) => Self::Rows,
            (true, false) => Self::Logits,
            (true, true) => Self::States,
        }
    }
}

/// Refuses layers and ends that the model does not have; returns the positions a session may grow to.
pub(super) fn check_load(
    blueprint: &Blueprint,
    layers: LayerRange,
    ends: Ends,
    options: Options,
) -> Result<usize> {
    let count = blueprint.layers.len();
    if layers.end() as usize > count {
        return Err(Error::invalid(format!("layers {layers} of a model with {count}")));
    }
    blueprint.check_cut(layers)?;
    if blueprint.per_layer.is_some() && !ends.embedding {
        return Err(Error::invalid(format!(
            "{} without its embedding: every layer reads the token itself (per-layer embeddings)",
            blueprint.architecture
        )));
    }
    if ends.embedding && layers.start() != 0 {
        return Err(Error::invalid(format!("layers {layers} do not begin with the embedding")));
    }
    if ends.head && (layers.end() as usize) != count {
        return Err(Error::invalid(format!("layers {layers} do not end with the head")));
    }
    let context = options.context.unwrap_or(blueprint.context);
    if context == 0 || context > blueprint.context {
        let trained = blueprint.context;
        return Err(Error::invalid(format!("a context of {context}: this model allows 1 to {trained}")));
    }
    Ok(context)
}

/// Refuses experts that layers do not have, and those of a model without any.
pub(super) fn check_experts(blueprint: &Blueprint, experts: ExpertRange) -> Result<()> {
    let counts = blueprint.layers.iter().filter_map(|layer| layer.feed_forward.experts());
    match counts.map(|experts| experts.count).min() {
        None => {
            Err(Error::invalid(format!("experts {experts} of {}, which has none", blueprint.architecture)))
        }
        Some(count) if experts.end() as usize > count => {
            Err(Error::invalid(format!("experts {experts} of layers with {count}")))
        }
        Some(_) => Ok(()),
    }
}

/// Refuses layers that are not among those held.
pub(super) fn check_held(held: LayerRange, layers: LayerRange) -> Result<()> {
    if held.covers(layers) {
        return Ok(());
    }
    Err(Error::invalid(format!("layers {layers} of a shard that holds {held}")))
}

/// Checks every item, makes room in its state and notes its span; returns the number of rows.
pub(super) fn admit<E: Executor + ?Sized>(
    executor: &E,
    capacity: Capacity,
    pass: Pass<'_>,
    items: &mut [Item<'_>],
    spans: &mut Vec<Span>,
) -> Result<usize> {
    let Pass { layers, rounding, states, .. } = pass;
    check_held(executor.range(), layers)?;
    executor.blueprint().check_cut(layers)?;
    let gives = Gave::by(executor, pass);
    if states && gives != Gave::States {
        return Err(Error::invalid("hidden states of a shard without the head"));
    }
    if executor.blueprint().encodes() && gives == Gave::Logits {
        return Err(Error::invalid(format!(
            "logits of {}, which is an encoder: it makes vectors of texts and no text; ask for embeddings",
            executor.blueprint().architecture
        )));
    }
    let hidden = executor.blueprint().hidden;
    let group = rounding.rule.group();
    if !rounding.is_none() && !hidden.is_multiple_of(group) {
        return Err(Error::invalid(format!(
            "rows of {hidden} values cannot be rounded in groups of {group}"
        )));
    }
    if items.len() > capacity.items {
        let most = capacity.items;
        return Err(Error::invalid(format!("{} items in a workspace for {most}", items.len())));
    }
    let tag = executor.state_tag(layers);
    let (mut rows, mut wanted) = (0, 0);
    for item in items.iter() {
        let n = rows_of(executor, layers, item.input)?;
        if item.state.tag() != tag || item.state.layers() != layers.len() as usize {
            return Err(Error::invalid("the cache belongs to another model or other layers"));
        }
        let want = match item.output {
            Output::None => 0,
            Output::Last => 1,
            Output::All => n,
        };
        let start = item.state.len();
        if executor.blueprint().encodes() && start > 0 {
            return Err(Error::invalid(
                "rows behind those of an earlier pass: an encoder reads a text in one pass",
            ));
        }
        spans.push(Span { first: rows, rows: n, wanted: want, first_wanted: wanted, start });
        rows += n;
        wanted += want;
    }
    if rows > capacity.rows {
        return Err(Error::invalid(format!("{rows} rows in a workspace for {}", capacity.rows)));
    }
    if gives == Gave::Logits && wanted > capacity.logit_rows {
        let most = capacity.logit_rows;
        return Err(Error::invalid(format!("logits of {wanted} rows in a workspace for {most}")));
    }
    for (item, span) in items.iter_mut().zip(spans.iter()) {
        item.state.prepare(span.rows)?;
    }
    Ok(rows)
}

fn rows_of<E: Executor + ?Sized>(executor: &E, layers: LayerRange, input: Input<'_>) -> Result<usize> {
    let blueprint = executor.blueprint();
    let hidden = blueprint.hidden;
    let rows = match input {
        Input::Tokens(_) if !executor.ends().embedding => {
            return Err(Error::invalid("token ids for a shard without the embedding"));
        }
        Input::Tokens(_) if layers.start() != 0 => {
            return Err(Error::invalid(format!("token ids for layers {layers}")));
        }
        Input::Tokens(tokens) => {
            if let Some(id) = tokens.iter().find(|&&id| id as usize >= blueprint.vocab) {
                return Err(Error::invalid(format!("token {id} is beyond the vocabulary")));
            }
            tokens.len()
        }
        Input::Activations(_) if blueprint.per_layer.is_some() => {
            return Err(Error::invalid(
                "rows for a model whose layers read the token itself: send token ids",
            ));
        }
        Input::Activations(_) if blueprint.encodes() => {
            return Err(Error::invalid("rows for an encoder, which runs whole: send token ids"));
        }
        Input::Activations(x) => {
            if !x.len().is_multiple_of(hidden) {
                return Err(Error::invalid(format!("activations are no rows of {hidden} values")));
            }
            refuse_non_finite(x, "incoming activations")?;
            x.len() / hidden
        }
    };
    if rows == 0 {
        return Err(Error::invalid("an item without rows"));
    }
    Ok(rows)
}

/// Rounds the rows `x` that cross `boundary`, if the session rounds there.
pub(super) fn round_at(rounding: &Rounding, boundary: u32, x: &mut [f32]) -> Result<()> {
    if let Some(rule) = rounding.at(boundary) {
        // Rounding would turn NaN into a number that later checks accept.
        refuse_non_finite(x, "activations to round")?;
        rule.apply(x);
    }
    Ok(())
}

/// Refuses values that are not finite.
pub(super) fn refuse_non_finite(values: &[f32], what: &str) -> Result<()> {
    match values.iter().fold(true, |finite, v| finite & v.is_finite()) {
        true => Ok(()),
        false => Err(Error::invalid(format!("{what} hold a value that is not finite"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_does_not_make_numbers_of_what_is_none() {
        for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let rounding = Rounding { boundaries: vec![2], ..Rounding::NONE };
            let mut x = [1.5; 64];
            x[40] = poison;
            assert!(round_at(&rounding, 2, &mut x).is_err());
            assert!(round_at(&rounding, 1, &mut x).is_ok(), "a boundary at which the session does not round");
            assert_eq!(x[0].to_bits(), 1.5f32.to_bits());
        }
    }
}
