//! Draws large swarms, for timing decisions at sizes no published case has.

use scheduler::place::{Ground, Site};
use scheduler::rng::Rng;
use scheduler::snapshot::{BadSnapshot, Host, Links};
use scheduler::{LayerRange, LayerSet, ModelId, NodeId, Snapshot};

/// Round trips between five regions, ms, like those between public-cloud regions.
pub const REGIONS_MS: [[f64; 5]; 5] = [
    [1.0, 65.0, 82.0, 215.0, 120.0],
    [65.0, 1.0, 140.0, 165.0, 180.0],
    [82.0, 140.0, 1.0, 175.0, 195.0],
    [215.0, 165.0, 175.0, 1.0, 320.0],
    [120.0, 180.0, 195.0, 320.0, 1.0],
];

/// Volunteers holding 4 to 20 layers each, in five regions, with four measured links per node.
///
/// # Errors
/// Never for `num_layers > 0`; the type is the snapshot's own.
pub fn volunteers(nodes: u32, num_layers: u32, seed: u64) -> Result<Snapshot, BadSnapshot> {
    let mut chance = Rng::new(seed);
    let mut hosts = Vec::with_capacity(nodes as usize);
    for id in 0..nodes {
        let len = (4 + chance.below(17) as u32).min(num_layers);
        // Runs that would stick out at an end are cut, so that the ends are held as often as the middle.
        let start = chance.below((num_layers + len - 1) as usize) as u32 + 1;
        let held: LayerSet =
            LayerRange::new(start.saturating_sub(len), start.min(num_layers)).into_iter().collect();
        let mut host = Host::new(NodeId::numbered(u64::from(id)), held, chance.between(0.2, 5.0));
        host.access.region = chance.below(REGIONS_MS.len()) as u16;
        host.access.ms = chance.exponential(4.0);
        host.visit_ms = chance.between(0.5, 6.0);
        hosts.push(host);
    }
    let mut measured = Vec::new();
    for i in 0..nodes {
        for _ in 0..2 {
            let j = chance.below(nodes as usize) as u32;
            let (a, b) = (&hosts[i as usize], &hosts[j as usize]);
            let usual =
                REGIONS_MS[a.access.region as usize][b.access.region as usize] + a.access.ms + b.access.ms;
            let ms = usual * chance.between(0.5, 2.0);
            measured.extend([(i, j, ms), (j, i, ms)]);
        }
    }
    let base_ms = REGIONS_MS.iter().flatten().copied().collect();
    let links = Links::Regions { base_ms, regions: REGIONS_MS.len(), measured };
    Snapshot::new(ModelId::default(), num_layers, None, hosts, &links)
}

/// Sites of mixed speed and memory in five regions, half as many requests.
///
/// # Errors
/// Never for `num_layers > 0`; the type is the ground's own.
pub fn sites(nodes: u32, num_layers: u32, seed: u64) -> Result<Ground, scheduler::place::BadGround> {
    let mut chance = Rng::new(seed);
    let mut sites = Vec::new();
    let mut spots = Vec::new();
    for id in 0..nodes {
        let cap = 3 + chance.below(num_layers as usize) as u32 / 2;
        sites.push(Site {
            id: NodeId::numbered(u64::from(id)),
            layer_ms: chance.between(0.1, 1.5),
            cap_mid: cap,
            cap_first: cap - 1,
            cap_last: cap - 1,
            cap_both: cap - 2,
        });
        spots.push((chance.below(REGIONS_MS.len()), chance.exponential(4.0)));
    }
    let mut hops = Vec::with_capacity((nodes * nodes) as usize);
    for (i, a) in spots.iter().enumerate() {
        for (j, b) in spots.iter().enumerate() {
            hops.push(if i == j { 0.0 } else { REGIONS_MS[a.0][b.0] + a.1 + b.1 });
        }
    }
    Ground::new(num_layers, f64::from(nodes / 2), sites, &hops)
}
