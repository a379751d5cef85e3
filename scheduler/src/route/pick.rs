//! Picks among near-equal routes, so that requesters with the same stale view do not herd.
//!
//! Walks the table from the front. At the entry, and wherever the best way on switches node, every node whose best
//! completion stays within `near_equal` of the optimum is a candidate with weight `(optimum / cost)^8`: a route 1 %
//! dearer is drawn 0.92 times as often, one 5 % dearer 0.68 times. Since the cost of the whole route is known at each
//! choice, the picked route never exceeds the limit. A node that the best way on leaves after one layer though it could stay is
//! no alternative but a detour, and not drawn.
//!
//! Two are drawn, and the one that is believed less full is taken: of a stale view the better of two is safe where the best
//! of all is a stampede (Mitzenmacher, *The power of two choices in randomized load balancing*, 2001, and *How useful is old
//! information?*, 2000). It decides where cost does not: a session that makes little difference among hops and layers, and
//! two equal replicas that would be filled by the toss of a coin. Drawing two with the chances of the weights takes
//! one pass: every candidate gets the key `ln(u) / weight`, the two highest win (Efraimidis and Spirakis, *Weighted random
//! sampling with a reservoir*, 2006).

use super::table::Table;
use super::{Visit, extend};
use crate::Request;
use crate::cost;
use crate::rng::{Rng, mix};
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
    let mut chance = Rng::new(mix(request.seed));
    let weight = |ms: f64| (optimum_ms / ms).min(1.0).powi(SHARPNESS);
    let stays = |state: usize, layer: usize| {
        let on = snapshot.next[state];
        // Where it may not run the next layer it has no choice.
        on == NONE || !table.to_go[on as usize].is_finite() || table.step(snapshot, state, layer) == on
    };
    let mut drawn = Drawn::default();
    for state in snapshot.states(0).filter(|&state| table.to_go[state] <= limit) {
        let ms = table.whole_from(snapshot, state);
        if ms <= limit {
            drawn.offer(state, weight(ms), &mut chance, || ms <= optimum_ms || stays(state, 0));
        }
    }
    let fullness = |state: usize| cost::fullness(snapshot, request, snapshot.host_of[state]);
    let mut state = drawn.better(fullness)?;
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
                    drawn.offer(other, weight(ms), &mut chance, || other == best || stays(other, layer));
                }
            }
            next = drawn.better(fullness).unwrap_or(best);
            let host = snapshot.host_of[next];
            spent += table.price.hop(snapshot, here, host) + table.price.node[host as usize].enter;
        }
        state = next;
    }
}

/// Weighted draws of two over a stream of candidates, the one with the higher key first.
#[derive(Default)]
struct Drawn {
    first: Option<Candidate>,
    second: Option<Candidate>,
}

#[derive(Clone, Copy)]
struct Candidate {
    key: f64,
    weight: f64,
    state: usize,
}

impl Drawn {
    /// `admitted` is asked of what would be drawn.
    fn offer(&mut self, state: usize, weight: f64, chance: &mut Rng, admitted: impl FnOnce() -> bool) {
        // `1 - unit` is never zero.
        let drawn = Candidate { key: (1.0 - chance.unit()).ln() / weight, weight, state };
        let above = |other: Option<Candidate>| other.is_none_or(|other| drawn.key > other.key);
        if !above(self.second) || !admitted() {
            return;
        }
        if above(self.first) {
            self.second = self.first.replace(drawn);
        } else {
            self.second = Some(drawn);
        }
    }

    /// The less full of the two, of two alike the cheaper.
    fn better(&self, fullness: impl Fn(usize) -> f64) -> Option<usize> {
        let one = self.first?;
        let Some(other) = self.second else { return Some(one.state) };
        let emptier = fullness(other.state).total_cmp(&fullness(one.state));
        let order = emptier.then(one.weight.total_cmp(&other.weight));
        Some(if order.is_lt() { other.state } else { one.state })
    }
}
