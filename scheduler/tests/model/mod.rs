//! A small world around the real door: what can happen to it, what is done then, and what must hold.
//!
//! A session has two epochs. Both requesters call theirs the same, and the second one may have another beside it. Any message of either
//! may arrive at any moment and any number of times up to a bound, so messages are lost (never arrive), doubled, reordered
//! and replayed. The node does with a [`Decision`] what the daemon does, and a session's end is an event of its own, so that
//! everything may happen between the word and the deed.

use std::collections::BTreeMap;

use scheduler::admit::{Limits, Tier};
use scheduler::door::{Ask, Decision, Door, Ending, IDLE_MS, Key, Refused, Term, Terms};
use scheduler::{LayerRange, Millis, NodeId, SessionId};

/// Who leases honestly, and who does not. A session goes by the number of its requester, the second's other one by 3.
pub const REQUESTERS: [u64; 2] = [1, 2];
/// The sessions there may be.
const SESSIONS: [u64; 3] = [1, 2, 3];
/// The step of time, ms: an ask waits one of them, a lease without use lasts two.
pub const TICK_MS: u64 = 1_500;
/// What a session needs of the memory, and all there is.
const KV: (u64, u64) = (10, 25);

/// Something that happens.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Action {
    /// A lease arrives: of which session, under which epoch, and whether it only stands by.
    Lease(u64, u32, bool),
    /// A release arrives.
    Release(u64, u32),
    /// Rows arrive: from whom, for whose session, under which epoch.
    Rows(u64, u64, u32),
    /// A beacon arrives.
    Beacon(u64, u32),
    /// The last connection is lost.
    Gone(u64),
    /// A connection is back.
    Back(u64),
    /// A session that was told to end, or has nothing left, is over.
    Over(u64),
    /// Time passes.
    Tick,
}

#[derive(Clone, Debug)]
struct Lease {
    epoch: u32,
}

impl Term for Lease {
    fn layers(&self) -> LayerRange {
        LayerRange::new(1, 3).unwrap()
    }

    fn epoch(&self) -> u32 {
        self.epoch
    }

    fn previous(&self) -> Option<NodeId> {
        None
    }
}

/// A session's task.
#[derive(Clone, Debug)]
struct Stage {
    ask: u64,
    terms: Terms<Lease>,
    over: bool,
    /// When its last rows came, for the checks.
    worked: Option<Millis>,
}

/// The node, and what the checks remember.
#[derive(Clone, Debug)]
pub struct World {
    door: Door,
    now: Millis,
    stages: BTreeMap<u64, Stage>,
    connected: [bool; 2],
    /// By requester, the epoch up to which it has given its session back.
    given_back: BTreeMap<u64, u32>,
    slots: u32,
    sessions: Vec<u64>,
}

/// What of an action was seen from outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// Of a lease.
    Granted,
    /// Of a lease that is late.
    Refused,
    /// Nothing yet, or nothing at all.
    Nothing,
}

/// Whose session it is.
fn requester(session: u64) -> u64 {
    session.min(2)
}

fn key(session: u64) -> Key {
    let name = if session == 3 { 8 } else { 7 };
    Key { requester: NodeId::numbered(requester(session)), session: SessionId::numbered(name) }
}

fn number(its: Key) -> u64 {
    SESSIONS.into_iter().find(|session| key(*session) == its).expect("one of ours")
}

impl World {
    /// An empty node with so many slots, and the sessions that there may be.
    pub fn new(slots: u32, sessions: &[u64]) -> Self {
        let tiers = vec![Tier { weight: 1.0, share: slots }; 2];
        let door = Door::new(Limits { slots, kv_bytes: KV.1, waiting: 4, tiers });
        let (stages, given_back) = (BTreeMap::new(), BTreeMap::new());
        Self {
            door,
            now: Millis(0),
            stages,
            connected: [true; 2],
            given_back,
            slots,
            sessions: sessions.to_vec(),
        }
    }

    /// The state as a text; equal for worlds from which the same can happen.
    pub fn picture(&self) -> String {
        format!("{self:?}")
    }

    /// The time.
    pub fn ticks(&self) -> u64 {
        self.now.0 / TICK_MS
    }

    /// What can happen now.
    pub fn actions(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        let over = self.stages.iter().filter(|(_, stage)| stage.over);
        actions.extend(over.map(|(session, _)| Action::Over(*session)));
        for who in REQUESTERS {
            if !self.is_connected(who) {
                actions.push(Action::Back(who));
                continue;
            }
            actions.push(Action::Gone(who));
            let whose = self.sessions.iter().copied();
            actions.extend(whose.flat_map(|whose| [1, 2].map(|epoch| Action::Rows(who, whose, epoch))));
        }
        for session in self.sessions.iter().copied().filter(|session| self.is_connected(requester(*session)))
        {
            for epoch in [1, 2] {
                actions.extend([Action::Lease(session, epoch, false), Action::Release(session, epoch)]);
            }
            actions.extend([Action::Lease(session, 1, true), Action::Beacon(session, 1)]);
        }
        actions.push(Action::Tick);
        actions
    }

    fn is_connected(&self, who: u64) -> bool {
        self.connected[(who - 1) as usize]
    }

    /// Lets it happen, as the daemon would, and checks it.
    pub fn step(&mut self, action: Action) -> Seen {
        let now = self.now;
        let seen = match action {
            Action::Lease(who, epoch, standby) => self.lease(who, epoch, standby),
            Action::Release(who, epoch) => {
                let known = self.given_back.entry(who).or_insert(epoch);
                *known = (*known).max(epoch);
                self.door.release(key(who), epoch);
                if let Some(stage) = self.stages.get_mut(&who) {
                    stage.over |= stage.terms.release(epoch);
                }
                Seen::Nothing
            }
            Action::Rows(from, whose, epoch) => {
                self.frame(from, whose, epoch);
                Seen::Nothing
            }
            Action::Beacon(who, epoch) => {
                let admitted = |stage: &Stage| {
                    let from = key(who).requester;
                    !stage.over && stage.terms.admits(from, from, false, 1, epoch).is_some()
                };
                if self.stages.get(&who).is_some_and(admitted) {
                    self.door.beacon(key(who));
                }
                Seen::Nothing
            }
            Action::Gone(who) => {
                self.connected[(who - 1) as usize] = false;
                self.door.gone(now, NodeId::numbered(who));
                Seen::Nothing
            }
            Action::Back(who) => {
                self.connected[(who - 1) as usize] = true;
                self.door.back(NodeId::numbered(who));
                Seen::Nothing
            }
            Action::Over(who) => {
                if let Some(stage) = self.stages.remove(&who) {
                    self.door.ended(stage.ask);
                }
                Seen::Nothing
            }
            Action::Tick => {
                self.now = now + TICK_MS;
                Seen::Nothing
            }
        };
        let granted = self.turn(action);
        self.check();
        if granted { Seen::Granted } else { seen }
    }

    fn lease(&mut self, who: u64, epoch: u32, standby: bool) -> Seen {
        let ids = self.stages.values().map(|stage| stage.ask);
        let taken: Vec<u64> = ids.chain((0..64).filter(|id| self.door.queue().waits(*id))).collect();
        let id = (0..64).find(|id| !taken.contains(id)).expect("few asks wait");
        let (layers, kv_bytes) = (LayerRange::new(0, 1).expect("one layer"), KV.0);
        let ask = Ask { id, key: key(who), epoch, tier: 0, layers, kv_bytes, standby, patience_ms: TICK_MS };
        match self.door.lease(self.now, ask) {
            None => Seen::Nothing,
            Some(decision) => self.decide(decision),
        }
    }

    /// Does what the door says; whether the lease of `action` was granted by it.
    fn turn(&mut self, action: Action) -> bool {
        let mut granted = false;
        for decision in self.door.turn(self.now) {
            let seen = self.decide(decision);
            granted |= matches!(action, Action::Lease(..)) && seen == Seen::Granted;
        }
        granted
    }

    fn decide(&mut self, decision: Decision) -> Seen {
        match decision {
            Decision::Start(ask) => {
                let stage = Stage { ask: ask.id, terms: Terms::default(), over: false, worked: None };
                let before = self.stages.insert(number(ask.key), stage);
                assert!(before.is_none(), "one place for one session");
                self.grant(ask)
            }
            Decision::Forward(ask) => self.grant(ask),
            Decision::Refuse(ask, why) => {
                let who = number(ask.key);
                let gave_back = self.given_back.get(&who).is_some_and(|epoch| *epoch >= ask.epoch);
                assert!(why != Refused::GivenBack || gave_back, "refused for what another gave back");
                assert!(why != Refused::Ending || self.stages[&who].over, "refused for another's session");
                Seen::Refused
            }
            Decision::End(whose, why) => {
                let who = number(whose);
                let connected = self.is_connected(requester(who));
                let stage = self.stages.get_mut(&who).expect("only what runs is ended");
                let idle = stage.worked.is_none_or(|at| self.now.since(at) >= IDLE_MS);
                match why {
                    Ending::Unused => assert!(stage.worked.is_none(), "it was used"),
                    Ending::Yields => assert!(idle, "a session that works was taken away"),
                    Ending::Away => assert!(!connected, "it is connected"),
                    Ending::NoRoom => assert!(self.door.queue().kv_used() + KV.0 > KV.1),
                }
                stage.over = true;
                Seen::Nothing
            }
        }
    }

    /// A session is handed a lease.
    fn grant(&mut self, ask: Ask) -> Seen {
        let who = number(ask.key);
        let gave_back = self.given_back.get(&who).is_some_and(|epoch| *epoch >= ask.epoch);
        assert!(!gave_back, "granted after it was given back");
        let Some(stage) = self.stages.get_mut(&who).filter(|stage| !stage.over) else { return Seen::Refused };
        if stage.terms.is_past(ask.epoch) {
            return Seen::Refused;
        }
        stage.terms.grant(Lease { epoch: ask.epoch });
        self.door.granted(self.now, ask.key);
        Seen::Granted
    }

    fn frame(&mut self, from: u64, whose: u64, epoch: u32) {
        let Some(stage) = self.stages.get_mut(&whose).filter(|stage| !stage.over) else { return };
        let sender = NodeId::numbered(from);
        let admitted = stage.terms.admits(key(whose).requester, sender, true, 1, epoch).is_some();
        let current = stage.terms.all().map(|lease| lease.epoch).collect::<Vec<_>>();
        assert_eq!(admitted, from == requester(whose) && current == [epoch], "which frames have an effect");
        if !admitted {
            return;
        }
        stage.worked = Some(self.now);
        if let Some(decision) = self.door.rows(self.now, key(whose)) {
            self.decide(decision);
        }
    }

    /// What must hold always.
    fn check(&self) {
        let queue = self.door.queue();
        assert_eq!(queue.running(), self.stages.len(), "a place is spent twice, or leaked");
        assert!(queue.running() as u32 <= self.slots && queue.kv_used() <= KV.1);
        for session in SESSIONS {
            assert_eq!(self.door.has(key(session)), self.stages.contains_key(&session));
        }
        for who in REQUESTERS {
            let its = self.stages.keys().filter(|session| requester(**session) == who).count();
            assert_eq!(queue.places(NodeId::numbered(who)), its as u32);
        }
        assert!(!self.stages.is_empty() || queue.kv_used() == 0, "memory is leaked");
    }

    /// From here on the second requester does nothing any more, and the first asks again and again under a later epoch:
    /// how many steps of time pass until it has a place; `None` when it never gets one.
    pub fn settles(&self) -> Option<u64> {
        let mut world = self.clone();
        world.step(Action::Back(1));
        let epoch = 1 + world.given_back.get(&1).copied().unwrap_or(0).max(2);
        for passed in 0..MOST_TICKS {
            for session in SESSIONS {
                if world.stages.get(&session).is_some_and(|stage| stage.over) {
                    world.step(Action::Over(session));
                }
            }
            world.step(Action::Lease(1, epoch, false));
            let serves = |stage: &Stage| !stage.over && stage.terms.of(1, epoch).is_some();
            if world.stages.get(&1).is_some_and(serves) {
                return Some(passed);
            }
            world.step(Action::Tick);
        }
        None
    }
}

/// An honest requester has a place after so many steps of time at most: the long idle time of a place, and what asks wait.
const MOST_TICKS: u64 = 10;
