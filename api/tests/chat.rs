//! Complete answers of every family of clients, against golden JSON.

mod fake;
mod http;

use api::inference::Failure;
use fake::Fake;
use serde_json::{Value, json};

fn user(text: &str) -> Value {
    json!([{"role": "user", "content": text}])
}

/// Removes what differs from run to run.
fn settled(mut value: Value, random: &[&str]) -> Value {
    for pointer in random {
        let place = value.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer} is missing"));
        *place = json!("*");
    }
    value
}

#[tokio::test]
async fn openai_chat_is_golden() {
    let api = http::start(Fake::quick()).await;
    let reply = api
        .post(
            "/v1/chat/completions",
            &json!({"messages": user("hi"), "logprobs": true, "top_logprobs": 1, "seed": 5}),
        )
        .await;
    assert_eq!(reply.status, 200);
    let golden: Value = serde_json::from_str(include_str!("golden/chat.json")).unwrap();
    assert_eq!(settled(reply.json(), &["/id", "/created"]), golden);
    for (name, value) in [
        ("x-shoal-mode", "boomerang"),
        ("x-shoal-verify", "sample"),
        ("x-shoal-route", "me:0-2 4b0c4d06:2-16 70737679:16-30 me:30-32"),
        ("x-shoal-seed", "5"),
        ("x-shoal-wire", "raw"),
        ("x-shoal-predicted-tok-s", "16.00"),
        ("x-shoal-actual-tok-s", "15.50"),
    ] {
        assert_eq!(reply.header(name), Some(value), "{name}");
    }
    assert!(reply.header("x-shoal-computed-by").is_some_and(|by| by.starts_with("me ")));
    assert!(reply.header("x-shoal-checked-by").is_some());
}

/// In every dialect a request says how activations travel, in its body or in headers, and the answer says it back.
#[tokio::test]
async fn a_request_chooses_how_activations_travel() {
    let api = http::start(Fake::quick()).await;
    let base = json!({"messages": user("hi"), "prompt": "hi", "model": "fake-7b", "stream": false});
    for path in ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/api/chat", "/api/generate"] {
        let ask = |more: &[(&str, Value)]| {
            let mut body = base.clone();
            if path == "/v1/messages" {
                body["max_tokens"] = json!(4);
            }
            more.iter().for_each(|(name, value)| body[*name] = value.clone());
            body
        };
        let told = |reply: &http::Reply| {
            assert_eq!(reply.status, 200, "{path}: {}", reply.text());
            [reply.header("x-shoal-wire"), reply.header("x-shoal-cuts")].map(|word| word.map(str::to_owned))
        };
        let [raw, c10, c8] = ["raw", "c10", "c8"].map(|word| Some(word.to_owned()));
        assert_eq!(told(&api.post(path, &ask(&[])).await), [raw.clone(), None]);
        let body = ask(&[("wire", json!("c10")), ("cuts", json!([2, 16]))]);
        assert_eq!(told(&api.post(path, &body).await), [c10.clone(), Some("2,16".to_owned())]);
        assert_eq!(told(&api.post(path, &ask(&[("allow_rounding", json!(true))])).await)[0], c8);
        assert_eq!(told(&api.post_with(path, &ask(&[]), &[("x-shoal-wire", "c10")]).await)[0], c10);
        let allowed = [("x-shoal-allow-rounding", "true")];
        assert_eq!(told(&api.post_with(path, &ask(&[]), &allowed).await)[0], c8);
        // What a request says of itself is not undone by what it would allow.
        let exact = ask(&[("wire", json!("raw")), ("allow_rounding", json!(true))]);
        assert_eq!(told(&api.post(path, &exact).await)[0], raw);
        for (field, value) in [("cuts", json!([0])), ("cuts", json!([4, 4])), ("cuts", json!("2"))] {
            let reply = api.post(path, &ask(&[("wire", json!("c8")), (field, value)])).await;
            assert_eq!(reply.status, 400, "{path}: {}", reply.text());
            assert!(reply.text().contains(field), "{}", reply.text());
        }
        assert_eq!(api.post(path, &ask(&[("wire", json!("raw")), ("cuts", json!([2]))])).await.status, 400);
        assert_eq!(api.post_with(path, &ask(&[]), &[("x-shoal-allow-rounding", "yes")]).await.status, 400);
    }
}

/// What may be kept of a prompt is said by body or header, in every dialect; the node's default where nothing is said.
#[tokio::test]
async fn a_request_says_what_nodes_may_keep_of_it() {
    let api = http::start(Fake::quick()).await;
    for path in ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/api/chat", "/api/generate"] {
        let mut ask = json!({"model": "fake-7b", "messages": [{"role": "user", "content": "Hi"}], "prompt": "Hi", "stream": false});
        if path == "/v1/messages" {
            ask["max_tokens"] = json!(4);
        }
        let header = |word| [("x-shoal-let-keep", word)];
        let said = |body: Value, headers: Vec<(&'static str, &'static str)>| {
            let api = &api;
            async move {
                let reply = api.post_with(path, &body, &headers).await;
                assert_eq!(reply.status, 200, "{path}: {}", reply.text());
                api.fake.last.lock().unwrap().as_ref().unwrap().guard.let_keep
            }
        };
        assert_eq!(said(ask.clone(), Vec::new()).await, None, "{path}");
        assert_eq!(said(ask.clone(), header("true").to_vec()).await, Some(true), "{path}");
        ask["let_keep"] = json!(false);
        assert_eq!(said(ask.clone(), header("true").to_vec()).await, Some(false), "the body counts: {path}");
        ask["let_keep"] = json!("yes");
        assert_eq!(api.post(path, &ask).await.status, 400, "{path}");
    }
}

#[tokio::test]
async fn nothing_goes_to_strangers_unless_agreed_to() {
    let api = http::start(Fake::quick()).await;
    let take_back = json!({"mode": "boomerang", "agreed": false});
    assert_eq!(api.post("/swarm/consent", &take_back).await.json(), take_back);
    let body = json!({"messages": user("hi"), "model": "fake-7b", "max_tokens": 4});
    for (path, kind, code) in [
        ("/v1/chat/completions", "/error/type", Some("/error/code")),
        ("/v1/messages", "/error/type", None),
        ("/api/chat", "", None),
    ] {
        let refused = api.post(path, &body).await;
        assert_eq!(refused.status, 403, "{path}");
        let told = refused.json();
        assert!(refused.text().contains("x-shoal-consent: once"), "{told}");
        assert!(kind.is_empty() || told.pointer(kind).unwrap() == "permission_error", "{told}");
        assert!(code.is_none_or(|code| told.pointer(code).unwrap() == "consent_required"), "{told}");
        let once = api.post_with(path, &body, &[("x-shoal-consent", "once")]).await;
        assert_eq!(once.status, 200, "{path}");
        let wrong = api.post_with(path, &body, &[("x-shoal-consent", "always")]).await;
        assert_eq!(wrong.status, 400, "{path}");
    }
    for wrong in [json!({}), json!({"mode": "open"}), json!({"mode": "local", "agreed": true})] {
        assert_eq!(api.post("/swarm/consent", &wrong).await.status, 400, "{wrong}");
    }
    let foreign = [("Origin", "https://example.org")];
    assert_eq!(api.post_with("/swarm/consent", &take_back, &foreign).await.status, 403);
    api.post("/swarm/consent", &json!({"mode": "boomerang", "agreed": true})).await;
    assert_eq!(api.post("/v1/chat/completions", &body).await.status, 200);
}

#[tokio::test]
async fn strangers_are_checked_in_the_words_of_either_side() {
    let api = http::start(Fake::quick()).await;
    for (word, means) in [("strict", "all"), ("off", "none"), ("sample", "sample")] {
        let body = json!({"messages": user("hi"), "verify": word});
        assert_eq!(api.post("/v1/chat/completions", &body).await.json()["shoal"]["verify"], means);
    }
}

#[tokio::test]
async fn choices_draw_with_following_seeds_and_count_together() {
    let api = http::start(Fake::quick()).await;
    let reply = api.post("/v1/chat/completions", &json!({"messages": user("a b"), "n": 3, "seed": 10})).await;
    let body = reply.json();
    assert_eq!(body["choices"].as_array().unwrap().len(), 3);
    assert_eq!(body["usage"]["completion_tokens"], 12);
    assert_eq!(body["usage"]["prompt_tokens"], 7);
    assert_eq!(api.fake.last.lock().unwrap().as_ref().unwrap().seed, Some(12));
}

#[tokio::test]
async fn requests_arrive_as_they_were_meant() {
    let api = http::start(Fake::quick()).await;
    let body = json!({
        "model": "fake-small", "messages": [
            {"role": "developer", "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}]},
            {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]},
            {"role": "tool", "tool_call_id": "1", "content": "2"},
        ],
        "temperature": 0.5, "top_p": 0.9, "max_completion_tokens": 9, "max_tokens": 3, "stop": "END",
        "logit_bias": {"7": -100}, "presence_penalty": 1, "mode": "local", "unknown_field": {"x": [1]},
    });
    assert_eq!(api.post("/v1/chat/completions", &body).await.status, 200);
    let request = api.fake.last.lock().unwrap().clone().unwrap();
    assert_eq!(request.model.as_deref(), Some("fake-small"));
    assert_eq!(request.max_tokens, Some(9));
    assert_eq!(request.stop, ["END"]);
    assert_eq!(request.sampling.logit_bias, [(7, -100.0)]);
    assert_eq!(request.sampling.temperature, Some(0.5));
    assert_eq!(request.mode, Some(api::inference::Mode::Local));
    let api::inference::Prompt::Messages { messages, .. } = request.prompt else { panic!("not messages") };
    assert_eq!(messages[0], json!({"role": "system", "content": "be brief"}));
    assert_eq!(messages[1]["tool_calls"][0]["function"]["arguments"], json!({"a": 1}));
    assert_eq!(messages[2], json!({"role": "tool", "content": "2", "tool_call_id": "1"}));
}

fn weather() -> Value {
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    json!({"name": "get_weather", "description": "Weather", "parameters": schema})
}

#[tokio::test]
async fn calls_of_tools_reach_every_family() {
    let fake = Fake::quick();
    let call = "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}</tool_call>";
    *fake.script.lock().unwrap() = Some(call.into());
    let api = http::start(fake).await;
    let openai = json!([{"type": "function", "function": weather()}]);
    let reply =
        api.post("/v1/chat/completions", &json!({"messages": user("?"), "tools": openai})).await.json();
    assert_eq!(reply["choices"][0]["finish_reason"], "tool_calls");
    assert_eq!(reply["choices"][0]["message"]["content"], Value::Null);
    let function = &reply["choices"][0]["message"]["tool_calls"][0]["function"];
    assert_eq!(*function, json!({"name": "get_weather", "arguments": "{\"city\":\"Paris\"}"}));

    let mut flat = weather();
    flat["type"] = "function".into();
    let reply = api.post("/v1/responses", &json!({"input": "?", "tools": [flat]})).await.json();
    assert_eq!(reply["output"][0]["type"], "function_call");
    assert_eq!(reply["output"][0]["arguments"], "{\"city\":\"Paris\"}");

    let tool = json!({"name": "get_weather", "input_schema": weather()["parameters"]});
    let reply = api
        .post("/v1/messages", &json!({"max_tokens": 50, "messages": user("?"), "tools": [tool]}))
        .await
        .json();
    assert_eq!(reply["stop_reason"], "tool_use");
    assert_eq!(reply["content"][0]["input"], json!({"city": "Paris"}));

    let body = json!({"model": "fake-7b:latest", "messages": user("?"), "tools": openai, "stream": false});
    let reply = api.post("/api/chat", &body).await.json();
    assert_eq!(
        reply["message"]["tool_calls"][0]["function"],
        json!({"name": "get_weather", "arguments": {"city": "Paris"}})
    );
}

#[tokio::test]
async fn a_demanded_call_becomes_a_schema_and_a_call() {
    let api = http::start(Fake::quick()).await;
    let tools = json!([{"type": "function", "function": weather()}]);
    let body = json!({"messages": user("?"), "tools": tools, "tool_choice": {"type": "function", "function": {"name": "get_weather"}}});
    let reply = api.post("/v1/chat/completions", &body).await.json();
    assert_eq!(reply["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "get_weather");
    let format = api.fake.last.lock().unwrap().as_ref().unwrap().format.clone();
    let api::inference::Format::JsonSchema(schema) = format else { panic!("no schema") };
    assert_eq!(schema["properties"]["name"]["const"], "get_weather");
}

#[tokio::test]
async fn the_other_families_answer_in_their_shapes() {
    let api = http::start(Fake::quick()).await;
    let reply = api
        .post(
            "/v1/messages",
            &json!({"model": "fake-7b", "max_tokens": 50, "system": "s", "messages": user("hi")}),
        )
        .await
        .json();
    assert_eq!(reply["content"], json!([{"type": "text", "text": "You said: hi"}]));
    assert_eq!((&reply["stop_reason"], &reply["usage"]["output_tokens"]), (&json!("end_turn"), &json!(3)));
    let reply =
        api.post("/api/generate", &json!({"model": "fake-7b", "prompt": "hi", "stream": false})).await.json();
    assert_eq!(
        (&reply["response"], &reply["done"], &reply["eval_count"]),
        (&json!("You said: hi"), &json!(true), &json!(3))
    );
    let reply = api.post("/v1/responses", &json!({"input": "hi", "instructions": "s"})).await.json();
    assert_eq!(reply["output"][0]["content"][0]["text"], "You said: hi");
    assert_eq!(reply["status"], "completed");
    let reply = api.post("/v1/completions", &json!({"prompt": ["one", "two"], "echo": true})).await.json();
    assert_eq!(reply["choices"][1]["text"], "two and then: two");
    assert_eq!(reply["choices"][1]["index"], 1);
    assert_eq!(api.get("/api/tags").await.json()["models"][0]["name"], "fake-7b:latest");
    assert_eq!(api.get("/api/ps").await.json()["models"][1]["model"], "fake-small:latest");
    assert_eq!(
        api.post("/api/show", &json!({"model": "fake-7b"})).await.json()["details"]["family"],
        "llama"
    );
    assert_eq!(api.get("/v1/models/fake-small").await.json()["id"], "fake-small");
}

#[tokio::test]
async fn documents_come_back_by_their_scores() {
    let api = http::start(Fake::quick()).await;
    let post = async |body: Value| api.post("/v1/rerank", &body).await;
    let documents = json!(["a cat", {"text": "big fish"}, "a big cat", "nothing"]);
    let reply = post(json!({"query": "big cat", "documents": documents})).await.json();
    let results = reply["results"].as_array().unwrap();
    let order: Vec<u64> = results.iter().map(|result| result["index"].as_u64().unwrap()).collect();
    assert_eq!(order, [2, 0, 1, 3], "best first, equal ones in their order");
    assert_eq!(
        (&results[0]["relevance_score"], &results[0]["document"]["text"]),
        (&json!(1.0), &json!("a big cat"))
    );
    assert_eq!((&reply["model"], &reply["usage"]["total_tokens"]), (&json!("fake-7b"), &json!(9)));
    let body = json!({"query": "big cat", "documents": documents, "top_n": 1, "return_documents": false});
    assert_eq!(post(body).await.json()["results"], json!([{"index": 2, "relevance_score": 1.0}]));
    for (wrong, field) in [
        (json!({"documents": ["x"]}), "query"),
        (json!({"query": "", "documents": ["x"]}), "query"),
        (json!({"query": "x"}), "documents"),
        (json!({"query": "x", "documents": []}), "documents"),
        (json!({"query": "x", "documents": ["y", ""]}), "documents"),
        (json!({"query": "x", "documents": [{"title": "y"}]}), "documents"),
        (json!({"query": "x", "documents": vec!["y"; 257]}), "documents"),
        (json!({"query": "x", "documents": ["y"], "top_n": 0}), "top_n"),
    ] {
        let reply = post(wrong.clone()).await;
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!(field)), "{wrong}");
    }
}

#[tokio::test]
async fn embeddings_come_as_floats_or_base64_for_every_kind_of_input() {
    let api = http::start(Fake::quick()).await;
    let post = async |body: Value| api.post("/v1/embeddings", &body).await;
    let reply = post(json!({"input": "x", "encoding_format": "base64"})).await.json();
    assert_eq!(reply["data"][0]["embedding"], "mpkZP83MTD8=");
    let inputs = [json!("x"), json!(["x"]), json!([1, 2]), json!([[1, 2]])];
    for input in inputs {
        let reply = post(json!({"input": input})).await.json();
        let vector = reply["data"][0]["embedding"].as_array().unwrap();
        let vector: Vec<f32> = vector.iter().map(|x| x.as_f64().unwrap() as f32).collect();
        assert_eq!(vector, [0.6, 0.8]);
        assert_eq!((&reply["data"][0]["index"], &reply["usage"]["total_tokens"]), (&json!(0), &json!(3)));
    }
    let reply = post(json!({"input": ["x", "y", "z"], "dimensions": 4096})).await.json();
    assert_eq!(reply["data"].as_array().unwrap().len(), 3);
    assert_eq!(reply["data"][2]["index"], 2);
    for (wrong, field) in [
        (json!({}), "input"),
        (json!({"input": ""}), "input"),
        (json!({"input": ["x", ""]}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": [[]]}), "input"),
        (json!({"input": [1, "x"]}), "input"),
        (json!({"input": [-1]}), "input"),
        (json!({"input": vec!["x"; 257]}), "input"),
        (json!({"input": "x", "dimensions": 256}), "dimensions"),
        (json!({"input": "x", "encoding_format": "int8"}), "encoding_format"),
    ] {
        let reply = post(wrong.clone()).await;
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!(field)), "{wrong}");
    }
    let why = Failure::invalid("model", "a swarm gives no embeddings");
    *api.fake.failure.lock().unwrap() = Some(why);
    let reply = post(json!({"input": "x"})).await;
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("model")));
    *api.fake.failure.lock().unwrap() = None;

    let body = json!({"model": "fake-7b:latest", "input": ["x", "y"]});
    let reply = api.post("/api/embed", &body).await.json();
    assert_eq!(reply["embeddings"].as_array().unwrap().len(), 2);
    assert_eq!((&reply["model"], &reply["prompt_eval_count"]), (&json!("fake-7b"), &json!(3)));
    assert!(api.fake.embedded.lock().unwrap().as_ref().unwrap().truncate);
    let reply = api.post("/api/embed", &json!({"model": "fake-7b", "input": ""})).await;
    assert_eq!(reply.status, 400);
    assert!(reply.json()["error"].as_str().unwrap().contains("input"));
}

#[tokio::test]
async fn every_described_route_exists_and_metrics_name_no_one() {
    let api = http::start(Fake::quick()).await;
    let document = api.get("/openapi.json").await.json();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for method in operations.as_object().unwrap().keys() {
            let path = path.replace("{model}", "fake-7b").replace("{conversation}", &"0".repeat(32));
            if path == "/swarm/events" {
                continue;
            }
            let reply = match method.as_str() {
                "get" => api.get(&path).await,
                "delete" => api.delete(&path).await,
                _ => api.post(&path, &json!({})).await,
            };
            // What a page keeps needs a place, which this API was not given: the route says so itself.
            if reply.status == 404 && reply.text().contains("this API keeps no") {
                continue;
            }
            assert!(![404, 405, 500].contains(&reply.status), "{method} {path}: {}", reply.status);
        }
    }
    let metrics = api.get("/metrics").await.text();
    assert!(metrics.contains("shoal_http_requests_total{dialect=\"openai\",status=\"2xx\"}"));
    let labels: std::collections::BTreeSet<&str> = metrics
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split(['{', ' ']).next())
        .collect();
    let golden: Vec<&str> = include_str!("golden/metrics.txt").lines().collect();
    assert_eq!(labels.into_iter().collect::<Vec<_>>(), golden);
}
