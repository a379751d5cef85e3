//! Fills the room that a placement leaves.
//!
//! A pipeline's split gives a node as many layers as balance asks for, often fewer than fit. What is left over costs
//! nothing to fill: every layer held twice is a boundary the router may move, and a standby. So each segment grows
//! towards the side whose next layer has the least summed speed, one layer at a time, until the node is full.
//!
//! ```text
//!   room 6   A [0..4) ──▶ [0..6)        B then may take over anywhere in 4..6, and A stands by for it
//!   room 5             B [4..8) ──▶ [3..8)
//! ```
//!
//! Limits: what is added is loaded with the rest, and a node that must start quickly should load its segment first.

use super::Ground;
use crate::{LayerRange, Segment};

/// What every node should hold if it fills its room: its segment of `placed` and the layers beside it. By node, the same
/// in any order of sites; one segment a node, and nodes that are no sites are left out.
pub fn widen(ground: &Ground, placed: &[Segment]) -> Vec<Segment> {
    let layers = ground.num_layers();
    let mut speed = vec![0.0; layers as usize];
    let mut held: Vec<(u32, u32, u32)> = Vec::new();
    for segment in placed {
        let Some(i) = ground.index_of(segment.node) else { continue };
        let (start, end) = (segment.layers.start(), segment.layers.end());
        let per_ms = 1.0 / ground.sites[i as usize].layer_ms;
        (start..end).for_each(|layer| speed[layer as usize] += per_ms);
        held.push((i, start, end));
    }
    held.sort_unstable();
    // One layer each in turn, so that no node takes what another one needs more.
    loop {
        let mut grown = false;
        for (i, start, end) in &mut held {
            let site = &ground.sites[*i as usize];
            let fits = |start: u32, end: u32| end - start <= site.cap(start == 0, end == layers);
            let left = (*start > 0 && fits(*start - 1, *end)).then(|| *start - 1);
            let right = (*end < layers && fits(*start, *end + 1)).then_some(*end);
            let need = |layer: Option<u32>| layer.map_or(f64::INFINITY, |layer| speed[layer as usize]);
            let layer = match (need(left), need(right)) {
                (l, r) if l.is_infinite() && r.is_infinite() => continue,
                (l, r) if l < r => {
                    *start -= 1;
                    *start
                }
                _ => {
                    *end += 1;
                    *end - 1
                }
            };
            speed[layer as usize] += 1.0 / site.layer_ms;
            grown = true;
        }
        if !grown {
            break;
        }
    }
    let named = held.into_iter().filter_map(|(i, start, end)| {
        LayerRange::new(start, end).map(|layers| Segment { node: ground.sites[i as usize].id, layers })
    });
    named.collect()
}
