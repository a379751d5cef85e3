//! The API's other side against the real engine and the embedded model.

use std::time::Duration;

use api::choice::Draft;
use api::inference::{Done, Event, Finish, PromptToken, Sampling, SessionChoice};
use shard::{
    executor::reference::{self, Arithmetic},
    executor::{Input, Item, Output, Pooled, Pooling, argmax},
    quant,
    synthetic::{self, Family, Shape},
};

use super::*;
use crate::{context_shift, library};

/// Longest a test waits for the model, on whatever machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// How far int8 activations may turn a vector away when a last bit of a sum turns a rounding, as one minus the cosine:
/// what the engine's own tests allow between executor and oracle.
const ROUNDING: f64 = 2e-3;

fn args() -> EngineArgs {
    EngineArgs { threads: Some(1), no_pin: true, ctx: Some(256), ..EngineArgs::default_model() }
}

async fn loaded() -> Arc<Alone> {
    serving(args()).await
}

async fn serving(args: EngineArgs) -> Arc<Alone> {
    let alone = Alone::start(args, 64 << 20).unwrap();
    let ready = async {
        while alone.loaded().is_none() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, ready).await.unwrap();
    alone.ready(None).unwrap();
    alone
}

fn texts(inputs: Vec<Prompt>) -> EmbedRequest {
    EmbedRequest { model: None, inputs, truncate: false, mode: None }
}

/// The vector of a text, straight from a model of its own, one position at a time.
fn direct(model: &Model, ids: &[u32]) -> Vec<f32> {
    let mut workspace = model.workspace(1).unwrap();
    let (mut state, mut mean) =
        (model.executor.new_state(), Pooled::new(model.executor.blueprint().hidden, Pooling::Mean));
    for id in ids.chunks(1) {
        let item = Item { state: &mut state, input: Input::Tokens(id), output: Output::All };
        model.executor.states(&mut workspace, &mut [item]).unwrap();
        mean.add(workspace.states(0));
    }
    mean.unit()
}

fn asks(prompt: Prompt) -> GenerateRequest {
    GenerateRequest { seed: Some(1), max_tokens: Some(1), ..GenerateRequest::new("test", prompt) }
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
    let (mut session, mut mean) = (oracle.session(), Pooled::new(ready.info.hidden, Pooling::Mean));
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

#[test]
fn a_text_that_is_cut_keeps_the_token_that_closes_it() {
    for (ids, closing, expected) in [
        (vec![1, 2, 3, 4, 9], Some(9), vec![1, 2, 9]),
        (vec![1, 2, 3, 9], Some(9), vec![1, 2, 9]),
        (vec![1, 2, 9], Some(9), vec![1, 2, 9]),
        (vec![1, 9], Some(9), vec![1, 9]),
        (vec![1, 2, 3, 4], Some(9), vec![1, 2, 3]),
        (vec![1, 2, 3, 9], None, vec![1, 2, 3]),
    ] {
        let mut cut = ids.clone();
        crate::encode::shorten(&mut cut, 3, closing);
        assert_eq!(cut, expected, "{ids:?} closed by {closing:?}");
    }
}

#[tokio::test]
async fn gauges_follow_an_answer() {
    let alone = loaded().await;
    // The thread that computes tells them when it first looks for work.
    let told = async {
        while value(&alone.metrics(), "kv_capacity_bytes") == 0.0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, told).await.unwrap();
    let metrics = alone.metrics();
    assert_eq!((value(&metrics, "sessions"), value(&metrics, "kv_used_bytes")), (0.0, 0.0));
    assert_eq!(value(&metrics, "kv_capacity_bytes"), f64::from(64 << 20));
    // An answer that does not end by itself.
    let stops = alone.model().unwrap().model.tokenizer.stop_ids().to_vec();
    let logit_bias = stops.iter().map(|id| (*id, -100.0)).collect();
    let sampling = Sampling { logit_bias, ..Sampling::default() };
    let request = GenerateRequest { sampling, max_tokens: Some(200), ..asks(Prompt::Text("Once".into())) };
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

/// The tokens of a prompt as an answer shows them, those of the answer, and how it ended.
async fn told(alone: &Alone, request: GenerateRequest) -> (Vec<PromptToken>, usize, Done) {
    let mut events = alone.generate(request).await.unwrap().events;
    let (mut prompt, mut tokens) = (Vec::new(), 0);
    while let Some(event) = events.next().await {
        match event {
            Event::Prompt(more) => {
                assert_eq!(tokens, 0, "the prompt comes first");
                prompt.extend(more);
            }
            Event::Token { .. } => tokens += 1,
            Event::Done(done) => return (prompt, tokens, done),
            Event::Failed(failure) => panic!("{failure}"),
            _ => {}
        }
    }
    panic!("no end");
}

#[tokio::test]
async fn a_prompt_is_scored_as_the_model_computes_it_row_by_row() {
    let alone = loaded().await;
    let ready = alone.model().unwrap();
    // More rows than one pass has, and one prompt that was computed before and is kept.
    let ids: Vec<u32> = (0..230).map(|n| 300 + n * 7 % 1000).collect();
    told(&alone, asks(Prompt::Tokens(ids.clone()))).await;
    let mut workspace = ready.model.workspace(1).unwrap();
    let mut state = ready.model.executor.new_state();
    let mut expected = vec![None];
    for (id, next) in ids.iter().zip(&ids[1..]) {
        let item = Item { state: &mut state, input: Input::Tokens(&[*id]), output: Output::Last };
        ready.model.executor.forward(&mut workspace, &mut [item]).unwrap();
        expected.push(Some(shard::sample::logprobs(workspace.logits(0), *next, 2).unwrap()));
    }
    let scored = |prompt: Prompt, max_tokens: usize| GenerateRequest {
        echo: true,
        logprobs: Some(2),
        max_tokens: Some(max_tokens),
        ..asks(prompt)
    };
    // Beside others, which are scored, too, or only answered.
    let (short, other) = (Prompt::Tokens(ids[..9].to_vec()), Prompt::Tokens(ids[100..].to_vec()));
    let ((prompt, tokens, done), (few, _, _), (none, _, _), _) = tokio::join!(
        told(&alone, scored(Prompt::Tokens(ids.clone()), 1)),
        told(&alone, scored(short, 0)),
        told(&alone, asks(other.clone())),
        told(&alone, GenerateRequest { max_tokens: Some(20), ..asks(other) }),
    );
    assert_eq!((tokens, done.usage.prompt_tokens, done.usage.cached_tokens), (1, 230, 0));
    assert_eq!((few.len(), none.len()), (9, 0));
    for told in [&prompt[..], &few] {
        for ((token, expected), id) in told.iter().zip(&expected).zip(&ids) {
            assert_eq!(token.id, *id);
            let Some((chosen, top)) = expected else {
                assert!(token.logprobs.is_none());
                continue;
            };
            let known = token.logprobs.as_ref().unwrap();
            // The same bits, however the prompt was cut into passes.
            assert_eq!((known.chosen.id, known.chosen.logprob), (*id, chosen.logprob));
            assert_eq!(
                known.top.iter().map(|t| t.logprob).collect::<Vec<_>>(),
                [top[0].logprob, top[1].logprob]
            );
        }
    }
    assert_eq!(prompt.len(), 230);
    // Nothing to generate is the end.
    let (prompt, tokens, done) = told(&alone, scored(Prompt::Text("Once upon".into()), 0)).await;
    assert_eq!((tokens, done.finish, done.usage.completion_tokens), (0, Finish::Length, 0));
    let spelled: Vec<u8> = prompt.iter().flat_map(|token| token.bytes.clone()).collect();
    assert_eq!(String::from_utf8(spelled).unwrap(), "Once upon");
    // Without log-probabilities they are only named.
    let plain = GenerateRequest { logprobs: None, ..scored(Prompt::Tokens(ids.clone()), 1) };
    let (prompt, tokens, _) = told(&alone, plain).await;
    assert_eq!((prompt.len(), tokens), (230, 1));
    assert!(prompt.iter().all(|token| token.logprobs.is_none()));
}

#[tokio::test]
async fn a_request_chooses_what_its_tokens_see() {
    let alone = loaded().await;
    let model = Model::load(&args()).unwrap();
    let ids: Vec<u32> = (0..150).map(|i| 5 + (i * 37) % 300).collect();
    let ask = |words: &str| GenerateRequest {
        session: SessionChoice {
            attention: words.split('/').next().map(Into::into),
            kv_cache_type: words.split('/').nth(1).map(Into::into),
            context_shift: false,
        },
        max_tokens: Some(24),
        logprobs: Some(0),
        ..asks(Prompt::Tokens(ids.clone()))
    };
    let mut likely = Vec::new();
    for words in [
        "dense",
        "window:24",
        "sparse:window=16,sinks=2,stride=on,block=16",
        "dense/q8",
        "window:48/q4",
        "h2o:budget=128,sinks=2,window=32",
    ] {
        // The log-probability of the first token, as a session of this kind alone has it.
        let executor = &model.executor;
        let mut state = executor.new_state_with(executor.range(), words.parse().unwrap()).unwrap();
        let mut workspace = model.workspace(1).unwrap();
        executor.prefill(&mut workspace, &mut state, &ids).unwrap();
        let expected = argmax(workspace.logits(0));
        // Twice: the second goes on from what the first left.
        for _ in 0..2 {
            let mut answer = alone.generate(ask(words)).await.unwrap();
            let own = format!("{}/{}", answer.plan.attention, answer.plan.kv_cache_type);
            assert_eq!(own.trim_end_matches("/f16"), words);
            let mut first = None;
            while let Some(event) = answer.events.next().await {
                if let Event::Token { id, logprobs, .. } = event
                    && first.is_none()
                {
                    first = logprobs.map(|known| (id, known.chosen.logprob));
                }
            }
            let (id, logprob) = first.unwrap();
            assert_eq!(id, expected, "{words}");
            likely.push(logprob);
        }
    }
    assert!(likely.chunks(2).all(|twice| twice[0] == twice[1]), "{likely:?}");
    for (at, one) in likely.iter().step_by(2).enumerate() {
        assert!(likely.iter().step_by(2).skip(at + 1).all(|other| other != one), "{likely:?}");
    }
    for (words, wrong, hint) in [
        ("everything", "attention", "dense"),
        ("dense/q5", "kv_cache_type", "write f16, q8 or q4"),
        ("sparse/q8", "kv_cache_type", "choose f16"),
        ("h2o/q4", "kv_cache_type", "choose f16"),
        ("h2o:budget=100", "attention", "multiple of 64"),
    ] {
        match alone.generate(ask(words)).await.map(|_| ()).unwrap_err() {
            Failure::Invalid { field, why } => assert!(field == Some(wrong) && why.contains(hint), "{why}"),
            other => panic!("{other:?}"),
        }
    }
}

/// The tokens of an answer, of its start to where nothing more may come.
async fn chosen(alone: &Alone, request: GenerateRequest) -> Vec<u32> {
    let (mut events, mut ids) = (alone.generate(request).await.unwrap().events, Vec::new());
    while let Some(event) = events.next().await {
        match event {
            Event::Token { id, .. } => ids.push(id),
            Event::Failed(failure) => panic!("{failure}"),
            _ => {}
        }
    }
    ids
}

#[tokio::test]
async fn an_answer_goes_on_beyond_the_context_if_asked_to() {
    let alone = loaded().await;
    let ready = alone.model().unwrap();
    let stops: Vec<(u32, f32)> = ready.model.tokenizer.stop_ids().iter().map(|id| (*id, -100.0)).collect();
    let prompt: Vec<u32> = (0..40).map(|n| 300 + n * 7 % 1000).collect();
    let ask = |prompt: &[u32], tokens: usize, context_shift: bool, temperature: f32| GenerateRequest {
        sampling: Sampling {
            logit_bias: stops.clone(),
            temperature: Some(temperature),
            repetition_penalty: Some(1.0),
            ..Sampling::default()
        },
        session: SessionChoice { context_shift, ..SessionChoice::default() },
        max_tokens: Some(tokens),
        ..asks(Prompt::Tokens(prompt.to_vec()))
    };
    let ended = chosen(&alone, ask(&prompt, 600, false, 0.0)).await;
    assert_eq!(ended.len(), 256 - 40 + 1, "the context is the end");
    let went_on = chosen(&alone, ask(&prompt, 600, true, 0.0)).await;
    assert_eq!(went_on.len(), 600);
    assert_eq!(went_on[..ended.len()], ended);
    // What comes then is what a prompt of the tokens that stayed gets.
    let mut stayed = [&prompt[..], &ended].concat();
    stayed.drain(context_shift::forgotten(prompt.len(), 256));
    let fresh = chosen(&alone, ask(&stayed, 60, false, 0.0)).await;
    assert_eq!(went_on[ended.len()..][..60], fresh);
    // One answer at a time, with drafts or without, draws the same tokens.
    for temperature in [0.0, 0.9] {
        let expected = chosen(&alone, ask(&prompt, 600, true, temperature)).await;
        for draft in [Draft::Auto, Draft::Off] {
            let request = prompt::Request {
                prompt: prompt.clone(),
                sampling: sampling(&ask(&prompt, 600, true, temperature)).unwrap(),
                seed: 1,
                max_tokens: 600,
                stop: Vec::new(),
                draft,
                context_shift: true,
            };
            let mut session = prompt::Session::new(&ready.model).unwrap();
            let mut on_event = |_: prompt::Event<'_>| std::ops::ControlFlow::Continue(());
            let summary = prompt::generate(&ready.model, &mut session, &request, &mut on_event).unwrap();
            assert_eq!(summary.ids, expected, "temperature {temperature}");
            assert!(summary.context_shifts > 2, "{}", summary.context_shifts);
        }
    }
    let endless = GenerateRequest { max_tokens: None, ..ask(&prompt, 1, true, 0.0) };
    match alone.generate(endless).await.map(|_| ()).unwrap_err() {
        Failure::Invalid { field, why } => assert!(field == Some("max_tokens"), "{why}"),
        other => panic!("{other:?}"),
    }
}

/// A text of megabytes that cannot fit is refused like one that is a little too long, at the cost of the latter.
#[tokio::test]
async fn of_what_cannot_fit_only_the_beginning_is_read() {
    let alone = loaded().await;
    let long = "All work and no play makes Jack a dull boy. ".repeat(90_000);
    let messages = |text: &str| Prompt::Messages {
        messages: serde_json::json!([{"role": "user", "content": text}]),
        tools: None,
        extra: serde_json::Map::new(),
    };
    let whole = alone.model().unwrap().model.tokenizer.encode(&long, Encode::PLAIN).unwrap().len();
    for prompt in [Prompt::Text(long.clone()), messages(&long)] {
        match alone.generate(asks(prompt)).await.err().unwrap() {
            Failure::TooLong { tokens, context } => {
                assert!(tokens > context && tokens < whole / 10, "{tokens} of {whole} tokens");
            }
            other => panic!("{other}"),
        }
    }
    // What the bound keeps is enough: texts around the limit are counted to their end.
    let tokenizer = &alone.model().unwrap().model.tokenizer;
    for text in [&long[..2_000], "x y", "", "\u{1f600}\u{1f600}"] {
        for most in [0, 1, 10, 100] {
            let ids = tokenizer.encode(text, Encode::PLAIN).unwrap();
            let cut = tokenizer.encode(tokenizer.beginning(text, most), Encode::PLAIN).unwrap();
            assert!(cut.len() == ids.len() || cut.len() > most, "{most}");
        }
    }
}

/// Whatever the model's template knows, it hears of the tools, or the request is refused.
#[tokio::test]
async fn tools_are_never_left_out() {
    use shard::tokenizer::chat::Template;
    let alone = loaded().await;
    let model = &alone.model().unwrap().model;
    let messages = serde_json::json!([{"role": "user", "content": "What is the weather?"}]);
    let tools =
        serde_json::json!([{"type": "function", "function": {"name": "get_weather", "parameters": {}}}]);
    let read = |template: Option<&str>| {
        let template = Ok(template.map(|source| Template::new(source).unwrap()));
        let (tools, extra) = (Some(tools.clone()), serde_json::Map::new());
        let ids = encode::encode_messages(&model.tokenizer, &template, &messages, tools, extra, 4096);
        ids.map(|ids| model.tokenizer.decode(&ids)).map_err(|error| error.to_string())
    };
    let knows = "{{ tools | tojson }}{% for m in messages %}{{ m.content }}{% endfor %}";
    let text = read(Some(knows)).unwrap();
    assert!(text.contains("get_weather") && !text.contains("<tool_call>"), "{text}");
    let ignores = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
    for template in [Some(ignores), None] {
        let text = read(template).unwrap();
        assert!(text.contains("get_weather") && text.contains("<tool_call>"), "{text}");
        assert!(text.find("# Tools") < text.find("What is the weather?"), "{text}");
    }
    let refuses = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}{{ m.content }}{% endfor %}";
    let why = read(Some(refuses)).unwrap_err();
    assert!(why.contains("no place for tools"), "{why}");
    // As the API asks: the tokens that are counted are those of the prompt with its tools.
    let ask = |tools: Option<serde_json::Value>| {
        asks(Prompt::Messages { messages: messages.clone(), tools, extra: serde_json::Map::new() })
    };
    let with = alone.count(ask(Some(tools.clone()))).await.unwrap();
    let without = alone.count(ask(None)).await.unwrap();
    assert!(with > without + 20, "{with} and {without}");
    let (_, _, done) = told(&alone, ask(None)).await;
    assert_eq!(done.usage.prompt_tokens, without);
}

/// What the API takes the engine takes, too: the ranges of requests are within those that have a meaning.
#[test]
fn every_value_that_may_be_asked_for_is_one_the_engine_takes() {
    use api::inference::ranges;
    let params = |name: &str, value: f32| {
        let mut params = SamplingParams::default();
        match name {
            "temperature" => params.temperature = value,
            "top_p" => params.top_p = value,
            "min_p" => params.min_p = value,
            "typical_p" => params.typical_p = value,
            "repetition_penalty" => params.repetition_penalty = value,
            "presence_penalty" => params.presence_penalty = value,
            "frequency_penalty" => params.frequency_penalty = value,
            "logit_bias" => params.logit_bias = vec![(1, value)],
            other => panic!("{other} is no parameter"),
        }
        params
    };
    for range in ranges::ALL {
        for end in [range.low, range.high] {
            params(range.name, end as f32).validate().unwrap();
        }
    }
}

/// Everything that one answer says, in order, the end apart.
async fn said(alone: &Alone, request: GenerateRequest) -> (Vec<Event>, Done) {
    let mut events = alone.generate(request).await.unwrap().events;
    let (mut said, mut done) = (Vec::new(), None);
    while let Some(event) = events.next().await {
        match event {
            Event::Done(end) => done = Some(end),
            Event::Prefill { .. } => {}
            other => said.push(other),
        }
    }
    (said, done.unwrap())
}

/// Of states that go back to any position, and of those that go back to where the last pass began.
#[tokio::test]
async fn drafts_change_nothing_that_is_said() {
    draft_for(loaded().await, "lookup,grammar", 30).await;
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("model.gguf");
    let minnow = library::parse(None).unwrap();
    let shape = synthetic::shape("tiny").unwrap();
    let recurs = Shape { family: Family::Recurrent { interval: 3 }, vocab: 2048, ..shape.clone() };
    recurs.write_speaking(&path, &quant::Q8_0, 5, minnow.metadata()).unwrap();
    let args = EngineArgs { model: path.to_str().map(str::to_owned), ..args() };
    draft_for(serving(args).await, "lookup,grammar", 15).await;
    // A model with a layer that guesses.
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/mtp/qwen35.gguf");
    draft_for(serving(EngineArgs { model: Some(path.into()), ..self::args() }).await, "head", 100).await;
}

/// Tests send every draft, whatever it costs: more than `least` tokens.
async fn draft_for(alone: Arc<Alone>, drafters: &str, least: u32) {
    use api::inference::Format;
    let text =
        "The fox sat by the fire. The owl sat by the fire. The bear sat by the fire. The fox sat by the";
    let schema = serde_json::json!({"type": "object", "additionalProperties": false, "required": ["favorite_animal", "legs"],
        "properties": {"favorite_animal": {"enum": ["fox", "bear"]}, "legs": {"type": "integer", "minimum": 0, "maximum": 9}}});
    let form = Format::JsonSchema(schema);
    let sampled = Sampling { temperature: Some(0.8), top_p: Some(0.95), ..Sampling::default() };
    let stop = vec![" fire".to_owned()];
    let kinds = [
        (Sampling::default(), Format::Text, 1, Vec::new()),
        (sampled.clone(), Format::Text, 1, stop),
        (sampled, form, 1, Vec::new()),
        (Sampling::default(), Format::Text, 2, Vec::new()),
    ];
    let mut proposed = 0;
    for (sampling, format, side_by_side, stop) in kinds {
        let ask = |draft: &str| GenerateRequest {
            sampling: Sampling { draft: Some(draft.parse().unwrap()), ..sampling.clone() },
            format: format.clone(),
            stop: stop.clone(),
            max_tokens: Some(48),
            logprobs: Some(1),
            ..asks(Prompt::Text(text.into()))
        };
        let (plain, end) = said(&alone, ask("off")).await;
        assert_eq!(end.report.drafts, None);
        let answers = (0..side_by_side).map(|_| said(&alone, ask(drafters)));
        for (drafted, done) in futures::future::join_all(answers).await {
            assert_eq!(serde_json::to_value(&drafted).unwrap(), serde_json::to_value(&plain).unwrap());
            assert_eq!(
                (done.finish, done.usage.completion_tokens),
                (end.finish, end.usage.completion_tokens)
            );
            assert_eq!(done.stop, end.stop);
            proposed += done.report.drafts.map_or(0, |drafts| drafts.proposed);
        }
    }
    assert!(proposed > least, "{proposed}");
}
