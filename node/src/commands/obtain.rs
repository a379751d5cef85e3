//! From what the user calls a model to one that is on this machine, fetched first when it has to be.

use api::choice::{Draft, DraftBy};

use super::pull;
use crate::{
    Error, Result, catalog,
    catalog::reference::Reference,
    cli::{PullArgs, SourceArgs},
    library::{self, DEFAULT_MODEL, Library},
    private_folder,
};

/// How a command may fetch a model.
#[derive(Clone, Copy)]
pub(super) struct Terms<'a> {
    /// Where models come from.
    pub(super) sources: &'a SourceArgs,
    /// Whether the user agreed to fetch one.
    pub(super) yes: bool,
    /// Whether the command speaks to a program.
    pub(super) json: bool,
}

/// Whether `text` is what a model is called here, in a catalog, one of `sources` included, or in another registry: not whether it is a
/// file.
///
/// # Errors
/// Those of reading the list, and those of `sources`. A stored catalog that cannot be read names nothing.
pub(super) fn is_name(text: &str, sources: &SourceArgs) -> Result<bool> {
    if text == DEFAULT_MODEL || Reference::parse(text).is_some() {
        return Ok(true);
    }
    // The prompt needs no data folder.
    let Ok(home) = library::home() else { return Ok(false) };
    let listed = || catalog::known(&home).is_ok_and(|known| catalog::find(&known, text).is_some());
    Ok(Library::load(&home)?.get(text).is_some() || listed() || super::catalog::lists(sources, text)?)
}

/// Fetches the model that is to draft, if one is and it is not here. It keeps the name by which requests may ask for it, unless
/// only its file can be opened.
pub(super) fn drafter(draft: &mut Draft, terms: Terms<'_>) -> Result<()> {
    if let Draft::By(DraftBy { model: Some(name), .. }) = draft {
        let opened = model(name, terms)?;
        if opened != *name && Library::load(&library::home()?)?.find(name).is_err() {
            *name = opened;
        }
    }
    Ok(())
}

/// The name or path by which `model` can be opened: itself where it is here, else what was fetched for it.
///
/// # Errors
/// [`Error::Usage`] for a name that nothing is known of and when the user does not agree; those of fetching.
pub(super) fn model(model: &str, terms: Terms<'_>) -> Result<String> {
    let foreign = Reference::parse(model).is_some();
    let whole = library::unabbreviated(model);
    let model = whole.as_str();
    if model == DEFAULT_MODEL || (!foreign && library::looks_like_a_path(model)) {
        return Ok(model.to_owned());
    }
    let home = library::home()?;
    let unknown = match Library::load(&home)?.find(model) {
        Ok(entry) => return Ok(entry.name.clone()),
        Err(error) => error,
    };
    private_folder::prepare(&home)?;
    let known = foreign
        || !terms.sources.catalog.is_empty()
        || catalog::find(&catalog::known(&home)?, model).is_some();
    if !known {
        return Err(Error::usage(format!(
            "{unknown}; `shoal model search` lists models that can be fetched, and hf.co/OWNER/NAME:Q4_K_M and ollama://NAME \
             name those of other registries"
        )));
    }
    let args = PullArgs {
        model: model.to_owned(),
        layers: Vec::new(),
        from: Vec::new(),
        name: None,
        yes: terms.yes,
        disk: None,
        rate: None,
        sources: terms.sources.clone(),
        json: terms.json,
    };
    pull::bring(&args, true)
}
