//! What a node says of the link to a neighbor.

use std::fmt;

use super::choice::{Figures, is_better};
use crate::link_kind::LinkKind;

/// What is said of a link to a neighbor.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LinkInfo {
    /// The link in use.
    pub kind: LinkKind,
    /// Echoes over the stream, once measured.
    pub stream: Option<Figures>,
    /// Echoes over datagrams, once measured.
    pub datagram: Option<Figures>,
    /// Echoes over datagrams that the kernel module carries at this end, once measured.
    pub kmod: Option<Figures>,
    /// Frames that datagrams carried.
    pub messages: u64,
    /// Frames that the stream carried from the start.
    pub streamed: u64,
    /// Frames that datagrams could not carry and the stream did.
    pub returned: u64,
    /// Datagrams sent again.
    pub sent_again: u64,
    /// Bytes of a message that one datagram carries; 0 where none do.
    pub chunk_bytes: usize,
    /// How often the keys of the datagrams were exchanged for others.
    pub renewed: u32,
}

impl LinkInfo {
    /// Of a peer to which so many frames went, all over its stream; nothing where none did.
    pub(crate) fn of_stream(streamed: u64) -> Option<Self> {
        (streamed > 0).then_some(Self {
            kind: LinkKind::Stream,
            stream: None,
            datagram: None,
            kmod: None,
            messages: 0,
            streamed,
            returned: 0,
            sent_again: 0,
            chunk_bytes: 0,
            renewed: 0,
        })
    }

    /// Whether the kernel module of this end would help here: its echoes are clearly faster than those of every other link that was
    /// measured. `None` where it was not measured.
    pub fn module_helps(&self) -> Option<bool> {
        let others = [self.stream, self.datagram];
        let kmod = self.kmod.filter(|_| others.iter().any(Option::is_some))?;
        Some(others.into_iter().flatten().all(|other| is_better(kmod, other)))
    }
}

impl fmt::Display for LinkInfo {
    /// The link in use, the medians of 16 KiB echoes with the 99th percentiles, and how many frames went how.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        for (name, figures) in [("stream", self.stream), ("datagram", self.datagram), ("kmod", self.kmod)] {
            if let Some(figures) = figures {
                write!(f, ", {name} {:.0} us (p99 {:.0})", figures.p50_us[1], figures.p99_us[1])?;
            }
        }
        write!(f, ", {} frames by datagram, {} by stream", self.messages, self.streamed)?;
        write!(f, ", {} of datagrams back on the stream", self.returned)?;
        if self.chunk_bytes > 0 { write!(f, ", chunks of {} bytes", self.chunk_bytes) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(us: f64) -> Option<Figures> {
        Some(Figures { p50_us: [us; 3], p99_us: [2.0 * us; 3] })
    }

    #[test]
    fn the_module_helps_where_it_is_clearly_faster_than_all_others() {
        let info = LinkInfo::of_stream(3).unwrap();
        for (stream, datagram, kmod, helps) in [
            (Some(100.0), Some(90.0), None, None),
            (None, None, Some(50.0), None),
            (Some(100.0), Some(90.0), Some(70.0), Some(true)),
            (Some(100.0), Some(90.0), Some(80.0), Some(false)),
            (Some(60.0), Some(90.0), Some(70.0), Some(false)),
            (Some(100.0), None, Some(70.0), Some(true)),
        ] {
            let [stream, datagram, kmod] = [stream, datagram, kmod].map(|us| us.and_then(figures));
            assert_eq!(LinkInfo { stream, datagram, kmod, ..info }.module_helps(), helps);
        }
        assert_eq!(LinkInfo::of_stream(0), None);
    }
}
