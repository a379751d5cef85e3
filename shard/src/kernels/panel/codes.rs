//! Code widths: how 16 rows of 32 codes share bytes, and how vectors get them back.
//!
//! Codes come as words: word g of a row is the bytes of columns 4g..4g + 3, so all packing is shifts and masks of whole words.

use super::ROWS;
use crate::kernels::simd::Simd;

/// One width of codes.
pub trait Codes: 'static {
    /// Bytes of 32 columns of a panel, a multiple of 64.
    const BYTES: usize;
    /// Packs the codes of 16 rows into `out`, `BYTES` long.
    fn put(rows: &[[u32; 8]; ROWS], out: &mut [u8]);
    /// Groups `C` and `C + 4` of the block at `from`, one code per byte.
    ///
    /// # Safety
    /// `BYTES` readable bytes; the processor has the instruction set.
    unsafe fn pair<S: Simd, const C: usize>(from: *const u8) -> (S::B, S::B);
}

/// Writes word `row` of 64-byte chunk `chunk`.
fn set(out: &mut [u8], chunk: usize, row: usize, word: u32) {
    out[64 * chunk + 4 * row..][..4].copy_from_slice(&word.to_le_bytes());
}

/// The words of each group cut to `width` bits from `shift`, group g moved to where `place(g)` says.
fn plane(row: &[u32; 8], groups: impl Iterator<Item = usize>, shift: u32, width: u32) -> u32 {
    let mask = 0x0101_0101 * ((1 << width) - 1);
    groups.enumerate().fold(0, |word, (field, g)| word | (row[g] >> shift & mask) << (field as u32 * width))
}

/// 8 bits: group g is chunk g.
pub struct W8;
/// 4 bits: chunk c holds group c in the low nibbles and group c + 4 in the high ones.
pub struct W4;
/// 5 bits: as 4, and a chunk whose bit g is the fifth bit of group g.
pub struct W5;
/// 6 bits: as 4, and two chunks: chunk c holds the high bits of groups c, c + 2, c + 4, c + 6.
pub struct W6;
/// 2 bits: two chunks as those of 6 bits.
pub struct W2;
/// 1 bit, for codes 0 and 2: bit g of the chunk is bit 1 of group g.
pub struct W1;
/// 3 bits: as 2, and a chunk whose bit g is the third bit of group g.
pub struct W3;

impl Codes for W8 {
    const BYTES: usize = 512;
    fn put(rows: &[[u32; 8]; ROWS], out: &mut [u8]) {
        for (r, row) in rows.iter().enumerate() {
            for (g, &word) in row.iter().enumerate() {
                set(out, g, r, word);
            }
        }
    }
    #[inline(always)]
    unsafe fn pair<S: Simd, const C: usize>(from: *const u8) -> (S::B, S::B) {
        // SAFETY: the contract is the caller's.
        unsafe { (S::load_bytes(from.add(64 * C)), S::load_bytes(from.add(64 * (C + 4)))) }
    }
}

impl Codes for W4 {
    const BYTES: usize = 256;
    fn put(rows: &[[u32; 8]; ROWS], out: &mut [u8]) {
        for (r, row) in rows.iter().enumerate() {
            for c in 0..4 {
                set(out, c, r, plane(row, [c, c + 4].into_iter(), 0, 4));
            }
        }
    }
    #[inline(always)]
    unsafe fn pair<S: Simd, const C: usize>(from: *const u8) -> (S::B, S::B) {
        // SAFETY: the contract is the caller's.
        unsafe {
            let both = S::load_bytes(from.add(64 * C));
            (S::and(both, S::splat_byte(15)), S::shr::<4>(both))
        }
    }
}

impl Codes for W5 {
    const BYTES: usize = 320;
    fn put(rows: &[[u32; 8]; ROWS], out: &mut [u8]) {
        W4::put(rows, out);
        for (r, row) in rows.iter().enumerate() {
            set(out, 4, r, plane(row, 0..8, 4, 1));
        }
    }
    #[inline(always)]
    unsafe fn pair<S: Simd, const C: usize>(from: *const u8) -> (S::B, S::B) {
        // SAFETY: the contract is the caller's.
        unsafe {
            let (low, high) = W4::pair::<S, C>(from);
            let bits = S::load_bytes(from.add(256));
            let (bit_low, bit_high) = match C {
                0 => (S::shl::<4>(bits), bits),
                1 => (S::shl::<3>(bits), S::shr::<1>(bits)),
                2 => (S::shl::<2>(bits), S::shr::<2>(bits)),
                _ => (S::shl::<1>(bits), S::shr::<3>(bits)),
            };
            let mask = S::splat_byte(0x10);
            (S::or(low, S::and(bit_low, mask)), S::or(high, S::and(bit_high, mask)))
        }
    }
}

impl Codes for W6 {
    const BYTES: usize = 384;
    fn put(rows: &[[u32; 8]; ROWS], out: &mut [u8]) {
        W4::put(rows, out);
        for (r, row) in rows.iter().enumerate() {
            for c in 0..2 {
                set(out, 4 + c, r, plane(row, (c..8).step_by(2), 4, 2));
            }
        }
    }
    #[inline(always)]
    unsafe fn pair<S: Simd, const C: usize>(from: *const u8) -> (S::B, S::B) {
        // SAFETY: the contract is the caller's.
        unsafe {
            let (low, high) = W4::pair::<S, C>(from);
            let bits = S::load_bytes(from.add(256 + 64 * (C % 2)));
            let (bits_low, bits_high) =
                if C < 2 { (S::shl::<4>(bits), bits) } else { (S::shl::<2>(bits), S::shr::<2>(bits)) };
            let mask = S::splat_byte(0x30);
            (S::or(low, S::and(bits_low, mask)), S::or(high, S::and(bits_high, mask)))
        }
    }
}

impl Codes for W2 {
    const BYTES: usize = 128;
    fn put(rows: &[[u32; 8]; ROWS], out: &mut [u8]) {
        for (r, row) in rows.iter().enumerate() {
            for c in 0..2 {
                set(out, c, r, plane(row, (c..8).step_by(2), 0, 2));
            }
        }
    }
    #[inline(always)]
    unsafe fn pair<S: Simd, const C: usize>(from: *const u8) -> (S::B, S::B) {
        // SAFETY: the contract is the caller's.
        unsafe {
            let bits = S::load_bytes(from.add(64 * (C % 2)));
            let (low, high) =
                if C < 2 { (bits, S::shr::<4>(bits)) } else { (S::shr::<2>(bits), S::shr::<6>(bits)) };
            let mask = S::splat_byte(3);
            (S::and(low, mask), S::and(high, mask))
        }
    }
}

impl Codes for W1 {
    const BYTES: usize = 64;
    fn put(rows: &[[u32; 8]; ROWS], out: &mut [u8]) {
        for (r, row) in rows.iter().enumerate() {
            set(out, 0, r, plane(row, 0..8, 1, 1));
        }
    }
    #[inline(always)]
    unsafe fn pair<S: Simd, const C: usize>(from: *const u8) -> (S::B, S::B) {
        // SAFETY: the contract is the caller's.
        unsafe {
            let bits = S::load_bytes(from);
            let (low, high) = match C {
                0 => (S::shl::<1>(bits), S::shr::<3>(bits)),
                1 => (bits, S::shr::<4>(bits)),
                2 => (S::shr::<1>(bits), S::shr::<5>(bits)),
                _ => (S::shr::<2>(bits), S::shr::<6>(bits)),
            };
            let mask = S::splat_byte(2);
            (S::and(low, mask), S::and(high, mask))
        }
    }
}

impl Codes for W3 {
    const BYTES: usize = 192;
    fn put(rows: &[[u32; 8]; ROWS], out: &mut [u8]) {
        W2::put(rows, out);
        for (r, row) in rows.iter().enumerate() {
            set(out, 2, r, plane(row, 0..8, 2, 1));
        }
    }
    #[inline(always)]
    unsafe fn pair<S: Simd, const C: usize>(from: *const u8) -> (S::B, S::B) {
        // SAFETY: the contract is the caller's.
        unsafe {
            let (low, high) = W2::pair::<S, C>(from);
            let bits = S::load_bytes(from.add(128));
            let (bit_low, bit_high) = match C {
                0 => (S::shl::<2>(bits), S::shr::<2>(bits)),
                1 => (S::shl::<1>(bits), S::shr::<3>(bits)),
                2 => (bits, S::shr::<4>(bits)),
                _ => (S::shr::<1>(bits), S::shr::<5>(bits)),
            };
            let mask = S::splat_byte(4);
            (S::or(low, S::and(bit_low, mask)), S::or(high, S::and(bit_high, mask)))
        }
    }
}
