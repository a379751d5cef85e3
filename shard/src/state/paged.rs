//! Keys and values of every position, or of those that rows still look at, in pages.
//!
//! A [`Paged`] grows by quarters of a page, [`crate::kernels::QUARTER`] positions, whose inner layout is the attention kernel's (f16, or
//! codes of 8 or 4 bits with their scales; keys by groups of 16 positions, values position by position). Going back frees the quarters that no longer hold anything; what
//! stays beyond the positions held inside one is overwritten before it is read. A snapshot writes the positions in a
//! fixed order that does not depend on pages:
//!
//! ```text
//! len x { key: kv_heads x head_dim x f16, value: the same, unless it is a part of the key }
//! len x { kv_heads x { blocks of the key x { codes, scale f16 }, those of the value } }         for q8 and q4
//! ```
//!
//! the first 64 positions of `q4` as those of f16. What quarters of `q4` are relative to follows from the positions before them, and a snapshot
//! does not hold it.
//!
//! A layer whose rows see a window, or a block, frees whole pages that no row will look at again, as [`super::behind`] says: empty quarters
//! stand there, so that the number of a position's quarter never changes. Its snapshot begins with the first page
//! that the next row needs, for `q4` with what that page's first quarter is relative to.
//!
//! A session with sparse attention has landmarks beside its pages ([`crate::kernels::attention::landmarks`]). They follow from the
//! pages, so a snapshot does not hold them: what restores it computes them again, with the same bits. Those of blocks that
//! are no longer whole after going back are overwritten before they are read.
//!
//! A quarter is copied when it is written to: sessions that begin alike share those that both have ([`LayerState::share`]).
//!
//! Limits: what two sessions share ends with the last whole quarter of both. Layers that see by a sparse rule keep all pages.

use std::{ops::Range, sync::Arc};

use scheduler::{
    attention::{AttentionKind, Sparse},
    session_kind::{CACHE_BLOCK, CacheType},
};

use super::{Back, LayerState};
use crate::{
    Error, Result,
    kernels::{
        Cpu, Far, KvQuarter, KvShape, QUARTER,
        attention::{
            landmarks::{self, landmark_len},
            small::{Layout, reference},
        },
        gone_quarter, new_quarter, quarter_len,
    },
};

/// Positions whose keys lie together, dimension by dimension.
const GROUP: usize = 16;

/// Keys and values of one session in one layer.
pub struct Paged {
    shape: KvShape,
    pages: Vec<KvQuarter>,
    attention: AttentionKind,
    sparse: Option<SparseLayer>,
    /// What rows see, if not all positions before them.
    back: Back,
    /// Quarters that are free, of the first ones.
    gone: usize,
    /// Positions held.
    len: usize,
}

/// What sparse attention needs besides pages.
#[derive(Clone)]
struct SparseLayer {
    rule: Sparse,
    landmarks: Vec<u16>,
    /// Who computes landmarks when a snapshot is restored.
    cpu: Arc<Cpu>,
}

impl SparseLayer {
    /// Landmark values of `positions` positions.
    fn len(rule: Sparse, shape: KvShape, positions: usize) -> usize {
        positions.checked_div(rule.block as usize).unwrap_or(0) * landmark_len(shape)
    }
}

impl Paged {
    /// No positions yet, at most `limit`.
    pub fn new(shape: KvShape, limit: usize) -> Self {
        let pages = Vec::with_capacity(limit.div_ceil(QUARTER).min(256));
        let (attention, sparse, back) = (AttentionKind::Dense, None, Back::ALL);
        Self { shape, pages, attention, sparse, back, gone: 0, len: 0 }
    }

    /// The same for a layer whose rows see no further than `back`.
    pub fn looking(self, back: Back) -> Self {
        Self { back, ..self }
    }

    /// The same for a session of another kind of attention; `rule` is what this layer sees beyond a window, and `cpu` is
    /// who computes its landmarks.
    pub(crate) fn attending(self, attention: AttentionKind, rule: Option<Sparse>, cpu: &Arc<Cpu>) -> Self {
        let sparse = rule.map(|rule| SparseLayer { rule, landmarks: Vec::new(), cpu: cpu.clone() });
        Self { attention, sparse, ..self }
    }

    /// What the rows of a pass see beyond their window.
    pub(crate) fn far(&self) -> Option<Far<'_>> {
        self.sparse.as_ref().map(|sparse| Far { rule: sparse.rule, landmarks: &sparse.landmarks })
    }

    /// Computes the landmarks of blocks that end inside `stored`, positions that have just been stored.
    pub(crate) fn mark(&mut self, stored: Range<usize>) {
        if let Some(SparseLayer { rule: Sparse { block: block @ 1.., .. }, landmarks, cpu }) =
            &mut self.sparse
        {
            landmarks::store(cpu, &self.pages, self.shape, *block as usize, stored, landmarks);
        }
    }

    /// Gives `to`, which has none, the first `positions` positions to share.
    pub(super) fn lend(&self, positions: usize, to: &mut Self) {
        to.pages.extend(self.pages.iter().take(positions.div_ceil(QUARTER)).cloned());
        to.attention = self.attention;
    }

    /// Frees what stands before `first`, which begins a page.
    fn free(&mut self, first: usize) {
        for quarter in self.gone..first / QUARTER {
            match self.pages.get_mut(quarter) {
                Some(page) => *page = gone_quarter(),
                None => self.pages.push(gone_quarter()),
            }
            self.gone = quarter + 1;
        }
    }

    /// Makes room up to `positions`.
    fn grow(&mut self, positions: usize) {
        while self.pages.len() < positions.div_ceil(QUARTER) {
            self.pages.push(new_quarter(self.shape, self.pages.len(), 0));
        }
        if let Some(sparse) = &mut self.sparse {
            let len = SparseLayer::len(sparse.rule, self.shape, positions);
            if sparse.landmarks.len() < len {
                sparse.landmarks.resize(len, 0);
            }
        }
    }

    /// Numbers of f16 that the first quarter of a snapshot from position `first` on is relative to.
    fn referred(&self, first: usize) -> usize {
        if first == 0 { 0 } else { self.shape.in_quarter(first / QUARTER).reference_len() }
    }

    /// Bytes of `positions` positions, whole quarters of pages.
    pub fn bytes_for(shape: KvShape, positions: usize) -> usize {
        let quarters = positions.div_ceil(QUARTER);
        let first = if quarters > 0 { quarter_len(shape.in_quarter(0)) } else { 0 };
        (first + quarters.saturating_sub(1) * quarter_len(shape)) * size_of::<u16>()
    }

    /// Bytes that each further position takes.
    pub fn position_bytes(shape: KvShape) -> usize {
        (quarter_len(shape) * size_of::<u16>()).div_ceil(QUARTER)
    }

    /// The heads of the pages, and their form.
    pub(crate) fn shape(&self) -> KvShape {
        self.shape
    }

    /// The pages, quarter by quarter, for the kernels.
    pub(crate) fn pages(&self) -> &[KvQuarter] {
        &self.pages
    }

    /// As [`Paged::pages`], to store into.
    pub(crate) fn pages_mut(&mut self) -> &mut [KvQuarter] {
        &mut self.pages
    }

    /// Where the key and then the value of position `at` of a quarter of `shape` are, and which of it are f16 numbers.
    fn each_place(shape: KvShape, at: usize, mut visit: impl FnMut(usize, bool)) {
        match shape.cache {
            CacheType::F16 => Self::whole_places(shape, at).for_each(|place| visit(place, true)),
            CacheType::Q8 | CacheType::Q4 => {
                Self::small_places(shape, at).for_each(|(place, number)| visit(place, number));
            }
        }
    }

    /// The places where codes are kept.
    fn small_places(shape: KvShape, at: usize) -> impl Iterator<Item = (usize, bool)> {
        let layout = Layout::of(shape);
        let head = QUARTER * shape.head_len();
        let blocks = shape.head_dim.div_ceil(CACHE_BLOCK);
        let of = move |h: usize| {
            let keys = (0..blocks).flat_map(move |block| layout.key_units(at, block));
            let values = (0..blocks).flat_map(move |block| layout.value_units(at, block));
            keys.chain(values).map(move |(place, number)| (h * head + place, number))
        };
        (0..shape.kv_heads).flat_map(of)
    }

    /// The places where f16 numbers are kept.
    fn whole_places(shape: KvShape, at: usize) -> impl Iterator<Item = usize> {
        let KvShape { kv_heads, head_dim, latent, .. } = shape;
        let head = QUARTER * shape.head_len();
        let valued = if latent.is_some() { 0 } else { kv_heads };
        let key = move |d: usize| (at / GROUP * head_dim + d) * GROUP + at % GROUP;
        let value = move |d: usize| QUARTER * head_dim + at * head_dim + d;
        let keys = (0..kv_heads).flat_map(move |h| (0..head_dim).map(move |d| h * head + key(d)));
        let values = (0..valued).flat_map(move |h| (0..head_dim).map(move |d| h * head + value(d)));
        keys.chain(values)
    }
}

/// Form and heads of pages, and how far back rows look, in words.
pub(crate) fn kind_of(shape: KvShape, back: Back) -> String {
    let KvShape { kv_heads, head_dim, latent, cache } = shape;
    let mut kind = format!("paged {cache} {kv_heads} x {head_dim}");
    if let Some(values) = latent {
        kind += &format!(", {values} of them values");
    }
    if !back.is_all() {
        kind += &format!(", {back}");
    }
    kind
}

impl LayerState for Paged {
    fn kind(&self) -> String {
        let mut kind = kind_of(self.shape, self.back);
        if !self.attention.is_dense() {
            kind += &format!(", {}", self.attention);
        }
        kind
    }

    fn bytes(&self) -> usize {
        let landmarks = self.sparse.as_ref().map_or(0, |sparse| sparse.landmarks.len());
        let pages: usize = self.pages.iter().map(|page| page.len()).sum();
        (pages + landmarks) * size_of::<u16>()
    }

    fn reserve(&mut self, positions: usize) {
        let first = self.gone * QUARTER;
        self.grow(positions.min(first + self.back.most(positions)));
    }

    fn prepare(&mut self, positions: usize) {
        self.free(self.back.stays(self.len, positions));
        self.grow(positions);
    }

    fn forgets(&self, len: usize, to: usize) -> bool {
        self.back.kept(len) > self.back.kept(to)
    }

    fn checkpoint(&self, to: usize) -> usize {
        if self.gone * QUARTER <= self.back.kept(to) { to } else { 0 }
    }

    fn share(&self, to: usize) -> Option<Box<dyn LayerState>> {
        let mut pages = Vec::with_capacity(self.pages.capacity());
        pages.extend(self.pages.iter().take(to.div_ceil(QUARTER)).cloned());
        let sparse = self.sparse.clone().map(|mut sparse| {
            sparse.landmarks.truncate(SparseLayer::len(sparse.rule, self.shape, to));
            sparse
        });
        let gone = self.gone.min(pages.len());
        Some(Box::new(Self { pages, sparse, gone, len: to, ..*self }))
    }

    fn parts(&self, part: &mut dyn FnMut(usize, usize)) {
        let held = self.pages.iter().skip(self.gone);
        held.for_each(|page| part(page.as_ptr().addr(), page.len() * size_of::<u16>()));
        if let Some(SparseLayer { landmarks, .. }) = self.sparse.as_ref().filter(|s| !s.landmarks.is_empty())
        {
            part(landmarks.as_ptr().addr(), landmarks.len() * size_of::<u16>());
        }
    }

    fn rewind(&mut self, to: usize) {
        self.pages.truncate(to.div_ceil(QUARTER));
        (self.gone, self.len) = (self.gone.min(self.pages.len()), to);
        if let Some(sparse) = &mut self.sparse {
            sparse.landmarks.truncate(SparseLayer::len(sparse.rule, self.shape, to));
        }
    }

    fn advance(&mut self, len: usize) {
        self.free(self.back.stays(self.len, len));
        self.len = len;
    }

    fn snapshot_len(&self, len: usize) -> usize {
        let first = self.back.kept(len);
        let begins = if first == 0 { len.min(QUARTER) } else { 0 };
        let units = begins * self.shape.in_quarter(0).position_len()
            + (len - first - begins) * self.shape.position_len();
        (self.referred(first) + units) * size_of::<u16>()
    }

    fn snapshot(&self, len: usize, out: &mut Vec<u8>) -> Result<()> {
        let first = self.back.kept(len);
        if self.gone * QUARTER > first {
            return Err(Error::invalid(format!("position {first} of a layer with a window is gone")));
        }
        if self.referred(first) > 0 {
            let quarter = &self.pages[first / QUARTER];
            quarter[reference::begins(self.shape)..].iter().for_each(|bits| out.extend(bits.to_le_bytes()));
        }
        for position in first..len {
            let quarter = position / QUARTER;
            let page = &self.pages[quarter];
            Self::each_place(self.shape.in_quarter(quarter), position % QUARTER, |index, _| {
                out.extend(page[index].to_le_bytes())
            });
        }
        Ok(())
    }

    fn restore(&mut self, len: usize, bytes: &[u8]) -> Result<()> {
        let mut values = bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]));
        let is_finite = |bits: u16| bits & 0x7c00 != 0x7c00;
        let refuse = |position| Error::malformed(format!("snapshot: position {position}"), "is not finite");
        let first = self.back.kept(len);
        self.free(first);
        self.grow(len);
        self.len = len;
        if self.referred(first) > 0 {
            let quarter = Arc::make_mut(&mut self.pages[first / QUARTER]);
            for to in &mut quarter[reference::begins(self.shape)..] {
                *to = values.next().filter(|bits| is_finite(*bits)).ok_or_else(|| refuse(first))?;
            }
        }
        for position in first..len {
            let (quarter, at) = (position / QUARTER, position % QUARTER);
            if position > first || first == 0 {
                reference::begin(&mut self.pages, self.shape, quarter, at);
            }
            let (page, mut finite) = (Arc::make_mut(&mut self.pages[quarter]), true);
            Self::each_place(self.shape.in_quarter(quarter), at, |index, number| {
                let bits = values.next().unwrap_or_default();
                finite &= !number || is_finite(bits);
                page[index] = bits;
            });
            if !finite {
                return Err(refuse(position));
            }
        }
        self.mark(0..len);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::attention;

    #[test]
    fn places_cover_a_quarter_exactly_once() {
        let shape = |latent, dim, cache| KvShape { latent, cache, ..KvShape::new(2, dim) };
        for shape in [
            shape(None, 4, CacheType::F16),
            shape(Some(3), 4, CacheType::F16),
            shape(None, 4, CacheType::Q8),
            shape(None, 80, CacheType::Q8),
            shape(None, 64, CacheType::Q4),
            shape(None, 33, CacheType::Q4),
        ] {
            let mut seen = vec![0; quarter_len(shape)];
            (0..QUARTER).for_each(|at| Paged::each_place(shape, at, |index, _| seen[index] += 1));
            // Behind the positions of `q4` is what they are relative to.
            let (stored, reference) = seen.split_at(QUARTER * shape.position_len());
            assert!(stored.iter().all(|&n| n == 1), "{shape:?}");
            assert!(reference.iter().all(|&n| n == 0), "{shape:?}");
        }
    }

    /// What is restored goes on like what was never away, wherever a quarter ends.
    #[test]
    fn a_restored_state_stores_what_the_first_one_stores() {
        let cpu = Cpu::new(crate::kernels::Isa::detect(), crate::kernels::threads::Pool::new(2, false));
        let row = |i: usize| ((i * 37 % 101) as f32 - 30.0) / 17.0;
        let rows: Vec<f32> = (0..300 * 2 * 40).map(row).collect();
        for cache in CacheType::ALL {
            let shape = KvShape { cache, ..KvShape::new(2, 40) };
            let store = |state: &mut Paged, range: Range<usize>| {
                state.reserve(range.end);
                let rows = &rows[range.start * 80..range.end * 80];
                attention::store_kv(&cpu, state.pages_mut(), shape, rows, rows, range.start);
            };
            for len in [0, 1, 63, 64, 65, 128, 200, 256] {
                let (mut first, mut second) = (Paged::new(shape, 300), Paged::new(shape, 300));
                store(&mut first, 0..len);
                let mut bytes = Vec::new();
                first.snapshot(len, &mut bytes).unwrap();
                assert_eq!(bytes.len(), first.snapshot_len(len), "{cache}");
                second.reserve(len);
                second.restore(len, &bytes).unwrap();
                // One goes on at once, the other a row at a time, back and forth.
                store(&mut first, len..300);
                for at in len..300 {
                    store(&mut second, at..at + 1);
                    if at % 7 == 0 && at > len {
                        second.rewind(at);
                        store(&mut second, at..at + 1);
                    }
                }
                assert_eq!(first.bytes(), Paged::bytes_for(shape, 300), "{cache}");
                for (number, (a, b)) in first.pages.iter().zip(&second.pages).enumerate() {
                    assert!(a == b, "{cache}: quarter {number} behind {len} positions");
                }
            }
        }
    }
}
