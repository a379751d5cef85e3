"""Kimi Linear: its weights, tensors and metadata.

Most layers are delta nets whose every key channel has a decay of its own; the others are latent attention without
rotation. The layout is that of llama.cpp's converter: a convolution for each of q, k and v, `ssm_a` as -exp(A_log),
key heads listed layer by layer, none where a layer does not attend.
"""

import math

import gguf
import numpy as np
import torch

NAMES = {
    "self_attn.forget_gate.f_a_proj": "ssm_f_a",
    "self_attn.forget_gate.f_b_proj": "ssm_f_b",
    "self_attn.b_proj": "ssm_beta",
    "self_attn.g_a_proj": "ssm_g_a",
    "self_attn.g_b_proj": "ssm_g_b",
    "self_attn.o_norm": "ssm_norm",
}


def draw(inner, shape, rng, residual):
    """Random weights of a delta net; None for other tensors."""

    def normal(std, mean=0.0):
        return mean + torch.randn(shape, generator=rng) * std

    if inner.endswith("A_log"):
        return normal(0.6, -1.2)
    if inner.endswith("dt_bias"):
        return normal(0.5)
    if inner == "self_attn.conv1d.weight":
        return normal(0.7)
    if inner == "self_attn.o_norm.weight":
        return normal(0.25, 1.0)
    if any(part in inner for part in ("f_a_proj", "f_b_proj", "b_proj", "g_a_proj", "g_b_proj")) and "kv" not in inner:
        return normal(1.0 / math.sqrt(shape[-1]))
    return None


def tensors(config, inner, array):
    """Yields (GGUF name inside a block, array) for what has another form in a file; nothing for the rest."""
    width = config.linear_num_heads * config.linear_head_dim
    if inner == "self_attn.conv1d.weight":
        taps = array.reshape(3 * width, -1)
        for name, part in zip("qkv", np.split(taps, 3)):
            yield f"ssm_conv1d_{name}.weight", part.reshape(1, width, 1, -1)
    elif inner == "self_attn.forget_gate.A_log":
        yield "ssm_a", -np.exp(array.astype(np.float64)).astype(np.float32).reshape(1, 1, -1, 1)
    elif inner == "self_attn.forget_gate.dt_bias":
        yield "ssm_dt.bias", array


def metadata(writer, config):
    writer.add_vocab_size(config.vocab_size)
    writer.add_head_count_kv([int(kind == "full_attention") for kind in config.layer_types])
    writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
    writer.add_kda_head_dim(config.linear_head_dim)
    writer.add_kv_lora_rank(config.kv_lora_rank)
    writer.add_rope_dimension_count(config.qk_rope_head_dim)
    writer.add_key_length(config.kv_lora_rank + config.qk_rope_head_dim)
    writer.add_key_length_mla(config.qk_nope_head_dim + config.qk_rope_head_dim)
    writer.add_value_length_mla(config.v_head_dim)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_leading_dense_block_count(config.mlp_layer_types.count("dense"))
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
