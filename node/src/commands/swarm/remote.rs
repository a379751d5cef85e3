//! A prompt through the running node, shown as it comes.

use scheduler::SessionKind;
use std::{path::Path, time::Duration};

use api::choice::WireChoice;
use serde::de::IgnoredAny;

use crate::{
    Error, Result,
    cli::{SamplingArgs, swarm::RouteArgs},
    context_shift,
    control::{self, Caller, Mode, Question},
    events::{
        AnswerLength, DraftReport, Ends, FinishReason, ForApi, Leeway, PromptEvent, PromptInput,
        PromptReport, PromptRequest, Sampling, StageRange,
    },
    journal, output,
    reports::StatusReport,
};

/// The question for the node.
pub fn question(
    prompt: PromptInput,
    route: &RouteArgs,
    (wire, kind): (WireChoice, SessionKind),
    sampling: &SamplingArgs,
    leeway: Leeway,
) -> Result<PromptRequest> {
    let request = crate::commands::request(vec![0], sampling)?;
    Ok(PromptRequest {
        model: String::new(),
        prompt,
        mode: route.mode.unwrap_or(Mode::Boomerang),
        leeway,
        wire,
        kind,
        trusted: route.trust.clone(),
        ends: Ends { head: route.head, tail: route.tail },
        sampling: Sampling { draft: sampling.draft.clone(), ..(&request.sampling).into() },
        seed: request.seed,
        length: AnswerLength {
            max_tokens: request.max_tokens.min(u32::MAX as usize) as u32,
            context_shift: sampling.context_shift,
        },
        stop: request.stop,
        api: ForApi::default(),
        verify: route.verify,
        shadow: route.shadow,
    })
}

/// What the node says of itself.
pub fn status(home: &Path) -> Result<StatusReport> {
    super::runtime()?.block_on(control::one(home, &Question::Status))
}

/// A node that was told to cancel answers by then.
const CANCELLING: Duration = Duration::from_secs(2);

/// Asks the node and hands on every event of the answer; returns how it ended. Ctrl-C cancels.
pub async fn generate(
    home: &Path,
    ask: PromptRequest,
    on_event: &mut dyn FnMut(&PromptEvent) -> Result<()>,
) -> Result<PromptReport> {
    follow(home, &Question::Generate(Box::new(ask)), on_event).await
}

/// As [`follow`], for a program: each event is a line, and where the answer has no end the last line says why.
pub async fn follow_as_json(home: &Path, question: &Question) -> Result<PromptReport> {
    let mut ended = false;
    let mut told = |event: &PromptEvent| {
        ended |= matches!(event, PromptEvent::Done(_));
        output::json_line(event)
    };
    let answer = follow(home, question, &mut told).await;
    if let Err(error) = answer.as_ref().map_err(|error| error.to_string())
        && !ended
    {
        output::json_line(&serde_json::json!({"event": "error", "error": error}))?;
    }
    answer
}

/// Asks the node anything that is answered by tokens. See [`generate`].
pub async fn follow(
    home: &Path,
    question: &Question,
    on_event: &mut dyn FnMut(&PromptEvent) -> Result<()>,
) -> Result<PromptReport> {
    let mut caller = Caller::ask(home, question).await?;
    let mut session = None;
    loop {
        let event = tokio::select! {
            event = caller.next::<PromptEvent>() => event?,
            () = interrupted() => {
                cancel(home, &mut caller, session).await;
                return Err(Error::Interrupted);
            }
        };
        let Some(event) = event else {
            let why = "the node stopped in the middle of the answer; start it again with `shoal join`, and `shoal resume` \
                       continues where it stopped";
            return Err(Error::Failed(why.into()));
        };
        if let PromptEvent::Route(route) = &event {
            session = route.session().map(str::to_owned);
        }
        on_event(&event)?;
        let PromptEvent::Done(report) = event else { continue };
        if report.finish_reason != FinishReason::Failed {
            return Ok(*report);
        }
        let why =
            report.conducted.as_ref().and_then(|own| own.ending.gave_up.as_deref()).unwrap_or("no reason");
        let kept = if report.kept.is_some() { ", `shoal resume` goes on when others are there" } else { "" };
        return Err(Error::Failed(format!(
            "the prompt was given up ({why}); `shoal why` shows what happened, `shoal peers` who is left{kept}"
        )));
    }
}

/// The user does not want it any more: the node must not keep it either. The answer's end says that it does not.
async fn cancel(home: &Path, caller: &mut Caller, session: Option<String>) {
    let Some(session) = session else { return };
    let ended = async {
        let told = control::one::<IgnoredAny>(home, &Question::Cancel { session }).await;
        let mut over = told.is_err();
        while !over {
            over = caller.event().await.is_none_or(|event| event.done().is_some());
        }
    };
    let _ = tokio::time::timeout(CANCELLING, ended).await;
}

/// Tells a person that an answer was interrupted and can be continued.
pub fn mention_unfinished(home: &Path) {
    if let Some(kept) = journal::unfinished(home).first() {
        eprintln!(
            "An answer was interrupted after {} tokens: `shoal resume` continues it, `shoal resume --forget` deletes it.",
            kept.ids.len()
        );
    }
}

/// Resolves when Ctrl-C was pressed; needs [`output::catch_interrupt`].
pub async fn interrupted() {
    while !output::interrupted() {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

/// The route in one line: `home 0..1 → 1f2e3d4c 1..5 → home 7..8`.
pub fn route_text(stages: impl IntoIterator<Item = StageRange>, me: &str) -> String {
    let stage = |stage: StageRange| {
        let name = if stage.node == me { "home" } else { short(&stage.node) };
        format!("{name} {}..{}", stage.start, stage.end)
    };
    stages.into_iter().map(stage).collect::<Vec<_>>().join(" → ")
}

/// The beginning of a node's name, as people tell nodes apart.
pub fn short(node: &str) -> &str {
    node.get(..8).unwrap_or(node)
}

/// Who checked what strangers computed.
pub fn checked_text(report: &PromptReport) -> String {
    let names = |nodes: &[String]| nodes.iter().map(|node| short(node)).collect::<Vec<_>>().join(", ");
    let Some(own) = &report.conducted else {
        let stages = report.timing.iter().flat_map(|timing| &timing.stages);
        let mut by: Vec<String> =
            stages.flat_map(|stage| stage.checked_by.iter().flatten().cloned()).collect();
        by.sort_unstable();
        by.dedup();
        return match by.is_empty() {
            true => "by no node".to_owned(),
            false => format!("by {}, as the node that answered says", names(&by)),
        };
    };
    let share = own.checks.verified * 100.0;
    let mut text = match own.checks.checked_by.is_empty() {
        true if share >= 100.0 => "no other node computed".to_owned(),
        true => "by no node".to_owned(),
        false => format!("{share:.0} % of what others computed, by {}", names(&own.checks.checked_by)),
    };
    for stage in report.timing.iter().flat_map(|timing| &timing.stages) {
        let Some(near) = &stage.near else { continue };
        text.push_str(&format!(
            "; {} computes other bits, {:.1} % off over {} positions",
            short(&stage.range.node),
            near.distance * 100.0,
            near.positions,
        ));
    }
    if !own.checks.convicted.is_empty() {
        text.push_str(&format!("; caught lying: {}", names(&own.checks.convicted)));
    }
    if let Some(token) = own.checks.integrity {
        text.push_str(&format!("; what was shown from token {token} on followed from a lie: run it again"));
    }
    text
}

/// What came of drafts.
pub fn drafts_text(drafts: &DraftReport) -> String {
    let by = drafts.by.iter().map(|(name, proposed, right)| format!("{name} {right} of {proposed} right"));
    format!("{:.2} tokens a pass; {}", drafts.tokens_per_pass(), by.collect::<Vec<_>>().join(", "))
}

/// One line about how it went.
pub fn summary_text(report: &PromptReport) -> String {
    let timing = report.timing.clone().unwrap_or_default();
    let own = report.conducted.as_deref();
    // A node that hands the prompt to another one predicts nothing.
    let predicted = |number: Option<f64>, digits: usize| {
        number.map_or_else(String::new, |number| format!(" (predicted {number:.digits$})"))
    };
    let longest = timing.faults.iter().map(|fault| fault.stall_ms).fold(0.0, f64::max);
    let survived = match timing.faults.len() {
        0 => String::new(),
        1 => format!("; survived 1 failure (longest stall {longest:.0} ms)"),
        n => format!("; survived {n} failures (longest stall {longest:.0} ms)"),
    };
    let shifts = context_shift::told(report.context_shifts);
    format!(
        "{} prompt tokens, {} generated; first token after {:.0} ms{}, {:.1} tok/s{}; {} out, {} in{survived}{shifts}",
        timing.prompt_tokens,
        report.completion_tokens,
        timing.ttft_ms,
        predicted(own.map(|own| own.predicted.ttft_ms), 0),
        timing.decode_tok_s,
        predicted(own.map(|own| own.predicted.tok_s), 1),
        output::human_bytes(own.map_or(0, |own| own.bytes_out)),
        output::human_bytes(own.map_or(0, |own| own.bytes_in)),
    )
}
