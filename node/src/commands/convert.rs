//! `shoal convert`: safetensors to GGUF.

use std::time::Instant;

use serde_json::{Map, json};
use shard::{
    convert::{self, Options},
    kernels::threads::Pool,
};

use crate::{
    Error, Result,
    cli::ConvertArgs,
    output::{self, human_bytes, say},
};

pub(super) fn run(args: ConvertArgs) -> Result<()> {
    let format = shard::quant::by_name(&args.format).filter(|f| f.quantize.is_some()).ok_or_else(|| {
        let names: Vec<_> =
            shard::quant::ALL.iter().filter(|f| f.quantize.is_some()).map(|f| f.name).collect();
        Error::usage(format!(
            "cannot write \"{}\"; formats that can be written: {}",
            args.format,
            names.join(", ")
        ))
    })?;
    let output = match args.output {
        Some(path) => path,
        None => {
            let folder = args.source.canonicalize().map_err(|e| shard::Error::io(&args.source, e))?;
            let name = folder.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            format!("{name}-{}.gguf", format.name).into()
        }
    };
    if output.exists() && !args.force {
        return Err(Error::usage(format!("{} exists; --force replaces it", output.display())));
    }
    let threads = args.threads.map_or_else(Pool::physical_cores, usize::from);
    let started = Instant::now();
    let bar = output::progress(0, "converting", true);
    let done = convert::convert(&args.source, &output, &Options { format, threads }, &|done, total| {
        bar.set_length(total);
        bar.set_position(done);
    })?;
    bar.finish_and_clear();
    let seconds = started.elapsed().as_secs_f64();
    if args.json {
        return output::json_line(&json!({
            "output": output.to_string_lossy(),
            "architecture": done.architecture,
            "format": format.name,
            "tensors": done.tensors,
            "formats": done.formats.iter().map(|(name, n)| (name.to_string(), json!(n))).collect::<Map<_, _>>(),
            "bytes": done.bytes,
            "seconds": seconds,
        }));
    }
    say!(
        "wrote {}: {} with {} tensors, {} in {seconds:.1} s",
        output.display(),
        done.architecture,
        done.tensors,
        human_bytes(done.bytes)
    );
    let others: Vec<String> = done
        .formats
        .iter()
        .filter(|(name, _)| *name != format.name)
        .map(|(name, n)| format!("{n} in {name}"))
        .collect();
    if !others.is_empty() {
        say!(
            "not in {}: {} (vectors, the head, and rows that are no whole blocks)",
            format.name,
            others.join(", ")
        );
    }
    say!("try: shoal run --model {} \"Hello\"", output.display());
    Ok(())
}
