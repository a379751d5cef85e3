//! `shoal run`: one prompt, one answer.

use std::{
    io::{self, IsTerminal},
    ops::ControlFlow,
    path::{Path, PathBuf},
    time::Instant,
};

use serde_json::{Value, json};
use shard::{sample::Logprob, tokenizer::Encode};

use super::{consent, obtain, request, stdin_text, swarm::remote};
use crate::{
    Error, Result,
    catalog::reference::Reference,
    cli::{
        AnswerArgs, RunArgs,
        swarm::{RouteArgs, Via},
    },
    context_shift,
    control::{self, Mode},
    encode,
    events::{Leeway, PromptEvent, PromptInput, PromptRequest, RouteEvent},
    inference::local::{
        model_name,
        prompt::{self, Event, Finish, Session, Summary},
    },
    library,
    model::Model,
    output::{self, Waiting},
    reports::StatusReport,
    rounding,
};

pub(super) fn run(mut args: RunArgs) -> Result<()> {
    let prompt = prompt_text(args.prompt.clone())?;
    if !args.json
        && let Ok(home) = args.answer.home.path()
    {
        remote::mention_unfinished(&home);
    }
    if let Some(home) = node(&args.answer, args.json)? {
        return through_the_swarm(&args, &prompt, &home);
    }
    output::catch_interrupt()?;
    obtain_model(&mut args.answer, args.json)?;
    let started = Instant::now();
    let model = Model::load_drafted(&args.answer.engine, &args.answer.sampling.draft)?;
    let load_ms = started.elapsed().as_secs_f64() * 1e3;
    let mut session = session(&model, &args.answer)?;
    let ids = if args.raw {
        model.tokenizer.encode(&prompt, Encode { bos: true, special: true })?
    } else {
        encode::encode_chat(&model, &messages(args.system.as_deref(), &prompt))?
    };
    let request = request(ids, &args.answer.sampling)?;
    let mut failure = None;
    let mut waiting = Some(Waiting::start("reading the prompt"));
    let summary = prompt::generate(&model, &mut session, &request, &mut |event| {
        if !matches!(event, Event::Prefill { .. }) {
            drop(waiting.take());
        }
        let shown = if args.json { show_json(&model, &event) } else { show_text(&event) };
        match shown {
            Err(error) => {
                failure = Some(error);
                ControlFlow::Break(())
            }
            Ok(()) if output::interrupted() => ControlFlow::Break(()),
            Ok(()) => ControlFlow::Continue(()),
        }
    })?;
    if let Some(error) = failure {
        return Err(error);
    }
    if args.json {
        let mut line = summary_json(&summary);
        line["model"] = json!(model.name);
        line["attention"] = json!(args.answer.attention.kind.to_string());
        line["kv_cache_type"] = json!(args.answer.attention.kv_cache_type.name());
        line["load_ms"] = json!(load_ms);
        line["panels"] = json!(model.gguf.panels().map_or("packed", |panels| panels.source()));
        output::json_line(&line)?;
        return ended(summary.finish);
    }
    output::text("\n")?;
    if io::stderr().is_terminal() {
        eprintln!("\n{}", summary_text(&summary));
    }
    ended(summary.finish)
}

/// The home of the node that is to answer; `None` to answer in this process.
pub(super) fn node(args: &AnswerArgs, json: bool) -> Result<Option<PathBuf>> {
    let home = args.home.path();
    let through = match args.via {
        Via::Local => false,
        Via::Swarm if home.as_ref().is_ok_and(|home| control::is_running(home)) => true,
        Via::Swarm => {
            return Err(control::runs_nowhere());
        }
        Via::Auto => {
            home.as_ref().is_ok_and(|home| control::socket(home).exists() && may_answer(args, home))
                && may_leave(&args.route, json, &home)
        }
    };
    if through { home.map(Some) } else { Ok(None) }
}

/// What the user has to agree to: where no mode is named and the node has no ends of its model, a peer reads the prompt.
pub(super) fn asked_mode(args: &AnswerArgs, home: &Path) -> Mode {
    let is_read = |status: &StatusReport| !(status.model.layers.ends || status.model.memory.unloaded);
    args.route.mode.unwrap_or_else(|| match remote::status(home) {
        Ok(status) if args.engine.model.is_none() && is_read(&status) => Mode::Open,
        _ => Mode::Boomerang,
    })
}

/// Whether the running node is the one to ask for the model that is named: where no mode says that a peer may read the prompt,
/// a model that the node does not hold is looked for by this process.
fn may_answer(args: &AnswerArgs, home: &Path) -> bool {
    let Some(model) = args.engine.model.as_deref().filter(|_| args.route.mode.is_none()) else { return true };
    let status = remote::status(home);
    // A node that does not say will say why.
    let Ok(status) = status else { return true };
    let whole = library::unabbreviated(model);
    let short = model_name(&whole);
    let named = [whole.as_str(), short.as_str()];
    status.models.iter().any(|held| {
        named.contains(&held.name.as_str())
            || named.contains(&held.called.as_str())
            || held.id.as_ref() == Some(&whole)
    })
}

/// Fetches the model if it is not here, and names its file.
pub(super) fn obtain_model(args: &mut AnswerArgs, json: bool) -> Result<()> {
    let terms = obtain::Terms { sources: &args.sources, yes: args.yes, json };
    args.engine.model = Some(obtain::model(args.engine.model(), terms)?);
    let terms = obtain::Terms { sources: &args.sources, yes: args.yes, json };
    obtain::drafter(&mut args.sampling.draft, terms)
}

/// A session of this process that rounds and sees what the flags say.
pub(super) fn session(model: &Model, args: &AnswerArgs) -> Result<Session> {
    let (end, hidden) = (model.executor.range().end(), model.executor.blueprint().hidden);
    Session::of(model, rounding::alone(&args.wire.choice(), end, hidden)?, args.attention.session())
}

/// The prompt as the node with the data folder `home` is asked it.
pub(super) fn question(prompt: PromptInput, args: &AnswerArgs, home: &Path) -> Result<PromptRequest> {
    let form = (args.wire.choice(), args.attention.session());
    let leeway = Leeway {
        may_stay_home: args.via == Via::Auto,
        may_be_read: args.route.mode.is_none() && crate::consent::given(home, Mode::Open),
    };
    let mut ask = remote::question(prompt, &args.route, form, &args.sampling, leeway)?;
    if let Some(model) = &args.engine.model {
        if Reference::parse(model).is_none() && library::looks_like_a_path(model) {
            library::locate(model)?;
        }
        ask.model = library::unabbreviated(model);
    }
    Ok(ask)
}

/// Whether a model is named and no prompt where a person can type: then they talk. The model is taken for `--model`.
pub(super) fn begins_a_conversation(args: &mut RunArgs) -> Result<bool> {
    if let Some(link) = args.link {
        return Err(Error::usage(format!(
            "links are a node's and serve all its prompts: start the node with `shoal join --link {link}`, or a swarm of this \
             machine with `shoal up --link {link}`"
        )));
    }
    let talks = name_the_model(args)? && args.prompt.is_none() && io::stdin().is_terminal();
    if talks && args.raw {
        return Err(Error::usage(
            "--raw continues a prompt as it stands: give one, or leave out --raw to talk",
        ));
    }
    Ok(talks)
}

/// Takes a model that stands before the prompt, or instead of it, for `--model`; whether there was one.
fn name_the_model(args: &mut RunArgs) -> Result<bool> {
    let unnamed = args.answer.engine.model.is_none();
    let Some(first) = args.prompt.clone() else { return Ok(false) };
    if args.second.is_none() && !(unnamed && obtain::is_name(&first, &args.answer.sources)?) {
        return Ok(false);
    }
    if !unnamed {
        return Err(Error::usage(format!(
            "two models: \"{first}\" and --model {}; quote the prompt if it has several words",
            args.answer.engine.model()
        )));
    }
    if args.second.is_some()
        && !obtain::is_name(&first, &args.answer.sources)?
        && !library::looks_like_a_path(&first)
    {
        return Err(Error::usage(format!(
            "\"{first}\" is no model: quote the prompt if it has several words; `shoal model search` lists models"
        )));
    }
    args.answer.engine.model = Some(first);
    args.prompt = args.second.take();
    Ok(true)
}

/// Whether a prompt that names no mode may leave this machine, where the user cannot be asked.
fn may_leave(route: &RouteArgs, json: bool, home: &Result<PathBuf>) -> bool {
    let agreed = home.as_ref().is_ok_and(|home| crate::consent::given(home, Mode::Boomerang));
    let stays = route.mode.is_none() && !agreed && !consent::can_ask(json);
    if stays {
        eprintln!(
            "Computed in this process: you have not agreed yet that strangers may; `shoal consent boomerang` does."
        );
    }
    !stays
}

/// The running node answers it, with others or, under `--via auto` and when that is faster, alone.
fn through_the_swarm(args: &RunArgs, prompt: &str, home: &Path) -> Result<()> {
    let prompt = match args.raw {
        true => PromptInput::Text(prompt.to_owned()),
        false => PromptInput::Messages(messages(args.system.as_deref(), prompt)),
    };
    consent::before_strangers(home, asked_mode(&args.answer, home), args.json)?;
    let ask = question(prompt, &args.answer, home)?;
    output::catch_interrupt()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    if args.json {
        let question = control::Question::Generate(Box::new(ask));
        return runtime.block_on(remote::follow_as_json(home, &question)).map(drop);
    }
    let mut waiting = Some(Waiting::start("asking the swarm"));
    let mut in_a_line = false;
    let last = runtime.block_on(remote::generate(home, ask, &mut |event| {
        if !matches!(event, PromptEvent::Route(_)) {
            drop(waiting.take());
        }
        in_a_line =
            matches!(event, PromptEvent::Token(_)) || in_a_line && !matches!(event, PromptEvent::Done(_));
        match event {
            PromptEvent::Token(token) => output::text(&token.text),
            PromptEvent::Done(report) => output::text(&format!("{}\n", report.rest)),
            PromptEvent::Route(route) => {
                reads_elsewhere(&args.answer, route);
                Ok(())
            }
            _ => Ok(()),
        }
    }));
    if last.is_err() && in_a_line {
        // What went wrong is said on a line of its own.
        output::text("\n")?;
    }
    let last = last?;
    if io::stderr().is_terminal() {
        eprintln!("\n{}\n`shoal why` shows who computed what", remote::summary_text(&last));
    }
    Ok(())
}

/// Says that a peer reads the prompt, where no mode said that it may.
pub(super) fn reads_elsewhere(args: &AnswerArgs, route: &RouteEvent) {
    if let (None, Some(elsewhere)) = (args.route.mode, &route.elsewhere) {
        eprintln!(
            "This machine does not have the model: {} reads the prompt and answers, as you agreed (`shoal consent`).",
            remote::short(&elsewhere.conductor)
        );
    }
}

/// A cut answer must not look like a whole one to the program that asked.
fn ended(finish: Finish) -> Result<()> {
    if finish == Finish::Cancelled { Err(Error::Interrupted) } else { Ok(()) }
}

/// The messages of a conversation's first turn.
pub(super) fn messages(system: Option<&str>, prompt: &str) -> Value {
    let system = system.map(|text| json!({"role": "system", "content": text}));
    system.into_iter().chain([json!({"role": "user", "content": prompt})]).collect()
}

fn prompt_text(argument: Option<String>) -> Result<String> {
    let text = match argument {
        Some(text) if text != "-" => text,
        None if io::stdin().is_terminal() => {
            return Err(Error::usage("no prompt given; try: shoal run \"Tell me a story about a fox\""));
        }
        _ => {
            let text = stdin_text()?;
            text.trim_end_matches(['\n', '\r']).to_string()
        }
    };
    if text.trim().is_empty() { Err(Error::usage("the prompt is empty")) } else { Ok(text) }
}

pub(super) fn show_text(event: &Event<'_>) -> Result<()> {
    match event {
        Event::Token { text, .. } | Event::Text { text } if !text.is_empty() => output::text(text),
        _ => Ok(()),
    }
}

pub(super) fn show_json(model: &Model, event: &Event<'_>) -> Result<()> {
    let (id, text, logprob, top) = match event {
        Event::Prefill { .. } => return Ok(()),
        Event::Text { text } => return output::json_line(&json!({"event": "text", "text": text})),
        Event::Token { id, text, logprob, top } => (id, text, logprob, top),
    };
    let mut line = json!({"event": "token", "id": id, "text": text});
    if let Some(logprob) = logprob {
        let name =
            |l: &Logprob| json!({"id": l.id, "text": model.tokenizer.token_text(l.id), "logprob": l.logprob});
        line["logprob"] = json!(logprob);
        line["top_logprobs"] = top.iter().map(name).collect();
    }
    output::json_line(&line)
}

pub(super) fn summary_json(summary: &Summary) -> Value {
    json!({
        "event": "done",
        "finish_reason": summary.finish.name(),
        "text": summary.text,
        "ids": summary.ids,
        "prompt_tokens": summary.prompt_tokens,
        "reused_tokens": summary.reused_tokens,
        "completion_tokens": summary.ids.len(),
        "ttft_ms": summary.prefill.as_secs_f64() * 1e3,
        "prefill_tok_s": summary.prefill_tok_s(),
        "decode_tok_s": summary.decode_tok_s(),
        "drafts": summary.drafts.report(),
        "context_shifts": summary.context_shifts,
    })
}

pub(super) fn summary_text(summary: &Summary) -> String {
    let per_pass = summary.drafts.tokens_per_pass();
    let drafts = summary.drafts.report().map(|_| format!(" ({per_pass:.2} tokens a pass)"));
    let shifts = context_shift::told(summary.context_shifts);
    format!(
        "{} prompt tokens ({} reused), {} generated; prefill {:.0} tok/s, decode {:.1} tok/s{}, ended by {}{shifts}",
        summary.prompt_tokens,
        summary.reused_tokens,
        summary.ids.len(),
        summary.prefill_tok_s(),
        summary.decode_tok_s(),
        drafts.unwrap_or_default(),
        summary.finish.name()
    )
}
