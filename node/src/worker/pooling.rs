//! What stands for a prompt instead of an answer to it: a vector of its hidden states behind the last norm, or a score.
//!
//! Rows come in order. A session that is opened again after a failure computes some of them again, with the same bits: what was taken is
//! not taken twice.

use shard::{
    executor::{Executor, Pooled, Pooling},
    gguf::Metadata,
    models::Blueprint,
};

use super::PoolingTask;
use crate::{Error, Result, encode::rank_prompt};

/// What a model makes of the hidden states of a text.
pub(super) struct PoolingTasks {
    /// Which of them are a text's vector; `None` where none are.
    vector: Option<Pooling>,
    /// Which of them make a score: the last one, of an encoder the first; `None` where none do.
    score: Option<Pooling>,
    /// The model's own question about a query and a document.
    pub(super) question: Option<String>,
}

impl PoolingTasks {
    /// Of a model's file.
    pub(super) fn of(metadata: &Metadata, blueprint: &Blueprint) -> Self {
        Self {
            vector: Pooling::of(metadata).ok(),
            score: (blueprint.head.rank.is_some() && Pooling::ranks(metadata)).then_some(
                match blueprint.encodes() {
                    true => Pooling::First,
                    false => Pooling::Last,
                },
            ),
            question: metadata.str(rank_prompt::KEY).map(str::to_owned),
        }
    }

    /// Which hidden states this is made of; `None` where the model does not do it.
    pub(super) fn states(&self, task: PoolingTask) -> Option<Pooling> {
        match task {
            PoolingTask::Embed => self.vector,
            PoolingTask::Score => self.score,
        }
    }
}

/// The hidden states of one prompt, as far as they are known.
pub(super) struct PromptPooling {
    task: PoolingTask,
    pooled: Pooled,
}

impl PromptPooling {
    /// Of a prompt of which no row has come, of a model that is called `name` and whose rows have `hidden` values.
    ///
    /// # Errors
    /// [`Error::Usage`] where the model does not do this.
    pub(super) fn new(
        tasks: &PoolingTasks,
        task: PoolingTask,
        (name, hidden): (&str, usize),
    ) -> Result<Self> {
        let pooling = tasks.states(task).ok_or_else(|| Error::usage(task.refusal(name)))?;
        Ok(Self { task, pooled: Pooled::new(hidden, pooling) })
    }

    /// What another one knows of the same prompt is known here.
    pub(super) fn adopt(&mut self, known: Self) {
        if known.task == self.task {
            self.pooled = known.pooled;
        }
    }

    /// Takes the rows from position `from` on, `[n][hidden]`, but for those that were taken before.
    ///
    /// # Errors
    /// [`Error::Usage`] when rows before them are missing.
    pub(super) fn take(&mut self, from: usize, rows: &[f32], hidden: usize) -> Result<()> {
        let known = self.pooled.rows();
        if from > known {
            return Err(Error::usage(format!("rows from position {from}, those from {known} are missing")));
        }
        let taken = (known - from).saturating_mul(hidden).min(rows.len());
        self.pooled.add(&rows[taken..]);
        Ok(())
    }

    /// The vector, of length 1, or the score as it is, once the `prompt` rows of a prompt have been taken.
    ///
    /// # Errors
    /// [`Error::Usage`] when rows are missing; those of the head that scores.
    pub(super) fn values(&self, executor: &dyn Executor, prompt: usize) -> Result<Vec<f32>> {
        let rows = self.pooled.rows();
        if rows != prompt {
            return Err(Error::usage(format!("{rows} rows of a prompt of {prompt}")));
        }
        match self.task {
            PoolingTask::Embed => Ok(self.pooled.unit()),
            PoolingTask::Score => Ok(vec![executor.rank(&self.pooled.sum())?]),
        }
    }
}
