//! What drafts an answer's tokens, how many, and what came of it: alone and through a swarm.
//!
//! Before each step drafters propose tokens behind those known ([`shard::draft`]); as many are sent as pay
//! ([`scheduler::depth`]); the draws say how many were right, and that says what the next guesses are worth. No token is
//! another one than without drafts.
//!
//! At each place the best guess counts. What the form of the answer forces and what is looked up cost nothing; what the model's
//! draft head guesses comes with the token that it is behind, as many guesses as pay ([`Drafting::foresees`]); a draft model
//! is asked where it is right more often than these and where what it says is worth the time that takes, a token at a time: the
//! [`Drafting`] says when ([`Drafting::wants`]), and the caller, which has the model, asks it.

use std::{collections::BTreeMap, time::Instant};

use api::choice::Draft;
use scheduler::{
    AttentionKind,
    depth::{Depth, Odds},
    session::MAX_DRAFT,
};
use shard::{
    draft::{
        DraftModel, DraftSampler, DraftToken, DraftedBy, Drafter, Guess, Lookup, PRIORS, TRUSTS, forced,
    },
    executor::Executor,
};

pub use self::head::HeadDraft;

mod head;

/// What one more row of a step is believed to take before it was measured, in parts of a row by itself: between a thirteenth,
/// the arithmetic, and a sixth, kernels for few rows.
pub const ROW_SHARE: f64 = 0.15;

/// How often a draft model is taken to be right before it was judged, and as if so many of its guesses had been.
const MODEL_PRIOR: (f64, f64) = (0.5, 4.0);
/// The same of a draft head.
const HEAD_PRIOR: (f64, f64) = (0.5, 4.0);
/// Bytes that a guess reads in a millisecond before one was measured.
const READ_BYTES_PER_MS: f64 = 1e7;
/// Tokens of an answer from which on a draft head that looks back sees the rows of the prompt.
pub const READ_FOR: usize = 16;
/// Most tokens that a draft head guesses at once: it was trained on half as many.
const MOST_FORESEEN: usize = 8;
/// Rows that a draft model computes this many times faster than tokens one after the other.
const READS_FASTER: f64 = 8.0;
/// Reading the text may take a draft model this share of what remains of the answer.
const READING_SHARE: f64 = 0.03;
/// More rows than a step may carry are a text that is new to the draft model: what they take says nothing of a guess.
pub const FEW_ROWS: usize = MAX_DRAFT as usize + 1;
/// Weight of the newest measurement of what a guess takes, and the most it counts as, in parts of what was expected.
const NEW: f64 = 0.2;
const STALL: f64 = 3.0;

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

/// A draft model in this process, and how it chooses for one answer.
pub struct Asking<'a> {
    /// What computes it.
    pub executor: &'a dyn Executor,
    /// What it remembers.
    pub model: &'a mut DraftModel,
    /// As the answer's tokens are chosen.
    pub sampler: &'a mut DraftSampler,
}

/// What is known of the model's draft head.
struct Head {
    /// How often it is right.
    odds: Odds,
    /// What a guess takes, ms.
    guess_ms: f64,
    /// What it guessed behind the tokens known.
    said: Vec<DraftToken>,
}

/// What is known of a draft model.
struct Asked {
    /// How often it is right.
    odds: Odds,
    /// What a guess of it takes, in parts of a step of one row, as far as that is believed.
    share: f64,
    /// The same as measured, ms.
    ms: Option<f64>,
    /// What guesses took since the last step was judged, ms.
    spent_ms: f64,
    /// Whether it may be asked before this step.
    affords: bool,
}

/// The drafts of one answer.
#[derive(Default)]
pub struct Drafting {
    drafter: Option<Box<dyn Drafter>>,
    /// The draft model, as long as it has something to say.
    model: Option<Asked>,
    /// The model's draft head, and whether it may draft.
    head: Option<Head>,
    takes_head: bool,
    /// Whether what the form of the answer forces is drafted.
    grammar: bool,
    /// How many drafts pay; `None` sends all, as tests want it.
    depth: Option<Depth>,
    /// By trust.
    odds: Vec<Odds>,
    /// The draft behind the tokens known.
    guesses: Vec<Guess>,
    /// Most guesses of it.
    most: usize,
    /// What the rows of the session see: drafts end where it could not take them back.
    attention: AttentionKind,
    /// The tokens known and those guessed.
    text: Vec<u32>,
    tokens: Vec<u32>,
    tally: Tally,
}

impl Drafting {
    /// What `choice` lets draft for a session whose rows see what `attention` says, as deep as `depth` finds it to pay. No draft reaches
    /// over a position where something is forgotten. Where a session does not go back behind a wrong draft, much is computed again, and
    /// drafts are made only by name.
    pub fn new(choice: &Draft, attention: AttentionKind, depth: Depth) -> Self {
        let named = *choice != Draft::Auto;
        let choice = if named || attention.goes_back() { choice } else { &Draft::Off };
        let lookup = || Box::new(Lookup::default()) as Box<dyn Drafter>;
        Self {
            drafter: choice.lookup().then(lookup),
            grammar: choice.grammar(),
            takes_head: choice.head(),
            attention,
            depth: Some(depth),
            odds: PRIORS.iter().map(|chance| Odds::new(*chance, 4.0)).collect(),
            ..Self::default()
        }
    }

    /// As [`Self::new`] on this machine alone, where nothing is believed of its speed. Behind a wrong draft every state goes back to
    /// where the pass began at least: the rows that were right come again in the next one.
    pub fn alone(choice: &Draft, attention: AttentionKind) -> Self {
        let mut drafting = Self::new(choice, attention, Depth::unmeasured(ROW_SHARE));
        // Tests want every draft sent.
        if cfg!(debug_assertions) && (cfg!(test) || std::env::var_os("SHOAL_DRAFT").is_some()) {
            drafting.send_all();
        }
        drafting
    }

    /// A draft model drafts, too, of which a guess is believed to take `share` of a step of one row.
    pub fn ask_model(&mut self, share: f64) {
        let share = if share.is_finite() { share.clamp(1e-6, 1e6) } else { 1.0 };
        let odds = Odds::new(MODEL_PRIOR.0, MODEL_PRIOR.1);
        self.model = Some(Asked { odds, share, ms: None, spent_ms: 0.0, affords: true });
    }

    /// Whether the model's draft head may draft.
    pub fn takes_head(&self) -> bool {
        self.takes_head
    }

    /// The model has a draft head, which reads `bytes` for a guess.
    pub fn ask_head(&mut self, bytes: u64) {
        let odds = Odds::new(HEAD_PRIOR.0, HEAD_PRIOR.1);
        let head = Head { odds, guess_ms: bytes as f64 / READ_BYTES_PER_MS, said: Vec::new() };
        self.head = Some(head).filter(|_| self.takes_head);
    }

    /// How many tokens the draft head is to guess behind the token that is chosen next.
    pub fn foresees(&self) -> usize {
        let Some(head) = &self.head else { return 0 };
        let chances = [head.odds.chance(); MOST_FORESEEN];
        self.depth.as_ref().map_or(MOST_FORESEEN, |depth| depth.best_beyond(&chances, 0, head.guess_ms))
    }

    /// The draft head guesses that `said` follows the tokens known, which took `ms`.
    pub fn foreseen(&mut self, said: impl IntoIterator<Item = DraftToken>, ms: f64) {
        let Some(head) = &mut self.head else { return };
        head.said.clear();
        head.said.extend(said);
        if !head.said.is_empty() {
            let each_ms = ms / head.said.len() as f64;
            head.guess_ms += NEW * (each_ms.min(head.guess_ms * STALL) - head.guess_ms);
        }
    }

    /// Has the draft head of this process guess what follows `context`.
    pub fn foresee_by(&mut self, context: &[u32], head: &mut HeadDraft) {
        let began = Instant::now();
        let said = head.guess(context, self.foresees());
        self.foreseen(said, began.elapsed().as_secs_f64() * 1e3);
    }

    /// What the draft head guesses behind what is drafted already.
    fn next_foreseen(&self) -> Option<Guess> {
        let said = &self.head.as_ref()?.said;
        let agree =
            self.guesses.iter().zip(said).take_while(|(guess, said)| guess.token == said.token).count();
        (agree == self.guesses.len()).then(|| said.get(agree).map(|said| Guess::of_head(*said))).flatten()
    }

    /// The draft model has nothing more to say in this answer.
    pub fn dismiss_model(&mut self) {
        self.model = None;
    }

    /// Sends every draft, whatever it costs.
    pub fn send_all(&mut self) {
        self.depth = None;
    }

    /// Drafts with `drafter` and nothing else.
    pub fn draft_by(&mut self, drafter: Option<Box<dyn Drafter>>) {
        (self.drafter, self.model, self.grammar, self.takes_head) = (drafter, None, false, false);
        self.head = None;
    }

    /// Whether anything may draft.
    pub fn is_on(&self) -> bool {
        self.grammar || self.drafter.is_some() || self.model.is_some() || self.head.is_some()
    }

    /// Whether what the form of the answer forces is drafted.
    pub fn takes_forced(&self) -> bool {
        self.grammar
    }

    /// Whether a draft model drafts.
    pub fn has_model(&self) -> bool {
        self.model.is_some()
    }

    /// Drafts without a draft model what may follow `context`, which the form of the answer continues with `certain` tokens: at
    /// most `most` and [`MAX_DRAFT`] tokens.
    pub fn propose(&mut self, context: &[u32], certain: &[u32], most: usize) -> &[u32] {
        self.begin(context, certain, most, (usize::MAX, 0));
        self.wants();
        self.end()
    }

    /// As [`Self::propose`] with a draft model of this process; `left` tokens may still come.
    pub fn propose_asking(
        &mut self,
        context: &[u32],
        certain: &[u32],
        (most, left): (usize, usize),
        asking: Asking<'_>,
    ) -> &[u32] {
        let Asking { executor, model, sampler } = asking;
        self.begin(context, certain, most, (model.pending(context), left));
        while self.wants() {
            let (asked, read) = (Instant::now(), model.pending(&self.text));
            let said = model.next(executor, sampler, &self.text);
            let said =
                said.inspect_err(|error| tracing::warn!(%error, "the draft model failed")).ok().flatten();
            self.said(said, read, asked.elapsed().as_secs_f64() * 1e3);
        }
        self.end()
    }

    /// Begins a draft of what may follow `context`, as [`Self::propose`]. The draft model has `pending` tokens of the text to
    /// read before it can guess, and `left` tokens may still come: it is asked if reading pays.
    pub fn begin(&mut self, context: &[u32], certain: &[u32], most: usize, (pending, left): (usize, usize)) {
        // The last token known is the first row of the pass.
        let rows = self.attention.rows_taken_back(context.len().saturating_sub(1) as u64);
        self.most = most.min(MAX_DRAFT as usize).min(usize::try_from(rows - 1).unwrap_or(usize::MAX));
        self.guesses.clear();
        self.text.clear();
        self.text.extend_from_slice(context);
        if self.grammar {
            forced(certain).take(self.most).for_each(|guess| {
                self.text.push(guess.token);
                self.guesses.push(guess);
            });
        }
        let plain_ms = self.depth.as_ref().map(|depth| depth.step_ms(1));
        if let Some(model) = &mut self.model {
            let few = pending <= FEW_ROWS;
            model.affords = few
                || plain_ms.is_none_or(|plain_ms| {
                    let reading_ms = pending as f64 * model.guess_ms(plain_ms) / READS_FASTER;
                    reading_ms <= READING_SHARE * left as f64 * plain_ms
                });
        }
    }

    /// Adds what guesses cost nothing; true where the draft model is to say what follows [`Self::text`] ([`Self::said`]).
    pub fn wants(&mut self) -> bool {
        loop {
            let room = self.most.saturating_sub(self.guesses.len());
            if room == 0 {
                return false;
            }
            let drafter = self.drafter.as_mut();
            let free = drafter.map(|drafter| drafter.propose(&self.text, room)).unwrap_or_default();
            let chance_of = |guess: &Guess| self.odds[guess.trust].chance();
            let looked_up = free.first().map_or(0.0, chance_of);
            let foreseen = self.next_foreseen().filter(|guess| chance_of(guess) > looked_up);
            let chance = foreseen.as_ref().map_or(looked_up, chance_of);
            if self.model_pays(chance, room) {
                return true;
            }
            let Some(guess) = foreseen else {
                self.guesses.extend(free);
                return false;
            };
            self.text.push(guess.token);
            self.guesses.push(guess);
        }
    }

    /// Whether the model is to be asked where a guess that is right with `chance` costs nothing.
    fn model_pays(&self, chance: f64, room: usize) -> bool {
        let Some(model) = self.model.as_ref().filter(|model| model.affords) else { return false };
        let mean = model.odds.chance();
        if mean <= chance {
            return false;
        }
        let Some(depth) = &self.depth else { return true };
        let made = self.guesses.len();
        let known = self.guesses.iter().map(|guess| self.odds[guess.trust].chance());
        let chances: Vec<f64> = known.chain(std::iter::repeat_n(mean, room)).collect();
        depth.best_beyond(&chances, made, model.guess_ms(depth.step_ms(1))) > made
    }

    /// The tokens known and those guessed.
    pub fn text(&self) -> &[u32] {
        &self.text
    }

    /// The draft model read `read` tokens and said what follows [`Self::text`], in `ms`; `None` when it cannot.
    pub fn said(&mut self, said: Option<DraftToken>, read: usize, ms: f64) {
        let plain_ms = self.depth.as_ref().map_or(1.0, |depth| depth.step_ms(1));
        let Some(model) = &mut self.model else { return };
        if read <= FEW_ROWS {
            model.spent_ms += ms;
            let before = model.ms.unwrap_or(ms);
            let seen = if model.ms.is_some() { ms.min(model.guess_ms(plain_ms) * STALL) } else { ms };
            model.ms = Some(before + NEW * (seen - before));
        }
        match said {
            Some(said) => {
                self.text.push(said.token);
                self.guesses.push(Guess::of_model(said));
            }
            None => self.model = None,
        }
    }

    /// The draft model did not answer in `ms`: it is not asked again before this step.
    pub fn late(&mut self, ms: f64) {
        let plain_ms = self.depth.as_ref().map_or(1.0, |depth| depth.step_ms(1));
        let Some(model) = &mut self.model else { return };
        model.affords = false;
        model.spent_ms += ms;
        let before = model.guess_ms(plain_ms);
        model.ms = Some(before + NEW * (ms.min(before * STALL) - before));
    }

    /// What a guess of the draft model is taken to take, ms.
    pub fn guess_ms(&self) -> f64 {
        let plain_ms = self.depth.as_ref().map_or(1.0, |depth| depth.step_ms(1));
        self.model.as_ref().map_or(0.0, |model| model.guess_ms(plain_ms))
    }

    /// The draft is made: as many of its tokens as pay.
    pub fn end(&mut self) -> &[u32] {
        self.guesses.truncate(self.most);
        if let Some(head) = &mut self.head {
            head.said.clear();
        }
        if let Some(depth) = &self.depth {
            let chances: Vec<f64> =
                self.guesses.iter().map(|guess| self.odds[guess.trust].chance()).collect();
            self.guesses.truncate(depth.best(&chances, 0.0));
        }
        self.tokens.clear();
        self.tokens.extend(self.guesses.iter().map(|guess| guess.token));
        &self.tokens
    }

    /// What the draft model took for this draft, ms, reading a text that was new to it not counted.
    pub fn spent_ms(&self) -> f64 {
        self.model.as_ref().map_or(0.0, |model| model.spent_ms)
    }

    /// The draft behind the tokens known.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// There is no draft behind the tokens known.
    pub fn clear(&mut self) {
        self.guesses.clear();
        self.text.clear();
        self.tokens.clear();
    }

    /// Of a step with `drafted` drafted rows `right` were right, and with `stop` the text ended: what was drafted behind it is
    /// neither right nor wrong. `took` is how many rows the step had, those computed again among them, and its ms, making the draft
    /// not counted; `None` for one that says nothing of others.
    pub fn judge(&mut self, drafted: u32, right: u32, stop: bool, took: Option<(u32, f64)>) {
        let mut judged = [(0, false); TRUSTS];
        let (mut of_model, mut of_head) = ((0, false), (0, false));
        for (at, guess) in (0..drafted).zip(&self.guesses) {
            let kind = self.tally.kinds.entry(guess.kind).or_default();
            *kind = (kind.0 + 1, kind.1 + u32::from(at < right));
            let seen = &mut judged[guess.trust];
            let found =
                |seen: (u32, bool)| (seen.0 + u32::from(at < right), seen.1 || (at == right && !stop));
            *seen = found(*seen);
            match guess.kind {
                DraftedBy::Model => of_model = found(of_model),
                DraftedBy::Head => of_head = found(of_head),
                DraftedBy::Lookup | DraftedBy::Grammar => {}
            }
        }
        self.odds.iter_mut().zip(judged).for_each(|(odds, (right, missed))| odds.judge(right, missed));
        let mut spent_ms = 0.0;
        if let Some(head) = &mut self.head {
            head.odds.judge(of_head.0, of_head.1);
        }
        if let Some(model) = &mut self.model {
            model.odds.judge(of_model.0, of_model.1);
            spent_ms = std::mem::take(&mut model.spent_ms);
        }
        if let (Some((rows, ms)), Some(depth)) = (took, &mut self.depth) {
            depth.spend(spent_ms);
            depth.note(rows, right + 1, ms);
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

impl Asked {
    /// What a guess takes, ms, where a step of one row takes `plain_ms`.
    fn guess_ms(&self, plain_ms: f64) -> f64 {
        self.ms.unwrap_or(self.share * plain_ms)
    }
}

#[cfg(test)]
mod tests {
    use scheduler::rng::Rng;

    use super::*;

    fn drafting(choice: &str, plain_ms: f64) -> Drafting {
        let mut drafting = Drafting::new(
            &choice.parse().unwrap(),
            AttentionKind::Dense,
            Depth::new(plain_ms, plain_ms * 0.05),
        );
        drafting.ask_model(0.1);
        drafting
    }

    /// A draft model that is right with `chance`, and knows it: how often it was asked, and how many steps `tokens` tokens took.
    fn answer(drafting: &mut Drafting, tokens: usize, chance: f64) -> (u32, u32) {
        let mut rng = Rng::new(11);
        let (mut text, mut asked, mut steps) = (vec![1, 2, 3], 0, 0);
        while text.len() < tokens {
            // The next tokens are drawn beforehand; no two pairs are alike, so that nothing can be looked up.
            let next: Vec<u32> = (0..20).map(|at| (text.len() + at) as u32 + 1_000).collect();
            drafting.begin(&text, &[], 16, (0, tokens - text.len()));
            while drafting.wants() {
                let right = next[drafting.text().len() - text.len()];
                let token = if rng.happens(chance) { right } else { 7 };
                asked += 1;
                drafting.said(Some(DraftToken { token, chance: chance as f32 }), 1, 10.0);
            }
            let draft = drafting.end().to_vec();
            let right = draft.iter().zip(&next).take_while(|(a, b)| a == b).count();
            let drafted = draft.len() as u32;
            let took = (1 + drafted, 100.0 + 5.0 * f64::from(drafted));
            drafting.judge(drafted, right as u32, false, Some(took));
            drafting.count(right as u32 + 1);
            text.extend_from_slice(&next[..=right]);
            steps += 1;
        }
        (asked, steps)
    }

    #[test]
    fn a_draft_model_is_asked_as_long_as_it_is_right() {
        let mut good = drafting("minnow", 100.0);
        let (asked, steps) = answer(&mut good, 300, 0.95);
        // Without drafts 297; a draft that is wrong at once is followed by a rest.
        assert!(steps < 200 && asked > 150, "asked {asked} times in {steps} steps");
        let kinds: Vec<_> = good.tally().kinds().map(|(kind, ..)| kind).collect();
        assert_eq!(kinds, [DraftedBy::Model]);
        let mut bad = drafting("minnow", 100.0);
        let (asked, steps) = answer(&mut bad, 300, 0.02);
        assert!(asked < 30 && steps > 280, "asked {asked} times in {steps} steps");
    }

    #[test]
    fn what_takes_longer_than_it_saves_is_not_asked() {
        let mut drafting =
            Drafting::new(&"minnow".parse().unwrap(), AttentionKind::Dense, Depth::new(100.0, 5.0));
        drafting.ask_model(1.0);
        assert_eq!(answer(&mut drafting, 60, 1.0).0, 0);
        // A text that takes longer to read than what is left of the answer is worth.
        let mut drafting = self::drafting("minnow", 100.0);
        let text: Vec<u32> = (0..2_000).collect();
        drafting.begin(&text, &[], 16, (text.len(), 50));
        assert!(!drafting.wants());
        drafting.begin(&text, &[], 16, (text.len(), 1_000));
        assert!(drafting.wants());
    }

    /// What a pass forgets it cannot take back, so no draft is behind it.
    #[test]
    fn no_draft_reaches_over_what_is_forgotten() {
        let forgets = "h2o:budget=128,sinks=0,window=16".parse().unwrap();
        let mut drafting = Drafting::new(&"lookup".parse().unwrap(), forgets, Depth::new(100.0, 5.0));
        drafting.send_all();
        for (known, most) in [(100, 8), (125, 3), (127, 1), (128, 0), (129, 0), (130, 8), (190, 2), (192, 0)]
        {
            let repeats: Vec<u32> = (0..known).map(|at| at % 20).collect();
            assert_eq!(drafting.propose(&repeats, &[], 8).len(), most, "{known} tokens are known");
        }
    }

    /// At each place the best guess: what repeats is looked up, and what nothing stands for is asked.
    #[test]
    fn the_best_guess_of_each_place_counts() {
        let mut drafting = drafting("lookup,grammar,minnow", 1_000.0);
        let repeats: Vec<u32> = (0..60).map(|at| at % 20).collect();
        drafting.begin(&repeats, &[], 8, (0, 100));
        assert!(!drafting.wants(), "twenty tokens agree");
        assert_eq!(drafting.end(), [0, 1, 2, 3, 4, 5, 6, 7]);
        drafting.begin(&[1, 2, 3, 4, 5], &[6], 8, (0, 100));
        assert!(drafting.wants() && drafting.text() == [1, 2, 3, 4, 5, 6]);
        drafting.said(Some(DraftToken { token: 9, chance: 0.95 }), 1, 1.0);
        while drafting.wants() {
            drafting.said(None, 1, 1.0);
        }
        assert_eq!(drafting.end(), [6, 9]);
        assert!(!drafting.has_model(), "what has nothing to say is not asked again");
        drafting.judge(2, 2, false, Some((3, 1_000.0)));
        let kinds: Vec<_> = drafting.tally().kinds().collect();
        assert_eq!(kinds, [(DraftedBy::Grammar, 1, 1), (DraftedBy::Model, 1, 1)]);
    }
}
