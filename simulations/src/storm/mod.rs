//! Storms: short stories of a few machines, told message by message.
//!
//! Where [`crate::run`] counts visits of thousands, a storm delivers every frame: latency, jitter, loss, duplicates,
//! reordering, partitions, NATs and relays, clocks that run off and leap, machines that crash, freeze, slow down, boast
//! or pretend. Every machine has its own [`scheduler::SwarmView`], fed by announcements that are late or lost, and its own
//! clock, on which it expires what it heard and waits for deadlines. What decides is the scheduler's own code:
//!
//! ```text
//!   requester   view, route, standby, lease, session + recover, trust
//!   machine     admit (leases), epochs, place::Keeper
//! ```
//!
//! Safety ([`checks`]) is asked at every event. At [`options::Options::heal_ms`] everything heals, and liveness is asked:
//! whatever is under way ends within [`BOUND_MS`], and a fresh request of everybody is then served whole. Last, when
//! leases have run out, slots and memory balance.
//!
//! ```
//! let report = simulations::storm::run(&simulations::storm::Options::draw(7));
//! assert!(report.violations.is_empty(), "{report:?}");
//! ```
//!
//! Limits: one model of a few layers, frames carry hashes instead of tensors; requesters do not crash (their journal is
//! not the scheduler's business); machines that lie about results are the subject of [`crate::byzantine`].

pub mod checks;
pub mod net;
pub mod options;
pub mod stage;
mod swarm;

pub use options::Options;
pub use swarm::{BOUND_MS, run};

/// What came of a storm.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Report {
    /// What must not happen and did; empty in every storm.
    pub violations: Vec<String>,
    /// Requests that began, ended whole, were given up, and were cancelled.
    pub requests: (u32, u32, u32, u32),
    /// Tokens given to users.
    pub tokens: u64,
    /// Times an epoch rose after a session had begun.
    pub failovers: u64,
    /// Frames sent to a shadow because a stage was late.
    pub hedges: u64,
    /// Routes given back because a node was busier than believed.
    pub looks: u64,
    /// Leases refused.
    pub refused: u64,
    /// Placement moves.
    pub moves: u64,
    /// Announcements delivered.
    pub announcements: u64,
    /// Longest gap between two tokens of each whole request, ms.
    pub stalls_ms: Vec<u64>,
    /// True time it took, ms.
    pub ms: u64,
    /// Events taken in.
    pub events: u64,
}
