"""Whether a model still finds what it was told long ago, for each form of its keys and values, and for each kind of attention.

    recall.py SHOAL MODEL [--positions N ...] [--depths PERCENT ...] [--forms f16 q8 q4] [--attention sparse h2o ...] [--copies N]

*Needle*: a fact (a name and a number of five digits) stands in the text of the guides at a depth of so many percent of about N tokens,
and the prompt ends with a sentence that asks for the number. *Copy*: a list of made-up codes stands at the beginning, and the
prompt ends with the list's first line again, which the model continues greedily. Prints one JSON line per prompt with the tokens of the
prompt and what was found, and then for each form and length the share of numbers and of lines that were right.
"""

import argparse
import json
import pathlib
import random
import subprocess
import time

parser = argparse.ArgumentParser()
parser.add_argument("shoal")
parser.add_argument("model")
parser.add_argument("--positions", type=int, nargs="+", default=[2048, 4096, 7800])
parser.add_argument("--depths", type=int, nargs="+", default=[10, 30, 50, 70, 90])
parser.add_argument("--forms", nargs="+", default=["f16", "q8", "q4"])
parser.add_argument("--attention", nargs="*", default=[])
parser.add_argument("--copies", type=int, default=2)
args = parser.parse_args()

docs = pathlib.Path(__file__).parents[2] / "node" / "docs"
NAMES = ["guide.md", "privacy.md", "operations.md", "faq.md", "failover.md", "security.md", "models.md", "kmod.md"]
TEXT = " ".join(" ".join((docs / name).read_text().split()) for name in NAMES)
# Characters of these guides for one token of SmolLM2, so that prompts have a little less than N.
CHARACTERS = 3.3
LINES = 8
NEEDLES = ["Lisbon", "Oslo", "Cairo", "Lima", "Kyoto", "Quito", "Riga", "Turin"]


def answer(prompt, positions, way, tokens):
    command = [args.shoal, "run", "--json", "--raw", "--model", args.model, "--ctx", str(positions + 256), "--temperature", "0"]
    command += ["-n", str(tokens), *way, prompt]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return lines[-1]["text"], lines[-1], time.monotonic() - began


def show(line):
    print(json.dumps(line), flush=True)


right = {}
for positions in args.positions:
    room = int(positions * CHARACTERS)
    prompts = []
    for number, depth in enumerate(args.depths):
        drawn = random.Random(positions * 100 + depth)
        city, secret = NEEDLES[number % len(NEEDLES)], str(drawn.randrange(10000, 100000))
        at = room * depth // 100
        at = TEXT.rfind(". ", 0, max(at, 400)) + 2
        fact = f"The secret number of {city} is {secret}. "
        prompt = TEXT[:at] + fact + TEXT[at:room] + f"\n\nThe secret number of {city} is"
        prompts.append(("needle", depth, prompt, secret, 12))
    for copy in range(args.copies):
        drawn = random.Random(positions * 100 + 77 + copy)
        codes = ["".join(drawn.choice("BCDFGHKLMNPRSTVWXZ") for _ in range(4)) + str(drawn.randrange(10, 100)) for _ in range(LINES)]
        listed = "".join(f"{number}. {code}\n" for number, code in enumerate(codes, 1))
        head = f"List:\n{listed}\n"
        prompt = head + TEXT[: room - 2 * len(head)] + f"\n\nList:\n1. {codes[0]}\n"
        prompts.append(("copy", copy, prompt, codes[1:], 12 * LINES))
    ways = [("--kv-cache-type", form) for form in args.forms] + [("--attention", kind) for kind in args.attention]
    for way in ways:
        form = way[1]
        for kind, which, prompt, wanted, tokens in prompts:
            text, line, seconds = answer(prompt, positions, way, tokens)
            if kind == "needle":
                found = float(text.strip().startswith(wanted))
            else:
                lines = [part.split(". ")[-1].strip() for part in text.splitlines()]
                found = sum(one == other for one, other in zip(lines, wanted)) / len(wanted)
            right.setdefault((form, positions, kind), []).append(found)
            show({"form": form, "positions": positions, "kind": kind, "which": which, "right": found,
                  "prompt_tokens": line.get("prompt_tokens"), "seconds": round(seconds, 1), "text": text[:60]})
for (form, positions, kind), found in right.items():
    show({"form": form, "positions": positions, "kind": kind, "prompts": len(found), "right": sum(found) / len(found)})
