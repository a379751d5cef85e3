"""From a transformers model to a GGUF file, by the conventions of llama.cpp's converter.

Matrices are written as F16 (the weights are chosen so that this is exact), 1-D tensors, routers and rope factors as
F32.
GGUF lists dimensions reversed: a torch weight [out, in] becomes ne = [in, out].
"""

import math
import re

import gguf
import numpy as np
import torch

import hybrid
import spec
import vocab as vocabulary

# transformers name inside a layer -> GGUF name inside a block
LAYER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
}
# the norm names that mean different things in different families
PLAIN_NORMS = {"post_attention_layernorm": "ffn_norm"}
GEMMA_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
GLM_NORMS = {
    "post_self_attn_layernorm": "post_attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "post_mlp_layernorm": "post_ffw_norm",
}
NORMS = {"gemma2": GEMMA_NORMS, "gemma3": GEMMA_NORMS, "glm4": GLM_NORMS} | dict.fromkeys(hybrid.ARCHS, hybrid.NORMS)


def permute(weight, heads):
    """Reorders q or k rows so that rotating (i, i + d/2) becomes rotating the pair (2i, 2i + 1)."""
    split = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return split.swapaxes(1, 2).reshape(weight.shape)


def tensors(family, state):
    """Yields (GGUF name, float32 array) for a transformers state dict, tied heads left out."""
    config, arch = family.config, family.arch
    names = LAYER | NORMS.get(arch, PLAIN_NORMS)
    for full, value in state.items():
        array = value.to(torch.float32).numpy()
        stem, _, suffix = full.removeprefix("model.").rpartition(".")
        inner = stem.split(".", 2)[-1] + "." + suffix
        if "norm" in stem and (arch.startswith("gemma") or hybrid.zero_centered(arch, inner)):
            array = array + np.float32(1.0)
        if full == "lm_head.weight":
            if not config.tie_word_embeddings:
                yield "output.weight", array
        elif stem == "embed_tokens":
            yield "token_embd.weight", array
        elif stem == "norm":
            yield f"output_norm.{suffix}", array
        elif experts := re.fullmatch(r"layers\.(\d+)\.mlp\.experts\.(gate_up|down)_proj", full.removeprefix("model.")):
            block = f"blk.{experts[1]}"
            if experts[2] == "down":
                yield f"{block}.ffn_down_exps.weight", array
            else:
                half = array.shape[1] // 2
                yield f"{block}.ffn_gate_exps.weight", array[:, :half]
                yield f"{block}.ffn_up_exps.weight", array[:, half:]
        elif inner.startswith("linear_attn"):
            layer = stem.split(".")[1]
            name = full.split(".linear_attn.")[1]
            for name, part in hybrid.tensors(arch, config, name, array):
                yield f"blk.{layer}.{name}", part
        else:
            _, layer, inner = stem.split(".", 2)
            name = names[inner]
            if arch == "llama" and name in ("attn_q", "attn_k"):
                array = permute(array, config.num_attention_heads if name == "attn_q" else config.num_key_value_heads)
            if name == "ffn_gate_inp_shexp":
                array = array.reshape(-1)
            yield f"blk.{layer}.{name}.{suffix}", array


def stored(name, array):
    """The array in the type it has in the file; asserts that nothing is lost."""
    if array.ndim == 1 or "ffn_gate_inp" in name or "ssm_conv1d" in name:
        return np.ascontiguousarray(array, dtype=np.float32)
    half = np.ascontiguousarray(array, dtype=np.float16)
    assert np.array_equal(half.astype(np.float32), array), name
    return half


def llama3_factors(head_dim, rope):
    """The divisors of the rotary frequencies that llama 3.1 checkpoints carry as `rope_freqs.weight`."""
    old, low, high = (rope[k] for k in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor"))
    factors = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (i / head_dim)
        if wavelength < old / high:
            factors.append(1.0)
        elif wavelength > old / low:
            factors.append(rope["factor"])
        else:
            smooth = (old / wavelength - low) / (high - low)
            factors.append(1.0 / ((1.0 - smooth) / rope["factor"] + smooth))
    return np.array(factors, dtype=np.float32)


def rope_metadata(writer, family, head_dim):
    config, arch = family.config, family.arch
    rope = config.rope_parameters
    if arch == "gemma2":
        return
    if arch == "gemma3":
        full = rope["full_attention"]
        writer.add_rope_freq_base(full["rope_theta"])
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(full["factor"])
        return
    writer.add_rope_freq_base(rope["rope_theta"])
    kind = rope["rope_type"]
    if arch == "llama":
        writer.add_rope_dimension_count(head_dim)
    if "partial_rotary_factor" in rope:
        writer.add_rope_dimension_count(int(head_dim * rope["partial_rotary_factor"]))
    if kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    elif kind == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    elif kind == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(head_dim, rope))
    elif kind == "longrope":
        original = rope["original_max_position_embeddings"]
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(spec.longrope_attention_factor(config.max_position_embeddings, original))
        writer.add_tensor("rope_factors_long.weight", np.array(rope["long_factor"], dtype=np.float32))
        writer.add_tensor("rope_factors_short.weight", np.array(rope["short_factor"], dtype=np.float32))


def metadata(writer, family, head_dim):
    config, arch = family.config, family.arch
    writer.add_type("model")
    # llama.cpp looks for "phi3" in the name and then insists on the tokens of the real model.
    writer.add_name(f"shoal fixture {family.name}".replace("phi3", "phi 3"))
    writer.add_license("MIT OR Apache-2.0")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    if hasattr(config, "intermediate_size"):
        writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    if arch == "llama":
        writer.add_vocab_size(config.vocab_size)
    if arch == "starcoder2":
        writer.add_layer_norm_eps(config.norm_epsilon)
    else:
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if head_dim * config.num_attention_heads != config.hidden_size or arch in ("gemma2", "gemma3", "qwen3", "glm4"):
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if arch in ("gemma2", "gemma3"):
        writer.add_sliding_window(config.sliding_window)
    if arch == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if arch == "phi3":
        writer.add_sliding_window(0)
    experts = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None)
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    if arch in ("qwen2moe", "qwen3moe", "qwen3next", "qwen35moe"):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if arch in ("qwen2moe", "qwen3next", "qwen35moe"):
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    if arch in hybrid.ARCHS:
        hybrid.metadata(writer, arch, config)


def head_dim(config):
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def write(path, family, model, vocab):
    writer = gguf.GGUFWriter(path, family.arch)
    width = head_dim(family.config)
    metadata(writer, family, width)
    rope_metadata(writer, family, width)
    vocabulary.write_gguf(writer, vocab)
    for name, array in tensors(family, model.state_dict()):
        writer.add_tensor(name, stored(name, array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
