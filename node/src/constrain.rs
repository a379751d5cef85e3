//! Answers that must have a form: JSON, JSON of a schema, a grammar, a regular expression.
//!
//! Before each choice the tokens that cannot continue a valid answer are made impossible; what is left is chosen among as
//! always, so the draw for a token still depends on the seed, its position and the logits alone, and every node that
//! computes the same logits writes the same answer. The grammar engine is `llguidance`; its limits on grammars and on work
//! per token hold. References in schemas stay inside the schema: nothing is fetched.
//!
//! What a form takes to compile is bounded twice: it is measured first ([`bounds`]), and what comes from a client is tried in
//! a disposable process ([`trial`]) before the process that samples compiles it, on a stack of its own.
//!
//! An answer that may call tools is bound only where it calls one (`calls.rs`). Text that a form leaves no choice about is
//! spelled as the tokenizer spells it (`spelling.rs`).
//!
//! Limits: white space in JSON is fixed (`", "` and `": "`) unless the schema says otherwise with `x-guidance`: small models
//! left free can write blanks for ever. Log-probabilities beside a constraint are those of the tokens it allows.

mod bare;
mod bounds;
mod call_grammar;
mod calls;
mod spelling;
pub mod trial;

use std::{fmt, sync::Arc, thread};

use api::inference::{Failure, Format};
pub use call_grammar::Tags;
use calls::Calls;
use llguidance::{
    Matcher, ParserFactory,
    api::TopLevelGrammar,
    toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie},
};
use serde_json::{Value, json};
use shard::tokenizer::{Tokenizer, vocabulary::Kind};
use spelling::Spelling;

/// Longest grammar or regular expression.
const MAX_GRAMMAR_BYTES: usize = 256 << 10;
/// Largest declaration of all tools of one answer.
const MAX_TOOLS_BYTES: usize = 1 << 20;
/// Stack of the thread that compiles: several times what the deepest form that [`bounds`] lets pass takes in a build
/// without optimization. Pages that are not touched cost nothing.
const STACK_BYTES: usize = 256 << 20;
/// The logit of what may not come: finite, as the sampler wants, and of no probability beside anything that may.
const IMPOSSIBLE: f32 = -1e30;

/// Makes constraints for one model's vocabulary.
pub struct Constraints {
    factory: Arc<ParserFactory>,
    vocabulary: Arc<calls::Vocabulary>,
}

/// One answer's constraint.
pub struct Constraint {
    bound: Bound,
    spelling: Spelling,
}

enum Bound {
    /// From its beginning to its end.
    Whole(Box<Matcher>),
    /// Where it calls a tool.
    Calls(Box<Calls>),
}

/// A constraint that cannot go on.
#[derive(Debug)]
pub struct Broken(String);

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the answer's form cannot be kept: {}", self.0)
    }
}

impl std::error::Error for Broken {}

fn first_line(error: impl fmt::Display) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

impl Constraints {
    /// Reads the vocabulary of `tokenizer`, of which a model computes the first `vocab` logits and whose template teaches
    /// `tags` in calls.
    ///
    /// # Errors
    /// [`Broken`] when the vocabulary has no token that ends a turn.
    pub fn new(tokenizer: &Tokenizer, vocab: usize, tags: Tags) -> Result<Self, Broken> {
        let end = tokenizer.eos().or(tokenizer.stop_ids().first().copied());
        let end = end.ok_or_else(|| Broken("the model has no token that ends an answer".into()))?;
        let bytes = |id: u32| match tokenizer.kind(id) {
            Kind::Normal | Kind::Byte | Kind::UserDefined => tokenizer.token_bytes(id),
            _ => [&[TokTrie::SPECIAL_TOKEN_MARKER][..], tokenizer.token_text(id).as_bytes()].concat(),
        };
        let words: Vec<Vec<u8>> = (0..vocab as u32).map(bytes).collect();
        let trie = TokTrie::from(&TokRxInfo::new(vocab as u32, end), &words);
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        Self::over(&environment, tags, false)
    }

    /// Constraints over single bytes: what compiles for them compiles for a vocabulary, names of special tokens apart. Calls
    /// with parameters between tags are the larger ones: what compiles with them compiles without.
    ///
    /// # Errors
    /// [`Broken`] when the engine refuses its own settings.
    pub fn of_bytes(tags: Tags) -> Result<Self, Broken> {
        Self::over(&ApproximateTokEnv::single_byte_env(), tags, true)
    }

    fn over(environment: &TokEnv, tags: Tags, tries: bool) -> Result<Self, Broken> {
        let mut factory = ParserFactory::new(environment, InferenceCapabilities::default(), &[])
            .map_err(|error| Broken(first_line(error)))?;
        factory.quiet();
        let factory = Arc::new(factory);
        Ok(Self { vocabulary: Arc::new(calls::Vocabulary::new(factory.clone(), tags, tries)), factory })
    }

    /// The constraint that `format` asks for, if it asks for one. Its first choice is computed, so that a form that exceeds
    /// the engine's limits at once is refused here.
    ///
    /// # Errors
    /// [`Failure::Invalid`] when the schema or grammar is malformed, too large or uses what is not supported.
    pub fn constraint(&self, format: &Format) -> Result<Option<Constraint>, Failure> {
        if *format == Format::Text {
            return Ok(None);
        }
        let refuse = |why: String| Failure::invalid("response_format", why);
        measure(format).map_err(refuse)?;
        let unusable = |why: String| refuse(format!("the form cannot be used: {why}"));
        if let Format::Calls(tools) = format {
            let calls = Calls::new(self.vocabulary.clone(), tools).map_err(unusable)?;
            return Ok(Some(Constraint::new(Bound::Calls(Box::new(calls)))));
        }
        let compiled = thread::scope(|scope| {
            let thread = thread::Builder::new().name("form".into()).stack_size(STACK_BYTES);
            thread.spawn_scoped(scope, || self.compile(format)).map(|running| running.join())
        });
        match compiled {
            Ok(Ok(matcher)) => Ok(Some(Constraint::new(Bound::Whole(Box::new(matcher.map_err(unusable)?))))),
            Ok(Err(_)) => Err(unusable("the grammar engine fails on it".into())),
            Err(error) => Err(Failure::Internal { why: format!("no thread could be started: {error}") }),
        }
    }

    fn compile(&self, format: &Format) -> Result<Matcher, String> {
        let grammar = match format {
            Format::Text | Format::Calls(_) | Format::JsonObject => {
                TopLevelGrammar::from_json_schema(fixed_space(json!({"type": "object"})))
            }
            Format::JsonSchema(schema) => TopLevelGrammar::from_json_schema(fixed_space(schema.clone())),
            Format::Grammar(text) => TopLevelGrammar::from_lark(text.clone()),
            Format::Regex(text) => TopLevelGrammar::from_regex(text),
        };
        let mut matcher = Matcher::new(Ok(self.factory.create_parser(grammar).map_err(first_line)?));
        matcher.compute_mask_or_eos().map_err(first_line)?;
        Ok(matcher)
    }
}

/// Whether a form is small enough to be compiled.
///
/// # Errors
/// What is too large, with the figure that is allowed.
pub fn measure(format: &Format) -> Result<(), String> {
    let most = MAX_GRAMMAR_BYTES >> 10;
    match format {
        Format::Text | Format::JsonObject => Ok(()),
        Format::Calls(tools) => {
            let bytes: usize =
                tools.iter().map(|tool| tool.name.len() + tool.parameters.to_string().len()).sum();
            let fits = bytes <= MAX_TOOLS_BYTES;
            if !fits {
                return Err(format!("the tools have more than {} KiB: offer fewer", MAX_TOOLS_BYTES >> 10));
            }
            tools.iter().try_for_each(|tool| {
                bounds::schema(&tool.parameters).map_err(|why| format!("the tool `{}`: {why}", tool.name))
            })
        }
        Format::JsonSchema(schema) => {
            bounds::schema(schema)?;
            let fits = schema.to_string().len() <= MAX_GRAMMAR_BYTES;
            if fits { Ok(()) } else { Err(format!("the schema has more than {most} KiB: shorten it")) }
        }
        Format::Grammar(text) | Format::Regex(text) if text.len() > MAX_GRAMMAR_BYTES => {
            Err(format!("the grammar has more than {most} KiB: shorten it"))
        }
        Format::Grammar(text) => bounds::grammar(text),
        Format::Regex(text) => bounds::regex(text),
    }
}

fn fixed_space(mut schema: Value) -> Value {
    if let Some(schema) = schema.as_object_mut() {
        schema.entry("x-guidance").or_insert_with(
            || json!({"whitespace_flexible": false, "item_separator": ", ", "key_separator": ": "}),
        );
    }
    schema
}

impl Constraint {
    fn new(bound: Bound) -> Self {
        Self { bound, spelling: Spelling::default() }
    }

    /// Makes the logits of tokens that may not come next impossible.
    ///
    /// # Errors
    /// [`Broken`] when the grammar's limits are exceeded.
    pub fn mask(&mut self, tokenizer: &Tokenizer, logits: &mut [f32]) -> Result<(), Broken> {
        self.spelling.find(self.bound.matcher(), tokenizer);
        let Some(matcher) = self.bound.matcher() else {
            if let Bound::Calls(calls) = &self.bound {
                calls.mask(logits);
            }
            return Ok(());
        };
        let allowed = matcher.compute_mask_or_eos().map_err(|error| Broken(first_line(error)))?;
        match self.spelling.only(&allowed, tokenizer) {
            Some(only) => forbid(logits, |id| id == only),
            None => forbid(logits, |id| (id as usize) < allowed.len() && allowed.is_allowed(id)),
        }
        Ok(())
    }

    /// Goes on with a token.
    ///
    /// # Errors
    /// [`Broken`] when it was not allowed.
    pub fn accept(&mut self, tokenizer: &Tokenizer, id: u32) -> Result<(), Broken> {
        self.spelling.find(self.bound.matcher(), tokenizer);
        self.spelling.accept(id);
        match &mut self.bound {
            Bound::Calls(calls) => {
                calls.accept(id)?;
                // A call that is over has a form no more.
                if calls.within().is_none() {
                    self.spelling.forget();
                }
                Ok(())
            }
            Bound::Whole(matcher) => matcher.consume_token(id).map_err(|error| Broken(first_line(error))),
        }
    }

    /// At most `most` tokens that spell what the answer goes on with, as far as its form leaves no choice about the text;
    /// none where there is a choice at once.
    pub fn forced(&mut self, tokenizer: &Tokenizer, most: usize) -> Vec<u32> {
        self.spelling.find(self.bound.matcher(), tokenizer);
        self.spelling.tokens().take(most).collect()
    }

    /// Whether the answer is complete and nothing may follow.
    pub fn is_complete(&self) -> bool {
        matches!(&self.bound, Bound::Whole(matcher) if matcher.is_stopped())
    }
}

impl Bound {
    /// What decides about the next token; `None` where every token may come.
    fn matcher(&mut self) -> Option<&mut Matcher> {
        match self {
            Self::Whole(matcher) => Some(matcher),
            Self::Calls(calls) => calls.within(),
        }
    }
}

/// Makes the logits of tokens impossible that are not `allowed`.
fn forbid(logits: &mut [f32], allowed: impl Fn(u32) -> bool) {
    for (id, logit) in (0..).zip(logits) {
        if !allowed(id) {
            *logit = IMPOSSIBLE;
        }
    }
}
