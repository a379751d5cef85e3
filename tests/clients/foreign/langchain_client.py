"""langchain-openai, langchain-anthropic and langchain-ollama."""

from typing import Literal

import anthropic
import ollama
import openai
from common import LONG_STORY, MODEL, PATIENCE, SEED, STORY, TOKEN, URL, check, expect, main
from langchain_anthropic import ChatAnthropic
from langchain_core.exceptions import ContextOverflowError
from langchain_core.tools import tool
from langchain_ollama import ChatOllama, OllamaEmbeddings
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel

HEADERS = {"headers": {"Authorization": f"Bearer {TOKEN}"}, "timeout": PATIENCE}


class Thing(BaseModel):
    """Something in the story."""

    color: Literal["red", "green"]


@tool
def get_weather(city: Literal["Paris", "Rome"]) -> str:
    """The weather of a city."""
    return "rain in " + city


def openai_chat(tokens, model=MODEL):
    return ChatOpenAI(model=model, base_url=f"{URL}/v1", api_key=TOKEN, max_tokens=tokens, temperature=0, seed=SEED, stream_usage=True,
                      max_retries=0, timeout=PATIENCE)


def anthropic_chat(tokens, model=MODEL):
    return ChatAnthropic(model=model, base_url=URL, api_key=TOKEN, max_tokens=tokens, temperature=0, max_retries=0, timeout=PATIENCE)


def ollama_chat(tokens, model=MODEL):
    return ChatOllama(model=model, base_url=URL, num_predict=tokens, temperature=0, seed=SEED, client_kwargs=HEADERS)


def stream(prompt, tokens):
    return (part.text for part in openai_chat(tokens).stream(prompt))


def agree(chat, error):
    whole = chat(16).invoke(STORY)
    assert whole.text and whole.usage_metadata["output_tokens"] == 16, whole
    parts = list(chat(16).stream(STORY))
    assert "".join(part.text for part in parts) == whole.text, parts
    assert sum(part.usage_metadata["output_tokens"] for part in parts if part.usage_metadata) == 16, parts[-1]
    expect(error, lambda: chat(4, "no-such-model").invoke(STORY))


def calls(chat):
    reply = chat(60).bind_tools([get_weather], tool_choice="any").invoke(STORY)
    call = reply.tool_calls[0]
    assert call["name"] == "get_weather" and call["args"]["city"] in ("Paris", "Rome"), call
    assert chat(16).bind_tools([get_weather]).invoke([("user", STORY), reply, get_weather.invoke(call)]).text


@check
def langchain_openai():
    agree(openai_chat, openai.NotFoundError)
    calls(openai_chat)
    assert openai_chat(60).with_structured_output(Thing).invoke(STORY).color in ("red", "green")
    embeddings = OpenAIEmbeddings(model=MODEL, base_url=f"{URL}/v1", api_key=TOKEN, check_embedding_ctx_length=False)
    one, other = embeddings.embed_documents(["a fish", "the moon"])
    assert one != other


@check
def langchain_anthropic():
    agree(anthropic_chat, anthropic.NotFoundError)
    calls(anthropic_chat)
    assert anthropic_chat(60).with_structured_output(Thing).invoke(STORY).color in ("red", "green")


@check
def a_prompt_too_long_for_openai():
    expect(ContextOverflowError, lambda: openai_chat(4).invoke(LONG_STORY))


@check
def a_prompt_too_long_for_anthropic():
    expect(ContextOverflowError, lambda: anthropic_chat(4).invoke(LONG_STORY))


@check
def langchain_ollama():
    agree(ollama_chat, ollama.ResponseError)
    assert ollama_chat(60).with_structured_output(Thing).invoke(STORY).color in ("red", "green")
    one, other = OllamaEmbeddings(model=MODEL, base_url=URL, client_kwargs=HEADERS).embed_documents(["a fish", "the moon"])
    assert one != other


main("langchain", stream)
