"""A crowd of prompts through three nodes on a busy machine: what is lost, how long it takes, and what is expected afterwards.

    crowd.py SHOAL MODEL [--streams 64] [--tokens 24] [--hogs 2] [--sessions N] [--alone 3] [--keep FOLDER]

Three nodes on loopback hold a third of the middle layers each, a fourth one asks; each has one thread and serves so many sessions at
a time, as many as there are streams unless said otherwise. Some prompts run one after another on the idle swarm, then all streams at
once beside so many programs that only burn a processor, then some one after another again. Prints one JSON object: streams lost and
why, streams whose tokens differ from those of this machine alone, the distribution of first tokens and of the time between two
tokens, and what `shoal plan` expects before each single prompt beside what it took, right after the crowd and some seconds later.
Ends with 1 when a stream was lost or has other tokens; judges no time.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("shoal")
parser.add_argument("model")
parser.add_argument("--streams", type=int, default=64)
parser.add_argument("--tokens", type=int, default=24)
parser.add_argument("--hogs", type=int, default=2)
parser.add_argument("--sessions", type=int, help="of others at a time on each node")
parser.add_argument("--alone", type=int, default=3, help="prompts one after another, before and after")
parser.add_argument("--keep", help="a folder for the nodes' data and logs, which stays")
args = parser.parse_args()

MODEL = args.model if args.model == "minnow" else os.path.abspath(args.model)
ABOUT = "Tell me a story about the number {}"
# Load is announced every 2 s.
HEARD_S = 4


def share(values, part):
    values = sorted(values)
    return round(values[min(len(values) - 1, int(part * len(values)))], 4) if values else None


def spread(values):
    return {name: share(values, part) for name, part in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1))}


def last_line(command, home):
    done = subprocess.run([args.shoal, *command], capture_output=True, text=True, env={**os.environ, "SHOAL_HOME": str(home)})
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip())
    return json.loads(done.stdout.splitlines()[-1])


class Node:
    """A node that has said that it can be asked."""

    def __init__(self, home, *words):
        home.mkdir(parents=True)
        self.home = home
        sessions = ["--sessions", str(args.sessions or args.streams)]
        command = [args.shoal, "join", "--json", "--yes", "--until-stdin-closes", "--loopback", "--threads", "1", "--no-pin"]
        self.process = subprocess.Popen(
            [*command, *sessions, "--model", MODEL, *words],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=open(home / "log", "w"), text=True,
            env={**os.environ, "SHOAL_HOME": str(home)},
        )
        for line in self.process.stdout:
            said = json.loads(line)
            if said["event"] == "ready":
                break
        else:
            sys.exit(f"a node ended: {(home / 'log').read_text()}")
        self.address = next(address for address in said["addresses"] if "/tcp/" in address)
        threading.Thread(target=lambda: [None for _ in self.process.stdout], daemon=True).start()

    def ask(self, *words):
        return last_line([*words, "--json"], self.home)

    def meets(self, count):
        holds = lambda peer: peer["connected"] and any(model.get("layers") for model in peer["models"])
        while sum(map(holds, self.ask("peers")["peers"])) < count:
            time.sleep(0.1)

    def end(self):
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()


def words_of(seed):
    return ["run", "--json", "-n", str(args.tokens), "--temperature", "0.8", "--seed", str(seed), ABOUT.format(seed)]


class Stream(threading.Thread):
    """One prompt through the swarm, with when its tokens came."""

    def __init__(self, home, seed):
        super().__init__()
        self.home, self.seed = home, seed
        self.came, self.ids, self.last, self.why = [], [], None, None
        self.start()

    def run(self):
        began = time.monotonic()
        process = subprocess.Popen(
            [args.shoal, *words_of(self.seed), "--via", "swarm"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "SHOAL_HOME": str(self.home)},
        )
        for line in process.stdout:
            said = json.loads(line)
            if said.get("event") == "token":
                self.came.append(time.monotonic() - began)
                self.ids.append(said["id"])
            elif said.get("end"):
                self.last = said
        complaint = process.stderr.read().strip()
        if process.wait() != 0:
            self.why = complaint or f"exit {process.returncode}"

    def gaps(self):
        return [after - before for before, after in zip(self.came, self.came[1:])]


def alone(asks, first_seed):
    """What single prompts take beside what is expected of each, s, and the one as a part of the other."""
    rows = []
    for seed in range(first_seed, first_seed + args.alone):
        plan = asks.ask("plan", "--mode", "boomerang", ABOUT.format(seed))["predicted"]
        stream = Stream(asks.home, seed)
        stream.join()
        if stream.why:
            sys.exit(f"a prompt alone failed: {stream.why}")
        took = 1e3 * sum(stream.gaps()) / len(stream.gaps())
        rows.append({
            "step_ms": round(took, 2), "expected_step_ms": round(plan["step_ms"], 2), "expected_of_took": round(plan["step_ms"] / took, 2),
            "first_token_ms": round(stream.last["ttft_ms"], 1), "expected_first_token_ms": round(plan["ttft_ms"], 1),
        })
    return rows


def main(folder):
    home = folder / "alone"
    home.mkdir(parents=True)
    right = {}
    for seed in range(args.streams):
        said = last_line([*words_of(seed), "--via", "local", "--model", MODEL], home)
        right[seed] = said["ids"]
    asks = Node(folder / "asks", "--ask-only")
    layers = asks.ask("status")["model"]["num_layers"]
    cut = lambda n: 1 + n * (layers - 2) // 3
    serves = [Node(folder / f"serves{n}", "--layers", f"{cut(n)}..{cut(n + 1)}", "--peer", asks.address) for n in range(3)]
    asks.meets(3)
    report = {"streams": args.streams, "tokens": args.tokens, "hogs": args.hogs, "sessions": args.sessions or args.streams, "before": alone(asks, 10_000)}
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(args.hogs)]
    began = time.monotonic()
    streams = [Stream(asks.home, seed) for seed in range(args.streams)]
    for stream in streams:
        stream.join()
    took = time.monotonic() - began
    for hog in hogs:
        hog.kill()
    whole = [stream for stream in streams if stream.last and not stream.why]
    faults = [fault for stream in whole for fault in stream.last.get("faults", [])]
    report["crowd"] = {
        "whole": len(whole),
        "lost": len(streams) - len(whole),
        "why": sorted({stream.why or "no last line" for stream in streams if stream not in whole}),
        "differ": [stream.seed for stream in whole if stream.ids != right[stream.seed]],
        "moved": len([stream for stream in whole if stream.last.get("faults")]),
        "faults": len(faults),
        "seconds": round(took, 1),
        "tok_s": round(sum(len(stream.ids) for stream in streams) / took, 2),
        "first_token_s": spread([stream.came[0] for stream in whole]),
        "gap_s": spread([gap for stream in whole for gap in stream.gaps()]),
    }
    report["right_after"] = alone(asks, 20_000)
    time.sleep(HEARD_S)
    report["later"] = alone(asks, 30_000)
    print(json.dumps(report, indent=1))
    for node in [*serves, asks]:
        node.end()
    return 1 if report["crowd"]["lost"] or report["crowd"]["differ"] else 0


if args.keep:
    sys.exit(main(pathlib.Path(args.keep)))
with tempfile.TemporaryDirectory() as name:
    sys.exit(main(pathlib.Path(name)))
