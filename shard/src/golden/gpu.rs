//! The hashes of what a GPU computes: a part of the list, which all of them must reproduce for class `d1`.

use std::sync::Arc;

use super::{Check, EXPECTED, MODELS, TINY, cuts, hash_f32, model, normals};
use crate::{
    Result,
    executor::{
        Device,
        gpu::{
            Gpu,
            ops::{self, AttentionJob, MatrixJob, NormJob, RopeJob},
        },
    },
    gguf::Gguf,
    kernels::{KvShape, Pairing},
    models::{Activation, Rope, Scaling},
    quant::{self, Format},
    synthetic::Shape,
};

/// Computes what `gpu` can of the list and compares.
///
/// # Errors
/// What the device says when it fails.
pub(super) fn check_gpu(gpu: &Arc<Gpu>) -> Result<Vec<Check>> {
    Ok(hashes(gpu)?.into_iter().map(compared).collect())
}

fn compared((name, hash): (String, String)) -> Check {
    let line = EXPECTED.lines().find_map(|line| line.strip_prefix(&name)?.strip_prefix(' '));
    Check { expected: line.unwrap_or_default().to_string(), name, hash }
}

/// One of the small hashes: a format's product, a norm or attention.
///
/// # Errors
/// What the device says when it fails.
pub(super) fn check_spot(gpu: &Gpu, number: u64) -> Result<Check> {
    let count = quant::ALL.len() as u64;
    let (name, hash) = match number % (count + 2) {
        0 => ("rms-norm".into(), rms_norm(gpu)?),
        1 => ("attention".into(), attention(gpu, None, None, false)?),
        other => {
            let format = quant::ALL[other as usize - 2];
            (format!("matmul-{}", format.name), matmul(gpu, format, other - 2)?)
        }
    };
    Ok(compared((name, hash)))
}

fn rms_norm(gpu: &Gpu) -> Result<String> {
    let (x, weight) = (normals(1, 3 * 203, 2.0), normals(2, 203, 1.0));
    let job = NormJob { x: &x, weight: &weight, bias: None, eps: 1e-5 };
    Ok(hash_f32(&ops::norm(gpu, &job)?))
}

fn hashes(gpu: &Arc<Gpu>) -> Result<Vec<(String, String)>> {
    let mut all = Vec::new();
    for (index, format) in quant::ALL.iter().enumerate() {
        all.push((format!("matmul-{}", format.name), matmul(gpu, format, index as u64)?));
    }
    all.push(("rms-norm".into(), rms_norm(gpu)?));
    let (x, weight, bias) = (normals(3, 3 * 203, 2.0), normals(4, 203, 1.0), normals(5, 203, 1.0));
    let job = NormJob { x: &x, weight: &weight, bias: Some(&bias), eps: 1e-5 };
    all.push(("layer-norm".into(), hash_f32(&ops::norm(gpu, &job)?)));
    let (gate, up) = (normals(6, 1003, 6.0), normals(7, 1003, 1.0));
    all.push(("silu".into(), hash_f32(&ops::activate(gpu, Activation::GatedSilu, &gate, Some(&up))?)));
    let (gate, up) = (normals(8, 1003, 4.0), normals(9, 1003, 1.0));
    all.push(("gelu".into(), hash_f32(&ops::activate(gpu, Activation::GatedGelu, &gate, Some(&up))?)));
    all.push(("rope-halves".into(), rope(gpu, Pairing::Halves, Scaling::None)?));
    all.push(("rope-adjacent".into(), rope(gpu, Pairing::Adjacent, Scaling::Linear { factor: 4.0 })?));
    let yarn = Scaling::Yarn { factor: 4.0, original: 1024, beta_fast: 32.0, beta_slow: 1.0 };
    all.push(("rope-yarn".into(), rope(gpu, Pairing::Halves, yarn)?));
    all.push(("attention".into(), attention(gpu, None, None, false)?));
    all.push(("attention-window".into(), attention(gpu, Some(100), None, false)?));
    all.push(("attention-softcap".into(), attention(gpu, Some(300), Some(50.0), false)?));
    all.push(("attention-sinks".into(), attention(gpu, Some(300), None, true)?));
    let (gate, up) = (normals(28, 1003, 2.0), normals(29, 1003, 1.0));
    let gated = ops::activate(gpu, Activation::GatedReluSquared, &gate, Some(&up))?;
    all.push(("relu-squared".into(), hash_f32(&ops::activate(gpu, Activation::ReluSquared, &gated, None)?)));
    let (gate, up) = (normals(26, 1003, 6.0), normals(27, 1003, 5.0));
    let clamped = ops::activate(gpu, Activation::ClampedSwiglu, &gate, Some(&up))?;
    all.push(("clamped-swiglu".into(), hash_f32(&clamped)));
    all.push(("attention-latent".into(), attention_latent(gpu)?));
    let device = Device::Gpu(gpu.clone(), None);
    for case in MODELS {
        all.push((case.name.to_string(), model(&device, case, 7)?));
    }
    all.extend(cuts(&device, 7)?);
    Ok(all)
}

fn matmul(gpu: &Gpu, format: &'static Format, seed: u64) -> Result<String> {
    let (rows, cols, n) = (37, 512, 5);
    let shape = Shape { layers: 1, hidden: cols, ..TINY };
    let gguf = Gguf::from_bytes(shape.to_bytes(format, seed)?)?;
    let tensor = gguf.require("blk.0.ffn_down.weight")?;
    let bytes = &tensor.bytes[..rows * tensor.bytes.len() / tensor.rows()];
    let x = normals(seed + 100, n * cols, 1.5);
    Ok(hash_f32(&ops::matmul(gpu, &MatrixJob { format, rows, cols, bytes }, &x)?))
}

fn rope(gpu: &Gpu, pairing: Pairing, scaling: Scaling) -> Result<String> {
    let (heads, head_dim, dims) = (3, 80, 64);
    let rope = Rope { pairing, dims, base: 500_000.0, scaling, magnitude: 1.0 };
    let frequencies = rope.frequencies(8192);
    let positions = [0usize, 1, 77, 4097, 131_071];
    let mut table = vec![0.0; positions.len() * dims];
    for (position, row) in positions.iter().zip(table.chunks_exact_mut(dims)) {
        frequencies.fill(*position, row);
    }
    let x = normals(13, positions.len() * heads * head_dim, 1.0);
    let job = RopeJob { x: &x, heads, head_dim, dims, pairing, table: &table };
    Ok(hash_f32(&ops::rope(gpu, &job)?))
}

fn attention_latent(gpu: &Gpu) -> Result<String> {
    let (shape, heads, start, n) = (KvShape { latent: Some(40), ..KvShape::new(1, 56) }, 6, 597, 3);
    let k = normals(14, (start + n) * shape.head_dim, 1.0);
    let q = normals(16, n * heads * shape.head_dim, 1.0);
    let (softcap, window, sinks) = (None, None, None);
    let job = AttentionJob { q: &q, k: &k, v: &k, shape, heads, scale: 0.3, softcap, window, sinks };
    Ok(hash_f32(&ops::attention(gpu, &job)?))
}

fn attention(gpu: &Gpu, window: Option<usize>, softcap: Option<f32>, sinks: bool) -> Result<String> {
    let (shape, heads, start, n) = (KvShape::new(2, 48), 6, 597, 3);
    let width = shape.kv_heads * shape.head_dim;
    let (k, v) = (normals(14, (start + n) * width, 1.0), normals(15, (start + n) * width, 1.0));
    let q = normals(16, n * heads * shape.head_dim, 1.0);
    let sinks = sinks.then(|| normals(25, heads, 2.0));
    let sinks = sinks.as_deref();
    let job = AttentionJob { q: &q, k: &k, v: &v, shape, heads, scale: 0.3, softcap, window, sinks };
    Ok(hash_f32(&ops::attention(gpu, &job)?))
}
