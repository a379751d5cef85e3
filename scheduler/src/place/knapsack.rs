//! How a node divides its memory for weights between the models whose layers it chooses.
//!
//! Each model can be held here in several *ways* ([`Stand::ways`]), of which the first is as now. One way of each is taken, so that
//! the bytes fit and the worth is most: a multiple-choice knapsack (Kellerer, Pferschy, Pisinger: "Knapsack Problems", 2004, chapter
//! 11), solved by dynamic programming over memory in [`STEPS`] steps. Bytes are rounded up, so that what is divided always fits and up
//! to a step of each model is left.
//!
//! What is worth the same stays as it is.
//!
//! Limits: weights only, memory of sessions is one pool for all models; one node's own row, with what the others hold as it is.

use super::stand::Stand;
use crate::{LayerRange, LayerSet, NodeId};

/// Steps of the memory: the search takes this many times all ways.
const STEPS: usize = 512;
/// What differs by less is worth the same.
const LEAST: f64 = 1e-9;
/// Parts of the whole memory for which ways are looked for.
const PARTS: [f64; 4] = [0.25, 0.5, 0.75, 1.0];

/// A way to hold a model.
#[derive(Clone, PartialEq, Debug)]
pub struct Way {
    /// Which layers, of those that are placed.
    pub layers: LayerSet,
    /// What they weigh.
    pub bytes: u64,
    /// Layers of the model that have a holder then, here or elsewhere.
    pub covered: usize,
    /// Sessions of those that ask for the model that the swarm then serves as fast as it could at best.
    pub worth: f64,
}

/// How memory is divided best.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Division {
    /// What all models are worth as they are held now.
    pub present: f64,
    /// What they are worth once it is followed.
    pub advised: f64,
    /// Whether more layers have a holder then.
    pub secures: bool,
    /// Which models, by number, should be held otherwise.
    pub moves: Vec<(usize, LayerRange)>,
}

/// What `me` should hold of each of `stands`, with memory for `budget_bytes` of their weights.
pub fn divide(me: NodeId, stands: &[Stand], budget_bytes: u64) -> Division {
    let parts: Vec<u64> = PARTS.iter().map(|part| (budget_bytes as f64 * part) as u64).collect();
    let ways: Vec<Vec<Way>> = stands.iter().map(|stand| stand.ways(me, &parts)).collect();
    let Some(chosen) = choose(&ways, budget_bytes) else { return Division::default() };
    let mut division = Division::default();
    let (mut before, mut after) = (0, 0);
    for (number, (ways, chosen)) in ways.iter().zip(chosen).enumerate() {
        let (Some(present), Some(advised)) = (ways.first(), ways.get(chosen)) else { continue };
        division.present += present.worth;
        division.advised += advised.worth;
        before += present.covered;
        after += advised.covered;
        if let (true, [layers]) = (chosen > 0, advised.layers.ranges()) {
            division.moves.push((number, *layers));
        }
    }
    division.secures = after > before;
    division
}

/// The way of each model that is taken, by number, 0 for a model without any; `None` where they do not fit.
fn choose(models: &[Vec<Way>], budget_bytes: u64) -> Option<Vec<usize>> {
    let steps_of = |bytes: u64| {
        let steps = (bytes as f64 * STEPS as f64 / budget_bytes.max(1) as f64).ceil();
        (steps <= STEPS as f64).then_some(steps as usize)
    };
    // By memory: what the models so far are worth at most, and by which way of the last of them.
    let mut worth = vec![0.0f64; STEPS + 1];
    let mut taken: Vec<Vec<usize>> = Vec::with_capacity(models.len());
    for ways in models {
        if ways.is_empty() {
            taken.push(vec![0; STEPS + 1]);
            continue;
        }
        let mut with = vec![f64::NEG_INFINITY; STEPS + 1];
        let mut by = vec![0; STEPS + 1];
        for (number, way) in ways.iter().enumerate() {
            let Some(steps) = steps_of(way.bytes) else { continue };
            for memory in steps..=STEPS {
                let sum = worth[memory - steps] + way.worth;
                if sum > with[memory] + LEAST {
                    (with[memory], by[memory]) = (sum, number);
                }
            }
        }
        worth = with;
        taken.push(by);
    }
    if worth[STEPS] == f64::NEG_INFINITY {
        return None;
    }
    let mut memory = STEPS;
    let mut chosen = vec![0; models.len()];
    for (model, by) in taken.iter().enumerate().rev() {
        chosen[model] = by[memory];
        if let Some(way) = models[model].get(by[memory]) {
            memory -= steps_of(way.bytes)?;
        }
    }
    Some(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    fn way(bytes: u64, worth: f64) -> Way {
        Way { layers: LayerSet::default(), bytes, covered: 0, worth }
    }

    /// Every combination, tried.
    fn best(models: &[Vec<Way>], budget_bytes: u64) -> Option<f64> {
        let Some((ways, rest)) = models.split_first() else { return Some(0.0) };
        let with = |way: &Way| Some(way.worth + best(rest, budget_bytes.checked_sub(way.bytes)?)?);
        ways.iter().filter_map(with).reduce(f64::max)
    }

    #[test]
    fn what_is_chosen_fits_and_is_worth_most() {
        let mut rng = Rng::new(11);
        for round in 0..300 {
            let budget_bytes = STEPS as u64 * (1 + rng.below(1_000) as u64);
            let unit = budget_bytes / STEPS as u64;
            let models: Vec<Vec<Way>> = (0..1 + rng.below(4))
                .map(|_| {
                    let ways = 0..1 + rng.below(6);
                    ways.map(|_| way(unit * rng.below(STEPS + STEPS / 8) as u64, rng.unit())).collect()
                })
                .collect();
            let chosen = choose(&models, budget_bytes);
            let Some(chosen) = chosen else {
                assert_eq!(best(&models, budget_bytes), None, "round {round}");
                continue;
            };
            let of: Vec<&Way> = models.iter().zip(&chosen).map(|(ways, chosen)| &ways[*chosen]).collect();
            assert!(of.iter().map(|way| way.bytes).sum::<u64>() <= budget_bytes, "round {round}");
            let worth: f64 = of.iter().map(|way| way.worth).sum();
            let most = best(&models, budget_bytes).unwrap();
            assert!((worth - most).abs() < 1e-6, "round {round}: {worth} of {most}");
        }
    }

    #[test]
    fn odd_bytes_never_exceed_the_memory_and_the_same_worth_changes_nothing() {
        let odd = vec![vec![way(333, 1.0), way(500, 3.0)], vec![way(333, 1.0), way(501, 3.5)]];
        assert_eq!(choose(&odd, 1_000), Some(vec![0, 1]), "1,001 bytes are too many");
        let same = vec![vec![way(10, 1.0), way(5, 1.0), way(20, 1.0)]];
        assert_eq!(choose(&same, 100), Some(vec![0]));
        assert_eq!(choose(&[vec![way(11, 1.0)]], 10), None);
        assert_eq!(choose(&[vec![way(11, 1.0)], Vec::new()], u64::MAX), Some(vec![0, 0]));
        assert_eq!(choose(&[vec![way(0, 1.0)]], 0), Some(vec![0]));
    }
}
