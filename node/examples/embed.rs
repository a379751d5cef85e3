//! Embeds a node without a network: answers a prompt with the model inside the binary, token by token.
//!
//! `cargo run -p shoal-node --example embed [PROMPT]`
//!
//! [`Alone`] is an `api::Inference`, so the same object can be served over HTTP: see `own_inference` of the api crate.
#![forbid(unsafe_code)]

use std::{error::Error, io::Write, time::Duration};

use api::{
    Inference,
    inference::{Event, GenerateRequest, Prompt, Sampling},
};
use futures::StreamExt;
use node::{cli::EngineArgs, inference::local::Alone};

/// Memory for the caches of all sessions.
const KV_BYTES: usize = 64 << 20;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let prompt = std::env::args().nth(1).unwrap_or_else(|| "Tell me a story about a fox".to_owned());
    // The model loads on a thread of its own; the API would answer "come back" meanwhile.
    let node = Alone::start(EngineArgs::default_model(), KV_BYTES)?;
    while node.loaded().is_none() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let prompt = Prompt::conversation(serde_json::json!([{ "role": "user", "content": prompt }]));
    let request = GenerateRequest {
        sampling: Sampling { temperature: Some(0.0), ..Sampling::default() },
        seed: Some(1),
        max_tokens: Some(64),
        ..GenerateRequest::new("example", prompt)
    };
    // Dropping the stream of events would end the generation.
    let mut answer = node.generate(request).await?.events;
    let mut out = std::io::stdout();
    while let Some(event) = answer.next().await {
        match event {
            Event::Token { text, .. } | Event::Text(text) => {
                write!(out, "{text}")?;
                out.flush()?;
            }
            Event::Done(done) => {
                writeln!(out)?;
                eprintln!("{} tokens, {:.0} tok/s", done.usage.completion_tokens, done.report.tok_s);
            }
            Event::Failed(failure) => return Err(failure.into()),
            Event::Prefill { .. } | Event::Prompt(_) | Event::Failover { .. } => {}
        }
    }
    Ok(())
}
