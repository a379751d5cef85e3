//! `qwen35`: the dense models of Qwen 3.5 and 3.6, text part. Delta nets and gated attention (see [`super::delta`]) with a
//! gated feed-forward network. The converter stores value heads so that value head `i` reads key head `i mod key heads`.

use super::{
    Activation, Blueprint, Dense, FeedForward,
    block::{Bias, Block},
    delta::{self, Stored},
    reader::Reader,
};
use crate::Result;

pub(super) fn read(reader: &Reader<'_>) -> Result<Blueprint> {
    let sizes = reader.sizes()?;
    let dense = FeedForward::Dense(Dense { width: sizes.feed_forward, activation: Activation::GatedSilu });
    let network = |block: Block| block.gated(Bias::None);
    delta::read(reader, &sizes, Stored { tiled: true, fused: false }, (dense, network))
}
