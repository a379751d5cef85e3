//! Prompts whose every row is wanted behind the last layer: those whose tokens are told with log-probabilities, those that
//! stand for themselves, as a vector or a score, and those that a draft head looks back at. Each is a pass of its own.

use std::time::Instant;

use shard::executor::{Capacity, Input, Item, Output, Pass};

use super::{
    batcher::{Batcher, Going, told},
    ipc::{self, Body, Tell, Want},
    recent::Staged,
    session::LOGIT_ROWS,
};
use crate::{Error, Result};

impl Batcher<'_> {
    /// Whether all rows of a job are wanted, and not only the last one.
    pub(super) fn wants_rows(&mut self, job: &Going) -> bool {
        let conductor = self.sessions.conductor(job.key.0);
        job.again == 0
            && job.held.layers.end() == self.model.num_layers()
            && conductor.is_some_and(|conductor| conductor.pools() || conductor.scores(job.run.from))
    }

    /// Computes such a job and tells what came of it.
    pub(super) fn all_rows(&mut self, mut job: Going, tell: &mut dyn FnMut(Tell, Vec<u8>)) {
        let started = Instant::now();
        let pools = self.sessions.conductor(job.key.0).is_some_and(|conductor| conductor.pools());
        let done = if pools { self.pooled(&mut job) } else { self.scored(&mut job) };
        let (body, payload) = done.unwrap_or_else(|error| (Body::Failed(error.to_string()), Vec::new()));
        let spent = (started.elapsed().as_micros() as u64, 1);
        tell(told(&job.run, ipc::pair(job.held.layers), body, spent), payload);
        self.sessions.give(job.key, job.held);
    }

    /// Has the draft head see the rows of a prompt where it looks back at them. The last one goes on to its draw; a job that has no
    /// more rows is told of.
    pub(super) fn shown(&mut self, mut job: Going, tell: &mut dyn FnMut(Tell, Vec<u8>)) -> Option<Going> {
        let draws = job.run.want == Want::Sample;
        let rows = job.run.rows - u32::from(draws);
        let conductor = self.sessions.conductor(job.key.0);
        let shows = conductor.is_some_and(|conductor| job.run.foresee > 0 && conductor.shows(job.run.from));
        let ends = job.held.layers.end() == self.model.num_layers();
        if !shows || !ends || rows == 0 || job.again > 0 || !job.run.draft.0.is_empty() {
            return Some(job);
        }
        let started = Instant::now();
        match self.show(&mut job, rows as usize) {
            Ok(()) if draws => return Some(job),
            done => {
                let body = done.map_or_else(|error| Body::Failed(error.to_string()), |()| Body::Nothing);
                let spent = (started.elapsed().as_micros() as u64, 1);
                tell(told(&job.run, ipc::pair(job.held.layers), body, spent), Vec::new());
                self.sessions.give(job.key, job.held);
            }
        }
        None
    }

    /// Takes the first `rows` rows to the norm in front of the head, and out of the job.
    fn show(&mut self, job: &mut Going, rows: usize) -> Result<()> {
        let (stage, layers, rounding) = (job.held.stage, job.held.layers, job.held.rounding.clone());
        let width = self.model.blueprint().hidden;
        let input = match &mut job.input {
            Staged::Tokens(at) => {
                let first = at.start;
                at.start += rows;
                Input::Tokens(&self.tokens[first..at.start])
            }
            Staged::Rows(at) => {
                let first = at.start;
                at.start += rows * width;
                Input::Activations(&self.rows[first..at.start])
            }
        };
        let pass = Pass { layers, rounding: &rounding, states: true, top: 0 };
        let item = Item { state: &mut job.held.state, input, output: Output::All };
        self.model.stages[stage].pass(&mut self.workspaces[stage], pass, &mut [item])?;
        if let Some(conductor) = self.sessions.conductor(job.key.0) {
            conductor.show(job.run.from as usize, self.workspaces[stage].states(0));
        }
        Ok(())
    }

    /// Takes the rows through the head. As many at a time as there is room for logits: how they are cut changes no bit.
    fn scored(&mut self, job: &mut Going) -> Result<(Body, Vec<u8>)> {
        let (stage, layers, rounding) = (job.held.stage, job.held.layers, job.held.rounding.clone());
        let (hidden, vocab) = (self.model.blueprint().hidden, self.model.blueprint().vocab);
        let rows = job.run.rows as usize;
        let missing = || Error::usage("the session does not conduct here");
        for start in (0..rows).step_by(LOGIT_ROWS) {
            let end = rows.min(start + LOGIT_ROWS);
            let input = match &job.input {
                Staged::Tokens(at) => Input::Tokens(&self.tokens[at.start + start..at.start + end]),
                Staged::Rows(at) => {
                    Input::Activations(&self.rows[at.start + start * hidden..at.start + end * hidden])
                }
            };
            let item = Item { state: &mut job.held.state, input, output: Output::All };
            self.model.stages[stage].run(&mut self.workspaces[stage], layers, &rounding, &mut [item])?;
            self.logits.clear();
            self.logits.extend_from_slice(self.workspaces[stage].logits(0));
            let conductor = self.sessions.conductor(job.key.0).ok_or_else(missing)?;
            conductor.score(job.run.from as usize + start, &self.logits, vocab)?;
        }
        if job.run.want != Want::Sample {
            return Ok((Body::Nothing, Vec::new()));
        }
        let conductor = self.sessions.conductor(job.key.0).ok_or_else(missing)?;
        let last = self.logits.len() - vocab;
        let chosen = conductor.choose_all(&mut self.logits[last..], job.run.from as usize + rows, &[])?;
        let payload = ipc::prompt_to_bytes(&conductor.prompt(&chosen))?;
        Ok((Body::Sampled(chosen), payload))
    }

    /// Takes the rows to the norm in front of the head. Nothing is drawn: the turn ends with what they are together.
    fn pooled(&mut self, job: &mut Going) -> Result<(Body, Vec<u8>)> {
        let (stage, layers, rounding) = (job.held.stage, job.held.layers, job.held.rounding.clone());
        let input = match &job.input {
            Staged::Tokens(at) => Input::Tokens(&self.tokens[at.clone()]),
            Staged::Rows(at) => Input::Activations(&self.rows[at.clone()]),
        };
        let executor = &*self.model.stages[stage];
        let (rows, items) = (job.run.rows as usize, 1);
        if rows > self.workspaces[stage].capacity().rows {
            // An encoder reads a text in one pass; most are short.
            let logit_rows = LOGIT_ROWS;
            self.workspaces[stage] = self.model.workspace(stage, Capacity { rows, items, logit_rows })?;
        }
        let pass = Pass { layers, rounding: &rounding, states: true, top: 0 };
        let item = Item { state: &mut job.held.state, input, output: Output::All };
        executor.pass(&mut self.workspaces[stage], pass, &mut [item])?;
        let missing = || Error::usage("the session does not conduct here");
        let conductor = self.sessions.conductor(job.key.0).ok_or_else(missing)?;
        conductor.pool(job.run.from as usize, self.workspaces[stage].states(0))?;
        match job.run.want {
            Want::Sample => Ok((Body::Sampled(vec![conductor.pooled(executor)?]), Vec::new())),
            Want::Nothing | Want::Activations => Ok((Body::Nothing, Vec::new())),
        }
    }
}
