//! Keys of other people: what they open, what they do not, and what is said of their answers.

mod fake;
mod http;

use std::sync::{Arc, Mutex};

use api::keys::{Keys, Taken};
use fake::Fake;
use http::TOKEN;

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

#[tokio::test]
async fn a_node_that_cannot_answer_is_alive_and_not_ready() {
    let api = http::start(Fake::quick()).await;
    let host = api.host();
    let get = async |path: &str| api.send("GET", path, &[("Host", host.as_str())], b"").await;
    assert_eq!(get("/readyz").await.json()["ready"], true);
    *api.fake.failure.lock().unwrap() =
        Some(api::inference::Failure::Unavailable { why: "no model".into(), retry_after_s: 5 });
    assert_eq!((get("/readyz").await.status, get("/healthz").await.status), (503, 200));
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
