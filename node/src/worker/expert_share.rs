//! Which experts of its layers a worker loads, and how it reaches the others.

use scheduler::{ExpertRange, NodeId};
use tokio::sync::{mpsc, oneshot, watch};

/// Which experts of its layers a node holds, and who computes the others.
#[derive(Clone, Debug)]
pub struct ExpertShare {
    /// Those it holds.
    pub range: ExpertRange,
    /// Nodes that compute the others for it. None for a node that computes for those that lead, and runs no layer itself.
    pub from: Vec<NodeId>,
    /// The way to them, once there is one.
    pub asks: Option<ExpertAsks>,
}

/// How a worker reaches the experts that it lacks.
#[derive(Clone, Debug)]
pub struct ExpertAsks {
    /// Where its questions go.
    pub questions: mpsc::Sender<ExpertQuestion>,
    /// What layers take longer for it; while not all experts are found, what is missing, for people.
    pub found: watch::Receiver<Result<ExpertTimes, String>>,
}

/// What experts elsewhere add to a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertTimes {
    /// To a step, ms.
    pub decode_ms: f64,
    /// To a row of a prompt, ms.
    pub prefill_ms: f64,
}

/// Rows that a worker has no experts for, as [`p2p::wire::experts::Work::encode`] writes them.
#[derive(Debug)]
pub struct ExpertQuestion {
    /// They.
    pub work: Vec<u8>,
    /// Where the outputs go, or why there are none.
    pub reply: oneshot::Sender<Result<Vec<u8>, String>>,
}

impl ExpertShare {
    /// What others add to a layer of a node that leads; `None` while it cannot run its layers, which one that leads none never can.
    pub fn times(&self) -> Option<ExpertTimes> {
        self.asks.as_ref().and_then(|asks| asks.found.borrow().as_ref().ok().copied())
    }

    /// What a node that leads lacks of others, for people.
    pub fn lacking(&self) -> Option<String> {
        self.asks.as_ref().and_then(|asks| asks.found.borrow().as_ref().err().cloned())
    }
}
