//! A log that takes no more than its room on the disk.
//!
//! ```text
//! FILE      what is being written, up to MAX_BYTES; then it becomes
//! FILE.1    what was written before, which replaces the one before it
//! ```
//!
//! Several processes may write one file: lines are appended whole, the one that finds it full renames it, and the others follow
//! within [`LOOK_EVERY`]. Limits: by what is written in that time a file may become larger; what cannot be opened again, as in a
//! sandbox, goes on growing.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use tracing_subscriber::fmt::MakeWriter;

use crate::platform::files::OwnerOnly;

/// Bytes of a file.
const MAX_BYTES: u64 = 16 << 20;
/// How often it is looked which file is the one to write, and how long it is.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The file and the one before it.
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    most: u64,
    open: Mutex<Open>,
}

#[derive(Debug)]
struct Open {
    file: File,
    /// Of the file when it was opened, and what this process has added.
    bytes: u64,
    opened: Instant,
}

impl Open {
    fn new(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).owner_only().open(path)?;
        let bytes = file.metadata()?.len();
        Ok(Self { file, bytes, opened: Instant::now() })
    }
}

impl LogFile {
    /// Goes on with the file at `path`, or makes it, for its owner only.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::with(path, MAX_BYTES)
    }

    fn with(path: &Path, most: u64) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), most, open: Mutex::new(Open::new(path)?) })
    }

    /// Opens what is the file now, and begins a new one where it is full.
    fn look(&self, open: &mut Open) -> io::Result<()> {
        *open = Open::new(&self.path)?;
        if open.bytes >= self.most {
            let before = [self.path.as_os_str(), ".1".as_ref()].into_iter().collect::<OsString>();
            fs::rename(&self.path, before)?;
            *open = Open::new(&self.path)?;
        }
        Ok(())
    }
}

impl Write for &LogFile {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = open.bytes >= self.most || open.opened.elapsed() >= LOOK_EVERY;
        if is_due && self.look(&mut open).is_err() {
            // It is tried again after a while.
            (open.bytes, open.opened) = (0, Instant::now());
        }
        let written = open.file.write(line)?;
        open.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogFile {
    type Writer = &'a LogFile;

    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_log_becomes_the_one_before_and_no_line_is_torn() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("node.log");
        let (one, other) = (LogFile::with(&path, 1000).unwrap(), LogFile::with(&path, 1000).unwrap());
        for line in 0..200 {
            for mut log in [&one, &other] {
                writeln!(log, "{line:>49}").unwrap();
            }
        }
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        let (now, before) = (read("node.log"), read("node.log.1"));
        assert!(now.len() <= 2100 && (1000..=2100).contains(&before.len()), "{} {}", now.len(), before.len());
        assert!(now.lines().chain(before.lines()).all(|line| line.len() == 49));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing else is kept");
        let last = now.lines().chain(before.lines()).any(|line| line.trim() == "199");
        assert!(last, "the newest line is there");
    }
}
