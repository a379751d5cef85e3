//! Fields that several layouts share: addresses, layer ranges, and their bounds.

use scheduler::LayerRange;

use super::{
    Malformed,
    cursor::{Reader, Writer},
};

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
