//! What a session remembers between passes.
//!
//! A [`SessionState`] belongs to one session and to one executor's layers; it is made of one [`LayerState`] per layer. What a
//! layer remembers is a property of the layer ([`Kind`]): [`paged`] holds keys and values in pages, of every position or of those that a window leaves ([`behind`]), [`recurrent`] one vector, and [`evicting`] those keys and values that a session looks at most. A
//! session that goes back (rejected speculation, a shared prefix, an edited chat) asks for a position and is told which one
//! it got: pages keep any, or a window's last ones, a state without a history keeps only its checkpoints, so what lies behind them has to be computed
//! again from there.
//!
//! [`SessionState::snapshot`] writes a state so that equal states are equal bytes: format `SST1`, little endian,
//!
//! ```text
//! "SST1"  tag u64  layers u32  kinds u64  len u64
//! layers x what the layer writes
//! ```
//!
//! `tag` names model, layers and rotation (see [`crate::executor::Executor::state_tag`]): the state of one model means nothing
//! to another. `kinds` is a digest of what kind of state each layer has.
//!
//! [`pieces`] reads and restores it a piece at a time. [`prefix`] keeps finished sessions for prompts that begin alike.

pub mod behind;
mod beside;
pub mod evicting;
mod kind;
pub(crate) mod look;
mod nothing;
pub mod paged;
pub mod pieces;
pub mod prefix;
pub mod recurrent;

use std::any::Any;

use scheduler::SessionKind;

use crate::{Error, Result};
pub use behind::Back;
pub use beside::Beside;
pub use evicting::Evicting;
pub use kind::Kind;
pub use nothing::Nothing;
pub use paged::Paged;
pub use pieces::{SnapshotReader, SnapshotWriter};
pub use prefix::PrefixCache;
pub use recurrent::Recurrent;

/// Bytes of a snapshot before the layers.
const HEADER: usize = 4 + 8 + 4 + 8 + 8;
const MAGIC: &[u8; 4] = b"SST1";

/// What one layer of one session remembers.
///
/// A pass stores what it computes beyond the positions held, and [`LayerState::advance`] makes it count; until then the
/// state is the one before the pass, so that a pass that fails has changed nothing. How many positions are held is the
/// session's to know ([`SessionState::len`]).
pub trait LayerState: Any + Send {
    /// Kind and shape in words; states with equal ones can restore each other's snapshots.
    fn kind(&self) -> String;

    /// Bytes in memory.
    fn bytes(&self) -> usize;

    /// Makes room for `positions` in all, so that passes up to there do not allocate; a layer with a window for those that it keeps
    /// at most.
    fn reserve(&mut self, positions: usize);

    /// Makes room for a pass up to `positions`, and may free what none of its rows looks at.
    fn prepare(&mut self, positions: usize) {
        self.reserve(positions);
    }

    /// Whether a state of `len` positions that was restored cannot go back to `to`, since what a row there sees is behind a window and
    /// in no snapshot.
    fn forgets(&self, _len: usize, _to: usize) -> bool {
        false
    }

    /// The last position at or before `to` that the state can go back to without computing; `to` is at most the positions held.
    fn checkpoint(&self, to: usize) -> usize {
        to
    }

    /// Another state of what lies before `to`, a position that [`LayerState::checkpoint`] gave; both share memory where they
    /// can, and neither sees what the other does from then on. `None` for a kind that cannot be had twice.
    fn share(&self, _to: usize) -> Option<Box<dyn LayerState>> {
        None
    }

    /// Names each piece of memory that it is made of, once, and its bytes: pieces of one name in two states are shared.
    fn parts(&self, part: &mut dyn FnMut(usize, usize)) {
        part(std::ptr::from_ref(self).addr(), self.bytes());
    }

    /// Forgets everything from `to` on, which is a position that [`LayerState::checkpoint`] gave.
    fn rewind(&mut self, to: usize);

    /// A pass has computed every position before `len`.
    fn advance(&mut self, len: usize);

    /// Bytes of a snapshot of `len` positions. No overflow: `len` is at most the limit of the session.
    fn snapshot_len(&self, len: usize) -> usize;

    /// Appends the state of `len` positions.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the device does not give its memory.
    fn snapshot(&self, len: usize, out: &mut Vec<u8>) -> Result<()>;

    /// Replaces the state by that of a snapshot of `len` positions, `bytes` of [`LayerState::snapshot_len`].
    ///
    /// # Errors
    /// [`Error::Malformed`] for a value that is not finite; the state is unspecified then, until it is rewound to 0.
    fn restore(&mut self, len: usize, bytes: &[u8]) -> Result<()>;
}

/// What one session remembers in the layers of one executor.
pub struct SessionState {
    tag: u64,
    layers: Vec<Box<dyn LayerState>>,
    kind: SessionKind,
    len: usize,
    limit: usize,
}

impl SessionState {
    /// An empty state of `layers` that may grow to `limit` positions; see [`crate::executor::Executor::new_state`].
    pub fn new(tag: u64, layers: Vec<Box<dyn LayerState>>, limit: usize) -> Self {
        Self { tag, layers, kind: SessionKind::DEFAULT, len: 0, limit }
    }

    /// The same for layers that were made for another kind of session.
    pub fn with_kind(self, kind: SessionKind) -> Self {
        Self { kind, ..self }
    }

    /// What the rows of this session see, and how keys and values are kept.
    pub fn kind(&self) -> SessionKind {
        self.kind
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

    /// Which model, layers, rotation and kind of executor the contents belong to.
    pub fn tag(&self) -> u64 {
        self.tag
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(|layer| layer.bytes()).sum()
    }

    /// As [`LayerState::parts`], of all layers.
    pub fn parts(&self, part: &mut dyn FnMut(usize, usize)) {
        self.layers.iter().for_each(|layer| layer.parts(part));
    }

    /// Makes room for `positions` in all, so that passes up to there do not allocate; layers with a window make it for those that
    /// they keep, and exchange them.
    ///
    /// # Errors
    /// [`Error::Invalid`] beyond the limit; nothing changes.
    pub fn reserve(&mut self, positions: usize) -> Result<()> {
        self.check_room(positions)?;
        self.layers.iter_mut().for_each(|layer| layer.reserve(positions));
        Ok(())
    }

    /// Makes room for a pass of `rows` rows behind the positions held. Whether it succeeds or not, the state can go back to those.
    ///
    /// # Errors
    /// Those of [`SessionState::reserve`].
    pub fn prepare(&mut self, rows: usize) -> Result<()> {
        let positions = self.len.saturating_add(rows);
        self.check_room(positions)?;
        self.layers.iter_mut().for_each(|layer| layer.prepare(positions));
        Ok(())
    }

    fn check_room(&self, positions: usize) -> Result<()> {
        if positions > self.limit {
            let limit = self.limit;
            return Err(Error::invalid(format!(
                "the context of {limit} positions is full ({positions} wanted)"
            )));
        }
        Ok(())
    }

    /// As [`LayerState::forgets`], of any layer.
    pub fn forgets(&self, len: usize, to: usize) -> bool {
        self.layers.iter().any(|layer| layer.forgets(len, to))
    }

    /// Bytes of a snapshot of what is held.
    pub fn snapshot_bytes(&self) -> usize {
        self.snapshot_len(self.len)
    }

    /// The last position at or before `to` that all layers can go back to.
    pub fn checkpoint(&self, to: usize) -> usize {
        let mut kept = to.min(self.len);
        loop {
            let common = self.layers.iter().fold(kept, |kept, layer| layer.checkpoint(kept));
            if common == kept {
                return kept;
            }
            kept = common;
        }
    }

    /// Forgets positions from `to` on, and those before it that cannot be kept without them; returns how many are held now,
    /// at most `to`.
    pub fn rewind(&mut self, to: usize) -> usize {
        if to < self.len {
            self.len = self.checkpoint(to);
            self.layers.iter_mut().for_each(|layer| layer.rewind(self.len));
        }
        self.len
    }

    /// Another session that has computed the positions before `to`, or before the last position below it that can be kept
    /// without the rest. Both share memory, and what one computes from then on the other does not see. `None` where a layer
    /// cannot be had twice.
    pub fn share(&self, to: usize) -> Option<Self> {
        let len = self.checkpoint(to);
        let layers = self.layers.iter().map(|layer| layer.share(len)).collect::<Option<_>>()?;
        Some(Self { tag: self.tag, layers, kind: self.kind, len, limit: self.limit })
    }

    /// Counts `positions` more, which a pass has computed in every layer.
    pub fn advance(&mut self, positions: usize) {
        self.len += positions;
        self.layers.iter_mut().for_each(|layer| layer.advance(self.len));
    }

    /// The states of the first `count` layers and of the others, under names of their own, until [`SessionState::take_back`].
    #[cfg(feature = "gpu")]
    pub(crate) fn lend(&mut self, count: usize, tags: [u64; 2]) -> [Self; 2] {
        let second = self.layers.split_off(count.min(self.layers.len()));
        let (kind, len, limit) = (self.kind, self.len, self.limit);
        let part = |tag, layers| Self { tag, layers, kind, len, limit };
        [part(tags[0], std::mem::take(&mut self.layers)), part(tags[1], second)]
    }

    /// What [`SessionState::lend`] gave, with the positions that both hold now.
    #[cfg(feature = "gpu")]
    pub(crate) fn take_back(&mut self, first: Self, second: Self) {
        let mut parts = [first, second];
        let mut len = parts[0].len.min(parts[1].len);
        while parts.iter().any(|part| part.len != len) {
            len = parts.iter_mut().fold(len, |len, part| part.rewind(len));
        }
        self.len = len;
        parts.iter_mut().for_each(|part| self.layers.append(&mut part.layers));
    }

    /// Number of layers.
    pub fn layers(&self) -> usize {
        self.layers.len()
    }

    /// The state of layer `index` of these, if it is an `L` or has one.
    pub(crate) fn layer<L: LayerState>(&self, index: usize) -> Option<&L> {
        let layer: &dyn Any = &**self.layers.get(index)?;
        layer.downcast_ref().or_else(|| layer.downcast_ref::<Beside>()?.part())
    }

    /// As [`SessionState::layer`], to store into.
    pub(crate) fn layer_mut<L: LayerState>(&mut self, index: usize) -> Option<&mut L> {
        let layer: &mut dyn Any = &mut **self.layers.get_mut(index)?;
        match layer.is::<Beside>() {
            true => layer.downcast_mut::<Beside>()?.part_mut(),
            false => layer.downcast_mut(),
        }
    }

    /// The state as bytes; equal states give equal bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the device does not give its memory.
    pub fn snapshot(&self) -> Result<Vec<u8>> {
        let mut out = Vec::with_capacity(self.snapshot_len(self.len));
        out.extend(self.header());
        self.layers.iter().try_for_each(|layer| layer.snapshot(self.len, &mut out))?;
        Ok(out)
    }

    /// BLAKE3 of the snapshot: equal for equal states.
    ///
    /// # Errors
    /// Those of [`SessionState::snapshot`].
    pub fn digest(&self) -> Result<blake3::Hash> {
        Ok(blake3::hash(&self.snapshot()?))
    }

    /// Replaces the contents by those of a snapshot taken from a state of the same model and layers.
    ///
    /// # Errors
    /// [`Error::Malformed`] when the bytes are no snapshot, of something else, or hold a value that is not finite;
    /// [`Error::Invalid`] when they hold more positions than the limit. The state is left empty then.
    pub fn restore(&mut self, bytes: &[u8]) -> Result<()> {
        self.clear();
        let len = self.check_header(bytes)?;
        if bytes.len() != self.snapshot_len(len) {
            return Err(Error::malformed("snapshot: length", "does not fit the number of positions"));
        }
        self.reserve(len)?;
        let mut rest = &bytes[HEADER..];
        for index in 0..self.layers.len() {
            let (here, after) = rest.split_at(self.layers[index].snapshot_len(len));
            rest = after;
            if let Err(error) = self.layers[index].restore(len, here) {
                self.clear();
                return Err(error);
            }
        }
        self.len = len;
        Ok(())
    }

    /// After a pass that failed: goes back to what the layers still hold, which is nothing where one of them has let positions
    /// go already.
    pub(crate) fn mend(&mut self) {
        let kept = self.checkpoint(self.len);
        if kept < self.len {
            self.len = kept;
            self.layers.iter_mut().for_each(|layer| layer.rewind(kept));
        }
    }

    fn clear(&mut self) {
        self.len = 0;
        self.layers.iter_mut().for_each(|layer| layer.rewind(0));
    }

    fn kinds(&self) -> u64 {
        let mut hasher = blake3::Hasher::new();
        for layer in &self.layers {
            hasher.update(layer.kind().as_bytes()).update(b"\n");
        }
        let digest = *hasher.finalize().as_bytes();
        u64::from_le_bytes(std::array::from_fn(|i| digest[i]))
    }

    fn header(&self) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        let parts: [&[u8]; 5] = [
            MAGIC,
            &self.tag.to_le_bytes(),
            &(self.layers.len() as u32).to_le_bytes(),
            &self.kinds().to_le_bytes(),
            &(self.len as u64).to_le_bytes(),
        ];
        let bytes = parts.into_iter().flatten();
        header.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        header
    }

    /// How many positions follow a header, which may have more behind it.
    fn check_header(&self, bytes: &[u8]) -> Result<usize> {
        let long = |at: usize| bytes[at..at + 8].try_into().map(u64::from_le_bytes).unwrap_or_default();
        if bytes.len() < HEADER || &bytes[..4] != MAGIC {
            return Err(Error::malformed("snapshot: header", "is no SST1 snapshot"));
        }
        if long(4) != self.tag {
            return Err(Error::malformed("snapshot: tag", "is of another model, layer range or rotation"));
        }
        let layers = bytes[12..16].try_into().map(u32::from_le_bytes).unwrap_or_default();
        if layers as usize != self.layers.len() || long(16) != self.kinds() {
            return Err(Error::malformed(
                "snapshot: shape",
                "is of another model or kind of session (attention, form of its cache)",
            ));
        }
        let len = usize::try_from(long(24)).unwrap_or(usize::MAX);
        if len > self.limit {
            let limit = self.limit;
            return Err(Error::invalid(format!("the snapshot has {len} positions, the context {limit}")));
        }
        Ok(len)
    }

    fn snapshot_len(&self, len: usize) -> usize {
        HEADER + self.layers.iter().map(|layer| layer.snapshot_len(len)).sum::<usize>()
    }
}

/// Tests of one kind of state share these.
#[cfg(test)]
pub(crate) mod tests {
    use std::{collections::BTreeMap, sync::Arc};

    use super::*;
    use crate::kernels::{KvShape, QUARTER};

    const SHAPE: KvShape = KvShape::new(2, 4);

    /// Two layers of pages whose values depend on where they are and on `seed`.
    pub(crate) fn cache(len: usize, seed: u16) -> SessionState {
        let layers = (0..2).map(|_| Kind::Paged(SHAPE).empty(1000)).collect();
        let mut kv = SessionState::new(7, layers, 1000);
        kv.reserve(len).unwrap();
        for layer in 0..2 {
            let paged: &mut Paged = kv.layer_mut(layer).unwrap();
            for (p, page) in paged.pages_mut().iter_mut().enumerate() {
                for (i, bits) in Arc::make_mut(page).iter_mut().enumerate() {
                    *bits = ((i * 31 + p * 7 + layer * 3) as u16 ^ seed) & 0x3bff;
                }
            }
        }
        kv.advance(len);
        kv
    }

    #[test]
    fn a_snapshot_restores_and_ignores_what_lies_beyond_len() {
        let kv = cache(300, 5);
        let bytes = kv.snapshot().unwrap();
        let mut other = cache(700, 9);
        other.restore(&bytes).unwrap();
        assert_eq!((other.len(), other.snapshot().unwrap() == bytes), (300, true));
        assert_eq!(other.digest().unwrap(), kv.digest().unwrap());
        assert_eq!(other.rewind(299), 299);
        assert_eq!(other.snapshot().unwrap().len(), bytes.len() - 2 * 2 * 2 * 4 * 2);
    }

    #[test]
    fn sessions_that_begin_alike_share_pages_until_one_writes() {
        let kv = cache(600, 5);
        let mut other = kv.share(300).unwrap();
        assert_eq!((kv.len(), other.len(), other.bytes()), (600, 300, kv.bytes() / 2));
        let apart = |states: &[&SessionState]| {
            let mut parts = BTreeMap::new();
            states.iter().for_each(|state| {
                state.parts(&mut |part, bytes| {
                    parts.insert(part, bytes);
                });
            });
            parts.values().sum::<usize>()
        };
        assert_eq!(apart(&[&kv, &other]), kv.bytes(), "nothing is there twice");
        let (before, digest) = (other.digest().unwrap(), kv.digest().unwrap());
        let mut cut = cache(600, 5);
        cut.rewind(300);
        assert_eq!(before, cut.digest().unwrap());
        let paged: &mut Paged = other.layer_mut(0).unwrap();
        Arc::make_mut(&mut paged.pages_mut()[1])[0] ^= 1;
        other.advance(1);
        assert_eq!(kv.digest().unwrap(), digest, "what one writes the other does not see");
        assert_ne!(other.digest().unwrap(), cut.digest().unwrap());
        assert_eq!(apart(&[&kv, &other]), kv.bytes() + kv.bytes() / 20, "a quarter of a page was copied");
    }

    #[test]
    fn damaged_snapshots_are_refused() {
        let kv = cache(3, 5);
        let good = kv.snapshot().unwrap();
        let mut target = cache(0, 0);
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
        refuse(&changed(16, !good[16]), "shape");
        refuse(&changed(24, 4), "length");
        refuse(&changed(31, 0xff), "positions");
        refuse(&changed(good.len() - 1, 0x7c), "not finite");
    }

    #[test]
    fn pages_are_freed_by_going_back_and_refused_beyond_the_limit() {
        let mut kv = cache(600, 1);
        let quarter = Kind::Paged(SHAPE).bytes(1) * 2;
        assert_eq!(kv.bytes(), 10 * quarter);
        assert_eq!(Kind::Paged(SHAPE).bytes(600) * 2, 10 * quarter);
        assert_eq!(kv.rewind(256), 256);
        assert_eq!(kv.bytes(), 4 * quarter);
        assert!(kv.reserve(1001).is_err());
        assert_eq!(kv.bytes(), 4 * quarter);
    }

    /// A prompt of 972 positions whose first ones are another user's as well: what is written behind them copies nothing of
    /// what is shared but a part of its end.
    #[test]
    fn two_users_of_one_beginning_take_little_more_than_one() {
        for (shared, most) in [(944, 1.13), (960, 1.07)] {
            let one = cache(972, 5);
            let mut two = one.share(shared).unwrap();
            two.reserve(972).unwrap();
            for layer in 0..2 {
                let paged: &mut Paged = two.layer_mut(layer).unwrap();
                paged.pages_mut()[shared / QUARTER..]
                    .iter_mut()
                    .for_each(|quarter| Arc::make_mut(quarter)[0] ^= 1);
            }
            two.advance(972);
            let mut parts = BTreeMap::new();
            [&one, &two].into_iter().for_each(|state| {
                state.parts(&mut |part, bytes| {
                    parts.insert(part, bytes);
                });
            });
            let (both, one) = (parts.values().sum::<usize>() as f64, one.bytes() as f64);
            assert!(both / one < most, "{shared} shared: {}", both / one);
        }
    }
}
