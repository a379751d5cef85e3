//! Answers "who runs what" from the view: what the scheduler decides, with where to find everybody.

use std::collections::{BTreeMap, BTreeSet};

use p2p::wire::{announce::Offer, control::Contact};
use scheduler::{
    Boomerang, NodeId, Pipeline, Request, RoutePolicy, SessionId, Shape,
    route::{Comparison, Route, compare},
    session::Standbys,
    standby,
};
use tokio::sync::oneshot;

use super::Daemon;
use crate::{control::Mode, generate::Reroute};

/// Added to measured round trips before a silence counts: timers, schedulers, Wi-Fi.
const JITTER_MS: f64 = 20.0;

/// Who shall run this?
pub struct RouteQuestion {
    /// The prompt's name; also picks among near-equal routes.
    pub session: SessionId,
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
    /// Whether it will be run: counts as load until it is finished.
    pub commit: bool,
    /// Where the answer goes.
    pub answer: oneshot::Sender<Result<Routed, String>>,
}

/// Who could conduct a prompt of this model?
pub struct ConductorQuestion {
    /// By name.
    pub model: String,
    /// Only these, unless empty.
    pub trusted: BTreeSet<NodeId>,
    /// The nearest first.
    pub answer: oneshot::Sender<Vec<NodeId>>,
}

/// Who runs it.
pub struct Routed {
    /// The pipeline and its predicted cost.
    pub route: Route,
    /// All three ways it could be done.
    pub comparison: Comparison,
    /// Who stands by.
    pub standbys: Standbys,
    /// Where they are.
    pub contacts: Vec<Contact>,
    /// The network's share of the slowest ordinary step, ms.
    pub rtt_p99_ms: f64,
    /// What the requester insists on, for another route later.
    pub policy: RoutePolicy,
    /// How much work it is.
    pub shape: Shape,
}

/// A session's own number: picks among near-equal routes.
fn seed(session: SessionId) -> u64 {
    session.as_bytes().iter().take(8).rev().fold(0, |seed, byte| seed << 8 | u64::from(*byte))
}

impl Daemon {
    pub(super) fn answer_route(&mut self, question: RouteQuestion) {
        let found = self.route(&question);
        if let Ok(routed) = &found
            && question.commit
        {
            let nodes = routed.route.pipeline.segments().iter().map(|segment| segment.node);
            self.in_flight.insert(question.session, nodes.filter(|node| *node != self.me).collect());
        }
        let _ = question.answer.send(found);
    }

    pub(super) fn answer_conductors(&self, question: ConductorQuestion) {
        let ConductorQuestion { model, trusted, answer } = question;
        let mut nodes: Vec<(f64, NodeId)> = self
            .facts
            .iter()
            .filter(|(node, facts)| {
                facts.offers.iter().any(|offer| self.computes(**node, offer, &model))
                    && (trusted.is_empty() || trusted.contains(node))
            })
            .map(|(node, _)| (self.gossip.rtt_ms(*node).unwrap_or(f64::MAX), *node))
            .collect();
        nodes.sort_by(|a, b| a.0.total_cmp(&b.0));
        let _ = answer.send(nodes.into_iter().map(|(_, node)| node).collect());
    }

    /// Whether `node` computes layers of what it offers, and that is called `model`, by name or id in hex.
    fn computes(&self, node: NodeId, offer: &Offer, model: &str) -> bool {
        let holds = |capability: &scheduler::Capability| {
            capability.holding(offer.model).is_some_and(|holding| !holding.loaded.is_empty())
        };
        (offer.name == model || crate::content::hex(offer.model) == model)
            && self.view.get(node).is_some_and(holds)
    }

    fn request(&self, question: &RouteQuestion) -> Request {
        let mut policy = RoutePolicy { boomerang: Some(question.ends), ..RoutePolicy::default() };
        match question.mode {
            Mode::Local => policy.allow = Some(BTreeSet::new()),
            Mode::Trusted => policy.allow = Some(question.trusted.clone()),
            Mode::Boomerang | Mode::Open => {}
        }
        let mut in_flight = BTreeMap::new();
        self.in_flight.values().flatten().for_each(|node| *in_flight.entry(*node).or_insert(0) += 1);
        let in_flight = in_flight.into_iter().collect();
        let seed = seed(question.session);
        Request { requester: Some(self.me), shape: question.shape, policy, in_flight, seed }
    }

    fn route(&self, question: &RouteQuestion) -> Result<Routed, String> {
        let request = self.request(question);
        let num_layers = self.held.ready.num_layers;
        let snapshot = self.view.snapshot(self.held.id, num_layers, self.me).map_err(|e| e.to_string())?;
        let comparison = compare(&snapshot, &request);
        let home = question.mode == Mode::Local || (question.may_stay_home && comparison.local_wins());
        let chosen = if home { &comparison.local } else { &comparison.asked };
        let route = chosen.clone().map_err(|why| {
            format!(
                "no route in {} mode: {why}; `shoal peers` shows who holds what, `--mode local` runs it here",
                question.mode.name()
            )
        })?;
        // Somebody to fall back on must not be left out because it is slower.
        let standbys = self.standbys(&snapshot, &request, &route.pipeline);
        let contacts = self.contacts(&route.pipeline, &standbys);
        let rtt_p99_ms = JITTER_MS
            + route.pipeline.segments().iter().filter_map(|s| self.gossip.rtt_ms(s.node)).sum::<f64>() * 2.0;
        Ok(Routed {
            route,
            comparison,
            standbys,
            contacts,
            rtt_p99_ms,
            policy: request.policy,
            shape: request.shape,
        })
    }

    fn standbys(&self, snapshot: &scheduler::Snapshot, request: &Request, pipeline: &Pipeline) -> Standbys {
        let shadows = pipeline.segments().iter().enumerate().map(|(index, segment)| {
            (segment.node != self.me).then(|| standby::shadow(snapshot, request, pipeline, index)).flatten()
        });
        Standbys { shadows: shadows.collect(), covers: standby::covers(snapshot, request, pipeline) }
    }

    fn contacts(&self, pipeline: &Pipeline, standbys: &Standbys) -> Vec<Contact> {
        let mut nodes: BTreeSet<NodeId> = pipeline.segments().iter().map(|segment| segment.node).collect();
        nodes.extend(standbys.shadows.iter().flatten());
        nodes.extend(
            standbys.covers.iter().flat_map(|cover| cover.segments.iter().map(|segment| segment.node)),
        );
        let contact = |node: NodeId| {
            let addresses = self.facts.get(&node).map_or_else(Vec::new, |facts| facts.addresses.clone());
            Contact { node, addresses }
        };
        nodes.into_iter().filter(|node| *node != self.me).map(contact).collect()
    }

    /// Another pipeline for a prompt whose nodes failed. It keeps the ends at home whatever the mode: the prompt's
    /// tokens are here.
    pub(super) fn reroute(&mut self, question: Reroute) {
        let Reroute { policy, shape, deny, answer, session } = question;
        let num_layers = self.held.ready.num_layers;
        let seed = seed(session);
        let policy =
            RoutePolicy { deny: deny.into_iter().filter(|node| *node != self.me).collect(), ..policy };
        let request = Request { requester: Some(self.me), shape, policy, in_flight: Vec::new(), seed };
        let found = self.view.snapshot(self.held.id, num_layers, self.me).ok().and_then(|snapshot| {
            let route = compare(&snapshot, &request).asked.ok()?;
            let standbys = self.standbys(&snapshot, &request, &route.pipeline);
            let contacts = self.contacts(&route.pipeline, &standbys);
            Some((route.pipeline, standbys, contacts))
        });
        let _ = answer.send(found);
    }
}
