//! Flags of the HTTP side, for every command that opens it.

use std::{net::SocketAddr, path::PathBuf};

use clap::Args;

/// Where the API listens when nothing else is said.
pub const LISTEN: &str = "127.0.0.1:7435";

/// Who may ask over HTTP.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "API")]
pub struct ApiArgs {
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
}

/// The API of a node that joins a swarm.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "API")]
pub struct NodeApiArgs {
    /// Answer programs and browsers through the swarm, too [default address: 127.0.0.1:7435; port 0 takes a free one]
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = LISTEN)]
    pub api: Option<SocketAddr>,
    /// Node that may compute for the API's trusted mode, by its full name (repeatable)
    #[arg(long, value_name = "NODE")]
    pub trust: Vec<String>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub http: ApiArgs,
}

fn answers(text: &str) -> Result<usize, String> {
    let n = text.parse().ok().filter(|n| (1..=65_536).contains(n));
    n.ok_or_else(|| "must be a number from 1 to 65536".into())
}
