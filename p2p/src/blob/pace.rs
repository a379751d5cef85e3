//! A cap on bytes per second, shared by everything that should stay below it together.
//!
//! Time is spent in advance: a caller that takes bytes waits until the bytes taken before are paid for. A tenth of a
//! second may be saved up, so bursts stay below a tenth of the rate. A pace may lie within another: its bytes then
//! wait for both.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::{Instant, sleep_until};

/// How much unused time is kept.
const SAVED: Duration = Duration::from_millis(100);

/// Lets bytes through at a steady rate.
#[derive(Debug)]
pub struct Pace {
    bytes_per_s: Option<f64>,
    /// When everything taken so far is paid for.
    paid: Mutex<Option<Instant>>,
    taken_bytes: AtomicU64,
    outer: Option<Arc<Pace>>,
}

impl Pace {
    /// At most `bytes_per_s` on average; `None` lets everything through.
    pub fn new(bytes_per_s: Option<u64>) -> Self {
        let bytes_per_s = bytes_per_s.map(|rate| rate.max(1) as f64);
        Self { bytes_per_s, paid: Mutex::new(None), taken_bytes: AtomicU64::new(0), outer: None }
    }

    /// At most `bytes_per_s`, and together with everything else below `outer` at most what that one lets through.
    pub fn within(outer: Arc<Self>, bytes_per_s: Option<u64>) -> Self {
        Self { outer: Some(outer), ..Self::new(bytes_per_s) }
    }

    /// The rate, bytes per second, without that of what it lies within.
    pub fn bytes_per_s(&self) -> Option<u64> {
        self.bytes_per_s.map(|rate| rate as u64)
    }

    /// Bytes that passed or are about to, since it was made.
    pub fn taken_bytes(&self) -> u64 {
        self.taken_bytes.load(Ordering::Relaxed)
    }

    /// Waits until `bytes` more may pass.
    pub async fn take(&self, bytes: usize) {
        self.take_own(bytes).await;
        if let Some(outer) = &self.outer {
            // One level: a pace within a pace within a pace is not made.
            outer.take_own(bytes).await;
        }
    }

    async fn take_own(&self, bytes: usize) {
        self.taken_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let Some(rate) = self.bytes_per_s else { return };
        let now = Instant::now();
        let start = {
            let mut paid = self.paid.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            let start = paid.unwrap_or(now).max(now.checked_sub(SAVED).unwrap_or(now));
            *paid = Some(start + Duration::from_secs_f64(bytes as f64 / rate));
            start
        };
        if start > now {
            sleep_until(start).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn bytes_pass_at_the_rate_and_not_faster_by_any_taker() {
        let pace = Pace::new(Some(1_000_000));
        let start = Instant::now();
        let many = || async {
            for _ in 0..50 {
                pace.take(10_000).await;
            }
        };
        tokio::join!(many(), many());
        let took = start.elapsed().as_millis();
        assert!((890..=1000).contains(&took), "1 MB at 1 MB/s took {took} virtual ms");
        tokio::time::sleep(Duration::from_secs(3600)).await;
        let later = Instant::now();
        for _ in 0..100 {
            pace.take(10_000).await;
        }
        assert!(later.elapsed().as_millis() >= 880, "an hour of silence is not saved up");
    }

    #[tokio::test(start_paused = true)]
    async fn what_lies_within_waits_for_both() {
        let outer = Arc::new(Pace::new(Some(1_000_000)));
        let (slow, free) = (Pace::within(outer.clone(), Some(100_000)), Pace::within(outer.clone(), None));
        let start = Instant::now();
        for _ in 0..10 {
            slow.take(10_000).await;
        }
        let took = start.elapsed().as_millis();
        assert!((790..=1000).contains(&took), "100 kB at 100 kB/s took {took} virtual ms");
        let start = Instant::now();
        for _ in 0..100 {
            free.take(10_000).await;
        }
        assert!((890..=1000).contains(&start.elapsed().as_millis()));
        assert_eq!(
            (slow.taken_bytes(), free.taken_bytes(), outer.taken_bytes()),
            (100_000, 1_000_000, 1_100_000)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_cap_nothing_waits() {
        let start = Instant::now();
        Pace::new(None).take(usize::MAX).await;
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
}
