//! The allocator of Parallax's paper: for every number k of pipelines the least number s of stages, by a memoized search
//! over which open pipeline each machine joins; the k with the greatest k^2 / s wins.
//!
//! The search is exponential in machines of different room (the original gives no answer for 16 mixed ones in 45 s, and
//! its production falls over), so it is bounded by [`MOST_STATES`]; beyond, the caller grows pipelines in list order,
//! which is that system's other allocator.

use std::collections::HashMap;

use crate::world::World;

/// States of the search, some hundred bytes and microseconds each.
const MOST_STATES: usize = 200_000;

/// What a machine does in the best completion of a state.
#[derive(Clone, Copy)]
enum Choice {
    Skip,
    /// Joins the open pipeline that still lacks so many layers.
    Join(u32),
    Open,
}

/// Machines left, layers that open pipelines still lack (sorted), pipelines finished.
type State = (usize, Vec<u32>, u32);

struct Search<'a> {
    room: &'a [u32],
    layers: u32,
    wanted: u32,
    known: HashMap<State, Option<(u32, Choice)>>,
    states: usize,
}

/// Chains of machines, or `None` when the search is too big.
pub(super) fn chains(world: &World, present: &[usize]) -> Option<Vec<Vec<usize>>> {
    let mut order: Vec<usize> = present.iter().copied().filter(|&i| world.machines[i].room > 0).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(world.machines[i].room));
    let room: Vec<u32> = order.iter().map(|&i| world.machines[i].room).collect();
    let most = room.iter().sum::<u32>() / world.layers.max(1);
    let mut best: Option<(f64, Vec<Vec<usize>>)> = None;
    let mut states = 0;
    for wanted in 1..=most {
        let mut search = Search { room: &room, layers: world.layers, wanted, known: HashMap::new(), states };
        let start = (0, Vec::new(), 0);
        let stages = search.least(&start)?;
        states = search.states;
        let Some(stages) = stages else { continue };
        let worth = f64::from(wanted * wanted) / f64::from(stages);
        if best.as_ref().is_none_or(|found| worth > found.0) {
            best = Some((worth, search.read(&order)));
        }
    }
    best.map(|found| found.1)
}

impl Search<'_> {
    /// Least number of stages from here; `None` inside when there is no way, outside when the search is too big.
    fn least(&mut self, state: &State) -> Option<Option<u32>> {
        let (at, open, finished) = state;
        if *finished == self.wanted && open.is_empty() {
            return Some(Some(0));
        }
        if let Some(known) = self.known.get(state) {
            return Some(known.map(|known| known.0));
        }
        let missing = open.iter().sum::<u32>()
            + (self.wanted - finished).saturating_sub(open.len() as u32) * self.layers;
        if *at == self.room.len() || self.room[*at..].iter().sum::<u32>() < missing {
            return Some(None);
        }
        self.states += 1;
        if self.states > MOST_STATES {
            return None;
        }
        let mut choices = vec![Choice::Skip];
        let mut distinct = open.clone();
        distinct.dedup();
        choices.extend(distinct.into_iter().map(Choice::Join));
        if finished + (open.len() as u32) < self.wanted {
            choices.push(Choice::Open);
        }
        let mut best: Option<(u32, Choice)> = None;
        for choice in choices {
            let next = self.after(state, choice);
            let stages = u32::from(!matches!(choice, Choice::Skip));
            if let Some(rest) = self.least(&next)?
                && best.is_none_or(|best| stages + rest < best.0)
            {
                best = Some((stages + rest, choice));
            }
        }
        self.known.insert(state.clone(), best);
        Some(best.map(|best| best.0))
    }

    fn after(&self, (at, open, finished): &State, choice: Choice) -> State {
        let (mut open, mut finished) = (open.clone(), *finished);
        let lacks = match choice {
            Choice::Skip => return (at + 1, open, finished),
            Choice::Open => self.layers,
            Choice::Join(lacks) => {
                if let Ok(k) = open.binary_search(&lacks) {
                    open.remove(k);
                }
                lacks
            }
        };
        match lacks.saturating_sub(self.room[*at]) {
            0 => finished += 1,
            left => open.insert(open.partition_point(|other| *other < left), left),
        }
        (at + 1, open, finished)
    }

    /// Follows the choices from the start.
    fn read(&self, order: &[usize]) -> Vec<Vec<usize>> {
        let mut state: State = (0, Vec::new(), 0);
        let mut growing: Vec<(u32, Vec<usize>)> = Vec::new();
        let mut whole = Vec::new();
        while let Some(Some((_, choice))) = self.known.get(&state) {
            let at = state.0;
            let chain = match choice {
                Choice::Skip => None,
                Choice::Open => Some((self.layers, Vec::new())),
                Choice::Join(lacks) => {
                    growing.iter().position(|chain| chain.0 == *lacks).map(|k| growing.swap_remove(k))
                }
            };
            if let Some((lacks, mut chain)) = chain {
                chain.push(order[at]);
                match lacks.saturating_sub(self.room[at]) {
                    0 => whole.push(chain),
                    left => growing.push((left, chain)),
                }
            }
            state = self.after(&state, *choice);
        }
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::chains;
    use crate::scenario::Scenario;
    use crate::world::World;
    use scheduler::rng::Rng;

    fn world(rooms: &[u32], layers: u32) -> World {
        let text = format!(
            "name = \"x\"\nnodes = {}\nrequesters = 1\nlayers = {layers}\nlayer_ms = [1, 1]\nroom = [1, 1]\nrate = 1\ntokens = [1, 1]\nseconds = 1",
            rooms.len()
        );
        let mut world = World::draw(&Scenario::parse(&text).unwrap(), &mut Rng::new(1));
        world.machines.iter_mut().zip(rooms).for_each(|(machine, room)| machine.room = *room);
        world
    }

    #[test]
    fn the_fewest_stages_for_the_best_number_of_pipelines() {
        let found = chains(&world(&[6, 4, 5, 5, 10, 3], 10), &[0, 1, 2, 3, 4, 5]).unwrap();
        // One alone, and two pairs: k^2 / s is 9 / 5.
        let mut lens: Vec<usize> = found.iter().map(Vec::len).collect();
        lens.sort_unstable();
        assert_eq!(lens, [1, 2, 2]);
        for chain in &found {
            assert!(chain.iter().map(|&i| [6, 4, 5, 5, 10, 3][i]).sum::<u32>() >= 10, "{found:?}");
        }
        assert_eq!(chains(&world(&[3, 3], 10), &[0, 1]), None);
    }

    #[test]
    fn a_search_without_end_is_left() {
        let rooms: Vec<u32> = (0..60).map(|i| 7 + i % 19).collect();
        let all: Vec<usize> = (0..60).collect();
        assert_eq!(chains(&world(&rooms, 64), &all), None);
    }
}
