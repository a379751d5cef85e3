use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn holder(prefix: u8, peer: u64) -> Holder {
    Holder { prefix: Some(Prefix::V4([10, 0, prefix])), peer: Some(NodeId::numbered(peer)) }
}

#[test]
fn the_table_has_a_row_for_each_resource_and_narrow_limits_are_not_wider() {
    for (resource, row) in Resource::ALL.into_iter().zip(TABLE) {
        assert_eq!(row.resource, resource);
        assert!(row.prefix <= row.node && row.node > 0, "{}", resource.name());
        assert!(row.peer <= row.prefix || row.peer == UNLIMITED, "{}", resource.name());
        assert!(!row.why.is_empty());
    }
}

#[test]
fn one_peer_leaves_room_for_others_and_one_prefix_too() {
    let mut books = Books::new(Limits::default().set(Resource::Streams, [6, 4, 3]));
    let mut take = |prefix, peer| books.take(Millis(0), holder(prefix, peer), Resource::Streams, 1);
    for _ in 0..3 {
        take(1, 1).unwrap();
    }
    assert!(matches!(take(1, 1).unwrap_err().scope, Scope::Peer(_)));
    take(1, 2).unwrap();
    assert_eq!(take(1, 3).unwrap_err().scope, Scope::Prefix(Prefix::V4([10, 0, 1])));
    take(2, 4).unwrap();
    take(2, 5).unwrap();
    let refused = take(3, 6).unwrap_err();
    assert_eq!((refused.scope, refused.limit), (Scope::Node, 6));
    let said = refused.to_string();
    assert!(said.contains("6 streams") && said.contains("wait"), "{said}");
    let usage = books.usage(Millis(0));
    let row = usage.iter().find(|row| row.limit.resource == Resource::Streams).unwrap();
    assert_eq!((row.used, row.prefix_used, row.peer_used, row.refused), (6, 4, 3, 3));
    books.give_back(holder(1, 1), Resource::Streams, 3);
    assert_eq!(books.take(Millis(0), holder(3, 6), Resource::Streams, 3), Ok(()));
}

#[test]
fn what_is_spent_comes_back_with_time_alone() {
    let mut books = Books::default();
    let row = *books.limits().of(Resource::Dials);
    let Measure::Spent { within_ms } = row.measure else { panic!("dials are spent") };
    books.take(Millis(0), holder(1, 1), Resource::Dials, row.peer).unwrap();
    books.give_back(holder(1, 1), Resource::Dials, row.peer);
    assert!(books.take(Millis(0), holder(1, 1), Resource::Dials, 1).is_err(), "giving back is no way around");
    // Looked at every millisecond it comes back as fast as looked at once.
    let one = within_ms.div_ceil(row.peer);
    for ms in 0..one {
        assert!(books.would_fit(Millis(ms), holder(1, 1), Resource::Dials, 1).is_err(), "after {ms} ms");
    }
    assert_eq!(books.take(Millis(one), holder(1, 1), Resource::Dials, 1), Ok(()));
    let later = Millis(one + 2 * within_ms);
    assert_eq!(books.used(later, Resource::Dials, Scope::Node), 0);
    books.usage(later);
    assert!(books.is_empty(), "who has everything back is forgotten");
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Take { prefix: u8, peer: u64, resource: usize, amount: u64 },
    GiveBack { which: usize },
    Wait { ms: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..3_u8, 0..4_u64, 0..Resource::ALL.len(), 0..5_u64)
            .prop_map(|(prefix, peer, resource, amount)| Step::Take { prefix, peer, resource, amount }),
        3 => any::<usize>().prop_map(|which| Step::GiveBack { which }),
        1 => (0..20_000_u64).prop_map(|ms| Step::Wait { ms }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// No limit is ever exceeded, what is used is what was taken and not given back, and in the end nothing is left.
    #[test]
    fn the_books_balance(steps in proptest::collection::vec(step(), 0..200)) {
        let small = Resource::ALL.into_iter().fold(Limits::default(), |limits, r| limits.set(r, [9, 7, 5]));
        let mut books = Books::new(small);
        let mut held: Vec<(Holder, Resource, u64)> = Vec::new();
        let mut now = Millis(0);
        for step in steps {
            match step {
                Step::Take { prefix, peer, resource, amount } => {
                    let (who, resource) = (holder(prefix, peer), Resource::ALL[resource]);
                    let fits = books.would_fit(now, who, resource, amount);
                    let taken = books.take(now, who, resource, amount);
                    prop_assert_eq!(fits, taken);
                    if taken.is_ok() && small.of(resource).measure == Measure::Held {
                        held.push((who, resource, amount));
                    }
                }
                Step::GiveBack { which } if !held.is_empty() => {
                    let (who, resource, amount) = held.swap_remove(which % held.len());
                    books.give_back(who, resource, amount);
                }
                Step::GiveBack { .. } => {}
                Step::Wait { ms } => now = now + ms,
            }
            let mut sums: BTreeMap<(Resource, Scope), u64> = BTreeMap::new();
            for (who, resource, amount) in &held {
                scopes(*who).for_each(|scope| *sums.entry((*resource, scope)).or_default() += amount);
            }
            for ((resource, scope), sum) in sums {
                prop_assert_eq!(books.used(now, resource, scope), sum);
            }
            for row in books.usage(now) {
                prop_assert!(row.used <= 9 && row.prefix_used <= 7 && row.peer_used <= 5, "{:?}", row);
            }
            // A peer, a prefix and the node for each of what is held or spent.
            prop_assert!(books.len() <= Resource::ALL.len() * (1 + 3 + 4));
        }
        for (who, resource, amount) in held {
            books.give_back(who, resource, amount);
        }
        now = now + 120_000;
        books.usage(now);
        prop_assert!(books.is_empty(), "{:?}", books);
    }
}
