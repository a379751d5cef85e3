//! `shoal selftest`: does this machine compute the bits that every other does?

use std::time::Instant;

use serde_json::json;
use shard::{golden, kernels::Isa};

use crate::{
    Error, Result,
    cli::SelftestArgs,
    model,
    output::{self, say},
};

pub(super) fn run(args: SelftestArgs) -> Result<()> {
    let isas = match &args.isa {
        Some(name) => vec![model::isa(name)?],
        None => Isa::available(),
    };
    let started = Instant::now();
    let mut failed = 0;
    let mut rows = Vec::new();
    for isa in isas {
        for check in golden::check(isa)? {
            failed += usize::from(!check.passed());
            if !args.json {
                let word = if check.passed() { "ok" } else { "DIFFERS" };
                say!("{:7} {:24} {word:8} {}", isa.name(), check.name, check.hash);
            }
            rows.push(json!({"isa": isa.name(), "check": check.name, "hash": check.hash, "expected": check.expected, "passed": check.passed()}));
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
