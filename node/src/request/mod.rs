//! The life of a prompt across the swarm, top to bottom, as its requester lives it.
//!
//! ```text
//! route ── who runs what, who stands by                  (asked of the daemon, which owns the view)
//!   lease ── every stage promises, all at once           Open, Follow   -> Opened
//!     prefill ── chunks chase each other down the chain  Send           -> Boundary, Boundary, ..
//!       decode ── one pass a token                       Send           -> Boundary, .., Token -> Emit
//!         a stage fails ── the same steps from where the replacement stands; nothing is said twice
//!     release ── leases, KV                              Close          -> Done
//!     look again ── a share of all is computed once more; unless it was asked to be strict, the caller has its answer
//! ```
//!
//! What to do is decided by [`scheduler::session::Session`], which sees events and answers with actions; this folder
//! does them. Each part owns its fields: `state` what is known (the tokens, the log of what entered each segment, who follows, times),
//! `lease` what was promised, `own_stages` the own worker's jobs, `verify` with `arbiter` and `audit` what was signed and checked. `frames`
//! and `failure` bring what happens from one to another.
//!
//! The first and the last segment run in this node's own worker, which also samples: token ids, text and logits never
//! leave the machine. Frames from a stage carry the epoch they were leased under; others are dropped.
//!
//! Limits: the log keeps at most [`replay_log::MAX_LOG_BYTES`]; beyond, what is missing is computed again from the tokens.

mod arbiter;
mod audit;
#[cfg(test)]
mod byzantine;
mod commitments;
mod delivery;
mod draft;
mod failure;
mod followers;
mod frames;
mod lease;
mod own_stages;
mod plan;
mod recall;
mod remembered;
mod replay_log;
mod state;
mod timing;
mod verify;
mod witness;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use api::swarm_records::StepKind;
use p2p::wire::control::Settlement;
use scheduler::{
    Millis, NodeId, Segment,
    recover::Failure,
    session::{Action, Event, Session},
};
use tokio::time::sleep;

use self::{
    delivery::Delivery, draft::Drafts, followers::Followers, lease::Leases, own_stages::OwnStages,
    state::RequestState, timing::Timing, verify::Checks,
};
pub use self::{
    draft::{DraftTerms, Tally},
    plan::{Checking, Findings, Means, Plan, PlannedRoute, Progress, Report, Reroute, RowForm, Said, Times},
    recall::{Recalled, Recollections},
    state::noticed,
    witness::{MAX_WITNESSES, Witness},
};
use crate::{
    clock,
    sessions::peer_streams::PeerStreams,
    sessions::{Inlets, Order, Outlets, place},
    state_store::file::Whose,
};

/// Rows of one prefill frame: enough to amortize unpacking weights, small enough that stages overlap.
pub const CHUNK_ROWS: u32 = 96;
/// How often the caller hears how fast it goes.
const PACE_TOKENS: usize = 4;
/// Own stages say this often that they compute, as those of others do.
const BEACON: Duration = Duration::from_millis(100);
/// The end of an answer waits this long for the last signatures.
const SETTLE: Duration = Duration::from_millis(1_500);

/// The loop of one request. Each part owns its fields; what happens goes through here from one to another.
struct RequestDriver {
    state: RequestState,
    /// The own worker's part.
    own: OwnStages,
    leases: Leases,
    checks: Checks,
    /// By node, pings that are under way.
    pings: BTreeMap<NodeId, usize>,
}

/// Runs the prompt to its end. Nothing is returned: the caller hears of it through [`Progress`].
pub async fn generate(means: Means, mut plan: Plan, inlets: Inlets, mut doors: Outlets) {
    let (began, session) = (Instant::now(), plan.session);
    let prompt = plan.prompt.len() as u32;
    let (machine, first) = Session::start(
        plan.session,
        Millis(0),
        prompt,
        plan.max_tokens,
        &plan.route.pipeline,
        &plan.route.standbys,
        plan.route.rtt_p99_ms,
    );
    let first_epoch = machine.epoch();
    let mut drafts = Drafts::new(session, &plan.draft);
    if let Some(seat) = &means.drafter {
        drafts.ask_model(seat);
        seat.read(plan.prompt.clone());
    }
    let mut report = Report::new(plan.route.pipeline.segments().to_vec());
    report.timeline.began_ms = clock::unix_ms();
    let mut recalled = std::mem::take(&mut plan.recalled);
    let logs = recalled.take_logs(&plan.form.rounding, plan.form.hidden);
    let mut driver = RequestDriver {
        state: RequestState {
            tokens: plan.prompt.clone(),
            logs,
            rests: recalled.rests(),
            recalled,
            outboxes: PeerStreams::new(
                means.network.clone(),
                place(means.me, session),
                inlets.orders.clone(),
            ),
            means,
            plan,
            orders: inlets.orders,
            machine,
            drafts,
            followers: Followers::default(),
            timing: Timing::new(began),
            delivery: Delivery::default(),
            report,
        },
        own: OwnStages::default(),
        leases: Leases::new(first_epoch),
        checks: Checks::default(),
        pings: BTreeMap::new(),
    };
    driver.state.recall();
    let mut over = driver.perform(first).await;
    while !over {
        driver.own.feed(&driver.state);
        let now = driver.state.timing.now();
        let due = driver
            .state
            .machine
            .wake()
            .map_or(Duration::from_secs(1), |due| Duration::from_millis(due.since(now)));
        let mut events = tokio::select! {
            biased;
            Some(output) = doors.outputs.recv() => driver.output(output).await,
            Some(arrival) = doors.frames.recv() => driver.arrival(arrival),
            Some(order) = doors.orders.recv() => driver.order(order),
            Ok(node) = driver.state.means.lost.recv() => driver.state.failed(node, Failure::Closed),
            () = sleep(due.min(BEACON)) => driver.tick(),
        };
        driver.checks.check(&mut driver.state);
        events.extend(driver.checks.hear_thirds(&mut driver.state, &mut driver.leases));
        events.extend(driver.checks.let_go(&mut driver.state));
        for event in events {
            let now = driver.state.timing.now();
            let before: Vec<Segment> = driver.state.machine.segments().collect();
            let actions = driver.state.machine.step(now, event);
            over = driver.perform(actions).await || over;
            driver.state.note_drafts();
            driver.notice_move(&before).await;
        }
        driver.tell().await;
    }
    driver.state.note(StepKind::Ended);
    driver.settle_all(&mut doors).await;
    driver.finish().await;
    driver.checks.look_again(&mut driver.state).await;
    driver.state.disown();
    driver.done().await;
}

impl RequestDriver {
    /// Time passed. The own stages say like any other that they are computing.
    fn tick(&self) -> Vec<Event> {
        let epoch = self.state.machine.epoch();
        let home = self
            .state
            .machine
            .segments()
            .enumerate()
            .filter(|(_, segment)| segment.node == self.state.means.me);
        let computing = self.own.is_busy() && self.state.means.worker.get().is_alive();
        let beacons = home.filter(|_| computing).map(|(stage, _)| Event::Beacon { stage, epoch });
        // The last token of a strict answer waits for its check, not for a stage.
        let tick = self.checks.last.is_none().then_some(Event::Tick);
        beacons.chain(tick).collect()
    }

    /// Does what the machine says; true when it is over.
    async fn perform(&mut self, actions: Vec<Action>) -> bool {
        for action in actions {
            match action {
                Action::Open { stage, epoch, segment, next, at } => {
                    tracing::debug!(stage, epoch, node = %segment.node, layers = %segment.layers, "asks for a promise");
                    // Stages are opened from the first on, each followed by its follower: an earlier follower may
                    // run a stage now, or follow another.
                    if stage == 0 {
                        self.state.followers.clear();
                        self.state.logs.cut(self.state.tokens.len() as u32);
                        self.state.drafts.go_back(self.state.tokens.len() as u32);
                    }
                    self.open(Some(stage), epoch, segment, next, at)
                }
                Action::Follow { stage, epoch, segment, next, at } => {
                    self.state.followers.follow(stage, segment);
                    self.open(None, epoch, segment, next, at);
                }
                Action::Send { stage, epoch, node, from, to, .. } => self.send(stage, epoch, node, from, to),
                Action::Ping { node } => {
                    tracing::debug!(%node, "silent, asks whether it is there");
                    self.ping(node);
                }
                Action::Emit { position, token } => self.emit(position, token).await,
                Action::FindRoute { deny } => {
                    tracing::debug!(denied = deny.len(), "asks for another route");
                    self.find_route(deny);
                }
                Action::Close { node, epoch } => self.close(node, epoch),
                Action::Evidence { .. } => self.state.report.findings.evidence += 1,
                Action::Done(end) => {
                    self.state.report.end = end;
                    return true;
                }
            }
        }
        false
    }

    async fn emit(&mut self, position: u32, token: u32) {
        if self.state.report.said.ids.is_empty() {
            self.state.report.cached =
                self.state.recalled.cached().min(self.state.plan.conduct.prompt_tokens);
        }
        self.note_emitted();
        self.state.tokens.push(token);
        let Some((said, ends_turn)) = self.state.delivery.emitted() else { return };
        debug_assert!(matches!(said, Progress::Token { position: at, .. } if at == position));
        if ends_turn {
            self.state.report.said.ended_turn = true;
            // The token that ends the turn is not part of the answer; text held back before it may be.
            if let Progress::Token { text, prompt, pooled, .. } = said {
                self.state.report.said.rest.push_str(&text);
                self.state.report.said.prompt = prompt;
                self.state.report.said.pooled = pooled;
            }
            return;
        }
        self.state.report.said.ids.push(token);
        if self.state.strict() {
            self.state.delivery.say_checked(said);
            self.checks.check(&mut self.state);
        } else {
            self.state.delivery.say(said);
        }
        self.tell().await;
    }

    /// Notes when a token came, and what it waited for.
    fn note_emitted(&mut self) {
        let report = &mut self.state.report;
        let (first, hedged, faults) =
            (report.said.ids.is_empty(), report.disturbances.hedged.len(), report.disturbances.faults.len());
        self.state.timing.note_token(report);
        let late: Vec<NodeId> = report.disturbances.hedged.iter().skip(hedged).map(|late| late.0).collect();
        let stalled = report.disturbances.faults.get(faults).map(|(_, stall_ms)| *stall_ms);
        // With the one that came.
        let tokens = report.said.ids.len() as u32 + 1;
        if first {
            self.state.note_at(tokens, StepKind::FirstToken);
        }
        for node in late {
            self.state.note_at(tokens, StepKind::Hedged { node: format!("{node:?}") });
        }
        if let Some(stall_ms) = stalled {
            self.state.note_at(tokens, StepKind::WentOn { stall_ms });
        }
    }

    /// Says what there is to say.
    async fn tell(&mut self) {
        for said in self.state.delivery.take() {
            self.state.report.read += u32::from(matches!(said, Progress::Token { .. }));
            if self.state.means.progress.send(said).await.is_err() {
                // The client is gone.
                let _ = self.state.orders.try_send(Order::Cancel);
            }
        }
        if self.state.report.said.ids.len().is_multiple_of(PACE_TOKENS) {
            // Old news is no news: a caller that is behind does without.
            let _ = self.state.means.progress.try_send(Progress::Pace {
                stage_ms: self.state.timing.mean_stage_ms(self.state.machine.segments()),
            });
        }
    }

    /// Lets the own worker end the text and forget the session.
    async fn finish(&mut self) {
        let session = self.state.place();
        self.state.drafts.remember(&self.state.tokens);
        self.state.report.drafts = self.state.drafts.tally().clone();
        let worker = self.state.means.worker.get();
        self.state.report.said.rest.push_str(&worker.finish(session).await.unwrap_or_default());
        let keep = self.state.remember();
        let on_disk = self.state.means.memory.as_ref().is_some_and(Recollections::are_on_disk);
        let file = on_disk.then_some(Whose::Own);
        worker.close_but(session, keep, file);
        self.state.report.segments = self.state.machine.segments().collect();
        self.state.report.times.stage_ms = self.state.timing.mean_stage_ms(self.state.machine.segments());
    }

    async fn done(&mut self) {
        // What could not be checked in time is said all the same, and said to be unchecked.
        self.state.delivery.release_all();
        self.tell().await;
        let over = if self.leases.is_given_back() {
            Progress::Crowded
        } else {
            Progress::Done(Box::new(self.state.report.clone()))
        };
        let _ = self.state.means.progress.send(over).await;
    }

    /// Asks a node to serve a segment, as a stage or as the shadow of one.
    fn open(&mut self, stage: Option<usize>, epoch: u32, segment: Segment, next: Option<NodeId>, at: u32) {
        let state = &mut self.state;
        // The last token is said and never computed on: an answer may end at the very end of the context.
        let positions = state.plan.prompt.len() as u32 + state.plan.max_tokens.saturating_sub(1);
        self.own.enter(epoch);
        self.checks.last = None;
        if segment.node == state.means.me {
            OwnStages::open(state, stage, epoch, segment, (positions, at));
            return;
        }
        let mut beginnings = Vec::new();
        // After a lie nothing that was computed before is offered.
        if self.checks.denied.is_empty() {
            let terms = state.terms(segment.layers);
            beginnings = state.recalled.beginnings(&terms, &state.logs);
        }
        let planned = state.plan.route.sources.iter().find(|planned| planned.segment == segment);
        let source = planned.and_then(|planned| {
            let (terms, identity) = (state.terms(segment.layers), &state.means.identity);
            Recalled::source(&beginnings, &terms, &state.logs, planned, identity)
        });
        Leases::ask(state, stage, epoch, segment, next, (positions, at), (beginnings, source));
    }

    fn close(&mut self, node: NodeId, epoch: u32) {
        if node != self.state.means.me {
            self.leases.bill(&mut self.state, node, epoch);
        }
        self.state.outboxes.close(node);
    }

    /// A node's bill is here.
    fn settled(&mut self, node: NodeId, settled: &[Settlement]) {
        self.leases.billed(node);
        self.checks.settled(&mut self.state, node, settled);
    }

    /// Waits a moment for the last signatures.
    pub(super) async fn settle_all(&mut self, doors: &mut Outlets) {
        let mut involved: BTreeSet<NodeId> =
            self.state.strangers().iter().map(|segment| segment.node).collect();
        involved.extend(self.state.followers.nodes());
        let until = tokio::time::Instant::now() + SETTLE;
        loop {
            // Where no third holder can be asked it is computed again in the last look.
            for layers in self.checks.disputed(&self.state.logs) {
                self.checks.ask_third(&mut self.state, layers);
            }
            self.checks.hear_thirds(&mut self.state, &mut self.leases);
            let asked = self.checks.books.iter().filter_map(|book| Some(book.third?.asked)).max();
            let third = asked.is_some();
            // A third holder asked about a dispute has the time it was given, also at the end.
            let until = asked.map_or(until, |asked| until.max((asked + arbiter::PATIENCE).into()));
            if !third && !self.leases.awaits(&involved) {
                break;
            }
            let order = tokio::select! {
                order = doors.orders.recv() => order,
                Some(arrival) = doors.frames.recv(), if third => {
                    self.arrival(arrival);
                    continue;
                }
                () = tokio::time::sleep_until(until) => break,
            };
            match order {
                Some(Order::Settled { node, settled }) => self.settled(node, &settled),
                Some(Order::Audited { layers, round, found }) => {
                    drop(self.checks.audited(&mut self.state, layers, round, found))
                }
                Some(Order::Opened { stage: None, layers, node, answer, .. }) => {
                    self.checks.third_opened(&mut self.state, layers, node, answer.is_ok());
                }
                Some(_) => {}
                None => break,
            }
        }
    }
}
