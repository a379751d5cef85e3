"""The official Python clients against a server that pauses in the middle of an answer.

    pause.py URL TOKEN SAID CONTINUED

SAID is what the server answers to messages, CONTINUED how it continues a text. All streams run at the same time, so the pause is paid once. Prints one line per check; exits 0 when all pass, 77 when a
package is missing.
"""

import sys
from concurrent.futures import ThreadPoolExecutor

try:
    import anthropic
    import ollama
    import openai
except ImportError as missing:
    print(f"skipped: {missing}; pip install -r tests/clients/requirements.txt")
    sys.exit(77)

URL, TOKEN, SAID, CONTINUED = sys.argv[1:5]
MODEL, MESSAGES = "fake-7b", [{"role": "user", "content": "?"}]

oai = openai.OpenAI(base_url=f"{URL}/v1", api_key=TOKEN, max_retries=0, timeout=120)
ant = anthropic.Anthropic(base_url=URL, api_key=TOKEN, max_retries=0, timeout=120)
oll = ollama.Client(host=URL, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=120)


def openai_chat():
    stream = oai.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def openai_completions():
    stream = oai.completions.create(model=MODEL, prompt="?", stream=True, max_tokens=99)
    return "".join(chunk.choices[0].text for chunk in stream if chunk.choices)


def openai_responses():
    stream = oai.responses.create(model=MODEL, input="?", stream=True)
    return "".join(event.delta for event in stream if event.type == "response.output_text.delta")


def anthropic_messages():
    with ant.messages.stream(model=MODEL, messages=MESSAGES, max_tokens=99) as stream:
        return "".join(stream.text_stream)


def ollama_chat():
    return "".join(part.message.content for part in oll.chat(model=MODEL, messages=MESSAGES, stream=True))


failed = 0
works = [openai_chat, openai_completions, openai_responses, anthropic_messages, ollama_chat]
with ThreadPoolExecutor(len(works)) as pool:
    for work, answer in [(work, pool.submit(work)) for work in works]:
        try:
            text = answer.result()
            assert text == (CONTINUED if work is openai_completions else SAID), repr(text)
            print(f"ok      {work.__name__}")
        except Exception as error:
            failed += 1
            print(f"FAILED  {work.__name__}: {type(error).__name__}: {error}")
sys.exit(1 if failed else 0)
