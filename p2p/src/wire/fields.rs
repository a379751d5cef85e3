//! Fields that several layouts share: addresses, layer ranges, and their bounds.

use scheduler::{LayerRange, capability::MAX_LAYERS};

use super::{
    Malformed,
    cursor::{Reader, Writer},
};
use crate::codec::{Rounding, Wire};

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

pub(super) fn write_rounding(rounding: &Rounding, to: &mut Writer) {
    to.u8(rounding.wire() as u8);
    to.list(rounding.boundaries(), |to, &layer| {
        to.u32(layer);
    });
}

/// What [`write_rounding`] wrote: boundaries of some model in ascending order, and a form if and only if there are any.
pub(super) fn read_rounding(from: &mut Reader<'_>) -> Result<Rounding, Malformed> {
    let wire = Wire::from_u8(from.u8()?).ok_or(Malformed("rounding: wire"))?;
    let boundaries: Vec<u32> = from.list(MAX_LAYERS as usize + 1, 4, Reader::u32)?;
    let ascending = boundaries.is_sorted_by(|a, b| a < b);
    let inside = boundaries.last().is_none_or(|&layer| layer <= MAX_LAYERS);
    if !ascending || !inside || boundaries.is_empty() != (wire == Wire::Raw) {
        return Err(Malformed("rounding: boundaries"));
    }
    Ok(Rounding::new(wire, boundaries))
}
