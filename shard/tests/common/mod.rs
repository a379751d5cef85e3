//! What the engine tests share: fixtures, goldens, processors, distances.
#![allow(dead_code, reason = "each test file uses its part")]

pub mod table;

use std::{fs, io::Cursor, path::PathBuf, sync::Arc};

use scheduler::SessionKind;
use shard::{
    executor::{Ends, Executor, Input, Options, Output, Workspace, cpu::Shard, whole_range},
    gguf::{Gguf, Tensor, Value, Writer},
    kernels::{Cpu, Isa, threads::Pool},
    quant::Format,
    state::SessionState,
};

/// Where the models and goldens of all families are.
pub fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/families"))
}

/// The names of all fixtures; never empty.
pub fn fixtures() -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder())
        .expect("the fixtures are committed")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_suffix(".golden.json").map(str::to_owned))
        .collect();
    names.sort();
    assert!(names.len() >= 15, "only {} fixtures", names.len());
    names
}

pub fn open(name: &str) -> Arc<Gguf> {
    Arc::new(Gguf::open(folder().join(format!("{name}.gguf"))).expect(name))
}

pub fn bytes(bytes: Vec<u8>) -> Arc<Gguf> {
    Arc::new(Gguf::from_bytes(bytes).expect("a model just written"))
}

pub fn cpu(isa: Isa, threads: usize) -> Arc<Cpu> {
    Arc::new(Cpu::new(isa, Pool::new(threads, false)))
}

pub fn fast() -> Arc<Cpu> {
    cpu(Isa::detect(), 2)
}

pub fn whole(gguf: &Arc<Gguf>, cpu: Arc<Cpu>, context: usize) -> Shard {
    let range = whole_range(gguf).expect("a known family");
    let options = Options { context: Some(context) };
    Shard::load(gguf, cpu, range, Ends::BOTH, options).expect("a sound model")
}

/// What transformers computes for one prompt.
pub struct Golden {
    pub name: String,
    pub ids: Vec<u32>,
    pub context: usize,
    /// Last-position logits, f32 throughout.
    pub logits: Vec<f32>,
    /// The same with K and V rounded to f16.
    pub logits_f16kv: Vec<f32>,
    pub greedy: Vec<u32>,
    /// At each greedy step the best logit minus the second.
    pub margins: Vec<f64>,
}

/// The goldens of fixture `name`: three prompts.
pub fn goldens(name: &str) -> Vec<Golden> {
    let text = fs::read_to_string(folder().join(format!("{name}.golden.json"))).expect(name);
    let json: serde_json::Value = serde_json::from_str(&text).expect(name);
    let file = fs::read(folder().join(json["logits_file"].as_str().expect("logits_file"))).expect(name);
    let vocab = json["vocab_size"].as_u64().expect("vocab_size") as usize;
    let logits = |offset: &serde_json::Value| {
        let at = offset.as_u64().expect("offset") as usize;
        file[at..at + 4 * vocab].chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    };
    let ids = |list: &serde_json::Value| {
        list.as_array().expect("ids").iter().map(|id| id.as_u64().expect("id") as u32).collect()
    };
    let prompts = json["prompts"].as_object().expect("prompts");
    assert_eq!(prompts.len(), 3, "{name}");
    prompts
        .iter()
        .map(|(prompt, golden)| Golden {
            name: format!("{name}/{prompt}"),
            ids: ids(&golden["ids"]),
            context: golden["n_ctx"].as_u64().expect("n_ctx") as usize,
            logits: logits(&golden["logits_offset"]),
            logits_f16kv: logits(&golden["logits_f16kv_offset"]),
            greedy: ids(&golden["greedy"]),
            margins: golden["margins"]
                .as_array()
                .expect("margins")
                .iter()
                .filter_map(|m| m.as_f64())
                .collect(),
        })
        .collect()
}

/// One minus the cosine of two vectors, in f64.
pub fn one_minus_cos(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    1.0 - dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// The relative difference of the lengths of two vectors.
pub fn norm_error(a: &[f32], b: &[f32]) -> f64 {
    let norm = |a: &[f32]| a.iter().map(|a| f64::from(*a) * f64::from(*a)).sum::<f64>().sqrt();
    (norm(a) / norm(b) - 1.0).abs()
}

/// Token ids below `vocab`, pseudo-random.
pub fn tokens(count: usize, vocab: usize, seed: u64) -> Vec<u32> {
    let mut random = shard::synthetic::Random(seed);
    (0..count).map(|_| random.below(vocab) as u32).collect()
}

/// The bits of floats, so that comparisons are exact.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// A tensor of a copy of a model.
pub struct Copied {
    pub name: String,
    pub dims: Vec<u64>,
    pub format: &'static Format,
    pub bytes: Vec<u8>,
}

impl Copied {
    pub fn same(tensor: &Tensor<'_>) -> Self {
        let (name, dims) = (tensor.info.name.to_string(), tensor.info.dims.to_vec());
        Self { name, dims, format: tensor.format, bytes: tensor.bytes.to_vec() }
    }
}

/// A copy of `gguf` without its tokenizer, with other metadata values (`None` removes the key, unknown keys are added)
/// and with the tensors that `tensor` makes of its tensors.
pub fn copy<Tensors: IntoIterator<Item = Copied>>(
    gguf: &Gguf,
    metadata: &[(&str, Option<Value<'_>>)],
    mut tensor: impl FnMut(&Tensor<'_>) -> Tensors,
) -> Arc<Gguf> {
    let mut writer = Writer::new();
    for (key, value) in gguf.metadata().iter().filter(|(key, _)| !key.starts_with("tokenizer.")) {
        if !metadata.iter().any(|(changed, _)| *changed == key) {
            writer.add_value(key, value);
        }
    }
    metadata.iter().filter_map(|(key, value)| Some((key, value.clone()?))).for_each(|(key, value)| {
        writer.add_value(key, value);
    });
    let tensors: Vec<Copied> =
        gguf.tensors().iter().flat_map(|info| tensor(&gguf.require(&info.name).unwrap())).collect();
    for copied in &tensors {
        writer.add_tensor_info(&copied.name, &copied.dims, copied.format);
    }
    let mut out = writer.start(Cursor::new(Vec::new())).unwrap();
    tensors.iter().for_each(|copied| out.tensor(&copied.bytes).unwrap());
    bytes(out.finish().unwrap().into_inner())
}

pub fn kind(text: &str) -> SessionKind {
    text.parse().unwrap()
}

pub fn empty(shard: &Shard, attention: &str) -> SessionState {
    shard.new_state_with(shard.range(), kind(attention)).unwrap()
}

/// The bits of all logits of `ids` in passes of `chunk` rows.
pub fn feed(
    shard: &Shard,
    ws: &mut Workspace,
    state: &mut SessionState,
    ids: &[u32],
    chunk: usize,
) -> Vec<u32> {
    let mut all = Vec::new();
    let mut sink = |ws: &Workspace| all.extend(bits(ws.logits(0)));
    shard.feed(ws, state, Input::Tokens(ids), chunk, Output::All, &mut sink).unwrap();
    all
}
