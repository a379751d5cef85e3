//! Jobs into passes.
//!
//! Jobs that wait together for the same layers with the same rounding become one pass: the weights are read from memory
//! once for all of them, and every session gets the bits it would get alone. A session's own jobs keep their order.

use std::{collections::VecDeque, ops::Range, time::Instant};

use p2p::codec::{self, Wire};
use shard::engine::{Capacity, Input, Item, Output, Workspace};

use super::{
    ipc::{self, Ask, Body, Output as Told, Run, Tell, Want},
    load::Loaded,
    session::{Admission, Held, Key, MAX_ROWS, Sessions},
};
use crate::{Error, Result};

/// Jobs of one pass. Each that samples takes a row of logits: half a megabyte for a large vocabulary.
pub(super) const MAX_ITEMS: usize = 16;

/// A frame from the daemon.
pub(super) type Asked = (Ask, Vec<u8>);

/// The computing part of a worker.
pub(super) struct Engine<'m> {
    pub(super) model: &'m Loaded,
    pub(super) sessions: Sessions<'m>,
    workspaces: Vec<Workspace>,
    /// Incoming rows of a pass.
    rows: Vec<f32>,
    /// Incoming tokens of a pass.
    tokens: Vec<u32>,
    logits: Vec<f32>,
}

/// A job that goes into a pass.
struct Going {
    run: Run,
    key: Key,
    held: Held,
    input: Staged,
}

/// Where the rows of a job lie.
enum Staged {
    Tokens(Range<usize>),
    Rows(Range<usize>),
}

impl<'m> Engine<'m> {
    /// An engine over `model`, with caches of at most `kv_bytes`.
    pub(super) fn new(model: &'m Loaded, kv_bytes: u64) -> Result<Self> {
        let rows = MAX_ROWS as usize;
        let capacity = Capacity { rows, items: MAX_ITEMS, logit_rows: MAX_ITEMS };
        let workspaces =
            model.shards.iter().map(|shard| Workspace::new(shard, capacity)).collect::<Result<_, _>>()?;
        let sessions = Sessions::new(model, kv_bytes);
        let (rows, tokens) = (Vec::new(), Vec::new());
        Ok(Self { model, sessions, workspaces, rows, tokens, logits: Vec::new() })
    }

    /// Takes the jobs of the next pass out of `waiting`, whose first must be a job: those for the same lane, of
    /// other sessions, up to the next frame that is no job.
    pub(super) fn fold(&self, waiting: &mut VecDeque<Asked>) -> Vec<(Run, Vec<u8>)> {
        let mut jobs: Vec<(Run, Vec<u8>)> = Vec::new();
        let mut passed = Vec::new();
        let mut lane = None;
        let (mut at, mut rows) = (0, 0u32);
        while let Some((Ask::Run(run), _)) = waiting.get(at) {
            let here = self.sessions.lane(run);
            let first = jobs.is_empty();
            if first {
                lane = here;
            }
            let fits = lane.is_some() && here == lane && rows.saturating_add(run.rows) <= MAX_ROWS;
            let (session, more) = (run.session, run.rows);
            if first || (fits && jobs.len() < MAX_ITEMS && !passed.contains(&session)) {
                if let Some((Ask::Run(run), payload)) = waiting.remove(at) {
                    jobs.push((run, payload));
                }
                rows = rows.saturating_add(more);
            } else {
                at += 1;
            }
            passed.push(session);
            if lane.is_none() {
                break;
            }
        }
        jobs
    }

    /// Computes jobs of one lane and tells what came of each, in their order.
    pub(super) fn run(&mut self, jobs: Vec<(Run, Vec<u8>)>, tell: &mut dyn FnMut(Tell, Vec<u8>)) {
        let now = Instant::now();
        self.rows.clear();
        self.tokens.clear();
        let mut going = Vec::with_capacity(jobs.len());
        for (run, payload) in jobs {
            let body = match self.sessions.admit(&run, now) {
                Admission::Drop => {
                    tell(Tell::Dropped { job: run.job }, Vec::new());
                    continue;
                }
                Admission::NeedReplay(have) => Body::NeedReplay { have },
                Admission::Fail(why) => Body::Failed(why),
                Admission::Go => {
                    let key = (ipc::session(run.session), run.layer);
                    let Some(held) = self.sessions.take(key) else { continue };
                    match self.stage(&run, &held, &payload) {
                        Ok(input) => {
                            going.push(Going { run, key, held, input });
                            continue;
                        }
                        Err(error) => {
                            self.sessions.give(key, held);
                            Body::Failed(error.to_string())
                        }
                    }
                }
            };
            let layers =
                self.sessions.lane(&run).map_or((run.layer, run.layer + 1), |lane| ipc::pair(lane.0));
            tell(told(&run, layers, body, (0, 0)), Vec::new());
        }
        self.pass(going, tell);
    }

    /// Puts the rows of a job where the pass finds them.
    fn stage(&mut self, run: &Run, held: &Held, payload: &[u8]) -> Result<Staged> {
        let last = held.layers.end() == self.model.num_layers();
        match run.want {
            Want::Activations if last => {
                return Err(Error::usage("activations wanted after the head: ask for a sample"));
            }
            Want::Sample if !last => return Err(Error::usage("a token wanted before the last layer")),
            Want::Sample if self.sessions.conductor(ipc::session(run.session)).is_none() => {
                return Err(Error::usage("a token wanted of a session that does not conduct here"));
            }
            _ => {}
        }
        let rows = run.rows as usize;
        let Some(wire) = run.wire else {
            let ids = ipc::ids_from_bytes(payload).filter(|ids| ids.len() == rows);
            let ids = ids.ok_or_else(|| Error::usage(format!("{rows} token ids announced, others given")))?;
            let vocab = self.model.blueprint().vocab;
            if held.layers.start() != 0 || ids.iter().any(|&id| id as usize >= vocab) {
                return Err(Error::usage("token ids are for layer 0 and below the vocabulary's end"));
            }
            let start = self.tokens.len();
            self.tokens.extend(ids);
            return Ok(Staged::Tokens(start..self.tokens.len()));
        };
        let wire = Wire::from_u8(wire).ok_or_else(|| Error::usage("activations of no known form"))?;
        if held.layers.start() == 0 {
            return Err(Error::usage("activations for layer 0: it takes token ids"));
        }
        if wire == Wire::Q8 && !held.rounding.contains(&held.layers.start()) {
            return Err(Error::usage("q8 at a boundary where the session does not round: send raw"));
        }
        let start = self.rows.len();
        codec::decode(wire, self.model.blueprint().hidden, rows, payload, &mut self.rows)
            .map_err(|error| Error::usage(error.to_string()))?;
        Ok(Staged::Rows(start..self.rows.len()))
    }

    /// One pass over all, or, if that fails, one each: a bad job must not take the others with it.
    fn pass(&mut self, mut going: Vec<Going>, tell: &mut dyn FnMut(Tell, Vec<u8>)) {
        if going.is_empty() {
            return;
        }
        let started = Instant::now();
        match self.compute(&mut going) {
            Ok(()) => {
                let spent = (started.elapsed().as_micros() as u64, going.len() as u32);
                for (index, job) in going.into_iter().enumerate() {
                    let (body, payload) = self.result(index, &job);
                    tell(told(&job.run, ipc::pair(job.held.layers), body, spent), payload);
                    self.sessions.give(job.key, job.held);
                }
            }
            Err(error) if going.len() == 1 => {
                let spent = (started.elapsed().as_micros() as u64, 1);
                for job in going {
                    let body = Body::Failed(error.to_string());
                    tell(told(&job.run, ipc::pair(job.held.layers), body, spent), Vec::new());
                    self.sessions.give(job.key, job.held);
                }
            }
            Err(_) => going.into_iter().for_each(|job| self.pass(vec![job], tell)),
        }
    }

    fn compute(&mut self, going: &mut [Going]) -> Result<()> {
        let (shard, layers) = (going[0].held.shard, going[0].held.layers);
        let rounding = going[0].held.rounding.clone();
        let mut items: Vec<Item<'_>> = going
            .iter_mut()
            .map(|job| Item {
                kv: &mut job.held.kv,
                input: match &job.input {
                    Staged::Tokens(at) => Input::Tokens(&self.tokens[at.clone()]),
                    Staged::Rows(at) => Input::Activations(&self.rows[at.clone()]),
                },
                output: match job.run.want {
                    Want::Nothing => Output::None,
                    Want::Activations => Output::All,
                    Want::Sample => Output::Last,
                },
            })
            .collect();
        Ok(self.model.shards[shard].run(&mut self.workspaces[shard], layers, &rounding, &mut items)?)
    }

    /// What the last pass gave for its job `index`.
    fn result(&mut self, index: usize, job: &Going) -> (Body, Vec<u8>) {
        let workspace = &self.workspaces[job.held.shard];
        match job.run.want {
            Want::Nothing => (Body::Nothing, Vec::new()),
            Want::Activations => {
                let mut payload = Vec::new();
                let (wire, width) = (job.held.wire, self.model.blueprint().hidden);
                match codec::encode(wire, width, workspace.activations(index), &mut payload) {
                    Ok(()) => (Body::Activations(wire as u8), payload),
                    Err(error) => (Body::Failed(error.to_string()), Vec::new()),
                }
            }
            Want::Sample => {
                self.logits.clear();
                self.logits.extend_from_slice(workspace.logits(index));
                let position = (job.run.from + job.run.rows) as usize;
                let chosen = self
                    .sessions
                    .conductor(ipc::session(job.run.session))
                    .ok_or_else(|| Error::usage("the session does not conduct here"))
                    .and_then(|conductor| conductor.choose(&mut self.logits, position));
                let body = chosen.map_or_else(|error| Body::Failed(error.to_string()), Body::Sampled);
                (body, Vec::new())
            }
        }
    }
}

fn told(run: &Run, layers: (u32, u32), body: Body, (compute_us, batched): (u64, u32)) -> Tell {
    Tell::Output(Told {
        job: run.job,
        session: run.session,
        epoch: run.epoch,
        layers,
        from: run.from,
        rows: run.rows,
        body,
        compute_us,
        batched,
    })
}
