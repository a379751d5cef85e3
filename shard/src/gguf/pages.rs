//! Pages of a mapped file that are not read any more.

#[cfg(not(unix))]
pub(super) use elsewhere::forget;
#[cfg(unix)]
pub(super) use unix::forget;

#[cfg(unix)]
mod unix {
    use std::ops::Range;

    use memmap2::{Mmap, UncheckedAdvice};

    /// Has the system drop the pages that lie inside `range` whole.
    pub(in super::super) fn forget(map: &Mmap, range: Range<u64>) {
        let page = page_size();
        let end = usize::try_from(range.end).unwrap_or(usize::MAX).min(map.len()) / page * page;
        let start = usize::try_from(range.start).unwrap_or(usize::MAX).min(map.len()).next_multiple_of(page);
        if start < end {
            // SAFETY: a shared read-only file mapping has no private changes to lose: dropped pages read the
            // same from the file. Both ends lie inside the mapping.
            let advised =
                unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, start, end - start) };
            if let Err(error) = advised {
                tracing::debug!(%error, "the system keeps the pages of a repacked tensor");
            }
        }
    }

    /// The size of a memory page in bytes.
    fn page_size() -> usize {
        // SAFETY: sysconf reads a constant of the system and touches no memory of ours.
        let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(size).unwrap_or(4096).max(1)
    }
}

#[cfg(not(unix))]
mod elsewhere {
    use std::ops::Range;

    /// Nothing: the system takes pages back when memory is short.
    pub(in super::super) fn forget(_: &memmap2::Mmap, _: Range<u64>) {}
}
