//! Named keys: who else may ask than the owner of the API's token, how much, and what is written down of it.
//!
//! This crate knows no file. The server is handed a [`Keys`] that finds the holder of a secret, says whether he may ask
//! now, and hears what each answer took. Holders of keys reach answers and lists of models, nothing that changes the node.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use crate::{
    error::{ApiError, Kind},
    inference::{Embeddings, Event, Failure},
};

/// What an answer was, without a word of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The model's name.
    pub model: String,
    /// Tokens of its prompts, each counted once.
    pub prompt_tokens: usize,
    /// Tokens that were generated.
    pub tokens: usize,
    /// `done`, `failed`, or `left` where the client went away.
    pub outcome: &'static str,
    /// From the request until then.
    pub took: Duration,
}

/// The keys that an API honors beside its token.
pub trait Keys: std::fmt::Debug + Send + Sync + 'static {
    /// The name of the key that is this secret.
    fn holder(&self, secret: &str) -> Option<String>;

    /// Whether the holder may ask now.
    ///
    /// # Errors
    /// Seconds until his quota begins again.
    fn admit(&self, name: &str) -> Result<(), u32>;

    /// An answer ended; `name` is `None` for the owner.
    fn took(&self, name: Option<&str>, taken: &Taken);
}

tokio::task_local! {
    /// Who asks, while his request is handled.
    static CALLER: Option<String>;
}

/// Handles a request of `name`; `None` is the owner.
pub(crate) async fn asked_by<F: Future>(name: Option<String>, handled: F) -> F::Output {
    CALLER.scope(name, handled).await
}

/// The name of the key that was brought, in a task that handles a request; `None` for the owner.
pub(crate) fn holder() -> Option<String> {
    CALLER.try_with(Clone::clone).ok().flatten()
}

/// Whether this task handles a request of the owner.
pub(crate) fn asked_by_owner() -> bool {
    CALLER.try_with(Option::is_none).unwrap_or(true)
}

/// The paths that holders of keys may ask: answers and what they need to know for them.
pub(crate) fn open_to_holders(path: &str) -> bool {
    path.starts_with("/v1/") || path == "/openapi.json" || (path.starts_with("/api/") && path != "/api/pull")
}

/// Lets a request of a holder pass while his quota lasts.
pub(crate) fn admit(keys: Option<&Arc<dyn Keys>>) -> Result<(), ApiError> {
    let Some((keys, name)) = keys.zip(holder()) else { return Ok(()) };
    keys.admit(&name).map_err(|seconds| ApiError {
        retry_after_s: Some(seconds),
        ..ApiError::new(
            Kind::Busy,
            format!("the key \"{name}\" has used its tokens of today; they begin again in {seconds} s"),
        )
    })
}

/// What an answer takes, told when it is over.
#[derive(Debug)]
pub(crate) struct Account {
    keys: Option<Arc<dyn Keys>>,
    name: Option<String>,
    begun: Instant,
    taken: Mutex<Taken>,
}

impl Account {
    /// Of an answer of `model` that begins for whom this task serves.
    pub(crate) fn begin(keys: Option<Arc<dyn Keys>>, model: &str) -> Self {
        let name = holder();
        let took = Duration::ZERO;
        let taken = Taken { model: model.to_owned(), prompt_tokens: 0, tokens: 0, outcome: "left", took };
        Self { keys, name, begun: Instant::now(), taken: Mutex::new(taken) }
    }

    /// A prompt of so many tokens was taken: it counts whether or not its answer is heard to its end.
    pub(crate) fn prompt(&self, tokens: usize) {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).prompt_tokens += tokens;
    }

    /// It ended so, unless a part of it failed before.
    pub(crate) fn ended(&self, outcome: &'static str) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.outcome != "failed" {
            taken.outcome = outcome;
        }
    }

    /// Texts were embedded, or could not be.
    pub(crate) fn embedded(self, result: Result<Embeddings, Failure>) -> Result<Embeddings, Failure> {
        self.counted(result, |embeddings| embeddings.prompt_tokens)
    }

    /// An answer of one piece came, made of so many tokens, or could not be made.
    pub(crate) fn counted<T>(
        self,
        result: Result<T, Failure>,
        tokens: impl Fn(&T) -> usize,
    ) -> Result<T, Failure> {
        match &result {
            Ok(answer) => {
                self.prompt(tokens(answer));
                self.ended("done");
            }
            Err(_) => self.ended("failed"),
        }
        result
    }

    pub(crate) fn event(&self, event: &Event) {
        match event {
            Event::Token { .. } => self.taken.lock().unwrap_or_else(PoisonError::into_inner).tokens += 1,
            Event::Done(_) => self.ended("done"),
            Event::Failed(_) => self.ended("failed"),
            _ => {}
        }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let Some(keys) = &self.keys else { return };
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner).clone();
        taken.took = self.begun.elapsed();
        keys.took(self.name.as_deref(), &taken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_reach_answers_and_nothing_that_changes_the_node() {
        for path in ["/v1/chat/completions", "/v1/models", "/api/chat", "/api/tags", "/openapi.json"] {
            assert!(open_to_holders(path), "{path}");
        }
        for path in [
            "/swarm",
            "/swarm/contribution",
            "/swarm/consent",
            "/swarm/invite",
            "/metrics",
            "/api/pull",
            "/session",
        ] {
            assert!(!open_to_holders(path), "{path}");
        }
    }
}
