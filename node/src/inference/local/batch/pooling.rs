//! Texts to vectors beside answers: of a text's hidden states in front of the head the mean, or those that the file asks for.
//!
//! Requests are served one at a time in their order, [`LANES`] texts of one side by side, in a pass of their own after
//! each pass of the answers. So a long list of texts costs answers under way at most one prompt's chunk per token, and a
//! text's vector has the same bits whatever runs beside it.
//!
//! Bounds: waiting requests count as jobs do ([`super::MAX_WAITING`]); the caches of the request being served, and the rows of an
//! encoder's longest text, count as those of sessions do; a request whose asker is gone is dropped before the next pass.

use std::collections::VecDeque;

use api::inference::Failure;
use shard::{
    executor::{self, Input, Item, Output, Pooled, Workspace},
    state::SessionState,
};
use tokio::sync::oneshot;

use super::{Room, Vectors};
use crate::model::{CHUNK_ROWS, Model};

/// Texts of one request in a pass: short ones share the reading of the weights.
const LANES: usize = 8;

/// One request: texts and where their vectors go, in the order of the texts.
pub struct Texts {
    /// Token ids; each at least one and no more than the context.
    pub inputs: Vec<Vec<u32>>,
    /// Whether a score is made of the state that stands for a text.
    pub ranked: bool,
    /// Where the vectors go.
    pub reply: oneshot::Sender<Vectors>,
}

/// A text on its way through the model.
struct Lane {
    input: usize,
    state: SessionState,
    pooled: Pooled,
}

/// The request that is served.
struct Current {
    texts: Texts,
    lanes: Vec<Lane>,
    /// The next text to begin with.
    next: usize,
    vectors: Vec<Vec<f32>>,
    reserved_bytes: usize,
}

/// All requests.
#[derive(Default)]
pub(super) struct Pooling {
    waiting: VecDeque<Texts>,
    current: Option<Current>,
}

impl Pooling {
    pub(super) fn push(&mut self, texts: Texts) {
        self.waiting.push_back(texts);
    }

    /// Requests that have not begun.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether a request is being served.
    pub(super) fn is_running(&self) -> bool {
        self.current.is_some()
    }

    /// Whether there is nothing to do, nor will be.
    pub(super) fn is_idle(&self) -> bool {
        self.current.is_none() && self.waiting.is_empty()
    }

    /// Tokens of the longest text of the request being served.
    pub(super) fn longest(&self) -> usize {
        self.current.as_ref().map_or(0, |current| longest(&current.texts.inputs))
    }

    /// Bytes that the request being served may fill.
    pub(super) fn reserved_bytes(&self) -> usize {
        self.current.as_ref().map_or(0, |current| current.reserved_bytes)
    }

    /// Bytes that it fills.
    pub(super) fn used_bytes(&self) -> usize {
        let lanes = self.current.iter().flat_map(|current| &current.lanes);
        lanes.map(|lane| lane.state.bytes()).sum()
    }

    /// Begins with the next request if none is served and there is room for its caches. False when one waits for room:
    /// then nothing that came later may take it.
    pub(super) fn admit(&mut self, room: Room) -> bool {
        self.waiting.retain(|texts| !texts.reply.is_closed());
        if self.current.as_ref().is_some_and(|current| current.texts.reply.is_closed()) {
            self.current = None;
        }
        if self.current.is_some() {
            return true;
        }
        let Some(texts) = self.waiting.front() else { return true };
        let reserved_bytes =
            most_bytes(&texts.inputs, room.position_bytes) + longest(&texts.inputs) * room.row_bytes;
        if !room.has(reserved_bytes) {
            return false;
        }
        self.current = self.waiting.pop_front().map(|texts| Current {
            vectors: vec![Vec::new(); texts.inputs.len()],
            lanes: Vec::with_capacity(LANES),
            next: 0,
            texts,
            reserved_bytes,
        });
        true
    }

    /// One pass over the model for the request being served, if there is one.
    pub(super) fn pass(&mut self, model: &Model, workspace: &mut Workspace) {
        let Some(current) = &mut self.current else { return };
        match current.pass(model, workspace) {
            Ok(false) => {}
            Ok(true) => {
                if let Some(Current { texts, vectors, .. }) = self.current.take() {
                    // The client may have gone meanwhile.
                    let _ = texts.reply.send(Ok(vectors));
                }
            }
            Err(error) => {
                if let Some(Current { texts, .. }) = self.current.take() {
                    let _ = texts.reply.send(Err(Failure::Internal { why: error.to_string() }));
                }
            }
        }
    }
}

fn longest(inputs: &[Vec<u32>]) -> usize {
    inputs.iter().map(Vec::len).max().unwrap_or_default()
}

/// Bytes of the caches of the [`LANES`] longest texts.
fn most_bytes(inputs: &[Vec<u32>], position_bytes: usize) -> usize {
    let mut lengths: Vec<usize> = inputs.iter().map(Vec::len).collect();
    lengths.sort_unstable_by(|a, b| b.cmp(a));
    lengths.iter().take(LANES).sum::<usize>() * position_bytes
}

impl Current {
    /// One pass; true when all vectors are there.
    fn pass(&mut self, model: &Model, workspace: &mut Workspace) -> Result<bool, shard::Error> {
        let inputs = &self.texts.inputs;
        let hidden = model.executor.blueprint().hidden;
        let whole = model.executor.blueprint().encodes();
        let pooling = match self.texts.ranked {
            true if whole => executor::Pooling::First,
            true => executor::Pooling::Last,
            false => executor::Pooling::of(model.gguf.metadata())?,
        };
        let most_lanes = LANES.min(workspace.capacity().items);
        while self.lanes.len() < most_lanes && self.next < inputs.len() {
            self.lanes.push(Lane {
                input: self.next,
                state: model.executor.new_state(),
                pooled: Pooled::new(hidden, pooling),
            });
            self.next += 1;
        }
        let capacity = workspace.capacity().rows;
        let mut rows_left = if whole { capacity } else { CHUNK_ROWS.min(capacity) };
        let mut items = Vec::with_capacity(self.lanes.len());
        for lane in &mut self.lanes {
            let (ids, start) = (&inputs[lane.input], lane.state.len());
            let rows = (ids.len() - start).min(rows_left);
            // The first text of a pass fits; an encoder reads it whole.
            if rows == 0 || (whole && rows < ids.len()) {
                break;
            }
            rows_left -= rows;
            let input = Input::Tokens(&ids[start..start + rows]);
            items.push(Item { state: &mut lane.state, input, output: Output::All });
        }
        model.executor.states(workspace, &mut items)?;
        let taken = items.len();
        drop(items);
        for (index, lane) in self.lanes.iter_mut().take(taken).enumerate() {
            lane.pooled.add(workspace.states(index));
        }
        let done = |lane: &Lane| lane.state.len() == inputs[lane.input].len();
        for lane in self.lanes.iter().filter(|lane| done(lane)) {
            self.vectors[lane.input] = match self.texts.ranked {
                true => vec![model.executor.rank(&lane.pooled.sum())?],
                false => lane.pooled.unit(),
            };
        }
        self.lanes.retain(|lane| !done(lane));
        Ok(self.lanes.is_empty() && self.next == inputs.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(lengths: &[usize]) -> (Texts, oneshot::Receiver<Vectors>) {
        let (reply, answer) = oneshot::channel();
        let inputs = lengths.iter().map(|n| vec![1; *n]).collect();
        (Texts { inputs, ranked: false, reply }, answer)
    }

    #[test]
    fn the_longest_texts_side_by_side_are_what_a_request_takes() {
        let lengths: Vec<Vec<u32>> = (1..=20).map(|n| vec![0; n]).collect();
        assert_eq!(most_bytes(&lengths, 10), (13..=20).sum::<usize>() * 10);
        assert_eq!(most_bytes(&[vec![0; 3]], 10), 30);
    }

    #[test]
    fn requests_wait_for_room_and_go_with_their_askers() {
        let mut pooling = Pooling::default();
        let (first, kept) = texts(&[100]);
        let (second, gone) = texts(&[1]);
        pooling.push(first);
        pooling.push(second);
        let room = |used_bytes| Room { used_bytes, limit_bytes: 1_000, position_bytes: 3, row_bytes: 2 };
        assert!(!pooling.admit(room(501)), "what waits for room keeps later ones from it");
        assert!(pooling.admit(room(500)));
        assert_eq!((pooling.reserved_bytes(), pooling.waiting()), (500, 1));
        assert_eq!(pooling.longest(), 100);
        drop(kept);
        drop(gone);
        assert!(pooling.admit(room(0)));
        assert!(pooling.is_idle());
        let (large, _kept) = texts(&[100_000]);
        pooling.push(large);
        assert!(!pooling.admit(room(1)) && pooling.admit(room(0)), "larger than all the room: alone");
    }
}
