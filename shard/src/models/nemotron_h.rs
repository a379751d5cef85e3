//! `nemotron_h`, `nemotron_h_moe`: Nemotron-H, Nemotron Nano 2 and 3, and Nemotron 3 Super. Each layer is one sublayer behind one norm: attention
//! without rotation where the file lists key heads, a network where it lists its width, Mamba2 where it lists neither.
//!
//! Networks square what is above zero and have no gate; experts too, chosen by sigmoids and a bias, renormalized and scaled,
//! beside a shared one. With `moe_latent_size` they read and give narrower rows, the shared one does not.

use super::{
    Activation, Attention, Blueprint, Dense, Experts, FeedForward, Need, NormKind, Router, Softmax,
    block::{Bias, Block},
    hybrid, limits,
    reader::{Reader, Sizes, layers},
};
use crate::{Error, Result};

pub(super) fn read(reader: &Reader<'_>) -> Result<Blueprint> {
    let (sizes, kv_heads) = hybrid::sizes(reader)?;
    let widths = reader.each_or_none("feed_forward_length", limits::FEED_FORWARD)?;
    let Some(widths) = widths.get(..sizes.layers) else {
        let key = reader.name("feed_forward_length");
        return Err(Error::malformed(key, "has fewer entries than there are layers"));
    };
    if let Some(layer) = (0..sizes.layers).find(|&layer| kv_heads[layer] > 0 && widths[layer] > 0) {
        let key = reader.name("feed_forward_length");
        return Err(Error::malformed(key, format!("layer {layer} has a network beside its attention")));
    }
    let mamba = hybrid::mamba2(reader)?;
    let usual = sizes.attention(None);
    let scale = reader.cap("attention.scale")?.unwrap_or(usual.scale);
    let attention = Softmax { rope: None, scale, ..usual };
    let activation = Activation::ReluSquared;
    let experts = match reader.size_opt("expert_count", limits::EXPERTS)? {
        None => None,
        Some(_) => {
            let experts = reader.experts(&sizes, true, None)?;
            reader.ignore("expert_shared_count");
            Some(Experts {
                latent: reader.size_opt("moe_latent_size", sizes.hidden)?,
                activation,
                router: reader.router(Router::Sigmoid)?,
                groups: reader.groups(experts.count)?,
                shared: reader.size_opt("expert_shared_feed_forward_length", limits::FEED_FORWARD)?,
                shared_gate: false,
                ..experts
            })
        }
    };
    let layers = layers(sizes.layers, |index| {
        let (kv_heads, width) = (kv_heads[index], widths[index]);
        let sizes = Sizes { kv_heads: kv_heads.max(1), feed_forward: width, ..sizes };
        let block = Block::new(&sizes).norm_before_one();
        match (kv_heads, width, experts) {
            (0, 0, _) => block.mamba2(&mamba, Need::Required).layer(mamba, FeedForward::None),
            (_, 0, _) => {
                let block = block.attention(Bias::Optional, Bias::Optional);
                block.layer(Softmax { kv: sizes.kv(), ..attention }, FeedForward::None)
            }
            (_, _, None) => {
                let dense = FeedForward::Dense(Dense { width, activation });
                block.plain(Bias::Optional).layer(Attention::None, dense)
            }
            (_, _, Some(experts)) => {
                let block = block.experts(&experts).selection_bias(Bias::Required, &experts);
                block.layer(Attention::None, FeedForward::Experts(experts))
            }
        }
    });
    Ok(reader.assemble(&sizes, reader.norm(NormKind::Rms)?, Vec::new(), layers))
}
