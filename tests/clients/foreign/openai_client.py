"""openai: chat, responses, completions, embeddings, tools, a pydantic form, errors."""

import json
from typing import Literal

import openai
import pydantic
from common import LONG_STORY, MODEL, PATIENCE, SEED, STORY, TOKEN, URL, WEATHER, check, expect, main

client = openai.OpenAI(base_url=f"{URL}/v1", api_key=TOKEN, max_retries=0, timeout=PATIENCE)
STORY_MESSAGES = [{"role": "user", "content": STORY}]


class Thing(pydantic.BaseModel):
    color: Literal["red", "green"]
    ripe: bool


def stream(prompt, tokens):
    messages = [{"role": "user", "content": prompt}]
    asked = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=tokens, temperature=0, seed=SEED, stream=True)
    return (chunk.choices[0].delta.content for chunk in asked if chunk.choices)


@check
def chat():
    ask = dict(model=MODEL, messages=STORY_MESSAGES, max_completion_tokens=16, temperature=0, seed=SEED)
    whole = client.chat.completions.create(**ask)
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    chunks = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content, (text, whole)
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens and chunks[-2].choices[0].finish_reason == "length"


@check
def responses():
    ask = dict(model=MODEL, input=STORY, max_output_tokens=16, temperature=0)
    whole = client.responses.create(**ask)
    assert whole.output_text and whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens
    events = list(client.responses.create(**ask, stream=True))
    text, final = "".join(event.delta for event in events if event.type == "response.output_text.delta"), events[-1].response
    assert text == final.output_text == whole.output_text and final.usage.output_tokens == whole.usage.output_tokens
    assert events[-1].type == "response.incomplete" and final.incomplete_details.reason == "max_output_tokens", events[-1]
    thing = client.responses.parse(model=MODEL, input=STORY, max_output_tokens=60, text_format=Thing).output_parsed
    assert thing.color in ("red", "green"), thing
    tool = {"type": "function", "name": "get_weather", "parameters": WEATHER, "strict": True}
    reply = client.responses.create(model=MODEL, input=STORY, max_output_tokens=60, tools=[tool], tool_choice="required")
    call = next(item for item in reply.output if item.type == "function_call")
    assert json.loads(call.arguments)["city"] in ("Paris", "Rome")
    after = [{"role": "user", "content": STORY}, call, {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}]
    assert client.responses.create(model=MODEL, input=after, max_output_tokens=16, tools=[tool], tool_choice="none").output_text


@check
def completions():
    assert client.completions.create(model=MODEL, prompt="Once", max_tokens=8, echo=True).choices[0].text.startswith("Once")
    text = "".join(chunk.choices[0].text for chunk in client.completions.create(model=MODEL, prompt="Once", max_tokens=8, stream=True))
    assert text


@check
def forms():
    thing = client.chat.completions.parse(model=MODEL, messages=STORY_MESSAGES, max_tokens=60, response_format=Thing).choices[0].message.parsed
    assert thing.color in ("red", "green"), thing
    # The client's own way of putting parts together.
    with client.chat.completions.stream(model=MODEL, messages=STORY_MESSAGES, max_tokens=60, response_format=Thing) as events:
        assert isinstance(events.get_final_completion().choices[0].message.parsed, Thing)


@check
def tools():
    tool = openai.pydantic_function_tool(Thing, name="pick")
    ask = dict(model=MODEL, messages=STORY_MESSAGES, max_tokens=60, tools=[tool], tool_choice="required")
    reply = client.chat.completions.parse(**ask).choices[0]
    call = reply.message.tool_calls[0]
    assert reply.finish_reason == "tool_calls" and isinstance(call.function.parsed_arguments, Thing)
    after = STORY_MESSAGES + [reply.message, {"role": "tool", "tool_call_id": call.id, "content": "picked"}]
    assert client.chat.completions.create(**{**ask, "messages": after, "tool_choice": "none"}).choices[0].message.content


@check
def embeddings():
    one, same, other = (item.embedding for item in client.embeddings.create(model=MODEL, input=["a fish", "a fish", "the moon"]).data)
    assert one == same != other


@check
def models():
    assert client.models.retrieve(MODEL).id in [model.id for model in client.models.list()]


@check
def errors():
    ask = dict(messages=STORY_MESSAGES, max_tokens=4)
    assert expect(openai.NotFoundError, lambda: client.chat.completions.create(model="no-such-model", **ask)).code == "model_not_found"
    expect(openai.BadRequestError, lambda: client.chat.completions.create(model=MODEL, temperature=-1, **ask))
    expect(openai.AuthenticationError, lambda: client.with_options(api_key="wrong").models.list())
    long = [{"role": "user", "content": LONG_STORY}]
    error = expect(openai.BadRequestError, lambda: client.chat.completions.create(model=MODEL, messages=long))
    assert error.code == "context_length_exceeded", error.code


main("openai", stream)
