//! Reads tensors out of one or several safetensors files.
//!
//! Layout of a file (the safetensors format): u64 little-endian length of the header, the header as a JSON object
//! `name -> {dtype, shape, data_offsets: [start, end)}`, then the data. Offsets are checked against the file's
//! length before anything is read; the header is at most [`MAX_HEADER`] bytes.

use std::{collections::BTreeMap, ops::Range};

use half::{bf16, f16};
use serde_json::Value;

use super::folder::Folder;
use crate::{Error, Result, quant::mxfp4};

/// The cap of the reference implementation.
const MAX_HEADER: u64 = 100 << 20;

/// Codes that share a scale in the microscaling formats.
const SHARED: usize = 32;
/// Ternary codes in a byte.
const TERNARY: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dtype {
    F32,
    F16,
    Bf16,
    /// Part of a tensor of MXFP4, which has two.
    U8,
    /// Codes of 4 bits, the earlier one in the low half; where their scales are: in which file, from which byte on.
    Mxfp4 {
        scales: (usize, u64),
    },
    /// Codes of 2 bits, each one less than it says: a quarter of the rows in the lowest bits of all bytes, the next in those above.
    Ternary,
}

impl Dtype {
    /// Bytes of so many values, without scales.
    fn bytes(self, values: usize) -> usize {
        match self {
            Self::F32 => 4 * values,
            Self::F16 | Self::Bf16 => 2 * values,
            Self::U8 => values,
            Self::Mxfp4 { .. } => values / 2,
            // A row is one part of bytes that it shares with three others.
            Self::Ternary => values,
        }
    }
}

/// One tensor of the checkpoint.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    file: usize,
    offset: u64,
    dtype: Dtype,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    /// The number beside ternary codes.
    pub scale: Option<f32>,
}

impl Stored {
    /// Whether it has the matrices of experts as they are multiplied, outputs before inputs, as MXFP4 checkpoints have them.
    pub fn is_mxfp4(&self) -> bool {
        matches!(self.dtype, Dtype::Mxfp4 { .. })
    }

    /// Length of the innermost dimension.
    pub fn cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Product of the other dimensions.
    pub fn rows(&self) -> usize {
        self.shape.iter().rev().skip(1).product()
    }
}

/// All tensors of a folder, by name.
pub(super) struct Checkpoint<'a> {
    folder: &'a Folder,
    files: Vec<String>,
    tensors: BTreeMap<String, Stored>,
}

impl<'a> Checkpoint<'a> {
    /// Opens `model.safetensors`, the files of `model.safetensors.index.json`, or every `*.safetensors` there is.
    pub fn open(folder: &'a Folder) -> Result<Self> {
        let mut checkpoint = Self { folder, files: files(folder)?, tensors: BTreeMap::new() };
        for index in 0..checkpoint.files.len() {
            checkpoint.read_header(index)?;
        }
        checkpoint.join_halves()?;
        checkpoint.join_scales()?;
        Ok(checkpoint)
    }

    /// Makes one tensor of each `NAME.weight` of bytes and `NAME.weight_scale`, in which ternary models are published.
    fn join_scales(&mut self) -> Result<()> {
        let names: Vec<String> = self.tensors.keys().cloned().collect();
        for scale in names {
            let Some(name) = scale.strip_suffix("_scale").filter(|name| name.ends_with(".weight")) else {
                continue;
            };
            let Some(codes) = self.tensors.get(name).cloned() else { continue };
            let one = self.tensors.get(&scale).is_some_and(|scale| scale.rows() == 1 && scale.cols() == 1);
            if codes.dtype != Dtype::U8 || codes.shape.len() != 2 || !one {
                return Err(Error::malformed(scale, "there are no ternary codes for it"));
            }
            let value = self.read(&scale, 0..1)?.first().copied().unwrap_or_default();
            if !(value.is_finite() && value > 0.0) {
                return Err(Error::malformed(scale, format!("{value} is no scale")));
            }
            self.tensors.remove(&scale);
            let shape = vec![codes.shape[0] * TERNARY, codes.shape[1]];
            let joined = Stored { dtype: Dtype::Ternary, shape, scale: Some(value), ..codes };
            self.tensors.insert(name.to_owned(), joined);
        }
        Ok(())
    }

    /// Makes one tensor of each pair `NAME_blocks` and `NAME_scales`, in which MXFP4 is published.
    fn join_halves(&mut self) -> Result<()> {
        let names: Vec<String> = self.tensors.keys().cloned().collect();
        for blocks in names {
            let Some(name) = blocks.strip_suffix("_blocks").map(str::to_owned) else { continue };
            let Some(scales) = self.tensors.remove(&format!("{name}_scales")) else { continue };
            let Some(codes) = self.tensors.remove(&blocks) else { continue };
            let fits = matches!(&codes.shape[..], [.., groups, bytes] if 2 * bytes == SHARED && scales.shape.last() == Some(groups))
                && codes.shape[..codes.shape.len() - 1] == scales.shape[..];
            if !fits || codes.dtype != Dtype::U8 || scales.dtype != Dtype::U8 {
                return Err(Error::malformed(blocks, "it is no MXFP4 with the scales beside it"));
            }
            let mut shape = scales.shape.clone();
            if let Some(groups) = shape.last_mut() {
                *groups *= SHARED;
            }
            let dtype = Dtype::Mxfp4 { scales: (scales.file, scales.offset) };
            self.tensors.insert(name, Stored { dtype, shape, ..codes });
        }
        Ok(())
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    pub fn get(&self, name: &str) -> Option<&Stored> {
        self.tensors.get(name)
    }

    /// The f32 values of some rows of a tensor.
    pub fn read(&self, name: &str, rows: Range<usize>) -> Result<Vec<f32>> {
        let stored = self.get(name).ok_or_else(|| Error::unsupported(format!("tensor {name} is missing")))?;
        let width = stored.dtype.bytes(stored.cols());
        let bytes = || self.bytes(stored.file, stored.offset, width, &rows);
        Ok(match stored.dtype {
            Dtype::U8 => return Err(Error::unsupported(format!("tensor {name}: numbers of type U8"))),
            Dtype::Ternary => self.codes(name, stored, rows)?,
            Dtype::Mxfp4 { scales: (file, offset) } => {
                let scales = self.bytes(file, offset, stored.cols() / SHARED, &rows)?;
                if scales.contains(&u8::MAX) {
                    return Err(Error::malformed(name, "one of its scales is no number"));
                }
                let values = |(codes, scale): (&u8, f32)| {
                    [codes & 15, codes >> 4].map(|code| scale * f32::from(mxfp4::VALUES[usize::from(code)]))
                };
                let scales = scales.iter().flat_map(|e| [mxfp4::power(*e); SHARED / 2]);
                bytes()?.iter().zip(scales).flat_map(values).collect()
            }
            Dtype::F32 => bytes()?.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
            Dtype::F16 => {
                bytes()?.as_chunks::<2>().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect()
            }
            Dtype::Bf16 => {
                bytes()?.as_chunks::<2>().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect()
            }
        })
    }

    /// Some rows of ternary codes, without their scale.
    fn codes(&self, name: &str, stored: &Stored, rows: Range<usize>) -> Result<Vec<f32>> {
        let part = stored.rows() / TERNARY;
        let mut values = Vec::with_capacity(rows.len() * stored.cols());
        for quarter in 0..TERNARY {
            let own = rows.start.max(quarter * part)..rows.end.min((quarter + 1) * part);
            if own.is_empty() {
                continue;
            }
            let own = own.start - quarter * part..own.end - quarter * part;
            for byte in self.bytes(stored.file, stored.offset, stored.cols(), &own)? {
                match byte >> (2 * quarter) & 3 {
                    3 => return Err(Error::malformed(name, "one of its codes is not ternary")),
                    code => values.push(f32::from(code) - 1.0),
                }
            }
        }
        Ok(values)
    }

    /// Some rows, each `width` bytes, of what begins at byte `offset` of a file.
    fn bytes(&self, file: usize, offset: u64, width: usize, rows: &Range<usize>) -> Result<Vec<u8>> {
        let mut bytes = vec![0; rows.len() * width];
        self.folder.read_at(&self.files[file], offset + (rows.start * width) as u64, &mut bytes)?;
        Ok(bytes)
    }

    fn read_header(&mut self, index: usize) -> Result<()> {
        let file = self.files[index].clone();
        let file_len = self.folder.len(&file)?;
        let mut len = [0; 8];
        self.folder.read_at(&file, 0, &mut len)?;
        let header_len = u64::from_le_bytes(len);
        let field = |what: &str| format!("{file}: {what}");
        if header_len > MAX_HEADER || header_len > file_len.saturating_sub(8) {
            return Err(Error::malformed(field("header length"), format!("{header_len} bytes do not fit")));
        }
        let mut header = vec![0; header_len as usize];
        self.folder.read_at(&file, 8, &mut header)?;
        let header: Value =
            serde_json::from_slice(&header).map_err(|e| Error::malformed(field("header"), e.to_string()))?;
        let entries =
            header.as_object().ok_or_else(|| Error::malformed(field("header"), "it is not an object"))?;
        for (name, entry) in entries.iter().filter(|(name, _)| *name != "__metadata__") {
            let stored = stored(entry, index, 8 + header_len, file_len)
                .map_err(|why| Error::malformed(field(name), why))?;
            if self.tensors.insert(name.clone(), stored).is_some() {
                return Err(Error::malformed(field(name), "it stands in two files"));
            }
        }
        Ok(())
    }
}

fn stored(entry: &Value, file: usize, data: u64, file_len: u64) -> Result<Stored, String> {
    let dtype = match entry["dtype"].as_str() {
        Some("F32") => Dtype::F32,
        Some("F16") => Dtype::F16,
        Some("BF16") => Dtype::Bf16,
        Some("U8") => Dtype::U8,
        other => return Err(format!("numbers of type {} cannot be converted", other.unwrap_or("unknown"))),
    };
    let numbers =
        |key: &str| -> Option<Vec<u64>> { entry[key].as_array()?.iter().map(Value::as_u64).collect() };
    let shape = numbers("shape").ok_or("it has no shape")?;
    let (start, end) = match numbers("data_offsets").as_deref() {
        Some(&[start, end]) if start <= end => (start, end),
        _ => return Err("it has no data_offsets".into()),
    };
    // With a 0 among them the others could be of any size, and products of some of them overflow.
    if shape.contains(&0) {
        return Err(format!("shape {shape:?} holds nothing"));
    }
    let bytes = shape.iter().try_fold(dtype.bytes(1) as u64, |n, &dim| n.checked_mul(dim));
    if bytes != Some(end - start) {
        return Err(format!("shape {shape:?} and offsets {start}..{end} disagree"));
    }
    match data.checked_add(end) {
        Some(stop) if stop <= file_len => {}
        _ => return Err(format!("it ends at {end}, behind the end of the file")),
    }
    Ok(Stored {
        file,
        offset: data + start,
        dtype,
        shape: shape.into_iter().map(|dim| dim as usize).collect(),
        scale: None,
    })
}

/// The files of weights, by the index where there is one.
fn files(folder: &Folder) -> Result<Vec<String>> {
    const INDEX: &str = "model.safetensors.index.json";
    let mut names: Vec<String> = match folder.json(INDEX)? {
        Some(index) => {
            let map = index["weight_map"].as_object();
            let map = map.ok_or_else(|| Error::malformed(INDEX, "it has no weight_map"))?;
            map.values().filter_map(|v| v.as_str().map(String::from)).collect()
        }
        None => folder.names().filter(|name| name.ends_with(".safetensors")).map(String::from).collect(),
    };
    names.sort();
    names.dedup();
    if let Some(name) = names.iter().find(|name| name.contains(['/', '\\'])) {
        return Err(Error::malformed(INDEX, format!("\"{name}\" is not a file of the folder")));
    }
    if names.is_empty() {
        return Err(Error::invalid(format!("{} holds no .safetensors file", folder.path().display())));
    }
    Ok(names)
}

/// A folder with one file of these tensors: their entries, and the bytes behind the header.
#[cfg(test)]
pub(super) fn folder_of(entries: &Value, data: &[u8]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let header = entries.to_string();
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat();
    std::fs::write(folder.path().join("model.safetensors"), file).unwrap();
    folder
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_shape_of_nothing_is_refused() {
        let entry =
            |shape: Value, end: u64| json!({"dtype": "F32", "shape": shape, "data_offsets": [0, end]});
        assert_eq!(stored(&entry(json!([2, 3]), 24), 0, 8, 32).unwrap().rows(), 2);
        let huge = 1u64 << 63;
        let why = stored(&entry(json!([0, huge, huge, huge]), 0), 0, 8, 32).unwrap_err();
        assert!(why.contains("holds nothing"), "{why}");
        assert!(stored(&entry(json!([2, 3]), 24), 0, 16, 32).is_err());
    }

    /// A folder with one tensor of MXFP4: two rows of one group, the second one twice as large.
    fn halves(scales: &[u8], shape: Value) -> tempfile::TempDir {
        let entries = json!({
            "w_blocks": {"dtype": "U8", "shape": [2, 1, 16], "data_offsets": [0, 32]},
            "w_scales": {"dtype": "U8", "shape": shape, "data_offsets": [32, 34]},
        });
        // 1.0 and -6.0, then zeros.
        let row = [&[0xf2][..], &[0; 15]].concat();
        folder_of(&entries, &[&row[..], &row, scales].concat())
    }

    #[test]
    fn mxfp4_is_one_tensor_of_two() {
        let folder = halves(&[127, 128], json!([2, 1]));
        let folder = Folder::open(folder.path()).unwrap();
        let checkpoint = Checkpoint::open(&folder).unwrap();
        assert_eq!(checkpoint.names().collect::<Vec<_>>(), ["w"]);
        assert!(checkpoint.get("w").unwrap().is_mxfp4() && checkpoint.get("w").unwrap().shape == [2, 32]);
        assert_eq!(checkpoint.read("w", 0..2).unwrap()[..3], [1.0, -6.0, 0.0]);
        assert_eq!(checkpoint.read("w", 1..2).unwrap()[..3], [2.0, -12.0, 0.0]);
    }

    /// A folder with one tensor of ternary codes, two rows of bytes, and its scale.
    fn ternary(codes: [u8; 4], scale: f32) -> tempfile::TempDir {
        let entries = json!({
            "w.weight": {"dtype": "U8", "shape": [2, 2], "data_offsets": [0, 4]},
            "w.weight_scale": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]},
        });
        folder_of(&entries, &[codes, scale.to_le_bytes()].concat())
    }

    #[test]
    fn ternary_rows_share_bytes() {
        let folder = ternary([0b10_10_00_01, 0b00_01_10_00, 0b10_01_00_00, 0b00_01_00_10], 1.75);
        let folder = Folder::open(folder.path()).unwrap();
        let checkpoint = Checkpoint::open(&folder).unwrap();
        let stored = checkpoint.get("w.weight").unwrap();
        assert_eq!(
            (checkpoint.names().count(), stored.scale, &stored.shape[..]),
            (1, Some(1.75), &[8, 2][..])
        );
        let all = [[0, -1], [-1, 1], [-1, 1], [-1, -1], [1, 0], [0, 0], [1, -1], [1, -1]]
            .map(|row| row.map(|c| c as f32));
        assert_eq!(checkpoint.read("w.weight", 0..8).unwrap(), all.as_flattened());
        assert_eq!(checkpoint.read("w.weight", 3..6).unwrap(), all[3..6].as_flattened());
        let why = |codes, scale| {
            let folder = ternary(codes, scale);
            let folder = Folder::open(folder.path()).unwrap();
            let read = Checkpoint::open(&folder).and_then(|checkpoint| checkpoint.read("w.weight", 0..8));
            read.unwrap_err().to_string()
        };
        assert!(why([0b11, 0, 0, 0], 1.0).contains("not ternary"));
        assert!(why([0; 4], f32::NAN).contains("no scale"));
    }

    #[test]
    fn mxfp4_that_is_none_is_refused() {
        let why = |scales: &[u8], shape: Value| {
            let folder = halves(scales, shape);
            let folder = Folder::open(folder.path()).unwrap();
            let read = Checkpoint::open(&folder).and_then(|checkpoint| checkpoint.read("w", 0..2));
            read.unwrap_err().to_string()
        };
        assert!(why(&[127, 255], json!([2, 1])).contains("no number"));
        assert!(why(&[127, 127], json!([1, 2])).contains("scales"));
    }
}
