//! `shoal model search`, `find` and `catalog`: models that are not on the list yet, and who says so.

use std::{fs, path::Path};

use p2p::{Identity, blob::http::document};
use serde::Serialize;
use serde_json::{Value, json};

use super::{consent, register::register};
use crate::{
    Error, Result,
    catalog::{
        self, Catalog, Model, Signed,
        fit::{Fit, Machine},
        local::{Places, Stored},
        registry::Registries,
    },
    cli::{CatalogCommand, SourceArgs},
    content,
    header::Header,
    library::{self, Entry, Library},
    model_shelf,
    output::{self, Waiting, human_bytes, say},
};

/// Where the command line says that other registries are.
pub(super) fn registries(sources: &SourceArgs) -> Registries {
    Registries { hugging_face: sources.hf_endpoint.clone(), ollama: sources.ollama_registry.clone() }
}

/// What other programs stored on this machine.
pub(super) fn stored() -> Vec<Stored> {
    Places::of_user(|name| std::env::var_os(name).filter(|value| !value.is_empty()).map(Into::into)).find()
}

/// Puts what another program stored on the list, as what `reference` names where it does; its file stays where it is.
///
/// # Errors
/// As [`register`] says.
pub(super) fn link(stored: &Stored, name: String, reference: Option<String>) -> Result<Entry> {
    let entry = register(&stored.path, Some(name), false)?;
    if reference.is_none() {
        return Ok(entry);
    }
    refer(entry, reference)
}

/// Notes on the list what a model is called in another registry.
///
/// # Errors
/// Those of the list.
pub(super) fn refer(entry: Entry, reference: Option<String>) -> Result<Entry> {
    let entry = Entry { reference, ..entry };
    Library::change(&library::home()?, |library| library.add(entry.clone()))?;
    Ok(entry)
}

/// The catalogs that count, with those that the command line names: their authors are trusted now or before.
///
/// # Errors
/// [`Error::Usage`] for one whose author is not trusted, and those of reading.
pub(in crate::commands) async fn known(home: &Path, sources: &SourceArgs, json: bool) -> Result<Vec<Signed>> {
    for source in &sources.catalog {
        let text = text_of(source).await?;
        let signed = Signed::read(&text)?;
        if !catalog::trusts(home, signed.author)? {
            let (author, name) = (signed.author(), &signed.catalog.name);
            let refused = format!(
                "the catalog \"{name}\" is signed by {author}, whom you have not trusted yet: `shoal model catalog trust {source}` \
                 does"
            );
            if !consent::can_ask(json) {
                return Err(Error::usage(refused));
            }
            eprintln!("The catalog \"{name}\" is signed by {author}. From now on it may name models here.");
            if !consent::agreed()? {
                return Err(Error::usage(refused));
            }
        }
        catalog::keep(home, &text)?;
    }
    catalog::known(home)
}

/// Whether a catalog that the command line names has a model called `name`.
///
/// # Errors
/// Those of reading it.
pub(super) fn lists(sources: &SourceArgs, name: &str) -> Result<bool> {
    if sources.catalog.is_empty() || name.contains(char::is_whitespace) {
        return Ok(false);
    }
    runtime()?.block_on(async {
        let mut named = Vec::new();
        for source in &sources.catalog {
            named.push(Signed::read(&text_of(source).await?)?);
        }
        Ok(catalog::find(&named, name).is_some())
    })
}

/// A catalog from a file or an address.
async fn text_of(source: &str) -> Result<String> {
    let bytes = match source.contains("://") {
        true => document(source, "", catalog::MAX_BYTES)
            .await
            .map_err(|error| Error::Failed(format!("the catalog {source} cannot be fetched: {error}")))?,
        false => fs::read(source).map_err(|error| shard::Error::io(source, error))?,
    };
    String::from_utf8(bytes)
        .map_err(|_| Error::usage(format!("{source} is no catalog: it is not UTF-8 text")))
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

/// `shoal model search`
pub(super) fn search(words: &[String], sources: &SourceArgs, json: bool) -> Result<()> {
    let home = library::home()?;
    let known = runtime()?.block_on(known(&home, sources, json))?;
    let found = catalog::search(&known, words);
    if found.is_empty() {
        if json {
            return output::json_line(&json!([]));
        }
        return Err(Error::usage(
            "no catalog that is known here has such a model; --catalog FILE|URL names another catalog, and models of Hugging \
             Face and Ollama are named hf.co/OWNER/NAME:Q4_K_M and ollama://NAME",
        ));
    }
    let waiting = (!json).then(|| Waiting::start("measuring this machine"));
    let (machine, peers) = (Machine::measure()?, model_shelf::peers(&home));
    drop(waiting);
    let fit = |model: &Model| machine.fit(model.bytes, &peers);
    let library = Library::load(&home)?;
    let here = |model: &Model| library.entries().iter().any(|entry| entry.id == model.id);
    if json {
        let rows = found.iter().map(|model| described(model, fit(model), here(model)));
        return output::json_line(&rows.collect::<Vec<_>>());
    }
    say!(
        "{:20} {:>11}  {:8} {:7} {:>8}  {:14} HERE",
        "NAME",
        "SIZE",
        "FAMILY",
        "FORMAT",
        "CONTEXT",
        "LICENSE"
    );
    for model in &found {
        let Model { name, family, format, context, license, .. } = model;
        let (fit, is_here) = (fit(model), if here(model) { "; it is on this machine" } else { "" });
        say!(
            "{name:20} {:>11}  {family:8} {format:7} {context:>8}  {license:14} {fit}{is_here}",
            human_bytes(model.bytes)
        );
    }
    // The largest that fits answers best.
    let best = found.iter().rev().find(|model| matches!(fit(model), Fit::Alone { .. }));
    if let Some(best) = best {
        say!("try: shoal run {} \"Hello\"", best.name);
    }
    Ok(())
}

fn described(model: &Model, fit: Fit, here: bool) -> Value {
    let mut row = json!(model);
    row["here"] = json!(here);
    let (Fit::Alone { with, .. } | Fit::Swarm { with, .. }) = fit;
    match fit {
        Fit::Alone { tok_s, .. } => row["alone_tok_s"] = json!(tok_s),
        Fit::Swarm { needed_bytes, .. } => row["needed_bytes"] = json!(needed_bytes),
    }
    if let Some(with) = with {
        row["with_peers"] = json!({ "peers": with.peers, "tok_s": with.tok_s });
    }
    row["fit"] = json!(fit.to_string());
    row
}

/// `shoal model find`
pub(super) fn find(wanted: Option<&str>, name: Option<String>, json: bool) -> Result<()> {
    let found = stored();
    if let Some(wanted) = wanted {
        let one = found.iter().find(|one| one.name == wanted).ok_or_else(|| {
            Error::usage(format!(
                "no other program stored \"{wanted}\" here; `shoal model find` lists what there is"
            ))
        })?;
        output::catch_interrupt()?;
        let entry = link(one, name.unwrap_or_else(|| one.name.clone()), None)?;
        if json {
            return output::json_line(&entry);
        }
        say!("linked {} to {}", entry.name, entry.path.display());
        say!("try: shoal run {} \"Hello\"", entry.name);
        return Ok(());
    }
    let library = Library::load(&library::home()?)?;
    let linked = |one: &Stored| library.entries().iter().find(|entry| entry.path == one.path);
    if json {
        let row = |one: &Stored| {
            json!({
                "name": one.name, "program": one.program, "path": one.path.to_string_lossy(), "bytes": one.bytes,
                "linked": linked(one).map(|entry| &entry.name),
            })
        };
        return output::json_line(&found.iter().map(row).collect::<Vec<_>>());
    }
    if found.is_empty() {
        say!(
            "Ollama, LM Studio, Hugging Face's libraries and llama.cpp have stored no GGUF where they usually do."
        );
        return Ok(());
    }
    say!("{:40} {:>11}  {:12}  FILE", "NAME", "SIZE", "PROGRAM");
    for one in &found {
        let note = linked(one).map(|entry| format!("  (linked as {})", entry.name)).unwrap_or_default();
        say!(
            "{:40} {:>11}  {:12}  {}{note}",
            one.name,
            human_bytes(one.bytes),
            one.program,
            one.path.display()
        );
    }
    say!(
        "`shoal model find --link NAME` puts one on the list of `shoal model list`; its file stays where it is."
    );
    Ok(())
}

/// `shoal model catalog ...`
pub(super) fn run(command: CatalogCommand) -> Result<()> {
    let home = library::home()?;
    match command {
        CatalogCommand::List { json } => list(&home, json),
        CatalogCommand::Add { file, to, key, license, name, title, format, mirror, called, json } => {
            let mut model = measured(&file, name, title, license, mirror)?;
            model.format = format.unwrap_or(model.format);
            add(&to, &key, &called, model, json)
        }
        CatalogCommand::Trust { catalog, yes, json } => {
            let text = runtime()?.block_on(text_of(&catalog))?;
            let read = Signed::read(&text)?;
            let known = catalog::trusts(&home, read.author)?;
            let (author, name) = (read.author(), read.catalog.name);
            if !known && !yes {
                if !consent::can_ask(json) {
                    return Err(Error::usage(format!(
                        "\"{name}\" is signed by {author}; --yes trusts that author"
                    )));
                }
                eprintln!(
                    "The catalog \"{name}\" is signed by {author}. From now on it may name models here."
                );
                if !consent::agreed()? {
                    return Err(Error::Interrupted);
                }
            }
            let kept = catalog::keep(&home, &text)?;
            let models = kept.catalog.models.len();
            if json {
                return output::json_line(&json!({ "author": author, "name": name, "models": models }));
            }
            say!("\"{name}\" counts from now on: {}, signed by {author}", counted(models));
            Ok(())
        }
        CatalogCommand::Forget { author, json } => {
            if !catalog::forget(&home, &author)? {
                return Err(Error::usage(format!(
                    "no trusted author begins with \"{author}\"; `shoal model catalog list` shows them"
                )));
            }
            if json {
                return output::json_line(&json!({ "forgot": author }));
            }
            say!("catalogs of {author} name no models here any more");
            Ok(())
        }
    }
}

/// A catalog in the list.
#[derive(Serialize)]
struct Row {
    name: String,
    author: String,
    sequence: u64,
    models: usize,
    /// Whether it came with this binary.
    release: bool,
}

fn list(home: &Path, json: bool) -> Result<()> {
    let shipped = catalog::shipped()?.author;
    let rows = catalog::sound(home)?.into_iter().map(|signed| Row {
        author: signed.author().to_string(),
        release: signed.author == shipped,
        name: signed.catalog.name,
        sequence: signed.catalog.sequence,
        models: signed.catalog.models.len(),
    });
    let rows: Vec<Row> = rows.collect();
    if json {
        return output::json_line(&rows);
    }
    for Row { name, author, sequence, models, release } in &rows {
        let release = if *release { "  (of this release)" } else { "" };
        say!("{name}: {}, version {sequence}, signed by {author}{release}", counted(*models));
    }
    Ok(())
}

fn counted(models: usize) -> String {
    if models == 1 { "1 model".to_owned() } else { format!("{models} models") }
}

/// A model's entry, as its file says.
fn measured(
    file: &str,
    name: Option<String>,
    title: Option<String>,
    license: String,
    mirrors: Vec<String>,
) -> Result<Model> {
    let path = library::path(file)?.ok_or_else(|| {
        Error::usage("the embedded model is on every machine already: a catalog needs no entry of it")
    })?;
    let header = Header::of_file(&path)?;
    let stem = path.file_stem().map(|stem| stem.to_string_lossy().to_lowercase()).unwrap_or_default();
    let name = name.unwrap_or(stem);
    let info = header.info(header.trained()?, name.clone())?;
    Ok(Model {
        title: title.unwrap_or_else(|| name.clone()),
        name,
        family: info.architecture,
        format: info.format,
        bytes: header.file_len,
        license,
        id: content::hex(library::id(file)?),
        context: info.context,
        mirrors,
    })
}

/// Puts `model` in the catalog at `to`, in the place of one with its name.
fn add(to: &Path, key: &Path, called: &str, model: Model, json: bool) -> Result<()> {
    let identity = Identity::load_or_create(key).map_err(|error| Error::Failed(error.to_string()))?;
    let mut all = match fs::read_to_string(to) {
        Ok(text) => {
            let signed = Signed::read(&text)?;
            if signed.author != identity.node() {
                return Err(Error::usage(format!(
                    "{} is signed by another key ({}): name that key with --key, or another catalog with --to",
                    to.display(),
                    signed.author()
                )));
            }
            signed.catalog
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Catalog { name: called.to_owned(), ..Catalog::default() }
        }
        Err(error) => return Err(shard::Error::io(to, error).into()),
    };
    all.sequence += 1;
    all.models.retain(|known| known.name != model.name);
    all.models.push(model.clone());
    all.models.sort_by(|a, b| a.name.cmp(&b.name));
    let text = all.sign(&identity)?;
    p2p::blob::sparse::replace(to, &[text.as_bytes()])?;
    let author = Signed::read(&text)?.author();
    if json {
        return output::json_line(&json!({ "author": author, "sequence": all.sequence, "model": model }));
    }
    say!("{} is in {}, version {}, signed by {author}", model.name, to.display(), all.sequence);
    say!("others let it count with: shoal model catalog trust {}", to.display());
    Ok(())
}
