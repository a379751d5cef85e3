//! The marks behind which models write calls.

use super::{Form, keyed, sections};

/// A mark that begins a call, or a section of calls.
#[derive(Debug)]
pub(super) struct Mark {
    pub text: &'static str,
    /// What ends it; a mark without an end reaches to the end of the answer.
    pub end: Option<&'static str>,
    pub body: Body,
    /// What may stand between the arguments of a call and the next call or the end of the mark.
    pub closes: &'static [&'static str],
    /// What begins a further call in the same mark.
    pub opens: &'static [&'static str],
}

/// What stands behind a mark.
#[derive(Clone, Copy, Debug)]
pub(super) enum Body {
    /// JSON, `f[ARGS]{...}` or a Python list of calls.
    Json,
    /// JSON, `<function=f>` with parameters, or a name with keys and values.
    Tagged,
    /// `f>`, then JSON or parameters.
    Function,
    /// Calls between marks of their own, with arguments in JSON.
    Section(&'static sections::Section),
    /// Calls between tags of their own, with parameters in tags.
    Keyed(&'static keyed::Syntax),
}

pub(super) const MARKS: &[Mark] = &[
    Mark {
        text: "<tool_call>",
        end: Some("</tool_call>"),
        body: Body::Tagged,
        closes: &["</function>"],
        opens: &["{", "<function="],
    },
    Mark { text: "<function=", end: Some("</function>"), body: Body::Function, closes: &[], opens: &[] },
    Mark { text: "<|python_tag|>", end: None, body: Body::Json, closes: &[], opens: &["{"] },
    Mark {
        text: "<|python_start|>",
        end: Some("<|python_end|>"),
        body: Body::Json,
        closes: &[],
        opens: &["{"],
    },
    Mark { text: "[TOOL_CALLS]", end: None, body: Body::Json, closes: &[], opens: &["{"] },
    Mark {
        text: "<｜tool▁calls▁begin｜>",
        end: Some("<｜tool▁calls▁end｜>"),
        body: Body::Section(&sections::DEEPSEEK),
        closes: &["```", sections::DEEPSEEK.end],
        opens: &[sections::DEEPSEEK.begin],
    },
    Mark {
        text: "<|tool_calls_section_begin|>",
        end: Some("<|tool_calls_section_end|>"),
        body: Body::Section(&sections::KIMI),
        closes: &[sections::KIMI.end],
        opens: &[sections::KIMI.begin],
    },
    Mark {
        text: "<minimax:tool_call>",
        end: Some("</minimax:tool_call>"),
        body: Body::Keyed(&keyed::MINIMAX),
        closes: &["</invoke>"],
        opens: &["<invoke name="],
    },
];

impl Form {
    fn mark(self) -> Option<&'static Mark> {
        match self {
            Self::Marked(mark) => MARKS.get(mark),
            Self::Bare => None,
        }
    }

    pub(super) fn end(self) -> Option<&'static str> {
        self.mark()?.end
    }

    pub(super) fn body(self) -> Body {
        self.mark().map_or(Body::Json, |mark| mark.body)
    }

    pub(super) fn closes(self) -> &'static [&'static str] {
        self.mark().map_or(&[], |mark| mark.closes)
    }

    pub(super) fn opens(self) -> &'static [&'static str] {
        self.mark().map_or(&["{"], |mark| mark.opens)
    }
}
