//! The process that computes for `shoal serve`: `shoal worker --engine`.
//!
//! It reads which model to run, takes its descriptor, makes the runtime of its tasks, confines itself
//! ([`crate::confine`]), and only then looks at the model. It holds no token and no socket but the one to its parent.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
};

use api::{
    Inference,
    inference::{EmbedRequest, Event, GenerateRequest, Ranking, RerankRequest, TokenLogprobs},
};
use futures::StreamExt;
use shard::{executor::Device, kernels::threads::Pool};
use tokio::{
    io::AsyncWriteExt,
    sync::{Semaphore, mpsc},
    task::AbortHandle,
    time::{interval, sleep},
};

use super::{
    Alone,
    batch::drafter_bytes,
    wire::{self, FromEngine, ToEngine, WINDOW},
};
use crate::{
    Error, Result,
    cli::EngineArgs,
    confine::{self, Purpose, watch},
    library::Located,
    model::{self, Model},
    platform::{
        handed_files,
        streams::{BlockingStream, Stream},
    },
    state_store::{StateStore, Ticket},
};

/// Messages on the way to the parent; a full channel stops the answers that have more to say.
const MAX_UNWRITTEN: usize = 256;
/// How often the parent hears how much is under way, if that changed.
const GAUGES: Duration = Duration::from_millis(250);
/// How often it is looked whether the model is loaded.
const LOADING: Duration = Duration::from_millis(10);

/// Serves the parent at the other end of standard input until it goes.
///
/// # Errors
/// When standard input is no socket, or the first message is not [`ToEngine::Start`].
pub fn run() -> Result<()> {
    let mut stream = confine::child::to_parent()?;
    confine::begin_worker();
    let ToEngine::Start(spec) = wire::read(&mut stream)? else {
        return Err(Error::usage("the first message asks for no model"));
    };
    let spec = *spec;
    let located = receive(&stream, spec.file.as_ref(), spec.panels)?;
    let drafter = spec.drafter.as_ref().and_then(|(_, file)| file.as_ref());
    let drafter_file = receive(&stream, drafter, false)?;
    let head_file = receive(&stream, spec.draft_head.as_ref(), false)?;
    let ticket = match spec.state_secret {
        None => None,
        Some(secret) => {
            let file = handed_files::receive(&stream)?.into_iter().next();
            file.map(|file| Ticket { file, path: PathBuf::new(), secret })
        }
    };
    stream.set_nonblocking(true)?;
    // What follows needs files that cannot be opened later: which processors there are, and what tasks wait with.
    Pool::physical_cores();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let files = [&located, &drafter_file, &head_file].into_iter().flatten().flat_map(Located::files);
    let bytes = files.map(|(_, bytes)| bytes).sum();
    let memory = confine::for_model(bytes, spec.kv_bytes as u64);
    confine::enter_worker(Purpose::Engine, &spec.device.0, memory);
    let args = EngineArgs {
        model: Some(spec.model.clone()),
        threads: spec.threads,
        ctx: spec.ctx,
        isa: spec.isa.clone(),
        device: spec.device.0.parse()?,
        gpu_memory: None,
        gpu_share: None,
        no_pin: spec.no_pin,
        panel_cache: spec.panel_cache,
        draft_head: None,
    };
    let (name, kv_bytes) = (spec.name.clone(), spec.kv_bytes);
    let failed = Arc::new(OnceLock::new());
    let (hangs, refuses) = (failed.clone(), failed.clone());
    watch::start(&spec.device.0, move |why| drop(hangs.set(why)))?;
    let load = move || {
        let threads = args.threads.map_or_else(Pool::physical_cores, usize::from);
        let on = || model::cpu(args.isa.as_deref(), Pool::on(threads, spec.processors.clone()));
        let device = Device::open(args.device()?, spec.device.1.as_deref(), on)?;
        // What the driver says while the model is loaded, or the model's own error.
        let failed = |error| {
            device.lost().into_iter().for_each(|why| drop(refuses.set(why)));
            error
        };
        let mut model = Model::of(located.as_ref(), &args, device.clone()).map_err(failed)?;
        if let Some((name, _)) = &spec.drafter {
            model.draft_with(name, drafter_file.as_ref(), &model::on_cpu(&device, on)?)?;
            fits(&model, name, kv_bytes)?;
        }
        model.foresee_with(head_file.as_ref())?;
        Ok(model)
    };
    let store = ticket.map(StateStore::open).transpose()?;
    let alone = Alone::of(load, name, kv_bytes, store)?;
    runtime.block_on(async { serve(alone, Stream::from_std(stream)?, failed).await })
}

/// Takes the descriptors of a model, if it has a file.
fn receive(
    stream: &BlockingStream,
    file: Option<&(PathBuf, Vec<u64>)>,
    has_panels: bool,
) -> Result<Option<Located>> {
    let Some((path, lengths)) = file else { return Ok(None) };
    let mut files = Vec::new();
    while files.len() < lengths.len() {
        files.extend(handed_files::receive(stream)?);
    }
    let mut files = files.into_iter().zip(lengths.iter().copied());
    let first = files.next().ok_or_else(|| Error::usage("the parent sent no file with its name"))?;
    let (file, bytes) = first;
    let panels = if has_panels { handed_files::receive(stream)?.into_iter().next() } else { None };
    let panels = panels.map(Arc::new);
    Ok(Some(Located { file, bytes, path: path.clone(), rest: files.collect(), panels }))
}

/// Refuses a draft model whose state would leave answers less than half of the memory for caches.
fn fits(model: &Model, drafter: &str, kv_bytes: usize) -> Result<()> {
    let bytes = drafter_bytes(model);
    if bytes <= kv_bytes / 2 {
        return Ok(());
    }
    Err(Error::usage(format!(
        "\"{drafter}\" drafts with {} MiB of state, more than half of the {} MiB for caches: raise --kv-mib or lower --ctx",
        bytes.div_ceil(1 << 20),
        kv_bytes >> 20
    )))
}

async fn serve(alone: Arc<Alone>, stream: Stream, failed: Arc<OnceLock<String>>) -> Result<()> {
    let (mut read, mut write) = stream.into_split();
    let (said, mut saying) = mpsc::channel::<Vec<u8>>(MAX_UNWRITTEN);
    let writer = tokio::spawn(async move {
        while let Some(frame) = saying.recv().await {
            if write.write_all(&frame).await.is_err() {
                break;
            }
        }
    });
    tokio::spawn(tell_state(alone.clone(), said.clone(), failed));
    let mut running: HashMap<u64, (AbortHandle, Arc<Semaphore>)> = HashMap::new();
    // The end of the stream is the end of the parent.
    while let Ok(message) = wire::receive(&mut read).await {
        running.retain(|_, (task, _)| !task.is_finished());
        match message {
            ToEngine::Start(_) => return Err(Error::usage("a second model for one engine")),
            ToEngine::Generate { id, request } => {
                let window = Arc::new(Semaphore::new(WINDOW));
                let task = tokio::spawn(answer(alone.clone(), id, *request, window.clone(), said.clone()));
                running.insert(id, (task.abort_handle(), window));
            }
            ToEngine::Count { id, request } => {
                let task = tokio::spawn(count(alone.clone(), id, *request, said.clone()));
                running.insert(id, (task.abort_handle(), Arc::new(Semaphore::new(0))));
            }
            ToEngine::Embed { id, request } => {
                let task = tokio::spawn(embed(alone.clone(), id, request, said.clone()));
                running.insert(id, (task.abort_handle(), Arc::new(Semaphore::new(0))));
            }
            ToEngine::Rerank { id, request } => {
                let task = tokio::spawn(rerank(alone.clone(), id, request, said.clone()));
                running.insert(id, (task.abort_handle(), Arc::new(Semaphore::new(0))));
            }
            ToEngine::Read { id, events } => {
                if let Some((_, window)) = running.get(&id) {
                    // No more than were ever taken: what the parent says twice does not widen the window.
                    let room = WINDOW.saturating_sub(window.available_permits());
                    window.add_permits(room.min(events as usize));
                }
            }
            ToEngine::Cancel { id } => {
                if let Some((task, _)) = running.remove(&id) {
                    task.abort();
                }
            }
        }
    }
    writer.abort();
    Ok(())
}

/// Says a message; one that cannot be said ends the process, since silence would be a hang there.
async fn say(to: &mpsc::Sender<Vec<u8>>, message: &FromEngine) {
    match wire::frame(message) {
        Ok(frame) => drop(to.send(frame).await),
        Err(error) => {
            eprintln!("error: engine: {error}");
            std::process::exit(1);
        }
    }
}

/// `failed` is why the device does not come back, if that is so.
async fn tell_state(alone: Arc<Alone>, to: mpsc::Sender<Vec<u8>>, failed: Arc<OnceLock<String>>) {
    let lost = || failed.get().cloned().or_else(|| alone.lost());
    let loaded = loop {
        if let Some(why) = lost() {
            return say(&to, &FromEngine::Lost { why }).await;
        }
        match alone.loaded() {
            Some(loaded) => break loaded,
            None => sleep(LOADING).await,
        }
    };
    let info = loaded.map(|()| alone.models().into_iter().next());
    let info = info.and_then(|info| info.map(Box::new).ok_or_else(|| "the model is gone".to_owned()));
    say(&to, &FromEngine::Loaded(info)).await;
    let (mut last, mut ticks) = (None, interval(GAUGES));
    loop {
        ticks.tick().await;
        if let Some(why) = lost() {
            return say(&to, &FromEngine::Lost { why }).await;
        }
        let reading = alone.reading();
        if last != Some(reading) {
            last = Some(reading);
            say(&to, &FromEngine::Gauges(reading)).await;
        }
    }
}

async fn answer(
    alone: Arc<Alone>,
    id: u64,
    request: GenerateRequest,
    window: Arc<Semaphore>,
    to: mpsc::Sender<Vec<u8>>,
) {
    let mut generation = match alone.generate(request).await {
        Ok(generation) => generation,
        Err(failure) => return say(&to, &FromEngine::Refused { id, failure }).await,
    };
    say(&to, &FromEngine::Begun { id, plan: generation.plan }).await;
    while let Some(mut event) = generation.events.next().await {
        match window.acquire().await {
            Ok(permit) => permit.forget(),
            Err(_) => return,
        }
        make_finite(&mut event);
        say(&to, &FromEngine::Event { id, event }).await;
    }
}

/// JSON has no word for what is no number.
fn make_finite(event: &mut Event) {
    let clamp = |logprobs: &mut TokenLogprobs| {
        for logprob in logprobs.top.iter_mut().chain([&mut logprobs.chosen]) {
            logprob.logprob = logprob.logprob.clamp(f32::MIN, f32::MAX);
        }
    };
    match event {
        Event::Token { logprobs: Some(logprobs), .. } => clamp(logprobs),
        Event::Prompt(tokens) => {
            tokens.iter_mut().filter_map(|token| token.logprobs.as_mut()).for_each(clamp)
        }
        Event::Done(done) => {
            let report = &mut done.report;
            for figure in [&mut report.ttft_ms, &mut report.prefill_ms, &mut report.tok_s] {
                *figure = if figure.is_finite() { *figure } else { 0.0 };
            }
        }
        _ => {}
    }
}

async fn count(alone: Arc<Alone>, id: u64, request: GenerateRequest, to: mpsc::Sender<Vec<u8>>) {
    let counted = alone.count(request).await;
    let said = counted.map_or_else(
        |failure| FromEngine::Refused { id, failure },
        |tokens| FromEngine::Counted { id, tokens },
    );
    say(&to, &said).await;
}

async fn embed(alone: Arc<Alone>, id: u64, request: EmbedRequest, to: mpsc::Sender<Vec<u8>>) {
    match alone.embed(request).await {
        Ok(embeddings) => {
            for values in embeddings.vectors {
                say(&to, &FromEngine::Vector { id, values }).await;
            }
            let (model, prompt_tokens) = (embeddings.model, embeddings.prompt_tokens);
            say(&to, &FromEngine::Embedded { id, model, prompt_tokens }).await;
        }
        Err(failure) => say(&to, &FromEngine::Refused { id, failure }).await,
    }
}

async fn rerank(alone: Arc<Alone>, id: u64, request: RerankRequest, to: mpsc::Sender<Vec<u8>>) {
    match alone.rerank(request).await {
        Ok(Ranking { model, scores, prompt_tokens }) => {
            say(&to, &FromEngine::Vector { id, values: scores }).await;
            say(&to, &FromEngine::Embedded { id, model, prompt_tokens }).await;
        }
        Err(failure) => say(&to, &FromEngine::Refused { id, failure }).await,
    }
}
