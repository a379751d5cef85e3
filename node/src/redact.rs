//! What carries text, token ids or logits does not print them: `Debug` of each such type says how much it carries.
//!
//! A log line, a panic message or a trace that names one of these values is harmless by construction, whichever code writes it.
//! The implementations are collected here so that one look shows what is covered; a new type that carries a prompt
//! belongs here and into the test below.

use std::fmt::{Debug, Formatter, Result};

use crate::{
    events::{PromptEvent, PromptInput, PromptReport, PromptRequest, Sampling, Token},
    inference::local::prompt::{Event, Request, Summary},
    request::{Progress, Report},
    telemetry::Hidden,
    worker::{Body, Conduct, JobInput, Prompt, TextKind, ipc},
};

impl Debug for PromptRequest {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("PromptRequest")
            .field("model", &self.model)
            .field("prompt", &self.prompt)
            .field("mode", &self.mode)
            .field("wire", &self.wire)
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

impl Debug for PromptInput {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Text(text) => f.debug_tuple("Text").field(&Hidden::text(text)).finish(),
            Self::Tokens { ids } => f.debug_tuple("Tokens").field(&Hidden::ids(ids)).finish(),
            Self::Messages(messages) => {
                f.debug_tuple("Messages").field(&Hidden::text(&messages.to_string())).finish()
            }
        }
    }
}

impl Debug for Sampling {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Sampling").field("temperature", &self.temperature).finish_non_exhaustive()
    }
}

impl Debug for PromptEvent {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Resumed(resumed) => {
                f.debug_tuple("Resumed").field(&Hidden::ids(&resumed.ids)).finish_non_exhaustive()
            }
            Self::Route(route) => f.debug_tuple("Route").field(&route.stages().collect::<Vec<_>>()).finish(),
            Self::Pooled { values } => {
                f.debug_tuple("Pooled").field(&Hidden(values.len(), "values")).finish()
            }
            Self::Token(token) => f.debug_tuple("Token").field(token).finish(),
            Self::Pace { stage_ms } => f.debug_struct("Pace").field("stage_ms", stage_ms).finish(),
            Self::Moved { failed, why, .. } => {
                f.debug_struct("Moved").field("failed", failed).field("why", why).finish_non_exhaustive()
            }
            Self::Integrity { token, node, .. } => {
                f.debug_struct("Integrity").field("token", token).field("node", node).finish_non_exhaustive()
            }
            Self::Done(report) => f.debug_tuple("Done").field(report).finish(),
            Self::Checked(report) => f.debug_tuple("Checked").field(report).finish(),
            Self::Prompt { tokens } => {
                f.debug_tuple("Prompt").field(&Hidden(tokens.len(), "tokens")).finish()
            }
            Self::Failed(refusal) => f.debug_tuple("Failed").field(refusal).finish(),
        }
    }
}

impl Debug for Token {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Token").field("text", &Hidden::text(&self.text)).finish_non_exhaustive()
    }
}

impl Debug for PromptReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("PromptReport")
            .field("session", &self.session)
            .field("finish_reason", &self.finish_reason)
            .field("text", &Hidden::text(&self.text))
            .field("ids", &Hidden::ids(&self.ids))
            .finish_non_exhaustive()
    }
}

impl Debug for Prompt {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Prompt").field("text", &Hidden::text(&self.text)).field("kind", &self.kind).finish()
    }
}

impl Debug for TextKind {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Chat { tools, extra } => f
                .debug_struct("Chat")
                .field("tools", &tools.as_deref().map(Hidden::text))
                .field("extra", &extra.as_deref().map(Hidden::text))
                .finish(),
            Self::Raw { bos, special } => {
                f.debug_struct("Raw").field("bos", bos).field("special", special).finish()
            }
            Self::Document { query, truncate } => f
                .debug_struct("Document")
                .field("query", &Hidden::text(query))
                .field("truncate", truncate)
                .finish(),
        }
    }
}

impl Debug for ipc::Conduct {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Conduct").field("stop", &Hidden::ids(&self.stop)).finish_non_exhaustive()
    }
}

impl Debug for ipc::Sampled {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Sampled").field("position", &self.position).finish_non_exhaustive()
    }
}

impl Debug for ipc::DraftIds {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        Debug::fmt(&Hidden(self.0.len(), "ids"), f)
    }
}

impl Debug for ipc::Foreseen {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        Debug::fmt(&Hidden(self.guesses.len(), "ids"), f)
    }
}

impl Debug for ipc::Top {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Top").finish_non_exhaustive()
    }
}

impl Debug for Conduct {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Conduct")
            .field("stop", &Hidden::ids(&self.stop))
            .field("history", &Hidden::ids(&self.history))
            .field("prompt_tokens", &self.prompt_tokens)
            .finish_non_exhaustive()
    }
}

impl Debug for JobInput {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Tokens(ids) => f.debug_tuple("Tokens").field(&Hidden::ids(ids)).finish(),
            Self::Wire(wire, bytes) => {
                f.debug_tuple("Wire").field(wire).field(&Hidden(bytes.len(), "bytes")).finish()
            }
        }
    }
}

impl Debug for Body {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Activations(wire, bytes) => {
                f.debug_tuple("Activations").field(wire).field(&Hidden(bytes.len(), "bytes")).finish()
            }
            Self::Sampled(sampled) => f.debug_tuple("Sampled").field(sampled).finish(),
            Self::NeedReplay { have } => f.debug_struct("NeedReplay").field("have", have).finish(),
            Self::Failed(why) => f.debug_tuple("Failed").field(why).finish(),
            Self::Nothing => f.write_str("Nothing"),
        }
    }
}

impl Debug for Progress {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Token { position, text, .. } => f
                .debug_struct("Token")
                .field("position", position)
                .field("text", &Hidden::text(text))
                .finish_non_exhaustive(),
            Self::Pace { stage_ms } => f.debug_struct("Pace").field("stage_ms", stage_ms).finish(),
            Self::Moved { failed, why, segments } => f
                .debug_struct("Moved")
                .field("failed", failed)
                .field("why", why)
                .field("segments", segments)
                .finish(),
            Self::Crowded => f.write_str("Crowded"),
            Self::Integrity { position, node } => {
                f.debug_struct("Integrity").field("position", position).field("node", node).finish()
            }
            Self::Answered(report) => f.debug_tuple("Answered").field(report).finish(),
            Self::Done(report) => f.debug_tuple("Done").field(report).finish(),
        }
    }
}

impl Debug for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Report")
            .field("end", &self.end)
            .field("rest", &Hidden::text(&self.said.rest))
            .field("ids", &Hidden::ids(&self.said.ids))
            .field("segments", &self.segments)
            .field("ttft_ms", &self.times.ttft_ms)
            .field("faults", &self.disturbances.faults)
            .field("hedged", &self.disturbances.hedged)
            .field("wire_bytes", &self.wire_bytes)
            .finish_non_exhaustive()
    }
}

impl Debug for Request {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Request")
            .field("prompt", &Hidden::ids(&self.prompt))
            .field("max_tokens", &self.max_tokens)
            .field("stop", &Hidden::ids(&self.stop))
            .finish_non_exhaustive()
    }
}

impl Debug for Event<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Prefill { done, total } => {
                f.debug_struct("Prefill").field("done", done).field("total", total).finish()
            }
            Self::Token { text, .. } => {
                f.debug_struct("Token").field("text", &Hidden::text(text)).finish_non_exhaustive()
            }
            Self::Text { text } => f.debug_struct("Text").field("text", &Hidden::text(text)).finish(),
        }
    }
}

impl Debug for Summary {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Summary")
            .field("finish", &self.finish)
            .field("ids", &Hidden::ids(&self.ids))
            .field("text", &Hidden::text(&self.text))
            .field("prompt_tokens", &self.prompt_tokens)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        control::{Mode, Question},
        events::Resumed,
        inference::local::prompt::Finish,
    };

    const WORD: &str = "canary";
    const ID: u32 = 48_151;

    #[test]
    fn nothing_that_carries_a_prompt_prints_it() {
        let ask = PromptRequest {
            prompt: PromptInput::Messages(json!([{ "role": "user", "content": WORD }])),
            stop: vec![WORD.into()],
            sampling: Sampling { logit_bias: vec![(ID, 1.0)], ..Sampling::default() },
            ..serde_json::from_value(
                json!({ "prompt": "", "mode": "local", "wire": "raw", "head": 1, "tail": 1,
                "sampling": {}, "seed": 0, "max_tokens": 1 }),
            )
            .unwrap()
        };
        assert_eq!(ask.mode, Mode::Local);
        let conduct = Conduct { stop: vec![WORD.into()], history: vec![ID], ..Conduct::default() };
        let sampled = Body::Sampled(vec![ipc::Sampled {
            position: 3,
            id: ID,
            text: WORD.into(),
            stop: false,
            met: Some(WORD.into()),
            ends_turn: false,
            bytes: WORD.as_bytes().to_vec(),
            logprob: None,
            top: Vec::new(),
            forced: ipc::DraftIds(vec![ID]),
            foreseen: ipc::Foreseen::default(),
            prompt: Vec::new(),
            pooled: vec![ID as f32],
        }]);
        let token = Progress::Token {
            position: 3,
            id: ID,
            text: WORD.into(),
            bytes: WORD.as_bytes().to_vec(),
            logprob: None,
            top: Vec::new(),
            prompt: Vec::new(),
            pooled: vec![ID as f32],
        };
        let summary = Summary {
            finish: Finish::Stop,
            ids: vec![ID],
            text: WORD.into(),
            prompt_tokens: 1,
            reused_tokens: 0,
            prefill: std::time::Duration::ZERO,
            steps: Vec::new(),
            drafts: Default::default(),
            context_shifts: 0,
        };
        let resumed = Resumed { session: "00".into(), ids: vec![ID], text: WORD.into() };
        let report =
            PromptReport { text: WORD.into(), rest: WORD.into(), ids: vec![ID], ..PromptReport::default() };
        let tools = Prompt {
            text: WORD.into(),
            kind: TextKind::Chat { tools: Some(WORD.into()), extra: Some(WORD.into()) },
        };
        let event = Event::Token { id: ID, text: WORD, logprob: None, top: &[] };
        let printed = [
            format!("{ask:?}"),
            format!("{:?}", Question::Generate(Box::new(ask.clone()))),
            format!("{:?} {:?}", ask.sampling, PromptInput::Text(WORD.into())),
            format!("{:?}", PromptInput::Tokens { ids: vec![ID] }),
            format!("{:?}", PromptEvent::token(ID, WORD)),
            format!("{:?}", PromptEvent::Resumed(resumed)),
            format!("{:?}", PromptEvent::Done(Box::new(report))),
            format!("{tools:?}"),
            format!("{conduct:?}"),
            format!("{:?}", JobInput::Tokens(vec![ID])),
            format!("{sampled:?}"),
            format!("{token:?}"),
            format!("{summary:?}"),
            format!("{event:?} {:?}", Event::Text { text: WORD }),
        ];
        for text in printed {
            assert!(!text.contains(WORD) && !text.contains(&ID.to_string()), "{text}");
        }
    }
}
