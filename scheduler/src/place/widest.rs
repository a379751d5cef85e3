//! One pipeline of as few sites as possible, for when growing found none.
//!
//! Growing takes the fastest sites first. Where those are narrow, or have no room for embedding or head, they crowd out
//! the ones that could serve, and nothing is whole in the end although something could be. Here only width counts: for
//! every pair of ends among the widest, the widest others between them until the layers fit. Speed is left to annealing.

use super::Ground;
use super::split::{self, MAX_STAGES};

/// Sites tried at either end; beyond, narrower ends only help where the wide ones cannot talk.
const ENDS: usize = 16;

/// The pipeline of `pool` with the least latency among those made of the widest sites, if any fits.
pub(super) fn pipeline(ground: &Ground, pool: &[u32]) -> Option<Vec<u32>> {
    let widest = |cap: &dyn Fn(u32) -> u32| {
        let mut sites: Vec<u32> = pool.iter().copied().filter(|&i| cap(i) > 0).collect();
        sites.sort_unstable_by_key(|&i| (std::cmp::Reverse(cap(i)), i));
        sites
    };
    let site = |i: u32| &ground.sites[i as usize];
    let alone = widest(&|i| site(i).cap_both).into_iter().take(ENDS).map(|i| vec![i]);
    let (first, last) = (widest(&|i| site(i).cap_first), widest(&|i| site(i).cap_last));
    let between = widest(&|i| site(i).cap_mid);
    let ends = first.iter().take(ENDS).flat_map(|&a| last.iter().take(ENDS).map(move |&b| (a, b)));
    let joined = ends.filter(|(a, b)| a != b).map(|(a, b)| {
        let mut room = u64::from(site(a).cap_first) + u64::from(site(b).cap_last);
        let mut chain = vec![a];
        for &i in between.iter().filter(|&&i| i != a && i != b) {
            if room >= u64::from(ground.num_layers) || chain.len() + 1 >= MAX_STAGES {
                break;
            }
            room += u64::from(site(i).cap_mid);
            chain.push(i);
        }
        chain.push(b);
        chain
    });
    let priced = alone.chain(joined).filter_map(|chain| {
        let plan = split::best(ground, &chain, 0.0)?;
        Some((plan.pace.latency_ms, chain))
    });
    priced.min_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1))).map(|found| found.1)
}
