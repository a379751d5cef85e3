"""llama-index: OpenAILike and Ollama."""

import json

import ollama
import openai
from common import MODEL, PATIENCE, SEED, STORY, TOKEN, URL, check, expect, main
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.ollama import Ollama
from llama_index.llms.openai_like import OpenAILike


def openai_like(tokens, model=MODEL):
    return OpenAILike(model=model, api_base=f"{URL}/v1", api_key=TOKEN, is_chat_model=True, is_function_calling_model=True, max_tokens=tokens,
                      temperature=0, additional_kwargs={"seed": SEED}, max_retries=0, timeout=PATIENCE, context_window=1024)


def ollama_of(tokens, model=MODEL):
    client = ollama.Client(host=URL, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=PATIENCE)
    return Ollama(model=model, client=client, temperature=0, context_window=1024, additional_kwargs={"num_predict": tokens, "seed": SEED})


def get_weather(city: str) -> str:
    """The weather of a city."""
    return "rain in " + city


def stream(prompt, tokens):
    return (part.delta for part in openai_like(tokens).stream_chat([ChatMessage(role="user", content=prompt)]))


def agree(llm, error):
    messages = [ChatMessage(role="user", content=STORY)]
    whole = llm(16).chat(messages)
    assert whole.message.content, whole
    assert "".join(part.delta or "" for part in llm(16).stream_chat(messages)) == whole.message.content
    assert llm(16).complete(STORY).text
    expect(error, lambda: llm(4, "no-such-model").chat(messages))
    return whole


@check
def openai_like_chat():
    whole = agree(openai_like, openai.NotFoundError)
    assert whole.raw.usage.completion_tokens == 16
    tool = FunctionTool.from_defaults(get_weather)
    reply = openai_like(60).chat_with_tools([tool], user_msg=STORY, tool_required=True)
    call = openai_like(60).get_tool_calls_from_response(reply)[0]
    assert call.tool_name == "get_weather" and isinstance(call.tool_kwargs["city"], str), json.dumps(call.tool_kwargs)


@check
def ollama_chat():
    whole = agree(ollama_of, ollama.ResponseError)
    assert whole.raw["usage"]["completion_tokens"] == 16, whole.raw


main("llama-index", stream)
