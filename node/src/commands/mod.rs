//! One file per command.

mod bench;
mod catalog;
mod chat;
mod completions;
mod config;
mod consent;
mod convert;
mod distill;
mod eval;
mod identity;
mod inspect;
mod key;
mod man;
mod mcp;
mod model;
mod obtain;
mod passphrase;
mod privacy;
mod pull;
mod register;
mod run;
mod selftest;
mod serve;
pub(crate) mod swarm;
mod template;
mod tokenize;
mod upgrade;
mod worker;

use std::{
    fs,
    io::{self, Read},
    path::Path,
};

use crate::{
    Error, Result,
    cli::{
        ChatArgs, Cli, Command, PrivacyCommand, SamplingArgs,
        swarm::{PeersArgs, PeersCommand},
    },
    inference::local::prompt::Request,
};
use shard::sample::SamplingParams;

/// Runs the command the user typed.
pub fn run(cli: Cli) -> Result<()> {
    match cli.command {
        Command::Run(mut args) => match run::begins_a_conversation(&mut args)? {
            true => chat::run(ChatArgs {
                system: args.system,
                mcp: Vec::new(),
                answer: args.answer,
                json: args.json,
            }),
            false => run::run(args),
        },
        Command::Demo(args) => swarm::demo(args),
        Command::Join(args) => swarm::join(*args),
        Command::Up(args) => swarm::up(*args),
        Command::Leave(args) => swarm::leave(args),
        Command::Pause(args) => swarm::pause(args),
        Command::Consent(args) => consent::consent(args),
        Command::Invite(args) => swarm::invite(args),
        Command::Status(args) => swarm::status(args),
        Command::Peers(PeersArgs { command: Some(PeersCommand::Name(args)), .. }) => swarm::name(&args),
        Command::Peers(args) => swarm::peers(args.ask),
        Command::Plan(args) => swarm::plan(args),
        Command::Resume(args) => swarm::resume(args),
        Command::Why(args) => swarm::why(args),
        Command::Receipts(args) => swarm::receipts(args),
        Command::Verify(args) => swarm::verify(args),
        Command::Doctor(args) => swarm::doctor(args, cli.global.config),
        Command::Chat(args) => chat::run(args),
        Command::Serve(args) => serve::run(args),
        Command::Mcp(args) => mcp::run(args),
        Command::Key(command) => key::run(command),
        Command::Identity(command) => identity::run(command),
        Command::Bench(args) => bench::run(args),
        Command::Selftest(args) => selftest::run(args),
        Command::Model(command) => model::run(command),
        Command::Tokenize(args) => tokenize::run(args),
        Command::Template(args) => template::run(args),
        Command::Eval(args) => eval::run(args),
        Command::Distill(args) => distill::run(args),
        Command::Privacy(PrivacyCommand::Audit(args)) => privacy::audit(args),
        Command::Convert(args) => convert::run(args),
        Command::Config(command) => config::run(command, cli.global.config),
        Command::Upgrade(args) => upgrade::run(args),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
        Command::Worker(args) => worker::run(&args),
    }
}

/// All of standard input.
fn stdin_text() -> Result<String> {
    let mut bytes = Vec::new();
    io::stdin().read_to_end(&mut bytes)?;
    utf8(bytes, "standard input")
}

/// The text in `file`; `-` is standard input.
fn file_text(file: &Path) -> Result<String> {
    if file == Path::new("-") {
        return stdin_text();
    }
    let bytes = fs::read(file).map_err(|e| shard::Error::io(file, e))?;
    utf8(bytes, &file.display().to_string())
}

/// The file that a command writes, which must be new or empty. It is opened before the model's: then this process opens nothing more, and
/// what is interrupted before there is a result leaves an empty file behind.
fn open_empty(path: &Path) -> Result<fs::File> {
    let failed = |error| shard::Error::io(path, error);
    let file = fs::File::options().write(true).create(true).truncate(false).open(path).map_err(failed)?;
    match file.metadata().map_err(failed)?.len() {
        0 => Ok(file),
        _ => Err(Error::usage(format!("{} exists; name another file", path.display()))),
    }
}

/// Bytes that should be text; an error says which byte of `what` is not.
fn utf8(bytes: Vec<u8>, what: &str) -> Result<String> {
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Error::usage(format!("{what} is not UTF-8 text: byte {at} begins no character; convert it first"))
    })
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
    let (seed, max_tokens) = (args.seed, args.max_tokens);
    let (stop, draft) = (args.stop.clone(), args.draft.clone());
    Ok(Request { prompt, sampling, seed, max_tokens, stop, draft, context_shift: args.context_shift })
}
