//! What drafts an answer's tokens, how many, and what came of it: alone and through a swarm.
//!
//! Before each step drafters propose tokens behind those known ([`shard::draft`]); as many are sent as pay
//! ([`scheduler::depth`]); the draws say how many were right, and that says what the next guesses are worth. No token is
//! another one than without drafts.

use std::collections::BTreeMap;

use api::choice::Draft;
use scheduler::{
    depth::{Depth, Odds},
    session::MAX_DRAFT,
};
use shard::{
    draft::{DraftedBy, Drafter, Guess, Lookup, PRIORS, TRUSTS, forced},
    models::Blueprint,
};

/// What one more row of a step is believed to take before it was measured, in parts of a row by itself: between a thirteenth,
/// the arithmetic, and a sixth, kernels for few rows.
pub const ROW_SHARE: f64 = 0.15;

/// What came of drafts.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Tally {
    /// Passes that gave tokens, the prompt's not counted.
    pub passes: u32,
    /// Tokens that came of them.
    pub tokens: u32,
    /// Tokens drafted, and those of them that were right, by what drafted them.
    kinds: BTreeMap<DraftedBy, (u32, u32)>,
}

impl Tally {
    /// Tokens drafted, and those of them that were right.
    pub fn all(&self) -> (u32, u32) {
        self.kinds().fold((0, 0), |all, (_, proposed, right)| (all.0 + proposed, all.1 + right))
    }

    /// The same by what drafted them.
    pub fn kinds(&self) -> impl Iterator<Item = (DraftedBy, u32, u32)> + '_ {
        self.kinds.iter().map(|(kind, (proposed, right))| (*kind, *proposed, *right))
    }

    /// Tokens for each pass.
    pub fn tokens_per_pass(&self) -> f64 {
        f64::from(self.tokens) / f64::from(self.passes.max(1))
    }

    /// What the API says of it, where anything was drafted.
    pub fn report(&self) -> Option<api::inference::Drafts> {
        let (proposed, right) = self.all();
        let by = || self.kinds().map(|(kind, ..)| kind.name().to_owned()).collect();
        let tokens_per_pass = self.tokens_per_pass();
        (proposed > 0).then(|| api::inference::Drafts { by: by(), tokens_per_pass, proposed, right })
    }
}

/// The drafts of one answer.
#[derive(Default)]
pub struct Drafting {
    drafter: Option<Box<dyn Drafter>>,
    /// Whether what the form of the answer forces is drafted.
    grammar: bool,
    /// How many drafts pay; `None` sends all, as tests want it.
    depth: Option<Depth>,
    /// By trust.
    odds: Vec<Odds>,
    /// The draft behind the tokens known.
    guesses: Vec<Guess>,
    tokens: Vec<u32>,
    tally: Tally,
}

impl Drafting {
    /// What `choice` lets draft, as deep as `depth` finds it to pay. Where states do not go back
    /// ([`Blueprint::goes_back`]) each wrong draft is computed again, and drafts are made only by name.
    pub fn new(choice: &Draft, goes_back: bool, depth: Depth) -> Self {
        let choice = if *choice == Draft::Auto && !goes_back { &Draft::Off } else { choice };
        let lookup = || Box::new(Lookup::default()) as Box<dyn Drafter>;
        Self {
            drafter: choice.lookup().then(lookup),
            grammar: choice.grammar(),
            depth: Some(depth),
            odds: PRIORS.iter().map(|chance| Odds::new(*chance, 4.0)).collect(),
            ..Self::default()
        }
    }

    /// As [`Self::new`] on this machine alone, where nothing is believed of its speed.
    pub fn alone(choice: &Draft, blueprint: &Blueprint) -> Self {
        let mut drafting = Self::new(choice, blueprint.goes_back(), Depth::unmeasured(ROW_SHARE));
        // Tests want every draft sent.
        if cfg!(debug_assertions) && (cfg!(test) || std::env::var_os("SHOAL_DRAFT").is_some()) {
            drafting.send_all();
        }
        drafting
    }

    /// Sends every draft, whatever it costs.
    pub fn send_all(&mut self) {
        self.depth = None;
    }

    /// Drafts with `drafter` and nothing else.
    pub fn draft_by(&mut self, drafter: Option<Box<dyn Drafter>>) {
        (self.drafter, self.grammar) = (drafter, false);
    }

    /// Whether anything may draft.
    pub fn is_on(&self) -> bool {
        self.grammar || self.drafter.is_some()
    }

    /// Whether what the form of the answer forces is drafted.
    pub fn takes_forced(&self) -> bool {
        self.grammar
    }

    /// Drafts what may follow `context`, which the form of the answer continues with `forced` tokens: at most `most` and
    /// [`MAX_DRAFT`] tokens.
    pub fn propose(&mut self, context: &[u32], certain: &[u32], most: usize) -> &[u32] {
        let most = most.min(MAX_DRAFT as usize);
        self.guesses.clear();
        if self.grammar {
            self.guesses.extend(forced(certain).take(most));
        }
        if let Some(drafter) = self.drafter.as_mut().filter(|_| self.guesses.len() < most) {
            let text: Vec<u32> =
                context.iter().copied().chain(self.guesses.iter().map(|guess| guess.token)).collect();
            self.guesses.extend(drafter.propose(&text, most - self.guesses.len()));
        }
        self.guesses.truncate(most);
        if let Some(depth) = &self.depth {
            let chances: Vec<f64> =
                self.guesses.iter().map(|guess| self.odds[guess.trust].chance()).collect();
            self.guesses.truncate(depth.best(&chances, 0.0));
        }
        self.tokens = self.guesses.iter().map(|guess| guess.token).collect();
        &self.tokens
    }

    /// The draft behind the tokens known.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// There is no draft behind the tokens known.
    pub fn clear(&mut self) {
        self.guesses.clear();
        self.tokens.clear();
    }

    /// Of a step with `drafted` drafted rows `right` were right, and with `stop` the text ended: what was drafted behind it is
    /// neither right nor wrong. `ms` is what the step took, `None` for one that says nothing of others.
    pub fn judge(&mut self, drafted: u32, right: u32, stop: bool, ms: Option<f64>) {
        let mut judged = [(0, false); TRUSTS];
        for (at, guess) in (0..drafted).zip(&self.guesses) {
            let kind = self.tally.kinds.entry(guess.kind).or_default();
            *kind = (kind.0 + 1, kind.1 + u32::from(at < right));
            let seen = &mut judged[guess.trust];
            *seen = (seen.0 + u32::from(at < right), seen.1 || (at == right && !stop));
        }
        self.odds.iter_mut().zip(judged).for_each(|(odds, (right, missed))| odds.judge(right, missed));
        if let (Some(ms), Some(depth)) = (ms, &mut self.depth) {
            depth.note(drafted + 1, right + 1, ms);
        }
    }

    /// A step, not the prompt's, gave `tokens` tokens.
    pub fn count(&mut self, tokens: u32) {
        (self.tally.passes, self.tally.tokens) = (self.tally.passes + 1, self.tally.tokens + tokens);
    }

    /// What came of drafts so far.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }
}
