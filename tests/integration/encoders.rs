//! Encoders as their users meet them: vectors and scores over HTTP are those that transformers computes; what asks for text is
//! refused with what to do.

use harness::{Shoal, data, http};
use serde_json::{Value, json};

use crate::clients::serve;

fn golden(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(data(&format!("encoders/{name}.json"))).unwrap()).unwrap()
}

fn floats(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

fn cosine(a: &[f64], b: &[f64]) -> f64 {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

#[test]
fn vectors_and_scores_are_served_and_text_is_not() {
    let shoal = Shoal::new();
    let token = shoal.home().join("token");
    let vectors = data("encoders/nomic_bert.gguf");
    let (_serving, url) =
        serve(shoal.home(), &token, &["--via", "local", "--model", vectors.to_str().unwrap()]);
    let secret = std::fs::read_to_string(&token).unwrap();
    let ask = |url: &str, path: &str, body: &Value| http::request(url, &secret, "POST", path, body);
    let known = golden("nomic_bert");
    let kinds = ["long", "short", "medium", "short"];
    let ids: Vec<&Value> = kinds.iter().map(|kind| &known[kind]["ids"]).collect();
    let answer = ask(&url, "/v1/embeddings", &json!({"input": ids}));
    assert_eq!(answer.status, 200, "{}", answer.body);
    for (at, kind) in kinds.iter().enumerate() {
        let own = floats(&answer.body["data"][at]["embedding"]);
        let error = 1.0 - cosine(&own, &floats(&known[kind]["mean"]));
        assert!(error < 1e-6, "{kind}: 1-cos {error:e}");
    }
    let texts =
        ask(&url, "/api/embed", &json!({"model": "nomic_bert", "input": ["The shoal turns.", "caf\u{e9}"]}));
    assert_eq!(texts.body["embeddings"].as_array().map(Vec::len), Some(2), "{}", texts.body);
    let refused = ask(&url, "/v1/completions", &json!({"prompt": "the"}));
    assert!(refused.status == 400 && refused.body.to_string().contains("/v1/embeddings"), "{}", refused.body);
    let refused = ask(&url, "/v1/rerank", &json!({"query": "the", "documents": ["fish"]}));
    assert!(refused.status == 400 && refused.body.to_string().contains("ranks no texts"), "{}", refused.body);

    let ranks = data("encoders/bert.gguf");
    let (_serving, url) =
        serve(shoal.home(), &token, &["--via", "local", "--model", ranks.to_str().unwrap()]);
    let documents = ["turns fish", "water of the river", "one two three", "turns fish"];
    let answer = ask(&url, "/v1/rerank", &json!({"query": "The shoal", "documents": documents}));
    assert_eq!(answer.status, 200, "{}", answer.body);
    let results = answer.body["results"].as_array().unwrap();
    let score = |result: &Value| result["relevance_score"].as_f64().unwrap();
    assert!(results.len() == 4 && results.is_sorted_by(|a, b| score(a) >= score(b)), "{results:?}");
    let of = |index: u64| results.iter().find(|result| result["index"] == index).map(&score).unwrap();
    assert!(of(0) == of(3) && of(0) != of(1), "{results:?}");
    let expected = known_pair();
    assert!((of(0) - expected).abs() < 1e-3, "{} is not {expected}", of(0));
    // A document may be cut, a query not: without room behind it all documents would be equal.
    let long = "fish ".repeat(2_000);
    let rank = |query: &str, document: &str, truncate: bool| {
        let body = json!({"query": query, "documents": [document], "truncate": truncate});
        let answer = ask(&url, "/v1/rerank", &body);
        (answer.status, answer.body)
    };
    let (status, why) = rank(&long, "fish", true);
    assert!(status == 400 && why.to_string().contains("no room for a document"), "{why}");
    let (status, why) = rank("the", &long, false);
    assert!(status == 400 && why.to_string().contains("`truncate`"), "{why}");
    let (status, cut) = rank("the", &long, true);
    assert!(status == 200 && cut["results"][0]["relevance_score"].is_f64(), "{cut}");
    let refused = ask(&url, "/v1/embeddings", &json!({"input": "the"}));
    assert!(refused.status == 400 && refused.body.to_string().contains("ranks"), "{}", refused.body);

    for command in [&["run", "hello"][..], &["eval", "--tokens", "5 6"], &["bench", "--runs", "1"]] {
        let args = command.iter().copied().chain(["--model", vectors.to_str().unwrap()]);
        let (code, why) = shoal.fails(args, "");
        assert!(
            code == 2 && why.contains("is an encoder") && why.contains("shoal serve --via local"),
            "{why}"
        );
    }
}

/// What transformers gives to the first pair, as a probability.
fn known_pair() -> f64 {
    let score = golden("bert")["pair"].as_f64().unwrap();
    1.0 / (1.0 + (-score).exp())
}
