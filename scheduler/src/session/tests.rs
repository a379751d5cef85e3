use super::{Action, Event, Session, Standbys};
use crate::{LayerRange, Millis, NodeId, Pipeline, Segment, SessionId};

fn pipeline() -> Pipeline {
    let segment = |node, start, end| Segment {
        node: NodeId::numbered(node),
        layers: LayerRange::new(start, end).unwrap(),
    };
    Pipeline::new(vec![segment(1, 0, 2), segment(2, 2, 4), segment(3, 4, 6)], 6).unwrap()
}

/// The answer of a step without a draft.
fn one(epoch: u32, position: u32, token: u32) -> Event {
    Event::Tokens { epoch, attempt: 0, position, tokens: vec![token], stop: false, draft: 0 }
}

/// A session of a three-token prompt after four decoded tokens, its middle stage just replaced by an empty one.
fn replaced(logged: u32) -> Vec<(usize, u32, u32)> {
    let mut standbys =
        Standbys { shadows: vec![None, Some(NodeId::numbered(9)), None], ..Standbys::default() };
    standbys.covers.clear();
    let id = SessionId::numbered(1);
    let (mut session, _) = Session::start(id, Millis(0), 3, 50, &pipeline(), &standbys, 0.0);
    (0..3).for_each(|stage| {
        session.step(Millis(1), Event::Opened { stage, epoch: 1, have: 0 });
    });
    for position in 3..7 {
        if position <= logged {
            session.step(
                Millis(2),
                Event::Boundary { stage: 0, node: NodeId::numbered(1), epoch: 1, attempt: 0, to: position },
            );
        }
        session.step(Millis(3), one(1, position, 5));
    }
    let failed = Event::Failed { node: NodeId::numbered(2), failure: crate::recover::Failure::Closed };
    session.step(Millis(4), failed);
    session.step(Millis(5), Event::Opened { stage: 0, epoch: 2, have: 6 });
    session.step(Millis(5), Event::Opened { stage: 1, epoch: 2, have: 0 });
    let actions = session.step(Millis(5), Event::Opened { stage: 2, epoch: 2, have: 6 });
    let sends = actions.into_iter().filter_map(|action| match action {
        Action::Send { stage, from, to, .. } => Some((stage, from, to)),
        _ => None,
    });
    sends.collect()
}

#[test]
fn the_example_of_the_page() {
    assert_eq!(replaced(6), [(0, 6, 7), (1, 0, 6)]);
}

#[test]
fn what_follows_from_a_lie_is_done_again_by_another_node() {
    let standbys = Standbys { shadows: vec![None, Some(NodeId::numbered(9)), None], ..Standbys::default() };
    let id = SessionId::numbered(1);
    let (mut session, _) = Session::start(id, Millis(0), 3, 50, &pipeline(), &standbys, 0.0);
    (0..3).for_each(|stage| {
        session.step(Millis(1), Event::Opened { stage, epoch: 1, have: 0 });
    });
    for position in 3..9 {
        (0..2).for_each(|stage| {
            session.step(
                Millis(2),
                Event::Boundary {
                    stage,
                    node: NodeId::numbered(stage as u64 + 1),
                    epoch: 1,
                    attempt: 0,
                    to: position,
                },
            );
        });
        session.step(Millis(3), one(1, position, 5));
    }
    let liar = NodeId::numbered(2);
    let actions = session.step(Millis(4), Event::Convicted { node: liar, layer: 4, from: 5, known: 6 });
    assert_eq!(session.emitted().len(), 3, "the tokens at 6, 7 and 8 follow from it");
    let opened: Vec<(u64, u32)> = actions
        .iter()
        .filter_map(|action| match action {
            Action::Open { segment, at, .. } => {
                Some(((1..10).find(|n| NodeId::numbered(*n) == segment.node)?, *at))
            }
            _ => None,
        })
        .collect();
    assert_eq!(opened, [(1, 5), (9, 5), (3, 5)], "no stage keeps what was computed from it");
    assert!(actions.contains(&Action::Close { node: liar, epoch: 1 }));
    session.step(Millis(5), Event::Opened { stage: 0, epoch: 2, have: 5 });
    session.step(Millis(5), Event::Opened { stage: 2, epoch: 2, have: 5 });
    let actions = session.step(Millis(5), Event::Opened { stage: 1, epoch: 2, have: 5 });
    let last = Action::Send { stage: 0, epoch: 2, attempt: 0, node: NodeId::numbered(1), from: 5, to: 6 };
    assert!(actions.contains(&last), "{actions:?}");
    let again = session.step(Millis(6), one(2, 6, 7));
    assert!(again.contains(&Action::Emit { position: 6, token: 7 }), "{again:?}");
}

/// A node that is reached another way may have got nothing of what it was asked.
#[test]
fn who_is_reached_another_way_is_asked_again() {
    let id = SessionId::numbered(1);
    let (mut session, _) = Session::start(id, Millis(0), 3, 50, &pipeline(), &Standbys::default(), 0.0);
    let (first, second) = (NodeId::numbered(1), NodeId::numbered(2));
    session.step(Millis(1), Event::Opened { stage: 0, epoch: 1, have: 0 });
    assert_eq!(session.step(Millis(2), Event::Detoured { node: first }), [], "it has promised");
    let again = session.step(Millis(2), Event::Detoured { node: second });
    let layers = LayerRange::new(2, 4).unwrap();
    let segment = Segment { node: second, layers };
    let next = Some(NodeId::numbered(3));
    assert_eq!(again, [Action::Open { stage: 1, epoch: 1, segment, next, at: 2 }]);
    session.step(Millis(3), Event::Opened { stage: 1, epoch: 1, have: 0 });
    session.step(Millis(3), Event::Opened { stage: 2, epoch: 1, have: 0 });
    session.step(Millis(4), Event::Boundary { stage: 0, node: first, epoch: 1, attempt: 0, to: 3 });
    assert_eq!(session.step(Millis(200), Event::Detoured { node: first }), [], "its part is done");
    let again = session.step(Millis(200), Event::Detoured { node: second });
    assert_eq!(again, [Action::Send { stage: 1, epoch: 1, attempt: 0, node: second, from: 0, to: 3 }]);
    session.step(Millis(201), Event::Beacon { stage: 1, epoch: 1 });
    assert_eq!(session.step(Millis(210), Event::Detoured { node: second }), [], "it says that it computes");
}

/// A stage that waits has not got what the one before it sent: that goes past the cut, at once in later steps.
#[test]
fn what_a_waiting_stage_lacks_goes_past_the_stage_before_it() {
    let id = SessionId::numbered(1);
    let (mut session, _) = Session::start(id, Millis(0), 3, 50, &pipeline(), &Standbys::default(), 0.0);
    (0..3).for_each(|stage| drop(session.step(Millis(1), Event::Opened { stage, epoch: 1, have: 0 })));
    let (first, second) = (NodeId::numbered(1), NodeId::numbered(2));
    let done = |stage, node, to| Event::Boundary { stage, node, epoch: 1, attempt: 0, to };
    let waits = |have| Event::Waits { stage: 1, epoch: 1, have, given_here: false };
    let sent = |from, to| Action::Send { stage: 1, epoch: 1, attempt: 0, node: second, from, to };
    session.step(Millis(4), done(0, first, 3));
    assert_eq!(session.step(Millis(60), waits(0)), [], "it may be on its way");
    assert_eq!(session.step(Millis(150), waits(1)), [sent(1, 3)]);
    assert_eq!(session.step(Millis(160), waits(3)), [], "it has come");
    session.step(Millis(170), done(1, second, 3));
    session.step(Millis(171), one(1, 3, 7));
    assert_eq!(session.step(Millis(175), done(0, first, 4)), [sent(3, 4)]);
}

/// A node may run one segment and have no room to follow another.
#[test]
fn who_does_not_follow_goes_on_as_a_stage() {
    let (id, second) = (SessionId::numbered(1), NodeId::numbered(2));
    let standbys = Standbys { shadows: vec![Some(second), None, None], ..Standbys::default() };
    let (mut session, _) = Session::start(id, Millis(0), 3, 50, &pipeline(), &standbys, 0.0);
    (0..3).for_each(|stage| drop(session.step(Millis(1), Event::Opened { stage, epoch: 1, have: 0 })));
    assert_eq!(session.step(Millis(2), Event::Unfollowed { node: second }), []);
    assert_eq!(session.epoch(), 1, "nothing was moved");
    let closed = Event::Failed { node: NodeId::numbered(1), failure: crate::recover::Failure::Closed };
    let actions = session.step(Millis(3), closed);
    assert!(actions.iter().any(|action| matches!(action, Action::FindRoute { .. })), "{actions:?}");
}

#[test]
fn what_the_log_lacks_is_computed_again_upstream() {
    assert_eq!(replaced(4), [(0, 4, 7), (1, 0, 4)]);
    assert_eq!(replaced(0), [(0, 0, 7)]);
}

/// What a session does once no node is left because the middle stage has not promised, after it `answered` or not, and
/// when it asks again.
fn not_let_in(answered: bool, name: u64) -> (Vec<Action>, u64) {
    let (mut session, _) =
        Session::start(SessionId::numbered(name), Millis(0), 3, 50, &pipeline(), &Standbys::default(), 0.0);
    for stage in [0, 2] {
        session.step(Millis(1), Event::Opened { stage, epoch: 1, have: 0 });
    }
    let mut now = Millis(0);
    loop {
        now = now.max(session.wake().unwrap());
        let actions = session.step(now, Event::Tick);
        if actions.iter().any(|action| matches!(action, Action::FindRoute { .. })) {
            break;
        }
        if answered {
            session.step(now, Event::Pong { node: NodeId::numbered(2) });
        }
        if actions.iter().any(|action| matches!(action, Action::Open { .. })) {
            let epoch = session.epoch();
            for stage in [0, 2] {
                session.step(now, Event::Opened { stage, epoch, have: 0 });
            }
        }
    }
    let actions = session.step(now, Event::Rerouted(None));
    (actions, session.wake().unwrap().since(now))
}

#[test]
fn a_session_kept_waiting_keeps_no_other_waiting() {
    let (released, _) = not_let_in(true, 1);
    let closed: Vec<u64> = released
        .iter()
        .filter_map(|action| match action {
            Action::Close { node, .. } => (1..=3).find(|name| NodeId::numbered(*name) == *node),
            _ => None,
        })
        .collect();
    assert_eq!(closed, [1, 2, 3]);
    // What others hold for it is worth keeping when a node is gone and may come back.
    let (kept, _) = not_let_in(false, 1);
    assert_eq!(kept, []);
    // And those who failed together come back one by one.
    let mut waits: Vec<u64> = (0..20).map(|name| not_let_in(true, name).1).collect();
    assert!(waits.iter().all(|wait| (375..625).contains(wait)), "{waits:?}");
    waits.sort_unstable();
    waits.dedup();
    assert!(waits.len() > 15, "{waits:?}");
}

/// A session whose middle stage has failed, so that it asks for another route, at 100 ms.
fn asking() -> Session {
    let (mut session, _) =
        Session::start(SessionId::numbered(1), Millis(0), 3, 1_000, &pipeline(), &Standbys::default(), 0.0);
    (0..3).for_each(|stage| {
        session.step(Millis(1), Event::Opened { stage, epoch: 1, have: 0 });
    });
    fail(&mut session, Millis(100));
    session
}

fn fail(session: &mut Session, now: Millis) {
    let failed = Event::Failed { node: NodeId::numbered(2), failure: crate::recover::Failure::Closed };
    let actions = session.step(now, failed);
    assert!(matches!(actions.last(), Some(Action::FindRoute { .. })), "{actions:?}");
}

fn asks_again(session: &mut Session) -> bool {
    let actions = session.step(session.wake().unwrap(), Event::Tick);
    actions.iter().any(|action| matches!(action, Action::FindRoute { .. }))
}

#[test]
fn a_router_that_takes_its_time_is_waited_for() {
    let mut session = asking();
    assert!(!asks_again(&mut session), "no answer in time");
    assert!(asks_again(&mut session), "after a pause");
    assert!(!asks_again(&mut session));
    // The answer to the first question, while it waits to ask once more.
    let now = session.wake().unwrap();
    let found = Some((pipeline(), Standbys::default()));
    let actions = session.step(now, Event::Rerouted(found.clone()));
    assert_eq!(actions.iter().filter(|action| matches!(action, Action::Open { .. })).count(), 3);
    // That to the second comes when the session asks no more.
    assert_eq!(session.step(now, Event::Rerouted(found)), []);
    // One that never answers is given up in the end.
    let mut session = asking();
    let ticks = (0..100)
        .take_while(|_| {
            !session.is_over() && {
                asks_again(&mut session);
                true
            }
        })
        .count();
    assert!(session.is_over() && ticks > 10, "{ticks}");
}

/// A token between two failures is worth as much patience as there was at the beginning.
#[test]
fn a_long_answer_outlives_more_failures_than_a_short_one() {
    let mut session = asking();
    for position in 3..43 {
        session.step(session.wake().unwrap(), Event::Rerouted(None));
        assert!(asks_again(&mut session), "token {position}");
        let now = session.wake().unwrap();
        session.step(now, Event::Rerouted(Some((pipeline(), Standbys::default()))));
        let epoch = session.epoch();
        (0..3).for_each(|stage| {
            session.step(now, Event::Opened { stage, epoch, have: position - 1 });
        });
        // Eight tokens pay for a move; here the stage only fails after as many.
        for at in 0..8 {
            let token = one(epoch, 3 + (position - 3) * 8 + at, 5);
            session.step(now, token);
        }
        fail(&mut session, now + 10);
    }
    assert_eq!(session.emitted().len(), 320);
}

/// Every route breaks at its second step, and in between there is none for a while: waiting must not pay for moves.
#[test]
fn a_request_that_crawls_is_given_up() {
    let mut session = asking();
    let misrouted = Event::Failed { node: NodeId::numbered(2), failure: crate::recover::Failure::Misrouted };
    let found = || Event::Rerouted(Some((pipeline(), Standbys::default())));
    let mut position = 3;
    while !session.is_over() && position < 200 {
        // The log has the inputs of the next stages for one token more.
        session.step(session.wake().unwrap(), found());
        let (now, epoch) = (session.wake().unwrap(), session.epoch());
        (0..3).for_each(|stage| {
            session.step(now, Event::Opened { stage, epoch, have: position - 1 });
        });
        session.step(now, one(epoch, position, 5));
        position += 1;
        // Two wrong routes, then none, then the first again.
        session.step(now + 1, misrouted.clone());
        session.step(now + 2, found());
        session.step(now + 3, misrouted.clone());
        session.step(now + 4, Event::Rerouted(None));
        (0..3).take_while(|_| !session.is_over() && !asks_again(&mut session)).count();
        if !session.is_over() {
            session.step(session.wake().unwrap(), Event::Rerouted(None));
            asks_again(&mut session);
        }
    }
    assert!(session.is_over() && session.emitted().len() <= 16, "{:?}", session.emitted());
}

/// The middle stage stands still for 450 ms at every third step, so that its shadow is given the frame, and then goes on.
#[test]
fn a_stage_that_stutters_is_replaced_by_its_shadow() {
    let standbys = Standbys { shadows: vec![None, Some(NodeId::numbered(9)), None], ..Standbys::default() };
    let (mut session, _) =
        Session::start(SessionId::numbered(1), Millis(0), 3, 1_000, &pipeline(), &standbys, 0.0);
    let opened = |session: &mut Session, now| {
        (0..3).for_each(|stage| {
            session.step(now, Event::Opened { stage, epoch: session.epoch(), have: 0 });
        });
    };
    opened(&mut session, Millis(1));
    let mut now = Millis(1);
    let left = (3..100).find(|position| {
        let (epoch, to) = (1, *position);
        for stage in 0..3 {
            let stands = stage == 1 && position % 3 == 0;
            let then = now + if stands { 450 } else { 20 };
            while let Some(wake) = session.wake().filter(|wake| *wake < then) {
                session.step(wake, Event::Tick);
            }
            now = then;
            let node = NodeId::numbered(stage as u64 + 1);
            if stage < 2 {
                session.step(now, Event::Boundary { stage, node, epoch, attempt: 0, to });
            }
        }
        session.step(now, one(epoch, to, 5));
        session.epoch() > epoch
    });
    // Sixteen steps say what is usual, and those that were hedged are none of them.
    assert!(left.is_some_and(|position| position < 3 + 24 + 60), "{left:?}");
    assert_eq!(session.segments().map(|segment| segment.node).nth(1), Some(NodeId::numbered(9)));
    assert_eq!(session.emitted().len() as u32, left.unwrap() - 2, "every token was said all the same");
}

/// The middle and the last stage fall silent together. The shadow of one answers for it, that of the other takes its place,
/// and the one that was answered for is not waited for again: one new epoch is enough.
#[test]
fn two_that_fall_silent_together_are_replaced_together() {
    let shadows = vec![None, Some(NodeId::numbered(9)), Some(NodeId::numbered(10))];
    let standbys = Standbys { shadows, ..Standbys::default() };
    let (mut session, _) =
        Session::start(SessionId::numbered(1), Millis(0), 3, 50, &pipeline(), &standbys, 0.0);
    (0..3).for_each(|stage| {
        session.step(Millis(1), Event::Opened { stage, epoch: 1, have: 0 });
    });
    let boundary =
        |stage, node, to| Event::Boundary { stage, node: NodeId::numbered(node), epoch: 1, attempt: 0, to };
    for position in 3..13 {
        let now = Millis(u64::from(position) * 10);
        session.step(now, boundary(0, 1, position));
        session.step(now, boundary(1, 2, position));
        session.step(now, one(1, position, 5));
    }
    session.step(Millis(121), boundary(0, 1, 13));
    while session.epoch() == 1 {
        let now = session.wake().unwrap();
        assert!(now < Millis(1_000), "both have been silent for long");
        let hedge =
            |action: &Action| matches!(action, Action::Send { node, .. } if *node == NodeId::numbered(9));
        if session.step(now, Event::Tick).iter().any(hedge) {
            session.step(now, boundary(1, 9, 13));
        }
    }
    let nodes: Vec<NodeId> = session.segments().map(|segment| segment.node).collect();
    assert_eq!(nodes, [1, 9, 10].map(NodeId::numbered));
    assert_eq!(session.epoch(), 2);
}

/// The middle stage answers and says nothing of its work, twice: what the first stage sends to it does not arrive. It gets
/// the first frame again long before its patience ends, and its shadow the second.
#[test]
fn what_a_stage_has_not_got_is_sent_again() {
    let standbys = Standbys { shadows: vec![None, Some(NodeId::numbered(9)), None], ..Standbys::default() };
    let (mut session, _) =
        Session::start(SessionId::numbered(1), Millis(0), 3, 50, &pipeline(), &standbys, 0.0);
    (0..3).for_each(|stage| {
        session.step(Millis(1), Event::Opened { stage, epoch: 1, have: 0 });
    });
    let mut began = Millis(2);
    for (to, expected) in [(3, 2), (4, 9)] {
        session
            .step(began, Event::Boundary { stage: 0, node: NodeId::numbered(1), epoch: 1, attempt: 0, to });
        let (now, sent) = loop {
            let now = session.wake().unwrap();
            let actions = session.step(now, Event::Tick);
            let sent = actions.iter().find_map(|action| match action {
                Action::Send { stage: 1, node, from, to, .. } => Some((*node, *from, *to)),
                _ => None,
            });
            if let Some(sent) = sent {
                break (now, sent);
            }
            assert!(actions.iter().any(|action| matches!(action, Action::Ping { .. })), "{actions:?}");
            session.step(now, Event::Pong { node: NodeId::numbered(2) });
        };
        let from = if to == 3 { 0 } else { 3 };
        assert_eq!(sent, (NodeId::numbered(expected), from, to));
        assert!((350..600).contains(&now.since(began)), "{now:?}");
        // A shadow far away takes longer than a look.
        let (mut now, answers) = (now, now + 300);
        while expected == 9 && session.wake().unwrap() < answers {
            now = session.wake().unwrap();
            session.step(now, Event::Pong { node: NodeId::numbered(2) });
            let actions = session.step(now, Event::Tick);
            assert!(actions.iter().all(|action| matches!(action, Action::Ping { .. })), "{actions:?}");
        }
        session.step(
            now,
            Event::Boundary { stage: 1, node: NodeId::numbered(expected), epoch: 1, attempt: 0, to },
        );
        session.step(now, one(1, to, 5));
        began = now + 1;
    }
    assert_eq!((session.epoch(), session.emitted().len()), (1, 2));
}

/// A session of a prompt of three tokens whose stages have promised, with the first boundary of its step logged.
fn stepping(most: u32) -> Session {
    let (mut session, _) =
        Session::start(SessionId::numbered(1), Millis(0), 3, most, &pipeline(), &Standbys::default(), 0.0);
    (0..3).for_each(|stage| {
        session.step(Millis(1), Event::Opened { stage, epoch: 1, have: 0 });
    });
    session
}

fn sends(actions: &[Action]) -> Vec<(usize, u16, u32, u32)> {
    let send = |action: &Action| match action {
        Action::Send { stage, attempt, from, to, .. } => Some((*stage, *attempt, *from, *to)),
        _ => None,
    };
    actions.iter().filter_map(send).collect()
}

fn emits(actions: &[Action]) -> Vec<(u32, u32)> {
    let emit = |action: &Action| match action {
        Action::Emit { position, token } => Some((*position, *token)),
        _ => None,
    };
    actions.iter().filter_map(emit).collect()
}

fn drew(attempt: u16, position: u32, tokens: &[u32], draft: u32) -> Event {
    Event::Tokens { epoch: 1, attempt, position, tokens: tokens.to_vec(), stop: false, draft }
}

#[test]
fn a_draft_travels_in_one_step_and_what_was_rejected_opens_another_attempt() {
    let mut session = stepping(50);
    let boundary =
        |attempt, to| Event::Boundary { stage: 0, node: NodeId::numbered(1), epoch: 1, attempt, to };
    let actions = session.step(Millis(2), drew(0, 3, &[10], 3));
    assert_eq!((sends(&actions), session.drafted()), (vec![(0, 0, 3, 7)], 3));
    session.step(Millis(3), boundary(0, 7));
    assert_eq!((session.valid_below(0), session.logged(1)), (7, 7));
    // Two of three were right: three tokens are said, and the row of the wrong one counts for nothing.
    let actions = session.step(Millis(4), drew(0, 4, &[11, 12, 13], 2));
    assert_eq!(emits(&actions), [(4, 11), (5, 12), (6, 13)]);
    assert_eq!(sends(&actions), [(0, 1, 6, 9)]);
    assert_eq!((session.attempt(), session.valid_below(0), session.valid_below(1)), (1, 6, 9));
    assert_eq!((session.logged(1), session.valid_below(7)), (6, 0));
    // What the abandoned attempt still says, of its rejected row too.
    session.step(Millis(5), boundary(0, 7));
    assert_eq!(session.logged(1), 6);
    assert_eq!(session.step(Millis(5), drew(0, 4, &[11, 12, 13, 99], 0)), []);
    assert_eq!(session.step(Millis(5), drew(0, 7, &[99], 0)), []);
    // A draft that is right to its end opens none.
    let actions = session.step(Millis(6), drew(1, 7, &[14, 15, 16], 0));
    assert_eq!((emits(&actions).len(), sends(&actions)), (3, vec![(0, 1, 9, 10)]));
    // A different answer of the attempt that runs is evidence, as without drafts.
    let other = session.step(Millis(7), drew(1, 7, &[14, 99], 0));
    assert_eq!(other, [Action::Evidence { position: 8 }]);
}

#[test]
fn more_tokens_than_were_drafted_are_not_taken() {
    let mut session = stepping(50);
    assert_eq!(session.step(Millis(2), drew(0, 3, &[10, 11], 0)), []);
    assert_eq!(session.step(Millis(2), drew(0, 3, &[], 0)), []);
    assert_eq!(emits(&session.step(Millis(2), drew(0, 3, &[10], 0))), [(3, 10)]);
}

#[test]
fn a_draft_ends_with_the_answer() {
    let mut session = stepping(4);
    session.step(Millis(2), drew(0, 3, &[10], 9));
    assert_eq!(session.drafted(), 2, "three tokens are left, and one comes without a draft");
    let actions = session.step(Millis(3), drew(0, 4, &[11, 12, 13], 9));
    assert_eq!((emits(&actions).len(), session.is_over()), (3, true));
}

#[test]
fn a_stage_that_lost_its_cache_ends_the_draft_and_not_the_epoch() {
    let mut session = stepping(50);
    session.step(Millis(2), drew(0, 3, &[10], 3));
    session.step(
        Millis(3),
        Event::Boundary { stage: 0, node: NodeId::numbered(1), epoch: 1, attempt: 0, to: 7 },
    );
    let actions = session.step(Millis(4), Event::NeedReplay { stage: 1, epoch: 1, have: 0 });
    assert_eq!(sends(&actions), [(0, 1, 3, 4), (1, 1, 0, 4)]);
    assert_eq!((session.attempt(), session.drafted(), session.epoch()), (1, 0, 1));
    assert_eq!(session.step(Millis(5), drew(0, 4, &[11, 12], 0)), [], "drawn from the draft that is gone");
    assert_eq!(emits(&session.step(Millis(6), drew(1, 4, &[11], 0))), [(4, 11)]);
}

#[test]
fn a_new_epoch_begins_without_a_draft() {
    let mut session = stepping(50);
    session.step(Millis(2), drew(0, 3, &[10], 3));
    fail(&mut session, Millis(3));
    assert_eq!((session.epoch(), session.attempt(), session.drafted()), (2, 0, 0));
    session.step(Millis(4), Event::Rerouted(Some((pipeline(), Standbys::default()))));
    let epoch = session.epoch();
    let mut last = Vec::new();
    for stage in 0..3 {
        last = session.step(Millis(5), Event::Opened { stage, epoch, have: 3 });
    }
    assert_eq!(sends(&last), [(0, 0, 3, 4)]);
}

/// Whom `actions` ask to serve (`true`) or to follow, by the number of the node.
fn asked(actions: &[Action]) -> Vec<(bool, u64)> {
    let number = |node: NodeId| (1..20).find(|name| NodeId::numbered(*name) == node).unwrap();
    let ask = |action: &Action| match action {
        Action::Open { segment, .. } => Some((true, number(segment.node))),
        Action::Follow { segment, .. } => Some((false, number(segment.node))),
        _ => None,
    };
    actions.iter().filter_map(ask).collect()
}

/// A session over `nodes`, of two layers each, followed by `shadows`, and what it does when node 2 is proven wrong.
fn without_the_liar(nodes: &[u64], shadows: &[Option<u64>]) -> Vec<Action> {
    let segments = nodes.iter().zip((0u32..).step_by(2)).map(|(node, start)| Segment {
        node: NodeId::numbered(*node),
        layers: LayerRange::new(start, start + 2).unwrap(),
    });
    let pipeline = Pipeline::new(segments.collect(), 2 * nodes.len() as u32).unwrap();
    let shadows = shadows.iter().map(|node| node.map(NodeId::numbered)).collect();
    let standbys = Standbys { shadows, ..Standbys::default() };
    let id = SessionId::numbered(1);
    let (mut session, _) = Session::start(id, Millis(0), 3, 50, &pipeline, &standbys, 0.0);
    (0..nodes.len()).for_each(|stage| {
        session.step(Millis(1), Event::Opened { stage, epoch: 1, have: 0 });
    });
    session.step(Millis(2), one(1, 3, 5));
    session.step(Millis(3), Event::Convicted { node: NodeId::numbered(2), layer: 4, from: 2, known: 4 })
}

#[test]
fn a_proven_liar_follows_no_stage_any_more() {
    let actions = without_the_liar(&[1, 2, 3], &[None, Some(9), Some(2)]);
    assert_eq!(asked(&actions), [(true, 1), (true, 9), (true, 3)]);
    assert!(actions.contains(&Action::Close { node: NodeId::numbered(2), epoch: 1 }));
    // Nor one that only followed.
    let actions = without_the_liar(&[1, 4, 3], &[None, Some(9), Some(2)]);
    assert_eq!(asked(&actions), [(true, 1), (true, 4), (false, 9), (true, 3)]);
    assert!(actions.contains(&Action::Close { node: NodeId::numbered(2), epoch: 1 }));
}

#[test]
fn a_proven_liar_loses_every_stage_that_it_runs() {
    let actions = without_the_liar(&[1, 2, 3, 2], &[None, Some(9), None, Some(8)]);
    assert_eq!(asked(&actions), [(true, 1), (true, 9), (true, 3), (true, 8)]);
    let closed = Action::Close { node: NodeId::numbered(2), epoch: 1 };
    assert_eq!(actions.iter().filter(|action| **action == closed).count(), 1);
    // Where no node stands by for one of them, another route is sought for all.
    let actions = without_the_liar(&[1, 2, 3, 2], &[None, Some(9), None, None]);
    assert_eq!(asked(&actions), []);
    assert_eq!(actions.last(), Some(&Action::FindRoute { deny: vec![NodeId::numbered(2)] }));
}
