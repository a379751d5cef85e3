"""Writes merged.json: a small vocabulary of merges over characters with U+2581 for spaces and byte fallback, as gemma 4
has one, and the ids that `tokenizers` (Hugging Face) gives for the strings of fixtures.json.

    python merged.py          # needs tokenizers
"""

import json
import pathlib

from tokenizers import Tokenizer, decoders, models, normalizers, trainers

HERE = pathlib.Path(__file__).resolve().parent
SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]

data = json.loads((HERE / "fixtures.json").read_text())
strings = data["strings"]
tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=SPECIAL, limit_alphabet=90, show_progress=False)
lines = [part for string in strings for part in string.replace("\n", " ").split("  ")]
tokenizer.train_from_iterator(lines, trainer)
trained = json.loads(tokenizer.to_str())["model"]
tokens = sorted(trained["vocab"], key=trained["vocab"].get)
# Line breaks have tokens of their own, up to four in a row, as in the published vocabulary.
breaks = ["\n", "\n\n", "\n\n\n", "\n\n\n\n"]
vocabulary = tokens[:4] + BYTES + [token for token in tokens[4:] if "\n" not in token] + breaks
merges = [tuple(merge) for merge in trained["merges"] if "\n" not in "".join(merge)]
merges += [("\n", "\n"), ("\n\n", "\n\n"), ("\n\n", "\n")]
ids = {token: at for at, token in enumerate(vocabulary)}
whole = Tokenizer(models.BPE(vocab=ids, merges=merges, unk_token="<unk>", byte_fallback=True))
whole.normalizer = normalizers.Replace(" ", "\u2581")
whole.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
kinds = [3, 3, 3, 2] + [6] * 256 + [1] * (len(vocabulary) - 260)
plain = [" ".join(map(str, whole.encode(string, add_special_tokens=False).ids)) for string in strings]
same = sum(whole.decode([int(i) for i in row.split()], skip_special_tokens=False) == s for s, row in zip(strings, plain))
print(len(vocabulary), "tokens,", len(merges), "merges,", len(strings), "strings,", same, "decode to themselves")
text = {"model": "gemma4", "tokens": vocabulary, "types": kinds, "merges": [" ".join(m) for m in merges], "bos": 2, "eos": 1,
        "plain": plain}
(HERE / "merged.json").write_text(json.dumps(text, ensure_ascii=False, indent=0) + "\n")
