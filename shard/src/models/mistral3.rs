//! `mistral3`: Ministral 3. As `llama`, with queries scaled by position beyond the context of the first training
//! (`attention.temperature_scale`), and YaRN whose factor on cosines and sines is divided by that of
//! `rope.scaling.yarn_log_multiplier` (1 leaves none).

use super::{
    Activation, Blueprint, Dense, FeedForward, NormKind, Scaling, Softmax, Temperature,
    block::{Bias, Block},
    reader::{Reader, layers},
};
use crate::{
    Error, Result,
    kernels::{Pairing, math},
};

pub(super) fn read(reader: &Reader<'_>) -> Result<Blueprint> {
    let sizes = reader.sizes()?;
    let mut rope = reader.rope(&sizes, Pairing::Adjacent)?;
    let multiplier = reader.cap("rope.scaling.yarn_log_multiplier")?;
    let scale = reader.cap("attention.temperature_scale")?;
    let mut temperature = None;
    match (&rope.scaling, scale) {
        (&Scaling::Yarn { factor, original, .. }, scale) => {
            if let Some(multiplier) = multiplier.filter(|_| factor > 1.0) {
                rope.magnitude /= 0.1 * f64::from(multiplier) * math::ln(factor) + 1.0;
            }
            temperature = scale.map(|scale| Temperature { scale, length: original as f32, ahead: 0 });
        }
        (_, None) => {}
        (_, Some(_)) => return Err(Error::unsupported("queries scaled by position without YaRN")),
    }
    let attention = Softmax { temperature, ..sizes.attention(reader.window(&sizes)?) };
    let dense = FeedForward::Dense(Dense { width: sizes.feed_forward, activation: Activation::GatedSilu });
    let layers = layers(sizes.layers, |_| {
        let block = Block::new(&sizes).norms(Bias::None).attention(Bias::None, Bias::None);
        block.gated(Bias::None).layer(attention, dense)
    });
    Ok(reader.assemble(&sizes, reader.norm(NormKind::Rms)?, vec![rope], layers))
}
