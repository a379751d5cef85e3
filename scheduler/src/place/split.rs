//! Splits the layers of one pipeline over its nodes, in their order.
//!
//! The least possible slowest stage is found exactly: one layer each, then water-filling (nodes that reach their
//! capacity are set aside), then the remaining layers one by one where the stage stays shortest. Greedy is exact here because stage times grow with
//! every layer. Allowing a slower slowest stage lets fast nodes take more, which lowers latency; a handful of
//! allowances is tried and the one worth most at the marginal price is taken.

use super::{Ground, Pace};

/// Longest pipeline considered; more stages than this only add hops.
pub(super) const MAX_STAGES: usize = 48;

/// How much slower than necessary the slowest stage may be, to save latency.
const ALLOWANCES: [f64; 6] = [1.0, 1.1, 1.25, 1.6, 2.5, f64::INFINITY];

/// Layers per node, and how fast that is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    len: [u32; MAX_STAGES],
    stages: usize,
    pub pace: Pace,
    /// Worth at the marginal price it was made for, tokens per second.
    pub worth: f64,
}

impl Plan {
    pub fn layers(&self) -> &[u32] {
        &self.len[..self.stages]
    }
}

/// The split of `chain` worth most when a request is worth `price` tokens per second elsewhere; `None` when the
/// layers do not fit, a node would get none, or a hop is impossible.
pub(super) fn best(ground: &Ground, chain: &[u32], price: f64) -> Option<Plan> {
    let stages = chain.len();
    if stages == 0 || stages > MAX_STAGES || stages > ground.num_layers as usize {
        return None;
    }
    let hops: f64 = chain.windows(2).map(|pair| ground.hop(pair[0], pair[1])).sum();
    if !hops.is_finite() {
        return None;
    }
    let mut cap = [0u32; MAX_STAGES];
    let mut ms = [0f64; MAX_STAGES];
    let mut room = 0u64;
    for (k, &i) in chain.iter().enumerate() {
        let site = &ground.sites[i as usize];
        cap[k] = site.cap(k == 0, k + 1 == stages).min(ground.num_layers);
        ms[k] = site.layer_ms;
        room += u64::from(cap[k]);
        if cap[k] == 0 {
            return None;
        }
    }
    if room < u64::from(ground.num_layers) {
        return None;
    }
    let (cap, ms) = (&cap[..stages], &ms[..stages]);
    let mut best = balanced(ground.num_layers, cap, ms, hops);
    best.worth = worth(best.pace, price);
    if price > 0.0 && stages > 1 {
        let mut order = [0usize; MAX_STAGES];
        (0..stages).for_each(|k| order[k] = k);
        order[..stages].sort_unstable_by(|&a, &b| ms[a].total_cmp(&ms[b]).then(a.cmp(&b)));
        let least = best.pace.slowest_ms;
        for allowance in ALLOWANCES {
            let mut plan = lean(ground.num_layers, cap, ms, hops, &order[..stages], least * allowance);
            plan.worth = worth(plan.pace, price);
            if plan.worth > best.worth {
                best = plan;
            }
        }
    }
    Some(best)
}

/// Tokens per second beyond what the requests it occupies would earn elsewhere.
pub(super) fn worth(pace: Pace, price: f64) -> f64 {
    ((1000.0 - price * pace.latency_ms) / pace.slowest_ms).max(0.0)
}

/// The split with the least slowest stage.
pub(super) fn balanced(num_layers: u32, cap: &[u32], ms: &[f64], hops: f64) -> Plan {
    let mut len = [0u32; MAX_STAGES];
    len[..cap.len()].fill(1);
    let mut left = num_layers - cap.len() as u32;
    loop {
        let open = |k: &usize| len[*k] < cap[*k];
        let level = f64::from(left) + (0..cap.len()).filter(open).map(|k| f64::from(len[k])).sum::<f64>();
        let speed: f64 = (0..cap.len()).filter(open).map(|k| 1.0 / ms[k]).sum();
        let bound = level / speed;
        let before = left;
        for k in 0..cap.len() {
            let target = ((bound / ms[k]) as u32).min(cap[k]);
            if len[k] < target {
                let more = (target - len[k]).min(left);
                len[k] += more;
                left -= more;
            }
        }
        if left == before || left == 0 {
            break;
        }
    }
    while left > 0 {
        let next = (0..cap.len())
            .filter(|&k| len[k] < cap[k])
            .min_by(|&a, &b| (f64::from(len[a] + 1) * ms[a]).total_cmp(&(f64::from(len[b] + 1) * ms[b])));
        let Some(k) = next else { break };
        len[k] += 1;
        left -= 1;
    }
    paced(len, cap.len(), ms, hops)
}

/// As many layers as possible on the fastest nodes with no stage above `bound`.
fn lean(num_layers: u32, cap: &[u32], ms: &[f64], hops: f64, order: &[usize], bound: f64) -> Plan {
    let mut len = [0u32; MAX_STAGES];
    len[..cap.len()].fill(1);
    let mut left = num_layers - cap.len() as u32;
    for &k in order {
        let most = ((bound / ms[k] * (1.0 + 1e-12)) as u32).clamp(1, cap[k]);
        let more = (most - 1).min(left);
        len[k] += more;
        left -= more;
    }
    if left > 0 {
        return Plan {
            len,
            stages: cap.len(),
            pace: Pace { latency_ms: f64::INFINITY, slowest_ms: f64::INFINITY },
            worth: 0.0,
        };
    }
    paced(len, cap.len(), ms, hops)
}

fn paced(len: [u32; MAX_STAGES], stages: usize, ms: &[f64], hops: f64) -> Plan {
    let mut pace = Pace { latency_ms: hops, slowest_ms: 0.0 };
    for (len, ms) in len.iter().zip(ms) {
        let stage = f64::from(*len) * ms;
        pace.latency_ms += stage;
        pace.slowest_ms = pace.slowest_ms.max(stage);
    }
    Plan { len, stages, pace, worth: 0.0 }
}
