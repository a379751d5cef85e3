//! What holdings are worth, and when other ones are worth more.

/// What holdings are worth.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Worth {
    /// Tokens per second.
    pub tps: f64,
    /// Layers that have a holder.
    pub covered: usize,
    /// Those that have one only.
    pub alone: usize,
}

impl Worth {
    /// Whether it serves faster, or as fast and more layers outlive the loss of a node.
    pub fn is_above(&self, other: &Self) -> bool {
        let as_fast = self.tps == other.tps;
        self.tps > other.tps * (1.0 + 1e-9)
            || as_fast && self.covered > other.covered
            || as_fast && self.secures(other)
    }

    /// Whether fewer layers depend on one node, and none was lost for that.
    pub fn secures(&self, other: &Self) -> bool {
        self.covered == other.covered && self.alone < other.alone
    }
}
