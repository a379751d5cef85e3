//! What the page sees: the node's view, asked for again and again, and the prompts that go through here.
//!
//! The view is polled every [`POLL`]; what differs from the one before is told as events. Prompts tell their own steps as
//! they happen. Events wait for a reader in a channel of [`EVENTS`]; one that falls behind gets a full snapshot.
//! What became of checking the last answers is kept for readers that come later: [`VERDICTS`], the oldest goes first.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use api::{
    inference::{Failure, Mode},
    swarm::{ModeInfo, Node, NodeState, Pipeline, SwarmEvent, SwarmModel, SwarmSnapshot, Verdict},
    swarm_records::NodeName,
};
use tokio::sync::broadcast;

use super::{SwarmState, door::unavailable};
use crate::{consent, control::Question, node_names, reports::View};

/// How old the view may be.
const POLL: Duration = Duration::from_millis(400);
/// Events on their way to a reader.
const EVENTS: usize = 512;
/// Verdicts kept: a page shows no more answers that wait for theirs.
const VERDICTS: usize = 64;

/// The last view, the prompts in flight, and who wants to hear of both.
pub(super) struct Board {
    seen: Mutex<Result<Arc<View>, Failure>>,
    pipelines: Mutex<BTreeMap<String, Pipeline>>,
    verdicts: Mutex<VecDeque<Verdict>>,
    /// The modes and names as readers were last told of them: the owner changes them beside the view.
    told: Mutex<(Vec<ModeInfo>, Vec<NodeName>)>,
    events: broadcast::Sender<SwarmEvent>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Board {
    pub(super) fn new() -> Self {
        Self {
            seen: Mutex::new(Err(unavailable("this node is loading its model and looking for others"))),
            pipelines: Mutex::default(),
            verdicts: Mutex::default(),
            told: Mutex::default(),
            events: broadcast::Sender::new(EVENTS),
        }
    }

    pub(super) fn view(&self) -> Result<Arc<View>, Failure> {
        lock(&self.seen).clone()
    }

    pub(super) fn tell(&self, event: SwarmEvent) {
        // Having no reader is no error.
        let _ = self.events.send(event);
    }

    pub(super) fn listen(&self) -> broadcast::Receiver<SwarmEvent> {
        self.events.subscribe()
    }

    /// Changes a prompt's entry, which is made where there is none, and tells what it is then.
    pub(super) fn pipeline(&self, pipeline: Pipeline) {
        lock(&self.pipelines).insert(pipeline.session.clone(), pipeline.clone());
        self.tell(SwarmEvent::Pipeline { pipeline });
    }

    pub(super) fn ended(&self, session: &str, why: &str) {
        if lock(&self.pipelines).remove(session).is_some() {
            self.tell(SwarmEvent::PipelineEnded { session: session.to_owned(), why: why.to_owned() });
        }
    }

    /// Keeps a verdict, in place of the one of the same session, and tells it.
    pub(super) fn judged(&self, verdict: Verdict) {
        let mut verdicts = lock(&self.verdicts);
        match verdicts.iter_mut().find(|known| known.session == verdict.session) {
            Some(known) => known.clone_from(&verdict),
            None => {
                if verdicts.len() == VERDICTS {
                    verdicts.pop_front();
                }
                verdicts.push_back(verdict.clone());
            }
        }
        drop(verdicts);
        self.tell(SwarmEvent::Checked { verdict });
    }

    /// Keeps the progress for snapshots; events about it are the prompt's own.
    pub(super) fn progress(&self, session: &str, position: u32, tok_s: f64) {
        if let Some(pipeline) = lock(&self.pipelines).get_mut(session) {
            (pipeline.position, pipeline.tok_s) = (position, tok_s);
        }
    }

    /// Everything, as the page wants it.
    pub(super) fn snapshot(&self, shared: &SwarmState) -> SwarmSnapshot {
        let (mut snapshot, conducts) = match self.view() {
            Ok(view) => (view.snapshot.clone(), view.own.conducts),
            Err(failure) => {
                let (version, reason) = (env!("CARGO_PKG_VERSION").into(), Some(failure.to_string()));
                (SwarmSnapshot { version, reason, ..SwarmSnapshot::default() }, false)
            }
        };
        for node in &mut snapshot.nodes {
            node.trusted |= shared.trusted.contains(&node.id);
        }
        if let Some(why) = incomplete(&snapshot) {
            (snapshot.state, snapshot.reason) = (NodeState::Unable, Some(why));
        }
        snapshot.modes = modes(&snapshot, snapshot.models.first(), conducts, shared);
        snapshot.default_mode = shared.default_mode(&snapshot);
        snapshot.pipelines = lock(&self.pipelines).values().cloned().collect();
        snapshot.names = node_names::list(&shared.home);
        snapshot.verdicts = lock(&self.verdicts).iter().cloned().collect();
        snapshot
    }

    /// Sends a full snapshot.
    pub(super) fn tell_everything(&self, shared: &SwarmState) {
        let snapshot = self.snapshot(shared);
        *lock(&self.told) = (snapshot.modes.clone(), snapshot.names.clone());
        self.tell(SwarmEvent::Snapshot { snapshot: Box::new(snapshot) });
    }

    /// Takes a view in and tells what is new in it.
    fn take(&self, next: Result<View, Failure>, shared: &SwarmState) {
        let before = self.snapshot(shared);
        *lock(&self.seen) = next.map(Arc::new);
        let after = self.snapshot(shared);
        if before.nodes.is_empty() != after.nodes.is_empty() || before.me != after.me {
            return self.tell(SwarmEvent::Snapshot { snapshot: Box::new(after) });
        }
        // Whether a mode can be used, and what nodes are called, is part of the snapshot alone.
        let now = (after.modes.clone(), after.names.clone());
        let told = std::mem::replace(&mut *lock(&self.told), now);
        if before.modes != after.modes || told.0 != after.modes || told.1 != after.names {
            self.tell(SwarmEvent::Snapshot { snapshot: Box::new(after.clone()) });
        }
        let old: BTreeMap<&str, &Node> = before.nodes.iter().map(|node| (node.id.as_str(), node)).collect();
        for node in &after.nodes {
            if old.get(node.id.as_str()) != Some(&node) {
                self.tell(SwarmEvent::Node { node: Box::new(node.clone()) });
            }
        }
        for node in &before.nodes {
            if !after.nodes.iter().any(|still| still.id == node.id) {
                self.tell(SwarmEvent::NodeGone { node: node.id.clone(), why: "lost".into() });
            }
        }
        for model in after.models.iter().filter(|model| !before.models.contains(model)) {
            self.tell(SwarmEvent::Model { model: model.clone() });
        }
        if before.contribution != after.contribution {
            self.tell(SwarmEvent::Contribution { contribution: after.contribution.clone() });
        }
        if (before.state, &before.reason) != (after.state, &after.reason) {
            self.tell(SwarmEvent::State { state: after.state, reason: after.reason });
        }
    }
}

/// Which layers of this node's model have no holder.
pub(super) fn incomplete(snapshot: &SwarmSnapshot) -> Option<String> {
    let model = snapshot.models.first().filter(|model| !model.complete)?;
    if model.num_layers == 0 {
        return Some(format!("no connected node says that it holds {}", model.name));
    }
    let missing: Vec<String> = (0..model.num_layers)
        .filter(|layer| model.holders.get(*layer as usize).is_none_or(|holders| *holders == 0))
        .map(|layer| layer.to_string())
        .collect();
    Some(format!(
        "no connected node holds layer {} of {}; more nodes have to join, or this one has to serve more",
        missing.join(", "),
        model.name
    ))
}

/// Whether this node alone has every layer of a model.
pub(super) fn holds_all(snapshot: &SwarmSnapshot, model: Option<&SwarmModel>) -> bool {
    let (Some(model), Some(me)) = (model, snapshot.nodes.first()) else { return false };
    let held = |layer: u32| {
        me.holdings.iter().any(|held| held.model == model.id && (held.start..held.end).contains(&layer))
    };
    model.num_layers > 0 && (0..model.num_layers).all(held)
}

/// In which modes a model of this node can be asked for now.
pub(super) fn modes(
    snapshot: &SwarmSnapshot,
    model: Option<&SwarmModel>,
    conducts: bool,
    shared: &SwarmState,
) -> Vec<ModeInfo> {
    let others = snapshot
        .nodes
        .iter()
        .any(|node| !node.me && model.is_some_and(|own| node.holdings.iter().any(|h| h.model == own.id)));
    let alone = (!holds_all(snapshot, model))
        .then(|| "this node does not hold every layer; `shoal join --layers` can make it".to_owned());
    let unshared = (!others).then(|| "no other node holds a part of the model now".to_owned());
    let headless = (!conducts).then(|| {
        "this node does not hold both ends of the model; `shoal join --ends` fetches them".to_owned()
    });
    let trusted = match (shared.trusted.is_empty(), &unshared) {
        (true, _) => Some("no node is trusted; name some with --trust".to_owned()),
        (false, unshared) => unshared.clone(),
    };
    let mode = |mode: Mode, sentence: &str, reason: Option<String>| ModeInfo {
        mode,
        sentence: sentence.into(),
        available: reason.is_none(),
        reason,
        agreed: consent::given(&shared.home, mode),
    };
    vec![
        mode(Mode::Local, "Only this machine: everything is computed here.", alone),
        mode(
            Mode::Trusted,
            "The nodes you named compute the middle layers; they can reconstruct much of the text.",
            trusted,
        ),
        mode(
            Mode::Boomerang,
            "Strangers compute the middle layers: they get neither text nor token ids, but can reconstruct much from activations.",
            headless.or_else(|| unshared.clone()),
        ),
        mode(Mode::Open, "Any node may read the prompt and the answer.", unshared),
    ]
}

/// Asks for the view until no reader needs it any more.
pub(super) async fn follow(shared: Weak<SwarmState>) {
    let mut clock = tokio::time::interval(POLL);
    clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        clock.tick().await;
        let Some(shared) = shared.upgrade() else { return };
        shared.refresh().await;
    }
}

impl SwarmState {
    /// Asks the node for its view now.
    pub(super) async fn refresh(self: &Arc<Self>) {
        let view = self.door.one(Question::View).await;
        self.board.take(view, self);
    }
}
