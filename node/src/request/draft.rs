//! Drafts: tokens guessed behind those known, so that one pass may confirm several.
//!
//! A drafter proposes ([`crate::drafting`]); the last stage draws a token after every row of the step and keeps the drafts that the draws agree
//! with, and one more ([`scheduler::session`]). A draw depends on the seed and the position alone, so the tokens are those of
//! an answer without drafts, whatever is proposed.
//!
//! What follows from a draft is tentative until the draws have decided: it is not compared, not audited, not fed to a
//! follower, and no evidence. What was rejected leaves the logs.

use std::time::{Duration, Instant};

use api::choice::Draft;
use scheduler::{AttentionKind, LayerRange, NodeId, depth::Depth, session::MAX_DRAFT};
use shard::draft::DraftToken;
use tokio::time::timeout;

pub use crate::drafting::Tally;
use crate::{
    drafting::{Drafting, FEW_ROWS},
    worker::{DraftSeat, Fault, Foreseen},
};

/// What drafts a prompt's tokens, and what is believed of its steps before any was timed.
#[derive(Clone, Debug, Default)]
pub struct DraftTerms {
    /// What may draft.
    pub choice: Draft,
    /// What the rows of the session see.
    pub attention: AttentionKind,
    /// A step of one row, ms.
    pub plain_ms: f64,
    /// One more row, ms.
    pub row_ms: f64,
    /// Bytes that the model's draft head reads for a guess, where it has one.
    pub head_bytes: Option<u64>,
}

/// A guess is waited for as long as so many are believed to take; in between nothing else of the prompt happens.
const PATIENCE_GUESSES: f64 = 4.0;
/// Within these bounds, ms: clocks and tasks are late by the first, and beyond the second nothing is worth the wait.
const PATIENCE_MS: (f64, f64) = (5.0, 500.0);
/// A draft model that was late so often in a row is not asked again.
const MAX_LATE: u32 = 4;

/// How a step ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drawn {
    /// Positions below this are confirmed.
    pub(super) confirmed: u32,
    /// Rows that were drafted, and those of them that were right.
    pub(super) drafted: u32,
    /// See `drafted`.
    pub(super) right: u32,
    /// The text ended: what was drafted behind it is neither right nor wrong.
    pub(super) stop: bool,
    /// How long it took, ms; `None` for the prompt, which is no step.
    pub(super) ms: Option<f64>,
}

/// The drafts of one session.
#[derive(Default)]
pub(super) struct Drafts {
    drafting: Drafting,
    /// Whether the drafter of tests drafts, and nothing else.
    by_oracle: bool,
    /// What a step of one row is believed to take, ms.
    plain_ms: f64,
    /// How often in a row the draft model was late.
    late: u32,
    /// Positions below this are confirmed, the end of the step that was drawn last.
    confirmed: u32,
    /// Second answers for tentative rows that were others than the first: whose, and from which position on.
    rivals: Vec<(LayerRange, NodeId, u32)>,
}

impl Drafts {
    /// Those of a session.
    pub(super) fn new(session: scheduler::SessionId, terms: &DraftTerms) -> Self {
        let depth = Depth::new(terms.plain_ms, terms.row_ms);
        let mut drafting = Drafting::new(&terms.choice, terms.attention, depth);
        terms.head_bytes.into_iter().for_each(|bytes| drafting.ask_head(bytes));
        if drafts_for_tests() {
            drafting.send_all();
            #[cfg(debug_assertions)]
            if terms.choice == Draft::Auto {
                drafting.draft_by(oracle::of(session));
            }
        }
        let _ = session;
        let by_oracle = drafts_for_tests() && terms.choice == Draft::Auto;
        Self { drafting, by_oracle, plain_ms: terms.plain_ms, ..Self::default() }
    }

    /// Also asks the draft model at `seat`.
    pub(super) fn ask_model(&mut self, seat: &DraftSeat) {
        if !self.by_oracle {
            self.drafting.ask_model(seat.guess_ms() / self.plain_ms.max(1e-3));
        }
    }

    /// How many tokens the draft head is to guess behind the step that is under way.
    pub(super) fn foresees(&self) -> u8 {
        u8::try_from(self.drafting.foresees()).unwrap_or(u8::MAX)
    }

    /// What the draft head guesses to follow the step that was drawn.
    pub(super) fn foreseen(&mut self, foreseen: &Foreseen) {
        let said = foreseen.guesses.iter().map(|&(token, chance)| DraftToken { token, chance });
        self.drafting.foreseen(said, f64::from(foreseen.us) / 1e3);
    }

    /// As [`Self::propose`], asking the draft model at `seat` where that pays.
    pub(super) async fn propose_asking(
        &mut self,
        context: &[u32],
        certain: &[u32],
        seat: Option<&DraftSeat>,
    ) -> u32 {
        let pending = match seat.filter(|_| self.drafting.has_model()) {
            Some(seat) => self.pending(context, seat).await,
            None => usize::MAX,
        };
        self.drafting.begin(context, certain, MAX_DRAFT as usize, (pending, 0));
        while self.drafting.wants() {
            let (asked, patience) = (Instant::now(), self.patience());
            let said = match seat {
                Some(seat) => timeout(patience, seat.next(self.drafting.text())).await,
                None => Ok(Err(Fault::Refused("no draft model".into()))),
            };
            let ms = asked.elapsed().as_secs_f64() * 1e3;
            match said {
                Err(_) if self.late < MAX_LATE => {
                    self.late += 1;
                    self.drafting.late(ms);
                }
                said => {
                    let (said, read) = said.ok().and_then(Result::ok).unwrap_or_default();
                    self.late = 0;
                    self.drafting.said(said, read, ms);
                }
            }
        }
        self.drafting.end().len() as u32
    }

    /// Tokens of the text that the draft model at `seat` has still to read. What is more than it reads for a guess it is told to
    /// read beside.
    async fn pending(&mut self, context: &[u32], seat: &DraftSeat) -> usize {
        if !seat.is_open() {
            self.drafting.dismiss_model();
        }
        let few = |pending: &usize| *pending <= FEW_ROWS;
        if seat.pending(context).is_none_or(|pending| !few(&pending)) {
            seat.read(context.to_vec());
            if drafts_for_tests() {
                seat.settled().await;
                seat.read(context.to_vec());
                seat.settled().await;
            }
        }
        seat.pending(context).filter(few).unwrap_or(usize::MAX)
    }

    /// How long a guess is waited for. Tests take drafts whatever they cost.
    fn patience(&self) -> Duration {
        if drafts_for_tests() {
            return Duration::from_secs(60);
        }
        let ms = PATIENCE_GUESSES * self.drafting.guess_ms();
        Duration::from_secs_f64(ms.clamp(PATIENCE_MS.0, PATIENCE_MS.1) / 1e3)
    }

    /// Drafts what may follow `context`, which the form of the answer continues with `forced` tokens; how many tokens that is.
    #[cfg(test)]
    pub(super) fn propose(&mut self, context: &[u32], certain: &[u32]) -> u32 {
        self.drafting.propose(context, certain, MAX_DRAFT as usize).len() as u32
    }

    /// The draft behind the tokens known.
    pub(super) fn tokens(&self) -> &[u32] {
        self.drafting.tokens()
    }

    /// What came of drafts so far.
    pub(super) fn tally(&self) -> &Tally {
        self.drafting.tally()
    }

    /// Whether any step had one.
    pub(super) fn used(&self) -> bool {
        self.tally().all().0 > 0
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

    /// A step was drawn. The rivals that gave other rows for a position that is confirmed.
    pub(super) fn drawn(&mut self, step: Drawn) -> Vec<(LayerRange, NodeId)> {
        let Drawn { confirmed, drafted, right, stop, ms } = step;
        self.confirmed = confirmed;
        self.drafting.judge(drafted, right, stop, ms.map(|ms| (1 + drafted, ms)));
        if ms.is_some() {
            self.drafting.count(right + 1);
        }
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

/// Whether tests want drafts whatever they cost.
fn drafts_for_tests() -> bool {
    #[cfg(debug_assertions)]
    return oracle::asked().is_some();
    #[cfg(not(debug_assertions))]
    false
}

/// The drafter of tests. Not part of a release build.
#[cfg(any(test, debug_assertions))]
pub(super) mod oracle {
    use std::{
        collections::VecDeque,
        sync::{Mutex, OnceLock, PoisonError},
    };

    use scheduler::rng::mix;
    use shard::draft::{DraftedBy, Drafter, Guess};

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
        fn propose(&mut self, context: &[u32], k: usize) -> Vec<Guess> {
            let known = self.answers.iter().find_map(|answer| answer.strip_prefix(context));
            let mut draft: Vec<u32> = known.unwrap_or(&[]).iter().take(k.min(self.most)).copied().collect();
            let drawn = mix(self.seed ^ (context.len() as u64) << 20);
            // Any beginning may be right, all of it included.
            if let Some(wrong) = draft.get_mut(drawn as usize % (self.most + 1)) {
                *wrong = if *wrong == 0 { 1 } else { *wrong - 1 };
            }
            draft.into_iter().map(|token| Guess { token, kind: DraftedBy::Lookup, trust: 0 }).collect()
        }
    }

    fn answers() -> &'static Mutex<VecDeque<Vec<u32>>> {
        static ANSWERS: OnceLock<Mutex<VecDeque<Vec<u32>>>> = OnceLock::new();
        ANSWERS.get_or_init(Mutex::default)
    }

    /// `SHOAL_DRAFT=K:SEED` sends all drafts, whatever they cost; a session that does not choose its drafters has at most K
    /// tokens drafted from answers that this process gave before.
    pub(super) fn asked() -> Option<(usize, u64)> {
        static ASKED: OnceLock<Option<(usize, u64)>> = OnceLock::new();
        *ASKED.get_or_init(|| {
            let text = std::env::var("SHOAL_DRAFT").ok()?;
            let (most, seed) = text.split_once(':')?;
            Some((most.parse().ok()?, seed.parse().ok()?))
        })
    }

    /// The oracle of a session, where tests ask for it.
    pub(super) fn of(session: scheduler::SessionId) -> Option<Box<dyn Drafter>> {
        let (most, seed) = asked()?;
        let name = session.as_bytes().iter().fold(seed, |mixed, byte| mix(mixed ^ u64::from(*byte)));
        let answers = answers().lock().unwrap_or_else(PoisonError::into_inner);
        Some(Box::new(Oracle::new(answers.iter().cloned().collect(), most, name)))
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
    use api::choice::Draft;
    use scheduler::{AttentionKind, LayerRange, NodeId, SessionId, rng::Rng};
    use shard::draft::{DraftedBy, Drafter, Guess};

    use super::{DraftTerms, Drafts, Drawn, oracle::Oracle};

    fn step(confirmed: u32, drafted: u32, right: u32) -> Drawn {
        Drawn { confirmed, drafted, right, stop: false, ms: None }
    }

    #[test]
    fn the_oracle_is_right_for_any_beginning() {
        let answer: Vec<u32> = (0..40).collect();
        let mut right = [0; 6];
        for seed in 0..600 {
            let draft = Oracle::new(vec![vec![9, 9], answer.clone()], 5, seed).propose(&answer[..7], 16);
            assert_eq!(draft.len(), 5);
            let agrees = |(drafted, said): &(&Guess, &u32)| drafted.token == **said;
            right[draft.iter().zip(&answer[7..]).take_while(agrees).count()] += 1;
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
        assert_eq!(drafts.drawn(step(13, 4, 2)), [(layers, NodeId::numbered(1))]);
        assert_eq!((drafts.drawn(step(20, 2, 2)), drafts.confirmed()), (vec![], 20));
    }

    /// A text that repeats over a long ring is drafted deep, noise on one machine hardly at all.
    #[test]
    fn drafts_are_made_where_they_pay() {
        let answer = |drafts: &mut Drafts, text: &[u32], ring_ms: f64, row_ms: f64| {
            let (mut said, mut passes) = (8, 0);
            while said < text.len() {
                let drafted = drafts.propose(&text[..said], &[]).min((text.len() - said) as u32 - 1);
                let agree =
                    drafts.tokens().iter().zip(&text[said..]).take_while(|(a, b)| a == b).count() as u32;
                let (right, ms) = (agree.min(drafted), ring_ms + row_ms * f64::from(drafted));
                drafts.drawn(Drawn { ms: Some(ms), ..step(said as u32, drafted, right) });
                said += right as usize + 1;
                passes += 1;
            }
            passes
        };
        let new = |choice: &str| {
            let terms = DraftTerms {
                choice: choice.parse().unwrap(),
                attention: AttentionKind::Dense,
                plain_ms: 300.0,
                row_ms: 4.0,
                head_bytes: None,
            };
            Drafts::new(SessionId::numbered(3), &terms)
        };
        let repeats: Vec<u32> = (0..200).map(|at| at % 20).collect();
        let mut drafts = new("auto");
        let passes = answer(&mut drafts, &repeats, 300.0, 4.0);
        assert!(passes < 50, "{passes} passes");
        let (proposed, right) = drafts.tally().all();
        assert_eq!((drafts.tally().passes, drafts.tally().tokens), (passes, 192));
        assert!(right > proposed * 9 / 10, "{right} of {proposed}");
        assert!(drafts.tally().kinds().all(|(kind, ..)| kind == DraftedBy::Lookup));
        assert_eq!(answer(&mut new("off"), &repeats, 300.0, 4.0), 192);
        assert_eq!(answer(&mut new("grammar"), &repeats, 300.0, 4.0), 192);
        let mut rng = Rng::new(5);
        let noise: Vec<u32> = (0..300).map(|_| rng.below(12) as u32).collect();
        let mut drafts = new("lookup");
        answer(&mut drafts, &noise, 30.0, 12.0);
        assert!(drafts.tally().all().0 < 40, "{:?}", drafts.tally());
    }

    #[test]
    fn what_is_forced_goes_first_and_is_judged_by_itself() {
        let terms = DraftTerms {
            choice: Draft::Auto,
            attention: AttentionKind::Dense,
            plain_ms: 300.0,
            row_ms: 4.0,
            head_bytes: None,
        };
        let mut drafts = Drafts::new(SessionId::numbered(3), &terms);
        // Behind 5, 6, 7 the text went on with 8, 9 before.
        let text = [4, 5, 6, 7, 8, 9, 1, 2];
        assert!(drafts.propose(&text, &[5, 6, 7]) >= 5);
        assert_eq!(drafts.tokens()[..5], [5, 6, 7, 8, 9]);
        drafts.drawn(step(12, 5, 3));
        assert_eq!(
            drafts.tally().kinds().collect::<Vec<_>>(),
            [(DraftedBy::Lookup, 2, 0), (DraftedBy::Grammar, 3, 3)]
        );
    }
}
