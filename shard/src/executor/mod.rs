//! What runs the layers of a model: one module per executor.
//!
//! [`cpu`] is the one with kernels of its own and class `d1`, [`candle`](mod@candle) (a feature) runs the same blueprints on candle's
//! tensors and devices as class `approx`, [`mod@reference`] is the readable oracle.

#[cfg(feature = "candle")]
pub mod candle;
pub mod cpu;
pub mod reference;

pub use crate::gguf::Ends;
pub use cpu::{
    Capacity, Chain, Input, Item, Mean, Options, Output, Shard, Workspace, argmax, fingerprint, whole_range,
};
