//! A publisher's folder, open: what is converted is read through descriptors, so that a process without paths can do it.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use serde_json::Value;

use crate::{Error, Result};

/// What says which states stand for a text, in a folder of its own.
pub(super) const POOLING: &str = "1_Pooling/config.json";
/// Files besides the weights that are looked at.
const TEXTS: [&str; 7] = [
    "config.json",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "chat_template.jinja",
    POOLING,
];
/// Most files of weights: the largest published checkpoints have about 200.
pub const MAX_PARTS: usize = 4_096;
/// Longest file that is read whole; the largest vocabularies take about 40 MiB as JSON.
const MAX_TEXT: u64 = 256 << 20;

/// The files of a folder that say something of a model. See the module's page.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    files: BTreeMap<String, Opened>,
}

/// An open file.
#[derive(Debug)]
struct Opened {
    file: Mutex<File>,
    bytes: u64,
}

impl Folder {
    /// Opens the folder's weights (`*.safetensors`) and what describes them; looks into none of it.
    ///
    /// # Errors
    /// Those of the system; more than [`MAX_PARTS`] files.
    pub fn open(path: &Path) -> Result<Self> {
        let mut files = Vec::new();
        let entries = fs::read_dir(path).map_err(|e| Error::io(path, e))?;
        let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        let nested = path.join(POOLING).exists().then(|| Ok(POOLING.to_owned()));
        for name in names.chain(nested) {
            let name = name.map_err(|e: io::Error| Error::io(path, e))?;
            if !name.ends_with(".safetensors") && !TEXTS.contains(&name.as_str()) {
                continue;
            }
            let here = path.join(&name);
            let file = File::open(&here).map_err(|e| Error::io(&here, e))?;
            let about = file.metadata().map_err(|e| Error::io(&here, e))?;
            if about.is_file() {
                files.push((name, file, about.len()));
            }
            if files.len() > MAX_PARTS {
                return Err(Error::invalid(format!("{} holds more than {MAX_PARTS} files", path.display())));
            }
        }
        Ok(Self::new(path, files))
    }

    /// Of files that are open already: name, file, length in bytes. `path` is what errors call the folder.
    pub fn new(path: &Path, files: impl IntoIterator<Item = (String, File, u64)>) -> Self {
        let opened = |(name, file, bytes)| (name, Opened { file: Mutex::new(file), bytes });
        Self { path: path.to_owned(), files: files.into_iter().map(opened).collect() }
    }

    /// What it is called in errors.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The files as [`Folder::new`] takes them.
    pub fn into_files(self) -> Vec<(String, File, u64)> {
        let inner = |file: Mutex<File>| file.into_inner().unwrap_or_else(PoisonError::into_inner);
        self.files.into_iter().map(|(name, opened)| (name, inner(opened.file), opened.bytes)).collect()
    }

    /// The names of all files.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// Length of a file in bytes.
    pub(super) fn len(&self, name: &str) -> Result<u64> {
        Ok(self.get(name)?.bytes)
    }

    /// Fills `bytes` from `offset` of a file on.
    pub(super) fn read_at(&self, name: &str, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let mut file = self.get(name)?.file.lock().unwrap_or_else(PoisonError::into_inner);
        let read = file.seek(SeekFrom::Start(offset)).and_then(|_| file.read_exact(bytes));
        read.map_err(|e| Error::io(self.path.join(name), e))
    }

    /// A whole file, if it is there.
    pub(super) fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let Some(opened) = self.files.get(name) else { return Ok(None) };
        if opened.bytes > MAX_TEXT {
            return Err(Error::malformed(name, format!("it has more than {} MiB", MAX_TEXT >> 20)));
        }
        let mut bytes = vec![0; opened.bytes as usize];
        self.read_at(name, 0, &mut bytes)?;
        Ok(Some(bytes))
    }

    /// A file of JSON, if it is there.
    pub(super) fn json(&self, name: &str) -> Result<Option<Value>> {
        let Some(bytes) = self.read(name)? else { return Ok(None) };
        let read = serde_json::from_slice(&bytes).or_else(|error| {
            // Python writes numbers that JSON has no words for.
            serde_json::from_slice(&without_infinities(&bytes)).map_err(|_| error)
        });
        read.map(Some).map_err(|e| Error::malformed(name, e.to_string()))
    }

    fn get(&self, name: &str) -> Result<&Opened> {
        let missing = || Error::io(self.path.join(name), io::ErrorKind::NotFound.into());
        self.files.get(name).ok_or_else(missing)
    }
}

/// The same text with `null` for `NaN`, `Infinity` and `-Infinity`, but not within strings.
fn without_infinities(json: &[u8]) -> Vec<u8> {
    let (mut out, mut rest, mut quoted) = (Vec::with_capacity(json.len()), json, false);
    while let [first, behind @ ..] = rest {
        let word = [&b"-Infinity"[..], b"Infinity", b"NaN"].into_iter().find(|word| rest.starts_with(word));
        if let (false, Some(word)) = (quoted, word) {
            out.extend(b"null");
            rest = &rest[word.len()..];
            continue;
        }
        out.push(*first);
        rest = behind;
        match (first, behind) {
            (b'"', _) => quoted = !quoted,
            (b'\\', [escaped, behind @ ..]) if quoted => {
                out.push(*escaped);
                rest = behind;
            }
            _ => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_python_calls_infinite_is_read_as_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let text = r#"{"time_step_limit": [0.0, Infinity], "least": -Infinity, "none": NaN, "text": "a \"NaN\" Infinity"}"#;
        std::fs::write(folder.path().join("config.json"), text).unwrap();
        let read = Folder::open(folder.path()).unwrap().json("config.json").unwrap().unwrap();
        let expected = serde_json::json!({"time_step_limit": [0.0, null], "least": null, "none": null,
            "text": "a \"NaN\" Infinity"});
        assert_eq!(read, expected);
        std::fs::write(folder.path().join("config.json"), "{\"a\": Infinit}").unwrap();
        assert!(Folder::open(folder.path()).unwrap().json("config.json").is_err());
    }
}
