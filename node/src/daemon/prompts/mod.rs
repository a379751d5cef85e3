//! The prompts of this node: those that run, those that are remembered, and what their tasks ask.
//!
//! A prompt is a task (`prompt.rs`) that owns everything about its answer. It asks the loop who shall compute
//! (`route.rs`) and tells it when it is over ([`Finished`]); both come in by [`Inbox`].

mod answer;
mod bill;
mod conductors;
mod delegate;
mod dials;
mod drafts;
mod durable;
mod estimate;
mod params;
mod prompt;
mod report;
mod retry;
mod route;
mod shifts;

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;

use api::swarm_records::{AnswerRecord, Step, StepKind};
use p2p::wire::receipt::Receipt;
use scheduler::{ModelId, NodeId, SessionId, trust::Outcome};
use tokio::sync::mpsc;

pub(super) use self::answer::challenge;
pub use self::prompt::PromptTask;
use self::{conductors::ConductorQuestion, estimate::Measured, route::RouteQuestion};
pub(super) use self::{delegate::Guest, route::Router};
use super::{
    serve::{Held, Local, Serving},
    setup::Node,
    view::Viewing,
};
use crate::{
    control::{self, Line, Mode},
    events::{PromptEvent, PromptReport, PromptRequest, Refusal},
    reports::AnswersReport,
    request::{Recollections, Reroute},
    state_store::DiskUse,
};

/// Prompts of this node at once that still teach what steps cost: two stages busy in turn hide each other's work.
const CALM: usize = 2;
/// Prompts remembered for `why`.
const HISTORY: usize = 64;

/// A prompt of this node is over.
pub struct Finished {
    pub(super) session: SessionId,
    pub(super) model: ModelId,
    /// What there is to say about it.
    pub(super) report: Option<PromptReport>,
    /// What it taught.
    pub(super) measured: Measured,
    /// First token and a further one, predicted and seen, ms; zero where it was disturbed.
    pub(super) came_true: [(f64, f64); 2],
    /// What to remember of the nodes that took part.
    pub(super) outcomes: Vec<(NodeId, Outcome)>,
    /// Work that was signed for.
    pub(super) receipts: Vec<[u8; Receipt::LEN]>,
    /// Proofs against liars.
    pub(super) proofs: Vec<Vec<u8>>,
}

impl Finished {
    /// Nothing to remember.
    pub(super) fn new(session: SessionId, model: ModelId, report: Option<PromptReport>) -> Self {
        let (measured, came_true, outcomes, receipts, proofs) = Default::default();
        Self { session, model, report, measured, came_true, outcomes, receipts, proofs }
    }
}

/// What the tasks of prompts ask and tell.
pub(super) enum PromptQuestion {
    /// A prompt wants a pipeline.
    Route(Box<RouteQuestion>),
    /// A prompt wants another node to conduct it.
    Conductors(ConductorQuestion),
    /// A running prompt wants another pipeline.
    Reroute(Box<Reroute>),
    /// A peer wants its prompt conducted here.
    Guest(Box<Guest>),
    /// A prompt is over.
    Finished(Box<Finished>),
}

/// Where the questions of prompts come in.
pub(super) struct Inbox {
    routes: mpsc::Receiver<RouteQuestion>,
    conductors: mpsc::Receiver<ConductorQuestion>,
    reroutes: mpsc::Receiver<Reroute>,
    guests: mpsc::Receiver<Guest>,
    finished: mpsc::Receiver<Finished>,
}

impl Inbox {
    /// The next question; a call that is dropped loses none.
    pub(super) async fn next(&mut self) -> Option<PromptQuestion> {
        tokio::select! {
            Some(question) = self.routes.recv() => Some(PromptQuestion::Route(Box::new(question))),
            Some(question) = self.conductors.recv() => Some(PromptQuestion::Conductors(question)),
            Some(question) = self.reroutes.recv() => Some(PromptQuestion::Reroute(Box::new(question))),
            Some(guest) = self.guests.recv() => Some(PromptQuestion::Guest(Box::new(guest))),
            Some(over) = self.finished.recv() => Some(PromptQuestion::Finished(Box::new(over))),
            else => None,
        }
    }
}

/// A prompt that runs.
#[derive(Clone, Debug, Default)]
pub(super) struct InFlight {
    /// The peers it runs on.
    pub(super) nodes: Vec<NodeId>,
    /// The most prompts of this node that ran at once while it did, itself included.
    pub(super) crowd: usize,
}

/// See the module's page.
pub(super) struct Prompts {
    node: Node,
    home: PathBuf,
    /// Whether running answers are kept on disk.
    keeps: bool,
    /// Prompts that run and the peers they run on.
    pub(super) in_flight: BTreeMap<SessionId, InFlight>,
    /// What those that ended leave behind.
    memory: Recollections,
    history: VecDeque<PromptReport>,
    routes: mpsc::Sender<RouteQuestion>,
    conductors: mpsc::Sender<ConductorQuestion>,
    reroutes: mpsc::Sender<Reroute>,
    /// Where prompts of peers are handed on once they are read.
    pub(super) guests: mpsc::Sender<Guest>,
    finished: mpsc::Sender<Finished>,
}

impl Prompts {
    /// No prompt yet, but for what ended ones left in `memory`; answers are kept below `home` if `keeps`.
    pub(super) fn new(node: Node, home: PathBuf, keeps: bool, memory: Recollections) -> (Self, Inbox) {
        let (routes, route) = mpsc::channel(control::QUESTIONS);
        let (conductors, conductor) = mpsc::channel(control::QUESTIONS);
        let (reroutes, reroute) = mpsc::channel(control::QUESTIONS);
        let (guests, guest) = mpsc::channel(control::QUESTIONS);
        let (finished, over) = mpsc::channel(control::QUESTIONS);
        let inbox =
            Inbox { routes: route, conductors: conductor, reroutes: reroute, guests: guest, finished: over };
        let (in_flight, history) = Default::default();
        (
            Self {
                node,
                home,
                keeps,
                in_flight,
                memory,
                history,
                routes,
                conductors,
                reroutes,
                guests,
                finished,
            },
            inbox,
        )
    }

    /// What is remembered of ended prompts takes so much of the disk, where it is kept there.
    pub(super) fn disk_use(&self) -> Option<DiskUse> {
        self.memory.disk_use()
    }

    /// A task for one prompt. `shares` says what nodes contributed to a model.
    pub(super) fn task(
        &self,
        serving: &Serving,
        view: &Viewing,
        shares: impl Fn(ModelId) -> BTreeMap<NodeId, f64>,
    ) -> PromptTask {
        let models = &serving.models;
        let local = |held: &Held| Local { drafter: models.drafter.clone(), ..held.local(shares(held.id)) };
        PromptTask {
            node: self.node.clone(),
            local: local(&models.first),
            beside: models.beside.iter().map(local).collect(),
            approx: view.approx(),
            table: serving.table.clone(),
            routes: self.routes.clone(),
            conductors: self.conductors.clone(),
            reroutes: self.reroutes.clone(),
            lost: view.lost.clone(),
            finished: self.finished.clone(),
            feedback: view.feedback.clone(),
            memory: Some(self.memory.clone()),
            prove: None,
        }
    }

    /// Answers a prompt; what a continuation needs is kept where the caller can ask for one.
    pub(super) fn answer(&self, task: PromptTask, ask: PromptRequest, lines: mpsc::Sender<Line>) {
        let keeps = self.keeps && (ask.api.repeatable || !ask.api.over_http);
        let home = keeps.then(|| self.home.clone());
        tokio::spawn(task.answer_kept(home, ask, lines));
    }

    /// Continues an interrupted answer.
    pub(super) fn resume(&self, task: PromptTask, session: Option<String>, lines: mpsc::Sender<Line>) {
        let home = self.home.clone();
        tokio::spawn(async move { task.resume(&home, session, lines).await });
    }

    /// Whether a prompt ran beside so few others of this node that what it took is what such work costs. In a crowd a step is
    /// mostly waiting for the others, here and at every stage, and who learned that as a price would believe in it after the crowd.
    pub(super) fn was_calm(&self, session: SessionId) -> bool {
        self.in_flight.get(&session).is_none_or(|prompt| prompt.crowd <= CALM)
    }

    /// A prompt is over; `report` is what `why` says of it.
    pub(super) fn remember(&mut self, session: SessionId, report: Option<PromptReport>) {
        self.in_flight.remove(&session);
        let Some(report) = report else {
            // What ended without another word is checked no more.
            let name = format!("{session:?}");
            let known = self.history.iter_mut().filter(|known| known.session.as_ref() == Some(&name));
            return known.for_each(|known| known.checking = false);
        };
        let being_checked = |known: &&mut PromptReport| known.checking && known.session == report.session;
        if let Some(known) = self.history.iter_mut().find(being_checked) {
            *known = report;
            return;
        }
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(report);
    }

    /// What happened to the last prompts that others computed a part of, the newest first.
    pub(super) fn answers(&self) -> AnswersReport {
        let answer = |report: &PromptReport| {
            let (own, timing) = (report.conducted.as_deref()?, report.timing.as_ref()?);
            let others = |step: &Step| match &step.what {
                StepKind::Leased { stages, .. } => stages.iter().any(|span| span.node != own.me),
                _ => false,
            };
            own.timeline.steps.iter().any(others).then(|| AnswerRecord {
                session: report.session.clone().unwrap_or_default(),
                model: own.model.clone(),
                mode: report.mode.map_or("", Mode::name).to_owned(),
                finish: report.finish_reason.name().to_owned(),
                tokens: report.completion_tokens,
                tok_s: timing.decode_tok_s,
                faults: timing.faults.len(),
                timeline: own.timeline.clone(),
            })
        };
        AnswersReport { answers: self.history.iter().rev().filter_map(answer).collect(), end: true }
    }

    /// What happened to the prompt whose session begins so; to the last one without a name.
    pub(super) fn why(&self, session: Option<&str>) -> PromptEvent {
        let wanted = |report: &&PromptReport| {
            session.is_none_or(|prefix| report.session.as_ref().is_some_and(|name| name.starts_with(prefix)))
        };
        match self.history.iter().rev().find(wanted) {
            Some(report) => PromptEvent::Done(Box::new(report.clone())),
            None => PromptEvent::Failed(Refusal::new(
                "no such prompt is remembered; `shoal run` one first (the last 64 are kept)",
            )),
        }
    }
}
