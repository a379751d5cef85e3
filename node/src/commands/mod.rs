//! One file per command.

mod bench;
mod chat;
mod convert;
mod eval;
mod model;
mod run;
mod selftest;
mod serve;
mod template;
mod tokenize;

use std::io::{self, Read};

use crate::{
    Error, Result,
    cli::{Cli, Command, SamplingArgs},
    generate::Request,
};
use shard::sample::SamplingParams;

/// Runs the command the user typed.
pub fn run(cli: Cli) -> Result<()> {
    match cli.command {
        Command::Run(args) => run::run(args),
        Command::Chat(args) => chat::run(args),
        Command::Serve(args) => serve::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Selftest(args) => selftest::run(args),
        Command::Model(command) => model::run(command),
        Command::Tokenize(args) => tokenize::run(args),
        Command::Template(args) => template::run(args),
        Command::Eval(args) => eval::run(args),
        Command::Convert(args) => convert::run(args),
    }
}

/// All of standard input.
fn stdin_text() -> Result<String> {
    let mut text = String::new();
    io::stdin().read_to_string(&mut text)?;
    Ok(text)
}

/// The request the sampling flags ask for.
fn request(prompt: Vec<u32>, args: &SamplingArgs) -> Result<Request> {
    let logit_bias = args
        .logit_bias
        .iter()
        .map(|pair| {
            let parsed =
                pair.split_once('=').and_then(|(id, bias)| Some((id.parse().ok()?, bias.parse().ok()?)));
            parsed.ok_or_else(|| Error::usage(format!("--logit-bias wants ID=BIAS, got \"{pair}\"")))
        })
        .collect::<Result<_>>()?;
    let sampling = SamplingParams {
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p,
        min_p: args.min_p,
        typical_p: args.typical,
        repetition_penalty: args.repetition_penalty,
        presence_penalty: args.presence_penalty,
        frequency_penalty: args.frequency_penalty,
        logit_bias,
        logprobs: args.logprobs.is_some(),
        top_logprobs: args.logprobs.unwrap_or(0),
        ..SamplingParams::default()
    };
    sampling.validate().map_err(|error| Error::usage(error.to_string()))?;
    Ok(Request { prompt, sampling, seed: args.seed, max_tokens: args.max_tokens, stop: args.stop.clone() })
}
