//! Metadata of a GGUF file: typed access by key, decoded from the mapped header when asked for.

use std::{fmt, str, sync::Arc};

use super::Source;
use crate::{Error, Result};

/// The type of a value, with GGUF's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Kind {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl Kind {
    const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::String,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    /// The type of a number in a file.
    pub(super) fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }

    /// Bytes of one value; `None` for strings and arrays.
    pub(super) fn size(self) -> Option<u64> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::String | Self::Array => None,
        }
    }

    /// Whether values are whole numbers.
    pub fn is_integer(self) -> bool {
        !matches!(self, Self::F32 | Self::F64 | Self::Bool | Self::String | Self::Array)
    }
}

/// One pair of the header: where its key and value are. Kept small: it is all that parsing a pair allocates.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    pub key_at: u32,
    pub key_len: u16,
    pub kind: Kind,
    /// The type of an array's elements.
    pub element: Kind,
    /// Where a number, a string's bytes or an array's first element starts.
    pub at: u32,
    /// Bytes of a string, elements of an array.
    pub len: u32,
}

/// A value of the metadata.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Value<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(&'a str),
    Array(Array<'a>),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl Value<'_> {
    /// Any integer type, if the value is in range.
    pub fn as_i128(&self) -> Option<i128> {
        Some(match *self {
            Self::U8(v) => v.into(),
            Self::I8(v) => v.into(),
            Self::U16(v) => v.into(),
            Self::I16(v) => v.into(),
            Self::U32(v) => v.into(),
            Self::I32(v) => v.into(),
            Self::U64(v) => v.into(),
            Self::I64(v) => v.into(),
            _ => return None,
        })
    }
}

/// Numbers and strings as they are; of an array the first elements and their number.
impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::String(text) => f.write_str(text),
            Self::F32(value) => value.fmt(f),
            Self::F64(value) => value.fmt(f),
            Self::Bool(value) => value.fmt(f),
            Self::Array(array) => array.fmt(f),
            _ => self.as_i128().unwrap_or_default().fmt(f),
        }
    }
}

/// Elements of an array that are shown.
const SHOWN: usize = 4;

impl fmt::Display for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut list = f.debug_list();
        match (self.strings(), self.scalars()) {
            (Some(strings), _) => drop(list.entries(strings.take(SHOWN))),
            (_, Some(values)) => drop(list.entries(values.take(SHOWN).map(|value| value.to_string()))),
            _ => {}
        }
        list.finish()?;
        if self.len > SHOWN { write!(f, " ... {} in all", self.len) } else { Ok(()) }
    }
}

/// An array of the metadata, still encoded.
#[derive(Clone, Copy, PartialEq)]
pub struct Array<'a> {
    element: Kind,
    len: usize,
    /// From the first element on; for strings up to the end of the file.
    bytes: &'a [u8],
}

impl<'a> Array<'a> {
    /// The type of the elements, never an array.
    pub fn element(&self) -> Kind {
        self.element
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements as they stand in the file.
    pub(super) fn bytes(&self) -> &'a [u8] {
        let len = match self.element.size() {
            Some(size) => self.len * size as usize,
            None => {
                let strings = Strings { left: self.len, bytes: self.bytes };
                strings.map(|text| 8 + text.len()).sum()
            }
        };
        &self.bytes[..len]
    }

    /// The elements, if they are strings.
    pub fn strings(&self) -> Option<Strings<'a>> {
        (self.element == Kind::String).then_some(Strings { left: self.len, bytes: self.bytes })
    }

    /// The elements one by one, if they are numbers or truth values.
    fn scalars(&self) -> Option<impl Iterator<Item = Value<'a>> + use<'a>> {
        let element = self.element;
        let size = element.size()? as usize;
        Some(self.bytes.chunks_exact(size).take(self.len).map(move |bytes| scalar(element, bytes)))
    }
}

impl fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{:?}; {}]", self.element, self.len)
    }
}

/// The strings of an array, decoded one at a time. They were checked when the file was opened; should the file
/// change under its mapping, what is no longer text reads as empty.
#[derive(Clone, Debug)]
pub struct Strings<'a> {
    left: usize,
    bytes: &'a [u8],
}

impl<'a> Iterator for Strings<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        self.left = self.left.checked_sub(1)?;
        let split = self
            .bytes
            .split_first_chunk::<8>()
            .and_then(|(len, rest)| rest.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?));
        let (text, rest) = split.unwrap_or_default();
        self.bytes = rest;
        Some(str::from_utf8(text).unwrap_or_default())
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Strings<'_> {}

/// Decodes one number or truth value; `bytes` holds at least its size.
pub(super) fn scalar(kind: Kind, bytes: &[u8]) -> Value<'static> {
    fn first<const N: usize>(bytes: &[u8]) -> [u8; N] {
        std::array::from_fn(|i| bytes[i])
    }
    match kind {
        Kind::U8 => Value::U8(bytes[0]),
        Kind::I8 => Value::I8(bytes[0] as i8),
        Kind::U16 => Value::U16(u16::from_le_bytes(first(bytes))),
        Kind::I16 => Value::I16(i16::from_le_bytes(first(bytes))),
        Kind::U32 => Value::U32(u32::from_le_bytes(first(bytes))),
        Kind::I32 => Value::I32(i32::from_le_bytes(first(bytes))),
        Kind::F32 => Value::F32(f32::from_le_bytes(first(bytes))),
        Kind::Bool => Value::Bool(bytes[0] != 0),
        Kind::U64 => Value::U64(u64::from_le_bytes(first(bytes))),
        Kind::I64 => Value::I64(i64::from_le_bytes(first(bytes))),
        Kind::F64 => Value::F64(f64::from_le_bytes(first(bytes))),
        Kind::String | Kind::Array => unreachable!("strings and arrays are not scalars"),
    }
}

/// The metadata of one file. Keys keep file order; look-ups take a binary search.
#[derive(Clone)]
pub struct Metadata {
    source: Arc<Source>,
    entries: Arc<[Entry]>,
    by_key: Arc<[u16]>,
}

impl Metadata {
    pub(super) fn new(source: Arc<Source>, entries: Arc<[Entry]>, by_key: Arc<[u16]>) -> Self {
        Self { source, entries, by_key }
    }

    /// Number of pairs.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All pairs in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, Value<'_>)> {
        self.entries
            .iter()
            .map(|entry| (str::from_utf8(self.key(entry)).unwrap_or_default(), self.value(entry)))
    }

    /// The value of `key`, of whatever type.
    pub fn get(&self, key: &str) -> Option<Value<'_>> {
        let keyed = |&index: &u16| self.key(&self.entries[usize::from(index)]).cmp(key.as_bytes());
        let at = self.by_key.binary_search_by(keyed).ok()?;
        Some(self.value(&self.entries[usize::from(self.by_key[at])]))
    }

    /// The string of `key`; `None` if it is absent or something else.
    pub fn str(&self, key: &str) -> Option<&str> {
        match self.get(key)? {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    /// The non-negative whole number of `key`, of any integer type; `None` if absent or something else.
    pub fn u64(&self, key: &str) -> Option<u64> {
        self.get(key)?.as_i128()?.try_into().ok()
    }

    /// The whole number of `key`, of any integer type; `None` if absent, too large or something else.
    pub fn i64(&self, key: &str) -> Option<i64> {
        self.get(key)?.as_i128()?.try_into().ok()
    }

    /// The floating point number of `key`, f64 rounded to f32; `None` if absent or something else.
    pub fn f32(&self, key: &str) -> Option<f32> {
        match self.get(key)? {
            Value::F32(value) => Some(value),
            Value::F64(value) => Some(value as f32),
            _ => None,
        }
    }

    /// The truth value of `key`; `None` if absent or something else.
    pub fn bool(&self, key: &str) -> Option<bool> {
        match self.get(key)? {
            Value::Bool(value) => Some(value),
            _ => None,
        }
    }

    /// The array of `key`; `None` if absent or something else.
    pub fn array(&self, key: &str) -> Option<Array<'_>> {
        match self.get(key)? {
            Value::Array(array) => Some(array),
            _ => None,
        }
    }

    /// The strings of `key`, decoded one at a time; `None` if absent or something else.
    pub fn strings(&self, key: &str) -> Option<Strings<'_>> {
        self.array(key)?.strings()
    }

    /// The floating point numbers of `key`; `None` if absent or something else.
    pub fn f32s(&self, key: &str) -> Option<Vec<f32>> {
        let float = |value| match value {
            Value::F32(value) => Some(value),
            Value::F64(value) => Some(value as f32),
            _ => None,
        };
        self.array(key)?.scalars()?.map(float).collect()
    }

    /// The whole numbers of `key`, from any integer type; `None` if absent, one is out of range or not a number.
    pub fn i32s(&self, key: &str) -> Option<Vec<i32>> {
        self.integers(key)
    }

    /// The non-negative whole numbers of `key`, from any integer type; `None` as for [`Metadata::i32s`].
    pub fn u64s(&self, key: &str) -> Option<Vec<u64>> {
        self.integers(key)
    }

    fn integers<T: TryFrom<i128>>(&self, key: &str) -> Option<Vec<T>> {
        self.array(key)?.scalars()?.map(|value| value.as_i128()?.try_into().ok()).collect()
    }

    /// The truth values of `key`; `None` if absent or something else.
    pub fn bools(&self, key: &str) -> Option<Vec<bool>> {
        let truth = |value| match value {
            Value::Bool(value) => Some(value),
            _ => None,
        };
        self.array(key)?.scalars()?.map(truth).collect()
    }

    /// `general.architecture`, the family of the model; `Malformed` without it.
    pub fn architecture(&self) -> Result<&str> {
        self.str("general.architecture").ok_or_else(|| Error::malformed("general.architecture", "is missing"))
    }

    fn key(&self, entry: &Entry) -> &[u8] {
        &self.source.bytes()[entry.key_at as usize..][..usize::from(entry.key_len)]
    }

    fn value(&self, entry: &Entry) -> Value<'_> {
        let bytes = &self.source.bytes()[entry.at as usize..];
        match entry.kind {
            Kind::String => Value::String(str::from_utf8(&bytes[..entry.len as usize]).unwrap_or_default()),
            Kind::Array => Value::Array(Array { element: entry.element, len: entry.len as usize, bytes }),
            kind => scalar(kind, bytes),
        }
    }
}

impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}
