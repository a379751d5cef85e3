//! Packed weights on disk, with which a model that was loaded before starts at once: `--panel-cache`.
//!
//! The processor reads weights in panels, which packing makes of a model's file ([`shard::kernels::panel_file`]). A process that may
//! open files opens or makes the file of a model's panels here; the process that computes gets its descriptor with those of the
//! model ([`Located::panels`]), maps what it holds, or packs and writes.
//!
//! One file belongs to one state of a model's files (where they are, how long, when last changed) and to the layers that are loaded.
//! Only a file without its magic is written to: it is new, or its writer was stopped; one process has its lock. A whole file is only
//! read and deleted, so that what processes have mapped never changes.
//!
//! Limits: files that are not used for longest are deleted where the folder is full; a process that has one mapped keeps its bytes
//! until it ends. A model moved or touched is packed again.

use std::{
    fs::{self, DirBuilder, File, FileTimes, OpenOptions},
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use data_encoding::HEXLOWER;
use scheduler::LayerRange;
use shard::kernels::panel_file::MAGIC;

use crate::{
    Result,
    library::Located,
    platform::{
        Stamp,
        files::{self, FileAt, OwnerOnly},
    },
};

/// What the panels of all models may take unless the user says otherwise.
pub const DEFAULT_BYTES: u64 = 8 << 30;
/// A smaller model is packed in less time than a person notices.
const LEAST_BYTES: u64 = 32 << 20;
/// A disk keeps so many times free what is written.
const FREE: u64 = 4;

/// `located` with its file of panels in the data folder `home`, which holds at most `most_bytes` of them, for `layers`, none for
/// all. Without it where that is too little, where the disk is nearly full, and where another process writes it just now.
pub fn attach(located: Located, home: &Path, layers: &[LayerRange], most_bytes: u64) -> Located {
    let panels = open(&located, home, layers, most_bytes).unwrap_or_else(|error| {
        tracing::warn!(%error, "weights are packed at each start: their folder cannot be used");
        None
    });
    Located { panels: panels.map(Arc::new), ..located }
}

fn open(located: &Located, home: &Path, layers: &[LayerRange], most_bytes: u64) -> Result<Option<File>> {
    let model_bytes: u64 = located.files().map(|(_, bytes)| bytes).sum();
    // Panels take some percent more than the file.
    let bytes = model_bytes + model_bytes / 16;
    // Where locks keep other processes from writing, the one that computes could not write what this one locks.
    if cfg!(windows) || model_bytes < LEAST_BYTES || bytes > most_bytes {
        return Ok(None);
    }
    let folder = home.join("panels");
    DirBuilder::new().recursive(true).owner_only().create(&folder)?;
    let path = folder.join(name(located, layers)?);
    if let Some(file) = whole(&path) {
        // When it was used last.
        let _ = file.set_times(FileTimes::new().set_modified(SystemTime::now()));
        return Ok(Some(file));
    }
    if let Ok(file) = File::open(&path) {
        if file.try_lock().is_err() {
            return Ok(None);
        }
        fs::remove_file(&path)?;
    }
    make_room(&folder, most_bytes - bytes)?;
    if files::free_bytes(&folder)? < FREE * bytes {
        return Ok(None);
    }
    let file = OpenOptions::new().read(true).write(true).create_new(true).owner_only().open(&path)?;
    Ok(file.try_lock().is_ok().then_some(file))
}

/// The file at `path`, if it was written to its end.
fn whole(path: &Path) -> Option<File> {
    let file = OpenOptions::new().read(true).write(true).open(path).ok()?;
    let mut magic = [0; MAGIC.len()];
    file.read_exact_at(&mut magic, 0).ok()?;
    (magic == MAGIC).then_some(file)
}

/// What a file is called: all that would make other panels.
fn name(located: &Located, layers: &[LayerRange]) -> Result<String> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&MAGIC).update(located.path.as_os_str().as_encoded_bytes());
    for (file, bytes) in located.files() {
        let Stamp { place: (on, number), written, changed, .. } = files::stamp(file)?;
        hasher.update(format!("|{bytes} {on} {number} {changed:?} {written:?}").as_bytes());
    }
    for layers in layers {
        hasher.update(format!("|{layers:?}").as_bytes());
    }
    Ok(HEXLOWER.encode(&hasher.finalize().as_bytes()[..16]))
}

/// Deletes what was not used for longest until no more than `most_bytes` are left; what is being written stays.
fn make_room(folder: &Path, most_bytes: u64) -> Result<()> {
    let about = |entry: fs::DirEntry| {
        let about = entry.metadata().ok().filter(fs::Metadata::is_file)?;
        Some((about.modified().ok()?, about.len(), entry.path()))
    };
    let mut files: Vec<(SystemTime, u64, PathBuf)> =
        fs::read_dir(folder)?.flatten().filter_map(about).collect();
    files.sort();
    let mut all: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
    for (_, bytes, path) in files {
        if all <= most_bytes {
            break;
        }
        // A process that read a whole one has no lock on it, and keeps what it mapped.
        let idle = whole(&path).is_some() || File::open(&path).is_ok_and(|file| file.try_lock().is_ok());
        if idle && fs::remove_file(&path).is_ok() {
            all -= bytes;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    const BYTES: u64 = LEAST_BYTES;
    const FITS: u64 = BYTES + BYTES / 16;

    /// A file as large as a model.
    fn model(folder: &Path, name: &str) -> Located {
        let path = folder.join(name);
        File::create(&path).unwrap().set_len(BYTES).unwrap();
        Located::open(&path).unwrap()
    }

    fn files(home: &Path) -> usize {
        fs::read_dir(home.join("panels")).map_or(0, Iterator::count)
    }

    #[test]
    fn one_process_writes_and_many_read() {
        let home = tempfile::tempdir().unwrap();
        let located = model(home.path(), "a.gguf");
        let open = || open(&located, home.path(), &[], FITS).unwrap();
        let writer = open().unwrap();
        assert!(open().is_none(), "it is being written");
        drop(writer);
        // A writer that was stopped.
        let writer = open().unwrap();
        writer.write_all_at(&MAGIC, 0).unwrap();
        let (first, second) = (open().unwrap(), open().unwrap());
        assert_eq!(first.metadata().unwrap().ino(), second.metadata().unwrap().ino());
        // One that finds damage marks it, and the next makes another.
        first.write_all_at(&[0; 8], 0).unwrap();
        drop((writer, first));
        let third = open().unwrap();
        assert_ne!(third.metadata().unwrap().ino(), second.metadata().unwrap().ino());
        assert_eq!(third.metadata().unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn what_was_changed_is_another_model_and_the_oldest_gives_way() {
        let home = tempfile::tempdir().unwrap();
        let write = |located: &Located, layers: &[LayerRange], most| {
            let file = open(located, home.path(), layers, most).unwrap().unwrap();
            if file.metadata().unwrap().len() == 0 {
                file.set_len(FITS).unwrap();
                file.write_all_at(&MAGIC, 0).unwrap();
                // Written long ago; each use says when it was.
                file.set_times(FileTimes::new().set_modified(SystemTime::UNIX_EPOCH)).unwrap();
            }
            file.metadata().unwrap().ino()
        };
        let (first, second) = (model(home.path(), "a.gguf"), model(home.path(), "b.gguf"));
        let all = write(&first, &[], 2 * FITS);
        let part = write(&first, &[LayerRange::new(0, 2).unwrap()], 2 * FITS);
        assert_ne!(all, part);
        assert_eq!(write(&first, &[], 2 * FITS), all, "used again, so the other is older");
        write(&second, &[], 2 * FITS);
        assert_eq!(files(home.path()), 2);
        assert_eq!(write(&first, &[], 2 * FITS), all);
        let written = OpenOptions::new().write(true).open(&first.path).unwrap();
        written.set_times(FileTimes::new().set_modified(SystemTime::UNIX_EPOCH)).unwrap();
        assert_ne!(write(&first, &[], 9 * FITS), all, "a file that was changed");
    }

    #[test]
    fn small_models_and_small_limits_have_no_file() {
        let home = tempfile::tempdir().unwrap();
        let located = model(home.path(), "a.gguf");
        assert!(open(&located, home.path(), &[], FITS - 1).unwrap().is_none());
        assert!(open(&located, home.path(), &[], 0).unwrap().is_none(), "off");
        File::options().write(true).open(&located.path).unwrap().set_len(BYTES - 1).unwrap();
        let small = Located::open(&located.path).unwrap();
        assert!(open(&small, home.path(), &[], FITS).unwrap().is_none());
        assert_eq!(files(home.path()), 0);
    }
}
