//! A file becomes a model of `shoal model list`.

use std::path::Path;

use crate::{
    Result, content,
    header::Header,
    library::{self, Entry},
    output,
};

/// Hashes a file and puts it on the list; Ctrl-C stops it where the command catches it.
///
/// # Errors
/// As [`content::register`] says, and those of the engine for a file that this build does not compute.
pub(super) fn register(file: &Path, name: Option<String>, shared: bool) -> Result<Entry> {
    let path = dunce::canonicalize(file).map_err(|e| shard::Error::io(file, e))?;
    let header = Header::of_file(&path)?;
    header.trained()?;
    let stem = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    let name = name.unwrap_or(stem);
    library::check_name(&name)?;
    let bar = output::progress(header.file_len, "hashing", true);
    let entry = content::register(&library::home()?, &path, name, shared, &mut |done| {
        bar.set_position(done);
        !output::interrupted()
    });
    bar.finish_and_clear();
    entry
}
