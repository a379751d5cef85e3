//! A node that was proven wrong once is challenged when its quarantine is over.
//!
//! A single wrong row may be a broken memory cell. The challenge is a prompt of this node like any other: a question that
//! no user asked, through a pipeline that must pass the node in question, with every row checked by another node or
//! computed again here. So its right answer is known, it is new every time, and it looks like a real prompt. A node that
//! passes serves again, and everything it computes is checked as a stranger's is; a second lie bans it for hours.
//!
//! Challenges run while no prompt of this node does, one at a time, at most one every [`EVERY`], and the same node not
//! within [`AGAIN`].
//!
//! Limits: a node that holds nothing but what this one holds as well cannot be made part of a pipeline; it stays out,
//! and nothing is lost by that.

use std::time::{Duration, Instant};

use api::choice::{Wire, WireChoice};
use scheduler::{NodeId, SessionKind};
use serde_json::{Value, json};

use crate::{
    control::{Mode, Shadow, Verify},
    events::{AnswerLength, Ends, ForApi, Leeway, PromptInput, PromptRequest, Sampling},
};

/// Least time between two challenges.
const EVERY: Duration = Duration::from_secs(10);
/// Least time between two challenges of the same node.
const AGAIN: Duration = Duration::from_secs(600);
/// Tokens of an answer at most.
const TOKENS: u32 = 64;
/// Positions, the question's included, that must have been checked and right: two signatures.
const PROOF: u64 = 32;
/// Nodes challenged lately that are remembered; beyond, one may be asked again sooner.
const REMEMBERED: usize = 256;

/// What people ask.
const ASKED: [&str; 8] = [
    "Tell me a short story about",
    "Explain in simple words what is interesting about",
    "Write four lines of a poem on",
    "What would a child want to know about",
    "Give me three facts about",
    "Describe how one could draw",
    "What is often misunderstood about",
    "Invent a riddle about",
];
/// What they ask about.
const ABOUT: [&str; 16] = [
    "a lighthouse",
    "the moon",
    "an old bicycle",
    "bees",
    "a frozen lake",
    "the number seven",
    "a lost key",
    "rain on a roof",
    "a fox and a lantern",
    "bread",
    "the night train",
    "an island without trees",
    "a clock that stopped",
    "owls",
    "a garden in winter",
    "the color blue",
];

/// Nodes challenged lately, and when.
#[derive(Default)]
pub(crate) struct Challenges {
    tried: Vec<(NodeId, Instant)>,
}

impl Challenges {
    /// The node to challenge now: the first of `owing` that was not challenged lately, unless another one just was.
    pub(crate) fn next(&mut self, now: Instant, owing: impl Iterator<Item = NodeId>) -> Option<NodeId> {
        self.tried.retain(|(_, then)| now.duration_since(*then) < AGAIN);
        if self.tried.iter().any(|(_, then)| now.duration_since(*then) < EVERY) {
            return None;
        }
        let lately = |node: NodeId| self.tried.iter().any(|(tried, _)| *tried == node);
        let node = owing.into_iter().find(|node| !lately(*node))?;
        if self.tried.len() == REMEMBERED {
            self.tried.remove(0);
        }
        self.tried.push((node, now));
        Some(node)
    }
}

/// A conversation drawn by chance.
fn question(chance: [u8; 4]) -> Value {
    let [first, about, then, also] = chance.map(usize::from);
    let asked =
        |what: usize, about: usize| format!("{} {}.", ASKED[what % ASKED.len()], ABOUT[about % ABOUT.len()]);
    json!([{ "role": "user", "content": format!("{} {}", asked(first, about), asked(then, also)) }])
}

/// Whether a check of so many positions proves that a node works again.
pub(crate) fn is_proof(tokens: u64) -> bool {
    tokens >= PROOF
}

/// A challenge with a question drawn by `chance`; the pipeline of its prompt must pass the node in question.
pub(crate) fn ask(chance: [u8; 4]) -> PromptRequest {
    PromptRequest {
        model: String::new(),
        prompt: PromptInput::Messages(question(chance)),
        mode: Mode::Boomerang,
        leeway: Leeway::default(),
        wire: WireChoice { wire: Some(Wire::Q8), ..WireChoice::default() },
        kind: SessionKind::DEFAULT,
        trusted: Vec::new(),
        ends: Ends::default(),
        sampling: Sampling { temperature: Some(0.0), ..Sampling::default() },
        seed: 0,
        length: AnswerLength { max_tokens: TOKENS, context_shift: false },
        stop: Vec::new(),
        verify: Verify::Strict,
        shadow: Shadow::All,
        api: ForApi::default(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn one_at_a_time_and_everybody_in_turn() {
        let (a, b) = (NodeId::numbered(1), NodeId::numbered(2));
        let mut challenges = Challenges::default();
        let began = Instant::now();
        let mut at = |seconds| challenges.next(began + Duration::from_secs(seconds), [a, b].into_iter());
        assert_eq!(at(0), Some(a));
        assert_eq!(at(5), None, "one was just asked");
        assert_eq!(at(11), Some(b));
        assert_eq!(at(30), None, "both were lately");
        assert_eq!(at(599), None);
        assert_eq!(at(601), Some(a));
        assert_eq!(at(700), Some(b));
    }

    #[test]
    fn what_is_remembered_of_challenges_is_bounded() {
        let mut challenges = Challenges::default();
        let began = Instant::now();
        for name in 0..2 * REMEMBERED as u64 {
            // Faster than they may come, so that none is forgotten for its age.
            challenges.tried.iter_mut().for_each(|(_, then)| *then = began);
            let now = began + EVERY;
            assert!(challenges.next(now, std::iter::once(NodeId::numbered(name))).is_some());
        }
        assert_eq!(challenges.tried.len(), REMEMBERED);
    }

    #[test]
    fn questions_differ_and_end_in_a_stop() {
        let text = |chance| question(chance)[0]["content"].as_str().unwrap().to_owned();
        let all: BTreeSet<String> =
            (0..=255).flat_map(|a| (0..=255).map(move |b| text([a, b, a, 7]))).collect();
        assert_eq!(all.len(), ASKED.len() * ABOUT.len());
        assert!(all.iter().all(|question| question.ends_with('.')));
    }
}
