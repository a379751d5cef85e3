//! The layer that predicts one token further against transformers, and what it remembers.

mod common;

use std::{fs, path::PathBuf, sync::Arc};

use common::{Copied, copy, cpu, fast, whole};
use shard::{
    draft::{DraftToken, MtpHead, StateDrafter},
    executor::{Capacity, Executor, Input, Item, Output, Workspace, cpu::Shard},
    gguf::{Gguf, Value},
    kernels::{Cpu, Isa},
    models::Blueprint,
    sample::SamplingParams,
};

/// How far a probability may be off: by 2.5e-4 at most where a logit is off by 1e-3, and guesses go on from guesses.
const ENGINE: f32 = 1e-3;

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/mtp"))
}

fn model() -> Arc<Gguf> {
    Arc::new(Gguf::open(folder().join("qwen35.gguf")).unwrap())
}

/// The prompt, what follows each of its beginnings of two tokens and more, and three guesses behind all of it.
fn golden() -> (Vec<u32>, Vec<DraftToken>, Vec<DraftToken>) {
    let text = fs::read_to_string(folder().join("qwen35.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let said = |field: &str| {
        let one = |said: &serde_json::Value| DraftToken {
            token: said[0].as_u64().unwrap() as u32,
            chance: said[1].as_f64().unwrap() as f32,
        };
        json[field].as_array().unwrap().iter().map(one).collect::<Vec<_>>()
    };
    let ids = json["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
    (ids, said("firsts"), said("guesses"))
}

/// The layer, and the hidden states behind `ids`, `[n][hidden]`.
fn loaded(cpu: Arc<Cpu>, ids: &[u32]) -> (Arc<MtpHead>, Vec<f32>, usize) {
    let gguf = model();
    let shard = whole(&gguf, cpu.clone(), 256);
    let head = MtpHead::load(&shard, &gguf, &cpu).unwrap().unwrap();
    let mut ws = Workspace::new(&shard, Capacity { rows: 256, items: 1, logit_rows: 1 }).unwrap();
    let mut state = shard.new_state();
    let item = Item { state: &mut state, input: Input::Tokens(ids), output: Output::All };
    shard.states(&mut ws, &mut [item]).unwrap();
    (Arc::new(head), ws.states(0).to_vec(), shard.blueprint().hidden)
}

fn near(said: &[DraftToken], expected: &[DraftToken]) {
    assert_eq!(said.len(), expected.len());
    for (said, expected) in said.iter().zip(expected) {
        assert_eq!(said.token, expected.token, "{said:?}, not {expected:?}");
        assert!((said.chance - expected.chance).abs() < ENGINE, "{said:?}, not {expected:?}");
    }
}

#[test]
fn the_layer_guesses_what_it_guesses_in_transformers() {
    let (ids, firsts, guesses) = golden();
    let (head, states, hidden) = loaded(fast(), &ids);
    let mut draft = head.session(&SamplingParams::default(), 0).unwrap();
    assert_eq!(firsts.len() + 1, ids.len());
    for (at, expected) in firsts.iter().enumerate() {
        let text = &ids[..at + 2];
        draft.see(at, &states[at * hidden..(at + 1) * hidden], text).unwrap();
        near(draft.guess(text, 1).unwrap(), &[*expected]);
    }
    near(draft.guess(&ids, 1).unwrap(), &[]);
    let last = ids.len() - 2;
    draft.see(last, &states[last * hidden..(last + 1) * hidden], &ids).unwrap();
    near(draft.guess(&ids, 3).unwrap(), &guesses);
}

/// Instruction sets, how rows came, what was guessed before and taken back: the same bits.
#[test]
fn what_was_guessed_before_changes_no_guess() {
    let (ids, ..) = golden();
    let ids: Vec<u32> = ids.iter().cycle().take(200).copied().collect();
    let params = SamplingParams { temperature: 0.8, ..SamplingParams::default() };
    let mut expected: Option<Vec<DraftToken>> = None;
    for isa in [Isa::Scalar, Isa::detect()] {
        let (head, states, hidden) = loaded(cpu(isa, 2), &ids);
        let rows = |range: std::ops::Range<usize>| &states[range.start * hidden..range.end * hidden];
        for chunk in [1, 7, 199] {
            let mut draft = head.clone().session(&params, 5).unwrap();
            let mut at = 0;
            while at < 199 {
                let end = (at + chunk).min(199);
                draft.see(at, rows(at..end), &ids[..end + 1]).unwrap();
                if at % 3 == 0 {
                    assert_eq!(draft.guess(&ids[..end + 1], 3).unwrap().len(), 3);
                }
                at = end;
            }
            // Rows that are seen again, and others in between.
            draft.see(150, rows(20..30), &ids).unwrap();
            draft.see(150, rows(150..199), &ids).unwrap();
            let said = draft.guess(&ids, 4).unwrap().to_vec();
            assert_eq!(said.len(), 4);
            assert_eq!(
                *expected.get_or_insert_with(|| said.clone()),
                said,
                "{isa:?}, {chunk} rows at a time"
            );
            assert!(draft.bytes() > 0);
        }
    }
}

/// Without what lies before, and behind a gap, it guesses from what it saw.
#[test]
fn rows_that_were_not_seen_are_no_error() {
    let (ids, ..) = golden();
    let (head, states, hidden) = loaded(fast(), &ids);
    let rows = |range: std::ops::Range<usize>| &states[range.start * hidden..range.end * hidden];
    let mut late = head.clone().session(&SamplingParams::default(), 0).unwrap();
    late.see(30, rows(30..44), &ids).unwrap();
    let expected = late.guess(&ids, 2).unwrap().to_vec();
    assert_eq!(expected.len(), 2);
    let mut gap = head.session(&SamplingParams::default(), 0).unwrap();
    gap.see(0, rows(0..20), &ids).unwrap();
    assert!(gap.guess(&ids, 2).unwrap().is_empty(), "the state behind the text was not seen");
    gap.see(30, rows(30..44), &ids).unwrap();
    assert_eq!(gap.guess(&ids, 2).unwrap(), expected);
    assert!(gap.guess(&[u32::MAX; 45], 2).unwrap().is_empty(), "what was seen is used up");
}

/// Models without such a layer, and files that lack a part of it or have more of it than is known, have none.
#[test]
fn what_is_not_known_whole_is_not_run() {
    let gguf = model();
    assert!(Blueprint::from_gguf(&gguf).unwrap().ahead.first.is_some());
    let none = |gguf: &Arc<Gguf>| {
        let shard: Shard = whole(gguf, fast(), 64);
        assert!(MtpHead::load(&shard, gguf, &fast()).unwrap().is_none());
    };
    none(&common::open("qwen35"));
    let without = |name: &'static str| {
        copy(&gguf, &[], move |tensor| {
            (&*tensor.info.name != name).then(|| Copied::same(tensor)).into_iter().collect::<Vec<_>>()
        })
    };
    none(&without("blk.4.nextn.eh_proj.weight"));
    none(&without("blk.4.attn_k.weight"));
    let more = copy(&gguf, &[], |tensor| {
        let extra = (&*tensor.info.name == "blk.4.nextn.enorm.weight")
            .then(|| Copied { name: "blk.4.nextn.embed_tokens.weight".into(), ..Copied::same(tensor) });
        extra.into_iter().chain([Copied::same(tensor)]).collect::<Vec<_>>()
    });
    none(&more);
    let two =
        [("qwen35.block_count", Some(Value::U32(6))), ("qwen35.nextn_predict_layers", Some(Value::U32(2)))];
    let two = copy(&gguf, &two, |tensor| [Copied::same(tensor)]);
    assert!(Blueprint::from_gguf(&two).unwrap().ahead.first.is_some(), "the first of two");
}
