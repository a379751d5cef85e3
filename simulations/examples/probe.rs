use scheduler::chance::Chance;
use scheduler::snapshot::{Host, Links};
use scheduler::{ModelId, Request, Shape, Snapshot, route};
use simulations::policy::{self, Policy};
use simulations::scale::REGIONS_MS;
use simulations::scenario::Scenario;
use simulations::world::{VISIT_MS, World, id};

fn main() {
    let path = std::env::args().nth(1).unwrap();
    let scenario = Scenario::parse(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut sums = [0.0; 6];
    for seed in 100..130 {
        let mut line = format!("{seed}:");
        for (k, p) in [Policy::Ours, Policy::Petals].into_iter().enumerate() {
            let mut draw = Chance::new(seed);
            let mut world = World::draw(&scenario, &mut draw.fork());
            policy::hold(p, &scenario, &mut world);
            let held = world.machines[..world.nodes].iter().filter(|m| !m.held.is_empty()).count();
            let mut costs = Vec::new();
            for r in world.nodes..world.machines.len() {
                let hosts = (0..world.machines.len()).filter(|&i| i < world.nodes || i == r).map(|i| {
                    let m = &world.machines[i];
                    let mut h = Host::new(id(i), m.held.iter().copied().collect(), m.layer_ms);
                    h.visit_ms = VISIT_MS;
                    (h.region, h.access_ms) = (m.region as u16, m.access_ms);
                    h
                });
                let base_ms = REGIONS_MS.iter().flatten().copied().collect();
                let links = Links::Regions { base_ms, regions: 5, measured: Vec::new() };
                let s =
                    Snapshot::new(ModelId::default(), world.layers, None, hosts.collect(), &links).unwrap();
                let mut ask = Request::new(id(r), Shape::ONE_TOKEN);
                ask.policy.near_equal = 0.0;
                costs.push(route::route(&s, &ask).map_or(f64::NAN, |f| f.optimum_ms));
            }
            costs.sort_by(f64::total_cmp);
            let mean = costs.iter().sum::<f64>() / costs.len() as f64;
            let worst = costs[costs.len() - 1];
            sums[3 * k] += mean / 30.0;
            sums[3 * k + 1] += worst / 30.0;
            sums[3 * k + 2] += costs[0] / 30.0;
            line += &format!(" {p:?} held {held} best {:.1} mean {mean:.1} worst {worst:.1};", costs[0]);
        }
        println!("{line}");
    }
    println!("{sums:?}");
}
