//! GGUF files: one header with metadata and a table of tensors, then the tensors' bytes.
//!
//! Read with [`Gguf::open`] (mapped, so that weights cost no memory until they are touched) or
//! [`Gguf::from_bytes`]; written with [`Writer`]. Versions 2 and 3, little endian, in one file or in several ([`split`]).
//!
//! ```text
//! "GGUF"  version u32  tensors u64  pairs u64
//! pairs    x { key: string, type u32, value }                 string = length u64, bytes
//! tensors  x { name: string, dims u32, dim u64 each, type u32, offset u64 }
//! padding to the alignment (metadata `general.alignment`, else 32): tensor data starts here
//! tensor data, each tensor at its offset, a multiple of the alignment
//! ```
//!
//! A model file comes from strangers, so the reader believes nothing: all arithmetic is checked, every count and
//! length is compared with what the file can hold before anything is allocated, and what it allocates stays
//! below twice the header (plus 1 MiB): strings and arrays stay in the file and are decoded when asked for.
//! Errors name the field that is wrong. The caps are the constants of this module; a file beyond one is refused.
//!
//! Limits: big-endian files and version 1 are refused, nested arrays too; a tensor whose type is neither
//! in [`quant::ALL`] nor in [`quant::FOREIGN`] is listed but its bytes are not handed out.

mod metadata;
mod pages;
mod parse;
mod ranges;
pub mod split;
#[cfg(test)]
mod tests;
mod write;

use std::{
    borrow::Cow,
    fmt, fs,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{
    Error, Result,
    kernels::panel_file::PanelFile,
    quant::{self, Format},
};
pub use metadata::{Array, Kind, Metadata, Strings, Value};
pub use ranges::{Ends, Layout, Part, byte_ranges, layer_count};
pub use write::{TensorWriter, Writer};

/// Most metadata pairs of a file; real models have below 100.
pub const MAX_PAIRS: u64 = 4_096;
/// Most tensors of a file; the largest known models have about 2,000.
pub const MAX_TENSORS: u64 = 65_536;
/// Most dimensions of a tensor, as in ggml.
pub const MAX_DIMS: u32 = 4;
/// Longest key or tensor name in bytes.
pub const MAX_NAME: u64 = 256;
/// Longest string in bytes: chat templates, licenses and tokens are well below.
pub const MAX_STRING: u64 = 1 << 20;
/// Most entries of an array: four times the largest vocabulary in use.
pub const MAX_ARRAY: u64 = 1 << 20;
/// Longest header in bytes; a 256 k vocabulary with merges takes about 16 MiB.
pub const MAX_HEADER: u64 = 64 << 20;
/// The alignment of a file that does not state one.
pub const DEFAULT_ALIGNMENT: u64 = 32;

/// Bytes of magic, version and the two counts.
const PREAMBLE: u64 = 24;

/// An open GGUF file whose whole structure has been checked.
pub struct Gguf {
    /// One file, or the files of a model in parts.
    files: Box<[File]>,
    path: Option<PathBuf>,
    metadata: Metadata,
    tensors: Box<[TensorInfo]>,
    by_name: Box<[u32]>,
    header_len: u64,
    data_start: u64,
    /// What is packed of the tensors for the processor, where that is kept.
    panels: Option<PanelFile>,
}

/// Where one tensor is and what it looks like.
#[derive(Debug)]
pub struct TensorInfo {
    /// The name, e.g. `blk.0.attn_q.weight`.
    pub name: Box<str>,
    /// Sizes in ggml order: `dims[0]` is the row length. 1 to 4 of them, none 0.
    pub dims: Box<[u64]>,
    /// The type number, maybe one that this build does not know.
    pub ggml_type: u32,
    /// Bytes from the start of the file; of a model in parts, from the start of the first.
    pub offset: u64,
    /// Bytes of data; 0 when the type is unknown.
    pub len: u64,
}

impl TensorInfo {
    /// The number of weights.
    pub fn elements(&self) -> u64 {
        self.dims.iter().product()
    }

    /// The same, `by` bytes further.
    fn moved(&self, by: u64) -> Self {
        let Self { name, dims, ggml_type, offset, len } = self;
        Self { name: name.clone(), dims: dims.clone(), ggml_type: *ggml_type, offset: offset + by, len: *len }
    }
}

/// A tensor whose format this build computes with.
#[derive(Clone, Copy)]
pub struct Tensor<'a> {
    /// Name, dimensions and place.
    pub info: &'a TensorInfo,
    /// How the bytes encode weights.
    pub format: &'static Format,
    /// `rows() * format.row_bytes(cols())` bytes, rows ascending.
    pub bytes: &'a [u8],
    tail: &'a [u8],
}

impl<'a> Tensor<'a> {
    /// Weights per row: the input features of a matrix.
    pub fn cols(&self) -> usize {
        self.info.dims[0] as usize
    }

    /// Number of rows: the product of all dimensions but the first.
    pub fn rows(&self) -> usize {
        self.info.dims[1..].iter().product::<u64>() as usize
    }

    /// The bytes of row `index`; panics beyond `rows()`.
    pub fn row(&self, index: usize) -> &'a [u8] {
        let bytes = self.bytes.len() / self.rows();
        &self.bytes[index * bytes..][..bytes]
    }

    /// The bytes behind the rows: [`Format::tail_bytes`] of them.
    pub fn tail(&self) -> &'a [u8] {
        self.tail
    }

    /// The scale that all blocks share, of a format whose blocks have none.
    pub fn scale(&self) -> Option<f32> {
        self.tail.first_chunk().map(|bytes| f32::from_le_bytes(*bytes))
    }

    /// All weights as f32, rows ascending.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut weights = self.unscaled();
        if let Some(scale) = self.scale() {
            weights.iter_mut().for_each(|weight| *weight *= scale);
        }
        weights
    }

    /// The same without the scale that all blocks share.
    pub fn unscaled(&self) -> Vec<f32> {
        let mut weights = vec![0.0; self.cols() * self.rows()];
        (self.format.dequantize)(self.bytes, &mut weights);
        weights
    }
}

impl fmt::Debug for Tensor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} {:?}", self.info.name, self.format, self.info.dims)
    }
}

/// The bytes behind an open file.
enum Source {
    Mapped(memmap2::Mmap),
    Bytes(Cow<'static, [u8]>),
}

impl Source {
    /// The first `len` bytes of `file`, which errors call `path`.
    fn map(file: &fs::File, len: u64, path: &Path) -> Result<Self> {
        if len < PREAMBLE {
            return Err(Error::malformed("header", "the file ends before it"));
        }
        let len = usize::try_from(len)
            .map_err(|_| Error::malformed("header", "the file is beyond this machine"))?;
        // SAFETY: the mapping is read-only and private to this struct, all views of it are bounded by its length,
        // and no code relies on two reads of the same bytes being equal: lazily decoded values are checked again.
        let map = unsafe { memmap2::MmapOptions::new().len(len).map(file) };
        map.map(Self::Mapped).map_err(|source| Error::io(path, source))
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Bytes(bytes) => bytes,
        }
    }

    /// See [`Gguf::forget_range`].
    fn forget(&self, range: Range<u64>) {
        let Self::Mapped(map) = self else { return };
        pages::forget(map, range);
    }
}

/// One of the files of a model.
struct File {
    source: Arc<Source>,
    /// Bytes of those before it.
    start: u64,
}

impl Gguf {
    /// Maps the file at `path` and checks its header. A file that is one of several parts by its name ([`split::parts`]) opens
    /// with the others, all of which must be beside it.
    ///
    /// The file must not shrink while it is open: reading beyond its new end ends the process (SIGBUS). Changing
    /// bytes under the mapping changes what is read, but never what is out of bounds.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let io = |source| Error::io(path, source);
        if let Some(parts) = split::open_parts(path)? {
            return Self::of_parts(parts.iter().map(|(file, len)| (file, *len)), path);
        }
        if !fs::metadata(path).map_err(io)?.is_file() {
            return Err(Error::invalid(format!("{} is not a file", path.display())));
        }
        let file = fs::File::open(path).map_err(io)?;
        let len = file.metadata().map_err(io)?.len();
        Self::of_file(&file, len, path)
    }

    /// As [`Gguf::open`], of the first `len` bytes of a file that is open already: for a process that may open none, and may
    /// not ask how long they are. `path` is what errors call it.
    ///
    /// # Errors
    /// As for [`Gguf::open`]. A file that is shorter than `len` ends the process when its end is read.
    pub fn of_file(file: &fs::File, len: u64, path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        Self::parse(vec![Source::map(file, len, path)?], Some(path.to_owned()))
    }

    /// As [`Gguf::of_file`], of all parts of a model, first to last.
    ///
    /// # Errors
    /// As for [`Gguf::of_file`], and [`Error::Malformed`] for parts that do not belong together.
    pub fn of_parts<'f>(
        parts: impl IntoIterator<Item = (&'f fs::File, u64)>,
        path: impl AsRef<Path>,
    ) -> Result<Self> {
        let path = path.as_ref();
        let sources: Vec<Source> =
            parts.into_iter().map(|(file, len)| Source::map(file, len, path)).collect::<Result<_>>()?;
        Self::parse(sources, Some(path.to_owned()))
    }

    /// Checks a whole file that is in memory already: an embedded model, a test.
    pub fn from_bytes(bytes: impl Into<Cow<'static, [u8]>>) -> Result<Self> {
        Self::parse(vec![Source::Bytes(bytes.into())], None)
    }

    fn parse(sources: Vec<Source>, path: Option<PathBuf>) -> Result<Self> {
        let header = match &sources[..] {
            [source] => parse::header(source.bytes())?,
            sources => split::headers(sources)?,
        };
        let mut end = 0;
        let file = |source: Source| {
            let start = end;
            end += source.bytes().len() as u64;
            File { source: Arc::new(source), start }
        };
        let files: Box<[File]> = sources.into_iter().map(file).collect();
        let metadata = Metadata::new(files[0].source.clone(), header.entries, header.by_key);
        Ok(Self {
            files,
            path,
            metadata,
            tensors: header.tensors,
            by_name: header.by_name,
            header_len: header.len,
            data_start: header.data_start,
            panels: None,
        })
    }

    /// With a file for what is packed of the tensors.
    pub fn with_panels(self, panels: Option<PanelFile>) -> Self {
        Self { panels, ..self }
    }

    /// The file for what is packed of the tensors.
    pub fn panels(&self) -> Option<&PanelFile> {
        self.panels.as_ref()
    }

    /// The metadata, in file order.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// All tensors, in file order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor called `name`; `None` if there is none or its type is unknown here.
    pub fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        let info = self.info(name)?;
        let format = quant::by_type(info.ggml_type)?;
        let file = self.file(info.offset);
        let bytes = &file.source.bytes()[(info.offset - file.start) as usize..][..info.len as usize];
        let (bytes, tail) = bytes.split_at(bytes.len() - format.tail_bytes());
        Some(Tensor { info, format, bytes, tail })
    }

    /// The file that holds byte `offset`.
    fn file(&self, offset: u64) -> &File {
        &self.files[self.files.partition_point(|file| file.start <= offset).max(1) - 1]
    }

    /// The tensor called `name`, or `Unsupported` saying that it is missing or of which unknown type it is.
    pub fn require(&self, name: &str) -> Result<Tensor<'_>> {
        self.tensor(name).ok_or_else(|| match self.info(name) {
            Some(info) => Error::unsupported(format!("tensor {name} of type {}", info.ggml_type)),
            None => Error::unsupported(format!("tensor {name} is missing")),
        })
    }

    /// The weights of a norm, which some families call `prefix` and the others `prefix.weight`; errors as [`Gguf::require`].
    pub fn norm(&self, prefix: &str) -> Result<Tensor<'_>> {
        self.tensor(prefix).map_or_else(|| self.require(&format!("{prefix}.weight")), Ok)
    }

    /// Whether there are weights of that norm.
    pub fn has_norm(&self, prefix: &str) -> bool {
        self.info(prefix).is_some() || self.info(&format!("{prefix}.weight")).is_some()
    }

    /// What the table says of the tensor called `name`, whatever its type.
    pub fn info(&self, name: &str) -> Option<&TensorInfo> {
        let named = |&index: &u32| self.tensors[index as usize].name.as_ref().cmp(name);
        let at = self.by_name.binary_search_by(named).ok()?;
        Some(&self.tensors[self.by_name[at] as usize])
    }

    /// How many files hold the model.
    pub fn parts(&self) -> usize {
        self.files.len()
    }

    /// Where the file is; `None` for bytes in memory.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Bytes of the whole file, or of all parts.
    pub fn file_len(&self) -> u64 {
        self.files.iter().map(|file| file.source.bytes().len() as u64).sum()
    }

    /// Bytes of preamble, metadata and tensor table, without the padding after them.
    pub fn header_len(&self) -> u64 {
        self.header_len
    }

    /// Where tensor data starts: `header_len` rounded up to the alignment.
    pub fn data_start(&self) -> u64 {
        self.data_start
    }

    /// Lets the system take back the memory of a tensor's pages, e.g. after repacking: a later read fetches them
    /// from the file again. Does nothing for unknown names and for bytes in memory.
    pub fn forget(&self, name: &str) {
        if let Some(info) = self.info(name) {
            self.forget_range(info.offset..info.offset + info.len);
        }
    }

    /// As [`Gguf::forget`] for a range of the file; only pages that lie wholly inside are dropped.
    pub fn forget_range(&self, range: Range<u64>) {
        for file in &self.files {
            let local = range.start.saturating_sub(file.start)..range.end.saturating_sub(file.start);
            file.source.forget(local);
        }
    }
}

impl fmt::Debug for Gguf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (pairs, tensors) = (self.metadata.len(), self.tensors.len());
        write!(f, "Gguf {:?} with {pairs} pairs, {tensors} tensors, {} bytes", self.path, self.file_len())
    }
}
