//! `shoal config`: the settings, and where each came from.

use std::ffi::OsString;

use serde_json::json;

use crate::{
    Result,
    cli::ConfigCommand,
    config::{self, Place, Source},
    output::{self, say},
};

/// Columns of `shoal config show`, in characters.
const KEY: usize = 20;
const VALUE: usize = 50;

pub(super) fn run(command: ConfigCommand, named: Option<OsString>) -> Result<()> {
    let place = config::place_here(named);
    match command {
        ConfigCommand::Show { line, json } => show(&place, &line, json),
        ConfigCommand::Path { json } => path(&place, json),
        ConfigCommand::Template => output::text(&config::template()),
    }
}

/// The file and whether it is there.
fn describe(place: &Place) -> (Option<String>, bool) {
    match place {
        Place::Named(path) | Place::Usual(path) => (Some(path.display().to_string()), path.is_file()),
        Place::Nowhere => (None, false),
    }
}

fn path(place: &Place, json: bool) -> Result<()> {
    let (file, exists) = describe(place);
    if json {
        return output::json_line(&json!({ "file": file, "exists": exists }));
    }
    match file {
        Some(file) => {
            say!("{file}{}", if exists { "" } else { "  (not there; `shoal config template` prints one)" })
        }
        None => say!("no file is read"),
    }
    Ok(())
}

fn show(place: &Place, line: &[OsString], json: bool) -> Result<()> {
    let rows = config::resolve(&config::load(place)?, line)?;
    let (file, exists) = describe(place);
    if json {
        let rows: Vec<_> = rows.iter().map(config::Resolved::to_json).collect();
        return output::json_line(&json!({ "file": file, "exists": exists, "settings": rows }));
    }
    match (&file, exists) {
        (Some(file), true) => say!("file: {file}\n"),
        (Some(file), false) => say!("file: {file} (not there)\n"),
        (None, _) => say!("file: none\n"),
    }
    say!("{:KEY$} {:VALUE$} FROM", "SETTING", "VALUE");
    for row in rows {
        let value = if row.values.is_empty() { "-".to_owned() } else { row.values.join(", ") };
        let from = match (row.source, &row.env) {
            (Source::Env, Some(name)) => format!("env {name}"),
            (source, _) => source.name().to_owned(),
        };
        say!("{:KEY$} {value:VALUE$} {from}", row.key);
    }
    Ok(())
}
