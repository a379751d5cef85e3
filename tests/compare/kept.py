"""How long the first token of a prompt takes that was computed before, and after a stage of it was killed.

    kept.py SHOAL MODEL [--nodes N] [--stage I] [--port P] [--characters N] [--shadow all|lazy|none] [--pause S]

Starts a swarm on this machine (`shoal up --local N`), asks the same long prompt twice, kills the process of stage I of the second
answer (0 is the asking node itself) and asks a third time. Prints for each answer the time to its first token, its share of the
first, the positions from cache and the route, and exits with 1 unless all three answers are the same text.
"""

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

parser = argparse.ArgumentParser()
parser.add_argument("shoal")
parser.add_argument("model")
parser.add_argument("--nodes", type=int, default=4)
parser.add_argument("--stage", type=int, default=1)
parser.add_argument("--port", type=int, default=7466)
parser.add_argument("--characters", type=int, default=3600, help="of the prompt; about 1,040 tokens")
parser.add_argument("--shadow", default="all")
parser.add_argument("--pause", type=float, default=1.0, help="between answers, seconds")
args = parser.parse_args()

docs = pathlib.Path(__file__).parents[2] / "node" / "docs"
TEXT = " ".join((docs / name).read_text() for name in ["guide.md", "privacy.md"])[: args.characters]


def ask(token):
    body = {
        "messages": [{"role": "user", "content": TEXT}],
        "max_tokens": 24,
        "temperature": 0,
        "seed": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
        "mode": "boomerang",
        "shadow": args.shadow,
    }
    headers = {
        "Content-Type": "application/json",
        "Authorization": f"Bearer {token}",
        "x-shoal-consent": "once",
    }
    url = f"http://127.0.0.1:{args.port}/v1/chat/completions"
    began, first_s, said, cached = time.time(), None, "", 0
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as answer:
        route = answer.headers["x-shoal-route"]
        for line in answer:
            line = line.decode().strip()
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line[6:])
            if event.get("choices") and event["choices"][0]["delta"].get("content"):
                first_s = first_s or time.time() - began
                said += event["choices"][0]["delta"]["content"]
            if event.get("usage"):
                cached = event["usage"]["prompt_tokens_details"]["cached_tokens"]
    return first_s, said, cached, route


with tempfile.TemporaryDirectory() as home:
    command = [args.shoal, "up", "--local", str(args.nodes), "--model", args.model, "--threads", "1", "--json"]
    command += ["--api", f"127.0.0.1:{args.port}"]
    swarm = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "SHOAL_HOME": home}, start_new_session=True
    )
    try:
        homes, token = {}, None
        for line in swarm.stdout:
            event = json.loads(line) if line.startswith("{") else {}
            if event.get("event") == "node":
                homes[event["node"]] = event["home"]
                print(event["node"][:8], event["serving"] or "asks")
            if event.get("event") == "listening":
                token = pathlib.Path(event["token_file"]).read_text().strip()
                break
        time.sleep(5)
        answers = []
        for name in ["first", "again", "after a kill"]:
            if name == "after a kill":
                short = answers[-1][3].split()[args.stage].split(":")[0]
                home_of = next(home for node, home in homes.items() if node.startswith(short))
                found = subprocess.run(["pgrep", "-f", "--", home_of + "( |$|/)"], capture_output=True, text=True)
                for pid in found.stdout.split():
                    os.kill(int(pid), signal.SIGKILL)
                print(f"killed       {short}")
            answers.append(ask(token))
            first_s, _, cached, route = answers[-1]
            print(f"{name:12} {first_s:.2f} s  {first_s / answers[0][0]:.3f} of the first  {cached} cached  {route}", flush=True)
            time.sleep(args.pause)
        same = all(said == answers[0][1] for _, said, _, _ in answers)
        print("the same text" if same else "OTHER TEXT")
        sys.exit(0 if same else 1)
    finally:
        os.killpg(swarm.pid, signal.SIGTERM)
        try:
            swarm.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(swarm.pid, signal.SIGKILL)
