//! Which nodes a request is given to at first: those that are more than their own word.
//!
//! Identities are free, so any number of strangers can claim to hold everything and to be fast. A request therefore asks
//! only nodes that were met ([`crate::view`]), as long as a route leads through them; one request in [`EXPLORE`] may also
//! use one stranger, drawn by its seed, so that a newcomer that is never connected gets work. Where no route leads past
//! strangers all that are shown may serve.

use crate::rng::Rng;
use crate::snapshot::Snapshot;
use crate::{NodeId, Request};

/// One request in so many may use a stranger. More and a flood of identities costs more than it can hide; fewer and a
/// newcomer waits longer.
pub const EXPLORE: usize = 20;
/// Keeps this draw apart from the others of a seed.
const SALT: u64 = 0x5354_5241_4e47_4552;

/// `request` with the strangers of `snapshot` barred, but for the one that it explores, if any.
pub fn acquainted(snapshot: &Snapshot, request: &Request) -> Request {
    let mut request = request.clone();
    let strangers = snapshot.hosts().iter().filter(|host| !host.met && Some(host.id) != request.requester);
    let mut strangers: Vec<NodeId> = strangers.map(|host| host.id).collect();
    let mut chance = Rng::new(request.seed ^ SALT);
    if chance.below(EXPLORE) == 0 && !strangers.is_empty() {
        strangers.swap_remove(chance.below(strangers.len()));
    }
    request.policy.deny.extend(strangers);
    request
}

#[cfg(test)]
mod tests {
    use super::{EXPLORE, acquainted};
    use crate::route::route;
    use crate::snapshot::{Host, Links, Snapshot};
    use crate::{LayerRange, LayerSet, ModelId, NodeId, Request, Shape};

    /// Node 1 asks; 2 was met and is slow, the others are strangers and fast. All hold everything.
    fn snapshot(strangers: u64) -> Snapshot {
        let all: LayerSet = LayerRange::new(0, 4).into_iter().collect();
        let mut hosts = vec![
            Host::new(NodeId::numbered(1), LayerSet::default(), 1.0),
            Host::new(NodeId::numbered(2), all.clone(), 9.0),
        ];
        for n in 0..strangers {
            let host = Host::new(NodeId::numbered(3 + n), all.clone(), 0.001);
            hosts.push(Host { met: false, ..host });
        }
        let links = Links::Matrix(vec![1.0; hosts.len() * hosts.len()]);
        Snapshot::new(ModelId::default(), 4, None, hosts, &links).unwrap()
    }

    #[test]
    fn one_request_in_twenty_meets_a_stranger_however_many_there_are() {
        for strangers in [1, 10, 60] {
            let snapshot = snapshot(strangers);
            let requests = 2_000;
            let strange = (0..requests).filter(|seed| {
                let request = Request { seed: *seed, ..Request::new(NodeId::numbered(1), Shape::ONE_TOKEN) };
                let found = route(&snapshot, &acquainted(&snapshot, &request)).unwrap();
                found.pipeline.segments()[0].node != NodeId::numbered(2)
            });
            let share = strange.count() as f64 / requests as f64;
            let expected = 1.0 / EXPLORE as f64;
            assert!((0.6 * expected..1.4 * expected).contains(&share), "{share} with {strangers}");
        }
    }

    #[test]
    fn a_node_itself_is_no_stranger_to_itself() {
        let snapshot = snapshot(3);
        let request = Request { seed: 1, ..Request::new(NodeId::numbered(3), Shape::ONE_TOKEN) };
        assert!(!acquainted(&snapshot, &request).policy.deny.contains(&NodeId::numbered(3)));
    }
}
