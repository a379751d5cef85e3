//! `shoal bench`: what this machine does with a model, or would do with one it does not have yet.

use std::{
    fs::File,
    io::Read,
    sync::Arc,
    time::{Duration, Instant},
};

use scheduler::SessionKind;
use serde::Serialize;
use shard::{
    executor::{Capacity, DeviceCounts, Executor, OperationTime, Workspace, argmax},
    gguf::Gguf,
    models::Blueprint,
    quant::Format,
    state::{PrefixCache, SessionState},
    synthetic,
};

use crate::{
    Error, Result,
    cli::BenchArgs,
    library,
    model::{self, CHUNK_ROWS, Prepared},
    output::{self, Waiting, say},
};

mod attention;

pub(super) fn run(args: BenchArgs) -> Result<()> {
    if let Some(positions) = args.positions {
        return attention::run(&args, positions);
    }
    if let (Some(path), Some(shape)) = (&args.save, &args.shape) {
        let (shape, format) = shape_and_format(shape, &args.format)?;
        let minnow = library::open(library::DEFAULT_MODEL)?;
        // With a tokenizer the file answers prompts too; shapes of fewer ids than minnow has tokens cannot.
        let speaks = |tokens: shard::gguf::Strings<'_>| tokens.len() <= shape.vocab;
        match minnow.metadata().strings("tokenizer.ggml.tokens").is_some_and(speaks) {
            true => shape.write_speaking(path, format, 1, minnow.metadata())?,
            false => shape.write(path, format, 1)?,
        }
        return Ok(());
    }
    let (prompt, decode) = (args.prompt_tokens as usize, args.decode_tokens as usize);
    // What is measured at the end is told by a file that cannot be opened then.
    let status = File::open("/proc/self/status").ok();
    // Random weights are this program's own.
    let prepared = args.shape.is_none().then(|| Prepared::confined(&args.engine)).transpose()?;
    let device = match &prepared {
        Some(prepared) => prepared.device(&args.engine)?,
        None => model::device(&args.engine)?,
    };
    let waiting = Waiting::start("preparing the model");
    let started = Instant::now();
    let (name, gguf) = subject(&args, prepared.as_ref())?;
    let build_ms = ms(started.elapsed());
    model::writes(&Blueprint::from_gguf(&gguf)?, &name)?;
    let ctx = args.engine.ctx.unwrap_or(prompt + decode);
    if ctx < prompt + decode {
        return Err(Error::usage(format!(
            "--ctx {ctx} is smaller than the {prompt} + {decode} tokens of the run"
        )));
    }
    let started = Instant::now();
    let executor = model::load_whole(&gguf, &device, ctx)?;
    let load_ms = ms(started.elapsed());

    let workspace = Workspace::new(&*executor, Capacity::one_session(CHUNK_ROWS.min(prompt)))?;
    let kind = args.attention.session();
    let mut bench = Bench { workspace, executor: &*executor, kind, prompt, decode };
    bench.warm_up()?;
    drop(waiting);
    let bar = output::progress(u64::from(args.runs), "measuring", false);
    let mut runs = Vec::new();
    for _ in 0..args.runs {
        runs.push(bench.once()?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    // Before the probe, whose own memory would count.
    let peak_rss_mb = peak_rss_bytes(status).map(|bytes| bytes as f64 / 1e6);
    let read_gb_s = device.read_bandwidth()?.map(|read| read / 1e9);
    let mut figures = Figures::of(&runs, &*executor, prompt + decode / 2, read_gb_s);
    figures.device = DeviceFigures::of(&runs, &*executor)?;
    let report = Report {
        figures,
        model: name,
        format: model::main_format(&gguf),
        isa: device.cpu().map(|cpu| cpu.isa().name()),
        device: executor.device(),
        attention: kind.attention.to_string(),
        kv_cache_type: kind.cache.name(),
        threads: device.cpu().map(|cpu| cpu.pool().threads()),
        prompt_tokens: prompt,
        decode_tokens: decode,
        runs: args.runs,
        load_ms,
        build_ms,
        file_bytes: gguf.file_len(),
        peak_rss_mb,
    };
    if args.json { output::json_line(&report) } else { print(&report) }
}

fn subject(args: &BenchArgs, prepared: Option<&Prepared>) -> Result<(String, Arc<Gguf>)> {
    let Some(shape) = &args.shape else {
        let gguf = prepared.map_or_else(|| library::open(args.engine.model()), Prepared::gguf)?;
        return Ok((args.engine.model().to_owned(), Arc::new(gguf)));
    };
    let (wanted, format) = shape_and_format(shape, &args.format)?;
    // A file, though it is not kept: weights are then in memory once, as with a real model.
    let file = tempfile::NamedTempFile::new()?;
    wanted.write(file.path(), format, 1)?;
    let gguf = Gguf::open(file.path())?;
    Ok((format!("{shape} (random weights)"), Arc::new(gguf)))
}

fn shape_and_format(shape: &str, format: &str) -> Result<(&'static synthetic::Shape, &'static Format)> {
    let format = shard::quant::by_name(format).ok_or_else(|| {
        Error::usage(format!("there is no format \"{}\"; known: {}", format, format_names()))
    })?;
    let wanted = synthetic::shape(shape).ok_or_else(|| {
        let names: Vec<_> = synthetic::SHAPES.iter().map(|(name, _)| *name).collect();
        Error::usage(format!("there is no shape \"{shape}\"; known: {}", names.join(", ")))
    })?;
    Ok((wanted, format))
}

fn format_names() -> String {
    shard::quant::ALL.iter().map(|f| f.name).collect::<Vec<_>>().join(", ")
}

struct Bench<'a> {
    executor: &'a dyn Executor,
    workspace: Workspace,
    kind: SessionKind,
    prompt: usize,
    decode: usize,
}

/// One run: the time to the first token and of every later one.
struct Run {
    prefill: Duration,
    first_token: Duration,
    steps: Vec<Duration>,
    kv_hits: usize,
    kv_misses: usize,
    /// What the steps cost a device.
    device: Option<DeviceCounts>,
}

impl Bench<'_> {
    fn new_state(&self) -> Result<SessionState> {
        Ok(self.executor.new_state_with(self.executor.range(), self.kind)?)
    }

    /// Touches all weights and code once.
    fn warm_up(&mut self) -> Result<()> {
        let mut state = self.new_state()?;
        self.executor.prefill(&mut self.workspace, &mut state, &[0])?;
        Ok(self.executor.step(&mut self.workspace, &mut state, 0)?)
    }

    fn once(&mut self) -> Result<Run> {
        let vocab = self.executor.blueprint().vocab as u32;
        // Any ids do: speed does not depend on them. A stride through the vocabulary reads different embeddings.
        let ids: Vec<u32> = (0..self.prompt as u32).map(|i| i.wrapping_mul(2_654_435_761) % vocab).collect();
        let mut state = self.new_state()?;
        state.reserve(self.prompt + self.decode)?;
        let started = Instant::now();
        self.executor.prefill(&mut self.workspace, &mut state, &ids)?;
        let prefill = started.elapsed();
        let mut id = argmax(self.workspace.logits(0));
        let first_token = started.elapsed();
        let mut steps = Vec::with_capacity(self.decode);
        let before = self.executor.counts();
        for _ in 0..self.decode {
            let started = Instant::now();
            id = self.executor.greedy(&mut self.workspace, &mut state, id)?;
            steps.push(started.elapsed());
        }
        let device = before.zip(self.executor.counts()).map(|(before, after)| DeviceCounts {
            submits: after.submits - before.submits,
            dispatches: after.dispatches - before.dispatches,
            bytes_back: after.bytes_back - before.bytes_back,
            ..after
        });
        // The same prompt again, as a second turn would bring it: what the prefix cache kept is not computed again.
        let mut cache = PrefixCache::new(usize::MAX);
        state.rewind(ids.len());
        cache.put(ids.clone(), state);
        let mut state = match cache.take(self.kind, &ids) {
            Some(kept) => kept,
            None => self.new_state()?,
        };
        let kv_hits = state.len();
        self.executor.prefill(&mut self.workspace, &mut state, &ids[kv_hits..])?;
        Ok(Run { prefill, first_token, steps, kv_hits, kv_misses: 2 * ids.len() - kv_hits, device })
    }
}

/// What was measured, and of what.
#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    figures: Figures,
    model: String,
    format: &'static str,
    isa: Option<&'static str>,
    device: String,
    attention: String,
    kv_cache_type: &'static str,
    threads: Option<usize>,
    prompt_tokens: usize,
    decode_tokens: usize,
    runs: u32,
    load_ms: f64,
    build_ms: f64,
    file_bytes: u64,
    peak_rss_mb: Option<f64>,
}

/// Medians over the runs.
#[derive(Serialize)]
struct Figures {
    prefill_tok_s: f64,
    decode_tok_s: f64,
    ttft_ms: f64,
    token_p50_ms: f64,
    token_p95_ms: f64,
    mb_per_token: f64,
    effective_gb_s: f64,
    read_gb_s: Option<f64>,
    /// Of what the machine reads, the share that decoding read.
    read_share: Option<f64>,
    kv_hits: usize,
    kv_misses: usize,
    /// What a token costs a device, where one computes.
    #[serde(rename = "per_token", skip_serializing_if = "Option::is_none")]
    device: Option<DeviceFigures>,
}

/// What a decoded token costs a device.
#[derive(Serialize)]
struct DeviceFigures {
    submits: f64,
    dispatches: f64,
    bytes_back: f64,
    /// Kernels made ready in this process, and those of them that an earlier one had compiled.
    pipelines: u64,
    pipeline_hits: u64,
    operations: Vec<Operation>,
}

/// One operation of a decode step.
#[derive(Serialize)]
struct Operation {
    name: String,
    us: f64,
    /// Weights that it reads per second.
    gb_s: f64,
}

impl DeviceFigures {
    /// Of the decode steps of `runs`.
    fn of(runs: &[Run], executor: &dyn Executor) -> Result<Option<Self>> {
        let Some(cost) = runs.iter().map(|run| run.device).collect::<Option<Vec<_>>>() else {
            return Ok(None);
        };
        let steps: usize = runs.iter().map(|run| run.steps.len()).sum();
        let per_token = |count: &dyn Fn(&DeviceCounts) -> u64| {
            cost.iter().map(count).sum::<u64>() as f64 / steps.max(1) as f64
        };
        let operation = |time: OperationTime| {
            let gb_s = if time.us > 0.0 { time.bytes as f64 / time.us / 1e3 } else { 0.0 };
            Operation { name: time.name, us: time.us, gb_s }
        };
        Ok(Some(Self {
            submits: per_token(&|count| count.submits),
            dispatches: per_token(&|count| count.dispatches),
            bytes_back: per_token(&|count| count.bytes_back),
            pipelines: cost.last().map_or(0, |count| count.pipelines),
            pipeline_hits: cost.last().map_or(0, |count| count.pipeline_hits),
            operations: executor.operation_times()?.into_iter().map(operation).collect(),
        }))
    }
}

impl Figures {
    fn of(runs: &[Run], executor: &dyn Executor, position: usize, read_gb_s: Option<f64>) -> Self {
        let per_run = |f: &dyn Fn(&Run) -> f64| quantile(runs.iter().map(f).collect(), 0.5);
        let prompt = (runs[0].kv_hits + runs[0].kv_misses) / 2;
        let decode_s = per_run(&|r| r.steps.iter().sum::<Duration>().as_secs_f64() / r.steps.len() as f64);
        let steps: Vec<f64> = runs.iter().flat_map(|r| r.steps.iter().map(|d| ms(*d))).collect();
        let touched = executor.bytes_per_token(position) as f64;
        let effective_gb_s = touched / decode_s / 1e9;
        Self {
            prefill_tok_s: prompt as f64 / per_run(&|r| r.prefill.as_secs_f64()),
            decode_tok_s: 1.0 / decode_s,
            ttft_ms: per_run(&|r| ms(r.first_token)),
            token_p50_ms: quantile(steps.clone(), 0.5),
            token_p95_ms: quantile(steps, 0.95),
            mb_per_token: touched / 1e6,
            effective_gb_s,
            read_gb_s,
            read_share: read_gb_s.map(|read| effective_gb_s / read),
            kv_hits: runs.iter().map(|r| r.kv_hits).sum(),
            kv_misses: runs.iter().map(|r| r.kv_misses).sum(),
            device: None,
        }
    }
}

fn print(report: &Report) -> Result<()> {
    let figures = &report.figures;
    say!("{} in {}, on {}", report.model, report.format, report.device);
    say!(
        "prefill   {:9.1} tok/s   ({} tokens, first token after {:.0} ms)",
        figures.prefill_tok_s,
        report.prompt_tokens,
        figures.ttft_ms
    );
    say!(
        "decode    {:9.1} tok/s   (p50 {:.2} ms, p95 {:.2} ms per token)",
        figures.decode_tok_s,
        figures.token_p50_ms,
        figures.token_p95_ms
    );
    let share = match (figures.read_gb_s, figures.read_share) {
        (Some(reads), Some(share)) => {
            format!(", {:.0} % of the {reads:.1} GB/s this machine reads", 100.0 * share)
        }
        _ => String::new(),
    };
    say!(
        "memory    {:9.1} MB read per token = {:.1} GB/s{share}",
        figures.mb_per_token,
        figures.effective_gb_s
    );
    let peak_rss_mb = report.peak_rss_mb.unwrap_or(f64::NAN);
    say!("peak      {peak_rss_mb:9.0} MB resident; loaded in {:.0} ms", report.load_ms);
    say!("kv cache  {:>9} positions reused, {} computed", figures.kv_hits, figures.kv_misses);
    if let Some(device) = &figures.device {
        say!(
            "device    {:9.1} submits, {:.1} dispatches and {:.0} bytes back per token",
            device.submits,
            device.dispatches,
            device.bytes_back
        );
        if device.pipelines > 0 {
            say!("kernels   {:>9} made ready, {} found on disk", device.pipelines, device.pipeline_hits);
        }
        for Operation { name, us, gb_s } in &device.operations {
            say!("  {name:28} {us:9.1} us  {gb_s:7.1} GB/s of weights");
        }
    }
    Ok(())
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// The value below which a share `q` of `values` lies (nearest rank).
fn quantile(mut values: Vec<f64>, q: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = (q * values.len() as f64).ceil() as usize;
    values[rank.clamp(1, values.len()) - 1]
}

/// The largest resident size so far, where the system says (Linux).
fn peak_rss_bytes(status: Option<File>) -> Option<u64> {
    let mut told = String::new();
    status?.read_to_string(&mut told).ok()?;
    let line = told.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::quantile;

    #[test]
    fn quantiles_are_values_that_occurred() {
        assert_eq!(quantile(vec![3.0, 1.0, 2.0], 0.5), 2.0);
        assert_eq!(quantile(vec![4.0, 1.0, 2.0, 3.0], 0.5), 2.0);
        assert_eq!(quantile((1..=100).map(f64::from).collect(), 0.95), 95.0);
        assert_eq!(quantile(vec![7.0], 0.0), 7.0);
    }
}
