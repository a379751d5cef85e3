//! The API's other side against the real engine and the embedded model.

use std::time::Duration;

use api::inference::{Event, Sampling};
use shard::{
    engine::Mean,
    reference::{self, Arithmetic},
};

use super::*;
use crate::library;

/// Longest a test waits for the model, on whatever machine.
const PATIENCE: Duration = Duration::from_secs(120);

async fn loaded() -> Arc<Alone> {
    let args = EngineArgs { threads: Some(1), no_pin: true, ctx: Some(256), ..EngineArgs::default_model() };
    let alone = Alone::start(args, 64 << 20).unwrap();
    let ready = async {
        while alone.loaded().is_none() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, ready).await.unwrap();
    alone.ready().unwrap();
    alone
}

fn texts(inputs: Vec<Prompt>) -> EmbedRequest {
    EmbedRequest { model: None, inputs, truncate: false }
}

fn value(metrics: &[Metric], name: &str) -> f64 {
    metrics.iter().find(|metric| metric.name == name).unwrap_or_else(|| panic!("no {name}")).values[0].1
}

#[tokio::test]
async fn embeddings_are_the_mean_of_what_the_oracle_computes() {
    let alone = loaded().await;
    let ready = alone.model().unwrap();
    assert!(ready.info.embeddings);
    let gguf = library::open(library::DEFAULT_MODEL).unwrap();
    let oracle = reference::Model::load(&gguf, 256, Arithmetic::Rounded).unwrap();
    let words = "Once upon a time there was a fish";
    let ids = encode(&ready.model, &Prompt::Text(words.into()), "input").unwrap();
    let (mut session, mut mean) = (oracle.session(), Mean::new(ready.info.hidden));
    ids.iter().for_each(|id| mean.add(&oracle.state(&mut session, *id)));
    let expected = mean.unit();

    // More texts than go side by side, one of them longer than a pass.
    let mut inputs = vec![Prompt::Text(words.into()); 10];
    inputs[3] = Prompt::Tokens(ids.clone());
    inputs[5] = Prompt::Tokens(ids.iter().copied().cycle().take(200).collect());
    let given = alone.embed(texts(inputs)).await.unwrap();
    assert_eq!((given.vectors.len(), given.prompt_tokens), (10, 9 * ids.len() + 200));
    for (index, vector) in given.vectors.iter().enumerate() {
        let dot: f64 = vector.iter().zip(&expected).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
        match index {
            5 => assert!(dot < 0.9999, "another text has another vector: {dot}"),
            _ => assert!((1.0 - dot).abs() < 1e-5, "text {index}: {dot}"),
        }
    }
    assert_eq!(given.vectors[0], given.vectors[3], "token ids are as good as their text");
    assert_eq!(given.vectors[0], given.vectors[9]);
}

#[tokio::test]
async fn texts_that_cannot_be_embedded_are_refused_by_field_or_cut() {
    let alone = loaded().await;
    let long = Prompt::Tokens(vec![5; 257]);
    let refused = async |inputs| match alone.embed(texts(inputs)).await.unwrap_err() {
        Failure::Invalid { field, why } => (field, why),
        other => panic!("{other:?}"),
    };
    let (field, why) = refused(vec![Prompt::Text("short".into()), long.clone()]).await;
    assert!(field == Some("input") && why.contains("text 1 has 257 tokens"), "{why}");
    let (field, why) = refused(vec![Prompt::Tokens(vec![u32::MAX])]).await;
    assert!(field == Some("input") && why.contains("below"), "{why}");
    let cut = EmbedRequest { truncate: true, ..texts(vec![long, Prompt::Tokens(vec![5; 256])]) };
    let cut = alone.embed(cut).await.unwrap();
    assert_eq!((&cut.vectors[0], cut.prompt_tokens), (&cut.vectors[1], 512));
}

#[tokio::test]
async fn gauges_follow_an_answer() {
    let alone = loaded().await;
    let metrics = alone.metrics();
    assert_eq!((value(&metrics, "sessions"), value(&metrics, "kv_used_bytes")), (0.0, 0.0));
    assert_eq!(value(&metrics, "kv_capacity_bytes"), f64::from(64 << 20));
    // An answer that does not end by itself.
    let stops = alone.model().unwrap().model.tokenizer.stop_ids().to_vec();
    let logit_bias = stops.iter().map(|id| (*id, -100.0)).collect();
    let request = GenerateRequest {
        id: "test".into(),
        model: None,
        prompt: Prompt::Text("Once".into()),
        sampling: Sampling { logit_bias, ..Sampling::default() },
        seed: Some(1),
        max_tokens: Some(200),
        stop: Vec::new(),
        logprobs: None,
        format: api::inference::Format::Text,
        mode: None,
        verify: None,
        show_special: false,
    };
    let mut answer = alone.generate(request).await.unwrap();
    while !matches!(answer.events.next().await, Some(Event::Token { .. })) {}
    // Nobody reads on, so the session waits for its reader and stays.
    let holds = async {
        while value(&alone.metrics(), "sessions") == 0.0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, holds).await.unwrap();
    assert!(value(&alone.metrics(), "kv_used_bytes") > 0.0);
    drop(answer);
    let goes = async {
        while value(&alone.metrics(), "sessions") > 0.0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, goes).await.unwrap();
    let metrics = alone.metrics();
    assert_eq!(value(&metrics, "kv_used_bytes"), 0.0);
    assert!(value(&metrics, "kv_kept_bytes") > 0.0, "what was computed is kept for the next prompt");
}
