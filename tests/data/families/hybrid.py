"""Families that mix gated delta nets with gated attention (Qwen 3 Next, 3.5): their weights, tensors and metadata.

The layouts are those of llama.cpp's converter: q, k and v in one matrix, z in another, the convolution without its
middle dimension, `ssm_a` as -exp(A_log), norms with the one added that the checkpoints leave out. Value heads of
`qwen35` and `qwen35moe` are stored tiled: value head i belongs to key head i mod the number of key heads.
"""

import math

import numpy as np
import torch

ARCHS = ("qwen3next", "qwen35", "qwen35moe")
TILED = ("qwen35", "qwen35moe")
NORMS = {"post_attention_layernorm": "post_attention_norm"}


def zero_centered(arch, inner):
    """Whether a norm's weight is what is added to one."""
    return arch in ARCHS and inner != "linear_attn.norm.weight"


def draw(inner, shape, rng, residual):
    """Random weights of a delta net; None for other tensors."""

    def normal(std, mean=0.0):
        return mean + torch.randn(shape, generator=rng) * std

    part = inner.removeprefix("linear_attn.").removesuffix(".weight")
    if not inner.startswith("linear_attn.") or part == "norm":
        return None
    if part == "A_log":
        return normal(0.6, -1.2)  # decays from 0.4 to 0.99
    if part == "dt_bias":
        return normal(0.5)
    if part == "conv1d":
        return normal(0.7)
    if part == "out_proj":
        return normal(2.5 * residual / math.sqrt(shape[-1]))
    return normal(1.0 / math.sqrt(shape[-1]))


def tiled(array, config, width):
    """Value heads of `width` rows each, from grouped by key head to tiled."""
    keys, values = config.linear_num_key_heads, config.linear_num_value_heads
    split = array.reshape(keys, values // keys, width, *array.shape[1:])
    return split.swapaxes(0, 1).reshape(array.shape)


def tensors(arch, config, name, array):
    """Yields (GGUF name inside a block, array) for one tensor `linear_attn.<name>`."""
    width, keys = config.linear_value_head_dim, config.linear_num_key_heads
    key_rows = 2 * keys * config.linear_key_head_dim

    def values(array, width):
        return tiled(array, config, width) if arch in TILED else array

    if name == "A_log":
        yield "ssm_a", values(-np.exp(array.astype(np.float64)).astype(np.float32), 1)
    elif name == "dt_bias":
        yield "ssm_dt.bias", values(array, 1)
    elif name == "norm.weight":
        yield "ssm_norm.weight", array
    elif name == "conv1d.weight":
        array = array.reshape(array.shape[0], array.shape[-1])
        yield "ssm_conv1d.weight", np.concatenate([array[:key_rows], values(array[key_rows:], width)])
    elif name == "out_proj.weight":
        yield "ssm_out.weight", values(array.T, width).T
    elif name == "in_proj_qkv.weight":
        yield "attn_qkv.weight", np.concatenate([array[:key_rows], values(array[key_rows:], width)])
    elif name == "in_proj_z.weight":
        yield "attn_gate.weight", values(array, width)
    elif name == "in_proj_b.weight":
        yield "ssm_beta.weight", values(array, 1)
    elif name == "in_proj_a.weight":
        yield "ssm_alpha.weight", values(array, 1)
    elif name == "in_proj_ba.weight":
        yield "ssm_ba.weight", array
    elif name == "in_proj_qkvz.weight":
        dim, shared = config.linear_key_head_dim, config.linear_num_value_heads // keys * width
        heads = array.reshape(keys, 2 * dim + 2 * shared, -1)
        parts = np.split(heads, [dim, 2 * dim, 2 * dim + shared], axis=1)
        q, k, v, z = (part.reshape(-1, array.shape[1]) for part in parts)
        yield "attn_qkv.weight", np.concatenate([q, k, v])
        yield "attn_gate.weight", z
    else:
        raise ValueError(name)


def interval(config):
    return config.layer_types.index("full_attention") + 1


def metadata(writer, arch, config):
    writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
    writer.add_ssm_state_size(config.linear_key_head_dim)
    writer.add_ssm_group_count(config.linear_num_key_heads)
    writer.add_ssm_time_step_rank(config.linear_num_value_heads)
    writer.add_ssm_inner_size(config.linear_value_head_dim * config.linear_num_value_heads)
    writer.add_full_attention_interval(interval(config))
    if arch in TILED:
        writer.add_rope_dimension_sections([11, 11, 10, 0])
