//! The hash tree of a model: made from a file, proven against a name, then the judge of every group.
//!
//! An outboard travels and is kept (`FILE.obao`) in one layout:
//!
//! ```text
//! 0   "SHOALOB1"                 8 bytes
//! 8   length of the file, u64 little-endian
//! 16  id: BLAKE3 of the file     32 bytes
//! 48  log2 of the group size: 16, then 15 zeros
//! 64  groups - 1 pairs of 64 bytes: left hash, right hash; parents before children, left before right
//! ..  the last group's bytes
//! ```
//!
//! A node of the tree over n > 1 groups has the largest power of two below n on its left, as BLAKE3 prescribes. The
//! reader knows what each pair must hash to before it arrives (the root's is the id), so the first wrong pair ends it
//! and memory grows only with what is proven. A pair says nothing about the file's length; the last group does: its
//! hash covers its place and length, so a tree that was cut short or a length that is off by a byte is refused here,
//! before any source is judged by it.
//!
//! `make` leaves the hashing to `bao-tree`.

use std::{
    fmt,
    fs::File,
    io::{self, Read},
    path::Path,
    time::Duration,
};

use bao_tree::{
    BaoTree, BlockSize,
    io::{outboard::PreOrderOutboard, sync::outboard},
};
use blake3::{
    Hasher,
    hazmat::{ChainingValue, HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root},
};
use scheduler::ModelId;
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    time::{Instant, timeout_at},
};

use super::{Error, GROUP_BYTES, GROUP_LOG, MAX_FILE_BYTES, group_count, group_len};

const MAGIC: &[u8; 8] = b"SHOALOB1";
/// Bytes before the first pair.
pub const HEADER_BYTES: usize = 64;
const PAIR_BYTES: usize = 64;

/// The proven hash tree of one file.
#[derive(Clone, PartialEq, Eq)]
pub struct Outboard {
    id: ModelId,
    bytes: u64,
    /// What each group must hash to, as a subtree of its own; for a file of one group the id.
    leaves: Vec<[u8; 32]>,
}

impl fmt::Debug for Outboard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Outboard of {} with {} bytes", self.id, self.bytes)
    }
}

/// Bytes of the outboard of a file of `bytes`, 0 for one that has none.
pub fn encoded_len(bytes: u64) -> u64 {
    match group_count(bytes).checked_sub(1) {
        Some(last) => {
            HEADER_BYTES as u64 + u64::from(last) * PAIR_BYTES as u64 + group_len(bytes, last) as u64
        }
        None => 0,
    }
}

impl Outboard {
    /// The name of the model.
    pub fn id(&self) -> ModelId {
        self.id
    }

    /// The length of the file.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The number of groups of the file.
    pub fn groups(&self) -> u32 {
        group_count(self.bytes)
    }

    /// Bytes of group `group`; 0 beyond the file.
    pub fn group_len(&self, group: u32) -> usize {
        group_len(self.bytes, group)
    }

    /// Whether `data` are the bytes of group `group`.
    pub fn check(&self, group: u32, data: &[u8]) -> bool {
        let Some(expected) = self.leaves.get(group as usize) else { return false };
        data.len() == self.group_len(group) && hash_group(group, data, self.leaves.len() == 1) == *expected
    }

    /// Hashes the file at `path` and returns its outboard and the bytes to keep or send.
    ///
    /// `progress` receives how many bytes have been hashed and returns whether to go on.
    ///
    /// # Errors
    /// [`Error::Stopped`] by `progress`; [`Error::Io`] when it cannot be read, or (kind `InvalidData`) is empty, larger
    /// than [`MAX_FILE_BYTES`] or changes its length meanwhile.
    pub fn make(path: &Path, progress: &mut dyn FnMut(u64) -> bool) -> Result<(Self, Vec<u8>), Error> {
        let io = |e| Error::io(path, e);
        let file = File::open(path).map_err(io)?;
        let bytes = file.metadata().map_err(io)?.len();
        if !(1..=MAX_FILE_BYTES).contains(&bytes) {
            let why = format!("{bytes} bytes cannot be a model; 1 to {MAX_FILE_BYTES} can");
            return Err(io(io::Error::new(io::ErrorKind::InvalidData, why)));
        }
        let tree = BaoTree::new(bytes, BlockSize::from_chunk_log(GROUP_LOG));
        let mut pairs = PreOrderOutboard { root: blake3::Hash::from([0; 32]), tree, data: Vec::new() };
        let reader = Watched { reader: &file, done: 0, last: Vec::new(), stopped: false, progress };
        let mut reader = io::BufReader::with_capacity(1 << 20, reader);
        let root = match outboard(&mut reader, tree, &mut pairs) {
            Err(_) if reader.get_ref().stopped => return Err(Error::Stopped),
            root => root.map_err(io)?,
        };
        if file.metadata().map_err(io)?.len() != bytes {
            return Err(io(io::Error::new(io::ErrorKind::InvalidData, "the file changes while it is read")));
        }
        let tail = group_len(bytes, group_count(bytes) - 1);
        let last = &reader.get_ref().last;
        let mut encoded = Vec::with_capacity(encoded_len(bytes) as usize);
        encoded.extend(header(bytes, root.as_bytes()));
        encoded.extend(&pairs.data);
        encoded.extend(&last[last.len() - tail..]);
        // Proving it also collects the leaves.
        Ok((Self::from_bytes(&encoded, Some(ModelId::new(*root.as_bytes())))?, encoded))
    }

    /// Proves an outboard that is in memory.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if it is not that of `id` (of the id it claims, without one), or not whole.
    pub fn from_bytes(encoded: &[u8], id: Option<ModelId>) -> Result<Self, Error> {
        let mut prover = Prover::new(id, MAX_FILE_BYTES);
        let mut rest = encoded;
        while prover.need() > 0 {
            let Some((next, after)) = rest.split_at_checked(prover.need()) else {
                return Err(Error::mismatch("a tree that ends too early"));
            };
            prover.feed(next)?;
            rest = after;
        }
        match rest {
            [] => Ok(prover.finish()),
            _ => Err(Error::mismatch("a tree with bytes behind it")),
        }
    }

    /// Reads and proves an outboard from a stream, pair by pair: at most one bad pair is read. Returns it and its bytes.
    /// `reader` should be buffered: it is asked for 64 bytes at a time.
    ///
    /// # Errors
    /// [`Error::Mismatch`] as for [`Outboard::from_bytes`], or for a file longer than `most` bytes; [`Error::Io`] of
    /// `reader`, of kind `TimedOut` when 64 KiB of it did not arrive within `patience`.
    pub async fn read<R: AsyncRead + Unpin>(
        reader: &mut R,
        id: Option<ModelId>,
        most: u64,
        patience: Duration,
    ) -> Result<(Self, Vec<u8>), Error> {
        let io = |e| Error::io("", e);
        let mut prover = Prover::new(id, most);
        let mut encoded = Vec::new();
        let (mut deadline, mut due) = (Instant::now() + patience, GROUP_BYTES as usize);
        while prover.need() > 0 {
            let start = encoded.len();
            encoded.resize(start + prover.need(), 0);
            let read = timeout_at(deadline, reader.read_exact(&mut encoded[start..])).await;
            read.map_err(|_| io(io::ErrorKind::TimedOut.into()))?.map_err(io)?;
            prover.feed(&encoded[start..])?;
            if encoded.len() >= due {
                (deadline, due) = (Instant::now() + patience, encoded.len() + GROUP_BYTES as usize);
            }
        }
        Ok((prover.finish(), encoded))
    }

    /// Reads and proves the outboard kept at `path`.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Damaged`] if it is not that of `id`.
    pub fn open(path: &Path, id: Option<ModelId>) -> Result<Self, Error> {
        let encoded = std::fs::read(path).map_err(|e| Error::io(path, e))?;
        Self::from_bytes(&encoded, id)
            .map_err(|e| Error::Damaged { path: path.to_owned(), why: e.to_string() })
    }
}

fn header(bytes: u64, id: &[u8; 32]) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(MAGIC);
    header[8..16].copy_from_slice(&bytes.to_le_bytes());
    header[16..48].copy_from_slice(id);
    header[48] = GROUP_BYTES.ilog2() as u8;
    header
}

/// What the group at `group` hashes to as a subtree, or as the whole file.
fn hash_group(group: u32, data: &[u8], whole: bool) -> [u8; 32] {
    let mut hasher = Hasher::new();
    match whole {
        true => *hasher.update(data).finalize().as_bytes(),
        false => {
            hasher.set_input_offset(u64::from(group) * GROUP_BYTES);
            hasher.update(data).finalize_non_root()
        }
    }
}

/// A node of the tree whose hash is known and whose children are not.
struct Open {
    groups: u32,
    hash: ChainingValue,
}

/// Checks an outboard piece by piece, in the order it is laid out.
struct Prover {
    id: Option<ModelId>,
    most: u64,
    bytes: u64,
    /// Nodes still to be opened, the next one last. Never more than the tree is high, 24.
    open: Vec<Open>,
    leaves: Vec<[u8; 32]>,
    state: State,
}

#[derive(PartialEq)]
enum State {
    Header,
    Pairs,
    Tail,
    Done,
}

impl Prover {
    fn new(id: Option<ModelId>, most: u64) -> Self {
        let most = most.min(MAX_FILE_BYTES);
        Self { id, most, bytes: 0, open: Vec::new(), leaves: Vec::new(), state: State::Header }
    }

    /// Bytes of the next piece; 0 when all is proven.
    fn need(&self) -> usize {
        match self.state {
            State::Header => HEADER_BYTES,
            State::Pairs => PAIR_BYTES,
            State::Tail => group_len(self.bytes, group_count(self.bytes) - 1),
            State::Done => 0,
        }
    }

    /// Takes the next piece, [`Prover::need`] bytes.
    fn feed(&mut self, piece: &[u8]) -> Result<(), Error> {
        match self.state {
            State::Header => self.header(piece)?,
            State::Pairs => self.pair(piece)?,
            State::Tail => {
                let last = group_count(self.bytes) - 1;
                let expected = self.leaves.last().copied().unwrap_or_default();
                if hash_group(last, piece, last == 0) != expected {
                    return Err(Error::mismatch("the length of the file"));
                }
                self.state = State::Done;
            }
            State::Done => {}
        }
        if self.state == State::Pairs {
            self.settle();
        }
        Ok(())
    }

    fn header(&mut self, piece: &[u8]) -> Result<(), Error> {
        let bytes = u64::from_le_bytes(std::array::from_fn(|i| piece[8 + i]));
        let claimed: [u8; 32] = std::array::from_fn(|i| piece[16 + i]);
        if piece != header(bytes, &claimed) {
            return Err(Error::mismatch("something that is no tree of groups of 64 KiB"));
        }
        if self.id.is_some_and(|id| *id.as_bytes() != claimed) {
            return Err(Error::mismatch("the tree of another model"));
        }
        if !(1..=self.most).contains(&bytes) {
            return Err(Error::mismatch(format!("a file of {bytes} bytes")));
        }
        self.id = Some(ModelId::new(claimed));
        self.bytes = bytes;
        self.open.push(Open { groups: group_count(bytes), hash: claimed });
        self.state = State::Pairs;
        Ok(())
    }

    fn pair(&mut self, piece: &[u8]) -> Result<(), Error> {
        let left: ChainingValue = std::array::from_fn(|i| piece[i]);
        let right: ChainingValue = std::array::from_fn(|i| piece[32 + i]);
        let Some(node) = self.open.pop() else { return Ok(()) };
        let hash = match node.groups == group_count(self.bytes) {
            true => *merge_subtrees_root(&left, &right, Mode::Hash).as_bytes(),
            false => merge_subtrees_non_root(&left, &right, Mode::Hash),
        };
        if hash != node.hash {
            return Err(Error::mismatch("a pair of hashes in the tree"));
        }
        let on_left = node.groups.next_power_of_two() / 2;
        self.open.push(Open { groups: node.groups - on_left, hash: right });
        self.open.push(Open { groups: on_left, hash: left });
        Ok(())
    }

    /// Moves nodes that are single groups to the leaves.
    fn settle(&mut self) {
        while let Some(node) = self.open.pop_if(|node| node.groups == 1) {
            self.leaves.push(node.hash);
        }
        if self.open.is_empty() {
            self.state = State::Tail;
        }
    }

    fn finish(self) -> Outboard {
        Outboard { id: self.id.unwrap_or_default(), bytes: self.bytes, leaves: self.leaves }
    }
}

/// A reader that counts, reports and remembers the last bytes.
struct Watched<'a, R> {
    reader: R,
    done: u64,
    /// At least the last [`GROUP_BYTES`] that were read.
    last: Vec<u8>,
    stopped: bool,
    progress: &'a mut dyn FnMut(u64) -> bool,
}

impl<R: Read> Read for Watched<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(buffer)?;
        self.done += read as u64;
        let keep = (GROUP_BYTES as usize).saturating_sub(read).min(self.last.len());
        self.last.drain(..self.last.len() - keep);
        self.last.extend(&buffer[read.saturating_sub(GROUP_BYTES as usize)..read]);
        self.stopped = !(self.progress)(self.done);
        if self.stopped { Err(io::Error::other("stopped")) } else { Ok(read) }
    }
}

#[cfg(test)]
mod tests;
