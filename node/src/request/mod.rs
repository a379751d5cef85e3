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
//! does them: `lease`, `hops`, `home` (the own worker), `failure`, `log`. It holds the truth of the session (the tokens) and the log: what entered each segment, as it crossed the
//! wire, so that a replacement can be brought to the same bits.
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
mod draft;
mod failure;
mod frames;
mod lease;
mod own_stages;
mod plan;
mod recall;
mod replay_log;
mod verify;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use p2p::codec::Rounding;
use scheduler::{
    Millis, NodeId, Segment, SessionId,
    lease::Load,
    recover::Failure,
    session::{Action, Event, Session},
};
use tokio::{sync::mpsc, time::sleep};

pub use self::{
    arbiter::{MAX_WITNESSES, Witness},
    draft::{DraftTerms, Tally},
    plan::{Means, Plan, Progress, Report, Reroute},
    recall::{Recalled, Recollections},
};
use self::{draft::Drafts, replay_log::Logs, verify::Checks};
use crate::{
    sessions::peer_streams::PeerStreams,
    sessions::{Inlets, Order, Outlets, place},
    telemetry::Hops,
    worker::Job,
};

/// Rows of one prefill frame: enough to amortize unpacking weights, small enough that stages overlap.
pub const CHUNK_ROWS: u32 = 96;
/// A shadow is fed every this many positions (the lag it may have).
const FEED_ROWS: u32 = 16;
/// How often the caller hears how fast it goes.
const PACE_TOKENS: usize = 4;
/// Own stages say this often that they compute, as those of others do.
const BEACON: Duration = Duration::from_millis(100);

struct RequestDriver {
    means: Means,
    plan: Plan,
    orders: mpsc::Sender<Order>,
    machine: Session,
    began: Instant,
    tokens: Vec<u32>,
    logs: Logs,
    /// The beginning of the prompt that was computed before.
    recalled: Recalled,
    rounding: Rounding,
    outboxes: PeerStreams,
    /// Jobs for the own worker that wait for their turn.
    waiting: VecDeque<Job>,
    running: usize,
    running_epoch: u32,
    /// The step whose sample was asked for.
    sampling: Option<(u32, u16, u32)>,
    /// What the worker said about the tokens that the machine is about to emit, and which of them ends the turn.
    sampled: VecDeque<(Progress, bool)>,
    drafts: Drafts,
    /// By shadow that promised and the first layer of what it follows, positions given to it.
    fed: BTreeMap<(NodeId, u32), u32>,
    shadows: BTreeMap<usize, NodeId>,
    step_began: Instant,
    stage_ms: BTreeMap<u32, (f64, u32)>,
    /// Who failed, and when the last token before it came.
    silent_since: Option<(NodeId, Instant)>,
    /// Whose shadow answered first, for the first time, and when the last token before it came.
    hedged_since: Option<(NodeId, Instant)>,
    /// The last failure that was seen, not only suspected.
    noticed: Option<(NodeId, Failure)>,
    /// The epoch of the first route while its stages promise, and what they say of their load; one per stage.
    looking: Option<u32>,
    loads: Vec<Load>,
    /// Who has promised something and was not told yet that it is needed no more.
    seats: BTreeSet<NodeId>,
    /// The route is given back for a quieter one.
    again: bool,
    checks: Checks,
    /// By the layer it enters: since which epoch and position a stage calls its input garbled.
    garbled: BTreeMap<u32, (u32, u32)>,
    /// For the log and traces: frames under way.
    hops: Hops,
    last_token: Instant,
    /// By node, pings that are under way.
    pings: BTreeMap<NodeId, usize>,
    report: Report,
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
        &plan.pipeline,
        &plan.standbys,
        plan.rtt_p99_ms,
    );
    let first_epoch = machine.epoch();
    // A cut that a failover makes later is no boundary of the session: it travels raw.
    let rounding = plan.rounding.clone();
    let drafts = Drafts::new(session, &plan.draft);
    let report = Report::new(plan.pipeline.segments().to_vec());
    let mut recalled = std::mem::take(&mut plan.recalled);
    let logs = recalled.take_logs(&rounding, plan.hidden);
    let mut conductor = RequestDriver {
        tokens: plan.prompt.clone(),
        logs,
        recalled,
        outboxes: PeerStreams::new(means.network.clone(), place(means.me, session), inlets.orders.clone()),
        means,
        plan,
        orders: inlets.orders,
        machine,
        began,
        rounding,
        waiting: VecDeque::new(),
        running: 0,
        running_epoch: 0,
        sampling: None,
        sampled: VecDeque::new(),
        drafts,
        fed: BTreeMap::new(),
        shadows: BTreeMap::new(),
        step_began: began,
        stage_ms: BTreeMap::new(),
        silent_since: None,
        hedged_since: None,
        noticed: None,
        looking: Some(first_epoch),
        loads: Vec::new(),
        seats: BTreeSet::new(),
        again: false,
        checks: Checks::default(),
        garbled: BTreeMap::new(),
        hops: Hops::default(),
        last_token: began,
        pings: BTreeMap::new(),
        report,
    };
    conductor.recall();
    let mut over = conductor.perform(first).await;
    while !over {
        conductor.feed_worker();
        let now = conductor.now();
        let due = conductor
            .machine
            .wake()
            .map_or(Duration::from_secs(1), |due| Duration::from_millis(due.since(now)));
        let mut events = tokio::select! {
            biased;
            Some(output) = doors.outputs.recv() => conductor.output(output),
            Some(arrival) = doors.frames.recv() => conductor.arrival(arrival),
            Some(order) = doors.orders.recv() => conductor.order(order),
            Ok(node) = conductor.means.lost.recv() => conductor.failed(node, Failure::Closed),
            () = sleep(due.min(BEACON)) => conductor.tick(),
        };
        conductor.check();
        events.extend(conductor.hear_thirds());
        events.extend(conductor.let_go());
        for event in events {
            let now = conductor.now();
            let before: Vec<Segment> = conductor.machine.segments().collect();
            let actions = conductor.machine.step(now, event);
            over = conductor.perform(actions).await || over;
            conductor.note_drafts();
            conductor.notice_move(&before).await;
        }
        conductor.tell().await;
    }
    conductor.settle_all(&mut doors).await;
    conductor.finish().await;
    conductor.look_again().await;
    conductor.disown();
    conductor.done().await;
}

impl RequestDriver {
    /// Time passed. The own stages say like any other that they are computing.
    fn tick(&self) -> Vec<Event> {
        let epoch = self.machine.epoch();
        let home = self.machine.segments().enumerate().filter(|(_, segment)| segment.node == self.means.me);
        let computing = self.running > 0 && self.means.worker.borrow().is_alive();
        let beacons = home.filter(|_| computing).map(|(stage, _)| Event::Beacon { stage, epoch });
        // The last token of a strict answer waits for its check, not for a stage.
        let tick = self.checks.last.is_none().then_some(Event::Tick);
        beacons.chain(tick).collect()
    }

    fn now(&self) -> Millis {
        Millis(self.began.elapsed().as_millis() as u64)
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
                        self.shadows.clear();
                        self.logs.cut(self.tokens.len() as u32);
                        self.drafts.go_back(self.tokens.len() as u32);
                    }
                    self.open(Some(stage), epoch, segment, next, at)
                }
                Action::Follow { stage, epoch, segment, next, at } => {
                    self.shadows.insert(stage, segment.node);
                    // Until it has promised it knows nothing of the session: what it was sent would be lost.
                    self.fed.remove(&(segment.node, segment.layers.start()));
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
                Action::Evidence { .. } => self.report.evidence += 1,
                Action::Done(end) => {
                    self.report.end = end;
                    return true;
                }
            }
        }
        false
    }

    /// Notes which rows follow from a draft, as the machine's step now has it. Rows of a draft that was abandoned before it was
    /// drawn, for a replay, were never confirmed: they leave the logs too.
    fn note_drafts(&mut self) {
        let known = (self.tokens.len() as u32).max(self.drafts.confirmed());
        let drafts = self.machine.drafted() > 0;
        self.logs.set_tentative(drafts.then_some(known));
        if !drafts {
            self.forget_rows(known);
            self.drafts.go_back(known);
        }
    }

    /// What the session is called at the worker and on streams.
    fn place(&self) -> SessionId {
        place(self.means.me, self.plan.session)
    }

    fn machine_layers(&self) -> u32 {
        self.plan.pipeline.num_layers()
    }

    fn segment(&self, stage: usize) -> Option<Segment> {
        self.machine.segments().nth(stage)
    }

    fn stage_from(&self, start: u32) -> Option<usize> {
        self.machine.segments().position(|segment| segment.layers.start() == start)
    }

    fn stage_to(&self, end: u32) -> Option<usize> {
        self.machine.segments().position(|segment| segment.layers.end() == end)
    }

    async fn emit(&mut self, position: u32, token: u32) {
        let now = self.began.elapsed().as_secs_f64() * 1e3;
        if self.report.ids.is_empty() {
            self.report.ttft_ms = now;
            self.report.cached = self.recalled.cached().min(self.plan.conduct.prompt_tokens);
        } else {
            let before: f64 = self.report.ttft_ms + self.report.gaps_ms.iter().sum::<f64>();
            self.report.gaps_ms.push(now - before);
        }
        if let Some((node, since)) = self.silent_since.take() {
            self.report.faults.push((node, since.elapsed().as_secs_f64() * 1e3));
        }
        if let Some((node, since)) = self.hedged_since.take() {
            self.report.hedged.push((node, since.elapsed().as_secs_f64() * 1e3));
        }
        self.last_token = Instant::now();
        self.tokens.push(token);
        let Some((said, ends_turn)) = self.sampled.pop_front() else { return };
        debug_assert!(matches!(said, Progress::Token { position: at, .. } if at == position));
        if ends_turn {
            self.report.ended_turn = true;
            // The token that ends the turn is not part of the answer; text held back before it may be.
            if let Progress::Token { text, prompt, .. } = said {
                self.report.rest.push_str(&text);
                self.report.prompt = prompt;
            }
            return;
        }
        self.report.ids.push(token);
        if self.strict() {
            self.checks.unread.push_back(said);
            self.check();
        } else {
            self.checks.news.push(said);
        }
        self.tell().await;
    }

    /// Says what there is to say.
    async fn tell(&mut self) {
        for said in std::mem::take(&mut self.checks.news) {
            self.report.read += u32::from(matches!(said, Progress::Token { .. }));
            if self.means.progress.send(said).await.is_err() {
                // The client is gone.
                let _ = self.orders.try_send(Order::Cancel);
            }
        }
        if self.report.ids.len().is_multiple_of(PACE_TOKENS) {
            // Old news is no news: a caller that is behind does without.
            let _ = self.means.progress.try_send(Progress::Pace { stage_ms: self.mean_stage_ms() });
        }
    }

    /// The output of the segment that ends with `layer` is here.
    fn time_stage(&mut self, layer: u32) {
        let ms = self.step_began.elapsed().as_secs_f64() * 1e3;
        let mean = self.stage_ms.entry(layer).or_insert((0.0, 0));
        *mean = (mean.0 + ms, mean.1 + 1);
    }

    /// Milliseconds of a decode step until the output of each segment arrived; 0 where none was measured.
    fn mean_stage_ms(&self) -> Vec<f64> {
        let mean = |segment: Segment| {
            let (sum, count) = self.stage_ms.get(&segment.layers.end()).copied().unwrap_or((0.0, 0));
            if count == 0 { 0.0 } else { sum / f64::from(count) }
        };
        self.machine.segments().map(mean).collect()
    }

    /// Lets the own worker end the text and forget the session.
    async fn finish(&mut self) {
        let session = self.place();
        self.drafts.remember(&self.tokens);
        self.report.drafts = self.drafts.tally.clone();
        let worker = self.means.worker.borrow().clone();
        self.report.rest.push_str(&worker.finish(session).await.unwrap_or_default());
        let keep = self.remember();
        worker.close_but(session, keep);
        self.report.segments = self.machine.segments().collect();
        self.report.stage_ms = self.mean_stage_ms();
    }

    async fn done(&mut self) {
        // What could not be checked in time is said all the same, and said to be unchecked.
        self.checks.news.extend(self.checks.unread.drain(..));
        self.tell().await;
        let over = if self.again { Progress::Crowded } else { Progress::Done(Box::new(self.report.clone())) };
        let _ = self.means.progress.send(over).await;
    }
}
