//! `shoal join`: become part of a swarm, until Ctrl-C.

use std::{
    io::{self, IsTerminal, Read},
    path::Path,
    thread,
};

use p2p::{Identity, SwarmId, invite::Invite};
use scheduler::LayerSet;
use serde_json::json;
use shard::{gguf::Gguf, models::Blueprint};
use tokio::sync::{mpsc, watch};

use super::{ask::words, runtime};
use crate::{
    Error, Result,
    cli::swarm::JoinArgs,
    daemon::{self, Notice, Serve, Setup},
    library, model,
    output::{self, human_bytes, say},
    serve,
    swarmed::Door,
    worker::{Source, Spec},
};

/// What strangers learn, in one honest sentence.
const HONEST: &str = "Your prompts in boomerang mode: strangers compute the middle layers and can reconstruct much of the \
text from what they see; what you serve to others uses your CPU and memory, never your files.";
/// Pieces of news on their way to the screen; the node drops what does not fit.
const NEWS: usize = 256;

pub(in crate::commands) fn join(args: JoinArgs) -> Result<()> {
    let home = args.home.path()?;
    create_private_folder(&home)?;
    let identity =
        Identity::load_or_create(&home.join("identity.key")).map_err(|e| Error::Failed(e.to_string()))?;
    let invite = args.code.as_deref().map(str::parse::<Invite>).transpose();
    let invite =
        invite.map_err(|e| Error::usage(format!("the code cannot be read: {e}; ask for a new one")))?;
    let gguf = library::open(&args.engine.model)?;
    let num_layers = model::num_layers(&gguf)?;
    let serve = what_to_serve(&args, num_layers)?;
    agree(&args, &gguf, &serve, num_layers)?;
    let (network, template) = network(&args, &home, identity.clone(), invite)?;
    let (door, opened) = watch::channel(None);
    let data = home.clone();
    let setup = Setup {
        worker: Spec {
            context: model::context(&gguf, args.engine.ctx)?,
            threads: args.engine.threads.map(usize::from),
            isa: args.engine.isa.clone(),
            kv_bytes: args.memory << 20,
            pin: !args.engine.no_pin,
            nice: true,
            ..Spec::new(source(&args.engine.model)?)
        },
        file_bytes: gguf.file_len(),
        model: library::id(&args.engine.model)?,
        num_layers,
        home,
        identity,
        network,
        serve,
        invite: template,
        front: daemon::Front {
            about: serve::info(
                &gguf,
                &Blueprint::from_gguf(&gguf)?,
                model::context(&gguf, args.engine.ctx)?,
                serve::model_name(&args.engine.model),
            ),
            swarm: args.swarm.clone(),
            door: Some(door),
        },
        keeps: !args.no_journal,
    };
    let (stop, stopped) = watch::channel(false);
    let on_interrupt = stop.clone();
    ctrlc::set_handler(move || {
        if on_interrupt.send_replace(true) {
            std::process::exit(130);
        }
    })
    .map_err(|e| Error::Io(io::Error::other(e)))?;
    if args.until_stdin_closes {
        thread::spawn(move || {
            let _ = io::stdin().read_to_end(&mut Vec::new());
            stop.send_replace(true);
        });
    }
    runtime()?.block_on(async {
        let (notices, mut news) = mpsc::channel(NEWS);
        let json = args.json;
        let printer = tokio::spawn(async move {
            while let Some(notice) = news.recv().await {
                let stopped = matches!(notice, Notice::Stopped);
                if show(&notice, json).is_err() || stopped {
                    break;
                }
            }
        });
        let mut until = stopped.clone();
        let http = async move {
            match args.api.api {
                None => Ok(()),
                Some(address) => {
                    let stop = async move { drop(until.wait_for(|stop| *stop).await) };
                    let door = Door::Here(opened);
                    super::super::serve::beside(address, &args.api, json, &data, door, stop).await
                }
            }
        };
        let node = daemon::run(setup, notices, stopped);
        let ended = tokio::select! {
            ended = node => ended,
            // The API ends after the node, unless it cannot begin.
            Err(why) = http => Err(why),
        };
        let _ = printer.await;
        ended
    })
}

/// Layers to serve.
fn what_to_serve(args: &JoinArgs, num_layers: u32) -> Result<Serve> {
    let layers = match (&args.layers, args.ask_only) {
        (_, true) => Vec::new(),
        (Some(layers), _) => layers.0.clone(),
        (None, false) => return Ok(Serve::Scarcest(args.max_layers.unwrap_or(num_layers).min(num_layers))),
    };
    match layers.iter().find(|range| range.end() > num_layers) {
        Some(beyond) => Err(Error::usage(format!(
            "--layers {}..{}: the model has layers 0..{num_layers}",
            beyond.start(),
            beyond.end()
        ))),
        None => Ok(Serve::These(LayerSet::new(layers).ranges().to_vec())),
    }
}

/// Says what will happen before it does; a person at a terminal may still say no.
fn agree(args: &JoinArgs, gguf: &Gguf, serve: &Serve, num_layers: u32) -> Result<()> {
    if args.json {
        return Ok(());
    }
    let (layers, at_most) = match serve {
        Serve::These(ranges) => (ranges.iter().map(|range| range.len()).sum::<u32>(), ""),
        Serve::Scarcest(cap) => (*cap, "at most "),
    };
    let bytes = model::layer_bytes(gguf) * u64::from(layers) / u64::from(num_layers);
    match layers {
        0 => say!("Joining \"{}\" to ask only: this machine serves nobody.", args.swarm),
        _ => say!(
            "Joining \"{}\": this machine serves {at_most}{layers} of {num_layers} layers of {} ({} in memory), and up to {} for \
             other people's sessions, at low priority.",
            args.swarm,
            args.engine.model,
            human_bytes(bytes),
            human_bytes(args.memory << 20)
        ),
    }
    say!("{HONEST}");
    if args.yes || layers == 0 || !io::stdin().is_terminal() {
        return Ok(());
    }
    output::text("Go on? [Y/n] ")?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    match answer.trim().to_lowercase().as_str() {
        "" | "y" | "yes" => Ok(()),
        _ => {
            Err(Error::usage("nothing was started; `shoal join --ask-only` only asks, --layers serves less"))
        }
    }
}

/// The data folder, which only its owner may enter, whoever made it.
fn create_private_folder(home: &Path) -> Result<()> {
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
    let broken =
        |e: io::Error| Error::Failed(format!("{} is not private: {e}; run: chmod 700 {0}", home.display()));
    if let Ok(folder) = std::fs::metadata(home)
        && folder.permissions().mode() & 0o077 != 0
    {
        std::fs::set_permissions(home, std::fs::Permissions::from_mode(0o700)).map_err(broken)?;
    }
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(home).map_err(|e| {
        Error::Failed(format!("cannot create {}: {e}; choose another folder with --home", home.display()))
    })
}

pub(super) fn source(model: &str) -> Result<Source> {
    Ok(match library::path(model)? {
        Some(path) => Source::File(path),
        None => Source::Embedded,
    })
}

/// How to reach others, and what an invite of this node says about the swarm.
fn network(
    args: &JoinArgs,
    home: &Path,
    identity: Identity,
    invite: Option<Invite>,
) -> Result<(p2p::Config, Invite)> {
    let (swarm, psk, contacts) = match invite {
        Some(invite) => (invite.swarm, invite.psk, invite.contacts),
        None => (SwarmId::named(&args.swarm), private_key(args, home)?, Vec::new()),
    };
    let mut config = p2p::Config::new(identity);
    config.swarm = swarm;
    config.psk = psk;
    config.loopback_only = args.loopback;
    config.mdns = !args.loopback;
    config.upnp = !args.loopback;
    config.relay = !args.loopback || args.carry;
    config.relays.clone_from(&args.relay);
    config.punch = !args.no_punch;
    config.cache = Some(home.join("peers"));
    if !args.listen.is_empty() {
        config.listen = args.listen.clone();
    } else if args.loopback {
        config.listen = ["/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/udp/0/quic-v1"].map(str::to_owned).to_vec();
    }
    config.bootstrap = args.peer.clone();
    config.bootstrap.extend(contacts.iter().flat_map(|contact| contact.addresses.iter().cloned()));
    Ok((config, Invite { swarm, psk, contacts: Vec::new() }))
}

/// The key of a private swarm, made once.
fn private_key(args: &JoinArgs, home: &Path) -> Result<Option<[u8; 32]>> {
    if !args.private {
        return Ok(None);
    }
    let seed = Identity::load_or_create(&home.join(format!("swarm-{}.key", args.swarm)));
    let seed = seed.map_err(|e| Error::Failed(e.to_string()))?;
    Ok(Some(*blake3::hash(&seed.sign("shoal/private/1", args.swarm.as_bytes())).as_bytes()))
}

fn show(notice: &Notice, json: bool) -> Result<()> {
    match notice {
        Notice::Ready(status) if json => {
            let mut line = status.clone();
            line["event"] = json!("ready");
            line.as_object_mut().map(|line| line.remove("end"));
            output::json_line(&line)
        }
        Notice::Joined(node) if json => {
            output::json_line(&json!({ "event": "joined", "node": format!("{node:?}") }))
        }
        Notice::Left(node) if json => {
            output::json_line(&json!({ "event": "left", "node": format!("{node:?}") }))
        }
        Notice::Stopped if json => output::json_line(&json!({ "event": "stopped" })),
        Notice::Ready(status) => {
            say!("This node is {}.", status["node"].as_str().unwrap_or_default());
            say!(
                "It serves layers {} of {} ({:.2} ms a layer and token).",
                words(&status["model"]["serving"]),
                status["model"]["name"].as_str().unwrap_or_default(),
                status["model"]["decode_ms_per_layer"].as_f64().unwrap_or_default()
            );
            say!(
                "In another terminal: `shoal run --via swarm \"Hello\"`, `shoal peers`, `shoal invite`. Ctrl-C leaves."
            );
            Ok(())
        }
        Notice::Joined(node) => {
            say!("+ {node}");
            Ok(())
        }
        Notice::Left(node) => {
            say!("- {node}");
            Ok(())
        }
        Notice::Stopped => {
            say!("Left the swarm.");
            Ok(())
        }
    }
}
