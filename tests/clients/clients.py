"""The official Python clients of OpenAI, Anthropic and Ollama against a running `shoal serve`.

    clients.py URL TOKEN_FILE [OTHER_URL TOKEN_FILE]

With another server, which computes the same model in another way, both must give the same answers byte for byte. Prints one line per check and a summary; exits 0 when all pass, 77 when a package is missing. The model may be the
smallest there is: checks look at shapes, at determinism and at forms that are forced, never at wisdom.
"""

import json
import sys

try:
    import anthropic
    import ollama
    import openai
except ImportError as missing:
    print(f"skipped: {missing}; pip install -r tests/clients/requirements.txt")
    sys.exit(77)

URL, TOKEN = sys.argv[1], open(sys.argv[2]).read().strip()
STORY = [{"role": "user", "content": "Tell me a story about a fox"}]
SCHEMA = {
    "type": "object",
    "properties": {"color": {"enum": ["red", "green"]}, "count": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["color", "count"],
    "additionalProperties": False,
}
WEATHER = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"],
           "additionalProperties": False}

oai = openai.OpenAI(base_url=f"{URL}/v1", api_key=TOKEN, max_retries=0, timeout=120)
ant = anthropic.Anthropic(base_url=URL, api_key=TOKEN, max_retries=0, timeout=120)
oll = ollama.Client(host=URL, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=120)
# Only the first of two servers is one of a swarm.
SWARM = len(sys.argv) > 4
MODEL = oai.models.list().data[0].id
CHECKS = []


def check(work):
    CHECKS.append(work)
    return work


@check
def openai_chat_and_stream_agree():
    ask = dict(model=MODEL, messages=STORY, max_tokens=24, seed=7, temperature=0.8)
    whole = oai.chat.completions.create(**ask)
    assert whole.choices[0].message.content and whole.choices[0].finish_reason in ("length", "stop")
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    chunks = list(oai.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content, (text, whole.choices[0].message.content)
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


@check
def openai_headers_say_who_computed():
    raw = oai.chat.completions.with_raw_response.create(model=MODEL, messages=STORY, max_tokens=3)
    for name in ("mode", "verify", "route", "computed-by", "actual-tok-s"):
        assert f"x-shoal-{name}" in raw.headers, name


@check
def openai_choices_and_stop():
    reply = oai.chat.completions.create(model=MODEL, messages=STORY, max_tokens=12, n=2, seed=1, temperature=1)
    assert [choice.index for choice in reply.choices] == [0, 1]
    whole = oai.chat.completions.create(model=MODEL, messages=STORY, max_tokens=24).choices[0].message.content
    word = whole.split()[2]
    stopped = oai.chat.completions.create(model=MODEL, messages=STORY, max_tokens=24, stop=[word])
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.choices[0].message.content == whole[: whole.index(word)]


@check
def openai_logprobs():
    reply = oai.chat.completions.create(model=MODEL, messages=STORY, max_tokens=5, logprobs=True, top_logprobs=3)
    tokens = reply.choices[0].logprobs.content
    assert len(tokens) == 5 and all(len(t.top_logprobs) == 3 for t in tokens)
    assert all(t.logprob <= 0 and t.token == t.top_logprobs[0].token for t in tokens)
    spelled = b"".join(bytes(t.bytes) for t in tokens).decode()
    assert spelled.strip() == reply.choices[0].message.content.strip()


@check
def openai_json_schema_and_object():
    form = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA, "strict": True}}
    reply = oai.chat.completions.create(model=MODEL, messages=STORY, max_tokens=60, response_format=form)
    thing = json.loads(reply.choices[0].message.content)
    assert thing["color"] in ("red", "green") and 0 <= thing["count"] <= 9
    form = {"type": "regex", "regex": "[a-c]{3,5}!"}
    reply = oai.chat.completions.create(model=MODEL, messages=STORY, max_tokens=20, extra_body={"response_format": form})
    text = reply.choices[0].message.content
    assert text.endswith("!") and set(text[:-1]) <= set("abc"), text


@check
def openai_tools():
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}}
    ask = dict(model=MODEL, messages=STORY, max_tokens=60, tools=[tool], tool_choice="required", seed=3)
    message = oai.chat.completions.create(**ask).choices[0]
    assert message.finish_reason == "tool_calls"
    call = message.message.tool_calls[0]
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")
    streamed = [c.choices[0].delta.tool_calls for c in oai.chat.completions.create(**ask, stream=True)]
    pieces = [calls[0] for calls in streamed if calls]
    assert pieces[0].id and pieces[0].function.name == "get_weather" and len(pieces) > 2
    assert "".join(piece.function.arguments for piece in pieces) == call.function.arguments
    # The client's own way of putting pieces together.
    with oai.chat.completions.stream(**ask) as stream:
        whole = stream.get_final_completion().choices[0].message.tool_calls[0].function
    assert (whole.name, whole.arguments) == (call.function.name, call.function.arguments)
    # An answer that is cut is a call all the same.
    cut = oai.chat.completions.create(**{**ask, "max_tokens": 8}).choices[0]
    assert cut.finish_reason == "length" and not cut.message.content


@check
def openai_completions_responses_models():
    reply = oai.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=8, echo=True)
    assert reply.choices[0].text.startswith("Once upon a time")
    reply = oai.responses.create(model=MODEL, input="Tell me a story", max_output_tokens=8)
    assert reply.output_text and reply.usage.output_tokens <= 8
    events = list(oai.responses.create(model=MODEL, input="Tell me a story", max_output_tokens=8, stream=True))
    assert events[0].type == "response.created"
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == reply.output_text
    assert oai.models.retrieve(MODEL).id == MODEL


@check
def a_prompt_is_scored_as_harnesses_ask_or_why_not():
    ask = dict(model=MODEL, prompt=[[5, 9, 300, 12], [5, 9, 300]], max_tokens=1, echo=True, logprobs=1, temperature=0)
    try:
        reply = oai.completions.create(**ask)
    except openai.BadRequestError as e:
        assert SWARM and e.param == "echo" and "shoal serve --via local" in e.body["message"], e
        return
    one, other = (choice.logprobs for choice in reply.choices)
    assert len(one.tokens) == 5 and len(other.tokens) == 4 and one.token_logprobs[0] is None
    assert all(p <= 0 for p in one.token_logprobs[1:]) and one.token_logprobs[1:3] == other.token_logprobs[1:3]
    assert max(one.top_logprobs[1].values()) >= one.token_logprobs[1]
    assert one.text_offset[0] == 0 and reply.choices[0].text.startswith(one.tokens[0])


@check
def openai_errors():
    for body, error in (
        (dict(messages=STORY, model="no-such-model"), openai.NotFoundError),
        (dict(messages=STORY, model=MODEL, temperature=-1), openai.BadRequestError),
        (dict(messages=[{"role": "user", "content": "word " * 20_000}], model=MODEL), openai.BadRequestError),
    ):
        try:
            oai.chat.completions.create(**body, max_tokens=4)
            raise AssertionError(f"{error.__name__} expected")
        except error as e:
            assert e.body["message"] and e.type == "invalid_request_error"
    try:
        openai.OpenAI(base_url=f"{URL}/v1", api_key="wrong", max_retries=0).models.list()
        raise AssertionError("AuthenticationError expected")
    except openai.AuthenticationError:
        pass


@check
def what_this_node_alone_cannot_do_is_refused():
    # The node of the swarm has only the ends of the model.
    ask = dict(model=MODEL, messages=STORY, max_tokens=2, extra_body={"mode": "local"})
    try:
        oai.chat.completions.create(**ask)
        assert not SWARM
    except openai.BadRequestError as e:
        assert SWARM and e.param == "mode" and "layers" in e.body["message"], e


@check
def embeddings_or_why_not():
    # The client asks for base64 by itself.
    try:
        reply = oai.embeddings.create(model=MODEL, input=["a fish", "a fish", "the moon"])
    except openai.BadRequestError as e:
        assert SWARM and e.param == "model" and "shoal serve --via local" in e.body["message"], e
        return
    one, same, other = (item.embedding for item in reply.data)
    assert one == same != other and abs(sum(x * x for x in one) - 1) < 1e-4
    assert reply.usage.prompt_tokens == reply.usage.total_tokens > 3
    floats = oai.embeddings.create(model=MODEL, input="a fish", encoding_format="float").data[0].embedding
    assert max(abs(a - b) for a, b in zip(one, floats)) < 1e-6
    vectors = oll.embed(model=MODEL, input=["a fish", "the moon"]).embeddings
    assert len(vectors) == 2 and max(abs(a - b) for a, b in zip(one, vectors[0])) < 1e-6


@check
def anthropic_messages():
    ask = dict(model=MODEL, messages=STORY, max_tokens=12, extra_body={"seed": 5, "temperature": 0.7})
    reply = ant.messages.create(**ask)
    assert reply.content[0].type == "text" and reply.stop_reason in ("max_tokens", "end_turn")
    with ant.messages.stream(**ask) as stream:
        assert "".join(stream.text_stream) == reply.content[0].text
        assert stream.get_final_message().usage.output_tokens == reply.usage.output_tokens
    tool = {"name": "get_weather", "input_schema": WEATHER}
    reply = ant.messages.create(
        model=MODEL, messages=STORY, max_tokens=60, tools=[tool], tool_choice={"type": "tool", "name": "get_weather"})
    use = next(block for block in reply.content if block.type == "tool_use")
    with ant.messages.stream(
            model=MODEL, messages=STORY, max_tokens=60, tools=[tool], tool_choice={"type": "tool", "name": "get_weather"}) as stream:
        streamed = next(block for block in stream.get_final_message().content if block.type == "tool_use")
    assert streamed.input["city"] in ("Paris", "Rome"), streamed
    counted = ant.messages.count_tokens(model=MODEL, messages=STORY).input_tokens
    used = ant.messages.create(model=MODEL, messages=STORY, max_tokens=1).usage
    assert counted == used.input_tokens + used.cache_read_input_tokens, (counted, used)
    assert use.input["city"] in ("Paris", "Rome") and reply.stop_reason == "tool_use"
    try:
        ant.messages.create(model="no-such-model", messages=STORY, max_tokens=4)
        raise AssertionError("NotFoundError expected")
    except anthropic.NotFoundError as e:
        assert e.body["error"]["type"] == "not_found_error"


@check
def ollama_generate_chat_and_more():
    options = {"num_predict": 12, "seed": 5, "temperature": 0.7}
    reply = oll.chat(model=MODEL, messages=STORY, options=options)
    assert reply.message.content and reply.done and reply.eval_count <= 12
    streamed = list(oll.chat(model=MODEL, messages=STORY, options=options, stream=True))
    assert "".join(part.message.content for part in streamed) == reply.message.content
    assert oll.generate(model=MODEL, prompt="Once", options=options, raw=True).response
    reply = oll.chat(model=MODEL, messages=STORY, format=SCHEMA, options={"num_predict": 60})
    assert json.loads(reply.message.content)["color"] in ("red", "green")
    names = [model.model for model in oll.list().models]
    assert f"{MODEL}:latest" in names and oll.show(MODEL).details.family
    assert oll.pull(MODEL).status == "success"
    try:
        oll.pull("no-such-model")
        raise AssertionError("ResponseError expected")
    except ollama.ResponseError as e:
        assert "shoal model pull no-such-model" in e.error
    try:
        oll.chat(model="no-such-model", messages=STORY)
        raise AssertionError("ResponseError expected")
    except ollama.ResponseError as e:
        assert e.status_code == 404


CHOICES = {"temperature": 0.9, "top_p": 0.95, "top_k": 40, "min_p": 0.02, "seed": 11}
PENALTIES = {"presence_penalty": 0.5, "frequency_penalty": 0.3, "repetition_penalty": 1.1, "logit_bias": {"42": 3, "7": -100}}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}}
SAME = [
    ("/v1/chat/completions", dict(messages=STORY, max_tokens=40)),
    ("/v1/chat/completions", dict(messages=STORY, max_tokens=30, logprobs=True, top_logprobs=4, n=3, **CHOICES, **PENALTIES)),
    ("/v1/chat/completions", dict(messages=STORY, max_tokens=400, stop=["\n", "lantern", "."], **CHOICES)),
    ("/v1/chat/completions", dict(messages=STORY, **CHOICES)),
    ("/v1/chat/completions", dict(messages=STORY, max_tokens=60, logprobs=True, **CHOICES,
        response_format={"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA}})),
    ("/v1/chat/completions", dict(messages=STORY, max_tokens=50, response_format={"type": "json_object"}, **CHOICES)),
    ("/v1/chat/completions", dict(messages=STORY, max_tokens=30, response_format={"type": "regex", "regex": "[a-c]{3,9}!"}, **CHOICES)),
    ("/v1/chat/completions", dict(messages=STORY, max_tokens=30, seed=4, response_format={
        "type": "grammar", "grammar": 'start: ("red" | "green") " " /[0-9]{2}/'})),
    ("/v1/chat/completions", dict(messages=STORY, max_tokens=60, tools=[TOOL], tool_choice="required", seed=3)),
    ("/v1/chat/completions", dict(messages=STORY, max_tokens=24, stream=True, stream_options={"include_usage": True}, **CHOICES)),
    ("/v1/completions", dict(prompt="Once upon a time <|im_end|>", max_tokens=16, logprobs=2, **CHOICES)),
    ("/v1/completions", dict(prompt=["Once upon a time", "The fox"], max_tokens=16, echo=True, **CHOICES)),
    ("/v1/completions", dict(prompt=[5, 9, 300, 12], max_tokens=16, **CHOICES)),
    ("/v1/responses", dict(input="Tell me a story", max_output_tokens=20, **CHOICES)),
    ("/v1/messages", dict(messages=STORY, max_tokens=20, seed=5, temperature=0.7)),
    ("/v1/messages", dict(messages=STORY, max_tokens=20, seed=5, stream=True)),
    ("/api/chat", dict(messages=STORY, format=SCHEMA, stream=False, options={"num_predict": 60, "seed": 2, "temperature": 1})),
    ("/api/generate", dict(prompt="Once", raw=True, options={"num_predict": 20, "seed": 2, "temperature": 0.5})),
    # What is wrong is wrong in the same words.
    ("/v1/chat/completions", dict(messages=STORY, logit_bias={"99999999": 1})),
    ("/v1/chat/completions", dict(messages=STORY, response_format={"type": "regex", "regex": "["})),
    ("/v1/chat/completions", dict(messages=STORY, temperature=-1)),
    ("/v1/chat/completions", dict(messages=[{"role": "user", "content": "word " * 20_000}], max_tokens=4)),
]
# Names, times, who computed and what was still in a cache differ from answer to answer.
OTHERWISE = {"id", "created", "created_at", "completed_at", "shoal", "item_id", "call_id", "prompt_tokens_details", "input_tokens_details",
             "input_tokens", "cache_read_input_tokens", "prompt_eval_count", "total_duration", "load_duration", "prompt_eval_duration", "eval_duration"}


def plain(value):
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items() if key not in OTHERWISE}
    return [plain(inner) for inner in value] if isinstance(value, list) else value


def said(url, token, path, body):
    with httpx.Client(timeout=120) as client:
        reply = client.post(url + path, json=body, headers={"Authorization": f"Bearer {token}"})
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines()]
    return reply.status_code, [plain(json.loads(line)) for line in lines if line.startswith("{")]


if len(sys.argv) > 4:
    import httpx  # comes with all three clients

    OTHER_URL, OTHER_TOKEN = sys.argv[3], open(sys.argv[4]).read().strip()

    @check
    def both_servers_give_the_same_answers():
        for path, body in SAME:
            ours, theirs = said(URL, TOKEN, path, body), said(OTHER_URL, OTHER_TOKEN, path, body)
            assert ours == theirs, f"{path} {body}: {ours} != {theirs}"
            assert ours[1], f"{path} {body}: nothing came"


failed = 0
for work in CHECKS:
    try:
        work()
        print(f"ok      {work.__name__}")
    except Exception as error:  # every check runs, whatever another one met
        failed += 1
        print(f"FAILED  {work.__name__}: {type(error).__name__}: {error}")
print(f"{len(CHECKS) - failed} passed, {failed} failed")
sys.exit(1 if failed else 0)
