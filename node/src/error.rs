//! What a command can end with, and what the user can do about it.

use std::{fmt, io};

/// The result of every command.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a command failed.
#[derive(Debug)]
pub enum Error {
    /// The engine refused a file or a request.
    Engine(shard::Error),
    /// A model could not be fetched, kept or handed out.
    Model(p2p::blob::Error),
    /// Reading input or writing output failed.
    Io(io::Error),
    /// The command line asks for something that cannot be done as given.
    Usage(String),
    /// A check the user asked for did not pass.
    Failed(String),
    /// The user stopped it; what was done so far has been shown.
    Interrupted,
}

impl Error {
    /// Something the user should change about the command line.
    pub fn usage(why: impl Into<String>) -> Self {
        Self::Usage(why.into())
    }

    /// Whether the reader of our output went away, which is no error of ours.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Io(e) if e.kind() == io::ErrorKind::BrokenPipe)
    }

    /// What to try next, where there is something to try.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Engine(shard::Error::Malformed { .. }) => {
                Some("the file is damaged or not what it should be; fetch it again or check its checksum")
            }
            Self::Engine(shard::Error::Unsupported { .. }) => Some(
                "`shoal model inspect FILE` shows what the file asks for; the README lists what is supported",
            ),
            Self::Model(p2p::blob::Error::NoSource { .. }) => Some(
                "name a mirror with --from URL, or run `shoal join` so that peers are asked; what was fetched is kept",
            ),
            _ => None,
        }
    }

    /// 2 for a wrong command line, one that names a file that is not there among them, 130 after Ctrl-C, 1 for everything else.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Engine(shard::Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => 2,
            // 128 + SIGINT, as shells report it.
            Self::Interrupted => 130,
            _ => 1,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Engine(e) => e.fmt(f),
            Self::Model(e) => e.fmt(f),
            Self::Io(e) => e.fmt(f),
            Self::Usage(why) | Self::Failed(why) => f.write_str(why),
            Self::Interrupted => f.write_str("stopped before the end"),
        }
    }
}

impl std::error::Error for Error {}

impl From<shard::Error> for Error {
    fn from(e: shard::Error) -> Self {
        Self::Engine(e)
    }
}

impl From<p2p::blob::Error> for Error {
    fn from(e: p2p::blob::Error) -> Self {
        match e {
            p2p::blob::Error::Stopped => Self::Interrupted,
            e => Self::Model(e),
        }
    }
}

impl From<io::Error> for Error {
    fn from(e: io::Error) -> Self {
        Self::Io(e)
    }
}

impl From<serde_json::Error> for Error {
    fn from(e: serde_json::Error) -> Self {
        if e.is_io() { Self::Io(e.into()) } else { Self::Usage(format!("not valid JSON: {e}")) }
    }
}
