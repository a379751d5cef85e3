//! `shoal model`: the models this machine knows, shares and writes out.

use std::{fs, path::Path};

use p2p::blob::sparse;
use serde::Serialize;
use serde_json::json;

use super::register::register;
use crate::{
    Error, Result,
    cli::ModelCommand,
    content,
    library::{self, DEFAULT_MODEL, Entry, Library},
    output::{self, human_bytes, say},
    private_folder,
};

pub(super) fn run(command: ModelCommand) -> Result<()> {
    use ModelCommand::{Inspect, List};
    if !matches!(command, List { .. } | Inspect { .. }) {
        private_folder::prepare(&library::home()?)?;
    }
    match command {
        ModelCommand::List { json } => list(json),
        ModelCommand::Search { words, sources, json } => super::catalog::search(&words, &sources, json),
        ModelCommand::Find { link, name, json } => super::catalog::find(link.as_deref(), name, json),
        ModelCommand::Catalog(command) => super::catalog::run(command),
        ModelCommand::Add { file, name, json } => add(&file, name, json),
        ModelCommand::Pull(args) => super::pull::run(args),
        ModelCommand::Share { model, name, off, json } => share(&model, name, off, json),
        ModelCommand::Export { model, output, force, json } => export(&model, &output, force, json),
        ModelCommand::Rm { name, json } => remove(&name, json),
        ModelCommand::Inspect { model, tensors, metadata, json } => {
            super::inspect::run(&model, tensors, metadata, json)
        }
    }
}

/// A row of `shoal model list --json`.
#[derive(Serialize)]
struct Listed<'a> {
    #[serde(flatten)]
    entry: &'a Entry,
    missing: bool,
    /// Of a file that was pulled: what is here of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    present_bytes: Option<u64>,
}

fn list(json: bool) -> Result<()> {
    let embedded = Entry::embedded();
    let home = library::home()?;
    let library = Library::load(&home)?;
    if json {
        let mut all = vec![Listed { entry: &embedded, missing: false, present_bytes: None }];
        for entry in library.entries() {
            let present_bytes = content::present(&home, entry)?.map(|have| have.bytes(entry.bytes));
            all.push(Listed { entry, missing: !entry.path.is_file(), present_bytes });
        }
        return output::json_line(&all);
    }
    say!("{:24} {:>11}  {:12}  FILE", "NAME", "SIZE", "ID");
    for entry in std::iter::once(&embedded).chain(library.entries()) {
        let embedded = entry.name == DEFAULT_MODEL;
        let mut notes = String::new();
        if !embedded && !entry.path.is_file() {
            notes += "  (missing)";
        } else if let Some(have) = content::present(&home, entry)?.filter(|have| have.len() != have.groups())
        {
            notes += &format!("  ({} here)", human_bytes(have.bytes(entry.bytes)));
        }
        if entry.shared {
            notes += "  (shared)";
        }
        let (name, size, id) = (&entry.name, human_bytes(entry.bytes), &entry.id[..12.min(entry.id.len())]);
        say!("{name:24} {size:>11}  {id:12}  {}{notes}", entry.path.display());
    }
    Ok(())
}

fn add(file: &Path, name: Option<String>, json: bool) -> Result<()> {
    // A path that leads nowhere is the same mistake here as in every command.
    library::Located::open(file)?;
    output::catch_interrupt()?;
    let entry = register(file, name, false)?;
    if json {
        return output::json_line(&entry);
    }
    say!("added {} ({}, id {})", entry.name, human_bytes(entry.bytes), &entry.id[..12]);
    say!("try: shoal run --model {} \"Hello\"", entry.name);
    Ok(())
}

fn share(model: &str, name: Option<String>, off: bool, json: bool) -> Result<()> {
    if model == DEFAULT_MODEL {
        return Err(Error::usage("every node has the embedded model already"));
    }
    let home = library::home()?;
    let known = Library::load(&home)?.find(model).ok().cloned();
    output::catch_interrupt()?;
    let entry = match known {
        Some(mut entry) => {
            let tree = entry.model().map(|id| sparse::outboard_path(&content::folder(&home, id)));
            if !off && !tree.is_some_and(|tree| tree.is_file()) {
                // It was added before trees were kept.
                entry = register(&entry.path, Some(entry.name.clone()), true)?;
            }
            (entry.shared, entry.withheld) = (!off, off);
            Library::change(&home, |library| library.add(entry.clone()))?;
            entry
        }
        None if off => return Err(Library::load(&home)?.find(model).err().unwrap_or(Error::Interrupted)),
        None => {
            // A path that leads nowhere is the same mistake here as in every command.
            library::Located::open(Path::new(model))?;
            register(Path::new(model), name, true)?
        }
    };
    if json {
        return output::json_line(&entry);
    }
    if off {
        say!("{} is not shared any more", entry.name);
        return Ok(());
    }
    say!("sharing {} ({})", entry.name, human_bytes(entry.bytes));
    say!("id {}", entry.id);
    say!("others fetch it with: shoal model pull {}", entry.id);
    Ok(())
}

fn export(model: &str, output: &Path, force: bool, json: bool) -> Result<()> {
    let beside = content::obao_beside(output);
    if let Some(there) = [output, &beside].into_iter().find(|path| path.exists() && !force) {
        return Err(Error::usage(format!("{} exists; --force replaces it", there.display())));
    }
    let home = library::home()?;
    let (id, bytes) = if model == DEFAULT_MODEL {
        let bytes = library::embedded_bytes();
        fs::write(output, bytes).map_err(|e| shard::Error::io(output, e))?;
        let (tree, encoded) = p2p::blob::Outboard::make(output, &mut |_| true)?;
        sparse::replace(&beside, &[&encoded])?;
        (content::hex(tree.id()), bytes.len() as u64)
    } else {
        let entry = Library::load(&home)?.find(model)?.clone();
        output::catch_interrupt()?;
        let bar = output::progress(entry.bytes, "writing", true);
        let written = content::export(&home, &entry, output, &mut |done| {
            bar.set_position(done);
            !output::interrupted()
        });
        bar.finish_and_clear();
        written?;
        (entry.id, entry.bytes)
    };
    if json {
        let (file, tree) = (output.to_string_lossy(), beside.to_string_lossy());
        return output::json_line(&json!({"file": file, "obao": tree, "id": id, "bytes": bytes}));
    }
    say!("wrote {} ({}) and {}", output.display(), human_bytes(bytes), beside.display());
    say!("on a web server they are a mirror: shoal model pull {id} --from https://.../FILE.gguf");
    Ok(())
}

fn remove(name: &str, json: bool) -> Result<()> {
    if name == DEFAULT_MODEL {
        return Err(Error::usage(format!("{DEFAULT_MODEL} is inside the program and takes no other room")));
    }
    let home = library::home()?;
    let entry = Library::change(&home, |library| {
        let name = library.find(name)?.name.clone();
        library.remove(&name)
    })?;
    let others = Library::load(&home)?;
    let last = !others.entries().iter().any(|other| other.id == entry.id);
    let folder = entry.model().map(|id| content::folder(&home, id)).filter(|folder| last && folder.is_dir());
    let ours = content::is_ours(&home, &entry);
    let mut freed = 0;
    if let Some(folder) = folder {
        freed = content::disk_used(&folder);
        fs::remove_dir_all(&folder).map_err(|e| shard::Error::io(&folder, e))?;
        if ours && !json {
            say!("removed {} and the {} fetched of it", entry.name, human_bytes(freed));
            return Ok(());
        }
    }
    if json {
        return output::json_line(&json!({ "name": entry.name, "id": entry.id, "freed_bytes": freed }));
    }
    say!("forgot {}; the file {} stays where it is", entry.name, entry.path.display());
    Ok(())
}
