//! The process that computes for `shoal serve`: confined, mortal, and replaced.

use std::{sync::Arc, time::Instant};

use api::{
    Inference,
    inference::{EmbedRequest, Event, Failure, Format, GenerateRequest, Prompt as Asked, Sampling},
};
use futures::StreamExt;
use node::inference::local::confined::{Confined, Retention};
use serde_json::json;

use super::*;

fn args() -> EngineArgs {
    EngineArgs { threads: Some(1), no_pin: true, ctx: Some(512), ..EngineArgs::default_model() }
}

async fn serving(args: &EngineArgs) -> Arc<Confined> {
    serving_for(args, None).await
}

async fn serving_for(args: &EngineArgs, unload_after: Option<Duration>) -> Arc<Confined> {
    let confined = Confined::of(
        env!("CARGO_BIN_EXE_shoal").into(),
        args,
        64 << 20,
        Default::default(),
        Default::default(),
        Retention { states: None, unload_after },
    )
    .unwrap();
    settled(&confined).await;
    confined
}

async fn settled(confined: &Confined) {
    let started = Instant::now();
    while confined.loaded().is_none() {
        assert!(started.elapsed() < PATIENCE, "the model is not loaded");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn request(format: Format, max_tokens: usize) -> GenerateRequest {
    let prompt = Asked::conversation(json!([{"role": "user", "content": "Tell me a story about a fox."}]));
    GenerateRequest {
        sampling: Sampling { temperature: Some(0.0), ..Sampling::default() },
        seed: Some(1),
        max_tokens: Some(max_tokens),
        logprobs: Some(2),
        format,
        ..GenerateRequest::new("1", prompt)
    }
}

async fn answer(confined: &Confined, request: GenerateRequest) -> Result<(String, Event), Failure> {
    let mut generation = confined.generate(request).await?;
    let mut text = String::new();
    let last = loop {
        let event = tokio::time::timeout(PATIENCE, generation.events.next()).await.unwrap();
        match event.expect("an answer ends with its end") {
            Event::Token { text: piece, logprobs, .. } => {
                assert_eq!(logprobs.expect("log-probabilities").top.len(), 2);
                text += &piece;
            }
            Event::Text(piece) => text += &piece,
            Event::Prefill { .. } | Event::Prompt(_) | Event::Failover { .. } => {}
            last => break last,
        }
    };
    Ok((text, last))
}

#[tokio::test]
async fn answers_are_those_of_a_model_in_this_process() {
    let confined = serving(&args()).await;
    assert_eq!(confined.loaded(), Some(Ok(())));
    assert_eq!(confined.models()[0].num_layers, 8);
    let (text, last) = answer(&confined, request(Format::Text, 24)).await.unwrap();
    assert!(matches!(&last, Event::Done(done) if done.usage.completion_tokens == 24), "{last:?}");

    let model = model();
    let messages = json!([{"role": "user", "content": "Tell me a story about a fox."}]);
    let ids = encode::encode_chat(&model, &messages).unwrap();
    let greedy = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    let direct = expected(&model, &ids, &greedy, &[], 24);
    assert_eq!(text, direct.text);

    assert_eq!(confined.count(request(Format::Text, 1)).await, Ok(ids.len()));

    let texts =
        EmbedRequest { model: None, inputs: vec![Asked::Text("a fox".into())], truncate: false, mode: None };
    let embeddings = confined.embed(texts).await.unwrap();
    let length: f32 = embeddings.vectors[0].iter().map(|value| value * value).sum();
    assert!((length - 1.0).abs() < 1e-3 && embeddings.prompt_tokens > 0, "{length}");

    #[cfg(target_os = "linux")]
    {
        let status = std::fs::read_to_string(format!("/proc/{}/status", confined.pid())).unwrap();
        for line in ["Seccomp:\t2", "NoNewPrivs:\t1", "CapEff:\t0000000000000000"] {
            assert!(status.contains(line), "{line}\n{status}");
        }
    }
    // An answer that is not read any more, and one that asks for what cannot be.
    let mut dropped = confined.generate(request(Format::Text, 400)).await.unwrap();
    dropped.events.next().await.unwrap();
    drop(dropped);
    let deep = (0..100).fold(json!({"type": "integer"}), |inner, _| json!({"anyOf": [inner]}));
    let refused = confined.generate(request(Format::JsonSchema(deep), 8)).await.err().unwrap();
    assert!(
        matches!(&refused, Failure::Invalid { field: Some("response_format"), why } if why.contains("64 deep"))
    );
    let (text, _) = answer(&confined, request(Format::Regex("[0-9]{3}".into()), 16)).await.unwrap();
    assert!(text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_digit()), "{text}");
}

#[tokio::test]
async fn another_engine_takes_over_when_one_dies() {
    let confined = serving(&args()).await;
    let first = confined.pid();
    let mut generation = confined.generate(request(Format::Text, 400)).await.unwrap();
    generation.events.next().await.unwrap();
    assert!(std::process::Command::new("kill").args(["-9", &first.to_string()]).status().unwrap().success());
    let mut last = None;
    while let Some(event) = tokio::time::timeout(PATIENCE, generation.events.next()).await.unwrap() {
        last = Some(event);
    }
    assert!(matches!(last, Some(Event::Failed(Failure::Unavailable { .. }))), "{last:?}");
    let started = Instant::now();
    while confined.pid() == first || confined.ready(None).is_err() {
        assert!(started.elapsed() < PATIENCE, "no other engine");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (_, last) = answer(&confined, request(Format::Text, 4)).await.unwrap();
    assert!(matches!(last, Event::Done(_)), "{last:?}");
}

#[tokio::test]
async fn a_model_of_which_nothing_is_asked_is_unloaded_and_comes_back() {
    let confined = serving_for(&args(), Some(Duration::from_millis(300))).await;
    let (first, _) = answer(&confined, request(Format::Text, 8)).await.unwrap();
    for _ in 0..2 {
        let before = confined.pid();
        assert_ne!(before, 0, "it is there while it answers, and for a while after that");
        let started = Instant::now();
        while confined.pid() != 0 {
            assert!(started.elapsed() < PATIENCE, "the model stays");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // It can be asked, as if it were there; those who ask at once wait for the same engine.
        confined.ready(None).unwrap();
        assert_eq!(confined.models().len(), 1);
        let asked = [(); 3].map(|()| answer(&confined, request(Format::Text, 8)));
        for answered in futures::future::join_all(asked).await {
            let (text, last) = answered.unwrap();
            assert!(text == first && matches!(last, Event::Done(_)), "{text:?} {last:?}");
        }
        assert_ne!(confined.pid(), before, "another process");
    }
}

#[tokio::test]
async fn a_model_that_cannot_be_loaded_is_said_once() {
    let damaged = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(damaged.path(), b"GGUF and then nothing that makes sense, for longer than a header")
        .unwrap();
    for (model, what) in [
        ("/no/such/model.gguf".to_owned(), "there is no file"),
        (damaged.path().to_str().unwrap().to_owned(), "version"),
    ] {
        let confined = serving(&EngineArgs { model: Some(model), ..args() }).await;
        let why = confined.loaded().unwrap().unwrap_err();
        assert!(why.contains(what), "{why}");
        assert!(matches!(confined.ready(None), Err(Failure::Unavailable { .. })));
    }
}
