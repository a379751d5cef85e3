//! Memory for caches that several workers share.
//!
//! A worker bounds its own caches; where a node has several, each could take all of what the node was offered. So the
//! daemon's ends of the workers count together: who opens a range takes its bytes from the [`Room`] before the worker is
//! asked, and they come back when the range is closed, when the opening fails, or when the worker dies.
//!
//! What workers keep of ended sessions has what is left, and gives way: each says how much that is ([`Keeps`]), and is told to keep
//! less when a range needs it.
//!
//! A place on disk for what workers keep comes along: one worker at a time has it, of the model that it is for.
//!
//! So does the folder of packed weights.
//!
//! Limits: a range counts as what it may grow to, as in the worker, and pages that it shares count for each. What was told to go counts
//! as gone at once: for the moment until the worker reads it there may be as much more.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use scheduler::{LayerRange, ModelId};
use tokio::sync::mpsc::{Sender, WeakSender};

use super::{
    Fault,
    ipc::{Ask, Frame},
};
use crate::{
    library::Located,
    panel_cache,
    state_store::{DiskUse, Loan, Place, Ticket},
};

/// See the module's page; clones share it.
#[derive(Clone, Debug)]
pub struct Room {
    most_bytes: u64,
    inside: Arc<Mutex<Inside>>,
    states: Option<(ModelId, Arc<Place>)>,
    /// The data folder and what packed weights may take there; see [`crate::panel_cache`].
    panels: Option<(PathBuf, u64)>,
}

#[derive(Debug, Default)]
struct Inside {
    taken_bytes: u64,
    keepers: Vec<Keeper>,
    next_keeper: u64,
}

/// A worker that keeps something of ended sessions.
#[derive(Debug)]
struct Keeper {
    number: u64,
    bytes: u64,
    worker: WeakSender<Frame>,
}

impl Inside {
    fn kept_bytes(&self) -> u64 {
        self.keepers.iter().map(|keeper| keeper.bytes).sum()
    }

    /// Has workers keep so much less together.
    fn shrink(&mut self, mut bytes: u64) {
        for keeper in &mut self.keepers {
            let less = bytes.min(keeper.bytes);
            if less == 0 {
                continue;
            }
            // One that has too much to do now is told next time.
            let ask = Ask::Keep { most_bytes: keeper.bytes - less };
            let told = keeper.worker.upgrade().is_none_or(|worker| {
                Frame::new(&ask, Vec::new()).is_ok_and(|frame| worker.try_send(frame).is_ok())
            });
            if told {
                keeper.bytes -= less;
                bytes -= less;
            }
        }
    }
}

impl Default for Room {
    /// Without a bound: the worker's own is enough where there is one.
    fn default() -> Self {
        Self::new(u64::MAX)
    }
}

impl Room {
    /// So much for all.
    pub fn new(most_bytes: u64) -> Self {
        Self { most_bytes, inside: Arc::default(), states: None, panels: None }
    }

    /// The same, empty, for `most_bytes`.
    pub fn bounded(&self, most_bytes: u64) -> Self {
        Self { states: self.states.clone(), panels: self.panels.clone(), ..Self::new(most_bytes) }
    }

    /// With a place on disk for states of `model`.
    pub fn with_states(self, model: ModelId, place: Place) -> Self {
        Self { states: Some((model, Arc::new(place))), ..self }
    }

    /// What the place on disk takes, if there is one.
    pub fn disk_use(&self) -> Option<DiskUse> {
        self.states.as_ref().map(|(_, place)| place.disk_use())
    }

    /// With so much room in the data folder `home` for packed weights.
    pub fn with_panels(self, home: PathBuf, most_bytes: u64) -> Self {
        Self { panels: Some((home, most_bytes)), ..self }
    }

    /// The data folder, where one is known.
    pub fn home(&self) -> Option<&Path> {
        self.panels.as_ref().map(|(home, _)| home.as_path())
    }

    /// `located` with its packed weights, for a worker of `layers`.
    pub(super) fn with_panels_of(&self, located: Located, layers: &[LayerRange]) -> Located {
        match &self.panels {
            Some((home, most_bytes)) => panel_cache::attach(located, home, layers, *most_bytes),
            None => located,
        }
    }

    /// The place on disk, for a worker of `model`, if no other has it.
    pub(super) fn lend(&self, model: Option<ModelId>) -> Option<(Ticket, Arc<Loan>)> {
        let (of, place) = self.states.as_ref()?;
        if Some(*of) == model { place.lend() } else { None }
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        // Numbers are whole whatever happened beside them.
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes `bytes` until the part is dropped; what is kept of ended sessions gives way.
    ///
    /// # Errors
    /// [`Fault::NoRoom`] when so much is not left.
    pub(super) fn take(&self, bytes: u64) -> Result<Part, Fault> {
        let mut inside = self.lock();
        let free_bytes = self.most_bytes.saturating_sub(inside.taken_bytes);
        if bytes > free_bytes {
            return Err(Fault::NoRoom { needed_bytes: bytes, free_bytes });
        }
        inside.taken_bytes += bytes;
        let beyond = inside.kept_bytes().saturating_sub(free_bytes - bytes);
        inside.shrink(beyond);
        Ok(Part { room: self.clone(), bytes })
    }

    /// What is taken, bytes.
    pub fn taken_bytes(&self) -> u64 {
        self.lock().taken_bytes
    }

    /// What is kept of ended sessions, bytes.
    pub(super) fn kept_bytes(&self) -> u64 {
        self.lock().kept_bytes()
    }
}

/// What one worker keeps of ended sessions, for as long as it is there.
#[derive(Debug)]
pub(super) struct Keeps {
    room: Room,
    number: u64,
}

impl Keeps {
    /// Nothing yet, of the worker that reads `frames`.
    pub(super) fn new(room: &Room, frames: &Sender<Frame>) -> Self {
        let mut inside = room.lock();
        inside.next_keeper += 1;
        let number = inside.next_keeper;
        inside.keepers.push(Keeper { number, bytes: 0, worker: frames.downgrade() });
        Self { room: room.clone(), number }
    }

    /// The worker says that it keeps so much. What is too much in the room goes.
    pub(super) fn tell(&self, bytes: u64) {
        let mut inside = self.room.lock();
        if let Some(keeper) = inside.keepers.iter_mut().find(|keeper| keeper.number == self.number) {
            keeper.bytes = bytes;
        }
        let free_bytes = self.room.most_bytes.saturating_sub(inside.taken_bytes);
        let beyond = inside.kept_bytes().saturating_sub(free_bytes);
        inside.shrink(beyond);
    }
}

impl Drop for Keeps {
    fn drop(&mut self) {
        self.room.lock().keepers.retain(|keeper| keeper.number != self.number);
    }
}

/// Bytes taken of a [`Room`].
#[derive(Debug)]
pub(super) struct Part {
    room: Room,
    bytes: u64,
}

impl Part {
    /// Bytes of it.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes over what `other` has.
    pub(super) fn join(&mut self, mut other: Self) {
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Gives back all beyond `bytes`.
    pub(super) fn shrink(&mut self, bytes: u64) {
        let beyond = self.bytes.saturating_sub(bytes);
        self.room.lock().taken_bytes -= beyond;
        self.bytes -= beyond;
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_kept_gives_way_to_what_is_taken() {
        let (room, (one, mut told)) = (Room::new(100), tokio::sync::mpsc::channel(4));
        let (other, _none) = tokio::sync::mpsc::channel(4);
        let (keeps, beside) = (Keeps::new(&room, &one), Keeps::new(&room, &other));
        keeps.tell(50);
        beside.tell(30);
        assert_eq!(room.kept_bytes(), 80);
        let part = room.take(20).unwrap();
        assert_eq!(room.kept_bytes(), 80, "there is room for both");
        let more = room.take(70).unwrap();
        assert_eq!((room.kept_bytes(), room.taken_bytes()), (10, 90));
        assert!(told.recv().await.is_some(), "it is told to keep less");
        beside.tell(30);
        assert_eq!(room.kept_bytes(), 10, "and again when it keeps too much");
        drop((part, more, keeps, beside));
        assert_eq!((room.kept_bytes(), room.taken_bytes()), (0, 0));
    }

    #[test]
    fn what_one_has_another_cannot_take() {
        let room = Room::new(100);
        let other = room.clone();
        let mut first = room.take(60).unwrap();
        let refused = other.take(50).unwrap_err();
        assert_eq!(refused, Fault::NoRoom { needed_bytes: 50, free_bytes: 40 });
        first.join(other.take(40).unwrap());
        assert_eq!((first.bytes(), room.taken_bytes()), (100, 100), "joined, not counted twice");
        first.shrink(30);
        assert_eq!(room.taken_bytes(), 30);
        first.shrink(90);
        assert_eq!(first.bytes(), 30, "it does not grow by that");
        drop(first);
        assert_eq!(room.taken_bytes(), 0);
        assert!(Room::default().take(u64::MAX).is_ok());
    }
}
