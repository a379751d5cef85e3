//! Outcomes as a table, JSON and a picture.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::policy::Policy;
use crate::run::{Outcome, percentile};
use crate::scenario::Scenario;

const COLORS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#f0e442", "#666666", "#e69f00"];

/// An announcement on the wire: one model, one range, eight measured links, three addresses, key and signature. Every
/// machine hears every one at least once; what the mesh repeats comes on top.
const ANNOUNCE_BYTES: f64 = 800.0;

/// What every machine hears each second, kB.
fn gossip_kb(scenario: &Scenario, run: &Outcome) -> f64 {
    run.announcements as f64 / scenario.demand.seconds * ANNOUNCE_BYTES / 1_000.0
}

/// Two numbers, or a dash when there were no samples.
fn shown(p50: f64, p99: f64, digits: usize) -> String {
    if p50.is_nan() { "-".into() } else { format!("{p50:.digits$} / {p99:.digits$}") }
}

/// Medians over many seeds, one row per policy, and on how many seeds the first policy was at least as good, in Markdown.
pub fn comparison(scenario: &Scenario, seeds: &[Vec<(Policy, Outcome)>]) -> String {
    let mut out = String::from(
        "| policy | tok/s | goodput | TTFT p50 / p99 ms | per token p50 / p99 ms | stall p50 / p99 ms | regret p50 / p99 | worst sessions / lane | gossip kB/node/s | moves | first is as good in tok/s, per token p50, p99 |\n|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    let policies = seeds.first().map_or(0, Vec::len);
    for k in 0..policies {
        let median = |value: &dyn Fn(&Outcome) -> f64| {
            let mut values: Vec<f64> =
                seeds.iter().map(|runs| value(&runs[k].1)).filter(|value| !value.is_nan()).collect();
            values.sort_by(f64::total_cmp);
            percentile(&values, 0.5)
        };
        let wins = |better: &dyn Fn(&Outcome, &Outcome) -> bool| {
            seeds.iter().filter(|runs| better(&runs[0].1, &runs[k].1)).count()
        };
        let p = |samples: &[f64], q| percentile(samples, q);
        let _ = writeln!(
            out,
            "| {} | {:.1} | {:.1} | {:.0} / {:.0} | {:.1} / {:.1} | {} | {:.2} / {:.2} | {:.2} | {:.1} | {:.0} | {}, {}, {} of {} |",
            seeds[0][k].0.name(),
            median(&|run| run.tokens as f64 / scenario.demand.seconds),
            median(&|run| run.good_tokens as f64 / scenario.demand.seconds),
            median(&|run| p(&run.first_ms, 0.5)),
            median(&|run| p(&run.first_ms, 0.99)),
            median(&|run| p(&run.each_ms, 0.5)),
            median(&|run| p(&run.each_ms, 0.99)),
            shown(median(&|run| p(&run.stall_ms, 0.5)), median(&|run| p(&run.stall_ms, 0.99)), 0),
            median(&|run| p(&run.regret, 0.5)),
            median(&|run| p(&run.regret, 0.99)),
            median(&|run| run.peak),
            median(&|run| gossip_kb(scenario, run)),
            median(&|run| run.moves as f64),
            wins(&|a, b| a.tokens as f64 >= 0.995 * b.tokens as f64),
            wins(&|a, b| p(&a.each_ms, 0.5) <= p(&b.each_ms, 0.5)),
            wins(&|a, b| p(&a.each_ms, 0.99) <= p(&b.each_ms, 0.99)),
            seeds.len(),
        );
    }
    out
}

/// One row per policy, in Markdown. "goodput": tokens of requests that kept the scenario's target, whenever they ended; "when full": the busiest over
/// the mean machine, by sessions, at moments when the mean was above one session per lane and the crowd had not gone.
pub fn table(scenario: &Scenario, runs: &[(Policy, Outcome)]) -> String {
    let mut out = String::from(
        "| policy | whole / asked | tok/s | goodput | TTFT p50 / p99 ms | per token p50 / p99 ms | stall p50 / p99 ms | regret p50 / p99 | busiest / mean visits | when full | worst sessions / lane | gossip kB/node/s | moves | violations |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for (policy, run) in runs {
        let p = |samples: &[f64], q| percentile(samples, q);
        let _ = writeln!(
            out,
            "| {} | {} / {} | {:.1} | {:.1} | {:.0} / {:.0} | {:.1} / {:.1} | {} | {:.2} / {:.2} | {:.1} | {} | {:.2} | {:.1} | {} | {} |",
            policy.name(),
            run.requests.1,
            run.requests.0,
            run.tokens as f64 / scenario.demand.seconds,
            run.good_tokens as f64 / scenario.demand.seconds,
            p(&run.first_ms, 0.5),
            p(&run.first_ms, 0.99),
            p(&run.each_ms, 0.5),
            p(&run.each_ms, 0.99),
            shown(p(&run.stall_ms, 0.5), p(&run.stall_ms, 0.99), 0),
            p(&run.regret, 0.5),
            p(&run.regret, 0.99),
            run.skew,
            shown(p(&run.spread, 0.5), p(&run.spread, 0.99), 2),
            run.peak,
            gossip_kb(scenario, run),
            run.moves,
            run.violations.total(),
        );
    }
    out
}

/// The same numbers for machines.
pub fn json(scenario: &Scenario, seed: u64, runs: &[(Policy, Outcome)]) -> Value {
    let rows = runs.iter().map(|(policy, run)| {
        json!({
            "policy": policy.name(),
            "asked": run.requests.0,
            "whole": run.requests.1,
            "given_up": run.requests.2,
            "tokens_per_second": run.tokens as f64 / scenario.demand.seconds,
            "good_tokens_per_second": run.good_tokens as f64 / scenario.demand.seconds,
            "ttft_ms": [percentile(&run.first_ms, 0.5), percentile(&run.first_ms, 0.99)],
            "per_token_ms": [percentile(&run.each_ms, 0.5), percentile(&run.each_ms, 0.99)],
            "stall_ms": [percentile(&run.stall_ms, 0.5), percentile(&run.stall_ms, 0.99)],
            "regret": [percentile(&run.regret, 0.5), percentile(&run.regret, 0.99)],
            "skew": run.skew,
            "skew_when_full": [percentile(&run.spread, 0.5), percentile(&run.spread, 0.99)],
            "worst_sessions_per_lane": run.peak,
            "gossip_bytes_per_node_and_second": 1_000.0 * gossip_kb(scenario, run),
            "moves": run.moves,
            "violations": run.violations.total(),
        })
    });
    json!({"scenario": scenario.name, "seed": seed, "runs": rows.collect::<Vec<_>>()})
}

/// Tokens per second over virtual time, one line per policy, as SVG.
pub fn svg(scenario: &Scenario, seed: u64, runs: &[(Policy, Outcome)]) -> String {
    let (width, height, left, top) = (720.0, 300.0, 56.0, 40.0);
    let buckets = 120usize;
    let lines: Vec<Vec<f64>> = runs
        .iter()
        .map(|(_, run)| {
            let n = run.tokens_by_second.len().max(1);
            let size = n.div_ceil(buckets);
            run.tokens_by_second
                .chunks(size)
                .map(|chunk| chunk.iter().map(|count| f64::from(*count)).sum::<f64>() / chunk.len() as f64)
                .collect()
        })
        .collect();
    let most = lines.iter().flatten().copied().fold(1.0, f64::max);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"{left}\" y=\"20\" font-size=\"15\">{}, seed {seed}: tokens per second over {} s</text>\n",
        width + left + 20.0,
        height + top + 60.0,
        scenario.name,
        scenario.demand.seconds,
    );
    for step in 0..=4 {
        let y = top + height * (1.0 - f64::from(step) / 4.0);
        let _ = writeln!(
            out,
            "<line x1=\"{left}\" y1=\"{y}\" x2=\"{}\" y2=\"{y}\" stroke=\"#ddd\"/><text x=\"{}\" y=\"{}\" text-anchor=\"end\">{:.0}</text>",
            left + width,
            left - 6.0,
            y + 4.0,
            most * f64::from(step) / 4.0
        );
    }
    for (k, (line, (policy, _))) in lines.iter().zip(runs).enumerate() {
        let color = COLORS[k % COLORS.len()];
        let points: Vec<String> = line
            .iter()
            .enumerate()
            .map(|(i, value)| {
                let x = left + width * i as f64 / (line.len().max(2) - 1) as f64;
                format!("{x:.1},{:.1}", top + height * (1.0 - value / most))
            })
            .collect();
        let x = left + 110.0 * k as f64;
        let _ = writeln!(
            out,
            "<polyline fill=\"none\" stroke=\"{color}\" stroke-width=\"1.8\" points=\"{}\"/>\n<rect x=\"{x}\" y=\"{}\" width=\"12\" height=\"12\" fill=\"{color}\"/><text x=\"{}\" y=\"{}\">{}</text>",
            points.join(" "),
            top + height + 24.0,
            x + 18.0,
            top + height + 34.0,
            policy.name()
        );
    }
    out.push_str("</svg>\n");
    out
}
