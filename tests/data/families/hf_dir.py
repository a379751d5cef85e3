"""Writes the transformers side of a fixture as a model directory, the input of `shoal convert`.

The directory looks like a published checkpoint: per-expert tensors, no tied head, and, in style "v4", a config.json
with `rope_theta` and `rope_scaling` as almost every checkpoint on the hub has it ("v5" has `rope_parameters`).
Converting it must give the tensors of `families/<name>.gguf`, which is written from the same model.
"""

import copy
import json
import re
import shutil

import torch
import transformers as tf
from safetensors.torch import save_file

import hybrid
import vocab as vocabulary

# Of a transformers configuration, what says nothing about the stored model.
NOISE = {
    "_name_or_path", "attn_implementation", "chunk_size_feed_forward", "dtype", "id2label", "is_encoder_decoder",
    "label2id", "layer_types", "output_attentions", "output_hidden_states", "problem_type", "return_dict",
    "rope_parameters", "torch_dtype", "transformers_version", "use_cache",
}


def published(state, config):
    """State dict entries under the names that published checkpoints use."""
    mixtral = config.model_type == "mixtral"
    block = "block_sparse_moe" if mixtral else "mlp"
    gate_name, up_name, down_name = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    for name, value in state.items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        match = re.fullmatch(r"(model\.layers\.\d+)\.mlp\.experts\.(gate_up|down)_proj", name)
        if not match:
            yield name.replace(".mlp.gate.weight", f".{block}.gate.weight"), value
            continue
        for expert, weight in enumerate(value):
            prefix = f"{match[1]}.{block}.experts.{expert}"
            if match[2] == "down":
                yield f"{prefix}.{down_name}.weight", weight
            else:
                gate, up = weight.chunk(2)
                yield f"{prefix}.{gate_name}.weight", gate
                yield f"{prefix}.{up_name}.weight", up


def rope_v4(config):
    rope = config.rope_parameters
    if config.model_type == "gemma3_text":
        full = rope["full_attention"]
        return {
            "rope_theta": full["rope_theta"],
            "rope_local_base_freq": rope["sliding_attention"]["rope_theta"],
            "rope_scaling": {"factor": full["factor"], "rope_type": full["rope_type"]},
            "sliding_window_pattern": 6,
        }
    out = {"rope_theta": rope["rope_theta"], "rope_scaling": None}
    if rope["rope_type"] == "llama3":
        out["rope_scaling"] = {k: v for k, v in rope.items() if k != "rope_theta"}
    elif rope["rope_type"] == "longrope":
        out["rope_scaling"] = {"type": "longrope"} | {k: rope[k] for k in ("short_factor", "long_factor")}
        out["original_max_position_embeddings"] = rope["original_max_position_embeddings"]
        out["partial_rotary_factor"] = rope["partial_rotary_factor"]
    return out


def config_json(family, dtype, vocab):
    config = family.config
    out = {k: v for k, v in config.to_dict().items() if k not in NOISE and not k.startswith("_")}
    out |= {"architectures": [family.model_class.__name__], "bos_token_id": None, "eos_token_id": vocab.eos}
    if family.arch in hybrid.ARCHS:
        out["full_attention_interval"] = hybrid.interval(config)
    if family.hf_style == "v5":
        return out | {"rope_parameters": dict(config.rope_parameters), "dtype": dtype}
    return out | rope_v4(config) | {"torch_dtype": dtype}


def saved(folder, family, model, vocab):
    """As transformers itself writes it, under the names of the hub."""
    model = copy.deepcopy(model).to(torch.bfloat16)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    path = folder / "config.json"
    config = {k: v for k, v in json.loads(path.read_text()).items() if k != "transformers_version"}
    config |= {"bos_token_id": None, "eos_token_id": vocab.eos}
    path.write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    vocabulary.write_hf(folder, vocab)


def with_pictures(folder, family, model, vocab):
    """A checkpoint of text and pictures: the text model's names one deeper, its configuration beside another."""
    experts = r"(.*\.mlp\.experts\.(?:gate_up|down)_proj)"
    tensors = {"model.visual.patch_embed.proj.bias": torch.zeros(8)}
    for name, value in model.state_dict().items():
        # Published stacks of experts have inputs before outputs.
        value = value.transpose(1, 2) if re.fullmatch(experts, name) else value
        tensors[name.replace("model.", "model.language_model.", 1)] = value.to(torch.bfloat16).contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    text = {k: v for k, v in family.config.to_dict().items() if k not in NOISE - {"rope_parameters"} and not k.startswith("_")}
    tied = text.pop("tie_word_embeddings")
    config = {
        "model_type": text["model_type"].removesuffix("_text"),
        "text_config": text | {"bos_token_id": None, "eos_token_id": vocab.eos},
        "tie_word_embeddings": tied,
        "vision_config": {"deepstack_visual_indexes": [0, 1, 2]},
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True, default=str) + "\n")
    vocabulary.write_hf(folder, vocab)


def write(folder, family, model, vocab):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if family.hf_style == "saved":
        return saved(folder, family, model, vocab)
    if family.hf_style == "pictures":
        return with_pictures(folder, family, model, vocab)
    dtype = torch.float16 if family.hf == "f16" else torch.bfloat16
    tensors = {}
    for name, value in published(model.state_dict(), family.config):
        tensors[name] = value.to(dtype).contiguous()
        assert torch.equal(tensors[name].float(), value), name
    if family.hf.endswith("sharded"):
        names = sorted(tensors)
        parts = [names[: len(names) // 2], names[len(names) // 2 :]]
        files = {f"model-0000{i}-of-00002.safetensors": part for i, part in enumerate(parts, 1)}
        index = {
            "metadata": {"total_size": sum(t.numel() * t.element_size() for t in tensors.values())},
            "weight_map": {name: file for file, part in files.items() for name in part},
        }
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1, sort_keys=True) + "\n")
    else:
        files = {"model.safetensors": list(tensors)}
    for file, part in files.items():
        save_file({name: tensors[name] for name in part}, folder / file, metadata={"format": "pt"})
    text = json.dumps(config_json(family, str(dtype).removeprefix("torch."), vocab), indent=1, sort_keys=True)
    (folder / "config.json").write_text(text + "\n")
    vocabulary.write_hf(folder, vocab)


def reload(folder):
    """The directory as transformers itself reads it."""
    model = tf.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return model.eval(), tf.AutoTokenizer.from_pretrained(folder)
