//! How a node that has no file of its model comes to hold layers of it.
//!
//! ```text
//! who has it ──> tree, header ──> which layers ──> fetch them ──> worker ──> serve
//!  Question::     content::pull     Question::      all holders,   News::     News::Holds
//!  Named, Finder                    Lacking         verified       Fetched
//! ```
//!
//! What is here whole is served while the rest comes: every so often (`growth.rs`) a worker with the layers that are on the
//! disk by then takes the place of the one before, which ends with its last session.
//!
//! All of it happens beside the daemon's loop, on a thread of its own, while the node already answers prompts through
//! peers (`prompts/delegate.rs`). Nothing is fetched before its size is told, only header and chosen layers are, and a restart
//! goes on with the layers that are here before it asks for others: moving layers costs the swarm more than a hole that
//! another node may fill.
//!
//! The layers are those the swarm lacks most, as many as fit the offered memory and disk. What is on the disk already is
//! read and checked again before it is loaded.
//!
//! Limits: an attempt that fails is repeated after rests of [`FIRST_REST`] to [`LONGEST_REST`], without end, because
//! holders come and go; what waiting cannot cure (too little disk, a header this build does not know) ends it. A worker
//! that does not start is not tried again, and what was put aside for its weights stays so until the node restarts.

use std::{
    convert::Infallible,
    time::{Duration, Instant},
};

use api::inference::ModelInfo;
use p2p::{
    blob::{self, Event, GroupSet},
    wire::announce::Offer,
};
use scheduler::{LayerRange, LayerSet, ModelId, place::Room};
use tokio::{
    sync::{mpsc, oneshot},
    task::spawn_blocking,
    time::sleep,
};

use super::{
    growth::{Step, Steps},
    initial_placement::lacking,
    pull::{Pulls, apart},
    weights::Weights,
    workers::Models,
};
use crate::{
    Error, Result,
    audit::Auditor,
    content::{
        self, hex,
        peers::Question,
        pull::{Ask, Found, Prepared, open},
    },
    daemon::{
        setup::{Absent, Serve, Where},
        view::{Facts, Viewing},
    },
    header::Header,
    library,
    output::human_bytes,
    reports::{FetchReport, Progress, PullPlan, Transfer},
    worker::{self, Output, Ready, Worker},
};

/// Rest after the first attempt that failed; doubles up to [`LONGEST_REST`].
const FIRST_REST: Duration = Duration::from_secs(1);
const LONGEST_REST: Duration = Duration::from_secs(30);
/// How long one attempt waits for a peer that has the model.
const PATIENCE: Duration = Duration::from_secs(10);
/// With everything on the disk already, peers are waited for this long only.
const GLANCE: Duration = Duration::from_secs(1);
/// Time between two reports of progress.
const REPORT_EVERY: Duration = Duration::from_millis(500);
/// The layers others announce are heard of within this time after the first of them: gossip comes in one burst.
const LISTEN: Duration = Duration::from_millis(1_000);

/// What happened on the way of the model at a place (0 is the first one).
pub(crate) struct News {
    pub(crate) place: usize,
    pub(crate) what: What,
}

/// What happened.
pub(crate) enum What {
    /// A line about what is being done.
    Doing(FetchReport),
    /// The layers are on the disk.
    Fetched(Box<Fetched>),
    /// They are in memory.
    Holds(Box<Arrival>),
}

/// Layers on the disk.
pub(crate) struct Fetched {
    source: worker::Source,
    model: ModelId,
    file_bytes: u64,
    load: Vec<LayerRange>,
    serve: Vec<LayerRange>,
    /// For the API, but for its name and context.
    about: ModelInfo,
    step: Step,
}

/// Layers in memory.
pub(crate) struct Arrival {
    fetched: Fetched,
    worker: Worker,
    ready: Ready,
    outputs: mpsc::Receiver<Output>,
    spec: worker::Spec,
    /// What became of a device that failed before it.
    trouble: Option<String>,
}

/// The task.
pub(crate) struct Acquire {
    pub pulls: Pulls,
    /// Which of the node's models: 0 is the first.
    pub place: usize,
    /// What it is called.
    pub name: String,
    pub from: Where,
    pub serve: Serve,
    /// Memory for weights.
    pub weights: Weights,
    pub news: mpsc::Sender<News>,
    /// Its steps.
    pub steps: Steps,
}

impl Acquire {
    /// Begins, on a thread of its own.
    pub fn start(self) {
        if let Serve::These(layers) = &self.serve
            && layers.is_empty()
            && !self.keeps_ends()
        {
            return;
        }
        apart("acquire", move || async move {
            let mut rest = FIRST_REST;
            while let Err(error) = self.attempt().await {
                let lasting = is_lasting(&error);
                let again_s = (!lasting).then_some(rest.as_secs());
                let why = error.to_string();
                tracing::warn!(%why, ?again_s, "the model is not here yet");
                let line = FetchReport::Waiting { model: self.name.clone(), why, again_s };
                let news = News { place: self.place, what: What::Doing(line) };
                if self.news.send(news).await.is_err() || lasting {
                    return;
                }
                sleep(rest).await;
                rest = (rest * 2).min(LONGEST_REST);
            }
        });
    }

    async fn tell(&self, line: FetchReport) {
        // A loop that is gone has stopped the node.
        let _ = self.news.send(News { place: self.place, what: What::Doing(line) }).await;
    }

    /// Whether the first and the last layer are loaded as well.
    fn keeps_ends(&self) -> bool {
        match &self.from {
            Where::Here { .. } => true,
            Where::Away(absent) => absent.ends,
        }
    }

    async fn attempt(&self) -> Result<()> {
        match &self.from {
            Where::Here { id, source } => self.load(*id, source.clone()).await,
            Where::Away(absent) => self.fetch_and_load(absent).await,
        }
    }

    /// A model that is whole on this machine.
    async fn load(&self, id: ModelId, source: worker::Source) -> Result<()> {
        let header = match &source {
            worker::Source::Embedded => Header::read(None)?,
            worker::Source::File(path) => {
                let path = path.clone();
                let read = spawn_blocking(move || Header::of_file(&path)).await;
                read.unwrap_or_else(|error| Err(Error::Failed(error.to_string())))?
            }
        };
        let about = header.info(0, String::new())?;
        let (load, serve) = self.choose(id, &header, u64::MAX, None).await?;
        let file_bytes = header.file_len;
        let step = self.last_step(&header, &load);
        self.fetched(Fetched { source, model: id, file_bytes, load, serve, about, step }).await
    }

    async fn fetch_and_load(&self, absent: &Absent) -> Result<()> {
        let name = &absent.name;
        let id = match absent.id {
            Some(id) => id,
            None => {
                self.tell(FetchReport::Looking { model: name.clone() }).await;
                self.pulls.resolve(name, PATIENCE).await?
            }
        };
        // From here on prompts find who computes it by its id.
        self.tell(FetchReport::Found { model: name.clone(), id: hex(id) }).await;
        let named = Some(name.clone()).filter(|name| {
            library::check_name(name).is_ok() && content::parse_id(name).is_none() && self.is_free(name, id)
        });
        let ask = Ask {
            name: named,
            from: absent.from.clone(),
            disk_bytes: self.pulls.disk_bytes,
            pace: self.pulls.pace.clone(),
            ..Ask::new(self.pulls.home.clone(), Some(id))
        };
        let finder = self.pulls.finder(id);
        let mut sources = ask.mirrors()?;
        sources.extend(finder.first(if ask.is_kept() { GLANCE } else { PATIENCE }).await);
        let mut prepared = match open(ask, &mut sources).await? {
            Found::Pull(prepared) => prepared,
            Found::Here(entry) => return self.load(id, worker::Source::File(entry.path)).await,
            Found::NoTree(why) => {
                let why = if why.is_empty() {
                    "no peer that has it is reachable".to_owned()
                } else {
                    why.join("; ")
                };
                return Err(Error::Failed(format!("{name} cannot be fetched yet: {why}")));
            }
        };
        // Before the header comes: with it come bytes of the first layers, which are no reason to keep to those.
        let here = content::held(&self.pulls.home, prepared.entry()).ok().map(|holding| holding.layers);
        let header = prepared.header(&mut sources, &mut |event| finder.heard(&event)).await?;
        let about = header.info(0, String::new())?;
        let (load, serve) = self.choose(id, &header, prepared.offered_bytes(), here).await?;
        if load.is_empty() {
            return Err(Error::usage(
                "not one layer fits what this node was offered: raise --disk or --weights",
            ));
        }
        prepared.want_layers(&header, load.clone())?;
        let bad = prepared.verify()?;
        if bad > 0 {
            tracing::warn!(bytes = bad, "a part of the model has gone bad on this disk; it is fetched again");
        }
        let plan = prepared.plan(&load);
        self.tell(FetchReport::Fetching { plan: plan.clone(), progress: None }).await;
        if prepared.missing_bytes() > 0 {
            let entry = prepared.entry().clone();
            let groups = content::layer_groups(&header, entry.bytes, &load)?;
            let serve = LayerSet::new(serve.iter().copied());
            let coming = Coming { entry, groups, serve, header: &header, about: &about };
            let report = tokio::select! {
                fetched = self.fetch(&mut prepared, &mut sources, &finder, &plan) => fetched?,
                never = self.serve_what_is_here(coming) => match never {},
            };
            let (transfer, done_bytes) = (Transfer::from(&report), prepared.total_bytes());
            self.tell(FetchReport::Fetched { plan, transfer, done_bytes }).await;
        }
        let entry = prepared.entry();
        let (source, file_bytes) = (worker::Source::File(prepared.path()), entry.bytes);
        let step = self.last_step(&header, &load);
        let fetched = Fetched { source, model: id, file_bytes, load, serve, about, step };
        drop(prepared);
        self.fetched(fetched).await
    }

    async fn fetched(&self, fetched: Fetched) -> Result<()> {
        let what = What::Fetched(Box::new(fetched));
        let _ = self.news.send(News { place: self.place, what }).await;
        Ok(())
    }

    fn last_step(&self, header: &Header, load: &[LayerRange]) -> Step {
        self.steps.last(header.weight_bytes(load), (&self.weights, self.place))
    }

    /// Hands over layers as they come, but for the last ones: all of them are handed over when they are here.
    async fn serve_what_is_here(&self, coming: Coming<'_>) -> Infallible {
        let mut warned = false;
        loop {
            sleep(REPORT_EVERY).await;
            let here = match content::present(&self.pulls.home, &coming.entry) {
                Ok(Some(have)) => coming.layers_of(&have),
                Ok(None) => continue,
                Err(error) => {
                    if !std::mem::replace(&mut warned, true) {
                        tracing::warn!(%error, "it is not known which layers are here already");
                    }
                    continue;
                }
            };
            if here.len() == coming.groups.len() as u32 {
                continue;
            }
            let serve = here.intersection(&coming.serve);
            let bytes = coming.header.weight_bytes(here.ranges());
            let Some(step) = self.steps.part(&serve, bytes, (&self.weights, self.place)) else { continue };
            let Some(model) = coming.entry.model() else { continue };
            let fetched = Fetched {
                source: worker::Source::File(coming.entry.path.clone()),
                model,
                file_bytes: coming.entry.bytes,
                load: here.ranges().to_vec(),
                serve: serve.ranges().to_vec(),
                about: coming.about.clone(),
                step,
            };
            let what = What::Fetched(Box::new(fetched));
            let _ = self.news.send(News { place: self.place, what }).await;
        }
    }

    async fn fetch(
        &self,
        prepared: &mut Prepared,
        sources: &mut [Box<dyn blob::Source>],
        finder: &content::peers::Finder,
        plan: &PullPlan,
    ) -> Result<blob::Report> {
        let started = Instant::now();
        let (news, place, mut first, mut told) = (self.news.clone(), self.place, None, started);
        let plan = plan.clone();
        let mut hear = move |event: Event| {
            finder.heard(&event);
            match event {
                Event::Started { have_bytes, .. } => first = Some(have_bytes),
                Event::Progress { done_bytes, .. } if told.elapsed() >= REPORT_EVERY => {
                    told = Instant::now();
                    let speed = done_bytes.saturating_sub(first.unwrap_or(0)) as f64
                        / started.elapsed().as_secs_f64().max(1e-3);
                    let left = plan.total_bytes.saturating_sub(done_bytes);
                    let eta_s = (left as f64 / speed.max(1.0)).ceil() as u64;
                    let progress = Some(Progress { done_bytes, bytes_per_s: speed as u64, eta_s });
                    let line = FetchReport::Fetching { plan: plan.clone(), progress };
                    let _ = news.try_send(News { place, what: What::Doing(line) });
                }
                Event::Dropped { source, why, lied } => {
                    let line = FetchReport::Dropped { source, why, lied };
                    let _ = news.try_send(News { place, what: What::Doing(line) });
                }
                _ => {}
            }
        };
        let fetched = prepared.fetch(sources, Some(finder.keep_looking()), &mut hear).await;
        prepared.save()?;
        fetched
    }

    /// Whether `name` is free on this machine, or this very model's.
    fn is_free(&self, name: &str, id: ModelId) -> bool {
        library::Library::load(&self.pulls.home)
            .is_ok_and(|library| library.get(name).is_none_or(|entry| entry.model() == Some(id)))
    }

    /// What to load and what of it to serve; the memory for it is taken.
    async fn choose(
        &self,
        model: ModelId,
        header: &Header,
        offered_bytes: u64,
        here: Option<LayerSet>,
    ) -> Result<(Vec<LayerRange>, Vec<LayerRange>)> {
        let num_layers = header.num_layers();
        let left_bytes = self.weights.left_bytes(self.place);
        let ends = [LayerRange::new(0, 1), LayerRange::new(num_layers - 1, num_layers)];
        let ends: Vec<LayerRange> = ends.into_iter().flatten().filter(|_| self.keeps_ends()).collect();
        let serve = match &self.serve {
            Serve::These(layers) => {
                if let Some(beyond) = layers.iter().find(|range| range.end() > num_layers) {
                    return Err(Error::usage(format!(
                        "--layers {beyond}: the model has layers 0..{num_layers}"
                    )));
                }
                layers.clone()
            }
            Serve::Scarcest(cap) => {
                let offered = offered_bytes.saturating_sub(header.header_len);
                // The ends come beside what is chosen.
                let beside = header.weight_bytes(&ends);
                let room = Room {
                    layers: (*cap).min(num_layers),
                    bytes: left_bytes.map_or(offered, |left| left.saturating_sub(beside).min(offered)),
                    costs: header.weights(),
                };
                let kept =
                    here.as_ref().and_then(|here| here.ranges().iter().max_by_key(|range| range.len()));
                match kept.and_then(|kept| room.longest(kept.start(), kept.end())) {
                    Some(kept) => vec![kept],
                    None => self.lacking(model, num_layers, room).await.into_iter().collect(),
                }
            }
        };
        let load = LayerSet::new(serve.iter().copied().chain(ends));
        load.ranges().iter().try_for_each(|range| header.check_cut(*range))?;
        let bytes = header.weight_bytes(load.ranges());
        if let Err(left) = self.weights.take(self.place, bytes) {
            let why = format!(
                "its layers {} take {} of memory, and the other models leave {}: raise --weights or serve fewer",
                load.ranges().iter().map(ToString::to_string).collect::<Vec<_>>().join(" and "),
                human_bytes(bytes),
                human_bytes(left)
            );
            // What was to be had when the layers were chosen may have been taken since.
            let chosen = matches!(self.serve, Serve::Scarcest(_)) && !serve.is_empty();
            return Err(if chosen { Error::Failed(why) } else { Error::usage(why) });
        }
        Ok((load.ranges().to_vec(), serve))
    }

    async fn lacking(&self, model: ModelId, num_layers: u32, room: Room) -> Option<LayerRange> {
        sleep(LISTEN).await;
        let (answer, answered) = oneshot::channel();
        self.pulls.questions.send(Question::Lacking { model, num_layers, room, answer }).await.ok()?;
        answered.await.ok().flatten()
    }
}

/// Layers that are being fetched.
struct Coming<'a> {
    entry: library::Entry,
    /// What each of them is of the file.
    groups: Vec<(LayerRange, GroupSet)>,
    serve: LayerSet,
    header: &'a Header,
    about: &'a ModelInfo,
}

impl Coming<'_> {
    /// Those that are whole when the file has these groups.
    fn layers_of(&self, have: &GroupSet) -> LayerSet {
        self.groups.iter().filter(|(_, groups)| have.covers(groups)).map(|(layer, _)| *layer).collect()
    }
}

/// Whether waiting cures nothing.
fn is_lasting(error: &Error) -> bool {
    matches!(
        error,
        Error::Usage(_)
            | Error::Engine(_)
            | Error::Model(blob::Error::TooLarge { .. } | blob::Error::Damaged { .. })
    )
}

/// Answers a task that moves models.
pub(crate) fn answer(question: Question, view: &Viewing) {
    match question {
        Question::Named { name, answer } => {
            let mut named: Vec<Offer> = Vec::new();
            let all = view.facts.values().flat_map(|facts| &facts.offers);
            for offer in all.filter(|offer| offer.name == name || hex(offer.model) == name) {
                if !named.iter().any(|known| known.model == offer.model) {
                    named.push(offer.clone());
                }
            }
            let _ = answer.send(named);
        }
        Question::Holders { model, answer } => {
            let offers = |facts: &Facts| facts.offers.iter().any(|offer| offer.model == model);
            let holders = view.facts.iter().filter(|(_, facts)| offers(facts));
            let _ = answer.send(holders.map(|(node, _)| view.contact(*node)).collect());
        }
        Question::Lacking { model, num_layers, room, answer } => {
            let _ = answer.send(lacking(&view.swarm, view.me, model, num_layers, &room));
        }
    }
}

/// What the loop does about news of a model.
pub(crate) enum Arrived {
    /// Nothing: a task goes on.
    Nothing,
    /// This line is told.
    Told(FetchReport),
    /// The model of this name is in memory and can be announced; `whole` when no more of it will come.
    Serving {
        /// As people call it.
        name: String,
        /// Whether this is all.
        whole: bool,
    },
}

impl Models {
    /// A model is on its way; further news go to `sender`. A node that is `leaving` loads nothing more.
    pub(crate) fn arrived(&mut self, news: News, sender: &mpsc::Sender<News>, leaving: bool) -> Arrived {
        let place = news.place;
        // What another worker on the same device was found to be, this one is.
        let classes: Vec<_> =
            self.all().filter_map(|held| Some((held.spec.device, held.spec.class?))).collect();
        let Some(held) = self.place_mut(place) else { return Arrived::Nothing };
        match news.what {
            What::Doing(line) => {
                // The last word stays: what became of sources is told once.
                if let Some(id) = line.id().and_then(content::parse_id)
                    && held.loaded.is_empty()
                {
                    (held.id, held.ready.model) = (id, id);
                }
                if !matches!(line, FetchReport::Dropped { .. }) {
                    held.fetching = Some(line.clone());
                }
                Arrived::Told(line)
            }
            What::Fetched(_) if leaving => Arrived::Nothing,
            What::Fetched(fetched) => {
                let step = &fetched.step;
                let way = step.needs_room.clone().map(|before| held.make_way(step.number, before));
                let mut spec = worker::Spec {
                    source: fetched.source.clone(),
                    model: Some(fetched.model),
                    layers: fetched.load.clone(),
                    class: held.spec.class.or_else(|| {
                        classes
                            .iter()
                            .find(|(device, _)| *device == held.spec.device)
                            .map(|(_, class)| *class)
                    }),
                    ..held.spec.clone()
                };
                let (name, sender) = (held.about.name.clone(), sender.clone());
                tokio::spawn(async move {
                    if let Some(way) = way {
                        way.await;
                    }
                    let what = match worker::spawn_fastest(&mut spec).await {
                        Ok(((worker, ready, outputs), trouble)) => What::Holds(Box::new(Arrival {
                            fetched: *fetched,
                            worker,
                            ready,
                            outputs,
                            spec,
                            trouble,
                        })),
                        Err(fault) if !fetched.step.is_last => {
                            return tracing::warn!(%fault, "the layers that are here cannot be served yet");
                        }
                        Err(fault) => {
                            let why = fault.to_string();
                            What::Doing(FetchReport::Waiting { model: name, why, again_s: None })
                        }
                    };
                    let _ = sender.send(News { place, what }).await;
                });
                Arrived::Nothing
            }
            What::Holds(arrival) if leaving || !held.is_step_due(arrival.fetched.step.number) => {
                arrival.worker.kill();
                Arrived::Nothing
            }
            What::Holds(arrival) if !held.takes(arrival.spec.device, arrival.ready.class) => {
                // Its device failed in another worker meanwhile: what was fetched is loaded once more.
                arrival.worker.kill();
                let what = What::Fetched(Box::new(arrival.fetched));
                self.arrived(News { place, what }, sender, leaving)
            }
            What::Holds(arrival) => {
                let whole = arrival.fetched.step.is_last;
                let name = self.hold(place, *arrival);
                name.map_or(Arrived::Nothing, |name| Arrived::Serving { name, whole })
            }
        }
    }

    /// The model at `place` is in memory; returns its name.
    fn hold(&mut self, place: usize, arrival: Arrival) -> Option<String> {
        let Arrival { fetched, worker, ready, outputs, mut spec, trouble } = arrival;
        spec.class = Some(ready.class);
        let pump = self.listen_to(outputs, worker.pid());
        let held = self.place_mut(place)?;
        let name = held.about.name.clone();
        held.about = ModelInfo { name: name.clone(), context: ready.context as usize, ..fetched.about };
        held.id = fetched.model;
        held.auditor = Auditor::new(&spec, held.id, ready.class);
        held.spec = spec;
        held.note(trouble);
        held.loaded = ready.layers.clone();
        held.served = fetched.serve;
        held.file_bytes = fetched.file_bytes;
        held.ready = ready;
        let Step { number, is_last, done, .. } = fetched.step;
        held.grow(worker, pump, (number, done));
        if is_last {
            held.fetching = None;
        }
        Some(name)
    }
}
