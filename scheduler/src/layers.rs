//! A contiguous run of decoder layers.

use std::fmt;

/// Decoder layers `[start, end)`, never empty.
///
/// Half-open, so adjacent ranges share a number: `[0, 4)` then `[4, 8)`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LayerRange {
    start: u32,
    end: u32,
}

impl LayerRange {
    /// The range `[start, end)`, or `None` when it would hold no layer.
    pub fn new(start: u32, end: u32) -> Option<Self> {
        (start < end).then_some(Self { start, end })
    }

    /// First layer held.
    pub fn start(self) -> u32 {
        self.start
    }

    /// One past the last layer held.
    pub fn end(self) -> u32 {
        self.end
    }

    /// Number of layers, at least one.
    #[allow(clippy::len_without_is_empty, reason = "a range is never empty")]
    pub fn len(self) -> u32 {
        self.end - self.start
    }

    /// Whether `layer` lies inside.
    pub fn contains(self, layer: u32) -> bool {
        self.start <= layer && layer < self.end
    }
}

impl fmt::Display for LayerRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}

impl fmt::Debug for LayerRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::LayerRange;

    #[test]
    fn an_empty_range_cannot_be_built() {
        assert_eq!(LayerRange::new(3, 3), None);
        assert_eq!(LayerRange::new(4, 3), None);
        let range = LayerRange::new(3, 5).unwrap();
        assert_eq!((range.len(), range.contains(4), range.contains(5)), (2, true, false));
    }
}
