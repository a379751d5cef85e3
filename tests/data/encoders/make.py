"""Writes the fixtures of encoders: per family a tiny GGUF, a checkpoint, and what transformers computes with it.

    python make.py

Needs torch, transformers, gguf, safetensors, tokenizers and numpy; no network; about ten seconds. The weights are random, of values
that F32, F16 and BF16 all hold; attention is sharp (scores of a deviation of about 1.3), norms differ from 1.

`<name>.gguf` has matrices in F16 and the rest in F32, with tensor names and metadata as llama.cpp's converter writes them;
`<name>/` is the same model as publishers ship it, the input of `shoal convert`. `<name>.json` holds texts as token ids, for each the
hidden states of the first and of the last token and the mean of all, and of a pair the score; `wordpiece.json` holds texts and the
ids that transformers gives to them with a vocabulary without capitals and with one that has them. `unigram.json`, made by
`unigram.py`, holds a vocabulary of sentencepiece's unigram kind and the ids that sentencepiece gives to texts.
"""

import json
import pathlib
import re
import shutil
import zlib

import gguf
import numpy as np
import tokenizers
import torch
import transformers as tf
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent
HIDDEN, LAYERS, HEADS, INNER, VOCAB, CONTEXT = 48, 4, 4, 80, 400, 320
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PAD, UNK, CLS, SEP, MASK = range(5)

WORDS = "the of and shoal turns fish water river caf\u00e9 naive stra\u00dfe \u03b1\u03b2\u03b3 \u043f\u0440\u0438\u0432\u0435\u0442 one two three".split()
PARTS = "##ing ##ed ##s ##er ##tion ##al ##ly ##\u00e9 ##\u00df ##\u03b2 ##\u0440\u0438\u0432\u0435\u0442".split()
SINGLE = list("abcdefghijklmnopqrstuvwxyz0123456789") + list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") + list("\u4f60\u597d\u4e16\u754c\u00e9\u00df\u03b1\u03c3\u03c2\u2014\u2026\u3002\u0130\u20ac\u1100\u0915")
CAPITALS = list("ABCDEFGHIJKLMNOPQRSTUVWXYZ") + ["The", "Shoal", "\u00c9", "\u0130", "##T", "Caf\u00e9"]


def vocabulary(cased):
    pieces = SPECIALS + SINGLE + ["##" + c for c in SINGLE if c.isalnum()]
    pieces += [w for w in WORDS if w not in pieces] + PARTS
    pieces += [w for w in (CAPITALS + ["##" + c for c in CAPITALS if len(c) == 1] if cased else [])]
    pieces = list(dict.fromkeys(pieces))
    assert len(pieces) <= VOCAB, len(pieces)
    return pieces + [f"[unused{i}]" for i in range(VOCAB - len(pieces))]


def tokenizer(cased):
    pieces = vocabulary(cased)
    inner = tokenizers.Tokenizer(tokenizers.models.WordPiece({p: i for i, p in enumerate(pieces)}, unk_token="[UNK]"))
    inner.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=not cased)
    inner.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    inner.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)])
    inner.add_special_tokens(SPECIALS)
    return inner


def phantom(piece):
    if piece.startswith("[") and piece.endswith("]"):
        return piece
    return piece[2:] if piece.startswith("##") else "\u2581" + piece


TRICKY = [
    "", " ", "The shoal turns.", "hello", "caf\u00e9 Caf\u00e9 CAF\u00c9", "cafe\u0301 na\u00efve", "\u4f60\u597d\u4e16\u754c", "a\u4f60b\u597dc", "fishing turned waters",
    "one\ttwo\nthree\r\nfour", "a\u0000b\ufffdc", "a\u200bb\u00adc\u2060d", "zero\u200dwidth", "\u00a0one\u3000two\u2003three\u2028four", "a" * 100, "a" * 101,
    "x" * 99 + "\u20ac", "don't stop--now!?", "$5.00 + 3% = <b>", "foo_bar@baz.com", "\u2014dash\u2026 \u3002", "STRASSE Stra\u00dfe",
    "\u0130stanbul I\u0307", "\u03a3\u03af\u03c3\u03c5\u03c6\u03bf\u03c2 \u03b1\u03b2\u03b3", "\u041f\u0440\u0438\u0432\u0435\u0442", "\ud55c\uad6d\uc5b4", "\u0915\u094d\u0937", "e\u0301\u0327x", "\ue000private", "\U0001f41f fish \U0001f468\u200d\U0001f469",
    "\uff21\uff22\uff23 \uff41", "\ufb01sh", "[CLS] [SEP] [MASK]", "## ##ing", "\u2581the", "12:34 3.14", "\U0002a700\U0002b820\U0002b920", "\u0600\u06dd arabic signs", "a\u0300", "\u0300a",
    "\x7fdel\x1besc", "one\x85two", "\u1100\u1161", "...", "a.b.c", "tab\tend ", "\u01c5 \u01f0",
]


def exact(values):
    rounded = values.to(torch.bfloat16).to(torch.float32)
    return torch.where(rounded.abs() < 2.0**-13, torch.zeros_like(rounded), rounded)


def fill(model, seed):
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            draw = torch.randn(parameter.shape, generator=rng)
            norm = "norm" in name.lower()
            if norm:
                value = 1.0 + 0.25 * draw if name.endswith("weight") else 0.2 * draw
            elif name.endswith("bias"):
                value = 0.2 * draw
            elif "embedding" in name:
                value = draw
            else:
                sharp = any(part in name for part in ("query", "key", "q_proj", "k_proj", "Wqkv"))
                value = draw * (1.2 if sharp else 1.0) / parameter.shape[-1] ** 0.5
            parameter.copy_(exact(value))
    return model.eval()


COMMON = dict(vocab_size=VOCAB, hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=INNER,
              max_position_embeddings=CONTEXT, pad_token_id=PAD)


def models():
    bert = tf.BertConfig(**COMMON, layer_norm_eps=1e-3, num_labels=1, attn_implementation="eager")
    yield "bert", "bert", tf.BertForSequenceClassification(bert), "bert."
    # Its tokens are those of unigram.json; positions begin behind the row of the padding.
    xlm = COMMON | dict(vocab_size=300, max_position_embeddings=CONTEXT + 1, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    xlm = tf.XLMRobertaConfig(**xlm, type_vocab_size=1, layer_norm_eps=1e-3, num_labels=1, attn_implementation="eager")
    yield "xlm_roberta", "bert", tf.XLMRobertaForSequenceClassification(xlm), "roberta."
    nomic = tf.NomicBertConfig(**COMMON, layer_norm_eps=1e-3, attn_implementation="eager")
    yield "nomic_bert", "nomic-bert", tf.NomicBertModel(nomic), ""
    modern = tf.ModernBertConfig(**COMMON, norm_eps=1e-3, local_attention=50, num_labels=1, cls_token_id=CLS, sep_token_id=SEP,
                                 bos_token_id=CLS, eos_token_id=SEP, attn_implementation="eager")
    yield "modern_bert", "modern-bert", tf.ModernBertForSequenceClassification(modern), "model."


BERT = {
    "embeddings.word_embeddings": "token_embd", "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types", "embeddings.LayerNorm": "token_embd_norm",
    "attention.self.query": "attn_q", "attention.self.key": "attn_k", "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output", "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up", "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm",
    "pooler.dense": "cls", "classifier": "cls.output", "classifier.dense": "cls", "classifier.out_proj": "cls.output",
    # nomic, as transformers names it
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "attn_output_norm", "post_mlp_layernorm": "layer_output_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    # modern
    "embeddings.tok_embeddings": "token_embd", "embeddings.norm": "token_embd_norm", "attn_norm": "attn_norm", "attn.Wqkv": "attn_qkv",
    "attn.Wo": "attn_output", "mlp_norm": "ffn_norm", "mlp.Wi": "ffn_up", "mlp.Wo": "ffn_down", "final_norm": "output_norm",
    "head.dense": "cls", "head.norm": "cls.norm",
}


def tensors(state, prefix):
    for name, value in state.items():
        bare = name.removeprefix(prefix).removeprefix("encoder.")
        for layers in ("layer.", "layers."):
            if bare.startswith(layers):
                index, inner = bare.removeprefix(layers).split(".", 1)
                stem, suffix = inner.rsplit(".", 1)
                yield f"blk.{index}.{BERT[stem]}.{suffix}", value
                break
        else:
            stem, suffix = bare.rsplit(".", 1)
            yield f"{BERT[stem]}.{suffix}", value


def fused(name, pairs):
    """nomic-bert files have q, k and v as the rows of one matrix."""
    if name != "nomic_bert":
        yield from pairs
        return
    held = {}
    for key, value in pairs:
        part = next((p for p in ("attn_q", "attn_k", "attn_v") if f".{p}." in key), None)
        if part is None:
            yield key, value
            continue
        held[part] = value
        if len(held) == 3:
            yield key.replace(part, "attn_qkv"), torch.cat([held[p] for p in ("attn_q", "attn_k", "attn_v")])
            held = {}


def write_gguf(name, arch, model, prefix):
    writer = gguf.GGUFWriter(HERE / f"{name}.gguf", arch)
    config = model.config
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_block_count(LAYERS)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_eps(1e-3)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.RANK if hasattr(model, "classifier") else gguf.PoolingType.MEAN)
    if name == "nomic_bert":
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if name == "modern_bert":
        writer.add_rope_freq_base(config.rope_parameters["full_attention"]["rope_theta"])
        writer.add_rope_freq_base_swa(config.rope_parameters["sliding_attention"]["rope_theta"])
        writer.add_sliding_window(config.local_attention)
    if name == "xlm_roberta":
        write_unigram(writer)
    else:
        write_wordpiece(writer)
    for key, value in fused(name, tensors(model.state_dict(), prefix)):
        array = value.numpy()
        if name == "xlm_roberta" and key == "position_embd.weight":
            array = np.ascontiguousarray(array[1:])
        half = array.ndim == 2 and key != "token_types.weight"
        writer.add_tensor(key, array.astype(np.float16) if half else array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_unigram(writer):
    golden = json.loads((HERE / "unigram.json").read_text())
    writer.add_tokenizer_model("t5")
    writer.add_token_list(golden["tokens"])
    writer.add_token_scores(golden["scores"])
    writer.add_token_types(golden["types"])
    writer.add_token_type_count(1)
    writer.add_precompiled_charsmap(bytes(golden["charsmap"]))
    writer.add_add_space_prefix(True)
    writer.add_remove_extra_whitespaces(True)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(True)
    writer.add_add_sep_token(True)


def write_wordpiece(writer):
    writer.add_tokenizer_model("bert")
    pieces = vocabulary(False)
    writer.add_token_list([phantom(p) for p in pieces])
    unused = [p.startswith("[unused") for p in pieces]
    writer.add_token_types([3 if i < 5 else 5 if unused[i] else 1 for i in range(VOCAB)])
    writer.add_token_type_count(2)
    writer.add_uint32("tokenizer.ggml.cls_token_id", CLS)
    writer.add_sep_token_id(SEP)
    writer.add_unk_token_id(UNK)
    writer.add_pad_token_id(PAD)
    writer.add_mask_token_id(MASK)


def write_checkpoint(name, model):
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    state = {k: v.to(torch.bfloat16).contiguous() for k, v in model.state_dict().items()}
    config = json.loads(model.config.to_json_string(use_diff=True))
    config["architectures"] = [type(model).__name__]
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    tokenizer(False).save(str(folder / "tokenizer.json"))
    settings = {"cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]", "pad_token": "[PAD]", "mask_token": "[MASK]",
                "tokenizer_class": "BertTokenizer", "do_lower_case": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")
    if not hasattr(model, "classifier"):
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling/config.json").write_text('{"pooling_mode_mean_tokens": true}\n')


@torch.no_grad()
def golden(name, model):
    rng = np.random.Generator(np.random.PCG64(zlib.crc32(name.encode())))
    out = {}
    for kind, size in (("short", 9), ("medium", 70), ("long", 290)):
        first, last, vocab = (1, 2, 300) if name == "xlm_roberta" else (CLS, SEP, VOCAB)
        ids = [first, *(int(i) for i in rng.integers(5, vocab, size)), last]
        types = [0] * len(ids)
        if kind == "medium":
            ids[20] = last
            types = [int(at > 20) for at in range(len(ids))]
        given = {"input_ids": torch.tensor([ids])}
        if name not in ("modern_bert", "xlm_roberta"):
            given["token_type_ids"] = torch.tensor([types])
        base = getattr(model, model.base_model_prefix, model)
        states = base(**given)[0][0]
        row = lambda values: [float(v) for v in values]
        out[kind] = {"ids": ids, "first": row(states[0]), "last": row(states[-1]), "mean": row(states.mean(0))}
        if hasattr(model, "classifier"):
            out[kind]["score"] = float(model(**given).logits[0, 0])
    if name == "bert":
        pair = tokenizer(False).encode("The shoal", "turns fish")
        given = {"input_ids": torch.tensor([pair.ids]), "token_type_ids": torch.tensor([pair.type_ids])}
        out["pair"] = float(model(**given).logits[0, 0])
    text = json.dumps(out, indent=1)
    text = re.sub(r"\[[^\[\]{}]*\]", lambda m: "[" + " ".join(m[0][1:-1].split()) + "]", text)
    (HERE / f"{name}.json").write_text(text + "\n")
    return out


def main():
    torch.set_num_threads(1)
    for name, arch, model, prefix in models():
        model = fill(model.to(torch.float32), zlib.crc32(f"{name}/weights".encode()))
        write_gguf(name, arch, model, prefix)
        if name != "xlm_roberta":
            write_checkpoint(name, model)
        entries = golden(name, model)
        print(name, {k: round(e.get("score", 0.0), 3) for k, e in entries.items() if k != "pair"})
    words = {}
    for cased in (False, True):
        inner = tokenizer(cased)
        pair = inner.encode("The shoal", "turns fish")
        words["cased" if cased else "uncased"] = {
            "tokens": [phantom(p) for p in vocabulary(cased)],
            "texts": [{"text": t, "ids": inner.encode(t, add_special_tokens=False).ids} for t in TRICKY if "[CLS]" not in t],
            "pair": pair.ids,
        }
    (HERE / "wordpiece.json").write_text(json.dumps(words, ensure_ascii=True) + "\n")


if __name__ == "__main__":
    main()
