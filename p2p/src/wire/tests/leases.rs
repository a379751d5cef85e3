//! Leases: whatever they say reads back, and nodes of before are told what they know.

use proptest::prelude::*;

use super::*;

fn arbitrary_lease() -> impl Strategy<Value = Lease> {
    let ids = (any::<[u8; 16]>(), any::<[u8; 32]>(), any::<u32>());
    let sizes = (0..1_000_u32, 1..=24_u32, 1..=control::MAX_POSITIONS, 0.0..=1.0_f64);
    let rounding = prop::collection::btree_set(0..=1_024_u32, 0..40);
    let next = prop::option::of((any::<[u8; 32]>(), prop::collection::vec("[!-~]{1,256}", 0..=8)));
    let previous = prop::option::of(any::<[u8; 32]>());
    let flags = (any::<bool>(), 0..3_usize, 0..Wire::ALL.len(), 1..=control::MAX_LEASE_TTL_MS);
    let sparse = "sparse:window=16,sinks=9,stride=off,block=0";
    let kinds = ["dense", "window:7", "sparse", sparse, "dense/q8", "window:9/q4", "h2o:budget=640"];
    (ids, sizes, rounding, (next, previous), flags).prop_map(
        move |((session, model, epoch), sizes, rounding, (next, previous), flags)| Lease {
            session: SessionId::new(session),
            epoch,
            model: ModelId::new(model),
            layers: LayerRange::new(sizes.0, sizes.0 + sizes.1).unwrap(),
            positions: sizes.2,
            at: (f64::from(sizes.2) * sizes.3) as u32,
            rounding: Rounding::new(Wire::ALL[flags.2], rounding.into_iter().collect()),
            kind: kinds[(flags.3 % 7) as usize].parse().unwrap(),
            next: next.map(|(node, addresses)| Contact { node: NodeId::new(node), addresses }),
            previous: previous.map(NodeId::new),
            log: flags.0,
            ttl_ms: flags.3,
            role: [Role::Stage, Role::Shadow, Role::LazyShadow][flags.1],
            reuse: Reuse {
                beginnings: (1..=flags.1 as u32).rev().map(|at| beginning(at * 16)).collect(),
                source: (flags.1 == 2).then(|| Box::new(source())),
                on_disk: flags.3.is_multiple_of(2),
            },
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn any_lease_reads_back(lease in arbitrary_lease()) {
        let ask = Ask::Lease(Box::new(lease));
        let bytes = ask.encode();
        prop_assert!(bytes.len() <= control::MAX_ASK);
        prop_assert_eq!(Ask::decode(&bytes), Ok(ask));
    }
}

/// What a node of each version before is asked with: never more than it knows, and in the end what the first one knew.
#[test]
fn a_lease_says_less_to_a_node_that_knows_less() {
    let first_byte =
        |reuse: &Reuse| Ask::Lease(Box::new(Lease { reuse: reuse.clone(), ..lease() })).encode()[0];
    let kinds = |all: Reuse| {
        let each = std::iter::successors(Some(all), Reuse::less);
        each.map(|reuse| first_byte(&reuse)).collect::<Vec<u8>>()
    };
    let all = Reuse { beginnings: vec![beginning(32)], source: Some(Box::new(source())), on_disk: true };
    assert_eq!(kinds(all.clone()), [10, 9, 6, 0]);
    assert_eq!(kinds(Reuse { source: None, ..all.clone() }), [10, 6, 0]);
    assert_eq!(kinds(Reuse { on_disk: true, ..Reuse::default() }), [10, 0]);
    assert_eq!(kinds(Reuse::default()), [0]);
    // A source without a beginning is nothing to get.
    let sourced = Reuse { beginnings: Vec::new(), ..all };
    let bytes = Ask::Lease(Box::new(Lease { reuse: sourced, ..lease() })).encode();
    assert!(Ask::decode(&bytes).is_err());
}
