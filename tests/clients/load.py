"""Many clients at once against a running API: streams that are held, and clients that hold connections and send nothing.

    load.py URL TOKEN_FILE [--streams 256] [--tokens 64] [--slow 500] [--pid PID ...]

First as many connections as `--slow` each send a part of a header now and then, while honest requests are timed; then as many
streamed answers as `--streams` run side by side. Prints one JSON object: the slowest honest request with and without slow clients,
streams lost, the time between two tokens of a stream over all streams (a token that comes in the same packet as the one before counts
as 0), and the memory of the processes before, in the middle and after. Needs nothing but Python. Judges nothing: the figures depend
on the machine.
"""

import argparse
import asyncio
import json
import time
from urllib.parse import urlsplit

SLOW_SECONDS = 2.0
HONEST = 20
PROMPT = [{"role": "user", "content": "Tell me a story about a fox"}]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("token_file")
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--slow", type=int, default=500)
    parser.add_argument("--timeout", type=float, default=900, help="seconds after which a stream counts as lost")
    parser.add_argument("--pid", type=int, action="append", default=[], help="processes whose memory is reported")
    return parser.parse_args()


def resident(pid):
    try:
        lines = open(f"/proc/{pid}/status").read().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:")), None)


def share(values, part):
    return round(1e3 * sorted(values)[min(len(values) - 1, int(part * len(values)))], 2) if values else None


class Api:
    def __init__(self, url, token):
        parts = urlsplit(url)
        self.host, self.port, self.token = parts.hostname, parts.port or 80, token

    async def open(self):
        return await asyncio.open_connection(self.host, self.port, limit=1 << 20)

    def head(self, method, path, length):
        return (
            f"{method} {path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nAuthorization: Bearer {self.token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
        ).encode()

    async def ask(self, method, path, body=None):
        """Status and body of a request on a connection of its own."""
        data = json.dumps(body).encode() if body is not None else b""
        reader, writer = await self.open()
        writer.write(self.head(method, path, len(data)) + data)
        answer = await reader.read(-1)
        writer.close()
        head, _, rest = answer.partition(b"\r\n\r\n")
        return int(head.split(b" ", 2)[1]), rest

    async def stream(self, seed, tokens):
        """When each token of a streamed answer came, why it ended, and what went wrong."""
        body = {"messages": PROMPT, "stream": True, "seed": seed, "temperature": 1, "max_tokens": tokens}
        data, came, ended = json.dumps(body).encode(), [], None
        reader, writer = await self.open()
        try:
            writer.write(self.head("POST", "/v1/chat/completions", len(data)) + data)
            status = int((await reader.readline()).split(b" ", 2)[1])
            if status != 200:
                return came, None, f"status {status}: {(await reader.read(-1)).partition(b'{')[2][:200]!r}"
            while line := await reader.readline():
                if not line.startswith(b"data: {"):
                    continue
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    return came, None, chunk["error"]["message"]
                choice = chunk["choices"][0]
                if choice["delta"].get("content"):
                    came.append(time.perf_counter())
                ended = choice["finish_reason"] or ended
        finally:
            writer.close()
        return came, ended, None if ended else "the stream ended before the answer"


async def honest(api):
    """The slowest and the usual of some honest requests, ms: a list, and an answer of one token."""
    times = {"list": [], "answer": []}
    for seed in range(HONEST):
        for name, ask in (
            ("list", ("GET", "/v1/models")),
            ("answer", ("POST", "/v1/completions", {"prompt": "Once", "max_tokens": 1, "seed": seed})),
        ):
            began = time.perf_counter()
            status, _ = await api.ask(*ask)
            assert status == 200, f"{name}: {status}"
            times[name].append(time.perf_counter() - began)
    return {f"{name}_{word}_ms": share(all_, part) for name, all_ in times.items() for word, part in (("p50", 0.5), ("max", 1))}


async def slow_client(api, opened):
    """Sends a header a few bytes at a time; opens the connection again when the server has had enough."""
    while True:
        reader, writer = await api.open()
        opened.append(1)
        try:
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: ")
            said = asyncio.ensure_future(reader.read(1))
            while not said.done():
                writer.write(b"x")
                await writer.drain()
                await asyncio.wait([said], timeout=SLOW_SECONDS)
            said.result()
        except ConnectionError:
            pass
        finally:
            writer.close()


async def main():
    args = arguments()
    api = Api(args.url, open(args.token_file).read().strip())
    memory = lambda: {str(pid): resident(pid) for pid in args.pid}
    report = {"before": {"memory_bytes": memory()}, "honest_alone": await honest(api)}
    if args.slow:
        opened = []
        slow = [asyncio.create_task(slow_client(api, opened)) for _ in range(args.slow)]
        while len(opened) < args.slow:
            await asyncio.sleep(0.05)
        report["honest_beside_slow"] = await honest(api)
        report["slow_connections"] = {"at_a_time": args.slow, "opened": len(opened), "memory_bytes": memory()}
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
    if args.streams:
        began = time.perf_counter()
        ask = lambda seed: asyncio.wait_for(api.stream(seed, args.tokens), args.timeout)
        streams = [asyncio.create_task(ask(seed)) for seed in range(args.streams)]
        highest = memory()
        while not all(stream.done() for stream in streams):
            await asyncio.sleep(0.25)
            highest = {pid: max(size or 0, highest[pid] or 0) for pid, size in memory().items()}
        ended = await asyncio.gather(*streams, return_exceptions=True)
        took = time.perf_counter() - began
        whole = [stream for stream in ended if not isinstance(stream, BaseException) and stream[2] is None]
        why = [repr(stream) if isinstance(stream, BaseException) else stream[2] for stream in ended]
        gaps = [after - before for came, _, _ in whole for before, after in zip(came, came[1:])]
        tokens, p50, p99 = sum(len(came) for came, _, _ in whole), share(gaps, 0.5), share(gaps, 0.99)
        report["streams"] = {
            "asked": args.streams, "whole": len(whole), "lost": args.streams - len(whole),
            "why": sorted({reason for reason in why if reason})[:5],
            "tokens": tokens, "tok_s": round(tokens / took, 1), "seconds": round(took, 1),
            "first_token_s": {"p50": share([c[0] - began for c, _, _ in whole if c], 0.5), "max": share([c[0] - began for c, _, _ in whole if c], 1)},
            "gap_ms": {"p50": p50, "p90": share(gaps, 0.9), "p99": p99, "max": share(gaps, 1), "p99_of_p50": round(p99 / p50, 2) if p50 else None},
            "memory_bytes_highest": highest,
        }
        report["streams"]["first_token_s"] = {k: v and round(v / 1e3, 2) for k, v in report["streams"]["first_token_s"].items()}
    report["after"] = {"memory_bytes": memory()}
    print(json.dumps(report, indent=1))


asyncio.run(main())
