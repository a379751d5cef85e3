//! What a wire that rounds makes of activations, without a wire.
//!
//! A session over such a wire rounds the rows that cross a fixed set of layer boundaries. Which ones, the session decides; every
//! stage rounds there, whether a wire is there or not, so that a session with new cuts keeps its bits. Rounding what is rounded
//! changes nothing, so both ends of a wire may round. The rules are written down twice, here and in the codec of the wire, and
//! tests hold them together.
//!
//! Limits: values must be finite, which [`crate::executor`] checks before it rounds; results then are, too.

mod companded;
mod q8;

use half::{bf16, f16};

/// How values are rounded; named after the wire that carries the result.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Rule {
    /// A scale per 32 values.
    Q8,
    /// Five bits of mantissa, the largest of 32 values by itself.
    C8,
    /// Seven bits of mantissa, the largest of 64 values by itself.
    C10,
    /// Four bits of mantissa, the largest of 64 values by itself.
    C7,
    /// The upper half of an f32.
    Bf16,
    /// A sixteenth of the value as f16.
    F16,
}

impl Rule {
    /// All rules.
    pub const ALL: [Self; 6] = [Self::Q8, Self::C8, Self::C10, Self::C7, Self::Bf16, Self::F16];

    /// What the wire is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Q8 => "q8",
            Self::C8 => "c8",
            Self::C10 => "c10",
            Self::C7 => "c7",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        }
    }

    /// Values that are rounded together: rows are multiples of them.
    pub fn group(self) -> usize {
        match self {
            Self::Q8 | Self::C8 => 32,
            Self::C10 | Self::C7 => 64,
            Self::Bf16 | Self::F16 => 1,
        }
    }

    /// Rounds finite `values`, whole groups.
    pub fn apply(self, values: &mut [f32]) {
        match self {
            Self::Q8 => q8::apply(values),
            Self::C8 => companded::apply::<5, 16>(values, self.group()),
            Self::C10 => companded::apply::<7, 24>(values, self.group()),
            Self::C7 => companded::apply::<4, 16>(values, self.group()),
            Self::Bf16 => values.iter_mut().for_each(|value| *value = to_bf16(*value)),
            Self::F16 => values.iter_mut().for_each(|value| *value = to_f16(*value)),
        }
    }
}

/// The nearest bf16, ties to even, never an infinity.
fn to_bf16(value: f32) -> f32 {
    let most = bf16::MAX.to_f32();
    bf16::from_f32(value.clamp(-most, most)).to_f32()
}

/// Sixteen times the f16 nearest to a sixteenth of `value`, ties to even, never an infinity.
fn to_f16(value: f32) -> f32 {
    let most = f16::MAX.to_f32();
    f16::from_f32((value / 16.0).clamp(-most, most)).to_f32() * 16.0
}

/// Where a session rounds, and how.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rounding {
    /// How.
    pub rule: Rule,
    /// The layers before which it rounds; those outside a stage do not matter to it.
    pub boundaries: Vec<u32>,
}

impl Rounding {
    /// Of a session that rounds nowhere.
    pub const NONE: Self = Self { rule: Rule::Q8, boundaries: Vec::new() };

    /// Whether the session rounds nowhere.
    pub fn is_none(&self) -> bool {
        self.boundaries.is_empty()
    }

    /// How rows that cross `boundary` are rounded, if they are.
    pub fn at(&self, boundary: u32) -> Option<Rule> {
        self.boundaries.contains(&boundary).then_some(self.rule)
    }
}

impl Default for Rounding {
    fn default() -> Self {
        Self::NONE
    }
}
