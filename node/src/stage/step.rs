//! What a stage did at one position, as digests: what it signs for, and what a later session that goes on from there signs for again.

use p2p::wire::receipt::Row;

/// What went in at a position and what came out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Step {
    pub(super) input: Row,
    pub(super) output: Row,
}
