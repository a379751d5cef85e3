//! A cap on bytes per second, shared by everything that should stay below it together.
//!
//! Time is spent in advance: whoever takes bytes waits until the bytes taken before are paid for. A tenth of a second
//! may be saved up, so bursts stay below a tenth of the rate.

use std::{sync::Mutex, time::Duration};

use tokio::time::{Instant, sleep_until};

/// How much unused time is kept.
const SAVED: Duration = Duration::from_millis(100);

/// Lets bytes through at a steady rate.
#[derive(Debug)]
pub struct Pace {
    bytes_per_s: Option<f64>,
    /// When everything taken so far is paid for.
    paid: Mutex<Option<Instant>>,
}

impl Pace {
    /// At most `bytes_per_s` on average; `None` lets everything through.
    pub fn new(bytes_per_s: Option<u64>) -> Self {
        Self { bytes_per_s: bytes_per_s.map(|rate| rate.max(1) as f64), paid: Mutex::new(None) }
    }

    /// Waits until `bytes` more may pass.
    pub async fn take(&self, bytes: usize) {
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
    async fn bytes_pass_at_the_rate_and_not_faster_whoever_takes_them() {
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
    async fn without_a_cap_nothing_waits() {
        let start = Instant::now();
        Pace::new(None).take(usize::MAX).await;
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
}
