//! How much each input of each matrix matters: the mean of its square over a text.
//!
//! A rounding error of a weight counts as much as what it is multiplied with, so a search for scales that knows those sizes finds better
//! ones. A file (an *importance matrix*, as llama.cpp writes it since 2025: GGUF, `general.type` = `imatrix`) has for each matrix
//! `NAME.in_sum2`, the sums of the squares of its inputs, `[experts][cols]`, and `NAME.counts`, how many rows they are of, `[experts]`, both
//! F32.
//!
//! The older kind of file (`.dat`, as llama.cpp wrote it until then) is, little-endian: u32 entries, then for each u32 bytes of its name, the
//! name, u32 calls, u32 values, as many f32: means of squares times calls, those of one expert behind those of another. What stands behind
//! the entries (calls, the text's name) is not needed.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{Read, Seek, SeekFrom, Write},
};

use crate::{
    Error, Result,
    gguf::{Gguf, Writer},
    kernels::Seen,
    quant::F32,
};

const TYPE: &str = "imatrix";
const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";
/// Longest file of the older kind: that of a model of 400 billion weights has a tenth.
const MAX_DAT: u64 = 1 << 30;
/// Longest name of a tensor.
const MAX_NAME: usize = 256;
/// Inputs that were never seen matter as little as this part of the others: not at all would let any error pass.
const LEAST: f32 = 1e-3;

/// The inputs of one tensor's matrices.
#[derive(Clone, Debug, Default)]
pub(super) struct Means {
    /// `[experts][cols]`, above 0.
    means: Vec<f32>,
}

impl Means {
    /// From sums over rows, how many of them for each expert.
    fn new(sums: &[f32], counts: &[f32]) -> Option<Self> {
        let sound = |x: &f32| x.is_finite() && *x >= 0.0;
        if counts.is_empty() || sums.is_empty() || !sums.len().is_multiple_of(counts.len()) {
            return None;
        }
        if !sums.iter().chain(counts).all(sound) {
            return None;
        }
        let cols = sums.len() / counts.len();
        let mut means = Vec::with_capacity(sums.len());
        for (sums, count) in sums.chunks_exact(cols).zip(counts) {
            let mean = sums.iter().sum::<f32>() / cols as f32;
            if *count == 0.0 || mean <= 0.0 {
                means.extend(sums.iter().map(|_| 1.0));
            } else {
                means.extend(sums.iter().map(|sum| (sum / mean).max(LEAST)));
            }
        }
        Some(Self { means })
    }

    /// Those of row `row` of `all` rows of `cols` weights.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a tensor of another shape.
    pub(super) fn row(&self, row: usize, all: usize, cols: usize) -> Result<&[f32]> {
        let experts = self.means.len() / cols.max(1);
        if experts * cols != self.means.len() || experts == 0 || !all.is_multiple_of(experts) {
            return Err(Error::invalid("the importance matrix was made for a model of other shapes"));
        }
        let expert = row / (all / experts);
        Ok(&self.means[expert * cols..][..cols])
    }
}

fn no_matrix() -> Error {
    Error::invalid("the file is no importance matrix; `shoal eval --imatrix` makes one")
}

/// What is known of a model's matrices.
#[derive(Clone, Debug, Default)]
pub struct Importance(BTreeMap<String, Means>);

impl Importance {
    /// Reads the first `bytes` of a file of either kind.
    ///
    /// # Errors
    /// Those of the file; [`Error::Invalid`] for a file of neither kind, [`Error::Malformed`] for numbers that cannot be.
    pub fn of_file(mut file: &File, bytes: u64) -> Result<Self> {
        const NAME: &str = "the importance matrix";
        let mut magic = [0; 4];
        let mut read = |into: &mut [u8]| {
            let read = file.seek(SeekFrom::Start(0)).and_then(|_| file.read_exact(into));
            read.map_err(|error| Error::io(NAME, error))
        };
        if bytes >= 4 {
            read(&mut magic)?;
        }
        if &magic == b"GGUF" {
            return Gguf::of_file(file, bytes, NAME).and_then(|gguf| Self::from_gguf(&gguf));
        }
        if bytes > MAX_DAT {
            return Err(Error::invalid("the file is no importance matrix: it is too long for one"));
        }
        let mut all = vec![0; bytes as usize];
        read(&mut all)?;
        Self::from_dat(&all).ok_or_else(no_matrix)
    }

    /// Reads a file of the older kind; `None` for one that is not of it.
    fn from_dat(mut rest: &[u8]) -> Option<Self> {
        let number =
            |rest: &mut &[u8]| Some(u32::from_le_bytes(*rest.split_off(..4)?.first_chunk()?) as usize);
        let entries = number(&mut rest)?;
        let mut all = BTreeMap::new();
        for _ in 0..entries {
            let length = number(&mut rest).filter(|length| (1..=MAX_NAME).contains(length))?;
            let name = str::from_utf8(rest.split_off(..length)?).ok()?.to_owned();
            let calls = number(&mut rest)?;
            let values = number(&mut rest)?.checked_mul(4)?;
            let values = rest.split_off(..values)?;
            let values: Vec<f32> = values.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect();
            // What was never called has no values.
            if !values.is_empty() {
                all.insert(name, Means::new(&values, &[calls as f32])?);
            }
        }
        (!all.is_empty()).then_some(Self(all))
    }

    fn from_gguf(gguf: &Gguf) -> Result<Self> {
        if gguf.metadata().str("general.type") != Some(TYPE) {
            return Err(no_matrix());
        }
        let mut all = BTreeMap::new();
        for info in gguf.tensors() {
            let Some(name) = info.name.strip_suffix(SUMS) else { continue };
            let read = |name: &str| gguf.require(name).map(|tensor| tensor.to_f32());
            let (sums, counts) = (read(&info.name)?, read(&format!("{name}{COUNTS}"))?);
            let means = Means::new(&sums, &counts);
            let means = means.ok_or_else(|| Error::malformed(&*info.name, "it holds no sums of squares"))?;
            all.insert(name.to_owned(), means);
        }
        match all.is_empty() {
            true => Err(Error::invalid("the importance matrix has no entry")),
            false => Ok(Self(all)),
        }
    }

    /// What is known of the tensor called `name`.
    pub(super) fn of(&self, name: &str) -> Option<&Means> {
        self.0.get(name)
    }

    /// Errors: it knows none of the tensors called `names`.
    pub(super) fn check<'n>(&self, mut names: impl Iterator<Item = &'n str>) -> Result<()> {
        match names.any(|name| self.0.contains_key(name)) {
            true => Ok(()),
            false => Err(Error::invalid(
                "the importance matrix was made for another model: it names none of its matrices",
            )),
        }
    }
}

/// Writes an importance matrix: what was `seen` of `text`, in chunks of `chunk` tokens.
///
/// # Errors
/// Those of the file.
pub fn write(out: impl Write, seen: &[Seen], text: &str, (chunks, chunk): (u32, u32)) -> Result<()> {
    let mut writer = Writer::new();
    writer.add_str("general.type", TYPE).add_strs("imatrix.datasets", &[text]);
    writer.add_u32("imatrix.chunk_count", chunks).add_u32("imatrix.chunk_size", chunk);
    for Seen { name, sums, counts } in seen {
        let (experts, cols) = (counts.len() as u64, (sums.len() / counts.len().max(1)) as u64);
        writer.add_tensor_info(&format!("{name}{SUMS}"), &[cols, experts], &F32);
        writer.add_tensor_info(&format!("{name}{COUNTS}"), &[1, experts], &F32);
    }
    let mut out = writer.start(out)?;
    let bytes = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    for Seen { sums, counts, .. } in seen {
        out.tensor(&bytes(sums))?;
        out.tensor(&bytes(counts))?;
    }
    out.finish().map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(sums: &[f32], counts: &[f32]) -> Seen {
        Seen { name: "blk.0.ffn_down.weight".into(), sums: sums.into(), counts: counts.into() }
    }

    fn read(seen: &[Seen]) -> Result<Importance> {
        let mut file = Vec::new();
        write(&mut file, seen, "text", (3, 512))?;
        Importance::from_gguf(&Gguf::from_bytes(file)?)
    }

    #[test]
    fn what_is_written_is_read() {
        // The second expert was never chosen.
        let importance = read(&[seen(&[6.0, 2.0, 0.0, 0.0], &[4.0, 0.0])]).unwrap();
        let means = importance.of("blk.0.ffn_down.weight").unwrap();
        assert_eq!(means.row(2, 6, 2).unwrap(), [1.5, 0.5]);
        assert_eq!(means.row(3, 6, 2).unwrap(), [1.0, 1.0]);
        assert!(means.row(0, 6, 3).is_err() && means.row(0, 5, 2).is_err());
        assert!(importance.check(["blk.0.ffn_down.weight"].into_iter()).is_ok());
        assert!(importance.check(["blk.0.ffn_up.weight"].into_iter()).is_err());
    }

    /// A file of the older kind, of one entry.
    fn dat(name: &str, calls: u32, values: &[f32]) -> Vec<u8> {
        let mut file = 1u32.to_le_bytes().to_vec();
        file.extend((name.len() as u32).to_le_bytes());
        file.extend(name.bytes());
        file.extend(calls.to_le_bytes());
        file.extend((values.len() as u32).to_le_bytes());
        file.extend(values.iter().flat_map(|x| x.to_le_bytes()));
        file.extend(7u32.to_le_bytes());
        file
    }

    #[test]
    fn files_of_the_older_kind_say_the_same() {
        let of_bytes = |bytes: &[u8]| {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(bytes).unwrap();
            Importance::of_file(&file, bytes.len() as u64)
        };
        let name = "blk.0.ffn_down.weight";
        let sound = dat(name, 4, &[6.0, 2.0]);
        let older = of_bytes(&sound).unwrap();
        let mut newer = Vec::new();
        write(&mut newer, &[seen(&[6.0, 2.0], &[4.0])], "text", (3, 512)).unwrap();
        let rows = [older, of_bytes(&newer).unwrap()]
            .map(|all| all.of(name).unwrap().row(0, 1, 2).unwrap().to_vec());
        assert_eq!(rows, [[1.5, 0.5], [1.5, 0.5]]);
        for length in 0..sound.len() - 4 {
            assert!(of_bytes(&sound[..length]).is_err(), "{length}");
        }
        let long = "x".repeat(MAX_NAME + 1);
        for file in [dat(name, 4, &[f32::NAN, 1.0]), dat(name, 4, &[]), dat(&long, 4, &[1.0]), vec![255; 64]]
        {
            assert!(of_bytes(&file).is_err());
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (sums, counts) in
            [(&[f32::NAN, 1.0][..], &[1.0][..]), (&[-1.0, 1.0], &[1.0]), (&[1.0; 3], &[1.0; 2])]
        {
            assert!(Means::new(sums, counts).is_none(), "{sums:?} {counts:?}");
        }
        assert!(read(&[seen(&[f32::INFINITY, 1.0], &[1.0])]).is_err());
        let model = crate::synthetic::shape("tiny").unwrap().to_bytes(&F32, 3).unwrap();
        assert!(Importance::from_gguf(&Gguf::from_bytes(model).unwrap()).is_err());
    }
}
