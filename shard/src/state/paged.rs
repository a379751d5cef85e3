//! What a session remembers: keys and values of every position, per layer, in pages.
//!
//! A [`KvCache`] belongs to one session and to one shard's layers. It grows by pages of [`crate::kernels::PAGE`] positions,
//! whose inner layout is the attention kernel's (f16; keys by groups of 16 positions, values position by position).
//! Positions can be cut off again ([`KvCache::truncate`]): rejected speculation, a shared prefix, an edited chat.
//! Cutting frees the pages that no longer hold anything; what stays beyond `len` inside a page is overwritten before
//! it is read.
//!
//! [`KvCache::snapshot`] writes the positions in a fixed order that does not depend on pages, so that equal states are
//! equal bytes: format `SKV1`, little endian,
//!
//! ```text
//! "SKV1"  tag u64  layers u32  kv_heads u32  head_dim u32  len u64
//! layers x len x { key: kv_heads x head_dim x f16, value: the same }
//! ```
//!
//! `tag` names model, layers and rotation (see [`crate::executor::cpu::Shard::kv_tag`]): the keys of one model mean nothing to another.
//!
//! Limits: pages are never shared between sessions; windows do not free old pages.

use crate::{
    Error, Result,
    kernels::{KvPage, KvShape, PAGE, page_len},
};

/// Bytes of a snapshot before the positions.
const HEADER: usize = 4 + 8 + 3 * 4 + 8;
const MAGIC: &[u8; 4] = b"SKV1";
/// Positions whose keys lie together, dimension by dimension.
const GROUP: usize = 16;

/// Keys and values of one session in the layers of one shard.
pub struct KvCache {
    tag: u64,
    shape: KvShape,
    layers: Vec<Vec<KvPage>>,
    len: usize,
    limit: usize,
}

impl KvCache {
    /// An empty cache of `layers` layers that may grow to `limit` positions; see [`crate::executor::cpu::Shard::new_kv`].
    pub fn new(tag: u64, layers: usize, shape: KvShape, limit: usize) -> Self {
        let pages = limit.div_ceil(PAGE);
        let layers = (0..layers).map(|_| Vec::with_capacity(pages.min(64))).collect();
        Self { tag, shape, layers, len: 0, limit }
    }

    /// Positions held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no position is held.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Positions it may grow to.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Which model, layers and rotation the contents belong to.
    pub fn tag(&self) -> u64 {
        self.tag
    }

    /// Bytes of all pages, full or not.
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(|pages| pages.len() * page_len(self.shape) * size_of::<u16>()).sum()
    }

    /// Makes room for `positions` in all, so that forward passes up to there do not allocate.
    ///
    /// # Errors
    /// [`Error::Invalid`] beyond the limit; nothing changes.
    pub fn reserve(&mut self, positions: usize) -> Result<()> {
        if positions > self.limit {
            let limit = self.limit;
            return Err(Error::invalid(format!(
                "the context of {limit} positions is full ({positions} wanted)"
            )));
        }
        let pages = positions.div_ceil(PAGE);
        for layer in &mut self.layers {
            while layer.len() < pages {
                layer.push(vec![0; page_len(self.shape)].into_boxed_slice());
            }
        }
        Ok(())
    }

    /// Forgets all positions from `len` on, and frees the pages that held only those.
    pub fn truncate(&mut self, len: usize) {
        if len < self.len {
            self.len = len;
            self.layers.iter_mut().for_each(|pages| pages.truncate(len.div_ceil(PAGE)));
        }
    }

    /// The pages of the shard's layer `index`, for the kernels.
    pub(crate) fn pages(&self, index: usize) -> &[KvPage] {
        &self.layers[index]
    }

    /// As [`KvCache::pages`], to store into.
    pub(crate) fn pages_mut(&mut self, index: usize) -> &mut [KvPage] {
        &mut self.layers[index]
    }

    /// Counts `positions` more, which a forward pass has stored in every layer.
    pub(crate) fn advance(&mut self, positions: usize) {
        self.len += positions;
    }

    /// Number of layers.
    pub(crate) fn layers(&self) -> usize {
        self.layers.len()
    }

    /// The state as bytes; equal states give equal bytes.
    pub fn snapshot(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.snapshot_len(self.len));
        out.extend(MAGIC);
        out.extend(self.tag.to_le_bytes());
        for number in [self.layers.len(), self.shape.kv_heads, self.shape.head_dim] {
            out.extend((number as u32).to_le_bytes());
        }
        out.extend((self.len as u64).to_le_bytes());
        for pages in &self.layers {
            for position in 0..self.len {
                let page = &pages[position / PAGE];
                for index in self.places(position % PAGE) {
                    out.extend(page[index].to_le_bytes());
                }
            }
        }
        out
    }

    /// Replaces the contents by those of a snapshot taken from a cache of the same model and layers.
    ///
    /// # Errors
    /// [`Error::Malformed`] when the bytes are no snapshot, of something else, or hold a value that is not finite;
    /// [`Error::Invalid`] when they hold more positions than the limit. The cache is left empty then.
    pub fn restore(&mut self, bytes: &[u8]) -> Result<()> {
        self.truncate(0);
        let len = self.check_header(bytes)?;
        self.reserve(len)?;
        let mut values = bytes[HEADER..].chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]));
        for layer in 0..self.layers.len() {
            for position in 0..len {
                for index in self.places(position % PAGE) {
                    let bits = values.next().unwrap_or_default();
                    if bits & 0x7c00 == 0x7c00 {
                        let field = format!("snapshot: layer {layer}, position {position}");
                        self.truncate(0);
                        return Err(Error::malformed(field, "is not finite"));
                    }
                    self.layers[layer][position / PAGE][index] = bits;
                }
            }
        }
        self.len = len;
        Ok(())
    }

    fn check_header(&self, bytes: &[u8]) -> Result<usize> {
        let number =
            |at: usize| bytes[at..at + 4].try_into().map(u32::from_le_bytes).unwrap_or_default() as usize;
        let long = |at: usize| bytes[at..at + 8].try_into().map(u64::from_le_bytes).unwrap_or_default();
        if bytes.len() < HEADER || &bytes[..4] != MAGIC {
            return Err(Error::malformed("snapshot: header", "is no SKV1 snapshot"));
        }
        if long(4) != self.tag {
            return Err(Error::malformed("snapshot: tag", "is of another model, layer range or rotation"));
        }
        let shape = [self.layers.len(), self.shape.kv_heads, self.shape.head_dim];
        if [number(12), number(16), number(20)] != shape {
            return Err(Error::malformed("snapshot: shape", "is of another model"));
        }
        let len = usize::try_from(long(24)).unwrap_or(usize::MAX);
        if len > self.limit {
            let limit = self.limit;
            return Err(Error::invalid(format!("the snapshot has {len} positions, the context {limit}")));
        }
        if bytes.len() != self.snapshot_len(len) {
            return Err(Error::malformed("snapshot: length", "does not fit the number of positions"));
        }
        Ok(len)
    }

    /// Bytes of a snapshot of `len` positions. No overflow: `len` is at most the limit of an existing cache.
    fn snapshot_len(&self, len: usize) -> usize {
        let position = 2 * self.shape.kv_heads * self.shape.head_dim * size_of::<u16>();
        HEADER + self.layers.len() * len * position
    }

    /// Where the key and then the value of position `at` of a page are.
    fn places(&self, at: usize) -> impl Iterator<Item = usize> + use<> {
        let KvShape { kv_heads, head_dim } = self.shape;
        let head = 2 * PAGE * head_dim;
        let key = move |d: usize| (at / GROUP * head_dim + d) * GROUP + at % GROUP;
        let value = move |d: usize| PAGE * head_dim + at * head_dim + d;
        let keys = (0..kv_heads).flat_map(move |h| (0..head_dim).map(move |d| h * head + key(d)));
        let values = (0..kv_heads).flat_map(move |h| (0..head_dim).map(move |d| h * head + value(d)));
        keys.chain(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: KvShape = KvShape { kv_heads: 2, head_dim: 4 };

    fn cache(len: usize, seed: u16) -> KvCache {
        let mut kv = KvCache::new(7, 2, SHAPE, 1000);
        kv.reserve(len).unwrap();
        for (layer, pages) in kv.layers.iter_mut().enumerate() {
            for (p, page) in pages.iter_mut().enumerate() {
                for (i, bits) in page.iter_mut().enumerate() {
                    *bits = ((i * 31 + p * 7 + layer * 3) as u16 ^ seed) & 0x3bff;
                }
            }
        }
        kv.len = len;
        kv
    }

    #[test]
    fn places_cover_a_page_exactly_once() {
        let kv = cache(1, 0);
        let mut seen = vec![0; page_len(SHAPE)];
        (0..PAGE).flat_map(|at| kv.places(at)).for_each(|index| seen[index] += 1);
        assert!(seen.iter().all(|&n| n == 1));
    }

    #[test]
    fn a_snapshot_restores_and_ignores_what_lies_beyond_len() {
        let kv = cache(300, 5);
        let bytes = kv.snapshot();
        let mut other = cache(700, 9);
        other.restore(&bytes).unwrap();
        assert_eq!((other.len(), other.snapshot() == bytes), (300, true));
        other.truncate(299);
        assert_eq!(other.snapshot().len(), bytes.len() - 2 * 2 * 2 * 4 * 2);
    }

    #[test]
    fn damaged_snapshots_are_refused() {
        let kv = cache(3, 5);
        let good = kv.snapshot();
        let mut target = KvCache::new(7, 2, SHAPE, 1000);
        let mut refuse = |bytes: &[u8], what: &str| {
            let error = target.restore(bytes).expect_err(what).to_string();
            assert!(error.contains(what), "{error} should mention {what}");
            assert!(target.is_empty());
        };
        for cut in 0..HEADER {
            refuse(&good[..cut], "header");
        }
        refuse(&good[..good.len() - 1], "length");
        let changed = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            bytes
        };
        refuse(&changed(0, b'X'), "header");
        refuse(&changed(4, 8), "tag");
        refuse(&changed(12, 3), "shape");
        refuse(&changed(24, 4), "length");
        refuse(&changed(31, 0xff), "positions");
        refuse(&changed(good.len() - 1, 0x7c), "not finite");
    }

    #[test]
    fn pages_are_freed_by_truncation_and_refused_beyond_the_limit() {
        let mut kv = cache(600, 1);
        let page = page_len(SHAPE) * 2 * 2;
        assert_eq!(kv.bytes(), 3 * page);
        kv.truncate(256);
        assert_eq!(kv.bytes(), page);
        assert!(kv.reserve(1001).is_err());
        assert_eq!(kv.bytes(), page);
    }
}
