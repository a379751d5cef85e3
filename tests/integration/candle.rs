//! The second executor, on another project's tensors, agrees with the engine on every family.

use std::{fs, sync::Arc};

use harness::data;
use scheduler::LayerRange;
use serde_json::Value;
use shard::{
    executor::candle::{CandleShard, Keep},
    executor::{Capacity, Ends, Executor, Input, Item, Options, Output, Workspace, argmax, whole_range},
    gguf::Gguf,
    models::Blueprint,
    quant,
    state::SessionState,
    synthetic::{self, Shape},
};

/// One minus the cosine of two logit vectors.
fn distance(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    1.0 - dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// Families that this executor does not compute.
const RECURRENT: [&str; 13] = [
    "falcon_h1",
    "falcon_h1_norm",
    "granitehybrid",
    "granitehybrid_moe",
    "kimi_linear",
    "lfm2",
    "lfm2moe",
    "nemotron_h",
    "nemotron_h_moe",
    "nemotron_h_latent",
    "qwen3next",
    "qwen35",
    "qwen35moe",
];

fn families() -> Vec<String> {
    let names = fs::read_dir(data("families")).unwrap().filter_map(|entry| {
        let name = entry.unwrap().file_name().into_string().unwrap();
        name.strip_suffix(".gguf").map(String::from)
    });
    let mut names: Vec<String> = names.filter(|name| !RECURRENT.contains(&name.as_str())).collect();
    names.sort();
    assert!(names.len() >= 15, "{names:?}");
    names
}

fn load(gguf: &Gguf, context: usize, keep: Keep) -> CandleShard {
    let layers = whole_range(gguf).unwrap();
    let options = Options { context: Some(context) };
    CandleShard::load(gguf, &candle_core::Device::Cpu, layers, Ends::BOTH, options, keep).unwrap()
}

#[test]
fn recurrent_layers_are_refused_by_name() {
    for name in RECURRENT {
        let gguf = Gguf::open(data("families").join(format!("{name}.gguf"))).unwrap();
        let (cpu, options) = (candle_core::Device::Cpu, Options::default());
        let layers = whole_range(&gguf).unwrap();
        let refused = CandleShard::load(&gguf, &cpu, layers, Ends::BOTH, options, Keep::Quantized);
        let why = refused.err().unwrap().to_string();
        assert!(why.contains("recurrent layers on this device"), "{name}: {why}");
    }
}

/// What `output` asks for of the rows of `input`.
fn forward(
    shard: &CandleShard,
    state: &mut SessionState,
    input: Input<'_>,
    output: Output,
) -> shard::Result<Vec<f32>> {
    let mut ws = Workspace::new(shard, Capacity::one_session(shard.context()))?;
    shard.forward(&mut ws, &mut [Item { state, input, output }])?;
    Ok(if shard.ends().head { ws.logits(0) } else { ws.activations(0) }.to_vec())
}

#[test]
fn every_family_gives_the_reference_logits_and_tokens_or_is_refused() {
    let mut computed = 0;
    for name in families() {
        let gguf = Gguf::open(data("families").join(format!("{name}.gguf"))).unwrap();
        if let Some(what) = Blueprint::from_gguf(&gguf).unwrap().beyond_plain() {
            let layers = whole_range(&gguf).unwrap();
            let (device, options) = (&candle_core::Device::Cpu, Options::default());
            let refused = CandleShard::load(&gguf, device, layers, Ends::BOTH, options, Keep::Dequantized);
            assert!(refused.is_err_and(|error| error.to_string().contains(what)), "{name}: {what}");
            continue;
        }
        computed += 1;
        let golden = fs::read_to_string(data("families").join(format!("{name}.golden.json"))).unwrap();
        let golden: Value = serde_json::from_str(&golden).unwrap();
        let all = fs::read(data("families").join(format!("{name}.golden.bin"))).unwrap();
        for prompt in ["short", "medium", "long"] {
            let entry = &golden["prompts"][prompt];
            let ids = |key: &str| -> Vec<u32> { serde_json::from_value(entry[key].clone()).unwrap() };
            let shard = load(&gguf, entry["n_ctx"].as_u64().unwrap() as usize, Keep::Dequantized);
            let mut kv = shard.new_state();
            let mut logits = forward(&shard, &mut kv, Input::Tokens(&ids("ids")), Output::Last).unwrap();
            let at = entry["logits_offset"].as_u64().unwrap() as usize;
            let expected: Vec<f32> = all[at..at + 4 * logits.len()]
                .as_chunks::<4>()
                .0
                .iter()
                .map(|b| f32::from_le_bytes(*b))
                .collect();
            let far = distance(&logits, &expected);
            assert!(far < 1e-7, "{name} {prompt}: 1-cos {far:e}");
            for (step, token) in ids("greedy").into_iter().take(8).enumerate() {
                assert_eq!(argmax(&logits), token, "{name} {prompt}: token {step}");
                logits = forward(&shard, &mut kv, Input::Tokens(&[token]), Output::Last).unwrap();
            }
        }
    }
    assert!(computed >= 15, "only {computed} families");
}

#[test]
fn layer_ranges_compose() {
    let gguf = Gguf::open(data("families/gemma2.gguf")).unwrap();
    let ids: Vec<u32> = (5..45).collect();
    let whole = load(&gguf, 512, Keep::Dequantized);
    let expected = forward(&whole, &mut whole.new_state(), Input::Tokens(&ids), Output::Last).unwrap();
    let layers = whole_range(&gguf).unwrap();
    let part = |start, end, embedding, head| {
        let range = LayerRange::new(start, end).unwrap();
        let ends = Ends { embedding, head };
        CandleShard::load(
            &gguf,
            &candle_core::Device::Cpu,
            range,
            ends,
            Options::default(),
            Keep::Dequantized,
        )
        .unwrap()
    };
    let (first, last) = (part(0, 2, true, false), part(2, layers.end(), false, true));
    let rows = forward(&first, &mut first.new_state(), Input::Tokens(&ids), Output::All).unwrap();
    let logits = forward(&last, &mut last.new_state(), Input::Activations(&rows), Output::Last).unwrap();
    assert!(distance(&logits, &expected) < 1e-12);
    assert!(forward(&last, &mut last.new_state(), Input::Tokens(&ids), Output::Last).is_err());
}

#[test]
fn quantized_weights_stay_near_dequantized_ones() {
    let shape = Shape { vocab: 320, ..synthetic::shape("tiny").unwrap().clone() };
    for name in ["q8_0", "q4_0", "q4_k", "q6_k"] {
        let format = quant::by_name(name).unwrap();
        let gguf = Arc::new(Gguf::from_bytes(shape.to_bytes(format, 3).unwrap()).unwrap());
        let ids: Vec<u32> = (1..30).collect();
        let of = |keep| {
            let shard = load(&gguf, 64, keep);
            forward(&shard, &mut shard.new_state(), Input::Tokens(&ids), Output::Last).unwrap()
        };
        let far = distance(&of(Keep::Quantized), &of(Keep::Dequantized));
        assert!(far < 5e-3, "{name}: 1-cos {far:e}");
        assert!(far > 0.0, "{name}: the quantized path was not taken");
    }
}
