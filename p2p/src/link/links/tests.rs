//! What comes for a session: from where, and by whom.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use libp2p::swarm::ConnectionId;
use scheduler::NodeId;
use scheduler::governor::Resource;

use super::Links;
use crate::config::Config;
use crate::config::LinkConfig;
use crate::governor::Governor;
use crate::identity::Identity;
use crate::link::datagram::header::CHUNK_BYTES;
use crate::link::datagram::seal::{Cipher, Direction, Secret};
use crate::link::datagram::send::Place as At;
use crate::link::datagram::session::{Session, Terms};
use crate::link::neighbor::Neighbor;
use crate::link_kind::LinkMode;

/// The right name, the right tag, and another address than the neighbor's: nothing is stored, and the neighbor's own are.
#[tokio::test]
async fn a_datagram_from_another_address_is_not_the_neighbors() {
    let identity = Identity::from_seed([1; 32]);
    let governor = Governor::default();
    let config = Config {
        links: LinkConfig { mode: LinkMode::Datagram, ..LinkConfig::default() },
        ..Config::loopback(identity)
    };
    let links = Links::start(&config, governor.clone()).unwrap();
    let shared = links.0.clone().unwrap();
    let (peer, secret) = (NodeId::numbered(7), Secret::new([3; 32]));
    let place = shared.reserve().unwrap();
    let (here, there) = (place.name, 65);
    let session = |here, there, direction| {
        let terms = Terms {
            peer,
            here,
            there,
            direction,
            cipher: Cipher::ChaCha20Poly1305,
            chunk_bytes: CHUNK_BYTES,
        };
        Session::new(terms, &secret, governor.clone())
    };
    let address: SocketAddr = "127.0.0.1:4000".parse().unwrap();
    let seat = governor.take_for(peer, Resource::Links, 1).unwrap();
    let way = (address, ConnectionId::new_unchecked(1));
    let own = session(here, there, Direction::ToDialer);
    let rest = (shared.timer.clone(), seat, (0, false));
    let neighbor = Arc::new(Neighbor::new(own, peer, way, shared.socket.clone(), governor.clone(), rest));
    shared.table().places.insert(here % 64, (here, Some(neighbor.clone())));

    let mut far = session(there, here, Direction::FromDialer);
    let frame = At { lane: 9, number: 0 };
    assert!(far.send(Duration::ZERO, frame, [b"head", &[5; 3_000]]));
    let mut train = Vec::new();
    let segment = far.transmit(Duration::ZERO, &mut train).unwrap();
    let (mut heard, doors) = (Vec::new(), neighbor.enter(9, true).unwrap());
    let mut inbox = doors.inbox;
    for wrong in ["127.0.0.1:4001", "127.0.0.2:4000", "[::1]:4000"] {
        shared.on_train((&train, segment), wrong.parse().unwrap(), &mut heard);
        assert!(heard.is_empty() && inbox.try_recv().is_err(), "{wrong} was taken for the neighbor");
    }
    // One by one too: a first chunk from elsewhere must not count for the message.
    shared.on_train((&train[..segment], segment), "127.0.0.1:4001".parse().unwrap(), &mut heard);
    shared.on_train((&train[segment..], segment), address, &mut heard);
    assert!(inbox.try_recv().is_err(), "a chunk from elsewhere completed a message");
    assert_eq!(shared.strange.load(std::sync::atomic::Ordering::Relaxed), 3 * 3 + 1);
    shared.on_train((&train[..segment], segment), address, &mut heard);
    assert_eq!(inbox.try_recv().unwrap().frame()[..4], *b"head");
}
