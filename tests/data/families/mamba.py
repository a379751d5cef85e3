"""Families with Mamba2 layers (Granite 4.0 H, Nemotron-H, Falcon-H1): their weights, tensors and metadata.

The layouts are those of llama.cpp's converter: one matrix of gate, inputs of the convolution and step widths, the
convolution without its middle dimension, `ssm_a` as -exp(A_log) and `ssm_d` with one value per row, the norm in rows of
groups.
"""

import math

import numpy as np
import torch

ARCHS = ("granitehybrid", "nemotron_h", "nemotron_h_moe", "falcon-h1")
# transformers name inside a layer of Nemotron-H -> GGUF name inside a block
NEMOTRON = {
    "q_proj.weight": "attn_q.weight",
    "k_proj.weight": "attn_k.weight",
    "v_proj.weight": "attn_v.weight",
    "o_proj.weight": "attn_output.weight",
    "up_proj.weight": "ffn_up.weight",
    "down_proj.weight": "ffn_down.weight",
    "gate.weight": "ffn_gate_inp.weight",
    "fc1_latent_proj.weight": "ffn_latent_down.weight",
    "fc2_latent_proj.weight": "ffn_latent_up.weight",
    "experts.up_proj": "ffn_up_exps.weight",
    "experts.down_proj": "ffn_down_exps.weight",
    "shared_experts.up_proj.weight": "ffn_up_shexp.weight",
    "shared_experts.down_proj.weight": "ffn_down_shexp.weight",
}


def sizes(config):
    """Heads, their width, values of a head's state per value, groups, taps."""
    if config.model_type == "nemotron_h":
        return (config.mamba_num_heads, config.mamba_head_dim, config.ssm_state_size, config.n_groups, config.conv_kernel)
    return (config.mamba_n_heads, config.mamba_d_head, config.mamba_d_state, config.mamba_n_groups, config.mamba_d_conv)


def part(inner):
    """The name inside a Mamba2 layer, if it is one of its tensors."""
    for prefix in ("mamba.", "mixer."):
        if inner.startswith(prefix):
            return inner.removeprefix(prefix)
    return None


def draw(inner, shape, rng, residual):
    """Random weights of a Mamba2 layer, and of layers of Nemotron-H that are called otherwise; None for other tensors."""

    def normal(std, mean=0.0):
        return mean + torch.randn(shape, generator=rng) * std

    match part(inner):
        case "A_log":
            return normal(0.6, -1.0)  # decays from 0.4 to 0.99
        case "D":
            return normal(0.4, 0.6)
        case "dt_bias":
            return normal(0.7, -0.5)
        case "conv1d.weight":
            return normal(0.7)
        case "conv1d.bias":
            return normal(0.3)
        case "out_proj.weight":
            return normal(1.6 * residual / math.sqrt(shape[-1]))
        case "in_proj.weight":
            return normal(1.0 / math.sqrt(shape[-1]))
        case "gate.weight":
            return normal(1.5 / math.sqrt(shape[-1]))
        case "experts.down_proj":
            return normal(0.4 * residual / math.sqrt(shape[-1]))
        case "down_proj.weight" | "shared_experts.down_proj.weight":
            return normal(1.2 * residual / math.sqrt(shape[-1]))
    return None


def tensors(config, name, array):
    """The GGUF name inside a block and the array of one tensor of a Mamba2 layer."""
    heads, width, _, groups, _ = sizes(config)
    if name in NEMOTRON:
        return NEMOTRON[name], array
    match name:
        case "A_log":
            return "ssm_a", -np.exp(array.astype(np.float64)).astype(np.float32).reshape(heads, 1)
        case "D":
            return "ssm_d", array.reshape(heads, 1)
        case "dt_bias":
            return "ssm_dt.bias", array
        case "norm.weight":
            return "ssm_norm.weight", array.reshape(groups, heads * width // groups)
        case "conv1d.weight":
            return "ssm_conv1d.weight", array.reshape(array.shape[0], array.shape[-1])
        case "conv1d.bias":
            return "ssm_conv1d.bias", array
        case "in_proj.weight":
            return "ssm_in.weight", array
        case "out_proj.weight":
            return "ssm_out.weight", array
    raise ValueError(name)


def metadata(writer, config):
    heads, width, state, groups, taps = sizes(config)
    writer.add_ssm_conv_kernel(taps)
    writer.add_ssm_state_size(state)
    writer.add_ssm_group_count(groups)
    writer.add_ssm_inner_size(heads * width)
    writer.add_ssm_time_step_rank(heads)


def granite(writer, config):
    """What Granite 4.0 H has beside the metadata of a Granite: no rotation, so no bound on positions either."""
    metadata(writer, config)
    writer.add_context_length(2**20)
    writer.add_rope_scaling_finetuned(False)
    writer.add_head_count_kv([config.num_key_value_heads if kind == "full_attention" else 0 for kind in config.layer_types])
    writer.add_expert_shared_feed_forward_length(config.shared_intermediate_size)
    writer.add_expert_count(config.num_local_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)


def nemotron(writer, config):
    """What Nemotron-H says: each layer is one of Mamba2, attention and a network, as two lists tell."""
    metadata(writer, config)
    kinds = config.layers_block_type
    writer.add_context_length(2**20)
    writer.add_rope_scaling_finetuned(False)
    writer.add_head_count_kv([config.num_key_value_heads if kind == "full_attention" else 0 for kind in kinds])
    moe = "moe" in kinds
    width = config.moe_intermediate_size if moe else config.intermediate_size
    writer.add_feed_forward_length([width if kind in ("moe", "mlp") else 0 for kind in kinds])
    writer.add_layer_norm_rms_eps(config.layer_norm_epsilon)
    if moe:
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_expert_shared_feed_forward_length(config.moe_shared_expert_intermediate_size)
        writer.add_expert_count(config.n_routed_experts)
        writer.add_expert_shared_count(config.n_shared_experts)
        if config.moe_latent_size:
            writer.add_moe_latent_size(config.moe_latent_size)
        writer.add_expert_weights_norm(config.norm_topk_prob)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
        writer.add_expert_group_count(config.n_group)


def falcon(writer, config):
    metadata(writer, config)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_vocab_size(config.vocab_size)
    writer.add_head_count_kv(config.num_key_value_heads)


def multiplied(config, name, array):
    """A tensor of Falcon-H1 with the multipliers that the converter makes part of it, in f32."""
    gate, down = config.mlp_multipliers
    factors = {
        "feed_forward.gate_proj": gate,
        "feed_forward.down_proj": down,
        "self_attn.q_proj": config.attention_in_multiplier,
        "self_attn.k_proj": config.attention_in_multiplier * config.key_multiplier,
        "self_attn.v_proj": config.attention_in_multiplier,
        "self_attn.o_proj": config.attention_out_multiplier,
        "mamba.out_proj": config.ssm_out_multiplier,
        "mamba.in_proj": config.ssm_in_multiplier,
        "lm_head": config.lm_head_multiplier,
        "embed_tokens": config.embedding_multiplier,
    }
    factor = next((factor for part, factor in factors.items() if part in name), 1.0)
    array = array * np.float32(factor)
    if "mamba.in_proj" in name:
        heads, width, state, groups, _ = sizes(config)
        parts = (heads * width, heads * width, groups * state, groups * state, heads)
        rows = np.concatenate([np.full(rows, factor) for rows, factor in zip(parts, config.ssm_multipliers)])
        array = array * rows.astype(np.float32)[:, None]
    return array
