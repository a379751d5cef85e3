"""aider: one message about a file, as a script gives it. What comes of it depends on the model; that it was answered does not."""

import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

from common import MODEL, PATIENCE, TOKEN, URL, check, main


def aider(folder, model):
    # The smallest prompt that aider has, and an answer that ends.
    settings = [{"name": f"openai/{model}", "edit_format": "whole", "use_repo_map": False, "extra_params": {"max_tokens": 40}}]
    sizes = {f"openai/{model}": {"max_input_tokens": 4096, "max_output_tokens": 1024, "litellm_provider": "openai", "mode": "chat"}}
    Path(folder, "settings.yml").write_text(json.dumps(settings))
    Path(folder, "sizes.json").write_text(json.dumps(sizes))
    Path(folder, "hello.py").write_text('print("hello")\n')
    flags = ["--yes-always", "--no-git", "--no-check-update", "--no-show-release-notes", "--analytics-disable", "--no-pretty", "--no-detect-urls",
             "--no-auto-lint", "--map-tokens", "0", "--llm-history-file", "history.txt", "--model-settings-file", "settings.yml",
             "--model-metadata-file", "sizes.json"]
    command = [Path(sys.executable).with_name("aider"), *flags, "--model", f"openai/{model}", "--message", "Say goodbye", "hello.py"]
    variables = {**os.environ, "HOME": folder, "OPENAI_API_BASE": f"{URL}/v1", "OPENAI_API_KEY": TOKEN, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL)


def context():
    request = urllib.request.Request(f"{URL}/v1/models/{MODEL}", headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as reply:
        return json.load(reply)["shoal"]["context"]


@check
def a_message_about_a_file():
    with tempfile.TemporaryDirectory() as folder:
        said = aider(folder, MODEL)
        # Its prompt has 1,400 tokens; what does not fit it tells in words of its own.
        if context() < 2048:
            assert "has hit a token limit" in said.stdout, (said.stdout + said.stderr)[-600:]
            return
        sent = re.search(r"Tokens: ([\d.]+k?) sent, (\d+) received", said.stdout)
        assert sent and int(sent[2]) > 0, (said.stdout + said.stderr)[-600:]
        answered = Path(folder, "history.txt").read_text().partition("LLM RESPONSE")[2]
        assert "ASSISTANT" in answered, answered


@check
def errors():
    with tempfile.TemporaryDirectory() as folder:
        said = aider(folder, "no-such-model").stdout
        assert "NotFoundError" in said, said[-600:]


main("aider")
