//! `shoal status --history`: how it went on other days; and what `shoal why` says of each step of an answer.

use std::path::Path;

use api::swarm_records::{Sample, Span, StepKind};

use super::remote;
use crate::{
    Result, clock,
    output::{self, say},
    swarm_history,
};

/// Seconds of a day.
const DAY_S: u64 = 86_400;

/// Prints a line a day, or everything as JSON.
pub(super) fn show(home: &Path, days: u32, json: bool) -> Result<()> {
    let history = swarm_history::read(home, clock::unix_s(), days)?;
    if json {
        return output::json_line(&history);
    }
    if history.samples.is_empty() {
        say!("Nothing yet: a node that runs writes how it goes every five minutes.");
        return Ok(());
    }
    say!(
        "{:10}  {:>7}  {:>7}  {:>6}  {:>9}  {:>6}  {:>12}  {:>12}",
        "day (UTC)",
        "ran",
        "answers",
        "tok/s",
        "rtt",
        "faults",
        "given",
        "balance"
    );
    for day in history.samples.chunk_by(|a, b| a.at_s / DAY_S == b.at_s / DAY_S) {
        say!("{}", line(day));
    }
    say!("given: layer passes for others; balance: given less taken, as both sides signed.");
    Ok(())
}

/// A day in a line: sums, the median of the round trips, the balance at its end.
fn line(day: &[Sample]) -> String {
    let sum = |of: fn(&Sample) -> u64| day.iter().map(of).sum::<u64>();
    let rates = day.iter().filter_map(|sample| Some((f64::from(sample.tokens), sample.tok_s?)));
    // Tokens over the time that they took.
    let (tokens, seconds) = rates.fold((0.0, 0.0), |(n, s), (tokens, rate)| (n + tokens, s + tokens / rate));
    let mut trips: Vec<f64> = day.iter().filter_map(|sample| sample.rtt_ms).collect();
    trips.sort_by(f64::total_cmp);
    let shown = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let minutes = sum(|sample| u64::from(sample.seconds)) / 60;
    format!(
        "{:10}  {:>7}  {:>7}  {:>6}  {:>9}  {:>6}  {:>12}  {:>+12}",
        date(day.first().map_or(0, |sample| sample.at_s / DAY_S)),
        format!("{}:{:02} h", minutes / 60, minutes % 60),
        sum(|sample| u64::from(sample.answers)),
        shown((seconds > 0.0).then(|| format!("{:.1}", tokens / seconds))),
        shown(trips.get(trips.len() / 2).map(|ms| format!("{ms:.1} ms"))),
        sum(|sample| u64::from(sample.faults)),
        sum(|sample| sample.given),
        day.last().map_or(0, |sample| sample.balance),
    )
}

/// A day since 1970 as `2024-02-29`.
fn date(day: u64) -> String {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut left, mut year) = (day, 1970);
    while left >= 365 + u64::from(leap(year)) {
        left -= 365 + u64::from(leap(year));
        year += 1;
    }
    let mut month = 1;
    for days in [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if left < days {
            break;
        }
        left -= days;
        month += 1;
    }
    format!("{year:04}-{month:02}-{:02}", left + 1)
}

/// A step of an answer in words.
pub(super) fn told(step: &StepKind) -> String {
    let span = |span: &Span| format!("{} {}..{}", remote::short(&span.node), span.start, span.end);
    match step {
        StepKind::Leased { stages, .. } => {
            format!("promised: {}", stages.iter().map(span).collect::<Vec<_>>().join(", "))
        }
        StepKind::FirstToken => "the first token".to_owned(),
        StepKind::Lost { node, why } => format!("{} is lost: {why}", remote::short(node)),
        StepKind::TookOver { span: new, from } => {
            format!("{} takes over from {}", span(new), remote::short(from))
        }
        StepKind::Replayed { node, first, end } => {
            format!("{} is given the inputs of positions {first} to {} again", remote::short(node), end - 1)
        }
        StepKind::Fetched { node, from, end } => {
            format!(
                "{} has positions 0 to {} from {}",
                remote::short(node),
                end.saturating_sub(1),
                remote::short(from)
            )
        }
        StepKind::Hedged { node } => {
            format!("{} was late, the node that stands by answered", remote::short(node))
        }
        StepKind::WentOn { stall_ms } => format!("the next token, {stall_ms:.0} ms after the one before"),
        StepKind::Ended => "the end".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_have_dates() {
        let days = [
            (0, "1970-01-01"),
            (59, "1970-03-01"),
            (789, "1972-02-29"),
            (19_782, "2024-02-29"),
            (20_088, "2024-12-31"),
        ];
        for (day, said) in days {
            assert_eq!(date(day), said);
        }
    }

    #[test]
    fn a_day_is_summed_and_what_was_idle_has_no_rate() {
        let idle = Sample { at_s: 19_782 * DAY_S, seconds: 300, balance: -4, ..Sample::default() };
        let text = line(std::slice::from_ref(&idle));
        assert_eq!(
            text.split_whitespace().collect::<Vec<_>>(),
            ["2024-02-29", "0:05", "h", "0", "-", "-", "0", "0", "-4"]
        );
        let busy = Sample {
            answers: 2,
            tokens: 30,
            tok_s: Some(10.0),
            rtt_ms: Some(5.0),
            faults: 1,
            given: 7,
            balance: 9,
            ..idle.clone()
        };
        let slow = Sample { tokens: 10, tok_s: Some(5.0), ..busy.clone() };
        let words = line(&[idle, busy, slow]);
        // 40 tokens in 3 s and 2 s.
        assert_eq!(
            words.split_whitespace().collect::<Vec<_>>(),
            ["2024-02-29", "0:15", "h", "4", "8.0", "5.0", "ms", "2", "14", "+9"]
        );
    }
}
