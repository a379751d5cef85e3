//! How much is under way, for `/metrics`: written by the compute thread, read by any other.

use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering},
};

use serde::{Deserialize, Serialize};

/// How much is under way, as the compute thread last said.
#[derive(Debug, Default)]
pub struct Gauges {
    sessions: AtomicU64,
    waiting: AtomicU64,
    kv_used_bytes: AtomicU64,
    kv_kept_bytes: AtomicU64,
    kv_disk_bytes: AtomicU64,
    kv_capacity_bytes: AtomicU64,
    lost: OnceLock<String>,
}

/// A reading of [`Gauges`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    /// Answers computed now.
    pub sessions: u64,
    /// Answers and lists of texts that wait for their turn.
    pub waiting: u64,
    /// Memory of the caches of those under way.
    pub kv_used_bytes: u64,
    /// Memory of caches kept for prompts that begin like earlier ones.
    pub kv_kept_bytes: u64,
    /// The same on disk.
    pub kv_disk_bytes: u64,
    /// What both together may take.
    pub kv_capacity_bytes: u64,
}

impl Gauges {
    /// What they show.
    pub fn read(&self) -> Reading {
        let get = |gauge: &AtomicU64| gauge.load(Ordering::Relaxed);
        Reading {
            sessions: get(&self.sessions),
            waiting: get(&self.waiting),
            kv_used_bytes: get(&self.kv_used_bytes),
            kv_kept_bytes: get(&self.kv_kept_bytes),
            kv_disk_bytes: get(&self.kv_disk_bytes),
            kv_capacity_bytes: get(&self.kv_capacity_bytes),
        }
    }

    /// Why the device computes nothing any more, if that is so.
    pub fn lost(&self) -> Option<String> {
        self.lost.get().cloned()
    }

    pub(super) fn lose(&self, why: String) {
        let _ = self.lost.set(why);
    }

    pub(super) fn show(&self, reading: Reading) {
        let set = |gauge: &AtomicU64, value| gauge.store(value, Ordering::Relaxed);
        set(&self.sessions, reading.sessions);
        set(&self.waiting, reading.waiting);
        set(&self.kv_used_bytes, reading.kv_used_bytes);
        set(&self.kv_kept_bytes, reading.kv_kept_bytes);
        set(&self.kv_disk_bytes, reading.kv_disk_bytes);
        set(&self.kv_capacity_bytes, reading.kv_capacity_bytes);
    }
}
