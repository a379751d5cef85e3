//! Which link carries the frames to a neighbor.

use std::fmt;
use std::str::FromStr;

/// A kind of link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum LinkKind {
    /// A substream of a libp2p connection: anywhere.
    Stream,
    /// Sealed datagrams: neighbors of one local network.
    Datagram,
    /// The same datagrams, which the kernel module carries at this end; the other one cannot tell.
    Kmod,
}

impl LinkKind {
    /// The table of links: every kind, its name and where it reaches.
    pub const ALL: [(Self, &'static str, &'static str); 3] = [
        (Self::Stream, "stream", "a substream of a libp2p connection, anywhere"),
        (Self::Datagram, "datagram", "sealed UDP datagrams, neighbors of one local network"),
        (Self::Kmod, "kmod", "the same datagrams by the kernel module of this end"),
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// That of datagrams with this number; 0, the stream's, stands for the socket.
    pub(crate) fn numbered(number: u8) -> Self {
        let known = Self::ALL.get(usize::from(number)).map(|row| row.0);
        known.filter(|kind| *kind != Self::Stream).unwrap_or(Self::Datagram)
    }
}

impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Which links a node uses.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum LinkMode {
    /// The faster one, as measured; the stream where that is in doubt and within one host.
    Auto,
    /// The stream always.
    #[default]
    Stream,
    /// Datagrams to every neighbor that takes them, within one host too.
    Datagram,
    /// As [`LinkMode::Datagram`], and the kernel module carries them at this end.
    Kmod,
}

impl LinkMode {
    const ALL: [Self; 4] = [Self::Auto, Self::Stream, Self::Datagram, Self::Kmod];

    /// Whether datagrams are to be used whatever is measured.
    pub(crate) const fn is_forced(self) -> bool {
        !matches!(self, Self::Auto | Self::Stream)
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Stream => "stream",
            Self::Datagram => "datagram",
            Self::Kmod => "kmod",
        }
    }
}

impl fmt::Display for LinkMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for LinkMode {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|mode| mode.name() == word);
        found.ok_or_else(|| format!("no link is called {word:?}: use auto, stream, datagram or kmod"))
    }
}

/// Sizes of the echoes that a link is measured with, bytes.
pub(crate) const ECHO_BYTES: [usize; 3] = [4 << 10, 16 << 10, 64 << 10];

/// How long echoes of [`ECHO_BYTES`] took over a link, there and back.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Figures {
    /// The median for 4, 16 and 64 KiB, us.
    pub p50_us: [f64; 3],
    /// The 99th percentile, us.
    pub p99_us: [f64; 3],
}

impl Figures {
    /// Of the times of each size, us; `None` where a size has none.
    pub(crate) fn of(mut times: [Vec<f64>; 3]) -> Option<Self> {
        let mut figures = Self::default();
        for (at, times) in times.iter_mut().enumerate() {
            times.sort_by(f64::total_cmp);
            let rank = |part: f64| times.get(((times.len() as f64 * part).ceil() as usize).saturating_sub(1));
            (figures.p50_us[at], figures.p99_us[at]) = (*rank(0.5)?, *rank(0.99)?);
        }
        Some(figures)
    }
}

/// What must be gained for a change.
const HYSTERESIS: f64 = 0.15;

/// Whether one link is so much faster than another one that a change pays: its medians are shorter by [`HYSTERESIS`] in sum and its
/// 99th percentiles are not longer.
pub(crate) fn is_better(one: Figures, other: Figures) -> bool {
    sum(one.p50_us) < sum(other.p50_us) * (1.0 - HYSTERESIS) && sum(one.p99_us) <= sum(other.p99_us)
}

fn sum(of: [f64; 3]) -> f64 {
    of.iter().sum()
}

/// The link to use from now on, given the one in use: the other one when it [is better](is_better). A link without figures does not work.
pub(crate) fn choose(now: LinkKind, stream: Option<Figures>, datagram: Option<Figures>) -> LinkKind {
    let Some(datagram) = datagram else { return LinkKind::Stream };
    let Some(stream) = stream else { return LinkKind::Stream };
    match now {
        LinkKind::Stream if is_better(datagram, stream) => LinkKind::Datagram,
        // In doubt the stream: datagrams stay only while they are not slower at the end of the tail.
        LinkKind::Stream => now,
        _ if is_better(stream, datagram)
            || sum(stream.p99_us) < sum(datagram.p99_us) * (1.0 - HYSTERESIS) =>
        {
            LinkKind::Stream
        }
        _ => now,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(p50: f64, p99: f64) -> Option<Figures> {
        Figures::of([50, 100, 200].map(|scale| {
            let mut times = vec![p50 * f64::from(scale); 19];
            times.push(p99 * f64::from(scale));
            times
        }))
    }

    #[test]
    fn a_link_is_changed_for_a_clear_gain_only() {
        use LinkKind::{Datagram, Stream};
        let one = figures(1.0, 2.0);
        for (now, datagram, then) in [
            (Stream, figures(0.8, 1.9), Datagram),
            (Stream, figures(0.9, 1.9), Stream),
            (Stream, figures(0.5, 2.1), Stream),
            (Stream, None, Stream),
            (Datagram, None, Stream),
            (Datagram, figures(1.1, 2.0), Datagram),
            (Datagram, figures(1.3, 2.0), Stream),
            (Datagram, figures(0.8, 3.0), Stream),
        ] {
            assert_eq!(choose(now, one, datagram), then, "{now} {datagram:?}");
        }
        assert_eq!(choose(Datagram, None, one), Stream);
        assert_eq!(Figures::of([vec![1.0], vec![], vec![1.0]]), None);
    }

    #[test]
    fn every_word_is_read_back() {
        for mode in LinkMode::ALL {
            assert_eq!(mode.name().parse(), Ok(mode));
        }
        assert!("pigeon".parse::<LinkMode>().is_err());
        LinkKind::ALL.iter().enumerate().for_each(|(at, (kind, name, _))| {
            assert_eq!((*kind as usize, kind.name()), (at, *name));
        });
    }
}
