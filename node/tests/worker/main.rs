//! The worker subprocess, as the daemon uses it: real processes over the embedded model.
#![cfg(unix)]
#![forbid(unsafe_code)]

mod crash;
mod cut;
mod engine;
mod fold;
mod forms;
mod whole;

use std::{ops::ControlFlow, time::Duration};

use node::{
    cli::EngineArgs,
    encode,
    inference::local::prompt::{self, Request, Session},
    model::Model,
    worker::{
        Body, Conduct, DraftIds, Job, JobInput, Manners, OpenSession, Output, Ready, Sampled, Source, Spec,
        Want, Worker, spawn,
    },
};
use p2p::{
    codec::{Rounding, Wire},
    wire::announce::Class,
};
use scheduler::{LayerRange, SessionId, SessionKind};
use shard::sample::SamplingParams;
use tokio::sync::mpsc::Receiver;

const CONTEXT: usize = 512;
/// Far longer than any answer here takes; a worker that hangs fails the test instead of stopping it.
const PATIENCE: Duration = Duration::from_secs(120);

fn spec(layers: &[LayerRange]) -> Spec {
    Spec {
        program: Some(env!("CARGO_BIN_EXE_shoal").into()),
        class: Some(Class::D1),
        layers: layers.to_vec(),
        context: CONTEXT,
        manners: Manners { threads: Some(1), pin: false, nice: false },
        ..Spec::new(Source::Embedded)
    }
}

fn range(start: u32, end: u32) -> LayerRange {
    LayerRange::new(start, end).unwrap()
}

/// A worker and what it says.
struct Child {
    worker: Worker,
    ready: Ready,
    outputs: Receiver<Output>,
}

impl Child {
    async fn start(layers: &[LayerRange]) -> Self {
        Self::of(spec(layers)).await
    }

    async fn of(spec: Spec) -> Self {
        let (worker, ready, outputs) = tokio::time::timeout(PATIENCE, spawn(spec)).await.unwrap().unwrap();
        Self { worker, ready, outputs }
    }

    async fn next(&mut self) -> Output {
        tokio::time::timeout(PATIENCE, self.outputs.recv()).await.unwrap().unwrap()
    }

    /// Runs one job and gives what came of it.
    async fn run(&mut self, job: Job) -> Body {
        self.worker.run(job).unwrap();
        self.next().await.body
    }
}

fn open(session: SessionId, layers: LayerRange, conduct: Option<Conduct>) -> OpenSession {
    OpenSession {
        session,
        epoch: 1,
        layers,
        positions: CONTEXT as u32,
        at: 0,
        rounding: Rounding::NONE,
        kind: SessionKind::DEFAULT,
        kept: Vec::new(),
        conduct,
    }
}

fn job(session: SessionId, layer: u32, from: usize, rows: usize, input: JobInput, want: Want) -> Job {
    let (from, rows, draft) = (from as u32, rows as u32, DraftIds::default());
    Job { session, epoch: 1, layer, from, rows, input, want, attempt: 0, draft, foresee: 0 }
}

/// What the answer without any worker is.
struct Expected {
    prompt: Vec<u32>,
    /// Generated ids and the text that came with each.
    steps: Vec<(u32, String)>,
    /// Text at the end.
    text: String,
    stopped: bool,
}

fn model() -> Model {
    let args =
        EngineArgs { threads: Some(1), ctx: Some(CONTEXT), no_pin: true, ..EngineArgs::default_model() };
    Model::load(&args).unwrap()
}

fn expected(
    model: &Model,
    prompt: &[u32],
    sampling: &SamplingParams,
    stop: &[&str],
    max_tokens: usize,
) -> Expected {
    let request = Request {
        draft: Default::default(),
        prompt: prompt.to_vec(),
        sampling: sampling.clone(),
        seed: 7,
        max_tokens,
        stop: stop.iter().map(|s| s.to_string()).collect(),
        context_shift: false,
    };
    let mut session = Session::new(model).unwrap();
    let mut steps = Vec::new();
    let summary = prompt::generate(model, &mut session, &request, &mut |event| {
        if let prompt::Event::Token { id, text, .. } = event {
            steps.push((id, text.to_string()));
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    Expected {
        prompt: prompt.to_vec(),
        steps,
        text: summary.text,
        stopped: summary.finish == prompt::Finish::Stop,
    }
}

fn conduct(prompt: &[u32], emitted: &[u32], sampling: &SamplingParams, stop: &[&str]) -> Conduct {
    Conduct {
        sampling: sampling.clone(),
        seed: 7,
        stop: stop.iter().map(|s| s.to_string()).collect(),
        history: [prompt, emitted].concat(),
        prompt_tokens: prompt.len() as u32,
        ..Conduct::default()
    }
}

fn creative() -> SamplingParams {
    SamplingParams {
        temperature: 0.8,
        top_p: 0.9,
        repetition_penalty: 1.1,
        logprobs: true,
        top_logprobs: 2,
        ..SamplingParams::default()
    }
}

/// A `Sampled` body's id, text and whether it stops.
#[track_caller]
fn sampled(body: Body) -> (u32, String, bool) {
    match body {
        Body::Sampled(mut one) if one.len() == 1 => {
            let Sampled { id, text, stop, .. } = one.remove(0);
            (id, text, stop)
        }
        other => panic!("a token was expected, not {other:?}"),
    }
}

/// An `Activations` body's bytes, for the next stage.
#[track_caller]
fn activations(body: Body) -> JobInput {
    match body {
        Body::Activations(wire, bytes) => JobInput::Wire(wire, bytes),
        other => panic!("activations were expected, not {other:?}"),
    }
}
