//! The time of day, read at the edge only: what decides is given it.

use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970; 0 where the clock says that it is earlier.
pub(crate) fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Seconds since 1970, as receipts carry them.
pub(crate) fn unix_s() -> u32 {
    u32::try_from(unix_ms() / 1_000).unwrap_or(u32::MAX)
}
