"""The Python package: the text of `shoal run`, cancellation, threads, errors, and stubs that tell the truth.

embed.py SHOAL [FOLDER]: SHOAL is the program that answers the same; the package lies in FOLDER, or is installed.
"""

import ast
import json
import pathlib
import signal
import subprocess
import sys
import threading

sys.path[:0] = sys.argv[2:]
import shoal  # noqa: E402

PROMPT = "Tell me a story about a fox and a lantern"


def raises(kind, part, work):
    try:
        work()
    except kind as error:
        assert part in str(error), error
        return
    raise AssertionError(f"no {kind.__name__}")


def the_same_text_as_run(model):
    for seed, temperature, most in [(0, 0.0, 48), (7, 0.9, 48), (3, 0.7, 400)]:
        words = ["--seed", str(seed), "--temperature", str(temperature), "-n", str(most), PROMPT]
        run = subprocess.run([sys.argv[1], "run", "--json", "--via", "local", *words], capture_output=True, check=True)
        answer = json.loads(run.stdout.splitlines()[-1])
        pieces = model.generate(PROMPT, seed=seed, temperature=temperature, max_tokens=most)
        assert "".join(pieces) == answer["text"], answer
        assert pieces.finish == answer["finish_reason"], pieces.finish
        assert list(pieces) == [], "it has ended"


def closing_cancels(model):
    with model.generate(PROMPT) as pieces:
        assert next(pieces) and pieces.finish is None
    assert pieces.finish == "cancelled" and list(pieces) == []
    dropped = model.generate(PROMPT)
    next(dropped)
    del dropped
    # The model is free again at once: nothing computes an answer without a reader.
    assert len(list(model.generate(PROMPT, max_tokens=4))) <= 4


def begun(model):
    """Two answers: the first has the turn and waits for its reader, so the second waits, and nothing but a signal comes."""
    held = model.generate(PROMPT)
    next(held)
    return held, model.generate(PROMPT)


def a_signal_ends_it(model):
    def interrupt(*_):
        raise KeyboardInterrupt

    held, waits = begun(model)
    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    raises(KeyboardInterrupt, "", lambda: next(waits))
    assert waits.finish == "cancelled", waits.finish
    assert len(list(held)) > 64, "it ended before its reader came, so nothing waited for it"


def others_run_meanwhile(model):
    held, waits = begun(model)
    closer = threading.Timer(0.1, held.close)
    closer.start()
    # Only another thread of Python can free the model.
    assert next(waits)
    closer.join()
    waits.close()


def what_is_wrong_is_said(model):
    raises(shoal.Error, "nosuch", lambda: shoal.load("nosuch/model.gguf"))
    raises(shoal.Error, "empty", lambda: next(model.generate("")))
    raises(shoal.Error, "temperature", lambda: next(model.generate("Hi", temperature=-1.0)))
    raises(OverflowError, "", lambda: model.generate("Hi", seed=-1))
    raises(UnicodeEncodeError, "surrogates", lambda: model.generate("\udc80"))
    raises(TypeError, "", lambda: model.generate(b"bytes"))
    raises(TypeError, "", lambda: model.generate("Hi", 5))
    assert issubclass(shoal.Error, Exception) and model.name == "minnow" and "minnow" in repr(model)


def stubs_name_what_is_there():
    stub = pathlib.Path(shoal.__file__).with_name("_shoal.pyi")
    named = {}
    for node in ast.parse(stub.read_text()).body:
        if isinstance(node, ast.AnnAssign):
            named[node.target.id] = set()
        elif isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            body = node.body if isinstance(node, ast.ClassDef) else []
            named[node.name] = {inner.name for inner in body if isinstance(inner, ast.FunctionDef)}
    assert set(named) == set(shoal.__all__), named
    for name, members in named.items():
        there = getattr(shoal, name)
        public = {member for member in vars(there) if not member.startswith("_")} if members else set()
        assert public <= members and all(hasattr(there, member) for member in members), (name, public, members)
    assert pathlib.Path(shoal.__file__).with_name("py.typed").is_file()


def main():
    model = shoal.load("minnow", threads=1)
    stubs_name_what_is_there()
    what_is_wrong_is_said(model)
    the_same_text_as_run(model)
    closing_cancels(model)
    a_signal_ends_it(model)
    others_run_meanwhile(model)
    print(f"shoal {shoal.__version__}: fine")


main()
