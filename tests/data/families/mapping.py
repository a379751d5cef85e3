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

import gemma3n
import gemma4
import hybrid
import kimi
import mamba
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
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
    "mlp.router": "ffn_gate_inp",
    "block_sparse_moe.router": "ffn_gate_inp",
    "feed_forward.router": "ffn_gate_inp",
    "feed_forward.gate": "ffn_gate_inp",
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w2": "ffn_down",
    "feed_forward.w3": "ffn_up",
    "operator_norm": "attn_norm",
    "ffn_norm": "ffn_norm",
    "conv.in_proj": "shortconv.in_proj",
    "conv.conv": "shortconv.conv",
    "conv.out_proj": "shortconv.out_proj",
    "self_attn.out_proj": "attn_output",
    "self_attn.query_layernorm": "attn_q_norm",
    "self_attn.key_layernorm": "attn_k_norm",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm",
    "feed_forward.gate_proj": "ffn_gate",
    "feed_forward.up_proj": "ffn_up",
    "feed_forward.down_proj": "ffn_down",
    "feed_forward.shared_expert.gate_proj": "ffn_gate_shexp",
    "feed_forward.shared_expert.up_proj": "ffn_up_shexp",
    "feed_forward.shared_expert.down_proj": "ffn_down_shexp",
    "self_attn.dense": "attn_output",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
    "self_attn.attn_sub_norm": "attn_sub_norm",
    "mlp.ffn_sub_norm": "ffn_sub_norm",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "norm": "attn_norm",
    "pre_ff_layernorm": "ffn_norm",
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
# no norms before the sublayers
POST_NORMS = {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"}
# the norm before the feed-forward network under the name of the place it has
NAMED_NORMS = {"post_attention_layernorm": "post_attention_norm"}
# families whose converter permutes q and k for rotation in adjacent pairs
PERMUTED = ("llama", "smollm3", "granite", "granitemoe", "granitehybrid", "arcee", "mistral3")
LAYER_NORM = {"starcoder2": "norm_epsilon", "cohere2": "layer_norm_eps", "command-r": "layer_norm_eps", "phi2": "layer_norm_eps", "nemotron": "norm_eps"}
NORMS = {"olmo2": POST_NORMS, "exaone4": POST_NORMS, "gpt-oss": NAMED_NORMS, "seed_oss": NAMED_NORMS,
         "glm4moe": NAMED_NORMS, "gemma2": GEMMA_NORMS, "gemma3": GEMMA_NORMS, "glm4": GLM_NORMS, "gemma3n": gemma3n.NORMS, "gemma4": gemma4.NORMS} | dict.fromkeys(hybrid.ARCHS, hybrid.NORMS)


def permute(weight, heads):
    """Reorders q or k rows so that rotating (i, i + d/2) becomes rotating the pair (2i, 2i + 1)."""
    split = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return split.swapaxes(1, 2).reshape(weight.shape)


def tensors(family, state):
    """Yields (GGUF name, float32 array) for a transformers state dict, tied heads left out."""
    config, arch = family.config, family.arch
    names = LAYER | NORMS.get(arch, PLAIN_NORMS) | (kimi.NAMES if arch == "kimi-linear" else {})
    for full, value in state.items():
        array = value.to(torch.float32).numpy()
        if arch == "falcon-h1":
            array = mamba.multiplied(config, full, array)
        stem, _, suffix = full.removeprefix("model.").rpartition(".")
        inner = stem.split(".", 2)[-1] + "." + suffix
        if "norm" in stem and suffix == "weight" and (one_more(arch) or hybrid.zero_centered(arch, inner)):
            array = array + np.float32(1.0)
        if arch == "gemma4" and (name := gemma4.renamed(stem, suffix)):
            yield name, array
        elif arch == "gemma3n" and (name := gemma3n.renamed(stem, suffix)):
            yield name, array
        elif arch == "gemma3n" and stem.split(".")[0] in gemma3n.STACKS:
            continue
        elif full.startswith("lm_head."):
            if not config.tie_word_embeddings:
                yield f"output.{suffix}", array
        elif stem in ("embed_tokens", "embeddings"):
            yield "token_embd.weight", array
        elif stem == "embedding_norm":
            yield f"token_embd_norm.{suffix}", array
        elif stem in ("norm", "norm_f", "final_layernorm"):
            yield f"output_norm.{suffix}", array
        elif suffix in ("sinks", "e_score_correction_bias", "expert_bias"):
            block = "blk." + stem.split(".")[1]
            yield f"{block}.{'attn_sinks.weight' if suffix == 'sinks' else 'exp_probs_b.bias'}", array
        elif arch == "llama4" and ".experts" in stem:
            # [E, in, out], gate and up one after the other
            block, array = "blk." + stem.split(".")[1], array.swapaxes(1, 2)
            if suffix == "down_proj":
                yield f"{block}.ffn_down_exps.weight", array
            else:
                for part, half in zip(("gate", "up"), np.split(array, 2, axis=1)):
                    yield f"{block}.ffn_{part}_exps.weight", half
        elif arch == "gpt-oss" and ".experts" in stem:
            yield from gpt_oss_experts("blk." + stem.split(".")[1], suffix, array)
        elif experts := re.fullmatch(r"layers\.(\d+)\.(?:mlp|block_sparse_moe|feed_forward)\.experts\.(gate_up|down)_proj", full.removeprefix("model.")):
            block = f"blk.{experts[1]}"
            if experts[2] == "down":
                yield f"{block}.ffn_down_exps.weight", array
            else:
                half = array.shape[1] // 2
                yield f"{block}.ffn_gate_exps.weight", array[:, :half]
                yield f"{block}.ffn_up_exps.weight", array[:, half:]
        elif arch == "kimi-linear" and (parts := list(kimi.tensors(config, full.split(".", 3)[-1], array))):
            for name, part in parts:
                yield f"blk.{stem.split('.')[1]}.{name}", part
        elif inner == "self_attn.kv_b_proj.weight":
            # for each head the rows of its keys, transposed, and those of its values
            heads = array.reshape(config.num_attention_heads, -1, array.shape[-1])
            block, keys = f"blk.{stem.split('.')[1]}", config.qk_nope_head_dim
            yield f"{block}.attn_k_b.weight", heads[:, :keys].swapaxes(1, 2)
            yield f"{block}.attn_v_b.weight", heads[:, keys:]
        elif inner.startswith("linear_attn"):
            layer = stem.split(".")[1]
            name = full.split(".linear_attn.")[1]
            for name, part in hybrid.tensors(arch, config, name, array):
                yield f"blk.{layer}.{name}", part
        elif arch in mamba.ARCHS and (name := mamba.part(full.removeprefix("model.").split(".", 2)[-1])):
            name, array = mamba.tensors(config, name, array)
            yield f"blk.{stem.split('.')[1]}.{name}", array
        elif inner.startswith("shared_mlp"):
            # gate and up one after the other; beside experts the expert that every token visits
            block, ending = f"blk.{stem.split('.')[1]}", "_shexp" if config.num_local_experts else ""
            if "output" in inner:
                yield f"{block}.ffn_down{ending}.weight", array
            else:
                for name, half in zip(("gate", "up"), np.split(array, 2)):
                    yield f"{block}.ffn_{name}{ending}.weight", half
        else:
            _, layer, inner = stem.split(".", 2)
            name = names[inner]
            if arch in PERMUTED and name in ("attn_q", "attn_k"):
                array = permute(array, config.num_attention_heads if name == "attn_q" else config.num_key_value_heads)
            if name == "shortconv.conv":
                array = array.reshape(array.shape[0], array.shape[-1])
            if name == "ffn_gate_inp_shexp":
                array = array.reshape(-1)
            # The converter's table has this one norm under its whole name.
            plain = arch == "falcon-h1" and name == "ffn_norm"
            yield f"blk.{layer}.{name}" if plain else f"blk.{layer}.{name}.{suffix}", array
    if arch == "gemma3n":
        yield from gemma3n.stacks(state)


def one_more(arch):
    """Whether norms multiply by one more than the stored weight."""
    return arch in ("gemma", "gemma2", "gemma3", "nemotron")


def gpt_oss_experts(block, suffix, array):
    """Matrices are [E, in, out], gate and up interleaved."""
    kind = "bias" if suffix.endswith("bias") else "weight"
    part = (lambda a: a) if kind == "bias" else (lambda a: a.swapaxes(1, 2))
    if suffix.startswith("down"):
        yield f"{block}.ffn_down_exps.{kind}", part(array)
    else:
        yield f"{block}.ffn_gate_exps.{kind}", part(array[..., ::2])
        yield f"{block}.ffn_up_exps.{kind}", part(array[..., 1::2])


def stored(name, array):
    """The array in the type it has in the file; asserts that nothing is lost."""
    if array.ndim == 1 or "ffn_gate_inp" in name or "_coef" in name or "ssm_conv1d" in name or "shortconv.conv" in name or name.endswith((".bias", "ssm_a", "ssm_d", "ssm_norm.weight")):
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
    if arch in ("gemma2", "gemma3n", "gemma4", "kimi-linear"):
        return
    if arch.startswith("nemotron_h"):
        writer.add_rope_dimension_count(head_dim)
        return
    rope = config.rope_parameters
    if arch == "gemma3":
        full = rope["full_attention"]
        writer.add_rope_freq_base(full["rope_theta"])
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(full["factor"])
        return
    rope = rope.get("full_attention", rope)
    kind = rope["rope_type"]
    if kind == "dynamic":
        # The converter writes the base that `alpha` makes.
        writer.add_rope_freq_base(rope["rope_theta"] * rope["alpha"] ** (head_dim / (head_dim - 2)))
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
        writer.add_rope_scaling_factor(1)
        writer.add_rope_scaling_orig_ctx_len(1 << 18)
        return
    writer.add_rope_freq_base(rope["rope_theta"])
    if "mrope_section" in rope:
        writer.add_rope_dimension_sections([*rope["mrope_section"], 0])
    if arch.startswith("qwen3vl"):
        writer.add_num_deepstack_layers(3)
    if arch in PERMUTED or arch in ("deepseek2", "llama4"):
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
        if "llama_4_scaling_beta" in rope:
            writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
            writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
            writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
            writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
        elif "mscale_all_dim" in rope:
            writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])
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
    if arch not in mamba.ARCHS:
        writer.add_context_length(1 << 18 if arch == "hunyuan-dense" else config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    if arch == "gemma4":
        gemma4.metadata(writer, config)
    elif arch == "gemma3n":
        gemma3n.metadata(writer, config)
    elif arch == "llama4":
        writer.add_feed_forward_length(config.intermediate_size_mlp)
        writer.add_expert_feed_forward_length(config.intermediate_size)
        writer.add_interleave_moe_layer_step(config.interleave_moe_layer_step)
        writer.add_sliding_window(config.attention_chunk_size)
        writer.add_attn_temperature_length(config.floor_scale)
        writer.add_attn_temperature_scale(config.attn_scale)
    elif hasattr(config, "intermediate_size") and not arch.startswith("nemotron_h"):
        writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    if arch.startswith("lfm2"):
        writer.add_head_count_kv([0 if kind == "conv" else config.num_key_value_heads for kind in config.layer_types])
        writer.add_shortconv_l_cache(config.conv_L_cache)
    elif arch == "granitehybrid":
        mamba.granite(writer, config)
    elif arch.startswith("nemotron_h"):
        mamba.nemotron(writer, config)
    elif arch == "falcon-h1":
        mamba.falcon(writer, config)
    elif arch == "kimi-linear":
        kimi.metadata(writer, config)
    elif arch != "gemma4":
        writer.add_head_count_kv(1 if arch == "deepseek2" else config.num_key_value_heads)
    if arch in ("llama", "mistral3"):
        writer.add_vocab_size(config.vocab_size)
    if arch in LAYER_NORM:
        writer.add_layer_norm_eps(getattr(config, LAYER_NORM[arch]))
    elif not arch.startswith("nemotron_h"):
        writer.add_layer_norm_rms_eps(config.norm_eps if arch.startswith("lfm2") else config.rms_norm_eps)
    if arch == "deepseek2":
        latent_metadata(writer, config)
    elif arch not in ("gemma4", "kimi-linear") and (arch.startswith("nemotron_h") or head_dim * config.num_attention_heads != config.hidden_size or arch in ("gemma", "gemma2", "gemma3", "gemma3n", "qwen3", "qwen3vl", "qwen3vlmoe", "glm4", "hunyuan-dense")):
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if arch in ("gemma2", "gemma3", "gpt-oss", "exaone4", "cohere2") or family.name == "olmo3":
        writer.add_sliding_window(config.sliding_window)
    if arch == "exaone4" or family.name == "olmo3":
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
    if arch.startswith("granite"):
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
        writer.add_attention_scale(config.attention_multiplier)
    if arch in ("cohere2", "command-r"):
        writer.add_logit_scale(config.logit_scale)
    if arch == "lfm2moe":
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_leading_dense_block_count(config.num_dense_layers)
    if arch in ("glm4moe", "dots1", "minimax-m2", "lfm2moe"):
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if arch in ("gpt-oss", "minimax-m2"):
        writer.add_expert_feed_forward_length(config.intermediate_size)
    if arch in ("glm4moe", "dots1", "deepseek2"):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_expert_shared_count(config.n_shared_experts)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
        writer.add_expert_weights_norm(config.norm_topk_prob)
        writer.add_leading_dense_block_count(config.first_k_dense_replace)
    if arch in ("glm4moe", "deepseek2"):
        writer.add_expert_group_count(config.n_group)
        writer.add_expert_group_used_count(config.topk_group)
    if arch == "glm4moe":
        writer.add_nextn_predict_layers(0)
    if arch == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if arch == "phi3":
        writer.add_sliding_window(0)
    experts = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None)
    if experts and arch not in ("gemma4", *mamba.ARCHS):
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    if arch in ("qwen2moe", "qwen3moe", "qwen3vlmoe", "qwen3next", "qwen35moe"):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if arch in ("qwen2moe", "qwen3next", "qwen35moe"):
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    if arch in hybrid.ARCHS:
        hybrid.metadata(writer, arch, config)


def latent_metadata(writer, config):
    """One key of latent and rotated part for all heads, whose value is the latent; the widths of a head in keys of their own."""
    latent, rope = config.kv_lora_rank, config.qk_rope_head_dim
    writer.add_key_length(latent + rope)
    writer.add_value_length(latent)
    writer.add_key_length_mla(config.qk_nope_head_dim + rope)
    writer.add_value_length_mla(config.v_head_dim)
    writer.add_kv_lora_rank(latent)
    if config.q_lora_rank is not None:
        writer.add_q_lora_rank(config.q_lora_rank)
    sigmoid = config.model_type == "deepseek_v3"
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID if sigmoid else gguf.ExpertGatingFuncType.SOFTMAX)


def head_dim(config):
    if config.model_type == "gemma4_text":
        return gemma4.heads(config, "sliding_attention")[0]
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
