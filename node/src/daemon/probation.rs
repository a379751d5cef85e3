//! Whoever was proven wrong once is asked again when its quarantine is over, and checked.
//!
//! A single wrong row may be a broken memory cell. The challenge is a prompt of this node like any other: a question that
//! nobody asked, through a pipeline that must pass the node in question, with every row checked by somebody else or
//! computed again here. So its right answer is known, it is new every time, and nobody can tell it from a real prompt.
//! Who passes serves again, and everything it computes is checked as a stranger's is; a second lie bans it for hours.
//!
//! Challenges run while no prompt of this node does, one at a time, at most one every [`EVERY`], and the same node not
//! within [`AGAIN`].
//!
//! Limits: a node that holds nothing but what this one holds as well cannot be made part of a pipeline; it stays out,
//! and nothing is lost by that.

use std::time::{Duration, Instant};

use scheduler::{LayerRange, LayerSet, Millis, NodeId, view::SwarmView};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{Daemon, prompt::Said};
use crate::{
    clock,
    control::{Ask, ForApi, Mode, Shadow, Verify},
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
/// Lines of an answer on their way to nobody.
const LINES: usize = 16;

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

/// Who was challenged when.
#[derive(Default)]
pub(super) struct Challenges {
    tried: Vec<(NodeId, Instant)>,
}

impl Challenges {
    /// Whom to challenge now: the first of `owing` that was not lately, unless somebody just was.
    fn next(&mut self, now: Instant, owing: impl Iterator<Item = NodeId>) -> Option<NodeId> {
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

/// A conversation that nobody began, by chance.
fn question(chance: [u8; 4]) -> Value {
    let [first, about, then, also] = chance.map(usize::from);
    let asked =
        |what: usize, about: usize| format!("{} {}.", ASKED[what % ASKED.len()], ABOUT[about % ABOUT.len()]);
    json!([{ "role": "user", "content": format!("{} {}", asked(first, about), asked(then, also)) }])
}

/// Whether a check of so many positions proves that a node works again.
pub(super) fn is_proof(tokens: u64) -> bool {
    tokens >= PROOF
}

impl Daemon {
    /// Challenges somebody who owes a proof, when there is nothing else to do.
    pub(super) fn challenge(&mut self) {
        if !self.in_flight.is_empty() || self.paused || self.leaving.is_some() || !self.held.ready.has_ends()
        {
            return;
        }
        let owing = self.trust.owing(Millis(clock::unix_ms()));
        let able: Vec<NodeId> =
            owing.into_iter().filter(|node| self.challenge_layer(*node).is_some()).collect();
        let Some(node) = self.challenges.next(Instant::now(), able.into_iter()) else { return };
        let mut chance = [0; 4];
        if getrandom::fill(&mut chance).is_err() {
            return;
        }
        tracing::info!(%node, "its quarantine is over: a challenge");
        let mut task = self.prompt_task();
        task.prove = Some(node);
        let ask = Ask {
            model: String::new(),
            prompt: question(chance),
            mode: Mode::Boomerang,
            may_stay_home: false,
            wire: "q8".to_owned(),
            trusted: Vec::new(),
            head: 1,
            tail: 1,
            sampling: json!({ "temperature": 0.0 }),
            seed: 0,
            max_tokens: TOKENS,
            stop: Vec::new(),
            verify: Verify::Strict,
            shadow: Shadow::All,
            api: ForApi::default(),
        };
        let (lines, mut answer) = mpsc::channel(LINES);
        tokio::spawn(task.answer_after(ask, Said::default(), lines));
        tokio::spawn(async move {
            while let Some(line) = answer.recv().await {
                if let Some(why) = line["error"].as_str() {
                    tracing::info!(%node, why, "no challenge was possible");
                }
            }
        });
    }

    /// The view as it would be if `node` alone had one of its layers, so that a pipeline must pass it; `None` when this
    /// node computes all of them itself, or `node` is not there.
    pub(super) fn indispensable(&self, node: NodeId) -> Option<SwarmView> {
        let layer = self.challenge_layer(node)?;
        let (mut view, now, model) = (self.view.clone(), self.now(), self.held.id);
        for other in self.facts.keys().filter(|other| **other != node) {
            if let Some(loaded) = self.loaded(*other).filter(|loaded| loaded.covers(layer)) {
                view.correct(*other, model, loaded.without(layer), now);
            }
        }
        Some(view)
    }

    /// A layer that `node` has in memory and this node has not.
    fn challenge_layer(&self, node: NodeId) -> Option<LayerRange> {
        let (its, mine) = (self.loaded(node)?, self.loaded(self.me).unwrap_or_default());
        let layers = (0..self.held.ready.num_layers).filter_map(|layer| LayerRange::new(layer, layer + 1));
        layers.into_iter().find(|layer| its.covers(*layer) && !mine.covers(*layer))
    }

    fn loaded(&self, node: NodeId) -> Option<LayerSet> {
        let holding = self.view.get(node)?.holding(self.held.id)?;
        Some(holding.loaded_set())
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
