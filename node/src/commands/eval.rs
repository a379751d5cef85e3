//! `shoal eval`: logits after a list of tokens, whole or cut into shards; or how well a text is predicted, and what the
//! rounding of a `q8` session, another kind of attention, or the engine's own arithmetic changes about it.

use std::{fs::File, io::BufWriter, sync::Arc, time::Instant};

use scheduler::LayerRange;
use serde_json::{Value, json};
use shard::{
    convert::importance,
    executor::{Chain, Device, Ends, Options, argmax, load, reference::Arithmetic, whole_range},
    gguf::Gguf,
    kernels::Inputs,
    models::Blueprint,
    tokenizer::{Encode, MAX_TEXT_BYTES},
};

use super::{file_text, open_empty, stdin_text, tokenize::parse_ids};
use crate::{
    Error, Result,
    cli::EvalArgs,
    model::{self, Model, Prepared},
    output::{self, say},
    rounding,
    score::{Bucket, Change, Scorer},
};

pub(super) fn run(args: EvalArgs) -> Result<()> {
    match &args.text {
        Some(file) => text(&args, file_text(file)?),
        None => logits(args),
    }
}

/// Perplexity, and with rounding the divergence from the exact model.
fn text(args: &EvalArgs, text: String) -> Result<()> {
    let inputs = Arc::new(Inputs::default());
    let (model, imatrix) = match &args.imatrix {
        Some(path) => {
            let file = open_empty(path)?;
            (Model::load_watched(&args.engine, &inputs)?, Some((path, file)))
        }
        None => (Model::load_confined(&args.engine)?, None),
    };
    let layers = model.executor.range().end();
    let rounding = rounding::alone(&args.wire.choice(), layers, model.executor.blueprint().hidden)?;
    if imatrix.is_some() && !(rounding.is_none() && args.attention.session().is_default()) {
        return Err(Error::usage("--imatrix is for the model as it is: leave out --wire and --attention"));
    }
    // Text that looks like a special token is one, as in `run --raw`: a corpus of conversations is read as such.
    let ids = model.tokenizer.encode_long(&text, Encode { bos: true, special: true }, MAX_TEXT_BYTES)?;
    let lead = ids.first().copied().filter(|&id| Some(id) == model.tokenizer.bos());
    let change = Change { rounding: &rounding, kind: args.attention.session() };
    let reference = args.reference.then(|| {
        let _waiting = output::Waiting::start("reading the weights as f32");
        let (device, options) = (Device::Reference(Arithmetic::Float), Options { context: Some(model.ctx) });
        load(&device, &model.gguf, whole_range(&model.gguf)?, Ends::BOTH, options)
    });
    let reference = reference.transpose()?;
    let mut scorer = Scorer::new(&*model.executor, change, args.chunk.unwrap_or(model::CHUNK_ROWS))?;
    if let Some(reference) = &reference {
        scorer = scorer.against(&**reference)?;
    }
    let bar = output::progress(ids.len() as u64, "reading", false);
    let score = scorer.score(lead, &ids, &mut |tokens| bar.inc(tokens as u64))?;
    bar.finish_and_clear();
    if let Some((path, file)) = imatrix {
        let seen = inputs.seen();
        let text = args.text.as_deref().map(|text| text.display().to_string()).unwrap_or_default();
        let chunks = ids.len().div_ceil(model.ctx) as u32;
        importance::write(BufWriter::new(file), &seen, &text, (chunks, model.ctx as u32))?;
        if !args.json {
            say!("wrote {}: the inputs of {} tensors", path.display(), seen.len());
        }
    }
    let predicted = score.predicted as f64;
    let mut line = json!({
        "model": model.name,
        "wire": args.wire.form.wire,
        "cuts": rounding.boundaries,
        "attention": args.attention.kind.to_string(),
        "kv_cache_type": args.attention.kv_cache_type.name(),
        "tokens": ids.len(),
        "predicted": score.predicted,
        "perplexity": score.perplexity(),
    });
    // What rounding alone changes has a name of its own.
    let rounds = args.attention.session().is_default() && !args.reference;
    let changed = if rounds { "perplexity_rounded" } else { "perplexity_changed" };
    if let Some(rounded) = score.changed {
        line[changed] = json!((rounded.nats / predicted).exp());
        line["mean_kl_nats"] = json!(rounded.divergence_nats / predicted);
        line["worst_kl_nats"] = json!(rounded.worst_nats);
        line["top1_agreement"] = json!(rounded.agreed as f64 / predicted);
    }
    if args.reference {
        line["against"] = json!("f32 reference");
        line["kl_nats"] = json!(score.divergences);
    }
    line["buckets"] = score.buckets.iter().map(bucket).collect();
    if args.json {
        return output::json_line(&line);
    }
    let whose = if args.reference { " of the model in f32" } else { "" };
    say!("{} tokens predicted, perplexity{whose} {:.4}", score.predicted, score.perplexity());
    for bucket in &score.buckets {
        let predicted = bucket.predicted as f64;
        let changed = bucket.changed.map(|changed| {
            let (perplexity, kl) = ((changed.nats / predicted).exp(), changed.divergence_nats / predicted);
            format!(", changed {perplexity:.4}, divergence {kl:.2e} nats")
        });
        let perplexity = (bucket.exact_nats / predicted).exp();
        let changed = changed.unwrap_or_default();
        say!("  behind {:>6} positions and more: perplexity {perplexity:.4}{changed}", bucket.from);
    }
    if let Some(rounded) = score.changed {
        let how = match rounding.is_none() && args.reference {
            true => "as this machine computes it".to_owned(),
            false => format!("rounded before layers {:?}", rounding.boundaries),
        };
        let perplexity = (rounded.nats / predicted).exp();
        say!("{how}, attention {}: perplexity {perplexity:.4}", args.attention.session());
        say!(
            "divergence from {}: mean {:.2e}, worst {:.2e} nats; same likeliest token {:.2} %",
            if args.reference { "f32" } else { "exact" },
            rounded.divergence_nats / predicted,
            rounded.worst_nats,
            100.0 * rounded.agreed as f64 / predicted
        );
    }
    Ok(())
}

/// The figures of the tokens whose positions are near each other.
fn bucket(bucket: &Bucket) -> Value {
    let predicted = bucket.predicted as f64;
    let mut line = json!({
        "from": bucket.from,
        "predicted": bucket.predicted,
        "perplexity": (bucket.exact_nats / predicted).exp(),
    });
    if let Some(changed) = bucket.changed {
        line["perplexity_changed"] = json!((changed.nats / predicted).exp());
        line["mean_kl_nats"] = json!(changed.divergence_nats / predicted);
        line["top1_agreement"] = json!(changed.agreed as f64 / predicted);
    }
    line
}

fn logits(args: EvalArgs) -> Result<()> {
    let tokens = parse_ids(&tokens_text(args.tokens.as_deref().unwrap_or_default())?)?;
    let written = args.logits.as_ref().map(|path| File::create(path).map_err(|e| shard::Error::io(path, e)));
    let written = written.transpose()?;
    let prepared = Prepared::confined(&args.engine)?;
    let gguf = Arc::new(prepared.gguf()?);
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
    let device = prepared.device(&args.engine)?;
    let started = Instant::now();
    let blueprint = Blueprint::from_gguf(&gguf)?;
    model::writes(&blueprint, args.engine.model())?;
    let rounding = rounding::alone(&args.wire.choice(), blueprint.layers.len() as u32, blueprint.hidden)?;
    let mut chain =
        chain(&device, &gguf, args.layers.as_deref(), ctx, args.chunk.unwrap_or(model::CHUNK_ROWS))?;
    chain.round(rounding);
    chain.attend(args.attention.session())?;
    let load_ms = started.elapsed().as_secs_f64() * 1e3;
    if let Some(id) = tokens.iter().find(|&&id| id as usize >= chain.vocab()) {
        return Err(Error::usage(format!("there is no token {id}; the vocabulary has {}", chain.vocab())));
    }

    let started = Instant::now();
    let mut logits = chain.forward(&tokens)?.to_vec();
    let prefill_ms = started.elapsed().as_secs_f64() * 1e3;
    if let Some(file) = written {
        crate::npy::write(file, &logits)?;
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

fn chain(device: &Device, gguf: &Arc<Gguf>, layers: Option<&str>, ctx: usize, chunk: usize) -> Result<Chain> {
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
    Ok(Chain::load(device, gguf, &ranges, Options { context: Some(ctx) }, chunk.clamp(1, ctx))?)
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
