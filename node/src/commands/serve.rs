//! `shoal serve`: the API and the page.

use std::{
    fs::{self, OpenOptions},
    io::{self, IsTerminal, Write},
    net::SocketAddr,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use data_encoding::HEXLOWER;
use serde_json::json;

use crate::{
    Error, Result,
    cli::ServeArgs,
    library,
    output::{self, say},
    serve::Alone,
};

/// Bytes of a token: nobody guesses 256 bits.
const TOKEN_BYTES: usize = 32;
/// The shortest token a file may hold, in characters.
const MIN_TOKEN: usize = 16;

pub(super) fn run(args: ServeArgs) -> Result<()> {
    let address = listen_address(&args)?;
    let token = if args.no_token { None } else { Some(token(&token_file(&args)?)?) };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    output::catch_interrupt()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind(address).await.map_err(|error| {
            Error::usage(format!("cannot listen on {address}: {error}; choose another with --listen"))
        })?;
        let inference = Alone::start(args.engine.clone(), args.kv_mib << 20)?;
        let config =
            api::Config { token: token.clone(), hosts: args.allow_host.clone(), answers: args.answers };
        let server = api::Server::new(inference.clone(), listener, config)?;
        tell(&args, &server, token.as_deref())?;
        let watch = args.json.then(|| tokio::spawn(tell_ready(inference)));
        server.run(stopped()).await;
        if let Some(watch) = watch {
            watch.abort();
        }
        Ok(())
    })
}

async fn stopped() {
    while !output::interrupted() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Refuses to open the API to other machines by accident.
fn listen_address(args: &ServeArgs) -> Result<SocketAddr> {
    let loopback = args.listen.ip().is_loopback();
    if !loopback && !args.insecure_lan {
        return Err(Error::usage(format!(
            "{} can be reached from other machines, and this API has no TLS: put a proxy with TLS before it, or add --insecure-lan if everybody on the network may read what is sent",
            args.listen
        )));
    }
    if !loopback && args.no_token {
        return Err(Error::usage("--no-token is for this machine alone; listen on 127.0.0.1"));
    }
    Ok(args.listen)
}

fn token_file(args: &ServeArgs) -> Result<PathBuf> {
    match &args.token_file {
        Some(file) => Ok(file.clone()),
        None => Ok(library::home()?.join("api-token")),
    }
}

/// The token in `file`, which is made with a fresh one where it does not exist, readable by its owner only.
fn token(file: &Path) -> Result<String> {
    let broken = |error: io::Error| Error::from(shard::Error::io(file, error));
    match fs::read_to_string(file) {
        Ok(text) => {
            let token = text.trim();
            if token.len() < MIN_TOKEN || !token.bytes().all(|b| b.is_ascii_graphic()) {
                let why = format!(
                    "{} must hold one token of at least {MIN_TOKEN} printable characters",
                    file.display()
                );
                return Err(Error::usage(why));
            }
            let mode =
                std::os::unix::fs::PermissionsExt::mode(&fs::metadata(file).map_err(broken)?.permissions());
            if mode & 0o077 != 0 {
                let why = format!("others can read {}; run: chmod 600 {0}", file.display());
                return Err(Error::usage(why));
            }
            Ok(token.to_owned())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if let Some(folder) = file.parent() {
                fs::create_dir_all(folder).map_err(broken)?;
            }
            let mut bytes = [0; TOKEN_BYTES];
            getrandom::fill(&mut bytes).map_err(|error| Error::Io(io::Error::other(error)))?;
            let token = HEXLOWER.encode(&bytes);
            let mut file_options = OpenOptions::new();
            let mut out = file_options.write(true).create_new(true).mode(0o600).open(file).map_err(broken)?;
            writeln!(out, "{token}").map_err(broken)?;
            Ok(token)
        }
        Err(error) => Err(broken(error)),
    }
}

/// Where the API is and how to use it.
fn tell(args: &ServeArgs, server: &api::Server, token: Option<&str>) -> Result<()> {
    let url = format!("http://{}", server.address());
    let page = if token.is_some() { format!("{url}/#t={}", server.ticket()) } else { format!("{url}/") };
    let file = token_file(args)?;
    if args.json {
        let file = token.map(|_| file.display().to_string());
        return output::json_line(
            &json!({"event": "listening", "url": url, "page": page, "token_file": file}),
        );
    }
    let header = token.map(|_| format!(" -H \"Authorization: Bearer $(cat '{}')\"", file.display()));
    let key = token.map_or_else(|| "none".to_owned(), |_| format!("$(cat '{}')", file.display()));
    say!("page     {page}");
    say!("API      {url}/v1 (OpenAI), {url} (Anthropic, Ollama)");
    say!("");
    say!(
        "curl {url}/v1/chat/completions{} -H 'Content-Type: application/json' -d '{{\"messages\": [{{\"role\": \"user\", \"content\": \"Tell me a story\"}}]}}'",
        header.unwrap_or_default()
    );
    say!("export OPENAI_BASE_URL={url}/v1 OPENAI_API_KEY=\"{key}\"");
    if io::stdout().is_terminal() {
        say!("");
        say!("Ctrl-C stops it. Everything is computed on this machine; nobody else reads the prompts.");
    }
    Ok(())
}

async fn tell_ready(inference: Arc<Alone>) {
    let loaded = loop {
        if let Some(loaded) = inference.loaded() {
            break loaded;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let line = match loaded {
        Ok(()) => json!({"event": "ready"}),
        Err(why) => json!({"event": "failed", "message": why}),
    };
    // A closed standard output is noticed by whoever closed it.
    let _ = output::json_line(&line);
}
