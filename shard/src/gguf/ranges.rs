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

/// The bytes needed to hold `layers` and `ends` of `gguf`. See [`Layout::byte_ranges`].
///
/// Only the header of `gguf` is read, so all else may be missing still.
///
/// # Errors
/// [`Error::Invalid`] for layers the model does not have; [`Error::Malformed`] as for [`layer_count`].
pub fn byte_ranges(gguf: &Gguf, layers: LayerRange, ends: Ends) -> Result<Vec<Range<u64>>> {
    Layout::of(gguf)?.byte_ranges(layers, ends)
}

/// What the bytes of a file belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A layer, by number.
    Layer(u32),
    /// The table that turns token ids into rows.
    Embedding,
    /// What turns rows into logits.
    Head,
    /// The whole model: the header, and tensors that every shard uses.
    Whole,
}

/// Where the parts of a model are in its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    num_layers: u32,
    /// Whether the head is the embedding table.
    tied: bool,
    /// Ascending by their start; neighbors of one part are one span.
    spans: Vec<(Part, Range<u64>)>,
}

impl Layout {
    /// Of a file, by its header.
    ///
    /// # Errors
    /// [`Error::Malformed`] as for [`layer_count`].
    pub fn of(gguf: &Gguf) -> Result<Self> {
        let part = |tensor: &TensorInfo| match tensor.name.split_once('.').unwrap_or((&tensor.name, "")) {
            ("blk", rest) => {
                let layer = rest.split('.').next().and_then(|layer| layer.parse().ok());
                // A tensor that belongs to no layer by its name has no owner; the architecture will refuse the file.
                layer.map_or(Part::Whole, Part::Layer)
            }
            (
                "token_embd"
                | "per_layer_token_embd"
                | "per_layer_model_proj"
                | "per_layer_proj_norm"
                | "altup_proj",
                _,
            ) => Part::Embedding,
            ("output" | "output_norm" | "token_embd_norm" | "altup_unembd_proj", _) => Part::Head,
            _ => Part::Whole,
        };
        let header = std::iter::once((Part::Whole, 0..gguf.data_start().min(gguf.file_len())));
        let tensors =
            gguf.tensors().iter().map(|tensor| (part(tensor), tensor.offset..tensor.offset + tensor.len));
        Ok(Self::new(layer_count(gguf)?, gguf.info("output.weight").is_none(), header.chain(tensors)))
    }

    /// Of spans in any order.
    pub fn new(num_layers: u32, tied: bool, spans: impl IntoIterator<Item = (Part, Range<u64>)>) -> Self {
        let mut all: Vec<(Part, Range<u64>)> = spans.into_iter().collect();
        all.sort_by_key(|(_, range)| range.start);
        let mut spans: Vec<(Part, Range<u64>)> = Vec::new();
        for (part, range) in all {
            match spans.last_mut() {
                Some((before, last)) if *before == part && range.start <= last.end => {
                    last.end = last.end.max(range.end);
                }
                _ => spans.push((part, range)),
            }
        }
        Self { num_layers, tied, spans }
    }

    /// Layers of the model.
    pub fn num_layers(&self) -> u32 {
        self.num_layers
    }

    /// Whether the head is the embedding table.
    pub fn is_tied(&self) -> bool {
        self.tied
    }

    /// What belongs to what, ascending by the spans' starts.
    pub fn spans(&self) -> &[(Part, Range<u64>)] {
        &self.spans
    }

    /// The bytes needed to hold `layers` and `ends`: disjoint ranges that do not touch, ascending, from byte 0 on. A head
    /// that is the embedding table counts as it.
    ///
    /// # Errors
    /// [`Error::Invalid`] for layers the model does not have.
    pub fn byte_ranges(&self, layers: LayerRange, ends: Ends) -> Result<Vec<Range<u64>>> {
        if layers.end() > self.num_layers {
            return Err(Error::invalid(format!("layers {layers} of a model with {}", self.num_layers)));
        }
        let needed = |part: Part| match part {
            Part::Layer(layer) => layers.contains(layer),
            Part::Embedding => ends.embedding || ends.head && self.tied,
            Part::Head => ends.head,
            Part::Whole => true,
        };
        let mut merged: Vec<Range<u64>> = Vec::new();
        for (_, range) in self.spans.iter().filter(|(part, _)| needed(*part)) {
            match merged.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => merged.push(range.clone()),
            }
        }
        Ok(merged)
    }
}
