//! `/v1/completions`: many prompts at once, and prompts that come back with their log-probabilities.

mod fake;
mod http;

use fake::Fake;
use serde_json::{Value, json};

fn texts(reply: &Value) -> Vec<&str> {
    reply["choices"].as_array().unwrap().iter().map(|choice| choice["text"].as_str().unwrap()).collect()
}

/// As evaluation harnesses ask: a prompt, one token, and what the model thought of every token before it.
#[tokio::test]
async fn a_prompt_comes_back_with_its_log_probabilities() {
    let api = http::start(Fake::quick()).await;
    let ask = json!({"prompt": "the cat sat", "echo": true, "logprobs": 1, "max_tokens": 1});
    let choice = api.post("/v1/completions", &ask).await.json()["choices"][0].clone();
    assert_eq!(choice["text"], "the cat sat and");
    let told = &choice["logprobs"];
    assert_eq!(told["tokens"], json!(["the", " cat", " sat", " and"]));
    assert_eq!(told["text_offset"], json!([0, 3, 7, 11]));
    assert_eq!(told["token_logprobs"], json!([null, -0.5, -0.5, -0.5]));
    assert_eq!((&told["top_logprobs"][0], &told["top_logprobs"][1]), (&Value::Null, &json!({" cat": -0.5})));
    // Without anything generated, of token ids, and of several prompts.
    let ask = json!({"prompt": [[5, 6], [7, 8, 9]], "echo": true, "logprobs": 0, "max_tokens": 0});
    let reply = api.post("/v1/completions", &ask).await.json();
    assert_eq!(texts(&reply), [" 5 6", " 7 8 9"]);
    for (choice, n) in [(0, 2), (1, 3)] {
        let told = &reply["choices"][choice]["logprobs"];
        assert_eq!(told["token_logprobs"].as_array().unwrap().len(), n);
        assert_eq!(told["token_logprobs"][0], Value::Null);
        assert!(told["token_logprobs"][1].is_number());
    }
    assert_eq!(reply["choices"][1]["finish_reason"], "length");
    assert_eq!(reply["usage"]["prompt_tokens"], 14, "each prompt counts");
    // Token ids without log-probabilities come back as what they print.
    let reply =
        api.post("/v1/completions", &json!({"prompt": [5, 6], "echo": true, "max_tokens": 4})).await.json();
    assert_eq!((texts(&reply), &reply["choices"][0]["logprobs"]), (vec![" 5 62 tokens"], &Value::Null));
    // Text without them is not computed for that: any swarm can answer.
    api.post("/v1/completions", &json!({"prompt": "x", "echo": true})).await;
    assert!(!api.fake.last.lock().unwrap().as_ref().unwrap().echo);
    let reply = api.post("/v1/completions", &json!({"prompt": "x", "max_tokens": 0})).await;
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("max_tokens")));
}

#[tokio::test]
async fn prompts_and_choices_of_one_request_run_together() {
    // One after another they would take 12 x 4 pauses.
    let api = http::start(Fake::paced(50)).await;
    let prompts: Vec<String> = (0..6).map(|n| format!("p{n}")).collect();
    let alive = api.fake.alive.clone();
    let most = tokio::spawn(async move {
        let mut most = 0;
        for _ in 0..200 {
            most = most.max(alive.load(std::sync::atomic::Ordering::SeqCst));
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        most
    });
    let reply = api.post("/v1/completions", &json!({"prompt": prompts, "n": 2, "seed": 5})).await.json();
    assert_eq!(most.await.unwrap(), 12, "all of them were computed at the same time");
    let choices = reply["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 12);
    for (index, choice) in choices.iter().enumerate() {
        assert_eq!(choice["index"], index);
        assert_eq!(choice["text"], format!(" and then: p{}", index / 2));
    }
    assert_eq!(
        reply["usage"],
        json!({
            "prompt_tokens": 42, "completion_tokens": 36, "total_tokens": 78,
            "prompt_tokens_details": {"cached_tokens": 12},
        })
    );
}

#[tokio::test]
async fn many_prompts_stream_by_their_index() {
    let api = http::start(Fake::quick()).await;
    let ask = json!({
        "prompt": ["one", "two"], "echo": true, "logprobs": 0, "stream": true, "stream_options": {"include_usage": true},
    });
    let reply = api.post("/v1/completions", &ask).await;
    assert!(reply.text().trim_end().ends_with("data: [DONE]"), "{}", reply.text());
    let (mut texts, mut tokens, mut offsets) = (vec![String::new(); 2], [0; 2], vec![Vec::new(); 2]);
    for event in reply.events() {
        let Some(choice) = event["choices"].get(0) else { continue };
        let index = choice["index"].as_u64().unwrap() as usize;
        texts[index].push_str(choice["text"].as_str().unwrap());
        tokens[index] += choice["logprobs"]["tokens"].as_array().map_or(0, Vec::len);
        offsets[index].extend(choice["logprobs"]["text_offset"].as_array().cloned().unwrap_or_default());
    }
    assert_eq!(texts, ["one and then: one", "two and then: two"]);
    assert_eq!(tokens, [4, 4]);
    assert_eq!(offsets[1], [0, 3, 7, 13]);
    assert_eq!(reply.events().last().unwrap()["usage"]["prompt_tokens"], 14);
}

#[tokio::test]
async fn too_many_prompts_are_refused() {
    let api = http::start(Fake::quick()).await;
    let reply = api.post("/v1/completions", &json!({"prompt": vec!["x"; 65]})).await;
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("prompt")));
    assert_eq!(api.post("/v1/completions", &json!({"prompt": vec!["x"; 64]})).await.status, 200);
}
