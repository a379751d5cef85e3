//! Writes GGUF v3 files: metadata in order, then the tensors' bytes as they are streamed in.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use super::{
    DEFAULT_ALIGNMENT, MAX_ARRAY, MAX_DIMS, MAX_HEADER, MAX_NAME, MAX_PAIRS, MAX_STRING, MAX_TENSORS,
    metadata::{Kind, Value},
};
use crate::{Error, Result, quant::Format};

/// Collects metadata and the tensor table of a new file.
///
/// The file obeys the reader's caps: the first violation is remembered and reported by [`Writer::start`].
///
/// ```
/// use shard::{gguf::{Gguf, Writer}, quant};
/// let mut writer = Writer::new();
/// writer.add_str("general.architecture", "llama").add_u32("llama.block_count", 1);
/// writer.add_tensor_info("output_norm.weight", &[2], &quant::F32);
/// let mut tensors = writer.start(std::io::Cursor::new(Vec::new()))?;
/// tensors.tensor(&[0, 0, 128, 63, 0, 0, 0, 64])?;
/// let gguf = Gguf::from_bytes(tensors.finish()?.into_inner())?;
/// assert_eq!(gguf.require("output_norm.weight")?.to_f32(), [1.0, 2.0]);
/// # Ok::<(), shard::Error>(())
/// ```
pub struct Writer {
    metadata: Vec<u8>,
    keys: Vec<String>,
    tensors: Vec<Planned>,
    alignment: u64,
    error: Option<Error>,
}

struct Planned {
    name: String,
    dims: Vec<u64>,
    ggml_type: u32,
    len: u64,
}

impl Default for Writer {
    fn default() -> Self {
        Self::new()
    }
}

impl Writer {
    /// A file without metadata and tensors, aligned to 32 bytes.
    pub fn new() -> Self {
        let alignment = DEFAULT_ALIGNMENT;
        Self { metadata: Vec::new(), keys: Vec::new(), tensors: Vec::new(), alignment, error: None }
    }

    /// Aligns tensors to `alignment` bytes, a power of two from 8 to 65536, and says so in the metadata.
    pub fn set_alignment(&mut self, alignment: u32) -> &mut Self {
        if !alignment.is_power_of_two() || !(8..=65_536).contains(&alignment) {
            return self.fail("general.alignment", "it is not a power of two from 8 to 65536");
        }
        self.alignment = alignment.into();
        self.pair("general.alignment", Kind::U32, &alignment.to_le_bytes())
    }

    /// Adds a string of at most 1 MiB.
    pub fn add_str(&mut self, key: &str, value: &str) -> &mut Self {
        if value.len() as u64 > MAX_STRING {
            return self.fail(key, "the string is too long");
        }
        let mut bytes = Vec::with_capacity(8 + value.len());
        put_string(&mut bytes, value);
        self.pair(key, Kind::String, &bytes)
    }

    /// Adds a truth value.
    pub fn add_bool(&mut self, key: &str, value: bool) -> &mut Self {
        self.pair(key, Kind::Bool, &[value.into()])
    }

    /// Adds a 32-bit unsigned number.
    pub fn add_u32(&mut self, key: &str, value: u32) -> &mut Self {
        self.pair(key, Kind::U32, &value.to_le_bytes())
    }

    /// Adds a 32-bit signed number.
    pub fn add_i32(&mut self, key: &str, value: i32) -> &mut Self {
        self.pair(key, Kind::I32, &value.to_le_bytes())
    }

    /// Adds a 64-bit unsigned number.
    pub fn add_u64(&mut self, key: &str, value: u64) -> &mut Self {
        self.pair(key, Kind::U64, &value.to_le_bytes())
    }

    /// Adds a 64-bit signed number.
    pub fn add_i64(&mut self, key: &str, value: i64) -> &mut Self {
        self.pair(key, Kind::I64, &value.to_le_bytes())
    }

    /// Adds a 32-bit float.
    pub fn add_f32(&mut self, key: &str, value: f32) -> &mut Self {
        self.pair(key, Kind::F32, &value.to_le_bytes())
    }

    /// Adds a 64-bit float.
    pub fn add_f64(&mut self, key: &str, value: f64) -> &mut Self {
        self.pair(key, Kind::F64, &value.to_le_bytes())
    }

    /// Adds an array of strings.
    pub fn add_strs<S: AsRef<str>>(&mut self, key: &str, values: &[S]) -> &mut Self {
        if values.iter().any(|value| value.as_ref().len() as u64 > MAX_STRING) {
            return self.fail(key, "a string is too long");
        }
        self.array(key, Kind::String, values, |bytes, value| put_string(bytes, value.as_ref()))
    }

    /// Adds an array of 32-bit floats.
    pub fn add_f32s(&mut self, key: &str, values: &[f32]) -> &mut Self {
        self.array(key, Kind::F32, values, |bytes, value| bytes.extend(value.to_le_bytes()))
    }

    /// Adds an array of 32-bit signed numbers.
    pub fn add_i32s(&mut self, key: &str, values: &[i32]) -> &mut Self {
        self.array(key, Kind::I32, values, |bytes, value| bytes.extend(value.to_le_bytes()))
    }

    /// Adds an array of 32-bit unsigned numbers.
    pub fn add_u32s(&mut self, key: &str, values: &[u32]) -> &mut Self {
        self.array(key, Kind::U32, values, |bytes, value| bytes.extend(value.to_le_bytes()))
    }

    /// Adds an array of bytes.
    pub fn add_u8s(&mut self, key: &str, values: &[u8]) -> &mut Self {
        self.array(key, Kind::U8, values, |bytes, &value| bytes.push(value))
    }

    /// Adds an array of truth values.
    pub fn add_bools(&mut self, key: &str, values: &[bool]) -> &mut Self {
        self.array(key, Kind::Bool, values, |bytes, &value| bytes.push(value.into()))
    }

    /// Adds a pair of another file as it stands there.
    pub fn add_value(&mut self, key: &str, value: Value<'_>) -> &mut Self {
        match value {
            Value::U8(value) => self.pair(key, Kind::U8, &[value]),
            Value::I8(value) => self.pair(key, Kind::I8, &value.to_le_bytes()),
            Value::U16(value) => self.pair(key, Kind::U16, &value.to_le_bytes()),
            Value::I16(value) => self.pair(key, Kind::I16, &value.to_le_bytes()),
            Value::U32(value) => self.add_u32(key, value),
            Value::I32(value) => self.add_i32(key, value),
            Value::F32(value) => self.add_f32(key, value),
            Value::Bool(value) => self.add_bool(key, value),
            Value::String(value) => self.add_str(key, value),
            Value::U64(value) => self.add_u64(key, value),
            Value::I64(value) => self.add_i64(key, value),
            Value::F64(value) => self.add_f64(key, value),
            Value::Array(array) => {
                let mut bytes = Vec::with_capacity(12 + array.bytes().len());
                bytes.extend((array.element() as u32).to_le_bytes());
                bytes.extend((array.len() as u64).to_le_bytes());
                bytes.extend(array.bytes());
                self.pair(key, Kind::Array, &bytes)
            }
        }
    }

    /// Announces the next tensor; `dims` in ggml order, `dims[0]` whole blocks of `format`.
    pub fn add_tensor_info(&mut self, name: &str, dims: &[u64], format: &'static Format) -> &mut Self {
        if self.tensors.len() as u64 == MAX_TENSORS {
            return self.fail(name, "there are too many tensors");
        }
        if name.is_empty() || name.len() as u64 > MAX_NAME {
            return self.fail(name, "the name is empty or too long");
        }
        let len = (1..=MAX_DIMS as usize).contains(&dims.len()).then(|| {
            let row = format.row_bytes(usize::try_from(dims[0]).ok()?)? as u64;
            let rows = dims[1..].iter().try_fold(row, |len, &dim| len.checked_mul(dim))?;
            rows.checked_add(format.tail_bytes() as u64)
        });
        match len.flatten() {
            None | Some(0) => self.fail(name, &format!("{dims:?} is no shape for {}", format.name)),
            Some(len) => {
                let (name, dims) = (name.to_owned(), dims.to_vec());
                self.tensors.push(Planned { name, dims, ggml_type: format.ggml_type, len });
                self
            }
        }
    }

    /// Writes the header to `out`, which is at its start; tensor data follows in the order of the table.
    pub fn start<W: Write>(mut self, mut out: W) -> Result<TensorWriter<W>> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        let header = self.header()?;
        out.write_all(&header).map_err(|error| Error::io("", error))?;
        let lens: Vec<u64> = self.tensors.iter().map(|tensor| tensor.len).collect();
        Ok(TensorWriter { out, alignment: self.alignment, lens, next: 0, left: 0, partial: None })
    }

    /// Starts a file that appears at `path` only when it is finished; until then it is `path` + `.partial`.
    pub fn create(self, path: impl AsRef<Path>) -> Result<TensorWriter<BufWriter<File>>> {
        let path = path.as_ref();
        let partial = Partial { path: path.to_owned(), committed: false };
        let file = File::create(partial.here()).map_err(|error| Error::io(partial.here(), error))?;
        let mut writer = self.start(BufWriter::with_capacity(1 << 20, file))?;
        writer.partial = Some(partial);
        Ok(writer)
    }

    fn header(&self) -> Result<Vec<u8>> {
        let duplicate = |names: &mut Vec<&str>| {
            names.sort_unstable();
            names.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0].to_owned())
        };
        let mut names: Vec<&str> = self.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        let mut keys: Vec<&str> = self.keys.iter().map(String::as_str).collect();
        if let Some(twice) = duplicate(&mut keys).or_else(|| duplicate(&mut names)) {
            return Err(Error::malformed(twice, "it was added twice"));
        }
        let mut header = Vec::with_capacity(self.metadata.len() + 128 * self.tensors.len() + 64);
        header.extend(b"GGUF");
        header.extend(3u32.to_le_bytes());
        header.extend((self.tensors.len() as u64).to_le_bytes());
        header.extend((self.keys.len() as u64).to_le_bytes());
        header.extend(&self.metadata);
        let mut offset = 0u64;
        for tensor in &self.tensors {
            put_string(&mut header, &tensor.name);
            header.extend((tensor.dims.len() as u32).to_le_bytes());
            tensor.dims.iter().for_each(|dim| header.extend(dim.to_le_bytes()));
            header.extend(tensor.ggml_type.to_le_bytes());
            header.extend(offset.to_le_bytes());
            let end =
                offset.checked_add(tensor.len).and_then(|end| end.checked_next_multiple_of(self.alignment));
            offset = end.ok_or_else(|| Error::malformed(&tensor.name, "the file becomes too large"))?;
        }
        if header.len() as u64 > MAX_HEADER {
            return Err(Error::malformed("header", "it is too long"));
        }
        header.resize(header.len().next_multiple_of(self.alignment as usize), 0);
        Ok(header)
    }

    fn array<T>(
        &mut self,
        key: &str,
        element: Kind,
        values: &[T],
        put: impl Fn(&mut Vec<u8>, &T),
    ) -> &mut Self {
        if values.len() as u64 > MAX_ARRAY {
            return self.fail(key, "the array is too long");
        }
        let mut bytes = Vec::with_capacity(12 + values.len() * element.size().unwrap_or(16) as usize);
        bytes.extend((element as u32).to_le_bytes());
        bytes.extend((values.len() as u64).to_le_bytes());
        values.iter().for_each(|value| put(&mut bytes, value));
        self.pair(key, Kind::Array, &bytes)
    }

    fn pair(&mut self, key: &str, kind: Kind, value: &[u8]) -> &mut Self {
        if key.is_empty() || key.len() as u64 > MAX_NAME {
            return self.fail(key, "the key is empty or too long");
        }
        if self.keys.len() as u64 == MAX_PAIRS {
            return self.fail(key, "there are too many pairs");
        }
        put_string(&mut self.metadata, key);
        self.metadata.extend((kind as u32).to_le_bytes());
        self.metadata.extend(value);
        self.keys.push(key.to_owned());
        self
    }

    fn fail(&mut self, field: &str, why: &str) -> &mut Self {
        self.error.get_or_insert_with(|| Error::malformed(field, why));
        self
    }
}

fn put_string(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

/// A file that is not complete yet: removed when it is dropped before it got its name.
struct Partial {
    path: PathBuf,
    committed: bool,
}

impl Partial {
    /// Where the file is until it is complete.
    fn here(&self) -> PathBuf {
        let mut here = self.path.as_os_str().to_owned();
        here.push(".partial");
        here.into()
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.committed {
            let _ = fs::remove_file(self.here());
        }
    }
}

/// Takes the data of the announced tensors, in order.
pub struct TensorWriter<W: Write> {
    out: W,
    alignment: u64,
    lens: Vec<u64>,
    /// The tensors begun so far.
    next: usize,
    /// Bytes that the last begun tensor still needs.
    left: u64,
    partial: Option<Partial>,
}

impl<W: Write> TensorWriter<W> {
    /// Writes the whole next tensor.
    pub fn tensor(&mut self, bytes: &[u8]) -> Result<()> {
        if self.left != 0 || self.lens.get(self.next) != Some(&(bytes.len() as u64)) {
            return Err(Error::invalid(format!("tensor {} is not {} bytes long", self.next, bytes.len())));
        }
        self.write(bytes)
    }

    /// Writes a part of the current tensor; the next one begins when it is full.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        if self.left == 0 {
            let len = self.lens.get(self.next).ok_or_else(|| Error::invalid("all tensors are written"))?;
            (self.left, self.next) = (*len, self.next + 1);
        }
        if bytes.len() as u64 > self.left {
            return Err(Error::invalid(format!("too many bytes for tensor {}", self.next - 1)));
        }
        self.put(bytes)?;
        self.left -= bytes.len() as u64;
        if self.left == 0 {
            let len = self.lens[self.next - 1];
            let padding = len.next_multiple_of(self.alignment) - len;
            self.put(&vec![0; padding as usize])?;
        }
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).map_err(|error| self.io(error))
    }

    fn io(&self, error: io::Error) -> Error {
        Error::io(self.partial.as_ref().map(Partial::here).unwrap_or_default(), error)
    }

    fn check_complete(&self) -> Result<()> {
        if self.left != 0 || self.next != self.lens.len() {
            return Err(Error::invalid(format!("{} of {} tensors are written", self.next, self.lens.len())));
        }
        Ok(())
    }

    /// Ends the file and returns the output; `Invalid` if tensors are missing. A file made by [`Writer::create`] is
    /// synced to disk and gets its name; without this call it is removed.
    pub fn finish(mut self) -> Result<W> {
        self.check_complete()?;
        self.out.flush().map_err(|error| self.io(error))?;
        if let Some(mut partial) = self.partial.take() {
            let synced = File::options().write(true).open(partial.here()).and_then(|file| file.sync_all());
            synced
                .and_then(|()| fs::rename(partial.here(), &partial.path))
                .map_err(|e| Error::io(&partial.path, e))?;
            partial.committed = true;
        }
        Ok(self.out)
    }
}
