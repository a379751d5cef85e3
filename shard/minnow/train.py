"""Trains Minnow and writes `minnow.gguf`: tokenizer, network, export.

    python train.py --seed 1 --time-limit 60 --threads 2

The data of a step depends on (seed, step) alone, so a run that is killed and resumed sees what it would have seen. The
learning rate follows progress: the larger of step / --steps and time / --time-limit. A checkpoint is written every three minutes.
Work is shared by one single-threaded process per --threads, which meet three times per step: on a busy machine that is
several times faster than a thread pool, whose every product waits for its slowest thread.
Needs torch, tokenizers, gguf and numpy.
"""

import argparse
import csv
import json
import math
import os
import random
import re
import signal
import sys
import time

import torch
import torch.multiprocessing as mp
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from corpus import conversation, is_slot, render
from export import draw_curve, write_gguf
from model import Minnow, Shape
from muon import Muon

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# Weight of the tokens that the user or the template wrote, in the loss.
OTHERS = 0.1
# Weights of the reply's words that fill a slot. To copy them from what was said is what has to be learned; what the
# grammar drew for a slot that the prompt left open is chance, and mostly noise in the gradient.
COPIED, DRAWN = 4.0, 0.3
# Share of easy conversations; none in the last part of the run.
EASY, EASY_UNTIL = 0.8, 0.85
CHECKPOINT_SECONDS = 180
MUON_RATE, ADAM_RATE = 0.02, 3e-3
# A worker that waits longer than this for its siblings has lost them, and ends.
LOST_SECONDS = 900
HERE = os.path.dirname(os.path.abspath(__file__))


def train_tokenizer(seed, vocab):
    """Byte-level BPE with GPT-2's pre-tokenizer, on 20,000 conversations."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=SPECIALS, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    rng = random.Random(f"{seed}/tokenizer")
    tokenizer.train_from_iterator((text for _ in range(20000) for _, text in conversation(rng)), trainer)
    return tokenizer


def encode(tokenizer, messages):
    """The ids of a conversation and, for each, its weight as a target."""
    ids, weights, asked, seen = [], [], set(), set()
    for text, mine in render(messages):
        piece = tokenizer.encode(text)
        ids += piece.ids
        if not mine:
            said = set(re.findall(r"[a-z]+", text.lower()))
            asked |= {word for word in said if len(word) > 3}
            seen |= said
            weights += [OTHERS] * len(piece.ids)
            continue
        start = len(weights)
        weights += [1.0] * len(piece.ids)
        for match in re.finditer(r"[A-Za-z]+", text):
            word = match[0].lower()
            if not is_slot(word, asked):
                continue
            for i in range(piece.char_to_token(match.start()), piece.char_to_token(match.end() - 1) + 1):
                weights[start + i] = COPIED if word in seen else DRAWN
            seen.add(word)
    return ids, weights


def step_batches(tokenizer, rng, tokens, context, micro=1024, held_out=False, easy=0.0):
    """About `tokens` tokens of conversations, sorted by length into padded batches (ids, weights) of up to `micro` tokens."""
    samples, total = [], 0
    while total < tokens:
        ids, weights = encode(tokenizer, conversation(rng, held_out, rng.random() < easy))
        samples.append((ids[:context], weights[:context]))
        total += len(samples[-1][0])
    samples.sort(key=lambda s: len(s[0]))
    groups, group = [], []
    for sample in samples:
        if group and (len(sample[0]) * (len(group) + 1) > micro or len(sample[0]) > 1.5 * len(group[0][0]) + 16):
            groups.append(group)
            group = []
        group.append(sample)
    groups.append(group)
    for group in groups:
        longest = len(group[-1][0])
        yield (torch.tensor([ids + [0] * (longest - len(ids)) for ids, _ in group]),
               torch.tensor([weights + [0.0] * (longest - len(weights)) for _, weights in group]))


def losses(model, ids, weights):
    """Weighted sum of the loss, sum of the weights, and the same two for reply tokens alone."""
    logits = model(ids[:, :-1])
    each = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    weight = weights[:, 1:].flatten()
    reply = (weight > OTHERS + 0.1).float()
    return (each * weight).sum(), weight.sum(), (each.detach() * reply).sum(), reply.sum()


@torch.no_grad()
def validate(model, sets):
    result = {}
    for name, batches in sets.items():
        total = count = 0.0
        for ids, weights in batches:
            _, _, reply, n = losses(model, ids, weights)
            total, count = total + float(reply), count + float(n)
        result[name] = total / count
    return result


def optimizers(model, workers):
    """One Muon per worker, over every `workers`-th block, and AdamW for the embedding and the norms."""
    s = model.shape
    kv = s.kv_heads * s.head
    result = []
    for worker in range(workers):
        matrices, parts = [], []
        for block in list(model.blocks)[worker::workers]:
            matrices += [block.qkv.weight, block.out.weight, block.gate_up.weight, block.down.weight]
            parts += [[s.heads * s.head, kv, kv], [s.hidden], [s.ffn, s.ffn], [s.hidden]]
        result.append(Muon(matrices, parts, lr=MUON_RATE))
    owned = {id(p) for o in result for p in o.param_groups[0]["params"]}
    rest = [p for p in model.parameters() if id(p) not in owned]
    return result, torch.optim.AdamW(rest, lr=ADAM_RATE, betas=(0.9, 0.95), weight_decay=0.0)


def rate(progress, step):
    """Share of the top learning rate: short warm-up, level, and from 75 % of the way a straight line to 2 %."""
    return min(1.0, (step + 1) / 30) * min(1.0, max(0.02, (1.0 - progress) / 0.25))


def sample(model, tokenizer, ask, count=220):
    prompt = tokenizer.encode(f"<|im_start|>user\n{ask}<|im_end|>\n<|im_start|>assistant\n").ids
    return tokenizer.decode(model.greedy(prompt, count, tokenizer.token_to_id("<|im_end|>")))


class Run:
    """One training run with its files in `folder`."""

    def __init__(self, args):
        self.args = args
        os.makedirs(args.folder, exist_ok=True)
        torch.manual_seed(args.seed)
        torch.set_num_threads(1)
        path = self.file("tokenizer.json")
        if args.resume and os.path.exists(path):
            self.tokenizer = Tokenizer.from_file(path)
        else:
            self.tokenizer = train_tokenizer(args.seed, Shape.vocab)
            self.tokenizer.save(path)
        self.model = Minnow().share_memory()
        self.muons, self.adam = optimizers(self.model, args.threads)
        self.step, self.tokens, self.seconds, self.log = 0, 0, 0.0, []
        if args.resume and os.path.exists(self.file("checkpoint.pt")):
            self.load()
        validation = random.Random(f"{args.seed}/validation")
        context = self.model.shape.context
        self.validation = {
            "stories": list(step_batches(self.tokenizer, validation, 8000, context, held_out=True)),
            "answers": list(step_batches(self.tokenizer, validation, 8000, context)),
        }

    def file(self, name):
        return os.path.join(self.args.folder, name)

    def momenta(self):
        """The momentum of each fused matrix, in the order of the blocks, whatever the number of workers."""
        held = {id(p): o.state[p]["momentum"] for o in self.muons for p in o.param_groups[0]["params"]}
        return [held[id(p)] for p in self.model.parameters() if id(p) in held]

    def load(self):
        state = torch.load(self.file("checkpoint.pt"), weights_only=True)
        self.model.load_state_dict(state["model"])
        # In place: the momentum is shared memory.
        for block, saved in zip(self.momenta(), state["momenta"]):
            block.copy_(saved)
        self.adam.load_state_dict(state["adam"])
        self.step, self.tokens, self.seconds = state["step"], state["tokens"], state["seconds"]
        self.log = json.loads(state["log"])

    def save(self):
        state = dict(model=self.model.state_dict(), momenta=self.momenta(), adam=self.adam.state_dict(), step=self.step, tokens=self.tokens,
                     seconds=self.seconds, log=json.dumps(self.log))
        torch.save(state, self.file("checkpoint.tmp"))
        os.replace(self.file("checkpoint.tmp"), self.file("checkpoint.pt"))
        with open(self.file("loss.csv"), "w", newline="") as file:
            writer = csv.DictWriter(file, ["step", "tokens", "seconds", "train", "stories", "answers"], restval="")
            writer.writeheader()
            writer.writerows(self.log)

    def progress(self):
        return min(1.0, max(self.step / self.args.steps, self.seconds / (60 * self.args.time_limit)))

    def share_of_step(self, worker, common):
        """This worker's part of one update: its micro-batches, then the optimizer steps of its blocks."""
        rng = random.Random(f"{self.args.seed}/train/{int(common.step.value)}")
        batches = list(step_batches(self.tokenizer, rng, self.args.batch, self.model.shape.context, easy=common.easy.value))
        total_weight = float(sum(weights[:, 1:].sum() for _, weights in batches))
        stats = torch.zeros(3, dtype=torch.float64)
        while (index := common.take()) < len(batches):
            ids, weights = batches[len(batches) - 1 - index]
            loss, _, reply, count = losses(self.model, ids, weights)
            (loss / total_weight).backward()
            stats += torch.tensor([float(reply), float(count), float((weights > 0).sum())])
        common.stats[worker] = stats
        common.meet()
        mine = [self.muons[worker]] + ([self.adam] if worker == 0 else [])
        own = {id(p) for o in mine for p in o.param_groups[0]["params"]}
        for j, parameter in enumerate(self.model.parameters()):
            if id(parameter) in own:
                for other in range(self.args.threads):
                    if other != worker:
                        parameter.grad.add_(common.gradients[other][j])
        torch.nn.utils.clip_grad_norm_(self.adam.param_groups[0]["params"], 1.0)
        for optimizer in mine:
            optimizer.param_groups[0]["lr"] = (ADAM_RATE if optimizer is self.adam else MUON_RATE) * common.rate.value
            optimizer.step()
        common.meet()
        for gradient in common.gradients[worker]:
            gradient.zero_()

    def work(self, worker, common):
        """The life of a worker other than the first."""
        torch.set_num_threads(1)
        self.adopt(worker, common)
        while True:
            common.meet()
            if common.done.value:
                return
            self.share_of_step(worker, common)

    def adopt(self, worker, common):
        for parameter, gradient in zip(self.model.parameters(), common.gradients[worker]):
            parameter.grad = gradient

    def train(self):
        # A plain kill then ends the workers, too.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        common = Common(self.model, self.args.threads)
        context = mp.get_context("fork")
        workers = [context.Process(target=self.work, args=(w, common), daemon=True) for w in range(1, self.args.threads)]
        for worker in workers:
            worker.start()
        self.adopt(0, common)
        saved, window = time.monotonic(), []
        while self.progress() < 1.0:
            begun = time.monotonic()
            common.prepare(self.step, rate(self.progress(), self.step), EASY if self.progress() < EASY_UNTIL else 0.0)
            common.meet()
            self.share_of_step(0, common)
            reply, count, tokens = common.stats.sum(0).tolist()
            window.append(reply / count)
            self.step, self.tokens = self.step + 1, self.tokens + int(tokens)
            if math.isnan(window[-1]):
                raise SystemExit(f"loss is not a number at step {self.step}")
            if self.step % 10 == 0:
                self.note(sum(window) / len(window), self.step % 100 == 0)
                window = []
            if time.monotonic() - saved > CHECKPOINT_SECONDS:
                saved = time.monotonic()
                self.save()
                print("  " + sample(self.model, self.tokenizer, "Tell me a story about a fox and a lantern."), flush=True)
            self.seconds += time.monotonic() - begun
        common.done.value = 1
        common.meet()
        if not self.log or self.log[-1]["step"] != self.step:
            self.note(sum(window) / max(1, len(window)), True)
        self.save()

    def note(self, loss, validated):
        row = dict(step=self.step, tokens=self.tokens, seconds=round(self.seconds, 1), train=round(loss, 4))
        if validated:
            row |= {name: round(value, 4) for name, value in validate(self.model, self.validation).items()}
        self.log.append(row)
        speed = self.tokens / max(1.0, self.seconds)
        print(" ".join(f"{k} {v}" for k, v in row.items()), f"tok/s {speed:.0f} progress {self.progress():.3f}", flush=True)


class Common:
    """What the workers share: gradients, the queue of micro-batches, and the place where they meet."""

    def __init__(self, model, workers):
        context = mp.get_context("fork")
        self.gradients = [[torch.zeros_like(p).share_memory_() for p in model.parameters()] for _ in range(workers)]
        self.stats = torch.zeros(workers, 3, dtype=torch.float64).share_memory_()
        self.next, self.step, self.done = context.Value("q", 0), context.Value("q", 0), context.Value("q", 0)
        self.rate, self.easy = context.Value("d", 0.0), context.Value("d", 0.0)
        self.barrier = context.Barrier(workers)

    def prepare(self, step, rate, easy):
        self.step.value, self.rate.value, self.easy.value, self.next.value = step, rate, easy, 0

    def take(self):
        with self.next.get_lock():
            self.next.value += 1
            return self.next.value - 1

    def meet(self):
        self.barrier.wait(LOST_SECONDS)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=3000, help="end after so many updates at the latest")
    parser.add_argument("--time-limit", type=float, default=80, help="end after so many minutes of training at the latest")
    parser.add_argument("--threads", type=int, default=2, help="processes of one thread each")
    parser.add_argument("--batch", type=int, default=4096, help="tokens per update")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --folder")
    parser.add_argument("--export-only", action="store_true", help="write the GGUF of the checkpoint in --folder and end")
    parser.add_argument("--folder", default=os.path.join(HERE, "../../target/minnow"), help="checkpoint, tokenizer and log")
    parser.add_argument("--output", default=os.path.join(HERE, "minnow.gguf"))
    args = parser.parse_args()
    args.resume |= args.export_only
    return args


def main():
    run = Run(arguments())
    if not run.args.export_only:
        print(f"{sum(p.numel() for p in run.model.parameters())} parameters, resumed at step {run.step}", flush=True)
        run.train()
    write_gguf(run.args.output, run.model, run.tokenizer, SPECIALS)
    if run.log:
        draw_curve(os.path.join(os.path.dirname(run.args.output), "loss.svg"), run.log)
    print(f"wrote {run.args.output}: {os.path.getsize(run.args.output)} bytes")


if __name__ == "__main__":
    main()
