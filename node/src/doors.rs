//! The governor of this process: other nodes and the clients of this machine under one table.
//!
//! [`scheduler::governor`] is the table; [`p2p::Governor`] the handle that the doors of the network, of the daemon and of its
//! socket ask. The API knows neither and asks [`ClientDoors`]. What may differ from the table is what the operator says
//! ([`limits`]).

use std::time::Duration;

use api::doors::{Door, Doors, Full, Pass, Standing};
use futures::future::BoxFuture;
use p2p::Governor;
use scheduler::{
    NodeId,
    governor::{Holder, Limits, Resource},
};

/// A connection that waits for a place is counted as refused this often.
const PATIENCE: Duration = Duration::from_secs(60);

/// The limits of a process whose API gives so many answers at a time and whose sessions have so much memory for caches.
pub fn limits(answers: Option<usize>, kv_bytes: Option<u64>) -> Limits {
    let mut limits = Limits::default();
    if let Some(answers) = answers.map(|answers| answers as u64) {
        limits = limits.set(Resource::Answers, [answers, answers, (answers - answers / 4).max(1)]);
    }
    if let Some(most) = kv_bytes.map(|bytes| bytes / 4) {
        let row = *limits.of(Resource::StandbyBytes);
        limits = limits
            .set(Resource::StandbyBytes, [row.node.min(most), row.prefix.min(most), row.peer.min(most)]);
    }
    limits
}

/// The doors of the API under a governor.
#[derive(Debug)]
pub struct ClientDoors(pub Governor);

const fn resource(door: Door) -> Resource {
    match door {
        Door::Connections => Resource::HttpConnections,
        Door::BodyBytes => Resource::HttpBytes,
        Door::Answers => Resource::Answers,
    }
}

/// Who holds something by a key: its name in the place of a node's.
fn holder(key: Option<&str>) -> Holder {
    let name = |key: &str| {
        NodeId::new(
            *blake3::Hasher::new_derive_key("shoal/api-key/1").update(key.as_bytes()).finalize().as_bytes(),
        )
    };
    Holder { prefix: None, peer: key.map(name) }
}

impl Doors for ClientDoors {
    fn take(&self, door: Door, key: Option<&str>, amount: u64) -> Result<Pass, Full> {
        let taken = self.0.take(holder(key), resource(door), amount);
        taken.map(Pass::new).map_err(|refused| Full { most: refused.limit })
    }

    fn wait(&self, door: Door, amount: u64) -> BoxFuture<'static, Pass> {
        let governor = self.0.clone();
        Box::pin(async move {
            loop {
                let taken = governor.wait(Holder::default(), resource(door), amount, PATIENCE).await;
                if let Ok(permit) = taken {
                    return Pass::new(permit);
                }
            }
        })
    }

    fn standing(&self, door: Door) -> Standing {
        let usage = self.0.usage();
        let row = usage.iter().find(|row| row.limit.resource == resource(door));
        row.map_or_else(Standing::default, |row| Standing {
            most: row.limit.node,
            used: row.used,
            refused: row.refused,
        })
    }
}

#[cfg(test)]
mod tests {
    use api::doors::Alone;
    use scheduler::governor::Scope;

    use super::*;

    #[test]
    fn the_table_has_the_limits_of_a_server_alone() {
        let doors = ClientDoors(Governor::default());
        let most = Door::ALL.map(|door| doors.standing(door).most);
        assert_eq!(most, Alone::DEFAULT);
        assert!(Door::ALL.into_iter().all(|door| resource(door).is_of_clients()));
    }

    #[test]
    fn the_holder_of_a_key_leaves_room_for_the_owner() {
        let doors = ClientDoors(Governor::new(limits(Some(4), None)));
        let held: Vec<Pass> = (0..3).map(|_| doors.take(Door::Answers, Some("guest"), 1).unwrap()).collect();
        assert_eq!(doors.take(Door::Answers, Some("guest"), 1).unwrap_err(), Full { most: 3 });
        let own = doors.take(Door::Answers, None, 1).unwrap();
        assert_eq!(doors.take(Door::Answers, None, 1).unwrap_err(), Full { most: 4 });
        assert_eq!(doors.standing(Door::Answers), Standing { most: 4, used: 4, refused: 2 });
        drop((held, own));
        assert_eq!(doors.0.used(Resource::Answers, Scope::Node), 0);
    }

    #[test]
    fn little_memory_for_caches_leaves_little_for_standing_by() {
        let small = limits(None, Some(8 << 20));
        assert_eq!(small.of(Resource::StandbyBytes).node, 2 << 20);
        assert_eq!(limits(None, Some(64 << 30)), Limits::default());
    }
}
