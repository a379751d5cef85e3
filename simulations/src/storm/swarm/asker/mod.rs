//! The asking side of a machine: conversations, each turn one session.
//!
//! `look` finds who serves a turn, `log` keeps what its stages put out.

mod log;
mod look;

use std::collections::{BTreeMap, VecDeque};

use scheduler::lease::{Leases, Load};
use scheduler::recover::Failure;
use scheduler::route::Router;
use scheduler::session::{Action, End, Event, Session, Standbys};
use scheduler::trust::{Outcome, Record};
use scheduler::{LayerRange, Millis, NodeId, Pipeline, Segment, SessionId};

use self::log::Shadow;
use crate::storm::stage::{Kv, Lease, token_of};
use crate::storm::swarm::{Body, Happening, Swarm, index};

/// Wait before looking for a route again, ms.
const AGAIN_MS: u64 = 1_000;
/// Times a requester looks for a first route.
const TRIES: u32 = 40;

/// A turn still to come.
#[derive(Clone, Debug)]
pub struct Turn {
    /// The whole text so far, as tokens.
    pub history: Vec<u32>,
    /// Turns left after this one.
    pub left: usize,
    /// Times it may be asked until it is served whole; 0 when it need not be.
    pub must: u32,
}

/// One request under way.
pub struct Live {
    turn: Turn,
    session: Session,
    prompt: usize,
    /// Prompt and what was emitted.
    tokens: Vec<u32>,
    expected: Vec<u32>,
    /// By boundary layer, the outputs seen.
    log: BTreeMap<u32, Vec<Option<u64>>>,
    shadows: BTreeMap<NodeId, Shadow>,
    looks: u32,
    /// When its first route was looked for, on the machine's own clock.
    asked: Millis,
    /// Answers of the first opening, by stage.
    loads: BTreeMap<usize, Load>,
    last_token: u64,
    stall: u64,
    wake: u64,
    cancel_at: Option<usize>,
    visited: Vec<NodeId>,
}

/// A requester.
#[derive(Default)]
pub struct Asker {
    pub live: BTreeMap<SessionId, Live>,
    leases: Leases,
    router: Router,
    pub trust: BTreeMap<NodeId, Record>,
    /// Turns waiting for a route, with the tries so far.
    pub waiting: VecDeque<(Turn, u32)>,
}

/// What a machine that never fails would say.
fn reference(prompt: &[u32], wanted: u32, layers: u32) -> Vec<u32> {
    let Some(all) = LayerRange::new(0, layers) else { return Vec::new() };
    let mut kv = Kv::new(all);
    let mut hidden = 0;
    prompt.iter().for_each(|token| hidden = kv.compute(u64::from(*token)));
    let mut said = Vec::new();
    for _ in 0..wanted {
        let token = token_of(hidden);
        said.push(token);
        hidden = kv.compute(u64::from(token));
    }
    said
}

impl Swarm {
    /// The user says something.
    pub fn ask(&mut self, at: usize, turn: Turn, tries: u32) {
        if tries == 0 {
            self.report.requests.0 += 1;
        }
        let Some((pipeline, standbys)) = self.find(at, &turn.history, &[], tries, None) else {
            if tries >= TRIES {
                self.report.requests.2 += 1;
                let must = turn.must;
                self.checks.that(must == 0, || format!("machine {at} finds no route after healing"));
                return;
            }
            self.machines[at].asker.waiting.push_back((turn, tries + 1));
            return self.at(self.now + AGAIN_MS, Happening::AskAgain { at });
        };
        let now = self.local(at);
        self.begin(at, turn, (0, now), &pipeline, &standbys);
    }

    /// Starts a session for a turn that has been looked for so many times since a moment of the machine's own clock.
    fn begin(
        &mut self,
        at: usize,
        turn: Turn,
        (looks, asked): (u32, Millis),
        pipeline: &Pipeline,
        standbys: &Standbys,
    ) {
        self.sessions += 1;
        let id = SessionId::numbered(self.sessions);
        let wanted = self.options.tokens.1;
        let now = self.local(at);
        let prompt = turn.history.len();
        let rtt = self.net.rtt_p99_ms();
        let (session, actions) = Session::start(id, now, prompt as u32, wanted, pipeline, standbys, rtt);
        let cancels = self.chance.happens(self.options.cancels) && turn.must == 0;
        let live = Live {
            session,
            prompt,
            tokens: turn.history.clone(),
            expected: reference(&turn.history, wanted, self.options.layers),
            log: BTreeMap::new(),
            shadows: BTreeMap::new(),
            looks,
            asked,
            loads: BTreeMap::new(),
            last_token: self.now,
            stall: 0,
            wake: u64::MAX,
            cancel_at: cancels.then(|| self.chance.below(wanted as usize)),
            visited: Vec::new(),
            turn,
        };
        self.machines[at].asker.live.insert(id, live);
        self.act(at, id, actions);
        self.rearm(at, id);
    }

    /// An event for a session, unless it is of another epoch.
    pub fn tell_session(&mut self, at: usize, id: SessionId, event: Event) {
        let now = self.local(at);
        let Some(live) = self.machines[at].asker.live.get_mut(&id) else { return };
        let stale = match &event {
            Event::Opened { epoch, .. }
            | Event::NeedReplay { epoch, .. }
            | Event::Boundary { epoch, .. }
            | Event::Beacon { epoch, .. }
            | Event::Token { epoch, .. } => *epoch != live.session.epoch(),
            _ => false,
        };
        let before = (live.session.epoch(), live.session.emitted().len());
        let actions = live.session.step(now, event);
        let after = (live.session.epoch(), live.session.emitted().len());
        self.checks.that(!stale || (actions.is_empty() && before == after), || {
            format!("{} ms: a dead epoch had an effect on {id:?}", self.now)
        });
        if before.0 >= 1 && after.0 > before.0 {
            self.report.failovers += 1;
        }
        self.act(at, id, actions);
        self.rearm(at, id);
    }

    fn act(&mut self, at: usize, id: SessionId, actions: Vec<Action>) {
        for action in actions {
            let Some(live) = self.machines[at].asker.live.get_mut(&id) else { return };
            match action {
                Action::Open { stage, epoch, segment, next, at: keep } => {
                    live.visited.push(segment.node);
                    live.shadows.remove(&segment.node);
                    self.lease(at, id, stage, epoch, segment, next, keep, false);
                }
                Action::Follow { stage, epoch, segment, next, at: keep } => {
                    let old = live.shadows.remove(&segment.node);
                    let same = old.filter(|old| old.layers == segment.layers);
                    let have = same.map_or(0, |old| old.have).min(keep);
                    live.shadows.insert(segment.node, Shadow { layers: segment.layers, have, sent: have });
                    self.lease(at, id, stage, epoch, segment, next, keep, true);
                }
                Action::Send { stage, epoch, node, from, to } => {
                    let segment = live.session.segments().nth(stage);
                    let inputs = segment.and_then(|segment| live.inputs(segment.layers.start(), from, to));
                    self.report.hedges += u64::from(segment.is_some_and(|segment| segment.node != node));
                    let (Some(segment), Some(inputs)) = (segment, inputs) else {
                        self.checks.that(false, || format!("{id:?} sends {from}..{to}, which is not logged"));
                        continue;
                    };
                    let layer = segment.layers.start();
                    let body = Body::Frame { session: id, epoch, layer, from, inputs, home: at };
                    self.send(at, index(node), body);
                }
                Action::Ping { node } => self.send(at, index(node), Body::Ping { session: id, home: at }),
                Action::Emit { position, token } => self.emit(at, id, position, token),
                Action::FindRoute { deny } => {
                    let history = live.tokens.clone();
                    let found = self.find(at, &history, &deny, self.now as u32, None);
                    self.at(self.now + 1, Happening::Route { at, session: id, found: Box::new(found) });
                }
                Action::Close { node, epoch } => {
                    live.shadows.remove(&node);
                    self.send(at, index(node), Body::Close { session: id, epoch });
                }
                Action::Evidence { position } => {
                    self.checks.that(false, || format!("honest machines differ at {position}"));
                }
                Action::Done(end) => self.done(at, id, end),
            }
        }
        self.feed(at, id);
    }

    #[expect(clippy::too_many_arguments, reason = "one per field of a lease")]
    fn lease(
        &mut self,
        at: usize,
        id: SessionId,
        stage: usize,
        epoch: u32,
        segment: Segment,
        next: Option<NodeId>,
        keep: u32,
        follow: bool,
    ) {
        let to = index(segment.node);
        let end = segment.layers.start() == 0 || segment.layers.end() == self.options.layers;
        let abroad = self.options.boomerang && end && to != at;
        self.checks.that(!abroad, || format!("{} of {id:?} is leased to {to}", segment.layers));
        let Some(live) = self.machines[at].asker.live.get(&id) else { return };
        let positions = live.prompt as u32 + self.options.tokens.1;
        let lease = Lease {
            session: id,
            requester: at,
            stage,
            epoch,
            layers: segment.layers,
            next,
            at: keep,
            positions,
            follow,
        };
        self.send(at, to, Body::Open(lease));
    }

    fn emit(&mut self, at: usize, id: SessionId, position: u32, token: u32) {
        let Some(live) = self.machines[at].asker.live.get_mut(&id) else { return };
        let next = live.tokens.len() as u32;
        self.checks.that(position == next, || format!("{id:?} emits {position}, not {next}"));
        live.tokens.push(token);
        if live.tokens.len() > live.prompt + 1 {
            live.stall = live.stall.max(self.now - live.last_token);
        }
        live.last_token = self.now;
        self.report.tokens += 1;
        self.checks.stream(self.now, &live.tokens[live.prompt..], &live.expected);
        if live.cancel_at == Some(live.tokens.len() - live.prompt - 1) {
            self.at(self.now + 1, Happening::Cancel { at, session: id });
        }
    }

    fn done(&mut self, at: usize, id: SessionId, end: End) {
        let Some(live) = self.machines[at].asker.live.remove(&id) else { return };
        let now = self.local(at);
        let whole = live.tokens.len() == live.prompt + self.options.tokens.1 as usize;
        self.checks
            .that(whole == (end == End::Length), || format!("{id:?} ended by {end:?}, whole: {whole}"));
        let must = live.turn.must;
        self.checks
            .that(whole || must != 1, || format!("{id:?} of machine {at} ended by {end:?} after healing"));
        if !whole && must > 1 {
            let turn = Turn { must: must - 1, ..live.turn.clone() };
            self.at(self.now + AGAIN_MS, Happening::Ask { at, turn: Box::new(turn) });
        }
        match end {
            End::Length | End::Stop => {
                self.report.requests.1 += 1;
                self.report.stalls_ms.push(live.stall);
                for node in live.session.segments().map(|segment| segment.node) {
                    let tokens = u64::from(self.options.tokens.1);
                    self.experience(at, node, now, Outcome::Verified { tokens });
                }
            }
            End::Cancelled => self.report.requests.3 += 1,
            End::GaveUp(_) => self.report.requests.2 += 1,
        }
        if live.turn.left > 0 && whole {
            let mut history = live.tokens;
            let said = (0..self.options.tokens.0).map(|_| self.chance.below(50_000) as u32);
            history.extend(said);
            let turn = Turn { history, left: live.turn.left - 1, must: 0 };
            let think = 200 + self.chance.below(2_000) as u64;
            self.at(self.now + think, Happening::Ask { at, turn: Box::new(turn) });
        }
    }

    /// Notes an outcome and lets it count in the next routes.
    fn experience(&mut self, at: usize, node: NodeId, now: scheduler::Millis, outcome: Outcome) {
        let record = self.machines[at].asker.trust.entry(node).or_default();
        record.note(now, outcome);
        let (score, standing) = (record.score(), record.standing(now));
        self.checks.that(score > 0.0 && score <= 1.0, || format!("a score of {score}"));
        let good = standing == scheduler::trust::Standing::Good;
        self.checks.that(good, || format!("machine {at} bars an honest one: {standing:?}"));
        self.machines[at].view.set_trust(node, score);
    }

    /// A node failed, as far as this machine can tell.
    pub fn node_failed(&mut self, at: usize, id: Option<SessionId>, node: NodeId, failure: Failure) {
        let now = self.local(at);
        let outcome = if failure == Failure::Refused { Outcome::Aborted } else { Outcome::Stalled };
        if node != crate::storm::swarm::id(at) && failure != Failure::Misrouted {
            self.experience(at, node, now, outcome);
        }
        if failure == Failure::Refused {
            self.report.refused += 1;
            self.machines[at].asker.leases.refused(now, node);
        }
        let sessions: Vec<SessionId> = match id {
            Some(id) => vec![id],
            None => self.machines[at].asker.live.keys().copied().collect(),
        };
        for id in sessions {
            self.tell_session(at, id, Event::Failed { node, failure });
        }
    }

    /// Sees to it that the session is ticked when it wants to be.
    pub fn rearm(&mut self, at: usize, id: SessionId) {
        let now = self.local(at);
        let Some(live) = self.machines[at].asker.live.get_mut(&id) else { return };
        let Some(due) = live.session.wake() else { return };
        // On a clock that runs at another speed the wait is a little off; waking early only arms again.
        let when = self.now + due.since(now).max(1);
        if when < live.wake || live.wake <= self.now {
            live.wake = when;
            self.at(when, Happening::Wake { at, session: id });
        }
    }
}

impl Asker {
    /// Who runs a stage of a session now.
    pub fn runs(&self, id: SessionId, stage: usize) -> Option<NodeId> {
        self.live.get(&id)?.session.segments().nth(stage).map(|segment| segment.node)
    }
}

impl Live {
    /// The session's epoch.
    pub fn epoch(&self) -> u32 {
        self.session.epoch()
    }
}
