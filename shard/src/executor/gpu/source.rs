//! WGSL from templates: one file per operation under `wgsl/`, put together with the arithmetic of the device.
//!
//! Every shader begins with what a pass says of itself, arithmetic on bits, addition and products as the device rounds them, and
//! the elementary functions of [`crate::kernels::math`], whose constants are written from there.

use std::fmt::Write;

use crate::{kernels::math, models::Activation};

/// Rows of activations that one thread multiplies with what it decodes of the matrix, where a pass has several.
pub(super) const ROWS: u32 = 4;

/// How a device rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arithmetic {
    /// `fma` rounds once; otherwise it is computed in integers.
    pub fused: bool,
    /// Additions and products keep subnormal numbers; otherwise they are computed in integers.
    pub keeps_subnormals: bool,
}

/// One operation on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kernel {
    /// A norm of each row, and the row rounded.
    Norm {
        /// Whether the mean is taken away first.
        center: bool,
    },
    /// The activation function of the first half of a row times the second half, and the row rounded.
    Gate(Curve),
    /// The activation function of a row, and the row rounded.
    Curve(Curve),
    /// A row rounded.
    Copy,
    /// Matrix times rows, in a weight format by its GGUF number; rows at once.
    Matmul(u32, u32),
    /// Norm, rotation and storing of heads.
    Heads,
    /// Attention over pages.
    Attention,
    /// One float operation on many operands.
    Probe(&'static str),
}

/// A nonlinearity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Curve {
    Silu,
    Gelu,
    ReluSquared,
}

impl Curve {
    /// The one of `activation`, if the device has it.
    pub fn of(activation: Activation) -> Option<Self> {
        match activation {
            Activation::GatedSilu => Some(Self::Silu),
            Activation::GatedGelu | Activation::Gelu => Some(Self::Gelu),
            Activation::GatedReluSquared | Activation::ReluSquared => Some(Self::ReluSquared),
            Activation::ClampedSwiglu => None,
        }
    }

    fn function(self) -> &'static str {
        match self {
            Self::Silu => "f_silu",
            Self::Gelu => "f_gelu",
            Self::ReluSquared => "f_relu_squared",
        }
    }
}

/// What a weight format is on the device: its file, and whether it reads rounded activations.
pub(super) fn format(ggml_type: u32) -> Option<&'static str> {
    Some(match ggml_type {
        0 => include_str!("wgsl/formats/f32.wgsl"),
        1 => include_str!("wgsl/formats/f16.wgsl"),
        2 => include_str!("wgsl/formats/q4_0.wgsl"),
        3 => include_str!("wgsl/formats/q4_1.wgsl"),
        6 => include_str!("wgsl/formats/q5_0.wgsl"),
        7 => include_str!("wgsl/formats/q5_1.wgsl"),
        8 => include_str!("wgsl/formats/q8_0.wgsl"),
        12 => include_str!("wgsl/formats/q4_k.wgsl"),
        13 => include_str!("wgsl/formats/q5_k.wgsl"),
        14 => include_str!("wgsl/formats/q6_k.wgsl"),
        30 => include_str!("wgsl/formats/bf16.wgsl"),
        _ => return None,
    })
}

impl Kernel {
    /// How its bindings are used, in order: `r` read, `w` read and written.
    pub fn bindings(self) -> &'static str {
        match self {
            Self::Norm { .. } | Self::Gate(_) | Self::Curve(_) | Self::Copy => "rrrrwwww",
            Self::Matmul(..) => "rrrrrrrw",
            Self::Heads => "rrrrrww",
            Self::Attention => "rrrrrw",
            Self::Probe(_) => "rrrw",
        }
    }

    /// The whole shader for a device of this arithmetic.
    pub fn source(self, arithmetic: Arithmetic) -> String {
        let own = match self {
            Self::Norm { center } => {
                let make = include_str!("wgsl/row_norm.wgsl");
                row(make).replace("CENTER", if center { "true" } else { "false" })
            }
            Self::Gate(curve) => row(include_str!("wgsl/row_gate.wgsl")).replace("CURVE", curve.function()),
            Self::Curve(curve) => row(include_str!("wgsl/row_curve.wgsl")).replace("CURVE", curve.function()),
            Self::Copy => row(include_str!("wgsl/row_copy.wgsl")),
            Self::Matmul(ggml_type, rows) => {
                let format = format(ggml_type).unwrap_or_default();
                let (shared, chain) = match format.contains("fn fetch") {
                    true => (include_str!("wgsl/integer.wgsl"), include_str!("wgsl/chain_integer.wgsl")),
                    false => ("", include_str!("wgsl/chain_float.wgsl")),
                };
                include_str!("wgsl/matmul.wgsl")
                    .replace("//FORMAT", &format!("{shared}\n{format}"))
                    .replace("//CHAIN", chain)
                    .replace("ROWS", &format!("{rows}u"))
            }
            Self::Heads => include_str!("wgsl/heads.wgsl").into(),
            Self::Attention => include_str!("wgsl/attention.wgsl").into(),
            Self::Probe(operation) => include_str!("wgsl/probe.wgsl").replace("OPERATION", operation),
        };
        let mut source = String::from(include_str!("wgsl/pass.wgsl"));
        source += include_str!("wgsl/integers.wgsl");
        for (name, value) in math::CONSTANTS {
            let _ = writeln!(source, "const {name}: f32 = {value:e}f;");
        }
        source += match arithmetic.keeps_subnormals {
            true => include_str!("wgsl/native.wgsl"),
            false => include_str!("wgsl/exact.wgsl"),
        };
        source += match arithmetic.fused {
            true => include_str!("wgsl/fused.wgsl"),
            false => include_str!("wgsl/emulated.wgsl"),
        };
        source += include_str!("wgsl/math.wgsl");
        source + &own
    }
}

fn row(make: &str) -> String {
    include_str!("wgsl/row.wgsl").replace("//MAKE", make)
}
