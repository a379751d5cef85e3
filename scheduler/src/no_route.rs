//! Why there is no pipeline: what pricing ([`crate::cost`]) and searching ([`crate::route`](mod@crate::route)) both report.

use std::fmt;

/// Why there is no pipeline.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum NoRoute {
    /// The requester is not among the hosts, so its hops cannot be priced; list it, with no layers if need be.
    UnknownRequester,
    /// No eligible node holds this layer: wait, place, or relax the policy.
    Hole {
        /// The first such layer.
        layer: u32,
    },
    /// Boomerang was asked for and the requester does not hold its ends: load them, or turn it off.
    EndsNotHeld,
    /// Every layer is held, but no chain of links and KV room joins them.
    Unreachable,
    /// The search for room ended before it found a route or proved that there is none: ask again, or for less.
    Unproven,
    /// The best route is predicted to miss the deadline.
    TooSlow {
        /// Its predicted time, ms.
        predicted_ms: f64,
    },
    /// A given pipeline cannot run: its segment at this layer is not served any more.
    Broken {
        /// First layer of the segment.
        layer: u32,
    },
}

impl fmt::Display for NoRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownRequester => f.write_str("the requester is not part of the snapshot"),
            Self::Hole { layer } => write!(f, "no eligible node holds layer {layer}"),
            Self::EndsNotHeld => f.write_str("boomerang needs the first and last layers at the requester"),
            Self::Unreachable => f.write_str("no chain of links with enough room covers all layers"),
            Self::Unproven => f.write_str(
                "room for this prompt is so scarce that none was found in time, though there may be one; try again in a \
                 moment, or with a shorter prompt or answer",
            ),
            Self::TooSlow { predicted_ms } => {
                write!(f, "the best route takes {predicted_ms:.0} ms, past the deadline")
            }
            Self::Broken { layer } => write!(f, "the segment at layer {layer} cannot be served"),
        }
    }
}

impl std::error::Error for NoRoute {}
