//! The file that states lie in, as an open descriptor: the process that computes may open none.
//!
//! ```text
//! file    = blocks of [`BLOCK`] bytes
//! record  = a head block and the blocks that it names, in any order in the file
//! head    = "SKS1", or "SKG1" of a guest | salt 16 | length u32 | sealed { number, written_s, name, note, raw length, blocks }
//! block   = sealed piece of the packed payload
//! packed  = the payload, see [`crate::byte_planes`]
//! ```
//!
//! Everything is ChaCha20-Poly1305 under a key of the file's secret and the record's salt, the head with nonce 0 and its blocks
//! with 1, 2, ...: what is read was written as it is read, by this node, for this record and at this place. The head is written
//! last and wiped first, so a record that was cut short by the end of the process is none, and what another record has
//! overwritten does not open. Integers are little endian.
//!
//! Bounds: the blocks that the file was given, half of them for records of guests; [`MAX_RECORD`] bytes of a payload; records are forgotten
//! [`KEPT_FOR`] after they were written, and the least recently used ones when there is no room.

use std::{
    collections::HashMap,
    fmt,
    fs::File,
    io::{self, Seek, SeekFrom},
    sync::Mutex,
    time::Duration,
};

use bincode::{Decode, Encode, config};
use chacha20poly1305::{ChaCha20Poly1305, KeyInit, Nonce, aead::Aead};

use crate::{
    Error, Result,
    byte_planes::{pack, unpack},
    confine::child::lock,
    platform::files::{FileAt, disk_bytes},
    sealed,
};

/// Bytes of a block.
pub const BLOCK: usize = 64 << 10;
/// Longest payload, bytes.
pub const MAX_RECORD: usize = 128 << 20;
/// Longest note, bytes: it lies in the head beside up to 2,049 numbers of blocks.
pub const MAX_NOTE: usize = 32 << 10;
/// A record is forgotten so long after it was written.
pub const KEPT_FOR: Duration = Duration::from_secs(7 * 24 * 3_600);
/// What a sealed piece is longer than the piece.
const TAG: usize = 16;
/// What a head begins with, by whose it is.
const MAGICS: [(Whose, &[u8; 4]); 2] = [(Whose::Own, b"SKS1"), (Whose::Guest, b"SKG1")];
/// Bytes of a head before what is sealed.
const PLAIN: usize = 4 + sealed::SALT_BYTES + 4;

/// The note of records about sessions of other nodes, in a file that has such about own prompts too.
pub const GUESTS_NOTE: &[u8] = b"guest";

/// What a record is called.
pub type Name = [u8; 32];

/// Of whose prompt a record is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub enum Whose {
    /// This node's.
    Own,
    /// Another node's, which permits that it is kept.
    Guest,
}

impl Whose {
    fn magic(self) -> &'static [u8; 4] {
        MAGICS[self as usize].1
    }
}

/// What a record is called, and what is told of it without reading it.
pub struct Label {
    /// Its name.
    pub name: Name,
    /// What its writer wants to know of it, at most [`MAX_NOTE`] bytes.
    pub note: Vec<u8>,
    /// Of whose prompt it is.
    pub whose: Whose,
}

impl Label {
    /// Of an own prompt.
    pub fn own(name: Name, note: Vec<u8>) -> Self {
        Self { name, note, whose: Whose::Own }
    }
}

#[derive(Encode, Decode)]
struct Head {
    number: u64,
    written_s: u64,
    name: Name,
    note: Vec<u8>,
    raw_bytes: u64,
    blocks: Vec<u32>,
}

/// A record, as the index has it.
#[derive(Clone)]
struct Record {
    whose: Whose,
    number: u64,
    /// When it was last written or read, in the order of all of that.
    used: u64,
    written_s: u64,
    note: Vec<u8>,
    raw_bytes: usize,
    salt: [u8; sealed::SALT_BYTES],
    head: u32,
    blocks: Vec<u32>,
}

/// What of the file is in use.
struct Index {
    records: HashMap<Name, Record>,
    free: Vec<u32>,
    /// Blocks of the file.
    count: usize,
    /// Of what is written or read next.
    next: u64,
}

impl Index {
    fn used(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Blocks of records of guests.
    fn guests(&self) -> usize {
        let guests = self.records.values().filter(|record| record.whose == Whose::Guest);
        guests.map(|record| record.blocks.len() + 1).sum()
    }

    fn take_out(&mut self, name: &Name) -> Option<Record> {
        let record = self.records.remove(name)?;
        self.free.extend(record.blocks.iter().copied().chain([record.head]));
        Some(record)
    }
}

/// States on disk; see the module's page. One writes, any number read.
pub struct StateFile {
    file: File,
    secret: [u8; 32],
    index: Mutex<Index>,
}

impl fmt::Debug for StateFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StateFile")
    }
}

/// What a file takes of the disk, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUse {
    /// Now: blocks that were written once, in use or free for the next state.
    pub bytes: u64,
    /// At most.
    pub most_bytes: u64,
}

impl DiskUse {
    /// Of two files together.
    pub fn with(self, other: Self) -> Self {
        Self { bytes: self.bytes + other.bytes, most_bytes: self.most_bytes + other.most_bytes }
    }
}

/// What `file` takes of the disk.
pub(super) fn disk_use(file: &File) -> DiskUse {
    file.metadata().map_or_else(
        |_| DiskUse::default(),
        |about| DiskUse { bytes: disk_bytes(&about), most_bytes: about.len() },
    )
}

fn nonce(piece: u64) -> Nonce {
    let mut nonce = Nonce::default();
    nonce[4..].copy_from_slice(&piece.to_le_bytes());
    nonce
}

fn cipher(secret: &[u8; 32], salt: &[u8]) -> ChaCha20Poly1305 {
    let key = blake3::Hasher::new_keyed(secret).update(salt).finalize();
    ChaCha20Poly1305::new(key.as_bytes().into())
}

fn failed(why: &'static str) -> Error {
    Error::Failed(why.into())
}

impl StateFile {
    /// The records of `file`, of which those too old at `now_s` (seconds since 1970) are forgotten. Its length bounds it.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn open(file: File, secret: [u8; 32], now_s: u64) -> Result<Self> {
        // Asking for the length in another way is a call that a confined process may not make.
        let bytes = (&file).seek(SeekFrom::End(0))?;
        let count = u32::try_from(bytes / BLOCK as u64).unwrap_or(u32::MAX);
        let mut heads = Vec::new();
        let mut plain = [0; PLAIN];
        for block in 0..count {
            let at = u64::from(block) * BLOCK as u64;
            file.read_exact_at(&mut plain, at)?;
            let (magic, rest) = plain.split_at(4);
            let Some((whose, _)) = MAGICS.into_iter().find(|(_, known)| *known == magic) else { continue };
            let (salt, length) = rest.split_at(sealed::SALT_BYTES);
            let length = length.try_into().map_or(0, u32::from_le_bytes) as usize;
            if length > BLOCK - PLAIN {
                continue;
            }
            let mut bytes = vec![0; length];
            file.read_exact_at(&mut bytes, at + PLAIN as u64)?;
            let Ok(open) = cipher(&secret, salt).decrypt(&nonce(0), bytes.as_slice()) else { continue };
            let Ok((head, _)) = bincode::decode_from_slice::<Head, _>(&open, config::standard()) else {
                continue;
            };
            let Ok(salt) = salt.try_into() else { continue };
            heads.push((block, whose, salt, head));
        }
        // What was written last holds its blocks: what it overwrote is gone.
        heads.sort_by_key(|(.., head)| std::cmp::Reverse(head.number));
        let mut taken = vec![false; count as usize];
        let mut index = Index { records: HashMap::new(), free: Vec::new(), count: count as usize, next: 0 };
        for (block, whose, salt, head) in heads {
            let all = || head.blocks.iter().copied().chain([block]);
            let late = now_s.saturating_sub(head.written_s) > KEPT_FOR.as_secs();
            let whole = all().all(|block| taken.get(block as usize) == Some(&false));
            if late || !whole || index.records.contains_key(&head.name) {
                continue;
            }
            all().for_each(|block| taken[block as usize] = true);
            index.next = index.next.max(head.number);
            let record = Record {
                whose,
                number: head.number,
                used: head.number,
                written_s: head.written_s,
                note: head.note,
                raw_bytes: head.raw_bytes as usize,
                salt,
                head: block,
                blocks: head.blocks,
            };
            index.records.insert(head.name, record);
        }
        index.free = (0..count).rev().filter(|block| !taken[*block as usize]).collect();
        Ok(Self { file, secret, index: Mutex::new(index) })
    }

    /// Names and notes of all records.
    pub fn notes(&self) -> Vec<(Name, Vec<u8>)> {
        let index = lock(&self.index);
        index.records.iter().map(|(name, record)| (*name, record.note.clone())).collect()
    }

    /// What it takes of the disk.
    pub fn disk_use(&self) -> DiskUse {
        disk_use(&self.file)
    }

    /// Bytes of the file in use.
    pub fn bytes(&self) -> u64 {
        let index = lock(&self.index);
        ((index.count - index.free.len()) * BLOCK) as u64
    }

    /// The payload of a record; `None` when there is none, it is too old or it was overwritten.
    pub fn get(&self, name: &Name, now_s: u64) -> Option<Vec<u8>> {
        let record = {
            let mut index = lock(&self.index);
            let used = index.used();
            let record = index.records.get_mut(name)?;
            record.used = used;
            record.clone()
        };
        let fresh = now_s.saturating_sub(record.written_s) <= KEPT_FOR.as_secs();
        let payload = fresh.then(|| self.read(&record)).flatten();
        if payload.is_none() {
            self.remove(name);
        }
        payload
    }

    fn read(&self, record: &Record) -> Option<Vec<u8>> {
        let cipher = cipher(&self.secret, &record.salt);
        let mut block = vec![0; BLOCK];
        let mut packed = Vec::new();
        for (number, at) in (1..).zip(&record.blocks) {
            self.file.read_exact_at(&mut block, u64::from(*at) * BLOCK as u64).ok()?;
            packed.extend(cipher.decrypt(&nonce(number), block.as_slice()).ok()?);
        }
        unpack(&packed, record.raw_bytes)
    }

    /// Writes a record, in place of an older one of this name.
    ///
    /// # Errors
    /// When payload or note are too long, or larger than the file; when it cannot be written.
    pub fn put(&self, label: Label, payload: &[u8], now_s: u64) -> Result<()> {
        let (name, whose) = (label.name, label.whose);
        if payload.len() > MAX_RECORD || label.note.len() > MAX_NOTE {
            return Err(failed("the state is too large to be kept"));
        }
        self.remove(&name);
        let packed = pack(payload)?;
        let pieces = packed.len().div_ceil(BLOCK - TAG);
        let (mut blocks, number) = self.room(pieces + 1, whose)?;
        let written = self.write(label, (payload.len(), &packed), number, now_s, &mut blocks);
        let mut index = lock(&self.index);
        match written {
            Ok(record) => drop(index.records.insert(name, record)),
            Err(error) => {
                index.free.append(&mut blocks);
                return Err(error);
            }
        }
        Ok(())
    }

    /// So many blocks, and the number of what is written to them. Guests have half of the file at most, and make room for each other
    /// first where that would be more.
    fn room(&self, count: usize, whose: Whose) -> Result<(Vec<u32>, u64)> {
        loop {
            let oldest = {
                let mut index = lock(&self.index);
                let guest = whose == Whose::Guest;
                let most = if guest { index.count / 2 } else { index.count };
                if count > most {
                    return Err(failed("the state is larger than its file"));
                }
                let crowded = guest && index.guests() + count > most;
                let left = index.free.len().checked_sub(count).filter(|_| !crowded);
                if let Some(left) = left {
                    let number = index.used();
                    return Ok((index.free.split_off(left), number));
                }
                let yields = |record: &Record| !crowded || record.whose == Whose::Guest;
                let yielding = index.records.iter().filter(|(_, record)| yields(record));
                yielding.min_by_key(|(_, record)| record.used).map(|(name, _)| *name)
            };
            let Some(oldest) = oldest else { return Err(failed("the state is larger than its file")) };
            self.remove(&oldest);
        }
    }

    /// Writes to `blocks`, the last of which becomes the head.
    fn write(
        &self,
        Label { name, note, whose }: Label,
        (raw_bytes, packed): (usize, &[u8]),
        number: u64,
        written_s: u64,
        blocks: &mut [u32],
    ) -> Result<Record> {
        let sealing = |_| failed("a state could not be encrypted");
        let salt = sealed::salt()?;
        let cipher = cipher(&self.secret, &salt);
        let Some((head, blocks)) = blocks.split_last() else { return Err(failed("no room for a state")) };
        let pieces = packed.chunks(BLOCK - TAG);
        for ((piece, at), order) in pieces.zip(blocks).zip(1..) {
            // Each block is full, so that its length need not be told: what follows the last group is not looked at.
            let mut piece = piece.to_vec();
            piece.resize(BLOCK - TAG, 0);
            self.write_at(*at, &cipher.encrypt(&nonce(order), piece.as_slice()).map_err(sealing)?)?;
        }
        let blocks = blocks.to_vec();
        let told = Head {
            number,
            written_s,
            name,
            note: note.clone(),
            raw_bytes: raw_bytes as u64,
            blocks: blocks.clone(),
        };
        let told = bincode::encode_to_vec(&told, config::standard());
        let told = told.map_err(|error| Error::Failed(error.to_string()))?;
        let told = cipher.encrypt(&nonce(0), told.as_slice()).map_err(sealing)?;
        let length = told.len() as u32;
        if told.len() > BLOCK - PLAIN {
            return Err(failed("the note of a state is too long"));
        }
        self.write_at(*head, &[whose.magic().as_slice(), &salt, &length.to_le_bytes(), &told].concat())?;
        Ok(Record { whose, number, used: number, written_s, note, raw_bytes, salt, head: *head, blocks })
    }

    fn write_at(&self, block: u32, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, u64::from(block) * BLOCK as u64)
    }

    /// Forgets a record, here and in the file.
    pub fn remove(&self, name: &Name) {
        let record = lock(&self.index).records.get(name).cloned();
        let Some(record) = record else { return };
        // Wiped before its blocks are given away.
        let _ = self.write_at(record.head, &[0; PLAIN]);
        let mut index = lock(&self.index);
        if index.records.get(name).is_some_and(|same| same.number == record.number) {
            index.take_out(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::byte_planes::GROUP;

    const DAY_S: u64 = 24 * 3_600;
    const SECRET: [u8; 32] = [7; 32];

    fn file(blocks: usize) -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len((blocks * BLOCK) as u64).unwrap();
        file
    }

    fn open(file: &File, now_s: u64) -> StateFile {
        StateFile::open(file.try_clone().unwrap(), SECRET, now_s).unwrap()
    }

    /// Values that do not compress, so that what is written is as long as what is kept.
    fn payload(seed: u8, bytes: usize) -> Vec<u8> {
        let mut out = vec![0; bytes];
        blake3::Hasher::new().update(&[seed]).finalize_xof().fill(&mut out);
        out
    }

    #[test]
    fn what_was_put_is_there_after_the_file_was_closed_until_room_or_time_is_over() {
        let file = file(64);
        let lengths = [0, 1, 2, 3, BLOCK - TAG, GROUP, GROUP + 1, 2 * GROUP - 7];
        for (name, length) in (0..).zip(lengths) {
            let states = open(&file, 9);
            states.put(Label::own([name; 32], vec![name; 9]), &payload(name, length), 9).unwrap();
            assert_eq!(states.get(&[name; 32], 9), Some(payload(name, length)));
        }
        let again = open(&file, 9);
        let kept: Vec<_> = (0..8).filter(|name| again.get(&[*name; 32], 9).is_some()).collect();
        assert_eq!(kept, [6, 7], "33 and 17 blocks of 64: the last two fit, with all that was smaller gone");
        let note = |states: &StateFile| states.notes().into_iter().find(|(name, _)| *name == [7; 32]);
        assert_eq!(note(&again), Some(([7; 32], vec![7; 9])));
        again.put(Label::own([6; 32], vec![1]), &[5; 100], 9).unwrap();
        assert_eq!(open(&file, 9).get(&[6; 32], 9), Some(vec![5; 100]), "in place of the older one");
        again.remove(&[6; 32]);
        assert_eq!(open(&file, 9).get(&[6; 32], 9), None);
        assert!(
            again.put(Label::own([9; 32], Vec::new()), &payload(9, 5 * GROUP), 9).is_err(),
            "no file is so large"
        );
        assert!(again.put(Label::own([9; 32], vec![0; MAX_NOTE + 1]), &[], 9).is_err());
        again.put(Label::own([8; 32], Vec::new()), &[1; 9], 9).unwrap();
        assert_eq!(open(&file, 9 + 7 * DAY_S).get(&[8; 32], 9 + 7 * DAY_S), Some(vec![1; 9]));
        assert_eq!(again.get(&[8; 32], 10 + 7 * DAY_S), None, "its time is over");
        let other = StateFile::open(file.try_clone().unwrap(), [8; 32], 9).unwrap();
        assert!(other.notes().is_empty(), "another node's key opens nothing");
    }

    /// The least recently used record makes room, and what a process left half written is none.
    #[test]
    fn room_is_taken_from_what_was_used_least() {
        let file = file(9);
        let states = open(&file, 9);
        for name in 1..=3 {
            states.put(Label::own([name; 32], Vec::new()), &payload(name, 2 * BLOCK - 99), 9).unwrap();
        }
        assert!(states.get(&[1; 32], 9).is_some());
        states.put(Label::own([4; 32], Vec::new()), &payload(4, 2 * BLOCK - 99), 9).unwrap();
        let there = |states: &StateFile| {
            (1..=4).filter(|name| states.get(&[*name; 32], 9).is_some()).collect::<Vec<_>>()
        };
        assert_eq!((there(&states), there(&open(&file, 9))), (vec![1, 3, 4], vec![1, 3, 4]));
        // All blocks of a record but its head are those of another one now: what wrote them was killed before it said so.
        let (record, head) = {
            let index = lock(&states.index);
            (index.records[&[3; 32]].blocks.clone(), index.records[&[4; 32]].head)
        };
        states.write_at(record[0], &payload(9, BLOCK)).unwrap();
        states.write_at(head, &[0; PLAIN]).unwrap();
        assert_eq!(there(&open(&file, 9)), [1]);
    }

    /// Guests take half of the file at most, of each other first, also after it was opened again.
    #[test]
    fn guests_leave_half_of_the_file_to_its_owner() {
        let file = file(12);
        let three = |name| payload(name, 2 * BLOCK - 99);
        let guest = |name| Label { whose: Whose::Guest, ..Label::own([name; 32], Vec::new()) };
        let there = |states: &StateFile| {
            (1..=9).filter(|name| states.get(&[*name; 32], 9).is_some()).collect::<Vec<_>>()
        };
        let states = open(&file, 9);
        states.put(Label::own([1; 32], Vec::new()), &three(1), 9).unwrap();
        for name in 2..=4 {
            states.put(guest(name), &three(name), 9).unwrap();
        }
        assert_eq!(there(&states), [1, 3, 4], "six blocks hold two of them");
        assert!(states.put(guest(5), &payload(5, 6 * BLOCK), 9).is_err(), "more than half");
        states.put(Label::own([6; 32], Vec::new()), &three(6), 9).unwrap();
        let states = open(&file, 9);
        states.put(guest(7), &three(7), 9).unwrap();
        assert_eq!(there(&states), [1, 4, 6, 7], "no record of the owner gave way");
        states.put(Label::own([8; 32], Vec::new()), &three(8), 9).unwrap();
        assert_eq!(there(&states), [4, 6, 7, 8], "the owner takes what was used least, whosever it is");
    }

    /// Every byte counts: a file that was changed anywhere gives what was written or nothing.
    #[test]
    fn a_damaged_file_gives_what_was_written_or_nothing() {
        let file = file(8);
        let states = open(&file, 9);
        let (one, two) = (vec![3; 500], payload(2, 300));
        states.put(Label::own([1; 32], b"one".to_vec()), &one, 9).unwrap();
        states.put(Label::own([2; 32], b"two".to_vec()), &two, 9).unwrap();
        let mut lost = 0;
        for at in (0..8 * BLOCK as u64).step_by(20_011) {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 4], at).unwrap();
            let damaged = open(&file, 9);
            for (name, payload) in [(1, &one), (2, &two)] {
                let got = damaged.read_only(&[name; 32]);
                assert!(got.as_ref().is_none_or(|got| got == payload), "byte {at}");
                lost += usize::from(got.is_none());
            }
            file.write_all_at(&byte, at).unwrap();
        }
        // Half of the blocks are in use, and of the heads only the beginning.
        assert!((4..27).contains(&lost), "{lost}");
    }

    impl StateFile {
        fn read_only(&self, name: &Name) -> Option<Vec<u8>> {
            let record = lock(&self.index).records.get(name).cloned()?;
            self.read(&record)
        }
    }
}
