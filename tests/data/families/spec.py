"""What each family fixture looks like: the transformers configuration, the GGUF arch and the knobs of the random init.

One entry of `FAMILIES` is one file. Values are unusual on purpose (head_dim != hidden / heads, a large eps, vocabulary
sizes that are no multiple of 16) so that an engine that assumes the usual ones fails here instead of on a real model.
Everything is deterministic: the seed of a family is a hash of its name, so adding one leaves the others unchanged.
"""

import dataclasses
import math

import transformers as tf

SHORT, MEDIUM, LONG = 8, 45, 211
LONGROPE_LONG = 283  # crosses the original context of 256, the smallest that llama.cpp can be configured to
GREEDY = 32

# found by `make.py --search 400`; see README.md, Init
SEEDS = {
    "llama": 9,
    "llama3": 254,
    "llama_linear": 0,
    "mistral": 1,
    "qwen2": 72,
    "qwen2_yarn": 8,
    "qwen3": 272,
    "gemma2": 26,
    "gemma3": 14,
    "phi3": 11,
    "starcoder2": 170,
    "glm4": 16,
    "mixtral": 2,
    "qwen2moe": 2,
    "qwen3moe": 21,
    "qwen3next": 8,
    "qwen35": 3,
    "qwen35moe": 0,
}


@dataclasses.dataclass(frozen=True)
class Family:
    name: str
    arch: str
    model_class: type
    config: object
    seed: int = 0  # the first draw that `make.py --search` accepts
    vocab: str = "bpe"  # "bpe" | "bpe_qwen2" | "bpe_specials_first" | "spm"
    pads: int = 0  # padded vocabulary rows ([PADn], type UNUSED)
    score_std: float = 1.3  # std of q.k / sqrt(head_dim)
    head_gain: float = 4.0  # scale of the logits
    residual: float = 1.0  # scale of the residual stream; small where a large eps is to be seen
    hf: str = ""  # "bf16" | "f16" | "bf16-sharded": also write tests/data/hf/<name>
    hf_style: str = "v4"  # config.json with rope_theta/rope_scaling ("v4") or rope_parameters ("v5")


def yarn(theta, factor, original):
    return {"rope_type": "yarn", "rope_theta": theta, "factor": factor, "original_max_position_embeddings": original}


def default_rope(theta):
    return {"rope_type": "default", "rope_theta": theta}


def longrope(theta, original, rotary, partial):
    half = rotary // 2
    # Factors that f32 holds exactly; short ones slightly above 1, long ones growing with the wavelength as in Phi-3.5.
    short = [1.0 + 0.0625 * i for i in range(half)]
    long = [round(1.0 + 7.0 * (i / (half - 1)) ** 1.5, 2) for i in range(half)]
    return {
        "rope_type": "longrope",
        "rope_theta": theta,
        "short_factor": short,
        "long_factor": long,
        "original_max_position_embeddings": original,
        "partial_rotary_factor": partial,
    }


def base(vocab, hidden, heads, kv, ffn, layers, eps, tied, rope, context=2048, **more):
    return dict(
        vocab_size=vocab,
        hidden_size=hidden,
        num_attention_heads=heads,
        num_key_value_heads=kv,
        intermediate_size=ffn,
        num_hidden_layers=layers,
        rms_norm_eps=eps,
        tie_word_embeddings=tied,
        rope_parameters=rope,
        max_position_embeddings=context,
        pad_token_id=None,
        attn_implementation="eager",
        **more,
    )


def delta(interval, keys, values, dim=16):
    return dict(full_attention_interval=interval, linear_num_key_heads=keys, linear_num_value_heads=values,
                linear_key_head_dim=dim, linear_value_head_dim=dim)


def families():
    llama3 = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    }
    linear = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
    gemma3 = {
        "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        "sliding_attention": default_rope(10000.0),
    }
    starcoder2 = base(356, 96, 6, 2, 160, 3, 1e-3, True, default_rope(1e5), use_bias=True, sliding_window=None)
    starcoder2["norm_epsilon"] = starcoder2.pop("rms_norm_eps")
    starcoder2["hidden_act"] = "gelu_pytorch_tanh"
    quarter = default_rope(1e7) | {"partial_rotary_factor": 0.25}
    qwen35moe = base(333, 64, 2, 1, 0, 4, 1e-6, False, quarter, head_dim=64, num_experts=8, num_experts_per_tok=2,
                     moe_intermediate_size=32, shared_expert_intermediate_size=32, **delta(2, 2, 6))
    del qwen35moe["intermediate_size"]
    families = [
        Family("llama", "llama", tf.LlamaForCausalLM,
               tf.LlamaConfig(**base(353, 64, 4, 4, 160, 3, 1e-5, False, default_rope(10000.0))), hf="f16"),
        Family("llama3", "llama", tf.LlamaForCausalLM,
               tf.LlamaConfig(**base(384, 96, 3, 1, 128, 3, 1e-5, True, llama3)), hf="bf16"),
        Family("llama_linear", "llama", tf.LlamaForCausalLM,
               tf.LlamaConfig(**base(331, 64, 4, 2, 96, 3, 1e-5, False, linear))),
        Family("mistral", "llama", tf.MistralForCausalLM,
               tf.MistralConfig(**base(419, 64, 4, 2, 128, 3, 1e-3, False, default_rope(10000.0), head_dim=32,
                                       sliding_window=None)), vocab="spm", residual=0.1),
        Family("qwen2", "qwen2", tf.Qwen2ForCausalLM,
               tf.Qwen2Config(**base(401, 64, 4, 2, 160, 3, 1e-6, True, default_rope(1e6))), pads=7, vocab="bpe_qwen2",
               hf="bf16-sharded", hf_style="v5"),
        Family("qwen2_yarn", "qwen2", tf.Qwen2ForCausalLM,
               tf.Qwen2Config(**base(320, 128, 4, 1, 96, 3, 1e-6, False, yarn(10000.0, 4.0, 512)))),
        Family("qwen3", "qwen3", tf.Qwen3ForCausalLM,
               tf.Qwen3Config(**base(367, 64, 4, 2, 128, 3, 1e-6, True, default_rope(1e6), head_dim=32))),
        Family("gemma2", "gemma2", tf.Gemma2ForCausalLM,
               tf.Gemma2Config(**base(389, 64, 4, 2, 128, 4, 1e-6, True, default_rope(10000.0), head_dim=32,
                                      query_pre_attn_scalar=32, sliding_window=32, attn_logit_softcapping=6.0,
                                      final_logit_softcapping=12.0)), score_std=2.0),
        Family("gemma3", "gemma3", tf.Gemma3ForCausalLM,
               tf.Gemma3TextConfig(**base(384, 64, 4, 1, 96, 7, 1e-6, True, gemma3, head_dim=32,
                                          query_pre_attn_scalar=32, sliding_window=24)), hf="bf16"),
        Family("phi3", "phi3", tf.Phi3ForCausalLM,
               tf.Phi3Config(**base(377, 96, 3, 1, 128, 3, 1e-5, False, longrope(10000.0, 256, 24, 0.75), context=2048,
                                    original_max_position_embeddings=256, sliding_window=None, bos_token_id=None,
                                    eos_token_id=None)), hf="bf16"),
        Family("starcoder2", "starcoder2", tf.Starcoder2ForCausalLM, tf.Starcoder2Config(**starcoder2),
               vocab="bpe_specials_first", residual=0.1, head_gain=6.0),
        Family("glm4", "glm4", tf.Glm4ForCausalLM,
               tf.Glm4Config(**base(343, 64, 4, 2, 128, 3, 1.5625e-7, False,
                                    default_rope(10000.0) | {"partial_rotary_factor": 0.5}, head_dim=32,
                                    attention_bias=True, eos_token_id=[0]))),
        Family("mixtral", "llama", tf.MixtralForCausalLM,
               tf.MixtralConfig(**base(320, 64, 4, 2, 96, 3, 1e-5, False, default_rope(1e6), num_local_experts=4,
                                       num_experts_per_tok=2)), hf="bf16"),
        Family("qwen2moe", "qwen2moe", tf.Qwen2MoeForCausalLM,
               tf.Qwen2MoeConfig(**base(349, 64, 4, 4, 160, 3, 1e-6, False, default_rope(1e6), num_experts=6,
                                        num_experts_per_tok=2, moe_intermediate_size=32,
                                        shared_expert_intermediate_size=96, norm_topk_prob=False))),
        Family("qwen3moe", "qwen3moe", tf.Qwen3MoeForCausalLM,
               tf.Qwen3MoeConfig(**base(337, 64, 4, 2, 160, 3, 1e-6, False, default_rope(1e6), head_dim=32,
                                        num_experts=8, num_experts_per_tok=3, moe_intermediate_size=32,
                                        norm_topk_prob=True)), hf="f16", hf_style="v5"),
        Family("qwen3next", "qwen3next", tf.Qwen3NextForCausalLM,
               tf.Qwen3NextConfig(**base(345, 64, 4, 2, 160, 5, 1e-6, False, quarter, head_dim=32, num_experts=6,
                                         num_experts_per_tok=3, moe_intermediate_size=32,
                                         shared_expert_intermediate_size=64, **delta(4, 2, 4))), hf="bf16", hf_style="v5"),
        Family("qwen35", "qwen35", tf.Qwen3_5ForCausalLM,
               tf.Qwen3_5TextConfig(**base(339, 64, 4, 1, 128, 4, 1e-6, True, quarter, head_dim=32, **delta(3, 2, 6))),
               hf="f16", hf_style="v5"),
        Family("qwen35moe", "qwen35moe", tf.Qwen3_5MoeForCausalLM, tf.Qwen3_5MoeTextConfig(**qwen35moe)),
    ]
    return [dataclasses.replace(family, seed=SEEDS[family.name]) for family in families]


def longrope_attention_factor(context, original):
    scale = context / original
    return math.sqrt(1.0 + math.log(scale) / math.log(original)) if scale > 1.0 else 1.0
