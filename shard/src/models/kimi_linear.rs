//! `kimi-linear`: Kimi Linear 48B-A3B (arXiv 2510.26692).
//!
//! Most layers are gated delta nets whose every key channel has a decay of its own, made through a narrow row as the gate of the
//! result is; q, k and v have a matrix and a convolution each. The others are latent attention without rotation. Layers that attend
//! are those with key heads. The first layers are dense; the others choose experts by the sigmoid of the router and a bias, scale the
//! weights and add shared experts as they are.

use super::{
    Activation, Blueprint, Dense, FeedForward, NormKind, Router,
    block::{Bias, Block},
    deepseek2, hybrid, limits,
    reader::{Reader, layers},
};
use crate::{Error, Result, kernels::DeltaShape};

/// Added to the mean square of a latent: files do not say it, and it is not what the other norms have.
const LATENT_EPS: f32 = 1e-6;

pub(super) fn read(reader: &Reader<'_>) -> Result<Blueprint> {
    let (sizes, kv_heads) = hybrid::sizes_of_keys(reader)?;
    let rotated = reader.size("rope.dimension_count", limits::HEAD_DIM)?;
    let mut latent = deepseek2::shape(reader, &sizes, rotated)?;
    (latent.rope, latent.eps) = (None, LATENT_EPS);
    let delta = shape(reader, sizes.heads)?;
    let dense = FeedForward::Dense(Dense { width: sizes.feed_forward, activation: Activation::GatedSilu });
    let experts = deepseek2::experts(reader, &sizes, Router::Sigmoid, true)?;
    let leading = reader.size_opt("leading_dense_block_count", sizes.layers)?.unwrap_or(0);
    let layers = layers(sizes.layers, |index| {
        let block = Block::new(&sizes).norms(Bias::None);
        let (block, feed_forward) = match index < leading {
            true => (block.gated(Bias::None), dense),
            false => {
                let block = block.experts(&experts).selection_bias(Bias::Required, &experts);
                (block, FeedForward::Experts(experts))
            }
        };
        match kv_heads[index] {
            0 => block.delta_net_by_channel(&delta).layer(delta, feed_forward),
            _ => block.latent(&latent).layer(latent, feed_forward),
        }
    });
    Ok(reader.assemble(&sizes, reader.norm(NormKind::Rms)?, Vec::new(), layers))
}

fn shape(reader: &Reader<'_>, heads: usize) -> Result<DeltaShape> {
    let dim = reader.size("kda.head_dim", limits::HEAD_DIM)?;
    let kernel = reader.size("ssm.conv_kernel", hybrid::KERNEL)?;
    if !dim.is_multiple_of(DeltaShape::LANES) {
        return Err(Error::unsupported(format!("heads of {dim} that are not whole groups of 16")));
    }
    if heads * dim > limits::QUERIES || heads * dim * dim > limits::STATE {
        let why = format!("{heads} heads of {dim} are beyond the limits");
        return Err(Error::malformed(reader.name("kda.head_dim"), why));
    }
    Ok(DeltaShape {
        key_heads: heads,
        value_heads: heads,
        key_dim: dim,
        value_dim: dim,
        kernel,
        tiled: false,
        by_channel: true,
    })
}
