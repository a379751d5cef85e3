use p2p::wire::{announce::Class, renewal::RENEWAL_BYTES};
use scheduler::{
    coordinate::Coordinate,
    layer_cost::{LayerCost, LayerCosts},
};

use super::*;

fn node(n: u64) -> NodeId {
    NodeId::numbered(n)
}

#[test]
fn a_busy_moment_does_not_move_a_peer_away() {
    let mut gossip = Announcer::new(0);
    assert_eq!(gossip.measured(node(1), Millis(0), 40.0), 40.0);
    gossip.reached(node(1), Path::Loopback);
    assert_eq!(gossip.rtt_ms(node(1)), Some(LOOPBACK_MS), "the same host");
    gossip.reached(node(2), Path::Direct);
    gossip.measured(node(2), Millis(0), 30.0);
    assert_eq!(gossip.measured(node(2), Millis(5_000), 90.0), 30.0);
    assert_eq!(gossip.measured(node(2), Millis(RECENT_MS + 1), 90.0), 90.0, "but a longer way is learned");
    gossip.gone(node(2));
    assert_eq!(gossip.rtt_ms(node(2)), None);
}

#[test]
fn a_cut_that_heals_does_not_make_the_network_slow() {
    let mut gossip = Announcer::new(0);
    (0..8).for_each(|n| {
        gossip.measured(node(1), Millis(n * 5_000), 4.0);
    });
    assert_eq!(gossip.slow_rtt_ms(node(1)), Some(8.0));
    // Its answer came when the cut had healed.
    gossip.measured(node(1), Millis(40_000), 4_500.0);
    let slow = gossip.slow_rtt_ms(node(1)).unwrap();
    assert!(slow > 8.0 && slow < 50.0, "{slow}");
    // A way that has become longer is learned.
    (0..60).for_each(|n| {
        gossip.measured(node(1), Millis(45_000 + n * 5_000), 300.0);
    });
    assert!(gossip.slow_rtt_ms(node(1)).unwrap() > 550.0);
}

#[test]
fn news_of_a_stranger_is_an_occasion_to_say_the_home_no_more() {
    let (open, home) = (["/ip4/8.8.8.8/tcp/1".to_owned()], ["/ip4/10.0.0.1/tcp/1".to_owned()]);
    let figures = Figures { visit_ms: 0.2, queue_ms: 0.4, active: 1, knee: 4, kv_bytes: 1_000, full: false };
    for (said_home, heard, told) in
        [(true, &open, true), (true, &home, false), (false, &open, false), (false, &home, false)]
    {
        let mut gossip = Announcer::new(0);
        let address = if said_home { &home } else { &open };
        let whole = Draft { addresses: address.to_vec(), ..draft() };
        gossip.said = Some(Said { at: Millis(0), figures, whole, whole_at: Millis(0) });
        gossip.changed = false;
        gossip.heard_of(heard);
        let due = gossip.due(Millis(SPACING_MS), &figures, || false);
        assert_eq!(due, told.then_some(Due::News), "{said_home} {heard:?}");
    }
}

/// An hour of a swarm at rest, and of one whose load flickers.
#[test]
fn flicker_is_damped_and_news_is_not() {
    let mut gossip = Announcer::new(0);
    gossip.reached(node(1), Path::Direct);
    let base = Figures { visit_ms: 0.2, queue_ms: 0.4, active: 1, knee: 4, kv_bytes: 1_000, full: false };
    let (mut said, mut wholes) = (0, 0);
    for t in (0..3_600_000).step_by(250) {
        let now = Millis(t);
        if t % 5_000 == 0 {
            gossip.measured(node(1), now, 30.0 + (t % 7_000) as f64 / 1_000.0);
        }
        let flicker = f64::from(u32::try_from(t / 250 % 3).unwrap());
        let figures = Figures { queue_ms: 0.4 * flicker, active: 1 + (t / 250 % 2) as u32, ..base };
        let Some(due) = gossip.due(now, &figures, || false) else { continue };
        assert!(due == Due::Refresh || t == 0, "only because it would be forgotten");
        let whole = Draft { links: gossip.links(), ..draft() };
        match gossip.renewable(due, now, &whole) {
            Some(said) => said.at = now,
            None => {
                gossip.said = Some(Said { at: now, figures, whole, whole_at: now });
                wholes += 1;
            }
        }
        gossip.changed = false;
        said += 1;
    }
    assert_eq!(said, 3_600_000 / REFRESH_MS);
    assert_eq!(wholes, 3_600_000 / WHOLE_MS);
    let now = Millis(3_600_000);
    let whole = Draft { links: gossip.links(), ..draft() };
    gossip.said = Some(Said { at: now, figures: base, whole, whole_at: now });
    let later = |ms: u64| Millis(now.0 + ms);
    let busy = Figures { active: 9, queue_ms: 20.0, ..base };
    assert!(
        gossip.due(later(LOAD_SPACING_MS - 1), &busy, || false).is_none()
            && gossip.due(later(LOAD_SPACING_MS), &busy, || false).is_some()
    );
    let full = Figures { kv_bytes: 100, ..base };
    assert!(gossip.due(later(LOAD_SPACING_MS), &full, || false).is_some());
    let taken = Figures { full: true, ..base };
    assert!(
        gossip.due(later(LOAD_SPACING_MS - 1), &taken, || false).is_none()
            && gossip.due(later(LOAD_SPACING_MS), &taken, || false).is_some()
    );
    gossip.tell();
    assert!(
        gossip.due(later(SPACING_MS - 1), &base, || false).is_none()
            && gossip.due(later(SPACING_MS), &base, || false).is_some()
    );
}

/// Twenty-eight layers of two kinds in ten runs.
fn windowed() -> LayerCosts {
    let all = LayerCost {
        row_work: 1 << 25,
        weight_bytes: 1 << 25,
        seen_work: 4_096,
        window: None,
        state_bytes: 0,
        position_bytes: 1_024,
    };
    let layer = |index| if index % 6 == 5 { all } else { LayerCost { window: Some(512), ..all } };
    LayerCosts::new((0..28).map(layer).collect(), 2_048).unwrap()
}

/// What a node of a home says, at rest.
fn draft() -> Draft {
    let identity = p2p::Identity::from_seed([7; 32]);
    let range = LayerRange::new(4, 12).unwrap();
    let model = scheduler::ModelId::numbered(1);
    let holding = Holding {
        model,
        loaded: vec![range],
        on_disk: Vec::new(),
        decode_ms: 1.0,
        prefill_ms: 0.2,
        visit_ms: 0.1,
        queue_ms: 0.0,
        load_ms: 0.0,
        active: 0,
        batch_knee: 4,
        kv_bytes: 1 << 20,
    };
    Draft {
        claim: Claim {
            node: identity.node(),
            operator: own_operator(identity.node()),
            sequence: 1,
            region: 0,
            access_ms: 0.0,
            up_bytes_per_ms: 1e6,
            down_bytes_per_ms: 1e6,
            draining: false,
            holdings: vec![holding],
        },
        class: Class::D1,
        offers: vec![Offer {
            model,
            name: "a-model-with-a-name".into(),
            num_layers: 28,
            hidden: 2_048,
            context: 4_096,
            file_bytes: 1 << 30,
            costs: Some(windowed()),
        }],
        links: (1..=4).map(|n| Link { to: node(n), rtt_ms: 1.0 }).collect(),
        coordinate: Some(Coordinate::default()),
        rooms: Vec::new(),
        addresses: vec!["/ip4/192.0.2.100/udp/40000/quic-v1".to_owned(); 4],
        ttl_ms: TTL_MS,
        agent: "shoal/0.1.0".into(),
    }
}

#[test]
fn where_all_are_connected_little_is_said() {
    let mut gossip = Announcer::new(0);
    let figures = Figures { visit_ms: 0.2, queue_ms: 0.4, active: 1, knee: 4, kv_bytes: 1_000, full: false };
    let whole = Draft { links: Vec::new(), ..draft() };
    gossip.said = Some(Said { at: Millis(0), figures, whole, whole_at: Millis(0) });
    gossip.changed = false;
    let due = |ms, connected| gossip.due(Millis(ms), &figures, || connected);
    assert_eq!([REFRESH_MS - 1, REFRESH_MS].map(|ms| due(ms, false)), [None, Some(Due::Refresh)]);
    let later = [REFRESH_MS, WHOLE_MS - 1, WHOLE_MS];
    assert_eq!(later.map(|ms| due(ms, true)), [None, None, Some(Due::Refresh)]);
    gossip.gone(node(3));
    let due = gossip.due(Millis(LOAD_SPACING_MS), &figures, || true);
    assert_eq!(due, Some(Due::Refresh), "it may have forgotten this node");
}

#[test]
fn what_is_news_is_said_whole() {
    let mut gossip = Announcer::new(0);
    let figures = Figures { visit_ms: 0.2, queue_ms: 0.4, active: 1, knee: 4, kv_bytes: 1_000, full: false };
    gossip.said = Some(Said { at: Millis(0), figures, whole: draft(), whole_at: Millis(0) });
    assert!(gossip.renewable(Due::News, Millis(0), &draft()).is_none());
    let mut renews = |change: fn(&mut Draft)| {
        let mut draft = draft();
        change(&mut draft);
        gossip.renewable(Due::Refresh, Millis(WHOLE_MS - 1), &draft).is_some()
    };
    assert!(renews(|draft| draft.claim.sequence = 9));
    assert!(renews(|draft| draft.claim.up_bytes_per_ms *= 1.2));
    assert!(renews(|draft| draft.claim.holdings[0].queue_ms = 0.1), "what is not worth a word");
    for change in [
        (|draft| draft.claim.up_bytes_per_ms *= 1.3) as fn(&mut Draft),
        |draft| draft.claim.draining = true,
        |draft| draft.claim.holdings[0].loaded.clear(),
        |draft| draft.coordinate = None,
        |draft| draft.coordinate = Coordinate::new([2.0; 3], 0.0, 0.5),
        |draft| draft.addresses.truncate(3),
        |draft| draft.agent.push('!'),
        |draft| draft.offers[0].name.push('!'),
    ] {
        assert!(!renews(change));
    }
}

/// What one of five idle nodes that all know each other costs another: every announcement crosses a connection at most
/// twice, once each way.
#[test]
fn five_idle_nodes_that_are_not_all_connected_announce_little() {
    let identity = p2p::Identity::from_seed([7; 32]);
    let whole = seal(&draft(), &identity).unwrap().len() as u32;
    let refreshes = (WHOLE_MS / REFRESH_MS) as u32;
    let bytes = (whole + (refreshes - 1) * RENEWAL_BYTES as u32) / refreshes;
    let bits_per_s = f64::from(5 * 2 * bytes * 8) / (REFRESH_MS as f64 / 1e3);
    assert!(bits_per_s < 500.0, "{bytes} bytes an announcement, {bits_per_s} bit/s");
}
