//! What can go wrong, named by what the caller will do next.

use std::fmt;
use std::path::PathBuf;

/// A failure of the network itself or of a request to it.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A file of ours could not be read or written.
    File {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The key file is not a key of ours, or others may read it.
    Key {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it and what to do.
        why: &'static str,
    },
    /// The system gave no random bytes.
    Random(getrandom::Error),
    /// An address that cannot be used.
    Address {
        /// The address as given.
        address: String,
        /// What is wrong with it and what to do.
        why: String,
    },
    /// No transport could be built or no address could be listened on.
    Listen(String),
    /// The link that was asked for cannot be used here; it says what to do.
    Link(String),
    /// No node was reached under any of the addresses tried.
    Unreachable(String),
    /// More than the network takes: try again later or send less.
    Full(&'static str),
    /// An announcement that may not be published.
    Announcement(String),
    /// An invite that cannot be read.
    Invite(&'static str),
    /// The network has been shut down.
    Closed,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, source } => write!(f, "cannot use {}: {source}", path.display()),
            Self::Key { path, why } => write!(f, "key file {}: {why}", path.display()),
            Self::Random(source) => write!(f, "the system gave no random bytes: {source}"),
            Self::Address { address, why } => write!(f, "address {address:?}: {why}"),
            Self::Listen(why) => write!(f, "cannot listen: {why}"),
            Self::Link(why) => f.write_str(why),
            Self::Unreachable(why) => write!(f, "no node reached: {why}"),
            Self::Full(what) => write!(f, "{what} is full, try again later"),
            Self::Announcement(why) => write!(f, "announcement not published: {why}"),
            Self::Invite(why) => write!(f, "not an invite: {why}"),
            Self::Closed => f.write_str("the network has been shut down"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::File { source, .. } => Some(source),
            Self::Random(source) => Some(source),
            _ => None,
        }
    }
}

#[cfg(feature = "net")]
impl Error {
    /// The complaint about an address that does not parse.
    pub(crate) fn address(address: &str, why: libp2p::multiaddr::Error) -> Self {
        Self::Address { address: address.to_owned(), why: why.to_string() }
    }
}

/// Shorthand for this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What became of a request to one peer; each maps to one move of a recovery.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HopError {
    /// The peer, or our own bound on it, said no: choose another, this one is alive.
    Refused(String),
    /// Nothing came in the time given: the peer is suspect.
    Timeout,
    /// The connection or stream is gone: the peer is dead until it reconnects.
    Closed,
    /// What came cannot be read: do not use this peer again for this work.
    Corrupt,
}

impl fmt::Display for HopError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(why) => write!(f, "the peer refused: {why}"),
            Self::Timeout => f.write_str("the peer did not answer in time"),
            Self::Closed => f.write_str("the connection to the peer is closed"),
            Self::Corrupt => f.write_str("the peer sent what cannot be read"),
        }
    }
}

impl std::error::Error for HopError {}
