//! Speaks HTTP: whatever implements [`Inference`] becomes an API that OpenAI's, Anthropic's and Ollama's clients know, and
//! a page.
//!
//! ```text
//! TCP -> server -> guard (host, origin, token) -> router -> dialect -> answer -> Inference
//!                                                   |          ^                     |
//!                                                   page       +-- sse <- pieces <---+ events
//! ```
//!
//! Read [`inference`] for what is asked of the other side, `router.rs` for every route, `guard.rs` for who may speak,
//! `answer.rs` for what all dialects share. This crate knows no swarm and no engine, and nothing but this crate knows axum.
//!
//! Embed it with [`Server`]:
//!
//! ```no_run
//! # async fn f(inference: std::sync::Arc<dyn api::Inference>) -> std::io::Result<()> {
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! let server = api::Server::new(inference, listener, api::Config::default())?;
//! println!("http://{}/#t={}", server.address(), server.ticket());
//! server.run(std::future::pending()).await;
//! # Ok(()) }
//! ```
//!
//! Limits: HTTP/1.1 without TLS (a proxy adds it); depth and counts of bodies are bounded in `body.rs`, and what all clients
//! hold together (connections, bodies, answers) at the [`doors`].
#![forbid(unsafe_code)]

pub mod agent;
mod answer;
mod anthropic;
mod body;
mod calls;
pub mod choice;
mod conversation_routes;
pub mod conversations;
mod cors;
pub mod doors;
mod endpoint;
mod error;
mod fields;
mod guard;
pub mod inference;
pub mod keys;
mod left_out;
pub mod library;
pub mod mcp;
mod metrics;
mod names;
mod ollama;
mod openai;
mod openapi;
pub mod prefill;
mod queue;
pub mod reasoning;
mod router;
mod schema;
mod schema_loose;
pub mod schema_refs;
mod server;
mod sse;
pub mod stored_responses;
pub mod swarm;
pub mod swarm_records;
mod swarm_routes;
mod timestamp;
mod tools;
mod unread;
mod web;

use std::sync::Arc;

pub use calls::is_written_as_json;
pub use inference::Inference;
pub use server::{Alias, Config, Server};

use error::{ApiError, Kind};
use inference::{Failure, ModelInfo};

/// What every handler sees.
pub(crate) struct App {
    pub inference: Arc<dyn Inference>,
    pub hosts: guard::Hosts,
    pub access: guard::Access,
    pub origins: cors::Origins,
    pub queue: queue::Queue,
    pub doors: Arc<dyn doors::Doors>,
    pub counters: Arc<metrics::Counters>,
    /// True once answers have no more time.
    pub closing: tokio::sync::watch::Sender<bool>,
    pub aliases: Vec<server::Alias>,
    pub keys: Option<Arc<dyn keys::Keys>>,
    pub conversations: Option<Arc<dyn conversations::Conversations>>,
    pub responses: Option<Arc<dyn stored_responses::StoredResponses>>,
    pub library: Option<Arc<dyn library::Library>>,
}

impl App {
    /// The models that can be asked for, each under its own name and then under those given to it.
    pub(crate) fn listed(&self) -> Vec<(String, ModelInfo)> {
        let models = self.inference.models();
        let named = |name: &str| models.iter().find(|model| model.name == name);
        let own = models.iter().map(|model| (model.name.clone(), model.clone()));
        let given = self.aliases.iter().filter(|alias| named(&alias.name).is_none());
        let given = given.filter_map(|alias| Some((alias.name.clone(), named(&alias.model)?.clone())));
        own.chain(given).collect()
    }

    /// The model of that name, the first one for `None`.
    pub(crate) fn know(&self, name: Option<&str>) -> Result<ModelInfo, ApiError> {
        let models = self.inference.models();
        let Some(name) = name else {
            self.inference.ready(None)?;
            let none = || ApiError::new(Kind::Unavailable, "no model is ready");
            return models.into_iter().next().ok_or_else(none);
        };
        // A model's own name comes before a name that was given to another one.
        let alias = self.aliases.iter().find(|alias| alias.name == name);
        let alias = alias.filter(|_| models.iter().all(|model| model.name != name));
        let name = alias.map_or(name, |alias| alias.model.as_str());
        self.inference.ready(Some(name))?;
        let found = models.into_iter().find(|model| model.name == name);
        found.ok_or_else(|| {
            if names::may_be_model(name) {
                return Failure::NoModel { name: name.to_owned() }.into();
            }
            let why = "is not the name of a model; GET /v1/models lists those that are known";
            ApiError { kind: Kind::NoModel, ..ApiError::field("model", why) }
        })
    }
}
