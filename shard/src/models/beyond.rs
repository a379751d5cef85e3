//! What a blueprint asks of an executor beyond plain attention and plain networks, by its name.

use super::{
    Activation, Attention, Blueprint, FeedForward, HEAD_NORM, Layer, Router, blueprint::LAYER_SCALE,
};

impl Blueprint {
    /// The first part of the model, by its name, that candle does not compute.
    pub fn beyond_plain(&self) -> Option<&'static str> {
        let other = |activation: Activation| {
            use Activation::{GatedGelu, GatedSilu, Gelu};
            !matches!(activation, Gelu | GatedGelu | GatedSilu)
        };
        let beyond = |layer: &Layer| {
            let routed = match &layer.feed_forward {
                FeedForward::None | FeedForward::Both(..) => true,
                FeedForward::Experts(experts) => {
                    let plain = experts.router == Router::Softmax && experts.groups.is_none();
                    !plain
                        || experts.weighs_input
                        || experts.latent.is_some()
                        || !experts.shared_gate
                        || other(experts.activation)
                        || layer.has("exp_probs_b.bias")
                }
                FeedForward::Dense(dense) => other(dense.activation),
            };
            let inner = layer.has("attn_sub_norm.weight") || layer.has("ffn_sub_norm.weight");
            let whole =
                layer.tensors.iter().any(|r| r.name == "attn_k_norm.weight" && r.dims[0] != self.kv.head_dim);
            let softmax = matches!(layer.attention, Attention::Softmax(softmax) if !softmax.gated);
            match () {
                () if self.unusual(layer).is_some() => self.unusual(layer),
                () if matches!(layer.attention, Attention::Latent(_)) => Some("latent attention"),
                () if !softmax => Some("recurrent layers"),
                () if layer.has("attn_sinks.weight") => Some("attention sinks"),
                () if layer.parallel() => Some("parallel layers"),
                () if !layer.has("attn_norm.weight") => Some("layers without a norm before attention"),
                () if layer.norm_after_attention().is_none() => Some("norms of another order"),
                () if inner || whole => Some("norms inside a sublayer"),
                () if routed => Some("experts or activations of this kind"),
                () => None,
            }
        };
        if self.encodes() {
            return Some("encoders");
        }
        if self.residual_scale != 1.0 {
            return Some("scaled residual additions");
        }
        if self.tensors.iter().any(|rule| rule.name == "output.bias") {
            return Some("biases of the head");
        }
        if self.head.norm != HEAD_NORM {
            return Some("a norm of the head under another name");
        }
        self.layers.iter().find_map(beyond)
    }

    /// The first part of a layer with softmax attention, by its name, that is more than plain attention.
    fn unusual(&self, layer: &Layer) -> Option<&'static str> {
        let Attention::Softmax(softmax) = layer.attention else { return None };
        match () {
            () if softmax.kv != self.kv => Some("heads of several widths"),
            () if softmax.source.is_some() => Some("keys and values shared between layers"),
            () if softmax.chunk.is_some() => Some("attention in blocks"),
            () if softmax.temperature.is_some() => Some("queries scaled by position"),
            () if softmax.bare_norm.is_some() => Some("norms without weights"),
            () if softmax.norms_rotated => Some("norms behind the rotation"),
            () if self.per_layer.is_some() => Some("per-layer embeddings"),
            () if layer.has(LAYER_SCALE) => Some("scaled layers"),
            () => None,
        }
    }
}
