"""How loudly the fixtures complain: 1 - cos and first greedy mismatch when one mistake is built into the reference.

    python mistakes.py [NAME ...]

A row below the tolerance of README.md on every prompt is a blind spot: the fixture could not fail for that reason.
"""

import argparse
import copy
import json

import torch

import make
import spec


def rope(**changes):
    def apply(config):
        config.rope_parameters = {k: v for k, v in (config.rope_parameters | changes).items() if v is not None}

    return apply


def local_rope(config):
    config.rope_parameters = config.rope_parameters | {"sliding_attention": config.rope_parameters["full_attention"]}


def global_plain(config):
    config.rope_parameters = config.rope_parameters | {"full_attention": spec.default_rope(1e6)}


def all_pairs(config):
    full = config.rope_parameters["full_attention"] | {"partial_rotary_factor": 1.0}
    config.rope_parameters = config.rope_parameters | {"full_attention": full}


def swapped_factors(config):
    rope(long_factor=config.rope_parameters["short_factor"])(config)


def put(**changes):
    def apply(config):
        for key, value in changes.items():
            setattr(config, key, value)

    return apply


PLAIN_ROPE = dict(rope_type="default")
MISTAKES = [
    ("llama", "rope theta 10100 (+1%)", rope(rope_theta=10100.0)),
    ("llama3", "rope scaling ignored", rope(**PLAIN_ROPE)),
    ("llama3", "linear instead of llama3", rope(rope_type="linear")),
    ("llama_linear", "rope scaling ignored", rope(**PLAIN_ROPE)),
    ("mistral", "eps 1e-6 for 1e-3", put(rms_norm_eps=1e-6)),
    ("qwen2", "theta 10000", rope(rope_theta=10000.0)),
    ("qwen2_yarn", "yarn ignored", rope(**PLAIN_ROPE)),
    ("qwen2_yarn", "linear instead of yarn", rope(rope_type="linear")),
    ("qwen2_yarn", "attention factor 1", rope(attention_factor=1.0)),
    ("qwen3", "eps 1e-3 for 1e-6", put(rms_norm_eps=1e-3)),
    ("gemma2", "no sliding window", put(sliding_window=4096)),
    ("gemma2", "window off by one", put(sliding_window=33)),
    ("gemma2", "odd layers slide", put(layer_types=["full_attention", "sliding_attention"] * 2)),
    ("gemma2", "no attention soft-cap", put(attn_logit_softcapping=None)),
    ("gemma2", "no final soft-cap", put(final_logit_softcapping=None)),
    ("gemma2", "silu for gelu", put(hidden_activation="silu")),
    ("gemma3", "no sliding window", put(sliding_window=4096)),
    ("gemma3", "window off by one", put(sliding_window=25)),
    ("gemma3", "global rope everywhere", local_rope),
    ("gemma3", "no linear scaling", global_plain),
    ("phi3", "short factors for long", swapped_factors),
    ("phi3", "no longrope", rope(**PLAIN_ROPE)),
    ("phi3", "full rotary at the same theta", rope(**PLAIN_ROPE, partial_rotary_factor=1.0)),
    ("starcoder2", "eps 1e-5 for 1e-3", put(norm_epsilon=1e-5)),
    ("starcoder2", "relu", put(hidden_act="relu")),
    ("glm4", "full rotary", rope(partial_rotary_factor=1.0)),
    ("mixtral", "one expert", put(num_experts_per_tok=1)),
    ("qwen2moe", "renormalized", put(norm_topk_prob=True)),
    ("qwen3moe", "not renormalized", put(norm_topk_prob=False)),
    ("qwen3moe", "two experts", put(num_experts_per_tok=2)),
    ("qwen3next", "half of a head rotates", rope(partial_rotary_factor=0.5)),
    ("qwen3next", "two experts", put(num_experts_per_tok=2)),
    ("qwen35", "half of a head rotates", rope(partial_rotary_factor=0.5)),
    ("qwen35", "eps 1e-3 for 1e-6", put(rms_norm_eps=1e-3)),
    ("qwen35moe", "one expert", put(num_experts_per_tok=1)),
    ("deepseek_v2", "softmax without the factor of yarn", rope(mscale=1e-9, mscale_all_dim=1e-9)),
    ("deepseek_v2", "no groups", put(topk_method="greedy")),
    ("deepseek_v3", "no groups", put(n_group=1, topk_group=1)),
    ("deepseek_v3", "pairs rotate in halves", put(rope_interleave=False)),
    ("deepseek_v3", "not renormalized", put(norm_topk_prob=False)),
    ("deepseek_v3", "softmax without the factor of yarn", rope(mscale=1e-9, mscale_all_dim=1e-9)),
    ("llama4", "blocks of 128", put(attention_chunk_size=128)),
    ("llama4", "no factor by position", put(attn_temperature_tuning=False)),
    ("llama4", "no q and k norm", put(use_qk_norm=False)),
    ("mistral3", "no factor by position", rope(llama_4_scaling_beta=0.0)),
    ("mistral3", "cosines and sines times the factor of yarn", rope(mscale=None, mscale_all_dim=None)),
    ("hunyuan", "no alpha", rope(alpha=1.0)),
    ("qwen3vlmoe", "two experts", put(num_experts_per_tok=2)),
    ("bitnet_silu", "squared ReLU", put(hidden_act="relu2")),
    ("kimi_linear", "two experts", put(num_experts_per_tok=2)),
    ("kimi_linear", "weights not scaled", put(routed_scaling_factor=1.0)),
    ("gemma3n", "window off by one", put(sliding_window=25)),
    ("gemma3n", "all gates count", put(activation_sparsity_pattern=[0.0] * 6)),
    ("gemma4", "window off by one", put(sliding_window=25)),
    ("gemma4", "all pairs turn on wide heads", all_pairs),
    ("gemma4", "no final soft-cap", put(final_logit_softcapping=None)),
    ("gemma4_moe", "one expert", put(top_k_experts=1)),
    ("gemma4_e", "all pairs turn on wide heads", all_pairs),
]


@torch.no_grad()
def forced_mismatch(model, entry):
    ids = entry["ids"] + entry["greedy"]
    rows = model(torch.tensor([ids[:-1]]), use_cache=False).logits[0, len(entry["ids"]) - 1 :].argmax(-1)
    wrong = (rows != torch.tensor(entry["greedy"])).nonzero()
    return int(wrong[0]) if len(wrong) else len(entry["greedy"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    wanted = parser.parse_args().names
    families = {f.name: f for f in spec.families()}
    print("| family | mistake | short | medium | long |\n|---|---|---|---|---|")
    for name, label, change in MISTAKES:
        if wanted and name not in wanted:
            continue
        family = families[name]
        entries = json.loads((make.HERE / f"{name}.golden.json").read_text())["prompts"]
        config = copy.deepcopy(family.config)
        change(config)
        wrong = family.model_class(config).eval()
        right = make.build(family)
        wrong.load_state_dict(right.state_dict())
        cells = []
        for entry in entries.values():
            gap = make.one_minus_cos(make.logits(right, entry["ids"]), make.logits(wrong, entry["ids"]))
            cells.append(f"{gap:.1e}/{forced_mismatch(wrong, entry)}")
        print(f"| {name} | {label} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
