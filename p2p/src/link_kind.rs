//! The kinds of links, and which of them a node uses.

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
        matches!(self, Self::Datagram | Self::Kmod)
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

#[cfg(test)]
mod tests {
    use super::{LinkKind, LinkMode};

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
