//! The tensors of a layer, put together from the parts that families share.

use super::{
    Need, Rule,
    blueprint::{ATTENTION_NORM, CHOICE_FACTORS, Experts, FeedForward, LAYER_SCALE, Latent},
    reader::Sizes,
};
use crate::kernels::{DeltaShape, Mamba2Shape};

/// Collects the tensors of one layer.
pub(super) struct Block {
    sizes: Sizes,
    rules: Vec<Rule>,
    feed_forward_norm: &'static str,
}

/// Whether a group of biases exists.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Bias {
    None,
    Optional,
    Required,
}

impl Block {
    pub fn new(sizes: &Sizes) -> Self {
        Self { sizes: *sizes, rules: Vec::new(), feed_forward_norm: "ffn_norm" }
    }

    fn add(mut self, name: &'static str, dims: &[usize]) -> Self {
        self.rules.push(Rule::required(name, dims));
        self
    }

    fn bias(mut self, bias: Bias, name: &'static str, len: usize) -> Self {
        match bias {
            Bias::None => {}
            Bias::Optional => self.rules.push(Rule::optional(name, &[len])),
            Bias::Required => self.rules.push(Rule::required(name, &[len])),
        }
        self
    }

    /// The norms before the two sublayers.
    pub fn norms(self, bias: Bias) -> Self {
        let hidden = self.sizes.hidden;
        self.add("attn_norm.weight", &[hidden])
            .add("ffn_norm.weight", &[hidden])
            .bias(bias, "attn_norm.bias", hidden)
            .bias(bias, "ffn_norm.bias", hidden)
    }

    /// The norms before the two sublayers, the second as its tensor is named.
    pub fn norms_named(self, second: &'static str) -> Self {
        let hidden = self.sizes.hidden;
        self.add("attn_norm.weight", &[hidden]).add(second, &[hidden])
    }

    /// The norms before the two sublayers, the second under the name of the place it has: after attention.
    pub fn norms_around_attention(mut self) -> Self {
        let hidden = self.sizes.hidden;
        self.feed_forward_norm = "post_attention_norm";
        self.add("attn_norm.weight", &[hidden]).add("post_attention_norm.weight", &[hidden])
    }

    /// What joins a hidden state and the embedding of the token behind it in front of the layer, and the norm behind the layer.
    pub fn next_token(self) -> Self {
        let hidden = self.sizes.hidden;
        self.add("nextn.enorm.weight", &[hidden])
            .add("nextn.hnorm.weight", &[hidden])
            .add("nextn.eh_proj.weight", &[2 * hidden, hidden])
            .add("nextn.shared_head_norm.weight", &[hidden])
    }

    /// One norm before both sublayers, which run side by side.
    pub fn norm_before_both(mut self, bias: Bias) -> Self {
        let hidden = self.sizes.hidden;
        self.feed_forward_norm = ATTENTION_NORM;
        self.add("attn_norm.weight", &[hidden]).bias(bias, "attn_norm.bias", hidden)
    }

    /// The norm before the only sublayer, which is of one kind or the other.
    pub fn norm_before_one(self) -> Self {
        self.norm_before_both(Bias::None)
    }

    /// The norm before the second sublayer alone.
    pub fn norm_before_feed_forward(self) -> Self {
        let hidden = self.sizes.hidden;
        self.add("ffn_norm.weight", &[hidden])
    }

    /// The norms of the residual rows behind each addition.
    pub fn norms_of_sums(self, bias: Bias) -> Self {
        let hidden = self.sizes.hidden;
        self.add("attn_output_norm.weight", &[hidden])
            .add("layer_output_norm.weight", &[hidden])
            .bias(bias, "attn_output_norm.bias", hidden)
            .bias(bias, "layer_output_norm.bias", hidden)
    }

    /// The norms after the two sublayers, before their residual additions.
    pub fn norms_after(self) -> Self {
        let hidden = self.sizes.hidden;
        self.add("post_attention_norm.weight", &[hidden]).add("post_ffw_norm.weight", &[hidden])
    }

    /// Attention with separate q, k and v. Old converters wrote the frequencies of the rotation into every layer, too.
    pub fn attention(mut self, qkv_bias: Bias, out_bias: Bias) -> Self {
        let Sizes { hidden, heads, kv_heads, head_dim, .. } = self.sizes;
        self.rules.push(Rule::unused("attn_rot_embd.weight", &[head_dim / 2]));
        let (q, kv) = (heads * head_dim, kv_heads * head_dim);
        self.add("attn_q.weight", &[hidden, q])
            .add("attn_k.weight", &[hidden, kv])
            .add("attn_v.weight", &[hidden, kv])
            .add("attn_output.weight", &[q, hidden])
            .bias(qkv_bias, "attn_q.bias", q)
            .bias(qkv_bias, "attn_k.bias", kv)
            .bias(qkv_bias, "attn_v.bias", kv)
            .bias(out_bias, "attn_output.bias", hidden)
    }

    /// Attention with separate q and k, whose values are the keys as projected.
    pub fn attention_without_values(self) -> Self {
        let Sizes { hidden, heads, kv_heads, head_dim, .. } = self.sizes;
        let (q, kv) = (heads * head_dim, kv_heads * head_dim);
        self.add("attn_q.weight", &[hidden, q])
            .add("attn_k.weight", &[hidden, kv])
            .add("attn_output.weight", &[q, hidden])
    }

    /// Attention that looks at the keys and values of another layer, with an RMS norm over each head of its queries. Files may
    /// have matrices of keys and values here, which nothing reads.
    pub fn attention_of_queries(mut self) -> Self {
        let Sizes { hidden, heads, kv_heads, head_dim, .. } = self.sizes;
        let (q, kv) = (heads * head_dim, kv_heads * head_dim);
        self.rules.extend([
            Rule::unused("attn_k.weight", &[hidden, kv]),
            Rule::unused("attn_v.weight", &[hidden, kv]),
            Rule::unused("attn_k_norm.weight", &[head_dim]),
        ]);
        self.add("attn_q.weight", &[hidden, q])
            .add("attn_output.weight", &[q, hidden])
            .add("attn_q_norm.weight", &[head_dim])
    }

    /// The bias of what attention gives, where q, k and v are one matrix.
    pub fn output_bias(self) -> Self {
        let hidden = self.sizes.hidden;
        self.bias(Bias::Required, "attn_output.bias", hidden)
    }

    /// Attention whose matrix of queries holds a gate behind each head.
    pub fn attention_gated(self) -> Self {
        let Sizes { hidden, heads, kv_heads, head_dim, .. } = self.sizes;
        let (q, kv) = (heads * head_dim, kv_heads * head_dim);
        self.add("attn_q.weight", &[hidden, 2 * q])
            .add("attn_k.weight", &[hidden, kv])
            .add("attn_v.weight", &[hidden, kv])
            .add("attn_output.weight", &[q, hidden])
    }

    /// A gated delta net; `fused` says that beta and alpha are the rows of one matrix.
    pub fn delta_net(self, delta: &DeltaShape, fused: bool) -> Self {
        let (hidden, heads) = (self.sizes.hidden, delta.value_heads);
        let block = self
            .add("attn_qkv.weight", &[hidden, delta.channels()])
            .add("attn_gate.weight", &[hidden, delta.value_width()])
            .add("ssm_conv1d.weight", &[delta.kernel, delta.channels()])
            .add("ssm_dt.bias", &[heads])
            .add("ssm_a", &[heads])
            .add("ssm_norm.weight", &[delta.value_dim])
            .add("ssm_out.weight", &[delta.value_width(), hidden]);
        match fused {
            true => block.add("ssm_ba.weight", &[hidden, 2 * heads]),
            false => block.add("ssm_beta.weight", &[hidden, heads]).add("ssm_alpha.weight", &[hidden, heads]),
        }
    }

    /// A gated delta net with a decay for every channel of a key: q, k and v apart, decays and gates through narrow rows.
    pub fn delta_net_by_channel(self, delta: &DeltaShape) -> Self {
        let &DeltaShape { value_heads: heads, value_dim: dim, kernel, .. } = delta;
        let (hidden, width) = (self.sizes.hidden, delta.value_width());
        self.add("attn_q.weight", &[hidden, width])
            .add("attn_k.weight", &[hidden, width])
            .add("attn_v.weight", &[hidden, width])
            .add("ssm_conv1d_q.weight", &[kernel, 1, width])
            .add("ssm_conv1d_k.weight", &[kernel, 1, width])
            .add("ssm_conv1d_v.weight", &[kernel, 1, width])
            .add("ssm_f_a.weight", &[hidden, dim])
            .add("ssm_f_b.weight", &[dim, width])
            .add("ssm_dt.bias", &[width])
            .add("ssm_a", &[1, heads])
            .add("ssm_beta.weight", &[hidden, heads])
            .add("ssm_g_a.weight", &[hidden, dim])
            .add("ssm_g_b.weight", &[dim, width])
            .add("ssm_norm.weight", &[dim])
            .add("attn_output.weight", &[width, hidden])
    }

    /// A Mamba2 layer, with or without a norm of what it gives.
    pub fn mamba2(mut self, mamba: &Mamba2Shape, norm: Need) -> Self {
        let &Mamba2Shape { heads, groups, kernel, .. } = mamba;
        let (hidden, width, channels) = (self.sizes.hidden, mamba.width(), mamba.channels());
        let dims = vec![width / groups, groups];
        self.rules.push(Rule { name: "ssm_norm.weight", dims, need: norm });
        self.add("ssm_in.weight", &[hidden, mamba.projected()])
            .add("ssm_conv1d.weight", &[kernel, channels])
            .bias(Bias::Optional, "ssm_conv1d.bias", channels)
            .add("ssm_dt.bias", &[heads])
            .add("ssm_a", &[1, heads])
            .add("ssm_d", &[1, heads])
            .add("ssm_out.weight", &[width, hidden])
    }

    /// Latent attention: queries directly or through a narrow row, one latent with the rotated key behind it, and for each head
    /// the matrices that queries and results are multiplied by.
    pub fn latent(self, latent: &Latent) -> Self {
        let Sizes { hidden, heads, .. } = self.sizes;
        let (q, row) = (heads * latent.query(), latent.rank + latent.rotated);
        let block = match latent.query_rank {
            None => self.add("attn_q.weight", &[hidden, q]),
            Some(rank) => self
                .add("attn_q_a.weight", &[hidden, rank])
                .add("attn_q_a_norm.weight", &[rank])
                .add("attn_q_b.weight", &[rank, q]),
        };
        block
            .add("attn_kv_a_mqa.weight", &[hidden, row])
            .add("attn_kv_a_norm.weight", &[latent.rank])
            .add("attn_k_b.weight", &[latent.plain, latent.rank, heads])
            .add("attn_v_b.weight", &[latent.rank, latent.value, heads])
            .add("attn_output.weight", &[heads * latent.value, hidden])
    }

    /// A gated short convolution over `kernel` inputs.
    pub fn short_conv(self, kernel: usize) -> Self {
        let hidden = self.sizes.hidden;
        self.add("shortconv.in_proj.weight", &[hidden, 3 * hidden])
            .add("shortconv.conv.weight", &[kernel, hidden])
            .add("shortconv.out_proj.weight", &[hidden, hidden])
    }

    /// A gated linear recurrence.
    pub fn recurrence(self) -> Self {
        let Sizes { hidden, heads, head_dim, .. } = self.sizes;
        let width = heads * head_dim;
        self.add("recurrence_gate.weight", &[hidden, width])
            .add("recurrence_gate.bias", &[width])
            .add("recurrence_input.weight", &[hidden, width])
            .add("attn_output.weight", &[width, hidden])
    }

    /// Attention whose q, k and v are the rows of one matrix, in this order.
    pub fn attention_fused(self, qkv_bias: Bias) -> Self {
        let Sizes { hidden, heads, kv_heads, head_dim, .. } = self.sizes;
        let rows = (heads + 2 * kv_heads) * head_dim;
        self.add("attn_qkv.weight", &[hidden, rows])
            .add("attn_output.weight", &[heads * head_dim, hidden])
            .bias(qkv_bias, "attn_qkv.bias", rows)
    }

    /// RMS norms over each head of q and of k, before the rotation.
    pub fn head_norms(self) -> Self {
        let head_dim = self.sizes.head_dim;
        self.add("attn_q_norm.weight", &[head_dim]).add("attn_k_norm.weight", &[head_dim])
    }

    /// RMS norms over all of q and all of k, before the rotation.
    pub fn whole_norms(self) -> Self {
        let Sizes { heads, kv_heads, head_dim, .. } = self.sizes;
        self.add("attn_q_norm.weight", &[heads * head_dim]).add("attn_k_norm.weight", &[kv_heads * head_dim])
    }

    /// A logit for each head that takes part in the softmax and has no value.
    pub fn sinks(self) -> Self {
        let heads = self.sizes.heads;
        self.add("attn_sinks.weight", &[heads])
    }

    /// Norms inside the sublayers: over what attention makes, and over the inner rows of the feed-forward network.
    pub fn inner_norms(self) -> Self {
        let Sizes { heads, head_dim, feed_forward, .. } = self.sizes;
        self.add("attn_sub_norm.weight", &[heads * head_dim]).add("ffn_sub_norm.weight", &[feed_forward])
    }

    /// The bias that takes part in the choice of experts, not in their weights.
    pub fn selection_bias(self, bias: Bias, experts: &Experts) -> Self {
        self.bias(bias, "exp_probs_b.bias", experts.count)
    }

    /// Biases of the router and of every expert.
    pub fn expert_biases(self, experts: &Experts) -> Self {
        let hidden = self.sizes.hidden;
        let &Experts { count, width, .. } = experts;
        self.add("ffn_gate_inp.bias", &[count])
            .add("ffn_gate_exps.bias", &[width, count])
            .add("ffn_up_exps.bias", &[width, count])
            .add("ffn_down_exps.bias", &[hidden, count])
    }

    /// A gated feed-forward network.
    pub fn gated(self, bias: Bias) -> Self {
        let Sizes { hidden, feed_forward, .. } = self.sizes;
        self.add("ffn_gate.weight", &[hidden, feed_forward])
            .add("ffn_up.weight", &[hidden, feed_forward])
            .add("ffn_down.weight", &[feed_forward, hidden])
            .bias(bias, "ffn_gate.bias", feed_forward)
            .bias(bias, "ffn_up.bias", feed_forward)
            .bias(bias, "ffn_down.bias", hidden)
    }

    /// A gated feed-forward network whose gate and up are the rows of one matrix, in this order.
    pub fn gated_fused(self) -> Self {
        let Sizes { hidden, feed_forward, .. } = self.sizes;
        self.add("ffn_up.weight", &[hidden, 2 * feed_forward]).add("ffn_down.weight", &[feed_forward, hidden])
    }

    /// A feed-forward network without a gate.
    pub fn plain(self, bias: Bias) -> Self {
        let Sizes { hidden, feed_forward, .. } = self.sizes;
        self.add("ffn_up.weight", &[hidden, feed_forward])
            .add("ffn_down.weight", &[feed_forward, hidden])
            .bias(bias, "ffn_up.bias", feed_forward)
            .bias(bias, "ffn_down.bias", hidden)
    }

    /// A router, its experts, and the shared expert with its gate if there is one.
    pub fn experts(self, experts: &Experts) -> Self {
        let hidden = self.sizes.hidden;
        let &Experts { count, width, shared, .. } = experts;
        let outer = experts.latent.unwrap_or(hidden);
        let block = self
            .add("ffn_gate_inp.weight", &[hidden, count])
            .add("ffn_up_exps.weight", &[outer, width, count])
            .add("ffn_down_exps.weight", &[width, outer, count]);
        let block = match experts.latent {
            Some(latent) => block
                .add("ffn_latent_down.weight", &[hidden, latent])
                .add("ffn_latent_up.weight", &[latent, hidden]),
            None => block,
        };
        let gated = experts.activation.gated();
        let block = if gated { block.add("ffn_gate_exps.weight", &[outer, width, count]) } else { block };
        let Some(width) = shared else { return block };
        let block =
            if experts.shared_gate { block.add("ffn_gate_inp_shexp.weight", &[hidden]) } else { block };
        let block = if gated { block.add("ffn_gate_shexp.weight", &[hidden, width]) } else { block };
        block.add("ffn_up_shexp.weight", &[hidden, width]).add("ffn_down_shexp.weight", &[width, hidden])
    }

    /// Experts beside the dense network: their norms, the weights of the norm in front of the router, a factor for each expert,
    /// and gate and up apart or, where they are `stacked`, as the rows of one matrix.
    pub fn experts_beside(self, experts: &Experts, stacked: bool) -> Self {
        let hidden = self.sizes.hidden;
        let &Experts { count, width, .. } = experts;
        let block = match stacked {
            true => self.add("ffn_gate_up_exps.weight", &[hidden, 2 * width, count]),
            false => self
                .add("ffn_gate_exps.weight", &[hidden, width, count])
                .add("ffn_up_exps.weight", &[hidden, width, count]),
        };
        block
            .add("post_ffw_norm_1.weight", &[hidden])
            .add("pre_ffw_norm_2.weight", &[hidden])
            .add("post_ffw_norm_2.weight", &[hidden])
            .add("ffn_gate_inp.weight", &[hidden, count])
            .add("ffn_gate_inp.scale", &[hidden])
            .add("ffn_down_exps.weight", &[width, hidden, count])
            .add(CHOICE_FACTORS, &[count])
    }

    /// What a layer reads of the token itself, `width` values.
    pub fn per_layer(self, width: usize) -> Self {
        let hidden = self.sizes.hidden;
        self.add("inp_gate.weight", &[hidden, width])
            .add("proj.weight", &[width, hidden])
            .add("post_norm.weight", &[hidden])
    }

    /// Predictions and corrections of `count` streams of residual rows, and a network of rank `rank` beside attention.
    pub fn streams(self, count: usize, rank: usize) -> Self {
        let hidden = self.sizes.hidden;
        self.add("altup_router.weight", &[hidden, count])
            .add("altup_router_norm.weight", &[hidden])
            .add("altup_predict_coef.weight", &[count, count * count])
            .add("altup_correct_coef.weight", &[count, count])
            .add("altup_correct_scale.weight", &[hidden])
            .add("laurel_l.weight", &[hidden, rank])
            .add("laurel_r.weight", &[rank, hidden])
            .add("laurel_post_norm.weight", &[hidden])
    }

    /// A factor on what the layer gives.
    pub fn scaled(self) -> Self {
        self.add(LAYER_SCALE, &[1])
    }

    /// The finished layer.
    pub fn layer(self, attention: impl Into<super::Attention>, feed_forward: FeedForward) -> super::Layer {
        super::Layer {
            attention: attention.into(),
            feed_forward,
            feed_forward_norm: self.feed_forward_norm,
            tensors: self.rules,
        }
    }
}
