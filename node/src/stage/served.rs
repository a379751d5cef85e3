//! What a stage tells the daemon of its work.

use scheduler::{ModelId, NodeId, SessionId, door::Key};

/// What a stage did, for the daemon's books.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Served {
    /// Rows computed and bytes that crossed the network for them.
    Rows {
        /// Positions computed.
        rows: u32,
        /// Layers each went through.
        layers: u32,
        /// Bytes received.
        bytes_in: u64,
        /// Bytes sent.
        bytes_out: u64,
    },
    /// A frame's output left.
    Waited {
        /// From the frame's arrival, computing not counted.
        ms: f64,
    },
    /// A lease is used.
    Sign(Key, Sign),
    /// A node gave a state that is not what its rows give.
    Misled {
        /// Who.
        by: NodeId,
        /// Of which model.
        model: ModelId,
    },
    /// A session ended.
    Ended(SessionId),
}

/// How a lease is used, as far as the door wants to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sign {
    /// It was granted: from now on it must be used.
    Granted,
    /// The requester's beacon came: it waits for rows of its own.
    Beacon,
    /// Rows came; told once a second at most.
    Rows,
}
