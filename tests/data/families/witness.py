"""Second witness: runs the fixtures through llama-cpp-python and compares with the goldens.

    python witness.py [--weights f16|f32] [--kv f32|f16] [NAME ...]
    python witness.py --tokenizers

Prints 1 - cos of the last-position logits, the ratio of the norms minus 1, and the first greedy step (of 32, teacher
forced) whose argmax differs ("32" = none). With `--kv f16` the reference is the one with K and V rounded to F16.
`--weights f32` (the default) first rewrites the file with F32 matrices, because llama.cpp rounds activations to F16
before it multiplies with F16 weights. `--tokenizers` instead compares the ids that transformers and llama.cpp give to
hard text, for the fixtures that have both sides.
"""

import argparse
import json
import pathlib
import tempfile

import gguf
import llama_cpp
import numpy as np
import transformers

import vocab

HERE = pathlib.Path(__file__).resolve().parent


def widened(source, target):
    """Copies a GGUF file with its F16 tensors stored as F32."""
    reader = gguf.GGUFReader(source)
    arch = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, arch)
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        element = field.types[1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), field.types[0], sub_type=element)
    for tensor in reader.tensors:
        shape = [int(n) for n in reversed(tensor.shape)]
        writer.add_tensor(tensor.name, tensor.data.astype(np.float32).reshape(shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def last_logits(llama, ids):
    llama.reset()
    llama._ctx.kv_cache_clear()
    llama.eval(ids)
    pointer = llama_cpp.llama_get_logits_ith(llama.ctx, -1)
    return np.ctypeslib.as_array(pointer, shape=(llama.n_vocab(),)).copy()


def forced_mismatch(llama, entry):
    """The first greedy step whose argmax differs, feeding the reference's ids one at a time."""
    row = last_logits(llama, entry["ids"])
    for step, expected in enumerate(entry["greedy"]):
        if int(row.argmax()) != expected:
            return step
        llama.eval([expected])
        row = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(llama.ctx, -1), shape=(llama.n_vocab(),)).copy()
    return len(entry["greedy"])


def check(path, kv):
    stem = path.stem
    golden = json.loads((HERE / f"{stem}.golden.json").read_text())
    raw = (HERE / golden["logits_file"]).read_bytes()
    cells = []
    kind = {"f32": 0, "f16": 1}[kv]
    for name, entry in golden["prompts"].items():
        llama = llama_cpp.Llama(str(path), n_ctx=entry["n_ctx"], n_batch=512, n_ubatch=512, n_threads=1,
                                n_threads_batch=1, type_k=kind, type_v=kind, flash_attn=False, logits_all=False,
                                verbose=False)
        offset = entry["logits_f16kv_offset" if kv == "f16" else "logits_offset"]
        reference = np.frombuffer(raw, "<f4", golden["vocab_size"], offset).astype(np.float64)
        row = last_logits(llama, entry["ids"]).astype(np.float64)
        norms = np.linalg.norm(row) * np.linalg.norm(reference)
        gap = max(0.0, 1.0 - float(row @ reference) / norms)
        ratio = np.linalg.norm(row) / np.linalg.norm(reference)
        cells.append(f"{gap:.1e} / {ratio - 1:+.0e} / {forced_mismatch(llama, entry)}")
        llama.close()
    print(f"| {stem} | " + " | ".join(cells) + " |", flush=True)


HARD_TEXT = [
    "", " ", "Hello world", "  two  spaces ", "The shoal turns at 12:34, doesn't it?",
    "na\u00efve caf\u00e9 \u65e5\u672c\u8a9e \U0001f41f",
    "\n\n\ttab", "tail  \n", "<|im_start|>user\nhi<|im_end|>\n", "<|im_start", vocab.TEXT,
]


def check_tokenizers():
    for folder in sorted((HERE.parent / "hf").iterdir()):
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
        llama = llama_cpp.Llama(str(HERE / f"{folder.name}.gguf"), vocab_only=True, verbose=False)
        same = [theirs(text)["input_ids"] == llama.tokenize(text.encode(), add_bos=False, special=True)
                for text in HARD_TEXT]
        print(f"{folder.name}: {sum(same)} of {len(same)}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", choices=["f16", "f32"], default="f32")
    parser.add_argument("--kv", choices=["f16", "f32"], default="f32")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--tokenizers", action="store_true")
    options = parser.parse_args()
    if options.tokenizers:
        check_tokenizers()
        return
    print("| family | short | medium | long |\n|---|---|---|---|")
    for path in sorted(HERE.glob("*.gguf")):
        if options.names and path.stem not in options.names:
            continue
        if options.weights == "f16":
            check(path, options.kv)
            continue
        with tempfile.TemporaryDirectory() as folder:
            wide = pathlib.Path(folder) / path.name
            widened(path, wide)
            check(wide, options.kv)


if __name__ == "__main__":
    main()
