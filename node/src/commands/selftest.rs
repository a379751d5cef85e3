//! `shoal selftest`: does this machine compute the bits that every other does?

use std::time::Instant;

use serde_json::json;
use shard::{
    executor::Device,
    golden,
    kernels::{Isa, threads::Pool},
};

use crate::{
    Error, Result,
    cli::SelftestArgs,
    model,
    output::{self, say},
};

pub(super) fn run(args: SelftestArgs) -> Result<()> {
    let started = Instant::now();
    let mut failed = 0;
    let mut rows = Vec::new();
    for device in devices(&args)? {
        let name = match &device {
            Device::Cpu(cpu) => cpu.isa().name().to_owned(),
            _ => args.device.unwrap_or_default().to_string(),
        };
        for check in golden::check_device(&device)? {
            failed += usize::from(!check.passed());
            if !args.json {
                let word = if check.passed() { "ok" } else { "DIFFERS" };
                say!("{name:7} {:24} {word:8} {}", check.name, check.hash);
            }
            rows.push(json!({"isa": name, "check": check.name, "hash": check.hash, "expected": check.expected, "passed": check.passed()}));
        }
    }
    let class = if failed == 0 { "d1" } else { "approx" };
    let elapsed_ms = started.elapsed().as_secs_f64() * 1e3;
    if args.json {
        output::json_line(
            &json!({"class": class, "passed": failed == 0, "checks": rows, "elapsed_ms": elapsed_ms}),
        )?;
    } else {
        say!("numerics class {class}, {} checks in {elapsed_ms:.0} ms", rows.len());
    }
    if failed > 0 {
        return Err(Error::Failed(format!(
            "{failed} checks differ: this machine computes, but not the same bits as others, and is announced as approx"
        )));
    }
    Ok(())
}

/// What is checked: a device, or the processor with one instruction set or with each that it has.
fn devices(args: &SelftestArgs) -> Result<Vec<Device>> {
    let on = |isa: Option<&str>| model::cpu(isa, Pool::new(2, false));
    if let Some(device) = args.device {
        return Ok(vec![Device::open(device, model::pipelines().as_deref(), || on(None))?]);
    }
    let all = match &args.isa {
        Some(name) => vec![model::isa(name)?],
        None => Isa::available(),
    };
    all.into_iter().map(|isa| Ok(Device::Cpu(on(Some(isa.name()))?))).collect()
}
