//! Keys and values of every position, in pages.
//!
//! A [`Paged`] grows by pages of [`crate::kernels::PAGE`] positions, whose inner layout is the attention kernel's (f16; keys by
//! groups of 16 positions, values position by position). Going back frees the pages that no longer hold anything; what
//! stays beyond the positions held inside a page is overwritten before it is read. A snapshot writes the positions in a
//! fixed order that does not depend on pages:
//!
//! ```text
//! len x { key: kv_heads x head_dim x f16, value: the same, unless it is a part of the key }
//! ```
//!
//! Pages are copied when they are written to: sessions that begin alike share those that both have ([`LayerState::share`]).
//!
//! Limits: what two sessions share ends with the last whole page of both; windows do not free old pages.

use std::sync::Arc;

use super::LayerState;
use crate::{
    Error, Result,
    kernels::{KvPage, KvShape, PAGE, new_page, page_len},
};

/// Positions whose keys lie together, dimension by dimension.
const GROUP: usize = 16;

/// Keys and values of one session in one layer.
pub struct Paged {
    shape: KvShape,
    pages: Vec<KvPage>,
}

impl Paged {
    /// No positions yet, at most `limit`.
    pub fn new(shape: KvShape, limit: usize) -> Self {
        Self { shape, pages: Vec::with_capacity(limit.div_ceil(PAGE).min(64)) }
    }

    /// Bytes of `positions` positions, whole pages.
    pub fn bytes_for(shape: KvShape, positions: usize) -> usize {
        positions.div_ceil(PAGE) * page_len(shape) * size_of::<u16>()
    }

    /// The pages, for the kernels.
    pub(crate) fn pages(&self) -> &[KvPage] {
        &self.pages
    }

    /// As [`Paged::pages`], to store into.
    pub(crate) fn pages_mut(&mut self) -> &mut [KvPage] {
        &mut self.pages
    }

    /// Where the key and then the value of position `at` of a page are.
    fn places(shape: KvShape, at: usize) -> impl Iterator<Item = usize> {
        let KvShape { kv_heads, head_dim, latent } = shape;
        let head = PAGE * shape.head_len();
        let valued = if latent.is_some() { 0 } else { kv_heads };
        let key = move |d: usize| (at / GROUP * head_dim + d) * GROUP + at % GROUP;
        let value = move |d: usize| PAGE * head_dim + at * head_dim + d;
        let keys = (0..kv_heads).flat_map(move |h| (0..head_dim).map(move |d| h * head + key(d)));
        let values = (0..valued).flat_map(move |h| (0..head_dim).map(move |d| h * head + value(d)));
        keys.chain(values)
    }
}

impl LayerState for Paged {
    fn kind(&self) -> String {
        let KvShape { kv_heads, head_dim, latent } = self.shape;
        match latent {
            None => format!("paged f16 {kv_heads} x {head_dim}"),
            Some(values) => format!("paged f16 {kv_heads} x {head_dim}, {values} of them values"),
        }
    }

    fn bytes(&self) -> usize {
        self.pages.len() * page_len(self.shape) * size_of::<u16>()
    }

    fn reserve(&mut self, positions: usize) {
        while self.pages.len() < positions.div_ceil(PAGE) {
            self.pages.push(new_page(self.shape, 0));
        }
    }

    fn share(&self, to: usize) -> Option<Box<dyn LayerState>> {
        let mut pages = Vec::with_capacity(self.pages.capacity());
        pages.extend(self.pages.iter().take(to.div_ceil(PAGE)).cloned());
        Some(Box::new(Self { shape: self.shape, pages }))
    }

    fn parts(&self, part: &mut dyn FnMut(usize, usize)) {
        let bytes = page_len(self.shape) * size_of::<u16>();
        self.pages.iter().for_each(|page| part(page.as_ptr().addr(), bytes));
    }

    fn rewind(&mut self, to: usize) {
        self.pages.truncate(to.div_ceil(PAGE));
    }

    fn advance(&mut self, _len: usize) {}

    fn snapshot_len(&self, len: usize) -> usize {
        len * self.shape.position_len() * size_of::<u16>()
    }

    fn snapshot(&self, len: usize, out: &mut Vec<u8>) -> Result<()> {
        for position in 0..len {
            let page = &self.pages[position / PAGE];
            for index in Self::places(self.shape, position % PAGE) {
                out.extend(page[index].to_le_bytes());
            }
        }
        Ok(())
    }

    fn restore(&mut self, len: usize, bytes: &[u8]) -> Result<()> {
        let mut values = bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]));
        for position in 0..len {
            for index in Self::places(self.shape, position % PAGE) {
                let bits = values.next().unwrap_or_default();
                if bits & 0x7c00 == 0x7c00 {
                    return Err(Error::malformed(format!("snapshot: position {position}"), "is not finite"));
                }
                Arc::make_mut(&mut self.pages[position / PAGE])[index] = bits;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_cover_a_page_exactly_once() {
        for latent in [None, Some(3)] {
            let shape = KvShape { latent, ..KvShape::new(2, 4) };
            let mut seen = vec![0; page_len(shape)];
            (0..PAGE).flat_map(|at| Paged::places(shape, at)).for_each(|index| seen[index] += 1);
            assert!(seen.iter().all(|&n| n == 1));
        }
    }
}
