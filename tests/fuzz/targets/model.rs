//! A sound model, edited: other numbers and types in its metadata, other names, sizes, formats and places of tensors, other
//! weights. What is refused is refused without a panic; what loads computes finite logits or says why not, and the same
//! ones when it is cut in two.
//!
//! The first byte chooses a family, then edits follow, each a byte that says which and what it needs.
#![no_main]

use std::{
    path::PathBuf,
    sync::{Arc, LazyLock},
};

use arbitrary::Unstructured;
use libfuzzer_sys::fuzz_target;
use scheduler::LayerRange;
use shard::{
    executor::{Capacity, Ends, Executor, Input, Item, Options, Output, Workspace, cpu::Shard},
    gguf::{Gguf, Kind, Value},
    kernels::{Cpu, Isa, threads::Pool},
    models::Blueprint,
};

/// Families whose fixtures are small, one for each way in which layers differ.
const FAMILIES: [&str; 8] =
    ["llama", "gemma3", "phi3", "qwen2moe", "gpt_oss", "glm4moe", "qwen3next", "bitnet"];
/// Numbers at which counts and sizes change their meaning.
const EDGES: [u64; 16] = [0, 1, 2, 3, 4, 7, 8, 16, 31, 32, 64, 128, 256, 1 << 20, u32::MAX as u64, u64::MAX];
/// Edits of one input; more only hide each other.
const MAX_EDITS: usize = 8;
/// Bytes from the start of the tensors' data to which files are aligned.
const ALIGNMENT: usize = 32;
/// GGUF's number of a string, and of a list.
const STRING: u32 = 8;
const ARRAY: u32 = 9;

/// A file in pieces.
#[derive(Clone)]
struct Parts {
    /// Key, type, value.
    pairs: Vec<(String, u32, Vec<u8>)>,
    tensors: Vec<Info>,
    data: Vec<u8>,
}

#[derive(Clone)]
struct Info {
    name: String,
    dims: Vec<u64>,
    kind: u32,
    offset: u64,
}

static BASES: LazyLock<Vec<Parts>> = LazyLock::new(|| FAMILIES.iter().map(|name| base(name)).collect());
static CPU: LazyLock<Arc<Cpu>> = LazyLock::new(|| Arc::new(Cpu::new(Isa::detect(), Pool::new(1, false))));

/// The pieces of a fixture, without its tokenizer.
fn base(name: &str) -> Parts {
    let path =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../data/families").join(format!("{name}.gguf"));
    let gguf = Gguf::open(&path).expect("the fixtures are committed");
    let bytes = std::fs::read(path).expect("as above");
    let metadata = gguf.metadata();
    let pairs = metadata.iter().filter(|(key, _)| !key.starts_with("tokenizer.")).map(|(key, value)| {
        let (kind, value) = encoded(
            metadata.strings(key).map(|list| list.collect()),
            metadata.f32s(key),
            metadata.i32s(key),
            &value,
        );
        (key.to_owned(), kind, value)
    });
    let start = gguf.data_start();
    let tensors = gguf.tensors().iter().map(|info| Info {
        name: info.name.to_string(),
        dims: info.dims.to_vec(),
        kind: info.ggml_type,
        offset: info.offset - start,
    });
    Parts { pairs: pairs.collect(), tensors: tensors.collect(), data: bytes[start as usize..].to_vec() }
}

/// The type and the bytes of a value, of a list by what its elements are.
fn encoded(
    strings: Option<Vec<&str>>,
    floats: Option<Vec<f32>>,
    integers: Option<Vec<i32>>,
    value: &Value<'_>,
) -> (u32, Vec<u8>) {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let list = |kind: u32, len: usize, bytes: Vec<u8>| {
        (ARRAY, [kind.to_le_bytes().as_slice(), &(len as u64).to_le_bytes(), &bytes].concat())
    };
    match value {
        Value::U32(n) => (4, n.to_le_bytes().into()),
        Value::I32(n) => (5, n.to_le_bytes().into()),
        Value::F32(n) => (6, n.to_le_bytes().into()),
        Value::Bool(truth) => (7, vec![(*truth).into()]),
        Value::String(string) => (STRING, text(string)),
        Value::U64(n) => (10, n.to_le_bytes().into()),
        Value::Array(array) => match (array.element(), strings, floats, integers) {
            (Kind::String, Some(all), ..) => {
                list(STRING, all.len(), all.iter().flat_map(|string| text(string)).collect())
            }
            (Kind::F32, _, Some(all), _) => {
                list(6, all.len(), all.iter().flat_map(|n| n.to_le_bytes()).collect())
            }
            (Kind::Bool, ..) => list(7, array.len(), vec![1; array.len()]),
            (_, _, _, Some(all)) => list(5, all.len(), all.iter().flat_map(|n| n.to_le_bytes()).collect()),
            other => panic!("a fixture with a list of {:?}", other.0),
        },
        other => panic!("a fixture with {other:?}"),
    }
}

/// One of the numbers at the edges, or any.
fn number(u: &mut Unstructured<'_>) -> arbitrary::Result<u64> {
    let which = u.arbitrary::<u8>()? as usize;
    EDGES.get(which).copied().map_or_else(|| u.arbitrary(), Ok)
}

/// A value of any type, short.
fn value(u: &mut Unstructured<'_>) -> arbitrary::Result<(u32, Vec<u8>)> {
    let kind = u.int_in_range(0..=12)?;
    let n = number(u)?.to_le_bytes();
    Ok(match kind {
        STRING => (STRING, [&1_u64.to_le_bytes(), &n[..1]].concat()),
        ARRAY => {
            let len = u64::from(n[0] % 6);
            let elements: Vec<u8> = (0..len).flat_map(|_| [n[1], 0, 0, 0]).collect();
            (ARRAY, [5_u32.to_le_bytes().as_slice(), &len.to_le_bytes(), &elements].concat())
        }
        6 => (6, (f32::from_bits(u32::from_le_bytes([n[0], n[1], n[2], n[3]]))).to_le_bytes().into()),
        0 | 1 | 7 => (kind, vec![n[0]]),
        2 | 3 => (kind, n[..2].into()),
        4 | 5 => (kind, n[..4].into()),
        _ => (kind, n.into()),
    })
}

impl Parts {
    /// One edit.
    fn edit(&mut self, u: &mut Unstructured<'_>) -> arbitrary::Result<()> {
        let what = u.int_in_range(0..=9_u8)?;
        if what < 3 {
            let at = u.choose_index(self.pairs.len())?;
            match what {
                0 => (self.pairs[at].1, self.pairs[at].2) = value(u)?,
                1 => drop(self.pairs.remove(at)),
                // A key of another family, or a second one.
                _ => {
                    let (kind, value) = value(u)?;
                    let other = u.choose(&*BASES)?;
                    let key = &u.choose(&other.pairs)?.0;
                    let own = self.pairs[0].2.get(8..).map(|name| String::from_utf8_lossy(name).into_owned());
                    let key = match (key.split_once('.'), own) {
                        (Some((_, rest)), Some(own)) => format!("{own}.{rest}"),
                        _ => key.clone(),
                    };
                    self.pairs.push((key, kind, value));
                }
            }
            return Ok(());
        }
        if self.tensors.is_empty() {
            return Ok(());
        }
        let at = u.choose_index(self.tensors.len())?;
        match what {
            3 => {
                let other = u.choose_index(self.tensors.len())?;
                self.tensors[at].name = self.tensors[other].name.clone();
            }
            4 => {
                let axis = u.choose_index(self.tensors[at].dims.len().max(1))?;
                let size = number(u)?;
                if let Some(dim) = self.tensors[at].dims.get_mut(axis) {
                    *dim = size;
                }
            }
            5 => self.tensors[at].kind = u.int_in_range(0..=42)?,
            6 => self.tensors[at].offset = number(u)?.wrapping_mul(u.int_in_range(1..=64)?),
            7 => drop(self.tensors.remove(at)),
            8 => {
                let place =
                    (self.tensors[at].offset as usize).saturating_add(usize::from(u.arbitrary::<u8>()?));
                let bytes: [u8; 4] = u.arbitrary()?;
                if let Some(weight) = self.data.get_mut(place..place.saturating_add(4)) {
                    weight.copy_from_slice(&bytes);
                }
            }
            _ => self.data.truncate((number(u)? as usize).min(self.data.len())),
        }
        Ok(())
    }

    /// The file.
    fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        let text = |out: &mut Vec<u8>, text: &str| {
            out.extend((text.len() as u64).to_le_bytes());
            out.extend(text.as_bytes());
        };
        out.extend(3_u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.pairs.len() as u64).to_le_bytes());
        for (key, kind, value) in &self.pairs {
            text(&mut out, key);
            out.extend(kind.to_le_bytes());
            out.extend(value);
        }
        for info in &self.tensors {
            text(&mut out, &info.name);
            out.extend((info.dims.len() as u32).to_le_bytes());
            info.dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
            out.extend(info.kind.to_le_bytes());
            out.extend(info.offset.to_le_bytes());
        }
        out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
        out.extend(&self.data);
        out
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut u = Unstructured::new(bytes);
    let Ok(family) = u.int_in_range(0..=FAMILIES.len() - 1) else { return };
    let mut parts = BASES[family].clone();
    let mut edits = 0;
    while !u.is_empty() && edits < MAX_EDITS {
        edits += 1;
        if parts.pairs.is_empty() || parts.edit(&mut u).is_err() {
            break;
        }
    }
    let Ok(gguf) = Gguf::from_bytes(parts.bytes()) else {
        assert!(edits > 0, "the fixture itself is sound");
        return;
    };
    let gguf = Arc::new(gguf);
    let Ok(blueprint) = Blueprint::from_gguf(&gguf) else {
        assert!(edits > 0, "the fixture itself is a model");
        return;
    };
    let layers = blueprint.layers.len() as u32;
    let whole = run(&gguf, &blueprint, &[(0, layers)]);
    assert!(edits > 0 || whole.is_some(), "the fixture itself computes");
    if layers > 1 && whole.is_some() {
        assert_eq!(run(&gguf, &blueprint, &[(0, 1), (1, layers)]), whole, "cut in two");
    }
});

/// The bits of the logits behind three tokens, computed by one stage after the other; `None` where one refuses.
fn run(gguf: &Arc<Gguf>, blueprint: &Blueprint, stages: &[(u32, u32)]) -> Option<Vec<u32>> {
    let layers = blueprint.layers.len() as u32;
    let ids = [0, 1, (blueprint.vocab - 1) as u32];
    let mut rows: Vec<f32> = Vec::new();
    for (start, end) in stages {
        let ends = Ends { embedding: *start == 0, head: *end == layers };
        let options = Options { context: Some(8) };
        let shard = Shard::load(gguf, CPU.clone(), LayerRange::new(*start, *end)?, ends, options).ok()?;
        let mut ws = Workspace::new(&shard, Capacity::one_session(ids.len())).ok()?;
        let mut state = shard.new_state();
        let input = if ends.embedding { Input::Tokens(&ids) } else { Input::Activations(&rows) };
        let output = if ends.head { Output::Last } else { Output::All };
        shard.forward(&mut ws, &mut [Item { state: &mut state, input, output }]).ok()?;
        rows = if ends.head { ws.logits(0).to_vec() } else { ws.activations(0).to_vec() };
        assert!(rows.iter().all(|x| x.is_finite()));
    }
    Some(rows.iter().map(|x| x.to_bits()).collect())
}
