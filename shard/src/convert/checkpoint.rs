//! Reads tensors out of one or several safetensors files.
//!
//! Layout of a file (the safetensors format): u64 little-endian length of the header, the header as a JSON object
//! `name -> {dtype, shape, data_offsets: [start, end)}`, then the data. Offsets are checked against the file's
//! length before anything is read; the header is at most [`MAX_HEADER`] bytes.

use std::{collections::BTreeMap, ops::Range};

use half::{bf16, f16};
use serde_json::Value;

use super::folder::Folder;
use crate::{Error, Result};

/// The cap of the reference implementation.
const MAX_HEADER: u64 = 100 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dtype {
    F32,
    F16,
    Bf16,
}

impl Dtype {
    fn bytes(self) -> usize {
        if self == Self::F32 { 4 } else { 2 }
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
}

impl Stored {
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
        Ok(checkpoint)
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
        let width = stored.cols() * stored.dtype.bytes();
        let mut bytes = vec![0; rows.len() * width];
        let offset = stored.offset + (rows.start * width) as u64;
        self.folder.read_at(&self.files[stored.file], offset, &mut bytes)?;
        Ok(match stored.dtype {
            Dtype::F32 => bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
            Dtype::F16 => bytes.as_chunks::<2>().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
            Dtype::Bf16 => {
                bytes.as_chunks::<2>().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect()
            }
        })
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
    let bytes = shape.iter().try_fold(dtype.bytes() as u64, |n, &dim| n.checked_mul(dim));
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
}
