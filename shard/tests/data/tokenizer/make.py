"""Writes fixtures.json: small vocabularies of our own and the ids reference implementations give for hard strings.

    python make.py            # needs tokenizers, sentencepiece, gguf, llama-cpp-python

One byte-level vocabulary is trained over text cut at random, so that its merges run across every boundary a
pre-tokenizer draws: a cut in the wrong place changes the ids. Every pre-tokenizer is then put in front of it and
`tokenizers` (Hugging Face) gives the ids. Two SentencePiece models (with a space in front as llama, without and with
user-defined runs of white space as gemma) are trained and asked by `sentencepiece`. Text with special tokens in it
is asked of llama.cpp, the only one of the three with the same notion of them.
"""

import json
import os
import random
import tempfile

import gguf
import llama_cpp
import sentencepiece
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

HERE = os.path.dirname(os.path.abspath(__file__))

SENTENCES = """The quick brown fox jumps over the lazy dog, doesn't it? I'll say they've, we'd, I'm, you're, it's!
WE'LL SEE: IT'S 12:30 on 2024-05-17 and 1,234,567.89 dollars (or 100%) were paid to A/B/C.
def f(x):\n    return x ** 2  # comment\n\n\tfor i in range(10):\n\t\tprint(i, "a" + 'b')\n
Größe, Übung und Straße; naïve café, façade, élève à Noël. Señor, ¿qué tal? ¡Hola!
Съешь же ещё этих мягких французских булок, да выпей чаю. Το γρήγορο καφέ αλεπού πηδάει.
我能吞下玻璃而不伤身体。今日は良い天気ですね。カタカナもあります。안녕하세요 세계 여러분.
السلام عليكم ورحمة الله، كيف حالك؟ שלום עולם, מה שלומך? नमस्ते दुनिया। สวัสดีชาวโลก
HTTPServer getElementById camelCase snake_case kebab-case SCREAMING_CASE path/to/file.txt https://example.org/?q=1&r=2
a=b; if (a<b && c>d || !e) { x += y[3]; } // done\r\nline two\r\n\r\n   indented\n\n\n\nend
😀😃😄 👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 ❤️ ½ ¼ ² ³ Ⅷ ① ٣٤٥ १२३ ㊿ 𝟘𝟙 ￥€£$+<=>^~|`
""".split("\n")

LLAMA_CASE = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
UPPERISH, LOWERISH = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CAPITALIZED = rf"[^\r\n\p{{L}}\p{{N}}]?{UPPERISH}*{LOWERISH}+"
CAPITALS = rf"[^\r\n\p{{L}}\p{{N}}]?{UPPERISH}+{LOWERISH}*"
SIGNS_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
ASCII_SIGN = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""
DEEPSEEK3 = (
    ASCII_SIGN + r"[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + TAIL
)
BLOOM = " ?[^(\\s|.,!?…。，、।۔،)]+"


def split(*patterns):
    parts = [pre_tokenizers.Split(Regex(p), "isolated") for p in patterns]
    return parts + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]


def gpt2():
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def digits():
    return pre_tokenizers.Digits(individual_digits=True)


PRE = {
    "gpt-2": [gpt2()],
    "llama-bpe": split(rf"{LLAMA_CASE}|{WORD}|\p{{N}}{{1,3}}|{SIGNS}|{TAIL}"),
    "glm4": split(rf"{LLAMA_CASE}|{WORD}|\p{{N}}{{1,3}}|{SIGNS}|{TAIL}"),
    "qwen2": split(rf"{LLAMA_CASE}|{WORD}|\p{{N}}|{SIGNS}|{TAIL}"),
    "qwen35": split(
        rf"{LLAMA_CASE}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{TAIL}"
    ),
    "starcoder": [digits(), gpt2()],
    "tekken": split(rf"{CAPITALIZED}|{CAPITALS}|\p{{N}}|{SIGNS_SLASH}|{TAIL}"),
    "gpt-4o": split(
        rf"{CAPITALIZED}{LLAMA_CASE}?|{CAPITALS}{LLAMA_CASE}?|\p{{N}}{{1,3}}|{SIGNS_SLASH}|{TAIL}"
    ),
    "falcon": [pre_tokenizers.Punctuation("contiguous"), gpt2(), pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")],
    "bloom": split(BLOOM),
    "viking": [pre_tokenizers.Split(Regex(BLOOM), "isolated"), digits(), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)],
    "deepseek-coder": split(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}"),
    "deepseek-v3": split(r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK3),
    "seed-coder": split(rf"{LLAMA_CASE}|{WORD}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{TAIL}"),
    "bailingmoe": split(
        rf"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{{L}}\p{{N}}]?+\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
    ),
    "granite-embed-multi-97m": split(
        rf"{CAPITALIZED}{LLAMA_CASE}?|{CAPITALS}{LLAMA_CASE}?|\p{{N}}{{1,3}}|{SIGNS_SLASH}|{TAIL}"
    ),
    "tiny_aya": split(
        r"\d{1,3}(?=(?:\d{3})*\b)",
        rf"{CAPITALIZED}{LLAMA_CASE}?|{CAPITALS}{LLAMA_CASE}?|\p{{N}}{{1,3}}|{SIGNS_SLASH}|{TAIL}",
    ),
    "superbpe": split(r"\p{N}+", r"(?=(\d{3})+(?!\d))"),
    "youtu": split(
        "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+",
        rf"{CAPITALIZED}{LLAMA_CASE}?|{CAPITALS}{LLAMA_CASE}?|\p{{N}}|{SIGNS_SLASH}|{TAIL}",
    ),
    "minicpm5": split(r"\p{N}{1,3}", rf"{LLAMA_CASE}|{WORD}|\p{{N}}+|{SIGNS}|{TAIL}"),
}

# Those whose published tokenizers compose text first.
COMPOSED = ("qwen2", "qwen35")
IGNORE_MERGES = ("llama-bpe", "tekken", "minicpm5", "granite-embed-multi-97m", "youtu")

# Tokens every vocabulary here has beside text; the numbers are GGUF's token types.
CONTROL, USER_DEFINED, BYTE, NORMAL, UNKNOWN, UNUSED = 3, 4, 6, 1, 2, 5
SPECIALS = [("<|begin|>", CONTROL), ("<|end|>", CONTROL), ("<|user|>", CONTROL), ("<tool>", USER_DEFINED), ("<tool><x>", USER_DEFINED), ("[PAD0]", UNUSED)]


def hard_strings():
    strings = [line for line in SENTENCES if line]
    strings += ["", " ", "  ", "   ", "\t", "\n", "\n\n", "\n\n\n", "\r\n", "\t\n", " \n", "\n ", " \n ", "\r", "\r\r\n", "a\r\nb", "\u0085", "\u00a0", "a\u00a0b", "\u2028\u2029", "\u3000", "a\u3000 b", "\u200b", "\ufeff", "\x00", "\x01\x02 \x7f", "a\x00b", "\x1c\x1d\x1e\x1f", "\x0b\x0c"]
    strings += ["Hello world", " Hello world", "Hello  world", "Hello   world ", " leading", "  leading", "trailing ", "trailing  ", "a b  c   d    e", "\n\nx", "x\n\n", "x \n\n y", "x\t\ty", "   x   ", "\n \n \n", "a\n  b\n    c", " \t \t x"]
    strings += ["it's IT'S It'S it'ſ 'S's", "don't DON'T can'T", "'re 'RE 'Re x're", "'ve'll'd'm't's", "I'llama they'redo", "''s '' 'x' ' s", "we’re ’s", "'", "''", "' '", "'l 'r 'v", "'LL'D'M"]
    strings += ["0", "12", "123", "1234", "12345", "123456", "1234567", "1.5e-10", "3,141,592", "1 2 3", "a1b2c3", "١٢٣٤٥", "१२३४", "½¼²³Ⅷ①", "x²y³", "𝟘𝟙𝟚𝟛𝟜", "0x1F 0b101", "12:30", "100%", "v1.2.3", "007  008", "1\n2\n3"]
    strings += ["camelCaseHTTPServer", "ALLCAPS lower Mixed", "XMLHttpRequest2", "ǅungla ǈ", "ʰʷ ˈaɪ", "iPhone", "aBcDeF", "ÀÉÎõü", "ΑΒΓαβγ", "АБВабв", "ⅣⅤ ⓐⒷ"]
    strings += ["e\u0301a\u0308 o\u0302", "\u0301", " \u0301x", "a\u0301\u0302\u0303b", "n\u0303 ñ", "Z\u0351\u036b\u0343a\u0321", "क\u094dष", "ก\u0e33", "\u20dd", "a\ufe0f", "1\u20e3"]
    strings += ["漢字かなカナ", "漢字 かな", "中文abc英文", "中文，标点。", "한국어 텍스트", "한글abc", "日本語123", "「引用」", "ｆｕｌｌ　ｗｉｄｔｈ", "㐀𠀀𪜀", "龥龦", "ㄅㄆ"]
    strings += ["שלום עולם", "مرحبا بالعالم", "abc שלום def", "\u202eabc\u202c", "\u200fא\u200e", "السلام،عليكم؟", "हिन्दी।", "၀၁၂ က", "ไทย", "ქართული", "Ⴀⴀ Ა", "Ꭰꭰ"]
    strings += ["😀", "😀😀", " 😀", "👩‍👩‍👧‍👦", "🏳️‍🌈!", "👍🏽ok", "a😀b", "🇩🇪🇫🇷", "🧑🏿‍🚀 go", "❤️"]
    strings += ["!!!", "...", "…", "a.b,c;d", "(x)", "[y]{z}", "--x", "==", "!=\n", "a/b", "//\n/", "/\n\n/", "#$%", "$+<=>^~|`", "a`b`c", "“quotes” ‘s’", "—–", "!x ?Y .z", "\\n\\t", "<p>hi</p>", "foo(bar)\n", "x;\r\n\r\ny", "@user #tag", "a_b __c__", "*bold* _it_"]
    strings += ["<|begin|>", "a <|end|> b", "<|user|>hi", "<tool>x", "x<tool><x>y", "<tool><", "<|beg", "[PAD0]", "<s></s><unk>", "<0x41>", "▁", "▁▁x", "a▁b", " ▁ "]
    strings += ["\ud7ff\ue000\ufffd", "\U000e01ef", "\u0378\u0379", "\ue000private", "\u00ad", "\u2060", "ﬁ ﬂ ﬆ", "ßẞſ", "İı", "K Å Ω", "ª º", "µ", "ˆ ˜ ˣ", "〆〇〡", "ゝヽ々"]
    strings += ["a" * 300, "A" * 120, " " * 100 + "x", "\n" * 60, "ab" * 100, "1" * 100, "!" * 90, " \n" * 40, "é" * 60, "漢" * 60, "'s" * 40, "aA" * 60, "😀" * 30, "x " * 60, "\t" * 33]
    return strings


SPECIAL_STRINGS = [
    "", "<|begin|>", "<|begin|>Hello", "<|begin|> Hello", "Hello<|end|>", "Hello <|end|> world", "<|user|>\nHi there<|end|>\n<|user|>",
    "<|begin|><|user|>  two  spaces  <|end|>  ", "<|begin|<|end|>", "<<|end|>>", "a<tool>b", "<tool><x>", "<tool> <x>", "<tool><|end|>", "x <tool><x> y",
    "<|end|><|end|>", " <|end|> ", "<|USER|>", "<|user|>漢字<|end|>é", "[PAD0]<|end|>", "<unk>", "a<unk>b", "\n<|end|>\n", "<|end|>\t\tx", "     <|end|>     y", "<0x41><|end|>",
]


def corpus():
    """Text cut at random places into chunks of a few words: merges then cross every boundary."""
    rng = random.Random(1)
    base = [s for s in SENTENCES if s] + [s for s in hard_strings() if 0 < len(s) < 60 and not any(t in s for t, _ in SPECIALS)]
    for _ in range(4000):
        text = rng.choice(base) + rng.choice([" ", "\n", "", "\r\n"]) + rng.choice(base)
        start = rng.randrange(len(text))
        yield text[start : start + rng.randrange(2, 24)]


def byte_level():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(
        corpus(), trainers.BpeTrainer(vocab_size=1800, initial_alphabet=alphabet, show_progress=False)
    )
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in model["merges"]]
    return tokens, merges


def with_llama_cpp(definition, strings=SPECIAL_STRINGS, special=True):
    """The ids llama.cpp gives from a vocabulary-only file."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "v.gguf")
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_tokenizer_model(definition["model"])
        if "pre" in definition:
            writer.add_tokenizer_pre(definition["pre"])
        writer.add_token_list(definition["tokens"])
        writer.add_token_types(definition["types"])
        if "scores" in definition:
            writer.add_token_scores(definition["scores"])
        if "merges" in definition:
            writer.add_token_merges(definition["merges"])
        writer.add_bos_token_id(definition["bos"])
        writer.add_eos_token_id(definition["eos"])
        if definition.get("add_space_prefix") is False:
            writer.add_add_space_prefix(False)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        model = llama_cpp.Llama(path, vocab_only=True, verbose=False)
        return [model.tokenize(s.encode(), add_bos=False, special=special) for s in strings]


def spell(ids):
    return " ".join(map(str, ids))


def bpe_models(strings):
    tokens, merges = byte_level()
    first_special = len(tokens)
    all_tokens = tokens + [text for text, _ in SPECIALS]
    types = [NORMAL] * len(tokens) + [kind for _, kind in SPECIALS]
    shared = {"model": "gpt2", "tokens": all_tokens, "types": types, "merges": merges, "bos": first_special, "eos": first_special + 1}
    rows = []
    for pre, parts in PRE.items():
        tokenizer = Tokenizer(
            models.BPE(
                vocab={t: i for i, t in enumerate(tokens)},
                merges=[tuple(m.split(" ")) for m in merges],
                ignore_merges=pre in IGNORE_MERGES,
            )
        )
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
        if pre in COMPOSED:
            tokenizer.normalizer = normalizers.NFC()
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_tokens([text for text, kind in SPECIALS if kind == USER_DEFINED])
        renumber = {tokenizer.token_to_id(t): first_special + i for i, (t, k) in enumerate(SPECIALS) if k == USER_DEFINED}
        ids = [[renumber.get(i, i) for i in tokenizer.encode(s).ids] for s in strings]
        row = {"name": pre, "pre": pre, "plain": [spell(i) for i in ids]}
        if pre in ("gpt-2", "llama-bpe", "qwen2"):
            row["special"] = [spell(i) for i in with_llama_cpp({**shared, "pre": pre})]
        rows.append(row)
    return {"shared": shared, "rows": rows}


def spm_model(name, strings, prefix, user_defined, **more):
    with tempfile.TemporaryDirectory() as folder:
        text = os.path.join(folder, "corpus.txt")
        with open(text, "w", newline="\n") as file:
            for chunk in corpus():
                file.write(chunk.replace("\n", " ").replace("\r", " ").replace("\x00", " ") + "\n")
        sentencepiece.SentencePieceTrainer.train(
            input=text, model_prefix=os.path.join(folder, "m"), model_type="bpe", vocab_size=900, byte_fallback=True,
            character_coverage=0.98, normalization_rule_name="identity", add_dummy_prefix=prefix,
            remove_extra_whitespaces=more.get("remove_extra_whitespaces", False), split_by_whitespace=name != "gemma", allow_whitespace_only_pieces=True,
            unk_id=0, bos_id=1, eos_id=2, control_symbols=[t for t, k in SPECIALS if k == CONTROL],
            user_defined_symbols=[t for t, k in SPECIALS if k == USER_DEFINED] + user_defined,
            minloglevel=2, num_threads=1,
        )
        sp = sentencepiece.SentencePieceProcessor(model_file=os.path.join(folder, "m.model"))
    tokens, scores, types = [], [], []
    for i in range(sp.get_piece_size()):
        piece = sp.id_to_piece(i)
        kind = NORMAL
        if sp.is_unknown(i):
            kind = UNKNOWN
        elif sp.is_control(i):
            kind = CONTROL
        elif sp.is_byte(i):
            kind = BYTE
        elif piece in user_defined or (piece, USER_DEFINED) in SPECIALS:
            kind = USER_DEFINED
            piece = piece.replace("▁", " ")
        tokens.append(piece)
        scores.append(round(sp.get_score(i), 4))
        types.append(kind)
    row = {"name": name, "model": "llama", "tokens": tokens, "scores": scores, "types": types, "bos": 1, "eos": 2, **more}
    if not prefix:
        row["add_space_prefix"] = False
    ids = [sp.encode(s) for s in strings]
    # Two known differences, in which the files follow llama.cpp: a space in front of every fragment, not only the
    # first, and U+2581 in the text, which SentencePiece takes for a space when it looks for user-defined tokens.
    differs = [s for s in strings if "<tool>" in s or "▁" in s]
    if "remove_extra_whitespaces" not in more:
        row["special"] = [spell(i) for i in with_llama_cpp(row)]
        for s, one, other in zip(strings, ids, with_llama_cpp(row, strings, special=False), strict=True):
            assert one == other or s in differs, (name, s, one, other)
            one[:] = other
    row["plain"] = [None if s in differs and more else spell(i) for s, i in zip(strings, ids)]
    return row


def main():
    strings = hard_strings()
    runs = ["▁" * n for n in range(2, 17)] + ["\n" * n for n in range(1, 9)] + ["\t" * n for n in range(1, 5)]
    data = {
        "strings": strings,
        "special_strings": SPECIAL_STRINGS,
        "bpe": bpe_models(strings),
        "spm": [
            spm_model("llama", strings, True, []),
            spm_model("gemma", strings, False, runs),
            spm_model("one-space", strings, True, [], remove_extra_whitespaces=True),
        ],
    }
    path = os.path.join(HERE, "fixtures.json")
    with open(path, "w") as file:
        json.dump(data, file, ensure_ascii=True, indent=0, separators=(",", ":"))
        file.write("\n")
    print(len(strings), "strings,", os.path.getsize(path), "bytes")


if __name__ == "__main__":
    main()
