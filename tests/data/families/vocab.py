"""Made-up tokenizers of an exact size: byte-level BPE and SentencePiece-style BPE, as GGUF metadata and tokenizer.json.

The merges are learned from `TEXT` by the plain BPE rule (most frequent pair, ties by pair order), so the files need no
download and never change. Token order of the BPE kinds: bytes, merges, specials, pads; `bpe_specials_first` puts the
specials in front as starcoder2 does, `bpe_qwen2` has the Qwen2 splitter.
"""

import collections
import dataclasses
import json

from tokenizers import pre_tokenizers

NORMAL, UNKNOWN, CONTROL, UNUSED, BYTE = 1, 2, 3, 5, 6

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

# The splitter of the Qwen2 family: unlike GPT-2's it takes digits one by one and newlines with the punctuation before.
QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

TEXT = """
The shoal turns at the edge of the reef, and every fish turns with it. No one of them leads for long; the one that sees
the shadow first becomes the front, and the others follow within the beat of a fin. When the water is calm they spread
out and feed, and when it is rough they close up again. A fisherman who watched them for thirty years said that the
shoal knows more than the fish do. He counted 12 turns in 34 seconds, wrote 5,678 lines in his log, and never found out
how the last fish in the row could know what the first one had seen. It is the same with people in a market, with birds
over a field in the evening, and with small machines that pass a message along: each one does a little, hands the rest
on, and trusts that the next one is there. If one of them stops, the others close the gap and the whole goes on. That is
the thing to remember when you build one: it must not matter who is in front, and it must not matter who is missing.
"""


@dataclasses.dataclass
class Vocab:
    kind: str  # "gpt2" | "llama" (tokenizer.ggml.model)
    pre: str  # tokenizer.ggml.pre
    tokens: list
    types: list
    merges: list  # pairs
    scores: list
    bos: int | None
    eos: int
    unk: int | None
    real: int  # ids below this are not padding


def byte_alphabet():
    """The 256 characters that stand for bytes in GPT-2's byte-level BPE, by byte value."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    shifted = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(shifted)) for b in range(256)]


def learn(words, known, count):
    """`count` merges over `words` (a multiset of symbol tuples), skipping those whose result is already `known`."""
    known, merges, blocked = set(known), [], set()
    while len(merges) < count:
        pairs = collections.Counter()
        for word, times in words.items():
            for pair in zip(word, word[1:]):
                pairs[pair] += times
        pair = min((p for p in pairs if p not in blocked), key=lambda p: (-pairs[p], p))
        if pair[0] + pair[1] in known:
            blocked.add(pair)
            continue
        merges.append(pair)
        known.add(pair[0] + pair[1])
        joined = collections.Counter()
        for word, times in words.items():
            out, i = [], 0
            while i < len(word):
                if word[i : i + 2] == pair:
                    out.append(word[i] + word[i + 1])
                    i += 2
                else:
                    out.append(word[i])
                    i += 1
            joined[tuple(out)] += times
        words = joined
    return merges


def byte_level(size, pads, specials_first, pre):
    split = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(TEXT)
    words = collections.Counter(tuple(piece) for piece, _ in split)
    alphabet = byte_alphabet()
    merges = learn(words, alphabet, size - pads - 256 - len(SPECIALS))
    plain = alphabet + [a + b for a, b in merges]
    tokens = SPECIALS + plain if specials_first else plain + SPECIALS
    types = [CONTROL if t in SPECIALS else NORMAL for t in tokens] + [UNUSED] * pads
    real = len(tokens)
    tokens = tokens + [f"[PAD{i}]" for i in range(real, size)]
    eos = tokens.index(SPECIALS[0])
    return Vocab("gpt2", pre, tokens, types, merges, [], None, eos, None, real)


def sentence_piece(size):
    words = collections.Counter(tuple("\u2581" + word) for word in TEXT.split())
    chars = sorted({c for word in words for c in word})
    head = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    merges = learn(words, chars, size - len(head) - len(chars))
    pieces = [a + b for a, b in merges] + chars
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(pieces)
    scores = [0.0] * len(head) + [-float(i) for i in range(len(pieces))]
    return Vocab("llama", "default", head + pieces, types, [], scores, 1, 2, 0, size)


def build(kind, size, pads):
    if kind == "spm":
        vocab = sentence_piece(size)
    else:
        vocab = byte_level(size, pads, kind == "bpe_specials_first", "qwen2" if kind == "bpe_qwen2" else "gpt-2")
    assert len(vocab.tokens) == len(set(vocab.tokens)) == len(vocab.types) == size, (kind, size)
    return vocab


def write_gguf(writer, vocab):
    writer.add_tokenizer_model(vocab.kind)
    writer.add_tokenizer_pre(vocab.pre)
    writer.add_token_list(vocab.tokens)
    if vocab.scores:
        writer.add_token_scores(vocab.scores)
    writer.add_token_types(vocab.types)
    if vocab.merges:
        writer.add_token_merges([f"{a} {b}" for a, b in vocab.merges])
    if vocab.bos is not None:
        writer.add_bos_token_id(vocab.bos)
    writer.add_eos_token_id(vocab.eos)
    if vocab.unk is not None:
        writer.add_unk_token_id(vocab.unk)
    if vocab.kind == "gpt2":
        writer.add_eot_token_id(vocab.tokens.index("<|im_end|>"))
        writer.add_chat_template(CHAT_TEMPLATE)
    writer.add_add_bos_token(vocab.bos is not None)
    writer.add_add_eos_token(False)


def write_hf(folder, vocab):
    """tokenizer.json and tokenizer_config.json of a byte-level vocabulary; pads stay out, as in published models."""
    added = [
        {"id": vocab.tokens.index(t), "content": t, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}
        for t in SPECIALS
    ]
    qwen2 = vocab.pre == "qwen2"
    byte_level_step = {
        "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": not qwen2, "use_regex": not qwen2,
    }
    split = {"type": "Split", "pattern": {"Regex": QWEN2_SPLIT}, "behavior": "Isolated", "invert": False}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": sorted(added, key=lambda a: a["id"]),
        "normalizer": {"type": "NFC"} if qwen2 else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level_step]} if qwen2 else byte_level_step,
        "post_processor": byte_level_step,
        "decoder": byte_level_step,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {t: i for i, t in enumerate(vocab.tokens[: vocab.real]) if t not in SPECIALS},
            "merges": [f"{a} {b}" for a, b in vocab.merges],
        },
    }
    config = {
        "add_prefix_space": False,
        "added_tokens_decoder": {
            str(a["id"]): {k: v for k, v in a.items() if k != "id"} for a in tokenizer["added_tokens"]
        },
        "bos_token": None,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": SPECIALS[0],
        "model_max_length": 2048,
        "tokenizer_class": "Qwen2Tokenizer" if qwen2 else "GPT2Tokenizer",
        "unk_token": None,
    }
    for name, value in (("tokenizer.json", tokenizer), ("tokenizer_config.json", config)):
        (folder / name).write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
