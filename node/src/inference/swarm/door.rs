//! The way to the running node: inside this process, or through its socket.

use std::path::PathBuf;

use api::inference::Failure;
use serde_json::Value;
use tokio::sync::{mpsc, watch};

use crate::control::{Call, Caller, LINES, Question};

/// A node that is starting says so; ask again after this.
pub(super) const RETRY_AFTER_S: u32 = 2;

/// Where the node is.
pub enum Door {
    /// In this process, from the moment it takes questions.
    Here(watch::Receiver<Option<mpsc::Sender<Call>>>),
    /// In another one with this data folder.
    Socket(PathBuf),
}

/// The lines of one answer; dropping them cancels what was asked.
pub(super) enum Lines {
    /// From this process.
    Here(mpsc::Receiver<Value>),
    /// From another one.
    Socket(Box<Caller>),
}

impl Lines {
    /// The next line, `None` after the last or when the node went away.
    pub(super) async fn next(&mut self) -> Option<Value> {
        match self {
            Self::Here(lines) => lines.recv().await,
            Self::Socket(caller) => caller.line().await,
        }
    }
}

impl Door {
    /// Asks a question.
    ///
    /// # Errors
    /// [`Failure::Unavailable`] while the node starts, or when it is gone.
    pub(super) async fn ask(&self, question: Question) -> Result<Lines, Failure> {
        match self {
            Self::Here(door) => {
                let Some(calls) = door.borrow().clone() else {
                    return Err(unavailable("this node is loading its model and looking for others"));
                };
                let (lines, answer) = mpsc::channel(LINES);
                let call = Call { question, lines };
                calls.send(call).await.map_err(|_| unavailable("this node is stopping"))?;
                Ok(Lines::Here(answer))
            }
            Self::Socket(home) => {
                let caller = Caller::ask(home, &question).await;
                let caller = caller.map_err(|error| unavailable(&error.to_string()))?;
                Ok(Lines::Socket(Box::new(caller)))
            }
        }
    }

    /// Asks and takes the one line of the answer.
    ///
    /// # Errors
    /// As [`Door::ask`], and when the answer is an error.
    pub(super) async fn one(&self, question: Question) -> Result<Value, Failure> {
        let line = self.ask(question).await?.next().await;
        let line = line.ok_or_else(|| unavailable("this node stopped before it answered"))?;
        match line["error"].as_str() {
            Some(why) => Err(unavailable(why)),
            None => Ok(line),
        }
    }
}

pub(super) fn unavailable(why: &str) -> Failure {
    Failure::Unavailable { why: why.to_owned(), retry_after_s: RETRY_AFTER_S }
}
