//! Families whose layers remember a vector instead of positions: the same bits however it is run, and a session that goes
//! back says how far it got.

mod common;

use std::sync::Arc;

use common::{bits, bytes, cpu, fast, tokens};
use scheduler::LayerRange;
use shard::{
    executor::{
        Capacity, Device, Ends, Executor, Input, Item, Options, Output, Workspace, cpu::Shard, fingerprint,
        load, reference::Arithmetic,
    },
    gguf::Gguf,
    kernels::{DeltaShape, Isa, Mamba2Shape},
    quant,
    state::recurrent::CHECKPOINT,
    synthetic::{Family, Shape},
};

/// Recurrences in layers 0, 1, 3 and 4, softmax attention in layers 2 and 5.
const LAYERS: u32 = 6;
const CONTEXT: usize = 1024;

/// A plain recurrence, a delta net with experts, and Mamba2.
fn models() -> [Arc<Gguf>; 3] {
    let plain = Shape {
        family: Family::Recurrent { interval: 3 },
        layers: LAYERS as usize,
        hidden: 64,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        feed_forward: 96,
        vocab: 101,
        context: CONTEXT,
        tied: true,
        experts: None,
    };
    let delta = DeltaShape {
        key_heads: 2,
        value_heads: 4,
        key_dim: 24,
        value_dim: 16,
        kernel: 4,
        tiled: false,
        by_channel: false,
    };
    let family = Family::Qwen3Next { interval: 3, delta };
    let hybrid = Shape { family, experts: Some((4, 2)), ..plain.clone() };
    let mamba = Mamba2Shape { heads: 4, head_dim: 32, state: 24, groups: 2, kernel: 4 };
    let mamba = Shape { family: Family::GraniteHybrid { interval: 3, mamba }, ..plain.clone() };
    [plain, hybrid, mamba].map(|shape| bytes(shape.to_bytes(&quant::Q8_0, 5).unwrap()))
}

fn whole(gguf: &Arc<Gguf>) -> Shard {
    Shard::whole(gguf, fast()).unwrap()
}

fn range(start: u32, end: u32) -> LayerRange {
    LayerRange::new(start, end).unwrap()
}

#[test]
fn instruction_sets_threads_and_chunks_do_not_matter() {
    for gguf in models() {
        let prompt = tokens(300, 101, 1);
        let expected = fingerprint(&whole(&gguf), &prompt, 300).unwrap();
        for isa in Isa::available() {
            for (threads, chunk) in [(1, 64), (2, 7)] {
                let shard = Shard::whole(&gguf, cpu(isa, threads)).unwrap();
                assert_eq!(fingerprint(&shard, &prompt, chunk).unwrap(), expected, "{} {chunk}", isa.name());
            }
        }
    }
}

/// The rows of `ids` through `cuts`, in passes of `chunk` rows, and the digests of the states after them.
fn run(gguf: &Arc<Gguf>, cuts: &[u32], ids: &[u32], chunk: usize) -> (Vec<u32>, Vec<blake3::Hash>) {
    let bounds: Vec<u32> = [0].into_iter().chain(cuts.iter().copied()).chain([LAYERS]).collect();
    let mut stages: Vec<_> = bounds
        .windows(2)
        .map(|pair| {
            let ends = Ends { embedding: pair[0] == 0, head: pair[1] == LAYERS };
            let shard = Shard::load(gguf, fast(), range(pair[0], pair[1]), ends, Options::default()).unwrap();
            let ws = Workspace::new(&shard, Capacity { rows: chunk, items: 1, logit_rows: chunk }).unwrap();
            let state = shard.new_state();
            (shard, ws, state)
        })
        .collect();
    let mut logits = Vec::new();
    for ids in ids.chunks(chunk) {
        let mut carried: Vec<f32> = Vec::new();
        for (at, (shard, ws, state)) in stages.iter_mut().enumerate() {
            let input = if at == 0 { Input::Tokens(ids) } else { Input::Activations(&carried) };
            shard.forward(ws, &mut [Item { state, input, output: Output::All }]).unwrap();
            carried = if shard.ends().head { ws.logits(0) } else { ws.activations(0) }.to_vec();
        }
        logits.extend(carried);
    }
    (bits(&logits), stages.iter().map(|(_, _, state)| state.digest().unwrap()).collect())
}

#[test]
fn split_equals_whole_and_states_have_one_name() {
    for gguf in models() {
        let ids = tokens(520, 101, 2);
        let (expected, _) = run(&gguf, &[], &ids, 130);
        for cuts in [&[1][..], &[3], &[2, 4], &[1, 2, 3, 4, 5]] {
            let (one, names) = run(&gguf, cuts, &ids, 64);
            assert!(one == expected, "cut before layers {cuts:?}");
            let (other, again) = run(&gguf, cuts, &ids, 260);
            assert!(other == expected && again == names, "cut before layers {cuts:?} in other passes");
        }
    }
}

/// Every kind of layer: a session that goes back holds the checkpoint, and what is computed again from there is the same.
#[test]
fn a_session_goes_back_to_a_checkpoint_and_on() {
    for gguf in models() {
        let shard = whole(&gguf);
        let ids = tokens(600, 101, 3);
        let mut ws = Workspace::new(&shard, Capacity { rows: 600, items: 1, logit_rows: 600 }).unwrap();
        let mut state = shard.new_state();
        let all = Item { state: &mut state, input: Input::Tokens(&ids), output: Output::All };
        shard.forward(&mut ws, &mut [all]).unwrap();
        let (logits, name) = (ws.logits(0).to_vec(), state.digest().unwrap());
        for to in [599, 513, 512, 300, 255, 0] {
            let kept = state.rewind(to);
            assert_eq!((kept, state.len()), (to / CHECKPOINT * CHECKPOINT, kept));
            let again = Item { state: &mut state, input: Input::Tokens(&ids[kept..]), output: Output::All };
            shard.forward(&mut ws, &mut [again]).unwrap();
            assert!(bits(ws.logits(0)) == bits(&logits[kept * 101..]), "back to {to}");
            assert_eq!(state.digest().unwrap(), name);
        }
        // Layers of attention alone keep any position.
        let part = range(2, 3);
        let mut state = shard.new_state_of(part).unwrap();
        let rows = vec![0.5; 300 * 64];
        let item = Item { state: &mut state, input: Input::Activations(&rows), output: Output::None };
        shard.run(&mut ws, part, &shard::round::Rounding::NONE, &mut [item]).unwrap();
        assert_eq!(state.rewind(299), 299);
    }
}

#[test]
fn a_snapshot_goes_on_elsewhere() {
    for gguf in models() {
        let shard = whole(&gguf);
        let ids = tokens(420, 101, 4);
        let mut ws = Workspace::new(&shard, Capacity { rows: 100, items: 1, logit_rows: 1 }).unwrap();
        let mut state = shard.new_state();
        shard.prefill(&mut ws, &mut state, &ids[..400]).unwrap();
        let bytes = state.snapshot().unwrap();
        let mut other = shard.new_state();
        other.restore(&bytes).unwrap();
        for state in [&mut state, &mut other] {
            shard.prefill(&mut ws, state, &ids[400..]).unwrap();
        }
        assert_eq!(state.digest().unwrap(), other.digest().unwrap());
        assert_eq!(other.rewind(410), 400, "the state before the last pass");
        assert_eq!(other.rewind(399), 256, "the checkpoint came along");
    }
}

/// Attention and Mamba2 in one layer: pages and a vector go back, travel and are shared together.
#[test]
fn two_states_of_one_layer_stay_together() {
    let gguf = common::open("falcon_h1");
    let shard = common::whole(&gguf, fast(), CONTEXT);
    let ids = tokens(320, 335, 7);
    let mut ws = Workspace::new(&shard, Capacity { rows: 100, items: 1, logit_rows: 1 }).unwrap();
    let mut state = shard.new_state();
    shard.prefill(&mut ws, &mut state, &ids).unwrap();
    let (logits, name) = (bits(ws.logits(0)), state.digest().unwrap());
    let mut other = shard.new_state();
    other.restore(&state.snapshot().unwrap()).unwrap();
    let shared = state.share(300).unwrap();
    // The last pass began at 300; one that was restored has the checkpoint.
    assert_eq!((shared.len(), state.rewind(319), other.rewind(319)), (300, 300, 256));
    let back = state.share(299).unwrap();
    assert_eq!(back.len(), 256);
    for state in [state, other, shared, back].iter_mut() {
        shard.prefill(&mut ws, state, &ids[state.len()..]).unwrap();
        assert!(bits(ws.logits(0)) == logits);
        assert_eq!(state.digest().unwrap(), name);
    }
    let mut whole = shard.new_state();
    for id in &ids {
        shard.step(&mut ws, &mut whole, *id).unwrap();
    }
    assert_eq!(whole.digest().unwrap(), name, "one by one");
}

#[test]
fn the_oracle_computes_the_same_family() {
    for gguf in models() {
        let shard = whole(&gguf);
        let oracle = load(
            &Device::Reference(Arithmetic::Rounded),
            &gguf,
            range(0, LAYERS),
            Ends::BOTH,
            Options::default(),
        )
        .unwrap();
        let ids = tokens(40, 101, 6);
        let logits = |executor: &dyn Executor| {
            let mut ws = Workspace::new(executor, Capacity { rows: 40, items: 1, logit_rows: 40 }).unwrap();
            let mut state = executor.new_state();
            executor
                .forward(
                    &mut ws,
                    &mut [Item { state: &mut state, input: Input::Tokens(&ids), output: Output::All }],
                )
                .unwrap();
            ws.logits(0).to_vec()
        };
        let (ours, its) = (logits(&shard), logits(&*oracle));
        for (row, (ours, its)) in ours.chunks_exact(101).zip(its.chunks_exact(101)).enumerate() {
            let far = common::one_minus_cos(ours, its);
            assert!(far < 2e-3, "row {row}: 1-cos {far:e}");
        }
    }
}
