//! Prints one line `name hash` for each of a few random models: the bits of everything they compute.
//!
//! ```text
//! cargo run --release -p shoal-shard --example golden_hash -- [--isa NAME] [--threads N] [--chunk N] [--quick]
//! ```
//!
//! The output must be the same on every machine, for every instruction set, thread count and chunk size; a continuous
//! integration run compares it natively and under emulation. Models are made in memory from a seed.

use std::{process::ExitCode, sync::Arc};

use shard::{
    Result,
    engine::{Shard, fingerprint},
    gguf::Gguf,
    kernels::{Cpu, Isa, threads::Pool},
    quant,
    synthetic::{self, Random, Shape},
};

struct Arguments {
    isa: Isa,
    threads: usize,
    chunk: usize,
    quick: bool,
}

fn arguments() -> Result<Arguments, String> {
    let mut parsed = Arguments { isa: Isa::detect(), threads: 1, chunk: usize::MAX, quick: false };
    let mut given = std::env::args().skip(1);
    while let Some(name) = given.next() {
        if name == "--quick" {
            parsed.quick = true;
            continue;
        }
        let value = given.next().ok_or(format!("{name} needs a value"))?;
        let number = || value.parse::<usize>().ok().filter(|&n| n > 0).ok_or(format!("{name}: {value}"));
        match name.as_str() {
            "--isa" => {
                let isa = Isa::from_name(&value).filter(|isa| Isa::available().contains(isa));
                parsed.isa = isa.ok_or(format!("this processor has no {value}"))?;
            }
            "--threads" => parsed.threads = number()?,
            "--chunk" => parsed.chunk = number()?,
            _ => return Err(format!("{name} is unknown")),
        }
    }
    Ok(parsed)
}

fn run(arguments: &Arguments) -> Result<()> {
    let cpu = Arc::new(Cpu::new(arguments.isa, Pool::new(arguments.threads, false)));
    let base = Shape { vocab: 288, layers: 2, ..synthetic::SHAPES[4].1.clone() };
    let experts = Shape { experts: Some((6, 2)), feed_forward: 256, ..base.clone() };
    let mut random = Random(96);
    let prompt: Vec<u32> =
        (0..if arguments.quick { 24 } else { 96 }).map(|_| random.below(288) as u32).collect();
    let mut cases: Vec<_> = quant::ALL.iter().map(|&format| (format.name, &base, format)).collect();
    cases.push(("experts", &experts, &quant::Q8_0));
    for (name, shape, format) in cases {
        let gguf = Arc::new(Gguf::from_bytes(shape.to_bytes(format, 7)?)?);
        let shard = Shard::whole(&gguf, cpu.clone())?;
        println!("{name} {}", fingerprint(&shard, &prompt, arguments.chunk)?.to_hex());
    }
    Ok(())
}

fn main() -> ExitCode {
    let outcome = arguments().and_then(|arguments| run(&arguments).map_err(|error| error.to_string()));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("golden_hash: {why}");
            ExitCode::FAILURE
        }
    }
}
