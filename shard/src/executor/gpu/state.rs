//! What a session remembers in a layer: keys and values in pages, a vector, or both.
//!
//! A page holds, position by position, the keys of all heads and then the values, f16, which is the order of a snapshot of
//! [`crate::state::paged`]: a state of class `d1` moves between device and processor as it is. Sessions that begin alike share
//! pages, and a pass copies those it writes to.
//! Pages that no row will look at again go back to the pool, as on the processor ([`crate::state::behind`]).

use std::sync::Arc;

use super::{
    device::words,
    pool::{Arena, Page, PageKind, Pool, position_bytes},
    vector::DeviceVector,
};
use crate::{
    Error, Result,
    kernels::{KvShape, PAGE},
    state::{Back, Beside, LayerState, Nothing, paged},
};

/// What a session remembers in `layer` of those held, before anything.
pub(super) fn empty(pool: &Arc<Pool>, layer: usize, back: Back) -> Box<dyn LayerState> {
    let first = pool.of_layer(layer).start;
    let pages = |shape| DevicePages {
        pool: pool.clone(),
        arena: first,
        shape,
        back,
        begins: 0,
        len: 0,
        pages: Vec::new(),
    };
    let vector = |arena, width| DeviceVector::new(pool.clone(), arena, width);
    match *pool.kinds(layer) {
        [PageKind::Positions(shape)] => Box::new(pages(shape)),
        [PageKind::Vector(width)] => Box::new(vector(first, width)),
        [PageKind::Positions(shape), PageKind::Vector(width)] => {
            Box::new(Beside::new(pages(shape), vector(first + 1, width)))
        }
        _ => Box::new(Nothing),
    }
}

/// Keys and values of one session in one layer.
pub(super) struct DevicePages {
    pool: Arc<Pool>,
    arena: usize,
    shape: KvShape,
    back: Back,
    /// The pages before this position are free.
    begins: usize,
    /// Positions held.
    len: usize,
    pages: Vec<Option<Arc<Page>>>,
}

impl DevicePages {
    fn page_bytes(&self) -> usize {
        PageKind::Positions(self.shape).bytes()
    }

    /// Frees the pages before `first`, where one begins.
    fn free(&mut self, first: usize) {
        if first > self.begins {
            self.pages.resize(self.pages.len().max(first / PAGE), None);
            self.pages[self.begins / PAGE..first / PAGE].fill(None);
            self.begins = first;
        }
    }

    /// Makes room up to `positions`.
    fn grow(&mut self, positions: usize) {
        let pool = self.pool.clone();
        let mut arenas = pool.arenas();
        while self.pages.len() < positions.div_ceil(PAGE) {
            // Without a page the pass that needs it is refused: see `table`.
            let Some(page) = pool.page(self.arena, &mut arenas) else { return };
            self.pages.push(Some(page));
        }
    }

    /// The numbers of the pages of positions before `end`; those that are free, which no row looks at, have any.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the device had no room for them.
    pub fn table(&self, end: usize) -> Result<Vec<u32>> {
        let needed = end.div_ceil(PAGE);
        if self.pages.len() < needed {
            return Err(Error::invalid("the device has no memory for a longer session; `--ctx` shortens it"));
        }
        Ok(self.pages[..needed].iter().map(|page| page.as_ref().map_or(0, |page| page.number)).collect())
    }

    /// Makes the pages of positions `start..end` its own, copying those that other sessions have too.
    ///
    /// # Errors
    /// [`Error::Invalid`] without memory.
    pub fn own(&mut self, start: usize, end: usize, arenas: &mut [Arena]) -> Result<()> {
        let last = end.div_ceil(PAGE).min(self.pages.len());
        let bytes = self.page_bytes() as u64;
        for page in self.pages[(start / PAGE).min(last)..last].iter_mut().flatten() {
            if Arc::strong_count(page) == 1 {
                continue;
            }
            let full = || Error::invalid("the device has no memory for another session");
            let fresh = self.pool.page(self.arena, arenas).ok_or_else(full)?;
            let (gpu, buffer) = (&self.pool.gpu, &arenas[self.arena].buffer);
            let between = gpu.buffer("page", bytes as usize);
            let mut encoder = gpu.encoder();
            encoder.copy_buffer_to_buffer(buffer, u64::from(page.number) * bytes, &between, 0, bytes);
            encoder.copy_buffer_to_buffer(&between, 0, buffer, u64::from(fresh.number) * bytes, bytes);
            gpu.finish(encoder, &[])?;
            *page = fresh;
        }
        Ok(())
    }
}

impl LayerState for DevicePages {
    fn kind(&self) -> String {
        paged::kind_of(self.shape, self.back)
    }

    fn bytes(&self) -> usize {
        self.pages.iter().flatten().count() * self.page_bytes()
    }

    fn reserve(&mut self, positions: usize) {
        self.grow(positions.min(self.begins + self.back.most(positions)));
    }

    fn prepare(&mut self, positions: usize) {
        self.free(self.back.stays(self.len, positions));
        self.grow(positions);
    }

    fn forgets(&self, len: usize, to: usize) -> bool {
        self.back.kept(len) > self.back.kept(to)
    }

    fn checkpoint(&self, to: usize) -> usize {
        if self.begins <= self.back.kept(to) { to } else { 0 }
    }

    fn share(&self, to: usize) -> Option<Box<dyn LayerState>> {
        let pages: Vec<_> = self.pages.iter().take(to.div_ceil(PAGE)).cloned().collect();
        let begins = self.begins.min(pages.len() * PAGE);
        Some(Box::new(Self { pool: self.pool.clone(), begins, len: to, pages, ..*self }))
    }

    fn parts(&self, part: &mut dyn FnMut(usize, usize)) {
        let bytes = self.page_bytes();
        self.pages.iter().flatten().for_each(|page| part(Arc::as_ptr(page).addr(), bytes));
    }

    fn rewind(&mut self, to: usize) {
        self.pages.truncate(to.div_ceil(PAGE));
        (self.begins, self.len) = (self.begins.min(self.pages.len() * PAGE), to);
    }

    fn advance(&mut self, len: usize) {
        self.free(self.back.stays(self.len, len));
        self.len = len;
    }

    fn snapshot_len(&self, len: usize) -> usize {
        (len - self.back.kept(len)) * position_bytes(self.shape)
    }

    fn snapshot(&self, len: usize, out: &mut Vec<u8>) -> Result<()> {
        let (page_bytes, position) = (self.page_bytes(), position_bytes(self.shape));
        let first = self.back.kept(len);
        if self.begins > first {
            return Err(Error::invalid(format!("position {first} of a layer with a window is gone")));
        }
        let arenas = self.pool.arenas();
        let buffer = &arenas[self.arena].buffer;
        let numbers = self.table(len)?;
        let ranges: Vec<_> = numbers
            .iter()
            .enumerate()
            .skip(first / PAGE)
            .map(|(index, &number)| {
                let (start, held) = (number as usize * page_bytes, (len - index * PAGE).min(PAGE));
                (buffer, start..start + held * position)
            })
            .collect();
        out.extend(self.pool.gpu.finish(self.pool.gpu.encoder(), &ranges)?);
        Ok(())
    }

    fn restore(&mut self, len: usize, bytes: &[u8]) -> Result<()> {
        if bytes.chunks_exact(2).any(|b| u16::from_le_bytes([b[0], b[1]]) & 0x7c00 == 0x7c00) {
            return Err(Error::malformed("snapshot: position", "is not finite"));
        }
        self.free(self.back.kept(len));
        self.grow(len);
        self.len = len;
        let numbers = self.table(len)?;
        let page_bytes = self.page_bytes();
        let arenas = self.pool.arenas();
        for (number, page) in numbers[self.begins / PAGE..].iter().zip(bytes.chunks(page_bytes)) {
            self.pool.gpu.write(&arenas[self.arena].buffer, *number as usize * page_bytes, &words(page));
        }
        Ok(())
    }
}
