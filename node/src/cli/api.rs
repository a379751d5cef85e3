//! Flags of the HTTP side, for every command that opens it.

use std::{net::SocketAddr, path::PathBuf};

use ::api::{Alias, choice::Draft};
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
    /// Page of another origin that may ask, with the token, such as `https://app.example` (repeatable)
    #[arg(long, value_name = "ORIGIN", value_parser = origin, conflicts_with = "no_token")]
    pub allow_origin: Vec<String>,
    /// Keep nothing of answers on disk: a crash loses those that run, and `previous_response_id` is refused
    #[arg(long)]
    pub no_journal: bool,
    /// Another name for a model, for clients that ask for a fixed one, e.g. gpt-4o=minnow (repeatable)
    #[arg(long, value_name = "NAME=MODEL", value_parser = alias)]
    pub alias: Vec<Alias>,
    /// Most answers under way; further requests are told to come back
    #[arg(long, default_value_t = 256, value_parser = answers)]
    pub answers: usize,
    /// What may draft tokens of answers where requests do not say: auto, off, or a list of lookup, grammar, head, and the
    /// name or file of a smaller model with the same vocabulary, which is loaded to draft; the tokens are the same
    #[arg(long, default_value = "auto", value_name = "DRAFTERS")]
    pub draft: Draft,
}

/// The API of a node that joins a swarm.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "API")]
pub struct NodeApiArgs {
    /// Answer programs and browsers through the swarm, too [default address: 127.0.0.1:7435; port 0 takes a free one]
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = LISTEN, value_parser = address)]
    pub api: Option<SocketAddr>,
    /// Node that may compute for the API's trusted mode, by its full name (repeatable)
    #[arg(long, value_name = "NODE")]
    pub trust: Vec<String>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub wire: super::FormArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub http: ApiArgs,
}

/// An address and a port; a port alone, and `localhost`, are of this machine.
pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    let here = |port: &str| port.parse().map(|port: u16| SocketAddr::from(([127, 0, 0, 1], port)));
    let local = here(text.strip_prefix("localhost:").unwrap_or(text));
    local.or_else(|_| text.parse()).map_err(|_| {
        "must be an address and a port, such as 127.0.0.1:7435 or [::1]:7435, or a port of this machine"
            .into()
    })
}

fn answers(text: &str) -> Result<usize, String> {
    let n = text.parse().ok().filter(|n| (1..=65_536).contains(n));
    n.ok_or_else(|| "must be a number from 1 to 65536".into())
}

/// Longest name that a client may ask for.
const MAX_NAME: usize = 96;

/// What a browser sends as `Origin`: a scheme and a host, perhaps a port, and no path.
fn origin(text: &str) -> Result<String, String> {
    let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let plain = |host: &&str| {
        !host.is_empty()
            && host
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b':' | b'[' | b']'))
    };
    match host.filter(plain) {
        Some(_) => Ok(text.to_ascii_lowercase()),
        None => {
            Err("must be an origin without a path, such as https://app.example or http://localhost:3000"
                .into())
        }
    }
}

fn alias(text: &str) -> Result<Alias, String> {
    let letter = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b':' | b'/' | b'@');
    let good = |name: &str| !name.is_empty() && name.len() <= MAX_NAME && name.bytes().all(letter);
    match text.split_once('=') {
        Some((name, model)) if good(name) && good(model) => {
            Ok(Alias { name: name.to_owned(), model: model.to_owned() })
        }
        _ => Err("must be NAME=MODEL, such as gpt-4o=minnow; GET /v1/models lists the models".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_be_a_port() {
        for (text, said) in
            [("8080", "127.0.0.1:8080"), ("localhost:0", "127.0.0.1:0"), ("[::1]:9", "[::1]:9")]
        {
            assert_eq!(address(text).map(|address| address.to_string()).as_deref(), Ok(said));
        }
        for text in ["", "host", "example.org:80", "70000", "1.2.3.4"] {
            assert!(address(text).is_err_and(|why| why.contains("127.0.0.1:7435")), "{text}");
        }
    }

    #[test]
    fn origins_are_exact() {
        for good in ["https://app.example", "http://localhost:3000", "http://[::1]:8080"] {
            assert_eq!(origin(good).as_deref(), Ok(good));
        }
        assert_eq!(origin("https://App.Example").as_deref(), Ok("https://app.example"));
        for bad in [
            "*",
            "null",
            "app.example",
            "https://",
            "https://a.example/",
            "https://*.example",
            "file:///x",
            "https://a b",
        ] {
            assert!(origin(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_alias_is_two_names() {
        let both = Alias { name: "openai/gpt-4o".into(), model: "minnow".into() };
        assert_eq!(alias("openai/gpt-4o=minnow"), Ok(both));
        for bad in ["gpt-4o", "=minnow", "gpt-4o=", "a b=c", "a=b=c"] {
            assert!(alias(bad).is_err(), "{bad}");
        }
    }
}
