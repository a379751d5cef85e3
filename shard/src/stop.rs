//! Ends a stream of text at the first stop string, without ever showing part of one.
//!
//! Text that could be the beginning of a stop string is held back until it is known to be one or not.
//! Limits: at most [`MAX_STOPS`] strings of at most [`MAX_STOP_BYTES`] bytes, so what is held back is bounded too.

use crate::{Error, Result};

/// More stop strings are refused.
pub const MAX_STOPS: usize = 64;
/// Longer stop strings are refused.
pub const MAX_STOP_BYTES: usize = 4096;

/// Watches a stream for stop strings.
#[derive(Debug)]
pub struct StopStrings {
    stops: Vec<String>,
    held: String,
    ready: String,
    hit: bool,
    met: Option<usize>,
}

impl StopStrings {
    /// Watches for any of `stops`; empty strings are refused.
    pub fn new(stops: Vec<String>) -> Result<Self> {
        if stops.len() > MAX_STOPS {
            return Err(Error::invalid(format!("at most {MAX_STOPS} stop strings, got {}", stops.len())));
        }
        if stops.iter().any(|s| s.is_empty() || s.len() > MAX_STOP_BYTES) {
            return Err(Error::invalid(format!("stop strings must have 1 to {MAX_STOP_BYTES} bytes")));
        }
        Ok(Self { stops, held: String::new(), ready: String::new(), hit: false, met: None })
    }

    /// Forgets the text that it took.
    pub fn begin_again(&mut self) {
        let stops = std::mem::take(&mut self.stops);
        *self = Self { stops, held: String::new(), ready: String::new(), hit: false, met: None };
    }

    /// Whether a stop string was met; nothing more will come out.
    pub fn hit(&self) -> bool {
        self.hit
    }

    /// The stop string that was met.
    pub fn met(&self) -> Option<&str> {
        self.met.map(|met| self.stops[met].as_str())
    }

    /// Takes more text and gives back what can be shown now.
    pub fn push(&mut self, text: &str) -> &str {
        self.ready.clear();
        if self.hit {
            return &self.ready;
        }
        self.held.push_str(text);
        let found =
            self.stops.iter().enumerate().filter_map(|(i, stop)| Some((self.held.find(stop.as_str())?, i)));
        if let Some((at, met)) = found.min() {
            self.hit = true;
            self.met = Some(met);
            self.ready.push_str(&self.held[..at]);
            self.held.clear();
            return &self.ready;
        }
        let keep = self.possible_start();
        self.ready.extend(self.held.drain(..keep));
        &self.ready
    }

    /// The stream has ended: what was held back was not a stop string after all.
    pub fn finish(&mut self) -> &str {
        self.ready.clear();
        self.ready.push_str(&self.held);
        self.held.clear();
        &self.ready
    }

    /// The first position from which the held text is a proper prefix of some stop string.
    fn possible_start(&self) -> usize {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let first = self.held.len().saturating_sub(longest.saturating_sub(1));
        (first..self.held.len())
            .filter(|&at| self.held.is_char_boundary(at))
            .find(|&at| self.stops.iter().any(|stop| stop.starts_with(&self.held[at..])))
            .unwrap_or(self.held.len())
    }
}

#[cfg(test)]
mod tests {
    use super::StopStrings;

    fn run(stops: &[&str], pieces: &[&str]) -> (String, bool) {
        let mut watch = StopStrings::new(stops.iter().map(|s| s.to_string()).collect()).unwrap();
        let mut out: String = pieces.iter().map(|piece| watch.push(piece).to_string()).collect();
        out += watch.finish();
        (out, watch.hit())
    }

    #[test]
    fn text_ends_before_the_first_stop_string_however_it_is_cut() {
        let text = "one two END three";
        for cut in 0..text.len() {
            let (a, b) = text.split_at(cut);
            assert_eq!(run(&["three", "END"], &[a, b]), ("one two ".into(), true), "cut at {cut}");
        }
    }

    #[test]
    fn a_beginning_that_comes_to_nothing_is_shown() {
        assert_eq!(run(&["END"], &["EN", "EMY E"]), ("ENEMY E".into(), false));
        assert_eq!(run(&["aab"], &["a", "a", "a", "b", "c"]), ("a".into(), true));
        assert_eq!(run(&["…!"], &["wait…", "?"]), ("wait…?".into(), false));
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(StopStrings::new(vec![String::new()]).is_err());
        assert!(StopStrings::new(vec!["x".into(); 65]).is_err());
    }
}
