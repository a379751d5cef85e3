//! Activations as bytes: `rows` positions of `width` values each, row after row.
//!
//! Two forms. [`Wire::Raw`] is the values themselves and loses nothing. [`Wire::Q8`] is a quarter of that (34 bytes
//! per 32 values) and loses what its [rule](q8) says, once: encoding what was decoded gives the same bytes.
//!
//! Both have a constant size per shape, and neither lets a value through that is not finite: a NaN in one frame would
//! spoil every later position of the session. One value has one encoding, so digests are taken over the bytes.

pub mod q8;
pub mod raw;

use std::fmt;
use std::str::FromStr;

pub use crate::wire::Malformed;

/// How activations travel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
#[repr(u8)]
pub enum Wire {
    /// f32, little-endian: exact.
    #[default]
    Raw = 0,
    /// One byte per value and a scale per 32 values.
    Q8 = 1,
}

impl Wire {
    /// All forms, by their byte.
    pub const ALL: [Self; 2] = [Self::Raw, Self::Q8];

    /// The form whose byte this is.
    pub fn from_u8(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte)).copied()
    }

    /// What it is called on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Q8 => "q8",
        }
    }
}

impl fmt::Display for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Wire {
    type Err = UnknownWire;

    fn from_str(name: &str) -> Result<Self, UnknownWire> {
        Self::ALL.into_iter().find(|wire| wire.name() == name).ok_or(UnknownWire)
    }
}

/// A name that is no form of activations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnknownWire;

impl fmt::Display for UnknownWire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("activations travel as raw or q8: say one of them")
    }
}

impl std::error::Error for UnknownWire {}

/// Activations with a NaN or an infinity in them: the computation went wrong, so fail the session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NonFinite;

impl fmt::Display for NonFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an activation is not finite: fail the session")
    }
}

impl std::error::Error for NonFinite {}

/// Bytes that `rows` x `width` values take, or `None` when `width` is zero, does not fit `wire` (Q8 takes multiples of
/// 32) or the product overflows. To be checked once, when a session starts.
pub fn encoded_len(wire: Wire, rows: usize, width: usize) -> Option<usize> {
    let row = match wire {
        Wire::Raw => width.checked_mul(4)?,
        Wire::Q8 if width.is_multiple_of(q8::BLOCK) => (width / q8::BLOCK).checked_mul(q8::BLOCK_BYTES)?,
        Wire::Q8 => return None,
    };
    if width == 0 { None } else { row.checked_mul(rows) }
}

/// Values in a row of `bytes` bytes: the inverse of [`encoded_len`] for one row.
pub fn row_width(wire: Wire, bytes: usize) -> Option<usize> {
    let width = match wire {
        Wire::Raw => bytes / 4,
        Wire::Q8 => (bytes / q8::BLOCK_BYTES).checked_mul(q8::BLOCK)?,
    };
    (encoded_len(wire, 1, width) == Some(bytes)).then_some(width)
}

/// Appends the bytes of `data`, whole rows of `width` values, to `out`.
///
/// # Errors
/// When a value is not finite; `out` is then as it was.
///
/// # Panics
/// When `data` is not whole rows or `wire` does not take rows of `width` values ([`encoded_len`] is `None`).
pub fn encode(wire: Wire, width: usize, data: &[f32], out: &mut Vec<u8>) -> Result<(), NonFinite> {
    let len = encoded_len(wire, 1, width).and_then(|row| (data.len() / width).checked_mul(row));
    let len =
        len.filter(|_| data.len().is_multiple_of(width)).expect("whole rows of a width that fits the wire");
    let start = out.len();
    out.resize(start + len, 0);
    let done = match wire {
        Wire::Raw => raw::encode(data, &mut out[start..]),
        Wire::Q8 => q8::encode(data, &mut out[start..]),
    };
    if done.is_err() {
        out.truncate(start);
    }
    done
}

/// Appends the `rows` x `width` values written in `bytes` to `out`.
///
/// # Errors
/// When `bytes` has another length, or is nothing that [`encode`] writes (a value that is not finite, above all);
/// `out` is then as it was.
pub fn decode(
    wire: Wire,
    width: usize,
    rows: usize,
    bytes: &[u8],
    out: &mut Vec<f32>,
) -> Result<(), Malformed> {
    if encoded_len(wire, rows, width) != Some(bytes.len()) {
        return Err(Malformed("activations: length"));
    }
    let start = out.len();
    out.resize(start + rows * width, 0.0);
    let done = match wire {
        Wire::Raw => raw::decode(bytes, &mut out[start..]),
        Wire::Q8 => q8::decode(bytes, &mut out[start..]),
    };
    if done.is_err() {
        out.truncate(start);
    }
    done
}

/// Whether `bytes` are `rows` x `width` values as [`encode`] writes them; what [`decode`] takes, and nothing is copied.
///
/// # Errors
/// As [`decode`].
pub fn check(wire: Wire, width: usize, rows: usize, bytes: &[u8]) -> Result<(), Malformed> {
    if encoded_len(wire, rows, width) != Some(bytes.len()) {
        return Err(Malformed("activations: length"));
    }
    match wire {
        Wire::Raw => raw::check(bytes),
        Wire::Q8 => q8::check(bytes),
    }
}

#[cfg(test)]
mod tests;
