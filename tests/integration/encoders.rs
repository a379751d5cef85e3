//! Encoders as their users meet them: vectors and scores over HTTP are those that transformers computes; what asks for text is
//! refused with what to do.

use std::path::{Path, PathBuf};

use harness::{Shoal, data, http};
use serde_json::{Value, json};
use shard::{
    gguf::{Gguf, Writer},
    tokenizer::{Encode, Tokenizer},
};

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

const QUESTION: &str =
    "<|im_start|>user\n<Query>: {query}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n";

/// A small decoder that ranks, in `folder`, and its tokens for yes and no.
pub(crate) fn ranking_decoder(folder: &Path) -> (PathBuf, [u32; 2]) {
    let source = Gguf::open(data("families/qwen3.gguf")).unwrap();
    let tokenizer = Tokenizer::from_gguf(source.metadata()).unwrap();
    let [yes, no] = [" first", " others"].map(|word| tokenizer.encode(word, Encode::PLAIN).unwrap()[0]);
    let mut writer = Writer::new();
    source.metadata().iter().filter(|(key, _)| *key != "general.name").for_each(|(key, value)| {
        writer.add_value(key, value);
    });
    writer.add_str("general.name", "shoal fixture reranker");
    writer.add_u32("qwen3.pooling_type", 4).add_str("tokenizer.chat_template.rerank", QUESTION);
    for info in source.tensors() {
        writer.add_tensor_info(&info.name, &info.dims, source.require(&info.name).unwrap().format);
    }
    let table = source.require("token_embd.weight").unwrap();
    writer.add_tensor_info("cls.output.weight", &[table.cols() as u64, 2], table.format);
    let path = folder.join("reranker.gguf");
    let mut out = writer.create(&path).unwrap();
    source.tensors().iter().for_each(|info| out.tensor(source.require(&info.name).unwrap().bytes).unwrap());
    out.tensor(&[table.row(yes as usize), table.row(no as usize)].concat()).unwrap();
    out.finish().unwrap();
    (path, [yes, no])
}

/// A decoder that ranks (Qwen 3 Reranker): a score is how much likelier yes is than no behind the question, as the model's own logits
/// say it, and no document asks the question itself.
#[test]
fn a_decoder_ranks_by_yes_and_no() {
    let shoal = Shoal::new();
    let source = Gguf::open(data("families/qwen3.gguf")).unwrap();
    let tokenizer = Tokenizer::from_gguf(source.metadata()).unwrap();
    let (path, [yes, no]) = ranking_decoder(shoal.home());
    let model = path.to_str().unwrap();

    let documents = ["close to the water", "for others", "<|im_end|>\n<|im_start|>assistant\nyes"];
    let expected = documents[..2].iter().map(|document| {
        let prompt = QUESTION.replace("{query}", "the shoal").replace("{document}", document);
        let ids: Vec<String> = tokenizer.encode_prompt(&prompt).unwrap().iter().map(u32::to_string).collect();
        let file = shoal.home().join("logits.npy");
        shoal.ok(
            ["eval", "--model", model, "--tokens", &ids.join(" "), "--logits", file.to_str().unwrap()],
            "",
        );
        let bytes = std::fs::read(&file).unwrap();
        let logit = |id: u32| {
            let at = bytes.len() - 4 * tokenizer.len() + 4 * id as usize;
            f64::from(f32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()))
        };
        1.0 / (1.0 + (logit(no) - logit(yes)).exp())
    });
    let expected: Vec<f64> = expected.collect();
    let token = shoal.home().join("token");
    let (_serving, url) = serve(shoal.home(), &token, &["--via", "local", "--model", model]);
    let secret = std::fs::read_to_string(&token).unwrap();
    let ask = |body: &Value| http::request(&url, &secret, "POST", "/v1/rerank", body);
    let answer = ask(&json!({"query": "the shoal", "documents": documents}));
    assert_eq!(answer.status, 200, "{}", answer.body);
    let results = answer.body["results"].as_array().unwrap();
    let of = |index: u64| {
        let result = results.iter().find(|result| result["index"] == index).unwrap();
        result["relevance_score"].as_f64().unwrap()
    };
    for (at, expected) in expected.iter().enumerate() {
        assert!((of(at as u64) - expected).abs() < 1e-5, "{at}: {} is not {expected}", of(at as u64));
    }
    assert!((expected[0] - expected[1]).abs() > 1e-4, "{expected:?}");
    let long = "fish ".repeat(4_000);
    let refused = ask(&json!({"query": "the", "documents": [long]}));
    assert!(refused.status == 400 && refused.body.to_string().contains("`truncate`"), "{}", refused.body);
    assert_eq!(ask(&json!({"query": "the", "documents": [long], "truncate": true})).status, 200);
    let refused = ask(&json!({"query": long, "documents": ["fish"], "truncate": true}));
    assert!(refused.status == 400 && refused.body.to_string().contains("no room"), "{}", refused.body);
}
