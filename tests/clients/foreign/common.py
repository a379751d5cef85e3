"""What the scripts beside this one share: their arguments, and the ways in which they are run.

    SCRIPT URL TOKEN MODEL checks|streams|killed|paused FOLDER

`checks` runs what the script marks as a check. `streams` asks for 64 greedy answers at once and compares each with the same answer
asked for alone. `killed` asks for one answer alone and says so with FOLDER/NAME.ready; when FOLDER/go is there it streams the answer
again, and says FOLDER/NAME.begun with the first pieces; who started it kills a node then and makes FOLDER/killed, and the text must be
the same. `paused` is the same with what computes stopped for a while, and FOLDER/paused. Prints one line, `ok NAME: what` or `FAILED NAME: why`. A client that cannot stream says `-` for the last three.
"""

import asyncio
import inspect
import os
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

URL, TOKEN, MODEL, WAY = sys.argv[1:5]
FOLDER = Path(sys.argv[5])
STORY = "Tell me a story about a fox"
PROMPTS = [STORY, "Why is the sky blue?", "Name three animals", "What does an owl do at night?"]
PATIENCE, SEED = 300, 7
# Long enough that a node can be killed in the middle.
STREAMS, SHORT, LONG = 64, 12, 160
# Of a pause of 12 s, at least.
SILENCE = 10
WEATHER = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}}, "required": ["city"],
           "additionalProperties": False}
LONG_STORY = "word " * 20_000
CHECKS = []


def check(work):
    CHECKS.append(work)
    return work


def expect(error, work):
    """The error that a user of the client would catch."""
    try:
        work()
    except error as e:
        return e
    raise AssertionError(f"{error.__name__} expected")


def pieces(stream, prompt, tokens):
    """The pieces of an answer, whether the client gives them one by one or awaits them."""
    made = stream(prompt, tokens)
    if not inspect.isasyncgen(made):
        yield from filter(None, made)
        return
    loop = asyncio.new_event_loop()
    try:
        while True:
            try:
                piece = loop.run_until_complete(anext(made))
            except StopAsyncIteration:
                return
            if piece:
                yield piece
    finally:
        loop.run_until_complete(made.aclose())
        loop.close()


def checks():
    failed = []
    for work in CHECKS:
        try:
            work()
        except Exception as error:  # every check runs, whatever another one met
            failed.append(f"{work.__name__}: {why(error)}")
    assert not failed, "; ".join(failed)
    return ", ".join(work.__name__.replace("_", " ") for work in CHECKS)


def streams(stream):
    alone = ["".join(pieces(stream, prompt, SHORT)) for prompt in PROMPTS]
    assert all(alone), alone
    with ThreadPoolExecutor(STREAMS) as pool:
        asked = [pool.submit(lambda prompt: "".join(pieces(stream, prompt, SHORT)), PROMPTS[n % len(PROMPTS)]) for n in range(STREAMS)]
        failed = []
        for n, answer in enumerate(asked):
            try:
                assert answer.result() == alone[n % len(PROMPTS)], f"{answer.result()!r} is not {alone[n % len(PROMPTS)]!r}"
            except Exception as error:
                failed.append(why(error))
    assert not failed, f"{len(failed)} of {STREAMS}: {failed[0]}"
    return f"{STREAMS} streams at once, each as alone"


def disturbed(name, stream):
    alone = "".join(pieces(stream, STORY, LONG))
    assert alone
    (FOLDER / f"{name}.ready").touch()
    until(FOLDER / "go")
    said, came = [], []
    for piece in pieces(stream, STORY, LONG):
        came.append(time.time())
        said.append(piece)
        if len(said) == 2:
            (FOLDER / f"{name}.begun").touch()
    came.append(time.time())
    first, last = came[0], came[-1]
    assert "".join(said) == alone, f"{''.join(said)!r} is not {alone!r}"
    struck = (FOLDER / WAY).stat().st_mtime if (FOLDER / WAY).exists() else last
    assert first < struck < last, f"no node was {WAY} in the middle of the answer"
    longest = max(after - before for before, after in zip(came, came[1:]))
    assert WAY == "killed" or longest > SILENCE, f"no silence: at most {longest:.1f} s between two pieces"
    when = f"a node was {WAY} {struck - first:.1f} s after the first and {last - struck:.1f} s before the last"
    return f"the same {len(alone)} characters, {when}, at most {longest:.1f} s between two"


def until(path):
    started = time.time()
    while not path.exists():
        assert time.time() - started < PATIENCE, f"no {path.name}"
        time.sleep(0.02)


def why(error):
    if os.environ.get("SHOAL_FOREIGN_TRACE"):
        traceback.print_exception(error)
    return f"{type(error).__name__}: {' '.join(str(error).split())[:600]}"


def main(name, stream=None):
    """Runs what was asked for; `stream(prompt, tokens)` gives the pieces of a greedy answer, or awaits them."""
    try:
        if WAY == "checks":
            said = checks()
        elif stream is None:
            print(f"- {name}: it does not stream")
            sys.exit()
        else:
            said = streams(stream) if WAY == "streams" else disturbed(name, stream)
        print(f"ok {name}: {said}")
    except Exception as error:
        # Who waits for its first piece need not.
        for state in ("ready", "begun") if WAY in ("killed", "paused") else ():
            (FOLDER / f"{name}.{state}").touch()
        print(f"FAILED {name}: {why(error)}")
        sys.exit(1)
