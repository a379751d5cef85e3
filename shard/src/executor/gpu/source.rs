//! WGSL from templates: one file per operation under `wgsl/`, put together with the arithmetic of the device.
//!
//! Every shader begins with what a pass says of itself, arithmetic on bits, addition and products as the device rounds them, and
//! the elementary functions of [`crate::kernels::math`], whose constants are written from there.

use std::fmt::Write;

use super::formats::DeviceFormat;
use crate::{
    kernels::{KvShape, math},
    models::Activation,
};

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
    /// What a sublayer made, normed or not, added to the residual row.
    After,
    /// Matrices times rows.
    Matmul {
        /// The weight format by its GGUF number.
        ggml_type: u32,
        /// Rows at once.
        rows: u32,
        /// Which matrix each row meets.
        places: Places,
    },
    /// Which experts rows visit, and their weights.
    Route,
    /// Norms over all heads of queries and over all heads of keys.
    WideNorms,
    /// Norm, rotation and storing of heads.
    Heads,
    /// What latent attention stores, and the part of its queries that rotates.
    LatentHeads,
    /// Attention over pages.
    Attention {
        /// Whether scores are capped.
        capped: bool,
        /// Heads may be as wide as a latent.
        wide: bool,
    },
    /// A causal convolution, and what a recurrence reads beside it.
    Convolve(Convolution),
    /// The recurrence of a gated delta net.
    Delta,
    /// The recurrence of Mamba2.
    Mamba2,
    /// What a recurrence gives, normed, gated and rounded.
    GatedHeads,
    /// What attention gives times the sigmoid of its gate, and the row rounded.
    Sigmoid,
    /// The largest values of rows.
    Top,
    /// All bytes of a buffer, read.
    Read,
    /// One float operation on many operands.
    Probe(&'static str),
}

/// Widest head of the narrow kernel of attention.
const NARROW_HEAD: usize = 256;

/// Attention over pages as its kernel is told of it.
pub(super) struct Attending {
    /// Query heads.
    pub heads: usize,
    pub shape: KvShape,
    /// The number of the arena.
    pub arena: u32,
    /// Words of a position in a page.
    pub words: u32,
    pub window: Option<usize>,
    pub scale: f32,
    pub softcap: Option<f32>,
    pub has_sinks: bool,
}

impl Attending {
    /// The kernel that is wide enough.
    pub fn kernel(&self) -> Kernel {
        let wide = self.shape.latent.is_some() || self.shape.head_dim > NARROW_HEAD;
        Kernel::Attention { capped: self.softcap.is_some(), wide }
    }

    /// Its parameters, as `wgsl/attention.wgsl` names them.
    pub fn params(&self) -> [u32; 11] {
        let sizes = [self.heads, self.shape.kv_heads, self.shape.head_dim, self.shape.value_dim()];
        let [heads, kv_heads, dim, value] = sizes.map(|size| size as u32);
        // A value that is the end of its key is read there; others lie behind all keys.
        let value_at = if self.shape.latent.is_some() { (dim - value) / 2 } else { self.words / 2 };
        [
            heads,
            kv_heads,
            dim,
            self.arena,
            self.window.map_or(u32::MAX, |window| window as u32),
            self.scale.to_bits(),
            self.softcap.map_or(0, f32::to_bits),
            u32::from(self.has_sinks),
            self.words,
            value_at,
            value,
        ]
    }
}

/// What is convolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Convolution {
    Delta,
    Mamba2,
    Short,
}

impl Convolution {
    fn source(self) -> &'static str {
        match self {
            Self::Delta => include_str!("wgsl/convolve_delta.wgsl"),
            Self::Mamba2 => include_str!("wgsl/convolve_mamba2.wgsl"),
            Self::Short => include_str!("wgsl/convolve_short.wgsl"),
        }
    }
}

/// A nonlinearity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Curve {
    Silu,
    Gelu,
    ReluSquared,
    /// Of two rows only.
    ClampedSwiglu,
}

/// Which matrix the rows of a product meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Places {
    /// The one that there is.
    Rows,
    /// Those of the experts that each row visits: a row for each visit.
    Visits,
    /// Those of the experts, each with the row of its visit: their weighted sum.
    Experts,
    /// Those of the heads: a row for each head.
    Heads,
}

impl Places {
    fn source(self) -> &'static str {
        match self {
            Self::Rows => include_str!("wgsl/places_rows.wgsl"),
            Self::Visits => include_str!("wgsl/places_visits.wgsl"),
            Self::Experts => include_str!("wgsl/places_experts.wgsl"),
            Self::Heads => include_str!("wgsl/places_heads.wgsl"),
        }
    }
}

impl Curve {
    /// The one of `activation`, if the device has it.
    pub fn of(activation: Activation) -> Option<Self> {
        match activation {
            Activation::GatedSilu => Some(Self::Silu),
            Activation::GatedGelu | Activation::Gelu => Some(Self::Gelu),
            Activation::GatedReluSquared | Activation::ReluSquared => Some(Self::ReluSquared),
            Activation::ClampedSwiglu => Some(Self::ClampedSwiglu),
            Activation::SparseGelu(_) => None,
        }
    }

    fn function(self) -> &'static str {
        match self {
            Self::Silu => "f_silu",
            Self::Gelu => "f_gelu",
            Self::ReluSquared => "f_relu_squared",
            Self::ClampedSwiglu => "f_clamped_swiglu",
        }
    }

    /// What becomes of `gate` and `up`.
    fn of_two(self) -> String {
        match self {
            Self::ClampedSwiglu => format!("{}(gate, up)", self.function()),
            _ => format!("f_mul({}(gate), up)", self.function()),
        }
    }
}

impl Kernel {
    /// How its bindings are used, in order: `r` read, `w` read and written.
    pub fn bindings(self) -> &'static str {
        match self {
            Self::Norm { .. } | Self::Gate(_) | Self::Curve(_) | Self::Copy => "rrrrwwww",
            Self::GatedHeads | Self::Sigmoid => "rrrrwwww",
            Self::Matmul { .. } => "rrrrrrrw",
            Self::After | Self::Top | Self::Route => "rrrrw",
            Self::WideNorms => "rrrw",
            Self::Heads => "rrrrrww",
            Self::LatentHeads => "rrrrrrww",
            Self::Attention { .. } => "rrrrrw",
            Self::Convolve(_) => "rrrrwww",
            Self::Delta => "rrrrww",
            Self::Mamba2 => "rrrrrww",
            Self::Read | Self::Probe(_) => "rrrw",
        }
    }

    /// The whole shader for a device of this arithmetic.
    pub fn source(self, arithmetic: Arithmetic) -> String {
        let own = match self {
            Self::Norm { center } => {
                let make = include_str!("wgsl/row_norm.wgsl");
                row(make).replace("CENTER", if center { "true" } else { "false" })
            }
            Self::Gate(curve) => row(include_str!("wgsl/row_gate.wgsl")).replace("CURVE", &curve.of_two()),
            Self::Curve(curve) => row(include_str!("wgsl/row_curve.wgsl")).replace("CURVE", curve.function()),
            Self::Copy => row(include_str!("wgsl/row_copy.wgsl")),
            Self::GatedHeads => row(include_str!("wgsl/row_heads.wgsl")),
            Self::Sigmoid => row(include_str!("wgsl/row_sigmoid.wgsl")),
            Self::Route => include_str!("wgsl/route.wgsl").into(),
            Self::Matmul { ggml_type, rows, places } => matmul(ggml_type, rows, places),
            Self::After => include_str!("wgsl/after.wgsl").into(),
            Self::WideNorms => include_str!("wgsl/wide_norms.wgsl").into(),
            Self::Heads => concat!(include_str!("wgsl/turn.wgsl"), include_str!("wgsl/heads.wgsl")).into(),
            Self::LatentHeads => {
                concat!(include_str!("wgsl/turn.wgsl"), include_str!("wgsl/latent_heads.wgsl")).into()
            }
            Self::Attention { capped, wide } => {
                let softcap = if capped { include_str!("wgsl/softcap.wgsl") } else { "" };
                let (query, columns) = if wide { ("640", "8u") } else { ("256", "4u") };
                let source = include_str!("wgsl/attention.wgsl").replace("//SOFTCAP", softcap);
                source.replace("QUERY", query).replace("COLUMNS", columns)
            }
            Self::Convolve(what) => {
                let source = include_str!("wgsl/convolve.wgsl").replace("//KIND", what.source());
                format!("{}{source}", include_str!("wgsl/vector.wgsl"))
            }
            Self::Delta => concat!(include_str!("wgsl/vector.wgsl"), include_str!("wgsl/delta.wgsl")).into(),
            Self::Mamba2 => {
                concat!(include_str!("wgsl/vector.wgsl"), include_str!("wgsl/mamba2.wgsl")).into()
            }
            Self::Top => include_str!("wgsl/top.wgsl").into(),
            Self::Read => include_str!("wgsl/read.wgsl").into(),
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

/// A product with matrices of a format, `rows` rows at once.
fn matmul(ggml_type: u32, rows: u32, places: Places) -> String {
    let format = DeviceFormat::of(ggml_type).map(|format| format.source).unwrap_or_default();
    let (shared, chain) = match format.contains("fn fetch") {
        true => (include_str!("wgsl/integer.wgsl"), include_str!("wgsl/chain_integer.wgsl")),
        false => ("", include_str!("wgsl/chain_float.wgsl")),
    };
    include_str!("wgsl/matmul.wgsl")
        .replace("//FORMAT", &format!("{shared}\n{format}"))
        .replace("//PLACES", places.source())
        .replace("//CHAIN", chain)
        .replace("ROWS", &format!("{rows}u"))
}

fn row(make: &str) -> String {
    include_str!("wgsl/row.wgsl").replace("//MAKE", make)
}
