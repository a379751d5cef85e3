//! Liars at the level of digests: 10,000 seeds a strategy, `SHOAL_SEEDS` for more.

use scheduler::rng::Rng;
use scheduler::trust::Record;
use simulations::byzantine::{Fate, Strategy, play, predicted, veteran};

fn seeds() -> u64 {
    std::env::var("SHOAL_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(10_000)
}

/// Whatever the strategy: a checked lie is always proven, no honest node ever convicted, two replays suffice.
#[test]
fn checked_lies_are_caught_and_the_honest_are_not() {
    for seed in 0..seeds() {
        let mut draw = Rng::new(seed);
        let strategies = [
            Strategy::Honest,
            Strategy::Always,
            Strategy::Sometimes(draw.unit()),
            Strategy::After(draw.below(200) as u32),
            Strategy::Equivocate,
            Strategy::Withhold,
            Strategy::Slandered,
            Strategy::Colluding,
        ];
        let strategy = strategies[draw.below(strategies.len())];
        // Those who collude are found only by who can recompute.
        let own = strategy == Strategy::Colluding || draw.happens(0.5);
        let known = [0, 25, 150, 1_200][draw.below(4)];
        let Fate { lies, caught, convicted, wronged, checked, replays, .. } =
            play(seed, strategy, veteran(known), 300, own);
        assert_eq!(caught, lies.1, "seed {seed} {strategy:?}");
        assert_eq!(convicted, lies.1 > 0, "seed {seed} {strategy:?}");
        assert!(!wronged, "seed {seed} {strategy:?}");
        assert!(replays <= 2 * checked, "seed {seed} {strategy:?}");
    }
}

/// New identities gain nothing: the first lie of a node on probation is found.
#[test]
fn newcomers_are_caught_at_once() {
    for seed in 0..seeds() {
        let fate = play(seed, Strategy::Sometimes(0.3), Record::default(), 20, false);
        assert_eq!(fate.lies.0, u32::from(fate.convicted), "seed {seed}");
    }
}

/// As often as computed: the share caught within n requests lies in the 99 % band around 1 - (1 - f s)^n, and checking
/// costs what it should.
#[test]
fn detection_lies_in_the_predicted_band() {
    let runs = seeds();
    for (verified, s) in [(25, 0.2), (150, 0.05), (1_200, 0.02)] {
        for (f, n) in [(1.0, 10), (1.0, 14), (0.5, 29), (0.1, 149)] {
            let record = veteran(verified);
            assert_eq!(record.check_share(), s);
            let fates: Vec<Fate> = (0..runs)
                .map(|seed| play(seed << 8 | u64::from(n), Strategy::Sometimes(f), record.clone(), n, false))
                .collect();
            let caught = fates.iter().filter(|fate| fate.convicted).count() as f64 / runs as f64;
            let p = predicted(f, s, n);
            let band = 2.576 * (p * (1.0 - p) / runs as f64).sqrt();
            assert!(
                (caught - p).abs() <= band,
                "f {f} s {s} n {n}: caught {caught:.4}, predicted {p:.4} +- {band:.4}"
            );
            let (checked, served) =
                fates.iter().fold((0, 0), |sum, fate| (sum.0 + fate.checked, sum.1 + fate.requests));
            let share = f64::from(checked) / f64::from(served);
            assert!(share <= 1.1 * s, "f {f} s {s} n {n}: {share:.4} of requests checked");
            println!(
                "f {f} s {s} n {n}: caught {caught:.4}, predicted {p:.4} +- {band:.4}, checked {share:.4}"
            );
        }
    }
}

/// The limit of voting, measured: where no node recomputes, colluding nodes are believed.
#[test]
fn collusion_needs_an_own_recomputation() {
    let without = play(1, Strategy::Colluding, Record::default(), 50, false);
    assert!(!without.convicted && without.lies.1 > 0);
    assert!(play(1, Strategy::Colluding, Record::default(), 50, true).convicted);
}
