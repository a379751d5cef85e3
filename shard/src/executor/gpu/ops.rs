//! Single operations on a device, for the self-test and the tests: each as the kernel of a pass computes it.

use super::{
    device::{Gpu, dispatch, words},
    matrices::{Beside, upload},
    source::{Attending, Curve, Kernel, Places, ROWS},
};
use crate::{
    Error, Result,
    kernels::{KvShape, PAGE, Pairing},
    models::Activation,
    quant::Format,
};

/// A norm of rows.
pub struct NormJob<'a> {
    /// `[rows][weight.len()]`.
    pub x: &'a [f32],
    /// Factors.
    pub weight: &'a [f32],
    /// What is added; then the mean is taken away first.
    pub bias: Option<&'a [f32]>,
    /// Added to the mean square.
    pub eps: f32,
}

/// A row rounded to int8 per 32 values, as the products read it.
#[derive(Clone, Debug, PartialEq)]
pub struct RoundedRows {
    /// The rows.
    pub x: Vec<f32>,
    /// Int8 values, four a word.
    pub q: Vec<u32>,
    /// The scale of each 32.
    pub d: Vec<f32>,
    /// The sum of each 16.
    pub sums: Vec<i32>,
}

/// A matrix of `rows` times `cols` weights in `format`.
pub struct MatrixJob<'a> {
    /// How the weights are stored.
    pub format: &'static Format,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// The weights, row by row.
    pub bytes: &'a [u8],
}

/// A rotation of `heads` heads of `head_dim` values, `dims` of which turn.
pub struct RopeJob<'a> {
    /// `[rows][heads * head_dim]`.
    pub x: &'a [f32],
    /// Heads of a row.
    pub heads: usize,
    /// Values of a head.
    pub head_dim: usize,
    /// Leading values of a head that turn.
    pub dims: usize,
    /// Which two turn together.
    pub pairing: Pairing,
    /// (cos, sin) pairs, `[rows][dims]`.
    pub table: &'a [f32],
}

/// Attention of the last rows of a session over all of its positions.
pub struct AttentionJob<'a> {
    /// Queries of the last rows, `[n][heads * head_dim]`.
    pub q: &'a [f32],
    /// Keys of all positions, `[positions][kv_heads * head_dim]`.
    pub k: &'a [f32],
    /// Values, the same; of no account where they are a part of the keys.
    pub v: &'a [f32],
    /// Heads of keys and values.
    pub shape: KvShape,
    /// Query heads.
    pub heads: usize,
    /// Factor of q.k.
    pub scale: f32,
    /// Positions that a row sees.
    pub window: Option<usize>,
    /// Scores become `tanh(s / c) * c`.
    pub softcap: Option<f32>,
    /// A logit without a value for each query head.
    pub sinks: Option<&'a [f32]>,
}

/// Runs one dispatch and gives back the first `bytes` of some of its buffers.
fn run(
    gpu: &Gpu,
    kernel: Kernel,
    buffers: &[&wgpu::Buffer],
    groups: [u32; 2],
    back: &[(&wgpu::Buffer, usize)],
) -> Result<Vec<Vec<u32>>> {
    let kernel = gpu.kernel(kernel);
    let bind = gpu.bind(&kernel, buffers);
    let mut encoder = gpu.encoder();
    dispatch(&mut encoder.begin_compute_pass(&Default::default()), &kernel, &bind, groups);
    let ranges: Vec<_> = back.iter().map(|(buffer, bytes)| (*buffer, 0..*bytes)).collect();
    let all = gpu.finish(encoder, &ranges)?;
    let mut rest = &all[..];
    let split = |(_, bytes): &(&wgpu::Buffer, usize)| {
        let (own, after) = rest.split_at(*bytes);
        rest = after;
        words(own)
    };
    Ok(back.iter().map(split).collect())
}

fn floats(words: Vec<u32>) -> Vec<f32> {
    words.into_iter().map(f32::from_bits).collect()
}

/// Rows of `cols` made by `kernel` from `src`.
fn rows(
    gpu: &Gpu,
    kernel: Kernel,
    params: [u32; 4],
    (src, weight): (&[f32], &[f32]),
    n: usize,
) -> Result<RoundedRows> {
    let cols = params[0] as usize;
    let (info, params) = (gpu.upload("pass", &[n as u32, 1, 1, 0]), gpu.upload("params", &params));
    let (src, weight) = (gpu.upload_floats("source", src), gpu.upload_floats("weight", weight));
    let sizes = [4 * n * cols, n * cols / 4 * 4, n * cols / 32 * 4, n * cols / 16 * 4];
    let out = sizes.map(|bytes| gpu.buffer("row", bytes));
    let buffers = [&info, &params, &src, &weight, &out[0], &out[1], &out[2], &out[3]];
    let back: Vec<_> = out.iter().zip(sizes).collect();
    let mut back = run(gpu, kernel, &buffers, [n as u32, 1], &back)?.into_iter();
    let mut next = || back.next().unwrap_or_default();
    let (x, q, d) = (floats(next()), next(), floats(next()));
    Ok(RoundedRows { x, q, d, sums: next().into_iter().map(|sum| sum as i32).collect() })
}

/// Rows of `cols` rounded as in front of a matrix.
///
/// # Errors
/// [`Error::Invalid`] when the device fails, as in all functions here.
pub fn round(gpu: &Gpu, x: &[f32], cols: usize) -> Result<RoundedRows> {
    rows(gpu, Kernel::Copy, [cols as u32, 0, 0, 0], (x, &[]), x.len() / cols)
}

/// Norms of rows; see [`crate::kernels::Cpu::rms_norm`] and [`crate::kernels::Cpu::layer_norm`].
pub fn norm(gpu: &Gpu, job: &NormJob<'_>) -> Result<Vec<f32>> {
    let (cols, has_bias) = (job.weight.len(), job.bias.is_some());
    let weight = [job.weight, job.bias.unwrap_or_default()].concat();
    let params = [cols as u32, job.eps.to_bits(), u32::from(has_bias), 0];
    let kernel = Kernel::Norm { center: has_bias };
    Ok(rows(gpu, kernel, params, (job.x, &weight), job.x.len() / cols)?.x)
}

/// `activation(gate) * up`, or of `gate` alone.
pub fn activate(gpu: &Gpu, activation: Activation, gate: &[f32], up: Option<&[f32]>) -> Result<Vec<f32>> {
    let curve = Curve::of(activation).ok_or_else(|| Error::unsupported("this activation on this device"))?;
    let kernel = if up.is_some() { Kernel::Gate(curve) } else { Kernel::Curve(curve) };
    let both = [gate, up.unwrap_or_default()].concat();
    Ok(rows(gpu, kernel, [gate.len() as u32, 0, 0, 0], (&both, &[]), 1)?.x)
}

/// Matrix times the rows `x`, `[rows of x][rows of the matrix]`.
///
/// # Errors
/// [`Error::Unsupported`] for a format that the device does not decode.
pub fn matmul(gpu: &Gpu, job: &MatrixJob<'_>, x: &[f32]) -> Result<Vec<f32>> {
    let n = x.len() / job.cols;
    let matrix: Vec<&[u8]> = job.bytes.chunks_exact(job.bytes.len() / job.rows).collect();
    let mut parts = Vec::new();
    upload(gpu, (job.format, job.cols, &matrix), (Beside::NONE, Places::Rows), 0, &mut parts)?;
    let rounded = match job.format.integer {
        true => round(gpu, x, job.cols)?,
        false => RoundedRows { q: Vec::new(), d: Vec::new(), sums: Vec::new(), x: Vec::new() },
    };
    let (info, nothing) = (gpu.upload("pass", &[n as u32, 1, 1, 0]), gpu.buffer("nothing", 16));
    let codes = match job.format.integer {
        true => gpu.upload("codes", &rounded.q),
        false => gpu.upload_floats("row", x),
    };
    let scales = gpu.upload_floats("scales", &rounded.d);
    let sums = gpu.upload("sums", &rounded.sums.iter().map(|&sum| sum as u32).collect::<Vec<_>>());
    let out = gpu.buffer("out", 4 * n * job.rows);
    let mut result = Vec::new();
    for part in &parts {
        let [rows, cols, words] = [part.rows, part.cols, part.row_words].map(|size| size as u32);
        let params = gpu
            .upload("params", &[rows, cols, words, job.rows as u32, part.first as u32, 0, 0, 0, 0, 0, 0, 0]);
        let buffers = [&info, &params, &part.matrix, &codes, &scales, &sums, &nothing, &out];
        let at_once = if n == 1 { 1 } else { ROWS };
        let (ggml_type, places) = (job.format.ggml_type, Places::Rows);
        let kernel = Kernel::Matmul { ggml_type, rows: at_once, places };
        let groups = [rows.div_ceil(64), (n as u32).div_ceil(at_once)];
        result = run(gpu, kernel, &buffers, groups, &[(&out, 4 * n * job.rows)])?;
    }
    Ok(floats(result.pop().unwrap_or_default()))
}

/// Rotated rows; see [`crate::kernels::Cpu::rope`].
pub fn rope(gpu: &Gpu, job: &RopeJob<'_>) -> Result<Vec<f32>> {
    let n = job.x.len() / (job.heads * job.head_dim);
    let mut info = vec![n as u32, 1, 1, 0];
    info.resize(4 + 2 * n + 1, 0);
    let apart = u32::from(job.pairing == Pairing::Halves);
    let [heads, dim, dims] = [job.heads, job.head_dim, job.dims].map(|size| size as u32);
    let (info, params) =
        (gpu.upload("pass", &info), gpu.upload("params", &[heads, 0, dim, 0, dims, apart, 0, 0, 0, 0, 0, 0]));
    let (x, table) = (gpu.upload_floats("x", job.x), gpu.upload_floats("table", job.table));
    let [nothing, pages] = [gpu.buffer("nothing", 16), gpu.buffer("pages", 16)];
    let out = gpu.buffer("out", 4 * job.x.len());
    let buffers = [&info, &params, &x, &table, &nothing, &out, &pages];
    let back = run(gpu, Kernel::Heads, &buffers, [heads, n as u32], &[(&out, 4 * job.x.len())])?;
    Ok(floats(back.into_iter().flatten().collect()))
}

/// Keys and values are stored as a pass stores them, then attention of the last rows; see [`crate::kernels::attention`].
pub fn attention(gpu: &Gpu, job: &AttentionJob<'_>) -> Result<Vec<f32>> {
    let KvShape { kv_heads, head_dim, .. } = job.shape;
    let (width, q_width) = (kv_heads * head_dim, job.heads * head_dim);
    let (positions, n) = (job.k.len() / width, job.q.len() / q_width);
    let pages = positions.div_ceil(PAGE);
    let info = |first: usize| {
        let mut info = vec![(positions - first) as u32, pages as u32, 1, 0];
        info.extend((first..positions).flat_map(|at| [at as u32, 0]));
        // Backwards, so that the table is seen to be used.
        info.extend((0..pages as u32).rev());
        gpu.upload("pass", &info)
    };
    let [heads, key_heads, dim] = [job.heads, kv_heads, head_dim].map(|size| size as u32);
    let arena = gpu.buffer("pages", pages * PAGE * 2 * width * 2);
    let nothing = gpu.buffer("nothing", 16);
    let all: Vec<f32> = (0..positions)
        .flat_map(|at| [&job.k[at * width..][..width], &job.v[at * width..][..width]].concat())
        .collect();
    let (all, stored) = (
        gpu.upload_floats("kv", &all),
        gpu.upload("params", &[0, key_heads, dim, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
    );
    let (everything, q) = (info(0), gpu.upload_floats("q", job.q));
    let buffers = [&everything, &stored, &all, &nothing, &nothing, &gpu.buffer("none", 16), &arena];
    run(gpu, Kernel::Heads, &buffers, [2 * key_heads, positions as u32], &[])?;
    let attending = Attending {
        heads: job.heads,
        shape: job.shape,
        arena: 0,
        words: key_heads * dim,
        window: job.window,
        scale: job.scale,
        softcap: job.softcap,
        has_sinks: job.sinks.is_some(),
    };
    let params = gpu.upload("params", &attending.params());
    let sinks = gpu.upload_floats("sinks", job.sinks.unwrap_or(&[0.0]));
    let bytes = 4 * n * job.heads * job.shape.value_dim();
    let (last, out) = (info(positions - n), gpu.buffer("out", bytes));
    let buffers = [&last, &params, &q, &arena, &sinks, &out];
    let back = run(gpu, attending.kernel(), &buffers, [heads, n as u32], &[(&out, bytes)])?;
    Ok(floats(back.into_iter().flatten().collect()))
}
