//! The same bits over every instruction set of this machine, any number of threads, any chunk size, alone or in a batch.

mod common;

use common::{bits, bytes, cpu, fast, fixtures, goldens, open, tokens, whole};
use shard::{
    executor::{Capacity, Executor, Input, Item, Output, Workspace, fingerprint},
    kernels::Isa,
    quant,
    synthetic::{self, Shape},
};

const CHUNKS: [usize; 5] = [1, 5, 7, 32, usize::MAX];

#[test]
fn one_fingerprint_over_instruction_sets_threads_and_chunks() {
    let shape =
        Shape { vocab: 288, layers: 2, feed_forward: 512, ..synthetic::shape("tiny").unwrap().clone() };
    let experts = Shape { experts: Some((6, 2)), feed_forward: 256, ..shape.clone() };
    let formats = ["f16", "q8_0", "q4_0", "q4_k"].map(|name| quant::by_name(name).unwrap());
    let mut models: Vec<_> = formats
        .iter()
        .map(|format| (format!("{format:?}"), bytes(shape.to_bytes(format, 21).unwrap())))
        .collect();
    models.push(("experts".into(), bytes(experts.to_bytes(&quant::Q4_0, 22).unwrap())));
    for name in [
        "gemma3",
        "gemma3n",
        "gemma4_moe",
        "gemma4_e",
        "kimi_linear",
        "lfm2",
        "llama4",
        "qwen35",
        "deepseek_v3",
        "falcon_h1",
        "granitehybrid_moe",
        "nemotron_h_moe",
        "nemotron_h_latent",
    ] {
        models.push((name.into(), open(name)));
    }
    let prompt = tokens(40, 288, 23);
    for (name, gguf) in models {
        let expected = fingerprint(&whole(&gguf, fast(), 512), &prompt, usize::MAX).unwrap();
        for isa in Isa::available() {
            for threads in 1..=3 {
                let shard = whole(&gguf, cpu(isa, threads), 512);
                // The scalar specification is some hundred times slower: every chunk size once, threads with one.
                let chunks = match isa {
                    Isa::Scalar if threads > 1 => &CHUNKS[2..3],
                    _ => &CHUNKS[..],
                };
                for &chunk in chunks {
                    let found = fingerprint(&shard, &prompt, chunk).unwrap();
                    let isa = isa.name();
                    assert!(found == expected, "{name}: {isa}, {threads} threads, chunks of {chunk}");
                }
            }
        }
    }
}

#[test]
fn a_batch_gives_every_session_what_it_gets_alone() {
    for name in fixtures() {
        let gguf = open(&name);
        let goldens = goldens(&name);
        let context = goldens.iter().map(|golden| golden.context).max().unwrap();
        let shard = whole(&gguf, fast(), context);
        let mut ws = Workspace::new(&shard, Capacity { rows: 96, items: 4, logit_rows: 96 }).unwrap();
        let vocab = shard.blueprint().vocab;
        let prompts: Vec<_> = (0..4).map(|i| tokens([20, 7, 31, 12][i], vocab, 31 + i as u64)).collect();
        let steps: Vec<_> = (0..4).map(|i| tokens([1, 3, 1, 5][i], vocab, 41 + i as u64)).collect();
        let outputs = [Output::Last, Output::All, Output::None, Output::Last];
        let mut alone = Vec::new();
        for i in 0..4 {
            let mut kv = shard.new_state();
            shard.prefill(&mut ws, &mut kv, &prompts[i]).unwrap();
            let item = Item { state: &mut kv, input: Input::Tokens(&steps[i]), output: outputs[i] };
            shard.forward(&mut ws, &mut [item]).unwrap();
            alone.push((bits(ws.logits(0)), kv.snapshot().unwrap()));
        }
        let mut kvs: Vec<_> = (0..4).map(|_| shard.new_state()).collect();
        for given in [&prompts, &steps] {
            let mut items: Vec<_> = kvs
                .iter_mut()
                .zip(given)
                .zip(outputs)
                .map(|((kv, tokens), output)| Item { state: kv, input: Input::Tokens(tokens), output })
                .collect();
            shard.forward(&mut ws, &mut items).unwrap();
        }
        for i in 0..4 {
            let wanted = [1, 3, 0, 1][i];
            assert_eq!(ws.logits(i).len(), wanted * vocab);
            assert!(bits(ws.logits(i)) == alone[i].0, "{name}: session {i} has other logits in a batch");
            assert!(
                kvs[i].snapshot().unwrap() == alone[i].1,
                "{name}: session {i} has another cache in a batch"
            );
        }
    }
}
