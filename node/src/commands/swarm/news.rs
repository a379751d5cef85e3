//! What a node that joins tells its user, line by line.

use std::time::Duration;

use tokio::sync::mpsc;

use super::{ask::experts_of, look::words, remote};
use crate::{
    Result,
    cli::swarm::TalkArgs,
    daemon::Notice,
    output::{self, Waiting, human_bytes, say},
    reports::{FetchReport, JoinLine, ModelReport},
};

/// After so long without another node the user of a code hears of it.
const UNANSWERED: Duration = Duration::from_secs(15);

/// Shows what comes until the node has stopped, or its output is closed. `by_code` says that a code named nodes to join.
pub(super) async fn tell(mut news: mpsc::Receiver<Notice>, talk: TalkArgs, by_code: bool) {
    let mut waiting = Some(Waiting::start("loading the model"));
    let mut alone = by_code && !talk.quiet;
    let mut unanswered = std::pin::pin!(tokio::time::sleep(Duration::MAX));
    loop {
        let notice = tokio::select! {
            notice = news.recv() => notice,
            () = &mut unanswered, if alone => {
                alone = false;
                eprintln!(
                    "No node has answered yet: those that the code names may be gone, or out of reach from here. This node goes \
                     on trying; `shoal invite` makes a new code, `shoal doctor` looks at the way out."
                );
                continue;
            }
        };
        let Some(notice) = notice else { break };
        if matches!(notice, Notice::Ready(_)) {
            unanswered.as_mut().reset(tokio::time::Instant::now() + UNANSWERED);
        }
        alone &= !matches!(notice, Notice::Joined(_));
        waiting.take();
        let stopped = matches!(notice, Notice::Stopped);
        if show(notice, talk.json).is_err() || stopped {
            break;
        }
    }
}

fn show(notice: Notice, json: bool) -> Result<()> {
    if json {
        return output::json_line(&line(notice));
    }
    match notice {
        Notice::Ready(status) => {
            say!("This node is {}.", status.network.node);
            serving(&status.model)?;
            say!(
                "In another terminal: `shoal run --via swarm \"Hello\"`, `shoal peers`, `shoal invite`. Ctrl-C leaves."
            );
        }
        Notice::Fetching(report) => fetching(&report)?,
        Notice::Serving { status, arrived, .. } => {
            status.models.iter().filter(|model| model.called == arrived).try_for_each(serving)?;
        }
        Notice::Joined(node) => say!("+ {node}"),
        Notice::Left(node) => say!("- {node}"),
        Notice::Stopped => say!("Left the swarm."),
    }
    Ok(())
}

/// A notice as a program reads it.
fn line(notice: Notice) -> JoinLine {
    match notice {
        Notice::Ready(status) => JoinLine::Ready(status),
        Notice::Joined(node) => JoinLine::Joined { node: format!("{node:?}") },
        Notice::Left(node) => JoinLine::Left { node: format!("{node:?}") },
        Notice::Fetching(report) => JoinLine::Fetching(report),
        Notice::Serving { status, arrived, whole: true } => JoinLine::Serving { status, arrived },
        Notice::Serving { status, arrived, whole: false } => JoinLine::ServingPart { status, arrived },
        Notice::Stopped => JoinLine::Stopped,
    }
}

fn serving(model: &ModelReport) -> Result<()> {
    let (name, layers) = (&model.name, &model.layers);
    if let Some(trouble) = &model.device.device_trouble {
        say!("{trouble}.");
    } else if !model.device.device.is_empty() && !model.device.device.starts_with("cpu ") {
        say!("{name} is computed on {}, class {}.", model.device.device, model.device.class);
    }
    if layers.loaded.is_empty() {
        say!("Nothing of {name} is here yet; peers that hold it can answer with --mode open.");
        return Ok(());
    }
    if let Some(experts) = &model.experts {
        say!("Layers {} of {name}, experts {}.", words(&layers.loaded), experts_of(experts));
        return Ok(());
    }
    if layers.serving.is_empty() {
        say!("It serves nothing of {name}; layers {} are here for its own prompts.", words(&layers.loaded));
        return Ok(());
    }
    say!(
        "It serves layers {} of {name} ({:.2} ms a layer and token).",
        words(&layers.serving),
        model.speed.decode_ms_per_layer
    );
    Ok(())
}

/// The way of a model to this machine, one line each time something changes.
fn fetching(report: &FetchReport) -> Result<()> {
    match report {
        FetchReport::Found { model, id } => {
            say!("Found {model} (id {}).", id.get(..12).unwrap_or_default());
        }
        FetchReport::Looking { model } => say!("Looking for who has {model}."),
        FetchReport::Waiting { why, again_s: Some(seconds), .. } => {
            say!("Not yet: {why}. Again in {seconds} s.");
        }
        FetchReport::Waiting { why, again_s: None, .. } => say!("The model will not come: {why}."),
        FetchReport::Dropped { source, why, .. } => say!("{} is left: {why}", remote::short(source)),
        FetchReport::Fetched { plan, .. } => say!("Fetched {} in all.", human_bytes(plan.total_bytes)),
        FetchReport::Fetching { plan, progress: None } => say!(
            "Fetching layers {} of {}: {} of {} ({} are here).",
            plan.layers().join(" and "),
            plan.name,
            human_bytes(plan.missing_bytes),
            human_bytes(plan.file_bytes),
            human_bytes(plan.here_bytes())
        ),
        FetchReport::Fetching { plan, progress: Some(progress) } => say!(
            "{} of {}, {}/s, {} s left",
            human_bytes(progress.done_bytes),
            human_bytes(plan.total_bytes),
            human_bytes(progress.bytes_per_s),
            progress.eta_s
        ),
    }
    Ok(())
}
