//! What a node says of itself in the shape of a link, so that nodes which know nothing of it pass over it.

use scheduler::NodeId;
use scheduler::coordinate::Coordinate;

use super::super::announce::{self, Draft, Link, PlaceRoom};
use super::{Malformed, draft, said, signer};

#[test]
fn a_coordinate_is_a_link_that_older_nodes_pass_over() {
    let place = Coordinate::new([12.5, -80.0, 3.25], 6.5, 0.125).unwrap();
    let with = Draft { coordinate: Some(place), ..draft() };
    let sealed = announce::seal(&with, &signer()).unwrap();
    let name: Vec<u8> = [12.5f32, -80.0, 3.25, 6.5].iter().flat_map(|ms| ms.to_le_bytes()).collect();
    let link = [b"shoal/coordinate".as_slice(), name.as_slice(), 0.125f64.to_le_bytes().as_slice()].concat();
    assert!(
        sealed.windows(40).any(|bytes| bytes == link),
        "a name of no node, and the error as a round trip"
    );
    assert_eq!(said(&announce::open(&sealed).unwrap()), with);
    let many = (10..42).map(|n| Link { to: NodeId::numbered(n), rtt_ms: 1.0 }).collect();
    assert!(announce::seal(&Draft { links: many, ..with }, &signer()).is_err());
}

#[test]
fn rooms_are_links_behind_those_to_peers() {
    let room = PlaceRoom { offer: 1, layers: 9, bytes: 7_000_000_000 };
    let place = Coordinate::new([12.5, -80.0, 3.25], 6.5, 0.125).unwrap();
    let bytes = |room: PlaceRoom| {
        let numbers = [&room.bytes.to_le_bytes()[..], &room.layers.to_le_bytes(), &room.offer.to_le_bytes()];
        [b"shoal/place-room".as_slice(), &numbers.concat(), &[0; 10]].concat()
    };
    let other = PlaceRoom { offer: 0, layers: 3, bytes: 5 };
    for (coordinate, rooms) in
        [(None, vec![room]), (Some(place), vec![room]), (Some(place), vec![other, room])]
    {
        let with = Draft { rooms, coordinate, ..draft() };
        let sealed = announce::seal(&with, &signer()).unwrap();
        assert!(sealed.windows(40).any(|link| link == bytes(room)), "a name of no node, and no round trip");
        assert_eq!(said(&announce::open(&sealed).unwrap()), with);
    }
    let with = |room: PlaceRoom| announce::seal(&Draft { rooms: vec![room], ..draft() }, &signer());
    for beyond in
        [PlaceRoom { offer: 2, ..room }, PlaceRoom { layers: 0, ..room }, PlaceRoom { layers: 29, ..room }]
    {
        assert_eq!(with(beyond), Err(Malformed("announcement: room")));
    }
    // Said among the peers, twice or with other bytes it is refused.
    let link = |name: Vec<u8>| Link { to: NodeId::new(name[..32].try_into().unwrap()), rtt_ms: 0.0 };
    let mut odd = bytes(room);
    odd[31] = 1;
    for (name, rooms) in [(bytes(PlaceRoom { layers: 8, ..room }), vec![room]), (odd, Vec::new())] {
        let draft = Draft { links: vec![link(name)], rooms, ..draft() };
        assert!(announce::seal(&draft, &signer()).is_err());
    }
    for rooms in [vec![room, other], vec![room, room]] {
        assert!(announce::seal(&Draft { rooms, ..draft() }, &signer()).is_err());
    }
}
