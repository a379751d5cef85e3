//! How busy this node is: what visits wait here, and the figures that announcements carry.

use scheduler::{
    Millis,
    latency::{Ema, LOAD_TAU_MS, Window},
};

/// Waiting that is not worth a word, ms.
const SMALL_MS: f64 = 1.0;
/// Waits are looked at by the second.
const SECOND_MS: u64 = 1_000;
/// A wait counts this long.
const RECENT_MS: u64 = 60_000;

/// Own figures that change with what this node serves.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Figures {
    /// Entering once, ms.
    pub visit_ms: f64,
    /// Waiting behind others, ms.
    pub queue_ms: f64,
    /// Sessions of others.
    pub active: u32,
    /// Rows that take as long as one step.
    pub knee: u32,
    /// Memory for caches that no session has reserved, bytes.
    pub kv_bytes: u64,
    /// As many sessions of others run here as may.
    pub full: bool,
}

impl Figures {
    /// Whether others should hear of it: by half of what was said, and by more than a trifle.
    pub(crate) fn is_news_after(&self, said: &Self) -> bool {
        let moved = |now: f64, said: f64, least: f64| (now - said).abs() > least.max(0.5 * said);
        moved(self.queue_ms, said.queue_ms, SMALL_MS)
            || moved(self.visit_ms, said.visit_ms, SMALL_MS)
            || moved(f64::from(self.active), f64::from(said.active), f64::from(self.knee.max(8) / 8))
            || moved(self.kv_bytes as f64, said.kv_bytes as f64, said.kv_bytes as f64 / 8.0)
            || moved(f64::from(self.knee), f64::from(said.knee), 1.0)
            || self.full != said.full
    }
}

/// How long frames are here: computed, and waiting besides.
pub(crate) struct Waits {
    /// The least of every second: of single frames a window would hold too few to remember a quiet moment.
    least: Window,
    second: Option<(Millis, f64)>,
    mean: Ema,
}

impl Waits {
    pub(crate) fn new() -> Self {
        Self { least: Window::new(RECENT_MS), second: None, mean: Ema::new(LOAD_TAU_MS) }
    }

    /// Notes a frame that came in, and out again, with `ms` not spent computing.
    pub(crate) fn add(&mut self, now: Millis, ms: f64) {
        self.second = match self.second {
            Some((since, least)) if now.since(since) < SECOND_MS => Some((since, least.min(ms))),
            over => {
                if let Some((since, least)) = over {
                    self.least.add(since, least);
                }
                Some((now, ms))
            }
        };
        self.mean.add(now, ms);
    }

    /// What every visit waits, and what the present ones wait beyond, ms.
    pub(crate) fn split(&self, now: Millis) -> (f64, f64) {
        let second = self.second.filter(|(since, _)| now.since(*since) <= RECENT_MS).map(|second| second.1);
        let least = self.least.min(now).into_iter().chain(second).reduce(f64::min);
        let visit = least.unwrap_or(0.0);
        let idle = now.since(self.mean.last()) > 2 * LOAD_TAU_MS;
        let mean = self.mean.value().filter(|_| !idle).unwrap_or(0.0);
        (visit, (mean - visit).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_is_told_from_what_every_visit_waits() {
        let mut waits = Waits::new();
        assert_eq!(waits.split(Millis(0)), (0.0, 0.0));
        (0..10).for_each(|t| waits.add(Millis(t * 100), 0.5));
        assert_eq!(waits.split(Millis(1_000)), (0.5, 0.0));
        (0..100).for_each(|t| waits.add(Millis(1_000 + t * 500), 8.5));
        let (visit, queue) = waits.split(Millis(50_500));
        assert!(visit == 0.5 && (7.5..8.01).contains(&queue), "{visit} {queue}");
        assert_eq!(waits.split(Millis(50_500 + 2 * LOAD_TAU_MS)).1, 0.0, "no ask waits in an idle node");
    }
}
