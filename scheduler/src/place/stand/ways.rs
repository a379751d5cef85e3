//! In what ways one member could hold the model, with more memory or less.

use super::Stand;
use crate::place::{Room, knapsack::Way};
use crate::{LayerRange, LayerSet, NodeId, holders};

/// Sessions that a model is worth whose layers all have a holder, where it serves none: less than one of any other's.
const COVERED: f64 = 1e-3;
/// As much less it is worth if all its layers have only one holder.
const ALONE: f64 = 1e-6;

impl Stand {
    /// Ways in which `me` could hold the model beside what the others hold, with memory for `rooms_bytes` of weights each; the first
    /// is as now. None where it does not choose its layers, or where what they weigh is not known.
    pub fn ways(&self, me: NodeId, rooms_bytes: &[u64]) -> Vec<Way> {
        let Some(at) = self.index_of(me) else { return Vec::new() };
        let Some(room) = &self.members[at].room else { return Vec::new() };
        let Some(costs) = &room.costs else { return Vec::new() };
        let mut held: Vec<LayerSet> = self.members.iter().map(|member| member.held.clone()).collect();
        let own = held[at].clone();
        // What it alone holds it does not leave.
        let alone = holders::alone(&self.named(&held), me);
        let mut windows: Vec<LayerSet> = vec![own.clone()];
        for bytes in rooms_bytes {
            let narrow = Room { bytes: *bytes, ..room.clone() };
            let less = own.ranges().first().and_then(|range| narrow.longest(range.start(), range.end()));
            for window in self.scarce(&held, at, &narrow).into_iter().chain(less) {
                let stays = alone.without(window).is_empty();
                if stays && !windows.contains(&window.into()) {
                    windows.push(window.into());
                }
            }
        }
        let worths: Vec<_> = windows
            .iter()
            .map(|window| {
                held[at] = window.clone();
                self.worth(&held).0
            })
            .collect();
        let fastest = worths.iter().map(|worth| worth.tps).fold(0.0, f64::max);
        let layers = f64::from(self.within.len());
        let ways = windows.into_iter().zip(worths).map(|(window, worth)| {
            let bytes = |range: &LayerRange| costs.weight_bytes(*range);
            let served = if fastest > 0.0 { self.concurrency * worth.tps / fastest } else { 0.0 };
            let safe = COVERED * worth.covered as f64 - ALONE * worth.alone as f64;
            Way {
                bytes: window.ranges().iter().map(bytes).fold(0, u64::saturating_add),
                layers: window,
                covered: worth.covered,
                worth: served + safe / layers,
            }
        });
        ways.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{node, set, stand};
    use super::*;
    use crate::layer_cost::{LayerCost, LayerCosts};
    use crate::place::{
        MIN_GAIN,
        knapsack::{Division, divide},
    };

    const LAYER_BYTES: u64 = 10;

    /// A model of eight layers: what node 1, which chooses, holds of it, and what others hold.
    fn model(own: LayerSet, others: &[LayerSet]) -> Stand {
        let layer = LayerCost {
            row_work: 1,
            weight_bytes: LAYER_BYTES,
            seen_work: 0,
            window: None,
            state_bytes: 0,
            position_bytes: 0,
        };
        let costs = LayerCosts::new(vec![layer; 8], 8).unwrap();
        let room = Room { layers: 6, bytes: u64::MAX, costs: Some(costs.clone()) };
        let others = others.iter().map(|held| (held.clone(), 1.0, None));
        let members: Vec<_> = std::iter::once((own, 1.0, Some(room))).chain(others).collect();
        stand(Some(&costs), 8, &members, |_, _| 0.5)
    }

    #[test]
    fn memory_goes_to_the_model_whose_layers_have_no_holder() {
        // One that another node holds, too, and one of which no other node holds anything.
        let models = [model(set(1, 7), &[set(1, 7)]), model(set(1, 3), &[])];
        let Division { present, advised, secures, moves } = divide(node(1), &models, 80);
        let all = LayerRange::new(1, 7).unwrap();
        assert!(secures && advised > MIN_GAIN * present, "{present} {advised}");
        assert!(matches!(moves[..], [(0, less), (1, more)] if less.len() == 2 && more == all), "{moves:?}");
        // What it alone holds stays, however much is asked of the other.
        let alone = [model(set(1, 7), &[]), model(set(1, 3), &[])];
        assert_eq!(divide(node(1), &alone, 80).moves, []);
        // With memory for all each is held whole.
        assert_eq!(divide(node(1), &models, 120).moves, [(1, all)]);
    }

    #[test]
    fn ways_keep_to_their_memory_and_the_first_is_as_now() {
        let one = model(set(2, 4), &[set(1, 7)]);
        let ways = one.ways(node(1), &[10, 35, 60]);
        assert_eq!((&ways[0].layers, ways[0].bytes), (&set(2, 4), 20));
        assert!(
            ways.iter().all(|way| way.bytes <= 60 && way.bytes == LAYER_BYTES * u64::from(way.layers.len()))
        );
        assert!(ways.iter().any(|way| way.bytes == 60) && ways.iter().any(|way| way.bytes == 10));
        assert!(one.ways(node(2), &[60]).is_empty(), "its owner said what it holds");
        assert!(one.ways(node(9), &[60]).is_empty(), "it is not there");
    }
}
