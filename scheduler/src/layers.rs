//! Contiguous runs of decoder layers, and sets of them.

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

    /// Whether every layer of `other` lies inside.
    pub fn covers(self, other: Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// The layers in both, if any.
    pub fn intersect(self, other: Self) -> Option<Self> {
        Self::new(self.start.max(other.start), self.end.min(other.end))
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

/// A set of layers as sorted, disjoint, non-adjacent ranges.
///
/// Adjacent and overlapping ranges are merged on the way in, so "holds `[0, 4)` and `[4, 8)`" and "holds `[0, 8)`"
/// are the same value and route alike.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub struct LayerSet(Vec<LayerRange>);

impl LayerSet {
    /// The union of `ranges`, given in any order.
    pub fn new(ranges: impl IntoIterator<Item = LayerRange>) -> Self {
        let mut sorted: Vec<LayerRange> = ranges.into_iter().collect();
        sorted.sort_unstable();
        let mut merged: Vec<LayerRange> = Vec::with_capacity(sorted.len());
        for range in sorted {
            match merged.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => merged.push(range),
            }
        }
        Self(merged)
    }

    /// The ranges, ascending.
    pub fn ranges(&self) -> &[LayerRange] {
        &self.0
    }

    /// Whether no layer is held.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of layers held.
    pub fn len(&self) -> u32 {
        self.0.iter().map(|range| range.len()).sum()
    }

    /// Whether `layer` is held.
    pub fn contains(&self, layer: u32) -> bool {
        self.range_at(layer).is_some()
    }

    /// The held range around `layer`.
    pub fn range_at(&self, layer: u32) -> Option<LayerRange> {
        let after = self.0.partition_point(|range| range.start <= layer);
        after.checked_sub(1).map(|i| self.0[i]).filter(|range| range.contains(layer))
    }

    /// Whether one held range covers all of `wanted`.
    pub fn covers(&self, wanted: LayerRange) -> bool {
        self.range_at(wanted.start).is_some_and(|range| range.covers(wanted))
    }

    /// Both sets together.
    pub fn union(&self, other: &Self) -> Self {
        Self::new(self.0.iter().chain(&other.0).copied())
    }

    /// What both hold.
    pub fn intersection(&self, other: &Self) -> Self {
        let pairs = self.0.iter().flat_map(|mine| other.0.iter().map(move |theirs| mine.intersect(*theirs)));
        pairs.flatten().collect()
    }

    /// What is left without `range`.
    pub fn without(&self, range: LayerRange) -> Self {
        let parts = |held: &LayerRange| {
            [
                LayerRange::new(held.start, held.end.min(range.start)),
                LayerRange::new(held.start.max(range.end), held.end),
            ]
        };
        self.0.iter().flat_map(parts).flatten().collect()
    }

    /// The first layer held, `u32::MAX` for the empty set.
    pub fn start(&self) -> u32 {
        self.0.first().map_or(u32::MAX, |range| range.start)
    }

    /// One past the last layer held, zero for the empty set.
    pub fn end(&self) -> u32 {
        self.0.last().map_or(0, |range| range.end)
    }
}

impl FromIterator<LayerRange> for LayerSet {
    fn from_iter<I: IntoIterator<Item = LayerRange>>(ranges: I) -> Self {
        Self::new(ranges)
    }
}

impl From<LayerRange> for LayerSet {
    fn from(range: LayerRange) -> Self {
        Self(vec![range])
    }
}

#[cfg(test)]
mod tests {
    use super::{LayerRange, LayerSet};

    fn range(start: u32, end: u32) -> LayerRange {
        LayerRange::new(start, end).unwrap()
    }

    #[test]
    fn an_empty_range_cannot_be_built() {
        assert_eq!(LayerRange::new(3, 3), None);
        assert_eq!(LayerRange::new(4, 3), None);
        let range = LayerRange::new(3, 5).unwrap();
        assert_eq!((range.len(), range.contains(4), range.contains(5)), (2, true, false));
    }

    #[test]
    fn ranges_meet_and_cover() {
        assert_eq!(range(0, 4).intersect(range(2, 9)), Some(range(2, 4)));
        assert_eq!(range(0, 4).intersect(range(4, 9)), None);
        assert!(range(0, 4).covers(range(1, 4)) && !range(0, 4).covers(range(1, 5)));
    }

    #[test]
    fn a_set_merges_what_touches() {
        let set = LayerSet::new([range(6, 8), range(0, 2), range(2, 4), range(7, 9)]);
        assert_eq!(set.ranges(), &[range(0, 4), range(6, 9)]);
        assert_eq!((set.len(), set.end()), (7, 9));
        assert!(set.contains(3) && !set.contains(4) && !set.contains(9));
        assert!(set.covers(range(1, 4)) && !set.covers(range(3, 7)));
        assert_eq!(set.union(&range(4, 6).into()), range(0, 9).into());
        assert_eq!(set.intersection(&range(3, 7).into()), LayerSet::new([range(3, 4), range(6, 7)]));
        assert_eq!(set.without(range(1, 7)), LayerSet::new([range(0, 1), range(7, 9)]));
        assert_eq!(set.without(range(4, 6)), set);
    }
}
