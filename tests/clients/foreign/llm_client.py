"""llm: the command with a model of its settings, a schema and a tool, and its library for streams."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from common import MODEL, PATIENCE, SEED, STORY, TOKEN, URL, WEATHER, check, main

HOME = tempfile.TemporaryDirectory()
os.environ["LLM_USER_PATH"] = HOME.name
Path(HOME.name, "keys.json").write_text(json.dumps({"here": TOKEN}))
# JSON is YAML, too.
Path(HOME.name, "extra-openai-models.yaml").write_text(json.dumps([
    {"model_id": "here", "model_name": MODEL, "api_base": f"{URL}/v1", "api_key_name": "here", "supports_schema": True, "supports_tools": True},
    {"model_id": "nowhere", "model_name": "no-such-model", "api_base": f"{URL}/v1", "api_key_name": "here"},
]))

import llm  # noqa: E402, which reads its settings first


def command(*args):
    return subprocess.run([Path(sys.executable).with_name("llm"), *args], capture_output=True, text=True, timeout=PATIENCE)


def stream(prompt, tokens):
    return llm.get_model("here").prompt(prompt, max_tokens=tokens, temperature=0, seed=SEED)


@check
def prompt():
    asked = ["-m", "here", "-o", "temperature", "0", "-o", "max_tokens", "16", STORY]
    streamed, whole = command(*asked, "--usage"), command(*asked, "--no-stream")
    assert streamed.returncode == 0 and streamed.stdout.strip() == whole.stdout.strip() != "", (streamed, whole)
    assert "16 output" in streamed.stderr, streamed.stderr


@check
def schema():
    said = command("-m", "here", "--schema", json.dumps(WEATHER), "-o", "max_tokens", "60", STORY)
    assert said.returncode == 0 and json.loads(said.stdout)["city"] in ("Paris", "Rome"), said


@check
def tool():
    # No option forces a call: that the tool is read is what can be seen of any model.
    said = command("-m", "here", "--functions", 'def get_weather(city: str) -> str:\n    "The weather"\n    return "rain"\n',
                   "-o", "max_tokens", "16", "-o", "temperature", "0", STORY)
    assert said.returncode == 0 and said.stdout.strip(), said


@check
def errors():
    said = command("-m", "nowhere", STORY)
    assert said.returncode != 0 and "no-such-model" in said.stderr and "Traceback" not in said.stderr, said


main("llm", stream)
