//! Activations as bytes: `rows` positions of `width` values each, row after row.
//!
//! [`Wire::Raw`] is the values themselves and loses nothing. Every other form loses what its rule says, once: encoding what was
//! decoded gives the same bytes. What they cost in quality is measured in `node/docs/benchmarks.md`.
//!
//! | form | bytes per value | rule |
//! |---|---|---|
//! | `raw` | 4 | the value |
//! | `f16` | 2 | a sixteenth of it as f16 ([`half`]) |
//! | `bf16` | 2 | as bf16 ([`half`]) |
//! | `c10` | 1.344 | groups of 64, 10 bits ([`companded`]) |
//! | `c8` | 1.156 | groups of 32, 8 bits ([`companded`]) |
//! | `q8` | 1.063 | blocks of 32 under one scale ([`q8`]) |
//! | `c7` | 0.953 | groups of 64, 7 bits ([`companded`]) |
//!
//! All have a constant size per shape, and none lets a value through that is not finite: a NaN in one frame would
//! spoil every later position of the session. One value has one encoding, so digests are taken over the bytes.

mod companded;
mod half;
pub mod q8;
pub mod raw;

use std::fmt;
use std::str::FromStr;

use self::half::{Brain, Sixteenth};
pub use crate::malformed::Malformed;

/// How activations travel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
#[repr(u8)]
pub enum Wire {
    /// f32, little-endian: exact.
    #[default]
    Raw = 0,
    /// One byte per value and a scale per 32 values.
    Q8 = 1,
    /// Eight companded bits, and the largest of 32 values by itself.
    C8 = 2,
    /// Ten companded bits, and the largest of 64 values by itself: nearly lossless.
    C10 = 3,
    /// Seven companded bits, and the largest of 64 values by itself: the smallest.
    C7 = 4,
    /// The upper half of an f32.
    Bf16 = 5,
    /// A sixteenth of the value as f16.
    F16 = 6,
}

impl Wire {
    /// All forms, by their byte.
    pub const ALL: [Self; 7] = [Self::Raw, Self::Q8, Self::C8, Self::C10, Self::C7, Self::Bf16, Self::F16];

    /// The form whose byte this is.
    pub fn from_u8(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte)).copied()
    }

    /// What it is called on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Q8 => "q8",
            Self::C8 => "c8",
            Self::C10 => "c10",
            Self::C7 => "c7",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        }
    }

    /// Values that are encoded together: a row is a multiple of them.
    pub fn group(self) -> usize {
        match self {
            Self::Raw | Self::Bf16 | Self::F16 => 1,
            Self::Q8 => q8::BLOCK,
            Self::C8 => 32,
            Self::C10 | Self::C7 => 64,
        }
    }

    /// Bytes of [`Wire::group`] values.
    pub fn group_bytes(self) -> usize {
        match self {
            Self::Raw => 4,
            Self::Bf16 | Self::F16 => 2,
            Self::Q8 => q8::BLOCK_BYTES,
            Self::C8 => companded::group_bytes(32, 5, 2),
            Self::C10 => companded::group_bytes(64, 7, 3),
            Self::C7 => companded::group_bytes(64, 4, 2),
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

/// Where a session rounds, and in which form rows travel from there.
///
/// A session that rounds nowhere has the form [`Wire::Raw`], so that one rounding has one encoding.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Rounding {
    wire: Wire,
    boundaries: Vec<u32>,
}

impl Rounding {
    /// Of a session that rounds nowhere.
    pub const NONE: Self = Self { wire: Wire::Raw, boundaries: Vec::new() };

    /// Rounding at `boundaries`, by the layers behind them, in ascending order; none if there are none or `wire` is raw.
    pub fn new(wire: Wire, boundaries: Vec<u32>) -> Self {
        match wire {
            Wire::Raw => Self::NONE,
            _ if boundaries.is_empty() => Self::NONE,
            wire => Self { wire, boundaries },
        }
    }

    /// The form of rows at the boundaries.
    pub fn wire(&self) -> Wire {
        self.wire
    }

    /// The boundaries, ascending.
    pub fn boundaries(&self) -> &[u32] {
        &self.boundaries
    }

    /// The form in which rows cross `boundary`: raw where they are not rounded, since any other would change them.
    pub fn form_at(&self, boundary: u32) -> Wire {
        if self.boundaries.contains(&boundary) { self.wire } else { Wire::Raw }
    }
}

/// A name that is no form of activations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnknownWire;

impl fmt::Display for UnknownWire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("activations travel as raw, q8, c8, c10, c7, bf16 or f16: say one of them")
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

/// Bytes that `rows` x `width` values take, or `None` when `width` is zero, is no multiple of [`Wire::group`] or the product
/// overflows. To be checked once, when a session starts.
pub fn encoded_len(wire: Wire, rows: usize, width: usize) -> Option<usize> {
    if width == 0 || !width.is_multiple_of(wire.group()) {
        return None;
    }
    (width / wire.group()).checked_mul(wire.group_bytes())?.checked_mul(rows)
}

/// Values in a row of `bytes` bytes: the inverse of [`encoded_len`] for one row.
pub fn row_width(wire: Wire, bytes: usize) -> Option<usize> {
    let width = (bytes / wire.group_bytes()).checked_mul(wire.group())?;
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
        Wire::C8 => companded::encode::<32, 5, 2>(data, &mut out[start..]),
        Wire::C10 => companded::encode::<64, 7, 3>(data, &mut out[start..]),
        Wire::C7 => companded::encode::<64, 4, 2>(data, &mut out[start..]),
        Wire::Bf16 => half::encode::<Brain>(data, &mut out[start..]),
        Wire::F16 => half::encode::<Sixteenth>(data, &mut out[start..]),
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
        Wire::C8 => companded::decode::<32, 5, 2>(bytes, &mut out[start..]),
        Wire::C10 => companded::decode::<64, 7, 3>(bytes, &mut out[start..]),
        Wire::C7 => companded::decode::<64, 4, 2>(bytes, &mut out[start..]),
        Wire::Bf16 => half::decode::<Brain>(bytes, &mut out[start..]),
        Wire::F16 => half::decode::<Sixteenth>(bytes, &mut out[start..]),
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
        Wire::C8 => companded::check::<32, 5, 2>(bytes),
        Wire::C10 => companded::check::<64, 7, 3>(bytes),
        Wire::C7 => companded::check::<64, 4, 2>(bytes),
        Wire::Bf16 => half::check::<Brain>(bytes),
        Wire::F16 => half::check::<Sixteenth>(bytes),
    }
}

#[cfg(test)]
mod tests;
