//! The command line: every command, its flags and its examples.

use std::{net::SocketAddr, path::PathBuf};

use clap::{Args, Parser, Subcommand};

/// Runs language models on this machine, and across a swarm of other people's.
///
/// Without any setup, `shoal run "Tell me a story about a fox"` answers with the small model inside the binary.
#[derive(Debug, Parser)]
#[command(name = "shoal", version, max_term_width = 110, arg_required_else_help = true)]
pub struct Cli {
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Answer one prompt
    #[command(after_help = "Examples:
  shoal run \"Tell me a story about a fox and a lantern\"
  shoal run --model llama.gguf --temperature 0.7 --seed 1 \"Why is the sky blue?\"
  echo \"Name three animals\" | shoal run --json -")]
    Run(RunArgs),
    /// Talk in turns; the history stays computed between them
    #[command(
        after_help = "In the chat: /help lists what you can type; Ctrl-C stops an answer, Ctrl-D leaves."
    )]
    Chat(ChatArgs),
    /// Answer programs and browsers: OpenAI's, Anthropic's and Ollama's API, and a page
    #[command(after_help = "Examples:
  shoal serve
  shoal serve --model llama.gguf --listen 127.0.0.1:8080
  curl -H \"Authorization: Bearer $(cat ~/.local/share/shoal/api-token)\" http://127.0.0.1:7435/v1/models")]
    Serve(ServeArgs),
    /// Measure prefill and decode speed of a model, or of a shape before you download it
    #[command(after_help = "Examples:
  shoal bench
  shoal bench --model llama.gguf --prompt-tokens 512 --decode-tokens 64
  shoal bench --shape llama-1b --format q4_0 --json")]
    Bench(BenchArgs),
    /// Check that this machine computes the same bits as every other
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
    /// Compute the logits after a list of tokens
    #[command(after_help = "Example:
  shoal eval --model llama.gguf --tokens \"1 2 3\" --greedy 8 --logits last.npy --json")]
    Eval(EvalArgs),
    /// Turn a folder of safetensors into a GGUF file
    #[command(after_help = "Example:
  shoal convert ./Qwen2.5-0.5B-Instruct --format q8_0 --output qwen.gguf")]
    Convert(ConvertArgs),
}

/// Which model, and how this machine runs it.
#[derive(Debug, Clone, Args)]
pub struct EngineArgs {
    /// A .gguf file, or a name from `shoal model list`
    #[arg(short, long, default_value = crate::library::DEFAULT_MODEL, env = "SHOAL_MODEL")]
    pub model: String,
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
}

/// How tokens are chosen.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// 0 always takes the likeliest token; higher is more varied
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    pub temperature: f32,
    /// Choose among the k likeliest tokens only (0: all)
    #[arg(long, default_value_t = 0)]
    pub top_k: usize,
    /// Choose among the likeliest tokens that together reach this probability
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true)]
    pub top_p: f32,
    /// Drop tokens less likely than this share of the likeliest
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    pub min_p: f32,
    /// Locally typical sampling: how much probability to keep
    #[arg(long, default_value_t = 1.0)]
    pub typical: f32,
    /// Divide the logits of tokens already seen
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true)]
    pub repetition_penalty: f32,
    /// Subtract once from the logit of every token already seen
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    pub presence_penalty: f32,
    /// Subtract from a token's logit each time it was seen
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    pub frequency_penalty: f32,
    /// Add to a token's logit, as ID=BIAS (repeatable)
    #[arg(long, value_name = "ID=BIAS", allow_hyphen_values = true)]
    pub logit_bias: Vec<String>,
    /// The same seed and prompt give the same answer on every machine
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Stop before this text appears (repeatable)
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// Report this many log-probabilities per token (with --json)
    #[arg(long, value_name = "N")]
    pub logprobs: Option<usize>,
    /// Most tokens to generate
    #[arg(short = 'n', long, default_value_t = 512)]
    pub max_tokens: usize,
}

/// `shoal run`
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The prompt; `-` or nothing reads standard input
    pub prompt: Option<String>,
    /// A system message put before the prompt
    #[arg(long)]
    pub system: Option<String>,
    /// Continue the text as it is, without the model's chat template
    #[arg(long, conflicts_with = "system")]
    pub raw: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub engine: EngineArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub sampling: SamplingArgs,
    /// One JSON object per line: a line per piece of text, the summary last
    #[arg(long)]
    pub json: bool,
}

/// `shoal chat`
#[derive(Debug, Args)]
pub struct ChatArgs {
    /// A system message put before the conversation
    #[arg(long)]
    pub system: Option<String>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub engine: EngineArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub sampling: SamplingArgs,
    /// One JSON object per line; one user message per line of standard input
    #[arg(long)]
    pub json: bool,
}

/// `shoal serve`
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Address and port; port 0 takes a free one
    #[arg(short, long, default_value = "127.0.0.1:7435", env = "SHOAL_LISTEN")]
    pub listen: SocketAddr,
    /// File with the token that requests must bring; made where it does not exist [default: api-token in the data folder]
    #[arg(long, value_name = "FILE", env = "SHOAL_TOKEN_FILE")]
    pub token_file: Option<PathBuf>,
    /// Let every program on this machine ask without a token
    #[arg(long, conflicts_with = "token_file")]
    pub no_token: bool,
    /// Listen on an address that other machines reach, without TLS
    #[arg(long)]
    pub insecure_lan: bool,
    /// Another name under which the API is addressed, for a proxy before it (repeatable)
    #[arg(long, value_name = "NAME")]
    pub allow_host: Vec<String>,
    /// Most answers under way; further requests are told to come back
    #[arg(long, default_value_t = 256, value_parser = answers)]
    pub answers: usize,
    /// Memory for the caches of all sessions, in MiB
    #[arg(long, default_value_t = 1024)]
    pub kv_mib: usize,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub engine: EngineArgs,
    /// JSON lines: where it listens, and when it is ready
    #[arg(long)]
    pub json: bool,
}

fn answers(text: &str) -> Result<usize, String> {
    let n = text.parse().ok().filter(|n| (1..=65_536).contains(n));
    n.ok_or_else(|| "must be a number from 1 to 65536".into())
}

/// `shoal bench`
#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub engine: EngineArgs,
    /// Random weights of a known shape instead of a model: llama-1b, llama-3b, llama-8b, qwen2-0.5b, ...
    #[arg(long, conflicts_with = "model")]
    pub shape: Option<String>,
    /// Weight format of --shape
    #[arg(long, default_value = "q4_0", requires = "shape")]
    pub format: String,
    /// Write the random weights of --shape to this file and stop: other programs can be measured on it
    #[arg(long, value_name = "FILE", requires = "shape")]
    pub save: Option<PathBuf>,
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
    #[arg(long)]
    pub isa: Option<String>,
    /// One JSON object on one line
    #[arg(long)]
    pub json: bool,
}

/// `shoal model ...`
#[derive(Debug, Subcommand)]
pub enum ModelCommand {
    /// The models this machine knows
    List {
        /// A JSON array
        #[arg(long)]
        json: bool,
    },
    /// Give a .gguf file a name; the file stays where it is
    Add {
        /// The file
        file: PathBuf,
        /// Its name [default: the file's name without .gguf]
        #[arg(long)]
        name: Option<String>,
        /// A JSON object
        #[arg(long)]
        json: bool,
    },
    /// Forget a name; the file stays where it is
    Rm {
        /// The name
        name: String,
    },
    /// What a file holds and whether this build can run it
    Inspect {
        /// A .gguf file or a name
        #[arg(default_value = crate::library::DEFAULT_MODEL)]
        model: String,
        /// List every tensor
        #[arg(long)]
        tensors: bool,
        /// List every metadata entry
        #[arg(long)]
        metadata: bool,
        /// A JSON object
        #[arg(long)]
        json: bool,
    },
}

/// `shoal tokenize`
#[derive(Debug, Args)]
pub struct TokenizeArgs {
    /// The text (or ids with --decode); nothing reads standard input
    #[arg(allow_hyphen_values = true)]
    pub text: Option<String>,
    /// A .gguf file (a vocabulary alone is enough) or a name from `shoal model list`
    #[arg(short, long, default_value = crate::library::DEFAULT_MODEL, env = "SHOAL_MODEL")]
    pub model: String,
    /// Ids to text
    #[arg(long)]
    pub decode: bool,
    /// Do not put the beginning-of-sequence token in front
    #[arg(long)]
    pub no_bos: bool,
    /// Text that looks like a special token stays text
    #[arg(long)]
    pub plain: bool,
    /// Standard input is a JSON list; the output is a list of the results
    #[arg(long)]
    pub batch: bool,
    /// Ids as a JSON list, text as a JSON string
    #[arg(long)]
    pub json: bool,
}

/// `shoal template`
#[derive(Debug, Args)]
pub struct TemplateArgs {
    /// Take the template of this model [default: the embedded model]
    #[arg(short, long)]
    pub model: Option<String>,
    /// Take the template from this file instead
    #[arg(long, conflicts_with = "model")]
    pub template: Option<PathBuf>,
    /// JSON with the messages; `-` reads standard input
    #[arg(long)]
    pub input: PathBuf,
    /// The text inside a JSON object
    #[arg(long)]
    pub json: bool,
}

/// `shoal eval`
#[derive(Debug, Args)]
pub struct EvalArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub engine: EngineArgs,
    /// Token ids, separated by spaces or commas; `-` reads standard input
    #[arg(long)]
    pub tokens: String,
    /// Generate this many tokens greedily
    #[arg(long, default_value_t = 0)]
    pub greedy: usize,
    /// Write the f32 logits of the last given token as .npy
    #[arg(long)]
    pub logits: Option<PathBuf>,
    /// Cut the model there: layers before, inside and after a..b run as separate shards
    #[arg(long, value_name = "A..B")]
    pub layers: Option<String>,
    /// Tokens per forward pass of the prompt [default: 96]
    #[arg(long)]
    pub chunk: Option<usize>,
    /// The result as one JSON object on the last line
    #[arg(long)]
    pub json: bool,
}

/// `shoal convert`
#[derive(Debug, Args)]
pub struct ConvertArgs {
    /// Folder with config.json, *.safetensors and tokenizer.json
    pub source: PathBuf,
    /// The file to write [default: FOLDER-FORMAT.gguf]
    #[arg(short, long)]
    pub output: Option<PathBuf>,
    /// Weight format of the matrices: f32, f16, bf16, q8_0, q4_0, q4_k, q6_k, ...
    #[arg(short, long, default_value = "q8_0")]
    pub format: String,
    /// Threads that quantize [default: physical cores]
    #[arg(short, long)]
    pub threads: Option<u16>,
    /// Replace the output file if it exists
    #[arg(long)]
    pub force: bool,
    /// The result as one JSON object on the last line
    #[arg(long)]
    pub json: bool,
}
