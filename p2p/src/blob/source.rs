//! A source that may have the bytes of a model: a peer at the other end of a stream, or a web server.
//!
//! A source promises nothing. What it says is a claim until the tree confirms it: [`super::pull()`] checks every group
//! it hands over and drops it at the first that is wrong, late or missing.

use std::{fmt, io, ops::Range, time::Duration};

use futures::future::BoxFuture;
use scheduler::ModelId;

use super::{Error, GroupSet, Outboard, wire::Malformed};

/// What a source says it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// The length of the file.
    pub bytes: u64,
    /// The groups it has; `None` for all.
    pub have: Option<GroupSet>,
}

/// The proven tree of a model and the bytes to keep of it.
pub type Tree = (Outboard, Vec<u8>);

/// Why a source is of no use, at least for now.
#[derive(Debug)]
pub enum SourceError {
    /// It handed over bytes that are not the model's: never ask it again.
    Lied(String),
    /// It did not deliver one group in time.
    Slow,
    /// The connection broke.
    Closed(String),
    /// It does not have it, or does not give it.
    Refused(String),
}

impl SourceError {
    /// Whether the same source may do better in a moment.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Slow | Self::Closed(_))
    }
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lied(what) => write!(f, "it sent {what}, which does not belong to the model"),
            Self::Slow => f.write_str("it did not send 64 KiB in time"),
            Self::Closed(why) => write!(f, "the connection broke: {why}"),
            Self::Refused(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for SourceError {}

impl From<io::Error> for SourceError {
    fn from(e: io::Error) -> Self {
        match e.kind() {
            io::ErrorKind::TimedOut => Self::Slow,
            _ => Self::Closed(e.to_string()),
        }
    }
}

impl From<Malformed> for SourceError {
    fn from(e: Malformed) -> Self {
        Self::Lied(e.to_string())
    }
}

/// What proving a received tree can end with.
impl From<Error> for SourceError {
    fn from(e: Error) -> Self {
        match e {
            Error::Mismatch { what } => Self::Lied(what),
            Error::Io { source, .. } => source.into(),
            Error::Source(e) => e,
            other => Self::Refused(other.to_string()),
        }
    }
}

/// A source that may have the bytes of a model.
pub trait Source: Send {
    /// Who it is, for messages.
    fn name(&self) -> &str;

    /// How often it may break in a row before it is given up; 0 when a broken connection cannot be made again.
    fn retries(&self) -> u32;

    /// Asks what it has of `id`.
    fn describe(&mut self, id: ModelId) -> BoxFuture<'_, Result<Described, SourceError>>;

    /// Asks for the outboard of `id`, or, without one, of whatever file this source is about, and proves it. Each 64 KiB
    /// of it must arrive within `patience`; a file of more than `most` bytes is refused.
    fn tree(
        &mut self,
        id: Option<ModelId>,
        most: u64,
        patience: Duration,
    ) -> BoxFuture<'_, Result<Tree, SourceError>>;

    /// Asks for the groups of `run` of the file that `tree` proves; [`Source::next`] then hands them over one by one.
    /// What an earlier call asked for has been handed over or failed.
    fn start<'a>(&'a mut self, tree: &'a Outboard, run: Range<u32>)
    -> BoxFuture<'a, Result<(), SourceError>>;

    /// Fills `group`, which is as long as the next group, with its bytes as this source has them.
    fn next<'a>(&'a mut self, group: &'a mut [u8]) -> BoxFuture<'a, Result<(), SourceError>>;
}

/// The outboard of `id` from the first of `sources` that has it: those that are asked once before those that are asked again,
/// since a peer that has a model has its tree, and a web server seldom. Sources that lie are removed, with why they were.
///
/// # Errors
/// [`Error::NoSource`] if none has it.
pub async fn tree(
    sources: &mut Vec<Box<dyn Source>>,
    id: Option<ModelId>,
    most: u64,
    patience: Duration,
) -> Result<Tree, Error> {
    let mut why = Vec::new();
    sources.sort_by_key(|source| source.retries());
    let mut at = 0;
    while let Some(source) = sources.get_mut(at) {
        match source.tree(id, most, patience).await {
            Ok(tree) => return Ok(tree),
            Err(e) => {
                why.push(format!("{}: {e}", source.name()));
                match e {
                    SourceError::Lied(_) => drop(sources.remove(at)),
                    _ => at += 1,
                }
            }
        }
    }
    Err(Error::NoSource { missing: 0, why })
}
