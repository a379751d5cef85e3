//! `GET /metrics` in Prometheus' text format: the API's own counters and those of [`crate::Inference::metrics`].
//!
//! Label values come from fixed sets. No text, token, key, address or session is ever among them.

use std::{
    fmt::Write,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{
    extract::{Request, State},
    http::header,
    middleware::Next,
    response::{IntoResponse, Response},
};

use crate::{
    App, doors,
    error::Dialect,
    inference::{Event, Metric},
};

/// Status classes, as label values.
const CLASSES: [&str; 4] = ["2xx", "3xx", "4xx", "5xx"];
const DIALECTS: [(Dialect, &str); 3] =
    [(Dialect::OpenAi, "openai"), (Dialect::Anthropic, "anthropic"), (Dialect::Ollama, "ollama")];

/// What the API counts.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    requests: [[AtomicU64; CLASSES.len()]; DIALECTS.len()],
    answers: AtomicU64,
    finished: AtomicU64,
    failed: AtomicU64,
    tokens: AtomicU64,
    prompt_tokens: AtomicU64,
    failovers: AtomicU64,
    first_token: Histogram,
    gap: Histogram,
    wait: Histogram,
}

/// Upper bounds of the buckets of a histogram, in seconds.
const BOUNDS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// How long something takes, in buckets.
#[derive(Debug, Default)]
struct Histogram {
    /// How many fell into each bucket, and beyond the last bound.
    buckets: [AtomicU64; BOUNDS.len() + 1],
    sum_us: AtomicU64,
}

impl Histogram {
    fn saw(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let at = BOUNDS.iter().position(|bound| seconds <= *bound).unwrap_or(BOUNDS.len());
        add(&self.buckets[at], 1);
        add(&self.sum_us, time.as_micros() as usize);
    }

    fn write(&self, name: &str, help: &str, out: &mut String) {
        let mut below = 0;
        // Writing to a string does not fail.
        let _ = writeln!(out, "# HELP shoal_{name} {help}\n# TYPE shoal_{name} histogram");
        for (at, bucket) in self.buckets.iter().enumerate() {
            below += bucket.load(Ordering::Relaxed);
            let bound = BOUNDS.get(at).map_or_else(|| "+Inf".to_owned(), ToString::to_string);
            let _ = writeln!(out, "shoal_{name}_bucket{{le=\"{bound}\"}} {below}");
        }
        let sum = self.sum_us.load(Ordering::Relaxed) as f64 / 1e6;
        let _ = writeln!(out, "shoal_{name}_sum {sum}\nshoal_{name}_count {below}");
    }
}

fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}

impl Counters {
    pub(crate) fn started(&self, n: usize) {
        add(&self.answers, n);
    }

    /// A request waited so long until it was admitted and routed.
    pub(crate) fn waited(&self, time: Duration) {
        self.wait.saw(time);
    }

    /// A token came `now`, of an answer that was `asked` for then, after the `last` one.
    pub(crate) fn token(&self, asked: Instant, last: Option<Instant>, now: Instant) {
        match last {
            None => self.first_token.saw(now - asked),
            Some(last) => self.gap.saw(now - last),
        }
    }

    fn histograms(&self) -> String {
        let mut out = String::new();
        self.first_token.write("first_token_seconds", "From a request to its first token.", &mut out);
        self.gap.write("token_gap_seconds", "Between two tokens of an answer.", &mut out);
        self.wait.write("queue_wait_seconds", "From a request until it is admitted and routed.", &mut out);
        out
    }

    pub(crate) fn event(&self, event: &Event) {
        match event {
            Event::Token { .. } => add(&self.tokens, 1),
            Event::Failover { .. } => add(&self.failovers, 1),
            Event::Failed(_) => add(&self.failed, 1),
            Event::Done(done) => {
                add(&self.finished, 1);
                add(&self.prompt_tokens, done.usage.prompt_tokens);
            }
            Event::Prefill { .. } | Event::Prompt(_) | Event::Text(_) => {}
        }
    }

    fn all(&self, in_use: u64) -> Vec<Metric> {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
        let plain =
            |name, help, counter, value| Metric { name, help, counter, values: vec![(Vec::new(), value)] };
        let requests = DIALECTS.iter().zip(&self.requests).flat_map(|((_, dialect), counts)| {
            let counts = CLASSES.iter().zip(counts);
            counts.map(|(class, n)| (vec![("dialect", *dialect), ("status", *class)], get(n)))
        });
        vec![
            Metric {
                name: "http_requests_total",
                help: "Requests answered, by family of clients and class of status.",
                counter: true,
                values: requests.collect(),
            },
            plain("answers_started_total", "Answers begun.", true, get(&self.answers)),
            plain("answers_finished_total", "Answers that came to their end.", true, get(&self.finished)),
            plain("answers_failed_total", "Answers that failed on the way.", true, get(&self.failed)),
            plain("tokens_generated_total", "Tokens generated.", true, get(&self.tokens)),
            plain(
                "prompt_tokens_total",
                "Tokens of the prompts of finished answers.",
                true,
                get(&self.prompt_tokens),
            ),
            plain(
                "failovers_total",
                "Stages replaced while an answer was under way.",
                true,
                get(&self.failovers),
            ),
            plain("answers_in_flight", "Places of the queue in use.", false, in_use as f64),
        ]
    }
}

/// Counts every answer by family and status.
pub(crate) async fn count(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let dialect = Dialect::of(request.uri().path());
    let response = next.run(request).await;
    let row = DIALECTS.iter().position(|(known, _)| *known == dialect);
    let column = (response.status().as_u16() / 100).checked_sub(2).map(usize::from);
    if let (Some(row), Some(column)) = (row, column)
        && let Some(counter) = app.counters.requests[row].get(column)
    {
        add(counter, 1);
    }
    response
}

/// `GET /metrics`
pub(crate) async fn get(State(app): State<Arc<App>>) -> Response {
    let mut metrics = app.counters.all(app.queue.in_use());
    metrics.extend(doors::metrics(&*app.doors));
    metrics.extend(app.inference.metrics());
    (
        [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
        text(&metrics) + &app.counters.histograms(),
    )
        .into_response()
}

fn text(metrics: &[Metric]) -> String {
    let mut out = String::new();
    for metric in metrics {
        let kind = if metric.counter { "counter" } else { "gauge" };
        let name = metric.name;
        // Writing to a string does not fail.
        let _ = writeln!(out, "# HELP shoal_{name} {}\n# TYPE shoal_{name} {kind}", metric.help);
        for (labels, value) in &metric.values {
            let labels: Vec<String> =
                labels.iter().map(|(key, value)| format!("{key}=\"{value}\"")).collect();
            let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
            let _ = writeln!(out, "shoal_{name}{labels} {value}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_count_what_is_below_each_bound() {
        let counters = Counters::default();
        for time in [1, 3, 3, 60_000] {
            counters.waited(Duration::from_millis(time));
        }
        let text = counters.histograms();
        for line in [
            "shoal_queue_wait_seconds_bucket{le=\"0.001\"} 1",
            "shoal_queue_wait_seconds_bucket{le=\"0.005\"} 3",
            "shoal_queue_wait_seconds_bucket{le=\"30\"} 3",
            "shoal_queue_wait_seconds_bucket{le=\"+Inf\"} 4",
            "shoal_queue_wait_seconds_sum 60.007",
            "shoal_queue_wait_seconds_count 4",
            "shoal_token_gap_seconds_count 0",
        ] {
            assert!(text.lines().any(|said| said == line), "{line} is not in {text}");
        }
    }

    #[test]
    fn metrics_are_prometheus_text() {
        let metric = Metric {
            name: "bytes_total",
            help: "Bytes.",
            counter: true,
            values: vec![(vec![("way", "in")], 3.0), (vec![("way", "out")], 0.5)],
        };
        let expected = "# HELP shoal_bytes_total Bytes.\n# TYPE shoal_bytes_total counter\nshoal_bytes_total{way=\"in\"} 3\nshoal_bytes_total{way=\"out\"} 0.5\n";
        assert_eq!(text(&[metric]), expected);
    }
}
