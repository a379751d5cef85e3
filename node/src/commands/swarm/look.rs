//! What `shoal status --watch` knows: two looks at the node, and what changed between them. Pure.

use std::collections::VecDeque;

use serde_json::{Value, json};

use crate::{events::PromptReport, reports::PeerReport};

/// Looks remembered for the curve of the work done.
pub(super) const CURVE: usize = 120;

/// One look at the node.
#[derive(Clone, Debug, Default)]
pub(super) struct Look {
    /// When, milliseconds of any clock.
    pub at_ms: f64,
    /// The answer to `status`.
    pub status: Value,
    /// The list in the answer to `peers`.
    pub peers: Vec<PeerReport>,
    /// The answer to `why`: the last prompt.
    pub last: Option<Box<PromptReport>>,
    /// Memory of the daemon and of its worker, where the system says.
    pub resident_bytes: [Option<u64>; 2],
}

/// Per second, between two looks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rates {
    /// Positions computed for others.
    pub positions: f64,
    /// Bytes received for them.
    pub bytes_in: f64,
    /// Bytes sent for them.
    pub bytes_out: f64,
}

/// The latest look, and what it shows beside the one before.
#[derive(Debug, Default)]
pub(super) struct Watched {
    pub look: Look,
    pub rates: Rates,
    /// Positions per second, oldest first; at most [`CURVE`].
    pub curve: VecDeque<u64>,
    /// Why the last try to look failed.
    pub trouble: Option<String>,
}

impl Watched {
    /// Adds a reading. A restarted node counts from zero.
    pub fn take(&mut self, look: Look) {
        self.trouble = None;
        let seconds = (look.at_ms - self.look.at_ms) / 1e3;
        let restarted = number(&look.status, "uptime_s") < number(&self.look.status, "uptime_s");
        let first = self.look.status.is_null();
        self.rates = if first || restarted || seconds <= 0.0 {
            Rates::default()
        } else {
            let grown =
                |name| (number(&look.status, name) - number(&self.look.status, name)).max(0.0) / seconds;
            Rates {
                positions: grown("served_positions"),
                bytes_in: grown("bytes_in"),
                bytes_out: grown("bytes_out"),
            }
        };
        if !first {
            if self.curve.len() == CURVE {
                self.curve.pop_front();
            }
            self.curve.push_back(self.rates.positions.round() as u64);
        }
        self.look = look;
    }

    /// Memory of both processes; what the model takes where the system does not say.
    pub fn memory(&self) -> u64 {
        let known: Vec<u64> = self.look.resident_bytes.iter().flatten().copied().collect();
        if known.is_empty() {
            return number(&self.look.status["model"], "resident_bytes") as u64;
        }
        known.iter().sum()
    }

    /// The status with the rates, for programs.
    pub fn to_json(&self) -> Value {
        let mut line = self.look.status.clone();
        line["event"] = json!("status");
        line["positions_per_s"] = json!(self.rates.positions);
        line["bytes_in_per_s"] = json!(self.rates.bytes_in);
        line["bytes_out_per_s"] = json!(self.rates.bytes_out);
        line["memory_bytes"] = json!(self.memory());
        line["last_prompt"] = self.look.last.as_ref().map_or(Value::Null, |last| {
            let own = last.timing.as_ref();
            json!({ "session": last.session, "tok_s": own.map(|timing| timing.decode_tok_s),
                "stages": own.map(|timing| &timing.stages), "faults": own.map(|timing| &timing.faults) })
        });
        line
    }
}

/// A number of a JSON object, 0 where there is none.
pub(super) fn number(value: &Value, name: &str) -> f64 {
    value[name].as_f64().unwrap_or_default()
}

/// A string of a JSON object without control characters: names come from strangers.
pub(super) fn word(value: &Value) -> String {
    plain(value.as_str().unwrap_or_default())
}

/// Text without control characters.
pub(super) fn plain(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).collect()
}

/// Seconds as a person says them.
pub(super) fn ago(seconds: f64) -> String {
    match seconds as u64 {
        s @ 0..60 => format!("{s} s"),
        s @ 60..3600 => format!("{} min", s / 60),
        s @ 3600..86_400 => format!("{} h {} min", s / 3600, s % 3600 / 60),
        s => format!("{} d {} h", s / 86_400, s % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(at_ms: f64, uptime_s: f64, positions: u64) -> Look {
        let status = json!({ "uptime_s": uptime_s, "served_positions": positions, "bytes_in": positions * 10,
            "bytes_out": positions * 20, "model": { "resident_bytes": 5 } });
        Look { at_ms, status, ..Look::default() }
    }

    #[test]
    fn rates_are_what_changed_between_two_looks() {
        let mut watched = Watched::default();
        watched.take(look(1_000.0, 10.0, 100));
        assert_eq!((watched.rates, watched.curve.len()), (Rates::default(), 0));
        watched.take(look(3_000.0, 12.0, 140));
        assert_eq!(watched.rates, Rates { positions: 20.0, bytes_in: 200.0, bytes_out: 400.0 });
        watched.take(look(4_000.0, 0.5, 3));
        assert_eq!(watched.rates, Rates::default(), "a restarted node has no rate yet");
        assert_eq!(watched.curve, [20, 0]);
        assert_eq!(watched.memory(), 5);
        watched.look.resident_bytes = [Some(2), Some(7)];
        assert_eq!(watched.to_json()["memory_bytes"], 9);
        for n in 0..2 * CURVE {
            watched.take(look(5_000.0 + n as f64, 1.0 + n as f64, 3));
        }
        assert_eq!(watched.curve.len(), CURVE);
    }

    #[test]
    fn times_and_names_are_safe_to_read() {
        let said = [5.9, 61.0, 3_700.0, 90_000.0].map(ago);
        assert_eq!(said, ["5 s", "1 min", "1 h 1 min", "1 d 1 h"]);
        assert_eq!(word(&json!("a\u{1b}[2Jb\n")), "a[2Jb");
    }
}
