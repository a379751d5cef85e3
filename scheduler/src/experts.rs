//! Contiguous runs of the experts of a layer.

use std::fmt;

use crate::LayerRange;

/// Experts `[start, end)` of each of some layers, never empty.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExpertRange {
    start: u32,
    end: u32,
}

impl ExpertRange {
    /// The range `[start, end)`, or `None` when it would hold no expert.
    pub fn new(start: u32, end: u32) -> Option<Self> {
        (start < end).then_some(Self { start, end })
    }

    /// First expert held.
    pub fn start(self) -> u32 {
        self.start
    }

    /// One past the last expert held.
    pub fn end(self) -> u32 {
        self.end
    }

    /// Whether `expert` lies inside.
    pub fn contains(self, expert: u32) -> bool {
        self.start <= expert && expert < self.end
    }
}

impl fmt::Display for ExpertRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}

impl fmt::Debug for ExpertRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Which of `holders`, by place, computes each of `count` experts of layer `layer`, where `own` are computed at home (`None`):
/// the first that holds it. Each has some experts of some layers.
///
/// # Errors
/// The first expert that none of them holds.
pub fn assign(
    layer: u32,
    (own, count): (ExpertRange, u32),
    holders: &[(&[LayerRange], ExpertRange)],
) -> Result<Vec<Option<usize>>, u32> {
    let of = |expert: u32| match own.contains(expert) {
        true => Ok(None),
        false => {
            let holds = |(layers, experts): &(&[LayerRange], ExpertRange)| {
                experts.contains(expert) && layers.iter().any(|range| range.contains(layer))
            };
            holders.iter().position(holds).map(Some).ok_or(expert)
        }
    };
    (0..count).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_expert_has_a_holder_of_its_layer_or_is_named() {
        let experts = |start, end| ExpertRange::new(start, end).unwrap();
        let layers = |start, end| [LayerRange::new(start, end).unwrap()];
        let (two, four) = (layers(0, 2), layers(0, 4));
        let holders = [(&two[..], experts(2, 4)), (&four, experts(3, 6)), (&four, experts(2, 3))];
        let of = |layer, own| assign(layer, (own, 6), &holders);
        assert_eq!(of(1, experts(0, 2)), Ok(vec![None, None, Some(0), Some(0), Some(1), Some(1)]));
        assert_eq!(of(3, experts(0, 2)), Ok(vec![None, None, Some(2), Some(1), Some(1), Some(1)]));
        assert_eq!(of(1, experts(1, 2)), Err(0));
        assert_eq!(of(9, experts(0, 4)), Err(4), "no holder has that layer");
        assert_eq!(of(9, experts(0, 6)), Ok(vec![None; 6]));
        assert_eq!(ExpertRange::new(3, 3), None);
    }
}
