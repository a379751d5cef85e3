//! The running node: five owners of state, a loop that routes events to them, and tasks for everything that takes time.
//!
//! ```text
//!   network ──┐                    ┌── prompts/   prompts of this node: tasks, routes, history
//!   commands ─┤                    ├── serve/     models in memory, sessions of other nodes, placement
//!   prompts ──┼──> [ Daemon::run ] ┼── announce/  what others are told, the line, models handed out
//!   serving ──┤                    ├── trust/     verdicts, receipts, challenges
//!   clock ────┘                    └── view       what is known of the swarm
//! ```
//!
//! An owner is handed what it needs of another one as an argument, and what it finds for another one it returns; the loop
//! carries it there. So the imports go one way: `status` reads all owners, `prompts`
//! reads `announce`, `serve` and `view`, `announce` reads `serve` and `view`, `serve` reads `view`, and `trust`, `view` and
//! `setup` read none.
//!
//! The loop never waits for a peer or the worker: whatever could take time is a task that sends its result back into the
//! inbox of its owner. Weights, text and activations never enter the loop. Bounds are at the channels: a full one makes
//! its sender wait, and the network's events are the only ones that may be dropped (announcements, which come again).

mod announce;
mod prompts;
mod serve;
mod setup;
mod status;
mod trust;
mod view;

use std::time::{Duration, Instant};

use p2p::{
    Event, Plane, ReplyTo,
    blob::Form,
    wire::{
        announce::Announcement,
        control::{Answer, Ask as ControlAsk},
    },
};
use scheduler::{Millis, NodeId, SessionId, trust::Outcome};
use tokio::{
    sync::{mpsc, watch},
    time::interval,
};

use self::{
    announce::Announcing,
    prompts::{Finished, Guest, PromptQuestion, Prompts, Router},
    serve::{Arrived, Holder, Serving, ServingEvent, Wanted},
    setup::Node,
    trust::Trusting,
    view::{Heard, Viewing},
};
pub use self::{
    prompts::PromptTask,
    serve::MOST_BESIDE,
    setup::{Absent, Beside, Caps, DraftWith, FirstModel, Front, Notice, Serve, Setup, Where},
};
use crate::{
    Error, Result, clock,
    control::{self, Call, Line, Question},
    reports::{StatusReport, Switched},
    sessions::reader,
    stage::{Prefixes, Served},
    swarm_history::{Gauges, Recorder},
};

/// Looks at the clock this often: announces, expires.
const TICK_MS: u64 = 250;
/// A node of which nothing is known but its word is looked up this often, ms: a crowd of made-up ones costs a dial a
/// second, and a newcomer is met within a minute in a swarm of dozens.
const INTRODUCE_MS: u64 = 1_000;
/// How long `leave` waits for what runs.
const DRAIN_MS: u64 = 10_000;

/// A running node: the owners of its state, and what is about the node as a whole.
struct Daemon {
    node: Node,
    prompts: Prompts,
    serving: Serving,
    announcing: Announcing,
    trusting: Trusting,
    view: Viewing,
    front: Front,
    caps: Caps,
    notices: mpsc::Sender<Notice>,
    history: Recorder,
    /// Since when the node is about to leave, and the caller to tell when it has.
    leaving: Option<(Instant, mpsc::Sender<Line>)>,
}

/// Runs a node until it is told to leave or `stop` turns true.
///
/// # Errors
/// When another node runs below the same folder, the network does not start, or the model cannot be loaded.
pub async fn run(setup: Setup, notices: mpsc::Sender<Notice>, mut stop: watch::Receiver<bool>) -> Result<()> {
    let Setup { home, identity, network, mut worker, serve, model, invite, .. } = setup;
    let Setup { absent, beside, mut caps, front, drafter, keeps, memory, governor, .. } = setup;
    // Its weights are the node's as well.
    let drafter_bytes = drafter.as_ref().map_or(0, |drafter| drafter.file_bytes);
    caps.weights_bytes = caps.weights_bytes.map(|most| most.saturating_sub(drafter_bytes));
    // What its states may take is promised to no session.
    let draft_bytes = drafter.as_ref().map_or(0, |_| serve::share_bytes(worker.kv_bytes));
    worker.kv_bytes -= draft_bytes;
    let listener = control::listen(&home)?;
    let first_peers = setup::first_peers(&network);
    let (network, mut events) =
        p2p::spawn_under(governor, network).await.map_err(|e| Error::Failed(e.to_string()))?;
    let node = Node::new(network, identity);
    let (about, home_too, caps_too) = (front.about.clone(), home.clone(), caps.clone());
    let fetches = (memory.lenders() != control::Lenders::Off).then(|| memory.checked());
    let wanted = Wanted { home: home_too, worker, serve, model, about, absent, beside, caps: caps_too };
    let (mut serving, mut served, heard) = Serving::start(node.clone(), wanted, &mut events).await?;
    serving.prefixes = Prefixes::fetching(fetches);
    if let Some(file) = memory.file() {
        let governor = node.network.governor();
        serving.prefixes = serving.prefixes.on_disk(file, model.id, governor, Instant::now());
    }
    if let Some(drafter) = drafter {
        serving.draft_with(drafter, draft_bytes).await?;
    }
    let node = node.joining(first_peers);
    let (prompts, mut asked) = Prompts::new(node.clone(), home.clone(), keeps, memory);
    let announcing = Announcing::new(node.clone(), home.clone(), invite, &caps);
    let mut shared = announcing.shared.clone();
    let (calls_in, mut calls) = mpsc::channel(control::QUESTIONS);
    let governor = node.network.governor().clone();
    tokio::spawn(control::serve(listener, calls_in.clone(), governor.clone()));
    let mut daemon = Daemon {
        trusting: Trusting::open(&home, node.me, |model| serving.models.costs(model)),
        view: Viewing::new(node.me),
        node,
        prompts,
        serving,
        announcing,
        front,
        caps,
        notices,
        history: Recorder::new(home.clone(), clock::unix_s()),
        leaving: None,
    };
    for event in heard {
        daemon.event(event).await;
    }
    daemon.announce(true).await;
    let status = daemon.status().await;
    let _ = daemon.notices.send(Notice::Ready(Box::new(status))).await;
    if let Some(door) = daemon.front.door.take() {
        door.send_replace(Some(calls_in));
    }
    let mut clock = interval(Duration::from_millis(TICK_MS));
    loop {
        tokio::select! {
            Some(event) = events.next() => daemon.event(event).await,
            Some(call) = calls.recv() => daemon.call(call).await,
            Some(question) = asked.next() => daemon.prompt(question),
            event = served.next() => daemon.serving(event).await,
            Ok(()) = shared.changed() => {
                daemon.announcing.shared_changed().await;
                daemon.announce(true).await;
            }
            _ = clock.tick() => if daemon.tick().await { break },
            _ = stop.changed() => daemon.leave(None),
        }
    }
    drop(calls);
    daemon.stop().await;
    control::flush(&governor).await;
    let _ = std::fs::remove_file(control::socket(&home));
    Ok(())
}

impl Daemon {
    // --- what the network says -----------------------------------------------------------------------------------

    async fn event(&mut self, event: Event) {
        let now = self.node.now();
        match event {
            Event::Announcement(announcement, _) => self.heard(*announcement, now),
            Event::Ask { from, ask, reply } => self.asked(from, ask, reply),
            Event::Incoming { from, plane: Plane::Data, stream } => {
                let (reader, _writer) = stream.split();
                let (table, governor) = (self.serving.table.clone(), self.node.network.governor().clone());
                tokio::spawn(reader::read(table, governor, from, reader));
            }
            Event::Incoming { from, plane: Plane::Delegate, stream } => {
                let (governor, guests) = (self.node.network.governor().clone(), self.prompts.guests.clone());
                tokio::spawn(Guest::receive(governor, from, stream, guests));
            }
            Event::Incoming { plane: Plane::Experts, .. } if self.serving.gate.paused => {}
            Event::Incoming { from, plane: Plane::Experts, stream } => {
                let governor = self.node.network.governor().clone();
                let holder = Holder::of(&self.serving.models.first, governor);
                tokio::spawn(holder.answer(from, stream, self.serving.guest(from)));
            }
            // Closing the stream says enough: what was asked for is computed.
            Event::Incoming { plane: Plane::Pages, .. } if self.serving.gate.paused => {}
            Event::Incoming { from, plane: Plane::Pages, stream } => {
                tokio::spawn(self.serving.lender().answer(from, stream));
            }
            // Closing the stream says enough: the puller asks another holder.
            Event::Incoming { plane: Plane::Blob | Plane::Packed, .. } if self.serving.gate.paused => {}
            Event::Incoming { from, plane: Plane::Blob, stream } => {
                self.announcing.uploads.answer(from, stream, Form::Plain);
            }
            Event::Incoming { from, plane: Plane::Packed, stream } => {
                self.announcing.uploads.answer(from, stream, Form::Packed);
            }
            Event::Connected { node, path } => {
                tracing::debug!(%node, %path, "connected");
                self.view.connected(node, now);
                self.serving.back(node);
                self.announcing.gossip.reached(node, path);
                self.announce(true).await;
            }
            Event::Disconnected { node } => {
                self.announcing.gossip.gone(node);
                self.serving.gone(node);
                if self.view.disconnected(node, now) {
                    let _ = self.notices.try_send(Notice::Left(node));
                }
            }
            Event::RoundTrip { node, ms } => {
                let ms = self.announcing.gossip.measured(node, now, ms);
                self.view.measured(node, ms, now);
            }
            Event::Reachability { reachability } => {
                self.announcing.reachability = reachability;
                self.announcing.gossip.tell();
            }
            Event::Listening { address } => {
                tracing::info!(%address, "listening");
                self.announcing.gossip.tell();
            }
            _ => {}
        }
    }

    /// Another node announced itself.
    fn heard(&mut self, announcement: Announcement, now: Millis) {
        let node = announcement.node();
        self.announcing.gossip.heard_of(&announcement.addresses);
        let heard = self.view.heard(announcement, now, self.announcing.gossip.rtt_ms(node));
        if heard != Heard::Nothing {
            self.announcing.gossip.heard_count += 1;
        }
        if heard == Heard::Joined {
            let _ = self.notices.try_send(Notice::Joined(node));
        }
    }

    /// What another node asks of this one.
    fn asked(&mut self, from: NodeId, ask: ControlAsk, reply: ReplyTo) {
        match ask {
            ControlAsk::Lease(lease) => {
                let tier = self.trusting.tier(from);
                self.serving.lease(from, *lease, tier, reply);
            }
            ControlAsk::Release { session, epoch } => self.serving.released(from, session, epoch, reply),
            ControlAsk::Settle { session, upto } => self.serving.settle(from, session, upto, reply),
            ControlAsk::Receipt(receipt) => {
                self.trusting.keep_receipt(from, &receipt, |model| self.serving.models.costs(model));
                self.node.network.answer(reply, Answer::Released);
            }
            ControlAsk::Catalog { author, sequence } => {
                self.announcing.catalogs.answer(author, sequence, reply);
            }
            // These are answered by the network itself.
            ControlAsk::CatchUp { .. }
            | ControlAsk::Ping
            | ControlAsk::Probe(_)
            | ControlAsk::DialBack(_) => {}
        }
    }

    async fn announce(&mut self, urgent: bool) {
        self.announcing.announce(urgent, &mut self.serving, &mut self.view).await;
    }

    // --- what commands ask ---------------------------------------------------------------------------------------

    async fn call(&mut self, call: Call) {
        let Call { question, lines } = call;
        let line = match question {
            Question::Generate(ask) => return self.prompts.answer(self.prompt_task(), *ask, lines),
            Question::Resume { session } => return self.prompts.resume(self.prompt_task(), session, lines),
            Question::Cancel { session } => {
                let bytes = data_encoding::HEXLOWER_PERMISSIVE.decode(session.as_bytes()).ok();
                let session = bytes.and_then(|bytes| <[u8; 16]>::try_from(bytes).ok()).map(SessionId::new);
                let cancelled = session.is_some_and(|session| self.serving.cancel(session));
                Switched::Cancelled(cancelled).into()
            }
            Question::Plan(ask) => {
                tokio::spawn(self.prompt_task().plan(*ask, lines));
                return;
            }
            Question::Pull(ask) => return self.serving.pulls.answer(*ask, lines),
            Question::Leave => return self.leave(Some(lines)),
            Question::Status => StatusReport { end: true, ..self.status().await }.into(),
            Question::Peers => self.peers().await.into(),
            Question::View => self.page().await.into(),
            Question::Receipts => self.trusting.list_receipts().into(),
            Question::Invite => self.announcing.invite_code(self.serving.models.first.id).await.into(),
            Question::Answers => self.prompts.answers().into(),
            Question::Why { session } => self.prompts.why(session.as_deref()).into(),
            Question::Pause { paused } => {
                self.serving.gate.paused = paused;
                self.announcing.gossip.tell();
                Switched::Paused(paused).into()
            }
        };
        let _ = lines.try_send(line);
    }

    // --- what prompts ask ----------------------------------------------------------------------------------------

    fn prompt(&mut self, question: PromptQuestion) {
        match question {
            PromptQuestion::Route(question) => self.router().answer(*question),
            PromptQuestion::Conductors(question) => self.router().answer_conductors(question),
            PromptQuestion::Reroute(question) => self.router().reroute(*question),
            PromptQuestion::Guest(guest) => self.seat(*guest),
            PromptQuestion::Finished(over) => self.finished(*over),
        }
    }

    fn router(&mut self) -> Router<'_> {
        Router {
            me: self.node.me,
            now: self.node.now(),
            view: &mut self.view,
            models: &self.serving.models,
            gossip: &self.announcing.gossip,
            in_flight: &mut self.prompts.in_flight,
            denied: self.trusting.denied(),
        }
    }

    fn prompt_task(&self) -> PromptTask {
        self.prompts.task(&self.serving, &self.view, |model| self.trusting.shares(model))
    }

    /// A peer's prompt is conducted here if there is a seat for it.
    fn seat(&self, guest: Guest) {
        let (task, seat) = (self.prompt_task(), self.serving.guest(guest.from));
        tokio::spawn(async move {
            match &seat {
                Some(_) => task.conduct(guest).await,
                None => guest.decline().await,
            }
        });
    }

    /// A prompt of this node is over: each owner keeps what it taught.
    fn finished(&mut self, mut over: Finished) {
        let now = self.node.now();
        if !self.prompts.was_calm(over.session) {
            over.measured = Default::default();
            over.came_true = Default::default();
        }
        for (node, weight, ms) in &over.measured.visits {
            self.view.swarm.observe_visit(*node, over.model, now, *weight, *ms);
        }
        if let Some(held) = self.serving.models.get_mut(over.model) {
            let measured = &over.measured;
            measured.home_ms.into_iter().for_each(|ms| held.at_home.add(now, ms));
            measured.opening_ms.into_iter().for_each(|ms| held.at_opening.add(now, ms));
            measured
                .prompt_ms
                .into_iter()
                .for_each(|(said_ms, took_ms)| held.at_prefill.add(said_ms, took_ms));
            for (forecast, (predicted, seen)) in held.came_true.iter_mut().zip(over.came_true) {
                forecast.add(predicted, seen);
            }
        }
        let costs = self.serving.models.costs(over.model);
        let scores =
            self.trusting.learn((over.model, costs.as_ref()), over.outcomes, &over.receipts, &over.proofs);
        scores.into_iter().for_each(|(node, score)| self.view.swarm.set_trust(node, score));
        let whole = over.report.as_ref().filter(|report| !report.checking);
        if let Some((report, timing)) = whole.and_then(|said| Some((said, said.timing.as_ref()?))) {
            self.history.answered(report.completion_tokens, timing.decode_tok_s, timing.faults.len());
        }
        self.prompts.remember(over.session, over.report);
    }

    /// Challenges a node that owes a proof, when there is nothing else to do.
    fn challenge(&mut self) {
        let first = &self.serving.models.first;
        let gate = &self.serving.gate;
        let busy = !self.prompts.in_flight.is_empty() || gate.paused || gate.is_draining();
        if busy || first.is_unloaded() || !first.ready.has_ends() || !first.computes() {
            return;
        }
        let able = |node| self.view.challenge_layer(node, first.id, first.ready.num_layers).is_some();
        let Some(node) = self.trusting.next_challenge(able) else { return };
        let mut chance = [0; 4];
        if getrandom::fill(&mut chance).is_err() {
            return;
        }
        tracing::info!(%node, "its quarantine is over: a challenge");
        prompts::challenge(self.prompt_task(), node, trust::challenge(chance));
    }

    /// Ends the workers of models that nothing needs, where the user wants that, and starts those that something needs again.
    async fn unload(&mut self) {
        let Some(after) = self.caps.unload_after else { return };
        self.serving.models.load_wanted();
        if self.serving.models.unload_idle(Instant::now(), after) {
            self.announcing.holds_otherwise(&mut self.serving, &mut self.view).await;
        }
    }

    /// Looks one stranger up, so that routes may use it.
    fn introduce(&self, now: Millis) {
        let mut chance = [0; 8];
        if now.0 % INTRODUCE_MS >= TICK_MS || getrandom::fill(&mut chance).is_err() {
            return;
        }
        let stranger = self.view.swarm.introduce(self.node.me, u64::from_le_bytes(chance));
        let contact = stranger.map(|node| self.view.contact(node));
        let Some(contact) = contact.filter(|contact| !contact.addresses.is_empty()) else { return };
        let (network, feedback) = (self.node.network.clone(), self.view.feedback.clone());
        tokio::spawn(async move {
            if network.connect(&contact).await.is_err() {
                feedback.silent(contact.node);
            }
        });
    }

    // --- what serving tells --------------------------------------------------------------------------------------

    async fn serving(&mut self, event: ServingEvent) {
        match event {
            ServingEvent::Served(Served::Misled { by, model }) => {
                let costs = self.serving.models.costs(model);
                let wrong = vec![(by, Outcome::Mismatch)];
                let scores = self.trusting.learn((model, costs.as_ref()), wrong, &[], &[]);
                scores.into_iter().for_each(|(node, score)| self.view.swarm.set_trust(node, score));
            }
            ServingEvent::Served(entry) => self.serving.book(entry),
            ServingEvent::Died(_) if self.serving.gate.is_draining() => {}
            ServingEvent::Died(pid) => self.serving.models.restart_worker(pid),
            ServingEvent::Restarted(restarted) => {
                if self.serving.models.restarted(restarted) {
                    self.announcing.holds_otherwise(&mut self.serving, &mut self.view).await;
                }
            }
            ServingEvent::Moved(moved) => {
                if self.serving.moved(*moved) {
                    self.announcing.gossip.tell();
                }
            }
            ServingEvent::Experts => {
                self.announcing.holds_otherwise(&mut self.serving, &mut self.view).await;
                let status = Box::new(self.status().await);
                let arrived = self.serving.models.first.about.name.clone();
                let _ = self.notices.try_send(Notice::Serving { status, arrived, whole: true });
            }
            ServingEvent::Wanted => self.serving.models.load_wanted(),
            ServingEvent::Content(question) => serve::answer(question, &self.view),
            ServingEvent::News(news) => match self.serving.arrived(news) {
                Arrived::Nothing => {}
                Arrived::Told(line) => drop(self.notices.try_send(Notice::Fetching(line))),
                Arrived::Serving { name, whole } => {
                    self.announcing.holds_otherwise(&mut self.serving, &mut self.view).await;
                    let status = Box::new(self.status().await);
                    let _ = self.notices.try_send(Notice::Serving { status, arrived: name, whole });
                }
            },
        }
    }

    // --- the clock, and the end ----------------------------------------------------------------------------------

    /// True when the node may stop.
    async fn tick(&mut self) -> bool {
        let now = self.node.now();
        for node in self.view.expire(now) {
            let _ = self.notices.try_send(Notice::Left(node));
        }
        self.serving.keep_for(self.trusting.contributors());
        self.serving.admit();
        if self.serving.place(&self.view, clock::unix_ms()) {
            self.announcing.gossip.tell();
        }
        let (fetched, idle) = (self.serving.pulls.pace.taken_bytes(), self.serving.table.is_empty());
        self.announcing.watch_line(now, fetched, idle).await;
        self.unload().await;
        self.challenge();
        self.introduce(now);
        self.announce(false).await;
        if self.history.is_due(clock::unix_s()) {
            self.record().await;
        }
        let Some((since, _)) = &self.leaving else { return false };
        let runs = self.serving.table.serving(self.node.me) > 0 || !self.prompts.in_flight.is_empty();
        !runs || since.elapsed() > Duration::from_millis(DRAIN_MS)
    }

    fn leave(&mut self, caller: Option<mpsc::Sender<Line>>) {
        self.serving.gate.draining.send_replace(true);
        self.announcing.gossip.drain();
        let unread = mpsc::channel(1).0;
        self.leaving.get_or_insert_with(|| (Instant::now(), caller.unwrap_or(unread)));
    }

    /// Writes how the last minutes went.
    async fn record(&mut self) {
        let peers = self.node.network.peers().await;
        let mut trips: Vec<f64> =
            peers.iter().filter_map(|peer| self.announcing.gossip.rtt_ms(peer.node)).collect();
        trips.sort_by(f64::total_cmp);
        let gauges = Gauges {
            peers: peers.len(),
            rtt_ms: trips.get(trips.len() / 2).copied(),
            given: self.serving.totals.layer_rows,
            balance: self.trusting.surplus(),
        };
        self.history.record(clock::unix_s(), gauges);
    }

    async fn stop(&mut self) {
        self.record().await;
        if let Some((_, caller)) = self.leaving.take() {
            let _ = caller.try_send(Switched::Left(true).into());
        }
        self.serving.models.all().for_each(|held| held.worker.borrow().kill());
        self.node.network.shutdown().await;
        let _ = self.notices.send(Notice::Stopped).await;
    }
}
