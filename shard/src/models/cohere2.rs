//! `cohere2`, `command-r`: Command R, Command R7B and Command A, Aya Expanse.
//!
//! One layer norm without bias feeds attention and the feed-forward network side by side; logits have a factor; the head
//! is tied. In `cohere2` three of four layers have a window and rotate, the fourth sees everything and does not.

use super::{
    Activation, Blueprint, Dense, FeedForward, NormKind, Softmax,
    block::{Bias, Block},
    reader::{Reader, layers},
};
use crate::{Result, kernels::Pairing};

/// Of so many layers of `cohere2` the last sees everything.
const PERIOD: usize = 4;

pub(super) fn read(reader: &Reader<'_>) -> Result<Blueprint> {
    let sizes = reader.sizes()?;
    let window = reader.size("attention.sliding_window", usize::MAX)?.min(sizes.context);
    let slides = reader.slides(&sizes, PERIOD)?;
    let attention = sizes.attention(Some(window));
    blueprint(reader, |index| match slides[index] {
        true => attention,
        false => Softmax { rope: None, window: None, ..attention },
    })
}

/// The models before windows.
pub(super) fn read_command_r(reader: &Reader<'_>) -> Result<Blueprint> {
    let attention = reader.sizes()?.attention(None);
    blueprint(reader, |_| attention)
}

fn blueprint(reader: &Reader<'_>, attention: impl Fn(usize) -> Softmax) -> Result<Blueprint> {
    let sizes = reader.sizes()?;
    let rope = reader.rope(&sizes, Pairing::Adjacent)?;
    let dense = FeedForward::Dense(Dense { width: sizes.feed_forward, activation: Activation::GatedSilu });
    let layers = layers(sizes.layers, |index| {
        let block = Block::new(&sizes).norm_before_both(Bias::None).attention(Bias::None, Bias::None);
        block.gated(Bias::None).layer(attention(index), dense)
    });
    let mut blueprint = reader.assemble(&sizes, reader.norm(NormKind::Layer)?, vec![rope], layers);
    blueprint.tensors.retain(|rule| rule.name != "output_norm.bias");
    blueprint.head.scale = reader.cap("logit_scale")?.unwrap_or(1.0);
    Ok(blueprint)
}
