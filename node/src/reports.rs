//! What a node says of itself and of the nodes it knows: the answers to `view` and `peers`.
//!
//! As [`crate::events`], these are the lines of the control socket and of `--json`; names come from strangers and are text.

use api::{inference::ModelInfo, swarm::SwarmSnapshot};
use scheduler::governor::{Measure, UNLIMITED, Usage};
use serde::{Deserialize, Serialize};

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
}

/// A limit on what other nodes may hold or spend of this one, and what they do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LimitReport {
    /// Of what.
    pub resource: String,
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
    /// Its program and version, as it says.
    pub agent: String,
    /// What is known of its work.
    pub trust: TrustReport,
    /// How exactly it computes: `exact` or `approx`.
    pub class: String,
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
    /// Sessions at once from which on each takes longer.
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
