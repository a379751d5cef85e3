//! Which bytes of a file a machine needs that holds some layers.
//!
//! The header, the tensors of the layers, the ends that are held, and the small tensors that belong to the whole model
//! (rotation factors), since every shard checks and uses them. Everything else may be a hole: [`Gguf::open`] reads only the
//! header, and a shard touches only what is listed here.

use std::ops::Range;

use scheduler::LayerRange;

use super::{Gguf, TensorInfo};
use crate::{Error, Result};

/// Which ends of the model a shard holds besides its layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// Turns token ids into rows; only with layer 0.
    pub embedding: bool,
    /// Turns rows into logits; only with the last layer.
    pub head: bool,
}

impl Ends {
    /// Neither.
    pub const NONE: Self = Self { embedding: false, head: false };
    /// The whole model's.
    pub const BOTH: Self = Self { embedding: true, head: true };
}

/// The number of layers the header states, without those that predict further tokens and are not run.
///
/// # Errors
/// [`Error::Malformed`] if it states none.
pub fn layer_count(gguf: &Gguf) -> Result<u32> {
    let key = format!("{}.block_count", gguf.metadata().architecture()?);
    let ahead = format!("{}.nextn_predict_layers", gguf.metadata().architecture()?);
    let ahead = gguf.metadata().u64(&ahead).unwrap_or(0);
    let count = gguf.metadata().u64(&key).and_then(|count| count.checked_sub(ahead));
    let count = count.and_then(|count| u32::try_from(count).ok());
    count.filter(|&count| count > 0).ok_or_else(|| Error::malformed(key, "is no number of layers"))
}

/// The bytes needed to hold `layers` and `ends` of `gguf`: disjoint ranges that do not touch, ascending, from byte 0 on.
///
/// Only the header of `gguf` is read, so all else may be missing still. A head that is the embedding table counts as it.
///
/// # Errors
/// [`Error::Invalid`] for layers the model does not have; [`Error::Malformed`] as for [`layer_count`].
pub fn byte_ranges(gguf: &Gguf, layers: LayerRange, ends: Ends) -> Result<Vec<Range<u64>>> {
    let count = layer_count(gguf)?;
    if layers.end() > count {
        return Err(Error::invalid(format!("layers {layers} of a model with {count}")));
    }
    let tied = gguf.info("output.weight").is_none();
    let needed = |tensor: &&TensorInfo| match tensor.name.split_once('.').unwrap_or((&tensor.name, "")) {
        ("blk", rest) => {
            let layer = rest.split('.').next().and_then(|layer| layer.parse().ok());
            // A tensor that belongs to no layer by its name has no owner; the architecture will refuse the file.
            layer.is_none_or(|layer| layers.contains(layer))
        }
        ("token_embd", _) => ends.embedding || ends.head && tied,
        ("output" | "output_norm", _) => ends.head,
        _ => true,
    };
    let header = std::iter::once(0..gguf.data_start().min(gguf.file_len()));
    let tensors = gguf.tensors().iter().filter(needed).map(|t| t.offset..t.offset + t.len);
    let mut ranges: Vec<Range<u64>> = header.chain(tensors).collect();
    ranges.sort_unstable_by_key(|range| range.start);
    let mut merged: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    Ok(merged)
}
