//! The same question over HTTP, after this node died in the middle of the answer.
//!
//! A client whose stream broke sends its request once more, with the same seed (and `Last-Event-ID`, so that the API
//! leaves out what it has seen). Where the [`journal`](crate::journal) has the beginning of that answer, its tokens are
//! said again as they were and computed as prefill; the rest follows. Otherwise the answer is computed from its
//! beginning, which takes longer and gives the same.
//!
//! Questions are the same when nothing that decides the tokens differs. Who may compute does not: the later request
//! says that, and every node gives the same bits.
//!
//! Limits: an answer that wants only its end is computed again. Log-probabilities are not kept, so such answers never
//! are.

use std::path::Path;

use api::choice::Draft;
use serde_json::{Value, json};

use crate::{
    events::{PromptEvent, PromptRequest, Sampling},
    journal::{Journal, Kept},
};

/// The interrupted answer of `model` to `ask` that `home` has, if `ask` came over HTTP.
pub(super) fn interrupted(home: &Path, model: &str, ask: &PromptRequest) -> Option<(Journal, Kept)> {
    if !ask.api.over_http {
        return None;
    }
    let (journal, kept) =
        Journal::again(home, |begun| begun.model == model && question(&begun.ask) == question(ask))?;
    if kept.ids.len() as u64 >= u64::from(ask.length.max_tokens) {
        journal.remove();
        return None;
    }
    Some((journal, kept))
}

/// What decides the tokens, as a journal gives it back: numbers too have been written and read.
fn question(ask: &PromptRequest) -> Value {
    // What drafts changes no token.
    let sampling = Sampling { draft: Draft::default(), ..ask.sampling.clone() };
    let question = json!({
        "prompt": ask.prompt, "wire": ask.wire, "kind": ask.kind.to_string(), "sampling": sampling, "seed": ask.seed,
        "length": ask.length, "stop": ask.stop, "api": ask.api,
    });
    serde_json::from_str(&question.to_string()).unwrap_or(question)
}

/// What the caller is told of the tokens that were said before.
pub(super) fn events(kept: &Kept) -> Vec<PromptEvent> {
    kept.ids.iter().zip(&kept.pieces).map(|(id, text)| PromptEvent::token(*id, text)).collect()
}

#[cfg(test)]
mod tests {
    use api::choice::WireChoice;
    use scheduler::SessionKind;
    use serde_json::json;

    use super::{events, interrupted};
    use crate::{
        control::{Mode, Shadow, Verify},
        events::{AnswerLength, Ends, ForApi, Leeway, PromptInput, PromptRequest, Sampling},
        journal::{Begun, Journal, unfinished},
    };

    fn ask(seed: u64) -> PromptRequest {
        PromptRequest {
            model: String::new(),
            prompt: PromptInput::Messages(json!([{ "role": "user", "content": "Name a fish." }])),
            mode: Mode::Open,
            leeway: Leeway::default(),
            wire: WireChoice::default(),
            kind: SessionKind::DEFAULT,
            trusted: Vec::new(),
            ends: Ends::default(),
            // Not the shortest way to write them: a journal may give back their neighbors.
            sampling: Sampling { temperature: Some(0.7), top_p: Some(0.1 + 0.2), ..Sampling::default() },
            seed,
            length: AnswerLength { max_tokens: 4, context_shift: false },
            stop: Vec::new(),
            verify: Verify::Sample,
            shadow: Shadow::All,
            api: ForApi { over_http: true, repeatable: true, ..ForApi::default() },
        }
    }

    #[test]
    fn the_same_question_goes_on_where_it_was_interrupted() {
        let home = tempfile::tempdir().unwrap();
        let home = home.path();
        let mut journal = Journal::create(home, "a1", &Begun::now(ask(1), "m".into(), None)).unwrap();
        journal.token(7, "A ");
        journal.token(8, "cod");
        assert!(interrupted(home, "m", &ask(1)).is_none(), "it is still running");
        drop(journal);

        assert!(interrupted(home, "m", &ask(2)).is_none());
        assert!(interrupted(home, "another", &ask(1)).is_none());
        let on_the_command_line = PromptRequest { api: ForApi::default(), ..ask(1) };
        assert!(interrupted(home, "m", &on_the_command_line).is_none());
        assert!(Journal::resume(home, None).is_err(), "`shoal resume` leaves it to who asked");

        let by_others = PromptRequest { mode: Mode::Local, verify: Verify::Strict, ..ask(1) };
        let (mut journal, kept) = interrupted(home, "m", &by_others).unwrap();
        let said = events(&kept);
        assert_eq!(json!(said[0]), json!({ "event": "token", "id": 7, "text": "A " }));
        assert_eq!((said.len(), kept.ids.as_slice(), kept.text.as_str()), (2, &[7, 8][..], "A cod"));
        journal.token(9, ".");
        journal.token(10, " Or");
        drop(journal);
        assert!(interrupted(home, "m", &ask(1)).is_none(), "only its end was missing");
        assert!(unfinished(home).is_empty());
    }
}
