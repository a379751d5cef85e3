"""Compares `shoal bench` with llama.cpp on the same file and threads, in turns, and prints the ratios of the medians.

    python tests/compare/compare.py --shoal target/release/shoal [--rounds 5] [--threads 2] [--formats q4_0 q8_0 q4_k]
                                      [--shape llama-1b | --model FILE]

Needs llama-cpp-python (`pip install llama-cpp-python`, built for the processor it runs on). The machine should do nothing
else. Random weights of the shape are written to a temporary folder first. Both sides: one warm-up, a 512-token prompt in
one batch, then 64 greedy tokens after it; f16 KV cache. Every run is a fresh process, so that memory has a fresh layout.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

PROMPT, DECODE = 512, 64


def llama_cpp_run(model, threads):
    """One run of llama.cpp in this process: (prefill tok/s, decode tok/s)."""
    import ctypes

    import llama_cpp
    import numpy as np

    llm = llama_cpp.Llama(model_path=model, n_ctx=PROMPT + DECODE + 8, n_batch=PROMPT, n_ubatch=PROMPT, n_threads=threads,
                          n_threads_batch=threads, logits_all=False, verbose=False)
    vocab = llm.n_vocab()
    ids = [i * 2654435761 % 2**32 % vocab for i in range(PROMPT)]
    llm.eval([1, 2, 3])
    llm.reset()
    started = time.perf_counter()
    llm.eval(ids)
    prefill = time.perf_counter() - started

    def best():
        pointer = llama_cpp.llama_get_logits_ith(llm._ctx.ctx, -1)
        return int(np.ctypeslib.as_array(ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float)), shape=(vocab,)).argmax())

    token = best()
    started = time.perf_counter()
    for _ in range(DECODE):
        llm.eval([token])
        token = best()
    decode = time.perf_counter() - started
    return PROMPT / prefill, DECODE / decode


def shoal_run(binary, model, threads):
    command = [binary, "bench", "--model", model, "--threads", str(threads), "--prompt-tokens", str(PROMPT),
               "--decode-tokens", str(DECODE), "--runs", "1", "--json"]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    return report["prefill_tok_s"], report["decode_tok_s"], report


def other_run(model, threads):
    command = [sys.executable, __file__, "--child", model, "--threads", str(threads)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(out.splitlines()[-1])


def compare(options, model, label):
    ours, theirs = [], []
    for _ in range(options.rounds):
        ours.append(shoal_run(options.shoal, model, options.threads))
        theirs.append(other_run(model, options.threads))
    row = {"model": label, "threads": options.threads, "rounds": options.rounds}
    for index, phase in enumerate(("prefill", "decode")):
        a = statistics.median(run[index] for run in ours)
        b = statistics.median(run[index] for run in theirs)
        row |= {f"{phase}_shoal": round(a, 1), f"{phase}_llama_cpp": round(b, 1), f"{phase}_ratio": round(a / b, 2)}
    last = ours[-1][2]
    row |= {key: last[key] for key in ("peak_rss_mb", "load_ms", "read_share", "isa")}
    print(json.dumps(row), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shoal", default="target/release/shoal")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--formats", nargs="+", default=["q4_0", "q8_0", "q4_k"])
    parser.add_argument("--shape", default="llama-1b")
    parser.add_argument("--model")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(llama_cpp_run(options.child, options.threads)))
        return
    if options.model:
        compare(options, options.model, pathlib.Path(options.model).name)
        return
    with tempfile.TemporaryDirectory() as folder:
        for name in options.formats:
            path = f"{folder}/{name}.gguf"
            subprocess.run([options.shoal, "bench", "--shape", options.shape, "--format", name, "--save", path], check=True)
            compare(options, path, f"{options.shape} {name}")
            os.remove(path)


if __name__ == "__main__":
    main()
