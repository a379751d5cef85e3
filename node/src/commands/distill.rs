//! `shoal distill`: trains a draft head for a model from what the model answers.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    time::{Duration, Instant},
};

use serde_json::json;
use shard::draft::{DEPTH, Judged, Trainer, Training};

use super::{file_text, open_empty};
use crate::{
    Error, Result,
    cli::DistillArgs,
    distill,
    model::Model,
    output::{self, say},
};

/// The largest rate of learning.
const RATE: f32 = 5e-4;

pub(super) fn run(args: DistillArgs) -> Result<()> {
    let prompts = match &args.prompts {
        Some(file) => {
            file_text(file)?.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect()
        }
        None => distill::prompts(args.seed),
    };
    let file = open_empty(&args.output)?;
    let model = Model::load_confined(&args.engine)?;
    let Some(cpu) = model.device.cpu().cloned() else {
        return Err(Error::usage("a draft head is trained by the processor; say --device cpu"));
    };
    output::catch_interrupt()?;
    let begun = Instant::now();
    let bar = output::progress(args.answer_tokens as u64, "answering prompts", false);
    let samples = distill::collect(&model, &prompts, args.answer_tokens, &mut |tokens| {
        bar.inc(tokens as u64);
        !output::interrupted()
    })?;
    bar.finish_and_clear();
    if output::interrupted() {
        return Err(Error::Interrupted);
    }
    let answering = begun.elapsed();
    let training = Training {
        inner: args.width as usize / 32 * 32,
        tokens: args.vocabulary as usize,
        epochs: args.epochs as usize,
        rate: RATE,
        seed: args.seed,
    };
    let mut trainer = Trainer::new(&cpu, &model.gguf, &samples, training)?;
    let all = trainer.steps() * training.epochs;
    let bar = output::progress(all as u64, "training", false);
    trainer.train(&mut |_, _, loss| {
        bar.inc(1);
        bar.set_message(format!("training, loss {loss:.3}"));
        !output::interrupted()
    })?;
    let done = bar.position();
    bar.finish_and_clear();
    if output::interrupted() {
        eprintln!("stopped after {done} of {all} steps; what it has learned until then is written");
    }
    let took = [answering, begun.elapsed() - answering];
    let judged = trainer.judge()?;
    let parts = trainer.parts();
    let mut out = Counted { out: BufWriter::new(file), bytes: 0 };
    parts.write(&mut out, &model.name, model.tokenizer.digest())?;
    report(&args, (samples.len(), out.bytes), judged, took)
}

/// A file that counts what goes into it.
struct Counted {
    out: BufWriter<File>,
    bytes: u64,
}

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// `took` to answer and to train.
fn report(
    args: &DistillArgs,
    (tokens, bytes): (usize, u64),
    judged: Judged,
    took: [Duration; 2],
) -> Result<()> {
    let shares: Vec<f64> =
        judged.right.iter().map(|right| *right as f64 / judged.positions.max(1) as f64).collect();
    if args.json {
        return output::json_line(&json!({
            "output": args.output,
            "bytes": bytes,
            "tokens": tokens,
            "answering_s": took[0].as_secs_f64(),
            "training_s": took[1].as_secs_f64(),
            "judged": judged.positions,
            "right": shares,
            "tokens_a_pass": 1.0 + shares.iter().sum::<f64>(),
        }));
    }
    let named: Vec<String> = shares.iter().map(|share| format!("{:.0} %", 100.0 * share)).collect();
    say!("{} ({}), from {tokens} tokens", args.output.display(), output::human_bytes(bytes));
    say!(
        "of {} positions that it had not seen, the first 1 to {DEPTH} guesses were right at {}",
        judged.positions,
        named.join(", ")
    );
    Ok(())
}
