use super::*;
use crate::admit::{Refusal, Tier};

fn key(requester: u64, session: u64) -> Key {
    Key { requester: NodeId::numbered(requester), session: SessionId::numbered(session) }
}

fn ask(id: u64, requester: u64) -> Ask {
    let layers = LayerRange::new(1, 4).unwrap();
    Ask {
        id,
        key: key(requester, id),
        epoch: 1,
        tier: 0,
        layers,
        kv_bytes: 10,
        standby: false,
        patience_ms: 1_500,
    }
}

fn door(slots: u32) -> Door {
    let tiers = vec![Tier { weight: 1.0, share: slots }; 2];
    Door::new(Limits { slots, kv_bytes: 100, waiting: 16, tiers })
}

/// Lets an ask in and grants it.
fn enters(door: &mut Door, now: u64, ask: Ask) {
    assert_eq!(door.lease(Millis(now), ask), None);
    assert_eq!(door.turn(Millis(now)), [Decision::Start(ask)]);
    door.granted(Millis(now), ask.key);
}

#[test]
fn a_lease_that_is_not_used_is_lost_and_used_ones_stay() {
    let mut door = door(3);
    (1..4).for_each(|id| enters(&mut door, 0, ask(id, id)));
    door.beacon(key(2, 2));
    assert_eq!(door.rows(Millis(10), key(3, 3)), None);
    assert_eq!(door.turn(Millis(FIRST_SIGN_MS - 1)), []);
    let unused = Decision::End(key(1, 1), Ending::Unused);
    assert_eq!(door.turn(Millis(FIRST_SIGN_MS)), [unused]);
    assert_eq!(door.turn(Millis(FIRST_SIGN_MS)), [], "it is told once");
    let late = Ask { id: 9, epoch: 2, ..ask(1, 1) };
    let ending = Decision::Refuse(late, Refused::Ending);
    assert_eq!(door.lease(Millis(FIRST_SIGN_MS), late), Some(ending));
    door.ended(1);
    assert_eq!(door.queue().running(), 2);
    assert_eq!(door.turn(Millis(600_000)), [], "the others say how long they last");
}

#[test]
fn a_second_grant_buys_no_more_time() {
    let mut door = door(1);
    enters(&mut door, 0, ask(1, 1));
    for at in [1_000, 2_000, 2_900] {
        let renewed = Ask { id: at, epoch: at as u32, ..ask(1, 1) };
        assert_eq!(door.lease(Millis(at), renewed), Some(Decision::Forward(renewed)));
        door.granted(Millis(at), key(1, 1));
    }
    assert_eq!(door.turn(Millis(FIRST_SIGN_MS)), [Decision::End(key(1, 1), Ending::Unused)]);
}

#[test]
fn a_place_ends_with_the_last_connection_unless_it_comes_back() {
    let mut door = door(3);
    for id in 1..4 {
        enters(&mut door, 0, ask(id, 1 + id % 2));
        door.beacon(ask(id, 1 + id % 2).key);
    }
    door.gone(Millis(0), NodeId::numbered(1));
    door.gone(Millis(0), NodeId::numbered(2));
    door.back(NodeId::numbered(1));
    let away = |id| Decision::End(key(2, id), Ending::Away);
    assert_eq!(door.turn(Millis(GRACE_MS - 1)), []);
    assert_eq!(door.turn(Millis(GRACE_MS)), [away(1), away(3)]);
    // An ask of one that is gone waits for nothing.
    door.lease(Millis(GRACE_MS), Ask { patience_ms: 60_000, ..ask(7, 3) });
    door.gone(Millis(GRACE_MS), NodeId::numbered(3));
    assert_eq!(door.turn(Millis(2 * GRACE_MS)), []);
    assert_eq!(door.queue().waiting(), 0);
}

#[test]
fn a_stranger_with_several_idle_places_yields_one_and_one_that_works_does_not() {
    let mut door = door(3);
    (1..4).for_each(|id| enters(&mut door, 0, ask(id, 1)));
    (1..4).for_each(|id| door.beacon(key(1, id)));
    assert_eq!(door.rows(Millis(4_000), key(1, 1)), None);
    assert_eq!(door.lease(Millis(5_000), ask(8, 2)), None);
    let yields = |id| Decision::End(key(1, id), Ending::Yields);
    assert_eq!(door.turn(Millis(5_000)), [yields(2)]);
    assert_eq!(door.turn(Millis(5_000)), [], "one place for one ask");
    door.ended(2);
    assert_eq!(door.turn(Millis(5_001)), [Decision::Start(ask(8, 2))]);
    // Two are left: its own next ask moves no other requester, and another stranger takes one more.
    assert_eq!(door.lease(Millis(5_002), ask(9, 1)), None);
    assert_eq!(door.turn(Millis(6_000)), []);
    assert_eq!(door.lease(Millis(6_000), ask(10, 4)), None);
    assert_eq!(door.turn(Millis(6_000)), [yields(3)]);
    // The place of the requester that waited with none.
    door.ended(3);
    assert_eq!(door.turn(Millis(6_001)), [Decision::Start(ask(10, 4))]);
}

#[test]
fn hoarded_places_make_room_while_the_next_ask_still_waits() {
    let mut door = door(4);
    (1..5).for_each(|id| enters(&mut door, 0, ask(id, 1)));
    (1..5).for_each(|id| door.beacon(key(1, id)));
    assert_eq!(door.lease(Millis(10), ask(8, 2)), None);
    assert_eq!(door.turn(Millis(SPARE_MS - 1)), []);
    assert_eq!(door.turn(Millis(SPARE_MS)), [Decision::End(key(1, 1), Ending::Yields)]);
    door.ended(1);
    assert_eq!(door.turn(Millis(SPARE_MS + 1)), [Decision::Start(ask(8, 2))]);
}

#[test]
fn an_ask_of_a_requester_that_is_gone_waits_no_more() {
    let mut door = door(1);
    enters(&mut door, 0, ask(1, 1));
    door.beacon(key(1, 1));
    let patient = Ask { patience_ms: 10 * GRACE_MS, ..ask(2, 2) };
    assert_eq!(door.lease(Millis(0), patient), None);
    door.gone(Millis(0), patient.key.requester);
    assert_eq!(door.turn(Millis(GRACE_MS - 1)), []);
    assert!(door.waits(2));
    assert_eq!(door.turn(Millis(GRACE_MS)), []);
    assert!(!door.waits(2) && door.queue().waiting() == 0);
}

#[test]
fn an_idle_stranger_makes_room_for_a_contributor() {
    let mut door = door(1);
    enters(&mut door, 0, ask(1, 1));
    door.beacon(key(1, 1));
    assert_eq!(door.rows(Millis(0), key(1, 1)), None);
    assert_eq!(door.lease(Millis(IDLE_MS), ask(2, 2)), None);
    assert_eq!(door.turn(Millis(IDLE_MS)), [], "it has one place, as any stranger may");
    let contributor = Ask { tier: 1, ..ask(3, 3) };
    assert_eq!(door.lease(Millis(IDLE_MS), contributor), None);
    assert_eq!(door.turn(Millis(IDLE_MS)), [Decision::End(key(1, 1), Ending::Yields)]);
    door.ended(1);
    door.set_slots(2, 1);
    let started = door.turn(Millis(IDLE_MS));
    assert!(started.contains(&Decision::Start(contributor)) && started.len() == 2, "{started:?}");
}

#[test]
fn a_standby_needs_memory_when_its_rows_come() {
    let mut door = door(3);
    let standby = |id| Ask { standby: true, kv_bytes: 60, ..ask(id, id) };
    (1..4).for_each(|id| enters(&mut door, 0, standby(id)));
    assert_eq!(door.queue().kv_used(), 0);
    assert_eq!(door.rows(Millis(1), key(1, 1)), None);
    assert_eq!(door.rows(Millis(1), key(2, 2)), Some(Decision::End(key(2, 2), Ending::NoRoom)));
    let promoted = Ask { id: 9, standby: false, ..standby(3) };
    let no_room = Refused::Queue(Refusal::TooBig);
    assert_eq!(door.lease(Millis(1), promoted), Some(Decision::Refuse(promoted, no_room)));
    door.ended(1);
    let promoted = Ask { id: 10, ..promoted };
    assert_eq!(door.lease(Millis(1), promoted), Some(Decision::Forward(promoted)));
    assert_eq!(door.queue().kv_used(), 60);
}

#[test]
fn a_second_lease_of_a_session_takes_its_memory_as_well() {
    let mut door = door(2);
    enters(&mut door, 0, ask(1, 1));
    let more = |id, (start, end), kv_bytes| Ask {
        id,
        epoch: 2,
        layers: LayerRange::new(start, end).unwrap(),
        kv_bytes,
        ..ask(1, 1)
    };
    let mut leases = |ask: Ask, used| {
        let decided = door.lease(Millis(1), ask);
        assert_eq!(door.queue().kv_used(), used);
        decided == Some(Decision::Forward(ask))
    };
    assert!(leases(more(2, (4, 7), 50), 60), "beside the first");
    assert!(leases(more(3, (1, 4), 10), 60), "the same again");
    assert!(leases(more(4, (3, 6), 30), 30), "in the place of both");
    assert!(!leases(more(5, (7, 9), 71), 30), "more than there is");
    let standby = Ask { standby: true, ..more(6, (7, 9), 70) };
    assert!(leases(standby, 100), "rows come to this session already");
    door.ended(1);
    assert_eq!(door.queue().kv_used(), 0);
}

#[test]
fn what_stands_by_twice_takes_both_when_rows_come() {
    let mut door = door(1);
    let first = Ask { standby: true, kv_bytes: 40, ..ask(1, 1) };
    enters(&mut door, 0, first);
    let second = Ask { id: 2, layers: LayerRange::new(4, 7).unwrap(), kv_bytes: 50, ..first };
    assert_eq!(door.lease(Millis(1), second), Some(Decision::Forward(second)));
    assert_eq!(door.queue().kv_used(), 0);
    assert_eq!(door.rows(Millis(2), key(1, 1)), None);
    assert_eq!(door.queue().kv_used(), 90);
}

#[test]
fn what_was_given_back_is_remembered_but_not_for_ever() {
    let mut door = door(1);
    door.release(key(1, 5), 3);
    door.release(key(1, 5), 2);
    assert!(door.is_closed(key(1, 5), 3) && !door.is_closed(key(1, 5), 4));
    assert!(!door.is_closed(key(2, 5), 1), "no node closes another's session");
    (0..CLOSED as u64).for_each(|n| drop(door.release(key(2, 100 + n), 1)));
    assert!(!door.is_closed(key(1, 5), 3));
    assert_eq!(door.closed.len(), CLOSED);
}
