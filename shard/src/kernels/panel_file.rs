//! Packed panels in a file: a second start maps them instead of packing again.
//!
//! Pages of the file are shared by all processes that compute with the model, and the system takes them back when memory is short.
//! What is mapped is byte for byte what packing gives, so a file changes how long a start takes and nothing else.
//!
//! ```text
//! magic [8]   header length u64   blake3 of the header [32]
//! header      { matrices u64   { name of the matrix [16]   offset u64   length u64 } each   sum of each 1 MiB u64 }
//! zeros up to 2 MiB, or as many more as the header takes
//! panels      each matrix at its offset, a multiple of 64
//! ```
//!
//! All threads hold every panel against its sum before the first is used ([`sum`]: one wrong word is always found, other damage but
//! for one case in 2^64), at the speed of memory. A file that fails is marked and not used. The sums find damage, they keep no one
//! out: the file is private to its user, as the model itself is.
//!
//! The first eight bytes are written last, so a file whose writer was stopped has none and is not used.
//!
//! Limits: a file is written once and never changed; one for other layers of the model is another file.

use std::{
    collections::HashMap,
    fs::File,
    io,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
};

use super::{Cpu, file_at::FileAt, matrix::Packed};

/// What a whole file begins with. The number counts how panels lie: it rises with every change of what packing gives.
pub const MAGIC: [u8; 8] = *b"shoalpn1";
/// Bytes of magic, length and hash of the header.
const PREAMBLE: usize = 48;
/// Longest header: 65,536 matrices, and 64 TiB of panels.
const MAX_HEADER: u64 = 1 << 30;
/// Bytes that share a sum.
const CHUNK: usize = 1 << 20;
/// Where panels may begin: at a huge page, so that the system can map them as such.
const START: u64 = 2 << 20;
/// Bytes written at once.
const WRITE: usize = 4 << 20;

/// Names a matrix: what it is made of.
pub type Name = [u8; 16];

/// A file of panels: read where it is whole, else written with what is packed.
#[derive(Debug)]
pub struct PanelFile {
    file: Arc<File>,
    found: OnceLock<Option<Found>>,
    packed: Mutex<Vec<(Name, Packed)>>,
    /// Whether the file was written to its end when it was opened.
    was_whole: AtomicBool,
    /// The thread that writes.
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// A whole file.
#[derive(Debug)]
struct Found {
    map: Arc<memmap2::Mmap>,
    /// Where the panels of each matrix are.
    places: HashMap<Name, (usize, usize)>,
}

impl Drop for PanelFile {
    /// Waits until what is being written is there: a file that is not whole is of no use.
    fn drop(&mut self) {
        let writer = self.writer.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // What went wrong was logged; without the file the next start packs again.
        let _ = writer.map(JoinHandle::join);
    }
}

impl PanelFile {
    /// Of a file that is open for reading and writing, and that no other process writes.
    pub fn new(file: Arc<File>) -> Self {
        let (found, packed, writer) = (OnceLock::new(), Mutex::default(), Mutex::default());
        Self { file, found, packed, was_whole: AtomicBool::new(false), writer }
    }

    /// The panels of the matrix called `name`, if the file is whole and has them. The first call reads the whole file on all
    /// threads of `cpu`.
    pub fn find(&self, cpu: &Cpu, name: &Name) -> Option<Packed> {
        let found = self.found.get_or_init(|| self.read(cpu)).as_ref()?;
        let (start, len) = *found.places.get(name)?;
        Some(Packed::mapped(found.map.clone(), start, len))
    }

    /// Where panels come from: `mapped`, or `packed`.
    pub fn source(&self) -> &'static str {
        if matches!(self.found.get(), Some(Some(_))) { "mapped" } else { "packed" }
    }

    /// Has `packed` written with the others by [`PanelFile::save`], where the file holds nothing yet.
    pub fn note(&self, name: Name, packed: Packed) {
        if matches!(self.found.get(), Some(None)) {
            self.packed.lock().unwrap_or_else(PoisonError::into_inner).push((name, packed));
        }
    }

    /// Writes what was noted on a thread of its own, for which dropping waits; nothing where panels come from the file.
    pub fn save(&self) {
        let packed = std::mem::take(&mut *self.packed.lock().unwrap_or_else(PoisonError::into_inner));
        // A damaged file is deleted by the next process that may open it: others may have it mapped.
        if packed.is_empty() || self.was_whole.load(Ordering::Relaxed) {
            return;
        }
        let file = self.file.clone();
        let write = move || match write(&file, &packed) {
            Ok(()) => tracing::debug!("the panels of a model were written"),
            Err(error) => tracing::warn!(%error, "the panels of a model were not written"),
        };
        let writer = thread::Builder::new().name("panels".into()).spawn(write).ok();
        *self.writer.lock().unwrap_or_else(PoisonError::into_inner) = writer;
    }

    /// Length and hash of the header, of a file that was written to its end.
    fn begins(&self) -> Option<(u64, [u8; 32])> {
        let mut preamble = [0; PREAMBLE];
        self.file.read_exact_at(&mut preamble, 0).ok()?;
        if preamble[..8] != MAGIC {
            return None;
        }
        let hash = preamble[16..].try_into().ok()?;
        Some((u64::from_le_bytes(preamble[8..16].try_into().ok()?), hash))
    }

    fn read(&self, cpu: &Cpu) -> Option<Found> {
        let (len, hash) = self.begins()?;
        self.was_whole.store(true, Ordering::Relaxed);
        let found = self.map(cpu, len, hash);
        if found.is_none() {
            tracing::warn!(
                "a file of panels is damaged: it is not used, and written again at the next start"
            );
            let _ = self.file.write_all_at(&[0; MAGIC.len()], 0);
        }
        found
    }

    fn map(&self, cpu: &Cpu, len: u64, hash: [u8; 32]) -> Option<Found> {
        if len > MAX_HEADER {
            return None;
        }
        let mut header = vec![0; usize::try_from(len).ok()?];
        self.file.read_exact_at(&mut header, PREAMBLE as u64).ok()?;
        if *blake3::hash(&header).as_bytes() != hash {
            return None;
        }
        // From here on the header is what was written; it is read with care all the same.
        let words = |bytes: &[u8]| {
            let (words, _) = bytes.as_chunks::<8>();
            words.iter().map(|word| u64::from_le_bytes(*word)).collect::<Vec<u64>>()
        };
        let count = usize::try_from(words(header.get(..8)?)[0]).ok()?;
        let table = header.get(8..8 + count.checked_mul(32)?)?;
        let sums = words(&header[8 + table.len()..]);
        let start = start(len);
        let mut places = HashMap::with_capacity(count);
        let mut chunks = Vec::with_capacity(sums.len());
        let mut end = start;
        for entry in table.as_chunks::<32>().0 {
            let name = entry[..16].try_into().ok()?;
            let place = words(&entry[16..]);
            let at = start.checked_add(place[0])?;
            end = end.max(at.checked_add(place[1])?);
            let (at, len) = (usize::try_from(at).ok()?, usize::try_from(place[1]).ok()?);
            if at % 64 != 0 {
                return None;
            }
            chunks.extend((0..len).step_by(CHUNK).map(|from| (at + from, CHUNK.min(len - from))));
            places.insert(name, (at, len));
        }
        // A file that is shorter than its mapping ends the process when its end is read.
        self.file.read_exact_at(&mut [0], end.checked_sub(1)?).ok()?;
        if chunks.len() != sums.len() {
            return None;
        }
        // SAFETY: the mapping is read-only and no view goes beyond it. A whole file is not changed or cut by this program, and
        // the folder is its user's alone.
        let map = unsafe { memmap2::MmapOptions::new().len(usize::try_from(end).ok()?).map(&*self.file) };
        let map = map.ok()?;
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        let (next, sound) = (AtomicUsize::new(0), AtomicBool::new(true));
        cpu.pool().run(&|_, _| {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(&(at, len)) = chunks.get(index) else { break };
                if sum(&map[at..at + len]) != sums[index] {
                    sound.store(false, Ordering::Relaxed);
                }
            }
        });
        sound.into_inner().then(|| Found { map: Arc::new(map), places })
    }
}

/// Where panels begin behind a header of `len` bytes.
fn start(len: u64) -> u64 {
    (PREAMBLE as u64 + len).next_multiple_of(START)
}

/// A sum of `bytes`, whole words but for the last, that changes with every single word: each step is a bijection of its lane.
fn sum(bytes: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let step = |lane: u64, word: u64| (lane ^ word).wrapping_mul(FACTOR).rotate_left(29);
    let mut lanes: [u64; 8] = std::array::from_fn(|lane| step(lane as u64 + 1, bytes.len() as u64));
    let (blocks, rest) = bytes.as_chunks::<64>();
    for block in blocks {
        for (lane, word) in lanes.iter_mut().zip(block.as_chunks::<8>().0) {
            *lane = step(*lane, u64::from_le_bytes(*word));
        }
    }
    let all = rest.iter().fold(0, |all, byte| step(all, u64::from(*byte)));
    lanes.into_iter().fold(all, step)
}

/// Writes panels, then the header, then what says that they are whole.
fn write(file: &File, packed: &[(Name, Packed)]) -> io::Result<()> {
    let mut table = (packed.len() as u64).to_le_bytes().to_vec();
    let mut sums = Vec::new();
    let mut end = 0_u64;
    for (name, packed) in packed {
        let bytes = packed.bytes();
        table.extend_from_slice(name);
        table.extend_from_slice(&end.to_le_bytes());
        table.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
        end = (end + bytes.len() as u64).next_multiple_of(64);
        bytes.chunks(CHUNK).for_each(|chunk| sums.extend_from_slice(&sum(chunk).to_le_bytes()));
    }
    table.append(&mut sums);
    let mut at = start(table.len() as u64);
    // Whole pieces at multiples of their size: the system keeps them in large pages where it can.
    let mut piece = Vec::with_capacity(WRITE);
    for (_, packed) in packed {
        let mut bytes = packed.bytes();
        piece.resize(piece.len().next_multiple_of(64), 0);
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(WRITE - piece.len()));
            piece.extend_from_slice(now);
            bytes = later;
            if piece.len() == WRITE {
                file.write_all_at(&piece, at)?;
                at += WRITE as u64;
                piece.clear();
            }
        }
    }
    file.write_all_at(&piece, at)?;
    let mut preamble = [0; PREAMBLE];
    preamble[8..16].copy_from_slice(&(table.len() as u64).to_le_bytes());
    preamble[16..].copy_from_slice(blake3::hash(&table).as_bytes());
    file.write_all_at(&table, PREAMBLE as u64)?;
    file.write_all_at(&preamble[8..], 8)?;
    file.write_all_at(&MAGIC, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::{Isa, Matrix, threads::Pool};
    use crate::quant;

    fn cpu() -> Cpu {
        Cpu::new(Isa::detect(), Pool::new(2, false))
    }

    fn weights(bytes: usize, seed: u32) -> Vec<u8> {
        (0..bytes as u32).map(|at| (at.wrapping_add(seed).wrapping_mul(2_654_435_761) >> 13) as u8).collect()
    }

    /// Two matrices, of which the second takes several sums, and the file that was written with them.
    fn written(cpu: &Cpu) -> (Arc<File>, [(Name, Matrix); 2]) {
        let file = Arc::new(tempfile::tempfile().unwrap());
        let panels = PanelFile::new(file.clone());
        let matrices = [([1; 16], 40, 64, 3), ([2; 16], 2_000, 1_024, 7)].map(|(name, rows, cols, seed)| {
            let bytes = weights(rows * quant::Q8_0.row_bytes(cols).unwrap(), seed);
            assert!(panels.find(cpu, &name).is_none());
            let matrix = Matrix::pack(cpu, &quant::Q8_0, rows, cols, &bytes).unwrap();
            panels.note(name, matrix.packed());
            (name, matrix)
        });
        panels.save();
        drop(panels);
        (file, matrices)
    }

    #[test]
    fn panels_come_back_byte_for_byte() {
        let cpu = cpu();
        let (file, matrices) = written(&cpu);
        let again = PanelFile::new(file);
        for (name, matrix) in &matrices {
            let found = again.find(&cpu, name).unwrap();
            assert_eq!(found.bytes(), matrix.packed().bytes());
            let mapped = Matrix::of_packed(matrix.format(), matrix.rows(), matrix.cols(), found).unwrap();
            assert_eq!(mapped.panel(1).0.align_offset(64), 0);
        }
        assert_eq!(again.source(), "mapped");
        assert!(again.find(&cpu, &[3; 16]).is_none());
        let wrong = again.find(&cpu, &[1; 16]).unwrap();
        assert!(Matrix::of_packed(&quant::Q8_0, 60, 64, wrong).is_none(), "another shape");
    }

    #[test]
    fn a_wrong_bit_anywhere_is_found_and_the_file_marked() {
        let cpu = cpu();
        let (file, _) = written(&cpu);
        let len = file.metadata().unwrap().len();
        // Of length, hash, table, sums, the first and the last panel.
        for at in [9, 20, 60, PREAMBLE as u64 + 75, START, START + 70_001, len - 1] {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 0x80], at).unwrap();
            let panels = PanelFile::new(file.clone());
            assert!(panels.find(&cpu, &[1; 16]).is_none(), "byte {at}");
            assert_eq!(panels.source(), "packed");
            file.write_all_at(&byte, at).unwrap();
            assert!(panels.begins().is_none(), "byte {at}: marked");
            file.write_all_at(&MAGIC, 0).unwrap();
        }
        assert!(PanelFile::new(file.clone()).find(&cpu, &[1; 16]).is_some());
        file.set_len(len - 1).unwrap();
        assert!(PanelFile::new(file).find(&cpu, &[1; 16]).is_none(), "cut");
    }

    #[test]
    fn a_file_whose_writer_was_stopped_is_written_again() {
        let cpu = cpu();
        let (file, _) = written(&cpu);
        file.write_all_at(&[0; 8], 0).unwrap();
        let panels = PanelFile::new(file.clone());
        assert!(panels.find(&cpu, &[1; 16]).is_none());
        let bytes = weights(16 * 34, 1);
        let matrix = Matrix::pack(&cpu, &quant::Q8_0, 16, 32, &bytes).unwrap();
        panels.note([9; 16], matrix.packed());
        panels.save();
        drop(panels);
        let again = PanelFile::new(file);
        assert_eq!(again.find(&cpu, &[9; 16]).unwrap().bytes(), matrix.packed().bytes());
    }

    #[test]
    fn every_change_of_one_word_changes_the_sum() {
        let bytes = weights(200, 5);
        let right = sum(&bytes);
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut wrong = bytes.clone();
                wrong[at] ^= 1 << bit;
                assert_ne!(sum(&wrong), right, "bit {bit} of byte {at}");
            }
        }
        assert_ne!(sum(&bytes[..199]), right);
    }

    /// The hash of what packing gives, over all formats: where it changes for one that there was before, [`MAGIC`] takes the next number.
    #[test]
    fn panels_lie_as_the_number_in_the_magic_says() {
        let cpu = cpu();
        let mut hasher = blake3::Hasher::new();
        for format in quant::ALL {
            let bytes = weights(20 * format.row_bytes(512).unwrap(), 11);
            if let Ok(matrix) = Matrix::pack(&cpu, format, 20, 512, &bytes) {
                hasher.update(matrix.packed().bytes());
            }
        }
        assert_eq!(
            hasher.finalize().to_hex().as_str(),
            "e52689c628727ad54f51e55693a67f95087ae3e38a14e784e677439cd7101bf2"
        );
    }
}
