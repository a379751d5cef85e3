"""Writes `../mtp`: the model of `qwen35` and the layer that predicts one token further, with what that layer says.

    python mtp.py

transformers leaves these weights out of its models, so the layer is put together here of its own classes: the two norms and the
projection in front of a model of one layer of attention, as the checkpoints name them (`mtp.pre_fc_norm_embedding`,
`mtp.pre_fc_norm_hidden`, `mtp.fc`, `mtp.layers.0`, `mtp.norm`). Keys and values are rounded to f16, as an engine keeps them.

`mtp.safetensors`: the layer as checkpoints have it, beside the tensors of `../hf/qwen35`. `qwen35.json`: the prompt (`ids`); `firsts[n]`, what the layer guesses behind its first `n + 2` tokens and how likely it finds that;
`guesses`, the same of three tokens one after the other behind all of it.
"""

import copy
import json
import math
import pathlib
import sys

import gguf
import numpy as np
import torch
from safetensors.torch import save_file

import make
import mapping
import spec
import vocab as vocabulary

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "mtp"
GUESSES = 3
NORMS = {"enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden"}


class Ahead(torch.nn.Module):
    """From hidden states and the tokens behind them to the states of the tokens behind those."""

    def __init__(self, model):
        super().__init__()
        module, config = sys.modules[type(model).__module__], copy.deepcopy(model.config)
        config.num_hidden_layers, config.layer_types = 1, ["full_attention"]
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.embed = [model.model.embed_tokens]
        for name in NORMS.values():
            setattr(self, name, module.Qwen3_5RMSNorm(hidden, eps=eps))
        self.fc = torch.nn.Linear(2 * hidden, hidden, bias=False)
        self.layers = module.Qwen3_5TextModel(config).to(torch.float32).eval()

    def forward(self, states, tokens):
        pair = [self.pre_fc_norm_embedding(self.embed[0](tokens)), self.pre_fc_norm_hidden(states)]
        rows = self.fc(torch.cat(pair, dim=-1))
        return self.layers(inputs_embeds=rows, use_cache=False).last_hidden_state


def draw(family, ahead):
    rng = torch.Generator().manual_seed(make.seed_of(family, "mtp"))
    hidden = family.config.hidden_size
    with torch.no_grad():
        for name, parameter in ahead.named_parameters():
            if name.startswith("layers.layers."):
                drawn = make.draw(family, "model." + name.removeprefix("layers."), parameter.shape, rng)
            elif name == "fc.weight":
                drawn = torch.randn(parameter.shape, generator=rng) / math.sqrt(2 * hidden)
            else:
                drawn = 0.25 * torch.randn(parameter.shape, generator=rng)
            parameter.copy_(make.exact(drawn))


@torch.no_grad()
def golden(model, ahead, ids):
    states = model.model(torch.tensor([ids]), use_cache=False).last_hidden_state[:, :-1]
    tokens, guesses, firsts = list(ids[1:]), [], []
    for _ in range(GUESSES):
        made = ahead(states, torch.tensor([tokens]))
        said = [said_of(row) for row in model.lm_head(made)[0]]
        firsts = firsts or said
        guesses.append(said[-1])
        states, tokens = torch.cat([states, made[:, -1:]], dim=1), [*tokens, said[-1][0]]
    return {"ids": ids, "firsts": firsts, "guesses": guesses}


def said_of(logits):
    best = int(logits.argmax())
    return best, round(float(logits.softmax(-1)[best]), 7)


def write(family, model, ahead, vocab):
    writer = gguf.GGUFWriter(FOLDER / "qwen35.gguf", family.arch)
    layers, width = family.config.num_hidden_layers, mapping.head_dim(family.config)
    mapping.metadata(writer, family, width)
    mapping.rope_metadata(writer, family, width)
    vocabulary.write_gguf(writer, vocab)
    # The writer refuses a key twice; the count of layers has those behind the last among them.
    writer.kv_data[0][f"{family.arch}.block_count"].value = layers + 1
    writer.add_uint32(f"{family.arch}.nextn_predict_layers", 1)
    tensors = list(mapping.tensors(family, model.state_dict()))
    state = {f"model.{name}": value for name, value in ahead.layers.state_dict().items() if name.startswith("layers.")}
    tensors += [(name.replace("blk.0.", f"blk.{layers}."), array) for name, array in mapping.tensors(family, state)]
    one_more = {f"{name}.weight": getattr(ahead, own).weight for name, own in NORMS.items()}
    one_more["shared_head_norm.weight"] = ahead.layers.norm.weight
    tensors += [(f"blk.{layers}.nextn.{name}", value.detach().numpy() + np.float32(1.0)) for name, value in one_more.items()]
    tensors.append((f"blk.{layers}.nextn.eh_proj.weight", ahead.fc.weight.detach().numpy()))
    for name, array in tensors:
        writer.add_tensor(name, mapping.stored(name, array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def checkpoint(ahead):
    own = {name: value for name, value in ahead.state_dict().items() if not name.startswith("layers.")}
    own |= {name.removeprefix("layers."): value for name, value in ahead.state_dict().items() if name.startswith("layers.")}
    own.pop("embed_tokens.weight")
    save_file({f"mtp.{name}": value.half() for name, value in own.items()}, FOLDER / "mtp.safetensors")


def main():
    torch.set_num_threads(1)
    FOLDER.mkdir(exist_ok=True)
    family = next(family for family in spec.families() if family.name == "qwen35")
    vocab = vocabulary.build(family.vocab, family.config.vocab_size, family.pads)
    model = make.build(family)
    ahead = Ahead(model).eval()
    draw(family, ahead)
    write(family, model, ahead, vocab)
    checkpoint(ahead)
    ids = make.prompts(family, vocab)["medium"]
    with make.HalfKv(model):
        said = golden(model, ahead, ids)
    (FOLDER / "qwen35.json").write_text(json.dumps(said) + "\n")
    print("guesses", said["guesses"], "distinct", len({token for token, _ in said["firsts"]}))


if __name__ == "__main__":
    main()
