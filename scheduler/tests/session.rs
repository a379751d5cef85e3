//! The session machine against a world of unreliable stages.
//!
//! Stages compute a real recurrence (each layer's output depends on all earlier inputs of that layer), so missing,
//! doubled or misplaced KV shows as a wrong token. `unreliable` is their world and checks it after every event.

mod unreliable;

use scheduler::session::{Action, End, Event, Session};
use scheduler::{Millis, SessionId};
use unreliable::{Faults, PROMPT, WANTED, World, run};

/// Seeds per test; `SHOAL_SEEDS=1000000` runs that many instead.
fn seeds(usual: u64) -> u64 {
    std::env::var("SHOAL_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(usual)
}

const CALM: Faults = Faults {
    loss: 0.0,
    duplicate: 0.0,
    kills: 0,
    freezes: 0,
    slow: 0,
    notice: true,
    shadows: 0.6,
    drafts: 0,
    cut: false,
};

#[test]
fn without_faults_nothing_is_recovered() {
    for seed in 0..50 {
        let (end, took, world) = run(seed, CALM);
        assert_eq!((end, world.tokens.len() as u32), (End::Length, PROMPT + WANTED));
        assert!(took < 4_000, "{took}");
    }
}

/// Kills are noticed by the transport: the stream goes on, the same stream, always.
#[test]
fn kills_lose_no_token() {
    for seed in 0..seeds(4_000) {
        let (end, _, world) = run(seed, Faults { kills: 1 + seed as usize % 3, ..CALM });
        assert_eq!((end, world.tokens.len() as u32), (End::Length, PROMPT + WANTED), "seed {seed}");
        let worst = world.stalls.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
        assert!(worst < 1_500, "seed {seed}: stalled {worst} ms");
    }
}

/// Silent deaths and freezes are found by deadline.
#[test]
fn freezes_and_silent_deaths_lose_no_token() {
    for seed in 0..seeds(4_000) {
        let faults =
            Faults { kills: seed as usize % 2, freezes: 1 + seed as usize % 2, notice: false, ..CALM };
        let (end, _, world) = run(seed, faults);
        assert_eq!((end, world.tokens.len() as u32), (End::Length, PROMPT + WANTED), "seed {seed}");
    }
}

/// A stage freezes for five seconds, at any moment from before it promised. With a shadow the answer does not wait
/// for it: half a second until its silence counts, and the shadow's step. Without one its cover replays after twice
/// that. Times are virtual, ways are 5 to 25 ms.
#[test]
fn a_frozen_stage_is_not_waited_for() {
    for (shadows, bound) in [(1.0, 1_000), (0.0, 1_600)] {
        let mut stalls = Vec::new();
        for seed in 0..seeds(4_000) {
            let (end, _, world) = run(seed, Faults { freezes: 1, notice: false, shadows, ..CALM });
            assert_eq!((end, world.tokens.len() as u32), (End::Length, PROMPT + WANTED), "seed {seed}");
            let begins = [0].into_iter().chain(world.stalls.iter().copied());
            let gaps = begins.zip(&world.stalls).map(|(before, after)| after - before);
            stalls.push(gaps.max().unwrap());
        }
        stalls.sort_unstable();
        // Half of the freezes meet no node of the route, or come when all is over.
        let met = &stalls[stalls.partition_point(|ms| *ms < 300)..];
        let at = |share: f64| met[((met.len() - 1) as f64 * share) as usize];
        println!(
            "shadows {shadows}: n {}, p50 {} ms, p99 {} ms, most {} ms",
            met.len(),
            at(0.5),
            at(0.99),
            at(1.0)
        );
        assert!(met.len() as u64 > seeds(4_000) / 10, "{} freezes were met", met.len());
        assert!(at(0.99) <= bound, "{} ms", at(0.99));
    }
}

/// One way between any two of those that compute is cut at any moment, and stays so; what goes the other way is acknowledged
/// no more. With a shadow no answer stands for a second.
#[test]
fn a_way_that_is_cut_is_gone_round() {
    for (shadows, bound) in [(1.0, 1_000), (0.0, 1_600)] {
        let mut stalls = Vec::new();
        for seed in 0..seeds(4_000) {
            let (end, _, world) = run(seed, Faults { cut: true, shadows, ..CALM });
            assert_eq!((end, world.tokens.len() as u32), (End::Length, PROMPT + WANTED), "seed {seed}");
            let (way, since) = world.cut.unwrap();
            let begins = [0].into_iter().chain(world.stalls.iter().copied());
            let gaps = begins.zip(&world.stalls).map(|(before, after)| after - before);
            let stall = gaps.max().unwrap();
            if std::env::var_os("SHOAL_FIGURES").is_some() && stall > 700 {
                println!("shadows {shadows}, seed {seed}: {way:?} since {since}: {stall} ms");
            }
            stalls.push(stall);
        }
        stalls.sort_unstable();
        // A way that carries nothing but acknowledgements may be cut near the end.
        let met = &stalls[stalls.partition_point(|ms| *ms < 150)..];
        let at = |share: f64| met[((met.len() - 1) as f64 * share) as usize];
        println!(
            "shadows {shadows}: n {}, p50 {} ms, p95 {} ms, p99 {} ms, most {} ms",
            met.len(),
            at(0.5),
            at(0.95),
            at(0.99),
            at(1.0)
        );
        assert!(met.len() as u64 > seeds(4_000) / 3, "{} cuts were met", met.len());
        assert!(at(0.95) <= bound, "{} ms", at(0.95));
    }
}

/// Everything at once, with a network that loses and doubles: safety always, and nearly always an end as asked
/// (a request may run out of budget, never out of bounds).
#[test]
fn storms_are_survived_or_given_up_in_order() {
    let runs = seeds(8_000);
    let whole = (0..runs).filter(|&seed| {
        let faults = Faults {
            loss: 0.01,
            duplicate: 0.03,
            kills: seed as usize % 3,
            freezes: seed as usize % 2,
            slow: seed as usize % 2,
            notice: seed % 4 != 0,
            ..CALM
        };
        run(seed, faults).0 == End::Length
    });
    let share = whole.count() as f64 / runs as f64;
    assert!(share > 0.95, "{share}");
}

/// Drafts of which any prefix is right, under everything at once: the same stream, in fewer steps, and what an abandoned
/// attempt computed is neither logged nor said nor held against a stage.
#[test]
fn drafts_change_the_number_of_steps_and_not_the_tokens() {
    let (mut right, mut wrong, mut whole, mut moved) = (0, 0, 0, 0);
    let runs = seeds(8_000);
    for seed in 0..runs {
        let faults = Faults {
            loss: if seed % 3 == 0 { 0.01 } else { 0.0 },
            duplicate: if seed % 2 == 0 { 0.05 } else { 0.0 },
            kills: seed as usize % 3,
            freezes: seed as usize % 2,
            notice: seed % 4 != 0,
            drafts: 1 + seed as u32 % 6,
            ..CALM
        };
        let (end, _, world) = run(seed, faults);
        right += world.drafted.0;
        wrong += world.drafted.1;
        whole += u64::from(end == End::Length);
        moved += u64::from(faults.kills > 0 && end == End::Length);
    }
    println!("{runs} runs: {right} drafted tokens right, {wrong} wrong, {whole} answers whole");
    assert!(whole as f64 / runs as f64 > 0.95 && moved > runs / 2, "{whole} {moved} of {runs}");
    assert!(right > 4 * runs as u32 && wrong > runs as u32, "{right} {wrong}");
}

#[test]
fn a_cancel_ends_at_once() {
    let mut world = World::new(1, CALM);
    let (pipeline, standbys) = world.route(&[]).unwrap();
    let id = SessionId::numbered(1);
    let (mut session, _) = Session::start(id, Millis(0), PROMPT, WANTED, &pipeline, &standbys, 50.0);
    let actions = session.step(Millis(5), Event::Cancel);
    assert_eq!(actions.last(), Some(&Action::Done(End::Cancelled)));
    assert!(actions.len() > 3 && session.is_over());
}
