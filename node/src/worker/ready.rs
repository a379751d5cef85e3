//! What a worker says of itself once it has loaded.

use bincode::{Decode, Encode};
use p2p::wire::announce::Class;
use scheduler::{AttentionKind, CacheType, LayerRange, ModelId, SessionKind, layer_cost::LayerCosts};
use serde::{Deserialize, Serialize};

use super::PoolingTask;
use crate::confine::Confinement;

/// The tokens of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Vocabulary {
    /// How many.
    pub tokens: u32,
    /// A hash of them ([`shard::tokenizer::Tokenizer::digest`]); zeros without a tokenizer.
    pub digest: [u8; 32],
    /// The one that closes a text.
    pub closing: Option<u32>,
}

/// What a worker holds in memory, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Memory {
    /// Caches of one position in one layer.
    pub kv_bytes_per_layer_position: u64,
    /// Room for caches: [`super::Spec::kv_bytes`], or less where a device has less.
    pub kv_bytes: u64,
    /// All weights.
    pub resident_bytes: u64,
    /// One layer's tensors in the file, on average.
    pub layer_bytes: u64,
}

/// How long a worker computes, ms, as measured at load; all 0 where [`super::Spec::measure`] was not set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Encode, Decode)]
pub struct Times {
    /// One decoded token through one layer.
    pub decode_ms: f64,
    /// One prompt token through one layer, in chunks of 64.
    pub prefill_ms: f64,
    /// Entering once, whatever the number of layers; includes the way to the worker and back, and after
    /// [`super::spawn_rehearsed`] all that a job pays besides its layers.
    pub visit_ms: f64,
    /// The head for one token, after [`super::spawn_rehearsed`] with sampling and text; 0 without the last layer.
    pub head_ms: f64,
}

/// Which sessions a worker takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Abilities {
    /// Whether states go back to any position ([`shard::models::Blueprint::goes_back`]).
    pub goes_back: bool,
    /// Whether rows may see a window of positions alone.
    pub attends_window: bool,
    /// Whether rows may see few positions and means of the others.
    pub attends_sparse: bool,
    /// Whether rows may see what is looked at most alone.
    pub attends_h2o: bool,
    /// Bytes of keys and values as q8, and as q4, in 65,536ths of those as f16, at most; `None` where they are kept as f16 alone.
    pub small_shares: Option<[u32; 2]>,
    /// Bytes that the draft head reads for a guess; `None` without one.
    pub draft_head_bytes: Option<u64>,
    /// Whether a text is read in one pass and none is written.
    pub encodes: bool,
    /// Whether a text has a vector.
    pub embeds: bool,
    /// Whether a document has a score.
    pub scores: bool,
    /// What experts are like, where layers have any.
    pub experts: Option<ExpertShape>,
}

/// See [`scheduler::layer_cost::LayerCost`].
#[derive(Clone, Debug, Encode, Decode, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct CostRun {
    pub layers: u32,
    pub row_work: u64,
    pub weight_bytes: u64,
    pub seen_work: u32,
    pub window: Option<u32>,
    pub state_bytes: u32,
    pub position_bytes: u32,
}

/// The experts of a model, as a daemon has to know them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ExpertShape {
    /// Of each layer that has any, at least.
    pub count: u32,
    /// Values that one reads and gives.
    pub width: u32,
    /// A layer that is here and has experts.
    pub layer: u32,
}

/// What a worker says once it has loaded.
#[derive(Clone, Debug, PartialEq)]
pub struct Ready {
    /// BLAKE3 of the file.
    pub model: ModelId,
    /// What the file calls itself.
    pub name: String,
    /// Layers of the whole model.
    pub num_layers: u32,
    /// Layers in memory, merged and ascending.
    pub layers: Vec<LayerRange>,
    /// Values in a row between layers.
    pub hidden: u32,
    /// Its tokens.
    pub vocabulary: Vocabulary,
    /// Most positions of a session.
    pub context: u32,
    /// What it takes.
    pub memory: Memory,
    /// How fast it computes.
    pub times: Times,
    /// Time to load, ms.
    pub load_ms: f64,
    /// What each layer of the model costs; `None` before the model is here.
    pub costs: Option<LayerCosts>,
    /// Whether results are bit for bit those of profile `d1`.
    pub class: Class,
    /// What computes, in words.
    pub device: String,
    /// Which sessions it takes.
    pub abilities: Abilities,
    /// What the system lets the worker give up: network, writing and starting programs.
    pub confinement: Confinement,
}

impl Ready {
    /// Of a worker that is not there: nothing is in memory, nothing is known of the model but its names.
    pub fn absent(model: ModelId, name: String, context: usize) -> Self {
        Self {
            model,
            name,
            num_layers: 0,
            layers: Vec::new(),
            hidden: 0,
            vocabulary: Vocabulary::default(),
            context: u32::try_from(context).unwrap_or(u32::MAX),
            memory: Memory::default(),
            times: Times::default(),
            load_ms: 0.0,
            costs: None,
            class: Class::Approx,
            device: String::new(),
            abilities: Abilities { goes_back: true, ..Abilities::default() },
            confinement: Confinement::default(),
        }
    }

    /// The time weight of `range` without context: how many mean layers it takes as long as.
    pub fn weight(&self, range: LayerRange) -> f64 {
        self.costs.as_ref().map_or(f64::from(range.len()), |costs| costs.weight(range, 0))
    }

    /// Bytes of state that `positions` positions take in the layers of `range` in a session of `kind`.
    pub fn state_bytes(&self, range: LayerRange, positions: u64, kind: SessionKind) -> u64 {
        self.costs
            .as_ref()
            .map_or(0, |costs| shrunk(costs, range, positions, self.abilities.small_shares, kind))
    }

    /// The field of a request whose choice is not computed here, if sessions of this kind are not.
    pub fn lacks(&self, kind: SessionKind) -> Option<&'static str> {
        let attends = match kind.attention {
            AttentionKind::Dense => true,
            AttentionKind::Window(_) => self.abilities.attends_window,
            AttentionKind::Sparse(_) => self.abilities.attends_sparse,
            AttentionKind::H2o(_) => self.abilities.attends_h2o,
        };
        let sparse = matches!(kind.attention, AttentionKind::Sparse(_) | AttentionKind::H2o(_));
        match kind.cache {
            _ if !attends => Some("attention"),
            CacheType::F16 => None,
            CacheType::Q8 | CacheType::Q4 => {
                (sparse || self.abilities.small_shares.is_none()).then_some("kv_cache_type")
            }
        }
    }

    /// Whether it does this with the hidden states of a prompt.
    pub fn pools(&self, task: PoolingTask) -> bool {
        match task {
            PoolingTask::Embed => self.abilities.embeds,
            PoolingTask::Score => self.abilities.scores,
        }
    }

    /// Weights this machine reads while it decodes, bytes per second, as measured at load; `None` without weights.
    pub fn read_bytes_per_s(&self) -> Option<f64> {
        (self.times.decode_ms > 0.0).then(|| self.memory.layer_bytes as f64 / (self.times.decode_ms / 1e3))
    }

    /// Whether all of the model is in memory.
    pub fn has_all(&self) -> bool {
        matches!(self.layers[..], [all] if all.start() == 0 && all.end() == self.num_layers)
    }

    /// Whether both ends of the model are in memory, so that prompts can begin and end here.
    pub fn has_ends(&self) -> bool {
        let holds = |layer| self.layers.iter().any(|range| range.contains(layer));
        self.num_layers > 0 && holds(0) && holds(self.num_layers - 1)
    }
}

/// What [`Abilities::small_shares`] count in.
pub(super) const SHARES: u32 = 1 << 16;

/// Bytes of state that `positions` take in `range` in a session of `kind`: what a session costs anyway does not shrink with the
/// form of keys and values.
pub(super) fn shrunk(
    costs: &LayerCosts,
    range: LayerRange,
    positions: u64,
    shares: Option<[u32; 2]>,
    kind: SessionKind,
) -> u64 {
    let of = |positions: u64| costs.session_bytes(range, positions, kind.attention);
    let whole = of(positions);
    let constant = costs.state_bytes(range, 0).max(of(positions.min(kind.cache.exact_positions() as u64)));
    let share = match (kind.cache, shares) {
        (CacheType::F16, _) | (_, None) => return whole,
        (CacheType::Q8, Some(shares)) => shares[0],
        (CacheType::Q4, Some(shares)) => shares[1],
    };
    let scaled = u128::from(whole.saturating_sub(constant)) * u128::from(share);
    constant.saturating_add(u64::try_from(scaled.div_ceil(u128::from(SHARES))).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use scheduler::layer_cost::LayerCost;

    use super::*;

    #[test]
    fn what_a_session_costs_anyway_does_not_shrink() {
        let layer = LayerCost {
            row_work: 1,
            weight_bytes: 1,
            seen_work: 1,
            window: None,
            state_bytes: 500,
            position_bytes: 1_024,
        };
        let costs = LayerCosts::new(vec![layer; 3], 8).unwrap();
        let range = LayerRange::new(1, 3).unwrap();
        let bytes = |cache, positions| {
            let kind = SessionKind { attention: AttentionKind::Dense, cache };
            shrunk(&costs, range, positions, Some([SHARES / 2, SHARES / 4]), kind)
        };
        let whole = |positions: u64| 2 * (500 + positions * 1_024);
        assert_eq!(bytes(CacheType::F16, 256), whole(256));
        assert_eq!(bytes(CacheType::Q8, 256), whole(0) + 2 * 256 * 512);
        // The first positions of `q4` are f16.
        assert_eq!(bytes(CacheType::Q4, 64), whole(64));
        assert_eq!(bytes(CacheType::Q4, 256), whole(64) + 2 * (256 - 64) * 256);
    }
}
