//! What a session's task is told by the rest of its node.

use p2p::wire::control::{Answer, Contact, Lease, Settlement};
use scheduler::{LayerRange, NodeId, Segment, lease::Load, recover::Failure, session::Standbys};
use tokio::sync::oneshot;

use crate::audit::Audit;

/// A stream to a neighbor broke.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Loss {
    /// Whose it was.
    pub node: NodeId,
    /// Which of the streams that the session has had.
    pub(super) outbox: u64,
}

/// What a session's task is told by the rest of the node.
#[derive(Debug)]
pub enum Order {
    /// To a stage: serve this.
    Lease {
        /// The terms.
        lease: Box<Lease>,
        /// Where the answer goes.
        answer: oneshot::Sender<Answer>,
    },
    /// To a stage: the requester needs no more what it leased under this epoch or a lower one.
    Release {
        /// Which.
        epoch: u32,
    },
    /// To a stage: its place is taken back; the requester is told why where that helps it.
    End {
        /// Why.
        told: Option<&'static str>,
    },
    /// To a stage: the bill, please.
    Settle {
        /// What follows a stage computes so many positions first.
        upto: u32,
        /// Where it goes.
        answer: oneshot::Sender<Answer>,
    },
    /// To a conductor: what a stage says at the end; nothing when it did not answer.
    Settled {
        /// Who.
        node: NodeId,
        /// By range of layers.
        settled: Vec<Settlement>,
    },
    /// To a conductor: what an own computation says of what the log has of these layers.
    Audited {
        /// Which layers.
        layers: LayerRange,
        /// Which audit of the session.
        round: u32,
        /// What it says; `None` when it could not be done.
        found: Option<Audit>,
    },
    /// To a conductor: a stage promised, or not.
    Opened {
        /// Index of the stage; `None` for a shadow.
        stage: Option<usize>,
        /// Under which epoch it was asked.
        epoch: u32,
        /// For which layers.
        layers: LayerRange,
        /// Who was asked.
        node: NodeId,
        /// Its KV length, or why not.
        answer: Result<u32, Failure>,
        /// How busy it says it is; nothing of the own worker.
        load: Option<Load>,
    },
    /// To a conductor: another pipeline, if there is one.
    Rerouted(Option<Rerouted>),
    /// A way out broke; `PeerStreams::lost` says whether it was still in use.
    Lost(Loss),
    /// To a conductor: its own worker is gone.
    Workless,
    /// To a conductor: whether a node answered a ping.
    Pinged(NodeId, bool),
    /// A neighbor is reached another way than before.
    Detoured(NodeId),
    /// To a conductor: the user does not want it any more.
    Cancel,
}

/// A node that gets the state of its layers from another one, as the route was planned.
#[derive(Clone, PartialEq, Debug)]
pub struct PlannedSource {
    /// Who lacks the state of what.
    pub segment: Segment,
    /// Who has it.
    pub contact: Contact,
    /// What computing it would take, ms.
    pub worth_ms: f64,
    /// Bytes of a position of it.
    pub state_bytes: u64,
}

/// Who shall run it from now on, who stands by, where they are, and who gets the state of its layers from whom.
pub type Rerouted = (scheduler::Pipeline, Standbys, Vec<Contact>, Vec<PlannedSource>);
