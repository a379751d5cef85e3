//! Layer ranges compose: `[0, a)`, `[a, b)`, `[b, L)` in separate shards, with raw activations between them, give the
//! bits of one shard that holds everything. This is what lets a swarm cut a model anywhere, and cut it elsewhere later.

mod common;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use common::{bits, fast, fixtures, goldens, open, tokens, whole};
use scheduler::{ExpertRange, LayerRange};
use shard::{
    Error,
    executor::{
        Capacity, Ends, Executor, ExpertWork, Input, Item, Options, Output, RemoteExperts, Workspace, argmax,
        cpu::Shard, whole_range,
    },
    gguf::Gguf,
    models::Blueprint,
    state::SessionState,
};

/// One stage of a pipeline, with what a session needs there.
struct Stage {
    shard: Shard,
    ws: Workspace,
    kv: SessionState,
}

/// Stages over `name` cut before the layers in `cuts`, each with its own processor.
fn pipeline(name: &str, cuts: &[u32], context: usize) -> Vec<Stage> {
    let gguf = open(name);
    let layers = shard::executor::whole_range(&gguf).unwrap().end();
    let mut bounds = vec![0];
    bounds.extend(cuts);
    bounds.push(layers);
    bounds
        .windows(2)
        .map(|pair| {
            let range = LayerRange::new(pair[0], pair[1]).unwrap();
            let ends = Ends { embedding: pair[0] == 0, head: pair[1] == layers };
            let shard = Shard::load(&gguf, fast(), range, ends, Options { context: Some(context) }).unwrap();
            let ws = Workspace::new(&shard, Capacity { rows: 32, items: 1, logit_rows: 32 }).unwrap();
            let kv = shard.new_state();
            Stage { shard, ws, kv }
        })
        .collect()
}

/// Passes `tokens` through all stages and returns the logits of every row.
fn pass(stages: &mut [Stage], tokens: &[u32]) -> Vec<f32> {
    let mut carried: Vec<f32> = Vec::new();
    for (index, stage) in stages.iter_mut().enumerate() {
        let input = if index == 0 { Input::Tokens(tokens) } else { Input::Activations(&carried) };
        let item = Item { state: &mut stage.kv, input, output: Output::All };
        stage.shard.forward(&mut stage.ws, &mut [item]).unwrap();
        let result = if stage.shard.ends().head { stage.ws.logits(0) } else { stage.ws.activations(0) };
        carried = result.to_vec();
    }
    carried
}

#[test]
fn split_equals_whole() {
    let cases: &[(&str, &[&[u32]])] = &[
        ("llama3", &[&[1], &[2], &[1, 2]]),
        ("gemma3", &[&[3], &[1, 6], &[1, 2, 3, 4, 5, 6]]),
        ("gemma2", &[&[2], &[1, 3]]),
        ("phi3", &[&[1, 2]]),
        ("starcoder2", &[&[2]]),
        ("glm4", &[&[1, 2]]),
        ("qwen2moe", &[&[1], &[1, 2]]),
        ("qwen3moe", &[&[2]]),
        ("qwen3next", &[&[1], &[3], &[1, 2, 3, 4]]),
        ("qwen35", &[&[2], &[1, 3]]),
        ("qwen35moe", &[&[1, 2]]),
        ("deepseek_v2", &[&[1], &[1, 2]]),
        ("deepseek_v3", &[&[2]]),
        ("gemma4", &[&[2], &[1, 3]]),
        ("gemma4_moe", &[&[1, 2, 3]]),
        ("llama4", &[&[3], &[1, 4]]),
        ("kimi_linear", &[&[1], &[2, 4], &[1, 2, 3, 4]]),
        ("lfm2", &[&[1], &[2, 3]]),
        ("nemotron_h", &[&[1], &[2, 4], &[1, 2, 3, 4, 5]]),
        ("nemotron_h_moe", &[&[1, 2, 3, 4]]),
        ("nemotron_h_latent", &[&[1, 2, 3, 4]]),
        ("falcon_h1", &[&[1], &[1, 2]]),
        ("granitehybrid", &[&[1], &[2], &[1, 2, 3]]),
    ];
    for (name, all_cuts) in cases {
        let golden = &goldens(name)[0];
        let (prompt, greedy) = (&golden.ids, 6);
        let run = |cuts: &[u32]| {
            let mut stages = pipeline(name, cuts, golden.context);
            let mut logits = Vec::new();
            prompt.chunks(32).for_each(|chunk| logits.extend(pass(&mut stages, chunk)));
            let vocab = stages[0].shard.blueprint().vocab;
            for _ in 0..greedy {
                let next = argmax(&logits[logits.len() - vocab..]);
                logits.extend(pass(&mut stages, &[next]));
            }
            bits(&logits)
        };
        let whole = run(&[]);
        for cuts in *all_cuts {
            assert!(run(cuts) == whole, "{name} cut before layers {cuts:?} gives other bits");
        }
    }
}

/// A failover moves a session: the new holder of a stage takes a snapshot, or replays the inputs, and goes on.
#[test]
fn a_snapshot_and_a_replay_continue_with_the_same_bits() {
    let prompt = tokens(40, 300, 4);
    let mut old = pipeline("llama", &[1], 512);
    let mut carried = Vec::new();
    for chunk in prompt.chunks(8) {
        let [first, second] = &mut old[..] else { panic!("two stages") };
        let item = Item { state: &mut first.kv, input: Input::Tokens(chunk), output: Output::All };
        first.shard.forward(&mut first.ws, &mut [item]).unwrap();
        let rows = first.ws.activations(0).to_vec();
        let item = Item { state: &mut second.kv, input: Input::Activations(&rows), output: Output::Last };
        second.shard.forward(&mut second.ws, &mut [item]).unwrap();
        carried.extend(rows);
    }
    let snapshot = old[1].kv.snapshot().unwrap();
    let mut replayed = pipeline("llama", &[1], 512);
    let stage = &mut replayed[1];
    let input = Input::Activations(&carried);
    stage.shard.feed(&mut stage.ws, &mut stage.kv, input, 32, Output::None, &mut |_| {}).unwrap();
    assert!(stage.kv.snapshot().unwrap() == snapshot, "a replay in larger chunks builds another state");
    let mut restored = pipeline("llama", &[1], 512);
    restored[1].kv.restore(&snapshot).unwrap();
    let next: Vec<_> = [&mut old, &mut replayed, &mut restored]
        .into_iter()
        .map(|stages| {
            let stage = &mut stages[1];
            let row = &carried[carried.len() - stage.shard.blueprint().hidden..];
            let item = Item { state: &mut stage.kv, input: Input::Activations(row), output: Output::Last };
            stage.shard.forward(&mut stage.ws, &mut [item]).unwrap();
            bits(stage.ws.logits(0))
        })
        .collect();
    assert!(next[0] == next[1] && next[1] == next[2]);
}

#[test]
fn what_does_not_belong_to_a_shard_is_refused() {
    let gguf = open("llama");
    let load = |start, end, embedding, head, context| {
        let range = LayerRange::new(start, end).unwrap();
        Shard::load(&gguf, fast(), range, Ends { embedding, head }, Options { context })
    };
    let why = |result: Result<Shard, Error>| match result {
        Err(Error::Invalid { why }) => why,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("accepted"),
    };
    assert!(why(load(0, 4, true, true, None)).contains("a model with 3"));
    assert!(why(load(1, 3, true, true, None)).contains("do not begin with"));
    assert!(why(load(0, 2, true, true, None)).contains("do not end with"));
    assert!(why(load(0, 3, true, true, Some(0))).contains("1 to 2048"));
    assert!(why(load(0, 3, true, true, Some(2049))).contains("1 to 2048"));

    let mut stages = pipeline("llama", &[1], 64);
    let hidden = stages[0].shard.blueprint().hidden;
    let [first, second] = &mut stages[..] else { panic!("two stages") };
    let refuse = |stage: &mut Stage, input: Input<'_>, what: &str| {
        let before = stage.kv.len();
        let item = Item { state: &mut stage.kv, input, output: Output::All };
        let error = stage.shard.forward(&mut stage.ws, &mut [item]).expect_err(what).to_string();
        assert!(error.contains(what), "{error} should mention {what}");
        assert_eq!(stage.kv.len(), before);
        assert!(stage.ws.logits(0).is_empty() && stage.ws.activations(0).is_empty());
    };
    let mut rows = vec![0.5; 2 * hidden];
    refuse(second, Input::Tokens(&[1]), "without the embedding");
    refuse(first, Input::Activations(&rows), "begins with the embedding");
    refuse(first, Input::Tokens(&[]), "without rows");
    refuse(first, Input::Tokens(&[353]), "beyond the vocabulary");
    refuse(first, Input::Tokens(&[1; 33]), "33 rows in a workspace for 32");
    refuse(second, Input::Activations(&rows[1..]), "no rows of 64");
    for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        rows[hidden + 3] = poison;
        refuse(second, Input::Activations(&rows), "not finite");
    }
    std::mem::swap(&mut first.kv, &mut second.kv);
    refuse(first, Input::Tokens(&[1]), "belongs to another model");
    std::mem::swap(&mut first.kv, &mut second.kv);
    for _ in 0..2 {
        let item = Item { state: &mut first.kv, input: Input::Tokens(&[7; 32]), output: Output::None };
        first.shard.forward(&mut first.ws, &mut [item]).unwrap();
    }
    refuse(first, Input::Tokens(&[1]), "context of 64 positions is full");
}

#[test]
fn truncation_goes_back_in_time() {
    let gguf = open("gemma3");
    let shard = whole(&gguf, fast(), 512);
    let mut ws = Workspace::new(&shard, Capacity::one_session(512)).unwrap();
    let prompt = tokens(300, 380, 8);
    let mut kv = shard.new_state();
    shard.prefill(&mut ws, &mut kv, &prompt[..200]).unwrap();
    let early = bits(ws.logits(0));
    shard.prefill(&mut ws, &mut kv, &prompt[200..]).unwrap();
    let late = bits(ws.logits(0));
    kv.rewind(199);
    shard.step(&mut ws, &mut kv, prompt[199]).unwrap();
    assert!(bits(ws.logits(0)) == early);
    shard.prefill(&mut ws, &mut kv, &prompt[200..]).unwrap();
    assert!(bits(ws.logits(0)) == late);
}

/// Shards with some experts each, as other nodes that compute them.
struct Others {
    shards: Vec<(ExpertRange, Shard, Workspace)>,
    outputs: Vec<f32>,
    asked: Arc<AtomicUsize>,
}

impl RemoteExperts for Others {
    fn ask(&mut self, work: ExpertWork<'_>) -> Result<(), Error> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.outputs.clear();
        for (experts, shard, ws) in &mut self.shards {
            let of: Vec<_> = work.visits.iter().copied().filter(|visit| experts.contains(visit.0)).collect();
            let mut outputs = Vec::new();
            shard.experts(ws, ExpertWork { visits: &of, ..work }, &mut outputs)?;
            self.outputs.extend(outputs);
        }
        Ok(())
    }

    fn take(&mut self) -> Result<&[f32], Error> {
        Ok(&self.outputs)
    }
}

/// Experts of every layer on three machines, for every fixture that has experts: the bits of one machine, in chunks and steps.
#[test]
fn experts_elsewhere_give_the_bits_of_one_machine() {
    let mut seen = 0;
    for name in fixtures() {
        let gguf = open(&name);
        let blueprint = Blueprint::from_gguf(&gguf).unwrap();
        let counts = blueprint.layers.iter().filter_map(|layer| layer.feed_forward.experts());
        let Some(count) = counts.map(|experts| experts.count as u32).min() else { continue };
        seen += 1;
        let golden = &goldens(&name)[0];
        let (range, capacity) =
            (whole_range(&gguf).unwrap(), Capacity { rows: 24, items: 1, logit_rows: 24 });
        let part = |experts: Option<ExpertRange>| {
            let options = Options { context: Some(golden.context) };
            let shard = Shard::load_experts(&gguf, fast(), range, Ends::BOTH, options, experts).unwrap();
            let ws = Workspace::new(&shard, capacity).unwrap();
            (shard, ws)
        };
        let run = |shard: &Shard, ws: &mut Workspace| {
            let mut state = shard.new_state();
            let mut logits = Vec::new();
            for chunk in golden.ids.chunks(24).chain(golden.ids.chunks(1).take(4)) {
                let item = Item { state: &mut state, input: Input::Tokens(chunk), output: Output::All };
                shard.forward(ws, &mut [item]).unwrap();
                logits.extend_from_slice(ws.logits(0));
            }
            bits(&logits)
        };
        let (whole, mut ws) = part(None);
        let expected = run(&whole, &mut ws);
        let (a, b) = (count / 3, count - count / 3);
        let ranges = [(0, a), (a, b), (b, count)].map(|(from, to)| ExpertRange::new(from, to).unwrap());
        // Whichever of the three leads: its own experts come first, in between or last.
        for lead in 0..3 {
            let (shard, mut ws) = part(Some(ranges[lead]));
            assert!(shard.resident_bytes() < whole.resident_bytes(), "{name}: some experts take less");
            let lacking = Item {
                state: &mut shard.new_state(),
                input: Input::Tokens(&golden.ids),
                output: Output::Last,
            };
            let error = shard.forward(&mut ws, &mut [lacking]).unwrap_err().to_string();
            assert!(error.contains("not all experts"), "{name}: {error}");
            let asked = Arc::new(AtomicUsize::new(0));
            let others = ranges.iter().enumerate().filter(|(at, _)| *at != lead);
            let shards = others.map(|(_, range)| {
                let (shard, ws) = part(Some(*range));
                (*range, shard, ws)
            });
            let others = Others { shards: shards.collect(), outputs: Vec::new(), asked: asked.clone() };
            ws.ask_of(Box::new(others));
            assert!(run(&shard, &mut ws) == expected, "{name}: experts led by {:?}", ranges[lead]);
            assert!(asked.load(Ordering::Relaxed) > 0);
        }
    }
    assert!(seen >= 10, "only {seen} fixtures with experts");
}

#[test]
fn experts_of_no_layer_are_refused() {
    let (moe, dense) = (open("qwen3moe"), open("llama"));
    let load = |gguf: &Arc<Gguf>, start, end| {
        let (range, experts) = (whole_range(gguf).unwrap(), ExpertRange::new(start, end));
        Shard::load_experts(gguf, fast(), range, Ends::BOTH, Options::default(), experts).map(drop)
    };
    let why = |result: Result<(), Error>| result.unwrap_err().to_string();
    assert!(
        why(load(&moe, 0, 1_000)).contains("experts 0..1000 of layers with"),
        "{}",
        why(load(&moe, 0, 1_000))
    );
    assert!(why(load(&dense, 0, 1)).contains("which has none"));
    let range = whole_range(&moe).unwrap();
    let held = ExpertRange::new(0, 2);
    let shard = Shard::load_experts(&moe, fast(), range, Ends::BOTH, Options::default(), held).unwrap();
    let mut ws = Workspace::new(&shard, Capacity::one_session(4)).unwrap();
    let rows = vec![0.5; 2 * shard.blueprint().hidden];
    let mut ask = |layer, visits: &[(u32, u32)], rows: &[f32]| {
        shard.experts(&mut ws, ExpertWork { layer, visits, rows }, &mut Vec::new())
    };
    assert!(ask(0, &[(0, 0), (0, 1), (1, 1)], &rows).is_ok());
    for (layer, visits, rows, said) in [
        (0, &[(2, 0)][..], &rows[..], "expert 2 is not here"),
        (0, &[(1, 0), (0, 0)], &rows, "out of order"),
        (0, &[(0, 2)], &rows, "none of 2 rows"),
        (0, &[(0, 0); 5], &rows, "more than a pass takes"),
        (0, &[(0, 0)], &rows[1..], "none of"),
        (u32::MAX, &[(0, 0)], &rows, "beyond all models"),
        (99, &[(0, 0)], &rows, "layers 99..100"),
        (0, &[(0, 0)], &[f32::NAN; 64], "not finite"),
    ] {
        let error = ask(layer, visits, rows).unwrap_err().to_string();
        assert!(error.contains(said), "{visits:?}: {error}");
    }
}
