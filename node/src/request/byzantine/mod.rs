//! Every liar we know of against everything that is there to find it: a tiny model computed for real, real signatures,
//! and the code that decides in a running node (`Logs`, `Book`, `Signatures`, [`Record`], [`FraudProof`]).
//!
//! One seed is one request: a stage of some experience with us answers it in one of [`WAYS`], the draw says whether it is
//! checked, by whom, and who settles what is disputed. In three of four of them steps carry drafted rows, as a drafter makes
//! them that the seed draws: rejected rows must leave no trace. 300 seeds; `SHOAL_SEEDS` for more. Positions computed are counted
//! and compared with what the shares of checked requests predict.
//!
//! Limits: network and timing are not here (`tests/integration/verify.rs` has them); the draw of a long acquaintance is
//! in `simulations`, where a seed is hundreds of requests.

mod tiny;

use std::{collections::BTreeSet, sync::OnceLock, time::Instant};

use p2p::{
    Identity,
    codec::{self, Wire},
    wire::{
        announce::Class,
        receipt::{Chain, Commit, Equivocation, FraudProof, Grant, Leaf, Row, Terms, Unproven},
    },
};
use scheduler::{
    Millis, ModelId, NodeId, OperatorId, SessionId, SessionKind,
    rng::{Rng, mix},
    session::MAX_DRAFT,
    trust::{BAN_MS, Outcome, QUARANTINE_MS, Record, Standing},
};

use self::tiny::{Computed, HIDDEN, Judge, POSITIONS, PROMPT, Rows, Tiny, decode, encode, segment};
use super::{
    commitments::{Book, Ruling, Signatures, Third},
    replay_log::Logs,
};
use crate::audit::Audit;

const NOW: u32 = 1_800_000_000;
const N: u32 = POSITIONS as u32;
/// Where stages and followers sign.
const SIGNS: [u32; 3] = [16, 32, N];

/// How a stage answers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Way {
    Honest,
    SkipLayers,
    LowerBits,
    OtherModel,
    Garbage,
    NotANumber,
    Zero,
    ReplayOld,
    OneUlp,
    Steer,
    CheatAfter,
    CheatSometimes,
    Equivocate,
    Withhold,
    WrongCache,
    /// Lies, and its follower confirms the lie.
    Collude,
    /// Is honest, and its follower lies.
    Slandered,
    /// Is honest and has a broken memory.
    BitFlip,
}

const WAYS: [Way; 18] = [
    Way::Honest,
    Way::SkipLayers,
    Way::LowerBits,
    Way::OtherModel,
    Way::Garbage,
    Way::NotANumber,
    Way::Zero,
    Way::ReplayOld,
    Way::OneUlp,
    Way::Steer,
    Way::CheatAfter,
    Way::CheatSometimes,
    Way::Equivocate,
    Way::Withhold,
    Way::WrongCache,
    Way::Collude,
    Way::Slandered,
    Way::BitFlip,
];

/// The same rows, but for the lowest bit of a value of those from `from` on.
fn one_ulp(rows: &Rows, wire: Wire, from: usize) -> Rows {
    let mut rows = rows.clone();
    for row in &mut rows[from..] {
        // The largest value of a rounded block cannot be another: no reader would accept the row.
        let small =
            |(at, byte): (usize, &u8)| (at > 1 && byte.cast_signed().unsigned_abs() < 100).then_some(at);
        let at = if wire == Wire::Raw { 0 } else { row[..34].iter().enumerate().find_map(small).unwrap() };
        row[at] ^= 1;
    }
    rows
}

/// What a stage gives.
fn answer(way: Way, of: &Computed, chance: &mut Rng) -> Rows {
    let (wire, truth) = (of.wire, &of.truth);
    let drawn = |values: &mut dyn FnMut() -> f32| {
        encode(wire, &(0..POSITIONS * HIDDEN).map(|_| values()).collect::<Vec<f32>>())
    };
    match way {
        Way::Honest | Way::Slandered => truth.clone(),
        Way::SkipLayers => of.skipped[chance.below(3)].clone(),
        Way::LowerBits => of.lower.clone(),
        Way::OtherModel => of.other.clone(),
        Way::Garbage => drawn(&mut || chance.between(-2.0, 2.0) as f32),
        Way::Zero => drawn(&mut || 0.0),
        Way::NotANumber => {
            let mut rows = truth.clone();
            // A value of a raw row, the scale of a block of a rounded one.
            rows[chance.below(POSITIONS)][..4].copy_from_slice(&f32::NAN.to_le_bytes());
            rows
        }
        Way::ReplayOld => truth[..1].iter().chain(&truth[..POSITIONS - 1]).cloned().collect(),
        Way::OneUlp | Way::Collude => one_ulp(truth, wire, 0),
        Way::Steer => {
            let eps = 10f64.powf(chance.between(-6.0, -1.0)) as f32;
            let mut values = decode(wire, truth);
            values.iter_mut().step_by(3).for_each(|x| *x += eps);
            encode(wire, &values)
        }
        Way::CheatAfter | Way::Equivocate => one_ulp(truth, wire, chance.below(POSITIONS)),
        Way::CheatSometimes | Way::Withhold if chance.happens(0.5) => truth.clone(),
        Way::CheatSometimes | Way::Withhold => one_ulp(truth, wire, chance.below(POSITIONS)),
        Way::WrongCache => of.stale.clone(),
        Way::BitFlip => {
            let mut rows = truth.clone();
            let row = &mut rows[chance.below(POSITIONS)];
            let bit = chance.below(row.len() * 8);
            row[bit / 8] ^= 1 << (bit % 8);
            rows
        }
    }
}

/// Who is there.
struct Cast {
    stage: Identity,
    follower: Identity,
    third: Identity,
    requester: Identity,
}

fn cast() -> &'static Cast {
    static CAST: OnceLock<Cast> = OnceLock::new();
    let of = |n| Identity::from_seed([n; 32]);
    CAST.get_or_init(|| Cast { stage: of(1), follower: of(2), third: of(3), requester: of(4) })
}

fn terms(seed: u64, wire: Wire) -> Terms {
    Terms {
        session: SessionId::numbered(seed),
        requester: cast().requester.node(),
        model: ModelId::numbered(1),
        layers: segment(),
        hidden: HIDDEN as u32,
        class: Class::D1,
        rounding: tiny::rounding(wire),
        kind: SessionKind::DEFAULT,
        inner: false,
    }
}

/// What `who` signs after the positions `at`, having computed `outputs`.
fn words(who: &Identity, terms: &Terms, of: &Computed, outputs: &Rows, at: &[u32]) -> Vec<Commit> {
    let mut chain = Chain::new(terms, Grant::new(NOW, 7), 1, N);
    let mut said = Vec::new();
    for (input, output) in of.inputs.iter().zip(outputs) {
        let (input, output) = (Row::of(of.wire, input), Row::of(of.wire, output));
        chain.push(&Leaf { input, output, inner: [0; 32] }).unwrap();
        said.extend(at.contains(&chain.positions()).then(|| chain.conclude(who)).flatten());
    }
    said
}

/// What became of a request.
#[derive(Clone, Copy, Default, Debug)]
struct Seen {
    lied: bool,
    /// Drawn for a check, after the stage had signed.
    checked: bool,
    /// Left, and struck where it had signed.
    caught: bool,
    /// Not even read.
    refused: bool,
    /// Checked by a node that tells the same lie.
    fooled: bool,
    /// Positions that checks computed, and that verdicts did.
    computed: (u32, u32),
}

/// One request, from its rows to its verdict.
struct Case<'a> {
    tiny: &'a Tiny,
    of: &'a Computed,
    terms: Terms,
    logs: Logs,
    book: Book,
    seen: Seen,
    noted: Vec<(NodeId, Outcome)>,
}

impl<'a> Case<'a> {
    fn new(tiny: &'a Tiny, seed: u64, of: &'a Computed, said: &Rows) -> Self {
        let terms = terms(seed, of.wire);
        let (layers, cast) = (segment(), cast());
        let mut logs = Logs::new(HIDDEN);
        let mut steps = Rng::new(mix(seed));
        // By what a request drafts: nothing, anything, a form (short and right), a lookup (deep, all right or all wrong).
        let drafter = steps.below(4);
        let mut at = 0;
        while at < POSITIONS {
            // The prompt, or a row and those drafted behind it, of which `right` are right.
            let (rows, drafted) = match at {
                0 => (PROMPT as usize, 0),
                _ => {
                    let deepest = [0, MAX_DRAFT as usize, 4, MAX_DRAFT as usize][drafter];
                    (1, steps.below(deepest + 1))
                }
            };
            let right = match drafter {
                2 => drafted,
                3 => drafted * usize::from(steps.happens(0.5)),
                _ => steps.below(drafted + 1),
            };
            let right = right.min(POSITIONS - at - rows);
            let kept = at + rows + right;
            logs.set_tentative((drafted > 0).then_some((at + rows) as u32));
            for (layer, truth, by) in
                [(layers.start(), &of.inputs, cast.requester.node()), (layers.end(), said, cast.stage.node())]
            {
                // What follows from a wrong draft are rows of other positions: evidence against anyone if they stayed.
                let wrong =
                    (kept..at + rows + drafted).map(|position| &truth[(position * 7 + 3) % POSITIONS]);
                let given: Vec<u8> = truth[at..kept].iter().chain(wrong).flatten().copied().collect();
                let count = (rows + drafted) as u32;
                logs.add(layer, at as u32, count, of.wire, &given, by).unwrap();
                assert_eq!(
                    logs.settled(layer),
                    (at + rows) as u32,
                    "drafted rows are settled by draws alone"
                );
                assert!(drafted == 0 || logs.row(layer, (at + rows) as u32).is_none());
            }
            logs.cut(kept as u32);
            logs.set_tentative(None);
            at = kept;
        }
        let book = Book::new(terms.clone(), N);
        let seen = Seen { lied: *said != of.truth, ..Seen::default() };
        Self { tiny, of, terms, logs, book, seen, noted: Vec::new() }
    }

    /// With a follower; the log's outputs are `said`.
    fn follow(&mut self, way: Way, said: &Rows, chance: &mut Rng) {
        let again = self.tiny.again(self.of.wire, &self.of.inputs);
        self.seen.computed.0 += N;
        let theirs = match way {
            Way::Collude => said.clone(),
            Way::Slandered => one_ulp(&again, self.of.wire, chance.below(POSITIONS)),
            _ => again,
        };
        let follower = &cast().follower;
        for commit in words(follower, &self.terms, self.of, &theirs, &SIGNS) {
            self.book.signed(follower.node(), true, commit);
            if self.book.compare(&self.logs) {
                return self.dispute(chance);
            }
        }
        assert_eq!(self.book.checked, N);
        self.seen.fooled = self.seen.lied;
    }

    /// A third holder where there is one, else, and where that decides nothing, an own computation.
    fn dispute(&mut self, chance: &mut Rng) {
        let Cast { stage, follower, third, .. } = cast();
        let window = self.book.disputed().unwrap();
        assert!(window.1 - window.0 <= 16, "bound at most 16 positions after it was told");
        let found = chance.happens(0.7).then(|| {
            let exact = chance.happens(0.8);
            self.book.third = Some(Third { node: third.node(), window, exact, asked: Instant::now() });
            let again = self.tiny.again(self.of.wire, &self.of.inputs[..window.1 as usize]);
            self.seen.computed.1 += window.1;
            let from = if exact { window.0 } else { window.1 };
            let at: Vec<u32> = (from..=window.1).collect();
            for commit in words(third, &self.terms, self.of, &again, &at) {
                self.book.signed(third.node(), true, commit);
                self.book.compare(&self.logs);
            }
            // Some third holders belong to the follower's operator: two nodes, one voice.
            let kin = chance.happens(0.2);
            let operator = |node| {
                let node = if kin && node == third.node() { follower.node() } else { node };
                OperatorId::new(*node.as_bytes())
            };
            let ruling = self.book.rule(stage.node(), operator).unwrap();
            assert!(!kin || self.seen.lied == (ruling == Ruling::Open), "{ruling:?}");
            ruling
        });
        match found {
            Some(Ruling::Wrong { at, exact }) => self.convict(at, exact, window.1),
            Some(Ruling::Upheld(upto)) => self.noted.extend(self.book.upheld(upto, third.node())),
            Some(Ruling::Open) | None => {
                self.seen.computed.1 += N;
                self.audit();
            }
        }
    }

    /// The requester computes the range again.
    fn audit(&mut self) {
        let own = self.tiny.again(self.of.wire, &self.of.inputs).concat();
        let (_, said) = self.logs.get(segment().end(), 0, N).unwrap();
        let row = codec::encoded_len(self.of.wire, 1, HIDDEN).unwrap();
        let found = Audit::compare(row, &own, &said);
        match found.wrong {
            Some(at) => self.convict(at, true, at + 1),
            None => self.noted.extend(self.book.upheld(found.upto, cast().requester.node())),
        }
    }

    /// The log is wrong from `at` on, or, not exactly, from some position on that is not below.
    fn convict(&mut self, at: u32, exact: bool, upto: u32) {
        let stage = cast().stage.node();
        let outcome = match self.book.proof(&self.logs, stage, at).filter(|_| exact) {
            Some(proof) => {
                let read = FraudProof::decode(&proof.encode().unwrap()).unwrap();
                assert_eq!(read.verify(NOW, &mut Judge(self.tiny)), Ok(stage));
                Outcome::Mismatch
            }
            None if self.book.signed_for(stage, upto) => Outcome::Mismatch,
            None => Outcome::Aborted,
        };
        self.noted.push((stage, outcome));
        self.seen.caught = true;
    }
}

/// Plays one request of `seed` with a stage of that experience, and says what happened.
fn play(tiny: &Tiny, seed: u64, way: Way, record: &mut Record) -> Seen {
    let mut chance = Rng::new(seed);
    let now = Millis(u64::from(NOW) * 1_000);
    let of = &tiny.requests[chance.below(tiny.requests.len())];
    let said = answer(way, of, &mut chance);
    let stage = &cast().stage;
    let read = |row: &Vec<u8>| codec::decode(of.wire, HIDDEN, 1, row, &mut Vec::new()).is_ok();
    if !said.iter().all(read) {
        record.note(now, Outcome::Aborted);
        return Seen { lied: true, refused: true, ..Seen::default() };
    }
    let mut case = Case::new(tiny, seed, of, &said);
    let mut signatures = Signatures::default();
    let signs: &[u32] = if way == Way::Withhold { &[] } else { &SIGNS };
    let mut contradiction = None;
    for commit in words(stage, &case.terms, of, &said, signs) {
        contradiction = contradiction.or(signatures.note(stage.node(), commit));
        case.book.signed(stage.node(), false, commit);
    }
    if way == Way::Equivocate {
        for commit in words(stage, &case.terms, of, &of.truth, signs) {
            contradiction = contradiction.or(signatures.note(stage.node(), commit));
        }
    }
    if let Some(proof) = contradiction {
        assert_eq!(Equivocation::open(&proof.encode(), NOW).map(|it| it.accused()), Ok(stage.node()));
        record.note(now, Outcome::Equivocated);
        assert_eq!(record.standing(now), Standing::Banned { until: now + BAN_MS });
        return Seen { caught: true, ..case.seen };
    }
    case.book.compare(&case.logs);
    case.seen.checked = record.checks(chance.unit());
    if !case.seen.checked {
        record.note(now, Outcome::Finished);
        return case.seen;
    }
    // Those who lie together are found by own computation alone.
    let follows = chance.happens(0.6);
    if follows {
        case.follow(way, &said, &mut chance);
    } else {
        case.seen.computed.0 += N;
        case.audit();
    }
    if way == Way::Slandered {
        case.slander(follows);
    }
    let Case { noted, mut seen, .. } = case;
    let against = |node: NodeId| noted.iter().filter(move |(of, _)| *of == node).map(|(_, outcome)| *outcome);
    if way == Way::Slandered && follows {
        let struck: Vec<Outcome> = against(cast().follower.node()).collect();
        assert_eq!(struck, [Outcome::Mismatch], "seed {seed}");
    } else {
        assert_eq!(noted.iter().find(|(node, _)| *node != stage.node()), None, "seed {seed} {way:?}");
    }
    let mine: Vec<Outcome> = against(stage.node()).collect();
    if seen.lied || !mine.is_empty() {
        let expected = if way == Way::Withhold { Outcome::Aborted } else { Outcome::Mismatch };
        assert!(seen.lied, "seed {seed}: an honest stage is accused");
        seen.caught &= mine == [expected];
    }
    let tokens = case.book.words.get(&stage.node()).and_then(|word| word.good).map_or(0, |good| good.pos);
    match mine.first() {
        Some(outcome) => record.note(now, *outcome),
        None if tokens > 0 => record.note(now, Outcome::Verified { tokens: u64::from(tokens) }),
        None => record.note(now, Outcome::Finished),
    }
    seen
}

impl Case<'_> {
    /// A slanderer goes on to show what the stage signed as proof of something else.
    fn slander(&self, follows: bool) {
        let stage = cast().stage.node();
        let mut judge = Judge(self.tiny);
        let Some(proof) = self.book.proof(&self.logs, stage, N - 1) else { return };
        assert_eq!(proof.verify(NOW, &mut judge), Err(Unproven::Honest));
        let framed = FraudProof { accused: cast().third.node(), ..proof.clone() };
        assert_eq!(framed.verify(NOW, &mut judge), Err(Unproven::Forged("signature")), "{follows}");
        let mut edited = proof;
        edited.leaves[3].output.digest[0] ^= 1;
        assert_eq!(edited.verify(NOW, &mut judge), Err(Unproven::Forged("chain")));
    }
}

/// A stage with so many good requests behind it.
fn known(requests: u32) -> Record {
    let mut record = Record::default();
    (0..requests).for_each(|_| record.note(Millis(0), Outcome::Verified { tokens: 100 }));
    record
}

fn seeds() -> u64 {
    std::env::var("SHOAL_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(300)
}

#[test]
fn sampled_lies_are_caught_and_no_honest_node_is_convicted() {
    let tiny = Tiny::new();
    let experience = [0, 25, 150, 1_200];
    // By experience: lies that could be found by a check, those that were; for the whole: served, checked, verdicts.
    let (mut lies, mut caught) = ([0u32; 4], [0u32; 4]);
    let (mut served, mut checks, mut verdicts, mut predicted, mut spread) = (0, 0, 0, 0.0, 0.0);
    let mut told = BTreeSet::new();
    let mut disputes = 0;
    for seed in 0..seeds() {
        let (way, level) = (WAYS[seed as usize % WAYS.len()], (seed as usize / WAYS.len()) % 4);
        let mut record = known(experience[level]);
        let share = record.check_share();
        let seen = play(&tiny, seed, way, &mut record);
        let Seen { lied, checked, refused, fooled, .. } = seen;
        let now = Millis(u64::from(NOW) * 1_000);
        if !lied {
            assert_eq!(record.standing(now), Standing::Good, "seed {seed} {way:?}");
            assert_eq!(record.figures().strikes, 0, "seed {seed} {way:?}");
        }
        assert!(!fooled || way == Way::Collude, "seed {seed} {way:?}");
        if lied {
            told.insert(way);
        }
        if way == Way::NotANumber {
            assert!(refused, "seed {seed}");
        }
        if refused || way == Way::Equivocate {
            assert!(refused || seen.caught == lied, "seed {seed}");
            continue;
        }
        if lied && checked && !fooled {
            assert!(seen.caught, "seed {seed} {way:?}: a sampled lie goes through");
            let strikes = record.figures().strikes;
            assert_eq!(strikes, u32::from(way != Way::Withhold), "seed {seed} {way:?}");
            if strikes == 1 {
                assert_eq!(record.standing(now), Standing::Quarantined { until: now + QUARANTINE_MS });
                record.note(now, Outcome::Mismatch);
                assert_eq!(record.standing(now), Standing::Banned { until: now + BAN_MS });
            }
        }
        if lied && way != Way::Collude {
            lies[level] += 1;
            caught[level] += u32::from(seen.caught);
        }
        disputes += u32::from(seen.computed.1 > 0);
        assert!(seen.computed.1 <= 2 * N, "seed {seed}: a verdict took more than two replays");
        served += N;
        checks += seen.computed.0;
        verdicts += seen.computed.1;
        predicted += share * f64::from(N);
        spread += share * (1.0 - share) * f64::from(N).powi(2);
    }
    for (level, share) in experience.iter().map(|&requests| known(requests).check_share()).enumerate() {
        let (lies, caught) = (f64::from(lies[level]), f64::from(caught[level]));
        // 99.9 % of a binomial distribution, and one for its steps.
        let band = 3.29 * (lies * share * (1.0 - share)).sqrt() + f64::from(u8::from(share < 1.0));
        println!("share {share}: {lies} lies, {caught} caught, {:.1} +- {band:.1} predicted", lies * share);
        assert!((caught - lies * share).abs() <= band, "share {share}: {caught} of {lies}, +- {band}");
    }
    println!(
        "{} seeds, {disputes} disputes; positions: {served} served, {checks} checked, {predicted:.0} predicted \
         ({:.3} of it), {verdicts} more for verdicts",
        seeds(),
        f64::from(checks) / predicted
    );
    assert!(f64::from(checks) <= 1.1 * predicted + 3.29 * spread.sqrt());
    if seeds() >= 2 * WAYS.len() as u64 * 4 {
        assert_eq!(told.len(), WAYS.len() - 2, "who never lied: {told:?}");
    }
}

/// The strongest liar against the weakest check: one bit in one value of one row, a newcomer, every request.
#[test]
fn newcomers_are_caught_at_their_first_lie() {
    let tiny = Tiny::new();
    for seed in 0..seeds() / 10 {
        let mut record = Record::default();
        let seen = play(&tiny, seed, Way::CheatAfter, &mut record);
        assert!(seen.caught && seen.checked, "seed {seed}");
    }
}
