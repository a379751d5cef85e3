//! Inner loops: written once over [`simd::Simd`], the same bits on every instruction set and thread count.

mod activations;
mod amx;
pub mod attention;
pub mod conv;
mod cpu;
pub mod delta;
mod file_at;
mod groups;
mod inputs;
mod isa;
mod job;
mod layouts;
pub mod mamba2;
pub mod math;
pub mod matmul;
pub mod matrix;
pub mod panel;
pub mod panel_file;
mod processors;
mod read;
pub mod simd;
mod slab;
pub mod threads;
mod tile;
pub mod vector;

pub use activations::Activations;
pub use attention::{
    AttentionJob, Far, KvQuarter, KvShape, PAGE, QUARTER, gone_quarter, new_quarter, quarter_len,
};
pub use conv::ConvJob;
pub(crate) use conv::by_tap;
pub use cpu::Cpu;
pub use delta::{DeltaInputs, DeltaJob, DeltaShape};
pub use inputs::{Inputs, Mark, Seen};
pub use isa::{Isa, Kernel};
pub use mamba2::{Mamba2Gate, Mamba2Inputs, Mamba2Job, Mamba2Shape};
pub use matmul::{Products, Target};
pub use matrix::Matrix;
pub use processors::Cores;
pub(crate) use read::time_reads;
pub use vector::Pairing;
