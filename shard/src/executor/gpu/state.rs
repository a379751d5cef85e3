//! Keys and values in the device's memory: pages of [`PAGE`] positions in one buffer per layer.
//!
//! A page holds, position by position, the keys of all heads and then the values, f16, which is the order of a snapshot of
//! [`crate::state::paged`]: a state of class `d1` moves between device and processor as it is. Pages belong to a [`Pool`];
//! sessions that begin alike share them, and a pass copies those it writes to.
//!
//! Limits: the buffer of a layer grows by copying, up to what one binding of the device holds.

use std::sync::{Arc, Mutex, MutexGuard};

use super::{
    device::{Gpu, Reserved, words},
    driver::locked,
};
use crate::{
    Error, Result,
    kernels::{KvShape, PAGE},
    state::LayerState,
};

/// Pages that a layer's buffer begins with.
const FIRST_PAGES: usize = 4;

/// The pages of one layer.
pub(super) struct Arena {
    pub buffer: wgpu::Buffer,
    pages: usize,
    _memory: Reserved,
}

impl Arena {
    fn new(gpu: &Gpu, shape: KvShape, pages: usize) -> Result<Self> {
        let bytes = pages * page_bytes(shape);
        Ok(Self { _memory: gpu.reserve(bytes)?, buffer: gpu.buffer("pages", bytes), pages })
    }
}

/// Bytes that the pages of a layer take at most while they come to hold a session of `context` positions: the buffer that is
/// copied lies beside the larger one.
pub(super) fn growth_bytes(shape: KvShape, context: usize) -> u64 {
    let pages = context.div_ceil(PAGE).max(FIRST_PAGES).next_power_of_two();
    ((pages + pages / 2) * page_bytes(shape)) as u64
}

/// The pages of all layers that an executor holds.
pub(super) struct Pool {
    gpu: Arc<Gpu>,
    shape: KvShape,
    arenas: Mutex<Vec<Arena>>,
    /// Pages of each layer that no session has.
    free: Mutex<Vec<Vec<u32>>>,
}

/// One page of one layer; given back when no session has it any more.
pub(super) struct Page {
    pool: Arc<Pool>,
    layer: usize,
    pub number: u32,
}

impl Drop for Page {
    fn drop(&mut self) {
        locked(&self.pool.free)[self.layer].push(self.number);
    }
}

impl Pool {
    /// Room for sessions in `layers` layers.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the device has no memory for the first pages.
    pub fn new(gpu: Arc<Gpu>, shape: KvShape, layers: usize) -> Result<Arc<Self>> {
        let arenas = (0..layers).map(|_| Arena::new(&gpu, shape, FIRST_PAGES)).collect::<Result<_>>()?;
        let free = Mutex::new(vec![(0..FIRST_PAGES as u32).rev().collect(); layers]);
        Ok(Arc::new(Self { gpu, shape, arenas: Mutex::new(arenas), free }))
    }

    /// The buffers of all layers; while they are held, none grows.
    pub fn arenas(&self) -> MutexGuard<'_, Vec<Arena>> {
        locked(&self.arenas)
    }

    /// A page of `layer`, whose buffer grows if it has none left; `None` at the limit of the device.
    pub fn page(self: &Arc<Self>, layer: usize, arenas: &mut [Arena]) -> Option<Arc<Page>> {
        let mut free = locked(&self.free);
        if free[layer].is_empty() {
            let arena = &mut arenas[layer];
            let bytes = page_bytes(self.shape);
            let most = usize::try_from(self.gpu.info().binding_bytes).unwrap_or(usize::MAX) / bytes;
            let pages = (2 * arena.pages).min(most);
            if pages <= arena.pages {
                return None;
            }
            let larger = Arena::new(&self.gpu, self.shape, pages).and_then(|larger| {
                self.gpu.check()?;
                let mut encoder = self.gpu.encoder();
                let held = (arena.pages * bytes) as u64;
                encoder.copy_buffer_to_buffer(&arena.buffer, 0, &larger.buffer, 0, held);
                self.gpu.finish(encoder, &[]).map(|_| larger)
            });
            // The pass that needs the page is refused, and the device goes on.
            let larger = larger.ok()?;
            free[layer].extend((arena.pages as u32..pages as u32).rev());
            *arena = larger;
        }
        let number = free[layer].pop()?;
        Some(Arc::new(Page { pool: self.clone(), layer, number }))
    }
}

/// Bytes of a page.
fn page_bytes(shape: KvShape) -> usize {
    PAGE * position_bytes(shape)
}

/// Bytes of a position.
fn position_bytes(shape: KvShape) -> usize {
    2 * shape.kv_heads * shape.head_dim * size_of::<u16>()
}

/// Keys and values of one session in one layer.
pub(super) struct DevicePages {
    pool: Arc<Pool>,
    layer: usize,
    pages: Vec<Arc<Page>>,
}

impl DevicePages {
    /// No positions yet, in layer `layer` of those held.
    pub fn new(pool: Arc<Pool>, layer: usize) -> Self {
        Self { pool, layer, pages: Vec::new() }
    }

    /// The numbers of the pages of positions before `end`.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the device had no room for them.
    pub fn table(&self, end: usize) -> Result<impl Iterator<Item = u32> + '_> {
        let needed = end.div_ceil(PAGE);
        if self.pages.len() < needed {
            return Err(Error::invalid("the device has no memory for a longer session; `--ctx` shortens it"));
        }
        Ok(self.pages[..needed].iter().map(|page| page.number))
    }

    /// Makes the pages of positions `start..end` its own, copying those that other sessions have too.
    ///
    /// # Errors
    /// [`Error::Invalid`] without memory.
    pub fn own(&mut self, start: usize, end: usize, arenas: &mut [Arena]) -> Result<()> {
        let last = end.div_ceil(PAGE).min(self.pages.len());
        for page in &mut self.pages[(start / PAGE).min(last)..last] {
            if Arc::strong_count(page) == 1 {
                continue;
            }
            let full = || Error::invalid("the device has no memory for another session");
            let fresh = self.pool.page(self.layer, arenas).ok_or_else(full)?;
            let bytes = page_bytes(self.pool.shape) as u64;
            let (gpu, buffer) = (&self.pool.gpu, &arenas[self.layer].buffer);
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
        format!("paged f16 {} x {}", self.pool.shape.kv_heads, self.pool.shape.head_dim)
    }

    fn bytes(&self) -> usize {
        self.pages.len() * page_bytes(self.pool.shape)
    }

    fn reserve(&mut self, positions: usize) {
        let pool = self.pool.clone();
        let mut arenas = pool.arenas();
        while self.pages.len() < positions.div_ceil(PAGE) {
            // Without a page the pass that needs it is refused: see `table`.
            let Some(page) = pool.page(self.layer, &mut arenas) else { return };
            self.pages.push(page);
        }
    }

    fn share(&self, to: usize) -> Option<Box<dyn LayerState>> {
        let pages = self.pages.iter().take(to.div_ceil(PAGE)).cloned().collect();
        Some(Box::new(Self { pool: self.pool.clone(), layer: self.layer, pages }))
    }

    fn parts(&self, part: &mut dyn FnMut(usize, usize)) {
        let bytes = page_bytes(self.pool.shape);
        self.pages.iter().for_each(|page| part(Arc::as_ptr(page).addr(), bytes));
    }

    fn rewind(&mut self, to: usize) {
        self.pages.truncate(to.div_ceil(PAGE));
    }

    fn advance(&mut self, _len: usize) {}

    fn snapshot_len(&self, len: usize) -> usize {
        len * position_bytes(self.pool.shape)
    }

    fn snapshot(&self, len: usize, out: &mut Vec<u8>) -> Result<()> {
        let (page_bytes, position) = (page_bytes(self.pool.shape), position_bytes(self.pool.shape));
        let arenas = self.pool.arenas();
        let buffer = &arenas[self.layer].buffer;
        let numbers: Vec<u32> = self.table(len)?.collect();
        let ranges: Vec<_> = numbers
            .iter()
            .enumerate()
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
        let numbers: Vec<u32> = self.table(len)?.collect();
        let page_bytes = page_bytes(self.pool.shape);
        let arenas = self.pool.arenas();
        for (number, page) in numbers.iter().zip(bytes.chunks(page_bytes)) {
            self.pool.gpu.write(&arenas[self.layer].buffer, *number as usize * page_bytes, &words(page));
        }
        Ok(())
    }
}
