//! The swarm as the page sees it: a snapshot, then changes.
//!
//! `GET /swarm` is one [`SwarmSnapshot`]; `GET /swarm/events` begins with [`SwarmEvent::Snapshot`] and goes on with what
//! changes. Names of nodes and models come from strangers: readers must treat them as text.
//!
//! A node is named by its full key in hex (`id`); other fields refer to it by that `id`. Times are milliseconds since 1970.

use serde::{Deserialize, Serialize};

use crate::{choice::Mode, swarm_records::NodeName};

/// What this node believes of the swarm now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SwarmSnapshot {
    /// When this was true.
    pub at_ms: u64,
    /// Version of this node's program.
    pub version: String,
    /// This node.
    pub me: String,
    /// The swarm's name; empty when alone.
    pub swarm: String,
    /// Whether prompts can be answered.
    pub state: NodeState,
    /// Why not, or what is missing.
    pub reason: Option<String>,
    /// How others reach this node.
    pub reachability: Reachability,
    /// All nodes known, this one first.
    pub nodes: Vec<Node>,
    /// All models known.
    pub models: Vec<SwarmModel>,
    /// Prompts of this node in flight.
    pub pipelines: Vec<Pipeline>,
    /// Answers of this node that were complete before they were checked, the last ones, the newest last.
    #[serde(default)]
    pub verdicts: Vec<Verdict>,
    /// What this node gives.
    pub contribution: Contribution,
    /// The mode of requests that name none.
    pub default_mode: Mode,
    /// Every mode with the sentence that says who can read the prompt, and whether it can be used now.
    pub modes: Vec<ModeInfo>,
    /// What the owner of this node calls nodes, whether they are here or not.
    #[serde(default)]
    pub names: Vec<NodeName>,
}

/// Whether a node can answer prompts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    /// Weights are loading or peers are searched.
    #[default]
    Starting,
    /// Yes.
    Ready,
    /// No, and nothing is under way that would change it.
    Unable,
}

/// How others reach this node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reachability {
    /// `direct`, `relayed`, `lan`, `loopback`, `unreachable` or, where there is no swarm, `unknown`.
    pub class: String,
    /// A sentence why.
    pub why: String,
}

/// A node of the swarm.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// Its public key, 64 hex digits.
    pub id: String,
    /// What its owner calls it, else the first 8 digits of the key. A stranger's text.
    pub name: String,
    /// Whether it is this node.
    pub me: bool,
    /// Whether the user named it as trusted.
    pub trusted: bool,
    /// `up`, `suspect` (silent for a while), `paused` (serves no requests), `gone`.
    pub state: String,
    /// `d1` (the same bits as all of that class) or `approx`.
    pub class: String,
    /// The device that computes there, as it says; empty for processors.
    pub device: String,
    /// The way to it.
    #[serde(flatten)]
    pub connection: Connection,
    /// Layers it holds.
    pub holdings: Vec<Holding>,
    /// Milliseconds it takes for one layer and one token, as announced or measured.
    pub layer_ms: Option<f64>,
    /// Memory it offers.
    pub memory_bytes: u64,
    /// Room for sessions it has left.
    pub kv_free_bytes: u64,
    /// Share of its time in use, 0 to 1.
    pub load: f64,
    /// Stages it computed for this node's prompts that were checked and right, and wrong.
    pub checks_passed: u64,
    /// See `checks_passed`.
    pub checks_failed: u64,
}

/// The way from this node to another one, and what went over it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Connection {
    /// How it is connected: `self`, `lan`, `direct`, `relayed`, `loopback`, `none`.
    pub path: String,
    /// Measured round trip.
    pub rtt_ms: Option<f64>,
    /// Bytes received from it by this node.
    pub bytes_in: u64,
    /// Bytes sent to it by this node.
    pub bytes_out: u64,
}

/// Layers a node holds of a model: `start` to `end`, `end` not included.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Holding {
    /// Hash of the model, hex.
    pub model: String,
    /// First layer.
    pub start: u32,
    /// One past the last layer.
    pub end: u32,
}

/// A model that a node of the swarm holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SwarmModel {
    /// Hash of its file, hex.
    pub id: String,
    /// Its name as announced. A stranger's text.
    pub name: String,
    /// Layers.
    pub num_layers: u32,
    /// Bytes of its file.
    pub file_bytes: u64,
    /// Nodes that hold each layer, one number per layer.
    pub holders: Vec<u32>,
    /// Whether every layer has a holder.
    pub complete: bool,
    /// Download of layers to this node under way: bytes so far and in all.
    pub download: Option<(u64, u64)>,
}

/// A prompt in flight and the nodes that compute it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pipeline {
    /// The session, hex.
    pub session: String,
    /// The request id, as in the answer's `id` and the `x-request-id` header.
    pub request: String,
    /// Name of the model.
    pub model: String,
    /// Who can read the prompt.
    pub mode: Mode,
    /// Counts re-plans; 0 is the first plan.
    pub epoch: u32,
    /// Positions computed.
    pub position: u32,
    /// Speed over the last tokens.
    pub tok_s: f64,
    /// The stages in order.
    pub stages: Vec<Stage>,
    /// Nodes that stand by for a stage or check it.
    pub standbys: Vec<Stage>,
    /// Stages lost and replaced so far.
    pub faults_survived: u32,
}

/// What became of checking an answer that was complete before it was checked. Names of nodes are 8 hex digits or `me`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The session, hex.
    pub session: String,
    /// The request id, as in the answer's `id` and the `x-request-id` header.
    pub request: String,
    /// Whether it is still being checked; else this is the last word.
    pub checking: bool,
    /// Nodes that computed parts again and found the same; empty when the check did not come to its end.
    pub checked_by: Vec<String>,
    /// Tokens of the answer whose computation was checked in every stage that others ran.
    pub checked_tokens: usize,
    /// Nodes that were caught computing something else.
    pub convicted: Vec<String>,
    /// The first token that follows from what such a node computed: from there on the answer is not to be relied on.
    pub wrong_from: Option<usize>,
}

/// A node's part of a pipeline.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// Id of the node.
    pub node: String,
    /// First layer.
    pub start: u32,
    /// One past the last layer.
    pub end: u32,
    /// Milliseconds of computing per token.
    pub compute_ms: Option<f64>,
    /// Milliseconds on the way to this stage from the one before.
    pub hop_ms: Option<f64>,
}

/// What this node gives to others, and took.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Contribution {
    /// Whether it serves no requests for now.
    pub paused: bool,
    /// Layers others may use.
    pub layers: Vec<Holding>,
    /// Memory cap.
    pub memory_bytes: Option<u64>,
    /// Threads cap.
    pub threads: Option<u32>,
    /// Upload cap in bytes per second.
    pub upload_bytes_per_s: Option<u64>,
    /// Layer passes computed for others: tokens times layers.
    pub served_layer_tokens: u64,
    /// Prompts of others served a part of.
    pub served_sessions: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Bytes sent.
    pub bytes_out: u64,
}

/// What to change about the contribution; `None` leaves it as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContributionChange {
    /// Stop serving for now, or serve again.
    pub paused: Option<bool>,
    /// Memory cap.
    pub memory_bytes: Option<u64>,
    /// Threads cap.
    pub threads: Option<u32>,
    /// Upload cap.
    pub upload_bytes_per_s: Option<u64>,
}

/// A mode, its honest sentence, and whether it can be used now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModeInfo {
    /// The mode.
    pub mode: Mode,
    /// Who can read the prompt, in one sentence.
    pub sentence: String,
    /// Whether it can be used now.
    pub available: bool,
    /// Why not.
    pub reason: Option<String>,
    /// Whether prompts may go out in it: always where no stranger computes, else once the node's owner agreed.
    #[serde(default)]
    pub agreed: bool,
}

/// A change. JSON has the kind in `type`.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum SwarmEvent {
    /// The full snapshot: the first event, and after the reader fell behind.
    Snapshot {
        /// Everything.
        snapshot: Box<SwarmSnapshot>,
    },
    /// A node appeared or something about it changed; replaces the node of that id.
    Node {
        /// The node.
        node: Box<Node>,
    },
    /// A node is no longer known.
    NodeGone {
        /// Its id.
        node: String,
        /// Why: `left`, `silent`, `lost`, `convicted`.
        why: String,
    },
    /// A model appeared or changed; replaces the model of that id.
    Model {
        /// The model.
        model: SwarmModel,
    },
    /// A prompt began or was re-planned; replaces the pipeline of that session.
    Pipeline {
        /// The pipeline.
        pipeline: Pipeline,
    },
    /// Progress of a prompt, a few times per second at most.
    Progress {
        /// The session.
        session: String,
        /// Positions computed.
        position: u32,
        /// Speed over the last tokens.
        tok_s: f64,
        /// Milliseconds per stage, in the pipeline's order: on the way there, and computing.
        stages_ms: Vec<(Option<f64>, Option<f64>)>,
    },
    /// A stage was lost; the replacement follows in [`SwarmEvent::Pipeline`] of the next epoch.
    Failover {
        /// When.
        at_ms: u64,
        /// The session.
        session: String,
        /// The epoch that begins.
        epoch: u32,
        /// The node lost.
        lost: String,
        /// The node that takes over.
        replacement: String,
        /// Its layers: first, and one past the last.
        layers: (u32, u32),
        /// The position at which it happened.
        position: u32,
        /// How long the answer stood still.
        stall_ms: f64,
        /// What was noticed: `closed`, `timeout`, `refused`, `wrong`.
        why: String,
    },
    /// A prompt ended.
    PipelineEnded {
        /// The session.
        session: String,
        /// `stop`, `length`, `cancelled` or `failed`.
        why: String,
    },
    /// An answer that is complete is being checked, or was; replaces the verdict of that session.
    Checked {
        /// What is known of it.
        verdict: Verdict,
    },
    /// The contribution changed.
    Contribution {
        /// As it is now.
        contribution: Contribution,
    },
    /// Whether prompts can be answered changed.
    State {
        /// As it is now.
        state: NodeState,
        /// Why not.
        reason: Option<String>,
    },
}
