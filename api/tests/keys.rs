//! Keys of other people: what they open, what they do not, and what is said of their answers.

mod fake;
mod http;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use api::keys::{Keys, Taken};
use fake::Fake;
use http::TOKEN;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// One key, `the-key`, whose quota is used up after one answer.
#[derive(Debug, Default)]
struct OneKey {
    taken: Mutex<Vec<(Option<String>, Taken)>>,
}

impl Keys for OneKey {
    fn holder(&self, secret: &str) -> Option<String> {
        (secret == "the-key").then(|| "ann".to_owned())
    }

    fn admit(&self, name: &str) -> Result<(), u32> {
        let used = self.taken.lock().unwrap().iter().any(|(who, _)| who.as_deref() == Some(name));
        if used { Err(77) } else { Ok(()) }
    }

    fn took(&self, name: Option<&str>, taken: &Taken) {
        self.taken.lock().unwrap().push((name.map(str::to_owned), taken.clone()));
    }
}

#[tokio::test]
async fn a_key_opens_answers_until_its_quota_is_used_and_nothing_else() {
    let keys = Arc::new(OneKey::default());
    let config =
        api::Config { token: Some(TOKEN.into()), keys: Some(keys.clone()), ..api::Config::default() };
    let api = http::start_with(Fake::quick(), config).await;
    let host = api.host();
    let body = br#"{"messages": [{"role": "user", "content": "a red fox"}], "max_tokens": 8}"#;
    let ask = async |secret: &str, method: &str, path: &str| {
        let bearer = format!("Bearer {secret}");
        let headers = [
            ("Host", host.as_str()),
            ("Authorization", bearer.as_str()),
            ("Content-Type", "application/json"),
        ];
        api.send(method, path, &headers, if method == "GET" { b"" } else { body }).await
    };
    assert_eq!(ask("another", "POST", "/v1/chat/completions").await.status, 401);
    for path in ["/swarm", "/metrics"] {
        assert_eq!(ask("the-key", "GET", path).await.status, 403, "{path}");
        assert_eq!(ask(TOKEN, "GET", path).await.status, 200, "{path}");
    }
    assert_eq!(ask("the-key", "GET", "/v1/models").await.status, 200);
    assert_eq!(ask("the-key", "POST", "/v1/chat/completions").await.status, 200);
    let refused = ask("the-key", "POST", "/v1/chat/completions").await;
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("77")), "{}", refused.text());
    // The owner has no quota.
    assert_eq!(ask(TOKEN, "POST", "/v1/chat/completions").await.status, 200);
    let taken = keys.taken.lock().unwrap().clone();
    let names: Vec<_> = taken.iter().map(|(name, _)| name.as_deref()).collect();
    assert_eq!(names, [Some("ann"), None]);
    assert!(
        taken[0].1.tokens > 0 && taken[0].1.prompt_tokens > 0 && taken[0].1.outcome == "done",
        "{taken:?}"
    );
}

/// What is charged to `ann` for one request, and how its answer ended.
async fn charged(path: &str, body: &str) -> (usize, usize, &'static str) {
    let keys = Arc::new(OneKey::default());
    let config =
        api::Config { token: Some(TOKEN.into()), keys: Some(keys.clone()), ..api::Config::default() };
    let api = http::start_with(Fake::quick(), config).await;
    let host = api.host();
    let headers =
        [("Host", host.as_str()), ("Authorization", "Bearer the-key"), ("Content-Type", "application/json")];
    let answer = api.send("POST", path, &headers, body.as_bytes()).await;
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    assert_eq!(api.send("POST", path, &headers, body.as_bytes()).await.status, 429, "{path}");
    let taken = keys.taken.lock().unwrap().clone();
    let [(Some(_), taken)] = taken.as_slice() else { panic!("{path}: {taken:?}") };
    (taken.prompt_tokens, taken.tokens, taken.outcome)
}

#[tokio::test]
async fn every_prompt_and_every_text_counts_once() {
    let embed = r#"{"model": "fake-7b", "input": ["a fox", "a hen"]}"#;
    for path in ["/v1/embeddings", "/api/embed"] {
        assert_eq!(charged(path, embed).await, (3, 0, "done"), "{path}");
    }
    let one = r#"{"model": "fake-7b", "prompt": "a fox"}"#;
    assert_eq!(charged("/api/embeddings", one).await, (3, 0, "done"));
    // Three prompts of seven tokens, two answers to each.
    let three = r#"{"prompt": ["a", "b", "c"], "n": 2, "max_tokens": 2}"#;
    let (prompt_tokens, tokens, outcome) = charged("/v1/completions", three).await;
    assert_eq!((prompt_tokens, outcome), (21, "done"));
    assert!(tokens >= 6, "{tokens}");
}

#[tokio::test]
async fn a_prompt_counts_although_its_client_leaves() {
    let keys = Arc::new(OneKey::default());
    let config =
        api::Config { token: Some(TOKEN.into()), keys: Some(keys.clone()), ..api::Config::default() };
    // It never comes to its end by itself.
    let api = http::start_with(Fake::pausing(1, 600_000), config).await;
    let body = r#"{"messages": [{"role": "user", "content": "a red fox"}], "max_tokens": 8, "stream": true}"#;
    let mut socket = tokio::net::TcpStream::connect(api.host()).await.unwrap();
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer the-key\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        api.host(),
        body.len()
    );
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut said = [0; 64];
    assert!(socket.read(&mut said).await.unwrap() > 0);
    drop(socket);
    let taken = tokio::time::timeout(Duration::from_secs(60), async {
        loop {
            let taken = keys.taken.lock().unwrap().clone();
            if !taken.is_empty() {
                return taken;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    let taken = taken.await.expect("the answer is given up with its client");
    assert_eq!((taken[0].1.prompt_tokens, taken[0].1.outcome), (7, "left"));
}

#[tokio::test]
async fn a_node_that_cannot_answer_is_alive_and_not_ready() {
    let api = http::start(Fake::quick()).await;
    let host = api.host();
    let get = async |path: &str| api.send("GET", path, &[("Host", host.as_str())], b"").await;
    assert_eq!(get("/readyz").await.json()["ready"], true);
    *api.fake.failure.lock().unwrap() =
        Some(api::inference::Failure::Unavailable { why: "no model".into(), retry_after_s: 5 });
    let not_ready = get("/readyz").await;
    assert_eq!((not_ready.status, get("/healthz").await.status), (503, 200));
    assert!(!not_ready.text().contains("no model"), "{}", not_ready.text());
}

#[tokio::test]
async fn answers_are_seen_in_the_histograms() {
    let api = http::start(Fake::quick()).await;
    let host = api.host();
    let bearer = format!("Bearer {TOKEN}");
    let headers =
        [("Host", host.as_str()), ("Authorization", bearer.as_str()), ("Content-Type", "application/json")];
    let body = br#"{"messages": [{"role": "user", "content": "a red fox"}], "max_tokens": 8}"#;
    assert_eq!(api.send("POST", "/v1/chat/completions", &headers, body).await.status, 200);
    let text = api.send("GET", "/metrics", &headers, b"").await.text();
    for line in ["shoal_first_token_seconds_count 1", "shoal_queue_wait_seconds_count 1"] {
        assert!(text.lines().any(|said| said == line), "{line} is not in {text}");
    }
    let gaps = text.lines().find_map(|line| line.strip_prefix("shoal_token_gap_seconds_count "));
    assert!(gaps.is_some_and(|n| n.parse::<u64>().unwrap() > 0), "{text}");
}

#[tokio::test]
async fn a_holder_of_a_key_agrees_to_nothing_for_the_owner() {
    let keys: Arc<OneKey> = Arc::default();
    let config = api::Config { token: Some(TOKEN.into()), keys: Some(keys), ..api::Config::default() };
    let api = http::start_with(Fake::quick(), config).await;
    let host = api.host();
    let post = async |secret: &str, path: &str, body: &str| {
        let bearer = format!("Bearer {secret}");
        let headers = [
            ("Host", host.as_str()),
            ("Authorization", bearer.as_str()),
            ("Content-Type", "application/json"),
            ("X-Shoal-Consent", "once"),
        ];
        api.send("POST", path, &headers, body.as_bytes()).await
    };
    let taken_back = r#"{"mode": "boomerang", "agreed": false}"#;
    assert_eq!(post(TOKEN, "/swarm/consent", taken_back).await.status, 200);
    let ask =
        r#"{"model": "fake-7b", "messages": [{"role": "user", "content": "a red fox"}], "max_tokens": 4}"#;
    for (secret, status) in [("the-key", 403), (TOKEN, 200)] {
        let answer = post(secret, "/v1/chat/completions", ask).await;
        assert_eq!(answer.status, status, "{}", answer.text());
    }
}
