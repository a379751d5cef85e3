//! Which finished work is worth its memory: what was computed once and may be wanted again.
//!
//! A [`Shelf`] ranks entries by GreedyDual-Size (Cao and Irani, "Cost-aware WWW proxy caching algorithms", 1997):
//!
//! ```text
//! on use:    priority = clock + cost / bytes
//! on drop:   the entry of the lowest priority goes, and clock = its priority
//! ```
//!
//! Among entries that cost alike it is least recently used, out first; one that costs much to compute again stays longer, and the clock
//! sees to it that it does not stay for ever. Entries that nothing has used for a time to live go whatever they cost.

use std::collections::BTreeMap;

use crate::Millis;

/// Entries by what it takes to have them again. What they are is the caller's.
#[derive(Clone, Debug)]
pub struct Shelf<K> {
    clock: f64,
    entries: BTreeMap<K, Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    worth: f64,
    priority: f64,
    used: Millis,
}

impl<K> Default for Shelf<K> {
    fn default() -> Self {
        Self { clock: 0.0, entries: BTreeMap::new() }
    }
}

impl<K: Ord + Copy> Shelf<K> {
    /// Puts an entry of `bytes` that takes `cost` (any unit, the same for all) to compute again; another of this name is replaced.
    pub fn put(&mut self, key: K, cost: f64, bytes: usize, now: Millis) {
        let worth = if cost.is_finite() { cost.max(0.0) / bytes.max(1) as f64 } else { 0.0 };
        self.entries.insert(key, Entry { worth, priority: self.clock + worth, used: now });
    }

    /// An entry was of use.
    pub fn used(&mut self, key: K, now: Millis) {
        if let Some(entry) = self.entries.get_mut(&key) {
            (entry.priority, entry.used) = (self.clock + entry.worth, now);
        }
    }

    /// Forgets an entry.
    pub fn remove(&mut self, key: K) {
        self.entries.remove(&key);
    }

    /// Forgets the entry that is worth the least, the longest unused of equals, and says which it was.
    pub fn drop_worst(&mut self) -> Option<K> {
        let rank = |entry: &Entry| (entry.priority, entry.used);
        let worse = |a: &Entry, b: &Entry| rank(a).0.total_cmp(&rank(b).0).then(a.used.cmp(&b.used));
        let (key, entry) =
            self.entries.iter().min_by(|a, b| worse(a.1, b.1)).map(|(key, entry)| (*key, *entry))?;
        self.clock = self.clock.max(entry.priority);
        self.entries.remove(&key);
        Some(key)
    }

    /// Forgets the entries that were not used for longer than `ttl_ms` and says which they were.
    pub fn drop_late(&mut self, now: Millis, ttl_ms: u64) -> Vec<K> {
        let late = |entry: &Entry| now.since(entry.used) > ttl_ms;
        let gone: Vec<K> =
            self.entries.iter().filter(|(_, entry)| late(entry)).map(|(key, _)| *key).collect();
        self.entries.retain(|_, entry| !late(entry));
        gone
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::Shelf;
    use crate::Millis;

    #[test]
    fn of_equals_the_longest_unused_goes() {
        let mut shelf = Shelf::default();
        for key in 0..3_u64 {
            shelf.put(key, 8.0, 4, Millis(key));
        }
        shelf.used(0, Millis(9));
        let gone: Vec<u64> = std::iter::from_fn(|| shelf.drop_worst()).collect();
        assert_eq!(gone, [1, 2, 0]);
        assert!(shelf.is_empty());
    }

    #[test]
    fn what_costs_more_stays_longer_and_not_for_ever() {
        let mut shelf = Shelf::default();
        shelf.put(100, 30.0, 10, Millis(0));
        for key in 0..2 {
            shelf.put(key, 10.0, 10, Millis(1 + key));
        }
        assert_eq!((shelf.drop_worst(), shelf.drop_worst()), (Some(0), Some(1)));
        // Others come and go; each drop ages it.
        let mut rounds = 0;
        for key in 2..100 {
            shelf.put(key, 10.0, 10, Millis(key));
            rounds += 1;
            if shelf.drop_worst() == Some(100) {
                break;
            }
        }
        assert!((2..5).contains(&rounds), "{rounds} rounds");
    }

    #[test]
    fn what_is_not_used_for_its_time_goes() {
        let mut shelf = Shelf::default();
        shelf.put('a', 1.0, 1, Millis(0));
        shelf.put('b', 1e9, 1, Millis(0));
        shelf.put('c', f64::NAN, 0, Millis(50));
        shelf.used('a', Millis(60));
        assert_eq!(shelf.drop_late(Millis(100), 100), []);
        assert_eq!(shelf.drop_late(Millis(101), 100), ['b']);
        assert_eq!((shelf.len(), shelf.drop_worst()), (2, Some('c')));
        shelf.remove('a');
        assert!(shelf.is_empty());
    }
}
