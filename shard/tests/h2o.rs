//! Sessions that forget what they look at least: dense until something goes, the same bits in any cuts and batches and from
//! snapshots, memory within the budget, and a plain answer where going back needs what is gone.

mod common;

use std::sync::Arc;

use common::{bits, bytes, empty, fast, feed, kind, open, tokens, whole};
use scheduler::{AttentionKind, LayerRange, SessionKind};
use shard::{
    executor::{Capacity, Ends, Executor, Input, Item, Options, Output, Workspace, cpu::Shard},
    gguf::Gguf,
    quant,
    state::SessionState,
    synthetic::{self, Shape},
};

const CONTEXT: usize = 512;
const PROMPT: usize = 400;
const BUDGET: usize = 128;
/// Positions go before rows 128, 192, 256, 320 and 384.
const KIND: &str = "h2o:budget=128,sinks=4,window=32";

fn model_bytes() -> Vec<u8> {
    let shape = Shape {
        vocab: 288,
        layers: 2,
        feed_forward: 256,
        context: CONTEXT,
        ..synthetic::shape("tiny").unwrap().clone()
    };
    shape.to_bytes(quant::by_name("q8_0").unwrap(), 31).unwrap()
}

fn model() -> Arc<Gguf> {
    bytes(model_bytes())
}

fn workspace(shard: &Shard) -> Workspace {
    Workspace::new(shard, Capacity { rows: PROMPT, items: 3, logit_rows: PROMPT }).unwrap()
}

#[test]
fn a_session_is_dense_until_something_goes_and_takes_no_more_memory_than_its_budget() {
    let (gguf, ids) = (model(), tokens(PROMPT, 288, 3));
    let shard = whole(&gguf, fast(), CONTEXT);
    let (mut ws, vocab) = (workspace(&shard), shard.blueprint().vocab);
    let dense = feed(&shard, &mut ws, &mut empty(&shard, "dense"), &ids, PROMPT);
    let mut state = empty(&shard, KIND);
    let found = feed(&shard, &mut ws, &mut state, &ids[..BUDGET], 50);
    assert!(found == dense[..BUDGET * vocab], "nothing has gone yet");
    assert_eq!(feed(&shard, &mut ws, &mut state, &ids[BUDGET..], 50).len(), (PROMPT - BUDGET) * vocab);
    let mut again = empty(&shard, KIND);
    let all = feed(&shard, &mut ws, &mut again, &ids, PROMPT);
    assert!(all[..BUDGET * vocab] == dense[..BUDGET * vocab] && all != dense, "nothing goes");
    assert_eq!(again.digest().unwrap(), state.digest().unwrap());
    // A budget as long as the text forgets nothing.
    let roomy = feed(&shard, &mut ws, &mut empty(&shard, "h2o:budget=448,window=64"), &ids, 90);
    assert!(roomy == dense);

    let most = shard.session_bytes(shard.range(), PROMPT, kind(KIND));
    assert!(state.bytes() <= most, "{} of {most} bytes", state.bytes());
    assert_eq!(most, shard.session_bytes(shard.range(), 100_000, kind(KIND)));
    let keys = |positions| shard.session_bytes(shard.range(), positions, kind("dense"));
    assert!(keys(BUDGET) < most && most < keys(BUDGET) * 5 / 4, "{most} of {}", keys(BUDGET));
    let snapshot = state.snapshot().unwrap().len();
    assert!(keys(BUDGET) / 2 < snapshot && snapshot < keys(BUDGET), "it holds what is kept");
}

#[test]
fn cuts_batches_and_snapshots_do_not_matter() {
    let (gguf, ids) = (model(), tokens(PROMPT, 288, 4));
    let shard = whole(&gguf, fast(), CONTEXT);
    let mut ws = workspace(&shard);
    let part = |start, end, embedding, head| {
        let options = Options { context: Some(CONTEXT) };
        let range = LayerRange::new(start, end).unwrap();
        Shard::load(&gguf, fast(), range, Ends { embedding, head }, options).unwrap()
    };
    let (first, last) = (part(0, 1, true, false), part(1, 2, false, true));
    let mut state = empty(&shard, KIND);
    let expected = feed(&shard, &mut ws, &mut state, &ids, 77);
    let vocab = shard.blueprint().vocab;
    let from = |row: usize| &expected[row * vocab..];

    // Two stages, the second of which computes the last row alone of what it is given.
    let (mut a, mut b) = (empty(&first, KIND), empty(&last, KIND));
    let (mut rows, mut after) = (workspace(&first), workspace(&last));
    let item = Item { state: &mut a, input: Input::Tokens(&ids), output: Output::All };
    first.forward(&mut rows, &mut [item]).unwrap();
    let carried = rows.activations(0).to_vec();
    let item = Item { state: &mut b, input: Input::Activations(&carried), output: Output::Last };
    last.forward(&mut after, &mut [item]).unwrap();
    assert!(bits(after.logits(0)) == from(PROMPT - 1), "cut in two");

    // From a snapshot, on the border of what goes and between.
    for at in [100, 128, 192, 250, 256] {
        let mut begun = empty(&shard, KIND);
        feed(&shard, &mut ws, &mut begun, &ids[..at], 64);
        let mut restored = empty(&shard, KIND);
        restored.restore(&begun.snapshot().unwrap()).unwrap();
        assert!(feed(&shard, &mut ws, &mut restored, &ids[at..], 33) == from(at), "restored at {at}");
        assert_eq!(restored.digest().unwrap(), state.digest().unwrap());
        assert!(empty(&shard, "h2o:budget=192,window=64").restore(&begun.snapshot().unwrap()).is_err());
    }

    // Beside a dense session and another that forgets, which get what they get alone.
    let kinds = ["dense", KIND, "h2o:budget=192,sinks=0,window=64"];
    let alone = kinds.map(|kind| feed(&shard, &mut ws, &mut empty(&shard, kind), &ids[..300], 300));
    let mut states = kinds.map(|kind| empty(&shard, kind));
    let mut ws = Workspace::new(&shard, Capacity { rows: 450, items: 3, logit_rows: 450 }).unwrap();
    for at in [0, 150] {
        let mut items: Vec<_> = states
            .iter_mut()
            .map(|state| Item { state, input: Input::Tokens(&ids[at..at + 150]), output: Output::All })
            .collect();
        shard.forward(&mut ws, &mut items).unwrap();
        for (index, alone) in alone.iter().enumerate() {
            assert!(bits(ws.logits(index)) == alone[at * vocab..(at + 150) * vocab], "{}", kinds[index]);
        }
    }
}

#[test]
fn going_back_gives_what_is_known_and_computes_the_rest_again() {
    let (gguf, ids) = (model(), tokens(PROMPT, 288, 5));
    let shard = whole(&gguf, fast(), CONTEXT);
    let mut ws = workspace(&shard);
    let vocab = shard.blueprint().vocab;
    // Until the first go there are the beginning of the last pass and every 256 positions.
    let roomy = "h2o:budget=320,sinks=4,window=32";
    for (kind, fed, chunk, to, kept) in [
        (roomy, 300, 290, 295, 290),
        (roomy, 300, 290, 289, 256),
        (roomy, 300, 290, 255, 0),
        (roomy, 300, 300, 256, 256),
        (roomy, 320, 64, 300, 256),
        (roomy, 321, 320, 320, 0),
        (KIND, 128, 120, 127, 120),
        (KIND, 190, 128, 189, 0),
        (KIND, 200, 197, 199, 197),
        (KIND, 200, 197, 196, 0),
        (KIND, 192, 130, 191, 130),
        (KIND, 193, 192, 192, 0),
    ] {
        let mut state = empty(&shard, kind);
        let expected = feed(&shard, &mut ws, &mut state, &ids, 77);
        let digest = state.digest().unwrap();
        let mut state = empty(&shard, kind);
        feed(&shard, &mut ws, &mut state, &ids[..fed], chunk);
        let shared = state.share(to).unwrap();
        assert_eq!(state.checkpoint(to), kept, "{kind}: {fed} in passes of {chunk}, back to {to}");
        assert_eq!((shared.len(), state.rewind(to)), (kept, kept));
        // Other tokens, which leave nothing.
        feed(&shard, &mut ws, &mut state, &tokens(9, 288, 6), 9);
        let back = state.rewind(kept);
        assert!(back == kept || back == 0);
        for mut state in [state, shared] {
            let at = state.len();
            let found = feed(&shard, &mut ws, &mut state, &ids[at..], 50);
            assert!(found == expected[at * vocab..], "{kind}: {fed}, back to {to}");
            assert_eq!(state.digest().unwrap(), digest, "{kind}: {fed}, back to {to}");
        }
    }
}

/// A pass that fails after positions went cannot be taken back: the session says that it holds nothing.
#[test]
fn a_pass_that_fails_leaves_what_it_found_or_nothing() {
    let ids = tokens(PROMPT, 288, 7);
    let good = model();
    let norm = good.info("output_norm.weight").unwrap();
    let at = norm.offset as usize;
    let mut broken = model_bytes();
    // Who wants logits gets none.
    broken[at..at + 4 * norm.elements() as usize].as_chunks_mut().0.fill(f32::MAX.to_le_bytes());
    let shard = whole(&bytes(broken), fast(), CONTEXT);
    let mut ws = workspace(&shard);
    let run = |ws: &mut Workspace, state: &mut SessionState, ids: &[u32], output: Output| {
        shard.forward(ws, &mut [Item { state, input: Input::Tokens(ids), output }])
    };
    for (held, left) in [(100, 100), (120, 0), (128, 0), (140, 140)] {
        let mut state = empty(&shard, KIND);
        run(&mut ws, &mut state, &ids[..held], Output::None).unwrap();
        let digest = state.digest().unwrap();
        assert!(run(&mut ws, &mut state, &ids[..10], Output::Last).is_err());
        assert_eq!(state.len(), left, "after {held} positions");
        assert!(left == 0 || state.digest().unwrap() == digest);
        run(&mut ws, &mut state, &ids[left..], Output::None).unwrap();
        let mut fresh = empty(&shard, KIND);
        run(&mut ws, &mut fresh, &ids, Output::None).unwrap();
        assert_eq!(state.digest().unwrap(), fresh.digest().unwrap(), "after {held} positions");
    }
}

#[test]
fn layers_that_keep_little_anyway_keep_it_and_layers_that_share_keys_are_refused() {
    let h2o = kind(KIND).attention;
    let gemma = whole(&open("gemma3"), fast(), CONTEXT);
    let blueprint = gemma.blueprint();
    for layer in 0..blueprint.layers.len() {
        let window = blueprint.layers[layer].attention.window();
        assert_eq!(blueprint.evicts(layer, h2o).is_some(), window.is_none(), "layer {layer}");
        assert_eq!(blueprint.sight(layer, h2o), blueprint.sight(layer, AttentionKind::Dense));
    }
    let falcon = whole(&open("falcon_h1"), fast(), 64);
    let why = falcon.new_state_with(falcon.range(), kind(KIND)).err().map(|error| error.to_string());
    assert!(why.as_deref().is_some_and(|why| why.contains("beside Mamba2: choose dense")), "{why:?}");
    let dense = gemma.session_bytes(gemma.range(), 300, SessionKind::DEFAULT);
    assert!(gemma.session_bytes(gemma.range(), 300, kind(KIND)) < dense);
}
