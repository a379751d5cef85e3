//! `qwen35moe`: the mixtures of Qwen 3.5 and 3.6, text part. As `qwen35` with experts in every layer, whose chosen weights
//! are renormalized, and a shared expert behind a sigmoid gate.

use super::{
    Blueprint,
    delta::{self, Stored},
    reader::Reader,
};
use crate::Result;

pub(super) fn read(reader: &Reader<'_>) -> Result<Blueprint> {
    let sizes = reader.sizes()?;
    delta::read(reader, &sizes, Stored { tiled: true, fused: false }, delta::experts(reader, &sizes)?)
}
