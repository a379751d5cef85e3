//! Which files were held against their hash, and have not changed since.
//!
//! A model is announced by the hash of its file. A worker that starts again, after a death or for other layers, reads a file
//! that may be another by then, so it hashes the file unless the system says that nothing was written: device, number,
//! length and the times of the last write and change are those under which the hash was found.
//!
//! A file with holes, of which only some layers are here, has no hash of its own: the groups of it that are on the record are
//! held against the model's tree, which its hash proves ([`sparse::check`]).
//!
//! Limits: who can set a file's change time, or write below the file system, can deceive this. While layers are being fetched
//! the file changes, so each worker that starts then has all groups so far read once more.

use std::{
    collections::VecDeque,
    fs::File,
    path::{Path, PathBuf},
    sync::Mutex,
};

use p2p::blob::{Error, sparse};
use scheduler::ModelId;

use crate::{
    confine::child::lock,
    platform::{Stamp, files},
};

/// Files remembered, the oldest forgotten first: a node runs a few models.
const MAX_FILES: usize = 64;

static CHECKED: Mutex<VecDeque<(Stamp, ModelId)>> = Mutex::new(VecDeque::new());

/// What the system says of a file that changes with its content, and whether parts of it may not be here; `None` where it cannot
/// be asked.
fn of(file: &File) -> Option<(Stamp, bool)> {
    Some((files::stamp(file).ok()?, files::may_have_holes(&file.metadata().ok()?)))
}

/// Whether the worker must hash the `file` at `path` to know that it is that of `model`. What is there of one with holes is
/// looked at here instead.
///
/// # Errors
/// A sentence, when something of it changed since it was fetched.
pub(super) async fn must_be_hashed(path: &Path, file: &File, model: ModelId) -> Result<bool, String> {
    let Some((identity, sparse)) = of(file) else { return Ok(true) };
    if lock(&CHECKED).contains(&(identity, model)) {
        return Ok(false);
    }
    if !sparse {
        return Ok(true);
    }
    let folder = path.parent().map_or_else(PathBuf::new, Path::to_owned);
    let of_model = file.try_clone().map_err(|error| error.to_string())?;
    let checked = tokio::task::spawn_blocking(move || sparse::check(&folder, &of_model, model)).await;
    match checked.map_err(|error| error.to_string())? {
        // As it was before it was read: what was written meanwhile is looked at the next time.
        Ok(Some(_)) => remember(identity, model),
        Ok(None) => return Ok(true),
        Err(Error::Mismatch { what }) => {
            return Err(format!(
                "{}: {what} changed since it was fetched, this is not the model any more; `shoal model rm` it and pull it \
                 again",
                path.display()
            ));
        }
        Err(error) => return Err(error.to_string()),
    }
    Ok(false)
}

/// A worker hashed the file: it is `model`.
pub(super) fn checked(file: &File, model: ModelId) {
    if let Ok(identity) = files::stamp(file) {
        remember(identity, model);
    }
}

fn remember(identity: Stamp, model: ModelId) {
    let mut checked = lock(&CHECKED);
    checked.retain(|(other, _)| other.place != identity.place);
    checked.push_back((identity, model));
    if checked.len() > MAX_FILES {
        checked.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write, os::unix::fs::FileExt, sync::Arc};

    use p2p::blob::{GROUP_BYTES, Outboard, SparseFile};

    use super::*;

    #[tokio::test]
    async fn a_file_is_hashed_again_when_it_was_written_or_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        fs::write(&path, "weights").unwrap();
        let open = || File::open(&path).unwrap();
        let must = async |model| must_be_hashed(&path, &open(), model).await.unwrap();
        let model = ModelId::new([7; 32]);
        assert!(must(model).await);
        checked(&open(), model);
        assert!(!must(model).await, "nothing changed");
        assert!(must(ModelId::new([8; 32])).await, "another hash was found");
        // Another file under the same name, of the same length.
        fs::write(folder.path().join("other"), "weighed").unwrap();
        fs::rename(folder.path().join("other"), &path).unwrap();
        assert!(must(model).await);
        checked(&open(), model);
        fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"more").unwrap();
        assert!(must(model).await, "it is longer");
    }

    #[tokio::test]
    async fn what_is_there_of_a_file_with_holes_is_held_against_the_tree() {
        let folder = tempfile::tempdir().unwrap();
        let data: Vec<u8> = (0..GROUP_BYTES * 4).map(|at| (at * 31 % 251) as u8).collect();
        let whole = folder.path().join("whole");
        fs::write(&whole, &data).unwrap();
        let (tree, encoded) = Outboard::make(&whole, &mut |_| true).unwrap();
        let model = tree.id();
        let held = folder.path().join("held");
        let mut sparse = SparseFile::open(&held, Arc::new(tree), &encoded).unwrap();
        let group = |at: usize| &data[at * GROUP_BYTES as usize..][..GROUP_BYTES as usize];
        for at in [0, 2] {
            assert!(sparse.write(at as u32, group(at)).unwrap());
        }
        sparse.checkpoint().commit().unwrap();
        let path = sparse.path();
        drop(sparse);
        let file = File::options().read(true).write(true).open(&path).unwrap();
        if !of(&file).unwrap().1 {
            // A file system without holes.
            return;
        }
        assert_eq!(must_be_hashed(&path, &file, model).await, Ok(false));
        // One byte of a group that is there.
        let at = 2 * GROUP_BYTES + 17;
        file.write_all_at(&[!data[at as usize]], at).unwrap();
        let refused = must_be_hashed(&path, &file, model).await.unwrap_err();
        assert!(refused.contains("group 2"), "{refused}");
        file.write_all_at(&[data[at as usize]], at).unwrap();
        assert_eq!(must_be_hashed(&path, &file, model).await, Ok(false));
        // Without a record it is hashed as a whole, which tells.
        let bare = folder.path().join("bare");
        let file = File::create_new(&bare).unwrap();
        file.set_len(64 << 20).unwrap();
        assert_eq!(must_be_hashed(&bare, &file, model).await, Ok(true));
    }
}
