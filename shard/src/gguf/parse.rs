//! From the first bytes of a file to checked tables; nothing here trusts a number it has read.

use std::{fmt, str, sync::Arc};

use super::{
    DEFAULT_ALIGNMENT, MAX_ARRAY, MAX_DIMS, MAX_HEADER, MAX_NAME, MAX_PAIRS, MAX_STRING, MAX_TENSORS,
    PREAMBLE, TensorInfo,
    metadata::{Entry, Kind, scalar},
};
use crate::{Error, Result, quant};

/// A checked header.
pub(super) struct Header {
    pub entries: Arc<[Entry]>,
    /// Indices of `entries` in the order of their keys.
    pub by_key: Arc<[u16]>,
    pub tensors: Box<[TensorInfo]>,
    /// Indices of `tensors` in the order of their names.
    pub by_name: Box<[u32]>,
    pub len: u64,
    pub data_start: u64,
}

/// The fewest bytes a pair takes: key length, one letter, type, one byte.
const MIN_PAIR: u64 = 8 + 1 + 4 + 1;
/// The fewest bytes a tensor takes in the table: name length, one letter, dimension count, one dimension, type, offset.
const MIN_TENSOR: u64 = 8 + 1 + 4 + 8 + 4 + 8;

/// Keys whose meaning is fixed by GGUF, and what they must hold where they occur: `Kind` of a value, or of the
/// elements of an array; `I64` stands for any integer type, `F32` for both float types.
const KNOWN: &[(&str, bool, Kind)] = &[
    ("general.architecture", false, Kind::String),
    ("general.name", false, Kind::String),
    ("tokenizer.chat_template", false, Kind::String),
    ("tokenizer.ggml.model", false, Kind::String),
    ("tokenizer.ggml.pre", false, Kind::String),
    ("tokenizer.ggml.tokens", true, Kind::String),
    ("tokenizer.ggml.merges", true, Kind::String),
    ("tokenizer.ggml.scores", true, Kind::F32),
    ("tokenizer.ggml.token_type", true, Kind::I64),
    ("tokenizer.ggml.bos_token_id", false, Kind::I64),
    ("tokenizer.ggml.eos_token_id", false, Kind::I64),
    ("tokenizer.ggml.unknown_token_id", false, Kind::I64),
    ("tokenizer.ggml.padding_token_id", false, Kind::I64),
    ("tokenizer.ggml.add_bos_token", false, Kind::Bool),
    ("tokenizer.ggml.add_eos_token", false, Kind::Bool),
    ("tokenizer.ggml.add_space_prefix", false, Kind::Bool),
];

/// Checks the header of `file`, the whole file's bytes.
pub(super) fn header(file: &[u8]) -> Result<Header> {
    let mut cursor = Cursor::new(file);
    let (tensors, pairs) = preamble(&mut cursor)?;
    let entries = (0..pairs).map(|index| entry(&mut cursor, index)).collect::<Result<Arc<[Entry]>>>()?;
    let by_key = index_keys(file, &entries)?;
    let alignment = alignment(file, &entries)?;

    check_count("tensor count", tensors, MIN_TENSOR, cursor.left())?;
    let mut table = Vec::with_capacity(tensors as usize);
    for index in 0..tensors {
        table.push(tensor(&mut cursor, index)?);
    }
    let mut tensors = table.into_boxed_slice();
    let by_name = index_names(&tensors)?;
    let len = cursor.at as u64;
    let data_start = len.next_multiple_of(alignment);
    place(&mut tensors, data_start, alignment, file.len() as u64)?;
    Ok(Header { entries, by_key, tensors, by_name, len, data_start })
}

/// Magic, version and the two counts: tensors, pairs.
fn preamble(cursor: &mut Cursor<'_>) -> Result<(u64, u64)> {
    if cursor.take(4, format_args!("magic"))? != b"GGUF" {
        return Err(Error::malformed("magic", "this is not a GGUF file"));
    }
    match cursor.u32(format_args!("version"))? {
        2 | 3 => {}
        version if matches!(version.swap_bytes(), 1..=3) => {
            return Err(Error::unsupported("big-endian GGUF file"));
        }
        version => return Err(Error::unsupported(format!("GGUF version {version}"))),
    }
    let tensors = cursor.u64(format_args!("tensor count"))?;
    let pairs = cursor.u64(format_args!("metadata count"))?;
    if tensors > MAX_TENSORS {
        return Err(Error::malformed("tensor count", format!("{tensors} is above {MAX_TENSORS}")));
    }
    if pairs > MAX_PAIRS {
        return Err(Error::malformed("metadata count", format!("{pairs} is above {MAX_PAIRS}")));
    }
    check_count("metadata count", pairs, MIN_PAIR, cursor.left())?;
    debug_assert!(cursor.at as u64 == PREAMBLE);
    Ok((tensors, pairs))
}

/// Whether `count` things of at least `least` bytes can be in the `left` bytes; both factors are small.
fn check_count(field: &str, count: u64, least: u64, left: u64) -> Result<()> {
    if count * least > left {
        return Err(Error::malformed(field, format!("{count} do not fit into the {left} bytes that follow")));
    }
    Ok(())
}

/// One pair: key, type, value. The value is checked and skipped, not copied.
fn entry(cursor: &mut Cursor<'_>, index: u64) -> Result<Entry> {
    let key = cursor.name(format_args!("metadata key {index}"))?;
    let (key_at, key_len) = (cursor.at - key.len(), key.len());
    let number = cursor.u32(format_args!("metadata {key:?}: type"))?;
    let kind = Kind::from_number(number)
        .ok_or_else(|| Error::malformed(format!("metadata {key:?}: type"), format!("{number} is unknown")))?;
    let (mut element, mut at, mut len) = (kind, cursor.at, 0);
    match kind {
        Kind::String => {
            len = cursor.text(format_args!("metadata {key:?}"))?.len();
            at = cursor.at - len;
        }
        Kind::Array => (element, at, len) = array(cursor, key)?,
        _ => skip_scalars(cursor, kind, 1, key)?,
    }
    check_known(key, kind, element)?;
    // Every place lies below MAX_HEADER, every length below MAX_STRING or MAX_ARRAY: all fit 32 bits.
    Ok(Entry {
        key_at: key_at as u32,
        key_len: key_len as u16,
        kind,
        element,
        at: at as u32,
        len: len as u32,
    })
}

/// An array's element type, the place of its first element and its length, all elements checked.
fn array(cursor: &mut Cursor<'_>, key: &str) -> Result<(Kind, usize, usize)> {
    let field = || format!("metadata {key:?}: array");
    let number = cursor.u32(format_args!("metadata {key:?}: element type"))?;
    let element = match Kind::from_number(number) {
        Some(Kind::Array) => return Err(Error::malformed(field(), "arrays of arrays are not allowed")),
        Some(element) => element,
        None => return Err(Error::malformed(field(), format!("element type {number} is unknown"))),
    };
    let len = cursor.u64(format_args!("metadata {key:?}: array length"))?;
    if len > MAX_ARRAY {
        return Err(Error::malformed(field(), format!("its length {len} is above {MAX_ARRAY}")));
    }
    let at = cursor.at;
    if element == Kind::String {
        for index in 0..len {
            cursor.text(format_args!("metadata {key:?}: string {index}"))?;
        }
    } else {
        skip_scalars(cursor, element, len, key)?;
    }
    Ok((element, at, len as usize))
}

/// Passes over `count` values that have a fixed size.
fn skip_scalars(cursor: &mut Cursor<'_>, kind: Kind, count: u64, key: &str) -> Result<()> {
    let size = kind.size().expect("strings and arrays have been handled");
    let bytes = cursor.take(size * count, format_args!("metadata {key:?}"))?;
    if kind == Kind::Bool && bytes.iter().any(|&byte| byte > 1) {
        return Err(Error::malformed(format!("metadata {key:?}"), "a truth value is neither 0 nor 1"));
    }
    Ok(())
}

/// Refuses a key of [`KNOWN`] that holds another type than every program expects there.
fn check_known(key: &str, kind: Kind, element: Kind) -> Result<()> {
    let Some(&(_, is_array, wanted)) = KNOWN.iter().find(|known| known.0 == key) else { return Ok(()) };
    let fits = match wanted {
        Kind::I64 => element.is_integer(),
        Kind::F32 => matches!(element, Kind::F32 | Kind::F64),
        wanted => element == wanted,
    };
    if (kind == Kind::Array) == is_array && fits {
        return Ok(());
    }
    let found = if kind == Kind::Array { format!("an array of {element:?}") } else { format!("{kind:?}") };
    Err(Error::malformed(format!("metadata {key:?}: type"), format!("{found} where {wanted:?} belongs")))
}

/// Sorts the entries by key and refuses a key that occurs twice.
fn index_keys(file: &[u8], entries: &[Entry]) -> Result<Arc<[u16]>> {
    let key = |index: u16| {
        let entry = &entries[usize::from(index)];
        &file[entry.key_at as usize..][..usize::from(entry.key_len)]
    };
    let mut order: Arc<[u16]> = (0..entries.len() as u16).collect();
    let sorted = Arc::get_mut(&mut order).expect("just made");
    sorted.sort_unstable_by_key(|&index| key(index));
    if let Some(pair) = sorted.windows(2).find(|pair| key(pair[0]) == key(pair[1])) {
        let key = String::from_utf8_lossy(key(pair[0]));
        return Err(Error::malformed(format!("metadata key {key:?}"), "it occurs twice"));
    }
    Ok(order)
}

/// What `general.alignment` says, or the default.
fn alignment(file: &[u8], entries: &[Entry]) -> Result<u64> {
    const KEY: &str = "general.alignment";
    let is_it =
        |entry: &&Entry| &file[entry.key_at as usize..][..usize::from(entry.key_len)] == KEY.as_bytes();
    let Some(entry) = entries.iter().find(is_it) else { return Ok(DEFAULT_ALIGNMENT) };
    if entry.kind != Kind::U32 {
        return Err(Error::malformed(KEY, format!("its type is {:?} where U32 belongs", entry.kind)));
    }
    let bytes = file[entry.at as usize..].first_chunk().expect("the value has been passed over");
    let alignment = u32::from_le_bytes(*bytes);
    if !alignment.is_power_of_two() || !(8..=65_536).contains(&alignment) {
        return Err(Error::malformed(KEY, format!("{alignment} is not a power of two from 8 to 65536")));
    }
    Ok(alignment.into())
}

/// The non-negative whole number of `key` in `file`, of any integer type.
pub(super) fn integer(file: &[u8], entries: &[Entry], key: &str) -> Option<u64> {
    let is_it =
        |entry: &&Entry| &file[entry.key_at as usize..][..usize::from(entry.key_len)] == key.as_bytes();
    let entry = entries.iter().find(is_it)?;
    entry
        .kind
        .is_integer()
        .then(|| scalar(entry.kind, &file[entry.at as usize..]))?
        .as_i128()?
        .try_into()
        .ok()
}

/// One row of the tensor table, `offset` still relative and `len` open.
fn tensor(cursor: &mut Cursor<'_>, index: u64) -> Result<TensorInfo> {
    let name = cursor.name(format_args!("tensor name {index}"))?;
    let count = cursor.u32(format_args!("tensor {name:?}: dimensions"))?;
    if !(1..=MAX_DIMS).contains(&count) {
        return Err(Error::malformed(
            format!("tensor {name:?}: dimensions"),
            format!("{count} is not 1 to 4"),
        ));
    }
    let mut dims = vec![0; count as usize].into_boxed_slice();
    for (axis, dim) in dims.iter_mut().enumerate() {
        *dim = cursor.u64(format_args!("tensor {name:?}: dimension {axis}"))?;
        if *dim == 0 {
            return Err(Error::malformed(format!("tensor {name:?}: dimension {axis}"), "it is 0"));
        }
    }
    let ggml_type = cursor.u32(format_args!("tensor {name:?}: type"))?;
    let offset = cursor.u64(format_args!("tensor {name:?}: offset"))?;
    Ok(TensorInfo { name: name.into(), dims, ggml_type, offset, len: 0 })
}

/// Sorts the tensors by name and refuses a name that occurs twice.
pub(super) fn index_names(tensors: &[TensorInfo]) -> Result<Box<[u32]>> {
    let name = |index: u32| &*tensors[index as usize].name;
    let mut order: Box<[u32]> = (0..tensors.len() as u32).collect();
    order.sort_unstable_by_key(|&index| name(index));
    if let Some(pair) = order.windows(2).find(|pair| name(pair[0]) == name(pair[1])) {
        return Err(Error::malformed(format!("tensor {:?}: name", name(pair[0])), "it occurs twice"));
    }
    Ok(order)
}

/// Makes offsets absolute, computes lengths and checks that tensors lie aligned, inside the file and apart.
fn place(tensors: &mut [TensorInfo], data_start: u64, alignment: u64, file_len: u64) -> Result<()> {
    for tensor in tensors.iter_mut() {
        let field = |part| format!("tensor {:?}: {part}", tensor.name);
        let Some(len) = data_len(tensor)? else {
            return Err(Error::malformed(field("dimensions"), format!("{:?} is too large", tensor.dims)));
        };
        if tensor.offset % alignment != 0 {
            let why = format!("{} is not a multiple of the alignment {alignment}", tensor.offset);
            return Err(Error::malformed(field("offset"), why));
        }
        let start = tensor.offset.checked_add(data_start);
        let end = start.and_then(|start| start.checked_add(len.max(1)));
        match (start, end) {
            (Some(start), Some(end)) if end <= file_len => (tensor.offset, tensor.len) = (start, len),
            _ => {
                let why = format!("{len} bytes from {} on end beyond the file's {file_len}", tensor.offset);
                return Err(Error::malformed(field("offset"), why));
            }
        }
    }
    let mut order: Box<[u32]> = (0..tensors.len() as u32).collect();
    order.sort_unstable_by_key(|&index| tensors[index as usize].offset);
    for pair in order.windows(2) {
        let [a, b] = [pair[0], pair[1]].map(|index| &tensors[index as usize]);
        if a.offset + a.len.max(1) > b.offset {
            return Err(Error::malformed(
                format!("tensor {:?}: offset", b.name),
                format!("overlaps {:?}", a.name),
            ));
        }
    }
    Ok(())
}

/// Bytes of a tensor's data, 0 for an unknown type; `None` when no file can hold it.
fn data_len(tensor: &TensorInfo) -> Result<Option<u64>> {
    let Some(elements) = tensor.dims.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim)) else {
        return Ok(None);
    };
    let Some(format) = quant::by_type(tensor.ggml_type) else { return Ok(Some(0)) };
    let block = format.block_len as u64;
    if !tensor.dims[0].is_multiple_of(block) {
        let why = format!("{} is not a multiple of {}'s block of {block}", tensor.dims[0], format.name);
        return Err(Error::malformed(format!("tensor {:?}: dimension 0", tensor.name), why));
    }
    let rows = (elements / block).checked_mul(format.block_bytes as u64);
    Ok(rows.and_then(|rows| rows.checked_add(format.tail_bytes() as u64)))
}

/// Reads forward through a header, never past the file or the longest header allowed.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Whether the file goes on after `bytes`.
    capped: bool,
}

impl<'a> Cursor<'a> {
    fn new(file: &'a [u8]) -> Self {
        let len = file.len().min(MAX_HEADER as usize);
        Self { bytes: &file[..len], at: 0, capped: len < file.len() }
    }

    fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    fn take(&mut self, len: u64, field: fmt::Arguments<'_>) -> Result<&'a [u8]> {
        let bytes = &self.bytes[self.at..];
        match usize::try_from(len).ok().and_then(|len| bytes.get(..len)) {
            Some(taken) => {
                self.at += taken.len();
                Ok(taken)
            }
            None if self.capped => Err(Error::malformed(
                field.to_string(),
                format!("the header is longer than {MAX_HEADER} bytes"),
            )),
            None => {
                let why =
                    format!("the file ends: {len} bytes belong at {}, {} are there", self.at, bytes.len());
                Err(Error::malformed(field.to_string(), why))
            }
        }
    }

    fn u32(&mut self, field: fmt::Arguments<'_>) -> Result<u32> {
        let bytes = self.take(4, field)?.try_into().expect("took 4 bytes");
        Ok(u32::from_le_bytes(bytes))
    }

    fn u64(&mut self, field: fmt::Arguments<'_>) -> Result<u64> {
        let bytes = self.take(8, field)?.try_into().expect("took 8 bytes");
        Ok(u64::from_le_bytes(bytes))
    }

    /// A string of at most `most` bytes.
    fn string(&mut self, most: u64, field: fmt::Arguments<'_>) -> Result<&'a str> {
        let len = self.u64(field)?;
        if len > most {
            return Err(Error::malformed(
                field.to_string(),
                format!("its length {len} is above {most} bytes"),
            ));
        }
        let bytes = self.take(len, field)?;
        str::from_utf8(bytes).map_err(|_| Error::malformed(field.to_string(), "it is not UTF-8"))
    }

    fn text(&mut self, field: fmt::Arguments<'_>) -> Result<&'a str> {
        self.string(MAX_STRING, field)
    }

    fn name(&mut self, field: fmt::Arguments<'_>) -> Result<&'a str> {
        let name = self.string(MAX_NAME, field)?;
        if name.is_empty() {
            return Err(Error::malformed(field.to_string(), "it is empty"));
        }
        Ok(name)
    }
}
