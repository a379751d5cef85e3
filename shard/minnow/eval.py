"""Scores a trained Minnow from its GGUF file: quantization error, use of the slots, right answers, and a second witness.

    python eval.py --stories 60 --answers 200

The network runs here with the file's dequantized weights. Stories are asked for with (character, object) pairs that training
never saw together; a slot counts as used when the greedy reply contains the word. `--llama-cpp` compares greedy replies with
llama-cpp-python, whose Q8_0 kernels also round the activations: a late difference after equal beginnings is expected there.
"""

import argparse
import os
import random

import gguf
import torch
from tokenizers import Tokenizer

from answers import ANSWERS, GROUPS, NO, NUMBERS
from answers import _list as LIST
from corpus import draw_tale
from export import load_gguf
from model import Minnow
from stories import used


HERE = os.path.dirname(os.path.abspath(__file__))
WITNESS = ["Tell me a story about a fox and a lantern.", "What is the capital of France?", "Who are you?"]


def reply(model, tokenizer, ask, count=250):
    prompt = tokenizer.encode(f"<|im_start|>user\n{ask}<|im_end|>\n<|im_start|>assistant\n").ids
    return model.greedy(prompt, count, tokenizer.token_to_id("<|im_end|>"))


def slots(model, tokenizer, count, show):
    """Per slot: how often a prompt names it, and how often the story then mentions it."""
    rng = random.Random("slots")
    asked, found, whole, stories = {}, {}, 0, 0
    while stories < count:
        tale, ask = draw_tale(rng, held_out=True)
        if not {"who", "thing"} <= tale.asked:
            continue
        stories += 1
        story = tokenizer.decode(reply(model, tokenizer, ask))
        for slot in sorted(tale.asked - {"theme", "weather"}):
            one = type(tale)(**{**vars(tale), "asked": frozenset([slot])})
            asked[slot] = asked.get(slot, 0) + 1
            found[slot] = found.get(slot, 0) + all(used(one, story))
        whole += all(used(tale, story))
        if stories <= show or not all(used(tale, story)) and show:
            print(f"> {ask}\n{story}\n")
    for slot in asked:
        print(f"slot {slot}: {found[slot]} of {asked[slot]}")
    print(f"stories that use every slot of the prompt: {whole} of {stories}")


def is_list(ask, got):
    """Does `got` name as many different members of a group as `ask` wants?"""
    group = max((g for g in GROUPS if g in ask.lower()), key=len)
    count = next(i for i, word in enumerate(NUMBERS) if i > 1 and (f" {word} " in f" {ask} " or f" {i} " in f" {ask} "))
    items = got.rstrip(".").replace(" and ", ", ").lower().split(", ")
    return len(items) == len(set(items)) == count and set(items) <= {item.lower() for item in GROUPS[group]}


def answers(model, tokenizer, count, show):
    """Share of short questions whose greedy answer is one that the grammar gives to that question."""
    rng, right, by_kind = random.Random("answers"), 0, {}
    for _ in range(count):
        which = rng.choices(range(len(ANSWERS)), [weight for weight, _ in ANSWERS])[0]
        kind = ANSWERS[which][1]
        ask, answer = kind(rng)
        got = tokenizer.decode(reply(model, tokenizer, ask, 120))
        # A question may have several right answers: all that a few thousand draws give to it.
        possible, again = {answer}, random.Random("again")
        if kind is LIST:
            ok = is_list(ask, got)
        else:
            possible |= {a for q, a in (kind(again) for _ in range(4000)) if q == ask}
            ok = got in possible or got in NO and answer in NO
        right += ok
        label = kind.__name__.strip("_") + (f" {which}" if kind.__name__ == "make" else "")
        seen = by_kind.setdefault(label, [0, 0])
        seen[0] += ok
        seen[1] += 1
        if show and not ok:
            print(f"> {ask}\n{got}   (expected: {answer})")
    if show:
        print({k: f"{a}/{b}" for k, (a, b) in sorted(by_kind.items())})
    print(f"short answers as the grammar gives them: {right} of {count}")


def witness(path, model, tokenizer):
    import llama_cpp

    # Without repacked buffers: some virtual machines announce AMX and trap on its instructions.
    defaults = llama_cpp.llama_cpp.llama_model_default_params

    def plain():
        parameters = defaults()
        parameters.use_extra_bufts = False
        return parameters

    llama_cpp.llama_cpp.llama_model_default_params = plain
    llama = llama_cpp.Llama(path, n_ctx=1024, n_threads=1, verbose=False, logits_all=False)
    for text in WITNESS + [" Hello  world,\n\nit's 12 o'clock — naïve 日本 🐟"]:
        assert llama.tokenize(text.encode(), add_bos=False, special=False) == tokenizer.encode(text).ids, text
    print("tokenizer: equal ids")
    for ask in WITNESS:
        prompt = tokenizer.encode(f"<|im_start|>user\n{ask}<|im_end|>\n<|im_start|>assistant\n").ids
        mine, theirs = reply(model, tokenizer, ask, 200), []
        for token in llama.generate(prompt, temp=0.0, repeat_penalty=1.0):
            if token == tokenizer.token_to_id("<|im_end|>") or len(theirs) == 200:
                break
            theirs.append(token)
        same = next((i for i, (a, b) in enumerate(zip(mine, theirs)) if a != b), min(len(mine), len(theirs)))
        print(f"{ask!r}: {'equal' if mine == theirs else 'differs after'} {same} of {len(mine)} tokens")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=os.path.join(HERE, "minnow.gguf"))
    parser.add_argument("--folder", default=os.path.join(HERE, "../../target/minnow"), help="where train.py left tokenizer and checkpoint")
    parser.add_argument("--stories", type=int, default=60)
    parser.add_argument("--answers", type=int, default=200)
    parser.add_argument("--show", type=int, default=0, help="print so many stories, and whatever went wrong")
    parser.add_argument("--llama-cpp", action="store_true")
    parser.add_argument("--ask", action="append", default=[], help="print the greedy reply to this")
    args = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_file(os.path.join(args.folder, "tokenizer.json"))
    model = Minnow()
    checkpoint = os.path.join(args.folder, "checkpoint.pt")
    if os.path.exists(checkpoint):
        model.load_state_dict(torch.load(checkpoint, weights_only=True)["model"])
        ids = torch.tensor([tokenizer.encode("<|im_start|>user\nTell me a story.<|im_end|>\n<|im_start|>assistant\n").ids])
        with torch.no_grad():
            trained = model(ids)
            change = load_gguf(args.model, model)
            error = model(ids) - trained
        print(f"largest change of a weight by Q8_0: {change:.5f}; logits: cosine {torch.cosine_similarity((trained + error).flatten(), trained.flatten(), 0):.6f}, largest error {error.abs().max():.4f}")
    else:
        load_gguf(args.model, model)
    names = gguf.GGUFReader(args.model).fields
    print(f"{args.model}: {os.path.getsize(args.model)} bytes, {len(names)} metadata fields, {sum(p.numel() for p in model.parameters())} parameters")
    for ask in args.ask:
        print(f"> {ask}\n{tokenizer.decode(reply(model, tokenizer, ask))}\n")
    if args.llama_cpp:
        witness(args.model, model, tokenizer)
    if args.stories:
        slots(model, tokenizer, args.stories, args.show)
    if args.answers:
        answers(model, tokenizer, args.answers, args.show)


if __name__ == "__main__":
    main()
