//! Weight formats: one file and one row of [`ALL`] each.

/// One weight format: its layout and its scalar specification.
pub struct Format {
    /// The name users and reports see, e.g. `q4_k`.
    pub name: &'static str,
    /// The type number in GGUF files.
    pub ggml_type: u32,
    /// Weights per block.
    pub block_len: usize,
    /// Bytes per block.
    pub block_bytes: usize,
    /// Blocks to f32: `blocks.len() / block_bytes * block_len == out.len()`.
    pub dequantize: fn(blocks: &[u8], out: &mut [f32]),
    /// f32 to blocks, where a quantizer exists.
    pub quantize: Option<fn(weights: &[f32], blocks: &mut [u8])>,
    /// One output of a matrix product, in the exact order of profile `d1`.
    pub dot: fn(row: &[u8], x: &QuantizedRow<'_>) -> f32,
    /// Whether `dot` reads the int8 activations (`true`) or the f32 ones.
    pub integer: bool,
}

/// One token's activations as the dot products read them.
pub struct QuantizedRow<'a> {
    /// The activations themselves, `cols` values.
    pub x: &'a [f32],
    /// Rounded to int8 per 32-block, `cols` values in -127..=127.
    pub q: &'a [i8],
    /// The scale of each 32-block.
    pub d: &'a [f32],
    /// The sum of `q` over each 16 values.
    pub sums: &'a [i16],
}
