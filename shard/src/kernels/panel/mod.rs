//! How weights lie in memory: panels of 16 rows, interleaved so that a lane is a row.
//!
//! A panel holds 16 output rows. Per 32 columns it stores the codes in the order of the byte dot product: group
//! g (0..8) is columns 4g..4g + 3, 16 rows of 4 bytes each. Narrow codes share bytes between groups ([`codes`]);
//! the scales of the 16 rows stand side by side ([`scales`]). Codes and scales are two streams per panel, both
//! starting on a cache line, so that a pass over a panel reads memory once and in order.
//!
//! [`Layout`] joins a code width and a kind of scale to a GGUF format; the same as a table of functions is what a matrix keeps.
//! For many rows of activations a panel is unpacked once into [`unpacked`] form: bytes and f32 scales.
//!
//! Limits: the packed size is within 4 % of the GGUF size for matrices of at least 512 columns; float formats
//! are stored column by column as they are.

pub mod codes;
pub mod scales;
pub mod unpacked;

use super::simd::Simd;
use codes::Codes;
use scales::{ScaleKind, Scales};

/// Output rows of a panel: the lanes of a vector.
pub const ROWS: usize = super::simd::LANES;
/// Columns of a block: what shares one scale of the activations.
pub const BLOCK: usize = 32;

/// Which byte product the codes of a [`Source`] go through.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Dot {
    /// Codes in 0..=127: [`Simd::dot_u7`].
    Unsigned,
    /// Signed weights: [`Simd::dot_i8`].
    Signed,
    /// Signed weights that went through [`Simd::bias`]: [`Simd::dot_biased`].
    Biased,
}

/// A float format: how one weight is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Float {
    /// 32-bit.
    F32,
    /// IEEE 16-bit.
    F16,
    /// The upper half of 32-bit.
    Bf16,
}

/// A format in panels: how to read its GGUF blocks and how its codes become weights.
pub trait Layout: 'static {
    /// Width of the codes.
    type Codes: Codes;
    /// Kind of scales.
    type Scales: ScaleKind;
    /// Weight = code - `FOLD` when the codes are unsigned.
    const FOLD: i32;
    /// The signed values that 4-bit codes stand for; `None` where the code is the weight.
    const TABLE: Option<[i8; 16]> = None;
    /// Whether the weights are signed bytes as they come (8-bit codes or a table).
    const SIGNED: bool;
    /// Bytes of a GGUF block of `BLOCK * Scales::PER` columns.
    const GGUF_BYTES: usize;
    /// The codes of 32-block `i` of a GGUF block: word g holds columns 4g..4g + 3.
    fn codes(block: &[u8], i: usize) -> [u32; 8];
    /// The scale bytes of 16 GGUF blocks (`None` for rows past the end), as `Scales` reads them.
    fn scales(blocks: &[Option<&[u8]>; ROWS], out: &mut [u8]);
}

/// Where the tile kernel reads weights from: packed panels or an unpacked one.
///
/// # Safety
/// The methods need the instruction set of `S` and pointers to a whole block.
#[allow(clippy::missing_safety_doc, reason = "the contract is the same for all methods and stands above")]
pub trait Source: 'static {
    /// Which byte product the pairs go through.
    const DOT: Dot;
    /// 32-blocks that share a scale record.
    const PER: usize;
    /// Whether each 16 columns have their own integer scale.
    const HALVES: bool;
    /// Whether there are minima.
    const MIN: bool;
    /// Whether panels come from memory, so that what follows is asked for beforehand.
    const STREAMED: bool;
    /// Bytes from one 32-block of codes to the next.
    const CODE_STRIDE: usize;
    /// Bytes from one scale record to the next.
    const SCALE_STRIDE: usize;
    /// Groups `C` and `C + 4` of the block at `codes`, `C` in 0..4.
    unsafe fn pair<S: Simd, const C: usize>(codes: *const u8) -> (S::B, S::B);
    /// The scales of block `i` of the record at `scales`.
    unsafe fn scales<S: Simd>(scales: *const u8, i: usize) -> Scales<S>;
}

/// A packed panel as a source.
pub struct Packed<L>(std::marker::PhantomData<L>);

impl<L: Layout> Source for Packed<L> {
    const DOT: Dot = if L::SIGNED { Dot::Signed } else { Dot::Unsigned };
    const PER: usize = L::Scales::PER;
    const HALVES: bool = L::Scales::HALVES;
    const MIN: bool = L::Scales::MIN;
    const STREAMED: bool = true;
    const CODE_STRIDE: usize = L::Codes::BYTES;
    const SCALE_STRIDE: usize = L::Scales::BYTES;

    #[inline(always)]
    unsafe fn pair<S: Simd, const C: usize>(codes: *const u8) -> (S::B, S::B) {
        // SAFETY: the contract is the caller's.
        unsafe {
            let (low, high) = L::Codes::pair::<S, C>(codes);
            match &L::TABLE {
                Some(table) => (S::lookup(table, low), S::lookup(table, high)),
                None => (low, high),
            }
        }
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(scales: *const u8, i: usize) -> Scales<S> {
        // SAFETY: the contract is the caller's.
        unsafe { L::Scales::load::<S>(scales, i) }
    }
}

/// Bytes of the code stream and of the scale stream of one panel with `cols` columns.
pub const fn panel_bytes<L: Layout>(cols: usize) -> (usize, usize) {
    let blocks = cols / BLOCK;
    (blocks * L::Codes::BYTES, (blocks / L::Scales::PER * L::Scales::BYTES).next_multiple_of(64))
}

/// Packs one panel: `rows` are the GGUF bytes of its rows, fewer than 16 for the last panel of a matrix; `out` is
/// zero and as long as [`panel_bytes`] says, codes first.
pub fn pack<L: Layout>(rows: &[&[u8]], cols: usize, out: &mut [u8]) {
    let (code_bytes, scale_bytes) = panel_bytes::<L>(cols);
    assert_eq!(out.len(), code_bytes + scale_bytes);
    let (codes, scales) = out.split_at_mut(code_bytes);
    let supers = cols / BLOCK / L::Scales::PER;
    let records = codes
        .chunks_exact_mut(L::Codes::BYTES * L::Scales::PER)
        .zip(scales.chunks_exact_mut(L::Scales::BYTES));
    for (s, (codes, scales)) in (0..supers).zip(records) {
        let mut blocks = [None; ROWS];
        for (block, row) in blocks.iter_mut().zip(rows) {
            *block = Some(&row[s * L::GGUF_BYTES..][..L::GGUF_BYTES]);
        }
        for (i, codes) in codes.chunks_exact_mut(L::Codes::BYTES).enumerate() {
            let mut words = [[0; 8]; ROWS];
            for (words, block) in words.iter_mut().zip(&blocks) {
                if let Some(block) = block {
                    *words = L::codes(block, i);
                }
            }
            L::Codes::put(&words, codes);
        }
        L::scales(&blocks, scales);
    }
}
