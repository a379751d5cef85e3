#!/bin/sh
# What a GPU does with a model, in one command: the self-test, decoding as a share of the memory bandwidth that was measured on
# it, prefill, and both beside llama.cpp on the same file where `llama-bench` is installed (built for Vulkan, say).
#
#   tests/compare/gpu.sh [MODEL.gguf | SHAPE] [DEVICE]
#
# Without arguments: random weights of the shape llama-1b in q4_k on gpu:0. SHOAL names the binary; otherwise it is built.
# PROMPT_TOKENS, DECODE_TOKENS and RUNS say how long it measures (512, 64 and 5): a software device takes minutes for that.
set -eu
cd "$(dirname "$0")/../.."
subject=${1:-llama-1b} device=${2:-gpu:0}
prompt=${PROMPT_TOKENS:-512} decode=${DECODE_TOKENS:-64} runs=${RUNS:-5}
shoal=${SHOAL:-target/release/shoal}
[ -n "${SHOAL:-}" ] || cargo build --release -p shoal-node --features gpu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
case $subject in
*.gguf) model=$subject ;;
*)
    model=$work/model.gguf
    "$shoal" bench --shape "$subject" --format q4_k --save "$model"
    ;;
esac
"$shoal" selftest --device "$device" | tail -n 1
"$shoal" bench --model "$model" --device "$device" --prompt-tokens "$prompt" --decode-tokens "$decode" --runs "$runs" \
    --json >"$work/ours.json"
if command -v llama-bench >/dev/null; then
    llama-bench -m "$model" -p "$prompt" -n "$decode" -ngl 99 -r "$runs" -o json >"$work/theirs.json"
fi
python3 - "$work" <<'PYTHON'
import json, pathlib, sys

folder = pathlib.Path(sys.argv[1])
ours = json.loads((folder / "ours.json").read_text().splitlines()[-1])
print(f"{ours['model']} ({ours['format']}) on {ours['device']}")
share = ours.get("read_share")
read = f"{100 * share:.0f} % of the {ours['read_gb_s']:.0f} GB/s that it reads" if share else "its bandwidth is not known"
print(f"decode   {ours['decode_tok_s']:9.1f} tok/s = {ours['effective_gb_s']:.1f} GB/s, {read}")
print(f"prefill  {ours['prefill_tok_s']:9.1f} tok/s")
device = ours["per_token"]
print(f"a token  {device['submits']:.1f} submits, {device['dispatches']:.1f} dispatches, {device['bytes_back']:.0f} bytes back")
for operation in sorted(device["operations"], key=lambda operation: -operation["us"]):
    print(f"  {operation['name']:28} {operation['us']:9.1f} us  {operation['gb_s']:7.1f} GB/s of weights")
theirs = folder / "theirs.json"
if theirs.exists():
    for row in json.loads(theirs.read_text()):
        kind, own = ("decode", ours["decode_tok_s"]) if row["n_gen"] else ("prefill", ours["prefill_tok_s"])
        print(f"llama.cpp ({row['backends']}) {kind} {row['avg_ts']:.1f} tok/s: we do {own / row['avg_ts']:.2f} of it")
PYTHON
