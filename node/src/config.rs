//! One file, the environment and the flags, resolved once: a command gets its complete arguments.
//!
//! A flag wins over its environment variable, that over the file, the file over what is built in. The file is TOML:
//! a key is a flag's name with underscores, a table is a command; keys outside of tables hold for every command that
//! has such a flag.
//!
//! ```toml
//! model = "llama"        # --model, for run, chat, serve, join, ...
//!
//! [join]
//! memory = 1024          # shoal join --memory 1024
//! peer = ["/ip4/192.0.2.1/tcp/4001/p2p/12D3..."]
//! ```
//!
//! Why it is built on the command line's own description: what may be set, its type and its default are said once,
//! in `cli.rs`. A value of the file becomes the default of its flag, so that the command sees one set of arguments
//! and `--help` shows what will be used. A flag that excludes a setting overrides it (`--layers` beats `ask_only = true`).
//!
//! Limits: a file has at most [`MAX_BYTES`]; an unknown key, a wrong type and two settings that exclude each other
//! are refused, never ignored.

mod words;

use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
};

use clap::{
    Arg, ArgAction, ArgMatches, Command, CommandFactory, FromArgMatches, builder::Resettable,
    parser::ValueSource,
};
use serde_json::{Value, json};
use toml::Table;

use crate::{
    Error, Result,
    cli::{Cli, nearest},
};
use words::{NEVER, SHARED, TABLES};

/// A file that is larger is something else.
const MAX_BYTES: u64 = 1 << 20;
/// Words as alike as this are offered for a mistyped key.
const ALIKE: f64 = 0.7;
/// What names no file at all.
const NO_FILE: &str = "none";

/// Something the file may set.
#[derive(Clone, Debug)]
pub struct Setting {
    /// As the file calls it: `model`, `join.memory`.
    pub key: String,
    /// The commands whose flag it is; the empty path is the program itself.
    paths: Vec<Vec<String>>,
    arg: Arg,
}

/// Where a value comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// Built in: no other source sets it.
    Default,
    /// The config file.
    File,
    /// An environment variable.
    Env,
    /// The command line.
    Flag,
}

impl Source {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::File => "file",
            Self::Env => "env",
            Self::Flag => "flag",
        }
    }
}

/// What the file says: values by key, as the command line would write them.
pub type Values = BTreeMap<String, Vec<String>>;

/// A setting with its value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resolved {
    /// As the file calls it.
    pub key: String,
    /// As the command line writes it; empty when it is not set.
    pub values: Vec<String>,
    /// Who said so.
    pub source: Source,
    /// The environment variable that would set it.
    pub env: Option<String>,
    /// What it is.
    pub about: String,
}

impl Resolved {
    /// `{key, value, source, env, about}`; `value` is a list when there are several, null when there is none.
    pub fn to_json(&self) -> Value {
        let value = match self.values.as_slice() {
            [] => Value::Null,
            [one] => json!(one),
            many => json!(many),
        };
        json!({ "key": self.key, "value": value, "source": self.source.name(), "env": self.env, "about": self.about })
    }
}

/// Everything that may be set.
pub fn settings(command: &Command) -> Vec<Setting> {
    let mut all = Vec::new();
    for name in SHARED {
        let mut paths = Vec::new();
        let mut arg = None;
        visit(command, &mut Vec::new(), &mut |path, command| {
            if let Some(found) = flag(command, name) {
                paths.push(path.to_vec());
                arg.get_or_insert_with(|| found.clone());
            }
        });
        if let Some(arg) = arg {
            all.push(Setting { key: (*name).to_owned(), paths, arg });
        }
    }
    for (table, path, only) in TABLES {
        let path: Vec<String> = path.iter().map(|&part| part.to_owned()).collect();
        let Some(command) = find(command, &path) else { continue };
        for arg in command.get_arguments().filter(|arg| !arg.is_hide_set() && !arg.is_global_set()) {
            let Some(name) = arg.get_long().map(|long| long.replace('-', "_")) else { continue };
            let name = name.as_str();
            let wanted = only.is_empty() || only.contains(&name);
            if wanted && !NEVER.contains(&name) && !SHARED.contains(&name) {
                all.push(Setting {
                    key: format!("{table}.{name}"),
                    paths: vec![path.clone()],
                    arg: arg.clone(),
                });
            }
        }
    }
    all
}

fn visit(command: &Command, path: &mut Vec<String>, see: &mut dyn FnMut(&[String], &Command)) {
    see(path, command);
    for child in command.get_subcommands() {
        path.push(child.get_name().to_owned());
        visit(child, path, see);
        path.pop();
    }
}

fn find<'a>(command: &'a Command, path: &[String]) -> Option<&'a Command> {
    path.iter().try_fold(command, |command, name| command.find_subcommand(name))
}

fn flag<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|arg| arg.get_long().is_some_and(|long| long.replace('-', "_") == name))
}

/// The environment variables that set something whose key begins with `prefix`.
pub fn variables(prefix: &str) -> Vec<OsString> {
    let all = settings(&Cli::command());
    let wanted = all.iter().filter(|setting| setting.key.starts_with(prefix));
    wanted.filter_map(|setting| setting.arg.get_env().map(ToOwned::to_owned)).collect()
}

/// Reads what the file says.
///
/// # Errors
/// A sentence about the first thing that is wrong: syntax with its line, an unknown key with the nearest known one, a value
/// its flag would refuse, two settings that exclude each other.
pub fn parse(text: &str, settings: &[Setting], command: &Command) -> std::result::Result<Values, String> {
    let table: Table = text.parse().map_err(|e: toml::de::Error| {
        let line = e.span().map_or(1, |span| text[..span.start.min(text.len())].lines().count().max(1));
        format!("line {line}: {}", e.message())
    })?;
    let mut values = Values::new();
    for (name, value) in &table {
        match value {
            toml::Value::Table(inner) if TABLES.iter().any(|(table, ..)| table == name) => {
                for (flag, value) in inner {
                    take(&format!("{name}.{flag}"), value, settings, &mut values)?;
                }
            }
            toml::Value::Table(_) => {
                let tables: Vec<&str> = TABLES.iter().map(|(table, ..)| *table).collect();
                return Err(format!(
                    "[{name}] is no table of this file; there are [{}]",
                    tables.join("], [")
                ));
            }
            value => take(name, value, settings, &mut values)?,
        }
    }
    exclusive(&values, settings, command)?;
    Ok(values)
}

fn take(
    key: &str,
    value: &toml::Value,
    settings: &[Setting],
    values: &mut Values,
) -> std::result::Result<(), String> {
    let setting = settings.iter().find(|setting| setting.key == key).ok_or_else(|| unknown(key, settings))?;
    values.insert(key.to_owned(), words(setting, value)?);
    Ok(())
}

fn unknown(key: &str, settings: &[Setting]) -> String {
    let parts = |key: &str| {
        let (table, last) = key.rsplit_once('.').unwrap_or(("", key));
        (table.to_owned(), last.to_owned())
    };
    let (table, last) = parts(key);
    // The word counts; of equally near ones the one in the same table is meant.
    let alike = |other: &str| {
        let (its_table, its_last) = parts(other);
        strsim::jaro_winkler(&last, &its_last) + if table == its_table { 1e-3 } else { 0.0 }
    };
    let near =
        settings.iter().map(|setting| setting.key.as_str()).max_by(|a, b| alike(a).total_cmp(&alike(b)));
    match near.filter(|near| alike(near) >= ALIKE) {
        Some(near) => format!("\"{key}\" is no setting; did you mean \"{near}\"?"),
        None => format!("\"{key}\" is no setting; `shoal config show` lists them all"),
    }
}

/// The value as the command line would write it, checked by the flag's own parser.
fn words(setting: &Setting, value: &toml::Value) -> std::result::Result<Vec<String>, String> {
    let (key, arg) = (&setting.key, &setting.arg);
    let flag = matches!(arg.get_action(), ArgAction::SetTrue);
    let word = |value: &toml::Value| match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(n) => Some(n.to_string()),
        toml::Value::Float(x) => Some(x.to_string()),
        _ => None,
    };
    let words = match value {
        toml::Value::Boolean(on) if flag => return Ok(vec![on.to_string()]),
        _ if flag => return Err(format!("{key} must be true or false")),
        toml::Value::Array(list) if matches!(arg.get_action(), ArgAction::Append) => {
            list.iter().map(word).collect()
        }
        value => word(value).map(|word| vec![word]),
    };
    let words: Vec<String> =
        words.ok_or_else(|| format!("{key} cannot be {}; write a text or a number", value.type_str()))?;
    let long = arg.get_long().unwrap_or_default();
    let parser = arg.get_value_parser().clone();
    let probe = Arg::new("value").long(long.to_owned()).action(arg.get_action().clone()).value_parser(parser);
    let probe = Command::new("shoal").no_binary_name(true).disable_help_flag(true).arg(probe);
    let argv = words.iter().map(|word| format!("--{long}={word}"));
    match probe.try_get_matches_from(argv) {
        Ok(_) => Ok(words),
        Err(why) => {
            let choices: Vec<String> =
                arg.get_possible_values().iter().map(|choice| choice.get_name().to_owned()).collect();
            let why = match std::error::Error::source(&why) {
                _ if !choices.is_empty() => format!("it is one of {}", choices.join(", ")),
                Some(why) => why.to_string(),
                None => "that is no such value".to_owned(),
            };
            Err(format!("{key} = \"{}\": {why}", words.join(", ")))
        }
    }
}

fn exclusive(values: &Values, settings: &[Setting], command: &Command) -> std::result::Result<(), String> {
    let set: Vec<&Setting> = settings.iter().filter(|setting| is_on(values, &setting.key)).collect();
    for one in &set {
        for path in &one.paths {
            let Some(command) = find(command, path) else { continue };
            for other in set.iter().filter(|other| other.key > one.key && other.paths.contains(path)) {
                if exclude(command, &one.arg, &other.arg) {
                    return Err(format!(
                        "{} and {} exclude each other; keep the one you mean",
                        one.key, other.key
                    ));
                }
            }
        }
    }
    Ok(())
}

/// A switch that is off is as good as not said.
fn is_on(values: &Values, key: &str) -> bool {
    values.get(key).is_some_and(|words| words != &["false"])
}

fn exclude(command: &Command, one: &Arg, other: &Arg) -> bool {
    let names = |arg: &Arg, other: &Arg| {
        command.get_arg_conflicts_with(arg).iter().any(|found| found.get_id() == other.get_id())
    };
    // The command's own arguments: those of another command of the same name may exclude others.
    let own = |arg: &Arg| command.get_arguments().find(|found| found.get_id() == arg.get_id());
    match (own(one), own(other)) {
        (Some(one), Some(other)) => names(one, other) || names(other, one),
        _ => false,
    }
}

/// The command line whose defaults are what the file says.
pub fn apply(mut command: Command, settings: &[Setting], values: &Values) -> Command {
    for setting in settings.iter().filter(|setting| is_on(values, &setting.key)) {
        for path in &setting.paths {
            command = with_default(command, path, setting.arg.get_id().as_str(), &values[&setting.key]);
        }
    }
    command
}

fn with_default(command: Command, path: &[String], id: &str, words: &[String]) -> Command {
    match path.split_first() {
        Some((first, rest)) => command.mut_subcommand(first, |child| with_default(child, rest, id, words)),
        None => command.mut_arg(id, |arg| arg.default_values(words.to_vec())),
    }
}

/// Parses a command line over what the file says.
///
/// # Errors
/// What the command line does wrong, as clap words it; help and version, too.
pub fn matches(argv: &[OsString], values: &Values) -> std::result::Result<ArgMatches, clap::Error> {
    let command = Cli::command();
    let settings = settings(&command);
    let mut values = values.clone();
    loop {
        let matches = apply(command.clone(), &settings, &values).try_get_matches_from(argv)?;
        // A flag that was said excludes what the file says, not the other way round.
        let (path, found) = leaf(&matches);
        let overridden = find(&command, &path).and_then(|command| {
            let said = command.get_arguments().filter(|arg| {
                matches!(
                    source(found, arg.get_id().as_str()),
                    Some(ValueSource::CommandLine | ValueSource::EnvVariable)
                )
            });
            let said: Vec<&Arg> = said.collect();
            settings.iter().find(|setting| {
                is_on(&values, &setting.key)
                    && setting.paths.contains(&path)
                    && source(found, setting.arg.get_id().as_str()) == Some(ValueSource::DefaultValue)
                    && said.iter().any(|said| exclude(command, said, &setting.arg))
            })
        });
        match overridden {
            Some(setting) => values.remove(&setting.key),
            None => return Ok(matches),
        };
    }
}

/// The path of the command that was typed, and its arguments.
fn leaf(matches: &ArgMatches) -> (Vec<String>, &ArgMatches) {
    let (mut path, mut found) = (Vec::new(), matches);
    while let Some((name, inner)) = found.subcommand() {
        path.push(name.to_owned());
        found = inner;
    }
    (path, found)
}

fn source(matches: &ArgMatches, id: &str) -> Option<ValueSource> {
    matches.try_contains_id(id).ok().filter(|there| *there).and_then(|_| matches.value_source(id))
}

fn raw(matches: &ArgMatches, id: &str) -> Vec<String> {
    let words = matches.try_get_raw(id).unwrap_or(None);
    words.into_iter().flatten().map(|word| word.to_string_lossy().into_owned()).collect()
}

/// Every setting, its value and where it came from; `line` is a command line whose flags count, too.
///
/// # Errors
/// What `line` or an environment variable does wrong.
pub fn resolve(values: &Values, line: &[OsString]) -> Result<Vec<Resolved>> {
    let command = Cli::command();
    let said = match line {
        [] => None,
        line => {
            let argv: Vec<OsString> = std::iter::once("shoal".into()).chain(line.iter().cloned()).collect();
            Some(matches(&argv, values).map_err(|e| Error::usage(one_line(&e)))?)
        }
    };
    let all = settings(&command);
    all.iter().map(|setting| resolve_one(setting, values, said.as_ref())).collect()
}

fn resolve_one(setting: &Setting, values: &Values, said: Option<&ArgMatches>) -> Result<Resolved> {
    let id = setting.arg.get_id().as_str();
    let from_line = said.map(leaf).filter(|(path, _)| setting.paths.contains(path)).map(|(_, found)| found);
    let alone;
    let found = match from_line {
        Some(found) => found,
        None => {
            let arg = setting.arg.clone().global(false);
            let arg = arg.conflicts_with(Resettable::Reset).requires(Resettable::<clap::Id>::Reset);
            let probe = Command::new("shoal").no_binary_name(true).disable_help_flag(true).arg(arg);
            alone = probe
                .try_get_matches_from(Vec::<OsString>::new())
                .map_err(|e| Error::usage(format!("{}: {}", setting.key, one_line(&e))))?;
            &alone
        }
    };
    let from = match source(found, id) {
        Some(ValueSource::CommandLine) => Source::Flag,
        Some(ValueSource::EnvVariable) => Source::Env,
        _ if values.contains_key(&setting.key) => Source::File,
        _ => Source::Default,
    };
    let help = setting.arg.get_help().map(ToString::to_string).unwrap_or_default();
    let (about, automatic) = match help.split_once(" [default: ") {
        Some((about, rest)) => (about.to_owned(), rest.strip_suffix(']').map(|rest| format!("({rest})"))),
        None => (help, None),
    };
    let words = match from {
        Source::File => values[&setting.key].clone(),
        Source::Default => {
            let said = raw(found, id);
            if said.is_empty() { automatic.into_iter().collect() } else { said }
        }
        Source::Env | Source::Flag if matches!(setting.arg.get_action(), ArgAction::SetTrue) => {
            vec![found.get_flag(id).to_string()]
        }
        Source::Env | Source::Flag => raw(found, id),
    };
    let env = setting.arg.get_env().map(|name| name.to_string_lossy().into_owned());
    Ok(Resolved { key: setting.key.clone(), values: words, source: from, env, about })
}

fn one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

/// Which file is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The user named it: it must be there.
    Named(PathBuf),
    /// Where it is looked for; nothing is missing when it is not there.
    Usual(PathBuf),
    /// No file is read.
    Nowhere,
}

/// The file to read: `named` (`--config` or `SHOAL_CONFIG`; `none` reads none), else `config.toml` in `home`
/// (`SHOAL_HOME`) when that is set, else the one in the user's folder for settings.
pub fn place(named: Option<OsString>, home: Option<OsString>, folder: Option<PathBuf>) -> Place {
    match (named, home, folder) {
        (Some(named), ..) if named == NO_FILE => Place::Nowhere,
        (Some(named), ..) if !named.is_empty() => Place::Named(named.into()),
        (_, Some(home), _) => Place::Usual(Path::new(&home).join("config.toml")),
        (_, None, Some(folder)) => Place::Usual(folder.join("config.toml")),
        (_, None, None) => Place::Nowhere,
    }
}

/// [`place`] for this process; `flag` is the value of `--config`.
pub fn place_here(flag: Option<OsString>) -> Place {
    let folder = directories::ProjectDirs::from("", "", "shoal").map(|dirs| dirs.config_dir().to_owned());
    place(flag.or_else(|| env::var_os("SHOAL_CONFIG")), env::var_os("SHOAL_HOME"), folder)
}

/// What the file says.
///
/// # Errors
/// A named file that cannot be read, and everything [`parse`] refuses.
pub fn load(place: &Place) -> Result<Values> {
    let path = match place {
        Place::Nowhere => return Ok(Values::new()),
        Place::Named(path) | Place::Usual(path) => path,
    };
    let wrong = |why: String| Error::usage(format!("{}: {why}", path.display()));
    match fs::metadata(path) {
        Ok(file) if file.len() > MAX_BYTES => return Err(wrong("too large to be a config file".into())),
        Err(e) if e.kind() == io::ErrorKind::NotFound && matches!(place, Place::Usual(_)) => {
            return Ok(Values::new());
        }
        _ => {}
    }
    let text = fs::read_to_string(path).map_err(|e| wrong(e.to_string()))?;
    let command = Cli::command();
    parse(&text, &settings(&command), &command).map_err(wrong)
}

/// Parses the process's command line over its file. Ends the process for `--help`, `--version` and a wrong command line.
///
/// # Errors
/// Those of [`load`].
pub fn command_line(argv: &[OsString]) -> Result<Cli> {
    let values = if reads_no_file(argv) { Values::new() } else { load(&place_here(named(argv)))? };
    let matches = matches(argv, &values);
    let matches = matches.unwrap_or_else(|e| nearest::suggest(e, &Cli::command(), argv).exit());
    if let Some([home]) = values.get("home").map(Vec::as_slice)
        && env::var_os("SHOAL_HOME").is_none()
    {
        crate::library::set_home(home.into());
    }
    Ok(Cli::from_arg_matches(&matches).unwrap_or_else(|e| e.exit()))
}

/// Commands that must work whatever the file says.
fn reads_no_file(argv: &[OsString]) -> bool {
    let first = argv.iter().skip(1).find(|word| !word.to_string_lossy().starts_with('-'));
    first.is_some_and(|first| ["worker", "config", "completions", "man"].iter().any(|name| first == name))
}

/// The value of `--config`, which is needed before the command line can be parsed.
fn named(argv: &[OsString]) -> Option<OsString> {
    let mut words = argv.iter().skip(1).take_while(|word| *word != "--");
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("--config") => return words.next().cloned(),
            Some(word) => {
                if let Some(file) = word.strip_prefix("--config=") {
                    return Some(file.into());
                }
            }
            None => {}
        }
    }
    None
}

/// A file with every setting, commented out, and what it means.
pub fn template() -> String {
    let all = settings(&Cli::command());
    let mut text = String::from(
        "# Shoal's settings. A flag wins over its environment variable, that over this file.\n\
         # `shoal config show` says what is in force and where it came from.\n",
    );
    let mut table = "";
    for setting in &all {
        if let Some((name, _)) = setting.key.split_once('.')
            && name != table
        {
            table = name;
            text += &format!("\n[{name}]\n");
        }
        let help = setting.arg.get_help().map(ToString::to_string).unwrap_or_default();
        let default: Vec<_> =
            setting.arg.get_default_values().iter().map(|word| word.to_string_lossy()).collect();
        let value = match (setting.arg.get_action(), default.first()) {
            (ArgAction::SetTrue, _) => "false".to_owned(),
            (ArgAction::Append, _) => "[]".to_owned(),
            (_, Some(word)) if word.parse::<f64>().is_ok() => word.to_string(),
            (_, Some(word)) => format!("{word:?}"),
            (_, None) => "\"\"".to_owned(),
        };
        let name = setting.key.rsplit('.').next().unwrap_or_default();
        text += &format!("# {help}\n# {name} = {value}\n");
    }
    text
}

#[cfg(test)]
mod tests;
