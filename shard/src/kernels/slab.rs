//! Memory on huge pages that several owners share. Reading 4 KiB pages, a core waits for translations, and what the hardware
//! fetches ahead ends with each page.

use std::{alloc, ptr::NonNull};

/// Size of a huge page.
pub(super) const HUGE_PAGE: usize = 2 << 20;

/// Memory aligned to huge pages, not initialized. What is not written is never touched.
pub(super) struct Slab {
    start: NonNull<u8>,
    layout: alloc::Layout,
}

// SAFETY: the memory is owned; those who take pieces of it say who touches which.
unsafe impl Send for Slab {}
// SAFETY: as above.
unsafe impl Sync for Slab {}

impl Slab {
    /// `bytes` of memory, at least one; `None` where there is none.
    pub(super) fn new(bytes: usize) -> Option<Self> {
        let layout = alloc::Layout::from_size_align(bytes.max(1), HUGE_PAGE).ok()?;
        // SAFETY: the layout is not empty.
        let start = NonNull::new(unsafe { alloc::alloc(layout) })?;
        #[cfg(target_os = "linux")]
        // SAFETY: advice about memory just allocated; it changes no content, and failure is harmless.
        unsafe {
            libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE)
        };
        Some(Self { start, layout })
    }

    /// Where it begins, at a multiple of [`HUGE_PAGE`].
    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Its size.
    pub(super) fn bytes(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` with this layout.
        unsafe { alloc::dealloc(self.start.as_ptr(), self.layout) };
    }
}
