//! A loaded model: what C and Python hold a handle of.

use std::{fmt, ops::ControlFlow};

use node::{
    cli::EngineArgs,
    encode,
    inference::local::prompt::{self, Event, Request, Session},
    library, model,
};
use serde_json::json;
use shard::{sample::SamplingParams, tokenizer::Encode};

use crate::turn::Turns;

pub use node::inference::local::prompt::Finish;

/// As many as the command line takes: more are a mistake, and each is a thread.
const MAX_THREADS: u16 = 1024;

/// What went wrong, as a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(pub(crate) String);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

impl From<node::Error> for Error {
    fn from(error: node::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<shard::Error> for Error {
    fn from(error: shard::Error) -> Self {
        Self(error.to_string())
    }
}

/// How an answer is made; the defaults are those of `shoal run`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// The same seed and prompt give the same answer on every machine.
    pub seed: u64,
    /// Most tokens to generate.
    pub max_tokens: usize,
    /// 0 always takes the likeliest token; higher is more varied.
    pub temperature: f32,
    /// Whether the prompt is continued as it stands, instead of being put into the model's chat template.
    pub raw: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { seed: 0, max_tokens: 512, temperature: 0.0, raw: false }
    }
}

/// A model that answers.
pub struct Model {
    model: model::Model,
    turns: Turns,
}

impl Model {
    /// Loads a `.gguf` file, a name of `shoal model list`, or `minnow`, which is inside the library. `threads` compute, 0 for as
    /// many as there are physical cores; they are bound to no core, since those are the host program's.
    ///
    /// # Errors
    /// A name that is not known, a file that is not sound, a model that writes no text, more than 1024 threads.
    pub fn load(name: &str, threads: u16) -> Result<Self, Error> {
        if threads > MAX_THREADS {
            return Err(Error(format!("threads must be at most {MAX_THREADS}, got {threads}")));
        }
        let args = EngineArgs {
            model: Some(name.to_owned()),
            threads: Some(threads).filter(|threads| *threads > 0),
            no_pin: true,
            ..EngineArgs::default_model()
        };
        let model = model::Model::of(library::locate(name)?.as_ref(), &args, model::device(&args)?)?;
        model::writes(model.executor.blueprint(), &model.name)?;
        Ok(Self { model, turns: Turns::default() })
    }

    /// Answers `prompt`. Text goes to `on_piece` as soon as it is certain, in whole characters. The answer ends early when
    /// `on_piece` breaks, or when `cancelled`, which is asked before each pass over the model, says so.
    ///
    /// Answers of one model take turns: a second call waits for the first one's end, or until it is `cancelled`.
    ///
    /// # Errors
    /// An empty prompt or one that the context does not hold, options out of range, and a call from within `on_piece`.
    pub fn generate(
        &self,
        prompt: &str,
        options: &Options,
        cancelled: &dyn Fn() -> bool,
        on_piece: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Finish, Error> {
        let Some(_turn) = self.turns.take(cancelled)? else { return Ok(Finish::Cancelled) };
        let request = self.request(prompt, options)?;
        let mut session = Session::new(&self.model)?;
        let summary = prompt::generate(&self.model, &mut session, &request, &mut |event| {
            if cancelled() {
                return ControlFlow::Break(());
            }
            match event {
                Event::Token { text, .. } | Event::Text { text } if !text.is_empty() => on_piece(text),
                _ => ControlFlow::Continue(()),
            }
        })?;
        Ok(summary.finish)
    }

    /// What the model was called when it was loaded.
    pub fn name(&self) -> &str {
        &self.model.name
    }

    fn request(&self, prompt: &str, options: &Options) -> Result<Request, Error> {
        if prompt.trim().is_empty() {
            return Err(Error("the prompt is empty".into()));
        }
        let sampling = SamplingParams { temperature: options.temperature, ..SamplingParams::default() };
        sampling.validate()?;
        let prompt = match options.raw {
            true => self.model.tokenizer.encode(prompt, Encode { bos: true, special: true })?,
            false => encode::encode_chat(&self.model, &json!([{ "role": "user", "content": prompt }]))?,
        };
        Ok(Request {
            prompt,
            sampling,
            seed: options.seed,
            max_tokens: options.max_tokens,
            stop: Vec::new(),
            draft: Default::default(),
            context_shift: false,
        })
    }
}
