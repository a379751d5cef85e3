//! Any vocabulary with any text. The first byte says how the rest is read: `#` is followed by a description in
//! text (see [`Description`]), which a mutation rarely breaks; anything else by a length, a text and a GGUF file.
#![no_main]

use std::io::Cursor;

use libfuzzer_sys::fuzz_target;
use shard::{
    gguf::{Gguf, Writer},
    tokenizer::{Encode, Tokenizer, vocabulary::Kind},
};

fuzz_target!(|bytes: &[u8]| {
    let Some((&mode, rest)) = bytes.split_first() else { return };
    if mode == b'#' {
        if let Some(description) = Description::read(&String::from_utf8_lossy(rest)) {
            check(&description.gguf(), &description.text);
        }
        return;
    }
    let Some((len, rest)) = rest.split_first() else { return };
    let (text, file) = rest.split_at(usize::from(*len).min(rest.len()));
    if let Ok(gguf) = Gguf::from_bytes(file.to_vec()) {
        check(&gguf, &String::from_utf8_lossy(text));
    }
});

/// A vocabulary in lines: the model, the pre-tokenizer, flags, then a line for each token (`N` normal, `C` control,
/// `U` user-defined, `X` unused, `B` byte, `?` unknown, then its text) or merge (`M`, then its two sides). An empty
/// line ends the vocabulary; the text to encode follows.
struct Description {
    model: String,
    pre: String,
    flags: String,
    tokens: Vec<(Kind, String)>,
    merges: Vec<String>,
    text: String,
}

impl Description {
    fn read(text: &str) -> Option<Self> {
        let (head, text) = text.split_once("\n\n")?;
        let mut lines = head.split('\n');
        let mut line = || lines.next().map(str::to_owned);
        let (model, pre, flags) = (line()?, line()?, line()?);
        let (mut tokens, mut merges) = (Vec::new(), Vec::new());
        for line in lines {
            let mut chars = line.chars();
            let kind = match chars.next() {
                Some('M') => {
                    merges.push(chars.as_str().to_owned());
                    continue;
                }
                Some('C') => Kind::Control,
                Some('U') => Kind::UserDefined,
                Some('X') => Kind::Unused,
                Some('B') => Kind::Byte,
                Some('?') => Kind::Unknown,
                _ => Kind::Normal,
            };
            tokens.push((kind, chars.as_str().to_owned()));
        }
        Some(Self { model, pre, flags, tokens, merges, text: text.to_owned() })
    }

    /// Flag `a` adds a token for every byte, `b` and `e` the ends, `s` and `w` are SentencePiece's treatment of
    /// spaces, `n` leaves the scores out, `p` calls the model phi 3.
    fn gguf(&self) -> Gguf {
        let flag = |flag| self.flags.contains(flag);
        let mut tokens: Vec<String> = self.tokens.iter().map(|(_, text)| text.clone()).collect();
        let mut kinds: Vec<i32> = self.tokens.iter().map(|(kind, _)| number(*kind)).collect();
        if flag('a') {
            let byte_level = self.model == "gpt2";
            tokens.extend(
                (0..=255u8)
                    .map(|byte| if byte_level { spell(byte).into() } else { format!("<0x{byte:02X}>") }),
            );
            kinds.resize(tokens.len(), number(if byte_level { Kind::Normal } else { Kind::Byte }));
        }
        let scores: Vec<f32> = (0..tokens.len()).map(|id| (id * 7 % 23) as f32 - 11.5).collect();
        let mut writer = Writer::new();
        writer.add_str("tokenizer.ggml.model", &self.model);
        writer.add_str("tokenizer.ggml.pre", &self.pre);
        writer.add_strs("tokenizer.ggml.tokens", &tokens);
        writer.add_i32s("tokenizer.ggml.token_type", &kinds);
        writer.add_strs("tokenizer.ggml.merges", &self.merges);
        writer.add_u32("tokenizer.ggml.bos_token_id", 0);
        writer.add_u32("tokenizer.ggml.eos_token_id", 1);
        writer.add_bool("tokenizer.ggml.add_bos_token", flag('b'));
        writer.add_bool("tokenizer.ggml.add_eos_token", flag('e'));
        writer.add_bool("tokenizer.ggml.add_space_prefix", flag('s'));
        writer.add_bool("tokenizer.ggml.remove_extra_whitespaces", flag('w'));
        if !flag('n') {
            writer.add_f32s("tokenizer.ggml.scores", &scores);
        }
        if flag('p') {
            writer.add_str("general.name", "Phi-3");
        }
        let file = writer.start(Cursor::new(Vec::new())).and_then(|out| out.finish());
        Gguf::from_bytes(file.expect("within all caps").into_inner()).expect("what was written can be read")
    }
}

/// The number of a kind in GGUF.
fn number(kind: Kind) -> i32 {
    match kind {
        Kind::Normal => 1,
        Kind::Unknown => 2,
        Kind::Control => 3,
        Kind::UserDefined => 4,
        Kind::Unused => 5,
        Kind::Byte => 6,
    }
}

/// A byte in GPT-2's alphabet: printable Latin-1 is itself, the others follow one another from U+0100.
fn spell(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return byte.into();
    }
    let before = (0..byte).filter(|&other| !printable(other)).count() as u32;
    char::from_u32(0x100 + before).expect("no surrogate is near")
}

fn check(gguf: &Gguf, text: &str) {
    let Ok(tokenizer) = Tokenizer::from_gguf(gguf.metadata()) else { return };
    let count = tokenizer.len() as u32;
    assert!(
        tokenizer.stop_ids().iter().chain(&tokenizer.bos()).chain(&tokenizer.eos()).all(|&id| id < count)
    );
    for how in [Encode::PLAIN, Encode::TEXT, Encode::TEMPLATE] {
        let ids = tokenizer.encode(text, how).expect("shorter than the longest text");
        // Every character gives at most its bytes; U+2581 takes three where the text had one, or none.
        assert!(ids.len() <= 3 * text.len() + 8, "{} ids for {} bytes", ids.len(), text.len());
        assert!(ids.iter().all(|&id| id < count));
        if !how.special && !how.bos {
            // A file may call any token the unknown one, and without a word SentencePiece's is the first.
            let unknown = gguf.metadata().u64("tokenizer.ggml.unknown_token_id").unwrap_or(0);
            let control = |id: &&u32| tokenizer.kind(**id) == Kind::Control && u64::from(**id) != unknown;
            assert_eq!(ids.iter().find(control), None, "a stranger's text became a control token");
        }
        streams(&tokenizer, &ids);
    }
    let prompt = tokenizer.encode_prompt(text).expect("shorter than the longest text");
    assert!(!tokenizer.adds_bos() || prompt.first() == tokenizer.bos().as_ref());
    streams(&tokenizer, &(0..count.min(300)).rev().chain([u32::MAX, count]).collect::<Vec<_>>());
    if lossless(gguf, &tokenizer, text) {
        let ids = tokenizer.encode(text, Encode::PLAIN).expect("shorter than the longest text");
        assert_eq!(tokenizer.decode(&ids), text, "{ids:?}");
    }
}

/// Token by token gives the lossy text of all bytes.
fn streams(tokenizer: &Tokenizer, ids: &[u32]) {
    let bytes: Vec<u8> = ids.iter().flat_map(|&id| tokenizer.token_bytes(id)).collect();
    let mut text = String::new();
    let mut stream = tokenizer.stream().continuing();
    ids.iter().for_each(|&id| text.push_str(stream.push(id)));
    text.push_str(stream.finish());
    assert_eq!(text, String::from_utf8_lossy(&bytes));
    let _ = tokenizer.decode(ids);
    ids.iter().for_each(|&id| drop(tokenizer.token_text(id)));
}

/// Whether decoding must give back exactly what was encoded: every byte has a token that prints it and nothing
/// on the way drops or adds a space.
fn lossless(gguf: &Gguf, tokenizer: &Tokenizer, text: &str) -> bool {
    let metadata = gguf.metadata();
    let byte_level = metadata.str("tokenizer.ggml.model") == Some("gpt2");
    // Text for these is composed first.
    let composes = ["qwen2", "qwen35"].map(Some).contains(&metadata.str("tokenizer.ggml.pre"));
    if composes && !text.is_ascii() {
        return false;
    }
    let kinds: Vec<Kind> = (0..tokenizer.len() as u32).map(|id| tokenizer.kind(id)).collect();
    // Unused tokens may be found in text but print nothing, as in llama.cpp.
    let allowed = |kind| match kind {
        Kind::Normal | Kind::Control | Kind::Unknown => true,
        Kind::UserDefined => byte_level,
        Kind::Byte => !byte_level,
        Kind::Unused => false,
    };
    if !kinds.iter().all(|&kind| allowed(kind)) {
        return false;
    }
    let phi3 = metadata.str("general.name").is_some_and(|name| name.to_lowercase().contains("phi"));
    let spaces =
        metadata.bool("tokenizer.ggml.remove_extra_whitespaces") == Some(true) || text.contains('\u{2581}');
    if phi3 || (!byte_level && spaces) {
        return false;
    }
    let wanted = if byte_level { Kind::Normal } else { Kind::Byte };
    // A space is spelled U+2581, whose bytes print as themselves where it has no token of its own. A token that is written as
    // a plain space prints one too, and stands for none.
    let spelled: Vec<&str> = metadata.strings("tokenizer.ggml.tokens").into_iter().flatten().collect();
    let space =
        (0..).zip(&spelled).any(|(id, text)| tokenizer.kind(id) == Kind::Normal && *text == "\u{2581}");
    if !byte_level && !space {
        return false;
    }
    let mut bytes = [false; 256];
    for id in (0..tokenizer.len() as u32).filter(|&id| tokenizer.kind(id) == wanted) {
        if let [byte] = *tokenizer.token_bytes(id) {
            bytes[usize::from(byte)] = true;
        }
    }
    bytes.iter().all(|&there| there)
}
