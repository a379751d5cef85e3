//! The factor on queries that grows with the position.

use crate::kernels::math;

/// A factor on queries by position: `1 + scale * ln(1 + floor((position + ahead) / length))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Temperature {
    /// Factor on the logarithm.
    pub scale: f32,
    /// Positions after which the factor grows, a whole number.
    pub length: f32,
    /// How many positions further ahead it counts (1 in llama4, 0 in mistral3).
    pub ahead: usize,
}

impl Temperature {
    /// The factor on the query of `position`.
    pub fn at(self, position: usize) -> f32 {
        let steps = ((position + self.ahead) as f64 / f64::from(self.length)).floor();
        (1.0 + f64::from(self.scale) * math::ln(1.0 + steps)) as f32
    }
}
