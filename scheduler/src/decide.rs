//! Everything that is decided of one request, over tables that outlast it.
//!
//! ```text
//!  view ──▶ snapshot (per model and epoch) ──▶ table as asked ──▶ route, near-equal routes
//!                                        │            └──▶ its prices ──▶ covers, shadows
//!                                        └──▶ table with the ends abroad ──▶ comparison
//! ```
//!
//! A snapshot is built when the view's epoch has changed and is shared until it changes again; where only figures of known nodes
//! did, these are put into it, or into a copy where it is still in use; a table is swept when
//! its snapshot or anything that prices depend on has changed. A second prompt of the same size therefore only reads.
//! A node decides through this engine; the simulator's policies ask [`Router`] directly.
//!
//! Limits: one snapshot and one table of each kind are kept for each of the [`MODELS`] models asked about last. Strangers are drawn
//! when a snapshot is built, and again after [`REDRAW`] questions.

use std::sync::Arc;

use crate::layer_cost::LayerCosts;
use crate::route::{Comparison, NoRoute, Route, Router, at_home};
use crate::snapshot::BadSnapshot;
use crate::standby::{self, Cover};
use crate::view::Basis;
use crate::{ModelId, NodeId, Pipeline, Request, Snapshot, SwarmView};

/// Questions after which other strangers are shown although nothing was announced.
pub const REDRAW: u32 = 32;
/// Models that are decided of without building everything each time: what a node serves, and what its owner asks for. Some 2 MB
/// each in a swarm of a thousand nodes.
pub const MODELS: usize = 4;

/// What a snapshot is built of.
#[derive(Clone, PartialEq, Debug)]
pub struct Wanted<'a> {
    /// Which model.
    pub model: ModelId,
    /// Its number of layers.
    pub num_layers: u32,
    /// What its layers cost, for rows behind so many positions.
    pub costs: Option<(&'a LayerCosts, u32)>,
    /// Who asks.
    pub me: NodeId,
}

/// Snapshots and tables, kept from one decision to the next.
#[derive(Clone, Debug, Default)]
pub struct Engine {
    /// At most [`MODELS`], the one asked about last in front.
    models: Vec<(ModelId, Tables)>,
}

/// What is kept of one model.
#[derive(Clone, Debug, Default)]
struct Tables {
    frozen: Option<Frozen>,
    asked: Kept,
    plain: Kept,
    covering: Router,
}

#[derive(Clone, Debug)]
struct Frozen {
    epoch: u64,
    num_layers: u32,
    costs: Option<(LayerCosts, u32)>,
    me: NodeId,
    left: u32,
    basis: Basis,
    snapshot: Arc<Snapshot>,
}

impl Frozen {
    fn is(&self, wanted: &Wanted<'_>) -> bool {
        let costs = self.costs.as_ref().map(|(costs, context)| (costs, *context));
        (self.num_layers, self.me) == (wanted.num_layers, wanted.me) && costs == wanted.costs && self.left > 0
    }
}

/// A router and what its table is of.
#[derive(Clone, Debug, Default)]
struct Kept {
    router: Router,
    of: Option<(Arc<Snapshot>, Request)>,
}

impl Kept {
    fn prepare(&mut self, snapshot: &Arc<Snapshot>, request: &Request) -> Result<(), NoRoute> {
        let same = |(known, asked): &(Arc<Snapshot>, Request)| {
            Arc::ptr_eq(known, snapshot) && asked.prices_like(request)
        };
        if !self.of.as_ref().is_some_and(same) {
            self.of = None;
            self.router.prepare(snapshot, request)?;
            self.of = Some((Arc::clone(snapshot), request.clone()));
        }
        Ok(())
    }

    fn route(&mut self, snapshot: &Arc<Snapshot>, request: &Request) -> Result<Route, NoRoute> {
        self.prepare(snapshot, request)?;
        self.router.route(snapshot, request)
    }
}

impl Engine {
    /// What is kept of `model`, which is asked about now.
    fn tables(&mut self, model: ModelId) -> &mut Tables {
        match self.models.iter().position(|(known, _)| *known == model) {
            Some(at) => self.models[..=at].rotate_right(1),
            None => {
                self.models.truncate(MODELS - 1);
                self.models.insert(0, (model, Tables::default()));
            }
        }
        &mut self.models[0].1
    }

    /// What is believed of a model right now. `draw` chooses the strangers that it shows when it is built.
    ///
    /// # Errors
    /// As [`SwarmView::snapshot_of`].
    pub fn snapshot(
        &mut self,
        view: &SwarmView,
        wanted: &Wanted<'_>,
        draw: u64,
    ) -> Result<Arc<Snapshot>, BadSnapshot> {
        let Wanted { model, num_layers, costs, me } = *wanted;
        let (epoch, basis) = (view.epoch(), view.basis(model, me));
        let Tables { frozen: kept, asked, plain, .. } = self.tables(model);
        if let Some(frozen) = kept.as_mut().filter(|frozen| frozen.is(wanted) && frozen.basis == basis)
            && let Some(patch) = view.thaw(&frozen.snapshot, frozen.epoch, me)
        {
            (frozen.epoch, frozen.left) = (epoch, frozen.left - 1);
            if !patch.is_empty() {
                // What was swept on it is of no use any more, and keeps it from being changed in its place.
                (asked.of, plain.of) = (None, None);
                Arc::make_mut(&mut frozen.snapshot).update(patch, me);
            }
            return Ok(Arc::clone(&frozen.snapshot));
        }
        let snapshot = Arc::new(view.snapshot_to_route(model, num_layers, costs, me, draw)?);
        let costs = costs.map(|(costs, context)| (costs.clone(), context));
        let known = Arc::clone(&snapshot);
        *kept = Some(Frozen { epoch, num_layers, costs, me, left: REDRAW, basis, snapshot: known });
        Ok(snapshot)
    }

    /// Routes `request` as asked; equals [`route`](crate::route::route).
    ///
    /// # Errors
    /// As [`route`](crate::route::route).
    pub fn route(&mut self, snapshot: &Arc<Snapshot>, request: &Request) -> Result<Route, NoRoute> {
        self.tables(snapshot.model()).asked.route(snapshot, request)
    }

    /// Routes `request` as asked, without boomerang, and all at home; equals [`compare`](crate::route::compare).
    pub fn compare(&mut self, snapshot: &Arc<Snapshot>, request: &Request) -> Comparison {
        let tables = self.tables(snapshot.model());
        let asked = tables.asked.route(snapshot, request);
        let plain = match request.policy.boomerang {
            None => asked.clone(),
            Some(_) => {
                let mut open = request.clone();
                open.policy.boomerang = None;
                tables.plain.route(snapshot, &open)
            }
        };
        Comparison { asked, plain, local: at_home(snapshot, request) }
    }

    /// Who takes over each segment of `primary`, a route of `request`; equals [`covers`](standby::covers).
    pub fn covers(&mut self, snapshot: &Arc<Snapshot>, request: &Request, primary: &Pipeline) -> Vec<Cover> {
        let Tables { asked, covering, .. } = self.tables(snapshot.model());
        match asked.prepare(snapshot, request) {
            Ok(()) => standby::covers_with(covering, &asked.router, snapshot, request, primary),
            Err(_) => standby::covers(snapshot, request, primary),
        }
    }

    /// Who follows each segment of `primary`, a route of `request`; equals [`shadows`](standby::shadows).
    pub fn shadows(
        &mut self,
        snapshot: &Arc<Snapshot>,
        request: &Request,
        primary: &Pipeline,
    ) -> Vec<Option<NodeId>> {
        let asked = &mut self.tables(snapshot.model()).asked;
        match asked.prepare(snapshot, request) {
            Ok(()) => standby::shadows_priced(snapshot, request, asked.router.price(), primary),
            Err(_) => standby::shadows(snapshot, request, primary),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{Engine, MODELS, REDRAW, Wanted};
    use crate::route::compare;
    use crate::snapshot::{Host, Links};
    use crate::standby;
    use crate::view::{Geography, SwarmView};
    use crate::{
        Boomerang, Capability, Claim, Holding, LayerRange, LayerSet, Millis, ModelId, NodeId, OperatorId,
        Request, Shape, Snapshot,
    };

    fn node(n: u64) -> NodeId {
        NodeId::numbered(n)
    }

    fn snapshot() -> Arc<Snapshot> {
        let layers = |start, end| -> LayerSet { LayerRange::new(start, end).unwrap().into() };
        let hosts = vec![
            Host::new(node(1), layers(0, 6), 9.0),
            Host::new(node(2), layers(1, 4), 1.0),
            Host::new(node(3), layers(2, 6), 2.0),
        ];
        let links = Links::Matrix(vec![3.0; 9]);
        Arc::new(Snapshot::new(ModelId::default(), 6, None, hosts, &links).unwrap())
    }

    #[test]
    fn what_is_kept_changes_no_answer() {
        let mut engine = Engine::default();
        let (one, other) = (snapshot(), snapshot());
        let mut request = Request::new(node(1), Shape::ONE_TOKEN);
        request.policy.boomerang = Some(Boomerang { head: 1, tail: 1 });
        let mut questions = vec![request.clone()];
        for change in [
            |r: &mut Request| r.seed = 9,
            |r: &mut Request| r.shape.output_tokens = 40,
            |r: &mut Request| r.in_flight = vec![(NodeId::numbered(2), 3)],
            |r: &mut Request| r.policy.deny = [NodeId::numbered(3)].into(),
            |r: &mut Request| r.policy.deadline_ms = Some(1.0),
            |r: &mut Request| r.policy.boomerang = None,
            |r: &mut Request| r.policy.allow = Some([NodeId::numbered(2)].into()),
            |r: &mut Request| r.policy.trust_floor = 1.5,
        ] {
            let mut changed = request.clone();
            change(&mut changed);
            questions.extend([changed, request.clone()]);
        }
        for request in &questions {
            for snapshot in [&one, &other, &one] {
                let compared = engine.compare(snapshot, request);
                assert_eq!(compared, compare(snapshot, request), "{request:?}");
                for way in [compared.asked, compared.plain].into_iter().flatten() {
                    let (covers, shadows) = (
                        engine.covers(snapshot, request, &way.pipeline),
                        engine.shadows(snapshot, request, &way.pipeline),
                    );
                    assert_eq!(covers, standby::covers(snapshot, request, &way.pipeline), "{request:?}");
                    assert_eq!(shadows, standby::shadows(snapshot, request, &way.pipeline), "{request:?}");
                }
            }
        }
    }

    fn claim(n: u64, sequence: u64) -> Capability {
        let holding = Holding {
            model: ModelId::numbered(7),
            loaded: vec![LayerRange::new(0, 4).unwrap()],
            on_disk: Vec::new(),
            decode_ms: 1.0,
            prefill_ms: 0.2,
            visit_ms: 0.1,
            queue_ms: 0.0,
            load_ms: 0.0,
            active: 0,
            batch_knee: 4,
            kv_bytes: 1 << 30,
        };
        let claim = Claim {
            node: node(n),
            operator: OperatorId::numbered(n),
            sequence,
            region: 0,
            access_ms: 0.0,
            up_bytes_per_ms: 1e6,
            down_bytes_per_ms: 1e6,
            draining: false,
            holdings: vec![holding],
        };
        Capability::try_from(claim).unwrap()
    }

    #[test]
    fn a_snapshot_lasts_until_the_view_changes() {
        let mut view = SwarmView::new(Geography::around(50.0));
        view.merge(claim(2, 1), Millis(0));
        let mut engine = Engine::default();
        let wanted = Wanted { model: ModelId::numbered(7), num_layers: 4, costs: None, me: node(1) };
        let first = engine.snapshot(&view, &wanted, 1).unwrap();
        assert!(Arc::ptr_eq(&first, &engine.snapshot(&view, &wanted, 2).unwrap()));
        view.merge(claim(3, 1), Millis(1));
        let second = engine.snapshot(&view, &wanted, 3).unwrap();
        assert_eq!((first.hosts().len(), second.hosts().len()), (1, 2));
        let longer = Wanted { num_layers: 5, ..wanted };
        assert_eq!(engine.snapshot(&view, &longer, 3).unwrap().num_layers(), 5);
        let mut same = engine.snapshot(&view, &wanted, 4).unwrap();
        let mut built = 0;
        for draw in 0..=u64::from(REDRAW) {
            let next = engine.snapshot(&view, &wanted, draw).unwrap();
            built += u32::from(!Arc::ptr_eq(&next, &same));
            same = next;
        }
        assert_eq!(built, 1, "strangers are drawn again");
    }

    #[test]
    fn models_do_not_drive_out_each_others_snapshots_unless_they_are_many() {
        let mut view = SwarmView::new(Geography::around(50.0));
        view.merge(claim(2, 1), Millis(0));
        let mut engine = Engine::default();
        let wanted =
            |model| Wanted { model: ModelId::numbered(model), num_layers: 4, costs: None, me: node(1) };
        let models = 7..7 + MODELS as u64;
        let all = |engine: &mut Engine| -> Vec<Arc<Snapshot>> {
            models.clone().map(|model| engine.snapshot(&view, &wanted(model), 1).unwrap()).collect()
        };
        let (first, second) = (all(&mut engine), all(&mut engine));
        assert!(first.iter().zip(&second).all(|(a, b)| Arc::ptr_eq(a, b)));
        let request = Request::new(node(1), Shape::ONE_TOKEN);
        assert_eq!(engine.compare(&first[0], &request), compare(&first[0], &request));
        // One more than are kept: the one asked about longest ago goes.
        engine.snapshot(&view, &wanted(99), 1).unwrap();
        for (at, kept) in [(0, true), (1, false)] {
            let again = engine.snapshot(&view, &wanted(7 + at as u64), 1).unwrap();
            assert_eq!(Arc::ptr_eq(&first[at], &again), kept, "{at}");
        }
    }
}
