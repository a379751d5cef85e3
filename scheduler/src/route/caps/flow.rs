//! Whether layers can be shared out among their holders within everyone's room, whatever the links.

use crate::route::table::Table;
use crate::snapshot::{NONE, Snapshot};

/// Who could take which layer, and how much.
#[derive(Clone, Debug, Default)]
pub(super) struct Net {
    /// Hosts that may run each layer.
    pub at: Vec<Vec<u32>>,
    /// Units of room that the layers before each one take.
    pub need: Vec<u64>,
    /// Units of room, by host.
    pub room: Vec<u64>,
}

impl Net {
    /// All hosts of `snapshot` over the layers of `table`.
    pub fn new(snapshot: &Snapshot, table: &Table) -> Self {
        let price = &table.price;
        let bytes = |layer: usize| price.needs(layer as u32, layer as u32 + 1);
        let unit = (table.first..table.end).map(bytes).fold(0, gcd).max(1);
        let mut need = vec![0u64];
        let mut at = Vec::with_capacity(table.end - table.first);
        for layer in table.first..table.end {
            let units = bytes(layer) / unit;
            let may = |host: &u32| {
                let home = price.home == Some(*host);
                (home || !price.home_only(layer))
                    && price.node[*host as usize].enter.is_finite()
                    && price.room[*host as usize] / unit >= units
            };
            at.push(snapshot.host_of[snapshot.states(layer)].iter().copied().filter(may).collect());
            need.push(need[need.len() - 1].saturating_add(units));
        }
        Self { at, need, room: price.room.iter().map(|room| room / unit).collect() }
    }

    /// Units that the layers from `start` up to `end` take.
    pub fn needs(&self, start: u32, end: u32) -> u64 {
        self.need[end as usize] - self.need[start as usize]
    }

    fn layer(&self, layer: u32) -> u64 {
        self.needs(layer, layer + 1)
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Layers shared out. A layer may be split where layers differ in size; then it is a bound only.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    /// Room left, by host.
    spare: Vec<u64>,
    /// Layer, host, units.
    placed: Vec<(u32, u32, u64)>,
}

impl Flow {
    /// All layers, or `None` when they have no room.
    pub fn whole(net: &Net) -> Option<Self> {
        let layers = net.at.len() as u32;
        let mut flow = Self { spare: net.room.clone(), placed: Vec::with_capacity(net.at.len()) };
        let mut way = Way::new(net.room.len());
        let all = (0..layers).all(|layer| {
            !net.at[layer as usize].is_empty() && flow.place(net, layer, net.layer(layer), &mut way)
        });
        all.then_some(flow)
    }

    /// The hosts that hold something.
    pub fn hosts(&self) -> impl Iterator<Item = u32> {
        self.placed.iter().map(|placed| placed.1)
    }

    /// The flow of the layers from `end` on after `host` took those from `start` up to `end`, if there is one. Layers before
    /// `start` were taken before.
    pub fn taken(&self, net: &Net, host: u32, start: u32, end: u32, way: &mut Way) -> Option<Self> {
        let mut flow = self.clone();
        let spare = &mut flow.spare;
        flow.placed.retain(|&(layer, on, units)| {
            if layer < end {
                spare[on as usize] += units;
            }
            layer >= end
        });
        let needed = net.needs(start, end);
        let mut moved = Vec::new();
        flow.placed.retain(|&(layer, on, units)| {
            let stays = on != host || spare[host as usize] >= needed;
            if !stays {
                spare[host as usize] += units;
                moved.push((layer, units));
            }
            stays
        });
        flow.spare[host as usize] = flow.spare[host as usize].checked_sub(needed)?;
        let replaced = moved.into_iter().all(|(layer, units)| flow.place(net, layer, units, way));
        replaced.then_some(flow)
    }

    /// Finds room for `units` of `layer`, moving others where that helps.
    fn place(&mut self, net: &Net, layer: u32, mut units: u64, way: &mut Way) -> bool {
        while units > 0 {
            let Some(found) = self.way(net, layer, way) else { return false };
            // Back from the host with room to the layer: each host on the way hands a layer on.
            let mut amount = units.min(self.spare[found as usize]);
            let mut host = found;
            while way.from[host as usize] != NONE {
                let (before, by) = (way.from[host as usize], way.by[host as usize]);
                amount = amount.min(self.units(by, before));
                host = before;
            }
            self.spare[found as usize] -= amount;
            host = found;
            while way.from[host as usize] != NONE {
                let (before, by) = (way.from[host as usize], way.by[host as usize]);
                self.change(by, before, amount, false);
                self.change(by, host, amount, true);
                host = before;
            }
            self.change(layer, host, amount, true);
            units -= amount;
        }
        true
    }

    /// A host with room that `layer` can be placed on, directly or by moving others.
    fn way(&self, net: &Net, layer: u32, way: &mut Way) -> Option<u32> {
        way.start();
        if let Some(found) = way.visit(&net.at[layer as usize], NONE, layer, &self.spare) {
            return Some(found);
        }
        let mut next = 0;
        while let Some(&host) = way.queue.get(next) {
            next += 1;
            for &(other, on, _) in &self.placed {
                if on == host
                    && let Some(found) = way.visit(&net.at[other as usize], host, other, &self.spare)
                {
                    return Some(found);
                }
            }
        }
        None
    }

    fn units(&self, layer: u32, host: u32) -> u64 {
        self.placed.iter().find(|placed| (placed.0, placed.1) == (layer, host)).map_or(0, |placed| placed.2)
    }

    fn change(&mut self, layer: u32, host: u32, amount: u64, more: bool) {
        match self.placed.iter().position(|placed| (placed.0, placed.1) == (layer, host)) {
            Some(at) if more => self.placed[at].2 += amount,
            Some(at) => {
                self.placed[at].2 -= amount;
                if self.placed[at].2 == 0 {
                    self.placed.swap_remove(at);
                }
            }
            None => self.placed.push((layer, host, amount)),
        }
    }
}

/// A search for room, breadth first.
pub(super) struct Way {
    seen: Vec<u32>,
    round: u32,
    queue: Vec<u32>,
    /// The host that hands on, [`NONE`] at the first one.
    from: Vec<u32>,
    /// The layer that it hands on.
    by: Vec<u32>,
}

impl Way {
    pub fn new(hosts: usize) -> Self {
        Self {
            seen: vec![0; hosts],
            round: 0,
            queue: Vec::new(),
            from: vec![NONE; hosts],
            by: vec![NONE; hosts],
        }
    }

    fn start(&mut self) {
        self.round += 1;
        self.queue.clear();
    }

    fn visit(&mut self, hosts: &[u32], from: u32, by: u32, spare: &[u64]) -> Option<u32> {
        for &host in hosts {
            let i = host as usize;
            if self.seen[i] != self.round {
                self.seen[i] = self.round;
                (self.from[i], self.by[i]) = (from, by);
                if spare[i] > 0 {
                    return Some(host);
                }
                self.queue.push(host);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::{Flow, Net, Way};

    fn net(at: &[&[u32]], units: &[u64], room: &[u64]) -> Net {
        let mut need = vec![0];
        units.iter().for_each(|units| need.push(need[need.len() - 1] + units));
        Net { at: at.iter().map(|hosts| hosts.to_vec()).collect(), need, room: room.to_vec() }
    }

    #[test]
    fn layers_make_way_for_others() {
        // The first layer is put on 0, moves to 1 for the second, and that to 2 for the third.
        let chain = net(&[&[0, 1], &[0, 1, 2], &[0]], &[1, 1, 1], &[1, 1, 1]);
        let flow = Flow::whole(&chain).unwrap();
        let mut placed = flow.placed.clone();
        placed.sort_unstable();
        assert_eq!((placed.len(), placed[2]), (3, (2, 0, 1)));
        assert!(Flow::whole(&net(&[&[0, 1], &[0, 1], &[0, 1]], &[1, 1, 1], &[1, 1])).is_none());
        assert!(Flow::whole(&net(&[&[0], &[]], &[1, 0], &[9])).is_none(), "no one holds the second");
    }

    #[test]
    fn what_is_taken_moves_the_rest_or_cannot_be() {
        let pair = net(&[&[0, 1], &[0, 1], &[0]], &[1, 1, 1], &[2, 1]);
        let flow = Flow::whole(&pair).unwrap();
        let way = &mut Way::new(2);
        assert!(flow.taken(&pair, 0, 0, 2, way).is_none(), "then 0 has no room for the third");
        let first = flow.taken(&pair, 0, 0, 1, way).unwrap();
        assert!(first.taken(&pair, 0, 1, 2, way).is_none());
        let second = first.taken(&pair, 1, 1, 2, way).unwrap();
        assert!(second.taken(&pair, 0, 2, 3, way).unwrap().placed.is_empty());
    }

    #[test]
    fn a_split_is_a_bound() {
        // 3 + 3 in 4 + 2: no whole layer fits twice, but the parts do.
        let split = net(&[&[0, 1], &[0, 1]], &[3, 3], &[4, 2]);
        assert!(Flow::whole(&split).is_some());
        assert!(Flow::whole(&net(&[&[0, 1], &[0, 1]], &[3, 3], &[3, 2])).is_none());
    }
}
