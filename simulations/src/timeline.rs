//! What will happen, in the order of time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Events to come. Those of one moment happen in the order in which they were added.
pub struct Timeline<E> {
    /// When, the how manyth, and where it stands in `events`.
    queue: BinaryHeap<Reverse<(u64, u64, usize)>>,
    events: Vec<Option<E>>,
    free: Vec<usize>,
    added: u64,
}

impl<E> Default for Timeline<E> {
    fn default() -> Self {
        Self { queue: BinaryHeap::new(), events: Vec::new(), free: Vec::new(), added: 0 }
    }
}

impl<E> Timeline<E> {
    /// Adds an event at a moment, in whatever unit the caller counts.
    pub fn add(&mut self, when: u64, event: E) {
        let slot = self.free.pop().unwrap_or(self.events.len());
        match self.events.get_mut(slot) {
            Some(free) => *free = Some(event),
            None => self.events.push(Some(event)),
        }
        self.added += 1;
        self.queue.push(Reverse((when, self.added, slot)));
    }

    /// The next event, and when it happens; `None` when nothing is left to happen.
    pub fn next(&mut self) -> Option<(u64, E)> {
        let Reverse((when, _, slot)) = self.queue.pop()?;
        self.free.push(slot);
        self.events[slot].take().map(|event| (when, event))
    }
}

#[cfg(test)]
mod tests {
    use super::Timeline;

    #[test]
    fn events_come_by_time_and_then_by_turn() {
        let mut timeline = Timeline::default();
        [(5, 'c'), (1, 'a'), (5, 'd')].into_iter().for_each(|(when, event)| timeline.add(when, event));
        assert_eq!(timeline.next(), Some((1, 'a')));
        timeline.add(3, 'b');
        let rest: Vec<_> = std::iter::from_fn(|| timeline.next()).collect();
        assert_eq!(rest, [(3, 'b'), (5, 'c'), (5, 'd')]);
    }
}
