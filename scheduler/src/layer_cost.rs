//! What each layer of a model costs: time, memory and traffic.
//!
//! The layers of one model need not be alike. A mixture of experts may begin with dense layers, most layers of a Gemma
//! see a window only, quantizers give some layers more bits. So everything that decides who runs which layers
//! multiplies by what the layers say here, not by their number:
//!
//! ```text
//!   layer l, a row at position n:
//!     work     row_work + seen_work x min(n, window)            in bytes read, or as long as reading so many takes
//!     weight   work / the mean row_work of the model            so a node's ms per layer are those of a mean layer
//!     state    state_bytes + position_bytes x kept(n)           bytes, from the first position to the n-th
//! ```
//!
//! A model's id is the hash of its file, so its description is a fact that every holder of the header computes alike
//! (`shard::models::layer_costs`). A node without the header takes what most announcements say ([`agreed`]).
//!
//! Limits: an executor that keeps what lies behind windows (candle's) takes more than this says, and refuses sessions when they are
//! opened; one weight for decoding and for prompts, although many rows read experts once and attend more; the weight is
//! taken at one position for a whole request.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::LayerRange;
use crate::attention::AttentionKind;
use crate::capability::MAX_LAYERS;

/// Most work of one row in one layer: the bytes of a layer of a model of 16 TiB with one layer.
pub const MAX_ROW_WORK: u64 = 1 << 44;
/// Most of every other figure: work and bytes per position, constant bytes, positions of a window.
pub const MAX_FIGURE: u32 = 1 << 28;
/// Values of a row at a boundary, at most.
pub const MAX_ROW_VALUES: u32 = 1 << 17;

/// Positions that a layer with a window keeps in memory beyond it: 1,024 that a session may take back, and the page of 256
/// that the first of them is in. What a state takes is the executor's affair (`shard::state::behind`): less here than there, and
/// a stage refuses sessions that it was planned for.
pub const BEHIND_WINDOW: u64 = 1_280;

/// Positions of which memory is made at once, a quarter of a page.
const STEP: u64 = 64;

/// Most positions that are kept of a layer whose rows see `window`.
fn behind(window: u64) -> u64 {
    (window + BEHIND_WINDOW).next_multiple_of(STEP)
}

/// What one layer costs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LayerCost {
    /// Work of a row that sees no other, in bytes: the weights it reads, and its arithmetic as the bytes that are read
    /// meanwhile. 1 to [`MAX_ROW_WORK`].
    pub row_work: u64,
    /// Bytes of its weights in memory, at most [`MAX_ROW_WORK`].
    pub weight_bytes: u64,
    /// Work of a row for each position that it sees, in the same unit; at most [`MAX_FIGURE`].
    pub seen_work: u32,
    /// Positions seen, at most [`MAX_FIGURE`]; `None` for all.
    pub window: Option<u32>,
    /// Bytes of state whatever the length, at most [`MAX_FIGURE`].
    pub state_bytes: u32,
    /// Bytes of state of one position, at most [`MAX_FIGURE`].
    pub position_bytes: u32,
}

impl LayerCost {
    /// Work of a row behind `context` positions, in bytes.
    pub fn work(&self, context: u32) -> f64 {
        let seen = self.window.map_or(context, |window| context.min(window));
        self.row_work as f64 + f64::from(self.seen_work) * f64::from(seen)
    }

    /// Bytes of state after `positions` positions.
    pub fn state_bytes(&self, positions: u64) -> u64 {
        let kept = self.kept(positions);
        u64::from(self.state_bytes).saturating_add(u64::from(self.position_bytes).saturating_mul(kept))
    }

    /// Positions whose state is in memory after `positions`: all of them, or a window and [`BEHIND_WINDOW`].
    pub fn kept(&self, positions: u64) -> u64 {
        self.window.map_or(positions, |window| positions.min(behind(window.into())))
    }

    fn is_sane(&self) -> bool {
        let figures = [self.seen_work, self.state_bytes, self.position_bytes, self.window.unwrap_or(1)];
        (1..=MAX_ROW_WORK).contains(&self.row_work)
            && self.weight_bytes <= MAX_ROW_WORK
            && self.window != Some(0)
            && figures.iter().all(|figure| *figure <= MAX_FIGURE)
    }
}

/// What the layers of a model cost, checked. Clones share one list.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LayerCosts {
    layers: Arc<[LayerCost]>,
    row_values: u32,
}

/// Layers, or figures of one, that no model has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadCosts;

impl fmt::Display for BadCosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("costs of layers that cannot be")
    }
}

impl std::error::Error for BadCosts {}

impl LayerCosts {
    /// The costs of `layers`, first to last; `row_values` values of a row cross a boundary.
    ///
    /// # Errors
    /// [`BadCosts`] for no layers or more than [`MAX_LAYERS`], and for a figure beyond its bound.
    pub fn new(layers: Vec<LayerCost>, row_values: u32) -> Result<Self, BadCosts> {
        let sane = (1..=MAX_LAYERS as usize).contains(&layers.len())
            && (1..=MAX_ROW_VALUES).contains(&row_values)
            && layers.iter().all(LayerCost::is_sane);
        if sane { Ok(Self { layers: layers.into(), row_values }) } else { Err(BadCosts) }
    }

    /// The layers, first to last.
    pub fn layers(&self) -> &[LayerCost] {
        &self.layers
    }

    /// Number of layers, at least one.
    pub fn num_layers(&self) -> u32 {
        self.layers.len() as u32
    }

    fn of(&self, range: LayerRange) -> &[LayerCost] {
        let end = (range.end() as usize).min(self.layers.len());
        self.layers.get(range.start() as usize..end).unwrap_or_default()
    }

    /// Time weights of all layers for a row behind `context` positions; 1 is the mean layer without context.
    pub fn weights(&self, context: u32) -> Vec<f64> {
        let mean = self.mean_work();
        self.layers.iter().map(|layer| layer.work(context) / mean).collect()
    }

    /// The sum of the time weights of `range` for a row behind `context` positions.
    pub fn weight(&self, range: LayerRange, context: u32) -> f64 {
        let work: f64 = self.of(range).iter().map(|layer| layer.work(context)).sum();
        work / self.mean_work()
    }

    fn mean_work(&self) -> f64 {
        self.layers.iter().map(|layer| layer.work(0)).sum::<f64>() / self.layers.len() as f64
    }

    /// Bytes of state that `positions` positions take in the layers of `range`.
    pub fn state_bytes(&self, range: LayerRange, positions: u64) -> u64 {
        let bytes = self.of(range).iter().map(|layer| layer.state_bytes(positions));
        bytes.fold(0, u64::saturating_add)
    }

    /// The same for a session whose rows see what `attention` says: a window, beyond which layers keep [`BEHIND_WINDOW`], or a
    /// budget, which layers without a window of their own keep at most, and an eighth more for what counts how positions are used.
    pub fn session_bytes(&self, range: LayerRange, positions: u64, attention: AttentionKind) -> u64 {
        let narrowed = match attention {
            AttentionKind::Window(window) => positions.min(behind(u64::from(window) + 1)),
            _ => positions,
        };
        let Some(budget) = attention.budget() else { return self.state_bytes(range, narrowed) };
        let bytes = self.of(range).iter().map(|layer| match layer.window {
            Some(_) => layer.state_bytes(positions),
            None => {
                let constant = layer.state_bytes(0);
                let kept = layer.state_bytes(positions.min(budget)) - constant;
                constant.saturating_add(kept).saturating_add(kept.div_ceil(8))
            }
        });
        bytes.fold(0, u64::saturating_add)
    }

    /// Bytes that the weights of `range` take in memory.
    pub fn weight_bytes(&self, range: LayerRange) -> u64 {
        self.of(range).iter().map(|layer| layer.weight_bytes).fold(0, u64::saturating_add)
    }

    /// Work of a row through `range` that sees no other, in bytes ([`LayerCost::row_work`]).
    pub fn row_work(&self, range: LayerRange) -> u64 {
        self.of(range).iter().map(|layer| layer.row_work).fold(0, u64::saturating_add)
    }

    /// Values of a row that cross into layer `boundary`, or out of the last one: the residual stream, the same
    /// everywhere today.
    pub fn boundary_values(&self, _boundary: u32) -> u32 {
        self.row_values
    }

    /// Whether a segment may begin or end before layer `boundary`: everywhere inside the model, unless a layer looks back at
    /// positions and keeps none of them. Such a layer reads what others before it keep, and which ones is not said here, so its
    /// model has its ends only.
    pub fn may_cut(&self, boundary: u32) -> bool {
        let inner = boundary > 0 && boundary < self.num_layers();
        let borrows = |layer: &LayerCost| layer.seen_work > 0 && layer.position_bytes == 0;
        boundary <= self.num_layers() && !(inner && self.layers.iter().any(borrows))
    }

    /// Whether the model has several layers and may be cut between none of them, so that one machine runs it.
    pub fn is_whole(&self) -> bool {
        self.num_layers() > 1 && (1..self.num_layers()).all(|boundary| !self.may_cut(boundary))
    }

    /// The kinds of layers, in the order in which they first appear.
    pub fn kinds(&self) -> Vec<LayerCost> {
        let mut kinds: Vec<LayerCost> = Vec::new();
        for run in self.layers.chunk_by(|a, b| a == b) {
            if !kinds.contains(&run[0]) {
                kinds.push(run[0]);
            }
        }
        kinds
    }

    /// The layers as runs of equal ones, each with how many there are.
    pub fn runs(&self) -> Vec<(LayerCost, u32)> {
        let runs = self.layers.chunk_by(|a, b| a == b);
        runs.map(|run| (run[0], run.len() as u32)).collect()
    }
}

/// The description that most of `claims` give, for a node that cannot compute it; among equally many the least one, so
/// that the order of hearing does not matter.
pub fn agreed<'a>(claims: impl IntoIterator<Item = &'a LayerCosts>) -> Option<&'a LayerCosts> {
    let mut votes: BTreeMap<&LayerCosts, u32> = BTreeMap::new();
    claims.into_iter().for_each(|claim| *votes.entry(claim).or_default() += 1);
    votes.into_iter().max_by(|a, b| a.1.cmp(&b.1).then(b.0.cmp(a.0))).map(|vote| vote.0)
}

#[cfg(test)]
mod tests {
    use super::{BadCosts, LayerCost, LayerCosts, MAX_FIGURE, MAX_ROW_WORK, agreed};
    use crate::{LayerRange, attention::AttentionKind};

    fn range(start: u32, end: u32) -> LayerRange {
        LayerRange::new(start, end).unwrap()
    }

    const GLOBAL: LayerCost = LayerCost {
        row_work: 1_000,
        weight_bytes: 900,
        seen_work: 10,
        window: None,
        state_bytes: 0,
        position_bytes: 8,
    };
    const LOCAL: LayerCost = LayerCost { window: Some(64), ..GLOBAL };

    #[test]
    fn a_window_bounds_work_and_memory() {
        let costs = LayerCosts::new(vec![LOCAL, GLOBAL], 32).unwrap();
        assert_eq!(costs.weights(0), [1.0, 1.0]);
        assert_eq!(costs.weights(64), [1.64, 1.64]);
        assert_eq!(costs.weights(1_000), [1.64, 11.0]);
        assert_eq!(costs.weight(range(0, 2), 1_000), 12.64);
        let bytes = |positions| [0, 1].map(|at| costs.state_bytes(range(at, at + 1), positions));
        assert_eq!(bytes(1_000), [8_000; 2], "a session may go back as far");
        assert_eq!(bytes(10_000), [(64 + 1_280) * 8, 80_000]);
        let window =
            |at, window| costs.session_bytes(range(at, at + 1), 10_000, AttentionKind::Window(window));
        assert_eq!([window(0, 31), window(1, 31)], [(64 + 1_280) * 8; 2], "whole quarters of a page");
        assert_eq!([window(0, 99), window(1, 99)], [(64 + 1_280) * 8, (128 + 1_280) * 8]);
        let h2o = "h2o:budget=640,sinks=4,window=64".parse().unwrap();
        let of = |at, kind| costs.session_bytes(range(at, at + 1), 1_000, kind);
        assert_eq!([of(0, AttentionKind::Dense), of(1, AttentionKind::Dense)], [8_000; 2]);
        assert_eq!([of(0, h2o), of(1, h2o)], [8_000, 640 * 9], "what was looked at least is");
    }

    #[test]
    fn dense_layers_before_experts_weigh_what_they_read() {
        let dense = LayerCost { row_work: 3_000, ..GLOBAL };
        let costs = LayerCosts::new(vec![dense, GLOBAL, GLOBAL, GLOBAL], 32).unwrap();
        assert_eq!(costs.weights(0), [2.0, 2.0 / 3.0, 2.0 / 3.0, 2.0 / 3.0]);
        assert!((costs.weight(range(0, 4), 0) - 4.0).abs() < 1e-12, "the mean layer weighs one");
        assert_eq!(costs.runs(), [(dense, 1), (GLOBAL, 3)]);
        assert_eq!(costs.kinds(), [dense, GLOBAL]);
    }

    #[test]
    fn state_has_a_constant_and_a_part_per_position() {
        let recurrent = LayerCost { state_bytes: 500, position_bytes: 0, ..GLOBAL };
        let costs = LayerCosts::new(vec![recurrent, GLOBAL], 32).unwrap();
        assert_eq!([0, 10].map(|n| costs.state_bytes(range(0, 2), n)), [500, 580]);
        assert_eq!(costs.state_bytes(range(1, 9), 10), 80, "layers that are not there take nothing");
        assert_eq!(costs.state_bytes(range(5, 9), 10), 0);
        assert_eq!(costs.state_bytes(range(1, 2), u64::MAX), u64::MAX);
    }

    #[test]
    fn figures_that_cannot_be_are_refused() {
        let of = |layer| LayerCosts::new(vec![layer], 32).map(|_| ());
        assert_eq!(of(LayerCost { row_work: MAX_ROW_WORK, ..LOCAL }), Ok(()));
        for layer in [
            LayerCost { row_work: 0, ..GLOBAL },
            LayerCost { row_work: MAX_ROW_WORK + 1, ..GLOBAL },
            LayerCost { weight_bytes: MAX_ROW_WORK + 1, ..GLOBAL },
            LayerCost { seen_work: MAX_FIGURE + 1, ..GLOBAL },
            LayerCost { window: Some(0), ..GLOBAL },
            LayerCost { window: Some(MAX_FIGURE + 1), ..GLOBAL },
            LayerCost { state_bytes: MAX_FIGURE + 1, ..GLOBAL },
            LayerCost { position_bytes: MAX_FIGURE + 1, ..GLOBAL },
        ] {
            assert_eq!(of(layer), Err(BadCosts));
        }
        assert_eq!(LayerCosts::new(vec![], 32), Err(BadCosts));
        assert_eq!(LayerCosts::new(vec![GLOBAL; 1_025], 32), Err(BadCosts));
        assert_eq!(LayerCosts::new(vec![GLOBAL], 0), Err(BadCosts));
    }

    #[test]
    fn the_majority_is_believed_in_any_order() {
        let one = LayerCosts::new(vec![GLOBAL], 32).unwrap();
        let other = LayerCosts::new(vec![LOCAL], 32).unwrap();
        assert_eq!(agreed([&one, &other, &other]), Some(&other));
        assert_eq!(agreed([&one, &other]), agreed([&other, &one]));
        assert_eq!(agreed([]), None);
    }
}
