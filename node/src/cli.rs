//! The command line: every command, its flags and its examples.

mod answer;
pub mod api;
mod choice;
#[cfg(test)]
mod examples;
pub mod identity;
mod keep;
mod key;
mod model;
pub(crate) mod nearest;
pub mod operate;
mod sampling;
pub mod swarm;
mod tools;
pub mod upgrade;

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use ::api::choice::{Wire, WireChoice};
use clap::{Args, Parser, Subcommand};
use scheduler::{AttentionKind, CacheType, SessionKind};
use shard::executor::{DeviceName, GpuName};

use crate::{Error, Result};

pub use answer::{AnswerArgs, ChatArgs, McpArgs, RunArgs};
pub use keep::{FetchState, KeepArgs, StateArgs};
pub use key::KeyCommand;
pub use model::{CatalogCommand, ModelCommand, PullArgs, SourceArgs};
pub use operate::{CompletionsArgs, ConfigCommand, GlobalArgs, ManArgs};
pub use sampling::SamplingArgs;
pub use tools::{AuditArgs, ConvertArgs, DistillArgs, EvalArgs, PrivacyCommand, TemplateArgs, TokenizeArgs};

/// Runs language models on this machine, and across a swarm of other people's
#[derive(Debug, Parser)]
#[command(
    name = "shoal",
    version,
    max_term_width = 110,
    arg_required_else_help = true,
    after_help = "First steps:
  shoal run \"Tell me a story about a fox\"    the small model inside the binary answers
  shoal demo                                 a swarm loses a node in the middle of a sentence and goes on
  shoal join                                 become part of a swarm; `shoal invite` lets a friend in
  shoal doctor                               when something does not work

Every command has --help with examples, and --json for programs. `shoal config show` lists the settings."
)]
pub struct Cli {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub global: GlobalArgs,
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// Whether `shoal` followed by these words is a command line that can be run.
pub fn parses<'a>(words: impl IntoIterator<Item = &'a str>) -> bool {
    Cli::try_parse_from(std::iter::once("shoal").chain(words)).is_ok()
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Answer one prompt
    #[command(after_help = "Examples:
  shoal run \"Tell me a story about a fox and a lantern\"
  shoal run smollm2 \"Why is the sky blue?\"     with a model of `shoal model search`; it is fetched if it is not here
  shoal run smollm2                            talk with it
  shoal run --model llama.gguf --temperature 0.7 --seed 1 \"Why is the sky blue?\"
  echo \"Name three animals\" | shoal run --json -
  shoal run --wire q8 --cuts 2,4,6 \"What a q8 session over those cuts answers\"")]
    Run(RunArgs),
    /// See a swarm of four nodes answer a prompt, lose one in the middle of a sentence, and go on
    #[command(after_help = "Examples:
  shoal demo
  shoal demo --no-kill \"Tell me about the sea\"
  shoal demo --json | tail -n 1")]
    Demo(swarm::DemoArgs),
    /// Make this machine part of a swarm, until Ctrl-C
    #[command(after_help = "Examples:
  shoal join                                   find others on this network
  shoal join shoal1abcd...                     with a code from `shoal invite`
  shoal join --layers 2..6 --memory 1024       serve four layers, 1 GiB for sessions
  shoal join --model 4f3c... --disk 20GB       fetch the layers of that model which the swarm lacks most, and serve them
  shoal join --ask-only                        serve nothing, only ask")]
    Join(Box<swarm::JoinArgs>),
    /// Run a swarm of several nodes on this machine
    #[command(after_help = "Examples:
  shoal up --local 3 --run \"Tell me a story\"
  shoal up --local 5")]
    Up(Box<swarm::UpArgs>),
    /// Let the running node finish what it serves, say good-bye and stop
    #[command(after_help = "Running sessions of others get 10 s to end; then they go on elsewhere.

Example:
  shoal leave")]
    Leave(swarm::AskArgs),
    /// Let the running node serve no requests and send no model, until `shoal pause --off`; it still asks
    #[command(after_help = "Examples:
  shoal pause
  shoal pause --off                            serve again")]
    Pause(swarm::PauseArgs),
    /// Whether other people's machines may compute your prompts: say so before a program or the API asks, or take it back
    #[command(after_help = "Examples:
  shoal consent                                what was agreed to, and what it means
  shoal consent boomerang                      agree
  shoal consent --revoke boomerang             take it back, at once")]
    Consent(swarm::ConsentArgs),
    /// Print a code that lets a friend join this node's swarm
    #[command(after_help = "Example:
  shoal invite                                 here, while `shoal join` runs
  shoal join shoal1abcd...                     on the friend's machine, with the code that was printed")]
    Invite(swarm::AskArgs),
    /// What the running node is doing
    #[command(after_help = "Examples:
  shoal status
  shoal status --watch                         a screen that follows it; q leaves
  shoal status --watch --json                  the same as one JSON object per line
  shoal status --history --days 30             tok/s, round trips, faults, work given and balance of each day")]
    Status(operate::StatusArgs),
    /// Who the running node knows, how far away they are and what they hold
    #[command(after_help = "Examples:
  shoal peers
  shoal peers name 1f2e3d4c ann                call a node by a name of your own")]
    Peers(swarm::PeersArgs),
    /// Predict the speed of a prompt: here, and through the swarm of the running node
    #[command(after_help = "Without a running node it measures this machine.

Examples:
  shoal plan --mode boomerang \"Tell me a story\"
  shoal plan --model llama.gguf \"Tell me a story\"")]
    Plan(swarm::PlanArgs),
    /// Continue an answer that a crash interrupted, with the very tokens it would have had
    #[command(
        after_help = "While an answer runs, the question and the tokens so far are kept in the data folder, readable by you
only; they are deleted when the answer ends or is stopped with Ctrl-C, and after a day. `shoal join --no-journal` keeps
nothing.

Examples:
  shoal resume
  shoal resume --list
  shoal resume --forget"
    )]
    Resume(swarm::ResumeArgs),
    /// What happened to a prompt: who computed what, how long each hop took, who failed
    #[command(after_help = "Examples:
  shoal why                                    the last prompt
  shoal why 3f9a                               the one whose session begins so")]
    Why(swarm::WhyArgs),
    /// Work done for others and by others, as both sides signed, and the balance with everybody
    #[command(after_help = "Examples:
  shoal receipts
  shoal receipts --json")]
    Receipts(swarm::AskArgs),
    /// Check a proof that a node lied: the signatures, and the computation once more
    Verify(swarm::VerifyArgs),
    /// Check clock, processor, memory, disk, key, ports and network, and say what to do about each
    #[command(after_help = "Examples:
  shoal doctor
  shoal doctor --report report.json            for a bug report: no addresses, names, paths or prompts in it")]
    Doctor(operate::DoctorArgs),
    /// Talk in turns; the history stays computed between them
    #[command(
        after_help = "In the chat: /help lists what you can type; Ctrl-C stops an answer, Ctrl-D leaves.

Examples:
  shoal chat
  shoal chat --model llama.gguf --system \"Answer in one sentence\" --temperature 0.7
  shoal chat --mcp \"shoal mcp --via local\"      the model may call that server's tools; you confirm each call
  printf 'Tell me a story about an owl\\nWho was in it?\\n' | shoal chat --json"
    )]
    Chat(ChatArgs),
    /// Answer programs and browsers: OpenAI's, Anthropic's and Ollama's API, and a page
    #[command(after_help = "Examples:
  shoal serve
  shoal serve --model llama.gguf --listen 127.0.0.1:8080
  shoal serve --via swarm                      through the node that `shoal join` runs
  shoal serve --alias gpt-4o=minnow            for clients that insist on a name
  shoal serve --allow-origin https://app.example
                                               for a page that runs elsewhere
  curl -H \"Authorization: Bearer $(cat ~/.local/share/shoal/api-token)\" http://127.0.0.1:7435/v1/models")]
    Serve(ServeArgs),
    /// Give other programs' models this node's as tools: the Model Context Protocol over standard input and output
    #[command(after_help = "Programs start it themselves. Example of their settings, which name the command:
  {\"mcpServers\": {\"shoal\": {\"command\": \"shoal\", \"args\": [\"mcp\"]}}}

Tools: ask, models, swarm.")]
    Mcp(McpArgs),
    /// Keys for other people to this node's API: named, counted by the day, taken back
    #[command(subcommand)]
    Key(KeyCommand),
    /// Who this node is: show it, back it up, move it to another machine
    #[command(subcommand)]
    Identity(identity::IdentityCommand),
    /// Measure prefill and decode speed of a model, or of a shape before you download it
    #[command(after_help = "Examples:
  shoal bench
  shoal bench --model llama.gguf --prompt-tokens 512 --decode-tokens 64
  shoal bench --shape llama-1b --format q4_0 --json")]
    Bench(BenchArgs),
    /// Check that this machine computes the same bits as every other
    #[command(
        after_help = "A machine that differs still computes; it is announced as class approx, and no node takes its word
for exact results.

Examples:
  shoal selftest
  shoal selftest --device gpu:0"
    )]
    Selftest(SelftestArgs),
    /// Look after the models this machine knows
    #[command(subcommand)]
    Model(ModelCommand),
    /// Show how a model cuts text into tokens
    #[command(after_help = "Examples:
  shoal tokenize \"Hello world\"
  shoal tokenize --decode \"15 8 42\"
  echo '[\"a\", \"b\"]' | shoal tokenize --model vocab.gguf --plain --no-bos --batch --json")]
    Tokenize(TokenizeArgs),
    /// Render a chat template
    #[command(
        after_help = "The input is a JSON object: messages, and optionally tools, add_generation_prompt, bos_token, eos_token;
further members are handed to the template as they are.

Example:
  echo '{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"add_generation_prompt\": true}' > chat.json
  shoal template --model llama.gguf --input chat.json"
    )]
    Template(TemplateArgs),
    /// Compute the logits after a list of tokens, or how well a text is predicted
    #[command(after_help = "Examples:
  shoal eval --model llama.gguf --tokens \"1 2 3\" --greedy 8 --logits last.npy --json
  shoal eval --text book.txt --wire q8 --cuts 2,4,6")]
    Eval(EvalArgs),
    /// Train a draft head, with which a model guesses its own next tokens: fewer rings, the same text
    #[command(
        after_help = "The model answers prompts of this program's, or yours, and the head learns from its hidden states. It takes about an hour for a
small model on two cores; Ctrl-C while it trains writes what it has learned until then.

Examples:
  shoal distill --model smollm2 --output smollm2.draft.gguf
  shoal distill --model smollm2 --prompts mine.txt --answer-tokens 200000 --output mine.draft.gguf
  shoal join --model smollm2 --draft-head smollm2.draft.gguf"
    )]
    Distill(DistillArgs),
    /// Measure what others could learn from what your machine sends them
    #[command(subcommand)]
    Privacy(PrivacyCommand),
    /// Turn a folder of safetensors, a GGUF in several parts or one of another format into one GGUF file
    #[command(after_help = "Examples:
  shoal convert ./Qwen2.5-0.5B-Instruct --format q8_0 --output qwen.gguf
  shoal convert qwen-f16.gguf --format q4_k --tensor ffn_down=q6_k --output qwen-q4.gguf
  shoal eval --model qwen-f16.gguf --text corpus.txt --imatrix qwen.imatrix
  shoal convert qwen-f16.gguf --format q3_k --imatrix qwen.imatrix
  shoal convert glm-q4_k_m-00001-of-00005.gguf --output glm.gguf")]
    Convert(ConvertArgs),
    /// Show and explain the settings
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Put another release in the place of this program, once its signature is checked and the node has stopped
    Upgrade(upgrade::UpgradeArgs),
    /// Print what makes a shell complete shoal's commands and flags
    #[command(after_help = "Examples:
  shoal completions bash > ~/.local/share/bash-completion/completions/shoal
  shoal completions zsh > ~/.zfunc/_shoal
  shoal completions fish > ~/.config/fish/completions/shoal.fish")]
    Completions(CompletionsArgs),
    /// Write the manual pages into a folder
    #[command(after_help = "Example:
  shoal man ~/.local/share/man/man1 && man shoal-join")]
    Man(ManArgs),
    /// Compute for the process that started this one
    #[command(hide = true)]
    Worker(WorkerArgs),
}

/// What a confined process is for.
#[derive(Debug, Clone, Args)]
pub struct WorkerArgs {
    /// Compile one form of an answer, say whether that works, and end
    #[arg(long)]
    pub form: bool,
    /// Read one model's header, say what is in it, and end
    #[arg(long)]
    pub header: bool,
    /// Convert the checkpoint whose files are handed over
    #[arg(long)]
    pub convert: bool,
    /// Compute for `shoal serve`
    #[arg(long)]
    pub engine: bool,
    /// Try what must not be possible, and say what was
    #[cfg(debug_assertions)]
    #[arg(long)]
    pub probe: bool,
}

/// Which model, and how this machine runs it.
#[derive(Debug, Clone, Args)]
pub struct EngineArgs {
    /// A .gguf file, or a name from `shoal model list` or `shoal model search` [default: minnow, where no node or code says
    /// another]
    #[arg(short, long, env = "SHOAL_MODEL")]
    pub model: Option<String>,
    /// Compute threads [default: physical cores]
    #[arg(short, long, env = "SHOAL_THREADS", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Most tokens a session may hold [default: what the model was made for, at most 4096]
    #[arg(long)]
    pub ctx: Option<usize>,
    /// Instruction set: scalar, avx2, avx512, amx or neon [default: the fastest here]
    #[arg(long, env = "SHOAL_ISA")]
    pub isa: Option<String>,
    /// Let the system move compute threads between cores
    #[arg(long)]
    pub no_pin: bool,
    /// What computes: auto, cpu, candle-cpu, cuda:0, metal, gpu:0, or gpu:0,cpu for a GPU and the processor for the layers that
    /// its memory does not hold; auto takes a GPU of cuda or metal where this build has one, else the processor; `join` in a build
    /// with gpu measures both and takes the faster. Others than cpu and gpu compute nearly the same bits (class approx); `shoal selftest --device` checks them
    #[arg(long, default_value = "auto", env = "SHOAL_DEVICE")]
    pub device: DeviceName,
    /// Most memory of the device gpu:N, e.g. 6GB [default: nine tenths of it, where the system says how much that is]
    #[arg(long, value_name = "SIZE", value_parser = model::size)]
    pub gpu_memory: Option<u64>,
    /// Most of the time of the device gpu:N, in percent: after each pass it rests [default: 100, and 50 while a battery feeds the
    /// machine or, where the driver counts it, others use the GPU]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=100))]
    pub gpu_share: Option<u8>,
    /// Most disk for weights as the processor reads them, with which a model of 32 MiB or more starts at once the next time; off
    /// for none. Those not used for longest go first
    #[arg(long, value_name = "SIZE", value_parser = model::size_or_off, default_value = "8GiB", env = "SHOAL_PANEL_CACHE")]
    pub panel_cache: u64,
    /// The model's draft head, from `shoal distill`: it guesses next tokens that a pass then confirms; the tokens are the same
    #[arg(long, value_name = "FILE")]
    pub draft_head: Option<PathBuf>,
}

impl EngineArgs {
    /// The model inside the binary, run as this machine does best.
    pub fn default_model() -> Self {
        let device = DeviceName::Auto;
        let panel_cache = crate::panel_cache::DEFAULT_BYTES;
        Self {
            model: None,
            threads: None,
            ctx: None,
            isa: None,
            no_pin: false,
            device,
            gpu_memory: None,
            gpu_share: None,
            panel_cache,
            draft_head: None,
        }
    }

    /// The model that is named, or the one inside the binary.
    pub fn model(&self) -> &str {
        self.model.as_deref().unwrap_or(crate::library::DEFAULT_MODEL)
    }

    /// What computes, with the memory and the share of its time that may be taken.
    ///
    /// # Errors
    /// `--gpu-memory` or `--gpu-share` for a device of another kind.
    pub fn device(&self) -> Result<DeviceName> {
        let asked = [("--gpu-memory", self.gpu_memory.is_some()), ("--gpu-share", self.gpu_share.is_some())];
        match (self.device, asked.into_iter().find(|(_, is_asked)| *is_asked)) {
            (device, None) => Ok(device),
            (DeviceName::Gpu(gpu), Some(_)) => Ok(DeviceName::Gpu(GpuName {
                memory_bytes: self.gpu_memory.or(gpu.memory_bytes),
                share_percent: self.gpu_share.or(gpu.share_percent),
                ..gpu
            })),
            (other, Some((flag, _))) => {
                Err(Error::usage(format!("{flag} is for --device gpu:0 or gpu:0,cpu, not for {other}")))
            }
        }
    }
}

/// In which form activations travel.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Wire")]
pub struct FormArgs {
    /// How activations travel between nodes
    #[arg(long, value_parser = choice::wire(), default_value = "auto")]
    pub wire: Wire,
    /// Let --wire auto round
    #[arg(long)]
    pub allow_rounding: bool,
}

impl FormArgs {
    /// In the words of a request.
    pub fn choice(&self) -> WireChoice {
        WireChoice { wire: Some(self.wire), allow_rounding: Some(self.allow_rounding), cuts: Vec::new() }
    }
}

/// In which form activations travel, and where they are rounded.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Wire")]
pub struct WireArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub form: FormArgs,
    /// Layers before which activations are rounded, ascending: those of an answer give it again [default: where the route
    /// is cut]
    #[arg(long, value_name = "LAYERS", value_delimiter = ',')]
    pub cuts: Vec<u32>,
}

impl WireArgs {
    /// In the words of a request.
    pub fn choice(&self) -> WireChoice {
        WireChoice { cuts: self.cuts.clone(), ..self.form.choice() }
    }
}

/// Which earlier positions a token sees, and how they are kept.
#[derive(Debug, Clone, Args)]
pub struct AttentionArgs {
    /// Which earlier positions a token sees: dense, window:POSITIONS,
    /// sparse[:window=128,sinks=1,stride=on,block=64], or h2o[:budget=2048,sinks=4,window=512], which forgets
    #[arg(id = "attention", long = "attention", value_name = "KIND", default_value_t)]
    pub kind: AttentionKind,
    /// Bits for each key and value that is kept: f16, q8 or q4; fewer take less memory and change the answer
    #[arg(long = "kv-cache-type", value_name = "FORM", default_value_t)]
    pub kv_cache_type: CacheType,
}

impl AttentionArgs {
    /// The kind of session that was chosen.
    pub fn session(&self) -> SessionKind {
        SessionKind { attention: self.kind, cache: self.kv_cache_type }
    }
}

/// `shoal serve`
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Address and port; port 0 takes a free one
    #[arg(short, long, default_value = api::LISTEN, env = "SHOAL_LISTEN", value_parser = api::address)]
    pub listen: SocketAddr,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub api: api::ApiArgs,
    /// Who answers: this process, or the node that `shoal join` runs and its swarm; auto takes a node that runs
    #[arg(long, value_enum, default_value = "local")]
    pub via: swarm::Via,
    /// Node that may compute in trusted mode, by its full name (repeatable)
    #[arg(long, value_name = "NODE")]
    pub trust: Vec<String>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub wire: FormArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub home: swarm::HomeArgs,
    /// Memory for the caches of all sessions, in MiB
    #[arg(long, default_value_t = 1024)]
    pub kv_mib: usize,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub keep: KeepArgs,
    /// Unload the model when nothing was asked of it for so long, e.g. 10m: its memory is free until the next request, which waits for
    /// it to be loaded again [default: it stays]
    #[arg(long, value_name = "TIME", value_parser = keep::time)]
    pub unload_after: Option<Duration>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub sources: SourceArgs,
    /// Fetch a model that is not here without asking
    #[arg(short, long)]
    pub yes: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub engine: EngineArgs,
    /// JSON lines: where it listens, and when it is ready
    #[arg(long)]
    pub json: bool,
}

/// `shoal bench`
#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub engine: EngineArgs,
    /// Random weights of a known shape instead of a model: llama-1b, llama-3b, llama-8b, qwen2-0.5b and others
    #[arg(long, conflicts_with = "model")]
    pub shape: Option<String>,
    /// Weight format of --shape
    #[arg(long, default_value = "q4_0", requires = "shape")]
    pub format: String,
    /// Write the random weights of --shape to this file and stop: other programs can be measured on it
    #[arg(long, value_name = "FILE", requires = "shape")]
    pub save: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub attention: AttentionArgs,
    /// Time the attention of one layer of 8 heads of 64 over this many positions, without a model
    #[arg(long, conflicts_with_all = ["model", "shape", "prompt_tokens", "decode_tokens", "ctx"])]
    pub positions: Option<usize>,
    /// Tokens of the prompt
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub prompt_tokens: u32,
    /// Tokens to generate
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub decode_tokens: u32,
    /// Repetitions; the medians are reported
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// One JSON object on one line
    #[arg(long)]
    pub json: bool,
}

/// `shoal selftest`
#[derive(Debug, Args)]
pub struct SelftestArgs {
    /// Check this instruction set only [default: all this machine has]
    #[arg(long, conflicts_with = "device")]
    pub isa: Option<String>,
    /// Check this device instead of the processor's instruction sets, e.g. gpu:0
    #[arg(long)]
    pub device: Option<DeviceName>,
    /// One JSON object on one line
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use clap::{Command, CommandFactory};

    use super::Cli;

    fn leaves(command: &Command, path: &str, see: &mut dyn FnMut(&str, &Command)) {
        let visible = || command.get_subcommands().filter(|child| !child.is_hide_set());
        if visible().next().is_none() {
            see(path, command);
        }
        for child in visible() {
            leaves(child, &format!("{path} {}", child.get_name()), see);
        }
    }

    /// Commands whose output is a file, or a protocol, for another program already.
    const FILES: [&str; 3] = ["shoal mcp", "shoal completions", "shoal config template"];

    #[test]
    fn every_command_speaks_json_and_explains_itself() {
        let cli = Cli::command();
        cli.clone().debug_assert();
        let mut seen = 0;
        leaves(&cli, "shoal", &mut |path, command| {
            seen += 1;
            assert!(command.get_about().is_some(), "{path} says nothing about itself");
            let json = command.get_arguments().any(|arg| arg.get_long() == Some("json"));
            assert!(json || FILES.contains(&path), "{path} has no --json");
            for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
                let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
                assert!(!help.is_empty(), "{path} {} is not explained", arg.get_id());
                assert!(!help.ends_with('.'), "{path} {}: {help}", arg.get_id());
            }
        });
        assert!(seen > 25, "only {seen} commands");
    }
}
