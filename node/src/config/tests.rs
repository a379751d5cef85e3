use std::ffi::OsString;

use clap::{CommandFactory, FromArgMatches};
use scheduler::SessionKind;

use super::*;
use crate::cli::{Cli, Command as Typed};

fn read(text: &str) -> std::result::Result<Values, String> {
    let command = Cli::command();
    parse(text, &settings(&command), &command)
}

fn cli(file: &str, line: &str) -> Cli {
    let argv: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
    let matches = matches(&argv, &read(file).unwrap()).unwrap();
    Cli::from_arg_matches(&matches).unwrap()
}

fn join(file: &str, line: &str) -> crate::cli::swarm::JoinArgs {
    match cli(file, line).command {
        Typed::Join(args) => *args,
        _ => panic!("{line} is another command"),
    }
}

#[test]
fn the_file_is_the_default_and_a_flag_wins() {
    let file =
        "[join]\nmemory = 777\npeer = [\"/ip4/192.0.2.1/tcp/1\", \"/ip4/192.0.2.2/tcp/1\"]\nloopback = true";
    let said = join(file, "shoal join");
    assert_eq!((said.hold.memory, said.reach.peer.len(), said.reach.loopback), (777, 2, true));
    let said = join(file, "shoal join --memory 5 --peer /ip4/192.0.2.3/tcp/1");
    assert_eq!((said.hold.memory, said.reach.peer.len()), (5, 1));
    assert_eq!(join("", "shoal join").hold.memory, 512);
    assert_eq!(join("[serve]\nanswers = 3", "shoal join").hold.memory, 512);
}

#[test]
fn a_key_outside_of_tables_holds_wherever_the_flag_is() {
    let file = "threads = 3\nmodel = \"other\"";
    assert_eq!(join(file, "shoal join").engine.threads, Some(3));
    let Typed::Serve(serve) = cli(file, "shoal serve").command else { panic!() };
    assert_eq!((serve.engine.threads, serve.engine.model()), (Some(3), "other"));
    let Typed::Tokenize(args) = cli(file, "shoal tokenize x").command else { panic!() };
    assert_eq!(args.model, "other");
}

#[test]
fn what_a_session_keeps_may_stand_in_the_file() {
    let file = "[run]\nattention = \"window:64\"\nkv_cache_type = \"q8\"\ncontext_shift = true\n[chat]\nkv_cache_type = \"q4\"";
    let Typed::Run(run) = cli(file, "shoal run x").command else { panic!() };
    let said = (run.answer.attention.session(), run.answer.sampling.context_shift);
    let wanted = SessionKind { attention: "window:64".parse().unwrap(), cache: "q8".parse().unwrap() };
    assert_eq!(said, (wanted, true));
    let Typed::Run(run) = cli(file, "shoal run --attention dense x").command else { panic!() };
    assert_eq!(run.answer.attention.session().attention, SessionKind::DEFAULT.attention);
    let Typed::Chat(chat) = cli(file, "shoal chat").command else { panic!() };
    assert_eq!(chat.answer.attention.session().cache, "q4".parse().unwrap());
}

#[test]
fn a_flag_that_excludes_a_setting_overrides_it() {
    let said = join("[join]\nask_only = true", "shoal join --layers 2..4");
    assert!(!said.hold.ask_only && said.hold.layers.is_some());
    let said = join("[join]\nmax_layers = 2", "shoal join --ask-only");
    assert!(said.hold.ask_only && said.hold.max_layers.is_none());
    let said = join("[join]\nmax_layers = 2\nask_only = false", "shoal join");
    assert!(!said.hold.ask_only && said.hold.max_layers == Some(2));
    // A link that is opened asks, whatever stands here.
    let said = join("[join]\nyes = true", "shoal join --ask shoal:shoal1code");
    assert!(said.agree.ask && !said.agree.yes);
    assert!(read("[join]\nask = true").is_err(), "that is of one call");
}

#[test]
fn what_is_wrong_is_refused_with_what_was_meant() {
    for (file, part) in [
        ("modle = \"x\"", "did you mean \"model\"?"),
        ("[join]\nmemroy = 5", "did you mean \"join.memory\"?"),
        ("memory = 5", "did you mean \"join.memory\"?"),
        ("[join]\nzzzz = 5", "`shoal config show` lists them all"),
        ("[jion]\nmemory = 5", "[join], [serve]"),
        ("[join]\nmemory = \"much\"", "join.memory = \"much\": invalid digit"),
        ("[join]\nmemory = -1", "join.memory"),
        ("[join]\nloopback = \"yes\"", "join.loopback must be true or false"),
        ("[join]\nmemory = true", "join.memory cannot be boolean"),
        ("[join]\nlayers = \"5..2\"", "is not like 2..6"),
        ("[run]\nmode = \"secret\"", "one of local, trusted, boomerang, open"),
        ("[join]\nask_only = true\nlayers = \"1..2\"", "exclude each other"),
        ("[join]\njson = true", "join.json"),
        ("x = ", "line 1"),
        ("model = \"a\"\n\n[join\n", "line 3"),
    ] {
        let why = read(file).unwrap_err();
        assert!(why.contains(part), "{file:?} gave {why:?}");
    }
}

#[test]
fn every_setting_says_where_it_came_from() {
    let values = read("threads = 3\n[join]\nmemory = 777").unwrap();
    let line: Vec<OsString> = ["join", "--max-layers", "2", "--loopback"].map(OsString::from).to_vec();
    let rows = resolve(&values, &line).unwrap();
    let row = |key: &str| rows.iter().find(|row| row.key == key).unwrap_or_else(|| panic!("no {key}"));
    assert_eq!((row("join.memory").values[0].as_str(), row("join.memory").source), ("777", Source::File));
    assert_eq!(
        (row("join.max_layers").values[0].as_str(), row("join.max_layers").source),
        ("2", Source::Flag)
    );
    assert_eq!(
        (row("join.loopback").values[0].as_str(), row("join.loopback").source),
        ("true", Source::Flag)
    );
    assert_eq!(
        (row("join.ask_only").values[0].as_str(), row("join.ask_only").source),
        ("false", Source::Default)
    );
    assert_eq!(
        (row("serve.listen").values[0].as_str(), row("serve.answers").values[0].as_str()),
        ("127.0.0.1:7435", "256")
    );
    assert_eq!(row("threads").env.as_deref(), Some("SHOAL_THREADS"));
    assert!(rows.iter().all(|row| !row.about.is_empty()), "a setting without a word about it");
    assert!(resolve(&values, &["join".into(), "--memroy".into()]).is_err());
}

#[test]
fn the_file_is_looked_for_where_the_docs_say() {
    let usual = |path: &str| Place::Usual(path.into());
    let folder = || Some(PathBuf::from("/c"));
    assert_eq!(place(Some("f".into()), Some("/h".into()), folder()), Place::Named("f".into()));
    assert_eq!(place(Some("none".into()), Some("/h".into()), folder()), Place::Nowhere);
    assert_eq!(place(None, Some("/h".into()), folder()), usual("/h/config.toml"));
    assert_eq!(place(None, None, folder()), usual("/c/config.toml"));
    assert_eq!(place(None, None, None), Place::Nowhere);
    let argv = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
    assert_eq!(named(&argv("shoal join --config a.toml")), Some("a.toml".into()));
    assert_eq!(named(&argv("shoal --config=b.toml join")), Some("b.toml".into()));
    assert_eq!(named(&argv("shoal run -- --config=b.toml")), None);
}

/// The template with every setting uncommented still reads, apart from those that have no default to show.
#[test]
fn the_template_is_a_config_file() {
    let text = template();
    assert!(read(&text).unwrap().is_empty());
    let mut live = 0;
    for line in text.lines().filter_map(|line| line.strip_prefix("# ")) {
        let Some((name, value)) =
            line.split_once(" = ").filter(|(name, value)| !name.contains(' ') && *value != "\"\"")
        else {
            continue;
        };
        let table = text
            .lines()
            .take_while(|other| !other.ends_with(line))
            .filter(|other| other.starts_with('['))
            .last();
        let file = format!("{}\n{name} = {value}", table.unwrap_or_default());
        read(&file).unwrap_or_else(|why| panic!("{file:?}: {why}"));
        live += 1;
    }
    assert!(live > 15, "only {live} settings have a default");
}
