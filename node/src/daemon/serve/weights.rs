//! Memory for the weights of all models of a node, of which each takes its part before it is loaded.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Memory for the weights of all models of a node.
#[derive(Clone, Debug)]
pub(crate) struct Weights {
    most_bytes: Option<u64>,
    /// By place among the models.
    taken: Arc<Mutex<BTreeMap<usize, u64>>>,
    /// By place, what is taken for a moment beside that.
    beside: Arc<Mutex<BTreeMap<usize, u64>>>,
}

/// Memory for weights beside what a model takes at last, while one worker replaces another; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Beside {
    weights: Weights,
    place: usize,
    bytes: u64,
}

impl Drop for Beside {
    fn drop(&mut self) {
        let mut beside = self.weights.beside();
        if let Some(bytes) = beside.get_mut(&self.place) {
            *bytes -= self.bytes;
        }
    }
}

impl Weights {
    /// So much in all; `None` for no bound.
    pub(crate) fn new(most_bytes: Option<u64>) -> Self {
        Self { most_bytes, taken: Arc::default(), beside: Arc::default() }
    }

    fn beside(&self) -> MutexGuard<'_, BTreeMap<usize, u64>> {
        self.beside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is left for the model at `place`, bytes; `None` for no bound.
    pub(crate) fn left_bytes(&self, place: usize) -> Option<u64> {
        self.left(&self.taken.lock().unwrap_or_else(PoisonError::into_inner), place)
    }

    /// What no model has taken, bytes, less than nothing where the first took more than there is; `None` for no bound.
    pub(crate) fn free_bytes(&self) -> Option<i64> {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let all: u64 = taken.values().chain(self.beside().values()).sum();
        self.most_bytes.map(|most| most as i64 - all as i64)
    }

    fn left(&self, taken: &BTreeMap<usize, u64>, place: usize) -> Option<u64> {
        let beside = self.beside();
        let others = taken.iter().chain(beside.iter()).filter(|(other, _)| **other != place);
        let others: u64 = others.map(|(_, bytes)| *bytes).sum();
        self.most_bytes.map(|most| most.saturating_sub(others))
    }

    /// Takes what the model at `place` needs to have `bytes` in all for a moment, where so much is left for it.
    pub(crate) fn take_beside(&self, place: usize, bytes: u64) -> Option<Beside> {
        // Looked at and taken under one lock: another model that asks meanwhile waits.
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if self.left(&taken, place).is_some_and(|left| bytes > left) {
            return None;
        }
        let mut beside = self.beside();
        let has = beside.entry(place).or_default();
        let bytes = bytes.saturating_sub(taken.get(&place).copied().unwrap_or(0) + *has);
        *has += bytes;
        Some(Beside { weights: self.clone(), place, bytes })
    }

    /// What the model at `place` takes, once that is known.
    pub(crate) fn holds(&self, place: usize, bytes: u64) {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).insert(place, bytes);
    }

    /// The model at `place` takes this much, whatever it took before; what is left for it, bytes, when that is less. The
    /// first model always takes it.
    pub(crate) fn take(&self, place: usize, bytes: u64) -> Result<(), u64> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let left = self.left(&taken, place).unwrap_or(u64::MAX);
        if place > 0 && bytes > left {
            taken.remove(&place);
            return Err(left);
        }
        taken.insert(place, bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_bounded_together_and_taken_again() {
        let weights = Weights::new(Some(100));
        assert_eq!(weights.take(0, 60), Ok(()));
        assert_eq!((weights.left_bytes(0), weights.left_bytes(1)), (Some(100), Some(40)));
        assert_eq!(weights.clone().take(1, 30), Ok(()));
        assert_eq!(weights.free_bytes(), Some(10));
        assert_eq!(weights.take(1, 10), Ok(()), "an attempt that is repeated takes its place again");
        assert_eq!((weights.left_bytes(2), weights.take(2, 31)), (Some(30), Err(30)));
        assert_eq!(Weights::new(None).free_bytes(), None);
        assert_eq!(weights.take(0, 200), Ok(()), "what the node was started with is loaded in any case");
        assert_eq!(weights.left_bytes(1), Some(0), "never less than nothing");
        assert_eq!(weights.free_bytes(), Some(-110));
        weights.holds(1, 15);
        assert_eq!(weights.free_bytes(), Some(-115));
        assert_eq!(Weights::new(None).left_bytes(0), None);
    }

    #[test]
    fn what_is_taken_beside_the_weights_is_not_given_to_another_model() {
        let weights = Weights::new(Some(100));
        weights.take(1, 40).unwrap();
        let beside = weights.take_beside(1, 70).expect("the whole is free");
        assert_eq!((weights.left_bytes(1), weights.left_bytes(2)), (Some(100), Some(30)));
        assert_eq!(weights.take(2, 31), Err(30));
        assert!(weights.take(2, 30).is_ok() && weights.take_beside(1, 71).is_none());
        let last = weights.take_beside(1, 70).expect("it has so much already");
        drop(beside);
        assert_eq!(weights.left_bytes(2), Some(60));
        drop(last);
        assert!(weights.take_beside(1, 71).is_none() && weights.take_beside(1, 70).is_some());
    }
}
