//! Answers "who runs what" from the view: what the scheduler decides, with where to find everybody.
//!
//! A first route and a later one (after a failure) ask the same: the view with what leases taught since, this node's own
//! running prompts as load, then the pipeline, who stands by and where they are.
//!
//! A node of which nothing is known but its own word is not asked while a route leads past it, even where that is full
//! ([`scheduler::route::acquainted`]); what such nodes there are is looked up beside ([`Daemon`](super::super)'s clock).
//!
//! A node that says that it is full is passed by while others have room, and asked when none has: its word is seconds old, and
//! a lease that is refused costs less than an answer that is not given. A session with new cuts keeps its seats: where
//! it runs already, being full does not count.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use p2p::wire::control::Contact;
use scheduler::{
    Boomerang, Millis, ModelId, NodeId, Pipeline, Request, RoutePolicy, SessionId, Shape, Snapshot,
    cost::{self, explain},
    decide::Wanted,
    forecast::Forecast,
    route::{Comparison, NoRoute, Route, acquainted, route},
    session::Standbys,
    snapshot::{BadSnapshot, Host},
    sticky::{self, Former},
    view::SwarmView,
};
use tokio::sync::oneshot;

use super::{
    InFlight,
    dials::Dials,
    estimate::{Expected, ExpectedPrompt},
};
use crate::{
    control::{Mode, Shadow},
    daemon::{announce::Announcer, serve::Models, view::Viewing},
    request::{MAX_WITNESSES, Reroute, Witness},
    sessions::PlannedSource,
};

/// Added to measured round trips before a silence counts: timers, schedulers, Wi-Fi.
const JITTER_MS: f64 = 20.0;

/// Why a model of one piece goes nowhere.
const WHOLE: &str = "this model is not cut, because layers of it read the token itself or what layers before them keep, so a node \
                     answers its own prompts with all of its layers or hands them to one that has them: join with every layer \
                     (--layers 0..N), or answer alone with `shoal serve --via local`";

/// Who shall run this?
pub struct RouteQuestion {
    /// The prompt's name; also picks among near-equal routes.
    pub session: SessionId,
    /// Of which model, one of this node's.
    pub model: ModelId,
    /// How much work it is.
    pub shape: Shape,
    /// Who may compute.
    pub mode: Mode,
    /// First and last layers that stay home.
    pub ends: Boomerang,
    /// In trusted mode, who.
    pub trusted: BTreeSet<NodeId>,
    /// Whether doing it alone is an answer when it is faster.
    pub may_stay_home: bool,
    /// Whether only nodes whose results can be compared bit by bit may compute.
    pub exact: bool,
    /// Nodes that do not compute sessions of its kind.
    pub lacking: BTreeSet<NodeId>,
    /// What those do who stand by.
    pub shadow: Shadow,
    /// Where its beginning was computed before.
    pub former: Former,
    /// A node that has to serve although it owes a proof: this is its challenge.
    pub prove: Option<NodeId>,
    /// Whether it will be run: counts as load until it is finished.
    pub commit: bool,
    /// Where the answer goes.
    pub answer: oneshot::Sender<Result<Routed, NoWay>>,
}

/// Why no node runs it, as a sentence.
pub enum NoWay {
    /// Everybody who could refused a moment ago for want of room: it may be asked again.
    Full(String),
    /// No node could.
    None(String),
}

impl From<String> for NoWay {
    fn from(why: String) -> Self {
        Self::None(why)
    }
}

/// Who runs it.
pub struct Routed {
    /// The pipeline and its predicted cost.
    pub route: Route,
    /// All three ways it could be done.
    pub comparison: Comparison,
    /// What a step of the pipeline should take, part by part.
    pub expected: Expected,
    /// How predictions of first tokens and of further ones came true.
    pub came_true: [Forecast; 2],
    /// What a step should take the three ways, ms: as asked, with the ends abroad, alone.
    pub steps_ms: [Option<f64>; 3],
    /// Who stands by.
    pub standbys: Standbys,
    /// Where they are.
    pub contacts: Vec<Contact>,
    /// Nodes of the pipeline without a connection, and those of the next best one: both are dialed side by side.
    pub dials: Option<Dials>,
    /// Sessions that the nodes of the pipeline announced, or have of this node at least.
    pub believed: BTreeMap<NodeId, u32>,
    /// The network's share of the slowest ordinary step, ms.
    pub rtt_p99_ms: f64,
    /// What the requester insists on, for another route later.
    pub policy: RoutePolicy,
    /// How much work it is.
    pub shape: Shape,
    /// Who could be asked where two disagree.
    pub witnesses: Vec<Witness>,
    /// Who gets the state of its layers from whom.
    pub sources: Vec<PlannedSource>,
}

/// A session's own number: picks among near-equal routes.
fn seed(session: SessionId) -> u64 {
    session.as_bytes().iter().take(8).rev().fold(0, |seed, byte| seed << 8 | u64::from(*byte))
}

/// Answers questions of prompts: what the owners know, borrowed for one answer.
pub(crate) struct Router<'a> {
    pub(crate) me: NodeId,
    pub(crate) now: Millis,
    pub(crate) view: &'a mut Viewing,
    pub(crate) models: &'a Models,
    /// Measured distances.
    pub(crate) gossip: &'a Announcer,
    /// Prompts that run and the peers they run on.
    pub(crate) in_flight: &'a mut BTreeMap<SessionId, InFlight>,
    /// Nodes that were proven wrong: no prompt goes through them.
    pub(crate) denied: BTreeSet<NodeId>,
}

impl Router<'_> {
    /// Answers who shall run a prompt.
    pub(crate) fn answer(&mut self, question: RouteQuestion) {
        let found = self.find(&question);
        if let Ok(routed) = &found
            && question.commit
        {
            let nodes = routed.route.pipeline.segments().iter().map(|segment| segment.node);
            let nodes = nodes.filter(|node| *node != self.me).collect();
            self.in_flight.insert(question.session, InFlight { nodes, crowd: 0 });
            let crowd = self.in_flight.len();
            self.in_flight.values_mut().for_each(|prompt| prompt.crowd = prompt.crowd.max(crowd));
        }
        let _ = question.answer.send(found);
    }

    /// Another pipeline for a prompt whose nodes failed. It keeps the ends at home whatever the mode: the prompt's
    /// tokens are here.
    pub(crate) fn reroute(&mut self, question: Reroute) {
        let Reroute { model, mut policy, shape, former, deny, shadow, answer, session } = question;
        // Who was barred when it began stays so, and who was since.
        let barred = deny.into_iter().chain(self.denied.iter().copied()).chain(policy.deny);
        policy.deny = barred.filter(|node| *node != self.me).collect();
        // Who failed it may be gone altogether.
        let former = former.lent_by(|node| lends(&policy, node));
        let request = self.request(model, session, shape, policy);
        let found = self.snapshot(model, session, shape).ok().and_then(|snapshot| {
            let mut snapshot = Arc::unwrap_or_clone(snapshot);
            let seats = self.in_flight.get(&session);
            snapshot.assume_room(|host| seats.is_some_and(|seats| seats.nodes.contains(&host.id)));
            let snapshot = Arc::new(snapshot);
            let full = ask_the_full(&snapshot);
            let careful = acquainted(&snapshot, &request);
            let tries = [(&*snapshot, &careful), (&full, &careful), (&snapshot, &request), (&full, &request)];
            let mut routes = tries.into_iter().filter_map(|(known, request)| route(known, request).ok());
            let pipeline = routes.next()?.pipeline;
            let (standbys, contacts) = self.backing(&snapshot, &request, &pipeline, shadow);
            if let Some(InFlight { nodes, .. }) = self.in_flight.get_mut(&session) {
                nodes.clear();
                let me = self.me;
                nodes.extend(pipeline.segments().iter().map(|s| s.node).filter(|node| *node != me));
            }
            let sources = self.sources(&snapshot, &request, &pipeline, &former);
            Some((pipeline, standbys, contacts, sources))
        });
        let _ = answer.send(found);
    }

    fn find(&mut self, question: &RouteQuestion) -> Result<Routed, NoWay> {
        let mut policy = RoutePolicy { boomerang: Some(question.ends), ..RoutePolicy::default() };
        let whole = wanted(self.models, self.me, question.model, question.shape)
            .costs
            .is_some_and(|(costs, _)| costs.is_whole());
        if whole && question.prove.is_some() {
            return Err(NoWay::None(WHOLE.to_owned()));
        }
        match question.mode {
            _ if whole => policy.allow = Some(BTreeSet::new()),
            Mode::Local => policy.allow = Some(BTreeSet::new()),
            Mode::Trusted => policy.allow = Some(question.trusted.clone()),
            Mode::Boomerang | Mode::Open => {}
        }
        policy.deny.extend(self.denied.iter().copied());
        policy.deny.extend(question.lacking.iter().copied());
        if question.exact {
            policy.deny.extend(self.view.approx());
        }
        if let Some(node) = question.prove {
            policy.deny.remove(&node);
        }
        let model = question.model;
        let request = self.request(model, question.session, question.shape, policy.clone());
        let mut snapshot = self.snapshot(model, question.session, question.shape)?;
        // A node that could compute in the place of one that owes a proof may check it, not replace it.
        let narrowed = question.prove.and_then(|node| {
            let first = &self.models.first;
            self.view.indispensable(node, first.id, first.ready.num_layers, self.now)
        });
        let frozen = |view| self.freeze(&view, model, question.session, question.shape).ok().map(Arc::new);
        let mut narrowed = narrowed.and_then(frozen);
        let mut careful = acquainted(&snapshot, &request);
        if let Some(node) = question.prove {
            careful.policy.deny.remove(&node);
        }
        let mut comparison = self.view.engine.compare(narrowed.as_ref().unwrap_or(&snapshot), &careful);
        if comparison.asked.is_err() {
            let strangers = !self.acquainted_but_full(&snapshot, &careful, &policy);
            let roomy = strangers.then(|| Arc::clone(&snapshot));
            for known in narrowed.iter_mut().chain([&mut snapshot]) {
                *known = Arc::new(ask_the_full(known));
            }
            comparison = self.view.engine.compare(narrowed.as_ref().unwrap_or(&snapshot), &careful);
            if comparison.asked.is_err()
                && let Some(roomy) = roomy.filter(|_| careful != request)
            {
                // No route leads past strangers.
                careful = request.clone();
                comparison = self.view.engine.compare(narrowed.as_ref().unwrap_or(&roomy), &careful);
                if comparison.asked.is_err() {
                    comparison = self.view.engine.compare(narrowed.as_ref().unwrap_or(&snapshot), &careful);
                }
            }
        }
        let request = careful;
        let home =
            whole || question.mode == Mode::Local || (question.may_stay_home && comparison.local_wins());
        let chosen = if home { &comparison.local } else { &comparison.asked };
        let route = chosen.clone().map_err(|why| {
            if whole {
                return NoWay::None(format!("no route: {why}; {WHOLE}"));
            }
            // Those who refused lately are left out of the request, not of the policy.
            let room = Request { policy: policy.clone(), ..request.clone() };
            if self::route(&snapshot, &room).is_ok() {
                let why = "everybody who could compute it is full; try again in a moment";
                return NoWay::Full(why.to_owned());
            }
            NoWay::None(format!(
                "no route in {} mode: {why}; `shoal peers` shows who holds what, `--mode local` runs it here",
                question.mode.name()
            ))
        })?;
        let former = question.former.clone().lent_by(|node| lends(&policy, node));
        let route = if home { route } else { sticky::stick(&snapshot, &request, route, &former) };
        // A node to fall back on must not be left out because it is slower.
        let (standbys, contacts) = self.backing(&snapshot, &request, &route.pipeline, question.shadow);
        let nodes = route.pipeline.segments().iter().map(|segment| segment.node);
        let network_ms: f64 = nodes.clone().filter_map(|node| self.gossip.slow_rtt_ms(node)).sum();
        let dials = self.dials(&snapshot, &request, &route.pipeline);
        let running = self.running(question.session);
        let believed = |node: NodeId| {
            let own = running.get(&node).copied().unwrap_or(0);
            self.view.announced_sessions(node, model).max(own)
        };
        Ok(Routed {
            sources: self.sources(&snapshot, &request, &route.pipeline, &former),
            believed: nodes.map(|node| (node, believed(node))).collect(),
            came_true: self.models.get(model).unwrap_or(&self.models.first).came_true.clone(),
            expected: self.expected(model, &snapshot, &request, &route.pipeline, &former),
            steps_ms: [&comparison.asked, &comparison.plain, &comparison.local]
                .map(|way| self.step_ms(model, &snapshot, &request, way)),
            route,
            comparison,
            standbys,
            contacts,
            dials,
            rtt_p99_ms: JITTER_MS + network_ms,
            witnesses: self.witnesses(&snapshot, &policy),
            policy,
            shape: request.shape,
        })
    }

    /// Who of a pipeline gets the state of its layers from whom, or had it from there.
    fn sources(
        &self,
        snapshot: &Snapshot,
        request: &Request,
        pipeline: &Pipeline,
        former: &Former,
    ) -> Vec<PlannedSource> {
        let ready = self.models.get(snapshot.model()).map(|held| &held.ready);
        let Some(ready) = ready.filter(|ready| ready.abilities.goes_back) else { return Vec::new() };
        let others = pipeline.segments().iter().enumerate().filter(|(_, segment)| segment.node != self.me);
        let found = others.filter_map(|(at, segment)| {
            let (lender, worth_ms) = match former.rests(segment) {
                Some(lender) => (lender, 0.0),
                None => {
                    let fetch = sticky::fetch(snapshot, request, pipeline, at, former)?;
                    (fetch.holder, fetch.worth_ms)
                }
            };
            let state_bytes = ready.costs.as_ref()?.state_bytes(segment.layers, 1);
            Some(PlannedSource {
                segment: *segment,
                contact: self.view.contact(lender),
                worth_ms,
                state_bytes,
            })
        });
        found.collect()
    }

    /// Whether nodes that were met could run it if none of them were full or had just refused: then it waits for them.
    fn acquainted_but_full(&self, snapshot: &Snapshot, careful: &Request, policy: &RoutePolicy) -> bool {
        let mut patient = careful.clone();
        let refused =
            |node: &NodeId| !policy.deny.contains(node) && snapshot.host(*node).is_some_and(|host| host.met);
        patient.policy.deny.retain(|node| !refused(node));
        route(&ask_the_full(snapshot), &patient).is_ok()
    }

    /// Where nodes of `pipeline` are not connected: these, and those of the best route past them.
    fn dials(&self, snapshot: &Snapshot, request: &Request, pipeline: &Pipeline) -> Option<Dials> {
        let distant = |node: &NodeId| *node != self.me && self.gossip.rtt_ms(*node).is_none();
        let contacts = |pipeline: &Pipeline| -> Vec<Contact> {
            let nodes: BTreeSet<NodeId> = pipeline.segments().iter().map(|segment| segment.node).collect();
            nodes.into_iter().filter(distant).map(|node| self.view.contact(node)).collect()
        };
        let first = contacts(pipeline);
        if first.is_empty() {
            return None;
        }
        let mut past = request.clone();
        past.policy.deny.extend(first.iter().map(|contact| contact.node));
        let beside = contacts(&route(snapshot, &past).ok()?.pipeline);
        let believed = |contact: Contact| {
            let ms = snapshot.round_trip_ms(self.me, contact.node).unwrap_or(f64::INFINITY);
            (contact, ms)
        };
        Some(Dials { first: first.into_iter().map(believed).collect(), beside })
    }

    /// Holders whose word counts in a dispute, the most trusted first.
    fn witnesses(&self, snapshot: &Snapshot, policy: &RoutePolicy) -> Vec<Witness> {
        let admitted = |node: NodeId| {
            node != self.me
                && !policy.deny.contains(&node)
                && policy.allow.as_ref().is_none_or(|allowed| allowed.contains(&node))
        };
        let mut hosts: Vec<_> = snapshot.hosts().iter().filter(|host| admitted(host.id)).collect();
        let order =
            |a: &&Host, b: &&Host| b.met.cmp(&a.met).then(b.trust.total_cmp(&a.trust)).then(a.id.cmp(&b.id));
        if hosts.len() > MAX_WITNESSES {
            hosts.select_nth_unstable_by(MAX_WITNESSES, order);
            hosts.truncate(MAX_WITNESSES);
        }
        hosts.sort_by(order);
        let witness = |host: &Host| Witness {
            contact: self.view.contact(host.id),
            operator: host.operator,
            holds: host.loaded.clone(),
        };
        hosts.into_iter().map(witness).collect()
    }

    /// Prompts of this node but for `session`, by the nodes that serve them.
    fn running(&self, session: SessionId) -> BTreeMap<NodeId, u32> {
        let mut running = BTreeMap::new();
        let others = self.in_flight.iter().filter(|(other, _)| **other != session);
        others.flat_map(|(_, prompt)| &prompt.nodes).for_each(|node| *running.entry(*node).or_insert(0) += 1);
        running
    }

    /// The question to the router, with the load that no announcement shows yet.
    fn request(&self, model: ModelId, session: SessionId, shape: Shape, policy: RoutePolicy) -> Request {
        // What a node announces counts this node's prompts, too, as soon as it says so.
        let unsaid = |(node, own): (NodeId, u32)| {
            (node, own.saturating_sub(self.view.announced_sessions(node, model)))
        };
        let in_flight = self.running(session).into_iter().map(unsaid).filter(|entry| entry.1 > 0).collect();
        let mut request = Request { requester: Some(self.me), shape, policy, in_flight, seed: seed(session) };
        self.view.feedback.amend(&mut request, |node| self.view.announced_sessions(node, model));
        request.policy.deny.remove(&self.me);
        request
    }

    /// What is believed now, with what leases taught.
    fn snapshot(
        &mut self,
        model: ModelId,
        session: SessionId,
        shape: Shape,
    ) -> Result<Arc<Snapshot>, String> {
        self.view.take_feedback(self.now);
        let wanted = wanted(self.models, self.me, model, shape);
        let found = self.view.engine.snapshot(&self.view.swarm, &wanted, seed(session));
        found.map_err(|why| why.to_string())
    }

    /// `view` of a model, as [`Self::snapshot`] but for one question.
    fn freeze(
        &self,
        view: &SwarmView,
        model: ModelId,
        session: SessionId,
        shape: Shape,
    ) -> Result<Snapshot, BadSnapshot> {
        let Wanted { model, num_layers, costs, me } = wanted(self.models, self.me, model, shape);
        view.snapshot_to_route(model, num_layers, costs, me, seed(session))
    }

    /// Who stands by for a pipeline, and where everybody is.
    fn backing(
        &mut self,
        snapshot: &Arc<Snapshot>,
        request: &Request,
        pipeline: &Pipeline,
        shadow: Shadow,
    ) -> (Standbys, Vec<Contact>) {
        let shadows = match shadow {
            Shadow::None => vec![None; pipeline.segments().len()],
            _ => self.view.engine.shadows(snapshot, request, pipeline),
        };
        let standbys = Standbys {
            shadows,
            lazy: shadow == Shadow::Lazy,
            covers: self.view.engine.covers(snapshot, request, pipeline),
        };
        let contacts = self.contacts(pipeline, &standbys);
        (standbys, contacts)
    }

    fn contacts(&self, pipeline: &Pipeline, standbys: &Standbys) -> Vec<Contact> {
        let mut nodes: BTreeSet<NodeId> = pipeline.segments().iter().map(|segment| segment.node).collect();
        nodes.extend(standbys.shadows.iter().flatten());
        nodes.extend(
            standbys.covers.iter().flat_map(|cover| cover.segments.iter().map(|segment| segment.node)),
        );
        nodes.into_iter().filter(|node| *node != self.me).map(|node| self.view.contact(node)).collect()
    }

    /// What a step of `pipeline` should take, part by part.
    fn expected(
        &self,
        model: ModelId,
        snapshot: &Snapshot,
        request: &Request,
        pipeline: &Pipeline,
        former: &Former,
    ) -> Expected {
        let held = self.models.get(model).unwrap_or(&self.models.first);
        let home_ms = held.home_ms();
        let legs = explain(snapshot, &one_step(request), pipeline).unwrap_or_default();
        let mut prompt = request.clone();
        prompt.shape.output_tokens = 1;
        let priced = sticky::price(snapshot, &prompt, pipeline, former);
        let is_known = pipeline.segments().iter().all(|segment| former.has(segment));
        let (tokens, known) = (request.shape.prompt_tokens, if is_known { former.positions } else { 0 });
        let left = Shape { prompt_tokens: tokens.saturating_sub(known).max(1), ..prompt.shape };
        let said_ms = priced.map_or(0.0, |legs| cost::prompt_ms(&legs, left));
        let prompt = ExpectedPrompt { tokens, known, said_ms, ms: held.at_prefill.of(said_ms) };
        // A worker opens a session as it takes a job: the visit, before anything was measured.
        let opening_ms = held.at_opening.value().unwrap_or(held.ready.times.visit_ms);
        let back_ms =
            |node| if node == self.me { 0.0 } else { self.gossip.rtt_ms(node).unwrap_or(0.0) / 2.0 };
        let weight = |layers| snapshot.weight_of(layers);
        Expected { opening_ms, prompt, ..Expected::new(&legs, back_ms, weight, home_ms) }
    }

    fn step_ms(
        &self,
        model: ModelId,
        snapshot: &Snapshot,
        request: &Request,
        way: &Result<Route, NoRoute>,
    ) -> Option<f64> {
        let pipeline = &way.as_ref().ok()?.pipeline;
        let mut request = one_step(request);
        // Other ways than the one asked for obey other rules.
        (request.policy.boomerang, request.policy.allow) = (None, None);
        let cost = cost::price(snapshot, &request, pipeline).ok()?;
        Some(cost.loaded_ms() + self.models.get(model)?.home_ms())
    }
}

/// Of a model what routes are priced in: the middle of an answer, where a row sees what most rows of it see.
fn wanted(models: &Models, me: NodeId, model: ModelId, shape: Shape) -> Wanted<'_> {
    let ready = models.get(model).map(|held| &held.ready);
    let context = shape.prompt_tokens.saturating_add(shape.output_tokens / 2);
    let costs = ready.and_then(|ready| ready.costs.as_ref()).map(|costs| (costs, context));
    Wanted { model, num_layers: ready.map_or(0, |ready| ready.num_layers), costs, me }
}

/// Whether a prompt under this policy may rest on what the node has computed.
fn lends(policy: &RoutePolicy, node: NodeId) -> bool {
    !policy.deny.contains(&node) && policy.allow.as_ref().is_none_or(|allowed| allowed.contains(&node))
}

/// The same where each node that says to be full is taken to have room.
fn ask_the_full(snapshot: &Snapshot) -> Snapshot {
    let mut snapshot = snapshot.clone();
    snapshot.assume_room(|host| host.kv_bytes == Some(0));
    snapshot
}

/// The same request for one decoded token.
fn one_step(request: &Request) -> Request {
    let shape = Shape { prompt_tokens: 0, output_tokens: 1, ..request.shape };
    Request { shape, ..request.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use scheduler::{LayerRange, LayerSet, ModelId, snapshot::Links};

    /// Node 1 asks; 2 and 3 hold the layers between its ends, 2 faster.
    fn snapshot(rooms: [u64; 2]) -> Snapshot {
        let set = |ranges: &[(u32, u32)]| -> LayerSet {
            ranges.iter().filter_map(|(start, end)| LayerRange::new(*start, *end)).collect()
        };
        let mut hosts = vec![
            Host::new(NodeId::numbered(1), set(&[(0, 1), (3, 4)]), 1.0),
            Host::new(NodeId::numbered(2), set(&[(1, 3)]), 1.0),
            Host::new(NodeId::numbered(3), set(&[(1, 3)]), 9.0),
        ];
        hosts.iter_mut().skip(1).zip(rooms).for_each(|(host, room)| host.kv_bytes = Some(room));
        Snapshot::new(ModelId::default(), 4, None, hosts, &Links::Matrix(vec![1.0; 9])).unwrap()
    }

    fn middle(snapshot: &Snapshot) -> Option<NodeId> {
        let mut request = Request::new(NodeId::numbered(1), Shape::ONE_TOKEN);
        request.policy.boomerang = Some(Boomerang { head: 1, tail: 1 });
        route(snapshot, &request).ok().map(|found| found.pipeline.segments()[1].node)
    }

    #[test]
    fn who_is_full_is_asked_last() {
        let (fast, slow) = (NodeId::numbered(2), NodeId::numbered(3));
        assert_eq!(middle(&snapshot([1_000, 1_000])), Some(fast));
        assert_eq!(middle(&snapshot([0, 1_000])), Some(slow), "passed by while others have room");
        let full = snapshot([0, 0]);
        assert_eq!(middle(&full), None);
        assert_eq!(middle(&ask_the_full(&full)), Some(fast), "the word may be old");
        let mut seated = snapshot([0, 1_000]);
        seated.assume_room(|host| host.id == fast);
        assert_eq!(middle(&seated), Some(fast), "it runs there already");
        let small = snapshot([1, 1]);
        let long = Shape { prompt_tokens: 500, ..Shape::ONE_TOKEN };
        let mut request = Request::new(NodeId::numbered(1), long);
        request.policy.boomerang = Some(Boomerang { head: 1, tail: 1 });
        assert!(route(&ask_the_full(&small), &request).is_err(), "too little room is not full");
    }
}
