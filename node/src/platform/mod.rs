//! What systems do differently: files that only their owner may read, streams between processes of this machine, and the files
//! that one hands to the other.
//!
//! | what | Unix | Windows |
//! |---|---|---|
//! | a process and its child | a socket pair, whose end is the child's standard input | TCP on loopback: the child reads port and secret from its standard input |
//! | files for the child | descriptors over the socket | their names: the child opens them |
//! | commands and the node | a socket in the data folder | a named pipe, whose name is in a file in the data folder |
//! | private files and folders | their modes | the folder's: a user's own are not open to others |
//! | which file it is | device and number | volume and index |
//!
//! Each of the two folders has the same names. Sandboxes and limits of processes are in [`crate::confine`].

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
use unix as system;
#[cfg(windows)]
use windows as system;

pub use system::{control_socket, files, handed_files, output, streams};

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
};

/// This program, to be started as a child that speaks the same protocol. Where its file was replaced since it was started, the
/// system may still have the old one.
///
/// # Errors
/// Those of the system.
pub fn program() -> io::Result<PathBuf> {
    let path = std::env::current_exe()?;
    Ok(if cfg!(target_os = "linux") && !path.exists() { PathBuf::from("/proc/self/exe") } else { path })
}

/// What tells a file from others and from itself before it was written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Where it is, and its number there.
    pub place: (u64, u64),
    /// Its length.
    pub bytes: u64,
    /// When it was written, in the system's units.
    pub written: (i64, i64),
    /// When it or what is known of it changed, where the system says so.
    pub changed: (i64, i64),
}

/// An open file for another process.
#[derive(Clone, Copy, Debug)]
pub struct Handed<'a> {
    /// The file.
    pub file: &'a File,
    /// Where it is.
    pub path: &'a Path,
    /// Whether it is written to.
    pub write: bool,
}

impl<'a> Handed<'a> {
    /// One that is read.
    pub fn read(file: &'a File, path: &'a Path) -> Self {
        Self { file, path, write: false }
    }

    /// One that is written.
    pub fn write(file: &'a File, path: &'a Path) -> Self {
        Self { file, path, write: true }
    }
}
