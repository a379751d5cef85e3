use super::{AGE_MS, Admission, Ask, Limits, Queue, Refusal, SlotGuard, Tier};
use crate::rng::Rng;
use crate::{Millis, NodeId};

fn limits(slots: u32) -> Limits {
    let tiers = [1.0, 2.0, 4.0, 8.0].into_iter().map(|weight| Tier { weight, share: slots.div_ceil(4) });
    Limits { slots, kv_bytes: 100, waiting: 1_000, tiers: tiers.collect() }
}

fn ask(id: u64, requester: u64, tier: usize, kv_bytes: u64) -> Ask {
    Ask {
        id,
        requester: NodeId::numbered(requester),
        tier,
        kv_bytes,
        deadline: None,
        predicted_ms: 0.0,
        standby: false,
    }
}

fn start_all(door: &mut Admission, now: Millis) -> Vec<(Ask, SlotGuard)> {
    std::iter::from_fn(|| door.next(now)).collect()
}

#[test]
fn memory_and_slots_are_never_oversold_and_always_come_back() {
    let mut chance = Rng::new(5);
    let mut door = Admission::new(limits(6));
    let mut held: Vec<(Ask, SlotGuard)> = Vec::new();
    let mut submitted = 0u64;
    let mut ended = 0;
    for t in 0..20_000u64 {
        let now = Millis(t * 50);
        match chance.below(4) {
            0 | 1 => {
                let new = ask(submitted, chance.below(5) as u64, chance.below(5), chance.below(60) as u64);
                submitted += 1;
                ended += u64::from(door.submit(now, new).is_err());
            }
            2 if !held.is_empty() => {
                let gone = held.swap_remove(chance.below(held.len()));
                ended += 1;
                if chance.happens(0.1) {
                    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                        let _gone = gone;
                        std::panic::resume_unwind(Box::new("worker died"));
                    }));
                    assert!(panicked.is_err());
                }
            }
            _ => ended += u64::from(door.cancel(chance.below(submitted.max(1) as usize) as u64)),
        }
        held.extend(start_all(&mut door, now));
        let memory: u64 = held.iter().map(|(ask, _)| ask.kv_bytes).sum();
        assert!(held.len() <= 6 && memory <= 100);
        assert_eq!((door.running(), door.kv_used()), (held.len(), memory));
        assert_eq!(submitted, ended + held.len() as u64 + door.waiting() as u64, "no ask is lost");
    }
    held.clear();
    assert_eq!((door.running(), door.kv_used()), (0, 0));
}

#[test]
fn no_slot_idles_while_an_ask_waits() {
    let mut door = Admission::new(limits(8));
    (0..20).for_each(|id| door.submit(Millis(0), ask(id, 1, 0, 1)).unwrap());
    assert_eq!(start_all(&mut door, Millis(0)).len(), 8, "the lowest tier borrows all slots");
}

#[test]
fn tiers_share_by_weight_and_the_lowest_is_not_starved() {
    let mut door = Admission::new(Limits { waiting: 10_000, ..limits(1) });
    let mut served = [0; 4];
    let mut worst = 0;
    let mut since = std::collections::BTreeMap::new();
    for t in 0..4_000u64 {
        let now = Millis(t * 100);
        for tier in 0..4 {
            if door.queue.lanes[tier].is_empty() {
                let id = t * 4 + tier as u64;
                since.insert(id, now);
                door.submit(now, ask(id, tier as u64, tier, 1)).unwrap();
            }
        }
        let (started, _guard) = door.next(now).unwrap();
        served[started.tier] += 1;
        worst = worst.max(now.since(since[&started.id]));
    }
    assert!(served[3] > 7 * served[0] && served[0] > 200, "{served:?}");
    assert!(worst <= 2 * AGE_MS, "{worst}");
}

#[test]
fn one_busy_requester_does_not_delay_another() {
    let mut door = Admission::new(limits(1));
    (0..50).for_each(|id| door.submit(Millis(0), ask(id, 1, 1, 1)).unwrap());
    let mut order = Vec::new();
    for t in 0..6 {
        if t == 3 {
            door.submit(Millis(3), ask(99, 2, 1, 1)).unwrap();
        }
        order.push(door.next(Millis(t)).unwrap().0.id);
    }
    assert!(order[3..].contains(&99), "{order:?}");
}

#[test]
fn a_big_ask_is_passed_over_but_not_for_ever() {
    let mut door = Admission::new(limits(10));
    door.submit(Millis(0), ask(1, 1, 3, 60)).unwrap();
    let running = start_all(&mut door, Millis(0));
    door.submit(Millis(1), ask(2, 2, 3, 90)).unwrap();
    door.submit(Millis(2), ask(3, 3, 2, 10)).unwrap();
    let small = start_all(&mut door, Millis(3));
    assert_eq!(small.len(), 1);
    door.submit(Millis(4), ask(4, 3, 2, 10)).unwrap();
    let late = Millis(1 + AGE_MS);
    assert!(start_all(&mut door, late).is_empty(), "no ask passes it any more");
    drop((running, small));
    assert_eq!(start_all(&mut door, late).first().map(|(ask, _)| ask.id), Some(2));
}

#[test]
fn refusals_say_why() {
    let mut door = Admission::new(Limits { waiting: 1, ..limits(1) });
    assert_eq!(door.submit(Millis(0), ask(1, 1, 0, 101)), Err(Refusal::TooBig));
    let hurried = Ask { deadline: Some(Millis(50)), predicted_ms: 60.0, ..ask(1, 1, 0, 1) };
    assert_eq!(door.submit(Millis(0), hurried), Err(Refusal::TooLate));
    let fine = Ask { predicted_ms: 40.0, ..hurried };
    assert_eq!(door.submit(Millis(0), fine), Ok(()));
    assert_eq!(door.submit(Millis(0), fine), Err(Refusal::Duplicate));
    assert_eq!(door.submit(Millis(0), ask(2, 1, 0, 1)), Err(Refusal::Full));
    assert!(door.queue.waits(1) && !door.queue.waits(2));
    assert!(door.next(Millis(50)).is_none() && door.waiting() == 0, "its time is over");
    assert!(!door.queue.waits(1));
}

#[test]
fn a_requester_with_a_place_waits_behind_one_without() {
    let mut door = Admission::new(limits(2));
    door.submit(Millis(0), ask(1, 1, 0, 1)).unwrap();
    let _first = door.next(Millis(0)).unwrap();
    (2..6).for_each(|id| door.submit(Millis(1), ask(id, 1, 0, 1)).unwrap());
    door.submit(Millis(9), ask(6, 2, 0, 1)).unwrap();
    let (next, _second) = door.next(Millis(10)).unwrap();
    assert_eq!(next.requester, NodeId::numbered(2), "the other has a place");
}

#[test]
fn slots_are_kept_for_contributors_in_a_small_node_too() {
    for slots in [1, 2, 4, 64] {
        let kept = 1;
        let mut queue = Queue::new(limits(slots));
        queue.keep(kept);
        (0..80).for_each(|id| queue.submit(Millis(0), ask(id, id, 0, 0)).unwrap());
        let strangers = std::iter::from_fn(|| queue.next(Millis(0))).count() as u32;
        assert_eq!(strangers, slots.saturating_sub(kept).max(1), "of {slots}");
        queue.submit(Millis(1), ask(100, 100, 1, 0)).unwrap();
        assert_eq!(queue.next(Millis(1)).is_some(), slots > 1, "of {slots}");
        assert!(queue.next(Millis(1)).is_none());
    }
}

#[test]
fn a_standby_takes_its_memory_when_its_rows_arrive() {
    let mut queue = Queue::new(limits(4));
    let standby = |id| Ask { standby: true, ..ask(id, 1, 0, 60) };
    queue.submit(Millis(0), standby(1)).unwrap();
    queue.submit(Millis(0), standby(2)).unwrap();
    assert_eq!(std::iter::from_fn(|| queue.next(Millis(0))).count(), 2);
    assert_eq!(queue.kv_used(), 0);
    assert!(queue.claim(1) && queue.claim(1), "a second claim takes nothing");
    assert_eq!(queue.kv_used(), 60);
    assert!(!queue.claim(2), "no room is left");
    queue.free(1);
    queue.free(1);
    assert_eq!((queue.kv_used(), queue.running()), (0, 1));
    assert!(queue.claim(2));
}
