//! Drafts: tokens guessed behind those known, so that one pass may confirm several.
//!
//! A [`Drafter`] proposes; the last stage draws a token after every row of the step and keeps the drafts that the draws agree
//! with, and one more ([`scheduler::session`]). A draw depends on the seed and the position alone, so the tokens are those of
//! an answer without drafts, whatever is proposed.
//!
//! What follows from a draft is tentative until the draws have decided: it is not compared, not audited, not fed to a
//! follower, and no evidence. What was rejected leaves the logs.

use scheduler::{LayerRange, NodeId, session::MAX_DRAFT};

/// Proposes tokens.
pub(crate) trait Drafter: Send {
    /// At most `k` tokens that may follow `context`, the prompt and what was said so far. Any beginning of them may be right.
    fn propose(&mut self, context: &[u32], k: usize) -> Vec<u32>;
}

/// The drafts of one session.
#[derive(Default)]
pub(super) struct Drafts {
    drafter: Option<Box<dyn Drafter>>,
    /// The draft behind the tokens known.
    tokens: Vec<u32>,
    /// Positions below this are confirmed, the end of the step that was drawn last.
    confirmed: u32,
    /// Second answers for tentative rows that were others than the first: whose, and from which position on.
    rivals: Vec<(LayerRange, NodeId, u32)>,
    /// Drafted tokens, and those of them that were right.
    pub(super) count: (u32, u32),
}

impl Drafts {
    /// Those of a session that drafts with `drafter`.
    pub(super) fn new(drafter: Option<Box<dyn Drafter>>) -> Self {
        Self { drafter, ..Self::default() }
    }

    /// Drafts what may follow `context`; how many tokens that are.
    pub(super) fn propose(&mut self, context: &[u32]) -> u32 {
        let most = MAX_DRAFT as usize;
        self.tokens = self.drafter.as_mut().map_or_else(Vec::new, |drafter| drafter.propose(context, most));
        self.tokens.truncate(most);
        self.tokens.len() as u32
    }

    /// The draft behind the tokens known.
    pub(super) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Whether any step had one.
    pub(super) fn used(&self) -> bool {
        self.count.0 > 0
    }

    /// Positions below this are confirmed, though their tokens may not have been said yet.
    pub(super) fn confirmed(&self) -> u32 {
        self.confirmed
    }

    /// What is known goes back to `known` tokens.
    pub(super) fn go_back(&mut self, known: u32) {
        self.confirmed = self.confirmed.min(known);
        self.rivals.clear();
    }

    /// `node` gave other rows from `position` on, which is tentative, than another before it.
    pub(super) fn rivaled(&mut self, layers: LayerRange, node: NodeId, position: u32) {
        self.rivals.push((layers, node, position));
    }

    /// A step of `drafted` drafts was drawn, `right` of which were right; positions below `confirmed` stay. The rivals that
    /// gave other rows for one of those.
    pub(super) fn drawn(&mut self, confirmed: u32, drafted: u32, right: u32) -> Vec<(LayerRange, NodeId)> {
        self.confirmed = confirmed;
        self.count = (self.count.0 + drafted, self.count.1 + right);
        let rivals = std::mem::take(&mut self.rivals).into_iter();
        rivals.filter(|rival| rival.2 < confirmed).map(|(layers, node, _)| (layers, node)).collect()
    }

    /// An answer is complete: drafters of tests may draft from it.
    pub(super) fn remember(&self, tokens: &[u32]) {
        #[cfg(debug_assertions)]
        oracle::remember(tokens);
        #[cfg(not(debug_assertions))]
        let _ = tokens;
    }
}

/// The drafter of a session: none, but for tests that name one.
pub(super) fn chosen(session: scheduler::SessionId) -> Option<Box<dyn Drafter>> {
    #[cfg(debug_assertions)]
    return oracle::chosen(session);
    #[cfg(not(debug_assertions))]
    {
        let _ = session;
        None
    }
}

/// The drafter of tests. Not part of a release build.
#[cfg(any(test, debug_assertions))]
pub(super) mod oracle {
    use std::{
        collections::VecDeque,
        sync::{Mutex, OnceLock, PoisonError},
    };

    use scheduler::rng::mix;

    use super::Drafter;

    /// Answers that are remembered; beyond, the oldest are forgotten.
    const MAX_ANSWERS: usize = 16;

    /// Knows answers, and is wrong at positions that its seed draws.
    pub(in crate::request) struct Oracle {
        answers: Vec<Vec<u32>>,
        most: usize,
        seed: u64,
    }

    impl Oracle {
        /// One that proposes at most `most` tokens of these answers.
        pub(in crate::request) fn new(answers: Vec<Vec<u32>>, most: usize, seed: u64) -> Self {
            Self { answers, most, seed }
        }
    }

    impl Drafter for Oracle {
        fn propose(&mut self, context: &[u32], k: usize) -> Vec<u32> {
            let known = self.answers.iter().find_map(|answer| answer.strip_prefix(context));
            let mut draft: Vec<u32> = known.unwrap_or(&[]).iter().take(k.min(self.most)).copied().collect();
            let drawn = mix(self.seed ^ (context.len() as u64) << 20);
            // Any beginning may be right, all of it included.
            if let Some(wrong) = draft.get_mut(drawn as usize % (self.most + 1)) {
                *wrong = if *wrong == 0 { 1 } else { *wrong - 1 };
            }
            draft
        }
    }

    fn answers() -> &'static Mutex<VecDeque<Vec<u32>>> {
        static ANSWERS: OnceLock<Mutex<VecDeque<Vec<u32>>>> = OnceLock::new();
        ANSWERS.get_or_init(Mutex::default)
    }

    /// `SHOAL_DRAFT=K:SEED` drafts at most K tokens from answers that this process gave before, in every other session.
    fn asked() -> Option<(usize, u64)> {
        static ASKED: OnceLock<Option<(usize, u64)>> = OnceLock::new();
        *ASKED.get_or_init(|| {
            let text = std::env::var("SHOAL_DRAFT").ok()?;
            let (most, seed) = text.split_once(':')?;
            Some((most.parse().ok()?, seed.parse().ok()?))
        })
    }

    pub(in crate::request) fn chosen(session: scheduler::SessionId) -> Option<Box<dyn Drafter>> {
        let (most, seed) = asked()?;
        let name = session.as_bytes().iter().fold(seed, |mixed, byte| mix(mixed ^ u64::from(*byte)));
        let answers = answers().lock().unwrap_or_else(PoisonError::into_inner);
        let known = answers.iter().cloned().collect();
        (name % 2 == 0).then(|| Box::new(Oracle::new(known, most, name)) as Box<dyn Drafter>)
    }

    pub(in crate::request) fn remember(tokens: &[u32]) {
        if asked().is_some() {
            let mut answers = answers().lock().unwrap_or_else(PoisonError::into_inner);
            if answers.len() == MAX_ANSWERS {
                answers.pop_front();
            }
            answers.push_back(tokens.to_vec());
        }
    }
}

#[cfg(test)]
mod tests {
    use scheduler::{LayerRange, NodeId};

    use super::{Drafter, Drafts, oracle::Oracle};

    #[test]
    fn the_oracle_is_right_for_any_beginning() {
        let answer: Vec<u32> = (0..40).collect();
        let mut right = [0; 6];
        for seed in 0..600 {
            let draft = Oracle::new(vec![vec![9, 9], answer.clone()], 5, seed).propose(&answer[..7], 16);
            assert_eq!(draft.len(), 5);
            right[draft.iter().zip(&answer[7..]).take_while(|(drafted, said)| drafted == said).count()] += 1;
        }
        assert!(right.iter().all(|count| *count > 50), "{right:?}");
        assert!(Oracle::new(vec![answer], 5, 0).propose(&[1, 2], 16).is_empty());
    }

    #[test]
    fn what_differs_in_a_rejected_row_is_no_evidence() {
        let layers = LayerRange::new(1, 3).unwrap();
        let mut drafts = Drafts::default();
        drafts.rivaled(layers, NodeId::numbered(1), 12);
        drafts.rivaled(layers, NodeId::numbered(2), 13);
        assert_eq!(drafts.drawn(13, 4, 2), [(layers, NodeId::numbered(1))]);
        assert_eq!((drafts.drawn(20, 2, 2), drafts.count, drafts.confirmed()), (vec![], (6, 4), 20));
    }
}
