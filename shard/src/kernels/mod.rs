//! Inner loops: written once over [`simd::Simd`], the same bits on every instruction set and thread count.

#[cfg(target_arch = "x86_64")]
mod amx;
pub mod attention;
mod cpu;
pub mod math;
pub mod matmul;
pub mod matrix;
pub mod panel;
pub mod simd;
pub mod threads;
pub mod vector;

pub use attention::{AttentionJob, KvPage, KvShape, PAGE, page_len};
pub use cpu::{Cpu, Isa, Kernel};
pub use vector::Pairing;
