//! The thread pool of the kernels.
//!
//! A [`Pool`] is a fixed set of compute threads that run the same closure together, many thousand times per second.
//! A token costs a few hundred such runs of 10 to 1000 microseconds, so starting work must cost about a microsecond and
//! must not allocate: workers spin for a bounded time after a run and park only when nothing follows.
//!
//! The caller is worker 0 and works too. [`Pool::run`] returns when all workers are done; how the work is divided
//! is up to the closure (usually an atomic counter), and kernels are written so that the division never shows in the bits.
//!
//! With `pin`, worker `i` is bound to one processor: one per physical core, the fastest cores first, inside the
//! affinity mask the process started with, and only cores that no other pool of this user has ([`Cores`]): where there are
//! too few, no worker is bound and the system places them. The caller's thread belongs to the caller and is not bound
//! unless it asks ([`Pool::pin_caller`]). Where the workers are near several memories, what they and the thread that makes the pool touch first is
//! spread over these ([`processors`]).
//!
//! Limits: pinning and core detection are for Linux (elsewhere the scheduler decides, and
//! [`Pool::physical_cores`] is the parallelism the standard library reports). A run inside a run of the same pool deadlocks.

use std::{
    any::Any,
    cell::UnsafeCell,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    thread::{self, JoinHandle, Thread},
    time::{Duration, Instant},
};

use super::processors::{self, Cores};

/// How long a thread without work spins before it parks. The gap between two kernels of a token is a few
/// microseconds and between two tokens (sampling, detokenizing) some tens; shorter, and every kernel pays
/// a wake-up of 5 to 50 microseconds; longer, and an idle engine burns its cores.
const SPIN: Duration = Duration::from_micros(80);

/// The closure of one run: called once per worker with (worker, workers).
type Work<'a> = dyn Fn(usize, usize) + Sync + 'a;

/// Persistent compute threads; the caller is worker 0.
pub struct Pool {
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
    /// One run at a time.
    turn: Mutex<()>,
    /// Processor of each worker when pinned, else empty.
    processors: Vec<usize>,
    /// The cores behind them, where this pool took them for itself.
    #[allow(dead_code)] // Held, not read.
    cores: Option<Cores>,
}

/// What caller and workers share.
struct Shared {
    /// The closure of the run in progress. Written by the caller while no worker looks.
    work: UnsafeCell<Option<&'static Work<'static>>>,
    /// Number of runs started; a worker runs when it differs from what it has seen.
    runs: AtomicUsize,
    /// Workers that have not finished the run.
    unfinished: AtomicUsize,
    workers: AtomicUsize,
    /// Per worker: parked or about to park. Index 0 is the caller.
    asleep: Box<[AtomicBool]>,
    /// The caller's thread, set before it parks.
    caller: Mutex<Option<Thread>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    stop: AtomicBool,
}

// SAFETY: `work` is the only part that is not Sync by itself. It is written only in `Pool::run` under `turn` while
// `unfinished` is zero (no worker reads it), and read by workers only between the change of `runs` and their decrement of `unfinished`.
unsafe impl Sync for Shared {}
// SAFETY: the closure reference inside is Sync, so it may be used from any thread.
unsafe impl Send for Shared {}

impl Pool {
    /// A pool of `threads` workers (at least one, the caller included). With `pin`, each is bound to its own processor
    /// when there are enough that no other pool has.
    ///
    /// If the system refuses a thread the pool is smaller than asked; [`Pool::threads`] tells.
    pub fn new(threads: usize, pin: bool) -> Self {
        let cores = pin.then(|| Cores::claim(threads.max(1))).flatten();
        let processors = cores.as_ref().map_or_else(Vec::new, |cores| cores.processors().to_vec());
        let mut pool = Self::on(threads, processors);
        pool.cores = cores;
        pool
    }

    /// A pool of `threads` workers, bound to `processors` that the caller has claimed for as long as the pool is there.
    /// With fewer processors than workers none is bound.
    ///
    /// If the system refuses a thread the pool is smaller than asked; [`Pool::threads`] tells.
    pub fn on(threads: usize, mut processors: Vec<usize>) -> Self {
        let threads = threads.max(1);
        if processors.len() < threads {
            processors.clear();
        }
        let shared = Arc::new(Shared {
            work: UnsafeCell::new(None),
            runs: AtomicUsize::new(0),
            unfinished: AtomicUsize::new(0),
            workers: AtomicUsize::new(threads),
            asleep: (0..threads).map(|_| AtomicBool::new(false)).collect(),
            caller: Mutex::new(None),
            panic: Mutex::new(None),
            stop: AtomicBool::new(false),
        });
        let nodes = processors::nodes_of(&processors);
        // This thread loads what the workers will read.
        processors::interleave(&nodes);
        let mut handles = Vec::with_capacity(threads - 1);
        for worker in 1..threads {
            let (shared, processor) = (Arc::clone(&shared), processors.get(worker).copied());
            let nodes = nodes.clone();
            let spawned = thread::Builder::new().name(format!("compute-{worker}")).spawn(move || {
                processors::interleave(&nodes);
                if let Some(processor) = processor {
                    processors::bind(processor);
                }
                shared.serve(worker);
            });
            match spawned {
                Ok(handle) => handles.push(handle),
                Err(error) => {
                    tracing::warn!(%error, asked = threads, got = worker, "fewer compute threads");
                    break;
                }
            }
        }
        let started = handles.len() + 1;
        shared.workers.store(started, SeqCst);
        processors.truncate(started);
        Self { shared, handles, turn: Mutex::new(()), processors, cores: None }
    }

    /// Number of workers.
    pub fn threads(&self) -> usize {
        self.handles.len() + 1
    }

    /// Runs `work(worker, workers)` once on every worker and returns when all are done.
    ///
    /// Allocates nothing. Callers on several threads take turns. If a worker panics the others finish and the panic
    /// continues in the caller.
    pub fn run(&self, work: &Work<'_>) {
        assert_ieee();
        if self.handles.is_empty() {
            return work(0, 1);
        }
        let turn = lock(&self.turn);
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. The reference is used by workers before they decrement `unfinished`,
        // and this function does not return or unwind before that reaches zero, so the closure outlives every use.
        let eternal = unsafe { std::mem::transmute::<&Work<'_>, &'static Work<'static>>(work) };
        // SAFETY: `unfinished` is zero and `turn` is held, so no other thread accesses the cell.
        unsafe { *shared.work.get() = Some(eternal) };
        shared.unfinished.store(self.handles.len(), SeqCst);
        shared.runs.fetch_add(1, SeqCst);
        for (handle, asleep) in self.handles.iter().zip(&shared.asleep[1..]) {
            if asleep.swap(false, SeqCst) {
                handle.thread().unpark();
            }
        }
        let own = catch_unwind(AssertUnwindSafe(|| work(0, self.threads())));
        shared.wait_for_workers();
        let theirs = lock(&shared.panic).take();
        drop(turn);
        if let Some(panic) = own.err().or(theirs) {
            resume_unwind(panic);
        }
    }

    /// Binds the calling thread to worker 0's processor, when the pool is pinned. For a thread that only computes:
    /// threads it starts afterwards inherit the binding.
    pub fn pin_caller(&self) {
        if let Some(&processor) = self.processors.first() {
            processors::bind(processor);
        }
    }

    /// Physical cores this process may use: its affinity mask and its share of processor time are respected. At least one.
    pub fn physical_cores() -> usize {
        let share = thread::available_parallelism().map_or(1, usize::from);
        processors::cores().map_or(share, |cores| cores.min(share)).max(1)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        self.shared.runs.fetch_add(1, SeqCst);
        for handle in self.handles.drain(..) {
            handle.thread().unpark();
            // A worker catches every panic of its work, so there is none to report here.
            let _ = handle.join();
        }
    }
}

impl Shared {
    /// The life of one worker: wait for a run, take part, until told to stop.
    fn serve(&self, worker: usize) {
        let mut seen = 0;
        loop {
            self.sleep_until(worker, || self.runs.load(SeqCst) != seen);
            seen = seen.wrapping_add(1);
            if self.stop.load(SeqCst) {
                return;
            }
            // SAFETY: `runs` changed and this worker has not decremented `unfinished`, so the caller waits and
            // does not write the cell.
            let work = unsafe { *self.work.get() }.expect("a run has work");
            let done = catch_unwind(AssertUnwindSafe(|| {
                assert_ieee();
                work(worker, self.workers.load(SeqCst));
            }));
            if let Err(panic) = done {
                lock(&self.panic).get_or_insert(panic);
            }
            if self.unfinished.fetch_sub(1, SeqCst) == 1
                && self.asleep[0].swap(false, SeqCst)
                && let Some(caller) = &*lock(&self.caller)
            {
                caller.unpark();
            }
        }
    }

    /// Blocks the caller until every worker has finished.
    fn wait_for_workers(&self) {
        if spin_until(|| self.unfinished.load(SeqCst) == 0) {
            return;
        }
        *lock(&self.caller) = Some(thread::current());
        self.sleep_until(0, || self.unfinished.load(SeqCst) == 0);
    }

    /// Spins for a while, then parks, until `ready`. The thread that makes it ready must afterwards wake
    /// `asleep[worker]`.
    fn sleep_until(&self, worker: usize, ready: impl Fn() -> bool) {
        if spin_until(&ready) {
            return;
        }
        // Either the other side sees the flag after making it ready, or this thread sees it ready after the flag.
        // A late wake-up of the previous run may clear the flag at any time, so it is raised before every look.
        loop {
            self.asleep[worker].store(true, SeqCst);
            if ready() {
                break;
            }
            thread::park();
        }
        self.asleep[worker].store(false, SeqCst);
    }
}

/// Spins at most [`SPIN`]; true as soon as `ready`.
fn spin_until(ready: impl Fn() -> bool) -> bool {
    let mut start = None;
    loop {
        for _ in 0..64 {
            if ready() {
                return true;
            }
            std::hint::spin_loop();
        }
        if start.get_or_insert_with(Instant::now).elapsed() > SPIN {
            return ready();
        }
    }
}

/// Locks; the data are plain values that a panic cannot leave half-written.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Panics unless this thread rounds to nearest and keeps subnormal numbers, as the numerics require. Libraries compiled
/// for "fast math" are known to switch subnormals off for the thread that loads them.
fn assert_ieee() {
    #[cfg(target_arch = "x86_64")]
    {
        let mut mxcsr = 0_u32;
        // SAFETY: stmxcsr stores the 4-byte control register at the given address.
        unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut mxcsr, options(nostack, preserves_flags)) };
        // Flush to zero, rounding control, denormals are zero.
        assert_eq!(mxcsr & 0xe040, 0, "this thread does not compute in IEEE mode (MXCSR {mxcsr:#x})");
    }
    #[cfg(target_arch = "aarch64")]
    {
        let fpcr: u64;
        // SAFETY: reads a register that user code may read.
        unsafe { std::arch::asm!("mrs {}, fpcr", out(reg) fpcr, options(nomem, nostack, preserves_flags)) };
        // Rounding mode, flush to zero, flush inputs to zero, alternate handling, default NaN.
        assert_eq!(fpcr & 0x03c0_0003, 0, "this thread does not compute in IEEE mode (FPCR {fpcr:#x})");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(pool: &Pool, runs: usize) -> Vec<usize> {
        let counts = (0..pool.threads()).map(|_| AtomicUsize::new(0)).collect::<Vec<_>>();
        for _ in 0..runs {
            pool.run(&|worker, workers| {
                assert_eq!(workers, pool.threads());
                counts[worker].fetch_add(1, SeqCst);
            });
        }
        counts.into_iter().map(AtomicUsize::into_inner).collect()
    }

    #[test]
    fn every_worker_runs_once_per_run() {
        for threads in 1..=5 {
            for pin in [false, true] {
                // Fewer where threads outnumber the cores of a small machine: every run then waits for the scheduler.
                let runs = if threads <= 2 { 3000 } else { 300 };
                assert_eq!(counts(&Pool::new(threads, pin), runs), vec![runs; threads]);
            }
        }
    }

    #[test]
    fn run_returns_after_the_slowest_worker() {
        let pool = Pool::new(3, false);
        for round in 0..20 {
            let finished = AtomicUsize::new(0);
            pool.run(&|worker, _| {
                // Longer than the spin, so that both sides park: the caller waits here, the workers between runs.
                thread::sleep(Duration::from_millis(if worker == round % 3 { 2 } else { 0 }));
                finished.fetch_add(1, SeqCst);
            });
            assert_eq!(finished.into_inner(), 3);
            thread::sleep(Duration::from_micros(500));
        }
    }

    #[test]
    fn panics_reach_the_caller_and_the_pool_survives() {
        let pool = Pool::new(3, false);
        for guilty in 0..3 {
            let ran = AtomicUsize::new(0);
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                pool.run(&|worker, _| {
                    ran.fetch_add(1, SeqCst);
                    assert_ne!(worker, guilty, "worker {guilty} fails");
                });
            }));
            let message = outcome.expect_err("the panic is passed on");
            let message = message.downcast_ref::<String>().expect("the payload is kept");
            assert!(message.contains(&format!("worker {guilty} fails")), "{message}");
            assert_eq!(ran.into_inner(), 3);
            assert_eq!(counts(&pool, 10), [10; 3]);
        }
    }

    #[test]
    fn pools_and_callers_coexist() {
        let (one, two) = (Pool::new(2, true), Pool::new(3, true));
        let total = AtomicUsize::new(0);
        thread::scope(|scope| {
            for pool in [&one, &two, &one, &two] {
                let total = &total;
                scope.spawn(move || {
                    for _ in 0..100 {
                        pool.run(&|_, _| {
                            total.fetch_add(1, SeqCst);
                        });
                    }
                });
            }
        });
        assert_eq!(total.into_inner(), 100 * (2 + 3 + 2 + 3));
    }

    #[test]
    fn drop_joins_the_workers() {
        let pool = Pool::new(4, false);
        pool.run(&|_, _| {});
        let shared = Arc::clone(&pool.shared);
        assert_eq!(Arc::strong_count(&shared), 1 + 1 + 3);
        drop(pool);
        assert_eq!(Arc::strong_count(&shared), 1);
    }

    #[test]
    fn there_is_a_core() {
        let cores = Pool::physical_cores();
        assert!(cores >= 1 && cores <= thread::available_parallelism().map_or(1, usize::from));
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn flushing_subnormals_is_refused() {
        fn set_mxcsr(value: u32) {
            // SAFETY: ldmxcsr loads the control register; only this thread's rounding of subnormals changes.
            unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const value, options(nostack)) };
        }
        let outcome = thread::spawn(|| {
            set_mxcsr(0x9fc0);
            let outcome = catch_unwind(|| Pool::new(1, false).run(&|_, _| {}));
            set_mxcsr(0x1f80);
            outcome.is_err()
        });
        assert!(outcome.join().expect("the thread ends"));
    }
}
