//! Which files were held against their hash, and have not changed since.
//!
//! A model is announced by the hash of its file. A worker that starts again, after a death or for other layers, reads a file
//! that may be another by then, so it hashes the file unless the system says that nothing was written: device, number,
//! length and the times of the last write and change are those under which the hash was found.
//!
//! Limits: a file with holes, of which only some layers are here, has no hash of its own; what is in it was checked group by
//! group when it was fetched. Who can set a file's change time, or write below the file system, can deceive this.

use std::{collections::VecDeque, fs::File, os::unix::fs::MetadataExt, sync::Mutex};

use crate::confine::child::lock;

/// Files remembered, the oldest forgotten first: a node runs a few models.
const MAX_FILES: usize = 64;
/// Bytes of a block in which systems count.
const BLOCK_BYTES: u64 = 512;

/// What the system says of a file that changes with its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    place: (u64, u64),
    bytes: u64,
    written: (i64, i64),
    changed: (i64, i64),
}

static CHECKED: Mutex<VecDeque<(Identity, [u8; 32])>> = Mutex::new(VecDeque::new());

/// The identity of a file; `None` where it has holes or cannot be asked.
fn of(file: &File) -> Option<Identity> {
    let about = file.metadata().ok()?;
    let whole = about.blocks() * BLOCK_BYTES >= about.len();
    whole.then(|| Identity {
        place: (about.dev(), about.ino()),
        bytes: about.len(),
        written: (about.mtime(), about.mtime_nsec()),
        changed: (about.ctime(), about.ctime_nsec()),
    })
}

/// Whether a file must be read to know that its hash is `model`.
pub(super) fn must_be_hashed(file: &File, model: [u8; 32]) -> bool {
    of(file).is_some_and(|identity| !lock(&CHECKED).contains(&(identity, model)))
}

/// A worker found that the file's hash is `model`.
pub(super) fn checked(file: &File, model: [u8; 32]) {
    let Some(identity) = of(file) else { return };
    let mut checked = lock(&CHECKED);
    checked.retain(|(other, _)| other.place != identity.place);
    checked.push_back((identity, model));
    if checked.len() > MAX_FILES {
        checked.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write};

    use super::*;

    #[test]
    fn a_file_is_hashed_again_when_it_was_written_or_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        fs::write(&path, "weights").unwrap();
        let open = || File::open(&path).unwrap();
        let model = [7; 32];
        assert!(must_be_hashed(&open(), model));
        checked(&open(), model);
        assert!(!must_be_hashed(&open(), model), "nothing changed");
        assert!(must_be_hashed(&open(), [8; 32]), "another hash was found");
        // Another file under the same name, of the same length.
        fs::write(folder.path().join("other"), "weighed").unwrap();
        fs::rename(folder.path().join("other"), &path).unwrap();
        assert!(must_be_hashed(&open(), model));
        checked(&open(), model);
        fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"more").unwrap();
        assert!(must_be_hashed(&open(), model), "it is longer");
    }

    #[test]
    fn a_file_with_holes_has_no_hash_to_hold_it_against() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(64 << 20).unwrap();
        if file.metadata().unwrap().blocks() == 0 {
            assert!(!must_be_hashed(&file, [1; 32]));
        }
    }
}
