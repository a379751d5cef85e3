//! Who runs which layers of one request.
//!
//! A [`Pipeline`] can only be built complete: it starts at layer 0, each [`Segment`] begins where the one before it
//! ended, and it stops at the last layer. Code that has one need not check again.

use std::fmt;

use crate::{LayerRange, NodeId};

/// One node running one run of layers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Segment {
    /// Who runs it.
    pub node: NodeId,
    /// What it runs.
    pub layers: LayerRange,
}

/// Segments that cover every layer of a model once, in order.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Pipeline(Vec<Segment>);

impl Pipeline {
    /// Proves that `segments` cover `[0, num_layers)`.
    ///
    /// # Errors
    /// [`Gap`] with the first layer that is missing or served twice.
    pub fn new(segments: Vec<Segment>, num_layers: u32) -> Result<Self, Gap> {
        let mut at = 0;
        for segment in &segments {
            if segment.layers.start() != at {
                return Err(Gap { layer: at.min(segment.layers.start()) });
            }
            at = segment.layers.end();
        }
        if at == num_layers && !segments.is_empty() {
            Ok(Self(segments))
        } else {
            Err(Gap { layer: at.min(num_layers) })
        }
    }

    /// The segments in the order a token visits them.
    pub fn segments(&self) -> &[Segment] {
        &self.0
    }

    /// Number of layers of the model.
    pub fn num_layers(&self) -> u32 {
        self.0.last().map_or(0, |segment| segment.layers.end())
    }

    /// Whether `node` runs any layer.
    pub fn visits(&self, node: NodeId) -> bool {
        self.0.iter().any(|segment| segment.node == node)
    }

    /// Layers that `node` runs over all its segments.
    pub fn layers_on(&self, node: NodeId) -> u32 {
        self.0.iter().filter(|segment| segment.node == node).map(|segment| segment.layers.len()).sum()
    }

    /// The same pipeline with segment `index` served by `cover` instead, which must run exactly its layers.
    ///
    /// # Errors
    /// [`Gap`] when `cover` leaves out a layer of the segment or runs one too many.
    pub fn replaced(&self, index: usize, cover: &[Segment]) -> Result<Self, Gap> {
        let mut segments = self.0.clone();
        if index >= segments.len() {
            return Err(Gap { layer: self.num_layers() });
        }
        segments.splice(index..=index, cover.iter().copied());
        Self::new(segments, self.num_layers())
    }
}

impl fmt::Display for Pipeline {
    /// `01020304[0..2] -> 0a0b0c0d[2..8]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, segment) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(" -> ")?;
            }
            write!(f, "{}[{}]", segment.node, segment.layers)?;
        }
        Ok(())
    }
}

/// Why segments are not a pipeline: `layer` is missing, or served twice, or beyond the model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gap {
    /// The first layer that is wrong.
    pub layer: u32,
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "segments are not contiguous at layer {}", self.layer)
    }
}

impl std::error::Error for Gap {}

#[cfg(test)]
mod tests {
    use super::{Gap, Pipeline, Segment};
    use crate::{LayerRange, NodeId};

    fn segment(node: u64, start: u32, end: u32) -> Segment {
        Segment { node: NodeId::numbered(node), layers: LayerRange::new(start, end).unwrap() }
    }

    #[test]
    fn only_a_complete_cover_is_a_pipeline() {
        let whole = Pipeline::new(vec![segment(1, 0, 3), segment(2, 3, 8)], 8).unwrap();
        assert_eq!((whole.num_layers(), whole.layers_on(NodeId::numbered(2))), (8, 5));
        assert_eq!(Pipeline::new(vec![segment(1, 0, 3), segment(2, 4, 8)], 8), Err(Gap { layer: 3 }));
        assert_eq!(Pipeline::new(vec![segment(1, 0, 3), segment(2, 2, 8)], 8), Err(Gap { layer: 2 }));
        assert_eq!(Pipeline::new(vec![segment(1, 0, 3)], 8), Err(Gap { layer: 3 }));
        assert_eq!(Pipeline::new(vec![segment(1, 0, 9)], 8), Err(Gap { layer: 8 }));
        assert_eq!(Pipeline::new(vec![], 8), Err(Gap { layer: 0 }));
    }

    #[test]
    fn a_segment_is_replaced_by_exactly_its_layers() {
        let whole = Pipeline::new(vec![segment(1, 0, 3), segment(2, 3, 8)], 8).unwrap();
        let tiled = whole.replaced(1, &[segment(3, 3, 5), segment(4, 5, 8)]).unwrap();
        assert_eq!(tiled.segments().len(), 3);
        assert_eq!(whole.replaced(1, &[segment(3, 3, 5)]), Err(Gap { layer: 5 }));
        assert_eq!(whole.replaced(7, &[segment(3, 3, 5)]), Err(Gap { layer: 8 }));
    }
}
