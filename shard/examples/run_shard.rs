//! Runs a model whole and cut in two, and shows that both give the same tokens.
//!
//! `cargo run -p shoal-shard --example run_shard [FILE.gguf] [TEXT]`
//!
//! The two shards of the second run have weights, caches and buffers of their own; only rows of f32 pass between them, as
//! they would pass between two machines of a swarm.
#![forbid(unsafe_code)]

use std::{error::Error, path::Path, sync::Arc};

use scheduler::LayerRange;
use shard::{
    executor::{Chain, Device, Options, argmax, whole_range},
    gguf::Gguf,
    kernels::{Cpu, Isa, threads::Pool},
    tokenizer::{Encode, Tokenizer},
};

/// Tokens to generate.
const TOKENS: usize = 24;
/// Positions a session may hold, and rows of a pass.
const CONTEXT: usize = 256;
const CHUNK: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let minnow = Path::new(env!("CARGO_MANIFEST_DIR")).join("minnow/minnow.gguf");
    let mut args = std::env::args().skip(1);
    let file = args.next().map_or(minnow, Into::into);
    let text = args
        .next()
        .unwrap_or_else(|| "Once there was a little fox in a small village. Her name was".to_owned());

    let gguf = Arc::new(Gguf::open(file)?);
    let tokenizer = Tokenizer::from_gguf(gguf.metadata())?;
    let prompt = tokenizer.encode(&text, Encode::TEXT)?;
    let cpu = Cpu::new(Isa::detect(), Pool::new(Pool::physical_cores(), false));
    let device = Device::Cpu(Arc::new(cpu));

    let layers = whole_range(&gguf)?.end();
    let range = |start, end| LayerRange::new(start, end).ok_or("a model has at least two layers");
    let cuts = [vec![range(0, layers)?], vec![range(0, layers / 2)?, range(layers / 2, layers)?]];
    let mut answers = Vec::new();
    for ranges in &cuts {
        let mut chain = Chain::load(&device, &gguf, ranges, Options { context: Some(CONTEXT) }, CHUNK)?;
        let mut next = argmax(chain.forward(&prompt)?);
        let mut ids = vec![next];
        while ids.len() < TOKENS {
            next = argmax(chain.forward(&[next])?);
            ids.push(next);
        }
        println!("{} shard(s): {}", ranges.len(), tokenizer.decode(&ids));
        answers.push(ids);
    }
    match answers[0] == answers[1] {
        true => Ok(()),
        false => Err("the cut changed the tokens".into()),
    }
}
