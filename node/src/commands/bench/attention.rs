//! `shoal bench --positions N`: what the attention of one layer takes, whatever the model.

use serde_json::json;
use shard::{executor::Device, probe};

use super::quantile;
use crate::{
    Error, Result,
    cli::BenchArgs,
    model,
    output::{self, say},
};

/// Times the kind of `args` over `positions` positions.
pub(super) fn run(args: &BenchArgs, positions: usize) -> Result<()> {
    let device = model::device(&args.engine)?;
    let Device::Cpu(cpu) = &device else {
        return Err(Error::usage("--positions times the kernels of the processor: add --device cpu"));
    };
    let times = probe::attention(cpu, args.attention.session(), positions, args.runs as usize)?;
    let (pairs, dense) =
        (args.attention.kind.pairs(positions as u64), positions as u64 * (positions as u64 + 1) / 2);
    let (pass_ms, step_ms) = (quantile(times.pass_ms, 0.5), quantile(times.step_ms, 0.5));
    let (heads, dim) = (probe::HEADS.kv_heads, probe::HEADS.head_dim);
    // A product and a sum for every value of a key, and of a value.
    let gflop_s = pairs as f64 * (4 * heads * dim) as f64 / pass_ms / 1e6;
    if args.json {
        return output::json_line(&json!({
            "attention": args.attention.kind.to_string(),
            "kv_cache_type": args.attention.kv_cache_type.name(),
            "positions": positions,
            "heads": heads,
            "head_dim": dim,
            "pairs": pairs,
            "dense_pairs": dense,
            "pass_ms": pass_ms,
            "step_ms": step_ms,
            "gflop_s": gflop_s,
            "isa": cpu.isa().name(),
            "threads": cpu.pool().threads(),
            "runs": args.runs,
        }));
    }
    say!(
        "{} over {positions} positions, {heads} heads of {dim}, on {} threads",
        args.attention.session(),
        cpu.pool().threads()
    );
    say!("pairs     {pairs:>9} of {dense}, {:.1} times fewer", dense as f64 / pairs as f64);
    say!("pass      {pass_ms:9.2} ms   ({gflop_s:.0} GFLOP/s)");
    say!("step      {step_ms:9.3} ms   (the last row alone)");
    Ok(())
}
