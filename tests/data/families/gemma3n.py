"""Gemma 3n: its weights, tensors and metadata.

The residual rows come in several streams, of which a layer computes one; a network of low rank runs beside attention;
every layer reads a second embedding of the token; in the first layers gates below a cutoff count as nothing.
"""

import math

import numpy as np
import torch

NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "post_per_layer_input_norm": "post_norm",
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
    "altup.correction_coefs": "altup_correct_coef",
    "altup.prediction_coefs": "altup_predict_coef",
    "altup.modality_router": "altup_router",
    "altup.router_norm": "altup_router_norm",
    "laurel.linear_left": "laurel_l",
    "laurel.linear_right": "laurel_r",
    "laurel.post_laurel_norm": "laurel_post_norm",
}
OUTSIDE = {
    "embed_tokens_per_layer.weight": "per_layer_token_embd.weight",
    "per_layer_model_projection.weight": "per_layer_model_proj.weight",
    "per_layer_projection_norm.weight": "per_layer_proj_norm.weight",
}
STACKS = {"altup_projections": "altup_proj", "altup_unembed_projections": "altup_unembd_proj"}


def draw(inner, shape, rng):
    """Random weights of what only this family has; None for other tensors."""

    def normal(std, mean=0.0):
        return mean + torch.randn(shape, generator=rng) * std

    if inner == "model.embed_tokens_per_layer.weight":
        return normal(0.25)
    if inner == "model.per_layer_model_projection.weight":
        return normal(1.0)
    if inner.startswith("altup"):
        if inner.endswith("modality_router.weight"):
            # its inputs are divided by the width
            return normal(math.sqrt(shape[1]))
        if inner.endswith("_coefs.weight"):
            return normal(0.25)
        if inner.endswith("correct_output_scale"):
            return normal(0.25, 1.0)
        if inner.endswith("router_norm.weight"):
            return normal(0.25, 1.0)
    if inner.startswith("model.altup"):
        return normal(1.0 / math.sqrt(shape[1]))
    if inner.startswith("laurel.linear"):
        return normal(1.0 / math.sqrt(shape[1]))
    if inner.endswith(("self_attn.q_norm.weight", "self_attn.k_norm.weight")):
        return normal(0.2, 1.0) * math.sqrt(1.3) / shape[0] ** 0.25
    return None


def renamed(stem, suffix):
    """The GGUF name of a tensor of this family alone; None for others."""
    full = f"{stem}.{suffix}"
    if full in OUTSIDE:
        return OUTSIDE[full]
    if full.endswith("altup.correct_output_scale"):
        return f"blk.{full.split('.')[1]}.altup_correct_scale.weight"
    return None


def stacks(state):
    """The square matrices of the streams behind the first, one above the other."""
    for name, stack in STACKS.items():
        own = sorted(full for full in state if full.startswith(f"model.{name}."))
        yield f"{stack}.weight", np.stack([state[full].to(torch.float32).numpy() for full in own])


def metadata(writer, config):
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_sliding_window(config.sliding_window)
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
    writer.add_shared_kv_layers(config.num_kv_shared_layers)
    writer.add_embedding_length_per_layer_input(config.hidden_size_per_layer_input)
    writer.add_altup_active_idx(config.altup_active_idx)
    writer.add_altup_num_inputs(config.altup_num_inputs)
    deviations = torch.distributions.normal.Normal(0, 1).icdf(torch.tensor(config.activation_sparsity_pattern))
    writer.add_activation_sparsity_scale(deviations.tolist())
    writer.add_final_logit_softcapping(config.final_logit_softcapping)
    writer.add_rope_freq_base(config.rope_parameters["full_attention"]["rope_theta"])
