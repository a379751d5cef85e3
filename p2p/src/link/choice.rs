//! Which link carries the frames to a neighbor.

use crate::link_kind::LinkKind;

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
        LinkKind::Datagram | LinkKind::Kmod
            if is_better(stream, datagram)
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
}
