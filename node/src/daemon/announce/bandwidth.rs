//! What this node's line carries: assumed at first, then as seen while it was busy.
//!
//! Routes price the bytes of a hop by what both ends say their lines carry. Nobody measures a line for its own sake: that
//! costs what it measures. But models are handed out and fetched, and prompts cross in chunks of hundreds of kilobytes,
//! so once a second while something runs the bytes of every peer's streams are looked at, and the greatest rates of late
//! are what the line can do:
//!
//! - A rate that was seen is possible, so in either direction it *raises* what was assumed.
//! - While models are handed out the sender always has more to give: then the rate is the line's, and in that direction it
//!   *replaces* what was assumed, after [`ENOUGH`] such seconds. Not so where the user capped what is handed out, and never
//!   below a [`LOWERED`]th of what was assumed: who takes slowly, on purpose even, looks like a slow line. The other direction
//!   is never lowered: who receives slowly may have met a slow sender.
//!
//! A line is judged by its farthest path in use, and only by what crossed that one: what a neighbor on the LAN gets says
//! nothing about the way out of the house. Within one host bytes cross memory and are not measured.
//!
//! Limits: what crosses beside this node's streams (mirrors, other programs) is not seen and lowers what is; [`RATES`] is
//! all that is said before anything was carried; of busy seconds the last 64 within [`SPAN_MS`] count.

use std::collections::BTreeMap;

use p2p::Path;
use scheduler::{Millis, NodeId, latency::Window};

/// What a line is taken to carry by the farthest path in use, bytes per ms up and down: memory, a gigabit, and an ordinary
/// home line (20 and 100 Mbit/s).
const RATES: [(Path, f64, f64); 3] =
    [(Path::Loopback, 1e6, 1e6), (Path::Lan, 1e5, 1e5), (Path::Direct, 2_500.0, 12_500.0)];
/// Looks lie so far apart, ms: shorter and buffers are measured, longer and a short transfer is missed.
const LOOK_MS: u64 = 1_000;
/// A look later than this begins anew: something else held the node up.
const LATE_MS: u64 = 4 * LOOK_MS;
/// Seconds of handing out after which they replace what was assumed.
const ENOUGH: u32 = 3;
/// How long a busy second counts, ms: people move between networks.
const SPAN_MS: u64 = 3_600_000;
/// No line is slower, bytes per ms: 64 kbit/s. What hangs is not a line.
const LEAST: f64 = 8.0;
/// Of what was assumed so much is left at least, as a divisor: 2.5 Mbit/s of a home line. Larger and strangers who pull a
/// model a byte at a time turn prompts away from this node; smaller and slow lines are not learned.
const LOWERED: f64 = 8.0;

/// Bytes that crossed the streams of one peer so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crossed {
    pub node: NodeId,
    pub path: Path,
    pub bytes_in: u64,
    pub bytes_out: u64,
}

/// The greatest rates over one path, bytes per ms.
#[derive(Clone, Debug)]
struct Seen {
    up: Window,
    down: Window,
    /// While models were handed out all the time.
    full_up: Window,
    full: u32,
}

impl Default for Seen {
    fn default() -> Self {
        let window = || Window::new(SPAN_MS);
        Self { up: window(), down: window(), full_up: window(), full: 0 }
    }
}

/// See the module's page.
#[derive(Default)]
pub(crate) struct Line {
    before: Option<Look>,
    seen: BTreeMap<Path, Seen>,
}

struct Look {
    at: Millis,
    handing_out: bool,
    crossed: BTreeMap<NodeId, Crossed>,
}

impl Line {
    /// Whether it is time to look again.
    pub fn is_due(&self, now: Millis) -> bool {
        self.before.as_ref().is_none_or(|before| now.since(before.at) >= LOOK_MS)
    }

    /// Nothing runs: the next look is the first of another stretch.
    pub fn rest(&mut self) {
        self.before = None;
    }

    /// Notes what had crossed by `now`. `handing_out` is whether models are being sent, as fast as it goes.
    pub fn look(&mut self, now: Millis, handing_out: bool, crossed: impl Iterator<Item = Crossed>) {
        let crossed = crossed.map(|crossed| (crossed.node, crossed)).collect();
        let look = Look { at: now, handing_out, crossed };
        let Some(before) = self.before.replace(look) else { return };
        let Some(look) = &self.before else { return };
        let ms = now.since(before.at);
        if !(LOOK_MS..=LATE_MS).contains(&ms) {
            return;
        }
        let mut sums: BTreeMap<Path, (u64, u64)> = BTreeMap::new();
        for crossed in look.crossed.values().filter(|crossed| crossed.path != Path::Loopback) {
            // Over another path, or anew: what was counted before belongs elsewhere.
            let Some(old) = before.crossed.get(&crossed.node).filter(|old| old.path == crossed.path) else {
                continue;
            };
            let sum = sums.entry(crossed.path).or_default();
            sum.0 += crossed.bytes_out.saturating_sub(old.bytes_out);
            sum.1 += crossed.bytes_in.saturating_sub(old.bytes_in);
        }
        let full = before.handing_out && handing_out;
        for (path, (out, into)) in sums {
            let seen = self.seen.entry(path).or_default();
            let (up, down) = (out as f64 / ms as f64, into as f64 / ms as f64);
            seen.up.add(now, up);
            seen.down.add(now, down);
            if full && up >= LEAST {
                seen.full_up.add(now, up);
                seen.full = seen.full.saturating_add(1);
            }
        }
    }

    /// Whether anything was seen over `path`.
    pub fn is_measured(&self, path: Path) -> bool {
        self.seen.contains_key(&path)
    }

    /// What the line carries where `farthest` is the farthest path in use, bytes per ms up and down.
    pub fn rates(&self, farthest: Path, now: Millis) -> (f64, f64) {
        let row = RATES.iter().find(|row| farthest <= row.0).unwrap_or(&RATES[RATES.len() - 1]);
        let Some(seen) = self.seen.get(&farthest) else { return (row.1, row.2) };
        let replaced = seen.full_up.max(now).filter(|_| seen.full >= ENOUGH);
        let up = replaced.map_or(row.1, |up| up.max(row.1 / LOWERED)).max(seen.up.max(now).unwrap_or(0.0));
        (up, row.2.max(seen.down.max(now).unwrap_or(0.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Peer(Crossed);

    impl Peer {
        fn over(path: Path) -> Self {
            Self(Crossed { node: NodeId::numbered(path as u64), path, bytes_in: 0, bytes_out: 0 })
        }
    }

    /// Seconds in which these bytes go out to and come in from every peer.
    fn run(
        line: &mut Line,
        now: &mut u64,
        peers: &mut [Peer],
        handing_out: bool,
        seconds: u64,
        (out, into): (u64, u64),
    ) {
        for _ in 0..seconds {
            *now += LOOK_MS;
            for Peer(peer) in peers.iter_mut() {
                peer.bytes_out += out;
                peer.bytes_in += into;
            }
            line.look(Millis(*now), handing_out, peers.iter().map(|peer| peer.0));
        }
    }

    #[test]
    fn a_line_is_assumed_then_raised_and_lowered_only_by_who_had_more_to_give() {
        let (mut line, mut now) = (Line::default(), 0);
        let assumed = (2_500.0, 12_500.0);
        let mut peers = [Peer::over(Path::Direct)];
        let mut run = |line: &mut Line, handing_out, seconds, bytes| {
            run(line, &mut now, &mut peers, handing_out, seconds, bytes);
            line.rates(Path::Direct, Millis(now))
        };
        assert_eq!(line.rates(Path::Direct, Millis(0)), assumed);
        assert_eq!(run(&mut line, false, 20, (5_000, 5_000)), assumed, "a conversation fills no line");
        // The first look of a stretch of handing out is one of two, then [`ENOUGH`] count.
        assert_eq!(run(&mut line, true, u64::from(ENOUGH), (600_000, 0)), assumed);
        assert_eq!(run(&mut line, true, 1, (500_000, 0)), (600.0, 12_500.0), "a slow way up is learned");
        assert_eq!(
            run(&mut line, false, 1, (700_000, 90_000_000)),
            (700.0, 90_000.0),
            "what was seen is possible"
        );
    }

    #[test]
    fn who_takes_a_byte_at_a_time_lowers_a_line_only_so_far() {
        let (mut line, mut now) = (Line::default(), 0);
        let mut miser = [Peer::over(Path::Direct)];
        run(&mut line, &mut now, &mut miser, true, 60, (9_000, 0));
        assert_eq!(line.rates(Path::Direct, Millis(now)), (2_500.0 / LOWERED, 12_500.0));
        run(&mut line, &mut now, &mut miser, true, 60, (1_000, 0));
        assert_eq!(line.rates(Path::Direct, Millis(now)).0, 2_500.0 / LOWERED);
    }

    #[test]
    fn other_paths_other_stretches_and_long_ago_do_not_count() {
        let (mut line, mut now) = (Line::default(), 0);
        let mut both = [Peer::over(Path::Lan), Peer::over(Path::Loopback)];
        run(&mut line, &mut now, &mut both, true, 9, (40_000_000, 0));
        assert_eq!(line.rates(Path::Lan, Millis(now)).0, 4e4);
        assert_eq!(line.rates(Path::Direct, Millis(now)).0, 2_500.0);
        assert_eq!(line.rates(Path::Loopback, Millis(now)).0, 1e6, "memory is not measured");
        assert_eq!(line.rates(Path::Lan, Millis(now + SPAN_MS + 1)).0, 1e5);
        // A pause: what crossed meanwhile is no rate of a second; neither is what a connection before carried.
        let mut fast = [Peer::over(Path::Direct)];
        run(&mut line, &mut now, &mut fast, true, 1, (0, 0));
        line.rest();
        run(&mut line, &mut now, &mut fast, true, 1, (1 << 40, 0));
        now += LATE_MS;
        run(&mut line, &mut now, &mut fast, true, 1, (1 << 40, 0));
        fast[0].0.bytes_out = 0;
        run(&mut line, &mut now, &mut fast, true, 1, (0, 0));
        assert_eq!(line.rates(Path::Direct, Millis(now)), (2_500.0, 12_500.0));
        assert!(!line.is_due(Millis(now + LOOK_MS - 1)) && line.is_due(Millis(now + LOOK_MS)));
    }
}
