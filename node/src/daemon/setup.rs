//! The settings a node is started with, and the notices it sends back.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use api::inference::ModelInfo;
use p2p::{Governor, Identity, Network, invite::Invite};
use scheduler::{LayerRange, Millis, ModelId, NodeId};
use tokio::sync::{mpsc, watch};

use crate::{
    control::Call,
    reports::{FetchReport, StatusReport},
    request::Recollections,
    worker,
};

/// What the user wants this node to be.
pub struct Setup {
    /// Its data folder.
    pub home: PathBuf,
    /// Its key.
    pub identity: Identity,
    /// How it reaches others.
    pub network: p2p::Config,
    /// What every door asks; its limits hold, not those of `network`.
    pub governor: Governor,
    /// How to run it.
    pub worker: worker::Spec,
    /// Layers to offer to others.
    pub serve: Serve,
    /// Its model, the first of those that it holds.
    pub model: FirstModel,
    /// What an invite from this node says about the swarm.
    pub invite: Invite,
    /// Set when the model is not on this disk, or not whole: then it is fetched while the node runs, and what else is said
    /// here of the model's file means nothing.
    pub absent: Option<Absent>,
    /// Models it holds beside the first, at most [`super::MOST_BESIDE`].
    pub beside: Vec<Beside>,
    /// What it may take from this machine for others.
    pub caps: Caps,
    /// For the API.
    pub front: Front,
    /// The model that drafts for its prompts, if one does.
    pub drafter: Option<DraftWith>,
    /// Whether running answers are kept on disk so that a crash does not lose them.
    pub keeps: bool,
    /// What its ended prompts left behind.
    pub memory: Recollections,
}

/// What is known of a node's first model before it is loaded.
#[derive(Clone, Copy, Debug)]
pub struct FirstModel {
    /// Its name by content.
    pub id: ModelId,
    /// Its layers.
    pub num_layers: u32,
    /// Length of its file.
    pub file_bytes: u64,
}

/// A model that drafts, on this disk or in the binary.
pub struct DraftWith {
    /// What the user called it.
    pub name: String,
    /// Where it is.
    pub source: worker::Source,
    /// Length of its file, which counts as memory for weights.
    pub file_bytes: u64,
}

/// What all parts of a running node share; cheap to clone.
#[derive(Clone)]
pub(super) struct Node {
    /// Its name.
    pub(super) me: NodeId,
    /// The way to others.
    pub(super) network: Network,
    /// Its key.
    pub(super) identity: Identity,
    /// When it started.
    pub(super) started: Instant,
    /// Until when its first peers may still be on their way; `None` where none can be.
    pub(super) peers_by: Option<Instant>,
}

/// How long a node waits for peers that it dials until it says that no node holds a model: a hole through two routers takes some of it.
const FIRST_PEERS: Duration = Duration::from_secs(15);
/// The same for neighbors that answer when it asks who is there: they do so within a second, and are dialed then.
const FIRST_NEIGHBORS: Duration = Duration::from_secs(4);

/// How long the first peers of a node may be on their way, if there can be any.
pub(super) fn first_peers(network: &p2p::Config) -> Option<Duration> {
    let neighbors = network.mdns.then_some(FIRST_NEIGHBORS);
    if network.knows_peers() { Some(FIRST_PEERS) } else { neighbors }
}

impl Node {
    /// A node that starts now.
    pub(super) fn new(network: Network, identity: Identity) -> Self {
        Self { me: network.me(), network, identity, started: Instant::now(), peers_by: None }
    }

    /// The same, ready now, whose first peers may be on their way for so long.
    pub(super) fn joining(self, first_peers: Option<Duration>) -> Self {
        Self { peers_by: first_peers.map(|wait| Instant::now() + wait), ..self }
    }

    /// Time since the start, which is the clock of everything this node measures.
    pub(super) fn now(&self) -> Millis {
        Millis(self.started.elapsed().as_millis() as u64)
    }
}

/// A model held beside the first: loaded, or fetched, while the node runs.
pub struct Beside {
    /// Where it is.
    pub place: Where,
    /// Layers of it to offer to others.
    pub serve: Serve,
    /// For the API.
    pub about: ModelInfo,
}

/// A model that is not on this disk, or not whole.
#[derive(Clone, Debug)]
pub struct Absent {
    /// Its id, where that is known.
    pub id: Option<ModelId>,
    /// What it is called: where it is not known, how it must be announced.
    pub name: String,
    /// Mirrors that have it too.
    pub from: Vec<String>,
    /// Whether the first and the last layer are fetched as well, so that own prompts can keep them at home.
    pub ends: bool,
}

/// Where a model is that is not in memory yet.
#[derive(Clone, Debug)]
pub enum Where {
    /// In a file of this machine, or in the binary.
    Here {
        /// Its id.
        id: ModelId,
        /// The file.
        source: worker::Source,
    },
    /// Elsewhere, or not whole.
    Away(Absent),
}

impl Where {
    /// Its id, where that is known.
    pub fn id(&self) -> Option<ModelId> {
        match self {
            Self::Here { id, .. } => Some(*id),
            Self::Away(absent) => absent.id,
        }
    }
}

/// What the API needs to know of a node that the node itself has no use for.
pub struct Front {
    /// Its model, as its file describes it.
    pub about: ModelInfo,
    /// The swarm's name.
    pub swarm: String,
    /// Where the way to the running node is put once it takes questions, for an API in the same process.
    pub door: Option<watch::Sender<Option<mpsc::Sender<Call>>>>,
}

/// What a node may take from its machine. Threads and memory for sessions are the worker's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Sessions and prompts of other nodes at a time; one more is refused.
    pub sessions: usize,
    /// Disk for all pulled models together; `None` for what is free.
    pub disk_bytes: Option<u64>,
    /// Memory for the weights of all models together; `None` for no bound. The first model's count, and are loaded in any
    /// case when they are on this disk.
    pub weights_bytes: Option<u64>,
    /// Models sent, bytes per second.
    pub upload_bytes_per_s: Option<u64>,
    /// Models received, bytes per second.
    pub download_bytes_per_s: Option<u64>,
    /// A model that nothing has needed for so long is unloaded; none without.
    pub unload_after: Option<Duration>,
}

impl Default for Caps {
    /// Four strangers' sessions; of the rest what there is.
    fn default() -> Self {
        let (disk_bytes, weights_bytes) = (None, None);
        let (upload_bytes_per_s, download_bytes_per_s) = (None, None);
        Self {
            sessions: 4,
            disk_bytes,
            weights_bytes,
            upload_bytes_per_s,
            download_bytes_per_s,
            unload_after: None,
        }
    }
}

/// Which layers a node offers to others.
#[derive(Clone, Debug)]
pub enum Serve {
    /// These; none to only ask.
    These(Vec<LayerRange>),
    /// The ones the swarm lacks most, so many at most.
    Scarcest(u32),
}

/// What the node tells its starter.
#[derive(Clone, Debug)]
pub enum Notice {
    /// It can be asked from now on.
    Ready(Box<StatusReport>),
    /// A peer connected.
    Joined(NodeId),
    /// A peer disconnected.
    Left(NodeId),
    /// The model is on its way, and how far.
    Fetching(FetchReport),
    /// The model has come and is served.
    Serving {
        /// The node with it.
        status: Box<StatusReport>,
        /// Which model: the first of the list is not always the one that came.
        arrived: String,
        /// False when only some layers are, and more are being fetched.
        whole: bool,
    },
    /// It has ended as it was asked to.
    Stopped,
}
