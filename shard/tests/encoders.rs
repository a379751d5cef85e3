//! Encoders against Hugging Face transformers: states of whole texts, scores of pairs, tokens, checkpoints.
//!
//! `tests/data/encoders/make.py` writes the fixtures. Tolerances, as one minus the cosine: the oracle and the executor 1e-6; both have
//! the gelu of the hyperbolic tangent where transformers has the one of the error function.

mod common;

use std::{fs, path::PathBuf, sync::Arc};

use common::{bits, cpu, fast, one_minus_cos, table::Figures, whole};
use serde_json::Value;
use shard::{
    convert::{self, convert},
    executor::{
        Capacity, Executor, Input, Item, Output, Workspace,
        cpu::Shard,
        reference::{Arithmetic, Model},
    },
    gguf::Gguf,
    kernels::Isa,
    models::Blueprint,
    quant,
    tokenizer::{Definition, Encode, SpecialIds, Tokenizer, vocabulary::Kind},
};

const NAMES: [&str; 4] = ["bert", "nomic_bert", "modern_bert", "xlm_roberta"];
/// Those with a checkpoint beside them.
const CHECKPOINTS: &[&str] = NAMES.split_at(3).0;
const CONTEXT: usize = 320;
const LIMIT: f64 = 1e-6;

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/encoders"))
}

fn open(name: &str) -> Arc<Gguf> {
    Arc::new(Gguf::open(folder().join(format!("{name}.gguf"))).expect(name))
}

fn json(name: &str) -> Value {
    let text = fs::read_to_string(folder().join(format!("{name}.json"))).expect(name);
    serde_json::from_str(&text).expect(name)
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().expect("ids").iter().map(|id| id.as_u64().expect("an id") as u32).collect()
}

fn floats(value: &Value) -> Vec<f32> {
    value.as_array().expect("a row").iter().map(|x| x.as_f64().expect("a number") as f32).collect()
}

/// The hidden states of some texts in one pass.
fn states(shard: &Shard, texts: &[&[u32]]) -> Vec<Vec<f32>> {
    let rows = texts.iter().map(|text| text.len()).sum();
    let mut ws = Workspace::new(shard, Capacity { rows, items: texts.len(), logit_rows: 1 }).unwrap();
    let mut held: Vec<_> = texts.iter().map(|_| shard.new_state()).collect();
    let mut items: Vec<Item<'_>> = held
        .iter_mut()
        .zip(texts)
        .map(|(state, text)| Item { state, input: Input::Tokens(text), output: Output::All })
        .collect();
    shard.states(&mut ws, &mut items).unwrap();
    drop(items);
    (0..texts.len()).map(|at| ws.states(at).to_vec()).collect()
}

fn check(name: &str, rows: &[f32], hidden: usize, golden: &Value) -> f64 {
    let mut mean = vec![0.0; hidden];
    rows.chunks_exact(hidden).for_each(|row| mean.iter_mut().zip(row).for_each(|(sum, x)| *sum += x));
    let found = [("first", &rows[..hidden]), ("last", &rows[rows.len() - hidden..]), ("mean", &mean)];
    let errors = found.map(|(what, row)| {
        let error = one_minus_cos(row, &floats(&golden[what]));
        assert!(error < LIMIT, "{name}, {what}: 1-cos {error:e}");
        error
    });
    errors.into_iter().fold(0.0, f64::max)
}

#[test]
fn states_and_scores_are_those_of_transformers() {
    let mut figures = Figures::default();
    for name in NAMES {
        let (gguf, golden) = (open(name), json(name));
        let mut worst = 0.0;
        let shard = whole(&gguf, fast(), CONTEXT);
        let oracle = Model::load(&gguf, CONTEXT, Arithmetic::Float).unwrap();
        let hidden = shard.blueprint().hidden;
        for (kind, golden) in
            golden.as_object().expect("prompts").iter().filter(|(_, entry)| entry.is_object())
        {
            let text = ids(&golden["ids"]);
            let name = format!("{name}/{kind}");
            let rows = states(&shard, &[&text]).remove(0);
            let twin = oracle.encode(&text).concat();
            let (own, plain) = (check(&name, &rows, hidden, golden), check(&name, &twin, hidden, golden));
            worst = f64::max(worst, own);
            println!(
                "{name:20} 1-cos {own:.1e}, oracle {plain:.1e}, between them {:.1e}",
                one_minus_cos(&rows, &twin)
            );
            match golden["score"].as_f64() {
                None => assert!(shard.rank(&rows[..hidden]).is_err(), "{name} ranks nothing"),
                Some(score) => {
                    for (what, own) in [
                        ("executor", shard.rank(&rows[..hidden]).unwrap()),
                        ("oracle", oracle.rank(&twin[..hidden])),
                    ] {
                        let off = (f64::from(own) - score).abs();
                        println!("{name:20} score {score:.4}, {what} off by {off:.1e}");
                        assert!(off < 2e-3, "{name}: {what} gives {own}, not {score}");
                    }
                }
            }
        }
        figures.note(gguf.metadata().architecture().unwrap(), format!("{name} {worst:.0e}"));
    }
    figures.hold();
}

#[test]
fn states_have_the_same_bits_on_every_processor_and_beside_any_text() {
    for name in NAMES {
        let (gguf, golden) = (open(name), json(name));
        let texts = ["short", "medium", "long"].map(|kind| ids(&golden[kind]["ids"]));
        let all: Vec<&[u32]> = texts.iter().map(Vec::as_slice).collect();
        let expected: Vec<_> =
            states(&whole(&gguf, fast(), CONTEXT), &all).iter().map(|rows| bits(rows)).collect();
        for isa in Isa::available() {
            let shard = whole(&gguf, cpu(isa, 1), CONTEXT);
            for (text, expected) in all.iter().zip(&expected) {
                assert!(bits(&states(&shard, &[text])[0]) == *expected, "{name} on {}", isa.name());
            }
        }
    }
}

#[test]
fn an_encoder_reads_a_text_in_one_pass_and_gives_no_logits() {
    let gguf = open("bert");
    let shard = whole(&gguf, fast(), CONTEXT);
    let mut ws = Workspace::new(&shard, Capacity { rows: 8, items: 1, logit_rows: 1 }).unwrap();
    let mut state = shard.new_state();
    let text = [2, 9, 3];
    let pass = |ws: &mut Workspace, state: &mut shard::state::SessionState, states: bool| {
        let mut items = [Item { state, input: Input::Tokens(&text), output: Output::All }];
        if states { shard.states(ws, &mut items) } else { shard.forward(ws, &mut items) }
    };
    assert!(pass(&mut ws, &mut state, false).unwrap_err().to_string().contains("ask for embeddings"));
    assert_eq!(state.len(), 0);
    pass(&mut ws, &mut state, true).unwrap();
    assert!(pass(&mut ws, &mut state, true).unwrap_err().to_string().contains("in one pass"));
    let (input, all) = (Input::Tokens(&[9; 9]), Output::All);
    let rows = vec![0.0; 2 * shard.blueprint().hidden];
    let mut given =
        [Item { state: &mut shard.new_state(), input: Input::Activations(&rows), output: Output::All }];
    assert!(shard.states(&mut ws, &mut given).unwrap_err().to_string().contains("send token ids"));
    assert!(shard.rank(&vec![f32::NAN; shard.blueprint().hidden]).is_err(), "a score that is no number");
    let fed = shard.feed(&mut ws, &mut shard.new_state(), input, 8, all, &mut |_| {});
    assert!(fed.unwrap_err().to_string().contains("in one pass"));
    let cut = scheduler::LayerRange::new(0, 2).unwrap();
    assert!(shard.blueprint().check_cut(cut).unwrap_err().to_string().contains("run it whole"));
    let memory =
        |positions| (0..4).map(|layer| shard.blueprint().state_kind(layer).bytes(positions)).sum::<usize>();
    assert_eq!(memory(256), shard.blueprint().state_kind(0).bytes(256), "one cache serves all layers");
}

#[test]
fn words_become_the_tokens_of_the_published_tokenizer() {
    let golden = json("wordpiece");
    let mut seen = 0;
    for case in ["uncased", "cased"] {
        let golden = &golden[case];
        let tokens: Vec<&str> =
            golden["tokens"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
        let kinds = tokens.iter().enumerate().map(|(id, token)| match () {
            () if id < 5 => Kind::Control,
            () if token.starts_with("[unused") => Kind::Unused,
            () => Kind::Normal,
        });
        let definition = Definition {
            model: "bert",
            kinds: kinds.collect(),
            tokens,
            special: SpecialIds { bos: Some(2), eos: Some(3), unknown: Some(1), ..SpecialIds::default() },
            ..Definition::default()
        };
        let tokenizer = Tokenizer::new(definition).unwrap();
        for entry in golden["texts"].as_array().unwrap() {
            let text = entry["text"].as_str().unwrap();
            let found = tokenizer.encode(text, Encode::PLAIN).unwrap();
            assert_eq!(found, ids(&entry["ids"]), "{case}: {text:?}");
            seen += 1;
        }
        assert_eq!(tokenizer.encode_pair("The shoal", "turns fish").unwrap(), ids(&golden["pair"]), "{case}");
        // Long words that are unknown are few tokens: all of the text is needed to count them.
        let unknown = ["q".repeat(150).as_str(); 9].join(" ");
        assert_eq!(tokenizer.encode(tokenizer.beginning(&unknown, 10), Encode::PLAIN).unwrap(), [1; 9]);
        let framed = tokenizer.encode("shoal", Encode::TEXT).unwrap();
        assert_eq!((framed.first(), framed.last()), (Some(&2), Some(&3)));
        assert_eq!(
            tokenizer.decode(&tokenizer.encode("the shoal turns fishing", Encode::TEXT).unwrap()),
            "the shoal turns fishing"
        );
    }
    assert!(seen > 80, "only {seen} texts");
}

#[test]
fn the_layers_part_two_texts_where_the_tokenizer_does() {
    let types = |gguf: &Gguf| Blueprint::from_gguf(gguf).unwrap().embedding.types;
    let bytes = fs::read(folder().join("bert.gguf")).unwrap();
    let key = b"tokenizer.ggml.seperator_token_id";
    let at = bytes.windows(key.len()).position(|window| window == key).expect("the key");
    let scratch = tempfile::tempdir().unwrap();
    // With the key, without it, and with an id beyond the vocabulary.
    let (mut without, mut beyond) = (bytes.clone(), bytes.clone());
    without[at + 15] = b'x';
    beyond[at + key.len() + 4..][..4].copy_from_slice(&u32::MAX.to_le_bytes());
    let found = [bytes, without, beyond].map(|bytes| {
        let path = scratch.path().join("bert.gguf");
        fs::write(&path, bytes).unwrap();
        let gguf = Gguf::open(&path).unwrap();
        let end = Tokenizer::from_gguf(gguf.metadata()).unwrap().eos();
        assert_eq!(types(&gguf), Some(end));
        end
    });
    assert!(found[0] == Some(3) && found[1] != found[0] && found[2].is_none(), "{found:?}");
}

#[test]
fn unigram_texts_become_the_tokens_of_sentencepiece() {
    let golden = json("unigram");
    let tokens: Vec<&str> =
        golden["tokens"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
    let kinds =
        golden["types"].as_array().unwrap().iter().map(|kind| Kind::from_number(kind.as_i64().unwrap()));
    let table: Vec<u8> = ids(&golden["charsmap"]).iter().map(|byte| *byte as u8).collect();
    let made = |rules: Vec<u8>| {
        Tokenizer::new(Definition {
            model: "t5",
            tokens: tokens.clone(),
            kinds: kinds.clone().collect(),
            scores: floats(&golden["scores"]),
            special: SpecialIds { unknown: Some(0), ..SpecialIds::default() },
            rules,
            ..Definition::default()
        })
    };
    let tokenizer = made(table.clone()).unwrap();
    for entry in golden["texts"].as_array().unwrap() {
        let text = entry["text"].as_str().unwrap();
        assert_eq!(tokenizer.encode(text, Encode::PLAIN).unwrap(), ids(&entry["ids"]), "{text:?}");
    }
    let own = Tokenizer::from_gguf(open("xlm_roberta").metadata()).unwrap();
    let plain = |text| own.encode(text, Encode::PLAIN).unwrap();
    let pair = [vec![1], plain("the shoal"), vec![2, 2], plain("turns"), vec![2]].concat();
    assert_eq!(own.encode_pair("the shoal", "turns").unwrap(), pair);
    // Damaged tables are refused or do something: they never break.
    for at in 0..table.len() {
        let mut damaged = table.clone();
        damaged[at] ^= 0x55;
        if let Ok(tokenizer) = made(damaged) {
            tokenizer.encode("\u{ff21}\u{fb01} cafe\u{301}", Encode::PLAIN).unwrap();
        }
        let _ = made(table[..at].to_vec());
    }
}

#[test]
fn checkpoints_become_the_files_that_others_write() {
    let scratch = tempfile::tempdir().unwrap();
    for &name in CHECKPOINTS {
        let output = scratch.path().join(format!("{name}.gguf"));
        let options = convert::Options::new(quant::by_name("f16").unwrap(), 1);
        convert(&folder().join(name), &output, &options, &|_, _| {}).unwrap();
        let (own, theirs) = (Arc::new(Gguf::open(&output).unwrap()), open(name));
        let text = ids(&json(name)["medium"]["ids"]);
        let [a, b] = [&own, &theirs].map(|gguf| states(&whole(gguf, fast(), CONTEXT), &[&text]).remove(0));
        assert!(bits(&a) == bits(&b), "{name}");
        let tokens = |gguf: &Gguf| {
            Tokenizer::from_gguf(gguf.metadata())
                .unwrap()
                .encode("The caf\u{e9} turns.", Encode::TEXT)
                .unwrap()
        };
        assert_eq!(tokens(&own), tokens(&theirs), "{name}");
        for (key, value) in theirs.metadata().iter().filter(|(key, _)| key.contains("bert.")) {
            let found = own.metadata().get(key).map(|value| format!("{value:?}"));
            assert_eq!(found, Some(format!("{value:?}")), "{name}: {key}");
        }
    }
}
