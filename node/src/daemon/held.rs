//! The model this node has a worker for: how it is loaded, heard, and born anew when it dies.

use std::time::{Duration, Instant};

use scheduler::{LayerRange, ModelId};
use tokio::sync::{mpsc, watch};

use super::{Daemon, acquire::Absent, hold::with_ends};
use crate::{
    Error, Result,
    table::Table,
    worker::{self, Ready, Worker},
};

/// A worker that lived this long did not die of its start.
const GROWN_UP: Duration = Duration::from_secs(60);
/// Pause before the third worker in a row that died young; doubles from there.
const RESTART_MS: u64 = 250;
/// Where the doubling ends: 64 s.
const MOST_YOUNG_DEATHS: u32 = 10;

/// A model this node has a worker for.
pub(super) struct Held {
    pub(super) id: ModelId,
    pub(super) worker: watch::Sender<Worker>,
    pub(super) spec: worker::Spec,
    born: Instant,
    /// Workers in a row that died young.
    young_deaths: u32,
    pub(super) ready: Ready,
    pub(super) loaded: Vec<LayerRange>,
    pub(super) served: Vec<LayerRange>,
    pub(super) file_bytes: u64,
}

impl Held {
    /// Nothing yet.
    pub(super) fn absent(absent: &Absent, spec: worker::Spec) -> Self {
        let id = absent.id.unwrap_or_default();
        Self {
            id,
            worker: watch::Sender::new(Worker::absent()),
            born: Instant::now(),
            young_deaths: 0,
            loaded: Vec::new(),
            served: Vec::new(),
            file_bytes: 0,
            ready: Ready::absent(id, absent.name.clone(), spec.context),
            spec,
        }
    }

    /// What the machine's disk has of it, or the binary.
    pub(super) async fn load(
        spec: worker::Spec,
        serve: Vec<LayerRange>,
        num_layers: u32,
        file_bytes: u64,
    ) -> Result<(Self, mpsc::Receiver<worker::Output>)> {
        let layers = with_ends(&serve, num_layers);
        let mut spec = worker::Spec { layers, ..spec };
        let (worker, ready, outputs) =
            worker::spawn_rehearsed(spec.clone()).await.map_err(|e| Error::Failed(e.to_string()))?;
        // Another worker on this machine computes the same bits.
        spec.class = Some(ready.class);
        let held = Self {
            id: ready.model,
            worker: watch::Sender::new(worker),
            born: Instant::now(),
            young_deaths: 0,
            loaded: ready.layers.clone(),
            served: serve,
            file_bytes,
            ready,
            spec,
        };
        Ok((held, outputs))
    }

    /// Another worker of the same model has started.
    pub(super) fn replace(&mut self, worker: Worker) {
        self.born = Instant::now();
        self.worker.send_replace(worker);
    }
}

/// Carries the worker's outputs to their sessions, until it dies.
pub(super) async fn pump(
    mut outputs: mpsc::Receiver<worker::Output>,
    pid: u32,
    table: Table,
    deaths: mpsc::Sender<u32>,
) {
    while let Some(output) = outputs.recv().await {
        table.deliver(output).await;
    }
    let _ = deaths.send(pid).await;
}

impl Daemon {
    /// The worker died: its sessions heard of it from their jobs, others may come. A worker that keeps dying is started
    /// ever more rarely.
    pub(super) fn bear(&mut self, pid: u32, born: mpsc::Sender<Worker>) {
        if self.leaving.is_some() || pid != self.held.worker.borrow().pid() {
            return;
        }
        let deaths = self.deaths.clone();
        let young = self.held.born.elapsed() < GROWN_UP;
        self.held.young_deaths = if young { (self.held.young_deaths + 1).min(MOST_YOUNG_DEATHS) } else { 0 };
        let pause = Duration::from_millis(match self.held.young_deaths {
            0 | 1 => 0,
            n => RESTART_MS << (n - 2),
        });
        tracing::warn!(?pause, "the worker died; starting another");
        let (spec, table) = (self.held.spec.clone(), self.table.clone());
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            match worker::spawn(spec).await {
                Ok((worker, _, outputs)) => {
                    tokio::spawn(pump(outputs, worker.pid(), table, deaths));
                    let _ = born.send(worker).await;
                }
                Err(error) => {
                    tracing::error!(%error, "no worker");
                    let _ = deaths.send(pid).await;
                }
            }
        });
    }

    /// Carries the outputs of another worker to their sessions.
    pub(super) fn listen_to(&self, outputs: mpsc::Receiver<worker::Output>, pid: u32) {
        tokio::spawn(pump(outputs, pid, self.table.clone(), self.deaths.clone()));
    }
}
