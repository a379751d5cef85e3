//! One loaded shard, run in parts: any cut gives the bits of one pass, and boundaries at which a session rounds give the
//! bits of a session that is cut there, however it is cut. This is what lets a node hold both ends of a model, take
//! over a neighbor's layers, and keep a `q8` session's tokens when its cuts change.

mod common;

use std::sync::Arc;

use common::{bits, bytes, cpu, fast, fixtures, goldens, open, tokens, whole};
use scheduler::LayerRange;
use shard::{
    executor::{Capacity, Ends, Executor, Input, Item, Options, Output, Workspace, argmax, cpu::Shard},
    gguf::Gguf,
    kernels::Isa,
    quant,
    round::{Rounding, Rule},
    state::SessionState,
    synthetic::{Family, Shape},
};

fn range(start: u32, end: u32) -> LayerRange {
    LayerRange::new(start, end).unwrap()
}

/// The ranges between the cuts of a model of `layers` layers.
fn ranges(cuts: &[u32], layers: u32) -> Vec<LayerRange> {
    let edges: Vec<u32> = [0].into_iter().chain(cuts.iter().copied()).chain([layers]).collect();
    edges.windows(2).map(|pair| range(pair[0], pair[1])).collect()
}

/// Rounding before layer 2.
fn two() -> Rounding {
    Rounding { boundaries: vec![2], ..Rounding::NONE }
}

/// A session over one shard, a cache per range; what crosses a cut is only what a stage gave.
struct Session<'a> {
    shard: &'a Shard,
    ws: Workspace,
    parts: Vec<(LayerRange, SessionState)>,
    rounding: Rounding,
}

impl<'a> Session<'a> {
    fn new(shard: &'a Shard, cuts: &[u32], rounding: &[u32]) -> Self {
        let parts = ranges(cuts, shard.range().end());
        Self {
            shard,
            ws: Workspace::new(shard, Capacity { rows: 32, items: 1, logit_rows: 32 }).unwrap(),
            parts: parts.into_iter().map(|part| (part, shard.new_state_of(part).unwrap())).collect(),
            rounding: Rounding { boundaries: rounding.to_vec(), ..Rounding::NONE },
        }
    }

    /// The logits of every row of `tokens`.
    fn pass(&mut self, tokens: &[u32]) -> Vec<f32> {
        let mut carried: Vec<f32> = Vec::new();
        for (at, (layers, kv)) in self.parts.iter_mut().enumerate() {
            let input = if at == 0 { Input::Tokens(tokens) } else { Input::Activations(&carried) };
            let item = Item { state: kv, input, output: Output::All };
            self.shard.run(&mut self.ws, *layers, &self.rounding, &mut [item]).unwrap();
            let head = layers.end() == self.shard.range().end();
            let (given, empty) = (self.ws.logits(0), self.ws.activations(0));
            let (given, empty) = if head { (given, empty) } else { (empty, given) };
            assert!(empty.is_empty());
            carried = given.to_vec();
        }
        carried
    }

    /// The bits of the logits of a prompt in passes of `chunk` rows, and of `greedy` steps after it.
    fn bits(&mut self, prompt: &[u32], chunk: usize, greedy: usize) -> Vec<u32> {
        let vocab = self.shard.blueprint().vocab;
        let mut logits: Vec<f32> = prompt.chunks(chunk).flat_map(|part| self.pass(part)).collect();
        for _ in 0..greedy {
            let next = argmax(&logits[logits.len() - vocab..]);
            logits.extend(self.pass(&[next]));
        }
        bits(&logits)
    }
}

/// Every set of cuts of a model of `layers` layers; at most 63, drawn evenly, for deep ones.
fn all_cuts(layers: u32) -> Vec<Vec<u32>> {
    let sets = 1u32 << (layers - 1);
    let step = (sets / 64).max(1);
    (1..sets)
        .step_by(step as usize)
        .map(|set| (1..layers).filter(|layer| set >> (layer - 1) & 1 == 1).collect())
        .collect()
}

#[test]
fn every_cut_of_a_loaded_shard_gives_the_bits_of_forward() {
    for name in fixtures() {
        let golden = &goldens(&name)[0];
        let gguf = open(&name);
        let shard = whole(&gguf, fast(), golden.context);
        let vocab = shard.blueprint().vocab;
        let mut ws = Workspace::new(&shard, Capacity { rows: 32, items: 1, logit_rows: 32 }).unwrap();
        let mut kv = shard.new_state();
        let mut logits: Vec<f32> = Vec::new();
        let (prompt, greedy) = (&golden.ids[..golden.ids.len().min(40)], 3);
        for chunk in prompt.chunks(32) {
            let item = Item { state: &mut kv, input: Input::Tokens(chunk), output: Output::All };
            shard.forward(&mut ws, &mut [item]).unwrap();
            logits.extend_from_slice(ws.logits(0));
        }
        for _ in 0..greedy {
            let next = argmax(&logits[logits.len() - vocab..]);
            shard.step(&mut ws, &mut kv, next).unwrap();
            logits.extend_from_slice(ws.logits(0));
        }
        let forward = bits(&logits);
        let may = |cut: &u32| shard.blueprint().may_cut(*cut as usize);
        for cuts in all_cuts(shard.range().end()).into_iter().filter(|cuts| cuts.iter().all(may)) {
            let cut = Session::new(&shard, &cuts, &[]).bits(prompt, 32, greedy);
            assert!(cut == forward, "{name} run in parts cut before layers {cuts:?} gives other bits");
        }
    }
}

#[test]
fn models_whose_layers_read_the_token_are_not_cut() {
    let gguf = open("gemma4_e");
    let shard = whole(&gguf, fast(), 64);
    let refused = |result: shard::Result<()>| result.expect_err("refused").to_string();
    let why = refused(shard.new_state_of(range(0, 2)).map(drop));
    assert!(why.contains("per-layer embeddings") && why.contains("run it whole"), "{why}");
    let load = |layers, ends| Shard::load(&gguf, fast(), layers, ends, Options::default()).map(drop);
    assert_eq!(
        refused(load(range(2, 6), Ends { embedding: false, head: true })),
        why.replace("0..2", "2..6")
    );
    assert!(refused(load(range(0, 6), Ends { embedding: false, head: true })).contains("embedding"));
    let (mut ws, mut state) = (Workspace::new(&shard, Capacity::one_session(4)).unwrap(), shard.new_state());
    let rows = vec![0.5; shard.blueprint().hidden];
    let item = Item { state: &mut state, input: Input::Activations(&rows), output: Output::Last };
    let why = refused(shard.run(&mut ws, range(0, 6), &Rounding::NONE, &mut [item]));
    assert!(why.contains("send token ids"), "{why}");
}

const DEEP: Shape = Shape {
    family: Family::Llama,
    layers: 6,
    hidden: 96,
    heads: 3,
    kv_heads: 1,
    head_dim: 32,
    feed_forward: 160,
    vocab: 257,
    context: 128,
    tied: true,
    experts: None,
};

#[test]
fn rounding_inside_a_run_is_rounding_at_a_cut_whatever_the_cuts_chunks_and_machine() {
    for (format, experts) in [("q8_0", None), ("q4_0", Some((4, 2)))] {
        let shape = Shape { experts, ..DEEP };
        let gguf = bytes(shape.to_bytes(quant::by_name(format).unwrap(), 3).unwrap());
        let shard = whole(&gguf, fast(), 128);
        let prompt = tokens(30, shape.vocab, 9);
        let raw = Session::new(&shard, &[], &[]).bits(&prompt, 32, 4);
        for rounding in [&[2][..], &[1, 4], &[0, 3, 6], &[1, 2, 3, 4, 5]] {
            let expected = Session::new(&shard, &[], rounding).bits(&prompt, 32, 4);
            assert!(expected != raw, "{format}: rounding before {rounding:?} must show");
            for cuts in all_cuts(shape.layers as u32) {
                let chunk = 1 + cuts.len() * 7;
                let got = Session::new(&shard, &cuts, rounding).bits(&prompt, chunk, 4);
                assert!(got == expected, "{format}: cut before {cuts:?}, rounded before {rounding:?}");
            }
            for isa in Isa::available() {
                let shard = whole(&gguf, cpu(isa, 1), 128);
                let got = Session::new(&shard, &[3], rounding).bits(&prompt, 5, 4);
                assert!(got == expected, "{format} on {}, rounded before {rounding:?}", isa.name());
            }
        }
    }
}

/// The same against stages that know nothing of rounding, with [`Rule::apply`] on what passes between them.
#[test]
fn rounding_inside_a_run_is_rounding_what_passes_between_stages() {
    let shape = Shape { hidden: 128, heads: 4, ..DEEP };
    let gguf = bytes(shape.to_bytes(quant::by_name("q8_0").unwrap(), 4).unwrap());
    for rule in Rule::ALL {
        passes_between_stages(&gguf, rule);
    }
}

fn passes_between_stages(gguf: &Arc<Gguf>, rule: Rule) {
    let prompt = tokens(24, DEEP.vocab, 2);
    let cuts = [1, 3, 4];
    let stages: Vec<Shard> = ranges(&cuts, 6)
        .into_iter()
        .map(|part| {
            let ends = Ends { embedding: part.start() == 0, head: part.end() == 6 };
            Shard::load(gguf, fast(), part, ends, Options { context: Some(128) }).unwrap()
        })
        .collect();
    let mut carried: Vec<f32> = Vec::new();
    for stage in &stages {
        let mut ws = Workspace::new(stage, Capacity { rows: 24, items: 1, logit_rows: 24 }).unwrap();
        let mut kv = stage.new_state();
        let input =
            if stage.ends().embedding { Input::Tokens(&prompt) } else { Input::Activations(&carried) };
        stage.forward(&mut ws, &mut [Item { state: &mut kv, input, output: Output::All }]).unwrap();
        if stage.ends().head {
            carried = ws.logits(0).to_vec();
        } else {
            carried = ws.activations(0).to_vec();
            rule.apply(&mut carried);
        }
    }
    let shard = whole(gguf, fast(), 128);
    let mut session = Session::new(&shard, &[], &cuts);
    session.rounding.rule = rule;
    assert!(session.bits(&prompt, 24, 0) == bits(&carried), "{}", rule.name());
}

/// A batch of sessions of different lengths, some with rows and some with tokens, gives what each gets alone.
#[test]
fn a_batch_over_a_sub_range_gives_each_session_its_own_bits() {
    let gguf = bytes(DEEP.to_bytes(quant::by_name("q8_0").unwrap(), 5).unwrap());
    let shard = whole(&gguf, fast(), 128);
    let (head, middle) = (range(0, 2), range(2, 5));
    let mut ws = Workspace::new(&shard, Capacity { rows: 64, items: 3, logit_rows: 1 }).unwrap();
    let prompts = [tokens(7, 257, 1), tokens(1, 257, 2), tokens(20, 257, 3)];
    let mut alone = |prompt: &[u32]| {
        let mut kv = shard.new_state_of(head).unwrap();
        let item = Item { state: &mut kv, input: Input::Tokens(prompt), output: Output::All };
        shard.run(&mut ws, head, &two(), &mut [item]).unwrap();
        let entering = ws.activations(0).to_vec();
        let mut kv = shard.new_state_of(middle).unwrap();
        let item = Item { state: &mut kv, input: Input::Activations(&entering), output: Output::Last };
        shard.run(&mut ws, middle, &two(), &mut [item]).unwrap();
        (entering, bits(ws.activations(0)), kv.snapshot().unwrap())
    };
    let one: Vec<_> = prompts.iter().map(|prompt| alone(prompt)).collect();
    let mut caches: Vec<_> = prompts.iter().map(|_| shard.new_state_of(middle).unwrap()).collect();
    let mut items: Vec<_> = caches
        .iter_mut()
        .zip(&one)
        .map(|(kv, (entering, ..))| Item {
            state: kv,
            input: Input::Activations(entering),
            output: Output::Last,
        })
        .collect();
    shard.run(&mut ws, middle, &two(), &mut items).unwrap();
    for (index, ((_, given, state), kv)) in one.iter().zip(&caches).enumerate() {
        assert!(bits(ws.activations(index)) == *given && kv.snapshot().unwrap() == *state, "session {index}");
    }
}

/// What a cache is marked with depends on the layers it is for, not on what else the shard holds.
#[test]
fn caches_of_a_part_fit_a_shard_that_holds_only_that_part() {
    let gguf = bytes(DEEP.to_bytes(quant::by_name("q8_0").unwrap(), 6).unwrap());
    let shard = whole(&gguf, fast(), 128);
    let part = range(2, 4);
    let small = Shard::load(&gguf, fast(), part, Ends::NONE, Options { context: Some(128) }).unwrap();
    assert_eq!(shard.new_state_of(part).unwrap().tag(), small.state_tag(small.range()));
    assert_eq!(small.new_state_of(part).unwrap().tag(), small.new_state().tag());
    assert_eq!(shard.new_state_of(range(0, 6)).unwrap().tag(), shard.state_tag(shard.range()));
    let tags: std::collections::HashSet<u64> = (0..6)
        .flat_map(|a| (a + 1..=6).map(move |b| (a, b)))
        .map(|(a, b)| shard.new_state_of(range(a, b)).unwrap().tag())
        .collect();
    assert_eq!(tags.len(), 21);
    let other = bytes(DEEP.to_bytes(quant::by_name("q8_0").unwrap(), 7).unwrap());
    assert_ne!(whole(&other, fast(), 128).new_state_of(part).unwrap().tag(), small.state_tag(small.range()));
}

#[test]
fn what_does_not_belong_to_a_run_is_refused() {
    let gguf = bytes(DEEP.to_bytes(quant::by_name("q8_0").unwrap(), 6).unwrap());
    let shard = Shard::load(
        &gguf,
        fast(),
        range(0, 4),
        Ends { embedding: true, head: false },
        Options { context: Some(64) },
    )
    .unwrap();
    let mut ws = Workspace::new(&shard, Capacity { rows: 8, items: 1, logit_rows: 1 }).unwrap();
    assert!(shard.new_state_of(range(3, 5)).is_err());
    let rows = vec![0.5; 2 * 96];
    let mut refuse = |layers: LayerRange, of: LayerRange, rounding: &[u32], input: Input<'_>, what: &str| {
        let mut kv = shard.new_state_of(of).unwrap();
        let item = Item { state: &mut kv, input, output: Output::All };
        let rounding = Rounding { boundaries: rounding.to_vec(), ..Rounding::NONE };
        let error = shard.run(&mut ws, layers, &rounding, &mut [item]).expect_err(what).to_string();
        assert!(error.contains(what), "{error} should mention {what}");
        assert!(kv.is_empty() && ws.activations(0).is_empty() && ws.logits(0).is_empty());
    };
    let part = range(1, 3);
    refuse(range(3, 5), part, &[], Input::Activations(&rows), "that holds 0..4");
    refuse(part, part, &[], Input::Tokens(&[1]), "token ids for layers 1..3");
    refuse(part, range(1, 4), &[], Input::Activations(&rows), "belongs to another model");
    refuse(range(0, 3), part, &[], Input::Tokens(&[1]), "belongs to another model");
    let mut poisoned = rows.clone();
    poisoned[100] = f32::NAN;
    refuse(part, part, &[1], Input::Activations(&poisoned), "not finite");

    let narrow = Shape { hidden: 80, heads: 5, kv_heads: 1, head_dim: 16, ..DEEP };
    let gguf = bytes(narrow.to_bytes(quant::by_name("f32").unwrap(), 1).unwrap());
    let shard = whole(&gguf, fast(), 64);
    let mut ws = Workspace::new(&shard, Capacity::one_session(8)).unwrap();
    let mut kv = shard.new_state();
    let mut with = |rounding: &[u32]| {
        let item = Item { state: &mut kv, input: Input::Tokens(&[1]), output: Output::Last };
        let rounding = Rounding { boundaries: rounding.to_vec(), ..Rounding::NONE };
        shard.run(&mut ws, range(0, 6), &rounding, &mut [item]).map_err(|e| e.to_string())
    };
    assert!(with(&[3]).unwrap_err().contains("rows of 80 values"));
    with(&[]).unwrap();
}

/// Embedded tokens may come from elsewhere: layer 0 takes rows too.
#[test]
fn rows_may_enter_at_layer_0() {
    let gguf = bytes(DEEP.to_bytes(quant::by_name("f32").unwrap(), 6).unwrap());
    let shard = whole(&gguf, fast(), 64);
    let mut ws = Workspace::new(&shard, Capacity::one_session(8)).unwrap();
    let prompt = [3, 250, 17];
    let table = gguf.require("token_embd.weight").unwrap();
    let mut rows = vec![0.0; 3 * 96];
    for (&id, row) in prompt.iter().zip(rows.chunks_exact_mut(96)) {
        (table.format.dequantize)(table.row(id as usize), row);
    }
    let mut run = |input| {
        let mut kv = shard.new_state();
        shard
            .run(
                &mut ws,
                range(0, 6),
                &Rounding::NONE,
                &mut [Item { state: &mut kv, input, output: Output::Last }],
            )
            .unwrap();
        bits(ws.logits(0))
    };
    let by_id = run(Input::Tokens(&prompt));
    assert!(run(Input::Activations(&rows)) == by_id);
}
