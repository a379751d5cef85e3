//! The tokenizer files of a checkpoint as GGUF vocabulary metadata.
//!
//! `tokenizer.json` (Hugging Face tokenizers) is the source; `tokenizer.model` (a SentencePiece protobuf) adds the
//! scores where it is present. Three kinds are understood: byte-level BPE (`gpt2` in GGUF), SentencePiece BPE with byte
//! fallback (`llama`) and WordPiece (`bert`). Ids that no token has become `[PADn]`, type unused, as other tools write them.

use std::collections::HashMap;

use serde_json::Value;

use super::{config::Config, folder::Folder};
use crate::{Error, Result, gguf::Writer};

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// The caps of the GGUF reader hold for what is written, too.
const MAX_VOCAB: usize = 1 << 20;

struct Vocab {
    tokens: Vec<String>,
    types: Vec<i32>,
}

/// The tokenizer file.
fn read(folder: &Folder) -> Result<Value> {
    folder.json("tokenizer.json")?.ok_or_else(|| {
        Error::invalid(format!(
            "{} holds no tokenizer.json; publishers that ship only tokenizer.model need it converted with `transformers` first",
            folder.path().display()
        ))
    })
}

/// The ids of tokens by their texts.
///
/// # Errors
/// [`Error::Unsupported`] for a vocabulary that lacks one.
pub(super) fn ids<const N: usize>(folder: &Folder, config: &Config, texts: [&str; N]) -> Result<[usize; N]> {
    let vocab = tokens(&read(folder)?, config.vocab()?)?;
    let mut ids = [0; N];
    for (id, text) in ids.iter_mut().zip(texts) {
        let at = vocab.tokens.iter().position(|token| token == text);
        *id = at.ok_or_else(|| Error::unsupported(format!("a vocabulary without the token \"{text}\"")))?;
    }
    Ok(ids)
}

/// Adds everything below `tokenizer.` to the file.
pub(super) fn write(writer: &mut Writer, folder: &Folder, config: &Config) -> Result<()> {
    let json = read(folder)?;
    let settings = folder.json("tokenizer_config.json")?.unwrap_or(Value::Null);
    let model = &json["model"];
    if model["type"].as_str() == Some("WordPiece") {
        return write_word_piece(writer, &json, &settings, config);
    }
    if model["type"].as_str().is_some_and(|kind| kind != "BPE") {
        return Err(Error::unsupported(format!("tokenizer.json of type {}", model["type"])));
    }
    let sentence_piece = model["byte_fallback"].as_bool() == Some(true);
    let mut vocab = tokens(&json, config.vocab()?)?;
    let merges = merges(model)?;
    if sentence_piece {
        write_sentence_piece(writer, folder, &json, &mut vocab, &merges)?;
    } else {
        writer.add_str("tokenizer.ggml.model", "gpt2");
        writer.add_str("tokenizer.ggml.pre", pre_tokenizer(&json["pre_tokenizer"], config.arch())?);
        writer.add_strs("tokenizer.ggml.tokens", &vocab.tokens);
        writer.add_i32s("tokenizer.ggml.token_type", &vocab.types);
        let lines: Vec<String> = merges.iter().map(|(a, b)| format!("{a} {b}")).collect();
        writer.add_strs("tokenizer.ggml.merges", &lines);
    }
    write_roles(writer, &json, &settings, config, &vocab, sentence_piece);
    if let Some(template) = chat_template(folder, &settings)? {
        writer.add_str("tokenizer.chat_template", &template);
    }
    Ok(())
}

/// WordPiece: a GGUF marks tokens that begin a word instead of those that go on.
fn write_word_piece(writer: &mut Writer, json: &Value, settings: &Value, config: &Config) -> Result<()> {
    let (model, normalizer) = (&json["model"], &json["normalizer"]);
    let prefix = model["continuing_subword_prefix"].as_str().unwrap_or("##");
    let usual = normalizer["clean_text"] != false && normalizer["handle_chinese_chars"] != false;
    if normalizer["type"] != "BertNormalizer" || json["pre_tokenizer"]["type"] != "BertPreTokenizer" || !usual
    {
        let why = format!("normalizer {normalizer} in front of WordPiece in tokenizer.json");
        return Err(Error::unsupported(why));
    }
    let mut vocab = tokens(json, config.vocab()?)?;
    for (token, kind) in vocab.tokens.iter_mut().zip(&mut vocab.types) {
        if token.starts_with('[') && token.ends_with(']') {
            *kind = if token.starts_with("[unused") { UNUSED } else { *kind };
        } else if *kind == NORMAL {
            *token = match token.strip_prefix(prefix) {
                Some(rest) => rest.to_owned(),
                None => format!("\u{2581}{token}"),
            };
        }
    }
    writer.add_str("tokenizer.ggml.model", "bert");
    writer.add_strs("tokenizer.ggml.tokens", &vocab.tokens);
    writer.add_i32s("tokenizer.ggml.token_type", &vocab.types);
    for (role, name, usual) in [
        ("cls", "cls", "[CLS]"),
        ("sep", "seperator", "[SEP]"),
        ("unk", "unknown", "[UNK]"),
        ("pad", "padding", "[PAD]"),
        ("mask", "mask", "[MASK]"),
    ] {
        let value = &settings[format!("{role}_token")];
        let text = value.as_str().or(value["content"].as_str()).unwrap_or(usual);
        if let Some(id) = vocab.tokens.iter().position(|token| token == text) {
            writer.add_u32(&format!("tokenizer.ggml.{name}_token_id"), id as u32);
        }
    }
    Ok(())
}

fn write_sentence_piece(
    writer: &mut Writer,
    folder: &Folder,
    json: &Value,
    vocab: &mut Vocab,
    merges: &[(String, String)],
) -> Result<()> {
    let mut scores = vec![0.0; vocab.tokens.len()];
    if let Some(bytes) = folder.read("tokenizer.model")? {
        for (id, piece) in protobuf::pieces(&bytes)?.into_iter().enumerate().take(scores.len()) {
            scores[id] = piece.score;
            if vocab.types[id] == NORMAL || piece.kind == BYTE {
                vocab.types[id] = piece.kind;
            }
        }
    } else {
        // SentencePiece joins the pair whose result scores best; the rank of the merge says the same.
        let ids: HashMap<&str, usize> =
            vocab.tokens.iter().enumerate().map(|(id, t)| (t.as_str(), id)).collect();
        for (rank, (a, b)) in merges.iter().enumerate().rev() {
            if let Some(&id) = ids.get(format!("{a}{b}").as_str()) {
                scores[id] = -(rank as f32);
            }
        }
    }
    for (token, kind) in vocab.tokens.iter_mut().zip(&mut vocab.types) {
        if is_byte(token) && *kind == NORMAL {
            *kind = BYTE;
        }
        if *kind == USER_DEFINED {
            *token = token.replace('\u{2581}', " ");
        }
    }
    writer.add_str("tokenizer.ggml.model", "llama");
    writer.add_str("tokenizer.ggml.pre", "default");
    writer.add_strs("tokenizer.ggml.tokens", &vocab.tokens);
    writer.add_f32s("tokenizer.ggml.scores", &scores);
    writer.add_i32s("tokenizer.ggml.token_type", &vocab.types);
    writer.add_bool("tokenizer.ggml.add_space_prefix", space_prefix(json));
    Ok(())
}

fn write_roles(
    writer: &mut Writer,
    json: &Value,
    settings: &Value,
    config: &Config,
    vocab: &Vocab,
    sentence_piece: bool,
) {
    let named = |role: &str| {
        let value = &settings[format!("{role}_token")];
        let text = value.as_str().or(value["content"].as_str())?;
        vocab.tokens.iter().position(|t| t == text).map(|id| id as u32)
    };
    let role =
        |role: &str| config.token_ids(&format!("{role}_token_id")).first().copied().or_else(|| named(role));
    let says = |key: &str| settings[key].as_bool();
    let [opening, closing] = frame(&json["post_processor"]);
    let id_of = |text: &str| vocab.tokens.iter().position(|token| token == text).map(|id| id as u32);
    // What a text ends with is what the key `eos` names; the role of that name may be another token, which ends turns.
    let closing = closing.filter(|_| says("add_eos_token") != Some(false)).and_then(id_of);
    let (bos, ends) = (role("bos"), role("eos"));
    let eos = closing.or(ends);
    for (name, id) in [
        ("bos", bos),
        ("eos", eos),
        ("unknown", named("unk")),
        ("padding", named("pad")),
        ("eot", end_of_turn(vocab).or(ends.filter(|_| ends != eos))),
    ] {
        if let Some(id) = id {
            writer.add_u32(&format!("tokenizer.ggml.{name}_token_id"), id);
        }
    }
    let opens = bos.is_some() && opening.and_then(id_of) == bos;
    let add_bos = says("add_bos_token").unwrap_or(opens || (sentence_piece && bos.is_some()));
    writer.add_bool("tokenizer.ggml.add_bos_token", add_bos && bos.is_some());
    writer.add_bool("tokenizer.ggml.add_eos_token", says("add_eos_token").unwrap_or(closing.is_some()));
}

/// The special tokens that a template puts in front of a single text and behind it; `processor` is `post_processor` of
/// tokenizer.json, a template or a sequence with one in it.
fn frame(processor: &Value) -> [Option<&str>; 2] {
    fn special(piece: Option<&Value>) -> Option<&str> {
        piece?["SpecialToken"]["id"].as_str()
    }
    let inner = processor["processors"].as_array().map_or(&[][..], Vec::as_slice);
    let template = |processor: &&Value| processor["type"] == "TemplateProcessing";
    let Some(template) = std::iter::once(processor).chain(inner).find(template) else { return [None, None] };
    let pieces = template["single"].as_array().map_or(&[][..], Vec::as_slice);
    let text = |piece: &Value| piece.get("Sequence").is_some();
    match pieces.iter().position(text) {
        Some(at) => [special(pieces[..at].first()), special(pieces[at + 1..].last())],
        None => [None, None],
    }
}

/// The control token that ends a turn, where it is not the end of the text.
fn end_of_turn(vocab: &Vocab) -> Option<u32> {
    let names = ["<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>"];
    names.iter().find_map(|name| vocab.tokens.iter().position(|t| t == name)).map(|id| id as u32)
}

fn tokens(json: &Value, size: usize) -> Result<Vocab> {
    let entries = json["model"]["vocab"].as_object();
    let entries =
        entries.ok_or_else(|| Error::malformed("tokenizer.json: model.vocab", "it is not an object"))?;
    let added = json["added_tokens"].as_array().map_or(&[][..], Vec::as_slice);
    let id_of = |value: &Value| value.as_u64().map(|id| id as usize).filter(|&id| id < MAX_VOCAB);
    let ids = entries.values().chain(added.iter().map(|a| &a["id"])).map(|id| {
        id_of(id).ok_or_else(|| Error::malformed("tokenizer.json", format!("{id} is no token id")))
    });
    let ids = ids.collect::<Result<Vec<usize>>>()?;
    let len = ids.iter().map(|id| id + 1).max().unwrap_or(0).max(size);
    if len > MAX_VOCAB {
        return Err(Error::malformed("config.json: vocab_size", format!("{len} tokens are too many")));
    }
    let mut vocab =
        Vocab { tokens: (0..len).map(|id| format!("[PAD{id}]")).collect(), types: vec![UNUSED; len] };
    for ((token, _), &id) in entries.iter().zip(&ids) {
        vocab.tokens[id].clone_from(token);
        vocab.types[id] = NORMAL;
    }
    let unknown = json["model"]["unk_token"].as_str();
    for (entry, &id) in added.iter().zip(&ids[entries.len()..]) {
        let text = entry["content"].as_str().unwrap_or_default();
        vocab.tokens[id] = text.into();
        vocab.types[id] = if entry["special"].as_bool() == Some(true) { CONTROL } else { USER_DEFINED };
        if Some(text) == unknown {
            vocab.types[id] = UNKNOWN;
        }
    }
    Ok(vocab)
}

/// Pairs in order of rank; files write them as `"a b"` or `["a", "b"]`.
fn merges(model: &Value) -> Result<Vec<(String, String)>> {
    let list = model["merges"].as_array();
    let list = list.ok_or_else(|| Error::malformed("tokenizer.json: model.merges", "it is not a list"))?;
    let pair = |value: &Value| match value {
        Value::String(text) => text.split_once(' ').map(|(a, b)| (a.into(), b.into())),
        Value::Array(pair) => Some((pair.first()?.as_str()?.into(), pair.get(1)?.as_str()?.into())),
        _ => None,
    };
    let wrong =
        |value: &Value| Error::malformed("tokenizer.json: model.merges", format!("{value} is no pair"));
    list.iter().map(|value| pair(value).ok_or_else(|| wrong(value))).collect()
}

/// GGUF's name of the rule that cuts text before merging, recognized by the pattern in the file.
fn pre_tokenizer(value: &Value, arch: &str) -> Result<&'static str> {
    let text = value.to_string();
    let digits_first = text.contains("\"Digits\"") && text.contains("\"individual_digits\":true");
    let name = match value["type"].as_str() {
        _ if text.contains("\\\\p{Lu}") && text.contains("\\\\p{N}|") => "tekken",
        _ if text.contains("(?i:'s") && text.contains("\\\\p{N}{1,3}") && arch == "glm4" => "glm4",
        _ if text.contains("(?i:'s") && text.contains("\\\\p{N}{1,3}") => "llama-bpe",
        _ if text.contains("(?i:'s") && text.contains("[\\\\p{L}\\\\p{M}]+|\\\\p{N}|") => "qwen35",
        _ if text.contains("(?i:'s") && text.contains("\\\\p{N}|") => "qwen2",
        Some("Sequence") if digits_first && text.contains("ByteLevel") => "starcoder",
        Some("ByteLevel") => "gpt-2",
        _ => return Err(Error::unsupported(format!("the pre-tokenizer {text} of tokenizer.json"))),
    };
    Ok(name)
}

/// Whether a space is put before the text: llama's files do, gemma's do not.
fn space_prefix(json: &Value) -> bool {
    let normalizer = json["normalizer"].to_string();
    let scheme = json["pre_tokenizer"]["prepend_scheme"].as_str();
    normalizer.contains("\"Prepend\"") || matches!(scheme, Some("first" | "always"))
}

fn is_byte(token: &str) -> bool {
    let hex = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    hex.is_some_and(|hex| hex.len() == 2 && u8::from_str_radix(hex, 16).is_ok())
}

fn chat_template(folder: &Folder, settings: &Value) -> Result<Option<String>> {
    const FILE: &str = "chat_template.jinja";
    if let Some(bytes) = folder.read(FILE)? {
        let text = String::from_utf8(bytes);
        return text.map(Some).map_err(|e| Error::malformed(FILE, e.to_string()));
    }
    Ok(match &settings["chat_template"] {
        Value::String(text) => Some(text.clone()),
        Value::Array(named) => {
            let default = named.iter().find(|entry| entry["name"] == "default").or(named.first());
            default.and_then(|entry| entry["template"].as_str()).map(String::from)
        }
        _ => None,
    })
}

/// The few fields of SentencePiece's `ModelProto` that matter here: `repeated SentencePiece pieces = 1` with
/// `string piece = 1; float score = 2; enum type = 3`.
mod protobuf {
    use crate::{Error, Result};

    pub struct Piece {
        pub score: f32,
        pub kind: i32,
    }

    enum Field<'a> {
        Number(u64),
        Fixed32(u32),
        Bytes(&'a [u8]),
    }

    pub fn pieces(bytes: &[u8]) -> Result<Vec<Piece>> {
        let wrong = || Error::malformed("tokenizer.model", "it is no SentencePiece model");
        let mut pieces = Vec::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            let (number, field) = field(&mut rest).ok_or_else(wrong)?;
            if let (1, Field::Bytes(inner)) = (number, field) {
                pieces.push(piece(inner).ok_or_else(wrong)?);
            }
        }
        Ok(pieces)
    }

    fn piece(mut bytes: &[u8]) -> Option<Piece> {
        let mut piece = Piece { score: 0.0, kind: super::NORMAL };
        while !bytes.is_empty() {
            match field(&mut bytes)? {
                (2, Field::Fixed32(bits)) => piece.score = f32::from_bits(bits),
                (3, Field::Number(kind)) => {
                    piece.kind = i32::try_from(kind).ok().filter(|k| (1..=6).contains(k))?
                }
                _ => {}
            }
        }
        Some(piece)
    }

    fn field<'a>(bytes: &mut &'a [u8]) -> Option<(u64, Field<'a>)> {
        let tag = varint(bytes)?;
        let field = match tag & 7 {
            0 => Field::Number(varint(bytes)?),
            1 => Field::Bytes(take(bytes, 8)?),
            2 => {
                let len = varint(bytes)?;
                Field::Bytes(take(bytes, usize::try_from(len).ok()?)?)
            }
            5 => Field::Fixed32(u32::from_le_bytes(take(bytes, 4)?.try_into().ok()?)),
            _ => return None,
        };
        Some((tag >> 3, field))
    }

    fn varint(bytes: &mut &[u8]) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = *take(bytes, 1)?.first()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn take<'a>(bytes: &mut &'a [u8], n: usize) -> Option<&'a [u8]> {
        let (head, tail) = bytes.split_at_checked(n)?;
        *bytes = tail;
        Some(head)
    }

    #[cfg(test)]
    mod tests {
        use super::pieces;

        #[test]
        fn pieces_carry_score_and_type() {
            // pieces { piece: "ab" score: -1.5 type: BYTE } pieces { piece: "c" } trainer_spec {}
            let bytes = [10, 11, 10, 2, b'a', b'b', 21, 0, 0, 0xc0, 0xbf, 24, 6, 10, 3, 10, 1, b'c', 18, 0];
            let found: Vec<(f32, i32)> = pieces(&bytes).unwrap().iter().map(|p| (p.score, p.kind)).collect();
            assert_eq!(found, [(-1.5, 6), (0.0, 1)]);
            for cut in 1..bytes.len() - 2 {
                let _ = pieces(&bytes[..cut]);
            }
            assert!(pieces(&[10, 200, 1]).is_err());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pre_tokenizers_are_recognized_by_their_pattern() {
        let split = |pattern: &str| json!({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": pattern}}, {"type": "ByteLevel"}]});
        let common = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|";
        let llama = split(&format!("{common}\\p{{N}}{{1,3}}| ?[^\\s]+"));
        assert_eq!(pre_tokenizer(&llama, "llama").unwrap(), "llama-bpe");
        assert_eq!(pre_tokenizer(&llama, "glm4").unwrap(), "glm4");
        assert_eq!(pre_tokenizer(&split(&format!("{common}\\p{{N}}| ?[^\\s]+")), "qwen2").unwrap(), "qwen2");
        let marks = "(?i:'s|'t)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+";
        assert_eq!(pre_tokenizer(&split(marks), "qwen35").unwrap(), "qwen35");
        assert_eq!(pre_tokenizer(&json!({"type": "ByteLevel"}), "llama").unwrap(), "gpt-2");
        assert!(pre_tokenizer(&split("[a-z]+"), "llama").is_err());
    }

    #[test]
    fn a_template_says_what_a_text_begins_and_ends_with() {
        let special = |id: &str| json!({"SpecialToken": {"id": id, "type_id": 0}});
        let text = json!({"Sequence": {"id": "A", "type_id": 0}});
        let template = |single: Value| json!({"type": "TemplateProcessing", "single": single});
        let both = template(json!([special("<s>"), text, special("</s>")]));
        assert_eq!(frame(&both), [Some("<s>"), Some("</s>")]);
        let closing = template(json!([text, special("</s>")]));
        let sequence = json!({"type": "Sequence", "processors": [{"type": "ByteLevel"}, closing]});
        assert_eq!(frame(&sequence), [None, Some("</s>")]);
        assert_eq!(frame(&template(json!([text]))), [None, None]);
        assert_eq!(frame(&json!({"type": "ByteLevel"})), [None, None]);
        assert_eq!(frame(&Value::Null), [None, None]);
    }

    /// What is written of the roles of four tokens: bos, eos, eot, whether bos and eos are added.
    fn roles(post_processor: &Value, settings: &Value) -> ([Option<u64>; 3], [Option<bool>; 2]) {
        let added = ["a", "<bos>", "<end>", "<turn>"].iter().enumerate();
        let added: Vec<Value> =
            added.map(|(id, text)| json!({"id": id, "content": text, "special": id > 0})).collect();
        let tokenizer =
            json!({"model": {"vocab": {}}, "added_tokens": added, "post_processor": post_processor});
        let config = Config::new(json!({"model_type": "qwen3", "vocab_size": 4})).unwrap();
        let mut writer = Writer::new();
        writer.add_str("general.architecture", "qwen3");
        write_roles(&mut writer, &tokenizer, settings, &config, &tokens(&tokenizer, 4).unwrap(), false);
        let bytes = writer.start(std::io::Cursor::new(Vec::new())).unwrap().finish().unwrap();
        let gguf = crate::gguf::Gguf::from_bytes(bytes.into_inner()).unwrap();
        let id = |role: &str| gguf.metadata().u64(&format!("tokenizer.ggml.{role}_token_id"));
        let adds = |role: &str| gguf.metadata().bool(&format!("tokenizer.ggml.add_{role}_token"));
        (["bos", "eos", "eot"].map(id), ["bos", "eos"].map(adds))
    }

    #[test]
    fn what_a_template_puts_behind_a_text_is_written() {
        let special = |id: &str| json!({"SpecialToken": {"id": id}});
        let text = json!({"Sequence": {"id": "A"}});
        let template = |single: Value| json!({"type": "TemplateProcessing", "single": single});
        let settings = json!({"bos_token": "<bos>", "eos_token": "<turn>"});
        let no = template(json!([text]));
        assert_eq!(roles(&no, &settings), ([Some(1), Some(3), None], [Some(false); 2]));
        let opens = template(json!([special("<bos>"), text]));
        assert_eq!(roles(&opens, &settings), ([Some(1), Some(3), None], [Some(true), Some(false)]));
        let closes = template(json!([text, special("<end>")]));
        assert_eq!(roles(&closes, &settings), ([Some(1), Some(2), Some(3)], [Some(false), Some(true)]));
        let told = json!({"eos_token": "<turn>", "add_eos_token": false});
        assert_eq!(roles(&closes, &told), ([None, Some(3), None], [Some(false); 2]));
        let same = json!({"bos_token": "<end>", "eos_token": "<end>"});
        assert_eq!(roles(&closes, &same), ([Some(2), Some(2), None], [Some(false), Some(true)]));
    }

    #[test]
    fn ids_without_a_token_are_padding() {
        let json = json!({"model": {"vocab": {"a": 0, "b": 2}}, "added_tokens": [{"id": 3, "content": "<s>", "special": true}]});
        let vocab = tokens(&json, 6).unwrap();
        assert_eq!(vocab.tokens, ["a", "[PAD1]", "b", "<s>", "[PAD4]", "[PAD5]"]);
        assert_eq!(vocab.types, [NORMAL, UNUSED, NORMAL, CONTROL, UNUSED, UNUSED]);
    }
}
