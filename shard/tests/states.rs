//! Hidden states in front of the head, for embeddings: what the oracle computes, however a text is cut into passes and
//! whatever else is in them.

mod common;

use common::{bits, fast, fixtures, goldens, one_minus_cos, open, tokens, whole};
use shard::{
    executor::reference::{Arithmetic, Model},
    executor::{
        Capacity, Ends, Executor, Input, Item, Options, Output, Pooled, Pooling, Workspace, cpu::Shard,
    },
    state::SessionState,
    synthetic::{self, Shape},
};

/// Keys and values are rounded to f16, as in the tests of families.
const ENGINE: f64 = 1e-6;

fn workspace(shard: &Shard, rows: usize) -> Workspace {
    Workspace::new(shard, Capacity { rows, items: 4, logit_rows: 1 }).unwrap()
}

fn all<'a>(kv: &'a mut SessionState, ids: &'a [u32]) -> Item<'a> {
    Item { state: kv, input: Input::Tokens(ids), output: Output::All }
}

/// The mean of a text in passes of at most `chunk` rows.
fn mean(shard: &Shard, ws: &mut Workspace, ids: &[u32], chunk: usize) -> Vec<f32> {
    let (mut kv, mut mean) = (shard.new_state(), Pooled::new(shard.blueprint().hidden, Pooling::Mean));
    for part in ids.chunks(chunk) {
        shard.states(ws, &mut [all(&mut kv, part)]).unwrap();
        mean.add(ws.states(0));
    }
    assert_eq!((mean.rows(), kv.len()), (ids.len(), ids.len()));
    mean.unit()
}

#[test]
fn states_of_every_family_are_those_of_the_oracle() {
    for name in fixtures() {
        let gguf = open(&name);
        let golden = &goldens(&name)[0];
        let shard = whole(&gguf, fast(), golden.context);
        let oracle = Model::load(&gguf, golden.context, Arithmetic::Float).unwrap();
        let (mut session, mut expected) =
            (oracle.session(), Pooled::new(shard.blueprint().hidden, Pooling::Mean));
        golden.ids.iter().for_each(|id| expected.add(&oracle.state(&mut session, *id)));
        let found = mean(&shard, &mut workspace(&shard, 64), &golden.ids, 64);
        let error = one_minus_cos(&found, &expected.unit());
        println!("{:22} 1-cos {error:.1e}", golden.name);
        assert!(error < ENGINE, "{}: 1-cos {error:e}", golden.name);
        let length: f64 = found.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
        assert!((length - 1.0).abs() < 1e-5, "{}: {length}", golden.name);
    }
}

#[test]
fn chunks_and_company_change_no_bit_and_the_session_goes_on_as_before() {
    let shape = Shape { vocab: 320, ..synthetic::shape("tiny").unwrap().clone() };
    let gguf = common::bytes(shape.to_bytes(shard::quant::by_name("q4_0").unwrap(), 3).unwrap());
    let shard = whole(&gguf, fast(), 256);
    let mut ws = workspace(&shard, 96);
    let (ids, others) = (tokens(50, shape.vocab, 1), tokens(30, shape.vocab, 2));
    let alone = mean(&shard, &mut ws, &ids, 96);
    for chunk in [1, 7, 32] {
        assert_eq!(bits(&mean(&shard, &mut ws, &ids, chunk)), bits(&alone), "chunks of {chunk}");
    }
    let (mut first, mut second) = (shard.new_state(), shard.new_state());
    let both = &mut [all(&mut first, &others), all(&mut second, &ids)];
    shard.states(&mut ws, both).unwrap();
    let mut together = Pooled::new(shard.blueprint().hidden, Pooling::Mean);
    together.add(ws.states(1));
    assert_eq!(bits(&together.unit()), bits(&alone));
    assert!(ws.logits(1).is_empty() && ws.activations(1).is_empty() && ws.states(2).is_empty());
    let hidden = shard.blueprint().hidden;
    let last = ws.states(1)[(ids.len() - 1) * hidden..].to_vec();

    // The caches are those of a pass that gives logits, and so is the state that these are read out of.
    let mut plain = shard.new_state();
    shard.prefill(&mut ws, &mut plain, &ids).unwrap();
    assert_eq!(bits(ws.states(0)), bits(&last));
    assert_eq!(plain.snapshot().unwrap(), second.snapshot().unwrap());
}

#[test]
fn states_need_the_head_and_no_room_for_logits() {
    let shape = Shape { vocab: 320, ..synthetic::shape("tiny").unwrap().clone() };
    let gguf = common::bytes(shape.to_bytes(shard::quant::by_name("q4_0").unwrap(), 3).unwrap());
    let range = shard::executor::whole_range(&gguf).unwrap();
    let ends = Ends { embedding: true, head: false };
    let headless = Shard::load(&gguf, fast(), range, ends, Options::default()).unwrap();
    let ids = tokens(8, shape.vocab, 1);
    let (mut ws, mut kv) = (workspace(&headless, 8), headless.new_state());
    let error = headless.states(&mut ws, &mut [all(&mut kv, &ids)]).unwrap_err().to_string();
    assert!(error.contains("without the head"), "{error}");
    assert!(kv.is_empty());

    let shard = whole(&gguf, fast(), 64);
    let (mut ws, mut kv) = (workspace(&shard, 8), shard.new_state());
    let mut pass = |output| {
        kv.rewind(0);
        let item = Item { state: &mut kv, input: Input::Tokens(&ids), output };
        shard.states(&mut ws, &mut [item]).map(|()| ws.states(0).len())
    };
    assert_eq!(pass(Output::All).unwrap(), 8 * shape.hidden);
    assert_eq!(pass(Output::Last).unwrap(), shape.hidden);
    assert_eq!(pass(Output::None).unwrap(), 0);
}
