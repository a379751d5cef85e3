//! Events on their way to the node, and what is dropped when it does not keep up.

use std::collections::VecDeque;

use tokio::sync::mpsc;

use crate::event::Event;

/// Comings and goings waiting for room: every connection can come and go this often while the node sleeps.
const MAX_WAITING: usize = 4_096;

pub(super) struct Outbox {
    sender: mpsc::Sender<Event>,
    waiting: VecDeque<Event>,
}

impl Outbox {
    pub fn new(sender: mpsc::Sender<Event>) -> Self {
        Self { sender, waiting: VecDeque::new() }
    }

    /// Sends what must not be lost; it waits for room. Beyond [`MAX_WAITING`] the oldest is lost, loudly.
    pub fn must(&mut self, event: Event) {
        if !self.waiting.is_empty() {
            self.waiting.push_back(event);
        } else if let Err(mpsc::error::TrySendError::Full(event)) = self.sender.try_send(event) {
            self.waiting.push_back(event);
        }
        if self.waiting.len() > MAX_WAITING {
            self.waiting.pop_front();
            tracing::error!("the node does not read its events, one is lost");
        }
    }

    /// Sends what may be lost, if there is room; whether there was.
    pub fn may(&mut self, event: Event) -> bool {
        self.waiting.is_empty() && self.sender.try_send(event).is_ok()
    }

    /// Completes when something that waited was sent; never when nothing waits.
    pub async fn flush(&mut self) {
        if self.waiting.is_empty() {
            return std::future::pending().await;
        }
        match self.sender.reserve().await {
            Ok(room) => {
                if let Some(event) = self.waiting.pop_front() {
                    room.send(event);
                }
            }
            Err(_) => self.waiting.clear(),
        }
    }
}
