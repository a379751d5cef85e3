//! `shoal eval`: logits after a list of tokens, whole or cut into shards.

use std::{sync::Arc, time::Instant};

use scheduler::LayerRange;
use serde_json::json;
use shard::{
    engine::{Chain, Options, argmax, whole_range},
    gguf::Gguf,
    kernels::Cpu,
};

use super::{stdin_text, tokenize::parse_ids};
use crate::{
    Error, Result,
    cli::EvalArgs,
    library, model,
    output::{self, say},
};

pub(super) fn run(args: EvalArgs) -> Result<()> {
    let tokens = parse_ids(&tokens_text(&args.tokens)?)?;
    let gguf = Arc::new(library::open(&args.engine.model)?);
    // The context is what the request needs, unless said otherwise: some models rotate positions differently in long contexts.
    let needed = tokens.len() + args.greedy;
    let ctx = model::context(&gguf, Some(args.engine.ctx.unwrap_or(needed.max(1))))?;
    if tokens.is_empty() {
        return Err(Error::usage("--tokens is empty; at least one token id is needed"));
    }
    // The last token that is generated needs no place of its own.
    let places = tokens.len() + args.greedy.saturating_sub(1);
    if places > ctx {
        return Err(Error::usage(format!(
            "{} tokens and {} to generate need a context of {places}, it holds {ctx}; raise --ctx or choose a model made for more",
            tokens.len(),
            args.greedy
        )));
    }
    let cpu = model::cpu(&args.engine)?;
    let started = Instant::now();
    let mut chain = chain(&gguf, &cpu, args.layers.as_deref(), ctx, args.chunk.unwrap_or(model::CHUNK_ROWS))?;
    let load_ms = started.elapsed().as_secs_f64() * 1e3;
    if let Some(id) = tokens.iter().find(|&&id| id as usize >= chain.vocab()) {
        return Err(Error::usage(format!("there is no token {id}; the vocabulary has {}", chain.vocab())));
    }

    let started = Instant::now();
    let mut logits = chain.forward(&tokens)?.to_vec();
    let prefill_ms = started.elapsed().as_secs_f64() * 1e3;
    if let Some(path) = &args.logits {
        crate::npy::write(path, &logits).map_err(|e| shard::Error::io(path, e))?;
    }
    let best = argmax(&logits);
    let top = logits[best as usize];
    let mut greedy = Vec::with_capacity(args.greedy);
    for step in 0..args.greedy {
        let id = argmax(&logits);
        greedy.push(id);
        if step + 1 < args.greedy {
            logits.copy_from_slice(chain.forward(&[id])?);
        }
    }
    if args.json {
        return output::json_line(&json!({
            "greedy": greedy,
            "argmax": best,
            "logit": top,
            "tokens": tokens.len(),
            "vocab": chain.vocab(),
            "shards": chain.ranges().map(|r| r.to_string()).collect::<Vec<_>>(),
            "load_ms": load_ms,
            "prefill_ms": prefill_ms,
        }));
    }
    say!("likeliest next token: {best} (logit {top:.4})");
    if !greedy.is_empty() {
        say!("greedy: {}", greedy.iter().map(u32::to_string).collect::<Vec<_>>().join(" "));
    }
    Ok(())
}

fn chain(gguf: &Arc<Gguf>, cpu: &Arc<Cpu>, layers: Option<&str>, ctx: usize, chunk: usize) -> Result<Chain> {
    let total = whole_range(gguf)?.end();
    let cuts = match layers {
        None => Vec::new(),
        Some(text) => {
            let range = parse_range(text).filter(|range| range.end() <= total).ok_or_else(|| {
                Error::usage(format!("--layers wants A..B inside 0..{total}, got \"{text}\""))
            })?;
            vec![range.start(), range.end()]
        }
    };
    let mut edges: Vec<u32> = [0].into_iter().chain(cuts).chain([total]).collect();
    edges.dedup();
    let ranges: Vec<LayerRange> = edges.windows(2).filter_map(|w| LayerRange::new(w[0], w[1])).collect();
    Ok(Chain::load(gguf, cpu, &ranges, Options { context: Some(ctx) }, chunk.clamp(1, ctx))?)
}

fn parse_range(text: &str) -> Option<LayerRange> {
    let (start, end) = text.split_once("..")?;
    LayerRange::new(start.trim().parse().ok()?, end.trim().parse().ok()?)
}

fn tokens_text(argument: &str) -> Result<String> {
    if argument != "-" {
        return Ok(argument.to_string());
    }
    stdin_text()
}
