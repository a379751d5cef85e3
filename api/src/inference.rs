//! What the HTTP side asks of whatever answers: one trait, requests in, events out.
//!
//! Nothing here knows of a swarm's protocols or of an engine; nothing here knows of HTTP. The dialects (OpenAI, Anthropic,
//! Ollama) all become a [`GenerateRequest`], and every answer is a stream of [`Event`]s.
//!
//! Cancelling: dropping the [`EventStream`] ends the generation within one step. Backpressure: an implementation must
//! bound what it buffers for a reader that does not read, and pause that session when the bound is reached.

use std::sync::Arc;

use futures::{future::BoxFuture, stream::BoxStream};
use serde::{Deserialize, Serialize};

use crate::swarm::{Contribution, ContributionChange, SwarmEvent, SwarmSnapshot};

mod events;
mod failure;
pub mod ranges;
mod records;
mod request;

pub use crate::choice::{Draft, Guard, Mode, SessionChoice, Shadow, Verify, Wire, WireChoice};
pub use events::{
    Done, Drafts, Event, Finish, Plan, PromptToken, Report, TokenLogprob, TokenLogprobs, Usage,
};
pub use failure::Failure;
pub use records::SwarmRecords;
pub use request::{CallForm, EmbedRequest, Format, GenerateRequest, Prompt, RerankRequest, Sampling};

/// The events of one answer. Ends after [`Event::Done`] or [`Event::Failed`]; dropping it cancels.
pub type EventStream = BoxStream<'static, Event>;

/// Whatever can answer prompts.
pub trait Inference: Send + Sync + 'static {
    /// The models that can be asked for now, the default one first.
    fn models(&self) -> Vec<ModelInfo>;

    /// Whether prompts for `model`, the default one for `None`, can be answered; the failure says why not and when to try again.
    fn ready(&self, model: Option<&str>) -> Result<(), Failure>;

    /// Starts an answer. Resolves once the request is understood, admitted and routed, before anything is computed.
    ///
    /// # Errors
    /// When the request is wrong, or cannot be answered now.
    fn generate(&self, request: GenerateRequest) -> BoxFuture<'static, Result<Generation, Failure>>;

    /// How many tokens the prompt of `request` has, for which nothing is computed and nothing leaves this node.
    ///
    /// # Errors
    /// As for [`Inference::generate`].
    fn count(&self, request: GenerateRequest) -> BoxFuture<'static, Result<usize, Failure>>;

    /// Mean-pooled hidden states of each text, for models that have a meaning for them.
    ///
    /// # Errors
    /// As for [`Inference::generate`].
    fn embed(&self, request: EmbedRequest) -> BoxFuture<'static, Result<Embeddings, Failure>>;

    /// How well each document answers the query, for models that rank texts; refused by whatever has none.
    ///
    /// # Errors
    /// As for [`Inference::generate`].
    fn rerank(&self, _: RerankRequest) -> BoxFuture<'static, Result<Ranking, Failure>> {
        let why = "no model here ranks texts; `shoal serve --via local` runs one that does";
        Box::pin(std::future::ready(Err(Failure::invalid("model", why))))
    }

    /// What this node believes of the swarm now.
    fn swarm(&self) -> SwarmSnapshot;

    /// Changes from now on; a reader that falls behind misses some and gets [`SwarmEvent::Snapshot`] instead.
    fn watch(&self) -> BoxStream<'static, SwarmEvent>;

    /// Keeps the owner's word on whether prompts in `mode` may go to machines of people he did not name, or takes it back.
    ///
    /// # Errors
    /// When there is nothing to agree to here, or it cannot be kept.
    fn agree(&self, mode: Mode, agreed: bool) -> Result<(), Failure>;

    /// Changes what this node gives to others.
    ///
    /// # Errors
    /// When the change is impossible here.
    fn contribute(&self, change: ContributionChange) -> Result<Contribution, Failure>;

    /// Who keeps records of the swarm for the owner; `None` where there is no swarm.
    fn records(&self) -> Option<Arc<dyn SwarmRecords>> {
        None
    }

    /// Counters for `/metrics`. Names and label values come from fixed sets, never from users or peers.
    fn metrics(&self) -> Vec<Metric>;
}

/// An answer that has begun.
pub struct Generation {
    /// What was decided before the first token.
    pub plan: Plan,
    /// What happens from here on.
    pub events: EventStream,
}

/// A model that can be asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ModelInfo {
    /// Its name, `[A-Za-z0-9._:-]`, at most 96 characters.
    pub name: String,
    /// BLAKE3 of its file, hex, where known.
    pub hash: Option<String>,
    /// Architecture, such as `llama`.
    pub architecture: String,
    /// Weight format, such as `q4_0`.
    pub format: String,
    /// Parameters.
    pub parameters: u64,
    /// Bytes of its file.
    pub file_bytes: u64,
    /// Positions a session may hold.
    pub context: usize,
    /// Layers.
    pub num_layers: usize,
    /// Width of the hidden state.
    pub hidden: usize,
    /// Its chat template, where it has one.
    pub template: Option<String>,
    /// Seconds since 1970 at which it came to this node.
    pub created_s: u64,
    /// Modes in which it can be asked now.
    pub modes: Vec<Mode>,
    /// Whether its template takes tools.
    pub tools: bool,
    /// Whether its hidden states make embeddings.
    pub embeddings: bool,
    /// Whether all its layers are on this node.
    pub local: bool,
}

/// One vector per text.
#[derive(Clone, Debug)]
pub struct Embeddings {
    /// The model that answered.
    pub model: String,
    /// `[inputs][hidden]`, of Euclidean length 1.
    pub vectors: Vec<Vec<f32>>,
    /// Tokens of all inputs.
    pub prompt_tokens: usize,
}

/// A score per document.
#[derive(Clone, Debug)]
pub struct Ranking {
    /// The model that answered.
    pub model: String,
    /// In the order of the documents, between 0 and 1.
    pub scores: Vec<f32>,
    /// Tokens of the query with each document.
    pub prompt_tokens: usize,
}

/// A number for `/metrics`.
#[derive(Clone, Debug)]
pub struct Metric {
    /// Name after the prefix `shoal_`, with the unit last.
    pub name: &'static str,
    /// What it counts.
    pub help: &'static str,
    /// Whether it only grows.
    pub counter: bool,
    /// Label pairs of fixed sets and the value.
    pub values: Vec<(Vec<(&'static str, &'static str)>, f64)>,
}
