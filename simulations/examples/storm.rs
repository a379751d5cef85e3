//! `storm [--seed N] [--seeds K] [--threads T] [--calm | --soak | --soak-datagrams]`
//!
//! Tells K storms from seed N on, on T threads (two unless told); prints the drawn options of every storm in which anything
//! happened that must not, how far it is every [`PROGRESS`], and the sums. Exits with 1 if there was any. With one seed it
//! prints the report as well.

use std::error::Error;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use simulations::storm::{self, Options, Report};

/// Threads that share the seeds, unless told.
const THREADS: u64 = 2;
/// How often a run says how far it is, on standard error.
const PROGRESS: Duration = Duration::from_secs(30);

/// Storms told and when that was last said.
struct Progress {
    began: Instant,
    said: Instant,
    told: u64,
    bad: u64,
    seeds: u64,
}

impl Progress {
    fn note(&mut self, bad: bool) {
        self.told += 1;
        self.bad += u64::from(bad);
        if self.said.elapsed() >= PROGRESS {
            self.said = Instant::now();
            let each = self.began.elapsed().as_secs_f64() / self.told as f64;
            eprintln!(
                "{} of {} storms, {} with violations, {:.0} s left",
                self.told,
                self.seeds,
                self.bad,
                each * (self.seeds - self.told) as f64
            );
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let (mut seed, mut seeds, mut threads) = (0u64, 1u64, THREADS);
    let mut draw: fn(u64) -> Options = Options::draw;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--seed" => seed = args.next().ok_or("--seed needs a value")?.parse()?,
            "--seeds" => seeds = args.next().ok_or("--seeds needs a value")?.parse()?,
            "--threads" => threads = args.next().ok_or("--threads needs a value")?.parse::<u64>()?.max(1),
            "--calm" => draw = Options::calm,
            "--soak" => draw = |seed| Options::soak(seed, true),
            "--soak-datagrams" => draw = |seed| Options::soak(seed, false),
            _ => {
                return Err(
                    "usage: storm [--seed N] [--seeds K] [--threads T] [--calm | --soak | --soak-datagrams]"
                        .into(),
                );
            }
        }
    }
    let began = Instant::now();
    let progress = Mutex::new(Progress { began, said: began, told: 0, bad: 0, seeds });
    let progress = &progress;
    let sums: Vec<(Report, u64)> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .map(|k| {
                scope.spawn(move || {
                    let mut sum = (Report::default(), 0);
                    for seed in (seed..seed + seeds).filter(|seed| seed % threads == k) {
                        let report = storm::run(&draw(seed));
                        if !report.violations.is_empty() {
                            println!("{:?}\n  {}", draw(seed), report.violations.join("\n  "));
                            sum.1 += 1;
                        }
                        if seeds == 1 {
                            println!("{:?}\n{report:?}", draw(seed));
                        }
                        if let Ok(mut progress) = progress.lock() {
                            progress.note(!report.violations.is_empty());
                        }
                        add(&mut sum.0, report);
                    }
                    sum
                })
            })
            .collect();
        handles.into_iter().filter_map(|handle| handle.join().ok()).collect()
    });
    let mut all = Report::default();
    let failed: u64 = sums.iter().map(|sum| sum.1).sum();
    sums.into_iter().for_each(|sum| add(&mut all, sum.0));
    all.stalls_ms.sort_unstable();
    let stall = |q: f64| all.stalls_ms.get((all.stalls_ms.len() as f64 * q) as usize).copied().unwrap_or(0);
    let (asked, whole, given_up, cancelled) = all.requests;
    println!(
        "{seeds} storms in {:.1} s: {failed} with violations; {asked} requests, {whole} whole, {given_up} given up, {cancelled} cancelled; {} tokens, {} failovers, {} hedges, {} second looks, {} refusals, {} moves, {} announcements, {} events, {:.1} h of virtual time; longest gap p50 {} p99 {} ms",
        began.elapsed().as_secs_f64(),
        all.tokens,
        all.failovers,
        all.hedges,
        all.looks,
        all.refused,
        all.moves,
        all.announcements,
        all.events,
        all.ms as f64 / 3_600_000.0,
        stall(0.5),
        stall(0.99),
    );
    if failed > 0 { Err(format!("{failed} storms with violations").into()) } else { Ok(()) }
}

fn add(sum: &mut Report, one: Report) {
    let (a, b) = (sum.requests, one.requests);
    sum.requests = (a.0 + b.0, a.1 + b.1, a.2 + b.2, a.3 + b.3);
    sum.tokens += one.tokens;
    sum.failovers += one.failovers;
    sum.hedges += one.hedges;
    sum.looks += one.looks;
    sum.refused += one.refused;
    sum.moves += one.moves;
    sum.announcements += one.announcements;
    sum.ms += one.ms;
    sum.events += one.events;
    sum.stalls_ms.extend(one.stalls_ms);
}
