//! Fields that several layouts share: what stands before a body, addresses, layer ranges, and their bounds.

use scheduler::{
    AttentionKind, CacheType, LayerRange, SessionKind,
    attention::{H2o, Sparse},
    capability::MAX_LAYERS,
};

use super::{
    Malformed,
    cursor::{Reader, Writer},
};
use crate::codec::{Rounding, Wire};

/// Length of what stands before a body, bytes: its kind, three zeros and its length.
pub const PREFIX_LEN: usize = 8;

/// What stands before a body of `len` bytes.
pub(super) fn write_prefix(kind: u8, len: u32) -> [u8; PREFIX_LEN] {
    let mut bytes = [kind, 0, 0, 0, 0, 0, 0, 0];
    bytes[4..].copy_from_slice(&len.to_le_bytes());
    bytes
}

/// Reads what [`write_prefix`] wrote: one of `all` kinds, by their byte, and a length within the `cap` of that kind.
///
/// # Errors
/// The first of `odd` for another kind, the second for another length.
pub(super) fn read_prefix<K: Copy>(
    bytes: &[u8; PREFIX_LEN],
    (all, cap): (&[K], impl Fn(K) -> usize),
    odd: [Malformed; 2],
) -> Result<(K, u32), Malformed> {
    let [unknown, too_long] = odd;
    let [kind, zeros @ .., _, _, _, _] = bytes;
    let kind = *all.get(usize::from(*kind)).ok_or(unknown)?;
    let len = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
    if *zeros != [0; 3] || len as usize > cap(kind) {
        return Err(too_long);
    }
    Ok((kind, len))
}

/// Addresses of one contact; a node with more names its best.
pub const MAX_ADDRESSES: usize = 8;
/// Longest address, bytes: a circuit names two peers behind the relay's own address, up to 190 bytes over IPv6.
pub const MAX_ADDRESS: usize = 256;
/// Most positions a lease may ask room for; above any published context.
pub const MAX_POSITIONS: u32 = 1 << 24;

pub(super) fn write_addresses(addresses: &[String], to: &mut Writer) {
    to.list(addresses, |to, address| {
        to.text(address);
    });
}

/// Addresses are visible ASCII: they are shown to users and logged.
pub(super) fn read_addresses(from: &mut Reader<'_>) -> Result<Vec<String>, Malformed> {
    from.list(MAX_ADDRESSES, 3, |from| {
        let text = from.text(MAX_ADDRESS)?;
        let visible = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        visible.then(|| text.to_owned()).ok_or(Malformed("address"))
    })
}

pub(super) fn write_range(range: LayerRange, to: &mut Writer) {
    to.u32(range.start()).u32(range.end());
}

/// A range inside a model of at most `layers` layers.
pub(super) fn read_range(from: &mut Reader<'_>, layers: u32) -> Result<LayerRange, Malformed> {
    let range = LayerRange::new(from.u32()?, from.u32()?);
    range.filter(|range| range.end() <= layers).ok_or(Malformed("layers"))
}

/// Set in the byte of the form when a kind of attention follows. Dense sessions have the bytes that they had before there was
/// a choice, so nodes that know no other kind go on serving them, and refuse others as malformed.
const ATTENDS: u8 = 0x80;
/// Set in the same byte when the form of the cache follows, for the same reason: of sessions that keep f16 nothing is said.
const STORES: u8 = 0x40;

/// What the session rounds, sees and keeps.
pub(super) fn write_arithmetic(rounding: &Rounding, kind: SessionKind, to: &mut Writer) {
    let SessionKind { attention, cache } = kind;
    let attends = if attention.is_dense() { 0 } else { ATTENDS };
    let stores = if cache == CacheType::F16 { 0 } else { STORES };
    to.u8(rounding.wire() as u8 | attends | stores);
    to.list(rounding.boundaries(), |to, &layer| {
        to.u32(layer);
    });
    match cache {
        CacheType::F16 => {}
        CacheType::Q8 => {
            to.u8(1);
        }
        CacheType::Q4 => {
            to.u8(2);
        }
    }
    match attention {
        AttentionKind::Dense => {}
        AttentionKind::Window(window) => {
            to.u8(1).u32(window);
        }
        AttentionKind::Sparse(Sparse { window, sinks, stride, block }) => {
            to.u8(2).u32(window).u32(sinks).bool(stride).u32(block);
        }
        AttentionKind::H2o(H2o { budget, sinks, window }) => {
            to.u8(3).u32(budget).u32(sinks).u32(window);
        }
    }
}

/// What [`write_arithmetic`] wrote: boundaries of some model in ascending order, a form if and only if there are any, and a kind
/// of session that exists.
pub(super) fn read_arithmetic(from: &mut Reader<'_>) -> Result<(Rounding, SessionKind), Malformed> {
    let first = from.u8()?;
    let wire = Wire::from_u8(first & !(ATTENDS | STORES)).ok_or(Malformed("rounding: wire"))?;
    let boundaries: Vec<u32> = from.list(MAX_LAYERS as usize + 1, 4, Reader::u32)?;
    let ascending = boundaries.is_sorted_by(|a, b| a < b);
    let inside = boundaries.last().is_none_or(|&layer| layer <= MAX_LAYERS);
    if !ascending || !inside || boundaries.is_empty() != (wire == Wire::Raw) {
        return Err(Malformed("rounding: boundaries"));
    }
    let cache = if first & STORES == 0 { CacheType::F16 } else { read_cache(from)? };
    let attention = if first & ATTENDS == 0 { AttentionKind::Dense } else { read_attention(from)? };
    Ok((Rounding::new(wire, boundaries), SessionKind { attention, cache }))
}

/// A form other than f16.
fn read_cache(from: &mut Reader<'_>) -> Result<CacheType, Malformed> {
    match from.u8()? {
        1 => Ok(CacheType::Q8),
        2 => Ok(CacheType::Q4),
        _ => Err(Malformed("cache: form")),
    }
}

/// A kind other than dense, whose numbers are within their bounds.
fn read_attention(from: &mut Reader<'_>) -> Result<AttentionKind, Malformed> {
    let attention = match from.u8()? {
        1 => AttentionKind::Window(from.u32()?),
        2 => AttentionKind::Sparse(Sparse {
            window: from.u32()?,
            sinks: from.u32()?,
            stride: from.bool()?,
            block: from.u32()?,
        }),
        3 => AttentionKind::H2o(H2o { budget: from.u32()?, sinks: from.u32()?, window: from.u32()? }),
        _ => return Err(Malformed("attention: kind")),
    };
    attention.checked().map_err(|_| Malformed("attention: numbers"))
}
