//! The models this node has workers for: how they are loaded, heard, and restarted when they die.
//!
//! The first is the one the node was started with; those beside it (`--also`) come while it runs. Each has a worker of its
//! own, and so threads of its own: the system divides the cores among those that have work. What all share is the memory
//! for caches ([`worker::Room`]), the memory for weights (`weights.rs`) and the door for sessions of others (`admit.rs`).
//!
//! A model that nothing needs for a while may be unloaded (`idle.rs`).
//!
//! Limits: [`MOST_BESIDE`] models beside the first, of which only the first's holders are challenged (`trust/probation.rs`).

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use api::inference::ModelInfo;
use p2p::wire::announce::Class;
use scheduler::{
    LayerRange, ModelId, NodeId,
    correction::Correction,
    forecast::Forecast,
    latency::{Ema, SPEED_TAU_MS},
    layer_cost::LayerCosts,
};
use shard::executor::DeviceName;
use tokio::{
    sync::{Notify, mpsc, watch},
    task::JoinHandle,
    time::{sleep, timeout_at},
};

use super::{drafter::Drafter, idle::Idle, initial_placement::with_ends, weights::Beside};
use crate::{
    Error, Result,
    audit::Auditor,
    inference::local,
    reports::FetchReport,
    sessions::SessionTable,
    worker::{self, Ready, Trouble, Worker, WorkerSource},
};

/// A worker that lived this long did not die of its start.
const GROWN_UP: Duration = Duration::from_secs(60);
/// Pause before the third worker in a row that died young; doubles from there.
const RESTART_MS: u64 = 250;
/// Deaths of young workers in a row after which a GPU counts as lost: its driver ends them.
const MOST_ON_GPU: u32 = 2;
/// Where the doubling ends: 64 s.
const MOST_YOUNG_DEATHS: u32 = 10;

/// Sessions that keep a worker whose memory is needed have this long to end. Shorter, and more answers go on elsewhere;
/// longer, and the model's last layers wait for one that does not end.
const PATIENCE: Duration = Duration::from_secs(20);
/// Time between two looks whether a worker that is not wanted any more has finished loading.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// What a worker that never was says.
const NO_WEIGHTS: &str = "no weights are here yet";

/// Models beside the first: an announcement names all of them, and each has a process.
pub const MOST_BESIDE: usize = 8;

/// A model this node has a worker for, or will have.
pub(crate) struct Held {
    pub(crate) id: ModelId,
    /// As the API names it, and what its file says.
    pub(crate) about: ModelInfo,
    pub(crate) auditor: Option<Auditor>,
    /// What a step takes at home besides layers, ms.
    pub(crate) at_home: Ema,
    /// What opening a session takes besides the way to the farthest node and back, ms.
    pub(crate) at_opening: Ema,
    /// What prompts take beside what nodes' figures say.
    pub(crate) at_prefill: Correction,
    /// How first tokens and further ones came true.
    pub(crate) came_true: [Forecast; 2],
    /// Where it is on its way, while it is.
    pub(crate) fetching: Option<FetchReport>,
    pub(crate) worker: watch::Sender<Worker>,
    pub(crate) spec: worker::Spec,
    life: Life,
    pub(crate) ready: Ready,
    pub(crate) loaded: Vec<LayerRange>,
    pub(crate) served: Vec<LayerRange>,
    pub(crate) file_bytes: u64,
}

/// How the present worker came to be, and what became of those before it.
struct Life {
    born: Instant,
    /// Workers in a row that died young.
    young_deaths: u32,
    /// Whether anything needs it.
    idle: Idle,
    /// The step of the model's way here that it was started for.
    step: u64,
    /// Carries its outputs, and is over when it is gone.
    pump: Option<JoinHandle<()>>,
    /// The worker that it replaced, until its last session has ended.
    before: Option<Going>,
    /// What a device was found to be, for people.
    trouble: Option<String>,
    /// Whether what the present worker said of its device has been heeded.
    is_heeded: bool,
    /// Whether the next worker computes otherwise than the one that `Held::ready` is of.
    is_other: bool,
}

/// A worker that ends with its last session.
struct Going {
    kill: Box<dyn FnOnce() + Send>,
    /// Over when it is gone.
    gone: JoinHandle<()>,
}

/// A worker that was to be started where one had died.
pub(crate) struct Restarted {
    /// Of which model.
    place: usize,
    /// The process number of the one that died.
    pid: u32,
    /// It, what it computes on and how fast, and what carries its outputs; or why there is none.
    started: Result<(Worker, Ready, JoinHandle<()>), String>,
}

impl Life {
    fn begin() -> Self {
        let born = Instant::now();
        Self {
            born,
            young_deaths: 0,
            idle: Idle::new(Arc::default(), born),
            step: 0,
            pump: None,
            before: None,
            trouble: None,
            is_heeded: false,
            is_other: false,
        }
    }
}

impl Held {
    /// Nothing yet of the model with this id, where that is known, and name.
    pub(crate) fn absent(id: Option<ModelId>, name: &str, about: ModelInfo, spec: worker::Spec) -> Self {
        let id = id.unwrap_or_default();
        Self {
            id,
            about,
            auditor: None,
            at_home: Ema::new(SPEED_TAU_MS),
            at_opening: Ema::new(SPEED_TAU_MS),
            at_prefill: Correction::default(),
            came_true: Default::default(),
            fetching: None,
            worker: watch::Sender::new(Worker::absent(NO_WEIGHTS)),
            life: Life::begin(),
            loaded: Vec::new(),
            served: Vec::new(),
            file_bytes: 0,
            ready: Ready::absent(id, name.to_owned(), spec.context),
            spec,
        }
    }

    /// What the machine's disk has of it, or the binary.
    pub(crate) async fn load(
        spec: worker::Spec,
        serve: Vec<LayerRange>,
        num_layers: u32,
        file_bytes: u64,
        about: ModelInfo,
    ) -> Result<(Self, mpsc::Receiver<worker::Output>)> {
        // Of layers whose experts are on several nodes, only what was named is in memory.
        let layers = if spec.experts.is_some() { serve.clone() } else { with_ends(&serve, num_layers) };
        let mut spec = worker::Spec { layers, ..spec };
        let spawned = worker::spawn_fastest(&mut spec).await;
        let ((worker, ready, outputs), trouble) = spawned.map_err(|e| Error::Failed(e.to_string()))?;
        // Another worker on this machine computes the same bits.
        spec.class = Some(ready.class);
        let held = Self {
            id: ready.model,
            about,
            auditor: Auditor::new(&spec, ready.model, ready.class),
            at_home: Ema::new(SPEED_TAU_MS),
            at_opening: Ema::new(SPEED_TAU_MS),
            at_prefill: Correction::default(),
            came_true: Default::default(),
            fetching: None,
            worker: watch::Sender::new(worker),
            life: Life { trouble, ..Life::begin() },
            loaded: ready.layers.clone(),
            served: serve,
            file_bytes,
            ready,
            spec,
        };
        Ok((held, outputs))
    }

    /// Whether its layers can be computed now: not where some of their experts are elsewhere and cannot be asked.
    pub(crate) fn computes(&self) -> bool {
        self.spec.experts.as_ref().is_none_or(|share| share.times().is_some())
    }

    /// What a step takes at home besides layers, ms: as measured, before that what the head was measured to take.
    pub(crate) fn home_ms(&self) -> f64 {
        self.at_home.value().unwrap_or(self.ready.times.head_ms)
    }

    /// The model as a prompt needs it; `shares` is what nodes contributed to it.
    pub(crate) fn local(&self, shares: BTreeMap<NodeId, f64>) -> Local {
        let mut ready = self.ready.clone();
        if !self.computes() {
            // Nothing begins or ends here.
            ready.layers.clear();
        }
        Local {
            name: self.about.name.clone(),
            auditor: self.auditor.clone(),
            shares,
            worker: self.source(),
            ready,
            drafter: None,
        }
    }

    /// Where its worker is to be had.
    pub(crate) fn source(&self) -> WorkerSource {
        self.life.idle.uses().source(self.worker.subscribe())
    }

    /// Whether its worker was ended for want of work.
    pub(crate) fn is_unloaded(&self) -> bool {
        self.life.idle.is_unloaded()
    }

    /// Weights in memory, bytes.
    pub(crate) fn resident_bytes(&self) -> u64 {
        if self.is_unloaded() { 0 } else { self.ready.memory.resident_bytes }
    }

    /// What loading a layer takes where it is unloaded, ms.
    pub(crate) fn load_ms(&self) -> f64 {
        let layers: u32 = self.loaded.iter().map(|range| range.len()).sum();
        self.ready.load_ms / f64::from(layers.max(1))
    }

    /// What is wrong with the device that this was to be computed on, for people.
    pub(crate) fn trouble(&self) -> Option<&str> {
        self.life.trouble.as_deref()
    }

    /// Notes in what way the worker died, and what the next one does otherwise.
    fn heed(&mut self, is_young: bool) {
        let life = &mut self.life;
        life.young_deaths = if is_young { (life.young_deaths + 1).min(MOST_YOUNG_DEATHS) } else { 0 };
        let told = self.worker.borrow().trouble().filter(|_| !life.is_heeded);
        life.is_heeded = true;
        let ended = || Trouble::Lost(format!("its worker ended {MOST_ON_GPU} times soon after its start"));
        let is_too_often = self.spec.is_on_gpu() && life.young_deaths >= MOST_ON_GPU;
        if let Some(trouble) = told.or_else(|| is_too_often.then(ended)) {
            self.learn(trouble);
        }
    }

    /// What the next worker does otherwise than the one that ended with `trouble`.
    fn learn(&mut self, trouble: Trouble) {
        let (name, device) = (&self.about.name, self.spec.device);
        let told = match trouble {
            Trouble::Lost(why) => {
                tracing::warn!(model = name, %device, why, "the device failed: the processor computes from now on");
                (self.spec.device, self.spec.class) = (DeviceName::Cpu, None);
                self.life.young_deaths = 0;
                worker::failed(device, &why)
            }
            Trouble::Inexact(why) => {
                tracing::warn!(model = name, %device, why, "the device computes other bits: it is of class approx");
                self.spec.class = Some(Class::Approx);
                format!("{device} is of class approx ({why})")
            }
        };
        self.life.trouble = Some(told);
        self.life.is_other = true;
    }

    /// Whether a worker on `device`, which found itself of `class`, is one that this model has a use for: not where another worker
    /// found otherwise while it was loaded.
    pub(crate) fn takes(&self, device: DeviceName, class: Class) -> bool {
        let is_known = self.spec.class.is_none_or(|known| known == class);
        self.life.trouble.is_none() || device == self.spec.device && is_known
    }

    /// What became of the device that a worker was to be started on, for people.
    pub(crate) fn note(&mut self, trouble: Option<String>) {
        if trouble.is_some() {
            self.life.trouble = trouble;
        }
    }

    /// Another worker of the same model has started.
    pub(crate) fn replace(&mut self, worker: Worker) {
        self.life.born = Instant::now();
        self.life.idle.loaded(self.life.born);
        self.life.is_heeded = false;
        self.worker.send_replace(worker);
    }

    /// A worker with the layers of this step of the model's way here has come; none of an earlier step is wanted then.
    pub(crate) fn is_step_due(&self, step: u64) -> bool {
        step > self.life.step
    }

    /// As [`Held::replace`], at a step of the model's way here. The worker before it ends with its last session; `done` is
    /// dropped then.
    pub(crate) fn grow(
        &mut self,
        worker: Worker,
        pump: JoinHandle<()>,
        (step, done): (u64, Arc<Option<Beside>>),
    ) {
        let kill = Box::new(self.worker.borrow().killer());
        self.replace(worker);
        self.life.step = step;
        let before = self.life.pump.replace(pump);
        let gone = tokio::spawn(async move {
            if let Some(before) = before {
                let _ = before.await;
            }
            drop(done);
        });
        self.life.before = Some(Going { kill, gone });
    }

    /// The model's memory is needed for its last step, `step`: nothing of it is served from now on, and its workers end with
    /// their sessions, or after [`PATIENCE`]. The future is over when they have, and the step before is done as `before` says.
    pub(crate) fn make_way(
        &mut self,
        step: u64,
        before: Weak<Option<Beside>>,
    ) -> impl Future<Output = ()> + Send + use<> {
        let kill = Box::new(self.worker.send_replace(Worker::absent(NO_WEIGHTS)).killer());
        let latest = self.life.pump.take().map(|gone| Going { kill, gone });
        let going: Vec<Going> = self.life.before.take().into_iter().chain(latest).collect();
        // What comes late of an earlier step is not wanted.
        self.life.step = step - 1;
        (self.loaded, self.served) = (Vec::new(), Vec::new());
        self.ready = Ready::absent(self.id, self.ready.name.clone(), self.spec.context);
        async move {
            let until = tokio::time::Instant::now() + PATIENCE;
            for Going { kill, mut gone } in going {
                if timeout_at(until, &mut gone).await.is_err() {
                    kill();
                    let _ = gone.await;
                }
            }
            while before.strong_count() > 0 {
                sleep(LOOK_AGAIN).await;
            }
        }
    }
}

/// A model that this node has a worker for, as a prompt needs it.
#[derive(Clone)]
pub(crate) struct Local {
    /// As people call it.
    pub(crate) name: String,
    pub(crate) auditor: Option<Auditor>,
    pub(crate) shares: BTreeMap<NodeId, f64>,
    pub(crate) worker: WorkerSource,
    pub(crate) ready: Ready,
    /// The node's draft model, which drafts for it if they speak the same tokens.
    pub(crate) drafter: Option<Drafter>,
}

impl Local {
    /// Whether `asked` means this model.
    pub(crate) fn is_meant(&self, asked: &str) -> bool {
        is_called(asked, &self.name, &self.ready.name, self.ready.model)
    }
}

/// Carries the worker's outputs to their sessions, until it dies.
async fn pump(
    mut outputs: mpsc::Receiver<worker::Output>,
    pid: u32,
    table: SessionTable,
    deaths: mpsc::Sender<u32>,
) {
    while let Some(output) = outputs.recv().await {
        table.deliver(output).await;
    }
    let _ = deaths.send(pid).await;
}

/// All models of this node.
pub(crate) struct Models {
    /// The one it was started with.
    pub(crate) first: Held,
    /// Those beside it.
    pub(crate) beside: Vec<Held>,
    /// What drafts for their prompts, if a model does.
    pub(crate) drafter: Option<Drafter>,
    table: SessionTable,
    /// Workers that died, by process number.
    deaths: mpsc::Sender<u32>,
    /// Workers that were started in their place.
    restarts: mpsc::Sender<Restarted>,
}

impl Models {
    /// These; what their workers say goes to the sessions in `table`, their ends to `deaths`. `wanted` hears
    /// when something needs a worker that is not there.
    pub(crate) fn new(
        first: Held,
        beside: Vec<Held>,
        table: SessionTable,
        (deaths, restarts): (mpsc::Sender<u32>, mpsc::Sender<Restarted>),
        wanted: &Arc<Notify>,
    ) -> Self {
        let mut models = Self { first, beside, drafter: None, table, deaths, restarts };
        for held in models.all_mut() {
            held.life.idle = Idle::new(wanted.clone(), held.life.born);
        }
        models
    }

    /// All models, the first one first.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Held> {
        std::iter::once(&self.first).chain(&self.beside)
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut Held> {
        std::iter::once(&mut self.first).chain(&mut self.beside)
    }

    /// The model with this id.
    pub(crate) fn get(&self, id: ModelId) -> Option<&Held> {
        self.all().find(|held| held.id == id)
    }

    /// What the layers of the model with this id cost, where that is known.
    pub(crate) fn costs(&self, id: ModelId) -> Option<LayerCosts> {
        self.get(id)?.ready.costs.clone()
    }

    /// The model with this id.
    pub(crate) fn get_mut(&mut self, id: ModelId) -> Option<&mut Held> {
        self.all_mut().find(|held| held.id == id)
    }

    /// The model at a place: 0 is the first.
    pub(crate) fn at(&self, place: usize) -> Option<&Held> {
        self.all().nth(place)
    }

    /// As [`Models::at`].
    pub(crate) fn place_mut(&mut self, place: usize) -> Option<&mut Held> {
        match place.checked_sub(1) {
            None => Some(&mut self.first),
            Some(beside) => self.beside.get_mut(beside),
        }
    }

    /// The first model that is in memory; the first of all when none is.
    pub(crate) fn leading(&self) -> &Held {
        self.all().find(|held| !held.loaded.is_empty()).unwrap_or(&self.first)
    }

    /// A worker died: its sessions heard of it from their jobs, and another worker starts. A worker that keeps dying is
    /// started ever more rarely.
    pub(crate) fn restart_worker(&mut self, pid: u32) {
        let Some(place) = self.all().position(|held| held.worker.borrow().pid() == pid) else { return };
        let Some(held) = self.place_mut(place) else { return };
        let is_young = held.life.born.elapsed() < GROWN_UP;
        held.heed(is_young);
        tracing::warn!(model = held.about.name, "the worker died; starting another");
        self.start_another(place, pid);
    }

    /// Ends the workers that nothing has needed for `after`. Whether there was one, which others should hear of.
    pub(crate) fn unload_idle(&mut self, now: Instant, after: Duration) -> bool {
        let mut any = false;
        for held in self.all_mut() {
            let is_there = held.worker.borrow().is_alive();
            let kept = !is_there || held.fetching.is_some() || held.spec.experts.is_some();
            if held.life.idle.is_over(now, after, kept) {
                tracing::info!(model = held.about.name, "unloaded: nothing has needed it");
                held.worker.send_replace(Worker::absent("its model is unloaded")).kill();
                any = true;
            }
        }
        any
    }

    /// Starts workers of unloaded models that something needs.
    pub(crate) fn load_wanted(&mut self) {
        for place in 0..=self.beside.len() {
            if let Some(held) = self.place_mut(place)
                && held.life.idle.begins_again()
            {
                tracing::info!(model = held.about.name, "loading again: something needs it");
                let pid = held.worker.borrow().pid();
                self.start_another(place, pid);
            }
        }
    }

    /// Starts a worker in the place of number `pid`, after a rest if many died young.
    fn start_another(&mut self, place: usize, pid: u32) {
        let (deaths, restarts, table) = (self.deaths.clone(), self.restarts.clone(), self.table.clone());
        let Some(held) = self.place_mut(place) else { return };
        let pause = Duration::from_millis(match held.life.young_deaths {
            0 | 1 => 0,
            n => RESTART_MS << (n - 2),
        });
        let (spec, is_other) = (held.spec.clone(), held.life.is_other);
        tokio::spawn(async move {
            sleep(pause).await;
            let spawned =
                if is_other { worker::spawn_rehearsed(spec).await } else { worker::spawn(spec).await };
            let started = spawned.map(|(worker, ready, outputs)| {
                let pump = tokio::spawn(pump(outputs, worker.pid(), table, deaths));
                (worker, ready, pump)
            });
            let started = started.map_err(|fault| fault.to_string());
            let _ = restarts.send(Restarted { place, pid, started }).await;
        });
    }

    /// A worker has started in the place of one that died, unless another took that place meanwhile, or could not be started.
    /// Whether others should hear of it: it is another kind of worker, or the model was unloaded.
    pub(crate) fn restarted(&mut self, restarted: Restarted) -> bool {
        let Restarted { place, pid, started } = restarted;
        let held = self.place_mut(place).filter(|held| held.worker.borrow().pid() == pid);
        let (held, (worker, ready, pump)) = match (held, started) {
            (Some(held), Ok(started)) => (held, started),
            (Some(held), Err(why)) => {
                tracing::error!(why, "no worker");
                if held.spec.is_on_gpu() {
                    held.learn(Trouble::Lost(why));
                } else {
                    held.heed(true);
                }
                self.start_another(place, pid);
                return false;
            }
            (None, Ok((worker, ..))) => {
                worker.kill();
                return false;
            }
            (None, Err(_)) => return false,
        };
        let was_unloaded = held.is_unloaded();
        held.replace(worker);
        held.life.pump = Some(pump);
        held.ready.load_ms = ready.load_ms;
        if !std::mem::take(&mut held.life.is_other) {
            return was_unloaded;
        }
        held.spec.class = Some(ready.class);
        held.auditor = Auditor::new(&held.spec, held.id, ready.class);
        held.ready = ready;
        true
    }

    /// Carries the outputs of another worker to their sessions.
    pub(crate) fn listen_to(&self, outputs: mpsc::Receiver<worker::Output>, pid: u32) -> JoinHandle<()> {
        tokio::spawn(pump(outputs, pid, self.table.clone(), self.deaths.clone()))
    }
}

/// Whether `asked` means the model that people call `name`, whose file calls itself `title`.
pub(crate) fn is_called(asked: &str, name: &str, title: &str, id: ModelId) -> bool {
    asked == name
        || asked == title
        || local::model_name(asked) == name
        || crate::content::parse_id(asked) == Some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_goes_by_name_file_and_id() {
        let id = ModelId::numbered(7);
        for asked in ["tiny", "tiny.gguf", "/models/tiny.gguf", "Tiny Model 1B", &crate::content::hex(id)] {
            assert!(is_called(asked, "tiny", "Tiny Model 1B", id), "{asked}");
        }
        assert!(!is_called("tin", "tiny", "Tiny Model 1B", id));
        assert!(!is_called(&crate::content::hex(ModelId::numbered(8)), "tiny", "Tiny Model 1B", id));
    }
}
