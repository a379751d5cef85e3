//! The way to the running node: inside this process, or through its socket.

use std::path::PathBuf;

use api::inference::Failure;
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, watch};

use crate::{
    control::{Call, Caller, LINES, Line, Question},
    events::PromptEvent,
};

/// A node that is starting says so; ask again after this.
pub(super) const RETRY_AFTER_S: u32 = 2;

/// The way to a node in this process, once there is one.
type Calls = watch::Receiver<Option<mpsc::Sender<Call>>>;

/// Where the node is.
pub enum Door {
    /// In this process, from the moment it takes questions.
    Here(watch::Receiver<Option<mpsc::Sender<Call>>>),
    /// In another one with this data folder.
    Socket(PathBuf),
}

/// The events of one answer; dropping them cancels what was asked.
pub(super) enum Events {
    /// From this process.
    Here(mpsc::Receiver<Line>),
    /// From another one.
    Socket(Box<Caller>),
}

impl Events {
    /// The next event, `None` after the last or when the node went away.
    pub(super) async fn next(&mut self) -> Option<PromptEvent> {
        match self {
            Self::Here(lines) => match lines.recv().await? {
                Line::Prompt(event) => Some(event),
                _ => None,
            },
            Self::Socket(caller) => caller.event().await,
        }
    }
}

impl Door {
    /// Asks for a prompt.
    ///
    /// # Errors
    /// [`Failure::Unavailable`] while the node starts, or when it is gone.
    pub(super) async fn ask(&self, question: Question) -> Result<Events, Failure> {
        match self {
            Self::Here(door) => Ok(Events::Here(call(door, question).await?)),
            Self::Socket(home) => {
                let caller = Caller::ask(home, &question).await;
                let caller = caller.map_err(|error| unavailable(&error.to_string()))?;
                Ok(Events::Socket(Box::new(caller)))
            }
        }
    }

    /// Asks and takes the one line of the answer.
    ///
    /// # Errors
    /// As [`Door::ask`], and when the answer is an error.
    pub(super) async fn one<T: DeserializeOwned>(&self, question: Question) -> Result<T, Failure> {
        match self {
            Self::Here(door) => {
                let line = call(door, question).await?.recv().await;
                match line.ok_or_else(|| unavailable("this node stopped before it answered"))? {
                    Line::Prompt(PromptEvent::Failed(refusal)) => Err(unavailable(&refusal.error)),
                    line => serde_json::to_value(&line)
                        .and_then(serde_json::from_value)
                        .map_err(|error| unavailable(&error.to_string())),
                }
            }
            Self::Socket(home) => {
                let mut caller =
                    Caller::ask(home, &question).await.map_err(|error| unavailable(&error.to_string()))?;
                let line = caller.next().await.map_err(|error| unavailable(&error.to_string()))?;
                line.ok_or_else(|| unavailable("this node stopped before it answered"))
            }
        }
    }
}

/// Asks the node in this process.
async fn call(door: &Calls, question: Question) -> Result<mpsc::Receiver<Line>, Failure> {
    let Some(calls) = door.borrow().clone() else {
        return Err(unavailable("this node is loading its model and looking for others"));
    };
    let (lines, answer) = mpsc::channel(LINES);
    calls.send(Call { question, lines }).await.map_err(|_| unavailable("this node is stopping"))?;
    Ok(answer)
}

pub(super) fn unavailable(why: &str) -> Failure {
    Failure::Unavailable { why: why.to_owned(), retry_after_s: RETRY_AFTER_S }
}
