//! What `shoal status --watch` knows: two looks at the node, and what changed between them. Pure.

use std::collections::VecDeque;

use serde::Serialize;

use crate::{
    events::{PromptReport, StageReport, Stall},
    reports::{PeerReport, StatusReport, WorkStatus},
};

/// Looks remembered for the curve of the work done.
pub(super) const CURVE: usize = 120;

/// One look at the node.
#[derive(Clone, Debug, Default)]
pub(super) struct Look {
    /// When, milliseconds of any clock.
    pub at_ms: f64,
    /// The answer to `status`; none before the first look.
    pub status: Option<Box<StatusReport>>,
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
    /// Adds a reading.
    pub fn take(&mut self, look: Look) {
        self.trouble = None;
        let seconds = (look.at_ms - self.look.at_ms) / 1e3;
        let first = self.look.status.is_none();
        let two = self.look.status.as_ref().zip(look.status.as_ref());
        // A restarted node counts from zero.
        let two = two.filter(|(old, new)| seconds > 0.0 && new.process.uptime_s >= old.process.uptime_s);
        self.rates = two.map_or_else(Rates::default, |(old, new)| {
            let grown =
                |of: fn(&WorkStatus) -> u64| of(&new.work).saturating_sub(of(&old.work)) as f64 / seconds;
            Rates {
                positions: grown(|work| work.served_positions),
                bytes_in: grown(|work| work.bytes_in),
                bytes_out: grown(|work| work.bytes_out),
            }
        });
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
            return self.look.status.as_ref().map_or(0, |status| status.model.memory.resident_bytes);
        }
        known.iter().sum()
    }

    /// The status with the rates, for programs.
    pub fn line(&self) -> WatchLine<'_> {
        WatchLine {
            status: self.look.status.as_deref(),
            event: "status",
            positions_per_s: self.rates.positions,
            bytes_in_per_s: self.rates.bytes_in,
            bytes_out_per_s: self.rates.bytes_out,
            memory_bytes: self.memory(),
            last_prompt: self.look.last.as_ref().map(|last| LastPrompt {
                session: last.session.as_deref(),
                tok_s: last.timing.as_ref().map(|timing| timing.decode_tok_s),
                stages: last.timing.as_ref().map(|timing| timing.stages.as_slice()),
                faults: last.timing.as_ref().map(|timing| timing.faults.as_slice()),
            }),
        }
    }
}

/// A line of `status --watch --json`.
#[derive(Serialize)]
pub(super) struct WatchLine<'a> {
    #[serde(flatten)]
    status: Option<&'a StatusReport>,
    event: &'static str,
    positions_per_s: f64,
    bytes_in_per_s: f64,
    bytes_out_per_s: f64,
    memory_bytes: u64,
    last_prompt: Option<LastPrompt<'a>>,
}

/// What a line says of the last prompt.
#[derive(Serialize)]
struct LastPrompt<'a> {
    session: Option<&'a str>,
    tok_s: Option<f64>,
    stages: Option<&'a [StageReport]>,
    faults: Option<&'a [Stall]>,
}

/// Text without control characters: names come from strangers.
pub(super) fn plain(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).collect()
}

/// A list as a person reads it.
pub(super) fn words(parts: &[String]) -> String {
    if parts.is_empty() { "nothing".into() } else { parts.join(", ") }
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
    use serde_json::json;

    use super::*;

    fn look(at_ms: f64, uptime_s: f64, positions: u64) -> Look {
        let mut status = StatusReport::default();
        status.process.uptime_s = uptime_s;
        (status.work.served_positions, status.work.bytes_in) = (positions, positions * 10);
        (status.work.bytes_out, status.model.memory.resident_bytes) = (positions * 20, 5);
        Look { at_ms, status: Some(Box::new(status)), ..Look::default() }
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
        let line = serde_json::to_value(watched.line()).unwrap();
        assert_eq!((&line["memory_bytes"], &line["event"]), (&json!(9), &json!("status")));
        assert_eq!((&line["served_positions"], &line["last_prompt"]), (&json!(3), &json!(null)));
        for n in 0..2 * CURVE {
            watched.take(look(5_000.0 + n as f64, 1.0 + n as f64, 3));
        }
        assert_eq!(watched.curve.len(), CURVE);
    }

    #[test]
    fn times_and_names_are_safe_to_read() {
        let said = [5.9, 61.0, 3_700.0, 90_000.0].map(ago);
        assert_eq!(said, ["5 s", "1 min", "1 h 1 min", "1 d 1 h"]);
        assert_eq!(plain("a\u{1b}[2Jb\n"), "a[2Jb");
    }
}
