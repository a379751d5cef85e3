//! The state of a layer that recurs, in the device's memory: one vector, replaced by every pass.
//!
//! A pass reads the vector from before it and writes another page, so that a pass that fails has changed nothing; where it
//! crosses a whole multiple of [`CHECKPOINT`] positions, it writes the vector of there to a page of its own, as
//! [`crate::state::recurrent`] keeps it. Pages that are written belong to one session; those that are read are shared.
//!
//! What the kernels know of a session, in its row of the pass's tables (`wgsl/vector.wgsl`): the page that is read, or none
//! before the first position, the one that is written, the session's first row, the number of the first checkpoint that is
//! kept (its position over [`CHECKPOINT`]), and the pages of it and of those that follow.

use std::sync::Arc;

use super::{
    device::words,
    pool::{Arena, Page, PageKind, Pool},
};
use crate::{
    Error, Result,
    executor::batch::Span,
    state::{
        LayerState,
        recurrent::{self, CHECKPOINT, KEPT},
    },
};

/// No page, and no checkpoint.
const NONE: u32 = u32::MAX;
/// Entries in front of the pages of checkpoints.
const HEAD: usize = 4;

/// The vector of one session in one layer.
pub(super) struct DeviceVector {
    pool: Arc<Pool>,
    arena: usize,
    width: usize,
    len: usize,
    /// After the positions held; none before the first.
    now: Option<Arc<Page>>,
    /// After the rows of the pass under way; between passes what `now` was before the last one.
    next: Option<Arc<Page>>,
    /// The positions held before the last pass, while `next` is the state of there.
    earlier: Option<usize>,
    /// Checkpoints at `len` and below, ascending.
    kept: Vec<Checkpoint>,
    /// Those of the pass under way.
    made: Vec<Checkpoint>,
}

#[derive(Clone)]
struct Checkpoint {
    at: usize,
    page: Arc<Page>,
}

/// Multiples of [`CHECKPOINT`] that rows `start..end` reach and whose vectors are kept: the newest ones.
fn reached(start: usize, end: usize) -> std::ops::Range<usize> {
    let (first, last) = (start / CHECKPOINT + 1, end / CHECKPOINT);
    first.max((last + 1).saturating_sub(KEPT))..last + 1
}

/// Entries that the table of a session with these rows needs.
pub(super) fn table_len(span: &Span) -> usize {
    HEAD + reached(span.start, span.start + span.rows).len()
}

/// Entries that tables of passes of `rows` rows need at most.
pub(super) fn most_entries(rows: usize) -> usize {
    HEAD + KEPT.min(rows.div_ceil(CHECKPOINT))
}

impl DeviceVector {
    /// No positions yet, in arena number `arena`.
    pub fn new(pool: Arc<Pool>, arena: usize, width: usize) -> Self {
        Self {
            pool,
            arena,
            width,
            len: 0,
            now: None,
            next: None,
            earlier: None,
            kept: Vec::new(),
            made: Vec::new(),
        }
    }

    /// Makes pages for what the rows of `span` make.
    ///
    /// # Errors
    /// [`Error::Invalid`] without memory.
    pub fn prepare(&mut self, span: &Span, arenas: &mut [Arena]) -> Result<()> {
        self.made.clear();
        self.earlier = None;
        if self.next.as_ref().is_none_or(|page| Arc::strong_count(page) > 1) {
            self.next = Some(self.page(arenas)?);
        }
        for number in reached(span.start, span.start + span.rows) {
            let page = self.page(arenas)?;
            self.made.push(Checkpoint { at: number * CHECKPOINT, page });
        }
        Ok(())
    }

    fn page(&self, arenas: &mut [Arena]) -> Result<Arc<Page>> {
        let full = || Error::invalid("the device has no memory for another session");
        self.pool.page(self.arena, arenas).ok_or_else(full)
    }

    /// The session's table, for the rows that were prepared.
    pub fn table(&self, span: &Span) -> Vec<u32> {
        let number = |page: &Option<Arc<Page>>| page.as_ref().map_or(NONE, |page| page.number);
        let first = self.made.first().map_or(NONE, |made| (made.at / CHECKPOINT) as u32);
        let mut table = vec![number(&self.now), number(&self.next), span.first as u32, first];
        table.extend(self.made.iter().map(|made| made.page.number));
        table
    }

    fn bytes_of_page(&self) -> usize {
        PageKind::Vector(self.width).bytes()
    }

    /// All pages, those of two names once.
    fn pages(&self) -> Vec<&Arc<Page>> {
        let checkpoints = self.kept.iter().chain(&self.made).map(|checkpoint| &checkpoint.page);
        let mut pages: Vec<_> = self.now.iter().chain(&self.next).chain(checkpoints).collect();
        pages.sort_unstable_by_key(|page| page.number);
        pages.dedup_by_key(|page| page.number);
        pages
    }
}

impl LayerState for DeviceVector {
    fn kind(&self) -> String {
        recurrent::kind_of(self.width)
    }

    fn bytes(&self) -> usize {
        self.pages().len() * self.bytes_of_page()
    }

    /// Nothing: a pass takes what it writes, and is refused without memory.
    fn reserve(&mut self, _positions: usize) {}

    fn checkpoint(&self, to: usize) -> usize {
        if to == self.len {
            return to;
        }
        recurrent::last_before(to, self.earlier, self.kept.iter().map(|checkpoint| checkpoint.at))
    }

    fn share(&self, to: usize) -> Option<Box<dyn LayerState>> {
        let mut shared = Self::new(self.pool.clone(), self.arena, self.width);
        (shared.now, shared.len, shared.kept) = (self.now.clone(), self.len, self.kept.clone());
        if self.earlier == Some(to) {
            (shared.next, shared.earlier) = (self.next.clone(), self.earlier);
        }
        shared.rewind(to);
        Some(Box::new(shared))
    }

    fn parts(&self, part: &mut dyn FnMut(usize, usize)) {
        self.pages().into_iter().for_each(|page| part(Arc::as_ptr(page).addr(), self.bytes_of_page()));
    }

    fn rewind(&mut self, to: usize) {
        if to == self.len {
            return;
        }
        while self.kept.pop_if(|checkpoint| checkpoint.at > to).is_some() {}
        let here = self.kept.last().filter(|checkpoint| checkpoint.at == to);
        match self.earlier.take() == Some(to) {
            true => std::mem::swap(&mut self.now, &mut self.next),
            false => self.now = here.map(|checkpoint| checkpoint.page.clone()),
        }
        self.len = to;
    }

    fn advance(&mut self, len: usize) {
        std::mem::swap(&mut self.now, &mut self.next);
        self.earlier = Some(self.len);
        self.len = len;
        self.kept.append(&mut self.made);
        self.kept.drain(..self.kept.len().saturating_sub(KEPT));
    }

    fn snapshot_len(&self, len: usize) -> usize {
        (1 + usize::from(recurrent::before(len).is_some())) * self.bytes_of_page()
    }

    fn snapshot(&self, len: usize, out: &mut Vec<u8>) -> Result<()> {
        let mut pages: Vec<&Arc<Page>> = self.now.iter().collect();
        if let Some(at) = recurrent::before(len) {
            let found = self.kept.iter().find(|checkpoint| checkpoint.at == at);
            pages.push(&found.ok_or_else(|| Error::invalid(format!("no checkpoint at {at}")))?.page);
        }
        if pages.is_empty() {
            out.resize(out.len() + self.bytes_of_page(), 0);
            return Ok(());
        }
        let arenas = self.pool.arenas();
        let place = |page: &Arc<Page>| {
            let at = page.number as usize * self.bytes_of_page();
            (&arenas[self.arena].buffer, at..at + self.bytes_of_page())
        };
        let places: Vec<_> = pages.into_iter().map(place).collect();
        out.extend(self.pool.gpu.finish(self.pool.gpu.encoder(), &places)?);
        Ok(())
    }

    fn restore(&mut self, len: usize, bytes: &[u8]) -> Result<()> {
        self.rewind(0);
        let finite = |b: &[u8; 4]| f32::from_le_bytes(*b).is_finite();
        if !bytes.as_chunks().0.iter().all(finite) {
            return Err(Error::malformed("snapshot: state", "is not finite"));
        }
        let pool = self.pool.clone();
        let mut arenas = pool.arenas();
        let mut pages = Vec::new();
        for vector in bytes.chunks(self.bytes_of_page()) {
            let page = self.page(&mut arenas)?;
            pool.gpu.write(&arenas[self.arena].buffer, page.number as usize * vector.len(), &words(vector));
            pages.push(page);
        }
        let mut pages = pages.into_iter();
        self.now = pages.next().filter(|_| len > 0);
        self.len = len;
        let at = if len.is_multiple_of(CHECKPOINT) { Some(len) } else { recurrent::before(len) };
        if let Some((at, page)) = at.filter(|at| *at > 0).zip(pages.next().or_else(|| self.now.clone())) {
            self.kept.push(Checkpoint { at, page });
        }
        Ok(())
    }
}
