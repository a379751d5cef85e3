//! `GET /metrics` in Prometheus' text format: the API's own counters and those of [`crate::Inference::metrics`].
//!
//! Label values come from fixed sets. No text, token, key, address or session is ever among them.

use std::{
    fmt::Write,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use axum::{
    extract::{Request, State},
    http::header,
    middleware::Next,
    response::{IntoResponse, Response},
};

use crate::{
    App,
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
}

fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}

impl Counters {
    pub(crate) fn started(&self, n: usize) {
        add(&self.answers, n);
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

    fn all(&self, in_use: usize) -> Vec<Metric> {
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
    metrics.extend(app.inference.metrics());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text(&metrics)).into_response()
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
