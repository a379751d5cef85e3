//! What is to be generated, what that takes, and what the caller hears of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use api::swarm_records::Timeline;
use p2p::{
    Identity, Network,
    codec::Rounding,
    wire::{control::Contact, receipt::Receipt},
};
use scheduler::{
    LayerRange, NodeId, Pipeline, RoutePolicy, Segment, SessionId, SessionKind, Shape,
    layer_cost::LayerCosts,
    recover::{Failure, GiveUp},
    session::{End, Standbys},
    sticky::Former,
    trust::Outcome,
};
use tokio::sync::{broadcast, mpsc, oneshot};

use super::{
    draft::{DraftTerms, Tally},
    recall::{Recalled, Recollections},
    witness::Witness,
};
use crate::{
    audit::Auditor,
    control::{Shadow, Verify},
    feedback::FeedbackQueue,
    sessions::{PlannedSource, Rerouted},
    worker::{Assigned, Conduct, DraftSeat, PromptToken, Top},
};

/// What is to be generated, and where.
pub struct Plan {
    /// Its name.
    pub session: SessionId,
    /// Which model.
    pub model: scheduler::ModelId,
    /// The prompt's tokens.
    pub prompt: Vec<u32>,
    /// Most tokens to generate.
    pub max_tokens: u32,
    /// How tokens are chosen, and what was said already.
    pub conduct: Conduct,
    /// In which form rows travel, and what they see.
    pub form: RowForm,
    /// Who runs what, and what that was chosen by.
    pub route: PlannedRoute,
    /// How strangers are checked.
    pub checking: Checking,
    /// What those do who stand by.
    pub shadow: Shadow,
    /// What drafts its tokens.
    pub draft: DraftTerms,
    /// What its layers cost, where that is known.
    pub costs: Option<LayerCosts>,
    /// What of the prompt was computed before.
    pub recalled: Recalled,
}

/// The rows of a prompt, as every stage of it handles them.
pub struct RowForm {
    /// How activations travel, and where they are rounded.
    pub rounding: Rounding,
    /// Which earlier positions its rows see, and how keys and values are kept.
    pub kind: SessionKind,
    /// Width of an activation.
    pub hidden: usize,
    /// Whether a prompt goes through own layers in one pass, as an encoder reads it.
    pub whole: bool,
}

/// A route as the daemon found it, and what the next one is found by.
pub struct PlannedRoute {
    /// Who runs what.
    pub pipeline: Pipeline,
    /// Who stands by.
    pub standbys: Standbys,
    /// Where nodes are.
    pub contacts: Vec<Contact>,
    /// The network's share of the slowest ordinary step, ms.
    pub rtt_p99_ms: f64,
    /// What the requester insists on.
    pub policy: RoutePolicy,
    /// How much work it is.
    pub shape: Shape,
    /// Routes tried for it before.
    pub looks: u32,
    /// Sessions that the nodes of the pipeline announced, or have of this node at least.
    pub believed: BTreeMap<NodeId, u32>,
    /// Who gets the state of its layers from whom.
    pub sources: Vec<PlannedSource>,
}

/// How the work of strangers is checked.
pub struct Checking {
    /// How much of it, and when.
    pub verify: Verify,
    /// Share of the requests of a node to check; of one that is not in it, all.
    pub shares: BTreeMap<NodeId, f64>,
    /// Nodes whose results are not bit for bit those of profile `d1`.
    pub approx: BTreeSet<NodeId>,
    /// Who could be asked where two disagree.
    pub witnesses: Vec<Witness>,
}

impl Plan {
    /// What computing `layers` takes, in mean layers.
    pub(super) fn weight(&self, layers: LayerRange) -> f64 {
        self.costs.as_ref().map_or(f64::from(layers.len()), |costs| costs.weight(layers, 0))
    }

    /// Bytes of the weights of `layers`; more than any where they are not known.
    pub(super) fn weight_bytes(&self, layers: LayerRange) -> u64 {
        self.costs.as_ref().map_or(u64::MAX, |costs| costs.weight_bytes(layers))
    }

    pub(super) fn contact(&self, node: NodeId) -> Contact {
        let known = self.route.contacts.iter().find(|contact| contact.node == node);
        known.cloned().unwrap_or_else(|| Contact { node, addresses: Vec::new() })
    }

    /// Notes where nodes are now: one that was started again listens elsewhere.
    pub(super) fn meet(&mut self, contacts: Vec<Contact>) {
        self.route.contacts.retain(|old| contacts.iter().all(|new| new.node != old.node));
        self.route.contacts.extend(contacts);
    }
}

/// What the caller hears.
#[derive(Clone)]
pub enum Progress {
    /// A token, in order, once.
    Token {
        /// Its position, the prompt included.
        position: u32,
        /// Its id.
        id: u32,
        /// Text that became certain with it.
        text: String,
        /// Its own bytes, when log-probabilities are asked for.
        bytes: Vec<u8>,
        /// Its log-probability, when asked for.
        logprob: Option<f32>,
        /// The likeliest tokens at its position: id, log-probability.
        top: Vec<Top>,
        /// The tokens of the prompt, with the first one of an answer that is to tell them.
        prompt: Vec<PromptToken>,
        /// What the prompt's rows are together, with the end of a turn that says nothing else.
        pooled: Vec<f32>,
    },
    /// How fast it goes, every [`super::PACE_TOKENS`] tokens.
    Pace {
        /// Milliseconds of a decode step until the output of each segment arrived, means.
        stage_ms: Vec<f64>,
    },
    /// A node failed and another one goes on.
    Moved {
        /// Who failed.
        failed: NodeId,
        /// What was noticed; nothing but silence for `None`.
        why: Option<Failure>,
        /// Who runs what from now on.
        segments: Vec<Segment>,
    },
    /// Its nodes turned out much busier than was believed: the leases are given back, nothing was computed, another
    /// route may be better. Nothing follows.
    Crowded,
    /// Tokens from this position on followed from a lie, and were read before it was found.
    Integrity {
        /// The first such token.
        position: u32,
        /// Who lied.
        node: NodeId,
    },
    /// The answer is complete; what was drawn to be computed again is being so, and [`Progress::Done`] follows.
    Answered(Box<Report>),
    /// It is over.
    Done(Box<Report>),
}

/// What happened, for `why` and for the answer's metadata.
#[derive(Clone)]
pub struct Report {
    /// How it ended.
    pub end: End,
    /// Who ran what at the end.
    pub segments: Vec<Segment>,
    /// What was generated, and what is left to say of it.
    pub said: Said,
    /// How long it took.
    pub times: Times,
    /// What went wrong on the way and was survived.
    pub disturbances: Disturbances,
    /// What came of checking others.
    pub findings: Findings,
    /// Positions of the prompt that no stage computed for it.
    pub cached: u32,
    /// Bytes of activations sent and received.
    pub wire_bytes: (u64, u64),
    /// What came of drafts.
    pub drafts: Tally,
    /// Tokens the caller has.
    pub read: u32,
    /// What happened, in order.
    pub timeline: Timeline,
}

/// The text of an answer, as far as a report tells it.
#[derive(Clone, Default)]
pub struct Said {
    /// Ids generated.
    pub ids: Vec<u32>,
    /// Text that was held back and turned out to belong to the answer.
    pub rest: String,
    /// The tokens of a prompt that are to be told and were not, since the model said nothing.
    pub prompt: Vec<PromptToken>,
    /// The vector of the prompt, or its score, where that was asked for.
    pub pooled: Vec<f32>,
    /// The stop string that ended it, where one did.
    pub met: Option<String>,
    /// Whether the model ended its turn: by a token that is not among `ids`.
    pub ended_turn: bool,
}

/// How long the parts of an answer took.
#[derive(Clone, Default)]
pub struct Times {
    /// Until every stage had promised to serve, the first time.
    pub opened_ms: Option<f64>,
    /// Time to the first token.
    pub ttft_ms: f64,
    /// From token to token, ms, in order.
    pub gaps_ms: Vec<f64>,
    /// Milliseconds of a decode step until the output of each segment arrived, means.
    pub stage_ms: Vec<f64>,
    /// Steps without a draft: how many, and how long they took together, ms.
    pub plain: (u32, f64),
}

/// Failures and delays that an answer survived.
#[derive(Clone, Default)]
pub struct Disturbances {
    /// Failures survived: who, and from the last token before it to the first after it, ms.
    pub faults: Vec<(NodeId, f64)>,
    /// Stages so late that their shadow answered first, each once: who, and from the last token before it to the first
    /// after it, ms.
    pub hedged: Vec<(NodeId, f64)>,
    /// Nodes that refused to serve, or did not promise in time: full, or about to leave.
    pub refusals: BTreeSet<NodeId>,
}

/// What came of checking those who computed.
#[derive(Clone)]
pub struct Findings {
    /// Two answers for one position differed this often.
    pub evidence: u32,
    /// By segment that others ran: its layers, who else computed the same, and up to which position.
    pub checks: Vec<(LayerRange, Vec<NodeId>, u32)>,
    /// Segments of nodes that compute other bits which were found near enough: the layers, rows compared, and the median of
    /// their distances ([`shard::tolerance`]).
    pub near: Vec<(LayerRange, u32, f64)>,
    /// Share of what others computed that was checked bit for bit; 1 when no other node computed.
    pub verified: f64,
    /// The first token that was read and followed from a lie.
    pub integrity: Option<u32>,
    /// Disputes that a third holder settled.
    pub thirds: u32,
    /// Who was proven wrong.
    pub convicted: Vec<NodeId>,
    /// Who gave what is wrong after it had a state from whom: which of the two is to blame cannot be told.
    pub misled: Vec<(NodeId, NodeId)>,
    /// What to remember of whom.
    pub outcomes: Vec<(NodeId, Outcome)>,
    /// Work that was signed for.
    pub receipts: Vec<[u8; Receipt::LEN]>,
    /// Proofs against those convicted; they hold what the prompt can be read from.
    pub proofs: Vec<Vec<u8>>,
}

impl Default for Findings {
    /// No other node has computed.
    fn default() -> Self {
        Self {
            evidence: 0,
            checks: Vec::new(),
            near: Vec::new(),
            verified: 1.0,
            integrity: None,
            thirds: 0,
            convicted: Vec::new(),
            misled: Vec::new(),
            outcomes: Vec::new(),
            receipts: Vec::new(),
            proofs: Vec::new(),
        }
    }
}

impl Report {
    /// Whether anything was computed for it; a log may be recalled from a prompt before it.
    pub(super) fn computed(&self) -> bool {
        self.times.opened_ms.is_some()
    }

    /// Whether it is an answer: what was stopped, given back or given up is none, and another route may still bring one.
    pub(super) fn is_answer(&self) -> bool {
        matches!(self.end, End::Stop | End::Length)
    }

    /// Whether it ended before its first token because everybody who could compute it was full.
    pub(crate) fn is_crowded_out(&self) -> bool {
        let gave_up = matches!(self.end, End::GaveUp(GiveUp::NoRoute | GiveUp::Exhausted));
        gave_up && self.said.ids.is_empty() && !self.disturbances.refusals.is_empty()
    }

    /// Of a prompt that runs on `segments` and got nowhere yet.
    pub(crate) fn new(segments: Vec<Segment>) -> Self {
        Self {
            end: End::Cancelled,
            segments,
            said: Said::default(),
            times: Times::default(),
            disturbances: Disturbances::default(),
            findings: Findings::default(),
            cached: 0,
            wire_bytes: (0, 0),
            drafts: Tally::default(),
            read: 0,
            timeline: Timeline::default(),
        }
    }
}

/// What the driver needs from the rest of the node.
pub struct Means {
    /// This node.
    pub me: NodeId,
    /// The way out.
    pub network: Network,
    /// Who signs receipts.
    pub identity: Identity,
    /// Who computes again what is disputed, where that can be done here.
    pub auditor: Option<Auditor>,
    /// Its own worker; another one after a crash.
    pub worker: Arc<Assigned>,
    /// Where what it leaves behind is remembered, if that is wanted.
    pub memory: Option<Recollections>,
    /// Asks the daemon for another pipeline without these nodes.
    pub reroute: mpsc::Sender<Reroute>,
    /// What leases teach.
    pub feedback: FeedbackQueue,
    /// Where a draft model drafts for it, if one does.
    pub drafter: Option<DraftSeat>,
    /// Nodes that closed their connections.
    pub lost: broadcast::Receiver<NodeId>,
    /// The caller.
    pub progress: mpsc::Sender<Progress>,
}

/// A question to the daemon.
#[derive(Debug)]
pub struct Reroute {
    /// Whose.
    pub session: SessionId,
    /// Of which model.
    pub model: scheduler::ModelId,
    /// What the requester insists on.
    pub policy: RoutePolicy,
    /// How much work it is.
    pub shape: Shape,
    /// Where its beginning was computed before.
    pub former: Former,
    /// Nodes that failed this request.
    pub deny: BTreeSet<NodeId>,
    /// What those do who stand by.
    pub shadow: Shadow,
    /// Where the answer goes.
    pub answer: oneshot::Sender<Option<Rerouted>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A route that is given back ends like an answer that was stopped: no caller may hear of it, whatever its log began with.
    #[test]
    fn a_route_that_is_given_back_is_no_answer() {
        let mut report = Report::new(Vec::new());
        assert!(!report.is_answer() && !report.computed());
        for (end, is) in [
            (End::Cancelled, false),
            (End::GaveUp(GiveUp::NoRoute), false),
            (End::Stop, true),
            (End::Length, true),
        ] {
            report.end = end;
            assert_eq!(report.is_answer(), is, "{end:?}");
        }
        report.times.opened_ms = Some(1.0);
        assert!(report.computed());
    }
}
