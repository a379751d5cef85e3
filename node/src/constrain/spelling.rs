//! How text is spelled that a form leaves no choice about.
//!
//! A form forces text, not tokens: `"identifier"` can be two tokens or eleven. A model that would have written another word
//! draws odd pieces of this one, which take a pass each and mislead it about what comes next. So forced text is spelled as the tokenizer
//! spells it, and only that token may come, as grammar engines that fast-forward do (llguidance, `docs/fast_forward.md`). Where a token
//! may come that begins like the forced text and reaches beyond it, the draw decides as always: `": "` may become `": [`.
//!
//! What is forced follows from the tokens before it alone, so an answer is the same with drafts, without, and after a replay.
//!
//! Limits: a tokenizer that puts something before every text (SentencePiece's blank) spells what is in the middle of one otherwise;
//! forced text is then only drafted, not bound.

use std::collections::VecDeque;

use llguidance::{Matcher, toktrie::SimpleVob};
use shard::tokenizer::{Encode, Tokenizer};

/// The spelling of the text that is forced behind the tokens known.
#[derive(Default)]
pub(super) struct Spelling {
    tokens: VecDeque<u32>,
    /// Whether only these may come.
    binds: bool,
    /// Whether `tokens` is what follows the tokens known; else it has still to be found.
    found: bool,
}

impl Spelling {
    /// Finds the spelling of what `matcher` forces next, unless it is found already.
    pub(super) fn find(&mut self, matcher: Option<&mut Matcher>, tokenizer: &Tokenizer) {
        if self.found {
            return;
        }
        *self = Self { found: true, ..Self::default() };
        let Some(matcher) = matcher else { return };
        let bytes = matcher.compute_ff_bytes();
        // A character that is not complete yet waits for its rest.
        let text = match std::str::from_utf8(&bytes) {
            Ok(text) => text,
            Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default(),
        };
        if text.is_empty() {
            return;
        }
        let tokens = tokenizer.encode(text, Encode { bos: false, special: false }).unwrap_or_default();
        self.binds = spelled(tokens.iter(), tokenizer) == text.as_bytes();
        self.tokens = if self.binds { tokens } else { matcher.compute_ff_tokens() }.into();
    }

    /// What has been found.
    pub(super) fn tokens(&self) -> impl Iterator<Item = u32> + '_ {
        self.tokens.iter().copied()
    }

    /// The only one of the `allowed` tokens that may come next, if there is one.
    pub(super) fn only(&self, allowed: &SimpleVob, tokenizer: &Tokenizer) -> Option<u32> {
        let next = *self.tokens.front().filter(|_| self.binds)?;
        let text = spelled(self.tokens.iter(), tokenizer);
        let reaches_beyond = |id: u32| {
            let token = tokenizer.token_bytes(id);
            token.len() > text.len() && token.starts_with(&text)
        };
        (allowed.is_allowed(next) && !allowed.iter().any(reaches_beyond)).then_some(next)
    }

    /// Goes on with a token; what was found must be found before.
    pub(super) fn accept(&mut self, id: u32) {
        if self.tokens.pop_front() != Some(id) {
            self.tokens.clear();
        }
        self.found = !self.tokens.is_empty();
    }

    /// Forgets what was found.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }
}

/// The text of `tokens`.
fn spelled<'t>(tokens: impl Iterator<Item = &'t u32>, tokenizer: &Tokenizer) -> Vec<u8> {
    tokens.flat_map(|token| tokenizer.token_bytes(*token)).collect()
}

#[cfg(test)]
mod tests {
    use api::inference::Format;
    use serde_json::json;
    use shard::{synthetic::Random, tokenizer::Tokenizer};

    use super::{
        super::{Constraints, Tags},
        *,
    };

    /// Drawn at random among what may come: forced text has one spelling, the tokenizer's, in every answer, and what is forced is
    /// the same where tokens are only told.
    #[test]
    fn forced_text_has_one_spelling() {
        let gguf = crate::library::parse(None).unwrap();
        let tokenizer = Tokenizer::from_gguf(gguf.metadata()).unwrap();
        let vocab = tokenizer.len();
        let constraints = Constraints::new(&tokenizer, vocab, Tags::None).unwrap();
        let schema = json!({"type": "object", "additionalProperties": false, "required": ["identifier", "country"],
            "properties": {"identifier": {"type": "integer", "minimum": 0, "maximum": 999}, "country": {"enum": ["Rome", "Roma"]}}});
        let format = Format::JsonSchema(schema);
        let (mut random, mut answers) = (Random(3), Vec::new());
        for _ in 0..20 {
            let [mut drawn, mut told] = [(); 2].map(|()| constraints.constraint(&format).unwrap().unwrap());
            let (mut text, mut only, mut tokens) = (Vec::new(), 0, 0);
            while !drawn.is_complete() {
                let mut logits = vec![0.0; vocab];
                drawn.mask(&tokenizer, &mut logits).unwrap();
                let allowed: Vec<u32> = (0..vocab as u32).filter(|id| logits[*id as usize] == 0.0).collect();
                let forced = drawn.forced(&tokenizer, usize::MAX);
                assert_eq!(told.forced(&tokenizer, usize::MAX), forced);
                if let [one] = allowed[..] {
                    assert!(forced.first().is_none_or(|forced| *forced == one));
                    only += 1;
                }
                let id = allowed[random.below(allowed.len())];
                if tokenizer.stop_ids().contains(&id) {
                    break;
                }
                drawn.accept(&tokenizer, id).unwrap();
                told.accept(&tokenizer, id).unwrap();
                text.extend(tokenizer.token_bytes(id));
                tokens += 1;
            }
            let text = String::from_utf8(text).unwrap();
            let value: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert!(value["identifier"].is_u64() && value["country"].is_string(), "{text}");
            let plain = Encode { bos: false, special: false };
            let spelled = tokenizer.encode(&text, plain).unwrap().len();
            assert!(
                only * 2 > tokens && tokens <= spelled + 8,
                "{text}: {tokens} tokens, {only} forced, {spelled} as text"
            );
            answers.push(text);
        }
        answers.sort();
        answers.dedup();
        assert!(answers.len() > 5, "what is not forced is free: {answers:?}");
    }
}
