"""Writes `unigram.json`: a small unigram vocabulary, its table of rules, and the ids that sentencepiece gives to texts.

    python unigram.py

Needs sentencepiece; no network.
"""

import io
import json
import pathlib
import tempfile

import sentencepiece

HERE = pathlib.Path(__file__).resolve().parent

RULES = {
    "\uff21": "A", "\uff22": "B", "\u2460": "1", "\ufb01": "fi", "\u00a0": " ", "\u3000": " ", "\t": " ", "\n": " ", "\u2028": " ",
    "e\u0301": "\u00e9", "\uff76\uff9e": "\u30ac", "\u200b": "", "\u00ad": "", "\u2122": "TM", "\u00bd": "1/2", "A\u030a": "\u00c5",
}
TRICKY = [
    "", " ", "The shoal turns.", "  two  spaces ", "caf\u00e9 cafe\u0301", "\u4f60\u597d\u4e16\u754c", "\uff21\uff22C \ufb01sh", "a\u00a0b\u3000c\td\ne",
    "\u2460\u00bd\u2122", "zero\u200bwidth soft\u00adhyphen", "\U0001f41f\U0001f41f fish \U0001f468", "\uff76\uff9e \uff76", "A\u030angstrom", "unknown \u0915\u094d\u0937 \u1100",
    "x" * 50, "\u2581the \u2581\u2581 x", "fish\u2028water", "\x00\x01", "don't stop", "12:34 3.14", "tail  ", "\u200b", " \u3000 ",
]
CORPUS = (HERE.parent / "families/vocab.py").read_text() + " caf\u00e9 na\u00efve \u4f60\u597d\u4e16\u754c \u043f\u0440\u0438\u0432\u0435\u0442 fish shoal water river turns"


def fields(message):
    """Numbers and contents of a protobuf message."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        tag = varint()
        size = {0: 0, 2: None, 5: 4}[tag & 7]
        if tag & 7 == 0:
            yield tag >> 3, varint()
            continue
        size = varint() if size is None else size
        yield tag >> 3, message[at : at + size]
        at += size


def main():
    model = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder:
        rules, corpus = pathlib.Path(folder) / "rules.tsv", pathlib.Path(folder) / "corpus.txt"
        code = lambda text: " ".join(f"{ord(c):X}" for c in text)
        rules.write_text("".join(f"{code(key)}\t{code(value)}\n" for key, value in sorted(RULES.items())))
        corpus.write_text("\n".join([CORPUS, CORPUS.lower()] * 3))
        sentencepiece.SentencePieceTrainer.train(
            input=str(corpus), model_writer=model, vocab_size=300, model_type="unigram", normalization_rule_tsv=str(rules),
            character_coverage=0.98, minloglevel=2, add_dummy_prefix=True, remove_extra_whitespaces=True, hard_vocab_limit=False)
    own = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    normalizer = next(value for key, value in fields(model.getvalue()) if key == 3)
    ids = range(own.vocab_size())
    out = {
        "tokens": [own.id_to_piece(i) for i in ids],
        "scores": [own.get_score(i) for i in ids],
        "types": [2 if own.is_unknown(i) else 3 if own.is_control(i) else 1 for i in ids],
        "charsmap": list(next(value for key, value in fields(normalizer) if key == 2)),
        "texts": [{"text": text, "ids": own.encode(text)} for text in TRICKY],
    }
    (HERE / "unigram.json").write_text(json.dumps(out) + "\n")


if __name__ == "__main__":
    main()
