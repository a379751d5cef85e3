"""Gemma 4: its weights, tensors and metadata.

Layers that see everything have wider heads than layers with a window; their rotation leaves most pairs alone, which
the file says by dividing those frequencies by 1e30. Every layer ends with a factor. The mixtures have a router with a
norm of its own beside a dense network; the small models read a second embedding of the token in every layer.
"""

import math

import numpy as np
import torch

NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "post_feedforward_layernorm_2": "post_ffw_norm_2",
    "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "post_per_layer_input_norm": "post_norm",
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
    "router.proj": "ffn_gate_inp",
}
# tensors whose whole names change, inside a layer and outside
LAYER = {
    "layer_scalar": "layer_output_scale.weight",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "experts.down_proj": "ffn_down_exps.weight",
}
OUTSIDE = {
    "embed_tokens_per_layer.weight": "per_layer_token_embd.weight",
    "per_layer_model_projection.weight": "per_layer_model_proj.weight",
    "per_layer_projection_norm.weight": "per_layer_proj_norm.weight",
}


def draw(inner, shape, rng):
    """Random weights of what only this family has; None for other tensors."""

    def normal(std, mean=0.0):
        return mean + torch.randn(shape, generator=rng) * std

    if inner == "model.embed_tokens_per_layer.weight":
        return normal(0.25)
    if inner == "model.per_layer_model_projection.weight":
        return normal(1.0)
    if inner == "router.proj.weight":
        return normal(1.5)
    if inner.startswith("router."):
        return normal(0.25, 1.0)
    if inner.endswith(("self_attn.q_norm.weight", "self_attn.k_norm.weight")):
        # q.k has no factor, so its standard deviation is the square of this one times the root of the width
        return normal(0.2, 1.0) * math.sqrt(1.3) / shape[0] ** 0.25
    return None


def scalar(rng):
    """The factor that ends a layer."""
    return 0.7 + 0.4 * torch.rand(1, generator=rng)


def renamed(stem, suffix):
    """The GGUF name of a tensor of this family alone; None for others."""
    full = f"{stem}.{suffix}"
    if full in OUTSIDE:
        return OUTSIDE[full]
    _, layer, inner = full.split(".", 2) if full.startswith("layers.") else ("", "", "")
    return f"blk.{layer}.{LAYER[inner]}" if inner in LAYER else None


def heads(config, kind):
    """Width of a head and number of key heads in layers of `kind`."""
    layer = config.per_layer_config[kind]
    return layer.head_dim, layer.num_key_value_heads


def metadata(writer, config):
    far, near = heads(config, "full_attention")[0], heads(config, "sliding_attention")[0]
    keys = [heads(config, kind)[1] for kind in config.layer_types]
    writer.add_head_count_kv(keys if len(set(keys)) > 1 else keys[0])
    own = config.num_hidden_layers - config.num_kv_shared_layers
    wide = [config.intermediate_size * (2 if config.use_double_wide_mlp and at >= own else 1)
            for at in range(config.num_hidden_layers)]
    writer.add_feed_forward_length(wide if len(set(wide)) > 1 else wide[0])
    for name, width in (("", far), ("_swa", near)):
        getattr(writer, f"add_key_length{name}")(width)
        getattr(writer, f"add_value_length{name}")(width)
        getattr(writer, f"add_rope_dimension_count{name}")(width)
    writer.add_sliding_window(config.sliding_window)
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
    writer.add_shared_kv_layers(config.num_kv_shared_layers)
    writer.add_embedding_length_per_layer_input(config.hidden_size_per_layer_input)
    writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if config.enable_moe_block:
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.top_k_experts)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    full = config.rope_parameters["full_attention"]
    writer.add_rope_freq_base(full["rope_theta"])
    writer.add_rope_freq_base_swa(config.rope_parameters["sliding_attention"]["rope_theta"])
    turning = int(full["partial_rotary_factor"] * far // 2)
    factors = np.full(far // 2, 1e30, dtype=np.float32)
    factors[:turning] = 1.0
    writer.add_tensor("rope_freqs.weight", factors)
