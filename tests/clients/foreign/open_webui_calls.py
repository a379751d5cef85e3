"""The calls that Open WebUI makes, as plain HTTP: both of its connections, OpenAI's and Ollama's, and what it asks in the background."""

import json
import urllib.error
import urllib.request

from common import MODEL, PATIENCE, SEED, STORY, TOKEN, URL, check, main

HEADERS = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json", "X-OpenWebUI-User-Name": "Ada", "X-OpenWebUI-User-Role": "admin"}
MESSAGES = [{"role": "user", "content": STORY}]


def opened(path, body=None, headers=HEADERS):
    data = None if body is None else json.dumps(body).encode()
    return urllib.request.urlopen(urllib.request.Request(URL + path, data, headers), timeout=PATIENCE)


def asked(path, body=None, headers=HEADERS):
    with opened(path, body, headers) as reply:
        return json.load(reply)


def chunks(body):
    with opened("/v1/chat/completions", {**body, "stream": True, "stream_options": {"include_usage": True}}) as reply:
        assert reply.headers["Content-Type"].startswith("text/event-stream"), reply.headers
        lines = [line.decode().strip() for line in reply if line.strip()]
    assert lines[-1] == "data: [DONE]", lines[-1]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1] if line.startswith("data: ")]


def stream(prompt, tokens):
    body = {"model": MODEL, "messages": [{"role": "user", "content": prompt}], "max_tokens": tokens, "temperature": 0, "seed": SEED, "stream": True}
    with opened("/v1/chat/completions", body) as reply:
        for line in reply:
            if line.startswith(b"data: {"):
                chunk = json.loads(line[6:])
                assert "error" not in chunk, chunk
                if chunk["choices"]:
                    yield chunk["choices"][0]["delta"].get("content")


@check
def models():
    assert MODEL in [model["id"] for model in asked("/v1/models")["data"]]
    tags = asked("/api/tags")["models"]
    # It sorts and joins the lists of several servers by these.
    assert all(tag["name"] and tag["model"] and tag["details"] and "size" in tag and "digest" in tag for tag in tags), tags
    assert asked("/api/version")["version"] and "models" in asked("/api/ps")
    assert asked("/api/show", {"name": MODEL})["details"]


@check
def chat():
    body = {"model": MODEL, "messages": MESSAGES, "temperature": 0, "max_tokens": 16, "seed": SEED}
    whole, parts = asked("/v1/chat/completions", {**body, "stream": False}), chunks(body)
    text = "".join(part["choices"][0]["delta"].get("content") or "" for part in parts if part["choices"])
    assert text == whole["choices"][0]["message"]["content"], text
    assert parts[-1]["usage"]["completion_tokens"] == 16 and parts[-1]["choices"] == [], parts[-1]


@check
def ollama_chat():
    body = {"model": f"{MODEL}:latest", "messages": MESSAGES, "stream": True, "options": {"num_predict": 16, "temperature": 0}, "keep_alive": "5m"}
    with opened("/api/chat", body) as reply:
        lines = [json.loads(line) for line in reply]
    assert lines[-1]["done"] and lines[-1]["eval_count"] == 16 and "".join(line["message"]["content"] for line in lines), lines


@check
def background_tasks():
    # Titles, tags and follow-ups are asked for so.
    body = {"model": MODEL, "messages": MESSAGES, "stream": False, "max_completion_tokens": 16}
    assert asked("/v1/chat/completions", body)["choices"][0]["message"]["content"]


@check
def embeddings():
    vectors = [item["embedding"] for item in asked("/v1/embeddings", {"input": ["a fish", "the moon"], "model": MODEL})["data"]]
    assert vectors[0] != vectors[1] and isinstance(vectors[0][0], float)
    assert len(asked("/api/embed", {"input": ["a fish", "the moon"], "model": MODEL, "truncate": True})["embeddings"]) == 2


@check
def errors():
    for path in ("/v1/models", "/api/tags"):
        try:
            asked(path, headers={"Authorization": "Bearer wrong"})
            raise AssertionError("401 expected")
        except urllib.error.HTTPError as error:
            assert error.code == 401 and json.load(error)["error"], error


main("open-webui", stream)
