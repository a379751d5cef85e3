//! An answer that can be continued after a crash: what passes on its way to the caller is written down first.
//!
//! The tee sits between the prompt's task and the caller, so it sees exactly what the user sees: a token is in the
//! [`journal`](crate::journal) before it is shown, and the file is gone when the answer's end is. A caller that goes away
//! without a word (it was killed) leaves the file behind; one that cancels ([`Question::Cancel`](crate::control::Question))
//! does not, and neither does an answer that could not begin. A client over HTTP leaves none either: only the end of this
//! node does, and when the client asks the same of the next one the answer goes on (`retry.rs`).

use std::path::{Path, PathBuf};

use api::choice::Wire;
use tokio::sync::mpsc;

use super::{
    answer::answer_after,
    prompt::{PromptTask, Said},
    retry,
};
use crate::{
    clock,
    control::{LINES, Line},
    events::{FinishReason, PromptEvent, PromptReport, PromptRequest, Refusal, Resumed, RouteEvent},
    journal::{Begun, Journal, Kept},
};

/// What passed.
struct Tee {
    /// Where answers are kept; `None` when they are not.
    home: Option<PathBuf>,
    ask: PromptRequest,
    model: String,
    name: String,
    journal: Option<Journal>,
    ids: Vec<u32>,
    text: String,
    resumed: usize,
    /// What the caller is told once more, after the route.
    replay: Vec<PromptEvent>,
}

impl PromptTask {
    /// Answers a prompt, line by line, and keeps what a continuation needs in `home`.
    pub(super) async fn answer_kept(
        self,
        home: Option<PathBuf>,
        ask: PromptRequest,
        lines: mpsc::Sender<Line>,
    ) {
        let model = self.model_of(&ask);
        let interrupted = home.as_deref().and_then(|home| retry::interrupted(home, &model, &ask));
        if let Some((journal, kept)) = interrupted {
            let replay = retry::events(&kept);
            let Kept { name, begun, ids, text, .. } = kept;
            let said = Said { ids: ids.clone(), rounding: begun.rounding };
            let (resumed, ask_too, journal) = (ids.len(), ask.clone(), Some(journal));
            let tee = Tee { home: None, ask: ask_too, model, name, journal, ids, text, resumed, replay };
            return self.through(tee, ask, said, lines).await;
        }
        let tee = Tee {
            home,
            model,
            ask: ask.clone(),
            name: String::new(),
            journal: None,
            ids: Vec::new(),
            text: String::new(),
            resumed: 0,
            replay: Vec::new(),
        };
        self.through(tee, ask, Said::default(), lines).await;
    }

    /// Continues an interrupted answer.
    pub(super) async fn resume(self, home: &Path, name: Option<String>, lines: mpsc::Sender<Line>) {
        let (journal, kept) = match Journal::resume(home, name.as_deref()) {
            Ok(found) => found,
            Err(why) => return drop(lines.send(Refusal::new(why.to_string()).into()).await),
        };
        let Kept { name, begun: Begun { ask, model, rounding, .. }, ids, text, .. } = kept;
        if model != self.model_of(&ask) {
            let why = "this answer was begun with another model; start the node with that one, or say \
                       `shoal resume --forget`";
            return drop(lines.send(Refusal::new(why).into()).await);
        }
        let resumed = Resumed { session: name.clone(), ids: ids.clone(), text: text.clone() };
        if lines.send(PromptEvent::Resumed(resumed).into()).await.is_err() {
            return;
        }
        if ids.len() as u64 >= u64::from(ask.length.max_tokens) {
            // Only its end was missing.
            journal.remove();
            let report = PromptReport {
                session: Some(name),
                finish_reason: FinishReason::Length,
                text,
                completion_tokens: ids.len(),
                resumed_tokens: Some(ids.len()),
                ids,
                end: true,
                ..PromptReport::default()
            };
            return drop(lines.send(PromptEvent::Done(Box::new(report)).into()).await);
        }
        let said = Said { ids: ids.clone(), rounding };
        let (resumed, home, replay) = (ids.len(), None, Vec::new());
        let tee =
            Tee { home, ask: ask.clone(), model, name, journal: Some(journal), ids, text, resumed, replay };
        self.through(tee, ask, said, lines).await;
    }

    async fn through(self, mut tee: Tee, ask: PromptRequest, said: Said, lines: mpsc::Sender<Line>) {
        let (inner, mut pieces) = mpsc::channel(LINES);
        tokio::spawn(answer_after(self, ask, said, inner));
        loop {
            let event = tokio::select! {
                event = pieces.recv() => event,
                // The caller went away while nothing came.
                () = lines.closed() => return tee.left(),
            };
            let Some(mut event) = event else { return };
            tee.pass(&mut event);
            let routed = matches!(event, PromptEvent::Route(_));
            let after = if routed { std::mem::take(&mut tee.replay) } else { Vec::new() };
            for event in std::iter::once(event).chain(after) {
                if lines.send(event.into()).await.is_err() {
                    // Closing `pieces` cancels the prompt.
                    return tee.left();
                }
            }
        }
    }
}

impl Tee {
    fn pass(&mut self, event: &mut PromptEvent) {
        match event {
            // A second route before the first token replaces the first: its nodes were crowded.
            PromptEvent::Route(route) if self.journal.is_none() || self.ids.is_empty() => self.begin(route),
            PromptEvent::Token(token) => {
                if let Some(journal) = &mut self.journal {
                    journal.token(token.id, &token.text);
                }
                self.ids.push(token.id);
                self.text.push_str(&token.text);
            }
            PromptEvent::Done(report) => self.end(report),
            // What came of checking it, after its end.
            PromptEvent::Checked(report) if self.resumed > 0 => report.completion_tokens = self.ids.len(),
            _ => {}
        }
    }

    /// The caller went away. What was written stays, unless it can ask the same again.
    fn left(&mut self) {
        if let Some(journal) = self.journal.take_if(|_| self.ask.api.over_http) {
            journal.remove();
        }
    }

    fn begin(&mut self, route: &RouteEvent) {
        let Some(home) = &self.home else { return };
        if let Some(given_back) = self.journal.take() {
            given_back.remove();
        }
        // Two answers never share a session; one that another node drives has none here.
        let drawn = || format!("{:016x}", self.ask.seed ^ clock::unix_ms());
        self.name = route.session().map_or_else(drawn, str::to_owned);
        // What was rounded is rounded there again, whatever the next route is; what was not stays exact.
        let own = route.own.as_ref().filter(|_| self.ask.wire.form() != Wire::Raw);
        let rounding = own.map(|own| own.cuts.clone());
        let begun = Begun::now(self.ask.clone(), self.model.clone(), rounding);
        match Journal::create(home, &self.name, &begun) {
            Ok(journal) => self.journal = Some(journal),
            Err(error) => tracing::warn!(%error, "this answer could not be continued after a crash"),
        }
    }

    fn end(&mut self, report: &mut PromptReport) {
        if report.finish_reason == FinishReason::Failed {
            // Nothing is lost: it can be asked for again when others are there.
            if self.journal.is_some() {
                report.kept = Some(self.name.clone());
            }
        } else if let Some(journal) = self.journal.take() {
            journal.remove();
        }
        if self.resumed > 0 {
            self.text.push_str(&report.rest);
            report.session = Some(self.name.clone());
            report.completion_tokens = self.ids.len();
            report.resumed_tokens = Some(self.resumed);
            report.ids.clone_from(&self.ids);
            report.text.clone_from(&self.text);
        }
    }
}
