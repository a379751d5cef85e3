"""anthropic: messages, streams, tools, counted tokens, errors."""

import anthropic
from common import LONG_STORY, MODEL, PATIENCE, STORY, TOKEN, URL, WEATHER, check, expect, main

client = anthropic.Anthropic(base_url=URL, api_key=TOKEN, max_retries=0, timeout=PATIENCE)
GREEDY = {"temperature": 0}
ASK = dict(model=MODEL, messages=[{"role": "user", "content": STORY}], extra_body=GREEDY)
TOOL = {"name": "get_weather", "description": "The weather of a city", "input_schema": WEATHER}


def stream(prompt, tokens):
    messages = [{"role": "user", "content": prompt}]
    with client.messages.stream(model=MODEL, messages=messages, max_tokens=tokens, extra_body=GREEDY) as parts:
        yield from parts.text_stream


@check
def messages():
    whole = client.messages.create(max_tokens=16, system="You tell stories.", **ASK)
    assert whole.content[0].type == "text" and whole.stop_reason == "max_tokens" and whole.usage.output_tokens == 16
    with client.messages.stream(max_tokens=16, system="You tell stories.", **ASK) as parts:
        text = "".join(parts.text_stream)
        final = parts.get_final_message()
    assert text == whole.content[0].text == final.content[0].text and final.usage.output_tokens == 16
    assert final.usage.input_tokens > 0 or final.usage.cache_read_input_tokens > 0


@check
def tools():
    ask = dict(max_tokens=60, tools=[TOOL], tool_choice={"type": "any"}, **ASK)
    reply = client.messages.create(**ask)
    use = next(block for block in reply.content if block.type == "tool_use")
    assert reply.stop_reason == "tool_use" and use.input["city"] in ("Paris", "Rome")
    with client.messages.stream(**ask) as parts:
        streamed = next(block for block in parts.get_final_message().content if block.type == "tool_use")
    assert streamed.input == use.input, streamed
    after = ASK["messages"] + [{"role": "assistant", "content": reply.content},
                               {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "rain"}]}]
    again = client.messages.create(**{**ask, "messages": after, "tool_choice": {"type": "none"}})
    assert again.content[0].type == "text", again


@check
def counted_tokens():
    assert client.messages.count_tokens(model=MODEL, messages=ASK["messages"]).input_tokens > 3


@check
def models():
    assert MODEL in [model.id for model in client.models.list()]
    model = client.models.retrieve(MODEL)
    assert model.type == "model" and model.display_name and model.created_at, model


@check
def errors():
    expect(anthropic.NotFoundError, lambda: client.messages.create(**{**ASK, "model": "no-such-model"}, max_tokens=4))
    expect(anthropic.BadRequestError, lambda: client.messages.create(**{**ASK, "extra_body": {"temperature": -1}}, max_tokens=4))
    long = [{"role": "user", "content": LONG_STORY}]
    expect(anthropic.BadRequestError, lambda: client.messages.create(model=MODEL, messages=long, max_tokens=4))
    expect(anthropic.AuthenticationError, lambda: client.with_options(api_key="wrong").messages.create(**ASK, max_tokens=4))


main("anthropic", stream)
