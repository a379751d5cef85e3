"""litellm: the dialects of OpenAI, Anthropic and Ollama."""

import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it looks for another one on the network

import litellm  # noqa: E402
from common import LONG_STORY, MODEL, PATIENCE, SEED, STORY, TOKEN, URL, WEATHER, check, expect, main

litellm.suppress_debug_info = True
litellm.telemetry = False
MESSAGES = [{"role": "user", "content": STORY}]
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "The weather of a city", "parameters": WEATHER}}
OPENAI = dict(model=f"openai/{MODEL}", api_base=f"{URL}/v1", seed=SEED)
ANTHROPIC = dict(model=f"anthropic/{MODEL}", api_base=URL)
OLLAMA_CHAT = dict(model=f"ollama_chat/{MODEL}", api_base=URL, seed=SEED)
OLLAMA = dict(model=f"ollama/{MODEL}", api_base=URL, seed=SEED)


def asked(dialect, **more):
    return litellm.completion(**{"messages": MESSAGES, "max_tokens": 16, "temperature": 0, "api_key": TOKEN, "timeout": PATIENCE,
                                 "max_retries": 0, **dialect, **more})


def text(parts):
    return "".join(part.choices[0].delta.content or "" for part in parts if part.choices)


def stream(prompt, tokens):
    parts = asked(OPENAI, messages=[{"role": "user", "content": prompt}], max_tokens=tokens, stream=True)
    return (part.choices[0].delta.content for part in parts if part.choices)


def agree(dialect):
    whole = asked(dialect)
    assert whole.choices[0].message.content and whole.usage.completion_tokens == 16, whole
    # Of Ollama's generate it reads no reason.
    assert whole.choices[0].finish_reason == "length" or dialect is OLLAMA, whole
    parts = list(asked(dialect, stream=True, stream_options={"include_usage": True}))
    assert text(parts) == whole.choices[0].message.content, (text(parts), whole)
    assert any(getattr(part, "usage", None) and part.usage.completion_tokens == 16 for part in parts), parts[-1]
    expect(litellm.NotFoundError, lambda: asked({**dialect, "model": dialect["model"].split("/")[0] + "/no-such-model"}))


def calls(dialect):
    call = asked(dialect, max_tokens=60, tools=[TOOL], tool_choice="required").choices[0].message.tool_calls[0]
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome"), call


def too_long(dialect):
    # With this one it asks another model, where its user named one.
    expect(litellm.ContextWindowExceededError, lambda: asked(dialect, messages=[{"role": "user", "content": LONG_STORY}]))


@check
def openai_dialect():
    agree(OPENAI)
    calls(OPENAI)
    vectors = litellm.embedding(input=["a fish", "the moon"], api_key=TOKEN, model=f"openai/{MODEL}", api_base=f"{URL}/v1").data
    assert vectors[0]["embedding"] != vectors[1]["embedding"]


@check
def anthropic_dialect():
    agree(ANTHROPIC)
    calls(ANTHROPIC)


@check
def a_prompt_too_long_for_openai():
    too_long(OPENAI)


@check
def a_prompt_too_long_for_anthropic():
    too_long(ANTHROPIC)


@check
def ollama_chat_dialect():
    agree(OLLAMA_CHAT)


@check
def ollama_dialect():
    agree(OLLAMA)


main("litellm", stream)
