//! Slices of tensors on their way: threads make their bytes, one writer gets them in the order of the file.
//!
//! Limits: at most [`WINDOW`] slices are in memory at once; a thread that is ahead waits.

use std::{
    collections::BTreeMap,
    io::Write,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Condvar, Mutex, PoisonError},
};

use crate::{Error, Result, gguf::TensorWriter};

/// Slices between the threads and the writer.
const WINDOW: usize = 16;
/// Weights per slice: large enough that a thread's turn costs nothing, small enough to keep memory low.
const SLICE_WEIGHTS: usize = 4 << 20;

/// Some rows of one tensor.
pub(super) struct Slice {
    pub tensor: usize,
    pub rows: Range<usize>,
}

impl Slice {
    /// The slices of tensor number `tensor` of `rows` rows of `cols` weights; each begins at a multiple of `unit` rows.
    pub fn of(tensor: usize, rows: usize, cols: usize, unit: usize) -> impl Iterator<Item = Self> {
        let step = (SLICE_WEIGHTS / cols.max(1)).next_multiple_of(unit).max(unit);
        (0..rows).step_by(step).map(move |start| Self { tensor, rows: start..(start + step).min(rows) })
    }
}

/// Has `threads` threads `make` the bytes of all `slices`, and writes them to `out`; `progress` counts bytes.
pub(super) fn run(
    slices: &[Slice],
    threads: usize,
    make: &(dyn Fn(&Slice) -> Result<Vec<u8>> + Sync),
    out: &mut TensorWriter<impl Write>,
    progress: &dyn Fn(u64),
) -> Result<()> {
    let conveyor = Conveyor::default();
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| conveyor.work(slices, make));
        }
        // Stops the threads on every way out, a panic of `progress` included.
        let _stop = Stop(&conveyor);
        let mut done = 0;
        for _ in slices {
            let bytes = conveyor.take()?;
            done += bytes.len() as u64;
            out.write(&bytes)?;
            progress(done);
        }
        Ok(())
    })
}

/// Stops a conveyor when it is dropped.
struct Stop<'a>(&'a Conveyor);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Hands out slices in order and gives their bytes back in order.
#[derive(Default)]
struct Conveyor {
    state: Mutex<Belt>,
    changed: Condvar,
}

#[derive(Default)]
struct Belt {
    next: usize,
    taken: usize,
    ready: BTreeMap<usize, Result<Vec<u8>>>,
    stopped: bool,
}

impl Conveyor {
    fn work(&self, slices: &[Slice], make: &(dyn Fn(&Slice) -> Result<Vec<u8>> + Sync)) {
        loop {
            let mut belt = self.lock();
            while !belt.stopped && belt.next < slices.len() && belt.next >= belt.taken + WINDOW {
                belt = self.changed.wait(belt).unwrap_or_else(PoisonError::into_inner);
            }
            if belt.stopped || belt.next >= slices.len() {
                return;
            }
            let mine = belt.next;
            belt.next += 1;
            drop(belt);
            // A panic must arrive at `take`, which would wait for this slice forever.
            let made = catch_unwind(AssertUnwindSafe(|| make(&slices[mine]))).unwrap_or_else(|panic| {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
                Err(Error::invalid(format!("converting a tensor failed inside the program: {text}")))
            });
            self.lock().ready.insert(mine, made);
            self.changed.notify_all();
        }
    }

    fn take(&self) -> Result<Vec<u8>> {
        let mut belt = self.lock();
        loop {
            let next = belt.taken;
            if let Some(made) = belt.ready.remove(&next) {
                belt.taken += 1;
                self.changed.notify_all();
                return made;
            }
            belt = self.changed.wait(belt).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn stop(&self) {
        self.lock().stopped = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Belt> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_while_converting_is_an_error() {
        let slices: Vec<Slice> = (0..40).map(|row| Slice { tensor: 0, rows: row..row + 1 }).collect();
        let conveyor = Conveyor::default();
        let make = |slice: &Slice| -> Result<Vec<u8>> {
            assert!(slice.rows.start != 30, "row 30 is bad");
            Ok(vec![slice.rows.start as u8])
        };
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| conveyor.work(&slices, &make));
            }
            let _stop = Stop(&conveyor);
            for row in 0..30 {
                assert_eq!(conveyor.take().unwrap(), [row]);
            }
            let why = conveyor.take().unwrap_err().to_string();
            assert!(why.contains("row 30 is bad"), "{why}");
        });
    }
}
