//! States of ended answers on disk, so that a server that starts again does not compute long prompts again.
//!
//! One file of a fixed length, which its owner opens and a confined process reads and writes (`shoal serve --keep-state`):
//!
//! ```text
//! two directories by turns | records, one behind the other, from the beginning again at the end
//! ```
//!
//! A record is the tokens and the snapshot of a state ([`shard::state::SessionState::snapshot`]), compressed with zstd.
//! Directory and records are sealed with ChaCha20-Poly1305 under a key of the node's identity, each with a nonce of its own and
//! bound to the model that it is of: what was changed, or is of another model, another length of context or another device,
//! does not open and is computed again. The seal of tokens is of the session's kind, too, and that of a state of its sealed
//! tokens: a record of which only a part was written opens as nothing. A directory is written after its records, the older
//! one stays until then: a crash loses the last record, and those that it was written over.
//!
//! Limits: the file's length; [`MAX_RECORDS`] states, the oldest are overwritten; each is forgotten after [`TTL_S`], and its sealed bytes
//! stay until they are overwritten; states of prompts that are no longer than [`LEAST_TOKENS`] are not worth a record.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
};

use bincode::{Decode, Encode, config};
use chacha20poly1305::{
    ChaCha20Poly1305, KeyInit, Nonce,
    aead::{Aead, Payload},
};
use scheduler::SessionKind;

/// What is read back is no older, seconds: a week.
const TTL_S: u64 = 7 * 24 * 3600;
/// Shorter states are computed as fast as they are read.
pub const LEAST_TOKENS: usize = 64;
/// Records at a time.
const MAX_RECORDS: usize = 256;
/// Room for one directory.
const DIRECTORY: u64 = 64 << 10;
/// Where records begin.
const RECORDS: u64 = 2 * DIRECTORY;
/// The shortest file: a directory without room for records has no use.
pub const LEAST_BYTES: u64 = 16 << 20;
const NONCE: usize = 12;
/// Between two pieces of this many bytes it is looked whether there is other work: a few milliseconds.
const PIECE: usize = 1 << 20;
/// States never become smaller than by this factor: numbers of 16 bits hardly compress.
const PACKS: u64 = 4;
/// Fast, and as small as what follows it makes K and V.
const LEVEL: i32 = 1;

/// The states in one file, of one model.
pub struct KeptFile {
    file: File,
    cipher: ChaCha20Poly1305,
    /// What all of them are of; part of every seal.
    of: [u8; 32],
    capacity: u64,
    /// Oldest first.
    records: Vec<Record>,
    /// Where the next one begins.
    head: u64,
    /// Of the directory that was written last.
    generation: u64,
}

struct Record {
    row: Row,
    kind: SessionKind,
    tokens: Vec<u32>,
    /// The hash of its sealed tokens, which the seal of its state is of.
    sealed: [u8; 32],
}

/// What became of a state that was to be kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keeping {
    /// It is on disk.
    Written,
    /// It is not to be: too short, too long, or kept already.
    Refused,
    /// It may be another time.
    Interrupted,
}

/// A record as the directory has it.
#[derive(Clone, Encode, Decode)]
struct Row {
    at: u64,
    tokens_bytes: u32,
    state_bytes: u64,
    /// Length of the snapshot before it was compressed.
    snapshot_bytes: u64,
    kind: String,
    expires_s: u64,
}

#[derive(Encode, Decode)]
struct Directory {
    generation: u64,
    head: u64,
    rows: Vec<Row>,
}

impl Row {
    fn end(&self) -> u64 {
        self.at.saturating_add(u64::from(self.tokens_bytes)).saturating_add(self.state_bytes)
    }
}

/// What a seal is of; a seal of one kind opens as no other.
#[derive(Clone, Copy)]
enum Part {
    Directory = 0,
    Tokens = 1,
    State = 2,
}

impl KeptFile {
    /// The states in `file` that are `of` the same as ours and are not older than they may be at `now_s`. A file of others, a new
    /// one and a damaged one has none.
    ///
    /// # Errors
    /// When the file cannot be read, or is shorter than [`LEAST_BYTES`].
    pub fn open(mut file: File, key: &[u8; 32], of: [u8; 32], now_s: u64) -> io::Result<Self> {
        // A confined process may look for the end of a file and not ask what it is.
        let capacity = file.seek(SeekFrom::End(0))?;
        if capacity < LEAST_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a file too short to keep states in"));
        }
        let cipher = ChaCha20Poly1305::new(key.into());
        let (records, head, generation) = (Vec::new(), RECORDS, 0);
        let mut kept = Self { file, cipher, of, capacity, records, head, generation };
        let found = [0, 1].map(|turn| kept.directory(turn));
        let Some(newest) = found.into_iter().flatten().max_by_key(|directory| directory.generation) else {
            return Ok(kept);
        };
        kept.generation = newest.generation;
        kept.head = newest.head.clamp(RECORDS, capacity);
        for row in newest.rows.into_iter().take(MAX_RECORDS) {
            if row.at < RECORDS || row.end() > capacity || row.expires_s <= now_s {
                continue;
            }
            let Ok(kind) = row.kind.parse() else { continue };
            let Some(bytes) = kept.bytes(row.at, u64::from(row.tokens_bytes)) else { continue };
            let tokens = kept.unseal(Part::Tokens, row.kind.as_bytes(), &bytes);
            let Some(tokens) = tokens.as_deref().and_then(ids) else { continue };
            kept.records.push(Record { row, kind, tokens, sealed: *blake3::hash(&bytes).as_bytes() });
        }
        Ok(kept)
    }

    fn directory(&mut self, turn: u64) -> Option<Directory> {
        let mut length = [0; 4];
        self.file.seek(SeekFrom::Start(turn * DIRECTORY)).ok()?;
        self.file.read_exact(&mut length).ok()?;
        let length = u64::from(u32::from_le_bytes(length));
        if length + 4 > DIRECTORY {
            return None;
        }
        let bytes = self.bytes(turn * DIRECTORY + 4, length)?;
        let bytes = self.unseal(Part::Directory, &[], &bytes)?;
        let limits = config::standard().with_limit::<{ DIRECTORY as usize }>();
        bincode::decode_from_slice(&bytes, limits).ok().map(|(directory, _)| directory)
    }

    /// What a seal is of: the part, what all of the file is of, and what else belongs to it.
    fn bound(&self, part: Part, with: &[u8]) -> Vec<u8> {
        [&[part as u8], &self.of[..], with].concat()
    }

    fn bytes(&mut self, at: u64, length: u64) -> Option<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(length).ok()?];
        self.file.seek(SeekFrom::Start(at)).ok()?;
        self.file.read_exact(&mut bytes).ok()?;
        Some(bytes)
    }

    /// What was sealed; `None` when `bytes` are not what was written, or not `with` this.
    fn unseal(&self, part: Part, with: &[u8], bytes: &[u8]) -> Option<Vec<u8>> {
        let (nonce, sealed) = bytes.split_at_checked(NONCE)?;
        let payload = Payload { msg: sealed, aad: &self.bound(part, with) };
        self.cipher.decrypt(Nonce::from_slice(nonce), payload).ok()
    }

    fn seal(&self, part: Part, with: &[u8], plain: &[u8]) -> io::Result<Vec<u8>> {
        let mut nonce = [0; NONCE];
        getrandom::fill(&mut nonce).map_err(io::Error::other)?;
        let payload = Payload { msg: plain, aad: &self.bound(part, with) };
        let sealed = self.cipher.encrypt(Nonce::from_slice(&nonce), payload);
        let sealed = sealed.map_err(|_| io::Error::other("a state could not be encrypted"))?;
        Ok([&nonce[..], &sealed].concat())
    }

    /// The record that shares the longest beginning with `tokens`, and how many tokens that is. Where `whole` is asked for it
    /// is one of which all tokens are that beginning, and fewer than `tokens`: for states that do not go back.
    pub fn longest(
        &self,
        kind: SessionKind,
        tokens: &[u32],
        now_s: u64,
        whole: bool,
    ) -> Option<(usize, usize)> {
        let fits = |record: &Record| {
            !whole || (record.tokens.len() < tokens.len() && tokens.starts_with(&record.tokens))
        };
        let shared = |record: &Record| record.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        let found = self.records.iter().enumerate();
        let found =
            found.filter(|(_, record)| record.kind == kind && record.row.expires_s > now_s && fits(record));
        found.map(|(index, record)| (index, shared(record))).max_by_key(|(_, shared)| *shared)
    }

    /// How many tokens the state of a record is of.
    pub fn tokens(&self, index: usize) -> usize {
        self.records.get(index).map_or(0, |record| record.tokens.len())
    }

    /// Forgets a record.
    pub fn forget(&mut self, index: usize) {
        if index < self.records.len() {
            self.records.remove(index);
        }
    }

    /// The snapshot of a record, which is forgotten when its bytes are not those that were written.
    pub fn read(&mut self, index: usize) -> Option<Vec<u8>> {
        let Record { row, sealed, .. } = self.records.get(index)?;
        let (row, sealed) = (row.clone(), *sealed);
        let packed = self.bytes(row.at + u64::from(row.tokens_bytes), row.state_bytes);
        let packed = packed.and_then(|packed| self.unseal(Part::State, &sealed, &packed));
        let length = usize::try_from(row.snapshot_bytes).ok()?;
        let snapshot = packed.and_then(|packed| zstd::bulk::decompress(&packed, length).ok());
        let snapshot = snapshot.filter(|snapshot| snapshot.len() == length);
        if snapshot.is_none() {
            tracing::warn!("a state on disk is not what was written, and is computed again");
            self.records.remove(index);
        }
        snapshot
    }

    /// Whether the state of `tokens`, of so many bytes before they are compressed, is one to keep: neither too short nor too
    /// long, and no longer one that begins so is kept.
    pub fn wants(&self, kind: SessionKind, tokens: &[u32], state_bytes: usize) -> bool {
        let same = |record: &&Record| record.kind == kind;
        tokens.len() > LEAST_TOKENS
            && state_bytes as u64 / PACKS <= self.capacity - RECORDS
            && !self.records.iter().filter(same).any(|record| record.tokens.starts_with(tokens))
    }

    /// Compresses in pieces, or says what is not kept: what is more than fits the file, and what is interrupted between two.
    fn packed(
        &self,
        snapshot: &[u8],
        interrupted: &mut dyn FnMut() -> bool,
    ) -> io::Result<Result<Vec<u8>, Keeping>> {
        let mut packing = zstd::stream::write::Encoder::new(Vec::new(), LEVEL)?;
        for piece in snapshot.chunks(PIECE) {
            if interrupted() {
                return Ok(Err(Keeping::Interrupted));
            }
            packing.write_all(piece)?;
            if packing.get_ref().len() as u64 > self.capacity - RECORDS {
                return Ok(Err(Keeping::Refused));
            }
        }
        packing.finish().map(Ok)
    }

    /// Keeps the snapshot of the state of `tokens`, unless a longer one that begins so is kept, or `interrupted` says that
    /// something else is to be done first.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn keep(
        &mut self,
        kind: SessionKind,
        tokens: &[u32],
        snapshot: &[u8],
        now_s: u64,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> io::Result<Keeping> {
        self.records.retain(|record| record.row.expires_s > now_s);
        if !self.wants(kind, tokens, snapshot.len()) {
            return Ok(Keeping::Refused);
        }
        let packed = match self.packed(snapshot, interrupted)? {
            Ok(packed) => packed,
            Err(not) => return Ok(not),
        };
        let named = kind.to_string();
        let ids: Vec<u8> = tokens.iter().flat_map(|id| id.to_le_bytes()).collect();
        let ids = self.seal(Part::Tokens, named.as_bytes(), &ids)?;
        let sealed = *blake3::hash(&ids).as_bytes();
        let state = self.seal(Part::State, &sealed, &packed)?;
        let bytes = (ids.len() + state.len()) as u64;
        if bytes > self.capacity - RECORDS {
            return Ok(Keeping::Refused);
        }
        // What this one goes on from is in it.
        self.records.retain(|record| record.kind != kind || !tokens.starts_with(&record.tokens));
        let at = if self.head + bytes > self.capacity { RECORDS } else { self.head };
        self.records.retain(|record| record.row.end() <= at || record.row.at >= at + bytes);
        if self.records.len() == MAX_RECORDS {
            self.records.remove(0);
        }
        self.file.seek(SeekFrom::Start(at))?;
        self.file.write_all(&ids)?;
        self.file.write_all(&state)?;
        let row = Row {
            at,
            tokens_bytes: ids.len() as u32,
            state_bytes: state.len() as u64,
            snapshot_bytes: snapshot.len() as u64,
            kind: named,
            expires_s: now_s.saturating_add(TTL_S),
        };
        self.records.push(Record { row, kind, tokens: tokens.to_vec(), sealed });
        self.head = at + bytes;
        self.write_directory()?;
        Ok(Keeping::Written)
    }

    fn write_directory(&mut self) -> io::Result<()> {
        self.generation += 1;
        let rows = self.records.iter().map(|record| record.row.clone()).collect();
        let directory = Directory { generation: self.generation, head: self.head, rows };
        let bytes = bincode::encode_to_vec(directory, config::standard()).map_err(io::Error::other)?;
        let sealed = self.seal(Part::Directory, &[], &bytes)?;
        if sealed.len() as u64 + 4 > DIRECTORY {
            return Err(io::Error::other("a directory of states that is too long"));
        }
        self.file.seek(SeekFrom::Start(self.generation % 2 * DIRECTORY))?;
        self.file.write_all(&[&(sealed.len() as u32).to_le_bytes()[..], &sealed].concat())
    }
}

fn ids(bytes: &[u8]) -> Option<Vec<u32>> {
    let (ids, rest) = bytes.as_chunks::<4>();
    rest.is_empty().then(|| ids.iter().map(|id| u32::from_le_bytes(*id)).collect())
}

#[cfg(test)]
mod tests {
    use scheduler::AttentionKind;
    use tempfile::NamedTempFile;

    use super::*;

    const KEY: [u8; 32] = [7; 32];
    const DENSE: SessionKind = SessionKind::DEFAULT;

    fn file(bytes: u64) -> NamedTempFile {
        let file = NamedTempFile::new().unwrap();
        file.as_file().set_len(bytes).unwrap();
        file
    }

    fn open(file: &NamedTempFile, of: u8, now_s: u64) -> KeptFile {
        KeptFile::open(file.reopen().unwrap(), &KEY, [of; 32], now_s).unwrap()
    }

    /// Keeps a state while there is nothing else to do; whether it was written.
    fn keep(kept: &mut KeptFile, kind: SessionKind, tokens: &[u32], state: &[u8], now_s: u64) -> bool {
        kept.keep(kind, tokens, state, now_s, &mut || false).unwrap() == Keeping::Written
    }

    fn tokens(first: u32, count: usize) -> Vec<u32> {
        std::iter::once(first).chain(0..count as u32 - 1).collect()
    }

    /// Bytes that do not compress.
    fn noise(seed: u8, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        blake3::Hasher::new().update(&[seed]).finalize_xof().fill(&mut bytes);
        bytes
    }

    #[test]
    fn what_was_kept_is_there_after_a_restart_and_for_its_model_only() {
        let file = file(LEAST_BYTES);
        let mut kept = open(&file, 1, 100);
        let (text, longer) = (tokens(5, 200), tokens(5, 300));
        assert!(!keep(&mut kept, DENSE, &text[..LEAST_TOKENS], b"short", 100));
        assert!(keep(&mut kept, DENSE, &text, &[3; 50_000], 100));
        assert!(keep(&mut kept, DENSE, &tokens(6, 100), b"another", 100));
        let mut kept = open(&file, 1, 101);
        let (index, shared) = kept.longest(DENSE, &longer[..250], 101, false).unwrap();
        assert_eq!((kept.read(index), shared), (Some(vec![3; 50_000]), 200));
        assert_eq!(kept.longest(AttentionKind::Window(64).into(), &text, 101, false), None);
        // A longer state takes the place of what it begins with, and not the other way round.
        assert!(keep(&mut kept, DENSE, &longer, b"longer", 102));
        assert!(!keep(&mut kept, DENSE, &text, b"again", 103));
        assert_eq!(open(&file, 1, 104).records.len(), 2);
        assert!(open(&file, 2, 104).records.is_empty());
        assert!(KeptFile::open(file.reopen().unwrap(), &[8; 32], [1; 32], 104).unwrap().records.is_empty());
        // A week later nothing is left of it.
        assert_eq!(open(&file, 1, 104).longest(DENSE, &longer, 103 + TTL_S, false), None);
        assert!(open(&file, 1, 103 + TTL_S).records.is_empty());
    }

    #[test]
    fn a_flipped_byte_is_noticed_and_nothing_lies_there_in_the_clear() {
        let file = file(LEAST_BYTES);
        let (text, state) = (tokens(70_000, 500), [9, 8, 7, 6, 5, 4, 3, 2].repeat(10_000));
        assert!(keep(&mut open(&file, 1, 100), DENSE, &text, &state, 100));
        let mut bytes = std::fs::read(file.path()).unwrap();
        let plain: Vec<u8> = text[..3].iter().flat_map(|id| id.to_le_bytes()).collect();
        for secret in [&plain[..], &state[..16], &[0x28, 0xb5, 0x2f, 0xfd], b"dense"] {
            assert!(!bytes[..1 << 20].windows(secret.len()).any(|window| window == secret), "{secret:?}");
        }
        let row = open(&file, 1, 101).records[0].row.clone();
        let at = |offset: u64| (row.at + u64::from(row.tokens_bytes) + offset) as usize;
        for place in [at(0), at(20), at(row.state_bytes - 1)] {
            bytes[place] ^= 1;
            std::fs::write(file.path(), &bytes).unwrap();
            let mut kept = open(&file, 1, 101);
            assert_eq!((kept.records.len(), kept.read(0), kept.records.len()), (1, None, 0));
            bytes[place] ^= 1;
        }
        // The tokens, and the directory: then nothing is known of it.
        for place in [row.at as usize + 15, DIRECTORY as usize + 30] {
            bytes[place] ^= 1;
            std::fs::write(file.path(), &bytes).unwrap();
            assert!(open(&file, 1, 101).records.is_empty());
            bytes[place] ^= 1;
        }
        std::fs::write(file.path(), &bytes).unwrap();
        assert_eq!(open(&file, 1, 101).read(0), Some(state));
    }

    #[test]
    fn the_oldest_are_overwritten_when_the_file_is_full() {
        let file = file(LEAST_BYTES);
        let mut kept = open(&file, 1, 100);
        for n in 0..9 {
            assert!(keep(&mut kept, DENSE, &tokens(n, 100), &noise(n as u8, 4 << 20), 100));
        }
        let mut kept = open(&file, 1, 101);
        assert_eq!(kept.records.len(), 3);
        for n in 6..9 {
            let (index, shared) = kept.longest(DENSE, &tokens(n, 100), 101, false).unwrap();
            assert_eq!((kept.read(index).unwrap() == noise(n as u8, 4 << 20), shared), (true, 100));
        }
        assert!(!keep(&mut kept, DENSE, &tokens(50, 100), &noise(50, 17 << 20), 101), "beyond the file");
        assert_eq!(kept.records.len(), 3);
    }

    /// A crash that leaves other tokens, or another kind, in front of a state of the same length.
    #[test]
    fn a_state_opens_with_its_own_tokens_only() {
        let (file, other) = (file(LEAST_BYTES), file(LEAST_BYTES));
        let q8: SessionKind = "dense/q8".parse().unwrap();
        for (first, kind) in [(9, DENSE), (5, q8)] {
            assert!(keep(&mut open(&file, 1, 100), DENSE, &tokens(5, 100), &[3; 5_000], 100));
            assert!(keep(&mut open(&other, 1, 100), kind, &tokens(first, 100), &[4; 5_000], 100));
            let row = open(&file, 1, 101).records[0].row.clone();
            assert_eq!(open(&other, 1, 101).records[0].row.tokens_bytes, row.tokens_bytes);
            let (mut torn, theirs) =
                (std::fs::read(file.path()).unwrap(), std::fs::read(other.path()).unwrap());
            let of_tokens = row.at as usize..(row.at + u64::from(row.tokens_bytes)) as usize;
            torn[of_tokens.clone()].copy_from_slice(&theirs[of_tokens]);
            std::fs::write(file.path(), &torn).unwrap();
            let mut kept = open(&file, 1, 101);
            assert_eq!((kept.records.len(), kept.read(0)), (usize::from(kind == DENSE), None));
            for file in [&file, &other] {
                std::fs::write(file.path(), vec![0; LEAST_BYTES as usize]).unwrap();
            }
        }
    }

    #[test]
    fn other_work_comes_first_and_what_cannot_go_back_is_taken_whole() {
        let file = file(LEAST_BYTES);
        let mut kept = open(&file, 1, 100);
        let (text, mut left) = (tokens(5, 200), 2);
        let mut busy = || {
            left -= 1;
            left < 0
        };
        let state = noise(1, 4 << 20);
        assert_eq!(kept.keep(DENSE, &text, &state, 100, &mut busy).unwrap(), Keeping::Interrupted);
        assert!(kept.records.is_empty() && kept.wants(DENSE, &text, state.len()));
        assert!(!kept.wants(DENSE, &text, 1 << 30), "more than the file");
        assert!(keep(&mut kept, DENSE, &text, &state, 100) && !kept.wants(DENSE, &text, state.len()));
        let longer = tokens(5, 300);
        assert_eq!(kept.longest(DENSE, &longer, 101, true), Some((0, 200)));
        assert_eq!(kept.longest(DENSE, &text, 101, true), None);
        assert_eq!(kept.longest(DENSE, &text[..150], 101, true), None);
        assert_eq!(kept.longest(DENSE, &text[..150], 101, false), Some((0, 150)));
    }
}
