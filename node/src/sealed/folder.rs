//! A folder of sealed files: each is written whole, and its bytes are overwritten when it is replaced or deleted.
//!
//! ```text
//! conversations/0f1e2d..       (mode 0600)
//! = 9c1b..                     a salt, in hex
//! Xk3v0m..                     line 1
//! 9bQv2x..                     line 2
//! ```
//!
//! Every change writes a file under another salt and puts it in the place of the old one, so that after a crash it is the old
//! one or the new one. A file is overwritten with zeros before it is deleted and when it is replaced, so that its bytes are
//! gone where the file system writes in place; where it never does (copy on write, flash memory), and after a crash in that
//! moment, what is left is encrypted, and unreadable without `identity.key`. A file that a crash left half written goes the
//! same way before the next change. Several processes of one data folder take turns by a lock.

use std::{
    fs::{self, File, Metadata, OpenOptions},
    io::{self, BufRead, BufReader, Read, Seek, Write},
    path::{Path, PathBuf},
};

use data_encoding::HEXLOWER;

use super::{SALT, Seal, salt, secret};
use crate::{
    Error, Result,
    platform::files::{OwnerOnly, stamp, stamp_at},
};

/// A reader of a file that is replaced under it reads the next one, so many times.
const READS: usize = 8;

/// A folder below a data folder.
#[derive(Debug)]
pub(crate) struct SealedFolder {
    pub(crate) home: PathBuf,
    /// What it is called below `home`; the lock's file is called so too.
    pub(crate) name: &'static str,
    /// What the identity's secret for its files is called.
    pub(crate) purpose: &'static str,
    /// Longest file.
    pub(crate) max_file_bytes: u64,
}

/// What lines of the files of a folder are read with.
pub(crate) struct Secret([u8; 32]);

impl SealedFolder {
    pub(crate) fn path(&self) -> PathBuf {
        self.home.join(self.name)
    }

    pub(crate) fn secret(&self) -> Result<Secret> {
        secret(&self.home, self.purpose).map(Secret)
    }

    /// Makes the folder, holds other writers off until the result is dropped, and removes what one that was killed left.
    pub(crate) fn lock(&self) -> Result<File> {
        fs::DirBuilder::new().recursive(true).owner_only().create(self.path())?;
        let mut options = OpenOptions::new();
        let file = options.create(true).truncate(false).write(true).owner_only();
        let file = file.open(self.home.join(format!("{}.lock", self.name)))?;
        file.lock()?;
        for entry in fs::read_dir(self.path())? {
            let path = entry?.path();
            if path.extension().is_some_and(|end| end == "new") {
                scrub(&path)?;
            }
        }
        Ok(file)
    }

    /// The files whose names `are_theirs`, with what the system says of each.
    pub(crate) fn files(&self, are_theirs: fn(&str) -> bool) -> Vec<(String, Metadata)> {
        let entries = fs::read_dir(self.path()).into_iter().flatten().flatten();
        let named = entries.filter_map(|entry| {
            let name = entry.file_name().into_string().ok().filter(|name| are_theirs(name))?;
            Some((name, entry.metadata().ok()?))
        });
        named.collect()
    }

    /// The payload of line `wanted` of a file, 1 for the first after the salt; `None` without that file.
    pub(crate) fn line(&self, secret: &Secret, name: &str, wanted: u64) -> Result<Option<Vec<u8>>> {
        let path = self.path().join(name);
        let mut reads = 1;
        loop {
            let file = match File::open(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                file => file?,
            };
            let opened = stamp(&file)?.place;
            let read = self.line_of(&file, secret, name, wanted);
            // One that was replaced after it was opened is zeros. It is held open: no other file has its number.
            let replaced = || stamp_at(&path).map_or(true, |about| about.place != opened);
            if reads == READS || read.is_ok() || !replaced() {
                return read.map(Some);
            }
            reads += 1;
        }
    }

    fn line_of(&self, file: &File, secret: &Secret, name: &str, wanted: u64) -> Result<Vec<u8>> {
        let mut lines = BufReader::new(file.take(self.max_file_bytes)).split(b'\n');
        let damaged = || Error::Failed(format!("a file of {} is damaged", self.name));
        let mut next = || lines.next().transpose()?.ok_or_else(damaged);
        let salt = next()?;
        let salt = salt.strip_prefix(SALT.as_bytes()).and_then(|salt| HEXLOWER.decode(salt).ok());
        let seal = Seal::of(&secret.0, name, &salt.ok_or_else(damaged)?);
        for _ in 1..wanted {
            next()?;
        }
        seal.open(wanted, &next()?).ok_or_else(damaged)
    }

    /// Writes a file of sealed lines in the place of the one that is there. The caller holds the lock.
    pub(crate) fn write(&self, name: &str, lines: &[String]) -> Result<()> {
        let (path, fresh) = (self.path().join(name), self.path().join(format!("{name}.new")));
        let salt = salt()?;
        let seal = Seal::of(&self.secret()?.0, name, &salt);
        let mut text = format!("{SALT}{}\n", HEXLOWER.encode(&salt));
        for (at, line) in lines.iter().enumerate() {
            text.push_str(&seal.close(at as u64 + 1, line)?);
            text.push('\n');
        }
        let old = OpenOptions::new().write(true).open(&path).ok();
        let replace = || {
            let mut file = OpenOptions::new().create_new(true).write(true).owner_only().open(&fresh)?;
            file.write_all(text.as_bytes())?;
            file.sync_data()?;
            fs::rename(&fresh, &path)?;
            p2p::blob::sparse::sync_folder(&self.path())?;
            old.map_or(Ok(()), |mut old| erase(&mut old))
        };
        Ok(replace().inspect_err(|_| drop(scrub(&fresh)))?)
    }

    /// Deletes a file; whether there was one. The caller holds the lock.
    pub(crate) fn remove(&self, name: &str) -> Result<bool> {
        // Its name goes first: a reader finds the file or none, and never one that is erased.
        let gone = self.path().join(format!("{name}.new"));
        match fs::rename(self.path().join(name), &gone) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            renamed => renamed?,
        }
        scrub(&gone)?;
        p2p::blob::sparse::sync_folder(&self.path())?;
        Ok(true)
    }
}

/// Overwrites and deletes a file; whether there was one.
fn scrub(path: &Path) -> io::Result<bool> {
    match OpenOptions::new().write(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        file => erase(&mut file?)?,
    }
    fs::remove_file(path)?;
    Ok(true)
}

/// Overwrites what is in a file.
fn erase(file: &mut File) -> io::Result<()> {
    let bytes = file.metadata()?.len();
    file.rewind()?;
    io::copy(&mut io::repeat(0).take(bytes), file)?;
    file.sync_data()
}
