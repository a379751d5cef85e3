//! The API's other side against the real engine and the embedded model.

use std::time::Duration;

use api::inference::{Event, Sampling};
use shard::{
    executor::reference::{self, Arithmetic},
    executor::{Input, Item, Mean, Output},
};

use super::*;
use crate::library;

/// Longest a test waits for the model, on whatever machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// How far int8 activations may turn a vector away when a last bit of a sum turns a rounding, as one minus the cosine:
/// what the engine's own tests allow between executor and oracle.
const ROUNDING: f64 = 2e-3;

fn args() -> EngineArgs {
    EngineArgs { threads: Some(1), no_pin: true, ctx: Some(256), ..EngineArgs::default_model() }
}

async fn loaded() -> Arc<Alone> {
    let alone = Alone::start(args(), 64 << 20).unwrap();
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

/// The vector of a text, straight from a model of its own, one position at a time.
fn direct(model: &Model, ids: &[u32]) -> Vec<f32> {
    let mut workspace = model.workspace().unwrap();
    let (mut state, mut mean) = (model.executor.new_state(), Mean::new(model.executor.blueprint().hidden));
    for id in ids.chunks(1) {
        let item = Item { state: &mut state, input: Input::Tokens(id), output: Output::All };
        model.executor.states(&mut workspace, &mut [item]).unwrap();
        mean.add(workspace.states(0));
    }
    mean.unit()
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
    let long: Vec<u32> = ids.iter().copied().cycle().take(200).collect();
    inputs[5] = Prompt::Tokens(long.clone());
    let given = alone.embed(texts(inputs)).await.unwrap();
    assert_eq!((given.vectors.len(), given.prompt_tokens), (10, 9 * ids.len() + 200));
    let model = Model::load(&args()).unwrap();
    let (short, long) = (direct(&model, &ids), direct(&model, &long));
    assert_ne!(short, long);
    for (index, vector) in given.vectors.iter().enumerate() {
        assert!(*vector == *(if index == 5 { &long } else { &short }), "text {index}");
    }
    let dot: f64 = short.iter().zip(&expected).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
    assert!((1.0 - dot).abs() < ROUNDING, "1-cos {:e}", 1.0 - dot);
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
        agreed: false,
        shadow: None,
        show_special: false,
    };
    let mut answer = alone.generate(request).await.unwrap();
    while !matches!(answer.events.next().await, Some(Event::Token { .. })) {}
    // The reader stops, so the session waits for its reader and stays.
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
