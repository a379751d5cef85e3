//! `shoal model pull`: says what comes, asks, fetches, shows how it goes. With a node running, the node fetches, from its
//! peers as well as from mirrors.

use std::{
    io::{self, BufRead, IsTerminal, Write},
    sync::Arc,
    time::{Duration, Instant},
};

use indicatif::ProgressBar;
use p2p::blob::{Event, Pace, Report, Source};
use scheduler::LayerRange;
use serde::Serialize;
use serde_json::json;

use crate::{
    Error, Result,
    catalog::{
        self,
        local::{self, Stored},
        reference::Reference,
        registry,
    },
    cli::PullArgs,
    content::{
        hex, parse_id,
        pull::{Ask, Found, Prepared, Step, fetch_plain, prepare},
    },
    control::{self, Caller, PullAsk, Question},
    library::{self, Entry, Library},
    output::{self, human_bytes},
    reports::{PullLine, PullPlan, Transfer},
};

/// Time between two lines of progress in JSON.
const REPORT_EVERY: Duration = Duration::from_millis(500);

pub(super) fn run(args: PullArgs) -> Result<()> {
    output::catch_interrupt()?;
    bring(&args, false).map(drop)
}

/// What is known of a model before it is here, beyond where it is.
#[derive(Clone, Debug, Default)]
struct Terms {
    /// Its license, where that is known.
    license: Option<String>,
    /// What a running node's swarm is asked for when nothing else is known: what it is called.
    called: Option<String>,
    /// What another registry calls it. No peer is asked for such a file: its content id is not known before it is here.
    reference: Option<String>,
}

/// What is to be done for a model.
enum Wanted {
    /// It is on the list already, by this name.
    Here(Box<Entry>),
    /// It is a file that another program stored.
    Linked { stored: Stored, name: String, reference: String },
    /// It is to be fetched.
    Ask(Box<Ask>, Terms),
}

/// Fetches what `args` say, `aside` of the answer of another command, and returns its name on the list.
///
/// # Errors
/// Those of [`prepare`] and of registries; [`Error::Usage`] when the user does not agree, or cannot be asked.
pub(super) fn bring(args: &PullArgs, aside: bool) -> Result<String> {
    let view = View::new(args.json && !aside, aside);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (ask, terms) = match wanted(args).await? {
            Wanted::Here(entry) => return done(*entry, None, &view, "is here already"),
            Wanted::Linked { stored, name, reference } => {
                let entry = super::catalog::link(&stored, name, Some(reference))?;
                view.say(&format!("{} stored it here: {}", stored.program, stored.path.display()))?;
                return done(entry, None, &view, "is linked");
            }
            Wanted::Ask(ask, terms) => (*ask, terms),
        };
        let sources = ask.mirrors()?;
        if terms.reference.is_some() {
            return plain(ask, &terms, Vec::new(), args, view).await;
        }
        if control::is_running(&ask.home) {
            return through_the_node(ask, terms, args, view).await;
        }
        match terms.called {
            Some(called) => Err(Error::usage(format!(
                "\"{called}\" is no name from `shoal model list` or `shoal model search`, no id of 64 hex digits and no \
                 address; a running node (`shoal join`) would ask the swarm for it"
            ))),
            None => pull(ask, terms, sources, args, view).await,
        }
    })
}

/// What the command line asks for, with what the library, the catalogs and other registries know of it.
async fn wanted(args: &PullArgs) -> Result<Wanted> {
    let home = library::home()?;
    let library = Library::load(&home)?;
    let mut ask = Ask::new(home.clone(), parse_id(&args.model));
    let mut terms = Terms::default();
    ask.disk_bytes = args.disk;
    ask.pace = Arc::new(Pace::new(args.rate));
    ask.layers = args.layers.iter().map(|text| layers(text)).collect::<Result<_>>()?;
    let of_id = |id: Option<scheduler::ModelId>| {
        library.entries().iter().find(|entry| id.is_some() && entry.model() == id)
    };
    if args.model == library::DEFAULT_MODEL {
        return Ok(Wanted::Here(Box::new(Entry::embedded())));
    }
    if let Some(reference) = Reference::parse(&args.model) {
        let reference = reference.map_err(Error::usage)?;
        let name = args.name.clone().unwrap_or_else(|| reference.local_name());
        let asked = |entry: &&Entry| args.name.as_ref().is_none_or(|name| *name == entry.name);
        if let Some(entry) = library.entries().iter().filter(asked).find(|entry| reference.is(entry)) {
            return Ok(Wanted::Here(Box::new(entry.clone())));
        }
        let stored = super::catalog::stored();
        if let Some(found) = local::of_reference(&stored, &reference).filter(|_| args.layers.is_empty()) {
            if library.get(&name).is_some_and(|taken| taken.path != found.path) {
                return Err(taken(&name, &args.model));
            }
            return Ok(Wanted::Linked { stored: found.clone(), name, reference: reference.to_string() });
        }
        let registries = super::catalog::registries(&args.sources);
        let remote = registry::resolve(&reference, &registries).await?;
        if let Some(most) = args.disk.filter(|most| args.layers.is_empty() && *most < remote.bytes) {
            return Err(Error::usage(format!(
                "{reference} has {} and --disk allows {}: raise it, choose a smaller file, or fetch some --layers",
                human_bytes(remote.bytes),
                human_bytes(most)
            )));
        }
        (ask.from, ask.name, ask.sha256) = (vec![remote.url], Some(name), remote.sha256.map(|hash| hash.0));
        terms = Terms { license: remote.license, called: None, reference: Some(reference.to_string()) };
        terms.license.get_or_insert_with(|| "not stated by its registry".to_owned());
    } else if args.model.contains("://") {
        ask.from.push(args.model.clone());
    } else if let Ok(entry) = library.find(&args.model) {
        ask.id = entry.model();
        ask.from = entry.from.clone();
        ask.name = Some(entry.name.clone());
    } else {
        let known = super::catalog::known(&home, &args.sources, args.json).await?;
        match catalog::find(&known, &args.model) {
            Some(model) => {
                ask.id = model.model();
                ask.from = model.mirrors.clone();
                ask.name = Some(of_id(ask.id).map_or_else(|| model.name.clone(), |entry| entry.name.clone()));
                terms.license = Some(model.license.clone());
            }
            None if ask.id.is_none() => terms.called = Some(args.model.clone()),
            None => {}
        }
    }
    for url in args.from.iter().rev() {
        ask.from.retain(|known| known != url);
        ask.from.insert(0, url.clone());
    }
    if let Some(name) = args.name.as_ref().or(ask.name.as_ref()) {
        library::check_name(name)?;
        if library.get(name).is_some_and(|taken| ask.id.is_none() || taken.model() != ask.id) {
            return Err(taken(name, &args.model));
        }
        ask.name = Some(name.clone());
    }
    Ok(Wanted::Ask(Box::new(ask), terms))
}

/// The refusal of a name that another model has.
fn taken(name: &str, model: &str) -> Error {
    Error::usage(format!(
        "\"{name}\" names another model here: `shoal model pull {model} --name NAME` fetches this one under another name, \
         `shoal model rm {name}` frees the name"
    ))
}

fn layers(text: &str) -> Result<LayerRange> {
    let parsed = text.split_once("..").and_then(|(a, b)| LayerRange::new(a.parse().ok()?, b.parse().ok()?));
    parsed.ok_or_else(|| Error::usage(format!("--layers wants A..B with A below B, got \"{text}\"")))
}

/// Has the running node fetch it, which knows peers: first only to hear how much it is, then for good.
async fn through_the_node(ask: Ask, terms: Terms, args: &PullArgs, mut view: View) -> Result<String> {
    let mut asked = PullAsk {
        id: ask.id.map(hex),
        called: terms.called.clone(),
        name: ask.name.clone(),
        from: ask.from.clone(),
        layers: ask.layers.iter().map(|range| (range.start(), range.end())).collect(),
        disk_bytes: ask.disk_bytes,
        bytes_per_s: args.rate,
        plan_only: true,
    };
    let (plan, peers) = match told(&ask.home, &asked, &mut view).await? {
        PullLine::Plan { plan, peers, .. } => (plan, peers),
        PullLine::NoTree { why, .. } => {
            if ask.from.is_empty() {
                return Err(Error::Failed(format!(
                    "no peer that has this model is reachable: {}",
                    why.join("; ")
                )));
            }
            return plain(ask, &terms, why, args, view).await;
        }
        done => return finished(done, &view, "is here already"),
    };
    announce(&plan, peers, &terms, args, &view)?;
    // From here on it is that model, whatever is announced meanwhile.
    (asked.id, asked.called, asked.plan_only) = (Some(plan.id), None, false);
    asked.name = asked.name.or(Some(plan.name));
    view.start(plan.total_bytes);
    let ended = told(&ask.home, &asked, &mut view).await;
    view.finish();
    match ended {
        Ok(line) => finished(line, &view, "is here"),
        Err(error) => {
            if matches!(error, Error::Interrupted) {
                let name = asked.name.unwrap_or_default();
                eprintln!("stopped; the rest is kept: `shoal model pull {name}` goes on");
            }
            Err(error)
        }
    }
}

/// Asks the node and shows what happens; the last line.
async fn told(home: &std::path::Path, asked: &PullAsk, view: &mut View) -> Result<PullLine> {
    let mut caller = Caller::ask(home, &Question::Pull(Box::new(asked.clone()))).await?;
    loop {
        let line = tokio::select! {
            line = caller.next::<PullLine>() => line?,
            () = interruption() => return Err(Error::Interrupted),
        };
        let Some(line) = line else {
            return Err(Error::Failed(
                "the node stopped in the middle of the pull; what came is kept".into(),
            ));
        };
        if line.is_last() {
            return Ok(line);
        }
        if let Some(event) = line.event() {
            view.hear(event);
        }
    }
}

/// Shows the last line of a pull; the name of what came.
fn finished(line: PullLine, view: &View, what: &str) -> Result<String> {
    let line = line.without_end();
    if view.json {
        output::json_line(&line)?;
    }
    match line {
        PullLine::Done { entry, .. } => {
            if !view.json {
                view.say(&format!("{} {what} (id {})", entry.name, entry.id))?;
            }
            Ok(entry.name)
        }
        _ => Err(Error::Failed("the node did not say what came".into())),
    }
}

async fn pull(
    ask: Ask,
    terms: Terms,
    mut sources: Vec<Box<dyn Source>>,
    args: &PullArgs,
    mut view: View,
) -> Result<String> {
    if sources.is_empty() && !ask.is_kept() {
        return Err(Error::usage(
            "no source to fetch it from: name a mirror with --from URL, or run `shoal join` to ask peers",
        ));
    }
    let mut hear = |event| view.hear(event);
    let found = tokio::select! {
        found = prepare(ask.clone(), &mut sources, &mut hear) => found?,
        () = interruption() => return Err(Error::Interrupted),
    };
    match found {
        Found::Here(entry) => done(entry, None, &view, "is here already"),
        Found::NoTree(why) if sources.is_empty() => {
            Err(Error::Failed(format!("no source has this model: {}", why.join("; "))))
        }
        Found::NoTree(why) => {
            // Those that have another model's tree are out.
            let from = sources.iter().map(|source| source.name().to_owned()).collect();
            plain(Ask { from, ..ask }, &terms, why, args, view).await
        }
        Found::Pull(mut prepared) => {
            announce(&prepared.plan(&ask.layers), None, &terms, args, &view)?;
            view.start(prepared.total_bytes());
            let mut hear = |event| view.hear(event);
            let fetched = tokio::select! {
                fetched = prepared.fetch(&mut sources, None, &mut hear) => fetched,
                () = interruption() => Err(Error::Interrupted),
            };
            view.finish();
            match fetched {
                Ok(report) => done(prepared.entry().clone(), Some(&report), &view, "is here"),
                Err(error) => {
                    prepared.save()?;
                    if matches!(error, Error::Interrupted) {
                        note(&prepared);
                    }
                    Err(error)
                }
            }
        }
    }
}

fn note(prepared: &Prepared) {
    let (name, left) = (&prepared.entry().name, human_bytes(prepared.missing_bytes()));
    eprintln!("stopped; {left} are left and the rest is kept: `shoal model pull {name}` goes on");
}

/// Says what is about to be fetched, and asks where a person can answer.
fn announce(
    plan: &PullPlan,
    peers: Option<usize>,
    terms: &Terms,
    args: &PullArgs,
    view: &View,
) -> Result<()> {
    if view.json {
        let license = terms.license.clone();
        output::json_line(&PullLine::Plan { plan: plan.clone(), peers, license, end: false })?;
    } else {
        let (total, missing) = (human_bytes(plan.total_bytes), human_bytes(plan.missing_bytes));
        view.say(&format!("{} (id {})", plan.name, plan.id.get(..12).unwrap_or_default()))?;
        match plan.num_layers {
            Some(count) => {
                let (parts, all) = (plan.layers().join(" and "), human_bytes(plan.file_bytes));
                view.say(&format!("layers {parts} of 0..{count}: {total} of {all}"))?;
            }
            None => view.say(&format!("the whole file: {total}"))?,
        }
        view.say(&format!("to fetch: {missing}, {} are here", human_bytes(plan.here_bytes())))?;
    }
    if plan.missing_bytes == 0 { Ok(()) } else { confirm(plan.missing_bytes, terms, args) }
}

/// Asks unless told not to. Without a person there it must have been told.
fn confirm(bytes: u64, terms: &Terms, args: &PullArgs) -> Result<()> {
    let size = human_bytes(bytes);
    let what = terms.license.as_ref().map_or(size.clone(), |license| format!("{size}, license: {license}"));
    if args.yes {
        if !args.json && terms.license.is_some() {
            eprintln!("fetching {what}");
        }
        return Ok(());
    }
    if !io::stdin().is_terminal() || args.json {
        return Err(Error::usage(format!("this would be fetched: {what}; add --yes to agree")));
    }
    eprint!("fetch {what}? [Y/n] ");
    io::stderr().flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    match answer.trim().to_lowercase().as_str() {
        "" | "y" | "yes" => Ok(()),
        _ => Err(Error::Interrupted),
    }
}

/// The length of the file at the first of `mirrors` that answers, which becomes the first of them.
///
/// # Errors
/// [`Error::Failed`] with what each of them said of `model`.
async fn reachable(mirrors: &mut [String], model: &str) -> Result<u64> {
    let mut failures = Vec::new();
    for at in 0..mirrors.len() {
        let probed = match p2p::blob::HttpSource::new(&mirrors[at]) {
            Ok(source) => source.probe().await,
            Err(error) => Err(error),
        };
        match probed {
            Ok((bytes, _)) => {
                mirrors.swap(0, at);
                return Ok(bytes);
            }
            Err(error) => failures.push(format!("{}: {error}", mirrors[at])),
        }
    }
    Err(Error::Failed(format!(
        "{model} cannot be fetched: {}; name another mirror with --from URL, or join a swarm that has it (`shoal join CODE`)",
        failures.join("; ")
    )))
}

/// A whole file whose tree no source has: it cannot be checked in parts.
async fn plain(
    mut ask: Ask,
    terms: &Terms,
    why: Vec<String>,
    args: &PullArgs,
    mut view: View,
) -> Result<String> {
    if !ask.layers.is_empty() || ask.from.is_empty() {
        let why = why.join("; ");
        return Err(Error::usage(format!(
            "no source has this model's hash tree, without which layers cannot be checked ({why}); \
             pull the whole file, or put FILE.gguf.obao from `shoal model export` beside the file"
        )));
    }
    let bytes = reachable(&mut ask.from, &args.model).await?;
    let url = &ask.from[0];
    if view.json {
        output::json_line(&json!({
            "event": "plan", "id": ask.id.map(hex), "file_bytes": bytes, "total_bytes": bytes,
            "missing_bytes": bytes, "from": ask.from, "license": terms.license, "checked": "at the end",
        }))?;
    } else {
        view.say(&format!("{url}: {}", human_bytes(bytes)))?;
        view.say(match (ask.id, ask.sha256) {
            (Some(_), _) => "there is no .obao beside it: it is checked when it is complete",
            (None, Some(_)) => "it is checked against the SHA-256 of its registry when it is complete",
            (None, None) => {
                "there is no .obao beside it and no id was given: its id will be what this mirror sends"
            }
        })?;
    }
    confirm(bytes, terms, args)?;
    view.start(bytes);
    let mut hear = |step, done, all| {
        view.step(step, done, all);
        !output::interrupted()
    };
    let fetched = tokio::select! {
        fetched = fetch_plain(&ask, &mut hear) => fetched,
        () = interruption() => Err(Error::Interrupted),
    };
    view.finish();
    if matches!(fetched, Err(Error::Interrupted)) {
        eprintln!("stopped; what came is kept: the same command goes on from there");
    }
    let entry = match &terms.reference {
        Some(reference) => super::catalog::refer(fetched?, Some(reference.clone()))?,
        None => fetched?,
    };
    done(entry, None, &view, "is here")
}

fn done(entry: Entry, report: Option<&Report>, view: &View, what: &str) -> Result<String> {
    let transfer = report.map(Transfer::from);
    finished(PullLine::Done { entry, transfer, here: false, end: false }, view, what)
}

/// A source as a person reads it: peers have names of 64 hex digits.
fn short(source: &str) -> &str {
    match parse_id(source) {
        Some(_) => &source[..8],
        None => source,
    }
}

/// Returns a moment after Ctrl-C: what can end cleanly by itself has ended by then.
async fn interruption() {
    while !output::interrupted() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
}

/// A bar for a person, lines for a program.
struct View {
    json: bool,
    /// Whether standard output belongs to another command's answer.
    aside: bool,
    bar: Option<ProgressBar>,
    total_bytes: u64,
    /// Bytes that were there at the start, for the speed.
    first_bytes: Option<u64>,
    started: Instant,
    told: Option<Instant>,
    step: Option<Step>,
}

impl View {
    fn new(json: bool, aside: bool) -> Self {
        let (bar, first_bytes, told, step) = (None, None, None, None);
        Self { json, aside, bar, total_bytes: 0, first_bytes, started: Instant::now(), told, step }
    }

    /// A line for a person.
    fn say(&self, line: &str) -> Result<()> {
        if self.aside {
            eprintln!("{line}");
            return Ok(());
        }
        output::text(&format!("{line}\n"))
    }

    fn start(&mut self, total_bytes: u64) {
        (self.total_bytes, self.first_bytes, self.started) = (total_bytes, None, Instant::now());
        if !self.json {
            self.bar = Some(output::progress(total_bytes, "fetching", true));
        }
    }

    fn hear(&mut self, event: Event) {
        match event {
            Event::Started { have_bytes, .. } => {
                if let Some(bar) = &self.bar {
                    // What is here must not count as speed.
                    bar.set_position(have_bytes);
                    bar.reset_eta();
                }
                self.first_bytes = Some(have_bytes);
            }
            Event::Joined { .. } => self.tell(&PullLine::from(event), None),
            Event::Progress { done_bytes, .. } => self.progress(done_bytes),
            Event::Retrying { ref source, ref why } => {
                let text = format!("{}: {why}; asking again", short(source));
                self.tell(&PullLine::from(event), Some(text));
            }
            Event::Dropped { ref source, ref why, .. } => {
                let text = format!("{} is left: {why}", short(source));
                self.tell(&PullLine::from(event), Some(text));
            }
        }
    }

    fn step(&mut self, step: Step, done: u64, all: u64) {
        if self.step != Some(step) {
            self.step = Some(step);
            self.start(all);
            if let (Some(bar), Step::Hashing) = (&self.bar, step) {
                bar.set_message("hashing");
            }
        }
        self.first_bytes.get_or_insert(done);
        self.progress(done);
    }

    fn progress(&mut self, done_bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(done_bytes);
        }
        // Before the plan is told only a header comes.
        if !self.json || self.total_bytes == 0 || self.told.is_some_and(|told| told.elapsed() < REPORT_EVERY)
        {
            return;
        }
        self.told = Some(Instant::now());
        let new = done_bytes.saturating_sub(self.first_bytes.unwrap_or(0));
        let speed = new as f64 / self.started.elapsed().as_secs_f64().max(1e-3);
        let left = self.total_bytes.saturating_sub(done_bytes);
        let line = json!({
            "event": "progress", "done_bytes": done_bytes, "total_bytes": self.total_bytes,
            "bytes_per_s": speed as u64, "eta_s": (speed > 0.0).then(|| (left as f64 / speed).ceil() as u64),
            "hashing": self.step == Some(Step::Hashing),
        });
        self.tell(&line, None);
    }

    /// A line of JSON for a program, `text` for a person. What cannot be shown stops nothing: the result will say so.
    fn tell(&self, line: &impl Serialize, text: Option<String>) {
        if self.json {
            let _ = output::json_line(line);
        } else if let Some(text) = text {
            match &self.bar {
                Some(bar) if !bar.is_hidden() => bar.println(text),
                _ => eprintln!("{text}"),
            }
        }
    }

    fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
