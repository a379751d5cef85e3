//! An inference that computes nothing: it echoes, in words, and says what it was asked for. Its swarm has five nodes; one
//! of them fails in the middle of every answer through the swarm.
#![allow(dead_code)]

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use api::{
    Inference,
    inference::{
        Done, EmbedRequest, Embeddings, Event, Failure, Finish, Format, GenerateRequest, Generation, Metric,
        Mode, ModelInfo, Plan, Prompt, PromptToken, Ranking, Report, RerankRequest, SwarmRecords,
        TokenLogprob, TokenLogprobs, Usage, Verify,
    },
    swarm::{
        Connection, Contribution, ContributionChange, Holding, ModeInfo, Node, NodeState, Pipeline,
        Reachability, Stage, SwarmEvent, SwarmModel, SwarmSnapshot,
    },
};
use futures::{
    FutureExt, StreamExt,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use tokio::sync::broadcast;

/// Layers of the fake model.
const LAYERS: u32 = 32;
/// Changes a reader may lag behind.
const CHANGES: usize = 256;

pub struct Fake {
    /// Milliseconds per token.
    pub pace_ms: u64,
    /// Before which token of an answer it stands still, and for how many milliseconds.
    pub pause: Option<(usize, u64)>,
    /// What is answered instead of an echo.
    pub script: Mutex<Option<String>>,
    /// Whether prompts end inside a block of reasoning.
    pub open: AtomicBool,
    /// What is answered to everything, if anything.
    pub failure: Mutex<Option<Failure>>,
    /// The last request.
    pub last: Mutex<Option<GenerateRequest>>,
    /// The last texts to embed.
    pub embedded: Mutex<Option<EmbedRequest>>,
    /// Who keeps records, if anyone.
    pub records: Option<std::sync::Arc<dyn SwarmRecords>>,
    /// Answers whose stream is alive.
    pub alive: std::sync::Arc<AtomicUsize>,
    state: Mutex<SwarmSnapshot>,
    changes: broadcast::Sender<SwarmEvent>,
}

/// Counts a stream as alive until dropped.
struct Alive(std::sync::Arc<AtomicUsize>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_millis() as u64)
}

fn id(n: u8) -> String {
    (0..32u8).map(|i| format!("{:02x}", n.wrapping_mul(37).wrapping_add(i.wrapping_mul(n) | n))).collect()
}

fn node(n: u8, name: &str, layers: (u32, u32), rtt_ms: f64) -> Node {
    Node {
        id: id(n),
        name: name.into(),
        me: n == 1,
        trusted: n == 1 || n == 2,
        state: "up".into(),
        class: "d1".into(),
        connection: Connection {
            path: ["self", "lan", "direct", "relayed", "direct"][usize::from(n) - 1].into(),
            rtt_ms: (n != 1).then_some(rtt_ms),
            ..Connection::default()
        },
        holdings: vec![Holding { model: id(9), start: layers.0, end: layers.1 }],
        layer_ms: Some(1.5 + f64::from(n) / 4.0),
        memory_bytes: 8 << 30,
        kv_free_bytes: 2 << 30,
        load: 0.1 * f64::from(n),
        checks_passed: 12,
        ..Node::default()
    }
}

fn stage(n: u8, start: u32, end: u32) -> Stage {
    let hop_ms = (n != 1 || start > 0).then_some(4.0 * f64::from(n));
    Stage { node: id(n), start, end, compute_ms: Some(f64::from(end - start) * 1.8), hop_ms }
}

fn snapshot() -> SwarmSnapshot {
    let mode = |mode, sentence: &str| ModeInfo {
        mode,
        sentence: sentence.into(),
        available: true,
        reason: None,
        agreed: true,
    };
    SwarmSnapshot {
        at_ms: now_ms(),
        version: "0.1.0".into(),
        me: id(1),
        swarm: "home".into(),
        state: NodeState::Ready,
        reason: None,
        reachability: Reachability {
            class: "direct".into(),
            why: "two peers reached this node from outside".into(),
        },
        nodes: vec![
            node(1, "this machine", (0, 2), 0.0),
            node(2, "attic", (2, 16), 1.2),
            node(3, "3f2a91c0", (16, 30), 24.0),
            node(4, "<b>bold</b> & co", (2, 16), 48.0),
            node(5, "7be2c5aa", (16, 30), 31.0),
        ],
        models: vec![SwarmModel {
            id: id(9),
            name: "fake-7b".into(),
            num_layers: LAYERS,
            file_bytes: 4 << 30,
            holders: (0..LAYERS).map(|layer| if (2..30).contains(&layer) { 2 } else { 1 }).collect(),
            complete: true,
            download: None,
        }],
        pipelines: Vec::new(),
        verdicts: Vec::new(),
        names: Vec::new(),
        contribution: Contribution {
            memory_bytes: Some(8 << 30),
            threads: Some(4),
            served_layer_tokens: 123_456,
            served_sessions: 42,
            bytes_in: 1 << 28,
            bytes_out: 1 << 29,
            ..Contribution::default()
        },
        default_mode: Mode::Boomerang,
        modes: vec![
            mode(Mode::Local, "Only this machine: everything is computed here."),
            mode(Mode::Trusted, "The nodes you named as trusted can read it."),
            mode(
                Mode::Boomerang,
                "Strangers get neither text nor tokens, but can reconstruct much of the text from what they compute on.",
            ),
            mode(Mode::Open, "Every node that takes part can read it."),
        ],
    }
}

impl Fake {
    pub fn new() -> Self {
        Self {
            pace_ms: 60,
            pause: None,
            script: Mutex::default(),
            failure: Mutex::default(),
            last: Mutex::default(),
            embedded: Mutex::default(),
            open: AtomicBool::new(false),
            alive: std::sync::Arc::default(),
            records: None,
            state: Mutex::new(snapshot()),
            changes: broadcast::Sender::new(CHANGES),
        }
    }

    /// As [`Fake::new`], without pauses.
    pub fn quick() -> Self {
        Self::paced(0)
    }

    /// As [`Fake::new`], with this many milliseconds per token.
    pub fn paced(pace_ms: u64) -> Self {
        Self { pace_ms, ..Self::new() }
    }

    /// As [`Fake::quick`], but every answer stands still for `ms` before its token `before`.
    pub fn pausing(before: usize, ms: u64) -> Self {
        Self { pause: Some((before, ms)), ..Self::quick() }
    }

    fn tell(&self, event: SwarmEvent) {
        // There may be no listener.
        let _ = self.changes.send(event);
    }

    /// Round trips and loads move, for as long as a reader looks.
    pub async fn live(self: std::sync::Arc<Self>) {
        for beat in 0u64.. {
            tokio::time::sleep(Duration::from_millis(1500)).await;
            let node = {
                let mut state = self.state.lock().unwrap();
                let at = (beat % 4 + 1) as usize;
                let node = &mut state.nodes[at];
                node.load = ((beat % 10) as f64) / 10.0;
                node.connection.rtt_ms =
                    node.connection.rtt_ms.map(|rtt| (rtt * 10.0 + (beat % 3) as f64 - 1.0).max(5.0) / 10.0);
                node.state = "up".into();
                node.clone()
            };
            self.tell(SwarmEvent::Node { node: Box::new(node) });
        }
    }

    fn answer_to(&self, request: &GenerateRequest) -> String {
        if let Some(script) = self.script.lock().unwrap().clone() {
            return script;
        }
        if let Format::JsonSchema(schema) = &request.format {
            let name = &schema["properties"]["name"]["const"];
            return match name.as_str() {
                Some(name) => format!("{{\"name\": \"{name}\", \"arguments\": {{\"city\": \"Paris\"}}}}"),
                None => "{\"city\": \"Paris\"}".into(),
            };
        }
        if request.format == Format::JsonObject {
            return "{\"ok\": true}".into();
        }
        match &request.prompt {
            Prompt::Messages { messages, .. } => {
                let last = messages.as_array().and_then(|list| list.last());
                let text = last.and_then(|message| message["content"].as_str()).unwrap_or_default();
                format!("You said: {text}")
            }
            Prompt::Text(text) => format!(" and then: {text}"),
            Prompt::Tokens(ids) => format!("{} tokens", ids.len()),
        }
    }
}

/// Words with the space before them.
fn words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for c in text.chars() {
        if c == ' ' || words.is_empty() {
            words.push(String::new());
        }
        words.last_mut().unwrap().push(c);
    }
    words
}

fn logprobs(word: &str, top: usize) -> TokenLogprobs {
    let token = |id: usize, text: &str| TokenLogprob {
        id: id as u32,
        bytes: text.as_bytes().to_vec(),
        logprob: -0.5 * (id + 1) as f32,
    };
    let others = (0..top).map(|i| if i == 0 { token(0, word) } else { token(i, &format!("alt{i}")) });
    TokenLogprobs { chosen: token(0, word), top: others.collect() }
}

impl Inference for Fake {
    fn models(&self) -> Vec<ModelInfo> {
        let model = |name: &str, modes: &[Mode]| ModelInfo {
            name: name.into(),
            hash: Some(id(9)),
            architecture: "llama".into(),
            format: "q4_0".into(),
            parameters: 7_000_000_000,
            file_bytes: 4 << 30,
            context: 4096,
            num_layers: LAYERS as usize,
            hidden: 4096,
            template: Some("{{ messages }}<think>".into()),
            created_s: 1_700_000_000,
            modes: modes.to_vec(),
            tools: true,
            embeddings: true,
            local: modes.contains(&Mode::Local),
        };
        vec![
            model("fake-7b", &[Mode::Trusted, Mode::Boomerang, Mode::Open]),
            model("fake-small", &[Mode::Local]),
        ]
    }

    fn ready(&self, _model: Option<&str>) -> Result<(), Failure> {
        match &*self.failure.lock().unwrap() {
            Some(failure @ Failure::Unavailable { .. }) => Err(failure.clone()),
            _ => Ok(()),
        }
    }

    fn generate(&self, request: GenerateRequest) -> BoxFuture<'static, Result<Generation, Failure>> {
        *self.last.lock().unwrap() = Some(request.clone());
        if let Some(failure) = self.failure.lock().unwrap().clone() {
            return futures::future::ready(Err(failure)).boxed();
        }
        let mode = request.mode.unwrap_or(Mode::Boomerang);
        let agreed = self.state.lock().unwrap().modes.iter().any(|known| known.mode == mode && known.agreed);
        if !agreed && !request.guard.agreed {
            let refused = Failure::NotAgreed { mode, sentence: "Strangers could read it".into() };
            return futures::future::ready(Err(refused)).boxed();
        }
        let text = self.answer_to(&request);
        let model = request.model.clone().unwrap_or_else(|| "fake-7b".into());
        let local = model == "fake-small" || request.mode == Some(Mode::Local);
        let mode = if local { Mode::Local } else { request.mode.unwrap_or(Mode::Boomerang) };
        let plan = Plan {
            model: model.clone(),
            mode,
            verify: if local { Verify::Off } else { request.guard.verify.unwrap_or(Verify::Sample) },
            wire: request.wire.form(),
            attention: "dense".into(),
            kv_cache_type: "f16".into(),
            cuts: request.wire.cuts.clone(),
            route: if local {
                vec!["me:0-32".into()]
            } else {
                vec!["me:0-2".into(), "4b0c4d06:2-16".into(), "70737679:16-30".into(), "me:30-32".into()]
            },
            predicted_tok_s: Some(16.0),
            seed: request.seed.unwrap_or(42),
            prompt_tokens: 7,
            reasoning: self.open.load(Ordering::SeqCst),
        };
        let limit = request.max_tokens.unwrap_or(usize::MAX);
        let mut all = words(&text);
        let finish = if all.len() > limit { Finish::Length } else { Finish::Stop };
        all.truncate(limit);
        let n = all.len();
        let pipeline = Pipeline {
            session: request.id.bytes().rev().take(16).map(|b| format!("{b:02x}")).collect(),
            request: request.id.clone(),
            model,
            mode,
            tok_s: 16.0,
            stages: vec![stage(1, 0, 2), stage(2, 2, 16), stage(3, 16, 30), stage(1, 30, LAYERS)],
            standbys: vec![stage(5, 16, 30)],
            ..Pipeline::default()
        };
        let mut events = Vec::new();
        if request.echo {
            let spelled = match &request.prompt {
                Prompt::Text(text) => words(text),
                Prompt::Tokens(ids) => ids.iter().map(|id| format!(" {id}")).collect(),
                Prompt::Messages { .. } => Vec::new(),
            };
            // In pieces, as a long prompt is computed.
            let tokens: Vec<PromptToken> = spelled
                .iter()
                .enumerate()
                .map(|(i, word)| PromptToken {
                    id: i as u32,
                    bytes: word.as_bytes().to_vec(),
                    logprobs: request.logprobs.filter(|_| i > 0).map(|top| logprobs(word, top)),
                })
                .collect();
            events.extend(tokens.chunks(2).map(|piece| Event::Prompt(piece.to_vec())));
        }
        for (i, word) in all.iter().enumerate() {
            let logprobs = request.logprobs.map(|top| logprobs(word, top));
            events.push(Event::Token { id: i as u32, text: word.clone(), logprobs });
            if i + 1 == n.div_ceil(2) && !local && self.pace_ms > 0 {
                events.push(Event::Failover {
                    lost: id(3)[..8].into(),
                    replacement: id(5)[..8].into(),
                    stall_ms: 180.0,
                });
            }
        }
        let faults = usize::from(!local && self.pace_ms > 0);
        let report = Report {
            computed_by: if local {
                vec!["me".into()]
            } else {
                vec!["me".into(), id(2)[..8].into(), id(3)[..8].into()]
            },
            checked_by: if local { Vec::new() } else { vec![id(5)[..8].into()] },
            checked_tokens: if local { 0 } else { n },
            checking: false,
            convicted: Vec::new(),
            wrong_from: None,
            faults_survived: faults,
            ttft_ms: 120.0,
            prefill_ms: 100.0,
            tok_s: 15.5,
            drafts: None,
        };
        let usage = Usage { prompt_tokens: 7, cached_tokens: 2, completion_tokens: n };
        events.push(Event::Done(Done { finish, stop: None, usage, report }));
        self.alive.fetch_add(1, Ordering::SeqCst);
        let alive = Alive(self.alive.clone());
        let (pace, changes) = (self.pace_ms, (!local).then(|| self.changes.clone()));
        if let Some(changes) = &changes {
            let _ = changes.send(SwarmEvent::Pipeline { pipeline: pipeline.clone() });
        }
        let (state, pause) = ((pipeline, 7u32), self.pause);
        let events = stream::iter(events).scan(state, move |(pipeline, position), event| {
            let _held = &alive;
            let changes = changes.clone();
            let told = simulate(pipeline, position, &event);
            async move {
                if let (Some((before, ms)), Event::Token { id, .. }) = (pause, &event)
                    && before == *id as usize
                {
                    tokio::time::sleep(Duration::from_millis(ms)).await;
                }
                if pace > 0 {
                    let stall = matches!(event, Event::Failover { .. });
                    tokio::time::sleep(Duration::from_millis(if stall { 180 } else { pace })).await;
                }
                for change in told {
                    if let Some(changes) = &changes {
                        let _ = changes.send(change);
                    }
                }
                Some(event)
            }
        });
        futures::future::ready(Ok(Generation { plan, events: events.boxed() })).boxed()
    }

    fn count(&self, request: GenerateRequest) -> BoxFuture<'static, Result<usize, Failure>> {
        *self.last.lock().unwrap() = Some(request);
        let refused = self.failure.lock().unwrap().clone();
        futures::future::ready(refused.map_or(Ok(7), Err)).boxed()
    }

    fn embed(&self, request: EmbedRequest) -> BoxFuture<'static, Result<Embeddings, Failure>> {
        *self.embedded.lock().unwrap() = Some(request.clone());
        if let Some(failure) = self.failure.lock().unwrap().clone() {
            return futures::future::ready(Err(failure)).boxed();
        }
        let vectors = request.inputs.iter().map(|_| vec![0.6, 0.8]).collect();
        let model = request.model.unwrap_or_else(|| "fake-7b".into());
        futures::future::ready(Ok(Embeddings { model, vectors, prompt_tokens: 3 })).boxed()
    }

    /// A document's share of the words of the query.
    fn rerank(&self, request: RerankRequest) -> BoxFuture<'static, Result<Ranking, Failure>> {
        if let Some(failure) = self.failure.lock().unwrap().clone() {
            return futures::future::ready(Err(failure)).boxed();
        }
        let words: Vec<&str> = request.query.split(' ').collect();
        let share = |text: &String| words.iter().filter(|word| text.contains(**word)).count() as f32;
        let scores = request.documents.iter().map(|text| share(text) / words.len() as f32).collect();
        let model = request.model.clone().unwrap_or_else(|| "fake-7b".into());
        futures::future::ready(Ok(Ranking { model, scores, prompt_tokens: 9 })).boxed()
    }

    fn swarm(&self) -> SwarmSnapshot {
        let mut snapshot = self.state.lock().unwrap().clone();
        snapshot.at_ms = now_ms();
        snapshot
    }

    fn watch(&self) -> BoxStream<'static, SwarmEvent> {
        let changes = self.changes.subscribe();
        stream::unfold(changes, |mut changes| async move {
            loop {
                match changes.recv().await {
                    Ok(event) => return Some((event, changes)),
                    Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return None,
                }
            }
        })
        .boxed()
    }

    fn agree(&self, mode: Mode, agreed: bool) -> Result<(), Failure> {
        let mut state = self.state.lock().unwrap();
        let known = state.modes.iter_mut().find(|known| known.mode == mode);
        known.unwrap().agreed = agreed;
        Ok(())
    }

    fn contribute(&self, change: ContributionChange) -> Result<Contribution, Failure> {
        let mut state = self.state.lock().unwrap();
        let contribution = &mut state.contribution;
        contribution.paused = change.paused.unwrap_or(contribution.paused);
        contribution.memory_bytes = change.memory_bytes.or(contribution.memory_bytes);
        contribution.threads = change.threads.or(contribution.threads);
        contribution.upload_bytes_per_s = change.upload_bytes_per_s.or(contribution.upload_bytes_per_s);
        let now = contribution.clone();
        self.tell(SwarmEvent::Contribution { contribution: now.clone() });
        Ok(now)
    }

    fn records(&self) -> Option<std::sync::Arc<dyn SwarmRecords>> {
        self.records.clone()
    }

    fn metrics(&self) -> Vec<Metric> {
        Vec::new()
    }
}

/// What the swarm shows of an event of an answer.
fn simulate(pipeline: &mut Pipeline, position: &mut u32, event: &Event) -> Vec<SwarmEvent> {
    let session = pipeline.session.clone();
    match event {
        Event::Token { .. } => {
            *position += 1;
            let stages_ms = pipeline.stages.iter().map(|stage| (stage.hop_ms, stage.compute_ms)).collect();
            vec![SwarmEvent::Progress { session, position: *position, tok_s: 15.5, stages_ms }]
        }
        Event::Failover { stall_ms, .. } => {
            pipeline.epoch += 1;
            pipeline.faults_survived += 1;
            pipeline.position = *position;
            pipeline.stages[2] = stage(5, 16, 30);
            pipeline.standbys.clear();
            let lost = Node { state: "gone".into(), ..node(3, "3f2a91c0", (16, 30), 24.0) };
            vec![
                SwarmEvent::Node { node: Box::new(lost) },
                SwarmEvent::Failover {
                    at_ms: now_ms(),
                    session,
                    epoch: pipeline.epoch,
                    lost: id(3),
                    replacement: id(5),
                    layers: (16, 30),
                    position: *position,
                    stall_ms: *stall_ms,
                    why: "closed".into(),
                },
                SwarmEvent::Pipeline { pipeline: pipeline.clone() },
            ]
        }
        Event::Done(_) => vec![SwarmEvent::PipelineEnded { session, why: "stop".into() }],
        _ => Vec::new(),
    }
}
