//! An answer from its first look for a route to its end, beyond the context where the request goes on there.
//!
//! Each stretch up to a full context is a prompt of its own to the swarm ([`crate::context_shift::Window`]): a session, a route, checks and
//! receipts. The caller sees one answer.

use api::choice::Wire;
use scheduler::{NodeId, lease::LOOKS};
use tokio::sync::mpsc;

use super::{
    params::Trouble,
    prompt::{Looked, NEWS, PromptTask, Said},
};
use crate::{
    events::{PromptEvent, PromptReport, PromptRequest},
    feedback::Waiting,
};

/// Answers a prompt, line by line, going on after what was said before.
pub(super) async fn answer_after(
    task: PromptTask,
    ask: PromptRequest,
    said: Said,
    lines: mpsc::Sender<PromptEvent>,
) {
    let task = task.about(&ask.model);
    let ended = if task.is_own(&ask) && task.local.ready.has_ends() {
        answer(&task, &ask, said, &lines).await
    } else {
        task.elsewhere(ask, said, &lines).await
    };
    if let Err(trouble) = ended {
        let _ = lines.send(PromptEvent::Failed(trouble.0)).await;
    }
}

/// Runs `ask` as a challenge of `node`: nothing is shown, what comes of it is remembered as of any prompt.
pub(crate) fn challenge(mut task: PromptTask, node: NodeId, ask: PromptRequest) {
    task.prove = Some(node);
    task.memory = None;
    let (lines, mut answer) = mpsc::channel(NEWS);
    tokio::spawn(answer_after(task, ask, Said::default(), lines));
    tokio::spawn(async move {
        while let Some(event) = answer.recv().await {
            if let PromptEvent::Failed(why) = event {
                tracing::info!(%node, why = why.error, "no challenge was possible");
            }
        }
    });
}

/// Answers it where the ends of its model are here, stretch by stretch.
async fn answer(
    task: &PromptTask,
    ask: &PromptRequest,
    mut said: Said,
    lines: &mpsc::Sender<PromptEvent>,
) -> Result<(), Trouble> {
    let mut before: Option<Box<PromptReport>> = None;
    while let Some(report) = stretch(task, ask, (&said, before.as_deref()), lines).await? {
        let told = before.map_or(0, |before| before.ids.len());
        said.ids.extend_from_slice(&report.ids[told..]);
        // What was rounded is rounded there again, whatever the next route is; what was not stays exact.
        let own = report.conducted.as_ref().filter(|own| own.wire != Wire::Raw);
        said.rounding = own.map(|own| own.cuts.clone());
        before = Some(report);
    }
    Ok(())
}

/// Answers it up to its end, or up to the end of the context where it goes on: then this was said so far.
async fn stretch(
    task: &PromptTask,
    ask: &PromptRequest,
    said: (&Said, Option<&PromptReport>),
    lines: &mpsc::Sender<PromptEvent>,
) -> Result<Option<Box<PromptReport>>, Trouble> {
    let mut waiting = Waiting::new(task.feedback.clone(), task.local.ready.model);
    let mut looks = 0;
    // What has begun does not go behind others.
    let mut full = said.1.is_none() && waiting.others();
    loop {
        // While every node is full it waits in line.
        if full && !lines.is_closed() {
            tokio::select! {
                room = waiting.room() => room.map_err(Trouble::shed)?,
                () = lines.closed() => {}
            }
        }
        let planned = match task.prepare(ask, said.0, true).await {
            Err(trouble) if trouble.is_busy() && !lines.is_closed() => {
                full = true;
                continue;
            }
            prepared => prepared?,
        };
        full = match task.look(planned, ask, said, looks, &mut waiting, lines).await? {
            Looked::Crowded => false,
            Looked::Full => true,
            Looked::Answered => return Ok(None),
            Looked::Shifted(report) => return Ok(Some(report)),
        };
        // The scheduler takes the last look as it is.
        looks = if full { looks } else { (looks + 1).min(LOOKS - 1) };
    }
}
