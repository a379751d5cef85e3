//! Chooses the pipeline for one request: an exact shortest path over (layer, node).
//!
//! Four nodes, eight layers, one decoded token; the numbers are the first test below.
//!
//! ```text
//!            layers   ms/layer  visit          ms between
//!   home R   0..2       5        0               R    A    B    C
//!   A        0..5       2        3          R    -   10   20   40
//!   B        4..8       1        4          A   10    -    8   30
//!   C        0..8       3        1          B   20    8    -   30
//!                                           C   40   30   30    -
//!
//!   R[0..2] ──10── A[2..4] ──8── B[4..8] ──20── R      C[0..8] alone: 40 + 1 + 24 + 40 = 105
//!     10        3 + 4         4 + 4                    R keeps 2 layers:  10 + 10 + 7 + 8 + 8 + 20 = 63
//!   R ──10── A[0..4] ──8── B[4..8] ──20── R            everything abroad: 10 + 11 + 8 + 8 + 20     = 57  <- best
//! ```
//!
//! The switch from A to B is tried at every layer they share (after layer 4 A would run one layer more: 58), so a
//! boundary is never assumed to lie where a node's range ends. Under boomerang with one layer at each end, R would
//! have to hold layer 7 too; it does not, so there is no route and [`NoRoute::EndsNotHeld`] says why.
//!
//! [`table`](self) sweeps cost-to-go backwards (one O(layers held) pass), then the route is read off forwards. The
//! same table answers every request of the same requester, shape and policy until the snapshot changes: that is
//! [`Router`]. KV room bounds the *sum* of the layers a node runs, which a shortest path cannot see; when the best
//! route breaks such a bound, `caps` takes over: tolls on room, and a search that they guide. If that runs out of budget the
//! route is still valid and marked `exact: false`, and where it found none, [`NoRoute::Unproven`] says that there may be one.
//!
//! Limits: one route at a time (no joint optimization over requests); load is what was gossiped plus what this
//! requester itself has running.

mod acquainted;
mod caps;
mod pick;
mod table;

pub use self::acquainted::{EXPLORE, acquainted};
use crate::cost::{self, Cost, End, Leg, Price};
pub use crate::no_route::NoRoute;
use crate::snapshot::{NONE, Snapshot};
use crate::{LayerRange, NodeId, Pipeline, Request, Segment};
use caps::{Answer, Found};
use table::Table;

/// A chosen pipeline and what it is predicted to cost.
#[derive(Clone, PartialEq, Debug)]
pub struct Route {
    /// Who runs what.
    pub pipeline: Pipeline,
    /// What each segment costs, hops included.
    pub legs: Vec<Leg>,
    /// The sum of the legs.
    pub cost: Cost,
    /// The least possible cost, ms; below `cost` when a near-equal route was picked to spread load.
    pub optimum_ms: f64,
    /// Whether `optimum_ms` is proven; false only when the search for KV room ran out of budget.
    pub exact: bool,
}

/// Routes requests of one requester, shape and policy over one snapshot.
///
/// `Router::default()` then [`Router::prepare`] sweeps the table (cold: milliseconds at 10,000 nodes), after which
/// [`Router::route`] only reads it (warm: microseconds). Keep one and prepare it again: it reuses its memory.
#[derive(Clone, Debug, Default)]
pub struct Router {
    table: Table,
}

impl Router {
    /// Prices `snapshot` for `request` and sweeps the cost-to-go table.
    ///
    /// # Errors
    /// [`NoRoute::UnknownRequester`], or [`NoRoute::EndsNotHeld`] before any search is done.
    pub fn prepare(&mut self, snapshot: &Snapshot, request: &Request) -> Result<(), NoRoute> {
        self.table.forget();
        self.table.price.refill(snapshot, request)?;
        if request.policy.boomerang.is_some() && !ends_held(snapshot, &self.table.price) {
            return Err(NoRoute::EndsNotHeld);
        }
        self.table.sweep(snapshot, 0, snapshot.layers);
        Ok(())
    }

    /// Reads a route for `request` off the table. `snapshot` must be the one prepared for, and `request` may differ
    /// from the prepared one only in `seed`, `near_equal` and `deadline_ms`.
    ///
    /// # Errors
    /// [`NoRoute`] says what the requester could change.
    pub fn route(&self, snapshot: &Snapshot, request: &Request) -> Result<Route, NoRoute> {
        let table = &self.table;
        let Found { visits: best, ms: optimum_ms, exact } = best(snapshot, table)?;
        let picked = if request.policy.near_equal > 0.0 {
            pick::near_equal(snapshot, table, optimum_ms, request).filter(|visits| fits(&table.price, visits))
        } else {
            None
        };
        let told = |visits: &[Visit]| {
            let pipeline = to_pipeline(snapshot, visits)?;
            let legs = cost::explain_priced(snapshot, request, &table.price, &pipeline)?;
            let cost = cost::total(&legs);
            in_time(request, &cost)?;
            Ok(Route { pipeline, legs, cost, optimum_ms, exact })
        };
        match picked.map(|picked| told(&picked)) {
            Some(Ok(route)) => Ok(route),
            _ => told(&best),
        }
    }
}

impl Router {
    /// Prices `snapshot` for routes of parts of the model ([`Router::between`]).
    pub(crate) fn prepare_parts(&mut self, snapshot: &Snapshot, request: &Request) -> Result<(), NoRoute> {
        self.table.forget();
        self.table.price.refill(snapshot, request)
    }

    /// As [`Self::prepare_parts`] for the request that `priced` was prepared for, but on none of `barred`.
    pub(crate) fn prepare_parts_as(&mut self, priced: &Self, barred: impl Iterator<Item = u32>) {
        self.table.forget();
        self.table.price.clone_from(&priced.table.price);
        barred.for_each(|host| self.table.price.bar(host));
    }

    /// Nothing runs on a host.
    pub(crate) fn bar(&mut self, host: u32) {
        self.table.price.bar(host);
    }

    /// The prices that it was prepared with.
    pub(crate) fn price(&self) -> &Price {
        &self.table.price
    }

    /// From now on `bytes` of the room of a host are taken by others.
    pub(crate) fn charge(&mut self, snapshot: &Snapshot, host: u32, bytes: u64) {
        self.table.price.charge(snapshot, host, bytes);
    }

    /// The cheapest way to run only `range`, on none of `barred`, entered from `from` and left to `to`; the milliseconds
    /// include the hops to both. The requester's own ends carry token ids, inner neighbors activations.
    pub(crate) fn between(
        &mut self,
        snapshot: &Snapshot,
        range: LayerRange,
        barred: &[u32],
        from: Option<NodeId>,
        to: Option<NodeId>,
    ) -> Option<(Vec<Segment>, f64)> {
        let price = &mut self.table.price;
        let ends = (price.entry_from, price.exit_to);
        let end = |id: Option<NodeId>| id.and_then(|id| snapshot.index_of(id));
        if range.start() > 0 {
            price.entry_from = end(from).map(|host| End { host, carries: true });
        }
        if range.end() < snapshot.num_layers() {
            price.exit_to = end(to).map(|host| End { host, carries: true });
        }
        let bar =
            |host: &u32| (*host, std::mem::replace(&mut price.node[*host as usize].enter, f64::INFINITY));
        let before: Vec<(u32, f64)> = barred.iter().map(bar).collect();
        self.table.sweep(snapshot, range.start() as usize, range.end() as usize);
        let found = best(snapshot, &self.table).ok();
        let price = &mut self.table.price;
        (price.entry_from, price.exit_to) = ends;
        before.into_iter().for_each(|(host, enter)| price.node[host as usize].enter = enter);
        found.map(|found| (to_segments(snapshot, &found.visits), found.ms))
    }
}

/// The best route of a swept table.
fn best(snapshot: &Snapshot, table: &Table) -> Result<Found, NoRoute> {
    let Some((start, ms)) = table.best_start(snapshot) else {
        return Err(why_none(snapshot, &table.price));
    };
    let visits = follow(snapshot, table, start);
    if fits(&table.price, &visits) {
        return Ok(Found { visits, ms, exact: true });
    }
    match caps::search(snapshot, table) {
        Answer::Found(found) => Ok(found),
        Answer::None => Err(NoRoute::Unreachable),
        Answer::Unproven => Err(NoRoute::Unproven),
    }
}

/// Routes one request from scratch.
///
/// # Errors
/// As [`Router::prepare`] and [`Router::route`].
pub fn route(snapshot: &Snapshot, request: &Request) -> Result<Route, NoRoute> {
    let mut router = Router::default();
    router.prepare(snapshot, request)?;
    router.route(snapshot, request)
}

/// What the requester's wishes cost it: the same request routed three ways.
#[derive(Clone, PartialEq, Debug)]
pub struct Comparison {
    /// Under the policy as given.
    pub asked: Result<Route, NoRoute>,
    /// Without boomerang; equal to `asked` when it was not set. The difference is the price of privacy.
    pub plain: Result<Route, NoRoute>,
    /// Everything at the requester.
    pub local: Result<Route, NoRoute>,
}

impl Comparison {
    /// Which wins: local unless going abroad costs less, what others are delayed included.
    pub fn local_wins(&self) -> bool {
        match (&self.local, &self.asked) {
            (Ok(local), Ok(asked)) => local.cost.total_ms() <= asked.cost.total_ms(),
            (Ok(_), Err(_)) => true,
            (Err(_), _) => false,
        }
    }

    /// Milliseconds that keeping the ends at home adds, when both routes exist.
    pub fn privacy_ms(&self) -> Option<f64> {
        match (&self.asked, &self.plain) {
            (Ok(asked), Ok(plain)) => Some(asked.optimum_ms - plain.optimum_ms),
            _ => None,
        }
    }
}

/// Routes `request` as asked, without boomerang, and all at home.
pub fn compare(snapshot: &Snapshot, request: &Request) -> Comparison {
    let asked = route(snapshot, request);
    let mut open = request.clone();
    open.policy.boomerang = None;
    let plain = if request.policy.boomerang.is_some() { route(snapshot, &open) } else { asked.clone() };
    let local = at_home(snapshot, request);
    Comparison { asked, plain, local }
}

/// `request` run by its requester alone, whatever its policy says of others: there is one way, so nothing is searched.
///
/// # Errors
/// [`NoRoute::UnknownRequester`], [`NoRoute::Hole`] for the first layer that it does not hold or may not run, and
/// [`NoRoute::Unreachable`] when it has no room for all of them.
pub fn at_home(snapshot: &Snapshot, request: &Request) -> Result<Route, NoRoute> {
    let Some(me) = request.requester else { return Err(NoRoute::UnknownRequester) };
    let home = snapshot.index_of(me).ok_or(NoRoute::UnknownRequester)?;
    let held = |layer: &u32| snapshot.state_at(home, *layer as usize).is_some();
    let barred = request.policy.deny.contains(&me);
    if let Some(layer) = (0..snapshot.num_layers()).find(|layer| barred || !held(layer)) {
        return Err(NoRoute::Hole { layer });
    }
    let mut open = request.clone();
    open.policy.boomerang = None;
    let pipeline = to_pipeline(snapshot, &[(home, 0, snapshot.num_layers())])?;
    let legs = cost::explain(snapshot, &open, &pipeline).map_err(|_| NoRoute::Unreachable)?;
    let cost = cost::total(&legs);
    in_time(&open, &cost)?;
    Ok(Route { pipeline, legs, optimum_ms: cost.total_ms(), cost, exact: true })
}

/// Whether a request that takes so much ends before its deadline.
fn in_time(request: &Request, cost: &Cost) -> Result<(), NoRoute> {
    let predicted_ms = cost.own_ms();
    match request.policy.deadline_ms {
        Some(limit) if predicted_ms > limit => Err(NoRoute::TooSlow { predicted_ms }),
        _ => Ok(()),
    }
}

/// One visit: host, first layer, one past the last.
pub(crate) type Visit = (u32, u32, u32);

/// Reads the best way on from `start` off the table.
fn follow(snapshot: &Snapshot, table: &Table, start: usize) -> Vec<Visit> {
    let mut visits = Vec::new();
    let mut state = start;
    let mut layer = table.first;
    loop {
        extend(&mut visits, snapshot.host_of[state], layer as u32);
        match table.step(snapshot, state, layer) {
            NONE => return visits,
            next => state = next as usize,
        }
        layer += 1;
    }
}

/// Adds `layer` on `host` to the visits.
fn extend(visits: &mut Vec<Visit>, host: u32, layer: u32) {
    match visits.last_mut() {
        Some(last) if last.0 == host => last.2 = layer + 1,
        _ => visits.push((host, layer, layer + 1)),
    }
}

/// Whether no node runs layers that it has no room for.
fn fits(price: &Price, visits: &[Visit]) -> bool {
    !price.capped
        || visits.iter().all(|&(host, ..)| {
            let bytes: u64 = visits.iter().filter(|v| v.0 == host).map(|v| price.needs(v.1, v.2)).sum();
            bytes <= price.room[host as usize]
        })
}

fn to_pipeline(snapshot: &Snapshot, visits: &[Visit]) -> Result<Pipeline, NoRoute> {
    let segments = to_segments(snapshot, visits);
    Pipeline::new(segments, snapshot.num_layers()).map_err(|gap| NoRoute::Hole { layer: gap.layer })
}

fn to_segments(snapshot: &Snapshot, visits: &[Visit]) -> Vec<Segment> {
    let segments = visits.iter().filter_map(|&(host, start, end)| {
        let node = snapshot.hosts[host as usize].id;
        LayerRange::new(start, end).map(|layers| Segment { node, layers })
    });
    segments.collect()
}

fn ends_held(snapshot: &Snapshot, price: &Price) -> bool {
    let held = |layer: usize| price.home.is_some_and(|home| snapshot.state_at(home, layer).is_some());
    (0..snapshot.layers).filter(|&layer| price.home_only(layer)).all(held)
}

/// The most useful reason for an infinite cost.
fn why_none(snapshot: &Snapshot, price: &Price) -> NoRoute {
    let served = |layer: usize| {
        snapshot.states(layer).any(|state| price.node[snapshot.host_of[state] as usize].enter.is_finite())
    };
    match (0..snapshot.layers).find(|&layer| !served(layer)) {
        Some(layer) => NoRoute::Hole { layer: layer as u32 },
        None => NoRoute::Unreachable,
    }
}

#[cfg(test)]
mod tests;
