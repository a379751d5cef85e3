//! Who keeps the records of a swarm.

use futures::future::BoxFuture;

use super::Failure;
use crate::swarm_records::{AnswerRecord, History, Invite, NodeName};

/// Who keeps records of a swarm for the owner of a node. Methods that do not return a future may wait for a disk.
pub trait SwarmRecords: Send + Sync + 'static {
    /// Keeps what a node is called, or forgets it where there is nothing to keep.
    ///
    /// # Errors
    /// When there are too many names, and those of writing.
    fn name(&self, name: NodeName) -> Result<(), Failure>;

    /// How it went in the last days, at most [`crate::swarm_records::MAX_DAYS`].
    ///
    /// # Errors
    /// Those of reading.
    fn history(&self, days: u32) -> Result<History, Failure>;

    /// The last answers that this node conducted, the newest first.
    ///
    /// # Errors
    /// When the node does not answer.
    fn answers(&self) -> BoxFuture<'static, Result<Vec<AnswerRecord>, Failure>>;

    /// A code for a friend.
    ///
    /// # Errors
    /// When the node does not answer.
    fn invite(&self) -> BoxFuture<'static, Result<Invite, Failure>>;
}
