//! `shoal key`: its commands and their flags.

use clap::Subcommand;

use super::swarm::HomeArgs;

/// `shoal key ...`
#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Make a key and show it, once
    #[command(
        after_help = "Whom it is given to may ask for answers and lists of models, and change nothing here.

Examples:
  shoal key add ann --tokens-per-day 100000
  sudo shoal key add ann --home /var/lib/shoal
  OPENAI_API_KEY=$(shoal key add ann) some-client"
    )]
    Add {
        /// Whose it is
        name: String,
        /// Most tokens a day, of prompts and answers together; days begin at midnight UTC [default: no bound]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        tokens_per_day: Option<u64>,
        /// Of which node
        #[command(flatten)]
        home: HomeArgs,
        /// A JSON object
        #[arg(long)]
        json: bool,
    },
    /// The keys there are, and what they took today
    #[command(after_help = "Example:
  shoal key list")]
    List {
        /// Of which node
        #[command(flatten)]
        home: HomeArgs,
        /// A JSON array
        #[arg(long)]
        json: bool,
    },
    /// Take a key back; a running API refuses it from the next request on
    #[command(after_help = "Example:
  shoal key revoke ann")]
    Revoke {
        /// Whose it is
        name: String,
        /// Of which node
        #[command(flatten)]
        home: HomeArgs,
        /// A JSON object
        #[arg(long)]
        json: bool,
    },
}
