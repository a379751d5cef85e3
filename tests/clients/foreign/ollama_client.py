"""ollama: chat, generate, forms, tools, vectors, the list, errors."""

import json

import ollama
from common import MODEL, PATIENCE, SEED, STORY, TOKEN, URL, WEATHER, check, expect, main

client = ollama.Client(host=URL, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=PATIENCE)
MESSAGES = [{"role": "user", "content": STORY}]


def options(tokens):
    return {"num_predict": tokens, "temperature": 0, "seed": SEED}


def stream(prompt, tokens):
    messages = [{"role": "user", "content": prompt}]
    return (part.message.content for part in client.chat(model=MODEL, messages=messages, options=options(tokens), stream=True))


@check
def chat():
    whole = client.chat(model=MODEL, messages=MESSAGES, options=options(16))
    parts = list(client.chat(model=MODEL, messages=MESSAGES, options=options(16), stream=True))
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert parts[-1].done and parts[-1].eval_count == whole.eval_count == 16 and whole.done_reason == "length"


@check
def generate():
    whole = client.generate(model=MODEL, prompt=STORY, options=options(16))
    parts = client.generate(model=MODEL, prompt=STORY, options=options(16), stream=True)
    assert "".join(part.response for part in parts) == whole.response and whole.response


@check
def forms():
    assert json.loads(client.chat(model=MODEL, messages=MESSAGES, format=WEATHER, options=options(60)).message.content)["city"]
    json.loads(client.generate(model=MODEL, prompt=STORY, format=WEATHER, options=options(60)).response)


@check
def tools():
    def get_weather(city: str) -> str:
        """The weather of a city.

        Args:
            city: its name
        """
        return "rain in " + city

    # This API has no word that forces a call: that the tool is read is what can be seen of any model.
    reply = client.chat(model=MODEL, messages=MESSAGES, tools=[get_weather], options=options(16))
    assert reply.message.content or reply.message.tool_calls
    call = {"function": {"name": "get_weather", "arguments": {"city": "Rome"}}}
    after = MESSAGES + [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_name": "get_weather", "content": "rain"}]
    assert client.chat(model=MODEL, messages=after, tools=[get_weather], options=options(16)).message.content


@check
def vectors():
    one, other = client.embed(model=MODEL, input=["a fish", "the moon"]).embeddings
    assert len(one) == len(other) and one != other
    assert len(client.embeddings(model=MODEL, prompt="a fish").embedding) == len(one)


@check
def models():
    assert f"{MODEL}:latest" in [model.model for model in client.list().models]
    assert client.show(MODEL).details.family and client.ps() is not None


@check
def errors():
    error = expect(ollama.ResponseError, lambda: client.chat(model="no-such-model", messages=MESSAGES))
    assert error.status_code == 404
    assert expect(ollama.ResponseError, ollama.Client(host=URL).list).status_code == 401


main("ollama", stream)
