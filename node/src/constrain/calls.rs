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
//! Llama 3 writes it, or with a list in Python whose first call is of a declared tool, as Llama 4 does ([`bare`]). An answer that was
//! to begin so and be none, such as a link of Markdown called `[f](...)` is not, cannot be written then.
//!
//! A tool whose schema the engine cannot compile is refused by its name, before the answer begins: bound to an object of
//! any members it would be called with arguments that it does not take.
//!
//! Limits: these stay free, and are read as calls at the end of an answer: a bare object that names its arguments before its tool,
//! none of them, or something else between both. So do lists in Python that begin with a tool whose parameters have no names of
//! Python, are not listed, or do not compile one by one.

use std::{
    sync::{Arc, OnceLock},
    thread,
};

use api::{inference::CallForm, reasoning};
use llguidance::{
    Matcher, ParserFactory,
    api::TopLevelGrammar,
    toktrie::{SimpleVob, TokTrie},
};

use super::{
    Broken, IMPOSSIBLE, STACK_BYTES,
    bare::{self, Bare},
    call_grammar::{Body, LONGEST, MARKS, Tags, grammar, is_called_in_python, of_objects},
    first_line,
};

/// What calls are made of, for all answers of one vocabulary.
pub(super) struct Vocabulary {
    factory: Arc<ParserFactory>,
    tags: Tags,
    /// Whether forms are only tried: everything is compiled that might be.
    tries: bool,
    /// Tokens that may reach beyond the end of a mark: which, which mark, and how many of their bytes belong to it.
    reaching: OnceLock<Vec<(u32, usize, usize)>>,
    /// Tokens that go on behind a byte by which the head of a bare call ends.
    going_on: OnceLock<Vec<u32>>,
}

/// The calls of one answer.
pub(super) struct Calls {
    vocabulary: Arc<Vocabulary>,
    tools: Vec<CallForm>,
    names: Vec<String>,
    /// Those of the tools that are held in lists of Python, and their names.
    in_lists: (Vec<CallForm>, Vec<String>),
    /// The end of the free text.
    tail: Vec<u8>,
    head: Option<Head>,
    call: Option<Running>,
}

/// Text that may become the head of a bare call.
#[derive(Default)]
struct Head {
    text: Vec<u8>,
    /// Whether a call stands before it.
    behind: bool,
}

/// A call in the middle.
struct Running {
    matcher: Matcher,
    /// Whether another one may follow without a mark.
    again: bool,
}

/// The text of a token; names of control tokens are what they print.
fn text(trie: &TokTrie, id: u32) -> &[u8] {
    let bytes = trie.token(id);
    bytes.strip_prefix(&[TokTrie::SPECIAL_TOKEN_MARKER]).unwrap_or(bytes)
}

impl Vocabulary {
    pub(super) fn new(factory: Arc<ParserFactory>, tags: Tags, tries: bool) -> Self {
        Self { factory, tags, tries, reaching: OnceLock::new(), going_on: OnceLock::new() }
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
                token[..token.len().max(1) - 1].iter().any(|byte| bare::ENDS.contains(byte))
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
        let tools = of_objects(tools);
        // What cannot be compiled is known before the answer begins.
        vocabulary.compile(MARKS[0].1, &tools)?;
        let in_lists: Vec<CallForm> =
            tools.iter().filter(|tool| is_called_in_python(tool)).cloned().collect();
        if vocabulary.tries && !in_lists.is_empty() {
            // One that does not compile stays free; one that ends its process is refused.
            let _ = vocabulary.compile(Body::Python(None), &in_lists);
        }
        let names = |tools: &[CallForm]| tools.iter().map(|tool| tool.name.clone()).collect();
        let (names, in_lists) = (names(&tools), (in_lists.clone(), names(&in_lists)));
        let (tail, head) = (Vec::new(), Some(Head::default()));
        Ok(Self { vocabulary, tools, names, in_lists, tail, head, call: None })
    }

    /// What the answer is that goes on from `head` with `token`.
    fn read(&self, head: &Head, token: &[u8]) -> Bare {
        bare::read(&[&head.text, token].concat(), head.behind, &self.names, &self.in_lists.1)
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
        let Some(head) = &self.head else { return };
        for &id in self.vocabulary.going_on() {
            let token = text(trie, id);
            let ends =
                |at: usize| matches!(self.read(head, &token[..=at]), Bare::Head { .. } | Bare::List(_));
            let mut inside = (0..token.len() - 1).filter(|at| bare::ENDS.contains(&token[*at]));
            if let Some(logit) = logits.get_mut(id as usize).filter(|_| inside.any(ends)) {
                *logit = IMPOSSIBLE;
            }
        }
    }

    /// Goes on with a token.
    pub(super) fn accept(&mut self, id: u32) -> Result<(), Broken> {
        if let Some(Running { matcher, again }) = &mut self.call {
            matcher.consume_token(id).map_err(|error| Broken(first_line(error)))?;
            // Nothing but the end may follow: the call is closed.
            let over = matcher.is_stopped()
                || (matcher.is_accepting().unwrap_or(false)
                    && matcher
                        .compute_mask_or_eos()
                        .is_ok_and(|mask| only_end(&mask, self.vocabulary.trie())));
            if over {
                self.head = again.then(|| Head { behind: true, ..Head::default() });
                (self.call, self.tail) = (None, Vec::new());
            }
            return Ok(());
        }
        let token = text(self.vocabulary.trie(), id).to_vec();
        self.tail.extend_from_slice(&token);
        let marked =
            MARKS.iter().find(|(mark, _)| self.tail.ends_with(mark.as_bytes())).map(|(_, body)| *body);
        let bare = self.head.take().and_then(|head| {
            let read = self.read(&head, &token);
            self.head =
                (read == Bare::Perhaps).then(|| Head { text: [&head.text[..], &token].concat(), ..head });
            match read {
                Bare::Head { tool, brackets } => Some(Body::Arguments { tool, brackets }),
                Bare::List(tool) => Some(Body::Python(Some(tool))),
                Bare::No | Bare::Perhaps => None,
            }
        });
        if let Some(rest) = behind_a_thought(&self.tail, token.len()) {
            self.head = Some(Head { text: rest.to_vec(), behind: false });
        }
        self.tail.drain(..self.tail.len().saturating_sub(LONGEST));
        if let Some(body) = marked.or(bare) {
            self.begin(body)?;
        }
        Ok(())
    }

    /// A call begins.
    fn begin(&mut self, body: Body) -> Result<(), Broken> {
        let in_python = matches!(body, Body::Python(_));
        let tools = if in_python { &self.in_lists.0 } else { &self.tools };
        // What reads answers goes on with calls behind these.
        let again = in_python || matches!(body, Body::Object | Body::List | Body::Arguments { .. });
        match self.vocabulary.compile(body, tools) {
            Ok(matcher) => self.call = Some(Running { matcher, again }),
            // Each parameter alone asks more of the engine than all together.
            Err(why) if in_python => tracing::debug!(why, "a list of calls stays free"),
            Err(why) => return Err(Broken(why)),
        }
        Ok(())
    }

    /// What is within a call.
    pub(super) fn within(&mut self) -> Option<&mut Matcher> {
        self.call.as_mut().map(|call| &mut call.matcher)
    }
}

/// What stands behind the end of a thought that came with the last `len` bytes of `tail`.
fn behind_a_thought(tail: &[u8], len: usize) -> Option<&[u8]> {
    let ends = reasoning::PAIRS.iter().map(|(_, end)| end.as_bytes());
    let found = ends.filter_map(|end| {
        let at = tail.windows(end.len()).rposition(|window| window == end)?;
        Some(at + end.len()).filter(|behind| *behind > tail.len() - len)
    });
    found.max().map(|behind| &tail[behind..])
}

/// Whether nothing but the end of the turn is allowed.
fn only_end(allowed: &SimpleVob, trie: &TokTrie) -> bool {
    allowed.iter().all(|id| id == trie.eos_token())
}

#[cfg(test)]
mod reading;
#[cfg(test)]
mod tests;
