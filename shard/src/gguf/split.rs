//! Models in several files, `NAME-00001-of-00003.gguf` and so on, which open as one.
//!
//! Every part is a GGUF file of its own: the first has the metadata, each has the table of its tensors, and three keys
//! say which part of how many it is. Offsets count as if the parts stood one after the other. [`join`] writes them as the one
//! file that has a name in a swarm.

use std::{
    fs::File,
    io::{BufWriter, Seek, Write},
    path::{Path, PathBuf},
};

use super::{
    Gguf, MAX_TENSORS, Source, Writer,
    parse::{self, Header},
};
use crate::{Error, Result};

/// Most parts of a model: published ones have below 100.
pub const MAX_PARTS: usize = 128;

/// What each part says of itself.
const KEYS: [&str; 3] = ["split.no", "split.count", "split.tensors.count"];
/// Bytes copied between two reports.
const STEP: usize = 16 << 20;

/// The paths of all parts of which `path` is one by its name, first to last; `None` for a file that is whole.
pub fn parts(path: &Path) -> Option<Vec<PathBuf>> {
    let name = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
    let (rest, count) = name.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| {
        let plain = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
        plain.then(|| text.parse::<usize>().ok()).flatten()
    };
    let (number, count) = (digits(number)?, digits(count)?);
    let sound = (1..=count).contains(&number) && (2..=MAX_PARTS).contains(&count);
    sound.then(|| {
        let part = |number| path.with_file_name(format!("{stem}-{number:05}-of-{count:05}.gguf"));
        (1..=count).map(part).collect()
    })
}

/// What the parts of a model have in common in their names; the name itself without its ending for a file that is whole.
pub fn stem(name: &str) -> &str {
    let plain = name.strip_suffix(".gguf").unwrap_or(name);
    match parts(Path::new(name)) {
        Some(_) => plain.rsplitn(4, '-').nth(3).unwrap_or(plain),
        None => plain,
    }
}

/// All parts of the model that `path` is one of by its name, open, with their lengths; `None` for a file that is whole.
///
/// # Errors
/// [`Error::Invalid`] naming all parts that are missing; those of the system.
pub fn open_parts(path: &Path) -> Result<Option<Vec<(File, u64)>>> {
    let Some(paths) = parts(path) else { return Ok(None) };
    let missing: Vec<String> = paths
        .iter()
        .filter(|part| !part.is_file())
        .filter_map(|part| Some(part.file_name()?.to_string_lossy().into_owned()))
        .collect();
    if !missing.is_empty() {
        let (all, missing) = (paths.len(), missing.join(", "));
        return Err(Error::invalid(format!(
            "{} is one of {all} parts of a model; missing beside it: {missing}",
            path.display()
        )));
    }
    let open = |path: PathBuf| {
        let file = File::open(&path).map_err(|error| Error::io(&path, error))?;
        let len = file.metadata().map_err(|error| Error::io(&path, error))?.len();
        Ok((file, len))
    };
    paths.into_iter().map(open).collect::<Result<_>>().map(Some)
}

/// One header of the parts' `sources`, whose tensors have offsets as if the parts stood one after the other.
pub(super) fn headers(sources: &[Source]) -> Result<Header> {
    let mut whole: Option<Header> = None;
    let mut tensors = Vec::new();
    let mut start = 0u64;
    for (index, source) in sources.iter().enumerate() {
        let part = |what: &str| format!("part {} of {}: {what}", index + 1, sources.len());
        let header = parse::header(source.bytes()).map_err(|error| match error {
            Error::Malformed { field, why } => Error::malformed(part(&field), why),
            other => other,
        })?;
        let says = |key: &str| parse::integer(source.bytes(), &header.entries, key);
        for (key, is) in [(KEYS[0], index as u64), (KEYS[1], sources.len() as u64)] {
            match says(key) {
                Some(said) if said == is => {}
                Some(said) => {
                    return Err(Error::malformed(part(key), format!("is {said}, by the file's name {is}")));
                }
                None => return Err(Error::malformed(part(key), "is missing")),
            }
        }
        tensors.extend(header.tensors.iter().map(|tensor| tensor.moved(start)));
        start = start
            .checked_add(source.bytes().len() as u64)
            .ok_or_else(|| Error::malformed(part("length"), "is too large"))?;
        match &whole {
            None => whole = Some(header),
            Some(first) => {
                let total = |header: &Header, source: &Source| {
                    parse::integer(source.bytes(), &header.entries, KEYS[2])
                };
                if total(first, &sources[0]) != total(&header, source) {
                    return Err(Error::malformed(part(KEYS[2]), "is another than that of part 1"));
                }
            }
        }
    }
    let first = whole.ok_or_else(|| Error::invalid("a model has at least one part"))?;
    if tensors.len() as u64 > MAX_TENSORS {
        return Err(Error::malformed("tensor count", format!("{} is above {MAX_TENSORS}", tensors.len())));
    }
    let told = sources.first().and_then(|source| parse::integer(source.bytes(), &first.entries, KEYS[2]));
    if told.is_some_and(|told| told != tensors.len() as u64) {
        let why = format!("is {}, the parts hold {}", told.unwrap_or_default(), tensors.len());
        return Err(Error::malformed(KEYS[2], why));
    }
    let tensors = tensors.into_boxed_slice();
    let by_name = parse::index_names(&tensors)?;
    Ok(Header { tensors, by_name, ..first })
}

/// Writes `gguf`, whose parts are several files, as one file to `output`, which is empty and open for writing;
/// `progress(done, total)` counts bytes of tensor data. Returns the length of the file.
///
/// # Errors
/// [`Error::Unsupported`] for a tensor of a type that is not known here; those of the system.
pub fn join(gguf: &Gguf, output: &File, progress: &dyn Fn(u64, u64)) -> Result<u64> {
    let mut writer = Writer::new();
    for (key, value) in gguf.metadata().iter().filter(|(key, _)| !KEYS.contains(key)) {
        match (key, value) {
            ("general.alignment", value) => {
                let alignment = value.as_i128().and_then(|value| u32::try_from(value).ok());
                writer.set_alignment(alignment.unwrap_or_default());
            }
            (key, value) => {
                writer.add_value(key, value);
            }
        }
    }
    for info in gguf.tensors() {
        let tensor = gguf.require(&info.name)?;
        writer.add_tensor_info(&info.name, &info.dims, tensor.format);
    }
    let mut out = writer.start(BufWriter::with_capacity(1 << 20, output))?;
    let total = gguf.tensors().iter().map(|info| info.len).sum();
    let mut done = 0;
    for info in gguf.tensors() {
        for piece in gguf.require(&info.name)?.bytes.chunks(STEP) {
            out.write(piece)?;
            done += piece.len() as u64;
            progress(done, total);
        }
        gguf.forget(&info.name);
    }
    let mut out = out.finish()?;
    out.flush().map_err(|error| Error::io("", error))?;
    out.get_mut().stream_position().map_err(|error| Error::io("", error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_knows_its_siblings_by_their_names() {
        let all = parts(Path::new("/m/big-q4-00002-of-00003.gguf")).unwrap();
        assert_eq!(all.len(), 3);
        assert_eq!(all[2], Path::new("/m/big-q4-00003-of-00003.gguf"));
        for whole in [
            "big.gguf",
            "big-00001-of-00001.gguf",
            "big-00004-of-00003.gguf",
            "big-00000-of-00003.gguf",
            "big-1-of-3.gguf",
            "big-00001-of-99999.gguf",
            "00001-of-00003.gguf",
        ] {
            assert_eq!(parts(Path::new(whole)), None, "{whole}");
        }
        assert_eq!([stem("big-q4-00002-of-00003.gguf"), stem("big-q4.gguf")], ["big-q4", "big-q4"]);
    }
}
