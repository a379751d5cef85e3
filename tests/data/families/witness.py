"""Second witness: runs the fixtures through llama-cpp-python and compares with the goldens.

    python witness.py [--weights f16|f32] [--kv f32|f16] [NAME ...]

Prints 1 - cos of the last-position logits, the ratio of the norms, and the first greedy step (of 32, teacher forced)
whose argmax differs ("32" = none). `--weights f32` first rewrites the file with F32 matrices, because llama.cpp rounds
activations to F16 before it multiplies with F16 weights.
"""

import argparse
import json
import pathlib
import tempfile

import gguf
import llama_cpp
import numpy as np

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
    stem = path.name.removesuffix(".gguf")
    golden = json.loads((HERE / f"{stem}.golden.json").read_text())
    raw = (HERE / golden["logits_file"]).read_bytes()
    cells, worst = [], 0.0
    kind = {"f32": 0, "f16": 1}[kv]
    for name, entry in golden["prompts"].items():
        llama = llama_cpp.Llama(str(path), n_ctx=entry["n_ctx"], n_batch=512, n_ubatch=512, n_threads=1,
                                n_threads_batch=1, type_k=kind, type_v=kind, flash_attn=False, logits_all=False,
                                verbose=False)
        reference = np.frombuffer(raw, "<f4", golden["vocab_size"], entry["logits_offset"]).astype(np.float64)
        row = last_logits(llama, entry["ids"]).astype(np.float64)
        norms = np.linalg.norm(row) * np.linalg.norm(reference)
        gap = max(0.0, 1.0 - float(row @ reference) / norms)
        worst = max(worst, gap)
        ratio = np.linalg.norm(row) / np.linalg.norm(reference)
        cells.append(f"{gap:.1e} / {ratio - 1:+.0e} / {forced_mismatch(llama, entry)}")
        llama.close()
    print(f"| {stem} | " + " | ".join(cells) + " |", flush=True)
    return worst


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", choices=["f16", "f32"], default="f32")
    parser.add_argument("--kv", choices=["f16", "f32"], default="f32")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    print("| family | short | medium | long |\n|---|---|---|---|")
    for path in sorted(HERE.glob("*.gguf")):
        stem = path.name.removesuffix(".gguf")
        if options.names and stem not in options.names:
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
