//! What coding agents send, in the shapes they send it in: all of it is answered, and what of it has no effect is said.
//!
//! Each file below `agents/` is a request: `path`, `headers`, `body` with the model `MODEL`, and in `left_out` the parts that
//! the header `x-shoal-left-out` must list.

mod fake;
mod http;

use std::{collections::BTreeMap, path::PathBuf};

use api::inference::{Format, Prompt};
use fake::Fake;
use http::{Api, Reply};
use serde_json::{Value, json};

const LEFT_OUT: &str = "x-shoal-left-out";

struct Recorded {
    name: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Value,
    left_out: Option<String>,
}

/// Every file, in the order of names.
fn recorded() -> Vec<Recorded> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/agents");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let read = |file: PathBuf| {
        let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
        let mut all: Value = serde_json::from_slice(&std::fs::read(&file).unwrap())
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let header = |(name, value): (&String, &Value)| (name.clone(), value.as_str().unwrap().to_owned());
        let headers = all["headers"].as_object().unwrap().iter().map(header).collect();
        let mut body = all["body"].take();
        assert_eq!(body["model"], "MODEL", "{name}");
        body["model"] = "fake-7b".into();
        let left = all["left_out"].as_array();
        let left = left.map(|left| left.iter().map(|part| part.as_str().unwrap()).collect::<Vec<_>>());
        let path = all["path"].as_str().unwrap().to_owned();
        Recorded { name, path, headers, body, left_out: left.map(|left| left.join(", ")) }
    };
    files.into_iter().map(read).collect()
}

impl Recorded {
    async fn post(&self, api: &Api, body: &Value) -> Reply {
        let headers: Vec<(&str, &str)> =
            self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        api.post_with(&self.path, body, &headers).await
    }
}

/// A stream of whichever family is whole: it begins, every part of it ends, and so does the stream.
fn check_stream(name: &str, path: &str, reply: &Reply) {
    assert_eq!(reply.header("content-type"), Some("text/event-stream; charset=utf-8"), "{name}");
    let events = reply.events();
    let of = |kind: &str| events.iter().filter(|event| event["type"] == kind).count();
    let first = &events[0];
    let last = events.last().unwrap();
    assert!(events.iter().all(|event| event["error"].is_null() && event["type"] != "error"), "{name}");
    if path.starts_with("/v1/messages") {
        assert_eq!(
            (&first["type"], &last["type"]),
            (&json!("message_start"), &json!("message_stop")),
            "{name}"
        );
        let mut open = None;
        let mut next = 0;
        for event in &events {
            match event["type"].as_str().unwrap() {
                "content_block_start" => {
                    assert_eq!((open.replace(next), &event["index"]), (None, &json!(next)), "{name}");
                    next += 1;
                }
                "content_block_delta" => assert_eq!(json!(open), event["index"], "{name}"),
                "content_block_stop" => assert_eq!(json!(open.take()), event["index"], "{name}"),
                "message_delta" => assert!(event["delta"]["stop_reason"].is_string(), "{name}: {event}"),
                _ => {}
            }
        }
        assert!(next > 0 && open.is_none() && of("message_delta") == 1, "{name}");
    } else if path.starts_with("/v1/responses") {
        assert_eq!(first["type"], "response.created", "{name}");
        assert_eq!(last["type"], "response.completed", "{name}");
        let numbers: Vec<u64> = events.iter().map(|e| e["sequence_number"].as_u64().unwrap()).collect();
        assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>(), "{name}");
        let items = last["response"]["output"].as_array().unwrap();
        assert_eq!(of("response.output_item.added"), items.len(), "{name}");
        let done = events.iter().filter(|event| event["type"] == "response.output_item.done");
        assert_eq!(done.map(|event| event["item"].clone()).collect::<Vec<_>>(), *items, "{name}");
    } else {
        assert!(reply.text().ends_with("data: [DONE]\n\n"), "{name}");
        assert!(events.iter().all(|event| event["object"] == "chat.completion.chunk"), "{name}");
        let ends = events.iter().filter(|event| event["choices"][0]["finish_reason"].is_string());
        assert_eq!(ends.count(), 1, "{name}");
    }
}

#[tokio::test]
async fn every_recorded_request_is_answered() {
    let api = http::start(Fake::quick()).await;
    let all = recorded();
    assert!(all.len() >= 12, "{}", all.len());
    for request in all {
        let name = &request.name;
        *api.fake.last.lock().unwrap() = None;
        let reply = request.post(&api, &request.body).await;
        assert_eq!(reply.status, 200, "{name}: {}", reply.text());
        assert_eq!(reply.header(LEFT_OUT), request.left_out.as_deref(), "{name}");
        let counts = request.path.contains("count_tokens");
        if counts {
            assert_eq!(reply.json(), json!({"input_tokens": 7}));
            continue;
        }
        // Each tool is told to the model or listed.
        let sent = ["tools", "functions"].map(|field| request.body[field].as_array().map_or(0, Vec::len));
        let Prompt::Messages { messages, tools, .. } = api.fake.last.lock().unwrap().clone().unwrap().prompt
        else {
            panic!("{name}: no messages")
        };
        let told = tools.as_ref().and_then(Value::as_array).map_or(0, Vec::len);
        let listed = request.left_out.iter().flat_map(|left| left.split(", "));
        let listed = listed.filter(|part| part.starts_with("tools.") && !part.ends_with(".format")).count();
        assert_eq!(told + listed, sent[0] + sent[1], "{name}");
        // Turns alternate: templates insist on it. Results of tools and several system messages stand together.
        let roles: Vec<&str> =
            messages.as_array().unwrap().iter().map(|message| message["role"].as_str().unwrap()).collect();
        assert!(roles.windows(2).all(|two| two != ["assistant", "assistant"]), "{name}: {roles:?}");
        if request.body["stream"] == true {
            check_stream(name, &request.path, &reply);
            // The same in one piece.
            let mut body = request.body.clone();
            body["stream"] = false.into();
            body.as_object_mut().unwrap().remove("stream_options");
            let whole = request.post(&api, &body).await;
            assert_eq!((whole.status, whole.header(LEFT_OUT)), (200, request.left_out.as_deref()), "{name}");
            whole.json();
        } else {
            reply.json();
        }
    }
}

/// What the model was told last.
fn told(api: &Api) -> (Value, BTreeMap<String, Value>) {
    let Prompt::Messages { messages, tools, .. } = api.fake.last.lock().unwrap().clone().unwrap().prompt
    else {
        panic!("no messages")
    };
    let tools = tools.unwrap_or_default();
    let function =
        |tool: &Value| (tool["function"]["name"].as_str().unwrap().to_owned(), tool["function"].clone());
    (messages, tools.as_array().into_iter().flatten().map(function).collect())
}

async fn scripted(name: &str, arguments: &Value) -> Api {
    let fake = Fake::quick();
    let call = json!({"name": name, "arguments": arguments});
    *fake.script.lock().unwrap() = Some(format!("<tool_call>{call}</tool_call>"));
    http::start(fake).await
}

fn extended(base: Value, more: Value) -> Value {
    let (Value::Object(mut all), Value::Object(more)) = (base, more) else { panic!("no objects") };
    all.extend(more);
    Value::Object(all)
}

#[tokio::test]
async fn a_custom_tool_is_called_with_its_text() {
    let patch = "*** Begin Patch\n+a \"b\"\n*** End Patch";
    let api = scripted("apply_patch", &json!({"input": patch})).await;
    let format = json!({"type": "grammar", "syntax": "lark", "definition": "start: /x/"});
    let tool = json!({"type": "custom", "name": "apply_patch", "description": "Edits.", "format": format});
    let ask = |stream: bool| json!({"input": "?", "tools": [tool], "stream": stream});
    let reply = api.post("/v1/responses", &ask(false)).await;
    assert_eq!(reply.header(LEFT_OUT), Some("tools.apply_patch.format"));
    let item = reply.json()["output"][0].clone();
    assert_eq!(
        (&item["type"], &item["name"], &item["input"], &item["status"]),
        (&json!("custom_tool_call"), &json!("apply_patch"), &json!(patch), &json!("completed"))
    );
    let (_, tools) = told(&api);
    let description = tools["apply_patch"]["description"].as_str().unwrap();
    assert!(description.contains("start: /x/"), "{description}");
    assert_eq!(tools["apply_patch"]["parameters"]["required"], json!(["input"]));

    let reply = api.post("/v1/responses", &ask(true)).await;
    check_stream("custom", "/v1/responses", &reply);
    let events = reply.events();
    let of =
        |kind: &str| events.iter().find(|event| event["type"] == kind).unwrap_or_else(|| panic!("{kind}"));
    assert_eq!(of("response.output_item.added")["item"]["input"], "");
    assert_eq!(of("response.custom_tool_call_input.delta")["delta"], patch);
    assert_eq!(of("response.custom_tool_call_input.done")["input"], patch);
    assert_eq!(of("response.output_item.done")["item"]["type"], "custom_tool_call");
    // The call and its result are history.
    let items = json!([
        {"role": "user", "content": "?"}, item,
        {"type": "custom_tool_call_output", "call_id": item["call_id"], "output": "done"},
    ]);
    assert_eq!(api.post("/v1/responses", &json!({"input": items, "tools": [tool]})).await.status, 200);
    let (messages, _) = told(&api);
    assert_eq!(messages[1]["tool_calls"][0]["function"]["arguments"], json!({"input": patch}));
    assert_eq!(messages[2], json!({"role": "tool", "content": "done", "tool_call_id": item["call_id"]}));
    // Cut, it holds the text so far.
    let body = extended(ask(false), json!({"max_output_tokens": 5}));
    let cut = api.post("/v1/responses", &body).await.json()["output"][0].clone();
    let text = cut["input"].as_str().unwrap();
    assert!(patch.starts_with(text) && !text.is_empty() && cut["status"] == "incomplete", "{cut}");
}

#[tokio::test]
async fn the_local_shell_is_called_with_a_command() {
    let api = scripted("local_shell", &json!({"command": ["bash", "-lc", "ls"], "timeout_ms": 500})).await;
    let ask = |stream: bool| json!({"input": "?", "tools": [{"type": "local_shell"}], "stream": stream});
    let reply = api.post("/v1/responses", &ask(false)).await;
    assert_eq!(reply.header(LEFT_OUT), None);
    let item = reply.json()["output"][0].clone();
    assert_eq!(item["type"], "local_shell_call");
    assert_eq!(
        (&item["action"]["type"], &item["action"]["command"], &item["action"]["timeout_ms"]),
        (&json!("exec"), &json!(["bash", "-lc", "ls"]), &json!(500))
    );
    check_stream("local shell", "/v1/responses", &api.post("/v1/responses", &ask(true)).await);
    let forced = extended(ask(false), json!({"tool_choice": {"type": "local_shell"}}));
    assert_eq!(api.post("/v1/responses", &forced).await.status, 200);
    let items = json!([{"role": "user", "content": "?"}, item, {"type": "local_shell_call_output", "id": item["call_id"], "output": "a"}]);
    assert_eq!(api.post("/v1/responses", &extended(ask(false), json!({"input": items}))).await.status, 200);
    let (messages, _) = told(&api);
    assert_eq!(
        messages[1]["tool_calls"][0]["function"]["arguments"]["command"],
        json!(["bash", "-lc", "ls"])
    );
    assert_eq!(messages[2]["tool_call_id"], item["call_id"]);
}

#[tokio::test]
async fn a_function_of_a_namespace_is_called_by_both_names() {
    let api = scripted("mcp__tracker.find", &json!({"query": "a"})).await;
    let function =
        json!({"type": "function", "name": "find", "strict": false, "parameters": {"type": "object"}});
    let tool =
        json!({"type": "namespace", "name": "mcp__tracker", "description": "Issues.", "tools": [function]});
    let ask = |stream: bool| json!({"input": "?", "tools": [tool], "stream": stream});
    let reply = api.post("/v1/responses", &ask(false)).await;
    assert_eq!((reply.status, reply.header(LEFT_OUT)), (200, None), "{}", reply.text());
    let item = reply.json()["output"][0].clone();
    assert_eq!(
        (&item["type"], &item["namespace"], &item["name"]),
        (&json!("function_call"), &json!("mcp__tracker"), &json!("find"))
    );
    let reply = api.post("/v1/responses", &ask(true)).await;
    check_stream("namespace", "/v1/responses", &reply);
    let done =
        reply.events().into_iter().find(|e| e["type"] == "response.function_call_arguments.done").unwrap();
    assert_eq!((&done["name"], &done["arguments"]), (&json!("find"), &json!("{\"query\":\"a\"}")));
    assert_eq!(told(&api).1["mcp__tracker.find"]["description"], "Issues.");
    let items = json!([{"role": "user", "content": "?"}, item]);
    assert_eq!(api.post("/v1/responses", &extended(ask(false), json!({"input": items}))).await.status, 200);
    assert_eq!(told(&api).0[1]["tool_calls"][0]["function"]["name"], "mcp__tracker.find");
    let long = json!({"type": "namespace", "name": "x".repeat(64), "tools": [function]});
    let reply = api.post("/v1/responses", &json!({"input": "?", "tools": [long]})).await;
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("tools[0].tools[0].name")));
}

#[tokio::test]
async fn tools_with_known_schemas_are_functions() {
    let api = scripted("bash", &json!({"command": "ls"})).await;
    let tools = json!([
        {"type": "bash_20250124", "name": "bash"},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
    ]);
    let messages = json!([{"role": "user", "content": "?"}]);
    let ask = json!({"max_tokens": 50, "messages": messages, "tools": tools});
    let reply = api.post("/v1/messages", &ask).await;
    assert_eq!((reply.status, reply.header(LEFT_OUT)), (200, None), "{}", reply.text());
    let block = &reply.json()["content"][0];
    assert_eq!((&block["name"], &block["input"]), (&json!("bash"), &json!({"command": "ls"})));
    let (_, functions) = told(&api);
    let editor = &functions["str_replace_based_edit_tool"]["parameters"];
    assert_eq!(editor["required"], json!(["command", "path"]));
    assert!(editor["properties"]["insert_text"].is_object());
    let forced = extended(ask, json!({"tool_choice": {"type": "tool", "name": "bash"}}));
    assert_eq!(api.post("/v1/messages", &forced).await.status, 200);
}

#[tokio::test]
async fn a_demand_for_what_is_left_out_is_refused() {
    let api = http::start(Fake::quick()).await;
    let user = json!([{"role": "user", "content": "?"}]);
    let search = json!([{"type": "web_search_20250305", "name": "web_search"}]);
    for choice in [json!({"type": "tool", "name": "web_search"}), json!({"type": "any"})] {
        let ask = json!({"max_tokens": 5, "messages": user, "tools": search, "tool_choice": choice});
        let reply = api.post("/v1/messages", &ask).await;
        assert_eq!(reply.status, 400, "{choice}");
        assert!(reply.text().contains("leaves out"), "{}", reply.text());
    }
    let search = json!([{"type": "web_search"}]);
    for choice in [json!({"type": "web_search"}), json!("required")] {
        let reply =
            api.post("/v1/responses", &json!({"input": "?", "tools": search, "tool_choice": choice})).await;
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("tool_choice")), "{choice}");
        assert!(reply.text().contains("leaves out"), "{}", reply.text());
    }
    for (path, tool) in [
        ("/v1/responses", json!({"type": "time_travel"})),
        (
            "/v1/responses",
            json!({"type": "custom", "name": "f", "format": {"type": "grammar", "syntax": "x"}}),
        ),
        ("/v1/messages", json!({"type": "time_travel_20250305", "name": "f"})),
        ("/v1/messages", json!({"type": "bash_20250124"})),
        ("/v1/chat/completions", json!({"type": "web_search"})),
    ] {
        let ask = json!({"input": "?", "messages": user, "tools": [tool]});
        let ask = if path == "/v1/messages" { extended(ask, json!({"max_tokens": 5})) } else { ask };
        assert_eq!(api.post(path, &ask).await.status, 400, "{path} {tool}");
    }
}

#[tokio::test]
async fn the_older_functions_are_called_in_the_older_form() {
    let api = scripted("read_file", &json!({"path": "a.txt"})).await;
    let functions = json!([{"name": "read_file", "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}}]);
    let history = json!([
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": null, "function_call": {"name": "read_file", "arguments": "{\"path\":\"b\"}"}},
        {"role": "function", "name": "read_file", "content": "hello"},
    ]);
    let ask = |stream: bool| json!({"messages": history, "functions": functions, "stream": stream});
    let reply = api.post("/v1/chat/completions", &ask(false)).await.json();
    let choice = &reply["choices"][0];
    assert_eq!(choice["finish_reason"], "function_call", "{reply}");
    let arguments = r#"{"path":"a.txt"}"#;
    assert_eq!(choice["message"]["function_call"], json!({"name": "read_file", "arguments": arguments}));
    assert!(choice["message"].get("tool_calls").is_none());
    let (messages, _) = told(&api);
    let id = &messages[1]["tool_calls"][0]["id"];
    assert_eq!(
        (id, &messages[2]["tool_call_id"], &messages[2]["role"]),
        (&json!("000000001"), id, &json!("tool"))
    );

    let reply = api.post("/v1/chat/completions", &ask(true)).await;
    check_stream("functions", "/v1/chat/completions", &reply);
    let events = reply.events();
    let deltas: Vec<&Value> =
        events.iter().filter_map(|event| event.pointer("/choices/0/delta/function_call")).collect();
    assert_eq!(deltas[0]["name"], "read_file");
    let pieces: String = deltas.iter().map(|delta| delta["arguments"].as_str().unwrap()).collect();
    assert_eq!(pieces, arguments);
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "function_call");

    // The script is an answer to whatever is asked; a demand shows in the form.
    let forced = extended(ask(false), json!({"function_call": {"name": "read_file"}}));
    assert_eq!(api.post("/v1/chat/completions", &forced).await.status, 200);
    assert!(matches!(api.fake.last.lock().unwrap().as_ref().unwrap().format, Format::JsonSchema(_)));
    for (more, param) in [
        (json!({"function_call": {"name": "other"}}), "function_call"),
        (json!({"function_call": "sometimes"}), "function_call"),
        (json!({"functions": [], "function_call": {"name": "read_file"}}), "function_call"),
        (json!({"tools": [{"type": "function", "function": functions[0]}]}), "functions"),
        (json!({"functions": [{"name": "../x"}]}), "functions[0].name"),
    ] {
        let reply = api.post("/v1/chat/completions", &extended(ask(false), more.clone())).await;
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!(param)), "{more}");
    }
}

#[tokio::test]
async fn verbosity_is_a_sentence_or_is_left_out() {
    let api = http::start(Fake::quick()).await;
    let user = json!({"role": "user", "content": "?"});
    let system = json!({"role": "system", "content": "Be kind."});
    for (messages, word, says, left) in [
        (json!([system, user]), "low", "Be kind.\n\nKeep your answers short.", None),
        (json!([system, user]), "medium", "Be kind.", None),
        (json!([user]), "medium", "?", None),
        (json!([user]), "high", "?", Some("verbosity")),
    ] {
        let reply = api.post("/v1/chat/completions", &json!({"messages": messages, "verbosity": word})).await;
        assert_eq!((reply.status, reply.header(LEFT_OUT)), (200, left), "{messages} {word}");
        assert_eq!(told(&api).0[0]["content"], says);
    }
    let ask = |word: &str| json!({"input": "?", "instructions": "Be kind.", "text": {"verbosity": word}});
    assert_eq!(api.post("/v1/responses", &ask("high")).await.status, 200);
    assert_eq!(told(&api).0[0]["content"], "Be kind.\n\nAnswer at length and in detail.");
    let reply = api.post("/v1/responses", &ask("loud")).await;
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("text.verbosity")));
}

/// An image within the request is left out; nothing is fetched, so one elsewhere is refused but in results of tools.
#[tokio::test]
async fn images_are_left_out_and_never_fetched() {
    let api = http::start(Fake::quick()).await;
    let note = "[image left out: this model reads text]";
    let chat = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
    let responses = |url: &str| json!({"type": "input_image", "image_url": url});
    let here =
        json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}});
    let there = json!({"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}});
    let (data, url) = ("data:image/png;base64,AAAA", "https://example.org/a.png");
    let ask = |path: &str, part: &Value| {
        let turn = json!([{"role": "user", "content": [part]}]);
        match path {
            "/v1/responses" => json!({"input": turn}),
            _ => json!({"messages": turn, "max_tokens": 50}),
        }
    };
    for (path, part, status) in [
        ("/v1/chat/completions", chat(data), 200),
        ("/v1/chat/completions", chat(url), 400),
        ("/v1/chat/completions", json!({"type": "image_url"}), 400),
        ("/v1/responses", responses(data), 200),
        ("/v1/responses", responses(url), 400),
        ("/v1/responses", json!({"type": "input_image", "file_id": "file_0"}), 400),
        ("/v1/messages", here.clone(), 200),
        ("/v1/messages", there.clone(), 400),
        ("/v1/messages", json!({"type": "image", "source": {"type": "base64"}}), 400),
        ("/v1/messages", json!({"type": "document", "source": {"type": "base64", "data": "AAAA"}}), 400),
    ] {
        let reply = api.post(path, &ask(path, &part)).await;
        assert_eq!(reply.status, status, "{path} {part}: {}", reply.text());
        if status == 200 {
            assert_eq!((reply.header(LEFT_OUT), &told(&api).0[0]["content"]), (Some("images"), &json!(note)));
        }
    }
    let text = json!({"type": "text", "text": "a "});
    let pdf = json!({"type": "document", "source": {"type": "base64", "data": "AAAA"}});
    let notes =
        json!({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "b"}});
    for (parts, says, left) in [
        (json!([text, here]), format!("a {note}"), Some("images")),
        (json!([there]), note.to_owned(), Some("images")),
        (json!([pdf]), "[document left out: this model reads text]".to_owned(), Some("documents")),
        (json!([text, notes, {"type": "tool_reference", "tool_name": "f"}]), "a bf".to_owned(), None),
    ] {
        let result = json!({"type": "tool_result", "tool_use_id": "1", "content": parts});
        let ask = json!({"max_tokens": 50, "messages": [{"role": "user", "content": [result]}]});
        let reply = api.post("/v1/messages", &ask).await;
        assert_eq!((reply.status, reply.header(LEFT_OUT)), (200, left), "{parts}: {}", reply.text());
        assert_eq!(told(&api).0[0], json!({"role": "tool", "tool_call_id": "1", "content": says}));
    }
}

#[tokio::test]
async fn a_format_of_messages_binds_the_answer() {
    let api = http::start(Fake::quick()).await;
    let schema = json!({"type": "object", "properties": {"title": {"type": "string"}}});
    let format = json!({"type": "json_schema", "schema": schema});
    let base = json!({"max_tokens": 50, "messages": [{"role": "user", "content": "?"}]});
    for more in [json!({"output_config": {"format": format}}), json!({"output_format": format})] {
        assert_eq!(api.post("/v1/messages", &extended(base.clone(), more)).await.status, 200);
        let last = api.fake.last.lock().unwrap().take().unwrap();
        let Format::JsonSchema(asked) = last.format else { panic!("{:?}", last.format) };
        assert_eq!(asked["properties"], schema["properties"]);
    }
    let tool = json!({"name": "f", "input_schema": schema});
    let more = json!({"output_format": format, "tools": [tool], "tool_choice": {"type": "any"}});
    assert_eq!(api.post("/v1/messages", &extended(base, more)).await.status, 400);
}
