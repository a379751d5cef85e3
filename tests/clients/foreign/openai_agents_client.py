"""openai-agents: an agent with one function tool, by chat completions and by responses."""

from typing import Literal

import openai
from agents import (Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, ToolCallItem, function_tool,
                    set_tracing_disabled)
from common import MODEL, PATIENCE, STORY, TOKEN, URL, check, expect, main

set_tracing_disabled(True)
CALLED = []


@function_tool
def get_weather(city: Literal["Paris", "Rome"]) -> str:
    """The weather of a city."""
    CALLED.append(city)
    return "rain in " + city


def agent(tokens, kind, model=MODEL, **more):
    # A client belongs to the loop that first used it.
    client = openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key=TOKEN, max_retries=0, timeout=PATIENCE)
    settings = ModelSettings(max_tokens=tokens, temperature=0, include_usage=True, **({"tool_choice": "required"} if more else {}))
    said = "Answer in one short sentence." if more.get("tools") else "You tell stories."
    return Agent(name="Teller", instructions=said, model=kind(model, client), model_settings=settings, **more)


async def stream(prompt, tokens):
    async for event in Runner.run_streamed(agent(tokens, OpenAIChatCompletionsModel), prompt).stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            yield event.data.delta


def runs(kind):
    CALLED.clear()
    # The client takes an answer that is cut for an error, so the model must end by itself.
    result = Runner.run_sync(agent(600, kind, tools=[get_weather]), "What is the weather in Paris?", max_turns=3)
    assert CALLED and CALLED[0] in ("Paris", "Rome") and isinstance(result.new_items[0], ToolCallItem), result.new_items
    assert result.final_output and result.context_wrapper.usage.output_tokens > 0, result
    expect(openai.NotFoundError, lambda: Runner.run_sync(agent(4, kind, model="no-such-model"), STORY))


@check
def chat_completions_with_a_tool():
    runs(OpenAIChatCompletionsModel)


@check
def responses_with_a_tool():
    runs(OpenAIResponsesModel)


main("openai-agents", stream)
