//! What can go wrong while computing, named by what the caller will do next.

use std::{fmt, io, path::PathBuf};

/// The result of everything in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// One variant per reaction: fix the path, refuse the file, choose another model, fix the request.
#[derive(Debug)]
pub enum Error {
    /// The operating system refused; `path` says where.
    Io {
        /// The file or folder concerned.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file breaks its format: it is damaged or hostile, do not use it.
    Malformed {
        /// The field of the format that is wrong, e.g. `tensor blk.0.attn_q.weight: offset`.
        field: String,
        /// What is wrong with it.
        why: String,
    },
    /// A well-formed file asks for something this build does not compute: choose another model.
    Unsupported {
        /// The architecture, format, tensor or tokenizer that is missing here.
        what: String,
    },
    /// The caller's request cannot be carried out as given: change the request.
    Invalid {
        /// What is wrong with the request, as a sentence for the user.
        why: String,
    },
}

impl Error {
    /// A damaged or hostile file: `field` is wrong because of `why`.
    pub fn malformed(field: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Malformed { field: field.into(), why: why.into() }
    }

    /// A sound file that needs `what`, which is not there.
    pub fn unsupported(what: impl Into<String>) -> Self {
        Self::Unsupported { what: what.into() }
    }

    /// A request that cannot be carried out.
    pub fn invalid(why: impl Into<String>) -> Self {
        Self::Invalid { why: why.into() }
    }

    /// An error of the operating system at `path`.
    pub fn io(path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::Io { path: path.into(), source }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { path, source } => write!(f, "{}: {source}", path.display()),
            Self::Malformed { field, why } => write!(f, "malformed file: {field}: {why}"),
            Self::Unsupported { what } => write!(f, "not supported: {what}"),
            Self::Invalid { why } => write!(f, "{why}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
