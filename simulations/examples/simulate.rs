//! `simulate SCENARIO [--seed N] [--seeds K] [--policy NAME]... [--set KEY=VALUE]... [--json] [--svg FILE]`
//!
//! With several seeds it prints medians over all and on how many seeds the first policy won.
//!
//! Runs a scenario (a name of `scenarios/`, or a path to a TOML file) under every policy, or those named, prints the seed
//! and the scenario first, then a table, and writes a plot of each seed to `target/plots`, or to the file named. `--set`
//! replaces a line of the scenario. Exits with 1 when anything happened that must not.

use std::error::Error;
use std::path::{Path, PathBuf};

use simulations::policy::{self, Policy};
use simulations::report;
use simulations::run::run;
use simulations::scenario::Scenario;

/// Above so many machines a clairvoyant is left out unless named.
const CLAIRVOYANT_UP_TO: u32 = 1_024;

/// Where a plot goes that no file was named for.
fn plot(scenario: &str, seed: u64) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target = target.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"));
    target.join("plots").join(format!("{}-{seed}.svg", scenario.replace(' ', "_")))
}

struct Options {
    scenario: String,
    seed: u64,
    seeds: u64,
    policies: Vec<String>,
    set: Vec<String>,
    json: bool,
    svg: Option<PathBuf>,
}

fn options() -> Result<Options, Box<dyn Error>> {
    let mut found = Options {
        scenario: String::new(),
        seed: 1,
        seeds: 1,
        policies: Vec::new(),
        set: Vec::new(),
        json: false,
        svg: None,
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        match arg.as_str() {
            "--seed" => found.seed = value()?.parse()?,
            "--seeds" => found.seeds = value()?.parse()?,
            "--policy" => found.policies.push(value()?),
            "--set" => found.set.push(value()?),
            "--json" => found.json = true,
            "--svg" => found.svg = Some(value()?.into()),
            _ => found.scenario = arg,
        }
    }
    if found.scenario.is_empty() {
        return Err(
            "usage: simulate SCENARIO [--seed N] [--seeds K] [--policy NAME]... [--set KEY=VALUE]... [--json] [--svg FILE]".into()
        );
    }
    Ok(found)
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = options()?;
    let mut path = PathBuf::from(&options.scenario);
    if !path.exists() {
        path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join("scenarios")
            .join(&options.scenario)
            .with_extension("toml");
    }
    let text = std::fs::read_to_string(path)?;
    let key = |line: &str| line.split('=').next().unwrap_or_default().trim().to_owned();
    let kept = text.lines().filter(|line| options.set.iter().all(|set| key(set) != key(line)));
    let text: Vec<&str> = kept.chain(options.set.iter().map(String::as_str)).collect();
    let scenario = Scenario::parse(&text.join("\n"))?;
    let mut violations = 0;
    let mut all = Vec::new();
    for seed in options.seed..options.seed + options.seeds {
        if !options.json && options.seeds == 1 {
            println!("seed {seed}, {scenario:?}\n");
        }
        let chosen = policy::ALL.into_iter().filter(|policy| match options.policies.is_empty() {
            false => options.policies.iter().any(|name| policy.name() == name),
            true => match policy {
                Policy::Local => scenario.local_layer_ms.is_some(),
                // It looks at every machine for every request.
                Policy::Clairvoyant => scenario.nodes <= CLAIRVOYANT_UP_TO,
                _ => true,
            },
        });
        let runs: Vec<_> = chosen.map(|policy| (policy, run(&scenario, policy, seed))).collect();
        violations += runs.iter().map(|(_, run)| run.violations.total()).sum::<u64>();
        if options.json {
            println!("{}", report::json(&scenario, seed, &runs));
        } else if options.seeds == 1 {
            println!("{}", report::table(&scenario, &runs));
        }
        let file = options.svg.clone().unwrap_or_else(|| plot(&scenario.name, seed));
        file.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        std::fs::write(&file, report::svg(&scenario, seed, &runs))?;
        if !options.json && options.seeds == 1 {
            println!("plot: {}", file.display());
        }
        all.push(runs);
    }
    if options.seeds > 1 && !options.json {
        println!("seeds {}..{}, {scenario:?}\n", options.seed, options.seed + options.seeds);
        println!("{}", report::comparison(&scenario, &all));
    }
    if violations > 0 { Err(format!("{violations} violations").into()) } else { Ok(()) }
}
