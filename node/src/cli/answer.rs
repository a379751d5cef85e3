//! `shoal run`, `shoal chat` and `shoal mcp`: their flags.

use clap::Args;

use super::{AttentionArgs, EngineArgs, FormArgs, SamplingArgs, SourceArgs, WireArgs, swarm};

/// How and where prompts are answered: what a prompt and a conversation have in common.
#[derive(Debug, Args)]
pub struct AnswerArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub engine: EngineArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub wire: WireArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub attention: AttentionArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub sampling: SamplingArgs,
    /// Where to answer it
    #[arg(long, value_enum, default_value = "local")]
    pub via: swarm::Via,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub route: swarm::RouteArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub home: swarm::HomeArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub sources: SourceArgs,
    /// Fetch a model that is not here without asking
    #[arg(short, long)]
    pub yes: bool,
}

/// `shoal run`
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The prompt; `-` or nothing reads standard input. The name of a model before it, or instead of it, means that model:
    /// one of `shoal model list` or `shoal model search`, hf.co/OWNER/NAME:Q4_K_M or ollama://NAME
    #[arg(value_name = "PROMPT")]
    pub prompt: Option<String>,
    /// The prompt, when the first word is a model
    #[arg(value_name = "PROMPT OF MODEL")]
    pub second: Option<String>,
    /// A system message put before the prompt
    #[arg(long)]
    pub system: Option<String>,
    /// Continue the text as it is, without the model's chat template
    #[arg(long, conflicts_with = "system")]
    pub raw: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub answer: AnswerArgs,
    /// One JSON object per line: a line per piece of text, the summary last
    #[arg(long)]
    pub json: bool,
    /// Refused: the links between other nodes are theirs, and those of this one serve all prompts
    #[arg(long, hide = true, value_name = "LINK")]
    pub link: Option<p2p::LinkMode>,
}

/// `shoal chat`
#[derive(Debug, Args)]
pub struct ChatArgs {
    /// A system message put before the conversation
    #[arg(long)]
    pub system: Option<String>,
    /// Offer the model the tools of this server of the Model Context Protocol, a command that speaks it over standard input
    /// and output (repeatable); each call is shown, and happens if you say so
    #[arg(long, value_name = "COMMAND")]
    pub mcp: Vec<String>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub answer: AnswerArgs,
    /// One JSON object per line; one user message per line of standard input
    #[arg(long)]
    pub json: bool,
}

/// `shoal mcp`
#[derive(Debug, Args)]
pub struct McpArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub engine: EngineArgs,
    /// Who answers: this process, or the node that `shoal join` runs and its swarm; auto takes a node that runs
    #[arg(long, value_enum, default_value = "auto")]
    pub via: swarm::Via,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub wire: FormArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub home: swarm::HomeArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub sources: SourceArgs,
    /// Fetch a model that is not here without asking
    #[arg(short, long)]
    pub yes: bool,
}
