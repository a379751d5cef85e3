//! Memory on huge pages that several owners share. Reading 4 KiB pages, a core waits for translations, and what the hardware
//! fetches ahead ends with each page.

use std::ptr::NonNull;

/// Size of a huge page.
pub(super) const HUGE_PAGE: usize = 2 << 20;
/// Size of a line of the caches.
pub(super) const LINE: usize = 64;

/// Memory that is not initialized, aligned to huge pages where the system is asked for them and to lines of the caches elsewhere.
/// What is not written is never touched.
pub(super) struct Slab {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory is owned; those who take pieces of it say who touches which.
unsafe impl Send for Slab {}
// SAFETY: as above.
unsafe impl Sync for Slab {}

impl Slab {
    /// `bytes` of memory, at least one; `None` where there is none.
    pub(super) fn new(bytes: usize) -> Option<Self> {
        Some(Self { start: system::take(bytes)?, bytes })
    }

    /// Where it begins.
    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Its size.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: taken by `new` with this size.
        unsafe { system::give_back(self.start, self.bytes) };
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::ptr::{self, NonNull};

    use super::HUGE_PAGE;

    /// Mapped with room to align it, which is given back at once: an allocator would keep that address space, of which a confined
    /// process has little.
    pub(super) fn take(bytes: usize) -> Option<NonNull<u8>> {
        let len = bytes.max(1).checked_next_multiple_of(HUGE_PAGE)?;
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a mapping of its own; only what was just mapped is given back, and advice changes no content.
        unsafe {
            let all = len.checked_add(HUGE_PAGE)?;
            let mapped = libc::mmap(ptr::null_mut(), all, protection, flags, -1, 0);
            if mapped == libc::MAP_FAILED {
                return None;
            }
            let mapped = mapped.cast::<u8>();
            let before = mapped.align_offset(HUGE_PAGE);
            let start = mapped.add(before);
            if before > 0 {
                libc::munmap(mapped.cast(), before);
            }
            if before < HUGE_PAGE {
                libc::munmap(start.add(len).cast(), HUGE_PAGE - before);
            }
            libc::madvise(start.cast(), len, libc::MADV_HUGEPAGE);
            NonNull::new(start)
        }
    }

    /// # Safety
    /// [`take`] gave this for so many bytes, and nothing uses it any more.
    pub(super) unsafe fn give_back(start: NonNull<u8>, bytes: usize) {
        // SAFETY: promised by the caller.
        unsafe { libc::munmap(start.as_ptr().cast(), bytes.max(1).next_multiple_of(HUGE_PAGE)) };
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use std::{alloc, ptr::NonNull};

    use super::LINE;

    /// As the allocator has it.
    pub(super) fn take(bytes: usize) -> Option<NonNull<u8>> {
        let layout = alloc::Layout::from_size_align(bytes.max(1), LINE).ok()?;
        // SAFETY: the layout is not empty.
        NonNull::new(unsafe { alloc::alloc(layout) })
    }

    /// # Safety
    /// [`take`] gave this for so many bytes, and nothing uses it any more.
    pub(super) unsafe fn give_back(start: NonNull<u8>, bytes: usize) {
        // SAFETY: the layout that the memory was taken with.
        unsafe {
            let layout = alloc::Layout::from_size_align_unchecked(bytes.max(1), LINE);
            alloc::dealloc(start.as_ptr(), layout);
        }
    }
}
