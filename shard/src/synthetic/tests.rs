use super::*;
use crate::{gguf::Gguf, tokenizer::Tokenizer};

#[test]
fn every_format_gives_weights_of_the_wanted_size() {
    for format in quant::ALL {
        let shape = Shape { vocab: 64, layers: 1, ..shape("tiny").unwrap().clone() };
        let gguf = Gguf::from_bytes(shape.to_bytes(format, 3).unwrap()).unwrap();
        let weights = gguf.require("blk.0.ffn_down.weight").unwrap().to_f32();
        let mean = weights.iter().map(|w| f64::from(*w)).sum::<f64>() / weights.len() as f64;
        let square = weights.iter().map(|w| f64::from(w * w)).sum::<f64>() / weights.len() as f64;
        let size = square.sqrt() * (768.0f64).sqrt();
        assert!((size - 1.0).abs() < 0.05, "{format:?}: size {size}");
        assert!(mean.abs() * (768.0f64).sqrt() < 0.15, "{format:?}: mean {mean}");
    }
}

#[test]
fn the_seed_decides_the_bytes() {
    let shape = Shape { vocab: 64, layers: 1, ..shape("tiny").unwrap().clone() };
    let make = |seed| shape.to_bytes(&quant::Q4_0, seed).unwrap();
    assert!(make(1) == make(1) && make(1) != make(2));
}

#[test]
fn a_model_speaks_with_the_vocabulary_of_another() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("speaks.gguf");
    let minnow = Gguf::open(concat!(env!("CARGO_MANIFEST_DIR"), "/minnow/minnow.gguf")).unwrap();
    let shape = Shape { vocab: 2_080, layers: 1, ..shape("tiny").unwrap().clone() };
    shape.write_speaking(&path, &quant::Q8_0, 1, minnow.metadata()).unwrap();
    let (ours, theirs) = (Gguf::open(&path).unwrap(), minnow.metadata());
    let [ours, theirs] = [ours.metadata(), theirs].map(|m| Tokenizer::from_gguf(m).unwrap());
    let text = "Once upon a time, a fox\nwent home.";
    assert_eq!(ours.encode_prompt(text).unwrap(), theirs.encode_prompt(text).unwrap());
    let small = Shape { vocab: 512, ..shape };
    let refused = small.write_speaking(&path, &quant::Q8_0, 1, minnow.metadata());
    assert!(matches!(refused, Err(Error::Invalid { .. })));
}

#[test]
fn rows_that_are_no_whole_blocks_are_refused() {
    let shape = Shape { hidden: 96 + 8, ..shape("tiny").unwrap().clone() };
    assert!(matches!(shape.to_bytes(&quant::Q4_0, 1), Err(Error::Invalid { .. })));
}
