//! Calls of tools and schemas: whole, in pieces, and cut.

mod fake;
mod http;

use fake::Fake;
use serde_json::{Value, json};

fn user(text: &str) -> Value {
    json!([{"role": "user", "content": text}])
}

fn weather() -> Value {
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    json!({"name": "get_weather", "description": "Weather", "parameters": schema})
}

/// The pieces of a streamed call, put together as clients do it.
fn joined(calls: &[Value]) -> String {
    calls.iter().map(|call| call["function"]["arguments"].as_str().unwrap()).collect()
}

/// Whatever field a schema comes in by, its bytes are bounded before it is closed.
#[tokio::test]
async fn schemas_of_too_many_bytes_are_refused_by_every_field() {
    let api = http::start(Fake::quick()).await;
    let schema = |bytes: usize| {
        let member = |at: usize| (format!("p{at}"), json!({"$ref": "#/$defs/b", "minLength": 0}));
        let members: serde_json::Map<String, Value> = (0..1_000).map(member).collect();
        json!({"type": "object", "properties": members, "$defs": {"b": {"const": "x".repeat(bytes)}}})
    };
    let format =
        |schema: Value| json!({"type": "json_schema", "json_schema": {"name": "s", "schema": schema}});
    let tool = |schema: Value| json!([{"type": "function", "function": {"name": "f", "parameters": schema}}]);
    let bodies = |bytes: usize| {
        let schema = schema(bytes);
        [
            (
                "/v1/chat/completions",
                json!({"messages": user("?"), "response_format": format(schema.clone())}),
            ),
            ("/v1/chat/completions", json!({"messages": user("?"), "tools": tool(schema.clone())})),
            (
                "/v1/chat/completions",
                json!({"messages": user("?"), "tools": tool(schema.clone()), "tool_choice": "required"}),
            ),
            (
                "/v1/responses",
                json!({"input": "?", "text": {"format": {"type": "json_schema", "name": "s", "schema": schema}}}),
            ),
            (
                "/api/chat",
                json!({"model": "fake-7b", "messages": user("?"), "stream": false, "format": schema}),
            ),
            (
                "/v1/messages",
                json!({"max_tokens": 9, "messages": user("?"), "tools": [{"name": "f", "input_schema": schema}]}),
            ),
        ]
    };
    for (path, body) in bodies(400 << 10) {
        let reply = api.post(path, &body).await;
        let text = reply.json().to_string();
        assert_eq!(reply.status, 400, "{path}: {text}");
        assert!(text.contains("256 KiB"), "{path}: {text}");
    }
    // Within the bound what refers to it a thousand times is not copied a thousand times, and is taken as written.
    for (path, body) in bodies(100 << 10) {
        let reply = api.post(path, &body).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.json());
    }
    let many: Vec<Value> = (0..8)
        .map(|at| {
            json!({"type": "function", "function": {"name": format!("f{at}"),
        "parameters": schema(200 << 10)}})
        })
        .collect();
    let reply = api.post("/v1/chat/completions", &json!({"messages": user("?"), "tools": many})).await;
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("tools")));
}

#[tokio::test]
async fn arguments_stream_as_pieces_in_every_family() {
    let fake = Fake::quick();
    let call = "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris on the Seine\"}}</tool_call>";
    *fake.script.lock().unwrap() = Some(format!("I look. {call} {call}"));
    let api = http::start(fake).await;
    let arguments = r#"{"city":"Paris on the Seine"}"#;
    let openai = json!([{"type": "function", "function": weather()}]);
    let ask = json!({"messages": user("?"), "tools": openai, "stream": true, "model": "fake-7b"});

    let events = api.post("/v1/chat/completions", &ask).await.events();
    let deltas: Vec<Value> =
        events.iter().filter_map(|e| e.pointer("/choices/0/delta/tool_calls/0")).cloned().collect();
    for index in 0..2 {
        let own: Vec<Value> = deltas.iter().filter(|delta| delta["index"] == index).cloned().collect();
        assert!(own.len() > 3, "{own:?}");
        assert_eq!(
            (&own[0]["type"], &own[0]["function"]["name"]),
            (&json!("function"), &json!("get_weather"))
        );
        assert!(own[0]["id"].is_string() && own[1..].iter().all(|delta| delta.get("id").is_none()));
        assert_eq!(joined(&own), arguments);
    }
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");

    let tool = json!({"name": "get_weather", "input_schema": weather()["parameters"]});
    let body = json!({"max_tokens": 50, "messages": user("?"), "tools": [tool], "stream": true});
    let events = api.post("/v1/messages", &body).await.events();
    let starts: Vec<&Value> = events.iter().filter(|e| e["type"] == "content_block_start").collect();
    assert_eq!(starts.len(), 3, "text and two calls");
    for start in &starts[1..] {
        assert_eq!(
            (&start["content_block"]["type"], &start["content_block"]["input"]),
            (&json!("tool_use"), &json!({}))
        );
        let own = events
            .iter()
            .filter(|e| e["index"] == start["index"] && e["delta"]["type"] == "input_json_delta");
        let pieces: Vec<&str> = own.map(|e| e["delta"]["partial_json"].as_str().unwrap()).collect();
        assert!(pieces.len() > 2, "{pieces:?}");
        assert_eq!(pieces.concat(), arguments);
    }
    let stops = events.iter().filter(|e| e["type"] == "content_block_stop").count();
    assert_eq!(stops, 3);

    let mut flat = weather();
    flat["type"] = "function".into();
    let events =
        api.post("/v1/responses", &json!({"input": "?", "tools": [flat], "stream": true})).await.events();
    let of = |kind: &str| -> Vec<&Value> { events.iter().filter(|e| e["type"] == kind).collect() };
    let deltas = of("response.function_call_arguments.delta");
    assert!(deltas.len() > 6, "{}", deltas.len());
    let done = of("response.function_call_arguments.done");
    assert_eq!(done.iter().map(|e| e["arguments"].as_str().unwrap()).collect::<Vec<_>>(), [arguments; 2]);
    let output = &of("response.completed")[0]["response"]["output"];
    assert_eq!(output.as_array().unwrap().len(), 3);
    assert_eq!(output[2]["status"], "completed");

    let lines = api.post("/api/chat", &ask).await.text();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let calls: Vec<&Value> =
        lines.iter().filter_map(|line| line.pointer("/message/tool_calls/0/function/arguments")).collect();
    assert_eq!(calls, [&json!({"city": "Paris on the Seine"}); 2]);

    // One is one, if the client says so.
    let mut single = ask.clone();
    single["parallel_tool_calls"] = false.into();
    single["stream"] = false.into();
    let reply = api.post("/v1/chat/completions", &single).await.json();
    assert_eq!(reply["choices"][0]["message"]["tool_calls"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_call_that_is_cut_is_a_call_with_the_arguments_so_far() {
    let fake = Fake::quick();
    let call = "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"days\": 3, \"city\": \"Paris on the Seine\"}}</tool_call>";
    *fake.script.lock().unwrap() = Some(call.into());
    let api = http::start(fake).await;
    let tools = json!([{"type": "function", "function": weather()}]);
    for limit in 1..9 {
        let ask = json!({"messages": user("?"), "tools": tools, "max_tokens": limit});
        let choice = api.post("/v1/chat/completions", &ask).await.json()["choices"][0].clone();
        assert_eq!(choice["finish_reason"], "length", "{limit}: {choice}");
        assert!(choice["message"]["content"].as_str().unwrap_or_default().is_empty(), "{limit}: {choice}");
    }
    let ask =
        json!({"messages": user("?"), "tools": tools, "max_tokens": 7, "model": "fake-7b", "stream": false});
    let choice = api.post("/v1/chat/completions", &ask).await.json()["choices"][0].clone();
    assert_eq!(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"days\":3,\"city\":\"Paris");
    let tool = json!({"name": "get_weather", "input_schema": weather()["parameters"]});
    let body = json!({"max_tokens": 7, "messages": user("?"), "tools": [tool]});
    let reply = api.post("/v1/messages", &body).await.json();
    assert_eq!(
        (&reply["stop_reason"], &reply["content"][0]["input"]),
        (&json!("max_tokens"), &json!({"days": 3}))
    );
    let mut ask = ask;
    ask["options"] = json!({"num_predict": 7});
    let reply = api.post("/api/chat", &ask).await.json();
    assert_eq!(reply["message"]["tool_calls"][0]["function"]["arguments"], json!({"days": 3}));
    assert_eq!(reply["done_reason"], "length");
    let mut flat = weather();
    flat["type"] = "function".into();
    let body = json!({"input": "?", "tools": [flat], "max_output_tokens": 7, "stream": true});
    let events = api.post("/v1/responses", &body).await.events();
    let last = events.last().unwrap();
    assert_eq!(
        (&last["type"], &last["response"]["output"][0]["status"]),
        (&json!("response.incomplete"), &json!("incomplete"))
    );
}

/// What a model is bound to lists its members and has no others; what the client wrote otherwise stays.
#[tokio::test]
async fn schemas_that_list_members_are_closed() {
    let api = http::start(Fake::quick()).await;
    let schema = weather()["parameters"].clone();
    let asked = || match api.fake.last.lock().unwrap().as_ref().unwrap().format.clone() {
        api::inference::Format::JsonSchema(schema) => schema,
        other => panic!("{other:?}"),
    };
    let form = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
    api.post("/v1/chat/completions", &json!({"messages": user("?"), "response_format": form})).await;
    assert_eq!(asked()["additionalProperties"], false);
    api.post(
        "/api/chat",
        &json!({"model": "fake-7b", "messages": user("?"), "format": schema, "stream": false}),
    )
    .await;
    assert_eq!(asked()["additionalProperties"], false);
    let tools = json!([{"type": "function", "function": weather()}]);
    api.post(
        "/v1/chat/completions",
        &json!({"messages": user("?"), "tools": tools, "tool_choice": "required"}),
    )
    .await;
    assert_eq!(asked()["properties"]["arguments"]["additionalProperties"], false);
    let form = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}});
    api.post("/v1/chat/completions", &json!({"messages": user("?"), "response_format": form})).await;
    assert_eq!(asked(), json!({"type": "object"}));
}

/// A form that was made of the tools is refused as the tools, and by name where one of them is meant; a form that the
/// client wrote itself is refused as that.
#[tokio::test]
async fn a_tool_that_cannot_be_used_is_what_the_refusal_names() {
    let api = http::start(Fake::quick()).await;
    let refused = api::inference::Failure::invalid("response_format", "it is too deep");
    *api.fake.failure.lock().unwrap() = Some(refused);
    let tool = json!([{"type": "function", "function": weather()}]);
    let schema = json!({"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}});
    for (more, param, named) in [
        (json!({"tools": tool}), "tools", false),
        (json!({"tools": tool, "n": 2}), "tools", false),
        (json!({"tools": tool, "tool_choice": "required"}), "tools", true),
        (json!({"tools": tool, "response_format": schema}), "response_format", false),
        (json!({"response_format": schema}), "response_format", false),
    ] {
        let mut body = json!({"messages": user("?")});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let reply = api.post("/v1/chat/completions", &body).await;
        let error = reply.json()["error"].clone();
        assert_eq!((reply.status, error["param"].as_str()), (400, Some(param)), "{more}: {error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.ends_with("it is too deep"), "{message}");
        assert_eq!(message.contains("`get_weather`"), named, "{message}");
    }
}
