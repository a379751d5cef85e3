"""instructor: a form as a JSON schema, as a tool, and in parts."""

from typing import Literal

import instructor
import openai
from common import MODEL, PATIENCE, STORY, TOKEN, URL, check, expect, main
from instructor.core import InstructorRetryException
from pydantic import BaseModel

plain = openai.OpenAI(base_url=f"{URL}/v1", api_key=TOKEN, max_retries=0, timeout=PATIENCE)
ASK = dict(messages=[{"role": "user", "content": STORY}], temperature=0, max_tokens=80, max_retries=0)


class Thing(BaseModel):
    color: Literal["red", "green"]
    ripe: bool


@check
def a_json_schema():
    client = instructor.from_openai(plain, mode=instructor.Mode.JSON_SCHEMA)
    thing, raw = client.chat.completions.create_with_completion(model=MODEL, response_model=Thing, **ASK)
    assert thing.color in ("red", "green") and raw.usage.completion_tokens > 0
    last = None
    for last in client.chat.completions.create_partial(model=MODEL, response_model=Thing, **ASK):
        pass
    assert last.model_dump() == thing.model_dump(), (last, thing)


@check
def a_tool():
    client = instructor.from_openai(plain, mode=instructor.Mode.TOOLS)
    assert client.chat.completions.create(model=MODEL, response_model=Thing, **ASK).color in ("red", "green")


@check
def errors():
    client = instructor.from_openai(plain, mode=instructor.Mode.JSON_SCHEMA)
    errors = (openai.NotFoundError, InstructorRetryException)
    error = expect(errors, lambda: client.chat.completions.create(model="no-such-model", response_model=Thing, **ASK))
    assert "no-such-model" in str(error)


main("instructor")
