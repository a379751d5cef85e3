//! What a node says of itself and of the nodes it knows: the answers to `status`, `view`, `peers`, `receipts` and `invite`, and
//! the lines of `join` and of pulls.
//!
//! As [`crate::events`], these are the lines of the control socket and of `--json`; names come from strangers and are text.

mod pull;
mod status;

use api::{inference::ModelInfo, swarm::SwarmSnapshot, swarm_records::AnswerRecord};
pub use pull::{FetchReport, Progress, PullLine, PullPlan, SourceBytes, Transfer};
use scheduler::governor::{Measure, UNLIMITED, Usage};
use serde::{Deserialize, Serialize};
pub use status::*;

use crate::catalog::fit::Peer;

/// The answer to `View`: what the API and its page show of the node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct View {
    /// The swarm as this node sees it.
    pub snapshot: SwarmSnapshot,
    /// The model this node was started with.
    #[serde(flatten)]
    pub own: Own,
    /// Those it holds beside it.
    #[serde(default)]
    pub beside: Vec<Own>,
    /// Memory for all sessions.
    pub kv_bytes: u64,
    /// What of it the sessions open now were promised.
    #[serde(default)]
    pub kv_used_bytes: u64,
    /// Sessions open now, those of other nodes included.
    #[serde(default)]
    pub sessions: u64,
    /// Memory of the process that holds the model, where the system says it.
    #[serde(default)]
    pub worker_resident_bytes: Option<u64>,
    /// What others may hold of this node, and do.
    #[serde(default)]
    pub limits: Vec<LimitReport>,
    /// Peers that compute, as far as what they announce tells what they would make of another model.
    #[serde(default)]
    pub peers: Vec<Peer>,
}

/// A limit on what other nodes or clients of this machine may hold or spend of this one, and what they do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LimitReport {
    /// Of what.
    pub resource: String,
    /// Whether it is for programs of this machine and clients of its API, not for other nodes.
    pub clients: bool,
    /// For all others together.
    pub node: u64,
    /// For one address prefix (/24 of IPv4, /48 of IPv6).
    pub prefix: u64,
    /// For one peer; none where there is no peer yet.
    pub peer: Option<u64>,
    /// Within how many milliseconds the limit comes back; none for what is held and given back.
    pub within_ms: Option<u64>,
    /// What all others hold now, or have spent and not got back.
    pub used: u64,
    /// The most that one prefix does.
    pub prefix_used: u64,
    /// The most that one peer does.
    pub peer_used: u64,
    /// How often something was refused, or an older one had to make room, since the start.
    pub refused: u64,
    /// Why these numbers.
    pub why: String,
}

impl LimitReport {
    /// The whole table of a node.
    pub fn all(governor: &p2p::Governor) -> Vec<Self> {
        governor.usage().into_iter().map(Self::from).collect()
    }
}

impl From<Usage> for LimitReport {
    fn from(usage: Usage) -> Self {
        let Usage { limit, used, prefix_used, peer_used, refused } = usage;
        Self {
            resource: limit.resource.name().to_owned(),
            clients: limit.resource.is_of_clients(),
            node: limit.node,
            prefix: limit.prefix,
            peer: (limit.peer != UNLIMITED).then_some(limit.peer),
            within_ms: match limit.measure {
                Measure::Held => None,
                Measure::Spent { within_ms } => Some(within_ms),
            },
            used,
            prefix_used,
            peer_used,
            refused,
            why: limit.why.to_owned(),
        }
    }
}

/// A model of the node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Own {
    /// Its id in hex.
    #[serde(default)]
    pub id: String,
    /// What clients are told of it.
    pub about: ModelInfo,
    /// What a position of a session costs here at most, bytes.
    pub position_bytes: u64,
    /// Whether the node holds its ends, so that prompts can begin here.
    pub conducts: bool,
}

impl View {
    /// Whether a request that names `model` means the node's first one.
    pub fn is_first(&self, model: Option<&str>) -> bool {
        model.is_none_or(|name| name == self.own.about.name)
    }

    /// The model of the node that a request names, its first one for `None`; `None` for one it does not hold.
    pub fn asked(&self, model: Option<&str>) -> Option<&Own> {
        let mut own = std::iter::once(&self.own).chain(&self.beside);
        match model {
            None => own.next(),
            Some(name) => own.find(|own| own.about.name == name),
        }
    }
}

/// The answer to `peers`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PeersReport {
    /// Every node known, connected or not.
    pub peers: Vec<PeerReport>,
    /// No line follows: `true` on the socket, left out of `--json`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub end: bool,
}

/// A node that this one knows.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PeerReport {
    /// Its name, 64 hex digits.
    pub node: String,
    /// What the owner of this node calls it ([`crate::node_names`]).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub called: Option<String>,
    /// Its program and version, as it says.
    pub agent: String,
    /// What is known of its work.
    pub trust: TrustReport,
    /// How exactly it computes: `exact` or `approx`.
    pub class: String,
    /// The device that computes there, as it says; empty for processors.
    pub device: String,
    /// Whether there is a connection.
    pub connected: bool,
    /// How the connection goes, where there is one.
    pub path: Option<String>,
    /// What carries frames to it, where more than a stream was tried: the link in use and the medians of 16 KiB echoes.
    pub link: Option<String>,
    /// Round trip, measured or estimated.
    pub rtt_ms: Option<f64>,
    /// Where it can be dialed, as it says.
    pub addresses: Vec<String>,
    /// How busy it is with a model that this node holds, too.
    pub load: Option<PeerLoad>,
    /// The models it offers.
    pub models: Vec<PeerModel>,
}

/// How busy a peer is, as it says.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PeerLoad {
    /// Sessions that compute now.
    pub active: u32,
    /// Sessions at once with which a step takes twice as long as alone.
    pub batch_knee: u32,
    /// How long a job waits.
    pub queue_ms: f64,
    /// Memory left for sessions.
    pub kv_bytes: u64,
}

/// A model that a peer offers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PeerModel {
    /// Its name there.
    pub name: String,
    /// Its id in hex.
    #[serde(default)]
    pub id: String,
    /// Layers of the whole model.
    #[serde(default)]
    pub num_layers: u32,
    /// Those it computes, as `start..end`; none for one it shares as a file.
    #[serde(default)]
    pub layers: Option<Vec<String>>,
}

/// The answer to `receipts`: work done for others and by others, as both sides signed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ReceiptsReport {
    /// The receipts kept, the oldest first.
    pub receipts: Vec<ReceiptReport>,
    /// What they make of each node.
    pub peers: Vec<BalanceReport>,
    /// No line follows: `true` on the socket, left out of `--json`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub end: bool,
}

/// Work that one node did for another.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ReceiptReport {
    /// The session in hex.
    pub session: String,
    /// The node that computed, 64 hex digits.
    pub stage: String,
    /// The node it computed for.
    pub requester: String,
    /// The model's id in hex.
    pub model: String,
    /// The first layer.
    pub start: u32,
    /// The layer after the last one.
    pub end: u32,
    /// Positions of prompts.
    pub prefill_tokens: u32,
    /// Positions computed one by one.
    pub decode_tokens: u32,
    /// Head of the chain of inputs and outputs, in hex.
    pub head: String,
    /// When it ended.
    pub ended_unix_s: u32,
}

/// What the receipts make of a node.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct BalanceReport {
    /// Its name, 64 hex digits.
    pub node: String,
    /// What it did for this node less what this node did for it.
    pub balance: i64,
    /// How its prompts are admitted here.
    pub tier: String,
}

/// The answer to `answers`: what happened to the last prompts that others computed a part of, the newest first.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AnswersReport {
    /// One for each.
    pub answers: Vec<AnswerRecord>,
    /// No line follows: `true` on the socket.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub end: bool,
}

/// The answer to `invite`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct InviteReport {
    /// The code.
    pub code: String,
    /// The swarm's name.
    pub swarm: Option<String>,
    /// The id in hex of the model, where the invited node can fetch it.
    pub model: Option<String>,
    /// Where this node can be dialed.
    pub addresses: Vec<String>,
    /// No line follows: `true` on the socket, left out of `--json`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub end: bool,
}

/// The answer to `pause`, `leave` or `cancel`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SwitchReport {
    /// What is so now.
    #[serde(flatten)]
    pub now: Switched,
    /// No line follows: `true` on the socket, left out of `--json`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub end: bool,
}

/// What a command changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Switched {
    /// Whether new sessions of others are refused.
    Paused(bool),
    /// Whether the node has left.
    Left(bool),
    /// Whether a prompt was stopped.
    Cancelled(bool),
}

impl From<Switched> for SwitchReport {
    fn from(now: Switched) -> Self {
        Self { now, end: true }
    }
}

/// A line of `join --json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum JoinLine {
    /// It answers over HTTP.
    Listening(Listening),
    /// It can be asked from now on.
    Ready(Box<StatusReport>),
    /// A peer connected.
    Joined {
        /// Its name, 64 hex digits.
        node: String,
    },
    /// A peer disconnected.
    Left {
        /// Its name, 64 hex digits.
        node: String,
    },
    /// A model has come and is served.
    Serving {
        /// The node with it.
        #[serde(flatten)]
        status: Box<StatusReport>,
        /// Which model, as the user calls it.
        arrived: String,
    },
    /// Some layers of a model that is being fetched are served already.
    ServingPart {
        /// The node with them.
        #[serde(flatten)]
        status: Box<StatusReport>,
        /// Which model, as the user calls it.
        arrived: String,
    },
    /// It has ended as it was asked to.
    Stopped,
    /// The HTTP side has heard from the node: requests are answered.
    Answering,
    /// It has not, and why.
    Failed {
        /// A sentence.
        message: String,
    },
    /// A model is on its way, and how far.
    #[serde(untagged)]
    Fetching(FetchReport),
}

/// Where a node answers over HTTP.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Listening {
    /// The address, without a path.
    pub url: String,
    /// The page, for the reader of this output.
    pub page: String,
    /// Where the token is kept; `None` where none is needed.
    pub token_file: Option<String>,
}

/// What is known of a node's work.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TrustReport {
    /// Prompts it took part in.
    pub requests: u64,
    /// Those whose checks it passed.
    pub verified: u64,
    /// Times it failed in the middle.
    pub failures: u64,
    /// Times it was wrong.
    pub strikes: u32,
    /// Whether a challenge has to be passed before it is used again.
    pub must_prove: bool,
    /// Whether it gets no prompts now.
    pub barred: bool,
    /// `good`, `quarantined`, `must_prove` or `banned`.
    pub standing: String,
    /// What its receipts make of it.
    pub tier: String,
}

#[cfg(test)]
mod tests {
    use scheduler::governor::Resource;

    use super::*;

    #[test]
    fn every_limit_is_reported_with_what_is_used_of_it() {
        let governor = p2p::Governor::default();
        let held = governor.take_for(scheduler::NodeId::numbered(1), Resource::Bytes, 5).unwrap();
        let reports = LimitReport::all(&governor);
        assert_eq!(reports.len(), Resource::ALL.len());
        let of =
            |resource: Resource| reports.iter().find(|report| report.resource == resource.name()).unwrap();
        assert_eq!((of(Resource::Bytes).used, of(Resource::Bytes).peer_used), (5, 5));
        assert_eq!(of(Resource::Handshakes).peer, None, "who has proved nothing is no peer");
        assert!(of(Resource::Dials).within_ms.is_some() && of(Resource::Bytes).within_ms.is_none());
        let text = serde_json::to_string(&reports).unwrap();
        assert_eq!(serde_json::from_str::<Vec<LimitReport>>(&text).unwrap(), reports);
        drop(held);
        assert_eq!(LimitReport::all(&governor)[Resource::Bytes as usize].used, 0);
    }
}
