//! Memory for caches that several workers share.
//!
//! A worker bounds its own caches; where a node has several, each could take all of what the node was offered. So the
//! daemon's ends of the workers count together: who opens a range takes its bytes from the [`Room`] before the worker is
//! asked, and they come back when the range is closed, when the opening fails, or when the worker dies.
//!
//! Limits: a range counts as what it may grow to, as in the worker.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Fault;

/// See the module's page; clones share it.
#[derive(Clone, Debug)]
pub struct Room {
    most_bytes: u64,
    taken_bytes: Arc<Mutex<u64>>,
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
        Self { most_bytes, taken_bytes: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        // A number is whole whatever happened beside it.
        self.taken_bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes `bytes` until the part is dropped.
    ///
    /// # Errors
    /// [`Fault::NoRoom`] when so much is not left.
    pub(super) fn take(&self, bytes: u64) -> Result<Part, Fault> {
        let mut taken = self.lock();
        let free_bytes = self.most_bytes.saturating_sub(*taken);
        if bytes > free_bytes {
            return Err(Fault::NoRoom { needed_bytes: bytes, free_bytes });
        }
        *taken += bytes;
        Ok(Part { room: self.clone(), bytes })
    }

    /// What is taken, bytes.
    pub fn taken_bytes(&self) -> u64 {
        *self.lock()
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
        *self.room.lock() -= beyond;
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
