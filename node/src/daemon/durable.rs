//! An answer that can be continued after a crash: what passes on its way to the caller is written down first.
//!
//! The tee sits between the prompt's task and the caller, so it sees exactly what the user sees: a token is in the
//! [`journal`](crate::journal) before it is shown, and the file is gone when the answer's end is. A caller that goes away
//! without a word (it was killed) leaves the file behind; one that cancels ([`Question::Cancel`](crate::control::Question))
//! does not, and neither does an answer that could not begin. A client over HTTP leaves none either: only the end of this
//! node does, and when the client asks the same of the next one the answer goes on (`again.rs`).

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{
    prompt::{PromptTask, Said},
    retry,
};
use crate::{
    clock,
    control::{Ask, LINES},
    journal::{Begun, Journal, Kept},
};

/// What passed.
struct Tee {
    /// Where answers are kept; `None` when they are not.
    home: Option<PathBuf>,
    ask: Ask,
    model: String,
    name: String,
    journal: Option<Journal>,
    ids: Vec<u32>,
    text: String,
    resumed: usize,
    /// What the caller is told once more, after the route.
    replay: Vec<Value>,
}

impl PromptTask {
    /// Answers a prompt, line by line, and keeps what a continuation needs in `home`.
    pub(super) async fn answer_kept(self, home: Option<PathBuf>, ask: Ask, lines: mpsc::Sender<Value>) {
        let model = self.model_of(&ask);
        let interrupted = home.as_deref().and_then(|home| retry::interrupted(home, &model, &ask));
        if let Some((journal, kept)) = interrupted {
            let replay = retry::lines(&kept);
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
    pub(super) async fn resume(self, home: &Path, name: Option<String>, lines: mpsc::Sender<Value>) {
        let (journal, kept) = match Journal::resume(home, name.as_deref()) {
            Ok(found) => found,
            Err(why) => return drop(lines.send(json!({ "error": why.to_string() })).await),
        };
        let Kept { name, begun: Begun { ask, model, rounding, .. }, ids, text, .. } = kept;
        if model != self.model_of(&ask) {
            let why = "this answer was begun with another model; start the node with that one, or say \
                       `shoal resume --forget`";
            return drop(lines.send(json!({ "error": why })).await);
        }
        let line = json!({ "event": "resumed", "session": name, "ids": ids, "text": text });
        if lines.send(line).await.is_err() {
            return;
        }
        if ids.len() as u64 >= u64::from(ask.max_tokens) {
            // Only its end was missing.
            journal.remove();
            let line = json!({ "event": "done", "finish_reason": "length", "session": name, "text": text, "rest": "",
                "completion_tokens": ids.len(), "resumed_tokens": ids.len(), "ids": ids, "end": true });
            return drop(lines.send(line).await);
        }
        let said = Said { ids: ids.clone(), rounding };
        let (resumed, home, replay) = (ids.len(), None, Vec::new());
        let tee =
            Tee { home, ask: ask.clone(), model, name, journal: Some(journal), ids, text, resumed, replay };
        self.through(tee, ask, said, lines).await;
    }

    async fn through(self, mut tee: Tee, ask: Ask, said: Said, lines: mpsc::Sender<Value>) {
        let (inner, mut pieces) = mpsc::channel(LINES);
        tokio::spawn(self.answer_after(ask, said, inner));
        loop {
            let line = tokio::select! {
                line = pieces.recv() => line,
                // The caller went away while nothing came.
                () = lines.closed() => return tee.left(),
            };
            let Some(mut line) = line else { return };
            tee.pass(&mut line);
            let before = if line["event"] == "route" { std::mem::take(&mut tee.replay) } else { Vec::new() };
            for line in std::iter::once(line).chain(before) {
                if lines.send(line).await.is_err() {
                    // Closing `pieces` cancels the prompt.
                    return tee.left();
                }
            }
        }
    }
}

impl Tee {
    fn pass(&mut self, line: &mut Value) {
        match line["event"].as_str() {
            // A second route before the first token replaces the first: its nodes were crowded.
            Some("route") if self.journal.is_none() || self.ids.is_empty() => self.begin(line),
            Some("token") => {
                let id = line["id"].as_u64().and_then(|id| u32::try_from(id).ok()).unwrap_or_default();
                let text = line["text"].as_str().unwrap_or_default();
                if let Some(journal) = &mut self.journal {
                    journal.token(id, text);
                }
                self.ids.push(id);
                self.text.push_str(text);
            }
            Some("done") => self.end(line),
            // What came of checking it, after its end.
            Some("checked") if self.resumed > 0 => line["completion_tokens"] = json!(self.ids.len()),
            _ => {}
        }
    }

    /// The caller went away. What was written stays, unless it can ask the same again.
    fn left(&mut self) {
        if let Some(journal) = self.journal.take_if(|_| self.ask.api.over_http) {
            journal.remove();
        }
    }

    fn begin(&mut self, route: &Value) {
        let Some(home) = &self.home else { return };
        if let Some(given_back) = self.journal.take() {
            given_back.remove();
        }
        // Two answers never share a session; one that somebody else conducts has none here.
        let drawn = || format!("{:016x}", self.ask.seed ^ clock::unix_ms());
        self.name = route["session"].as_str().map_or_else(drawn, str::to_owned);
        let cuts = route["stages"].as_array().into_iter().flatten().skip(1);
        let cuts = cuts.filter_map(|stage| stage["start"].as_u64().map(|start| start as u32)).collect();
        let rounding = (self.ask.wire == "q8" && route["session"].is_string()).then_some(cuts);
        let begun = Begun::now(self.ask.clone(), self.model.clone(), rounding);
        match Journal::create(home, &self.name, &begun) {
            Ok(journal) => self.journal = Some(journal),
            Err(error) => tracing::warn!(%error, "this answer could not be continued after a crash"),
        }
    }

    fn end(&mut self, line: &mut Value) {
        if line["finish_reason"] == "failed" {
            // Nothing is lost: it can be asked for again when others are there.
            if self.journal.is_some() {
                line["kept"] = json!(self.name);
            }
        } else if let Some(journal) = self.journal.take() {
            journal.remove();
        }
        if self.resumed > 0 {
            self.text.push_str(line["rest"].as_str().unwrap_or_default());
            line["session"] = json!(self.name);
            line["completion_tokens"] = json!(self.ids.len());
            line["resumed_tokens"] = json!(self.resumed);
            line["ids"] = json!(self.ids);
            line["text"] = json!(self.text);
        }
    }
}
