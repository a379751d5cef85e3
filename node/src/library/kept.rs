//! Where the files of a model are kept below the data folder, and how much of one is there.
//!
//! A model's folder is called by its id in hex, see [`crate::content`] for what is in it.

use std::path::{Path, PathBuf};

use p2p::blob::{GroupSet, sparse};
use scheduler::ModelId;

use super::Entry;
use crate::Result;

/// The id written as 64 hex digits.
pub fn parse_id(text: &str) -> Option<ModelId> {
    blake3::Hash::from_hex(text).ok().map(|hash| ModelId::new(*hash.as_bytes()))
}

/// The id as 64 hex digits.
pub fn hex(id: ModelId) -> String {
    blake3::Hash::from_bytes(*id.as_bytes()).to_hex().to_string()
}

/// Where everything that is kept of models is.
pub fn models_folder(home: &Path) -> PathBuf {
    home.join("models")
}

/// Where what is kept of model `id` is.
pub fn folder(home: &Path, id: ModelId) -> PathBuf {
    models_folder(home).join(hex(id))
}

/// Whether `entry` is a pulled model, whose file belongs to Shoal.
pub fn is_ours(home: &Path, entry: &Entry) -> bool {
    entry.path.starts_with(models_folder(home))
}

/// The groups of `entry` that are here; `None` for a file that was added, which is whole.
///
/// # Errors
/// Those of the record beside the file.
pub fn present(home: &Path, entry: &Entry) -> Result<Option<GroupSet>> {
    match entry.model().filter(|_| is_ours(home, entry)) {
        Some(id) => Ok(Some(sparse::recorded(&folder(home, id), id, entry.bytes)?)),
        None => Ok(None),
    }
}
