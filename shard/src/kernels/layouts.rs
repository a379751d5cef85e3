//! The formats in panels: one row of the table each.

use super::panel::{
    Float, Layout, ROWS,
    codes::{Codes, W1, W2, W3, W4, W5, W6, W8},
    pack, panel_bytes,
    scales::{Affine, FloatHalves, Groups, Halves, HalvesMin, Power, ScaleKind, Shared, Single, WithMin},
    unpacked,
};
use super::{Isa, amx, tile};
use crate::quant::{
    self, Format, codebook::Codebook, i2_s, iq1_m::Iq1M, iq1_s::Iq1S, iq2_s::Iq2S, iq2_xs::Iq2Xs,
    iq2_xxs::Iq2Xxs, iq3_s::Iq3S, iq3_xxs::Iq3Xxs, iq4_xs::Iq4Xs, nvfp4, q1_0, q2_0, tq1_0, tq2_0,
};

/// A layout as a table of functions, so that a matrix carries one pointer.
pub(crate) struct Panels {
    /// Bytes of the code and the scale stream of a panel of so many columns.
    pub bytes: fn(cols: usize) -> (usize, usize),
    /// See [`pack`].
    pub pack: fn(rows: &[&[u8]], cols: usize, out: &mut [u8]),
    /// Whether each half of a block has its own integer scale.
    pub halves: bool,
    /// As [`Layout::SIGNED`].
    pub signed: bool,
    /// As [`Layout::FOLD`].
    pub fold: i32,
    /// Bytes of a block of the unpacked panel.
    pub stride: usize,
    /// Products of a packed panel with up to 8 rows.
    pub packed: unsafe fn(Isa, &tile::Tile, usize),
    /// Unpacks a panel: codes, scales, blocks, out, plain.
    pub unpack: unsafe fn(Isa, *const u8, *const u8, usize, *mut u8, bool),
    /// Products of an unpacked panel with up to 8 rows.
    pub unpacked: unsafe fn(Isa, &tile::Tile, usize),
    /// The same from a plain unpacked panel.
    pub plain: unsafe fn(Isa, &tile::Tile, usize),
    /// Products of a plain unpacked panel with 16 rows in the tile unit.
    pub amx: unsafe fn(&tile::Tile),
}

/// The const flags of a layout's unpacked form, spelled out because they cannot be computed in types.
macro_rules! panels {
    ($layout:ty, $halves:literal, $min:literal, $signed:literal) => {{
        const _: () = {
            assert!(<$layout as Layout>::SIGNED == $signed);
            assert!(<<$layout as Layout>::Scales as ScaleKind>::HALVES == $halves);
            assert!(<<$layout as Layout>::Scales as ScaleKind>::MIN == $min);
            assert!(<<$layout as Layout>::Codes as Codes>::BYTES % 64 == 0);
        };
        Panels {
            bytes: panel_bytes::<$layout>,
            pack: pack::<$layout>,
            halves: $halves,
            signed: $signed,
            fold: <$layout as Layout>::FOLD,
            stride: unpacked::stride($halves, $min),
            packed: tile::run::<super::panel::Packed<$layout>>,
            unpack: tile::unpack::<$layout>,
            unpacked: tile::run::<unpacked::Unpacked<$halves, $min, $signed, false>>,
            plain: tile::run::<unpacked::Unpacked<$halves, $min, true, true>>,
            amx: amx::run::<$halves, $min>,
        }
    }};
}

/// The panels of an integer format.
pub(crate) fn by_format(format: &Format) -> Option<&'static Panels> {
    static TABLE: [(u32, Panels); 26] = [
        (quant::Q4_0.ggml_type, panels!(Q4_0, false, false, false)),
        (quant::Q4_1.ggml_type, panels!(Q4_1, false, true, false)),
        (quant::Q5_0.ggml_type, panels!(Q5_0, false, false, false)),
        (quant::Q5_1.ggml_type, panels!(Q5_1, false, true, false)),
        (quant::Q8_0.ggml_type, panels!(Q8_0, false, false, true)),
        (quant::Q2_K.ggml_type, panels!(Q2K, true, true, false)),
        (quant::Q3_K.ggml_type, panels!(Q3K, true, false, false)),
        (quant::Q4_K.ggml_type, panels!(Q4K, false, true, false)),
        (quant::Q5_K.ggml_type, panels!(Q5K, false, true, false)),
        (quant::Q6_K.ggml_type, panels!(Q6K, true, false, false)),
        (quant::IQ4_NL.ggml_type, panels!(Iq4Nl, false, false, true)),
        (quant::MXFP4.ggml_type, panels!(Mxfp4, false, false, true)),
        (quant::TQ1_0.ggml_type, panels!(Tq1_0, false, false, false)),
        (quant::TQ2_0.ggml_type, panels!(Tq2_0, false, false, false)),
        (quant::I2_S.ggml_type, panels!(I2S, false, false, false)),
        (quant::NVFP4.ggml_type, panels!(Nvfp4, true, false, true)),
        (quant::Q1_0.ggml_type, panels!(Q1_0, false, false, false)),
        (quant::Q2_0.ggml_type, panels!(Q2_0, false, false, false)),
        (quant::IQ4_XS.ggml_type, panels!(Book<Iq4Xs, W4, Groups<0>>, false, false, true)),
        (quant::IQ3_S.ggml_type, panels!(Book<Iq3S, W4, Groups<0>>, false, false, true)),
        (quant::IQ3_XXS.ggml_type, panels!(Book<Iq3Xxs, W4, Groups<2>>, false, false, true)),
        (quant::IQ2_XXS.ggml_type, panels!(Book<Iq2Xxs, W3, Groups<3>>, false, false, true)),
        (quant::IQ2_XS.ggml_type, panels!(Book<Iq2Xs, W3, Halves<3>>, true, false, true)),
        (quant::IQ2_S.ggml_type, panels!(Book<Iq2S, W3, Halves<3>>, true, false, true)),
        (quant::IQ1_S.ggml_type, panels!(Book<Iq1S, W3, Groups<3>>, false, false, true)),
        (quant::IQ1_M.ggml_type, panels!(Book<Iq1M, W3, Halves<3>>, true, false, true)),
    ];
    TABLE.iter().find(|row| row.0 == format.ggml_type).map(|row| &row.1)
}

/// A float format in panels: column after column, 16 rows each.
pub(crate) struct FloatKind {
    pub bytes: usize,
    pub tile: unsafe fn(Isa, &tile::FloatTile, usize),
}

/// The panels of a float format.
pub(crate) fn float_by_format(format: &Format) -> Option<&'static FloatKind> {
    static F32: FloatKind = FloatKind { bytes: 4, tile: tile::run_float::<{ Float::F32 as u8 }> };
    static F16: FloatKind = FloatKind { bytes: 2, tile: tile::run_float::<{ Float::F16 as u8 }> };
    static BF16: FloatKind = FloatKind { bytes: 2, tile: tile::run_float::<{ Float::Bf16 as u8 }> };
    [(&quant::F32, &F32), (&quant::F16, &F16), (&quant::BF16, &BF16)]
        .into_iter()
        .find(|row| row.0 == format)
        .map(|row| row.1)
}

impl FloatKind {
    /// Packs one panel of `cols` columns; `out` is zero and has 16 values per column.
    pub fn pack(&self, rows: &[&[u8]], out: &mut [u8]) {
        for (r, row) in rows.iter().enumerate() {
            for (k, value) in row.chunks_exact(self.bytes).enumerate() {
                out[(k * ROWS + r) * self.bytes..][..self.bytes].copy_from_slice(value);
            }
        }
    }
}

/// The word of four bytes from `at`.
fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Writes the f16 at `at` of every block to consecutive places, with its sign changed by `flip`.
fn halves(blocks: &[Option<&[u8]>; ROWS], at: usize, flip: u8, out: &mut [u8]) {
    for (block, out) in blocks.iter().zip(out.chunks_exact_mut(2)) {
        if let Some(block) = block {
            out.copy_from_slice(&[block[at], block[at + 1] ^ flip]);
        }
    }
}

/// The sign bit of an f16 in its second byte.
const SIGN: u8 = 0x80;

/// Eight groups of nibbles: bytes 0..16 from `at`, low nibbles first.
fn nibbles(block: &[u8], at: usize) -> [u32; 8] {
    std::array::from_fn(|g| word(block, at + g % 4 * 4) >> (g / 4 * 4) & 0x0f0f_0f0f)
}

/// Bit i of `bits` to bit 4 of byte i % 4 of word i / 4.
fn fifth_bits(bits: u32) -> [u32; 8] {
    std::array::from_fn(|g| {
        let four = bits >> (4 * g) & 15;
        (four & 1 | (four & 2) << 7 | (four & 4) << 14 | (four & 8) << 21) << 4
    })
}

fn or(a: [u32; 8], b: [u32; 8]) -> [u32; 8] {
    std::array::from_fn(|g| a[g] | b[g])
}

struct Q4_0;
impl Layout for Q4_0 {
    type Codes = W4;
    type Scales = Single;
    const FOLD: i32 = 8;
    const SIGNED: bool = false;
    const GGUF_BYTES: usize = 18;
    fn codes(block: &[u8], _i: usize) -> [u32; 8] {
        nibbles(block, 2)
    }
    fn scales(blocks: &[Option<&[u8]>; ROWS], out: &mut [u8]) {
        halves(blocks, 0, 0, out);
    }
}

struct Iq4Nl;
impl Layout for Iq4Nl {
    type Codes = W4;
    type Scales = Single;
    const FOLD: i32 = 0;
    const TABLE: Option<[i8; 16]> = Some(quant::IQ4_NL_VALUES);
    const SIGNED: bool = true;
    const GGUF_BYTES: usize = 18;
    fn codes(block: &[u8], _i: usize) -> [u32; 8] {
        nibbles(block, 2)
    }
    fn scales(blocks: &[Option<&[u8]>; ROWS], out: &mut [u8]) {
        halves(blocks, 0, 0, out);
    }
}

struct Q4_1;
impl Layout for Q4_1 {
    type Codes = W4;
    type Scales = WithMin;
    const FOLD: i32 = 0;
    const SIGNED: bool = false;
    const GGUF_BYTES: usize = 20;
    fn codes(block: &[u8], _i: usize) -> [u32; 8] {
        nibbles(block, 4)
    }
    fn scales(blocks: &[Option<&[u8]>; ROWS], out: &mut [u8]) {
        halves(blocks, 0, 0, out);
        halves(blocks, 2, 0, &mut out[32..]);
    }
}

struct Q5_0;
impl Layout for Q5_0 {
    type Codes = W5;
    type Scales = Single;
    const FOLD: i32 = 16;
    const SIGNED: bool = false;
    const GGUF_BYTES: usize = 22;
    fn codes(block: &[u8], _i: usize) -> [u32; 8] {
        or(nibbles(block, 6), fifth_bits(word(block, 2)))
    }
    fn scales(blocks: &[Option<&[u8]>; ROWS], out: &mut [u8]) {
        halves(blocks, 0, 0, out);
    }
}

struct Q5_1;
impl Layout for Q5_1 {
    type Codes = W5;
    type Scales = WithMin;
    const FOLD: i32 = 0;
    const SIGNED: bool = false;
    const GGUF_BYTES: usize = 24;
    fn codes(block: &[u8], _i: usize) -> [u32; 8] {
        or(nibbles(block, 8), fifth_bits(word(block, 4)))
    }
    fn scales(blocks: &[Option<&[u8]>; ROWS], out: &mut [u8]) {
        halves(blocks, 0, 0, out);
        halves(blocks, 2, 0, &mut out[32..]);
    }
}

struct Q8_0;
impl Layout for Q8_0 {
    type Codes = W8;
    type Scales = Single;
    const FOLD: i32 = 0;
    const SIGNED: bool = true;
    const GGUF_BYTES: usize = 34;
    fn codes(block: &[u8], _i: usize) -> [u32; 8] {
        std::array::from_fn(|g| word(block, 2 + 4 * g))
    }
    fn scales(blocks: &[Option<&[u8]>; ROWS], out: &mut [u8]) {
        halves(blocks, 0, 0, out);
    }
}

/// Scale and minimum of group `i` of 32 from the 12 packed bytes of Q4_K and Q5_K.
fn scale_min(packed: &[u8], i: usize) -> (u8, u8) {
    if i < 4 {
        return (packed[i] & 63, packed[4 + i] & 63);
    }
    let (low, sc, mn) = (packed[4 + i], packed[i - 4], packed[i]);
    (low & 15 | sc >> 6 << 4, low >> 4 | mn >> 6 << 4)
}

/// The records of [`Affine`] from blocks that start with d, dmin and the 12 packed bytes.
fn affine(blocks: &[Option<&[u8]>; ROWS], out: &mut [u8]) {
    halves(blocks, 0, 0, out);
    halves(blocks, 2, SIGN, &mut out[32..]);
    for (r, block) in blocks.iter().enumerate() {
        let Some(block) = block else { continue };
        for i in 0..8 {
            let (sc, mn) = scale_min(&block[4..16], i);
            out[64 + 32 * i + r] = sc;
            out[64 + 32 * i + 16 + r] = mn;
        }
    }
}

struct Q4K;
impl Layout for Q4K {
    type Codes = W4;
    type Scales = Affine;
    const FOLD: i32 = 0;
    const SIGNED: bool = false;
    const GGUF_BYTES: usize = 144;
    fn codes(block: &[u8], i: usize) -> [u32; 8] {
        std::array::from_fn(|g| word(block, 16 + i / 2 * 32 + 4 * g) >> (i % 2 * 4) & 0x0f0f_0f0f)
    }
    fn scales(blocks: &[Option<&[u8]>; ROWS], out: &mut [u8]) {
        affine(blocks, out);
    }
}

struct Q5K;
impl Layout for Q5K {
    type Codes = W5;
    type Scales = Affine;
    const FOLD: i32 = 0;
    const SIGNED: bool = false;
    const GGUF_BYTES: usize = 176;
    fn codes(block: &[u8], i: usize) -> [u32; 8] {
        std::array::from_fn(|g| {
            let low = word(block, 48 + i / 2 * 32 + 4 * g) >> (i % 2 * 4) & 0x0f0f_0f0f;
            low | (word(block, 16 + 4 * g) >> i & 0x0101_0101) << 4
        })
    }
    fn scales(blocks: &[Option<&[u8]>; ROWS], out: &mut [u8]) {
        affine(blocks, out);
    }
}

struct Q6K;
impl Layout for Q6K {
    type Codes = W6;
    type Scales = Halves<0>;
    const FOLD: i32 = 32;
    const SIGNED: bool = false;
    const GGUF_BYTES: usize = 210;
    fn codes(block: &[u8], i: usize) -> [u32; 8] {
        let (h, k) = (i / 4, i % 4);
        std::array::from_fn(|g| {
            let low = word(block, 64 * h + 32 * (k % 2) + 4 * g) >> (k / 2 * 4) & 0x0f0f_0f0f;
            low | (word(block, 128 + 32 * h + 4 * g) >> (2 * k) & 0x0303_0303) << 4
        })
    }
    fn scales(blocks: &[Option<&[u8]>; ROWS], out: &mut [u8]) {
        halves(blocks, 208, 0, out);
        for (r, block) in blocks.iter().enumerate() {
            let Some(block) = block else { continue };
            for (j, &sc) in block[192..208].iter().enumerate() {
                out[32 + 16 * j + r] = sc;
            }
        }
    }
}

struct Q3K;
impl Layout for Q3K {
    type Codes = W3;
    type Scales = Halves<0>;
    const FOLD: i32 = 4;
    const SIGNED: bool = false;
    const GGUF_BYTES: usize = 110;
    fn codes(block: &[u8], i: usize) -> [u32; 8] {
        std::array::from_fn(|g| {
            let low = word(block, 32 + i / 4 * 32 + 4 * g) >> (i % 4 * 2) & 0x0303_0303;
            low | (word(block, 4 * g) >> i & 0x0101_0101) << 2
        })
    }
    fn scales(blocks: &[Option<&[u8]>; ROWS], out: &mut [u8]) {
        halves(blocks, 108, 0, out);
        for (r, block) in blocks.iter().enumerate() {
            let Some(block) = block else { continue };
            for j in 0..16 {
                let low = block[96 + j % 8] >> (j / 8 * 4) & 15;
                let high = block[104 + j % 4] >> (j / 4 * 2) & 3;
                out[32 + 16 * j + r] = (low | high << 4).wrapping_sub(32);
            }
        }
    }
}

struct Q2K;
impl Layout for Q2K {
    type Codes = W2;
    type Scales = HalvesMin;
    const FOLD: i32 = 0;
    const SIGNED: bool = false;
    const GGUF_BYTES: usize = 84;
    fn codes(block: &[u8], i: usize) -> [u32; 8] {
        std::array::from_fn(|g| word(block, 16 + i / 4 * 32 + 4 * g) >> (i % 4 * 2) & 0x0303_0303)
    }
    fn scales(blocks: &[Option<&[u8]>; ROWS], out: &mut [u8]) {
        halves(blocks, 80, 0, out);
        halves(blocks, 82, SIGN, &mut out[32..]);
        for (r, block) in blocks.iter().enumerate() {
            let Some(block) = block else { continue };
            for (j, &both) in block[..16].iter().enumerate() {
                out[64 + 16 * j + r] = both;
            }
        }
    }
}

struct Mxfp4;
impl Layout for Mxfp4 {
    type Codes = W4;
    type Scales = Power;
    const FOLD: i32 = 0;
    const TABLE: Option<[i8; 16]> = Some(quant::MXFP4_VALUES);
    const SIGNED: bool = true;
    const GGUF_BYTES: usize = 17;
    fn codes(block: &[u8], _i: usize) -> [u32; 8] {
        nibbles(block, 1)
    }
    fn scales(blocks: &[Option<&[u8]>; ROWS], out: &mut [u8]) {
        for (block, out) in blocks.iter().zip(out) {
            *out = block.map_or(0, |block| block[0]);
        }
    }
}

struct Nvfp4;
impl Layout for Nvfp4 {
    type Codes = W4;
    type Scales = FloatHalves;
    const FOLD: i32 = 0;
    const TABLE: Option<[i8; 16]> = Some(quant::MXFP4_VALUES);
    const SIGNED: bool = true;
    const GGUF_BYTES: usize = 36;
    fn codes(block: &[u8], i: usize) -> [u32; 8] {
        std::array::from_fn(|g| {
            word(block, 4 + 16 * i + 8 * (g / 4) + 4 * (g % 2)) >> (g % 4 / 2 * 4) & 0x0f0f_0f0f
        })
    }
    fn scales(blocks: &[Option<&[u8]>; ROWS], out: &mut [u8]) {
        for (r, block) in blocks.iter().enumerate() {
            let Some(block) = block else { continue };
            for (s, scale) in block[..4].iter().enumerate() {
                out[16 * s + r] = nvfp4::nibbles(*scale);
            }
        }
    }
}

/// One code per byte as words.
fn words(codes: [u8; 32]) -> [u32; 8] {
    std::array::from_fn(|g| word(&codes, 4 * g))
}

struct Tq2_0;
impl Layout for Tq2_0 {
    type Codes = W2;
    type Scales = Shared<8>;
    const FOLD: i32 = 1;
    const SIGNED: bool = false;
    const GGUF_BYTES: usize = 66;
    fn codes(block: &[u8], i: usize) -> [u32; 8] {
        words(tq2_0::codes(block, i))
    }
    fn scales(blocks: &[Option<&[u8]>; ROWS], out: &mut [u8]) {
        halves(blocks, 64, 0, out);
    }
}

struct I2S;
impl Layout for I2S {
    type Codes = W2;
    type Scales = Shared<4>;
    const FOLD: i32 = 1;
    const SIGNED: bool = false;
    const GGUF_BYTES: usize = 32;
    fn codes(block: &[u8], i: usize) -> [u32; 8] {
        words(i2_s::codes(block, i))
    }
    fn scales(blocks: &[Option<&[u8]>; ROWS], out: &mut [u8]) {
        for (block, out) in blocks.iter().zip(out.chunks_exact_mut(2)) {
            if block.is_some() {
                out.copy_from_slice(&half::f16::ONE.to_le_bytes());
            }
        }
    }
}

struct Q1_0;
impl Layout for Q1_0 {
    type Codes = W1;
    type Scales = Shared<4>;
    const FOLD: i32 = 1;
    const SIGNED: bool = false;
    const GGUF_BYTES: usize = 18;
    fn codes(block: &[u8], i: usize) -> [u32; 8] {
        words(q1_0::codes(block, i))
    }
    fn scales(blocks: &[Option<&[u8]>; ROWS], out: &mut [u8]) {
        halves(blocks, 0, 0, out);
    }
}

struct Q2_0;
impl Layout for Q2_0 {
    type Codes = W2;
    type Scales = Shared<2>;
    const FOLD: i32 = 1;
    const SIGNED: bool = false;
    const GGUF_BYTES: usize = 18;
    fn codes(block: &[u8], i: usize) -> [u32; 8] {
        words(q2_0::codes(block, i))
    }
    fn scales(blocks: &[Option<&[u8]>; ROWS], out: &mut [u8]) {
        halves(blocks, 0, 0, out);
    }
}

struct Tq1_0;
impl Layout for Tq1_0 {
    type Codes = W2;
    type Scales = Shared<8>;
    const FOLD: i32 = 1;
    const SIGNED: bool = false;
    const GGUF_BYTES: usize = 54;
    fn codes(block: &[u8], i: usize) -> [u32; 8] {
        words(tq1_0::codes(block, i))
    }
    fn scales(blocks: &[Option<&[u8]>; ROWS], out: &mut [u8]) {
        halves(blocks, 52, 0, out);
    }
}

/// A [`Codebook`] with codes of the given width; grids are looked up while packing.
struct Book<C, W, K>(std::marker::PhantomData<(C, W, K)>);
impl<C: Codebook, W: Codes, K: ScaleKind> Layout for Book<C, W, K> {
    type Codes = W;
    type Scales = K;
    const FOLD: i32 = 0;
    const TABLE: Option<[i8; 16]> = Some(C::TABLE);
    const SIGNED: bool = true;
    const GGUF_BYTES: usize = C::FORMAT.block_bytes;
    fn codes(block: &[u8], i: usize) -> [u32; 8] {
        words(C::codes(block, i))
    }
    fn scales(blocks: &[Option<&[u8]>; ROWS], out: &mut [u8]) {
        const { assert!(C::HALVES == K::HALVES) };
        for (r, block) in blocks.iter().enumerate() {
            let Some(block) = block else { continue };
            out[2 * r..][..2].copy_from_slice(&C::d(block));
            for i in 0..K::PER {
                let [first, second] = C::scales(block, i).map(|scale| scale as u8);
                if C::HALVES {
                    out[32 + 32 * i + r] = first;
                    out[32 + 32 * i + 16 + r] = second;
                } else {
                    out[32 + 16 * i + r] = first;
                }
            }
        }
    }
}
