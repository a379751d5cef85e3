//! What a node says of itself, checked at the door.
//!
//! A [`Claim`] is unchecked numbers of any node; a [`Capability`] is a claim that passed [`Capability::try_from`]:
//! every number finite and non-negative, every range inside a model of sane size, lists of bounded length. Checked
//! does not mean believed: the view bounds claims by observation.

use std::fmt;

use crate::{LayerRange, LayerSet, ModelId, NodeId, OperatorId};

/// Layers a model may have; above any published one, and a bound on what a claim can make the view allocate.
pub const MAX_LAYERS: u32 = 1_024;
/// Models one node may offer.
pub const MAX_HOLDINGS: usize = 64;
/// Ranges one holding may list.
pub const MAX_RANGES: usize = 64;
/// Slowest figure taken seriously, ms; slower is as good as absent.
pub const MAX_MS: f64 = 3_600_000.0;
/// Regions a claim may name.
pub const MAX_REGIONS: u16 = 256;

/// What a node offers of one model.
#[derive(Clone, PartialEq, Debug)]
pub struct Holding {
    /// Which model.
    pub model: ModelId,
    /// Layers in memory, as announced.
    pub loaded: Vec<LayerRange>,
    /// Layers on disk that it would load.
    pub on_disk: Vec<LayerRange>,
    /// One decoded token through one layer, ms.
    pub decode_ms: f64,
    /// One prompt token through one layer, ms.
    pub prefill_ms: f64,
    /// Entering once, ms.
    pub visit_ms: f64,
    /// Waiting behind others, ms.
    pub queue_ms: f64,
    /// Loading one layer from disk, ms.
    pub load_ms: f64,
    /// Requests running.
    pub active: u32,
    /// Rows that take as long as one step, at least 1: `decode_ms / prefill_ms`, as far as a worker computes so many together, see [`crate::cost`].
    pub batch_knee: u32,
    /// Memory free for caches, bytes.
    pub kv_bytes: u64,
}

/// A node's announcement, unchecked. The transport that carried it has verified its signature.
#[derive(Clone, PartialEq, Debug)]
pub struct Claim {
    /// Who speaks.
    pub node: NodeId,
    /// Who answers for it.
    pub operator: OperatorId,
    /// Counts up with every announcement of this node; a restarted node starts above its last.
    pub sequence: u64,
    /// Where it says it is.
    pub region: u16,
    /// Its share of every hop, ms.
    pub access_ms: f64,
    /// What it sends, bytes per ms.
    pub up_bytes_per_ms: f64,
    /// What it receives, bytes per ms.
    pub down_bytes_per_ms: f64,
    /// About to leave: serves what runs, takes nothing new.
    pub draining: bool,
    /// Per model.
    pub holdings: Vec<Holding>,
}

/// A claim whose numbers can be true.
#[derive(Clone, PartialEq, Debug)]
pub struct Capability(Claim);

/// Which field of a claim cannot be true.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadClaim(&'static str);

impl fmt::Display for BadClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a claim whose {} cannot be", self.0)
    }
}

impl std::error::Error for BadClaim {}

impl Capability {
    /// The numbers.
    pub fn claim(&self) -> &Claim {
        &self.0
    }

    /// Who speaks.
    pub fn node(&self) -> NodeId {
        self.0.node
    }

    /// What it offers of `model`.
    pub fn holding(&self, model: ModelId) -> Option<&Holding> {
        self.0.holdings.iter().find(|holding| holding.model == model)
    }
}

impl Holding {
    /// Layers in memory, merged.
    pub fn loaded_set(&self) -> LayerSet {
        LayerSet::new(self.loaded.iter().copied())
    }

    /// Layers on disk, merged.
    pub fn on_disk_set(&self) -> LayerSet {
        LayerSet::new(self.on_disk.iter().copied())
    }

    /// Layers that it computes when it is asked: those in memory, and those that it would load.
    pub fn held_set(&self) -> LayerSet {
        LayerSet::new(self.loaded.iter().chain(&self.on_disk).copied())
    }

    fn check(&self) -> Result<(), BadClaim> {
        let times = [self.decode_ms, self.prefill_ms, self.visit_ms, self.queue_ms, self.load_ms];
        if !times.iter().all(|ms| (0.0..=MAX_MS).contains(ms)) || self.decode_ms == 0.0 {
            return Err(BadClaim("times"));
        }
        if self.loaded.len() > MAX_RANGES || self.on_disk.len() > MAX_RANGES {
            return Err(BadClaim("number of ranges"));
        }
        if self.loaded.iter().chain(&self.on_disk).any(|range| range.end() > MAX_LAYERS) {
            return Err(BadClaim("layers"));
        }
        if self.batch_knee == 0 || self.batch_knee > 4_096 || self.active > 1 << 20 {
            return Err(BadClaim("load"));
        }
        Ok(())
    }
}

impl TryFrom<Claim> for Capability {
    type Error = BadClaim;

    fn try_from(claim: Claim) -> Result<Self, BadClaim> {
        if !(0.0..=MAX_MS).contains(&claim.access_ms) || claim.region >= MAX_REGIONS {
            return Err(BadClaim("position"));
        }
        let rate = |bytes: f64| bytes > 0.0 && bytes.is_finite();
        if !rate(claim.up_bytes_per_ms) || !rate(claim.down_bytes_per_ms) {
            return Err(BadClaim("bandwidth"));
        }
        if claim.holdings.len() > MAX_HOLDINGS {
            return Err(BadClaim("number of models"));
        }
        claim.holdings.iter().try_for_each(Holding::check)?;
        let mut models: Vec<ModelId> = claim.holdings.iter().map(|holding| holding.model).collect();
        models.sort_unstable();
        if models.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(BadClaim("models"));
        }
        Ok(Self(claim))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{BadClaim, Capability, Claim, Holding};
    use crate::{LayerRange, ModelId, NodeId, OperatorId};

    pub(crate) fn claim(node: u64, sequence: u64) -> Claim {
        Claim {
            node: NodeId::numbered(node),
            operator: OperatorId::numbered(node),
            sequence,
            region: 0,
            access_ms: 3.0,
            up_bytes_per_ms: 1_000.0,
            down_bytes_per_ms: 5_000.0,
            draining: false,
            holdings: vec![Holding {
                model: ModelId::default(),
                loaded: vec![LayerRange::new(0, 8).unwrap()],
                on_disk: vec![],
                decode_ms: 4.0,
                prefill_ms: 1.0,
                visit_ms: 2.0,
                queue_ms: 0.0,
                load_ms: 100.0,
                active: 0,
                batch_knee: 4,
                kv_bytes: 100_000,
            }],
        }
    }

    #[test]
    fn hostile_numbers_are_refused() {
        assert!(Capability::try_from(claim(1, 1)).is_ok());
        type Spoil = (&'static str, fn(&mut Claim));
        let spoils: [Spoil; 12] = [
            ("position", |c| c.access_ms = f64::NAN),
            ("position", |c| c.region = u16::MAX),
            ("bandwidth", |c| c.up_bytes_per_ms = 0.0),
            ("bandwidth", |c| c.down_bytes_per_ms = f64::INFINITY),
            ("times", |c| c.holdings[0].decode_ms = -1.0),
            ("times", |c| c.holdings[0].decode_ms = 0.0),
            ("times", |c| c.holdings[0].queue_ms = f64::INFINITY),
            ("times", |c| c.holdings[0].visit_ms = 1e12),
            ("layers", |c| c.holdings[0].loaded[0] = LayerRange::new(0, 1 << 30).unwrap()),
            ("number of ranges", |c| c.holdings[0].on_disk = vec![LayerRange::new(0, 1).unwrap(); 65]),
            ("load", |c| c.holdings[0].batch_knee = 0),
            ("models", |c| c.holdings.push(c.holdings[0].clone())),
        ];
        for (field, spoil) in spoils {
            let mut bad = claim(1, 1);
            spoil(&mut bad);
            assert_eq!(Capability::try_from(bad), Err(BadClaim(field)));
        }
    }
}
