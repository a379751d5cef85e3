//! Reads memory as fast as the kernels do, to know what the machine can deliver.

use std::{sync::atomic::AtomicU8, sync::atomic::Ordering, time::Duration, time::Instant};

use super::{Cpu, Kernel, matrix::Arena, simd::Simd};
use crate::Result;

/// Combines every byte of a range, so that no load can be left out.
struct Sweep {
    start: *const u8,
    bytes: usize,
    /// Bytes ahead of the loads that are asked for: what the matrix kernels use pays here too.
    lead: usize,
}

impl Kernel for Sweep {
    type Output = u8;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> u8 {
        let mut folded = [0u8; 64];
        // SAFETY: the range is readable, whole steps stay inside, and the caller promises the instruction set.
        unsafe {
            let (mut a, mut b, mut c, mut d) =
                (S::splat_byte(0), S::splat_byte(0), S::splat_byte(0), S::splat_byte(0));
            for step in 0..self.bytes / 256 {
                let at = self.start.add(step * 256);
                S::prefetch(at.wrapping_add(self.lead));
                S::prefetch(at.wrapping_add(self.lead + 64));
                S::prefetch(at.wrapping_add(self.lead + 128));
                S::prefetch(at.wrapping_add(self.lead + 192));
                a = S::or(a, S::load_bytes(at));
                b = S::or(b, S::load_bytes(at.add(64)));
                c = S::or(c, S::load_bytes(at.add(128)));
                d = S::or(d, S::load_bytes(at.add(192)));
            }
            S::store_bytes(folded.as_mut_ptr(), S::or(S::or(a, b), S::or(c, d)));
        }
        folded.iter().fold(0, |all, byte| all | byte)
    }
}

/// How long all threads together take to read `bytes` of memory, laid out as weights are: one time per pass.
///
/// # Errors
/// [`crate::Error::Invalid`] when there is no memory for it.
pub(crate) fn time_reads(cpu: &Cpu, bytes: usize, passes: usize) -> Result<Vec<Duration>> {
    let arena = Arena::new(bytes)?;
    let start = arena.start() as usize;
    let all = AtomicU8::new(0);
    let share = |worker: usize, workers: usize| {
        let part = (bytes / workers).next_multiple_of(256);
        let first = (worker * part).min(bytes);
        (start + first, part.min(bytes - first))
    };
    cpu.pool().run(&|worker, workers| {
        let (start, bytes) = share(worker, workers);
        // SAFETY: the shares of the workers are disjoint parts of the arena, which no other thread sees yet.
        unsafe { std::ptr::write_bytes(start as *mut u8, 1, bytes) };
    });
    let times = (0..passes).map(|_| {
        let started = Instant::now();
        cpu.pool().run(&|worker, workers| {
            let (start, bytes) = share(worker, workers);
            all.fetch_or(
                cpu.run(Sweep { start: start as *const u8, bytes, lead: cpu.isa().lead_bytes() }),
                Ordering::Relaxed,
            );
        });
        started.elapsed()
    });
    let times = times.collect();
    std::hint::black_box(all.into_inner());
    drop(arena);
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::Sweep;
    use crate::kernels::{Cpu, Isa, threads::Pool};

    #[test]
    fn every_byte_is_read() {
        for isa in Isa::available() {
            let cpu = Cpu::new(isa, Pool::new(1, false));
            let mut bytes = vec![0u8; 1024];
            let sweep = |bytes: &[u8]| cpu.run(Sweep { start: bytes.as_ptr(), bytes: bytes.len(), lead: 0 });
            assert_eq!(sweep(&bytes), 0);
            for at in [0, 63, 64, 255, 256, 1023] {
                bytes[at] = 4;
                assert_eq!(sweep(&bytes), 4, "byte {at} on {}", isa.name());
                bytes[at] = 0;
            }
        }
    }
}
