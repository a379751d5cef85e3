//! What must be refused, and how: headers, hosts, paths, bodies, bounds.

mod fake;
mod http;

use fake::Fake;
use http::TOKEN;
use proptest::prelude::*;
use serde_json::{Value, json};

fn chat(more: &[(&str, Value)]) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
    for (name, value) in more {
        body[*name] = value.clone();
    }
    body
}

#[tokio::test]
async fn refusals_name_the_field() {
    let api = http::start(Fake::quick()).await;
    let cases: Vec<(&str, Value)> = vec![
        ("temperature", json!(-1)),
        ("temperature", json!(2.5)),
        ("temperature", json!("hot")),
        ("top_p", json!(1.1)),
        ("n", json!(0)),
        ("n", json!(5)),
        ("n", json!(-1)),
        ("n", json!(1.5)),
        ("max_tokens", json!(-1)),
        ("max_tokens", json!(0)),
        ("max_tokens", json!(-9223372036854775808i64)),
        ("max_tokens", json!(18446744073709551615u64)),
        ("max_completion_tokens", json!(1e300)),
        ("seed", json!("x")),
        ("seed", json!(1.5)),
        ("stop", json!([1])),
        ("stop", json!(vec!["x"; 17])),
        ("logit_bias", json!({"x": 1})),
        ("logit_bias.5", json!(null)),
        ("top_logprobs", json!(3)),
        ("top_logprobs", json!(21)),
        ("stream", json!("yes")),
        ("tools", json!({})),
        ("mode", json!("secret")),
        ("response_format.type", json!(null)),
        ("tool_choice", json!("sometimes")),
        ("tool_choice", json!("required")),
        ("messages", json!([])),
        ("messages", json!("hi")),
        ("messages", json!(null)),
        ("messages[0].role", json!(null)),
        ("messages[0].content", json!(null)),
        ("messages[0].content[0].type", json!(null)),
        ("tools[0].function.name", json!(null)),
    ];
    for (param, value) in cases {
        let body = match param {
            "logit_bias.5" => chat(&[("logit_bias", json!({"5": 101}))]),
            "response_format.type" => chat(&[("response_format", json!({"type": "xml"}))]),
            "messages[0].role" => chat(&[("messages", json!([{"role": "king", "content": "x"}]))]),
            "messages[0].content" => chat(&[("messages", json!([{"role": "user"}]))]),
            "messages[0].content[0].type" => chat(&[(
                "messages",
                json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/"}}]}]),
            )]),
            "tools[0].function.name" => {
                chat(&[("tools", json!([{"type": "function", "function": {"name": "../x"}}]))])
            }
            name => chat(&[(name, value.clone())]),
        };
        let reply = api.post("/v1/chat/completions", &body).await;
        assert_eq!(reply.status, 400, "{param} {value}");
        let error = &reply.json()["error"];
        assert_eq!(error["param"], param, "{value}");
        assert_eq!(error["type"], "invalid_request_error");
    }
}

#[tokio::test]
async fn failures_have_their_status_in_every_family() {
    use api::inference::Failure;
    let api = http::start(Fake::quick()).await;
    let cases = [
        (Failure::invalid("seed", "no"), 400, "invalid_request_error"),
        (Failure::TooLong { tokens: 9, context: 4 }, 400, "invalid_request_error"),
        (Failure::busy(3), 429, "rate_limit_error"),
        (Failure::Unavailable { why: "loading".into(), retry_after_s: 7 }, 503, "overloaded_error"),
        (Failure::Internal { why: "broken".into() }, 500, "api_error"),
    ];
    for (failure, status, kind) in cases {
        *api.fake.failure.lock().unwrap() = Some(failure.clone());
        let openai = api.post("/v1/chat/completions", &chat(&[])).await;
        assert_eq!(openai.status, status);
        assert!(openai.json()["error"]["message"].is_string());
        if let Failure::Unavailable { .. } = failure {
            assert_eq!(openai.header("retry-after"), Some("7"));
        }
        let anthropic = api.post("/v1/messages", &chat(&[("max_tokens", json!(5))])).await;
        assert_eq!((anthropic.status, &anthropic.json()["error"]["type"]), (status, &json!(kind)));
        let ollama = api.post("/api/chat", &chat(&[("model", json!("fake-7b"))])).await;
        assert_eq!(ollama.status, status);
        assert!(ollama.json()["error"].is_string());
    }
    *api.fake.failure.lock().unwrap() = None;
    let unknown = api.post("/v1/chat/completions", &chat(&[("model", json!("gpt-9"))])).await;
    assert_eq!((unknown.status, &unknown.json()["error"]["code"]), (404, &json!("model_not_found")));
    assert_eq!(api.get("/nowhere").await.status, 404);
    assert_eq!(api.get("/v1/chat/completions").await.status, 405);
}

/// Forty combinations of where a request says it goes and comes from, and the status each must get.
#[tokio::test]
async fn forty_header_combinations() {
    let api = http::start(Fake::quick()).await;
    let port = api.address.port();
    let ours = format!("127.0.0.1:{port}");
    let mut tried = 0;
    let hosts = [
        (ours.clone(), true),
        (format!("localhost:{port}"), true),
        (format!("LOCALHOST:{port}"), true),
        (format!("[::1]:{port}"), true),
        ("evil.example".into(), false),
        (format!("evil.example:{port}"), false),
        (format!("0.0.0.0:{port}"), false),
        (format!("localhost.:{port}"), false),
        ("127.0.0.1".into(), false),
        (format!("127.0.0.1.evil.example:{port}"), false),
        (format!("user@127.0.0.1:{port}"), false),
        (format!("127.1:{port}"), false),
        (format!("2130706433:{port}"), false),
        (String::new(), false),
    ];
    for (host, allowed) in &hosts {
        let reply = api.send("GET", "/healthz", &[("Host", host)], b"").await;
        assert_eq!(reply.status == 200, *allowed, "Host {host}: {}", reply.status);
        tried += 1;
    }
    let own = format!("http://{ours}");
    let origins: [(&str, bool); 10] = [
        (&own, true),
        ("null", false),
        ("http://evil.example", false),
        ("https://127.0.0.1", false),
        ("http://127.0.0.1:1", false),
        ("file://", false),
        ("http://localhost", false),
        ("chrome-extension://abcdef", false),
        (&format!("{own}.evil.example"), false),
        (&format!("{own}/"), false),
    ];
    let bearer = format!("Bearer {TOKEN}");
    for (origin, allowed) in origins {
        let headers = [("Host", ours.as_str()), ("Authorization", &bearer), ("Origin", origin)];
        let reply = api.send("GET", "/v1/models", &headers, b"").await;
        assert_eq!(reply.status, if allowed { 200 } else { 403 }, "Origin {origin}");
        assert!(reply.header("access-control-allow-origin").is_none());
        tried += 1;
    }
    for (site, allowed) in
        [("none", true), ("same-origin", true), ("same-site", false), ("cross-site", false), ("x", false)]
    {
        let headers = [("Host", ours.as_str()), ("Authorization", &bearer), ("Sec-Fetch-Site", site)];
        let reply = api.send("GET", "/v1/models", &headers, b"").await;
        assert_eq!(reply.status, if allowed { 200 } else { 403 }, "Sec-Fetch-Site {site}");
        tried += 1;
    }
    let body = chat(&[]).to_string();
    for (kind, status) in [
        ("application/json", 200),
        ("application/json; charset=utf-8", 200),
        ("text/plain", 415),
        ("", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=x", 415),
        ("application/jsonp", 415),
    ] {
        let headers = [("Host", ours.as_str()), ("Authorization", &bearer), ("Content-Type", kind)];
        let reply = api.send("POST", "/v1/chat/completions", &headers, body.as_bytes()).await;
        assert_eq!(reply.status, status, "Content-Type {kind}");
        tried += 1;
    }
    let twice = format!("{own}\r\nOrigin: {own}");
    for (name, value, status) in [
        ("Authorization", "Bearer wrong", 401),
        ("Authorization", "Basic dDp0", 401),
        ("X-Other", "x", 401),
        ("x-api-key", TOKEN, 200),
        ("Origin", twice.as_str(), 400),
    ] {
        let reply = api.send("GET", "/v1/models", &[("Host", &ours), (name, value)], b"").await;
        assert_eq!(reply.status, status, "{name}: {value}");
        tried += 1;
    }
    // Absolute form, and no Host at all.
    let absolute =
        format!("GET http://evil.example/v1/models HTTP/1.1\r\nHost: {ours}\r\nConnection: close\r\n\r\n");
    assert_eq!(api.raw(absolute.as_bytes()).await.status, 403);
    assert_eq!(api.raw(b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n").await.status, 403);
    assert!(tried >= 40, "{tried}");
}

#[tokio::test]
async fn the_page_is_open_secured_and_its_ticket_is_good_once() {
    let api = http::start(Fake::quick()).await;
    let host = api.host();
    let page = api.send("GET", "/", &[("Host", &host)], b"").await;
    assert_eq!(page.status, 200);
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"));
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("x-frame-options", "DENY"),
    ] {
        assert_eq!(page.header(name), Some(value));
        assert_eq!(api.get("/nowhere").await.header(name), Some(value));
    }
    let body = json!({"ticket": api.ticket}).to_string();
    let headers = [("Host", host.as_str()), ("Content-Type", "application/json")];
    let first = api.send("POST", "/session", &headers, body.as_bytes()).await;
    let token = first.json()["token"].as_str().unwrap().to_owned();
    assert_eq!(api.send("POST", "/session", &headers, body.as_bytes()).await.status, 401);
    let bearer = format!("Bearer {token}");
    assert_eq!(
        api.send("GET", "/swarm", &[("Host", &host), ("Authorization", &bearer)], b"").await.status,
        200
    );
}

/// Two hundred ways to leave a folder; none may reach anything.
#[tokio::test]
async fn two_hundred_traversals() {
    let api = http::start(Fake::quick()).await;
    let ups = [
        "..",
        "%2e%2e",
        "%252e%252e",
        "..%00",
        "．．",
        "%c0%ae%c0%ae",
        "....",
        ".%2e",
        "..;",
        "%uff0e%uff0e",
        "\u{2024}\u{2024}",
        "..%5c",
        "..\\",
        "%2e%2e%2f",
        "..%c0%af",
    ];
    let targets = [
        "etc/passwd",
        "proc/self/environ",
        "windows/win.ini",
        "con",
        "api-token",
        ".ssh/id_ed25519",
        "dev/zero",
    ];
    let mut names = Vec::new();
    for up in ups {
        for target in targets {
            names.push(format!("{up}/{target}"));
            names.push(format!("{up}/{up}/{up}/{target}"));
        }
    }
    names.extend(
        [
            "/etc/passwd",
            "file:///etc/passwd",
            "\\\\host\\share",
            "C:\\x",
            "NUL",
            "a\0b",
            "",
            ".",
            "..",
            "~/x",
        ]
        .map(str::to_owned),
    );
    assert!(names.len() >= 200, "{}", names.len());
    for name in &names {
        let reply = api.post("/v1/chat/completions", &chat(&[("model", json!(name))])).await;
        assert_eq!(reply.status, 404, "model {name:?}");
        if name.contains("etc/passwd") {
            assert!(!reply.text().contains("passwd"), "the answer repeats the path");
        }
        let reply = api.post("/api/show", &json!({"model": name})).await;
        assert_eq!(reply.status, 404, "show {name:?}");
        if name.bytes().all(|b| b.is_ascii_graphic()) {
            for path in [format!("/v1/models/{name}"), format!("/{name}")] {
                let reply = api.get(&path).await;
                assert!([400, 404].contains(&reply.status) || path == "/", "{path}: {}", reply.status);
            }
        }
    }
}

#[tokio::test]
async fn bodies_are_bounded() {
    let api = http::start(Fake::quick()).await;
    let deep = format!("{{\"messages\": {}{}}}", "[".repeat(100), "]".repeat(100));
    let reply = api.post_bytes("/v1/chat/completions", deep.as_bytes(), &[]).await;
    assert_eq!(reply.status, 400);
    assert!(reply.json()["error"]["message"].as_str().unwrap().contains("nests"));
    let large = vec![b' '; (32 << 20) + 1];
    assert_eq!(api.post_bytes("/v1/chat/completions", &large, &[]).await.status, 413);
    let header = "x".repeat(80 << 10);
    let reply = api.send("GET", "/healthz", &[("Host", &api.host()), ("X-Long", &header)], b"").await;
    assert!([413, 431].contains(&reply.status), "{}", reply.status);
    let many = vec![json!({"role": "user", "content": "x"}); 4097];
    let reply = api.post("/v1/chat/completions", &chat(&[("messages", json!(many))])).await;
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("messages")));
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(
                prop_oneof![
                    Just("role".to_owned()),
                    Just("content".into()),
                    Just("type".into()),
                    Just("function".into()),
                    Just("name".into()),
                    "[a-z]{1,6}"
                ],
                inner,
                0..4
            )
            .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Every route that takes a body, any JSON in any field, and any bytes: refused or answered, never broken.
#[test]
fn malformed_bodies_break_nothing() {
    const PATHS: &[&str] = &[
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/embeddings",
        "/v1/rerank",
        "/v1/messages",
        "/api/embed",
        "/api/generate",
        "/api/chat",
        "/api/show",
        "/api/embeddings",
        "/api/pull",
        "/v1/messages/count_tokens",
        "/swarm/contribution",
        "/swarm/consent",
        "/swarm/names",
        "/session",
    ];
    const FIELDS: &[&str] = &[
        "messages",
        "prompt",
        "input",
        "model",
        "tools",
        "tool_choice",
        "stop",
        "logit_bias",
        "n",
        "max_tokens",
        "response_format",
        "options",
        "format",
        "stream_options",
        "system",
        "text",
        "ticket",
        "seed",
        "top_logprobs",
    ];
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let api = runtime.block_on(http::start(Fake::quick()));
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let fields = prop::collection::vec((prop::sample::select(FIELDS), value()), 1..5);
    let good = any::<bool>();
    let bytes = prop::option::of(prop::collection::vec(any::<u8>(), 0..64));
    let strategy = (prop::sample::select(PATHS), fields, good, bytes);
    runner.run(&strategy, |(path, fields, good, bytes)| {
        let mut body = if good { json!({"messages": [{"role": "user", "content": "x"}], "model": "fake-7b", "prompt": "x", "input": "x", "max_tokens": 5}) } else { json!({}) };
        for (name, value) in fields {
            body[name] = value;
        }
        let bytes = bytes.unwrap_or_else(|| body.to_string().into_bytes());
        let reply = runtime.block_on(api.post_bytes(path, &bytes, &[]));
        prop_assert!((200..500).contains(&reply.status), "{} {}: {} {}", path, body, reply.status, reply.text());
        Ok(())
    }).unwrap();
}
