//! Sessions that do not see everything: the same bits in any chunks, cuts and batches, after going back, from a snapshot and
//! beside sessions of another kind.

mod common;

use std::sync::Arc;

use common::{bits, bytes, cpu, empty, fast, feed, kind, open, tokens, whole};
use scheduler::{AttentionKind, CacheType, LayerRange, SessionKind};
use shard::{
    executor::{
        Capacity, Ends, Executor, Input, Item, Options, Output, Workspace,
        cpu::Shard,
        reference::{Arithmetic, Reference},
    },
    gguf::Gguf,
    kernels::{Isa, QUARTER},
    quant,
    synthetic::{self, Shape},
};

const CONTEXT: usize = 512;
const PROMPT: usize = 330;
/// Small numbers, so that 330 positions have all of it.
const KINDS: [&str; 6] =
    ["sparse:window=32,sinks=2,block=16", "sparse", "window:40", "dense/q8", "dense/q4", "window:40/q8"];
/// Positions go four times before 330; how such a session goes back is in `h2o.rs`.
const FORGETS: &str = "h2o:budget=128,sinks=2,window=32";

fn model() -> Arc<Gguf> {
    let shape = Shape {
        vocab: 288,
        layers: 2,
        feed_forward: 256,
        context: CONTEXT,
        ..synthetic::shape("tiny").unwrap().clone()
    };
    bytes(shape.to_bytes(quant::by_name("q8_0").unwrap(), 31).unwrap())
}

fn workspace(shard: &Shard) -> Workspace {
    Workspace::new(shard, Capacity { rows: PROMPT, items: 3, logit_rows: PROMPT }).unwrap()
}

#[test]
fn chunks_threads_and_instruction_sets_do_not_matter() {
    let (gguf, ids) = (model(), tokens(PROMPT, 288, 3));
    let shard = whole(&gguf, fast(), CONTEXT);
    let dense = feed(&shard, &mut workspace(&shard), &mut empty(&shard, "dense"), &ids, PROMPT);
    for attention in KINDS.into_iter().chain([FORGETS]) {
        let mut state = empty(&shard, attention);
        let expected = feed(&shard, &mut workspace(&shard), &mut state, &ids, PROMPT);
        assert!(expected != dense, "{attention} hides nothing");
        let digest = state.digest().unwrap();
        for isa in Isa::available() {
            for (threads, chunk) in [(1, 1), (2, 7), (3, 96)] {
                if isa == Isa::Scalar && chunk != 96 {
                    continue;
                }
                let shard = whole(&gguf, cpu(isa, threads), CONTEXT);
                let mut state = empty(&shard, attention);
                let found = feed(&shard, &mut workspace(&shard), &mut state, &ids, chunk);
                let isa = isa.name();
                assert!(found == expected, "{attention}: {isa}, {threads} threads, chunks of {chunk}");
                assert_eq!(state.digest().unwrap(), digest, "{attention}: {isa}");
            }
        }
    }
}

#[test]
fn cuts_batches_going_back_and_snapshots_do_not_matter() {
    let (gguf, ids) = (model(), tokens(PROMPT, 288, 4));
    let shard = whole(&gguf, fast(), CONTEXT);
    let mut ws = workspace(&shard);
    let part = |start, end, embedding, head| {
        let options = Options { context: Some(CONTEXT) };
        let range = LayerRange::new(start, end).unwrap();
        Shard::load(&gguf, fast(), range, Ends { embedding, head }, options).unwrap()
    };
    let (first, last) = (part(0, 1, true, false), part(1, 2, false, true));
    for attention in KINDS {
        let mut state = empty(&shard, attention);
        let expected = feed(&shard, &mut ws, &mut state, &ids, PROMPT);
        let (vocab, digest) = (shard.blueprint().vocab, state.digest().unwrap());
        let from = |row: usize| &expected[row * vocab..];

        // Two stages.
        let (mut a, mut b) = (empty(&first, attention), empty(&last, attention));
        let (mut rows, mut after) = (workspace(&first), workspace(&last));
        let item = Item { state: &mut a, input: Input::Tokens(&ids), output: Output::All };
        first.forward(&mut rows, &mut [item]).unwrap();
        let carried = rows.activations(0).to_vec();
        let item = Item { state: &mut b, input: Input::Activations(&carried), output: Output::All };
        last.forward(&mut after, &mut [item]).unwrap();
        assert!(bits(after.logits(0)) == expected, "{attention}: cut in two");

        // Back to the middle of a block, on with other tokens, back again, on with those of before.
        let mut moved = state.share(PROMPT).unwrap();
        assert_eq!(moved.rewind(137), 137);
        feed(&shard, &mut ws, &mut moved, &tokens(90, 288, 5), 31);
        moved.rewind(137);
        assert!(feed(&shard, &mut ws, &mut moved, &ids[137..], 50) == from(137), "{attention}: going back");
        assert_eq!((moved.digest().unwrap(), state.digest().unwrap()), (digest, digest));

        // What another session shares of it.
        let mut shared = state.share(200).unwrap();
        assert_eq!((shared.kind(), shared.len()), (kind(attention), 200));
        assert!(feed(&shard, &mut ws, &mut shared, &ids[200..], 64) == from(200), "{attention}: shared");

        // A snapshot holds no landmarks, and gives them.
        let mut cut = state.share(250).unwrap();
        let snapshot = cut.snapshot().unwrap();
        let mut restored = empty(&shard, attention);
        restored.restore(&snapshot).unwrap();
        assert!(feed(&shard, &mut ws, &mut restored, &ids[250..], 1) == from(250), "{attention}: restored");
        cut.rewind(0);
        let why = empty(&shard, "dense").restore(&snapshot).unwrap_err().to_string();
        assert!(why.contains("kind of session"), "{why}");

        // Beside a dense session and one of another kind, which get what they get alone.
        let mut states = [empty(&shard, "dense"), empty(&shard, attention), empty(&shard, "window:90")];
        let alone = [0, 2].map(|other| {
            let mut state = empty(&shard, ["dense", "", "window:90"][other]);
            feed(&shard, &mut ws, &mut state, &ids[..100], 100)
        });
        let mut items: Vec<_> = states
            .iter_mut()
            .map(|state| Item { state, input: Input::Tokens(&ids[..100]), output: Output::All })
            .collect();
        shard.forward(&mut ws, &mut items).unwrap();
        let together = [0, 1, 2].map(|index| bits(ws.logits(index)));
        assert!(
            together[1] == expected[..100 * vocab] && [&together[0], &together[2]] == [&alone[0], &alone[1]]
        );
    }
}

#[test]
fn layers_with_a_window_of_their_own_keep_it() {
    let shard = whole(&open("gemma3"), fast(), CONTEXT);
    let blueprint = shard.blueprint();
    let own: Vec<_> =
        (0..blueprint.layers.len()).map(|layer| blueprint.sight(layer, kind("dense").attention)).collect();
    assert!(own.iter().any(|sight| sight.0.is_some()) && own.iter().any(|sight| sight.0.is_none()));
    for (layer, (window, _)) in own.into_iter().enumerate() {
        let sparse = blueprint.sight(layer, kind("sparse").attention);
        assert_eq!((sparse.0, sparse.1.is_some()), (window, window.is_none()));
        let narrow = blueprint.sight(layer, kind("window:3").attention);
        assert_eq!(narrow, (Some(window.map_or(4, |window| window.min(4))), None));
    }
}

#[test]
fn executors_without_it_say_so() {
    let gguf = model();
    let range = LayerRange::new(0, 2).unwrap();
    let reference =
        Reference::load(&gguf, range, Ends::BOTH, Options::default(), Arithmetic::Rounded).unwrap();
    assert!(reference.new_state_with(range, SessionKind::DEFAULT).is_ok());
    let why = reference.new_state_with(range, kind("sparse")).err().map(|error| error.to_string());
    assert!(why.as_deref().is_some_and(|why| why.contains("choose dense")), "{why:?}");
    let why = reference.new_state_with(range, kind("h2o")).err().map(|error| error.to_string());
    assert!(why.as_deref().is_some_and(|why| why.contains("choose dense")), "{why:?}");
    let why = reference.new_state_with(range, kind("dense/q4")).err().map(|error| error.to_string());
    assert!(why.as_deref().is_some_and(|why| why.contains("choose f16")), "{why:?}");
    let shard = whole(&gguf, fast(), CONTEXT);
    assert!(shard.new_state_with(range, kind("sparse/q8")).is_err());
    assert!(shard.new_state_with(range, kind("h2o/q8")).is_err());
    assert!(shard.new_state_with(range, AttentionKind::Window(0).into()).is_err());
}

/// What admission counts is what a session takes, and smaller forms take less.
#[test]
fn smaller_forms_take_the_bytes_that_are_counted() {
    let (gguf, ids) = (model(), tokens(PROMPT, 288, 9));
    let shard = whole(&gguf, fast(), CONTEXT);
    let shape = shard.blueprint().layers[0].attention.kv().unwrap();
    let (head_dim, heads) = (shape.head_dim, shape.kv_heads * shard.blueprint().layers.len());
    let bytes = CacheType::ALL.map(|cache| {
        let kind = SessionKind { cache, ..SessionKind::DEFAULT };
        let mut state = shard.new_state_with(shard.range(), kind).unwrap();
        feed(&shard, &mut workspace(&shard), &mut state, &ids, 64);
        assert_eq!(state.bytes(), shard.state_bytes(shard.range(), PROMPT, cache), "{cache}");
        let snapshot = state.snapshot().unwrap();
        let mut restored = shard.new_state_with(shard.range(), kind).unwrap();
        restored.restore(&snapshot).unwrap();
        assert_eq!(restored.digest().unwrap(), state.digest().unwrap(), "{cache}");
        for other in CacheType::ALL.into_iter().filter(|other| *other != cache) {
            let kind = SessionKind { cache: other, ..SessionKind::DEFAULT };
            let mut state = shard.new_state_with(shard.range(), kind).unwrap();
            assert!(state.restore(&snapshot).is_err(), "{cache} is not {other}");
        }
        state.bytes()
    });
    let (blocks, quarters) = (head_dim.div_ceil(32), PROMPT.div_ceil(QUARTER));
    let [whole, eight, four] = [head_dim * 4, blocks * 68, blocks * 36].map(|each| each * QUARTER);
    // In 4 bits the first quarter is one of f16, and each other one has the key that its keys are relative to.
    let expected = [quarters * whole, quarters * eight, whole + (quarters - 1) * (four + 2 * head_dim)];
    assert_eq!(bytes, expected.map(|each| each * heads));
}

/// Blocks of 64: the second begins with a quarter of 8 bits.
#[test]
fn attention_in_blocks_takes_a_cache_of_8_bits_and_refuses_one_of_4() {
    let shard = whole(&open("llama4"), fast(), CONTEXT);
    let why = shard.new_state_with(shard.range(), kind("dense/q4")).err().map(|error| error.to_string());
    assert!(why.as_deref().is_some_and(|why| why.contains("in blocks: choose q8 or f16")), "{why:?}");
    let ids = tokens(150, shard.blueprint().vocab, 6);
    let see = |chunk: usize| {
        let mut ws = Workspace::new(&shard, Capacity { rows: 150, items: 1, logit_rows: 150 }).unwrap();
        feed(&shard, &mut ws, &mut empty(&shard, "dense/q8"), &ids, chunk)
    };
    assert!(see(150) == see(7));
}

/// A model whose values are a part of its keys takes a window, not landmarks.
#[test]
fn latent_attention_takes_a_window_and_refuses_landmarks() {
    let gguf = open("deepseek_v2");
    let shard = whole(&gguf, fast(), CONTEXT);
    let why = shard.new_state_with(shard.range(), kind("sparse")).err().map(|error| error.to_string());
    assert!(why.as_deref().is_some_and(|why| why.contains("latent attention: choose dense")), "{why:?}");
    let why = shard.new_state_with(shard.range(), kind("h2o")).err().map(|error| error.to_string());
    assert!(why.as_deref().is_some_and(|why| why.contains("latent attention: choose dense")), "{why:?}");
    let why = shard.new_state_with(shard.range(), kind("dense/q8")).err().map(|error| error.to_string());
    assert!(why.as_deref().is_some_and(|why| why.contains("latent attention: choose f16")), "{why:?}");
    let ids = tokens(40, shard.blueprint().vocab, 6);
    let see = |attention: &str, chunk: usize| {
        let mut ws = Workspace::new(&shard, Capacity { rows: 40, items: 1, logit_rows: 40 }).unwrap();
        feed(&shard, &mut ws, &mut empty(&shard, attention), &ids, chunk)
    };
    let (dense, narrow) = (see("dense", 40), see("window:5", 40));
    let vocab = shard.blueprint().vocab;
    assert!(narrow[..6 * vocab] == dense[..6 * vocab], "six positions are within the window");
    assert!(narrow[6 * vocab..] != dense[6 * vocab..], "the window hides nothing");
    assert!(see("window:5", 7) == narrow && see("window:63", 40) == dense, "a window is a window");
}
