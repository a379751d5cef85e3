//! The asking side of a machine: conversations, each turn one session.
//!
//! `look` finds who serves a turn, `log` keeps what its stages put out.

mod log;
mod look;

use std::collections::{BTreeMap, VecDeque};

use scheduler::lease::{Leases, Load};
use scheduler::recover::Failure;
use scheduler::route::Router;
use scheduler::session::{Action, End, Event, Rows, Session, Standbys};
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
    /// What is drafted behind them.
    draft: Vec<u32>,
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

/// A machine as one that asks.
pub struct Requester<'a> {
    pub(super) swarm: &'a mut Swarm,
    pub(super) here: usize,
}

impl Requester<'_> {
    /// The user says something.
    pub fn ask(&mut self, turn: Turn, tries: u32) {
        let at = self.here;
        if tries == 0 {
            self.swarm.report.requests.0 += 1;
        }
        let Some((pipeline, standbys)) = self.find(&turn.history, &[], tries, None) else {
            if tries >= TRIES {
                self.swarm.report.requests.2 += 1;
                let must = turn.must;
                self.swarm.checks.that(must == 0, || format!("machine {at} finds no route after healing"));
                return;
            }
            self.swarm.machines[at].asker.waiting.push_back((turn, tries + 1));
            return self.swarm.at(self.swarm.now + AGAIN_MS, Happening::AskAgain { at });
        };
        let now = self.swarm.local(at);
        self.begin(turn, (0, now), &pipeline, &standbys);
    }

    /// Starts a session for a turn that has been looked for so many times since a moment of the machine's own clock.
    fn begin(&mut self, turn: Turn, (looks, asked): (u32, Millis), pipeline: &Pipeline, standbys: &Standbys) {
        let at = self.here;
        self.swarm.sessions += 1;
        let id = SessionId::numbered(self.swarm.sessions);
        let wanted = self.swarm.options.demand.tokens.1;
        let now = self.swarm.local(at);
        let prompt = turn.history.len();
        let rtt = self.swarm.net.rtt_p99_ms();
        let (session, actions) = Session::start(id, now, prompt as u32, wanted, pipeline, standbys, rtt);
        let cancels = self.swarm.chance.happens(self.swarm.options.demand.cancels) && turn.must == 0;
        let live = Live {
            session,
            prompt,
            tokens: turn.history.clone(),
            draft: Vec::new(),
            expected: reference(&turn.history, wanted, self.swarm.options.size.layers),
            log: BTreeMap::new(),
            shadows: BTreeMap::new(),
            looks,
            asked,
            loads: BTreeMap::new(),
            last_token: self.swarm.now,
            stall: 0,
            wake: u64::MAX,
            cancel_at: cancels.then(|| self.swarm.chance.below(wanted as usize)),
            turn,
        };
        self.swarm.machines[at].asker.live.insert(id, live);
        self.act(id, actions);
        self.rearm(id);
    }

    /// An event for a session, unless it is of another epoch.
    pub fn tell_session(&mut self, id: SessionId, event: Event) {
        let at = self.here;
        let now = self.swarm.local(at);
        let Some(live) = self.swarm.machines[at].asker.live.get_mut(&id) else { return };
        let stale = match &event {
            Event::Opened { epoch, .. }
            | Event::NeedReplay { epoch, .. }
            | Event::Boundary { epoch, .. }
            | Event::Beacon { epoch, .. }
            | Event::Tokens { epoch, .. } => *epoch != live.session.epoch(),
            _ => false,
        };
        let before = (live.session.epoch(), live.session.emitted().len());
        let actions = live.session.step(now, event);
        let after = (live.session.epoch(), live.session.emitted().len());
        self.swarm.checks.that(!stale || (actions.is_empty() && before == after), || {
            format!("{} ms: a dead epoch had an effect on {id:?}", self.swarm.now)
        });
        if before.0 >= 1 && after.0 > before.0 {
            self.swarm.report.failovers += 1;
        }
        self.act(id, actions);
        self.rearm(id);
    }

    fn act(&mut self, id: SessionId, actions: Vec<Action>) {
        let at = self.here;
        for action in actions {
            let Some(live) = self.swarm.machines[at].asker.live.get_mut(&id) else { return };
            match action {
                Action::Open { stage, epoch, segment, next, at: keep } => {
                    if stage == 0 && self.swarm.options.drafts > 0 {
                        let known = live.tokens.len();
                        live.log.values_mut().for_each(|log| log.truncate(known));
                    }
                    live.shadows.remove(&segment.node);
                    self.lease(id, stage, epoch, segment, next, keep, false);
                }
                Action::Follow { stage, epoch, segment, next, at: keep } => {
                    let old = live.shadows.remove(&segment.node);
                    let same = old.filter(|old| old.layers == segment.layers);
                    let have = same.map_or(0, |old| old.have).min(keep);
                    live.shadows.insert(segment.node, Shadow { layers: segment.layers, have, sent: have });
                    self.lease(id, stage, epoch, segment, next, keep, true);
                }
                Action::Send { stage, epoch, attempt, node, from, to } => {
                    let segment = live.session.segments().nth(stage);
                    let inputs = segment.and_then(|segment| live.inputs(segment.layers.start(), from, to));
                    self.swarm.report.hedges +=
                        u64::from(segment.is_some_and(|segment| segment.node != node));
                    let (Some(segment), Some(inputs)) = (segment, inputs) else {
                        self.swarm
                            .checks
                            .that(false, || format!("{id:?} sends {from}..{to}, which is not logged"));
                        continue;
                    };
                    let layer = segment.layers.start();
                    let drafted = to.saturating_sub(live.tokens.len() as u32);
                    let since = Rows::since(from, live.session.attempt_start());
                    let rows = Rows { attempt, from, rows: to - from, drafted, since };
                    let body = Body::Frame { session: id, epoch, layer, rows, inputs, home: at };
                    self.swarm.send(at, index(node), body);
                }
                Action::Ping { node } => {
                    self.swarm.send(at, index(node), Body::Ping { session: id, home: at })
                }
                Action::Emit { position, token } => self.emit(id, position, token),
                Action::FindRoute { deny } => {
                    let history = live.tokens.clone();
                    let found = self.find(&history, &deny, self.swarm.now as u32, None);
                    self.swarm
                        .at(self.swarm.now + 1, Happening::Route { at, session: id, found: Box::new(found) });
                }
                Action::Close { node, epoch } => {
                    live.shadows.remove(&node);
                    self.swarm.send(at, index(node), Body::Close { session: id, epoch });
                }
                Action::Evidence { position } => {
                    self.swarm.checks.that(false, || format!("honest machines differ at {position}"));
                }
                Action::Done(end) => self.done(id, end),
            }
        }
        self.feed(id);
    }

    #[expect(clippy::too_many_arguments, reason = "one per field of a lease")]
    fn lease(
        &mut self,
        id: SessionId,
        stage: usize,
        epoch: u32,
        segment: Segment,
        next: Option<NodeId>,
        keep: u32,
        follow: bool,
    ) {
        let at = self.here;
        let to = index(segment.node);
        let end = segment.layers.start() == 0 || segment.layers.end() == self.swarm.options.size.layers;
        let abroad = self.swarm.options.routing.boomerang && end && to != at;
        self.swarm.checks.that(!abroad, || format!("{} of {id:?} is leased to {to}", segment.layers));
        let Some(live) = self.swarm.machines[at].asker.live.get(&id) else { return };
        let positions = live.prompt as u32 + self.swarm.options.demand.tokens.1;
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
        self.swarm.send(at, to, Body::Open(lease));
    }

    fn emit(&mut self, id: SessionId, position: u32, token: u32) {
        let at = self.here;
        let Some(live) = self.swarm.machines[at].asker.live.get_mut(&id) else { return };
        let next = live.tokens.len() as u32;
        self.swarm.checks.that(position == next, || format!("{id:?} emits {position}, not {next}"));
        live.tokens.push(token);
        if live.tokens.len() > live.prompt + 1 {
            live.stall = live.stall.max(self.swarm.now - live.last_token);
        }
        live.last_token = self.swarm.now;
        self.swarm.report.tokens += 1;
        self.swarm.checks.stream(self.swarm.now, &live.tokens[live.prompt..], &live.expected);
        if live.cancel_at == Some(live.tokens.len() - live.prompt - 1) {
            self.swarm.at(self.swarm.now + 1, Happening::Cancel { at, session: id });
        }
    }

    fn done(&mut self, id: SessionId, end: End) {
        let at = self.here;
        let Some(live) = self.swarm.machines[at].asker.live.remove(&id) else { return };
        let now = self.swarm.local(at);
        let whole = live.tokens.len() == live.prompt + self.swarm.options.demand.tokens.1 as usize;
        self.swarm
            .checks
            .that(whole == (end == End::Length), || format!("{id:?} ended by {end:?}, whole: {whole}"));
        let must = live.turn.must;
        self.swarm
            .checks
            .that(whole || must != 1, || format!("{id:?} of machine {at} ended by {end:?} after healing"));
        if !whole && must > 1 {
            let turn = Turn { must: must - 1, ..live.turn.clone() };
            self.swarm.at(self.swarm.now + AGAIN_MS, Happening::Ask { at, turn: Box::new(turn) });
        }
        match end {
            End::Length | End::Stop => {
                self.swarm.report.requests.1 += 1;
                self.swarm.report.stalls_ms.push(live.stall);
                for node in live.session.segments().map(|segment| segment.node) {
                    let tokens = u64::from(self.swarm.options.demand.tokens.1);
                    self.experience(node, now, Outcome::Verified { tokens });
                }
            }
            End::Cancelled => self.swarm.report.requests.3 += 1,
            End::GaveUp(_) => self.swarm.report.requests.2 += 1,
        }
        if live.turn.left > 0 && whole {
            let mut history = live.tokens;
            let said =
                (0..self.swarm.options.demand.tokens.0).map(|_| self.swarm.chance.below(50_000) as u32);
            history.extend(said);
            let turn = Turn { history, left: live.turn.left - 1, must: 0 };
            let think = 200 + self.swarm.chance.below(2_000) as u64;
            self.swarm.at(self.swarm.now + think, Happening::Ask { at, turn: Box::new(turn) });
        }
    }

    /// Notes an outcome and lets it count in the next routes.
    fn experience(&mut self, node: NodeId, now: scheduler::Millis, outcome: Outcome) {
        let at = self.here;
        let record = self.swarm.machines[at].asker.trust.entry(node).or_default();
        record.note(now, outcome);
        let (score, standing) = (record.score(), record.standing(now));
        self.swarm.checks.that(score > 0.0 && score <= 1.0, || format!("a score of {score}"));
        let good = standing == scheduler::trust::Standing::Good;
        self.swarm.checks.that(good, || format!("machine {at} bars an honest one: {standing:?}"));
        self.swarm.machines[at].view.set_trust(node, score);
    }

    /// A node failed, as far as this machine can tell.
    pub fn node_failed(&mut self, id: Option<SessionId>, node: NodeId, failure: Failure) {
        let at = self.here;
        let now = self.swarm.local(at);
        let outcome = if failure == Failure::Refused { Outcome::Aborted } else { Outcome::Stalled };
        if node != crate::storm::swarm::id(at) && failure != Failure::Misrouted {
            self.experience(node, now, outcome);
        }
        if failure == Failure::Refused {
            self.swarm.report.refused += 1;
            self.swarm.machines[at].asker.leases.refused(now, node);
        }
        let sessions: Vec<SessionId> = match id {
            Some(id) => vec![id],
            None => self.swarm.machines[at].asker.live.keys().copied().collect(),
        };
        for id in sessions {
            self.tell_session(id, Event::Failed { node, failure });
        }
    }

    /// Sees to it that the session is ticked when it wants to be.
    pub fn rearm(&mut self, id: SessionId) {
        let at = self.here;
        let now = self.swarm.local(at);
        let Some(live) = self.swarm.machines[at].asker.live.get_mut(&id) else { return };
        let Some(due) = live.session.wake() else { return };
        // On a clock that runs at another speed the wait is a little off; waking early only arms again.
        let when = self.swarm.now + due.since(now).max(1);
        if when < live.wake || live.wake <= self.swarm.now {
            live.wake = when;
            self.swarm.at(when, Happening::Wake { at, session: id });
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
