"""Writes the trained network as a GGUF file, reads it back, and draws the loss curve."""

import gguf
import numpy as np
import torch

from corpus import TEMPLATE

DESCRIPTION = "A very small chat model: stories and short answers, trained on text from a grammar"


def matrices(model):
    """(GGUF name, tensor) in file order."""
    s = model.shape
    yield "token_embd.weight", model.embed.weight
    for i, block in enumerate(model.blocks):
        q, k, v = block.qkv.weight.split([s.heads * s.head, s.kv_heads * s.head, s.kv_heads * s.head])
        gate, up = block.gate_up.weight.chunk(2)
        named = dict(attn_norm=block.attn_norm.weight, attn_q=q, attn_k=k, attn_v=v, attn_output=block.out.weight,
                     ffn_norm=block.ffn_norm.weight, ffn_gate=gate, ffn_up=up, ffn_down=block.down.weight)
        for name, tensor in named.items():
            yield f"blk.{i}.{name}.weight", tensor
    yield "output_norm.weight", model.norm.weight


def write_gguf(path, model, tokenizer, specials):
    """Q8_0 matrices, F32 norms. `tokenizer` is a `tokenizers.Tokenizer`; `specials` its control tokens."""
    import json

    s = model.shape
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("model")
    writer.add_name("Minnow")
    writer.add_basename("minnow")
    writer.add_size_label("5M")
    writer.add_license("MIT OR Apache-2.0")
    writer.add_description(DESCRIPTION)
    writer.add_languages(["en"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_vocab_size(s.vocab)
    writer.add_context_length(s.context)
    writer.add_embedding_length(s.hidden)
    writer.add_block_count(s.layers)
    writer.add_feed_forward_length(s.ffn)
    writer.add_head_count(s.heads)
    writer.add_head_count_kv(s.kv_heads)
    writer.add_layer_norm_rms_eps(s.epsilon)
    writer.add_rope_freq_base(s.rope_base)
    writer.add_rope_dimension_count(s.head)
    vocabulary = tokenizer.get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.get)
    assert len(tokens) == s.vocab and vocabulary[tokens[-1]] == s.vocab - 1
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL if t in specials else gguf.TokenType.NORMAL for t in tokens])
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    writer.add_bos_token_id(vocabulary["<|endoftext|>"])
    writer.add_eos_token_id(vocabulary["<|im_end|>"])
    writer.add_pad_token_id(vocabulary["<|endoftext|>"])
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    for name, tensor in matrices(model):
        values = tensor.detach().numpy().astype(np.float32)
        if values.ndim == 1:
            writer.add_tensor(name, values)
        else:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(np.ascontiguousarray(values), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def load_gguf(path, model):
    """Fills `model` with the dequantized tensors of the file; returns the largest change of a weight."""
    stored = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(path).tensors}
    largest = 0.0
    with torch.no_grad():
        for name, tensor in matrices(model):
            values = torch.from_numpy(np.array(stored.pop(name))).view(tensor.shape)
            largest = max(largest, float((values - tensor).abs().max()))
            tensor.copy_(values)
    assert not stored, f"unexpected tensors: {sorted(stored)}"
    return largest


def draw_curve(path, rows):
    """An SVG of training and validation loss over tokens; rows are dicts of the log."""
    width, height, left, bottom = 640, 320, 50, 40
    most = max(r["tokens"] for r in rows)
    low, high = 0.0, max(1.0, min(4.0, max(r["train"] for r in rows)))

    def line(key, color):
        points = " ".join(
            f"{left + (width - left - 10) * r['tokens'] / most:.1f},{height - bottom - (height - bottom - 10) * (min(r[key], high) - low) / (high - low):.1f}"
            for r in rows if r.get(key) is not None)
        return f'<polyline fill="none" stroke="{color}" stroke-width="1.5" points="{points}"/>'

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
             f'<rect width="{width}" height="{height}" fill="white"/>']
    for i in range(5):
        value, y = high * i / 4, height - bottom - (height - bottom - 10) * i / 4
        parts.append(f'<line x1="{left}" x2="{width - 10}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/><text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.1f}</text>')
        x = left + (width - left - 10) * i / 4
        parts.append(f'<text x="{x:.1f}" y="{height - bottom + 16}" text-anchor="middle">{most * i / 4 / 1e6:.1f}M</text>')
    parts += [line("train", "#9ab"), line("stories", "#c33"), line("answers", "#283")]
    for i, (name, color) in enumerate((("training", "#789"), ("held-out stories", "#c33"), ("mixed validation", "#283"))):
        parts.append(f'<text x="{width - 130}" y="{28 + 16 * i}" fill="{color}">{name}</text>')
    parts.append(f'<text x="{width / 2}" y="{height - 6}" text-anchor="middle">training tokens; loss in nats per reply token</text></svg>')
    with open(path, "w") as file:
        file.write("\n".join(parts) + "\n")
