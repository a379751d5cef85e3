//! `shoal join`: become part of a swarm, until Ctrl-C.

use std::{
    io::{self, IsTerminal, Read},
    path::Path,
    thread,
};

use futures::{FutureExt, future::FusedFuture};
use p2p::{Governor, Identity, blob::sparse, invite::Invite};
use scheduler::{LayerRange, ModelId, sticky::Packing};
use tokio::sync::{mpsc, watch};

use super::{
    super::{catalog::known, consent, obtain},
    link,
    network::network,
    news, runtime,
    which::{Here, beside, experts, name_of, what_to_serve, which},
};
use crate::{
    Error, Result,
    byte_planes::Rates,
    catalog::{self, Signed, reference::Reference},
    cli::{
        FetchState, StateArgs,
        swarm::{CapsArgs, JoinArgs},
    },
    consent::MODES,
    content,
    control::{self, Mode},
    daemon::{self, Caps, DraftWith, FirstModel, Serve, Setup},
    doors,
    header::Header,
    identity,
    inference::local,
    inference::swarm::Door,
    library::{self, Entry, Library},
    members, model,
    output::{self, human_bytes, say},
    private_folder,
    request::Recollections,
    state_store::Place,
    worker::{Manners, Room, Source, Spec},
};

/// Pieces of news on their way to the screen; the node drops what does not fit.
const NEWS: usize = 256;
/// The part of `--keep-state` that is for tokens and rows of ended prompts, the rest being for states: one in so many.
const LOG_PART: u64 = 16;

pub(in crate::commands) fn join(args: JoinArgs) -> Result<()> {
    let opened = args.agree.ask;
    if args.talk.quiet {
        output::silence();
    }
    let joined = stay(args);
    match joined {
        Err(why) if opened => Err(link::shown(why)),
        joined => joined,
    }
}

/// Joins, and leaves again when told to.
fn stay(mut args: JoinArgs) -> Result<()> {
    let invite = args.code.as_deref().map(str::parse::<Invite>).transpose();
    let invite =
        invite.map_err(|e| Error::usage(format!("the code cannot be read: {e}; ask for a new one")))?;
    if let Some(invite) = invite.as_ref().filter(|_| args.agree.ask) {
        link::ask(invite)?;
    }
    let home = args.home.path()?;
    if args.api.api.is_some() {
        super::super::serve::refuse_shown_token(&args.api.http, &home)?;
    }
    private_folder::prepare(&home)?;
    if control::is_running(&home) {
        return Err(control::runs_already(&home));
    }
    identity::refuse_retired(&home)?;
    let identity =
        Identity::load_or_create(&home.join(identity::KEY)).map_err(|e| Error::Failed(e.to_string()))?;
    // Until the node has stopped.
    let _held = identity::hold(&identity)?;
    if let Some(invite) = &invite {
        take_up(&mut args, invite);
    }
    if Reference::parse(args.engine.model()).is_some() {
        // What a registry names has no content id before it is here.
        let terms = obtain::Terms { sources: &args.sources, yes: args.agree.yes, json: args.talk.json };
        args.engine.model = Some(obtain::model(args.engine.model(), terms)?);
    }
    let terms = obtain::Terms { sources: &args.sources, yes: args.agree.yes, json: args.talk.json };
    if args.api.http.draft.model().is_some_and(|name| Reference::parse(name).is_some()) {
        obtain::drafter(&mut args.api.http.draft, terms)?;
    }
    let known = runtime()?.block_on(known(&library::home()?, &args.sources, args.talk.json))?;
    if args.engine.model.is_none() && !args.talk.json && !args.talk.quiet {
        mention_others(&home)?;
    }
    let which = which(&args, args.engine.model(), &home, &known)?;
    let num_layers = which.here.as_ref().map_or(0, |here| here.header.num_layers());
    let serve = what_to_serve(&args, which.here.is_some().then_some(num_layers))?;
    let beside = beside(&args, which.id, &home, &known)?;
    if !args.hold.no_share && !args.hold.ask_only {
        let served = which.id.into_iter().chain(beside.iter().filter_map(|beside| beside.place.id()));
        share(&home, &served.collect::<Vec<_>>())?;
    }
    agree(&args, which.here.as_ref().map(|here| &here.header), &serve, num_layers, &known)?;
    let agreed: Vec<Mode> = match () {
        () if args.agree.yes => MODES.into_iter().collect(),
        // It was said just now, and agreed to.
        () if asks(&args, &serve) => vec![Mode::Boomerang],
        () => Vec::new(),
    };
    let by_code = invite.as_ref().is_some_and(|invite| !invite.contacts.is_empty());
    let (network, template) = network(&args.reach, &home, identity.clone(), invite)?;
    let members = network.admission.members.clone();
    let context = match &which.here {
        Some(here) => here.header.context(args.engine.ctx)?,
        // The worker cuts it to what the model was made for.
        None => args.engine.ctx.unwrap_or(model::DEFAULT_CTX),
    };
    let source = match &which.here {
        Some(Here { path: Some(path), .. }) => Source::File(path.clone()),
        _ => Source::Embedded,
    };
    let name = name_of(args.engine.model(), which.id, &known, &home);
    let about = match &which.here {
        Some(Here { header, .. }) => header.info(context, name)?,
        None => local::unknown(context, name),
    };
    let drafter = args.api.http.draft.model().map(|name| drafter(&args, name, &home, &known)).transpose()?;
    let (door, opened) = watch::channel(None);
    let data = home.clone();
    let answers = args.api.api.map(|_| args.api.http.answers);
    let governor = Governor::new(doors::limits(answers, Some(args.hold.memory << 20)));
    let states = states(&home, which.id, args.state.keep.bytes()?)?;
    let memory = states.as_ref().map(|(_, log)| Recollections::on_disk(log)).transpose()?.unwrap_or_default();
    let memory = lent(memory.kept_by_stages(Some(args.state.let_keep)), &args.state);
    let room = match states.zip(which.id) {
        Some(((states, _), model)) => Room::default().with_states(model, states),
        None => Room::default(),
    };
    let room = room.with_panels(home.clone(), args.engine.panel_cache);
    let setup = Setup {
        worker: Spec {
            context,
            isa: args.engine.isa.clone(),
            device: args.engine.device()?,
            kv_bytes: args.hold.memory << 20,
            manners: Manners {
                threads: args.engine.threads.map(usize::from),
                pin: !args.engine.no_pin,
                nice: true,
            },
            draft_head: args.engine.draft_head.clone(),
            experts: experts(&args, which.here.is_some())?,
            room,
            ..Spec::new(source)
        },
        model: FirstModel {
            id: which.id.unwrap_or_default(),
            num_layers,
            file_bytes: which.here.as_ref().map_or(0, |here| here.header.file_len),
        },
        home,
        identity,
        network,
        governor: governor.clone(),
        serve,
        invite: template,
        absent: which.absent,
        beside,
        caps: caps(&args.caps),
        front: daemon::Front { about, swarm: args.reach.swarm.clone(), door: Some(door) },
        drafter,
        keeps: !args.api.http.no_journal,
        memory,
    };
    // Not before everything that was said is understood.
    agreed.into_iter().for_each(|mode| consent::remember(&data, mode));
    let (stop, stopped) = watch::channel(false);
    let (on_interrupt, at_the_end) = (stop.clone(), stop.clone());
    let handled = ctrlc::set_handler(move || {
        if on_interrupt.send_replace(true) {
            std::process::exit(130);
        }
    });
    match handled {
        // Inside a program that has one, or had a node before.
        Err(ctrlc::Error::MultipleHandlers) if args.talk.quiet => {}
        handled => handled.map_err(|e| Error::Io(io::Error::other(e)))?,
    }
    if args.talk.until_stdin_closes {
        thread::spawn(move || {
            let _ = io::stdin().read_to_end(&mut Vec::new());
            stop.send_replace(true);
        });
    }
    runtime()?.block_on(async {
        let (notices, news) = mpsc::channel(NEWS);
        let json = args.talk.json;
        let printer = tokio::spawn(news::tell(news, args.talk.clone(), by_code));
        let mut until = stopped.clone();
        let http = async move {
            match args.api.api {
                None => Ok(()),
                Some(address) => {
                    let stop = async move { drop(until.wait_for(|stop| *stop).await) };
                    let door = Door::Here(opened);
                    super::super::serve::beside((address, &args.api, json), &data, door, governor, stop).await
                }
            }
        };
        let listed = args.reach.members.clone().map(|list| tokio::spawn(members::follow(members, list)));
        let node = daemon::run(setup, notices, stopped);
        let mut http = std::pin::pin!(http.fuse());
        let ended = tokio::select! {
            ended = node => ended,
            // The API ends after the node, unless it cannot begin.
            Err(why) = &mut http => Err(why),
        };
        // What the last answers said is on its way to their readers.
        at_the_end.send_replace(true);
        if !http.is_terminated() {
            let _ = http.await;
        }
        listed.inspect(tokio::task::JoinHandle::abort);
        let _ = printer.await;
        ended
    })
}

/// The model that is to draft, which must be here.
fn drafter(args: &JoinArgs, name: &str, home: &Path, known: &[Signed]) -> Result<DraftWith> {
    let which = which(args, name, home, known)?;
    let here = which.here.ok_or_else(|| {
        Error::usage(format!(
            "the draft model {name} is not on this machine: `shoal model pull {name}` fetches it"
        ))
    })?;
    let source = here.path.map_or(Source::Embedded, Source::File);
    Ok(DraftWith { name: name.to_owned(), source, file_bytes: here.header.file_len })
}

/// Where states of ended prompts and what else they leave behind lie, in `bytes` together, if they are to be kept.
fn states(home: &Path, model: Option<ModelId>, bytes: Option<u64>) -> Result<Option<(Place, Place)>> {
    let Some(bytes) = bytes else { return Ok(None) };
    let Some(model) = model else {
        return Err(Error::usage(
            "--keep-state needs a model whose content is known: fetch it first with `shoal model pull`, or name it by its id",
        ));
    };
    let log = bytes / LOG_PART;
    let places = [(b"states".as_slice(), bytes - log), (b"prompts", log)]
        .map(|(what, bytes)| Place::open(home, &[what, model.as_bytes().as_slice()].concat(), bytes));
    let [states, log] = places;
    Ok(Some((states?, log?)))
}

fn caps(args: &CapsArgs) -> Caps {
    Caps {
        sessions: args.sessions,
        disk_bytes: args.disk,
        weights_bytes: args.weights.or_else(|| crate::memory::total_bytes().map(|all| all / 2)),
        upload_bytes_per_s: args.upload,
        download_bytes_per_s: args.download,
        unload_after: args.unload_after,
    }
}

/// Whether the user is asked before anything starts: not with `--ask-only`, since nothing happens before the first
/// prompt.
fn asks(args: &JoinArgs, serve: &Serve) -> bool {
    let serves = match serve {
        Serve::These(ranges) => !ranges.is_empty(),
        Serve::Scarcest(cap) => *cap > 0,
    };
    serves && !args.agree.yes && !args.talk.json && !args.talk.quiet && io::stdin().is_terminal()
}

/// Says what will happen before it does; a person at a terminal may still say no.
fn agree(
    args: &JoinArgs,
    header: Option<&Header>,
    serve: &Serve,
    num_layers: u32,
    known: &[Signed],
) -> Result<()> {
    if args.talk.json {
        return Ok(());
    }
    let Some(header) = header else {
        return agree_absent(args, serve, known);
    };
    let (layers, at_most, bytes) = match serve {
        Serve::These(ranges) => {
            (ranges.iter().map(|range| range.len()).sum::<u32>(), "", header.weight_bytes(ranges))
        }
        // Which ones is not known yet: at most the heaviest that stand side by side.
        Serve::Scarcest(cap) => {
            let windows =
                (0..num_layers).filter_map(|at| LayerRange::new(at, num_layers.min(at.saturating_add(*cap))));
            (*cap, "at most ", windows.map(|window| header.weight_bytes(&[window])).max().unwrap_or(0))
        }
    };
    match layers {
        0 => say!("Joining \"{}\" to ask only: this machine serves nothing.", args.reach.swarm),
        _ => say!(
            "Joining \"{}\": this machine serves {at_most}{layers} of {num_layers} layers of {} ({} in memory), and up to {} for \
             other people's sessions, at low priority.",
            args.reach.swarm,
            args.engine.model(),
            human_bytes(bytes),
            human_bytes(args.hold.memory << 20)
        ),
    }
    if let Some(experts) = args.hold.experts {
        say!("Of the experts of a layer it loads {experts}, which is less memory than all of them take.");
    }
    agree_beside(args, known)?;
    say!("{}", consent::joining(args.agree.yes, !args.hold.ask_only));
    confirm(args, serve)
}

/// Says what comes beside the first model.
fn agree_beside(args: &JoinArgs, known: &[Signed]) -> Result<()> {
    for also in &args.hold.also {
        let layers = match (&also.layers, args.hold.ask_only) {
            (_, true) => "to ask only: its first and last layer are loaded where its file is here".to_owned(),
            (Some(layers), false) => {
                let ranges: Vec<String> = layers.0.iter().map(ToString::to_string).collect();
                format!("layers {}", ranges.join(" and "))
            }
            (None, false) => "the layers the swarm lacks most".to_owned(),
        };
        let terms = terms(known, &also.model);
        say!("Beside it, in a process of its own: {}, {layers}.{terms}", also.model);
    }
    if let Some(bytes) =
        caps(&args.caps).weights_bytes.filter(|_| !args.hold.also.is_empty() && !args.hold.ask_only)
    {
        say!("The weights of all of them together take at most {}.", human_bytes(bytes));
    }
    Ok(())
}

/// A model by the name that a catalog has for its id.
fn called(known: &[Signed], model: &str) -> String {
    let short = content::parse_id(model).map(|_| &model[..12]);
    match (catalog::find(known, model), short) {
        (Some(listed), Some(short)) => format!("{} ({short})", listed.name),
        _ => model.to_owned(),
    }
}

/// What a catalog says of a model: how large its file is, and its license.
fn terms(known: &[Signed], model: &str) -> String {
    catalog::find(known, model).map_or_else(String::new, |listed| {
        format!(" Its whole file has {}, license: {}.", human_bytes(listed.bytes), listed.license)
    })
}

/// As [`agree`], for a model that is not here: its size is known where a catalog lists it, else once a peer that has it was
/// found.
fn agree_absent(args: &JoinArgs, serve: &Serve, known: &[Signed]) -> Result<()> {
    let caps = caps(&args.caps);
    let most = match serve {
        Serve::These(layers) => {
            let ranges: Vec<String> = layers.iter().map(|range| format!("layers {range}")).collect();
            ranges.join(" and ")
        }
        Serve::Scarcest(u32::MAX) => "the layers the swarm lacks most".to_owned(),
        Serve::Scarcest(cap) => format!("at most {cap} layers, those the swarm lacks most"),
    };
    let bound =
        |bytes: Option<u64>, what: &str| bytes.map(|bytes| format!("{} of {what}", human_bytes(bytes)));
    let bounds = [bound(caps.disk_bytes, "disk"), bound(caps.weights_bytes, "memory")];
    let bounds: Vec<String> = bounds.into_iter().flatten().collect();
    if most.is_empty() {
        say!(
            "Joining \"{}\" to ask only: {}",
            args.reach.swarm,
            match args.ends {
                true => format!(
                    "of {} only the first and the last layer are fetched.",
                    called(known, args.engine.model())
                ),
                false => format!(
                    "nothing is fetched. Peers that hold {} read your prompts and answer them (--mode open); with --ends only \
                     what lies between the first and the last layer leaves this machine.",
                    called(known, args.engine.model())
                ),
            }
        );
    } else {
        say!(
            "Joining \"{}\": {} is not on this machine. It fetches {most} of it from peers and serves them, within {}, and \
             up to {} for other people's sessions, at low priority. Until then peers that have it read and answer your \
             prompts (--mode open).{}",
            args.reach.swarm,
            called(known, args.engine.model()),
            if bounds.is_empty() { "what is free".to_owned() } else { bounds.join(" and ") },
            human_bytes(args.hold.memory << 20),
            terms(known, args.engine.model())
        );
    }
    agree_beside(args, known)?;
    say!("{}", consent::joining(args.agree.yes, !args.hold.ask_only));
    confirm(args, serve)
}

/// Asks a person at a terminal, unless told not to.
fn confirm(args: &JoinArgs, serve: &Serve) -> Result<()> {
    if !asks(args, serve) {
        return Ok(());
    }
    match consent::agreed()? {
        true => Ok(()),
        false => {
            Err(Error::usage("nothing was started; `shoal join --ask-only` only asks, --layers serves less"))
        }
    }
}

pub(super) fn source(model: &str) -> Result<Source> {
    Ok(match library::path(model)? {
        Some(path) => Source::File(path),
        None => Source::Embedded,
    })
}

/// Shares the models of this node's list that it serves, so that a friend with a code needs no other source; not those that the
/// owner took back. Those whose hash tree is not kept have to be shared by hand, which hashes the file.
fn share(home: &Path, served: &[ModelId]) -> Result<()> {
    let library = Library::load(home)?;
    let unshared = library.entries().iter().filter(|entry| {
        let tree = |id| sparse::outboard_path(&content::folder(home, id)).is_file();
        !entry.shared && !entry.withheld && entry.model().is_some_and(|id| served.contains(&id) && tree(id))
    });
    for entry in unshared {
        let shared = Entry { shared: true, ..entry.clone() };
        Library::change(home, |library| library.add(shared))?;
    }
    Ok(())
}

/// Tells whom no model was named to what else is here: after a code the next start is often a plain one.
fn mention_others(home: &Path) -> Result<()> {
    let library = Library::load(home)?;
    let names: Vec<&str> = library.entries().iter().map(|entry| entry.name.as_str()).collect();
    if let [first, ..] = names[..] {
        say!("Here are also {}: `shoal join --model {first}` joins with it.", names.join(", "));
    }
    Ok(())
}

/// What a code says of the swarm and its model, where the user says nothing else.
fn take_up(args: &mut JoinArgs, invite: &Invite) {
    if let Some(name) = &invite.name {
        args.reach.swarm.clone_from(name);
    }
    if args.engine.model.is_none() {
        args.engine.model = invite.model.map(content::hex);
    }
}

/// The same memory, where stages may get what they lack of others as these say.
fn lent(memory: Recollections, state: &StateArgs) -> Recollections {
    if state.fetch_state == FetchState::Off {
        return memory;
    }
    let rates = Rates::measured();
    tracing::info!(?rates, "packing a state");
    let packing = Packing {
        pack_ms_per_mib: rates.pack_ms_per_mib,
        unpack_ms_per_mib: rates.unpack_ms_per_mib,
        checked: state.check_fetched,
    };
    #[cfg(debug_assertions)]
    let packing = if crate::cheat::is_eager() { Packing::default() } else { packing };
    memory.lent_by(state.fetch_state.into(), packing)
}
