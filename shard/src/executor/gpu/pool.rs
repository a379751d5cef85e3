//! What sessions remember in the device's memory: pages in one buffer, the arena, for each thing that a layer remembers.
//!
//! Of attention a page is [`PAGE`] positions (`state`), of a layer that recurs it is one vector (`vector`). Pages belong to a
//! [`Pool`]; sessions that begin alike share them.
//!
//! Limits: an arena grows by copying, up to what one binding of the device holds. What is set aside for a session when layers are
//! loaded counts all positions, also where a layer with a window will free them.

use std::{
    ops::Range,
    sync::{Arc, Mutex, MutexGuard},
};

use super::{
    device::{Gpu, Reserved},
    driver::locked,
};
use crate::{
    Result,
    kernels::{KvShape, PAGE},
    state::{Kind, recurrent},
};

/// What a page is.
#[derive(Clone, Copy, Debug)]
pub(super) enum PageKind {
    /// Keys and values of [`PAGE`] positions.
    Positions(KvShape),
    /// One vector of so many values.
    Vector(usize),
    /// Nothing: the layer remembers nothing.
    Nothing,
}

impl PageKind {
    /// Those of a state of `kind`: of each thing that it is.
    pub fn of(kind: Kind) -> Vec<Self> {
        match kind {
            Kind::Paged(shape) => vec![Self::Positions(shape)],
            Kind::Recurrent { width } => vec![Self::Vector(width)],
            Kind::Beside { kv, width } => vec![Self::Positions(kv), Self::Vector(width)],
            Kind::Nothing => vec![Self::Nothing],
        }
    }

    /// Bytes of a page.
    pub fn bytes(self) -> usize {
        match self {
            Self::Positions(shape) => PAGE * position_bytes(shape),
            Self::Vector(width) => width * size_of::<f32>(),
            Self::Nothing => size_of::<u32>(),
        }
    }

    /// How many pages an arena that has `pages` grows to: those of attention double, vectors are few and large.
    fn grown(self, pages: usize) -> usize {
        match self {
            Self::Positions(_) | Self::Nothing => 2 * pages,
            Self::Vector(_) => pages + FIRST_PAGES,
        }
    }

    /// Pages that a session of `context` positions takes.
    fn of_session(self, context: usize) -> usize {
        match self {
            Self::Positions(_) => context.div_ceil(PAGE),
            Self::Nothing => 0,
            Self::Vector(_) => 2 + 2 * recurrent::KEPT.min(context / recurrent::CHECKPOINT),
        }
    }

    /// Bytes that an arena takes at most while it comes to hold a session of `context` positions: what is copied lies beside the
    /// larger one.
    pub fn growth_bytes(self, context: usize) -> u64 {
        let (mut before, mut pages) = (0, FIRST_PAGES);
        while pages < self.of_session(context) {
            (before, pages) = (pages, self.grown(pages));
        }
        ((before + pages) * self.bytes()) as u64
    }
}

/// Bytes of a position.
pub(super) fn position_bytes(shape: KvShape) -> usize {
    shape.position_len() * size_of::<u16>()
}

/// Pages that a layer's buffer begins with.
const FIRST_PAGES: usize = 4;

/// Pages of one kind.
pub(super) struct Arena {
    pub buffer: wgpu::Buffer,
    kind: PageKind,
    pages: usize,
    _memory: Reserved,
}

impl Arena {
    fn new(gpu: &Gpu, kind: PageKind, pages: usize) -> Result<Self> {
        let bytes = pages * kind.bytes();
        Ok(Self { _memory: gpu.reserve(bytes)?, buffer: gpu.buffer("pages", bytes), kind, pages })
    }
}

/// The pages of all layers that an executor holds.
pub(super) struct Pool {
    pub gpu: Arc<Gpu>,
    /// Those of each layer, and the number of its first.
    layers: Vec<(usize, Vec<PageKind>)>,
    arenas: Mutex<Vec<Arena>>,
    /// Pages of each arena that no session has.
    free: Mutex<Vec<Vec<u32>>>,
}

/// One page; given back when no session has it any more.
pub(super) struct Page {
    pool: Arc<Pool>,
    arena: usize,
    pub number: u32,
}

impl Drop for Page {
    fn drop(&mut self) {
        locked(&self.pool.free)[self.arena].push(self.number);
    }
}

impl Pool {
    /// Room for sessions in layers of these kinds.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the device has no memory for the first pages.
    pub fn new(gpu: Arc<Gpu>, kinds: impl Iterator<Item = Kind>) -> Result<Arc<Self>> {
        let (mut layers, mut arenas) = (Vec::new(), Vec::new());
        for kind in kinds {
            let pages = PageKind::of(kind);
            layers.push((arenas.len(), pages.clone()));
            for kind in pages {
                arenas.push(Arena::new(&gpu, kind, FIRST_PAGES)?);
            }
        }
        let free = Mutex::new(vec![(0..FIRST_PAGES as u32).rev().collect(); arenas.len()]);
        Ok(Arc::new(Self { gpu, layers, arenas: Mutex::new(arenas), free }))
    }

    /// The numbers of the arenas of `layer` of those held.
    pub fn of_layer(&self, layer: usize) -> Range<usize> {
        let (first, kinds) = &self.layers[layer];
        *first..first + kinds.len()
    }

    /// How many arenas there are.
    pub fn count(&self) -> usize {
        self.layers.iter().map(|(_, kinds)| kinds.len()).sum()
    }

    /// What the pages of `layer` of those held are.
    pub fn kinds(&self, layer: usize) -> &[PageKind] {
        &self.layers[layer].1
    }

    /// All arenas; while they are held, none grows.
    pub fn arenas(&self) -> MutexGuard<'_, Vec<Arena>> {
        locked(&self.arenas)
    }

    /// A page of arena `number`, which grows if it has none left; `None` at the limit of the device.
    pub fn page(self: &Arc<Self>, number: usize, arenas: &mut [Arena]) -> Option<Arc<Page>> {
        let mut free = locked(&self.free);
        if free[number].is_empty() {
            let arena = &mut arenas[number];
            let kind = arena.kind;
            let bytes = kind.bytes();
            let most = usize::try_from(self.gpu.info().binding_bytes).unwrap_or(usize::MAX) / bytes;
            let pages = kind.grown(arena.pages).min(most);
            if pages <= arena.pages {
                return None;
            }
            let larger = Arena::new(&self.gpu, kind, pages).and_then(|larger| {
                self.gpu.check()?;
                let mut encoder = self.gpu.encoder();
                let held = (arena.pages * bytes) as u64;
                encoder.copy_buffer_to_buffer(&arena.buffer, 0, &larger.buffer, 0, held);
                self.gpu.finish(encoder, &[]).map(|_| larger)
            });
            // The pass that needs the page is refused, and the device goes on.
            let larger = larger.ok()?;
            free[number].extend((arena.pages as u32..pages as u32).rev());
            *arena = larger;
        }
        let page = free[number].pop()?;
        Some(Arc::new(Page { pool: self.clone(), arena: number, number: page }))
    }
}
