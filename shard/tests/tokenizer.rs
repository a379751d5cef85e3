//! The tokenizer against reference implementations: published vocabularies where they are at hand, and small ones
//! of our own with ids computed by `tokenizers` and `sentencepiece` (data/tokenizer/make.py).

use std::path::{Path, PathBuf};

use serde_json::Value;
use shard::{
    gguf::Gguf,
    tokenizer::{Definition, Encode, SpecialIds, Tokenizer, vocabulary::Kind},
};

/// Published vocabularies lie beside the repository, not in it.
fn published() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/tokenizers")
}

fn open(path: &Path) -> shard::Result<Tokenizer> {
    Tokenizer::from_gguf(Gguf::open(path)?.metadata())
}

#[test]
fn published_vocabularies_agree_on_every_string() {
    let Ok(folder) = std::fs::read_dir(published()) else {
        println!("skipped: no published vocabularies in {}", published().display());
        return;
    };
    let mut files: Vec<PathBuf> = folder.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "gguf"));
    files.sort();
    for path in files {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let tokenizer = open(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        // WordPiece folds spaces, accents and mostly case, so a text does not come back.
        let folds = name.contains("bert");
        let text = std::fs::read_to_string(format!("{}.inp", path.display())).unwrap();
        let expected = std::fs::read_to_string(format!("{}.out", path.display())).unwrap();
        let strings: Vec<&str> = text.split_terminator("\n__ggml_vocab_test__\n").collect();
        assert_eq!(strings.len(), expected.lines().count(), "{name}");
        for (text, line) in strings.iter().zip(expected.lines()) {
            let ids: Vec<u32> = line.split_whitespace().map(|id| id.parse().unwrap()).collect();
            assert_eq!(tokenizer.encode(text, Encode::PLAIN).unwrap(), ids, "{name}: {text:?}");
            assert!(folds || tokenizer.decode(&ids) == *text, "{name}: {text:?}");
        }
        println!("{name}: {} strings", strings.len());
    }
}

/// All strings of the published vocabularies as one text, in parts of a few hundred tokens: the same tokens as at once, of the embedded
/// model and of those vocabularies that are at hand.
#[test]
fn long_texts_have_the_tokens_of_their_whole() {
    let minnow = Path::new(env!("CARGO_MANIFEST_DIR")).join("minnow/minnow.gguf");
    let published = std::fs::read_dir(published()).into_iter().flatten().map(|entry| entry.unwrap().path());
    let files = [minnow].into_iter().chain(published);
    let files = files.filter(|path| path.extension().is_some_and(|extension| extension == "gguf"));
    let mut refused = Vec::new();
    for path in files {
        let tokenizer = open(&path).unwrap();
        let text = std::fs::read_to_string(format!("{}.inp", path.display())).unwrap_or_default();
        let prose = "The fox, who'd  slept\tbadly, counted 1,234 stars: it's «late»\n\nsaid the owl. ";
        let text = [prose.repeat(20), text.replace("__ggml_vocab_test__", "\n  "), prose.repeat(20)].concat();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        for how in [Encode::PLAIN, Encode { bos: true, special: true }] {
            for part in [1_000, 1_777, 5_000] {
                match tokenizer.encode_long(&text, how, part) {
                    Ok(ids) => assert_eq!(ids, tokenizer.encode(&text, how).unwrap(), "{name}, {part} bytes"),
                    Err(error) => {
                        assert!(
                            error.to_string().contains("do not print a text as it is"),
                            "{name}: {error}"
                        );
                        refused.push(name.clone());
                    }
                }
            }
        }
    }
    assert!(refused.iter().all(|name| name.contains("bert")), "{refused:?}");
}

fn fixtures() -> Value {
    serde_json::from_str(include_str!("data/tokenizer/fixtures.json")).unwrap()
}

fn strings(value: &Value) -> Vec<&str> {
    value.as_array().unwrap().iter().map(|string| string.as_str().unwrap()).collect()
}

fn ids(value: &str) -> Vec<u32> {
    value.split_whitespace().map(|id| id.parse().unwrap()).collect()
}

/// A tokenizer from one of the fixture's vocabularies.
fn small(vocabulary: &Value, pre: Option<&str>) -> Tokenizer {
    let numbers = |key: &str| vocabulary[key].as_array().cloned().unwrap_or_default();
    let definition = Definition {
        model: vocabulary["model"].as_str().unwrap(),
        pre,
        tokens: strings(&vocabulary["tokens"]),
        kinds: numbers("types").iter().map(|number| Kind::from_number(number.as_i64().unwrap())).collect(),
        scores: numbers("scores").iter().map(|score| score.as_f64().unwrap() as f32).collect(),
        merges: vocabulary.get("merges").map(strings).unwrap_or_default(),
        special: SpecialIds {
            bos: vocabulary["bos"].as_u64(),
            eos: vocabulary["eos"].as_u64(),
            ..SpecialIds::default()
        },
        add_space_prefix: vocabulary["add_space_prefix"].as_bool(),
        remove_extra_whitespaces: vocabulary["remove_extra_whitespaces"].as_bool(),
        ..Definition::default()
    };
    Tokenizer::new(definition).unwrap()
}

/// Every small tokenizer with its row of expected ids.
fn each_small(mut check: impl FnMut(&str, &Tokenizer, &Value, &Value)) {
    let data = fixtures();
    let shared = &data["bpe"]["shared"];
    for row in data["bpe"]["rows"].as_array().unwrap() {
        check(row["name"].as_str().unwrap(), &small(shared, row["pre"].as_str()), row, &data);
    }
    for row in data["spm"].as_array().unwrap() {
        check(row["name"].as_str().unwrap(), &small(row, None), row, &data);
    }
}

#[test]
fn small_vocabularies_agree_on_hard_strings() {
    let (mut compared, mut wrong) = (0, Vec::new());
    each_small(|name, tokenizer, row, data| {
        for (text, expected) in strings(&data["strings"]).iter().zip(row["plain"].as_array().unwrap()) {
            // Where the references differ from one another there is nothing to compare.
            let Some(expected) = expected.as_str() else { continue };
            let got = tokenizer.encode(text, Encode::PLAIN).unwrap();
            compared += 1;
            if got != ids(expected) {
                wrong.push(format!("{name}: {text:?}\n  got      {got:?}\n  expected {:?}", ids(expected)));
            }
        }
    });
    assert!(compared > 3000, "{compared}");
    assert!(wrong.is_empty(), "{} of {compared}:\n{}", wrong.len(), wrong.join("\n"));
}

/// Merges over characters with byte fallback (data/tokenizer/merged.py).
#[test]
fn merges_over_characters_agree_on_hard_strings() {
    let row: Value = serde_json::from_str(include_str!("data/tokenizer/merged.json")).unwrap();
    let (tokenizer, data) = (small(&row, None), fixtures());
    // The same vocabulary as Granite's embedding models write it.
    let mut granite = row.clone();
    granite["model"] = "gpt2".into();
    granite["types"] = row["types"]
        .as_array()
        .unwrap()
        .iter()
        .map(|kind| if kind == 6 { 1.into() } else { kind.clone() })
        .collect();
    let granite = small(&granite, Some("granite-embed-multi-311m"));
    let expected = row["plain"].as_array().unwrap();
    let texts = strings(&data["strings"]);
    assert_eq!((texts.len(), expected.len() > 200), (expected.len(), true));
    for (text, expected) in texts.into_iter().zip(expected) {
        let found = tokenizer.encode(text, Encode::PLAIN).unwrap();
        assert_eq!(found, ids(expected.as_str().unwrap()), "{text:?}");
        // The spelling of spaces is read as a space.
        assert_eq!(tokenizer.decode(&found), text.replace('\u{2581}', " "), "{text:?}");
        assert_eq!(granite.encode(text, Encode::PLAIN).unwrap(), found, "{text:?}");
        assert_eq!(granite.decode(&found), tokenizer.decode(&found), "{text:?}");
    }
    assert_eq!(tokenizer.encode("a", Encode::TEXT).unwrap()[0], 2, "the text begins with <bos>");
}

#[test]
fn special_text_is_recognized_only_where_asked() {
    let mut compared = 0;
    each_small(|name, tokenizer, row, data| {
        let Some(special) = row.get("special") else { return };
        for (text, expected) in strings(&data["special_strings"]).iter().zip(strings(special)) {
            assert_eq!(tokenizer.encode(text, Encode::TEMPLATE).unwrap(), ids(expected), "{name}: {text:?}");
            let plain = tokenizer.encode(text, Encode::PLAIN).unwrap();
            assert!(
                plain.iter().all(|&id| tokenizer.kind(id) != Kind::Control),
                "{name}: {text:?}: {plain:?}"
            );
            compared += 1;
        }
    });
    assert!(compared > 100, "{compared}");
}

#[test]
fn ends_that_a_file_calls_user_defined_stay_text() {
    let path = published().join("ggml-vocab-phi-3.gguf");
    if path.is_file() {
        assert_eq!(open(&path).unwrap().encode("</s>", Encode::PLAIN).unwrap(), [1533, 29879, 29958]);
    }
    let data = fixtures();
    let row = &data["spm"][0];
    let mut tokens = strings(&row["tokens"]);
    let plain = tokens.len() as u32;
    tokens.extend(["<|im_end|>", "<|mine|>", "<|finish|>"]);
    let mut kinds: Vec<Kind> =
        row["types"].as_array().unwrap().iter().map(|n| Kind::from_number(n.as_i64().unwrap())).collect();
    kinds.extend([Kind::UserDefined; 3]);
    let mut scores: Vec<f32> =
        row["scores"].as_array().unwrap().iter().map(|score| score.as_f64().unwrap() as f32).collect();
    scores.extend([0.0; 3]);
    let special = SpecialIds { eot: Some(u64::from(plain) + 2), ..SpecialIds::default() };
    let tokenizer = Tokenizer::new(Definition {
        model: "llama",
        tokens,
        kinds,
        scores,
        special,
        ..Definition::default()
    })
    .unwrap();
    for (text, id, always) in
        [("<|im_end|>", plain, false), ("<|mine|>", plain + 1, true), ("<|finish|>", plain + 2, false)]
    {
        assert_eq!(tokenizer.encode(text, Encode::PLAIN).unwrap().contains(&id), always, "{text}");
        assert_eq!(tokenizer.encode(text, Encode::TEMPLATE).unwrap(), [id], "{text}");
    }
}

/// What is pushed and what is finished is the lossy text of all bytes, and nothing printed is ever taken back.
#[test]
fn streaming_gives_the_whole_text() {
    each_small(|name, tokenizer, row, data| {
        let texts = strings(&data["strings"]);
        for (text, expected) in texts.iter().zip(row["plain"].as_array().unwrap()) {
            let Some(expected) = expected.as_str() else { continue };
            let ids = ids(expected);
            // Cut anywhere: the rest begins in the middle of a character.
            for start in 0..ids.len().min(4) {
                let mut stream = tokenizer.stream().continuing();
                let mut got = String::new();
                for &id in &ids[start..] {
                    got.push_str(stream.push(id));
                }
                got.push_str(stream.finish());
                let bytes: Vec<u8> = ids[start..].iter().flat_map(|&id| tokenizer.token_bytes(id)).collect();
                assert_eq!(got, String::from_utf8_lossy(&bytes), "{name}: {text:?} from {start}");
            }
            let exact = !["llama", "gemma", "one-space"].contains(&name)
                || (name != "one-space" && !text.contains('\u{2581}') && !text.contains("<tool>"));
            let decoded = tokenizer.decode(&ids);
            if exact && ["qwen2", "qwen35"].contains(&name) && decoded != *text {
                // Composed: other characters, the same tokens.
                assert!(!text.is_ascii() && decoded.len() <= text.len(), "{name}: {text:?}");
                assert_eq!(tokenizer.encode(&decoded, Encode::PLAIN).unwrap(), ids, "{name}: {text:?}");
            } else if exact {
                assert_eq!(decoded, *text, "{name}");
            }
        }
    });
}

#[test]
fn unfinished_characters_wait_and_control_tokens_are_silent() {
    let data = fixtures();
    let tokenizer = small(&data["bpe"]["shared"], Some("gpt-2"));
    let ids = tokenizer.encode("\u{10fffe}", Encode::PLAIN).unwrap();
    assert_eq!(ids.len(), 4, "the vocabulary has no token for this character");
    let mut stream = tokenizer.stream();
    assert_eq!(stream.push(ids[0]), "");
    assert_eq!(stream.push(ids[1]), "");
    assert_eq!(stream.push(ids[2]), "");
    assert_eq!(stream.push(ids[3]), "\u{10fffe}");
    assert_eq!(stream.push(ids[0]), "");
    assert_eq!(stream.push(tokenizer.bos().unwrap()), "");
    let a = tokenizer.encode("a", Encode::PLAIN).unwrap()[0];
    assert_eq!(stream.push(a), "\u{fffd}a");
    assert_eq!(stream.push(ids[0]), "");
    assert_eq!(stream.finish(), "\u{fffd}");
    assert_eq!(stream.finish(), "");
    let mut shown = tokenizer.stream().show_special(true);
    assert_eq!(shown.push(tokenizer.bos().unwrap()), "<|begin|>");
    assert_eq!(tokenizer.decode(&[u32::MAX, a]), "a");
}

#[test]
fn ends_follow_the_metadata() {
    let data = fixtures();
    let llama = small(&data["spm"][0], None);
    let hi = llama.encode("hi", Encode::PLAIN).unwrap();
    let with_bos = [&[1], &hi[..]].concat();
    assert_eq!(llama.encode("hi", Encode::TEXT).unwrap(), with_bos);
    assert_eq!(llama.encode_prompt("hi").unwrap(), with_bos);
    let twice = llama.encode_prompt("<s>hi").unwrap();
    assert_eq!(twice, with_bos, "the template wrote BOS itself");
    assert_eq!(llama.decode(&with_bos), "hi");
    let end = llama.encode("<|end|>", Encode::TEMPLATE).unwrap();
    assert!(llama.stop_ids().contains(&2) && llama.stop_ids().contains(&end[0]));
    let gpt2 = small(&data["bpe"]["shared"], Some("gpt-2"));
    assert!(gpt2.encode("", Encode::TEXT).unwrap().is_empty());
    let llama3 = small(&data["bpe"]["shared"], Some("llama-bpe"));
    assert_eq!(llama3.encode("", Encode::TEXT).unwrap(), [llama3.bos().unwrap()]);
}

#[test]
fn phi_3_drops_space_behind_special_tokens() {
    let data = fixtures();
    let row = &data["spm"][0];
    let build = |strip_after_special| {
        let tokens = strings(&row["tokens"]);
        let kinds = row["types"].as_array().unwrap().iter().map(|n| Kind::from_number(n.as_i64().unwrap()));
        let scores = row["scores"].as_array().unwrap().iter().map(|score| score.as_f64().unwrap() as f32);
        let definition = Definition {
            model: "llama",
            tokens,
            kinds: kinds.collect(),
            scores: scores.collect(),
            strip_after_special,
            ..Definition::default()
        };
        Tokenizer::new(definition).unwrap()
    };
    let (plain, phi3) = (build(false), build(true));
    let encode = |tokenizer: &Tokenizer, text| tokenizer.encode(text, Encode::TEMPLATE).unwrap();
    assert_eq!(encode(&phi3, "<|user|>\n hi<|end|>\n"), encode(&plain, "<|user|>hi<|end|>"));
    assert_eq!(encode(&phi3, "<s> hi"), encode(&plain, "<s> hi"));
    assert_ne!(encode(&plain, "<|user|>\n hi"), encode(&plain, "<|user|>hi"));
}

#[test]
fn misfits_are_refused_by_name() {
    let refused = |definition: Definition| Tokenizer::new(definition).err().expect("refused").to_string();
    let base =
        Definition { model: "gpt2", tokens: vec!["a", "b"], merges: vec!["a b"], ..Definition::default() };
    for (definition, part) in [
        (Definition { model: "rwkv", ..base.clone() }, "rwkv"),
        (Definition { pre: Some("unknown-name"), ..base.clone() }, "unknown-name"),
        (Definition { tokens: vec![], ..base.clone() }, "tokenizer.ggml.tokens"),
        (Definition { merges: vec![], ..base.clone() }, "tokenizer.ggml.merges"),
        (Definition { merges: vec!["ab"], ..base.clone() }, "merges[0]"),
        (Definition { kinds: vec![Kind::Normal], ..base.clone() }, "token_type"),
        (Definition { scores: vec![0.0], ..base.clone() }, "scores"),
        (
            Definition { tokens: vec![&"x".repeat(600)], kinds: vec![Kind::Control], ..base.clone() },
            "token 0",
        ),
    ] {
        let error = refused(definition);
        assert!(error.contains(part), "{error} should name {part}");
    }
    let tokenizer = Tokenizer::new(base).unwrap();
    let long = "a".repeat(shard::tokenizer::MAX_TEXT_BYTES + 1);
    assert!(matches!(tokenizer.encode(&long, Encode::PLAIN), Err(shard::Error::Invalid { .. })));
}

/// Ids as transformers gives them for the checkpoint that this file was made of, whose tokenizer composes text.
#[test]
fn text_for_qwen_is_composed_first() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/families/qwen2.gguf");
    let tokenizer = open(&path).unwrap();
    let ids = |text: &str| tokenizer.encode(text, Encode::PLAIN).unwrap();
    for (text, wanted) in [
        ("e\u{301}a\u{308} o\u{302}", &[195, 169, 195, 164, 32, 195, 180][..]),
        ("\u{212b} \u{1100}\u{1161}\u{11a8} fi", &[195, 133, 32, 234, 176, 129, 271]),
        ("a\u{327}\u{301} caf\u{e9}", &[195, 161, 204, 167, 284, 97, 102, 195, 169]),
        ("\u{301}x", &[204, 129, 120]),
    ] {
        assert_eq!(ids(text), wanted, "{text:?}");
    }
    // A long text in parts, of which every fourth character is composed.
    let long = "e\u{301}cho a\u{308}pfel \u{1100}\u{1161} ".repeat(400);
    assert_eq!(tokenizer.encode_long(&long, Encode::PLAIN, 2048).unwrap(), ids(&long));
    let three = "\u{1100}\u{1161}\u{11a8}".repeat(40);
    assert!(
        tokenizer.beginning(&three, 12).len() > 12 * 9 && ids(tokenizer.beginning(&three, 12)).len() > 12
    );
}
