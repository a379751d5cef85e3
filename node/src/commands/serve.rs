//! `shoal serve`: the API and the page; and the API of a node (`shoal join --api`).

use std::{
    fs::{self, OpenOptions},
    io::{self, IsTerminal, Write},
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use api::{doors::Door as ClientDoor, stored_responses::StoredResponses};
use data_encoding::HEXLOWER;
use p2p::Governor;
use serde_json::json;

use crate::{
    Error, Result,
    cli::{
        FormArgs, ServeArgs,
        api::{ApiArgs, NodeApiArgs},
        swarm::Via,
    },
    control,
    conversations::Shelf,
    doors::{self, ClientDoors},
    inference::local::confined::{Confined, Retention},
    inference::swarm::{Door, Preferences, Swarmed},
    keys::KeyRing,
    library,
    model_shelf::ModelShelf,
    output::{self, say},
    platform::files::{self, OwnerOnly},
    private_folder,
    reports::{JoinLine, Listening},
    stored_responses::ResponseStore,
};

/// Bytes of a token: 256 bits cannot be guessed.
const TOKEN_BYTES: usize = 32;
/// How often stored responses are looked through for those that are too old.
const EXPIRE_EVERY: Duration = Duration::from_secs(600);
/// The shortest token a file may hold, in characters.
const MIN_TOKEN: usize = 16;

pub(super) fn run(mut args: ServeArgs) -> Result<()> {
    output::catch_interrupt()?;
    if args.via == Via::Local {
        let terms = super::obtain::Terms { sources: &args.sources, yes: args.yes, json: args.json };
        args.engine.model = Some(super::obtain::model(args.engine.model(), terms)?);
        let terms = super::obtain::Terms { sources: &args.sources, yes: args.yes, json: args.json };
        super::obtain::drafter(&mut args.api.draft, terms)?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let home = args.home.path()?;
    refuse_shown_token(&args.api, &home)?;
    private_folder::prepare(&home)?;
    runtime.block_on(async {
        let runs = control::is_running(&home);
        let swarm = match args.via {
            Via::Local => false,
            Via::Auto => runs,
            Via::Swarm if runs => true,
            Via::Swarm => {
                return Err(control::runs_nowhere());
            }
        };
        let keep = args.keep.bytes()?;
        if !swarm {
            library::locate(args.engine.model())?;
        } else if args.unload_after.is_some() {
            return Err(Error::usage("the node keeps its models loaded: leave --unload-after away here"));
        } else if keep.is_some() {
            return Err(Error::usage(
                "the node keeps what it computes: start it with `shoal join --keep-state`, and leave the flag away here",
            ));
        }
        let governor = Governor::new(doors::limits(Some(args.api.answers), None));
        let front = Front::open(args.listen, &args.api, &home, governor.clone()).await?;
        if swarm {
            let swarmed = Swarmed::start(
                Door::Socket(home.clone()),
                preferences(&args.trust, &args.api, &args.wire, &home),
            );
            front.serve(swarmed.clone(), move || told(swarmed.readiness()), true, args.json, stopped()).await
        } else {
            let draft = args.api.draft.clone();
            let states = keep.map(|bytes| (home.as_path(), bytes));
            let retention = Retention { states, unload_after: args.unload_after };
            let alone = Confined::start(&args.engine, args.kv_mib << 20, draft, governor, retention)?;
            front.serve(alone.clone(), move || alone.loaded(), false, args.json, stopped()).await
        }
    })
}

/// The API of the node that runs in this process under `governor`, until `stop` completes.
pub(super) async fn beside(
    (address, args, json): (SocketAddr, &NodeApiArgs, bool),
    home: &Path,
    door: Door,
    governor: Governor,
    stop: impl Future<Output = ()>,
) -> Result<()> {
    let front = Front::open(address, &args.http, home, governor).await?;
    let swarmed = Swarmed::start(door, preferences(&args.trust, &args.http, &args.wire, home));
    front.serve(swarmed.clone(), move || told(swarmed.readiness()), true, json, stop).await
}

fn preferences(trust: &[String], args: &ApiArgs, wire: &FormArgs, home: &Path) -> Preferences {
    let trusted = trust.iter().map(|node| node.to_lowercase()).collect();
    let draft = args.draft.clone();
    Preferences { trusted, mode: None, draft, wire: wire.choice(), home: home.to_owned() }
}

/// A node becomes ready, or stays on its way: it never gives up.
fn told(readiness: Result<(), api::inference::Failure>) -> Option<Result<(), String>> {
    readiness.is_ok().then_some(Ok(()))
}

/// A bound address and who may ask there.
struct Front {
    listener: tokio::net::TcpListener,
    config: api::Config,
    file: PathBuf,
    responses: Arc<ResponseStore>,
}

impl Front {
    async fn open(address: SocketAddr, args: &ApiArgs, home: &Path, governor: Governor) -> Result<Self> {
        refuse_accidents(address, args)?;
        let file = args.token_file.clone().unwrap_or_else(|| home.join("api-token"));
        let token = if args.no_token { None } else { Some(token(&file)?) };
        let listener = tokio::net::TcpListener::bind(address).await.map_err(|error| {
            Error::usage(format!("the API cannot listen on {address}: {error}; choose another address"))
        })?;
        let responses = Arc::new(ResponseStore::of(home));
        let config = api::Config {
            token,
            hosts: args.allow_host.clone(),
            origins: args.allow_origin.clone(),
            aliases: args.alias.clone(),
            doors: Arc::new(ClientDoors(governor)),
            keys: Some(Arc::new(KeyRing::open(home)?)),
            conversations: Some(Arc::new(Shelf::of(home))),
            responses: (!args.no_journal).then(|| responses.clone() as Arc<dyn StoredResponses>),
            library: Some(Arc::new(ModelShelf::of(home))),
        };
        Ok(Self { listener, config, file, responses })
    }

    async fn serve(
        self,
        inference: Arc<dyn api::Inference>,
        ready: impl Fn() -> Option<Result<(), String>> + Send + 'static,
        swarm: bool,
        json: bool,
        stop: impl Future<Output = ()>,
    ) -> Result<()> {
        let (token, doors) = (self.config.token.clone(), self.config.doors.clone());
        let stop = async move {
            stop.await;
            if doors.standing(ClientDoor::Answers).used > 0 {
                eprintln!("Answers under way have 12 s to end; Ctrl-C again stops them.");
            }
        };
        let server = api::Server::new(inference, self.listener, self.config)?;
        tell(&server, token.as_deref(), &self.file, swarm, json)?;
        let watch = json.then(|| tokio::spawn(tell_ready(ready, if swarm { "answering" } else { "ready" })));
        let expiring = tokio::spawn(expire(self.responses));
        server.run(stop).await;
        expiring.abort();
        if let Some(watch) = watch {
            watch.abort();
        }
        Ok(())
    }
}

/// Deletes stored responses that are too old, those of earlier runs among them.
async fn expire(responses: Arc<ResponseStore>) {
    loop {
        let store = responses.clone();
        let expired = tokio::task::spawn_blocking(move || store.expire(SystemTime::now())).await;
        if let Ok(Err(error)) = expired {
            tracing::warn!(%error, "stored responses that are too old could not be deleted");
        }
        tokio::time::sleep(EXPIRE_EVERY).await;
    }
}

async fn stopped() {
    while !output::interrupted() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Refuses to open the API to other machines by accident.
fn refuse_accidents(address: SocketAddr, args: &ApiArgs) -> Result<()> {
    let loopback = address.ip().is_loopback();
    if !loopback && !args.insecure_lan {
        return Err(Error::usage(format!(
            "{address} can be reached from other machines, and this API has no TLS: put a proxy with TLS before it, or add --insecure-lan if everybody on the network may read what is sent"
        )));
    }
    if !loopback && args.no_token {
        return Err(Error::usage("--no-token is for this machine alone; listen on 127.0.0.1"));
    }
    Ok(())
}

/// A token that others could read is not made good by closing its file, which the preparation of the data folder would do.
pub(super) fn refuse_shown_token(args: &ApiArgs, home: &Path) -> Result<()> {
    let file = args.token_file.clone().unwrap_or_else(|| home.join("api-token"));
    if args.no_token || !file.exists() { Ok(()) } else { token(&file).map(drop) }
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
            if !files::is_owners_only(&fs::metadata(file).map_err(broken)?) {
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
            let mut out =
                file_options.write(true).create_new(true).owner_only().open(file).map_err(broken)?;
            writeln!(out, "{token}").map_err(broken)?;
            Ok(token)
        }
        Err(error) => Err(broken(error)),
    }
}

/// Where the API is and how to use it.
fn tell(server: &api::Server, token: Option<&str>, file: &Path, swarm: bool, json: bool) -> Result<()> {
    let url = format!("http://{}", server.address());
    // A ticket is for the reader of this output: in the log of a service others would find it.
    let reader = json || io::stdout().is_terminal();
    let page = match token {
        Some(_) if reader => format!("{url}/#t={}", server.ticket()),
        Some(_) => format!("{url}/ asks for the token in {}", file.display()),
        None => format!("{url}/"),
    };
    if json {
        let file = token.map(|_| file.display().to_string());
        return output::json_line(&JoinLine::Listening(Listening { url, page, token_file: file }));
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
        match swarm {
            true => say!("Ctrl-C stops it. Who computes a prompt is in every answer and on the page."),
            false => say!(
                "Ctrl-C stops it. Everything is computed on this machine; no other machine reads the prompts."
            ),
        }
    }
    Ok(())
}

/// Says `word` when answers can be had: a node that joins has said itself that it is ready.
async fn tell_ready(ready: impl Fn() -> Option<Result<(), String>>, word: &str) {
    let loaded = loop {
        if let Some(loaded) = ready() {
            break loaded;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let line = match loaded {
        Ok(()) => json!({ "event": word }),
        Err(why) => json!({"event": "failed", "message": why}),
    };
    // The process that closed standard output knows it.
    let _ = output::json_line(&line);
}
