//! Models by content: any byte of a model from any source, checked before it is used.
//!
//! The name of a model is the BLAKE3 hash of its GGUF file. BLAKE3 is a hash tree, so with the tree's inner nodes at
//! hand ([`Outboard`], 0.1 % of the file) every group of [`GROUP_BYTES`] can be checked by itself. A node that serves
//! a few layers therefore fetches only their bytes, from any source that has them, and a liar is caught within one
//! group.
//!
//! ```text
//! name ──> outboard (tree, proven against the name) ──> pull: which groups are wanted and missing
//!                                                        │ claims of some groups each
//!                              peer stream ──────────────┤
//!                              peer stream ──────────────┼──> check ──> sparse file + bitmap ──> GGUF
//!                              HTTP(S) mirror ───────────┘
//! ```
//!
//! - [`outboard`] makes the tree of a file and proves a received one;
//! - [`groups`] is the set of groups, [`sparse`] the file on disk that is allowed to have holes;
//! - [`wire`] is what peers say to each other, [`serve`](mod@serve) answers it, [`pack`] makes groups shorter for it;
//! - [`source`] is the trait, [`peer`] and [`http`] are its two kinds;
//! - [`plan`] says who fetches what next, [`pace`] how fast at most, [`pull`](mod@pull) runs it all;
//! - [`plain`] fetches a whole file whose tree no source offers, checked only when it is complete.
//!
//! Limits: files from 1 byte to [`MAX_FILE_BYTES`]; the tree of a file is held in memory while it is pulled or served
//! (32 bytes per group: 20 MiB for a 40 GiB model); Unix only, for positioned reads and writes.

#![allow(clippy::single_range_in_vec_init, reason = "lists of byte ranges, often of one, are meant as such")]

mod file_at;
pub mod groups;
pub mod http;
pub mod outboard;
pub mod pace;
mod pack;
pub mod peer;
pub mod plain;
pub mod plan;
pub mod pull;
pub mod serve;
pub mod source;
pub mod sparse;
#[cfg(test)]
mod testing;
pub mod wire;

use std::{fmt, io, path::PathBuf};

pub use file_at::FileAt;
pub use groups::GroupSet;
pub use http::HttpSource;
pub use outboard::Outboard;
pub use pace::Pace;
pub use peer::PeerSource;
pub use pull::{Event, Options, Report, pull};
pub use serve::{Held, Shelf, serve};
pub use source::{Described, Source, SourceError};
pub use sparse::SparseFile;
pub use wire::Form;

/// Binary logarithm of [`GROUP_BYTES`] in BLAKE3 chunks of 1 KiB.
pub(crate) const GROUP_LOG: u8 = 6;

/// The unit that is checked, marked as present and asked for: 64 KiB.
///
/// Tensors of real models are megabytes, so rounding a layer to groups costs well under 1 %. Smaller groups grow the
/// tree, which every holder fetches whole (16 KiB: 0.4 % of the file instead of 0.1 %); larger ones let a liar waste
/// more before he is caught and take longer than 1 s on a 0.5 Mbit/s line. Part of the file and wire formats.
pub const GROUP_BYTES: u64 = 1024 << GROUP_LOG;

/// Largest file: 1 TiB, twice the largest published model in f16. The tree of one takes 512 MiB.
pub const MAX_FILE_BYTES: u64 = 1 << 40;

/// The number of groups of a file of `bytes`.
pub fn group_count(bytes: u64) -> u32 {
    // At most 2^24, for files up to MAX_FILE_BYTES.
    bytes.div_ceil(GROUP_BYTES).min(u64::from(u32::MAX)) as u32
}

/// Bytes of group `group` of a file of `bytes`; 0 beyond its end.
pub fn group_len(bytes: u64, group: u32) -> usize {
    let start = u64::from(group) * GROUP_BYTES;
    bytes.saturating_sub(start).min(GROUP_BYTES) as usize
}

/// Why models cannot be moved, named by what the caller does next.
#[derive(Debug)]
pub enum Error {
    /// The operating system refused; `path` says where.
    Io {
        /// The file or folder concerned.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The bytes are not those the name stands for: never use them, drop who sent them.
    Mismatch {
        /// Which bytes, as a phrase.
        what: String,
    },
    /// A file of ours is damaged: remove it and start again.
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// It needs more disk than was offered.
    TooLarge {
        /// Bytes it would take in all.
        needed: u64,
        /// Bytes it may take.
        offered: u64,
    },
    /// Another process works on the same model.
    Locked {
        /// Its folder.
        path: PathBuf,
    },
    /// No source is left that has what is missing.
    NoSource {
        /// Groups still missing.
        missing: u32,
        /// Why each source was given up.
        why: Vec<String>,
    },
    /// The one source there was failed.
    Source(SourceError),
    /// The caller asked it to stop; what was done is kept.
    Stopped,
}

impl Error {
    pub(crate) fn io(path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::Io { path: path.into(), source }
    }

    pub(crate) fn mismatch(what: impl Into<String>) -> Self {
        Self::Mismatch { what: what.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { path, source } => write!(f, "{}: {source}", path.display()),
            Self::Mismatch { what } => write!(f, "{what} does not belong to this model"),
            Self::Damaged { path, why } => {
                write!(f, "{} is damaged: {why}; remove it and pull again", path.display())
            }
            Self::TooLarge { needed, offered } => {
                write!(
                    f,
                    "this takes {needed} bytes of disk and {offered} are offered; raise the cap or take fewer layers"
                )
            }
            Self::Locked { path } => {
                write!(f, "another process works on {}; wait for it or stop it", path.display())
            }
            Self::NoSource { missing, why } => {
                write!(f, "{missing} groups of 64 KiB are missing and no source is left that has them")?;
                why.iter().try_for_each(|why| write!(f, "; {why}"))
            }
            Self::Source(e) => e.fmt(f),
            Self::Stopped => f.write_str("stopped before the end"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::Source(e) => Some(e),
            _ => None,
        }
    }
}

impl From<SourceError> for Error {
    fn from(e: SourceError) -> Self {
        Self::Source(e)
    }
}
