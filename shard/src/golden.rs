//! Hashes that every machine must reproduce: what "the same bits everywhere" means, in one file.
//!
//! [`hashes`] computes small operations and whole random models with a given instruction set, thread count and chunk
//! size, and hashes the bits of the results. None of the three may matter, so one list of expected hashes
//! (`golden.txt`, written by `cargo run --release -p shoal-shard --example golden_hash`) holds for all machines. A change
//! of the list is a change of numeric profile `d1`: machines of before and after are no longer comparable.
//!
//! Inputs come from a seeded generator with exact arithmetic, so they are the same bits everywhere too.

#[cfg(feature = "gpu")]
mod gpu;

use std::sync::Arc;

use scheduler::{
    CacheType::{self, F16},
    LayerRange,
};

use crate::{
    Error, Result,
    executor::{
        self, Capacity, Chain, Device, Ends, Executor, Input, Item, Options, Output, Workspace, fingerprint,
        whole_range,
    },
    gguf::Gguf,
    kernels::{
        Activations, AttentionJob, Cpu, DeltaInputs, DeltaJob, DeltaShape, Isa, KvShape, Mamba2Shape, Matrix,
        Pairing, QUARTER, Target, attention, delta, new_quarter, threads::Pool,
    },
    models::{Rope, Scaling},
    quant::{self, Format},
    round::{Rounding, Rule},
    sample::{Sampler, SamplingParams},
    synthetic::{Family, Random, Shape},
};

static EXPECTED: &str = include_str!("golden.txt");

/// One hash and what it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What was computed.
    pub name: String,
    /// The first 16 hexadecimal digits of the BLAKE3 hash of the result's bits.
    pub hash: String,
    /// The hash of profile `d1`; empty for a name the list does not have.
    pub expected: String,
}

impl Check {
    /// Whether this machine agrees.
    pub fn passed(&self) -> bool {
        self.hash == self.expected
    }
}

/// Computes everything with `isa` on two threads and compares with the list.
pub fn check(isa: Isa) -> Result<Vec<Check>> {
    let expected = |name: &str| {
        let line = EXPECTED.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_default().to_string()
    };
    let cpu = Arc::new(Cpu::new(isa, Pool::new(2, false)));
    let found = hashes(&cpu, 7)?;
    Ok(found.into_iter().map(|(name, hash)| Check { expected: expected(&name), name, hash }).collect())
}

/// As [`check`], what `device` computes of the list.
///
/// # Errors
/// Those of the device; [`Error::Invalid`] for one that computes nothing of profile `d1`.
pub fn check_device(device: &Device) -> Result<Vec<Check>> {
    match device {
        Device::Cpu(cpu) => check(cpu.isa()),
        #[cfg(feature = "gpu")]
        Device::Gpu(device, _) => gpu::check_gpu(device),
        _ => Err(Error::invalid("this device is of class approx by its nature: it has no self-test")),
    }
}

/// Hash `number` of those that `device` computes in a moment, around and around; `None` for one that is checked once and then
/// believed, as processors are.
pub fn check_spot(device: &Device, number: u64) -> Option<Result<Check>> {
    match device {
        #[cfg(feature = "gpu")]
        Device::Gpu(device, _) => Some(gpu::check_spot(device, number)),
        _ => {
            let _ = number;
            None
        }
    }
}

/// (name, hash) of every operation and model; `chunk` rows per pass through a model.
pub fn hashes(cpu: &Arc<Cpu>, chunk: usize) -> Result<Vec<(String, String)>> {
    let device = Device::Cpu(cpu.clone());
    let mut all = Vec::new();
    for (index, format) in quant::ALL.iter().enumerate() {
        all.push((format!("matmul-{}", format.name), matmul(cpu, format, index as u64)?));
    }
    for (name, run) in OPERATIONS {
        all.push((name.to_string(), run(cpu)));
    }
    for case in MODELS {
        all.push((case.name.to_string(), model(&device, case, chunk)?));
    }
    all.extend(cuts(&device, chunk)?);
    all.push(("sampler".into(), sampler()?));
    Ok(all)
}

/// The same hash twice, because cuts must not matter; and of a session that rounds, in one run and in three, twice the same again.
fn cuts(device: &Device, chunk: usize) -> Result<[(String, String); 4]> {
    const WHOLE: &[(u32, u32)] = &[(0, 3)];
    const CUT: &[(u32, u32)] = &[(0, 1), (1, 2), (2, 3)];
    Ok([
        ("model-whole".into(), chain(device, WHOLE, chunk)?),
        ("model-cut".into(), chain(device, CUT, chunk)?),
        ("model-rounded".into(), rounded(device, WHOLE, chunk)?),
        ("model-rounded-cut".into(), rounded(device, CUT, chunk)?),
    ])
}

fn hash_f32(values: &[f32]) -> String {
    let mut hasher = blake3::Hasher::new();
    for value in values {
        hasher.update(&value.to_bits().to_le_bytes());
    }
    hasher.finalize().to_hex()[..16].to_string()
}

fn normals(seed: u64, count: usize, size: f32) -> Vec<f32> {
    let mut random = Random(seed);
    (0..count).map(|_| random.normal() * size).collect()
}

/// 37 rows (two full panels and a tail) times five activations of 512 values.
fn matmul(cpu: &Arc<Cpu>, format: &'static Format, seed: u64) -> Result<String> {
    let (rows, cols, n) = (37, 512, 5);
    let shape = Shape { layers: 1, hidden: cols, ..TINY };
    let gguf = Gguf::from_bytes(shape.to_bytes(format, seed)?)?;
    let tensor = gguf.require("blk.0.ffn_down.weight")?;
    let row_bytes = tensor.bytes.len() / tensor.rows();
    let bytes = &tensor.bytes[..rows * row_bytes * cols / tensor.cols()];
    let matrix = Matrix::pack(cpu, format, rows, cols, bytes)?;
    let x = normals(seed + 100, n * cols, 1.5);
    let mut out = vec![0.0; n * rows];
    let mut scratch = Activations::new();
    cpu.matmul(&x, n, &mut scratch, &mut [Target { matrix: &matrix, out: &mut out }]);
    Ok(hash_f32(&out))
}

type Operation = (&'static str, fn(&Arc<Cpu>) -> String);

/// Widths that are no multiple of 16, so that tails are seen.
const OPERATIONS: &[Operation] = &[
    ("rms-norm", |cpu| {
        let (x, weight) = (normals(1, 3 * 203, 2.0), normals(2, 203, 1.0));
        let mut out = vec![0.0; x.len()];
        cpu.rms_norm(&x, 203, Some(&weight), 1e-5, &mut out);
        hash_f32(&out)
    }),
    ("layer-norm", |cpu| {
        let (x, weight, bias) = (normals(3, 3 * 203, 2.0), normals(4, 203, 1.0), normals(5, 203, 1.0));
        let mut out = vec![0.0; x.len()];
        cpu.layer_norm(&x, 203, Some(&weight), Some(&bias), 1e-5, &mut out);
        hash_f32(&out)
    }),
    ("silu", |cpu| {
        let (mut gate, up) = (normals(6, 1003, 6.0), normals(7, 1003, 1.0));
        cpu.silu_mul(&mut gate, &up);
        hash_f32(&gate)
    }),
    ("gelu", |cpu| {
        let (mut gate, up) = (normals(8, 1003, 4.0), normals(9, 1003, 1.0));
        cpu.gelu_mul(&mut gate, &up);
        hash_f32(&gate)
    }),
    ("sigmoid", |cpu| {
        let mut x = normals(10, 1003, 10.0);
        cpu.sigmoid(&mut x);
        hash_f32(&x)
    }),
    ("softcap", |cpu| {
        let mut x = normals(11, 1003, 40.0);
        cpu.softcap(&mut x, 30.0);
        hash_f32(&x)
    }),
    ("softmax", |cpu| {
        let mut x = normals(12, 203, 8.0);
        cpu.softmax(&mut x);
        hash_f32(&x)
    }),
    ("rope-halves", |cpu| rope(cpu, Pairing::Halves, Scaling::None)),
    ("rope-adjacent", |cpu| rope(cpu, Pairing::Adjacent, Scaling::Linear { factor: 4.0 })),
    ("rope-yarn", |cpu| {
        let scaling = Scaling::Yarn { factor: 4.0, original: 1024, beta_fast: 32.0, beta_slow: 1.0 };
        rope(cpu, Pairing::Halves, scaling)
    }),
    ("round-q8", |_| round(Rule::Q8)),
    ("round-c8", |_| round(Rule::C8)),
    ("round-c10", |_| round(Rule::C10)),
    ("round-c7", |_| round(Rule::C7)),
    ("round-bf16", |_| round(Rule::Bf16)),
    ("round-f16", |_| round(Rule::F16)),
    ("attention", |cpu| attention(cpu, F16, None, None, false)),
    ("attention-latent", attention_latent),
    ("attention-window", |cpu| attention(cpu, F16, Some(100), None, false)),
    ("attention-softcap", |cpu| attention(cpu, F16, Some(300), Some(50.0), false)),
    ("attention-sinks", |cpu| attention(cpu, F16, Some(300), None, true)),
    ("attention-q8", |cpu| attention(cpu, CacheType::Q8, None, None, false)),
    ("attention-q4", |cpu| attention(cpu, CacheType::Q4, Some(300), None, true)),
    ("clamped-swiglu", |cpu| {
        let (mut gate, up) = (normals(26, 1003, 6.0), normals(27, 1003, 5.0));
        cpu.clamped_swiglu(&mut gate, &up);
        hash_f32(&gate)
    }),
    ("relu-squared", |cpu| {
        let (mut gate, up) = (normals(28, 1003, 2.0), normals(29, 1003, 1.0));
        cpu.relu_squared_mul(&mut gate, &up);
        cpu.relu_squared(&mut gate);
        hash_f32(&gate)
    }),
    ("delta-net", delta_net),
    ("delta-net-by-channel", delta_net_by_channel),
];

fn round(rule: Rule) -> String {
    let mut x: Vec<f32> =
        (0..8u64).flat_map(|i| normals(17 + i, 96, [1e-30, 1e-3, 1.0, 1e9][i as usize % 4])).collect();
    rule.apply(&mut x);
    hash_f32(&x)
}

fn rope(cpu: &Arc<Cpu>, pairing: Pairing, scaling: Scaling) -> String {
    let (heads, head_dim, dims) = (3, 80, 64);
    let rope = Rope { pairing, dims, base: 500_000.0, scaling, magnitude: 1.0 };
    let frequencies = rope.frequencies(8192);
    let positions = [0usize, 1, 77, 4097, 131_071];
    let mut table = vec![0.0; positions.len() * dims];
    for (position, row) in positions.iter().zip(table.chunks_exact_mut(dims)) {
        frequencies.fill(*position, row);
    }
    let mut x = normals(13, positions.len() * heads * head_dim, 1.0);
    cpu.rope(&mut x, heads * head_dim, heads, head_dim, dims, pairing, &table);
    hash_f32(&x)
}

/// Seven rows from a state on: convolution, gates, recurrence, norm; the results and the state.
fn delta_net(cpu: &Arc<Cpu>) -> String {
    delta_net_of(cpu, DeltaShape { key_heads: 2, tiled: true, by_channel: false, ..DELTA })
}

/// The same with a decay for every channel of a key.
fn delta_net_by_channel(cpu: &Arc<Cpu>) -> String {
    delta_net_of(cpu, DELTA)
}

const DELTA: DeltaShape = DeltaShape {
    key_heads: 6,
    value_heads: 6,
    key_dim: 40,
    value_dim: 80,
    kernel: 4,
    tiled: false,
    by_channel: true,
};

fn delta_net_of(cpu: &Arc<Cpu>, shape: DeltaShape) -> String {
    let (n, heads, width) = (7, shape.value_heads, shape.value_width());
    let projected = normals(18, n * shape.channels(), 1.0);
    let taps = normals(19, shape.kernel * shape.channels(), 0.7);
    let mut all = normals(20, shape.state_len(), 0.3);
    let (state, columns) = all.split_at_mut(shape.matrices_len());
    let mut inputs = vec![0.0; projected.len()];
    let before = &*columns;
    DeltaInputs { shape, projected: &projected, before, taps: &taps, out: &mut inputs }.compute(cpu);
    let decays = shape.decays();
    let (mut alpha, mut beta) = (normals(21, n * decays, 2.0), normals(22, n * heads, 2.0));
    let a: Vec<f32> = normals(23, decays, 1.0).into_iter().map(|a| -a.abs()).collect();
    delta::decays(cpu, &mut alpha, &normals(24, decays, 1.0), &a);
    cpu.sigmoid(&mut beta);
    let mut out = vec![0.0; n * width];
    DeltaJob {
        shape,
        inputs: &inputs,
        z: &normals(25, n * width, 1.5),
        decay: &alpha,
        strength: &beta,
        before: None,
        state,
        norm: &normals(26, shape.value_dim, 1.0),
        eps: 1e-6,
        out: &mut out,
    }
    .compute(cpu);
    out.extend_from_slice(state);
    hash_f32(&out)
}

/// The same rows with one key for six heads, whose end is the value.
fn attention_latent(cpu: &Arc<Cpu>) -> String {
    let (shape, heads, start, n) = (KvShape { latent: Some(40), ..KvShape::new(1, 56) }, 6, 597, 3);
    let mut pages: Vec<_> =
        (0..600usize.div_ceil(QUARTER)).map(|quarter| new_quarter(shape, quarter, 0)).collect();
    let k = normals(14, (start + n) * shape.head_dim, 1.0);
    attention::store_kv(cpu, &mut pages, shape, &k, &[], 0);
    let q = normals(16, n * heads * shape.head_dim, 1.0);
    let mut out = vec![0.0; n * heads * shape.value_dim()];
    let (pages, out_rows) = (&pages[..], &mut out[..]);
    let job = AttentionJob {
        q: &q,
        pages,
        shape,
        start,
        n,
        heads,
        scale: 0.3,
        softcap: None,
        window: None,
        ahead: 0,
        far: None,
        sinks: None,
        out: out_rows,
    };
    attention::attend(cpu, &mut [job]);
    hash_f32(&out)
}

/// Three rows at positions 597 to 599: two whole pages and a partial one behind them, three query heads per key head.
fn attention(
    cpu: &Arc<Cpu>,
    cache: CacheType,
    window: Option<usize>,
    softcap: Option<f32>,
    sinks: bool,
) -> String {
    let (shape, heads, start, n) = (KvShape { cache, ..KvShape::new(2, 48) }, 6, 597, 3);
    let width = shape.kv_heads * shape.head_dim;
    let mut pages: Vec<_> =
        (0..600usize.div_ceil(QUARTER)).map(|quarter| new_quarter(shape, quarter, 0)).collect();
    let (k, v) = (normals(14, (start + n) * width, 1.0), normals(15, (start + n) * width, 1.0));
    attention::store_kv(cpu, &mut pages, shape, &k, &v, 0);
    let q = normals(16, n * heads * shape.head_dim, 1.0);
    let sinks = sinks.then(|| normals(25, heads, 2.0));
    let mut out = vec![0.0; q.len()];
    let job = AttentionJob {
        q: &q,
        pages: &pages,
        shape,
        start,
        n,
        heads,
        scale: 0.3,
        softcap,
        window,
        ahead: 0,
        far: None,
        sinks: sinks.as_deref(),
        out: &mut out,
    };
    attention::attend(cpu, &mut [job]);
    hash_f32(&out)
}

const TINY: Shape = Shape {
    family: Family::Llama,
    layers: 3,
    hidden: 256,
    heads: 4,
    kv_heads: 2,
    head_dim: 64,
    feed_forward: 512,
    vocab: 320,
    context: 512,
    tied: false,
    experts: None,
};

/// A whole model: its family, weight format, experts (count, used per token), and how many tokens it is fed.
struct Case {
    name: &'static str,
    family: Family,
    format: &'static str,
    experts: Option<(usize, usize)>,
    tokens: usize,
}

const PLAIN: Case = Case { name: "", family: Family::Llama, format: "", experts: None, tokens: 40 };

const MODELS: &[Case] = &[
    Case { name: "model-q8_0", format: "q8_0", tokens: 96, ..PLAIN },
    Case { name: "model-q4_k", format: "q4_k", ..PLAIN },
    Case { name: "model-f32", format: "f32", ..PLAIN },
    Case { name: "model-experts-q4_0", format: "q4_0", experts: Some((6, 2)), ..PLAIN },
    // Delta nets, gated attention, and an expert that every token visits.
    Case {
        name: "model-delta-net-q8_0",
        family: Family::Qwen3Next {
            interval: 3,
            delta: DeltaShape {
                key_heads: 2,
                value_heads: 4,
                key_dim: 32,
                value_dim: 48,
                kernel: 4,
                tiled: false,
                by_channel: false,
            },
        },
        format: "q8_0",
        experts: Some((6, 2)),
        ..PLAIN
    },
    Case {
        name: "model-mamba2-q8_0",
        family: Family::GraniteHybrid {
            interval: 3,
            mamba: Mamba2Shape { heads: 4, head_dim: 48, state: 32, groups: 2, kernel: 4 },
        },
        format: "q8_0",
        ..PLAIN
    },
];

fn model(device: &Device, case: &Case, chunk: usize) -> Result<String> {
    let format = quant::by_name(case.format).ok_or_else(|| Error::unsupported(case.format))?;
    let (shape, tokens) = (Shape { family: case.family, experts: case.experts, ..TINY }, case.tokens);
    let gguf = Arc::new(Gguf::from_bytes(shape.to_bytes(format, 77)?)?);
    let shard = whole(device, &gguf)?;
    let mut random = Random(99);
    let ids: Vec<u32> = (0..tokens).map(|_| random.below(shape.vocab) as u32).collect();
    let chunk = if chunk == 0 { tokens } else { chunk };
    Ok(fingerprint(&*shard, &ids, chunk)?.to_hex()[..16].to_string())
}

fn whole(device: &Device, gguf: &Arc<Gguf>) -> Result<Box<dyn Executor>> {
    executor::load(device, gguf, whole_range(gguf)?, Ends::BOTH, Options::default())
}

/// The logits after a prompt and after each of four more tokens, through one shard per range of layers.
fn chain(device: &Device, ranges: &[(u32, u32)], chunk: usize) -> Result<String> {
    let format = quant::by_name("q6_k").ok_or_else(|| Error::unsupported("q6_k"))?;
    let gguf = Arc::new(Gguf::from_bytes(TINY.to_bytes(format, 78)?)?);
    let ranges: Vec<LayerRange> = ranges.iter().filter_map(|&(a, b)| LayerRange::new(a, b)).collect();
    let chunk = if chunk == 0 { 24 } else { chunk };
    let mut chain = Chain::load(device, &gguf, &ranges, Options::default(), chunk)?;
    let mut random = Random(98);
    let ids: Vec<u32> = (0..28).map(|_| random.below(TINY.vocab) as u32).collect();
    let mut all = chain.forward(&ids[..24])?.to_vec();
    for id in &ids[24..] {
        all.extend_from_slice(chain.forward(&[*id])?);
    }
    Ok(hash_f32(&all))
}

/// As [`chain`], through one shard run range by range, with activations rounded before layers 1 and 2.
fn rounded(device: &Device, ranges: &[(u32, u32)], chunk: usize) -> Result<String> {
    let format = quant::by_name("q6_k").ok_or_else(|| Error::unsupported("q6_k"))?;
    let gguf = Arc::new(Gguf::from_bytes(TINY.to_bytes(format, 78)?)?);
    let shard = whole(device, &gguf)?;
    let chunk = if chunk == 0 { 28 } else { chunk };
    let mut ws = Workspace::new(&*shard, Capacity { rows: chunk, items: 1, logit_rows: chunk })?;
    let mut parts = ranges
        .iter()
        .filter_map(|&(a, b)| LayerRange::new(a, b))
        .map(|part| Ok((part, shard.new_state_of(part)?)))
        .collect::<Result<Vec<_>>>()?;
    let rounding = Rounding { boundaries: vec![1, 2], ..Rounding::NONE };
    let mut random = Random(97);
    let ids: Vec<u32> = (0..28).map(|_| random.below(TINY.vocab) as u32).collect();
    let mut all = Vec::new();
    for ids in ids.chunks(chunk) {
        let mut rows: Vec<f32> = Vec::new();
        for (part, state) in &mut parts {
            let input = if part.start() == 0 { Input::Tokens(ids) } else { Input::Activations(&rows) };
            shard.run(&mut ws, *part, &rounding, &mut [Item { state, input, output: Output::All }])?;
            rows = ws.activations(0).to_vec();
        }
        all.extend_from_slice(ws.logits(0));
    }
    Ok(hash_f32(&all))
}

/// The ids that a thousand seeded draws give.
fn sampler() -> Result<String> {
    let params = SamplingParams {
        temperature: 0.8,
        top_k: 100,
        top_p: 0.95,
        min_p: 0.01,
        typical_p: 0.98,
        repetition_penalty: 1.1,
        ..SamplingParams::default()
    };
    let mut sampler = Sampler::new(params, 5, 300)?;
    let mut history = Vec::new();
    let mut hasher = blake3::Hasher::new();
    for position in 0..1000u64 {
        let mut logits = normals(1000 + position % 50, 300, 3.0);
        let id = sampler.sample(&mut logits, &history, position)?.id;
        history.push(id);
        hasher.update(&id.to_le_bytes());
    }
    Ok(hasher.finalize().to_hex()[..16].to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instruction_set_reproduces_the_list() {
        for isa in Isa::available() {
            for check in check(isa).unwrap() {
                assert!(check.passed(), "{}: {check:?}", isa.name());
            }
        }
    }

    #[test]
    fn threads_and_chunks_do_not_matter() {
        let of = |threads, chunk| {
            hashes(&Arc::new(Cpu::new(Isa::detect(), Pool::new(threads, false))), chunk).unwrap()
        };
        let one = of(1, 0);
        assert_eq!(one, of(2, 1));
        assert_eq!(one, of(3, 32));
    }

    #[test]
    fn the_list_names_what_is_computed_and_nothing_else() {
        let cpu = Arc::new(Cpu::new(Isa::detect(), Pool::new(1, false)));
        let computed: Vec<String> = hashes(&cpu, 0).unwrap().into_iter().map(|(name, _)| name).collect();
        let listed: Vec<&str> = EXPECTED.lines().filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(computed, listed);
    }
}
