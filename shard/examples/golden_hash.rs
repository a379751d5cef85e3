//! Prints one line `name hash` per golden case, for comparing instruction sets, and writing `src/golden.txt`.
//!
//! `golden_hash [--isa NAME] [--threads N] [--chunk N]`; `--chunk 0` feeds whole prompts at once; `--list` prints the instruction sets.
#![forbid(unsafe_code)]

use std::{error::Error, sync::Arc};

use shard::{
    golden,
    kernels::{Cpu, Isa, threads::Pool},
};

fn main() -> Result<(), Box<dyn Error>> {
    let (mut isa, mut threads, mut chunk) = (Isa::detect(), 1, 0);
    let mut args = std::env::args().skip(1);
    while let Some(flag) = args.next() {
        if flag == "--list" {
            Isa::available().iter().for_each(|isa| println!("{}", isa.name()));
            return Ok(());
        }
        let value = args.next().ok_or_else(|| format!("{flag} needs a value"))?;
        match flag.as_str() {
            "--isa" => {
                let found = Isa::available().into_iter().find(|isa| isa.name() == value);
                isa = found.ok_or_else(|| format!("this processor cannot compute with {value}"))?;
            }
            "--threads" => threads = value.parse()?,
            "--chunk" => chunk = value.parse()?,
            _ => return Err(format!("unknown flag {flag}").into()),
        }
    }
    for (name, hash) in golden::hashes(&Arc::new(Cpu::new(isa, Pool::new(threads, false))), chunk)? {
        println!("{name} {hash}");
    }
    Ok(())
}
