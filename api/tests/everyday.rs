//! What everyday clients do beside asking: names of their own, pages of other origins, older forms, counting, and fields
//! that are not read.

mod fake;
mod http;

use api::{Alias, Config};
use fake::Fake;
use http::{Api, Reply, TOKEN};
use serde_json::{Value, json};

const APP: &str = "https://app.example";

async fn configured() -> Api {
    let alias = |name: &str, model: &str| Alias { name: name.into(), model: model.into() };
    let config = Config {
        token: Some(TOKEN.into()),
        origins: vec![APP.into()],
        aliases: vec![
            alias("gpt-4o", "fake-small"),
            alias("openai/gpt-4o-mini", "fake-7b"),
            alias("fake-7b", "fake-small"),
            alias("claude", "not-here"),
        ],
        ..Config::default()
    };
    http::start_with(Fake::quick(), config).await
}

fn user() -> Value {
    json!([{"role": "user", "content": "hi"}])
}

#[tokio::test]
async fn a_client_s_fixed_name_is_answered_by_the_model_it_stands_for() {
    let api = configured().await;
    let ask = |model: &str| json!({"model": model, "messages": user(), "max_tokens": 5, "stream": false});
    for (path, asked, answers) in [
        ("/v1/chat/completions", "gpt-4o", "fake-small"),
        ("/v1/messages", "openai/gpt-4o-mini", "fake-7b"),
        ("/api/chat", "gpt-4o:latest", "fake-small"),
        // A model's own name is its own.
        ("/v1/chat/completions", "fake-7b", "fake-7b"),
    ] {
        let reply = api.post(path, &ask(asked)).await;
        assert_eq!((reply.status, &reply.json()["model"]), (200, &json!(answers)), "{path} {asked}");
        assert_eq!(api.fake.last.lock().unwrap().as_ref().unwrap().model.as_deref(), Some(answers));
    }
    // What it stands for is not here; the answer says what is missing.
    let reply = api.post("/v1/chat/completions", &ask("claude")).await;
    assert_eq!(reply.status, 404);
    assert!(reply.text().contains("not-here"), "{}", reply.text());
    let listed = api.get("/v1/models").await.json();
    let names: Vec<&str> =
        listed["data"].as_array().unwrap().iter().map(|m| m["id"].as_str().unwrap()).collect();
    assert_eq!(names, ["fake-7b", "fake-small", "gpt-4o", "openai/gpt-4o-mini"]);
    assert_eq!(listed["data"][2]["shoal"]["name"], "fake-small");
    assert_eq!(api.get("/v1/models/gpt-4o").await.json()["id"], "gpt-4o");
    assert_eq!(api.get("/api/tags").await.json()["models"][2]["name"], "gpt-4o:latest");
}

async fn from(api: &Api, method: &str, path: &str, more: &[(&str, &str)]) -> Reply {
    let host = api.host();
    let mut headers = vec![("Host", host.as_str())];
    headers.extend_from_slice(more);
    api.send(method, path, &headers, b"").await
}

#[tokio::test]
async fn pages_of_one_named_origin_may_ask_with_the_token() {
    let api = configured().await;
    let bearer = format!("Bearer {TOKEN}");
    let allowed = "access-control-allow-origin";
    let site = ("Sec-Fetch-Site", "cross-site");
    let reply = from(&api, "GET", "/v1/models", &[("Origin", APP), site, ("Authorization", &bearer)]).await;
    assert_eq!((reply.status, reply.header(allowed)), (200, Some(APP)));
    assert!(
        reply.header("access-control-expose-headers").is_some_and(|names| names.contains("x-shoal-route"))
    );
    assert!(reply.head.to_ascii_lowercase().contains("vary: origin"));
    assert!(reply.header("access-control-allow-credentials").is_none());
    // Refusals can be read, too, and the token is needed.
    let reply = from(&api, "GET", "/v1/models", &[("Origin", APP), site]).await;
    assert_eq!((reply.status, reply.header(allowed)), (401, Some(APP)));
    for origin in [
        "https://app.example.evil",
        "http://app.example",
        "https://app.example:8443",
        "null",
        "https://other.example",
    ] {
        for method in ["GET", "OPTIONS"] {
            let ask = [
                ("Origin", origin),
                site,
                ("Authorization", bearer.as_str()),
                ("Access-Control-Request-Method", "POST"),
            ];
            let reply = from(&api, method, "/v1/models", &ask).await;
            assert_eq!((reply.status, reply.header(allowed)), (403, None), "{method} {origin}");
        }
    }
    // A preflight is answered without the token, and allows what was asked.
    let wants = [
        ("Origin", APP),
        site,
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", "authorization,content-type,x-stainless-os"),
    ];
    let reply = from(&api, "OPTIONS", "/v1/chat/completions", &wants).await;
    assert_eq!((reply.status, reply.header(allowed)), (204, Some(APP)));
    assert_eq!(
        reply.header("access-control-allow-headers"),
        Some("authorization,content-type,x-stainless-os")
    );
    assert_eq!(reply.header("access-control-allow-methods"), Some("GET, POST, DELETE"));
    // The name of the host is held as ever.
    let reply = api.send("GET", "/v1/models", &[("Host", "evil.example"), ("Origin", APP)], b"").await;
    assert_eq!(reply.status, 403);
    // Without the operator's word there is no such header at all.
    let plain = http::start(Fake::quick()).await;
    let reply =
        from(&plain, "OPTIONS", "/v1/models", &[("Origin", APP), ("Access-Control-Request-Method", "GET")])
            .await;
    assert_eq!((reply.status, reply.header(allowed)), (403, None));
}

#[tokio::test]
async fn other_pages_are_never_let_in_without_a_token() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = Config { token: None, origins: vec![APP.into()], ..Config::default() };
    let refused = api::Server::new(std::sync::Arc::new(Fake::quick()), listener, config).err().unwrap();
    assert!(refused.to_string().contains("token"), "{refused}");
}

#[tokio::test]
async fn ollama_s_older_and_odder_requests_are_understood() {
    let api = configured().await;
    // As its documentation sends them: curl's default type, or none.
    let body = json!({"model": "fake-7b", "prompt": "hi", "stream": false}).to_string();
    let (host, bearer) = (api.host(), format!("Bearer {TOKEN}"));
    for kind in [None, Some("application/x-www-form-urlencoded"), Some("text/plain")] {
        let mut headers = vec![("Host", host.as_str()), ("Authorization", bearer.as_str())];
        headers.extend(kind.map(|kind| ("Content-Type", kind)));
        let reply = api.send("POST", "/api/generate", &headers, body.as_bytes()).await;
        assert_eq!((reply.status, &reply.json()["response"]), (200, &json!("You said: hi")), "{kind:?}");
        let reply = api.send("POST", "/v1/completions", &headers, body.as_bytes()).await;
        assert_eq!(reply.status, 415, "only there: {kind:?}");
    }
    // Where no token protects, the type does.
    let config = Config { token: None, ..Config::default() };
    let open = http::start_with(Fake::quick(), config).await;
    let reply = open.send("POST", "/api/generate", &[("Host", &open.host())], body.as_bytes()).await;
    assert_eq!(reply.status, 415);

    let reply = api.post("/api/embeddings", &json!({"model": "fake-7b", "prompt": "hi"})).await.json();
    let vector: Vec<f32> =
        reply["embedding"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect();
    assert_eq!(vector, [0.6, 0.8]);
    assert_eq!(api.post("/api/embeddings", &json!({"model": "fake-7b", "prompt": ""})).await.status, 400);
    assert_eq!(api.post("/api/embeddings", &json!({"model": "fake-7b"})).await.status, 400);

    // A model that is here was pulled; for another one it says how to.
    for body in [json!({"model": "fake-7b:latest"}), json!({"name": "gpt-4o", "stream": false})] {
        let reply = api.post("/api/pull", &body).await;
        assert_eq!((reply.status, reply.json()), (200, json!({"status": "success"})));
    }
    let reply = api.post("/api/pull", &json!({"model": "llama3:8b"})).await;
    assert_eq!(reply.status, 404);
    let why = reply.json()["error"].as_str().unwrap().to_owned();
    assert!(why.contains("shoal model pull llama3:8b"), "{why}");
    let reply = api.post("/api/pull", &json!({"model": "../x"})).await;
    assert!(!reply.text().contains("../x"), "{}", reply.text());
}

#[tokio::test]
async fn tokens_are_counted_without_an_answer() {
    let api = configured().await;
    let ask = json!({"model": "gpt-4o", "system": "s", "messages": user()});
    let reply = api.post("/v1/messages/count_tokens", &ask).await;
    assert_eq!((reply.status, reply.json()), (200, json!({"input_tokens": 7})));
    assert_eq!(api.fake.last.lock().unwrap().as_ref().unwrap().model.as_deref(), Some("fake-small"));
    let reply = api.post("/v1/messages/count_tokens", &json!({"messages": []})).await;
    assert_eq!((reply.status, &reply.json()["error"]["type"]), (400, &json!("invalid_request_error")));
}

/// A field that would change the answer is read or refused by its name, in every dialect.
#[tokio::test]
async fn fields_that_are_not_read_are_refused_by_name() {
    let api = http::start(Fake::quick()).await;
    let base = json!({"model": "fake-7b", "messages": user(), "prompt": "x", "input": "x", "max_tokens": 5, "stream": false});
    for (path, field, value) in [
        ("/v1/chat/completions", "session_id", json!("abc")),
        ("/v1/chat/completions", "wire", json!("q9")),
        ("/v1/completions", "cuts", json!([3, 2])),
        ("/v1/messages", "allow_rounding", json!("yes")),
        ("/v1/completions", "functions", json!([{"name": "f"}])),
        ("/v1/responses", "functions", json!([{"name": "f"}])),
        ("/v1/responses", "verbosity", json!("low")),
        ("/v1/chat/completions", "guided_json", json!({"type": "object"})),
        ("/v1/completions", "min_tokens", json!(5)),
        ("/v1/messages", "session_id", json!("abc")),
        ("/v1/messages", "container", json!("container_0")),
        ("/api/chat", "wire", json!("q9")),
        ("/api/chat", "template", json!("{{ x }}")),
        ("/api/generate", "context", json!([1, 2])),
        ("/api/generate", "options.mirostat", json!(2)),
    ] {
        let mut body = base.clone();
        match field.split_once('.') {
            Some((outer, inner)) => body[outer] = json!({inner: value}),
            None => body[field] = value,
        }
        if path.starts_with("/api") {
            body.as_object_mut().unwrap().remove("max_tokens");
        }
        let reply = api.post(path, &body).await;
        assert_eq!(reply.status, 400, "{path} {field}: {}", reply.text());
        assert!(reply.text().contains(&format!("`{field}`")), "{path} {field}: {}", reply.text());
    }
    let reply = api.post("/v1/responses", &json!({"input": "x", "max_tokens": 5})).await;
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("max_tokens")));
    // How hard to think reaches the template.
    let extra = || match api.fake.last.lock().unwrap().clone().unwrap().prompt {
        api::inference::Prompt::Messages { extra, .. } => Value::Object(extra),
        _ => Value::Null,
    };
    let ask = json!({"messages": user(), "reasoning_effort": "low"});
    assert_eq!(api.post("/v1/chat/completions", &ask).await.status, 200);
    assert_eq!(extra(), json!({"reasoning_effort": "low"}));
    let ask =
        json!({"messages": user(), "max_tokens": 5, "thinking": {"type": "enabled", "budget_tokens": 2000}});
    assert_eq!(api.post("/v1/messages", &ask).await.status, 200);
    assert_eq!(extra(), json!({"enable_thinking": true}));
    let ask = json!({"model": "fake-7b", "messages": user(), "think": "high"});
    assert_eq!(api.post("/api/chat", &ask).await.status, 200);
    assert_eq!(extra(), json!({"enable_thinking": true, "reasoning_effort": "high"}));
}

/// What a model thinks before it answers, in each family's own place, whole and in pieces.
#[tokio::test]
async fn reasoning_is_told_apart_from_the_answer() {
    let fake = Fake::quick();
    *fake.script.lock().unwrap() = Some("<think>\nThey greet me.\n</think>\n\nHi there!".into());
    let api = http::start(fake).await;
    let said = |events: &[Value], at: &str| -> String {
        events.iter().filter_map(|event| event.pointer(at)?.as_str()).collect()
    };

    let ask = |stream: bool| json!({"messages": user(), "stream": stream});
    let reply = api.post("/v1/chat/completions", &ask(false)).await.json();
    let message = &reply["choices"][0]["message"];
    assert_eq!(
        (&message["reasoning_content"], &message["content"]),
        (&json!("They greet me."), &json!("Hi there!"))
    );
    let thought = reply["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap();
    assert!((1..reply["usage"]["completion_tokens"].as_u64().unwrap()).contains(&thought), "{reply}");
    let events = api.post("/v1/chat/completions", &ask(true)).await.events();
    assert_eq!(said(&events, "/choices/0/delta/reasoning_content"), "They greet me.");
    assert_eq!(said(&events, "/choices/0/delta/content"), "Hi there!");

    let ask = |stream: bool| json!({"messages": user(), "max_tokens": 50, "stream": stream});
    let reply = api.post("/v1/messages", &ask(false)).await.json();
    assert_eq!(
        reply["content"],
        json!([{"type": "thinking", "thinking": "They greet me.", "signature": ""}, {"type": "text", "text": "Hi there!"}])
    );
    let events = api.post("/v1/messages", &ask(true)).await.events();
    assert_eq!(said(&events, "/delta/thinking"), "They greet me.");
    assert_eq!(said(&events, "/delta/text"), "Hi there!");
    let opened: Vec<&Value> =
        events.iter().filter_map(|event| event.pointer("/content_block/type")).collect();
    assert_eq!(opened, ["thinking", "text"]);
    assert_eq!(events.iter().filter(|event| event["type"] == "content_block_stop").count(), 2);

    let ask = |stream: bool| json!({"input": "Hi", "stream": stream});
    let reply = api.post("/v1/responses", &ask(false)).await.json();
    assert_eq!(reply.pointer("/output/0/content/0/text"), Some(&json!("They greet me.")));
    assert_eq!(reply.pointer("/output/1/content/0/text"), Some(&json!("Hi there!")));
    let events = api.post("/v1/responses", &ask(true)).await.events();
    let of =
        |kind: &str| -> Vec<Value> { events.iter().filter(|event| event["type"] == kind).cloned().collect() };
    assert_eq!(said(&of("response.reasoning_text.delta"), "/delta"), "They greet me.");
    assert_eq!(said(&of("response.output_text.delta"), "/delta"), "Hi there!");
    let end = of("response.completed");
    assert_eq!(end[0]["response"]["output"][0]["type"], "reasoning");
    assert_eq!(end[0]["response"]["usage"]["output_tokens_details"]["reasoning_tokens"], thought);

    let ask =
        |stream: bool| json!({"model": "fake-7b", "messages": user(), "prompt": "Hi", "stream": stream});
    for (path, thinking, answer) in
        [("/api/chat", "/message/thinking", "/message/content"), ("/api/generate", "/thinking", "/response")]
    {
        let reply = api.post(path, &ask(false)).await.json();
        assert_eq!(said(std::slice::from_ref(&reply), thinking), "They greet me.", "{path}");
        assert_eq!(said(&[reply], answer), "Hi there!", "{path}");
        let text = api.post(path, &ask(true)).await.text();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(said(&lines, thinking), "They greet me.", "{path}");
        assert_eq!(said(&lines, answer), "Hi there!", "{path}");
    }
}

#[tokio::test]
async fn reasoning_stays_where_it_is_wanted_and_begins_where_the_prompt_left_it() {
    let fake = Fake::quick();
    *fake.script.lock().unwrap() = Some("Still thinking.\n</think>\nDone.".into());
    fake.open.store(true, std::sync::atomic::Ordering::SeqCst);
    let api = http::start(fake).await;
    let content = async |more: Value| {
        let mut ask = json!({"messages": user()});
        ask.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let reply = api.post("/v1/chat/completions", &ask).await.json();
        let message = &reply["choices"][0]["message"];
        (message["reasoning_content"].clone(), message["content"].clone())
    };
    assert_eq!(content(json!({})).await, (json!("Still thinking."), json!("Done.")));
    let inline = json!("Still thinking.\n</think>\nDone.");
    assert_eq!(content(json!({"reasoning_format": "none"})).await, (Value::Null, inline.clone()));
    // An answer that has a form begins with it.
    assert_eq!(content(json!({"response_format": {"type": "json_object"}})).await, (Value::Null, inline));
    let ask = json!({"messages": user(), "reasoning_format": "raw"});
    assert_eq!(api.post("/v1/chat/completions", &ask).await.json()["error"]["param"], "reasoning_format");
    // A text that is continued has no turns.
    let reply = api.post("/v1/completions", &json!({"prompt": "Hi", "max_tokens": 50})).await.json();
    assert_eq!(reply["choices"][0]["text"], "Still thinking.\n</think>\nDone.");
}

#[tokio::test]
async fn what_a_model_thought_before_reaches_its_template() {
    let api = http::start(Fake::quick()).await;
    let thought = || match api.fake.last.lock().unwrap().clone().unwrap().prompt {
        api::inference::Prompt::Messages { messages, .. } => messages[1]["reasoning_content"].clone(),
        _ => Value::Null,
    };
    let turns = |answer: Value| json!([user()[0], answer, user()[0]]);
    let answer = json!({"role": "assistant", "content": "Hello.", "reasoning_content": "A greeting."});
    assert_eq!(api.post("/v1/chat/completions", &json!({"messages": turns(answer)})).await.status, 200);
    assert_eq!(thought(), "A greeting.");
    let answer = json!({"role": "assistant", "content": "Hello.", "thinking": "A greeting."});
    let ask = json!({"model": "fake-7b", "messages": turns(answer)});
    assert_eq!(api.post("/api/chat", &ask).await.status, 200);
    assert_eq!(thought(), "A greeting.");
    let blocks = json!([{"type": "thinking", "thinking": "A greeting.", "signature": ""}, {"type": "text", "text": "Hello."}]);
    let ask = json!({"max_tokens": 5, "messages": turns(json!({"role": "assistant", "content": blocks}))});
    assert_eq!(api.post("/v1/messages", &ask).await.status, 200);
    assert_eq!(thought(), "A greeting.");
    let reasoning = json!({"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "A greeting."}]});
    let items = json!([user()[0], reasoning, {"role": "assistant", "content": "Hello."}, user()[0]]);
    assert_eq!(api.post("/v1/responses", &json!({"input": items})).await.status, 200);
    assert_eq!(thought(), "A greeting.");
}

#[tokio::test]
async fn an_answer_goes_on_with_words_that_were_put_into_its_mouth() {
    let api = http::start(Fake::quick()).await;
    let goes_on = || match api.fake.last.lock().unwrap().take().unwrap().prompt {
        api::inference::Prompt::Messages { extra, .. } => extra.contains_key("continue_final_message"),
        _ => false,
    };
    let begun = json!([user()[0], {"role": "assistant", "content": "Once upon"}]);
    let ask = |more: Value| {
        let mut body = json!({"model": "fake-7b", "max_tokens": 5, "stream": false, "messages": begun});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    for (path, more, on) in [
        ("/v1/messages", json!({}), true),
        ("/api/chat", json!({}), true),
        ("/v1/chat/completions", json!({}), false),
        (
            "/v1/chat/completions",
            json!({"continue_final_message": true, "add_generation_prompt": false}),
            true,
        ),
        ("/v1/messages", json!({"messages": user()}), false),
    ] {
        assert_eq!(api.post(path, &ask(more.clone())).await.status, 200, "{path} {more}");
        assert_eq!(goes_on(), on, "{path} {more}");
    }
    let schema = json!({"type": "object", "properties": {}});
    let tool = json!([{"name": "f", "input_schema": schema}]);
    for (path, more) in [
        ("/v1/messages", json!({"output_config": {"format": {"type": "json_schema", "schema": schema}}})),
        ("/v1/messages", json!({"tools": tool, "tool_choice": {"type": "any"}})),
        ("/api/chat", json!({"format": "json"})),
        (
            "/v1/chat/completions",
            json!({"continue_final_message": true, "response_format": {"type": "json_object"}}),
        ),
        ("/v1/chat/completions", json!({"continue_final_message": true, "messages": user()})),
        ("/v1/completions", json!({"continue_final_message": true, "prompt": "hi"})),
    ] {
        let reply = api.post(path, &ask(more.clone())).await;
        assert_eq!(reply.status, 400, "{path} {more}: {}", reply.text());
    }
}
