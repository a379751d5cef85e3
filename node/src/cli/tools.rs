//! Commands that look into models and texts: tokenize, template, eval, privacy, convert.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{AttentionArgs, EngineArgs, WireArgs};

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
    #[command(flatten)]
    #[allow(missing_docs)]
    pub wire: WireArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub attention: AttentionArgs,
    /// Token ids, separated by spaces or commas; `-` reads standard input
    #[arg(long, required_unless_present = "text")]
    pub tokens: Option<String>,
    /// Report how well this text is predicted (perplexity; with --wire c8 or --attention also what that changes); `-` reads
    /// standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["tokens", "greedy", "logits", "layers"])]
    pub text: Option<PathBuf>,
    /// Compare with the model in f32, weights as in the file, by the plain loops that specify the engine (slow: seconds a token
    /// for a billion weights): how far each token's distribution is from that one, after what --wire and --attention change
    #[arg(long, requires = "text", conflicts_with = "imatrix")]
    pub reference: bool,
    /// Write how much each input of each matrix matters for the text (an importance matrix, GGUF) for `shoal convert --imatrix`
    #[arg(long, value_name = "FILE", requires = "text")]
    pub imatrix: Option<PathBuf>,
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

/// `shoal distill`
#[derive(Debug, Args)]
pub struct DistillArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub engine: EngineArgs,
    /// Where the draft head goes; a file with something in it is not overwritten
    #[arg(long, value_name = "FILE")]
    pub output: PathBuf,
    /// Prompts to answer, one a line, instead of this program's; `-` reads standard input
    #[arg(long, value_name = "FILE")]
    pub prompts: Option<PathBuf>,
    /// Tokens of answers to learn from; in memory each takes two bytes for each value of a row
    #[arg(long, default_value_t = 500_000)]
    pub answer_tokens: usize,
    /// How often each is read
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub epochs: u32,
    /// Width of the network; a guess reads six bytes of it for each value of a row
    #[arg(long, default_value_t = 1_536, value_parser = clap::value_parser!(u32).range(32..=65_536))]
    pub width: u32,
    /// Tokens that it may guess: those that the answers have most often
    #[arg(long, default_value_t = 8_192, value_parser = clap::value_parser!(u32).range(64..))]
    pub vocabulary: u32,
    /// Of everything that is drawn
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The result as one JSON object on the last line
    #[arg(long)]
    pub json: bool,
}

/// `shoal privacy ...`
#[derive(Debug, Subcommand)]
pub enum PrivacyCommand {
    /// Reconstruct a text from the activations that leave the first layers, as a stranger in a boomerang session could
    #[command(after_help = "Examples:
  shoal privacy audit --head 2
  shoal privacy audit --model llama.gguf --head 4 --text letter.txt --json")]
    Audit(AuditArgs),
}

/// `shoal privacy audit`
#[derive(Debug, Args)]
pub struct AuditArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub engine: EngineArgs,
    /// Layers that stay on your machine before a stranger sees activations
    #[arg(long, default_value_t = 1)]
    pub head: u32,
    /// The text to reconstruct; `-` reads standard input [default: a few sentences of our own]
    #[arg(long, value_name = "FILE")]
    pub text: Option<PathBuf>,
    /// Most tokens of the text to use; the effort grows with each
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub tokens: u32,
    /// The result as one JSON object on the last line
    #[arg(long)]
    pub json: bool,
}

/// `shoal convert`
#[derive(Debug, Args)]
pub struct ConvertArgs {
    /// Folder with config.json, *.safetensors and tokenizer.json; a .gguf file to write in another format; or one of the parts of a
    /// GGUF, to join them or write them in another format
    pub source: PathBuf,
    /// The file to write [default: SOURCE-FORMAT.gguf, of parts that are joined their common name]
    #[arg(short, long)]
    pub output: Option<PathBuf>,
    /// Weight format of the matrices: f32, f16, bf16, q8_0, q6_k, q4_k, q3_k, iq4_nl and others [default for a folder: q8_0]
    #[arg(short, long)]
    pub format: Option<String>,
    /// Another format for matrices with this in their names, `*` for anything; the first that fits counts
    #[arg(long, value_name = "PATTERN=FORMAT", requires = "format")]
    pub tensor: Vec<String>,
    /// How much each input of each matrix matters, from `shoal eval --imatrix` or llama.cpp (GGUF or .dat): errors are weighed by it in
    /// q2_k, q3_k, q4_k, q5_k, q6_k, iq4_nl and iq4_xs
    #[arg(long, value_name = "FILE", requires = "format")]
    pub imatrix: Option<PathBuf>,
    /// The folder is a Qwen 3 Reranker, whose files do not say so: the model is served at /v1/rerank
    #[arg(long)]
    pub rank: bool,
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
