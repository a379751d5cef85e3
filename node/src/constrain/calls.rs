//! Calls of tools that cannot be malformed, in an answer that is free otherwise.
//!
//! ```text
//! free text ... <tool_call> {"name": "f", "arguments": {...}} </tool_call> free text ...
//!               └ a mark      └ what the grammar of the declared tools lets through, up to the end of the call
//! ```
//!
//! Until the text ends with one of the marks by which a model begins a call ([`MARKS`]) every token may come. From there on
//! only what continues a call of a declared tool may, until the call is closed as its mark wants it; then everything may
//! again. A token that would reach beyond the end of a mark in one piece may not come: the model spells the mark, and the
//! grammar decides about what follows.
//!
//! A call without a mark is one as soon as the answer begins with an object that names a declared tool and then its arguments, as
//! Llama 3 writes it, or with a list in Python whose first call is of a declared tool, as Llama 4 does ([`bare`]): what reads
//! answers takes it for a call from there on, whatever follows.
//!
//! A tool whose schema the engine cannot compile is refused by its name, before the answer begins: bound to an object of
//! any members it would be called with arguments that it does not take.
//!
//! Limits: a bare object that names its arguments before its tool stays free.

use std::{
    sync::{Arc, OnceLock},
    thread,
};

use api::inference::CallForm;
use llguidance::{
    Matcher, ParserFactory,
    api::TopLevelGrammar,
    toktrie::{SimpleVob, TokTrie},
};

use super::{
    Broken, IMPOSSIBLE, STACK_BYTES,
    bare::{self, Bare},
    call_grammar::{Body, LONGEST, MARKS, Tags, grammar},
    first_line,
};

/// Behind it an answer begins, whatever came before.
const THOUGHT: &[u8] = b"</think>";
/// The last byte of every head of a bare call.
const ENDS_OF_HEADS: &[u8] = b":(";

/// What calls are made of, for all answers of one vocabulary.
pub(super) struct Vocabulary {
    factory: Arc<ParserFactory>,
    tags: Tags,
    /// Tokens that may reach beyond the end of a mark: which, which mark, and how many of their bytes belong to it.
    reaching: OnceLock<Vec<(u32, usize, usize)>>,
    /// Tokens that go on behind a byte by which the head of a bare call ends.
    going_on: OnceLock<Vec<u32>>,
}

/// The calls of one answer.
pub(super) struct Calls {
    vocabulary: Arc<Vocabulary>,
    tools: Vec<CallForm>,
    /// The end of the free text.
    tail: Vec<u8>,
    /// The text since the answer began or a bare call ended, while it may become the head of one.
    head: Option<Vec<u8>>,
    /// Within a call.
    call: Option<Matcher>,
}

/// The text of a token; names of control tokens are what they print.
fn text(trie: &TokTrie, id: u32) -> &[u8] {
    let bytes = trie.token(id);
    bytes.strip_prefix(&[TokTrie::SPECIAL_TOKEN_MARKER]).unwrap_or(bytes)
}

impl Vocabulary {
    pub(super) fn new(factory: Arc<ParserFactory>, tags: Tags) -> Self {
        Self { factory, tags, reaching: OnceLock::new(), going_on: OnceLock::new() }
    }

    fn trie(&self) -> &TokTrie {
        self.factory.tok_env().tok_trie()
    }

    fn reaching(&self) -> &[(u32, usize, usize)] {
        self.reaching.get_or_init(|| {
            let trie = self.trie();
            let mut reaching = Vec::new();
            for id in 0..trie.vocab_size() as u32 {
                let token = text(trie, id);
                for (which, (mark, _)) in MARKS.iter().enumerate() {
                    let mark = mark.as_bytes();
                    let ends = |len: &usize| {
                        let part = &token[..*len];
                        part.ends_with(mark) || mark.ends_with(part)
                    };
                    reaching.extend((1..token.len()).filter(ends).map(|len| (id, which, len)));
                }
            }
            reaching
        })
    }

    fn going_on(&self) -> &[u32] {
        self.going_on.get_or_init(|| {
            let trie = self.trie();
            let goes_on = |id: &u32| {
                let token = text(trie, *id);
                token[..token.len().max(1) - 1].iter().any(|byte| ENDS_OF_HEADS.contains(byte))
            };
            (0..trie.vocab_size() as u32).filter(goes_on).collect()
        })
    }

    /// Compiles what follows a mark.
    fn compile(&self, body: Body, tools: &[CallForm]) -> Result<Matcher, String> {
        let make = |tools: &[CallForm]| {
            let grammar = TopLevelGrammar::from_lark(grammar(body, self.tags, tools, self.trie()));
            let mut matcher = Matcher::new(Ok(self.factory.create_parser(grammar).map_err(first_line)?));
            matcher.compute_mask_or_eos().map_err(first_line)?;
            Ok::<_, String>(matcher)
        };
        let compiled = thread::scope(|scope| {
            let thread = thread::Builder::new().name("call".into()).stack_size(STACK_BYTES);
            let work = || {
                make(tools).map_err(|why| {
                    // Which of them it is, unless it is all together.
                    let alone = |tool: &CallForm| make(std::slice::from_ref(tool)).err();
                    let named = |tool: &CallForm| Some(format!("the tool `{}`: {}", tool.name, alone(tool)?));
                    tools.iter().find_map(named).unwrap_or(why)
                })
            };
            thread.spawn_scoped(scope, work).map(|running| running.join())
        });
        match compiled {
            Ok(Ok(matcher)) => matcher,
            Ok(Err(_)) => Err("the grammar engine fails on it".into()),
            Err(error) => Err(format!("no thread could be started: {error}")),
        }
    }
}

impl Calls {
    /// Of an answer that has not begun.
    ///
    /// # Errors
    /// When a call of these tools cannot be compiled.
    pub(super) fn new(vocabulary: Arc<Vocabulary>, tools: &[CallForm]) -> Result<Self, String> {
        // What cannot be compiled is known before the answer begins.
        vocabulary.compile(MARKS[0].1, tools)?;
        Ok(Self { vocabulary, tools: tools.to_vec(), tail: Vec::new(), head: Some(Vec::new()), call: None })
    }

    /// Makes the logits of tokens that may not come in free text impossible.
    pub(super) fn mask(&self, logits: &mut [f32]) {
        let trie = self.vocabulary.trie();
        for &(id, which, len) in self.vocabulary.reaching() {
            let (mark, part) = (MARKS[which].0.as_bytes(), &text(trie, id)[..len]);
            let complete = match mark.strip_suffix(part) {
                Some(before) => self.tail.ends_with(before),
                None => part.ends_with(mark),
            };
            if let Some(logit) = logits.get_mut(id as usize).filter(|_| complete) {
                *logit = IMPOSSIBLE;
            }
        }
        let Some(head) = self.head.as_deref().filter(|head| bare::is_named(head, &self.tools)) else {
            return;
        };
        for &id in self.vocabulary.going_on() {
            let token = text(trie, id);
            let ends = |at: usize| {
                let read = bare::read(&[head, &token[..=at]].concat(), &self.tools);
                matches!(read, Bare::Head(_) | Bare::List(_))
            };
            let mut inside = (0..token.len() - 1).filter(|at| ENDS_OF_HEADS.contains(&token[*at]));
            if let Some(logit) = logits.get_mut(id as usize).filter(|_| inside.any(ends)) {
                *logit = IMPOSSIBLE;
            }
        }
    }

    /// Goes on with a token.
    pub(super) fn accept(&mut self, id: u32) -> Result<(), Broken> {
        if let Some(call) = &mut self.call {
            call.consume_token(id).map_err(|error| Broken(first_line(error)))?;
            // Nothing but the end may follow: the call is closed.
            let over = call.is_stopped()
                || (call.is_accepting().unwrap_or(false)
                    && call.compute_mask_or_eos().is_ok_and(|mask| only_end(&mask, self.vocabulary.trie())));
            if over {
                // Another one may follow a bare one.
                (self.call, self.tail, self.head) = (None, Vec::new(), Some(Vec::new()));
            }
            return Ok(());
        }
        let token = text(self.vocabulary.trie(), id);
        self.tail.extend_from_slice(token);
        self.head = self.head.take().map(|head| [&head, token].concat());
        let body = match self.head.as_deref().map(|head| bare::read(head, &self.tools)) {
            Some(Bare::Head(tool)) => Some(Body::Arguments(tool)),
            Some(Bare::List(tool)) => Some(Body::Python(Some(tool))),
            Some(Bare::No) => {
                self.head = None;
                None
            }
            Some(Bare::Perhaps) | None => None,
        };
        if let Some(body) = body {
            self.call = Some(self.vocabulary.compile(body, &self.tools).map_err(Broken)?);
            return Ok(());
        }
        if self.tail.ends_with(THOUGHT) {
            self.head = Some(Vec::new());
        }
        self.tail.drain(..self.tail.len().saturating_sub(LONGEST));
        if let Some((_, body)) = MARKS.iter().find(|(mark, _)| self.tail.ends_with(mark.as_bytes())) {
            self.call = Some(self.vocabulary.compile(*body, &self.tools).map_err(Broken)?);
        }
        Ok(())
    }

    /// What is within a call.
    pub(super) fn within(&mut self) -> Option<&mut Matcher> {
        self.call.as_mut()
    }
}

/// Whether nothing but the end of the turn is allowed.
fn only_end(allowed: &SimpleVob, trie: &TokTrie) -> bool {
    allowed.iter().all(|id| id == trie.eos_token())
}

#[cfg(test)]
mod tests;
