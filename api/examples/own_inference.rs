//! Serves an inference of one's own: OpenAI's, Anthropic's and Ollama's API and the page, over anything that answers.
//!
//! `cargo run -p shoal-api --example own_inference [-- --once]`
//!
//! The "model" counts: one, two, three, as many words as the request wants tokens. A real one runs an engine behind the same
//! trait; `node/src/inference` has two. With `--once` the example asks itself over HTTP, prints the answer and ends.

#![forbid(unsafe_code)]

use std::{io, sync::Arc, time::Duration};

use api::{
    Config, Inference, Server,
    inference::{
        Done, EmbedRequest, Embeddings, Event, Failure, Finish, GenerateRequest, Generation, Metric, Mode,
        ModelInfo, Plan, Report, Usage,
    },
    swarm::{Contribution, ContributionChange, NodeState, SwarmEvent, SwarmSnapshot},
};
use futures::{
    FutureExt, StreamExt,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::sleep,
};

const NAME: &str = "counter";
const WORDS: [&str; 10] = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"];
/// How long a token takes.
const PACE: Duration = Duration::from_millis(50);

struct Counter;

/// What the counter answers to requests that it has no meaning for.
fn unavailable(what: &str) -> Failure {
    Failure::Invalid { field: None, why: format!("{NAME} has no {what}") }
}

impl Inference for Counter {
    fn models(&self) -> Vec<ModelInfo> {
        vec![ModelInfo {
            name: NAME.into(),
            hash: None,
            architecture: "counter".into(),
            format: "none".into(),
            parameters: 0,
            file_bytes: 0,
            context: WORDS.len(),
            num_layers: 0,
            hidden: 0,
            template: None,
            created_s: 0,
            modes: vec![Mode::Local],
            tools: false,
            embeddings: false,
            local: true,
        }]
    }

    fn ready(&self, _model: Option<&str>) -> Result<(), Failure> {
        Ok(())
    }

    fn generate(&self, request: GenerateRequest) -> BoxFuture<'static, Result<Generation, Failure>> {
        let wanted = request.max_tokens.unwrap_or(WORDS.len()).min(WORDS.len());
        // Dropping the stream ends it: nothing is computed for a client that is gone.
        let tokens = stream::iter(WORDS.iter().take(wanted).enumerate()).then(|(index, word)| async move {
            sleep(PACE).await;
            let text = if index == 0 { (*word).to_owned() } else { format!(" {word}") };
            Event::Token { id: index as u32, text, logprobs: None }
        });
        let done = Done {
            finish: if wanted < WORDS.len() { Finish::Length } else { Finish::Stop },
            stop: None,
            usage: Usage { completion_tokens: wanted, ..Usage::default() },
            report: Report::default(),
        };
        let events = tokens.chain(stream::iter([Event::Done(done)])).boxed();
        let seed = request.seed.unwrap_or_default();
        let plan = Plan { model: NAME.into(), route: vec!["me:0-0".into()], seed, ..Plan::default() };
        async move { Ok(Generation { plan, events }) }.boxed()
    }

    fn count(&self, _: GenerateRequest) -> BoxFuture<'static, Result<usize, Failure>> {
        async { Err(unavailable("counting")) }.boxed()
    }

    fn embed(&self, _: EmbedRequest) -> BoxFuture<'static, Result<Embeddings, Failure>> {
        async { Err(unavailable("embeddings")) }.boxed()
    }

    fn swarm(&self) -> SwarmSnapshot {
        SwarmSnapshot { me: "me".into(), state: NodeState::Ready, ..SwarmSnapshot::default() }
    }

    fn watch(&self) -> BoxStream<'static, SwarmEvent> {
        stream::pending().boxed()
    }

    fn agree(&self, _: Mode, _: bool) -> Result<(), Failure> {
        Err(unavailable("strangers to agree to"))
    }

    fn contribute(&self, _: ContributionChange) -> Result<Contribution, Failure> {
        Err(unavailable("layers to give"))
    }

    fn metrics(&self) -> Vec<Metric> {
        Vec::new()
    }
}

#[tokio::main]
async fn main() -> io::Result<()> {
    let once = std::env::args().any(|arg| arg == "--once");
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let config = Config::default();
    let token = config.token.clone().unwrap_or_default();
    let server = Server::new(Arc::new(Counter), listener, config)?;
    let address = server.address();
    if !once {
        println!("http://{address}/#t={}", server.ticket());
        println!("curl -H 'Authorization: Bearer {token}' http://{address}/v1/models");
        server.run(std::future::pending()).await;
        return Ok(());
    }
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(server.run(async move { drop(stopped.await) }));
    let body = r#"{"messages": [{"role": "user", "content": "Count!"}], "max_tokens": 3}"#;
    let mut stream = TcpStream::connect(address).await?;
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    println!("{}", answer.split_once("\r\n\r\n").map_or(answer.as_str(), |(_, body)| body));
    drop(stop);
    serving.await?;
    Ok(())
}
