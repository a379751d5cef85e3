//! A file becomes a model of `shoal model list`.

use std::path::Path;

use crate::{
    Result, catalog, content,
    header::Header,
    library::{self, Entry, Library},
    output,
};

/// Hashes a file and puts it on the list, without a `name` as a catalog calls it or else by its own; Ctrl-C stops it where the
/// command catches it.
///
/// # Errors
/// As [`content::register`] says, and those of the engine for a file that this build does not compute.
pub(super) fn register(file: &Path, name: Option<String>, shared: bool) -> Result<Entry> {
    let path = dunce::canonicalize(file).map_err(|e| shard::Error::io(file, e))?;
    let header = Header::of_file(&path)?;
    header.trained()?;
    let stem = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    library::check_name(name.as_ref().unwrap_or(&stem))?;
    let home = library::home()?;
    let (known, library) = (catalog::known(&home)?, Library::load(&home)?);
    let called = |id: &str| {
        let is_other = |entry: &Entry| entry.id != id || entry.path != path;
        let is_free =
            |name: &String| !library.entries().iter().any(|entry| entry.name == *name && is_other(entry));
        let listed = || catalog::find(&known, id).map(|model| model.name.clone()).filter(is_free);
        name.clone().or_else(listed).unwrap_or_else(|| stem.clone())
    };
    let bar = output::progress(header.file_len, "hashing", true);
    let entry = content::register(&home, &path, &called, shared, &mut |done| {
        bar.set_position(done);
        !output::interrupted()
    });
    bar.finish_and_clear();
    entry
}
