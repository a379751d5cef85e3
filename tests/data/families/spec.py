"""What each family fixture looks like: the transformers configuration, the GGUF arch and the knobs of the random init.

One entry of `FAMILIES` is one file. Values are unusual on purpose (head_dim != hidden / heads, a large eps, vocabulary
sizes that are no multiple of 16) so that an engine that assumes the usual ones fails here instead of on a real model.
Everything is deterministic: the seed of a family is a hash of its name, so adding one leaves the others unchanged.
"""

import dataclasses
import math

import transformers as tf

import pictures

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
    "granite": 2,
    "granitemoe": 3,
    "granitehybrid": 0,
    "granitehybrid_moe": 0,
    "nemotron_h": 2,
    "nemotron_h_moe": 0,
    "nemotron_h_latent": 1,
    "falcon_h1": 2,
    "falcon_h1_norm": 5,
    "dots1": 5,
    "gemma": 13,
    "arcee": 9,
    "gpt_oss": 10,
    "smollm3": 3,
    "olmo2": 1,
    "olmo3": 6,
    "seed_oss": 3,
    "exaone4": 0,
    "cohere2": 4,
    "command_r": 2,
    "nemotron": 11,
    "phi2": 1,
    "ernie4_5": 2,
    "glm4moe": 7,
    "minimax_m2": 0,
    "bitnet": 3,
    "qwen3next": 8,
    "qwen35": 3,
    "qwen35moe": 0,
    "deepseek_v2": 2,
    "deepseek_v3": 0,
    "llama4": 1,
    "kimi_linear": 5,
    "lfm2": 0,
    "lfm2moe": 5,
    "gemma3n": 4,
    "gemma4": 15,
    "gemma4_moe": 8,
    "gemma4_e": 4,
    "qwen2vl": 1,
    "qwen3vl": 96,
    "qwen3vlmoe": 12,
    "mistral3": 0,
    "hunyuan": 25,
    "bitnet_silu": 4,
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
    hf_style: str = "v4"  # config.json with rope_theta/rope_scaling ("v4") or rope_parameters ("v5"); "saved" as transformers writes all, "pictures" beside pictures


# families whose directory is as transformers writes it
SAVED = {"mistral3", "hunyuan", "gemma3n", "glm4moe", "granitehybrid_moe", "kimi_linear", "falcon_h1", "lfm2moe", "llama4", "nemotron", "nemotron_h_moe", "olmo3", "phi2"}


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


def latent(q_rank, kv_rank, nope, rope, value):
    return dict(q_lora_rank=q_rank, kv_lora_rank=kv_rank, qk_nope_head_dim=nope, qk_rope_head_dim=rope, v_head_dim=value)


def latent_yarn(mscale):
    return yarn(10000.0, 4.0, 128) | {"mscale": mscale, "mscale_all_dim": mscale}


def families():
    groups = dict(n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=32, n_group=4, topk_group=2,
                  first_k_dense_replace=1)
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
    plain = default_rope(10000.0)
    windows = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]
    gpt_oss = yarn(150000.0, 4.0, 128) | {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": True}
    cohere2 = base(300, 64, 4, 2, 96, 4, 1e-5, True, plain, sliding_window=24, layer_types=windows, logit_scale=0.5)
    cohere2["layer_norm_eps"] = cohere2.pop("rms_norm_eps")
    command_r = base(316, 64, 4, 2, 96, 3, 1e-5, True, plain, logit_scale=0.5)
    command_r["layer_norm_eps"] = command_r.pop("rms_norm_eps")
    phi2 = base(301, 64, 2, 2, 160, 3, 1e-5, False, plain | {"partial_rotary_factor": 0.5})
    phi2["layer_norm_eps"] = phi2.pop("rms_norm_eps")
    nemotron = base(302, 64, 4, 2, 128, 3, 1e-5, False, plain | {"partial_rotary_factor": 0.5})
    nemotron["norm_eps"] = nemotron.pop("rms_norm_eps")
    lfm2 = base(326, 64, 4, 2, 96, 5, 1e-5, True, default_rope(1e6), conv_L_cache=3, block_auto_adjust_ff_dim=False,
                layer_types=["conv", "conv", "full_attention", "conv", "full_attention"], bos_token_id=None, eos_token_id=None)
    lfm2["norm_eps"] = lfm2.pop("rms_norm_eps")
    lfm2_moe = {key: value for key, value in lfm2.items() if not key.startswith("block_")}
    lfm2_moe |= dict(vocab_size=327, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=32, num_dense_layers=2,
                     norm_topk_prob=True)
    proportional = {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25}
    gemma4 = {"full_attention": proportional, "sliding_attention": plain}

    def gemma4_config(vocab, kinds, **more):
        kinds = [{"w": "sliding_attention", "f": "full_attention"}[kind] for kind in kinds]
        sizes = base(vocab, 64, 4, 2, 96, len(kinds), 1e-6, True, gemma4, head_dim=16, global_head_dim=32,
                     sliding_window=24, layer_types=kinds, final_logit_softcapping=12.0)
        return tf.Gemma4TextConfig(**sizes, **(dict(hidden_size_per_layer_input=0) | more))

    one_key = dict(attention_k_eq_v=True, num_global_key_value_heads=1)
    olmo3 = {"full_attention": yarn(10000.0, 4.0, 128), "sliding_attention": plain}
    granite = dict(embedding_multiplier=0.5, logits_scaling=2.0, residual_multiplier=0.7, attention_multiplier=0.3)
    granite_h = dict(granite, layer_types=["linear_attention", "linear_attention", "full_attention", "linear_attention"],
                     position_embedding_type="nope", mamba_d_conv=4, mamba_expand=2, mamba_d_state=24)
    nemotron_h = dict(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=32, intermediate_size=96,
                      ssm_state_size=24, mamba_num_heads=8, mamba_head_dim=16, n_groups=2, layer_norm_epsilon=1e-5,
                      tie_word_embeddings=False, pad_token_id=None, bos_token_id=None, eos_token_id=None,
                      max_position_embeddings=2048, attn_implementation="eager")
    # Multipliers that f16 products with the weights hold exactly.
    falcon_h1 = dict(mamba_d_ssm=128, mamba_n_heads=8, mamba_d_head=16, mamba_n_groups=2, mamba_d_state=24, mamba_d_conv=4,
                     mamba_norm_before_gate=False, embedding_multiplier=2.0, lm_head_multiplier=0.5, key_multiplier=0.5,
                     attention_in_multiplier=2.0, attention_out_multiplier=0.5, ssm_in_multiplier=0.5, ssm_out_multiplier=2.0,
                     mlp_multipliers=[0.5, 2.0], ssm_multipliers=[2.0, 1.0, 0.25, 0.5, 1.0], head_dim=32,
                     bos_token_id=None, eos_token_id=None)
    kimi = base(327, 64, 4, 4, 96, 5, 1e-5, False, None, **latent(None, 40, 24, 8, 32), num_local_experts=6, num_experts_per_tok=3,
                moe_intermediate_size=32, n_shared_experts=1, n_group=1, topk_group=1, norm_topk_prob=True, routed_scaling_factor=2.0,
                linear_head_dim=16, linear_num_heads=4, linear_conv_kernel_dim=4, bos_token_id=None, eos_token_id=None,
                layer_types=["full_attention" if kind == "*" else "linear_attention" for kind in "KK*K*"])
    del kimi["rope_parameters"]
    kinds = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
    quarter = default_rope(1e7) | {"partial_rotary_factor": 0.25}
    qwen35moe = base(333, 64, 2, 1, 0, 4, 1e-6, False, quarter, head_dim=64, num_experts=8, num_experts_per_tok=2,
                     moe_intermediate_size=32, shared_expert_intermediate_size=32, **delta(2, 2, 6))
    del qwen35moe["intermediate_size"]
    qwen2vl = default_rope(1e6) | {"mrope_section": [2, 3, 3]}
    qwen3vl = default_rope(5e6) | {"mrope_section": [6, 5, 5], "mrope_interleaved": True}
    mistral3 = yarn(1e6, 16.0, 64) | {"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                                      "llama_4_scaling_beta": 0.1}
    hunyuan = {"rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 1000.0, "factor": 1.0}
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
        Family("gpt_oss", "gpt-oss", tf.GptOssForCausalLM,
               tf.GptOssConfig(**base(307, 64, 4, 2, 32, 4, 1e-5, False, gpt_oss, head_dim=32, num_local_experts=6,
                                      num_experts_per_tok=2, sliding_window=24))),
        Family("smollm3", "smollm3", tf.SmolLM3ForCausalLM,
               tf.SmolLM3Config(**base(303, 64, 4, 2, 96, 5, 1e-6, True, default_rope(2e6)))),
        Family("granite", "granite", tf.GraniteForCausalLM,
               tf.GraniteConfig(**base(304, 64, 4, 2, 96, 3, 1e-5, True, plain, **granite)), head_gain=8.0),
        Family("granitemoe", "granitemoe", tf.GraniteMoeForCausalLM,
               tf.GraniteMoeConfig(**base(305, 64, 4, 2, 64, 3, 1e-6, True, plain, num_local_experts=6,
                                          num_experts_per_tok=2, **granite)), head_gain=8.0),
        Family("granitehybrid", "granitehybrid", tf.GraniteMoeHybridForCausalLM,
               tf.GraniteMoeHybridConfig(**base(328, 64, 4, 2, 96, 4, 1e-5, True, plain, **granite_h, num_local_experts=0,
                                                num_experts_per_tok=0, shared_intermediate_size=96, mamba_n_heads=8,
                                                mamba_d_head=16, mamba_n_groups=1)), head_gain=8.0),
        Family("granitehybrid_moe", "granitehybrid", tf.GraniteMoeHybridForCausalLM,
               tf.GraniteMoeHybridConfig(**base(329, 64, 4, 2, 32, 4, 1e-5, True, plain, **granite_h, num_local_experts=6,
                                                num_experts_per_tok=2, shared_intermediate_size=48, mamba_n_heads=4,
                                                mamba_d_head=32, mamba_n_groups=2)), head_gain=8.0),
        Family("nemotron_h", "nemotron_h", tf.NemotronHForCausalLM,
               tf.NemotronHConfig(vocab_size=331, layers_block_type=[kinds[kind] for kind in "M-M*-M"], **nemotron_h)),
        Family("nemotron_h_moe", "nemotron_h_moe", tf.NemotronHForCausalLM,
               tf.NemotronHConfig(vocab_size=332, layers_block_type=[kinds[kind] for kind in "MEM*E"], **nemotron_h,
                                  n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=32,
                                  moe_shared_expert_intermediate_size=48, routed_scaling_factor=2.5, norm_topk_prob=True)),
        Family("nemotron_h_latent", "nemotron_h_moe", tf.NemotronHForCausalLM,
               tf.NemotronHConfig(vocab_size=328, layers_block_type=[kinds[kind] for kind in "MEE*E"], **nemotron_h,
                                  n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=32, moe_latent_size=32,
                                  moe_shared_expert_intermediate_size=48, routed_scaling_factor=2.5, norm_topk_prob=True)),
        Family("falcon_h1", "falcon-h1", tf.FalconH1ForCausalLM,
               tf.FalconH1Config(**base(335, 64, 4, 2, 96, 3, 1e-5, False, default_rope(1e6), mamba_rms_norm=False, **falcon_h1))),
        Family("falcon_h1_norm", "falcon-h1", tf.FalconH1ForCausalLM,
               tf.FalconH1Config(**base(334, 64, 4, 1, 96, 3, 1e-5, False, default_rope(1e6), mamba_rms_norm=True, **falcon_h1))),
        Family("olmo2", "olmo2", tf.Olmo2ForCausalLM,
               tf.Olmo2Config(**base(306, 64, 4, 2, 96, 3, 1e-6, False, default_rope(500000.0)))),
        Family("olmo3", "olmo2", tf.Olmo3ForCausalLM,
               tf.Olmo3Config(**base(306, 64, 4, 4, 96, 4, 1e-6, False, olmo3, sliding_window=24,
                                     layer_types=windows))),
        Family("gemma", "gemma", tf.GemmaForCausalLM,
               tf.GemmaConfig(**base(308, 64, 4, 1, 128, 3, 1e-6, True, plain, head_dim=32))),
        Family("arcee", "arcee", tf.ArceeForCausalLM,
               tf.ArceeConfig(**base(309, 64, 4, 2, 128, 3, 1e-5, False, yarn(10000.0, 4.0, 128), head_dim=16))),
        Family("seed_oss", "seed_oss", tf.SeedOssForCausalLM,
               tf.SeedOssConfig(**base(310, 64, 4, 2, 96, 3, 1e-6, False, default_rope(1e7), head_dim=32))),
        Family("exaone4", "exaone4", tf.Exaone4ForCausalLM,
               tf.Exaone4Config(**base(311, 64, 4, 2, 96, 4, 1e-5, False, default_rope(1e6), sliding_window=24,
                                       layer_types=windows))),
        Family("cohere2", "cohere2", tf.Cohere2ForCausalLM, tf.Cohere2Config(**cohere2), head_gain=8.0),
        Family("command_r", "command-r", tf.CohereForCausalLM, tf.CohereConfig(**command_r), head_gain=8.0),
        Family("nemotron", "nemotron", tf.NemotronForCausalLM, tf.NemotronConfig(**nemotron)),
        Family("phi2", "phi2", tf.PhiForCausalLM, tf.PhiConfig(**phi2)),
        Family("ernie4_5", "ernie4_5", tf.Ernie4_5ForCausalLM,
               tf.Ernie4_5Config(**base(312, 64, 4, 2, 96, 3, 1e-5, True, default_rope(500000.0), head_dim=32))),
        Family("glm4moe", "glm4moe", tf.Glm4MoeForCausalLM,
               tf.Glm4MoeConfig(**base(313, 64, 4, 2, 96, 3, 1e-5, False, plain | {"partial_rotary_factor": 0.5},
                                       head_dim=32, attention_bias=True, use_qk_norm=True, n_routed_experts=8,
                                       num_experts_per_tok=3, moe_intermediate_size=32, n_shared_experts=1,
                                       routed_scaling_factor=1.7, n_group=4, topk_group=2, first_k_dense_replace=1,
                                       norm_topk_prob=True))),
        Family("dots1", "dots1", tf.Dots1ForCausalLM,
               tf.Dots1Config(**base(317, 64, 4, 4, 96, 3, 1e-6, False, plain, n_routed_experts=8, num_experts_per_tok=3,
                                     moe_intermediate_size=32, n_shared_experts=2, routed_scaling_factor=2.5,
                                     first_k_dense_replace=1, norm_topk_prob=True, sliding_window=None))),
        Family("minimax_m2", "minimax-m2", tf.MiniMaxM2ForCausalLM,
               tf.MiniMaxM2Config(**base(314, 64, 4, 2, 32, 3, 1e-6, False, default_rope(5e6) | {"partial_rotary_factor": 0.5},
                                         head_dim=32, num_local_experts=8, num_experts_per_tok=3))),
        Family("bitnet", "bitnet-b1.58", tf.BitNetForCausalLM,
               tf.BitNetConfig(**base(315, 64, 4, 2, 96, 3, 1e-5, True, default_rope(500000.0)))),
        Family("qwen3next", "qwen3next", tf.Qwen3NextForCausalLM,
               tf.Qwen3NextConfig(**base(345, 64, 4, 2, 160, 5, 1e-6, False, quarter, head_dim=32, num_experts=6,
                                         num_experts_per_tok=3, moe_intermediate_size=32,
                                         shared_expert_intermediate_size=64, **delta(4, 2, 4))), hf="bf16", hf_style="v5"),
        Family("qwen35", "qwen35", tf.Qwen3_5ForCausalLM,
               tf.Qwen3_5TextConfig(**base(339, 64, 4, 1, 128, 4, 1e-6, True, quarter, head_dim=32, **delta(3, 2, 6))),
               hf="f16", hf_style="v5"),
        Family("qwen35moe", "qwen35moe", tf.Qwen3_5MoeForCausalLM, tf.Qwen3_5MoeTextConfig(**qwen35moe)),
        Family("deepseek_v2", "deepseek2", tf.DeepseekV2ForCausalLM,
               tf.DeepseekV2Config(**base(319, 64, 4, 4, 96, 3, 1e-6, False, latent_yarn(0.707), **latent(None, 64, 32, 16, 32),
                                          **groups, norm_topk_prob=False, topk_method="group_limited_greedy",
                                          n_shared_experts=2, routed_scaling_factor=3.0))),
        Family("deepseek_v3", "deepseek2", tf.DeepseekV3ForCausalLM,
               tf.DeepseekV3Config(**base(321, 64, 4, 4, 96, 3, 1e-6, False, latent_yarn(1.0), **latent(48, 40, 24, 8, 32),
                                          **groups, norm_topk_prob=True, n_shared_experts=1, routed_scaling_factor=2.5,
                                          num_mtp_layers=0)), hf="bf16", hf_style="v5"),
        Family("kimi_linear", "kimi-linear", tf.KimiLinearForCausalLM, tf.KimiLinearConfig(**kimi)),
        Family("lfm2", "lfm2", tf.Lfm2ForCausalLM, tf.Lfm2Config(**lfm2)),
        Family("lfm2moe", "lfm2moe", tf.Lfm2MoeForCausalLM, tf.Lfm2MoeConfig(**lfm2_moe)),
        Family("llama4", "llama4", tf.Llama4ForCausalLM,
               tf.Llama4TextConfig(**base(325, 64, 4, 2, 32, 5, 1e-5, False, llama3, head_dim=32, intermediate_size_mlp=96,
                                          num_local_experts=4, num_experts_per_tok=1, interleave_moe_layer_step=2,
                                          attention_chunk_size=64, attn_temperature_tuning=True, floor_scale=32,
                                          attn_scale=0.3, use_qk_norm=True))),
        Family("gemma3n", "gemma3n", tf.Gemma3nForCausalLM,
               tf.Gemma3nTextConfig(**base(325, 64, 4, 2, 96, 6, 1e-6, True, {"full_attention": default_rope(1e6), "sliding_attention": plain},
                                           head_dim=16, sliding_window=24, final_logit_softcapping=12.0,
                                           layer_types=[{"w": "sliding_attention", "f": "full_attention"}[kind] for kind in "wfwfwf"],
                                           vocab_size_per_layer_input=325, hidden_size_per_layer_input=16, laurel_rank=8,
                                           num_kv_shared_layers=2, activation_sparsity_pattern=[0.6, 0.75, 0.0, 0.6, 0.0, 0.0]))),
        Family("gemma4", "gemma4", tf.Gemma4ForCausalLM, gemma4_config(322, "wwfwf", **one_key)),
        Family("gemma4_moe", "gemma4", tf.Gemma4ForCausalLM,
               gemma4_config(323, "wfwf", **one_key, enable_moe_block=True, num_experts=6, top_k_experts=2,
                             moe_intermediate_size=32)),
        Family("gemma4_e", "gemma4", tf.Gemma4ForCausalLM,
               gemma4_config(324, "wfwfwf", hidden_size_per_layer_input=16, vocab_size_per_layer_input=324,
                             num_kv_shared_layers=2, use_double_wide_mlp=True)),
    ]
    families += [
        Family("qwen2vl", "qwen2vl", pictures.text_of(tf.Qwen2VLTextModel),
               tf.Qwen2VLTextConfig(**base(341, 64, 4, 2, 96, 3, 1e-6, False, qwen2vl))),
        Family("qwen3vl", "qwen3vl", pictures.text_of(tf.Qwen3VLTextModel),
               tf.Qwen3VLTextConfig(**base(342, 64, 4, 2, 128, 3, 1e-6, True, qwen3vl, head_dim=32))),
        Family("qwen3vlmoe", "qwen3vlmoe", pictures.text_of(tf.Qwen3VLMoeTextModel),
               tf.Qwen3VLMoeTextConfig(**base(344, 64, 4, 2, 160, 3, 1e-6, False, qwen3vl, head_dim=32, num_experts=8,
                                              num_experts_per_tok=3, moe_intermediate_size=32)), hf="bf16", hf_style="pictures"),
        Family("mistral3", "mistral3", tf.Ministral3ForCausalLM,
               tf.Ministral3Config(**base(347, 64, 4, 2, 96, 3, 1e-5, True, mistral3, head_dim=32))),
        Family("hunyuan", "hunyuan-dense", tf.HunYuanDenseV1ForCausalLM,
               tf.HunYuanDenseV1Config(**base(348, 64, 4, 2, 96, 3, 1e-5, True, hunyuan, head_dim=32))),
        Family("bitnet_silu", "bitnet", tf.BitNetForCausalLM,
               tf.BitNetConfig(**base(316, 64, 4, 2, 96, 3, 1e-5, True, plain, hidden_act="silu"))),
    ]
    def finished(family):
        hf = dict(hf="bf16", hf_style="saved") if family.name in SAVED else {}
        return dataclasses.replace(family, seed=SEEDS.get(family.name, 0), **hf)

    return [finished(family) for family in families]


def longrope_attention_factor(context, original):
    scale = context / original
    return math.sqrt(1.0 + math.log(scale) / math.log(original)) if scale > 1.0 else 1.0
