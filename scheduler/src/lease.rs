//! What the answer to a lease teaches: a node's true load, and whether to look for another route.
//!
//! Announcements are seconds old, so in a rush every requester sees the same idle node and goes there. A node that is
//! asked for a lease therefore answers with the sessions it has *now* ([`Load`]), and the requester:
//!
//! 1. remembers it ([`Leases::heard`]) until the next announcement can be expected to say so too; meanwhile its routes
//!    price the difference ([`Leases::amend`]);
//! 2. gives the leases back and routes again if a node turned out busier than was believed ([`Verdict::Again`]), for
//!    [`LOOKS`] routes in all, because every look costs a round trip;
//! 3. takes the best of what it has seen when it looks for the last time ([`Leases::settle`]);
//! 4. does not ask a node again that has just refused ([`Leases::refused`]);
//! 5. routes again, too, where a node that it never measured before turns out to be further away than it says ([`is_further`]).
//!
//! ```text
//!   route ──▶ ask every node of it ──▶ heard ──▶ Verdict::Take ──▶ session
//!     ▲                                  │
//!     └─ amend, last settle ◀── Again ◀──┘
//! ```
//!
//! "Busier" is: by more sessions than believed than a sixteenth of the node's knee, an eighth of a step in the price
//! of load ([`crate::cost`]). Two requesters that look at the same moment may still collide; the second look of
//! either sees the other.
//!
//! Why the last look settles. The least loaded of a few choices that were really looked at is nearly as good as the
//! least loaded of all: with d choices out of n the fullest exceeds the mean by ln ln n / ln d, whatever the mean
//! (Azar, Broder, Karlin and Upfal, *Balanced allocations*, SIAM J. Comput. 29, 1999; Berenbrink, Czumaj, Steger and
//! Vöcking, *Balanced allocations: the heavily loaded case*, 2000). Without looking, the node that seems idlest is
//! the one whose news is oldest (Mitzenmacher, *How useful is old information?*, 2000). So a last look that went by
//! announcements again would undo the others: it went to the one node that no request had looked at. With eight equal
//! machines and a crowd the fullest had up to
//! 1.85 times the mean at a run's p99 that way, and has at most 1.5 times now that the last look settles.
//!
//! The daemon does not settle yet: its last look is amended like those before it.
//!
//! One [`Leases`] belongs to one requesting node and serves all its requests. It remembers [`MOST`] nodes; beyond, what
//! was heard first is forgotten, which costs at worst one more look.

use std::collections::BTreeMap;

use crate::{Millis, NodeId, Request};

/// How long an answer counts, ms: by then the node's next announcement has come.
pub const HEARD_MS: u64 = 5_000;
/// How long a node that refused is left alone, ms. Shorter and a full node is asked by every request of a rush; longer
/// and it idles after the rush.
pub const REFUSED_MS: u64 = 2_000;
/// Routes tried for one request; the last one is taken as it is. With one less a request settles before it has seen enough (in
/// the simulated thousand strangers the slowest first tokens come 6 % later); each more costs a round trip.
pub const LOOKS: u32 = 5;
/// Nodes remembered.
pub const MOST: usize = 4_096;

/// Whether a node is so much further than was believed that another route is worth a look: twice as far, and by more than a busy
/// machine takes to answer. Who says that it stands elsewhere is believed until it was measured once.
pub fn is_further(believed_ms: f64, measured_ms: f64) -> bool {
    measured_ms > 2.0 * believed_ms + 20.0
}

/// What a node says when it grants a lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Load {
    /// Who.
    pub node: NodeId,
    /// Sessions that count on it now, the one asked for not included.
    pub sessions: u32,
    /// Rows that take as long as one step there; its announced `batch_knee`.
    pub lanes: u32,
}

/// What to do with the leases just granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Start.
    Take,
    /// Give them back, [`Leases::amend`] the request and route again.
    Again,
}

/// What one requester heard from nodes it asked. See the module's page.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Leases {
    heard: BTreeMap<NodeId, (Millis, u32)>,
    refused: BTreeMap<NodeId, Millis>,
}

impl Leases {
    /// Notes the answers of all nodes of a route and says whether to take it. `looks` counts the routes tried for this
    /// request before; `announced` is the number of sessions a node last announced.
    pub fn heard(
        &mut self,
        now: Millis,
        looks: u32,
        answers: &[Load],
        announced: impl Fn(NodeId) -> u32,
    ) -> Verdict {
        let mut crowded = false;
        for answer in answers {
            let believed = self.sessions(now, answer.node).unwrap_or(0).max(announced(answer.node));
            crowded |= answer.sessions > believed.saturating_add(answer.lanes / 16);
            remember(&mut self.heard, now, answer.node, (now, answer.sessions), |entry| entry.0, HEARD_MS);
        }
        if crowded && looks + 1 < LOOKS {
            return Verdict::Again;
        }
        // From now on the one that asked counts there, too.
        for answer in answers {
            if let Some(entry) = self.heard.get_mut(&answer.node) {
                entry.1 = entry.1.saturating_add(1);
            }
        }
        Verdict::Take
    }

    /// Notes that a node would not serve.
    pub fn refused(&mut self, now: Millis, node: NodeId) {
        remember(&mut self.refused, now, node, now, |at| *at, REFUSED_MS);
    }

    /// A place at this node was given back: it may be asked again.
    pub fn freed(&mut self, node: NodeId) {
        self.refused.remove(&node);
    }

    /// Whether a node has granted a lease lately.
    pub fn serves(&self, now: Millis, node: NodeId) -> bool {
        self.sessions(now, node).is_some()
    }

    /// Forgets what a node said: it may have been started again.
    pub fn forget(&mut self, node: NodeId) {
        self.heard.remove(&node);
        self.refused.remove(&node);
    }

    /// Adds what was heard to a request: the sessions beyond the announced ones, and whom not to ask.
    pub fn amend(&self, now: Millis, request: &mut Request, announced: impl Fn(NodeId) -> u32) {
        for node in self.heard.keys() {
            let more = self.sessions(now, *node).unwrap_or(0).saturating_sub(announced(*node));
            if more > 0 {
                match request.in_flight.iter_mut().find(|entry| entry.0 == *node) {
                    Some(entry) => entry.1 = entry.1.max(more),
                    None => request.in_flight.push((*node, more)),
                }
            }
        }
        let refused = self.refused.iter().filter(|(_, at)| now.since(**at) < REFUSED_MS);
        request.policy.deny.extend(refused.map(|entry| *entry.0));
    }

    /// As [`Leases::amend`] for the last of [`LOOKS`]: only nodes that answered since `since`, when the request began to look,
    /// may serve, priced by what they said. If that leaves no route, because one of them has refused since, the last look is
    /// one like the others.
    pub fn settle(
        &self,
        now: Millis,
        since: Millis,
        request: &mut Request,
        announced: impl Fn(NodeId) -> u32,
    ) {
        self.amend(now, request, announced);
        let looked = self.heard.iter().filter(|(_, (at, _))| *at >= since).map(|entry| *entry.0);
        request.policy.allow = Some(match &request.policy.allow {
            Some(allowed) => looked.filter(|node| allowed.contains(node)).collect(),
            None => looked.collect(),
        });
    }

    /// What a node said lately.
    fn sessions(&self, now: Millis, node: NodeId) -> Option<u32> {
        self.heard.get(&node).filter(|(at, _)| now.since(*at) < HEARD_MS).map(|entry| entry.1)
    }
}

/// Keeps an entry; at [`MOST`] those of no use any more go first, then the oldest.
fn remember<T>(
    entries: &mut BTreeMap<NodeId, T>,
    now: Millis,
    node: NodeId,
    entry: T,
    at: impl Fn(&T) -> Millis,
    lasts_ms: u64,
) {
    if entries.len() >= MOST && !entries.contains_key(&node) {
        entries.retain(|_, old| now.since(at(old)) < lasts_ms);
        if entries.len() >= MOST
            && let Some(oldest) = entries.iter().min_by_key(|(_, old)| at(old)).map(|entry| *entry.0)
        {
            entries.remove(&oldest);
        }
    }
    entries.insert(node, entry);
}

#[cfg(test)]
mod tests {
    use super::{HEARD_MS, LOOKS, Leases, Load, MOST, REFUSED_MS, Verdict, is_further};
    use crate::{Millis, NodeId, Request, Shape};

    fn load(node: u64, sessions: u32) -> Load {
        Load { node: NodeId::numbered(node), sessions, lanes: 4 }
    }

    fn amended(leases: &Leases, now: u64, announced: u32) -> Request {
        let mut request = Request::new(NodeId::numbered(9), Shape::ONE_TOKEN);
        leases.amend(Millis(now), &mut request, |_| announced);
        request
    }

    #[test]
    fn a_rush_is_seen_once_and_priced_until_it_is_announced() {
        let mut leases = Leases::default();
        let crowd = [load(1, 7), load(2, 3)];
        assert_eq!(leases.heard(Millis(0), 0, &crowd, |_| 0), Verdict::Again);
        assert_eq!(amended(&leases, 1, 0).in_flight, [(NodeId::numbered(1), 7), (NodeId::numbered(2), 3)]);
        // The same answer again is no surprise, neither is one that was announced. Who takes a lease counts from then on.
        assert_eq!(leases.heard(Millis(2), 1, &crowd, |_| 0), Verdict::Take);
        assert_eq!(Leases::default().heard(Millis(2), 0, &crowd, |_| 7), Verdict::Take);
        assert_eq!(amended(&leases, 3, 5).in_flight, [(NodeId::numbered(1), 3)]);
        assert_eq!(amended(&leases, 2 + HEARD_MS, 0).in_flight, []);
    }

    #[test]
    fn twice_as_far_is_further() {
        assert!(!is_further(5.0, 25.0) && !is_further(100.0, 200.0));
        assert!(is_further(5.0, 31.0) && is_further(100.0, 221.0));
    }

    #[test]
    fn small_surprises_and_the_last_look_are_taken() {
        let heard = |looks, sessions, lanes| {
            let answer = Load { lanes, ..load(1, sessions) };
            Leases::default().heard(Millis(0), looks, &[answer], |_| 2)
        };
        assert_eq!((heard(0, 2, 4), heard(0, 3, 4)), (Verdict::Take, Verdict::Again));
        assert_eq!((heard(0, 3, 16), heard(0, 4, 16)), (Verdict::Take, Verdict::Again));
        assert_eq!((heard(LOOKS - 2, 90, 4), heard(LOOKS - 1, 90, 4)), (Verdict::Again, Verdict::Take));
    }

    /// Three were looked at, one of them before this request; the idlest of the others serves, and no unseen one.
    #[test]
    fn the_last_look_settles_for_the_best_of_what_was_seen() {
        let mut leases = Leases::default();
        leases.heard(Millis(0), 0, &[load(1, 5)], |_| 0);
        leases.heard(Millis(10), 0, &[load(2, 9)], |_| 0);
        leases.heard(Millis(20), 1, &[load(3, 6)], |_| 0);
        let settled = |allow: Option<&[u64]>| {
            let mut request = Request::new(NodeId::numbered(9), Shape::ONE_TOKEN);
            request.policy.allow =
                allow.map(|allow| allow.iter().map(|node| NodeId::numbered(*node)).collect());
            leases.settle(Millis(30), Millis(10), &mut request, |_| 2);
            request
        };
        let only = |nodes: &[u64]| Some(nodes.iter().map(|node| NodeId::numbered(*node)).collect());
        assert_eq!(settled(None).policy.allow, only(&[2, 3]));
        assert_eq!(settled(Some(&[1, 3, 4])).policy.allow, only(&[3]));
        let more = [1, 2, 3].map(NodeId::numbered).into_iter().zip([3, 7, 4]).collect::<Vec<_>>();
        assert_eq!(settled(None).in_flight, more);
    }

    #[test]
    fn who_refused_is_left_alone_for_a_while() {
        let mut leases = Leases::default();
        leases.refused(Millis(0), NodeId::numbered(3));
        assert!(amended(&leases, REFUSED_MS - 1, 0).policy.deny.contains(&NodeId::numbered(3)));
        assert!(amended(&leases, REFUSED_MS, 0).policy.deny.is_empty());
    }

    #[test]
    fn memory_is_bounded() {
        let mut leases = Leases::default();
        for node in 0..2 * MOST as u64 {
            leases.heard(Millis(1), 0, &[load(node, 1)], |_| 0);
            leases.refused(Millis(1), NodeId::numbered(node));
        }
        assert_eq!((leases.heard.len(), leases.refused.len()), (MOST, MOST));
    }
}
