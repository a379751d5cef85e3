//! Picks among near-equal routes, so that requesters with the same stale view do not herd.
//!
//! Walks the table from the front. At the entry, and wherever the best way on switches node, every node whose best
//! completion stays within `near_equal` of the optimum is a candidate with weight `(optimum / cost)^8`: a route 1 %
//! dearer is taken 0.92 times as often, one 5 % dearer 0.68 times. Since the cost of the whole route is known at each
//! choice, the picked route never exceeds the limit.

use super::table::Table;
use super::{Visit, extend};
use crate::Request;
use crate::chance::{Chance, mix};
use crate::snapshot::{NONE, Snapshot};

/// How sharply cheaper routes are preferred; lower spreads wider and pays more, at 0 all near-equals are alike.
const SHARPNESS: i32 = 8;

pub(super) fn near_equal(
    snapshot: &Snapshot,
    table: &Table,
    optimum_ms: f64,
    request: &Request,
) -> Option<Vec<Visit>> {
    let limit = optimum_ms * (1.0 + request.policy.near_equal);
    let mut chance = Chance::new(mix(request.seed));
    let weight = |ms: f64| (optimum_ms / ms).min(1.0).powi(SHARPNESS);
    let mut drawn = Drawn::default();
    for state in snapshot.states(0).filter(|&state| table.to_go[state] <= limit) {
        let ms = table.whole_from(snapshot, state);
        if ms <= limit {
            drawn.offer(state, weight(ms), &mut chance);
        }
    }
    let mut state = drawn.state?;
    let mut spent = table.whole_from(snapshot, state) - table.to_go[state];
    let mut visits = Vec::new();
    let mut layer = 0;
    loop {
        extend(&mut visits, snapshot.host_of[state], layer as u32);
        let best = match table.step(snapshot, state, layer) {
            NONE => return Some(visits),
            best => best as usize,
        };
        let (here, there) = (snapshot.host_of[state], snapshot.host_of[best]);
        spent += table.price.layer(snapshot, state, layer);
        layer += 1;
        let mut next = best;
        if here != there {
            let mut drawn = Drawn::default();
            for other in snapshot.states(layer).filter(|&s| spent + table.to_go[s] <= limit) {
                let host = snapshot.host_of[other];
                let before =
                    spent + table.price.hop(snapshot, here, host) + table.price.node[host as usize].enter;
                let ms = before + table.to_go[other];
                if host != here && ms <= limit {
                    drawn.offer(other, weight(ms), &mut chance);
                }
            }
            next = drawn.state.unwrap_or(best);
            let host = snapshot.host_of[next];
            spent += table.price.hop(snapshot, here, host) + table.price.node[host as usize].enter;
        }
        state = next;
    }
}

/// One weighted draw over a stream of candidates (reservoir of one).
#[derive(Default)]
struct Drawn {
    state: Option<usize>,
    weight: f64,
}

impl Drawn {
    fn offer(&mut self, state: usize, weight: f64, chance: &mut Chance) {
        self.weight += weight;
        if self.state.is_none() || chance.unit() * self.weight < weight {
            self.state = Some(state);
        }
    }
}
