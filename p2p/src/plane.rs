//! What the streams between two nodes are for.

use std::fmt;

/// What a stream is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Plane {
    /// Activation frames between two stages of a session.
    Data,
    /// A prompt given to a peer that conducts it.
    Delegate,
    /// Pieces of models, as they are.
    Blob,
    /// Pieces of models, made shorter where it pays; older peers do not know it.
    Packed,
    /// The state of a beginning, for a stage that lacks it; older peers do not know it.
    Pages,
    /// Rows for experts of a layer that another node holds; older peers do not know it.
    Experts,
}

impl Plane {
    /// Every plane.
    pub const ALL: [Self; 6] =
        [Self::Data, Self::Delegate, Self::Blob, Self::Packed, Self::Pages, Self::Experts];

    /// What its protocol is called.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Delegate => "delegate",
            Self::Blob => "blob",
            Self::Packed => "packed",
            Self::Pages => "pages",
            Self::Experts => "experts",
        }
    }
}

impl fmt::Display for Plane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a substream carries: a plane, one ask and its answer, or what links need.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lane {
    Control,
    Plane(Plane),
    /// Frames of the data plane, each with a number: they may take another link than the substream.
    Linked,
    /// What two neighbors agree on and measure about their links.
    Links,
}
