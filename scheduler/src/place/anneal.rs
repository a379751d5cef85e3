//! Grows pipelines and improves them. See the module's page for the objective.

use super::split::{self, MAX_STAGES};
use super::{Ground, Pace, fill, widest};
use crate::rng::Rng;

/// Any constant will do; all nodes must use the same.
const SEED: u64 = 0x5047;
/// Neighbors remembered per site.
const NEAR: usize = 12;
/// Ways of growing tried before annealing.
const STYLES: u64 = 6;
/// Not part of any chain.
const IDLE: u32 = u32::MAX;

/// The best of several ways of growing pipelines from `pool`.
pub(super) fn grow_best(ground: &Ground, pool: &[u32]) -> Vec<Vec<u32>> {
    let mut best = (-1.0, Vec::new());
    let mut chance = Rng::new(SEED);
    for style in 0..STYLES {
        let price = if style % 2 == 0 { 0.0 } else { 1.0 };
        let noise = if style < 2 { 0.0 } else { 0.25 };
        let chains = grow(ground, pool, price, noise, &mut chance);
        let tps = goodput(ground, &chains);
        if tps > best.0 {
            best = (tps, chains);
        }
    }
    if best.1.is_empty() {
        best.1.extend(widest::pipeline(ground, pool));
    }
    best.1
}

fn goodput(ground: &Ground, chains: &[Vec<u32>]) -> f64 {
    let paces: Vec<Pace> =
        chains.iter().filter_map(|c| split::best(ground, c, 0.0)).map(|p| p.pace).collect();
    fill(&paces, ground.concurrency).0
}

/// Grows pipelines from `pool` until it cannot cover the layers once more. `hop_weight` zero ignores hops when
/// choosing whom to add; `noise` blurs the choice.
fn grow(ground: &Ground, pool: &[u32], hop_weight: f64, noise: f64, chance: &mut Rng) -> Vec<Vec<u32>> {
    let mut pool: Vec<u32> = pool.to_vec();
    pool.sort_unstable_by(|&a, &b| {
        let speed = |i: u32| ground.sites[i as usize].layer_ms;
        speed(a).total_cmp(&speed(b)).then(a.cmp(&b))
    });
    let mut chains = Vec::new();
    while !pool.is_empty() {
        let at = if noise > 0.0 { chance.below(pool.len().min(4)) } else { 0 };
        let mut chain = vec![pool.remove(at)];
        while split::best(ground, &chain, 0.0).is_none() {
            let Some((at, place)) = next_to_add(ground, &pool, &chain, hop_weight, noise, chance) else {
                // The rest does not make a whole one.
                return chains;
            };
            chain.insert(place, pool.remove(at));
        }
        chains.push(chain);
    }
    chains
}

/// The pool's cheapest addition to `chain` per layer it covers, and where to insert it.
fn next_to_add(
    ground: &Ground,
    pool: &[u32],
    chain: &[u32],
    hop_weight: f64,
    noise: f64,
    chance: &mut Rng,
) -> Option<(usize, usize)> {
    if chain.len() >= MAX_STAGES {
        return None;
    }
    let covered: u32 = chain.iter().map(|&i| ground.sites[i as usize].cap_mid.min(ground.num_layers)).sum();
    let missing = ground.num_layers.saturating_sub(covered).max(1);
    let mut best = (f64::INFINITY, 0, 0);
    for (at, &site) in pool.iter().enumerate() {
        let cap = ground.sites[site as usize].cap_mid.min(missing);
        if cap == 0 {
            continue;
        }
        let (place, added) = cheapest_place(ground, chain, site);
        let per_layer = (hop_weight * added) / f64::from(cap) + ground.sites[site as usize].layer_ms;
        let score = per_layer * (1.0 + noise * chance.unit());
        if score < best.0 && added.is_finite() {
            best = (score, at, place);
        }
    }
    best.0.is_finite().then_some((best.1, best.2))
}

/// Where in `chain` a site adds least to the hops.
fn cheapest_place(ground: &Ground, chain: &[u32], site: u32) -> (usize, f64) {
    let (Some(&first), Some(&last)) = (chain.first(), chain.last()) else { return (0, 0.0) };
    let mut best = (0, ground.hop(site, first));
    let tail = ground.hop(last, site);
    if tail < best.1 {
        best = (chain.len(), tail);
    }
    for (k, pair) in chain.windows(2).enumerate() {
        let added = ground.hop(pair[0], site) + ground.hop(site, pair[1]) - ground.hop(pair[0], pair[1]);
        if added < best.1 {
            best = (k + 1, added);
        }
    }
    best
}

/// A chain being worked on. Chains that do not cover the layers yet are kept: they are where new ones come from.
#[derive(Clone)]
struct Chain {
    sites: Vec<u32>,
    pace: Option<Pace>,
    worth: f64,
}

struct Search<'a> {
    ground: &'a Ground,
    chains: Vec<Chain>,
    /// Chain of every site.
    of: Vec<u32>,
    idle: Vec<u32>,
    near: Vec<u32>,
    price: f64,
    priced: u64,
    /// Worth of covering everything but not running, per share covered: a slope towards complete chains.
    slope: f64,
    chance: Rng,
}

/// Improves `chains` until `effort` pipelines were priced. Never returns less goodput than it was given.
pub(super) fn improve(ground: &Ground, chains: Vec<Vec<u32>>, effort: u64) -> Vec<Vec<u32>> {
    if ground.sites.is_empty() {
        return chains;
    }
    let mut search = Search::new(ground, chains);
    let mut best_tps = search.refresh();
    let mut best = search.complete();
    let start = best_tps.max(1e-9) / (search.chains.len().max(1) as f64);
    let mut since_refresh = 0;
    while search.priced < effort {
        let progress = search.priced as f64 / effort as f64;
        let heat = 0.3 * start * (1.0 - progress).powi(2) + 1e-9;
        if search.step(heat) {
            since_refresh += 1;
        }
        search.priced += 1;
        if since_refresh >= 24 {
            since_refresh = 0;
            let tps = search.refresh();
            if tps > best_tps * (1.0 + 1e-12) {
                best_tps = tps;
                best = search.complete();
            }
        }
    }
    let tps = search.refresh();
    if tps > best_tps { search.complete() } else { best }
}

impl<'a> Search<'a> {
    fn new(ground: &'a Ground, chains: Vec<Vec<u32>>) -> Self {
        let n = ground.sites.len();
        let mut search = Self {
            ground,
            chains: Vec::new(),
            of: vec![IDLE; n],
            idle: Vec::new(),
            near: nearest(ground),
            price: 0.0,
            priced: 0,
            slope: 0.0,
            chance: Rng::new(SEED),
        };
        for sites in chains {
            sites.iter().for_each(|&site| search.of[site as usize] = search.chains.len() as u32);
            search.chains.push(Chain { sites, pace: None, worth: 0.0 });
        }
        search.idle = (0..n as u32).filter(|&site| search.of[site as usize] == IDLE).collect();
        search
    }

    fn complete(&self) -> Vec<Vec<u32>> {
        self.chains.iter().filter(|chain| chain.pace.is_some()).map(|chain| chain.sites.clone()).collect()
    }

    /// Prices everything again at the current margin. Returns the true goodput.
    fn refresh(&mut self) -> f64 {
        let mut tps = 0.0;
        for _ in 0..2 {
            for at in 0..self.chains.len() {
                let sites = std::mem::take(&mut self.chains[at].sites);
                self.chains[at] = self.priced_chain(sites);
            }
            let paces: Vec<Pace> = self.chains.iter().filter_map(|chain| chain.pace).collect();
            (tps, self.price) = fill(&paces, self.ground.concurrency);
            self.slope = 0.05 * tps / paces.len().max(1) as f64;
        }
        tps
    }

    fn priced_chain(&mut self, sites: Vec<u32>) -> Chain {
        self.priced += 1;
        match split::best(self.ground, &sites, self.price) {
            Some(plan) => Chain { sites, pace: Some(plan.pace), worth: self.slope + plan.worth },
            None => {
                let room: u32 = sites.iter().map(|&i| self.ground.sites[i as usize].cap_mid).sum();
                let share = f64::from(room) / f64::from(self.ground.num_layers);
                Chain { sites, pace: None, worth: self.slope * share.min(1.0).powi(2) }
            }
        }
    }

    fn accepts(&mut self, gain: f64, heat: f64) -> bool {
        gain >= 0.0 || self.chance.unit() < (gain / heat).exp()
    }

    /// Tries one change; whether it was made.
    fn step(&mut self, heat: f64) -> bool {
        let n = self.ground.sites.len();
        let site = self.chance.below(n) as u32;
        match self.chance.below(100) {
            0..40 => self.relocate(site, heat),
            40..78 => self.swap(site, heat),
            78..86 => self.drop_site(site, heat),
            86..96 => self.reorder(site, heat),
            _ => self.rebuild(site, heat),
        }
    }

    /// A site near `site`, sometimes any.
    fn partner(&mut self, site: u32) -> u32 {
        let n = self.ground.sites.len();
        let near = NEAR.min(n.saturating_sub(1));
        if near > 0 && self.chance.happens(0.75) {
            self.near[site as usize * near + self.chance.below(near)]
        } else {
            self.chance.below(n) as u32
        }
    }

    /// Moves `site` into the chain of another.
    fn relocate(&mut self, site: u32, heat: f64) -> bool {
        let other = self.partner(site);
        let (from, to) = (self.of[site as usize], self.of[other as usize]);
        if from == to || to == IDLE {
            return false;
        }
        let mut target = self.chains[to as usize].sites.clone();
        if target.len() >= MAX_STAGES {
            return false;
        }
        let (place, added) = cheapest_place(self.ground, &target, site);
        if !added.is_finite() {
            return false;
        }
        target.insert(place, site);
        let target = self.priced_chain(target);
        let mut gain = target.worth - self.chains[to as usize].worth;
        let source = (from != IDLE).then(|| {
            let rest = self.chains[from as usize].sites.iter().copied().filter(|&s| s != site).collect();
            self.priced_chain(rest)
        });
        if let Some(source) = &source {
            gain += source.worth - self.chains[from as usize].worth;
        }
        if !self.accepts(gain, heat) {
            return false;
        }
        self.chains[to as usize] = target;
        match source {
            Some(source) => self.chains[from as usize] = source,
            None => self.idle.retain(|&s| s != site),
        }
        self.of[site as usize] = to;
        true
    }

    /// Puts each of two sites in the other's place.
    fn swap(&mut self, site: u32, heat: f64) -> bool {
        let other = self.partner(site);
        let (a, b) = (self.of[site as usize], self.of[other as usize]);
        if a == IDLE || a == b {
            return false;
        }
        let replaced = |chain: &Chain, old: u32, new: u32| -> Vec<u32> {
            chain.sites.iter().map(|&s| if s == old { new } else { s }).collect()
        };
        let first = replaced(&self.chains[a as usize], site, other);
        let first = self.priced_chain(first);
        let mut gain = first.worth - self.chains[a as usize].worth;
        let second = (b != IDLE).then(|| {
            let sites = replaced(&self.chains[b as usize], other, site);
            self.priced_chain(sites)
        });
        if let Some(second) = &second {
            gain += second.worth - self.chains[b as usize].worth;
        }
        if !self.accepts(gain, heat) {
            return false;
        }
        self.chains[a as usize] = first;
        match second {
            Some(second) => self.chains[b as usize] = second,
            None => self.idle.iter_mut().filter(|s| **s == other).for_each(|s| *s = site),
        }
        self.of[site as usize] = b;
        self.of[other as usize] = a;
        true
    }

    fn drop_site(&mut self, site: u32, heat: f64) -> bool {
        let from = self.of[site as usize];
        if from == IDLE {
            return false;
        }
        let rest = self.chains[from as usize].sites.iter().copied().filter(|&s| s != site).collect();
        let rest = self.priced_chain(rest);
        if !self.accepts(rest.worth - self.chains[from as usize].worth, heat) {
            return false;
        }
        self.chains[from as usize] = rest;
        self.of[site as usize] = IDLE;
        self.idle.push(site);
        true
    }

    /// Reverses a stretch of the chain or moves the site elsewhere in it.
    fn reorder(&mut self, site: u32, heat: f64) -> bool {
        let at = self.of[site as usize];
        if at == IDLE || self.chains[at as usize].sites.len() < 2 {
            return false;
        }
        let mut sites = self.chains[at as usize].sites.clone();
        let (i, j) = (self.chance.below(sites.len()), self.chance.below(sites.len()));
        if self.chance.happens(0.5) {
            sites[i.min(j)..=i.max(j)].reverse();
        } else {
            let moved = sites.remove(i);
            sites.insert(j.min(sites.len()), moved);
        }
        let changed = self.priced_chain(sites);
        if !self.accepts(changed.worth - self.chains[at as usize].worth, heat) {
            return false;
        }
        self.chains[at as usize] = changed;
        true
    }

    /// Dissolves the chains of a few sites and grows new ones from them and some idle ones.
    fn rebuild(&mut self, site: u32, heat: f64) -> bool {
        let mut gone = vec![self.of[site as usize]];
        for _ in 0..1 + self.chance.below(2) {
            let other = self.partner(site);
            gone.push(self.of[other as usize]);
        }
        gone.retain(|&at| at != IDLE);
        gone.sort_unstable();
        gone.dedup();
        let mut pool: Vec<u32> = gone.iter().flat_map(|&at| self.chains[at as usize].sites.clone()).collect();
        let before: f64 = gone.iter().map(|&at| self.chains[at as usize].worth).sum();
        let most = 64usize;
        pool.extend(self.idle.iter().copied().take(most.saturating_sub(pool.len())));
        let hop_weight = [0.0, 0.3, 1.0, 3.0][self.chance.below(4)];
        let mut chance = self.chance.fork();
        let grown = grow(self.ground, &pool, hop_weight, 0.4, &mut chance);
        self.priced += 3 * pool.len() as u64;
        let grown: Vec<Chain> = grown.into_iter().map(|sites| self.priced_chain(sites)).collect();
        let after: f64 = grown.iter().map(|chain| chain.worth).sum();
        if grown.is_empty() || !self.accepts(after - before, heat) {
            return false;
        }
        let mut left = pool;
        left.retain(|site| !grown.iter().any(|chain| chain.sites.contains(site)));
        for &at in gone.iter().rev() {
            self.chains.swap_remove(at as usize);
        }
        self.chains.extend(grown);
        if !left.is_empty() {
            let rest = self.priced_chain(left);
            self.chains.push(rest);
        }
        self.reindex();
        true
    }

    fn reindex(&mut self) {
        self.chains.retain(|chain| !chain.sites.is_empty());
        self.of.fill(IDLE);
        for (at, chain) in self.chains.iter().enumerate() {
            chain.sites.iter().for_each(|&site| self.of[site as usize] = at as u32);
        }
        self.idle = (0..self.of.len() as u32).filter(|&site| self.of[site as usize] == IDLE).collect();
    }
}

/// The nearest sites of every site, [`NEAR`] or as many as there are.
fn nearest(ground: &Ground) -> Vec<u32> {
    let n = ground.sites.len();
    let near = NEAR.min(n.saturating_sub(1));
    let mut all = Vec::with_capacity(n * near);
    let mut others: Vec<u32> = Vec::with_capacity(n);
    for i in 0..n as u32 {
        others.clear();
        others.extend((0..n as u32).filter(|&j| j != i));
        let closer = |a: &u32, b: &u32| ground.hop(i, *a).total_cmp(&ground.hop(i, *b)).then(a.cmp(b));
        if near < others.len() {
            others.select_nth_unstable_by(near, closer);
        }
        others.truncate(near);
        others.sort_unstable_by(closer);
        all.extend_from_slice(&others);
    }
    all
}
