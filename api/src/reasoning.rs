//! Tells what a model thinks before it answers apart from the answer, as the text comes.
//!
//! Two forms are known, by the marks in a model's chat template:
//!
//! | form | what it looks like |
//! |---|---|
//! | marked | one block between a pair of [`PAIRS`] at the beginning of the answer; templates of models that always think leave it open at the end of the prompt |
//! | channels (gpt-oss) | `<|channel|>analysis<|message|>...<|end|>`, then `<|channel|>final<|message|>...`; a call is `<|channel|>commentary to=functions.f ...<|message|>{...}<|call|>` |
//!
//! Text that may be the beginning of a mark is held back until it is known to be one or not; white space around a block
//! belongs to neither side. A call in a channel is given on in the form that [`crate::calls`] reads.

/// What begins and ends a block of reasoning.
pub const PAIRS: &[(&str, &str)] =
    &[("<think>", "</think>"), ("<seed:think>", "</seed:think>"), ("[THINK]", "[/THINK]")];
const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
/// What ends the message of a channel, or begins the next.
const MESSAGE_ENDS: &[&str] = &["<|end|>", "<|return|>", "<|call|>", "<|start|>", CHANNEL];
const RECIPIENT: &str = "to=functions.";
/// A longer header of a channel is text.
const MAX_HEADER_BYTES: usize = 1 << 10;

/// How a model marks its reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Marked,
    Channels,
}

impl Form {
    /// The form whose marks `template` has, if any.
    pub(crate) fn of(template: &str) -> Option<Self> {
        if template.contains(CHANNEL) {
            return Some(Self::Channels);
        }
        PAIRS.iter().any(|(begin, _)| template.contains(begin)).then_some(Self::Marked)
    }
}

/// Whether a prompt that ends with `tail` leaves a block of reasoning open, so that the answer begins inside it.
#[must_use]
pub fn is_open(tail: &str) -> bool {
    let tail = tail.trim_end();
    PAIRS.iter().any(|(begin, _)| tail.ends_with(begin))
}

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Reasoning(String),
    Text(String),
}

/// Where the text stands that comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing but white space came.
    Before,
    /// In a block that ends with this mark, or with that of any pair.
    Inside(Option<&'static str>),
    /// Behind a block: white space is left out until something else comes.
    Behind,
    /// In the answer, which has no marks.
    Answer,
    /// Between messages of channels, or in the header of one.
    Header,
    /// In a message of a channel.
    Message(Body),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Body {
    Reasoning,
    Text,
    Call,
}

/// Separates reasoning from the answer.
#[derive(Debug)]
pub(crate) struct Splitter {
    state: State,
    /// What came and is not told yet.
    held: String,
    /// Whether any reasoning was told: white space before it is left out.
    told: bool,
}

impl Splitter {
    /// For an answer in `form`, which begins inside a block of reasoning if `open`.
    pub(crate) fn new(form: Option<Form>, open: bool) -> Self {
        let state = match form {
            _ if open => State::Inside(None),
            Some(Form::Marked) => State::Before,
            Some(Form::Channels) => State::Header,
            None => State::Answer,
        };
        Self { state, held: String::new(), told: false }
    }

    /// Whether what comes next is reasoning, as far as can be said.
    pub(crate) fn reasons(&self) -> bool {
        matches!(self.state, State::Inside(_) | State::Message(Body::Reasoning))
    }

    /// Takes `text` and tells what is certain.
    pub(crate) fn push(&mut self, text: &str) -> Vec<Told> {
        self.held.push_str(text);
        let mut told = Vec::new();
        while self.step(&mut told) {}
        told
    }

    /// The end: tells what was held back.
    pub(crate) fn finish(&mut self) -> Vec<Told> {
        let mut told = Vec::new();
        let rest = std::mem::take(&mut self.held);
        match std::mem::replace(&mut self.state, State::Answer) {
            State::Inside(_) | State::Message(Body::Reasoning) => self.reasoning(rest.trim_end(), &mut told),
            State::Message(Body::Call) => tell(Told::Text(format!("{rest}</function>")), &mut told),
            // A header that is none yet says nothing; anything else is the text it is.
            State::Header if rest.starts_with("<|") => {}
            State::Before | State::Behind | State::Answer | State::Header | State::Message(Body::Text) => {
                tell(Told::Text(rest), &mut told);
            }
        }
        told
    }

    /// Whether there may be more to tell.
    fn step(&mut self, told: &mut Vec<Told>) -> bool {
        match self.state {
            State::Before => self.before(),
            State::Inside(end) => self.inside(end, told),
            State::Behind => {
                self.held.drain(..self.held.len() - self.held.trim_start().len());
                let some = !self.held.is_empty();
                if some {
                    self.state = State::Answer;
                }
                some
            }
            State::Answer => {
                tell(Told::Text(std::mem::take(&mut self.held)), told);
                false
            }
            State::Header => self.header(told),
            State::Message(body) => self.message(body, told),
        }
    }

    fn before(&mut self) -> bool {
        let text = self.held.trim_start();
        if let Some((begin, end)) = PAIRS.iter().find(|(begin, _)| text.starts_with(begin)) {
            let from = self.held.len() - text.len() + begin.len();
            self.held.drain(..from);
            self.state = State::Inside(Some(end));
            return true;
        }
        if PAIRS.iter().any(|(begin, _)| begin.starts_with(text)) {
            return false;
        }
        self.state = State::Answer;
        true
    }

    fn inside(&mut self, end: Option<&'static str>, told: &mut Vec<Told>) -> bool {
        let ends = PAIRS.iter().map(|(_, mark)| *mark).filter(|mark| end.is_none_or(|end| end == *mark));
        let ends: Vec<&str> = ends.collect();
        match first(&self.held, &ends) {
            Some((at, mark)) => {
                let rest = self.held.split_off(at + mark.len());
                let block = std::mem::replace(&mut self.held, rest);
                self.reasoning(block[..at].trim_end(), told);
                self.state = State::Behind;
                true
            }
            None => {
                self.certain(&ends, told, Body::Reasoning);
                false
            }
        }
    }

    fn header(&mut self, told: &mut Vec<Told>) -> bool {
        if let Some(at) = self.held.find(MESSAGE) {
            let rest = self.held.split_off(at + MESSAGE.len());
            let header = std::mem::replace(&mut self.held, rest);
            let channel = header.find(CHANNEL).map_or("", |from| &header[from + CHANNEL.len()..at]);
            let recipient = header.find(RECIPIENT).map(|from| &header[from + RECIPIENT.len()..at]);
            let body = if let Some(name) = recipient {
                let name = name.split(|c: char| c.is_whitespace() || c == '<').next().unwrap_or_default();
                tell(Told::Text(format!("<function={name}>")), told);
                Body::Call
            } else if channel.trim_start().starts_with("analysis") {
                Body::Reasoning
            } else {
                Body::Text
            };
            self.state = State::Message(body);
            return true;
        }
        let begins = |mark: &str| self.held.starts_with(mark) || mark.starts_with(self.held.as_str());
        let may_be = self.held.len() <= MAX_HEADER_BYTES && MESSAGE_ENDS.iter().any(|mark| begins(mark));
        if !may_be {
            self.state = State::Message(Body::Text);
        }
        !may_be
    }

    fn message(&mut self, body: Body, told: &mut Vec<Told>) -> bool {
        let Some((at, mark)) = first(&self.held, MESSAGE_ENDS) else {
            self.certain(MESSAGE_ENDS, told, body);
            return false;
        };
        // What begins the next message stays: it is a part of its header.
        let begins = mark == CHANNEL || mark == "<|start|>";
        let rest = self.held.split_off(if begins { at } else { at + mark.len() });
        let mut message = std::mem::replace(&mut self.held, rest);
        message.truncate(at);
        match body {
            Body::Reasoning => self.reasoning(message.trim_end(), told),
            Body::Text => tell(Told::Text(message), told),
            Body::Call => tell(Told::Text(format!("{message}</function>")), told),
        }
        self.state = State::Header;
        true
    }

    /// Tells of a body what cannot belong to one of `ends`.
    fn certain(&mut self, ends: &[&str], told: &mut Vec<Told>, body: Body) {
        let mut end = self.held.len() - ends.iter().map(|mark| overlap(&self.held, mark)).max().unwrap_or(0);
        if body == Body::Reasoning {
            // White space before the end of a block is none of it.
            end = self.held[..end].trim_end().len();
        }
        let rest = self.held.split_off(end);
        let text = std::mem::replace(&mut self.held, rest);
        match body {
            Body::Reasoning => self.reasoning(&text, told),
            Body::Text | Body::Call => tell(Told::Text(text), told),
        }
    }

    fn reasoning(&mut self, text: &str, told: &mut Vec<Told>) {
        let text = if self.told { text } else { text.trim_start() };
        self.told |= !text.is_empty();
        tell(Told::Reasoning(text.to_owned()), told);
    }
}

fn tell(piece: Told, told: &mut Vec<Told>) {
    let (Told::Reasoning(text) | Told::Text(text)) = &piece;
    if !text.is_empty() {
        told.push(piece);
    }
}

/// The first of `marks` in `text`, and where.
fn first<'a>(text: &str, marks: &[&'a str]) -> Option<(usize, &'a str)> {
    marks.iter().filter_map(|mark| text.find(mark).map(|at| (at, *mark))).min_by_key(|(at, _)| *at)
}

/// Bytes at the end of `text` that may be the beginning of `mark`.
fn overlap(text: &str, mark: &str) -> usize {
    (1..mark.len()).rev().find(|n| text.ends_with(&mark[..*n])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is told of `text`, given in pieces of `n` characters: reasoning and answer.
    fn split(form: Option<Form>, open: bool, text: &str, n: usize) -> (String, String) {
        let mut splitter = Splitter::new(form, open);
        let all: Vec<char> = text.chars().collect();
        let mut told: Vec<Told> =
            all.chunks(n).flat_map(|piece| splitter.push(&piece.iter().collect::<String>())).collect();
        told.extend(splitter.finish());
        let mut out = (String::new(), String::new());
        for piece in told {
            match piece {
                Told::Reasoning(text) => out.0.push_str(&text),
                Told::Text(text) => out.1.push_str(&text),
            }
        }
        out
    }

    #[test]
    fn blocks_are_told_apart_however_they_are_cut() {
        let cases = [
            (Some(Form::Marked), false, "<think>\nOne.\n\nTwo.\n</think>\n\nYes.", "One.\n\nTwo.", "Yes."),
            (Some(Form::Marked), false, "\n<think>\n\n</think>\n\nYes <b>.", "", "Yes <b>."),
            (Some(Form::Marked), true, "\nOne < two.\n</think>\nYes.", "One < two.", "Yes."),
            (Some(Form::Marked), true, "cut in the mid</thi", "cut in the mid</thi", ""),
            (Some(Form::Marked), false, "I think <think> is a tag.", "", "I think <think> is a tag."),
            (Some(Form::Marked), false, "<thin ice", "", "<thin ice"),
            (Some(Form::Marked), false, "[THINK]a</think>b[/THINK]c", "a</think>b", "c"),
            (None, false, "<think>a</think>b", "", "<think>a</think>b"),
            (
                Some(Form::Channels),
                false,
                "<|channel|>analysis<|message|>They ask.<|end|><|start|>assistant<|channel|>final<|message|>Hi!",
                "They ask.",
                "Hi!",
            ),
            (
                Some(Form::Channels),
                false,
                "<|channel|>analysis<|message|>Look.<|end|><|start|>assistant<|channel|>commentary \
                 to=functions.look <|constrain|>json<|message|>{\"at\": 1}<|call|>",
                "Look.",
                "<function=look>{\"at\": 1}</function>",
            ),
            (
                Some(Form::Channels),
                false,
                "<|start|>assistant to=functions.look<|channel|>commentary json<|message|>{}",
                "",
                "<function=look>{}</function>",
            ),
            (Some(Form::Channels), false, "No channel <|end|>", "", "No channel "),
            (Some(Form::Channels), false, "<|channel|>anal", "", ""),
        ];
        for (form, open, text, reasoning, answer) in cases {
            for n in 1..=text.len() {
                let told = split(form, open, text, n);
                assert_eq!((told.0.as_str(), told.1.as_str()), (reasoning, answer), "{text:?} by {n}");
            }
        }
    }

    #[test]
    fn a_prompt_says_whether_it_leaves_a_block_open() {
        assert!(is_open("<|im_start|>assistant\n<think>\n"));
        assert!(!is_open("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
        assert!(!is_open("assistant"));
    }
}
