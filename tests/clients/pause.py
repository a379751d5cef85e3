"""The official Python clients against a server that pauses in the middle of an answer.

    pause.py URL TOKEN MODEL [SAID CONTINUED]

SAID is what the server answers to messages, CONTINUED how it continues a text; where they are not given, the server is asked for them
first. Says `ready`, begins when a line comes on standard input, and says `begun` when every stream has its first piece: who
started it may make the server pause then. All streams run at the same time, so the pause is paid once. Prints one line per check: the
text, and that some piece came 10 s or more after the one before it. Exits 0 when all pass, 77 when a package is missing.
"""

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

try:
    import anthropic
    import ollama
    import openai
except ImportError as missing:
    print(f"skipped: {missing}; pip install -r tests/clients/requirements.txt")
    sys.exit(77)

URL, TOKEN, MODEL = sys.argv[1:4]
MESSAGES = [{"role": "user", "content": "Tell me a story"}]
TOKENS, PATIENCE = 64, 120

oai = openai.OpenAI(base_url=f"{URL}/v1", api_key=TOKEN, max_retries=0, timeout=PATIENCE)
ant = anthropic.Anthropic(base_url=URL, api_key=TOKEN, max_retries=0, timeout=PATIENCE)
oll = ollama.Client(host=URL, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=PATIENCE)
chat = {"model": MODEL, "messages": MESSAGES, "max_tokens": TOKENS, "temperature": 0}
text = {"model": MODEL, "prompt": "?", "max_tokens": TOKENS, "temperature": 0}


def openai_chat():
    return (chunk.choices[0].delta.content for chunk in oai.chat.completions.create(stream=True, **chat) if chunk.choices)


def openai_completions():
    return (chunk.choices[0].text for chunk in oai.completions.create(stream=True, **text) if chunk.choices)


def openai_responses():
    stream = oai.responses.create(model=MODEL, input=MESSAGES, stream=True, max_output_tokens=TOKENS, temperature=0)
    return (event.delta for event in stream if event.type == "response.output_text.delta")


def anthropic_messages():
    # This client has no word for the temperature.
    with ant.messages.stream(model=MODEL, messages=MESSAGES, max_tokens=TOKENS, extra_body={"temperature": 0}) as stream:
        yield from stream.text_stream


def ollama_chat():
    options = {"num_predict": TOKENS, "temperature": 0}
    return (part.message.content for part in oll.chat(model=MODEL, messages=MESSAGES, stream=True, options=options))


WORKS = [openai_chat, openai_completions, openai_responses, anthropic_messages, ollama_chat]
begun = threading.Barrier(len(WORKS), action=lambda: print("begun", flush=True))


def read(work):
    """The whole text, and the longest time between two pieces, s."""
    try:
        return pieces(work)
    except Exception:
        # The others need not wait for its first piece.
        begun.abort()
        raise


def pieces(work):
    said, last, longest = [], None, 0
    for piece in filter(None, work()):
        now = time.monotonic()
        if last is None:
            # What comes meanwhile waits in the socket.
            begun.wait(PATIENCE)
            now = time.monotonic()
        longest = max(longest, now - (last or now))
        last = now
        said.append(piece)
    return "".join(said), longest


if len(sys.argv) > 4:
    SAID, CONTINUED = sys.argv[4:6]
else:
    SAID = oai.chat.completions.create(**chat).choices[0].message.content
    CONTINUED = oai.completions.create(**text).choices[0].text
print("ready", flush=True)
sys.stdin.readline()
failed = 0
with ThreadPoolExecutor(len(WORKS)) as pool:
    for work, answer in [(work, pool.submit(read, work)) for work in WORKS]:
        try:
            said, longest = answer.result()
            assert said == (CONTINUED if work is openai_completions else SAID), repr(said)
            assert longest >= 10, f"the longest pause was {longest:.1f} s"
            print(f"ok      {work.__name__}: {longest:.1f} s")
        except Exception as error:
            failed += 1
            print(f"FAILED  {work.__name__}: {type(error).__name__}: {error}")
sys.exit(1 if failed else 0)
