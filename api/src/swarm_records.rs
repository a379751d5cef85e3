//! What a node keeps of its swarm for its owner: what nodes are called here, how it went on other days, the steps of the last
//! answers, and a code for a friend.
//!
//! All of it is about this node and stays on its machine. These are the types; the routes are in `swarm_routes.rs`, and who
//! keeps the records is `inference/records.rs`.

use serde::{Deserialize, Serialize};

/// Letters of a name: it stands in tables and beside a drawing.
pub const MAX_NAME: usize = 32;
/// Nodes that may have a name: as many as the page draws.
pub const MAX_NAMES: usize = 512;
/// Days of which there are samples.
pub const MAX_DAYS: u32 = 30;
/// Steps of one answer that are kept.
pub const MAX_STEPS: usize = 256;
/// Characters that turn the text around them.
const TURNING: [char; 13] = [
    '\u{61c}', '\u{200e}', '\u{200f}', '\u{202a}', '\u{202b}', '\u{202c}', '\u{202d}', '\u{202e}',
    '\u{2066}', '\u{2067}', '\u{2068}', '\u{2069}', '\u{feff}',
];

/// A color that a node can have: a word, since what it looks like depends on the page's light.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Color {
    /// None of its own.
    #[default]
    None,
    /// Red.
    Red,
    /// Orange.
    Orange,
    /// Yellow.
    Yellow,
    /// Green.
    Green,
    /// Teal.
    Teal,
    /// Blue.
    Blue,
    /// Purple.
    Purple,
    /// Brown.
    Brown,
}

impl Color {
    /// All colors, none first.
    pub const ALL: [Self; 9] = [
        Self::None,
        Self::Red,
        Self::Orange,
        Self::Yellow,
        Self::Green,
        Self::Teal,
        Self::Blue,
        Self::Purple,
        Self::Brown,
    ];

    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Red => "red",
            Self::Orange => "orange",
            Self::Yellow => "yellow",
            Self::Green => "green",
            Self::Teal => "teal",
            Self::Blue => "blue",
            Self::Purple => "purple",
            Self::Brown => "brown",
        }
    }
}

/// What the owner of this node calls another one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeName {
    /// The node, 64 hex digits.
    pub node: String,
    /// Its name; empty for one that has a color only.
    pub name: String,
    /// Its color.
    #[serde(default)]
    pub color: Color,
}

impl NodeName {
    /// The name of a node as a person typed it; a field that cannot be kept, and why.
    ///
    /// # Errors
    /// For what is no node, and for names that are too long or turn the text around them.
    pub fn new(node: &str, name: &str, color: Color) -> Result<Self, (&'static str, String)> {
        let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if node.len() != 64 || !node.bytes().all(hex) {
            return Err(("node", "must be the 64 hex digits of a node".into()));
        }
        let name = name.trim();
        if name.chars().count() > MAX_NAME {
            return Err(("name", format!("may have at most {MAX_NAME} letters")));
        }
        if name.chars().any(|c| c.is_control() || TURNING.contains(&c)) {
            return Err(("name", "may have no control characters, and none that turn text around".into()));
        }
        Ok(Self { node: node.to_owned(), name: name.to_owned(), color })
    }

    /// Whether there is nothing to keep.
    pub fn is_empty(&self) -> bool {
        self.name.is_empty() && self.color == Color::None
    }
}

/// What happened in a span of time. Spans in which the node did not run have none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Where the span begins, seconds since 1970.
    pub at_s: u64,
    /// Seconds of it that the node ran.
    pub seconds: u32,
    /// Answers that this node asked for and that ended in it.
    pub answers: u32,
    /// Their tokens.
    pub tokens: u32,
    /// Tokens per second of those answers after the first token; nothing where none had two.
    pub tok_s: Option<f64>,
    /// Stages that were lost and replaced.
    pub faults: u32,
    /// Peers connected, the most.
    pub peers: u32,
    /// Median of the round trips to the peers; nothing without one.
    pub rtt_ms: Option<f64>,
    /// Layer passes computed for others: tokens times layers.
    pub given: u64,
    /// Layer passes given to all peers less those taken from them, as both sides signed, at the end of the span.
    pub balance: i64,
}

/// How it went: one sample for each span in which the node ran.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct History {
    /// The time of this answer, seconds since 1970.
    pub now_s: u64,
    /// Days it reaches back.
    pub days: u32,
    /// Length of a span.
    pub span_s: u64,
    /// The samples, the oldest first.
    pub samples: Vec<Sample>,
}

/// An answer of this node and what happened until it was complete.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AnswerRecord {
    /// The session, hex.
    pub session: String,
    /// The model's name.
    pub model: String,
    /// Who could read the prompt.
    pub mode: String,
    /// How it ended: `stop`, `length`, `cancelled` or `failed`.
    pub finish: String,
    /// Its tokens.
    pub tokens: usize,
    /// Tokens per second after the first.
    pub tok_s: f64,
    /// Stages that were lost and replaced.
    pub faults: usize,
    /// What happened, in order.
    pub timeline: Timeline,
}

/// What happened to an answer, in order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    /// When it began, milliseconds since 1970.
    pub began_ms: u64,
    /// The steps, [`MAX_STEPS`] at most.
    pub steps: Vec<Step>,
    /// How many more there were.
    #[serde(default)]
    pub left_out: u32,
}

impl Timeline {
    /// Adds a step where there is room for it.
    pub fn add(&mut self, step: Step) {
        if self.steps.len() < MAX_STEPS {
            self.steps.push(step);
        } else {
            self.left_out = self.left_out.saturating_add(1);
        }
    }
}

/// Something that happened to an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Milliseconds since it began.
    pub at_ms: f64,
    /// Tokens of the answer that were there by then.
    pub token: u32,
    /// What.
    #[serde(flatten)]
    pub what: StepKind,
}

/// What can happen to an answer. Nodes are named by 64 hex digits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum StepKind {
    /// Every stage has promised to serve; the first time, and again after each change of the route.
    Leased {
        /// The number of the route: a later one is higher.
        epoch: u32,
        /// Who computes which layers from now on.
        stages: Vec<Span>,
    },
    /// The first token is there.
    FirstToken,
    /// A node that computes a stage failed.
    Lost {
        /// Which.
        node: String,
        /// What was noticed: `closed`, `refused`, `wrong` or `timeout`.
        why: String,
    },
    /// Another node computes layers from now on.
    TookOver {
        /// Which node, and which layers.
        #[serde(flatten)]
        span: Span,
        /// The node that computed them before.
        from: String,
    },
    /// A node got inputs of positions that were computed before, from the requester's log.
    Replayed {
        /// Which.
        node: String,
        /// The first of these positions.
        first: u32,
        /// One past the last.
        end: u32,
    },
    /// A node got the state of the first positions from another one that had computed it.
    Fetched {
        /// Which.
        node: String,
        /// The other one.
        from: String,
        /// One past the last position.
        end: u32,
    },
    /// A node was so late that the one that stands by answered first.
    Hedged {
        /// The late one.
        node: String,
    },
    /// The next token after a failure is there.
    WentOn {
        /// How long the answer stood still.
        stall_ms: f64,
    },
    /// It is over.
    Ended,
}

/// Layers that a node computes: `start` to `end`, `end` not included.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// The node.
    pub node: String,
    /// First layer.
    pub start: u32,
    /// One past the last layer.
    pub end: u32,
}

/// A code for a friend.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invite {
    /// The code, which `shoal join` takes.
    pub code: String,
    /// The swarm's name, where it has one.
    pub swarm: Option<String>,
    /// The code as a QR code: rows of `1` for dark and `0` for light modules, without the quiet zone. None where it is too long.
    pub qr: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_short_and_turns_nothing_around() {
        let node = "ab".repeat(32);
        let kept = NodeName::new(&node, "  Großmutters 机器 ", Color::Teal).unwrap();
        assert_eq!((kept.name.as_str(), kept.is_empty()), ("Großmutters 机器", false));
        assert!(NodeName::new(&node, "  ", Color::None).unwrap().is_empty());
        assert!(NodeName::new(&node, &"ü".repeat(MAX_NAME), Color::None).is_ok());
        for (node, name, field) in [
            ("ab", "x", "node"),
            (&"AB".repeat(32), "x", "node"),
            (&"zz".repeat(32), "x", "node"),
            (&node, &"x".repeat(MAX_NAME + 1), "name"),
            (&node, "a\u{202e}b", "name"),
            (&node, "a\u{1b}[2J", "name"),
        ] {
            assert_eq!(NodeName::new(node, name, Color::None).unwrap_err().0, field, "{node} {name:?}");
        }
    }

    #[test]
    fn a_timeline_is_bounded_and_counts_what_it_leaves_out() {
        let mut timeline = Timeline::default();
        for token in 0..MAX_STEPS as u32 + 3 {
            timeline.add(Step { at_ms: 1.0, token, what: StepKind::FirstToken });
        }
        assert_eq!((timeline.steps.len(), timeline.left_out), (MAX_STEPS, 3));
        let text = serde_json::to_string(&timeline).unwrap();
        assert_eq!(serde_json::from_str::<Timeline>(&text).unwrap(), timeline);
    }

    #[test]
    fn words_of_colors_are_those_of_json() {
        for color in Color::ALL {
            assert_eq!(serde_json::to_value(color).unwrap(), color.name());
        }
    }
}
