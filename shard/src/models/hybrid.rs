//! What hybrids share: which layers attend, and the sizes of Mamba2 where they do not.

use super::{
    limits,
    reader::{Reader, Sizes},
};
use crate::{Error, Result, kernels::Mamba2Shape};

/// Inputs of a convolution, at most.
pub(super) const KERNEL: usize = 16;

/// The sizes of a model that lists key heads for each layer, and the list: layers of none do not attend.
pub(super) fn sizes(reader: &Reader<'_>) -> Result<(Sizes, Vec<usize>)> {
    listed(reader, reader.sizes_varying()?)
}

/// As [`sizes`], of heads whose values may have another width than their keys.
pub(super) fn sizes_of_keys(reader: &Reader<'_>) -> Result<(Sizes, Vec<usize>)> {
    listed(reader, reader.sizes_of_varying_keys()?)
}

fn listed(reader: &Reader<'_>, sizes: Sizes) -> Result<(Sizes, Vec<usize>)> {
    let key = "attention.head_count_kv";
    let mut kv_heads = reader.each_or_none(key, limits::HEADS)?;
    if kv_heads.len() < sizes.layers {
        return Err(Error::malformed(reader.name(key), "has fewer entries than there are layers"));
    }
    kv_heads.truncate(sizes.layers);
    if let Some(heads) = kv_heads.iter().find(|&&heads| heads > 0 && !sizes.heads.is_multiple_of(heads)) {
        let why = format!("{heads} does not divide {} heads", sizes.heads);
        return Err(Error::malformed(reader.name(key), why));
    }
    let attends = kv_heads.iter().copied().max().unwrap_or(0);
    Ok((Sizes { kv_heads: attends.max(1), ..sizes }, kv_heads))
}

/// The sizes of the Mamba2 layers.
pub(super) fn mamba2(reader: &Reader<'_>) -> Result<Mamba2Shape> {
    let groups = reader.size("ssm.group_count", limits::HEADS)?;
    let heads = reader.size("ssm.time_step_rank", limits::HEADS)?;
    let state = reader.size("ssm.state_size", limits::HEAD_DIM)?;
    let inner = reader.size("ssm.inner_size", limits::QUERIES)?;
    let kernel = reader.size("ssm.conv_kernel", KERNEL)?;
    if !heads.is_multiple_of(groups) {
        let why = format!("{groups} does not divide {heads} heads");
        return Err(Error::malformed(reader.name("ssm.group_count"), why));
    }
    if !inner.is_multiple_of(heads) || inner / heads > limits::HEAD_DIM {
        let why = format!("{inner} is no width of {heads} heads");
        return Err(Error::malformed(reader.name("ssm.inner_size"), why));
    }
    let head_dim = inner / heads;
    if !head_dim.is_multiple_of(Mamba2Shape::LANES) {
        return Err(Error::unsupported(format!("heads of {head_dim} that are not whole groups of 16")));
    }
    if inner * state > limits::STATE || groups * state > limits::QUERIES {
        let why = format!("{state} in {groups} groups with {inner} values is beyond the limits");
        return Err(Error::malformed(reader.name("ssm.state_size"), why));
    }
    Ok(Mamba2Shape { heads, head_dim, state, groups, kernel })
}
