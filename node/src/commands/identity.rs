//! `shoal identity`: who this node is, as a file, and on another machine.

use std::path::Path;

use serde_json::json;

use super::passphrase;
use crate::{
    Error, Result,
    cli::{
        identity::{IdentityCommand, PassphraseArgs},
        swarm::HomeArgs,
    },
    control,
    identity::{self, archive, archive::Backup},
    output::{self, human_bytes, say},
    private_folder,
};

/// What must not happen.
const ONCE: &str = "Two machines must never run one identity at once.";

pub(super) fn run(command: IdentityCommand) -> Result<()> {
    match command {
        IdentityCommand::Show { home, json } => show(&home.path()?, json),
        IdentityCommand::Export { file, passphrase, conversations, retire, home, json } => {
            export(&file, &passphrase, conversations, retire, &home.path()?, json)
        }
        IdentityCommand::Import { file, passphrase, force, home, json } => {
            import(&file, &passphrase, force, &home, json)
        }
        IdentityCommand::Reactivate { home, json } => reactivate(&home.path()?, json),
    }
}

fn show(home: &Path, json: bool) -> Result<()> {
    let node = format!("{:?}", identity::of(home)?.node());
    let files = identity::files(home)?;
    let (runs, retired) = (control::is_running(home), identity::retired(home));
    if json {
        let files: Vec<_> =
            files.iter().map(|(path, bytes)| json!({ "path": path, "bytes": bytes })).collect();
        return output::json_line(&json!({
            "node": node, "home": home, "running": runs, "retired_s": retired.map(|retired| retired.at_s), "files": files,
        }));
    }
    say!("node      {node}");
    say!("folder    {}", home.display());
    let state = match (runs, retired.is_some()) {
        (_, true) => "moved to another machine; `shoal identity reactivate` takes that back",
        (true, _) => "runs",
        (false, _) => "does not run",
    };
    say!("state     {state}");
    for (path, bytes) in files {
        say!("file      {path} ({})", human_bytes(bytes));
    }
    Ok(())
}

fn export(
    file: &Path,
    passphrase: &PassphraseArgs,
    conversations: bool,
    retire: bool,
    home: &Path,
    json: bool,
) -> Result<()> {
    if retire && control::is_running(home) {
        return Err(control::runs_already(home));
    }
    if file.exists() {
        return Err(Error::usage(format!("{} exists: name a file that does not", file.display())));
    }
    let node = format!("{:?}", identity::of(home)?.node());
    let backup = identity::collect(home, conversations)?;
    let bytes = backup.seal(&passphrase::chosen(passphrase)?)?;
    identity::save(file, &bytes)?;
    if retire {
        identity::retire(home)?;
    }
    if json {
        return output::json_line(&json!({
            "node": node, "file": file, "bytes": bytes.len(), "files": backup.items.len(), "retired": retire,
        }));
    }
    let size = human_bytes(bytes.len() as u64);
    say!("{} holds the node {node}: {} files, {size}.", file.display(), backup.items.len());
    match retire {
        true => say!(
            "This folder starts no node any more. On the other machine: `shoal identity import {}`. To stay here after all: \
             `shoal identity reactivate`.",
            file.display()
        ),
        false => say!(
            "Who has it and the passphrase is this node. {ONCE} To move, stop this one and add --retire."
        ),
    }
    Ok(())
}

fn import(file: &Path, passphrase: &PassphraseArgs, force: bool, home: &HomeArgs, json: bool) -> Result<()> {
    let home = home.path()?;
    if control::is_running(&home) {
        return Err(control::runs_already(&home));
    }
    let bytes = archive::read(file)?;
    let backup = Backup::open(&bytes, &passphrase::known(passphrase)?)?;
    let node = format!("{:?}", backup.identity()?.node());
    private_folder::prepare(&home)?;
    let placed = identity::place(&home, &backup, force)?;
    if json {
        return output::json_line(&json!({
            "node": node, "home": home, "files": placed.files, "made_s": backup.made_s, "replaced": placed.replaced,
        }));
    }
    say!("This is the node {node} now: {} files in {}.", placed.files, home.display());
    if let Some(replaced) = placed.replaced {
        say!("What was here before is kept in {}.", replaced.display());
    }
    say!("{ONCE} `shoal join` starts it.");
    Ok(())
}

fn reactivate(home: &Path, json: bool) -> Result<()> {
    let node = format!("{:?}", identity::of(home)?.node());
    let was_retired = identity::reactivate(home)?;
    if json {
        return output::json_line(&json!({ "node": node, "was_retired": was_retired }));
    }
    match was_retired {
        true => say!("This folder starts the node {node} again. {ONCE}"),
        false => say!("The node {node} was not retired; nothing was changed."),
    }
    Ok(())
}
